/* The base of every other layer: the context's memory, error text, log and threads. It must not
 * know tensors. dt_ctx begins with a dti_base; a layer that needs no more takes that. */

typedef struct dti_pool dti_pool;

/* An object that its owner ends if the application did not. It is the first member of a graph (in
 * its context's list) and of a store (in its graph's). Newest first. */
typedef struct dti_owned {
    struct dti_owned *next;
    void (*destroy)(struct dti_owned *self);
} dti_owned;

/* Names that a find did not have. The find returned -1. If a program uses that index unchecked, the
 * later error names the sought name. */
typedef struct dti_sought {
    const char *find; /* the function; NULL: none yet */
    char names[128], last[64];
} dti_sought;

typedef struct dti_base {
    dt_allocator allocator; /* never NULL: malloc's when the host gave none */
    dt_logger logger;
    dti_pool *pool;
    uint64_t bytes_now, bytes_peak; /* host memory through the allocator */
    uint64_t alloc_calls;           /* a program's run must not move this */
    dti_owned *owned;               /* graphs */
    _Atomic(const void *) owner;    /* enter.c: the thread whose call is under way; NULL: none */
    _Atomic(const char *) refused;  /* a function without a result that was refused since then */
    _Atomic(uint32_t) refusals;     /* how many calls of this kind there were */
    dt_on_error on_error;
    long process;                /* that made it; a child of fork has a copy */
    const volatile int *at_home; /* not 0 in that process; NULL: compare the numbers */
    dt_result result;            /* of the newest failure */
    char error[1024];            /* its text */
    const char *io_how;          /* what to do about an IO error: its text ends with this; NULL:
                                  * none */
    dti_sought sought;
} dti_base;

/* dt_ctx begins with its dti_base (asserted in backend/context.c). */
static inline dti_base *dti_ctx_base(dt_ctx *ctx) {
    return (dti_base *)(void *)ctx;
}

/* A field's value: DT_ZERO is 0, and 0 the default. No other code knows DT_ZERO. */
static inline double dti_or(double value, double otherwise) {
    if (value == (double)DT_ZERO)
        return 0.0;
    return value != 0.0 ? value : otherwise;
}

/* Whether it is finite, also as a float. By its bits: compilers may assume that there is no NaN. */
static inline bool dti_fits_f32(double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (bits & 0x7fffffffffffffffull) <= 0x47efffffe0000000ull; /* FLT_MAX */
}

/* Numbers as bytes of files and frames: little-endian, and big-endian. */
static inline uint32_t dti_get16(const uint8_t *from) {
    return from[0] | (uint32_t)from[1] << 8;
}
static inline uint32_t dti_get32(const uint8_t *from) {
    return dti_get16(from) | dti_get16(from + 2) << 16;
}
static inline uint64_t dti_get64(const uint8_t *from) {
    return dti_get32(from) | (uint64_t)dti_get32(from + 4) << 32;
}
static inline uint32_t dti_get16_be(const uint8_t *from) {
    return (uint32_t)from[0] << 8 | from[1];
}
static inline uint32_t dti_get32_be(const uint8_t *from) {
    return dti_get16_be(from) << 16 | dti_get16_be(from + 2);
}
static inline void dti_put16(uint8_t *to, uint32_t value) {
    to[0] = (uint8_t)value;
    to[1] = (uint8_t)(value >> 8);
}
static inline void dti_put32(uint8_t *to, uint32_t value) {
    dti_put16(to, value);
    dti_put16(to + 2, value >> 16);
}
static inline void dti_put64(uint8_t *to, uint64_t value) {
    dti_put32(to, (uint32_t)value);
    dti_put32(to + 4, (uint32_t)(value >> 32));
}

static inline char dti_lower(char c) { /* only ASCII: the locale must not matter */
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

/* ---- enter.c: which thread is in the library. A public function on an object is written
 *
 *     DTI_PUBLIC(dt_store_save, (dt_store *s, const char *path), s, DTI_OF(dt_store), (s, path)) {
 *
 * which defines dt_store_save: it takes the object's base for this thread, sets the library's
 * floating-point modes, and runs the body that follows, dti_call_dt_store_save. A refused call
 * (DT_ERROR_BUSY) runs the body with NULL for the object, and returns its result. A call from
 * inside the library runs only the body. */
typedef enum dti_where {
    DTI_IN_LIBRARY,
    DTI_IN_FIT,     /* the host's code, called by dt_trainer_fit between two steps */
    DTI_IN_VALUES,  /* called for values (a sample, a rate): with the library's modes */
    DTI_IN_CALLBACK /* called with the host's own modes: a logger, an allocator */
} dti_where;

#if defined __aarch64__
typedef uint64_t dti_fp_modes; /* and the exceptions that have occurred, in the upper half */
#else
typedef unsigned dti_fp_modes;
#endif

/* A public call, or the host's code that one calls; on the thread's stack, newest first. */
typedef struct dti_visit {
    struct dti_visit *below;
    dti_base *base; /* NULL: it has no base, or the call has ended it */
    dti_base *also; /* another base of the call: that of a trainer's comm; NULL: none */
    const char *name;
    bool (*uses)(const void *by, const void *object); /* objects that a callback of a fit must not
                                                       * end */
    const void *by;
    dti_fp_modes modes; /* to restore: of a call, the host's */
    dti_where place;
    int entry; /* enter.c's */
    bool owns_also;
} dti_visit;
DTI_SEAM DTI_THREAD_LOCAL dti_visit *dti_visits;

/* `how` of a call: where the object has its base, and which callbacks of that base may make it. By
 * default, those of dt_trainer_fit may. */
#define DTI_OF(type) ((unsigned)offsetof(type, base))
#define DTI_CTX 0xFFFu
#define DTI_UNUSED 0x1000u   /* also there, unless the fit uses the object */
#define DTI_READS 0x2000u    /* from every callback, on the thread of the call under way */
#define DTI_TELLS 0x4000u    /* its result says that it was refused */
#define DTI_LACKING 0x10000u /* it runs without an object, too */
#define DTI_WITH 0x8000u /* it needs a second base, whose pointer, or NULL, follows the base's */
/* The object, or NULL: refused. */
static void *dti_enter(const void *object, dti_visit *f, unsigned how, const char *name);
/* Returns the result of the call: BUSY or FORKED where it was refused. */
static dt_result dti_leave(dti_visit *f, dt_result result);
/* The base's memory is about to go: calls that are under way leave it alone. */
static void dti_base_end(dti_base *base);

/* Frees memory that the application got from a function. False: the call was refused. */
static bool dti_free_public(dt_ctx *ctx, void *memory, const char *name);

/* Around a call of the host's code. base: the one that this call must not use any more; NULL: those
 * under way on this thread. */
static void dti_visit_host(dti_visit *f, dti_base *base, dti_where place);
static void dti_visit_returned(const dti_visit *f);
/* A thread of the library begins to work for calls of this base; NULL: of no base. */
static void dti_visit_join(dti_visit *f, dti_base *base);

/* Without its object a call is only INVALID; without a result it does nothing. */
#define DTI_PUBLIC(name, params, object, how, args)                                                \
    DTI_PUBLIC_RUNS(name, params, object, how, args, (void)0)
/* It fills in *report if it can: zeros, where it fails before. */
#define DTI_PUBLIC_REPORT(name, params, object, how, args)                                         \
    DTI_PUBLIC_RUNS(name, params, object, how, args, if (report) memset(report, 0, sizeof *report))
#define DTI_PUBLIC_RUNS(name, params, object, how, args, first)                                    \
    static dt_result dti_call_##name params;                                                       \
    DT_API dt_result name params {                                                                 \
        dti_visit visit;                                                                           \
        first;                                                                                     \
        object = dti_enter(object, &visit, (how) | DTI_TELLS, #name);                              \
        dt_result result = DT_ERROR_INVALID;                                                       \
        if (!DTI_HERE)                                                                             \
            result = dti_fail_off(object ? visit.base : NULL, #name, DTI_HERE_OFF);                \
        else if ((object) || (how)&DTI_LACKING)                                                    \
            result = dti_call_##name args;                                                         \
        return dti_leave(&visit, result);                                                          \
    }                                                                                              \
    static dt_result dti_call_##name params
/* Its result goes to *out: zeros if it fails. */
#define DTI_PUBLIC_OUT(name, params, object, how, args)                                            \
    DTI_PUBLIC_GIVES(name, params, object, how, args, (void)0)
/* *out is an object that it makes, as early as it likes: where it fails, that is destroyed. */
#define DTI_PUBLIC_NEW(name, params, object, how, args, destroy)                                   \
    DTI_PUBLIC_GIVES(name, params, object, how, args, if (*out) destroy(*out); *out = NULL)
#define DTI_PUBLIC_GIVES(name, params, object, how, args, undo)                                    \
    static dt_result dti_call_##name params;                                                       \
    DT_API dt_result name params {                                                                 \
        dti_visit visit;                                                                           \
        if (out)                                                                                   \
            memset(out, 0, sizeof *out);                                                           \
        object = dti_enter(object, &visit, (how) | DTI_TELLS, #name);                              \
        dt_result result = DT_ERROR_INVALID;                                                       \
        if (!DTI_HERE)                                                                             \
            result = dti_fail_off(object ? visit.base : NULL, #name, DTI_HERE_OFF);                \
        else if (object)                                                                           \
            result = out ? dti_call_##name args : dti_fail_null(visit.base, "out");                \
        if (result && out) {                                                                       \
            undo;                                                                                  \
        }                                                                                          \
        return dti_leave(&visit, result);                                                          \
    }                                                                                              \
    static dt_result dti_call_##name params
#define DTI_PUBLIC_VOID(name, params, object, how, args)                                           \
    DTI_PUBLIC_DOES(name, params, object, how, args, (void)0)
/* Fills in *info, with zeros without an object. */
#define DTI_PUBLIC_INFO(name, params, object, how, args)                                           \
    DTI_PUBLIC_DOES(name, params, object, how, args, if (!info) return;                            \
                    memset(info, 0, sizeof *info))
#define DTI_PUBLIC_DOES(name, params, object, how, args, first)                                    \
    static void dti_call_##name params;                                                            \
    DT_API void name params {                                                                      \
        dti_visit visit;                                                                           \
        first;                                                                                     \
        object = dti_enter(object, &visit, how, #name);                                            \
        if (DTI_HERE && object)                                                                    \
            dti_call_##name args;                                                                  \
        dti_leave(&visit, DT_OK);                                                                  \
    }                                                                                              \
    static void dti_call_##name params
#define DTI_PUBLIC_GET(type, name, params, object, how, args)                                      \
    static type dti_call_##name params;                                                            \
    DT_API type name params {                                                                      \
        dti_visit visit;                                                                           \
        object = dti_enter(object, &visit, how, #name);                                            \
        type given = dti_call_##name args;                                                         \
        dti_leave(&visit, DT_OK);                                                                  \
        return given;                                                                              \
    }                                                                                              \
    static type dti_call_##name params

/* ---- memory.c: zeroed, 64-byte aligned; the size is stored before the block. NULL after
 * dti_fail(). */
/* Sets up *base, which needs no memory. allocator and logger may be NULL; the pool comes later. */
static void dti_base_init(dti_base *base, const dt_allocator *allocator, const dt_logger *logger);
static void *dti_alloc(dti_base *base, size_t bytes);
static void *dti_alloc_array(dti_base *base, size_t count, size_t size); /* checks the product */
static char *dti_alloc_text(dti_base *base, const char *text);           /* a copy */
static void dti_free(dti_base *base, void *memory);                      /* NULL is fine */
/* All of a list; the object that has the others in it, and the base, may be the last. */
#define DTI_FREE(base, ...)                                                                        \
    dti_free_all((base), (void *[]){__VA_ARGS__}, sizeof((void *[]){__VA_ARGS__}) / sizeof(void *))
static void dti_free_all(dti_base *base, void *const *all, size_t count);

/* The arguments of this function after `format`, as text in an array. */
#define DTI_FORMAT(to, format)                                                                     \
    do {                                                                                           \
        va_list list;                                                                              \
        va_start(list, format);                                                                    \
        vsnprintf((to), sizeof(to), format, list);                                                 \
        va_end(list);                                                                              \
    } while (0)

/* In a child of fork memory is valid, but threads, devices and sockets are the parent's. There the
 * library waits for nothing, locks nothing and calls no driver. It only frees memory. */
static bool dti_forked(const dti_base *base);
/* DT_OK, or FORKED with a text. Functions that compute, move values or ask a driver begin with
 * it. */
static dt_result dti_check_forked(dti_base *base);

static void dti_own(dti_owned **list, dti_owned *item, void (*destroy)(dti_owned *self));
static void dti_disown(dti_owned **list, dti_owned *item); /* nothing when it is not in it */
static void dti_destroy_owned(dti_owned **list);           /* all; each removes itself */

/* ---- error.c: dti_fail records "text" (printf style), logs it at ERROR and returns `result`. */
static dt_result dti_fail(dti_base *base, dt_result result, const char *format, ...)
    DTI_PRINTF(3, 4);
/* The beginning of a public function. A missing pointer is INVALID, and the text names function and
 * pointer: "dt_store_write: data is NULL". base: the object that holds the text; NULL: there is no
 * object. */
#define DTI_NEED(base, pointer)                                                                    \
    do {                                                                                           \
        if (!(pointer))                                                                            \
            return dti_fail_null((base), #pointer);                                                \
    } while (0)
static dt_result dti_fail_null(dti_base *base, const char *what);
/* The result of a function whose feature was left out (optional.h). base: NULL = none. */
static dt_result dti_fail_off(dti_base *base, const char *function, const char *why);
/* A step of a sequence: the first that fails ends the function, with its result. If something must
 * be freed before that, `if (!result)` guards each further step. */
#define DTI_TRY(...)                                                                               \
    do {                                                                                           \
        const dt_result tried = (__VA_ARGS__);                                                     \
        if (tried)                                                                                 \
            return tried;                                                                          \
    } while (0)
/* The same of memory that was asked for. */
#define DTI_HAVE(memory)                                                                           \
    do {                                                                                           \
        if (!(memory))                                                                             \
            return DT_ERROR_MEMORY;                                                                \
    } while (0)
/* The name of the public function that the host has called. */
static const char *dti_function(void);
/* The text where no object is that could hold one. */
static const char dti_no_object[] =
    "no object holds an error text: its pointer is NULL, or it could not be created; give "
    "dt_result_text() what the call returned";

static void dti_log(dti_base *base, dt_log_level level, const char *format, ...) DTI_PRINTF(3, 4);

/* ---- text.c: bounded string building that ignores the locale (no %f: '.' may be ','). */
typedef struct dti_text { /* a growing string; ok turns false when memory ran out */
    dti_base *base;
    char *data;
    size_t size, capacity;
    bool ok;
} dti_text;
static inline dti_text dti_text_open(dti_base *base) {
    return (dti_text){.base = base, .ok = true};
}
static void dti_text_add(dti_text *text, const char *format, ...) DTI_PRINTF(2, 3);
/* shortest that reads back, C locale; nan, inf, -inf */
static void dti_text_add_number(dti_text *text, double value);
static void dti_text_add_bytes(dti_text *text, const void *data, size_t bytes);
/* as it is written between a JSON string's quotes */
static void dti_text_add_quoted(dti_text *text, const char *data, size_t size);
static void dti_text_free(dti_text *text);
/* '*' and '?'. Commas separate patterns; blanks around them are ignored. */
static bool dti_glob(const char *pattern, const char *name);
/* The same of one pattern, [pattern, end). */
static bool dti_glob_one(const char *pattern, const char *end, const char *name);
/* The next pattern of *list, [*pattern, *end), which may be empty. *list moves past it. False: the
 * list has ended. */
static bool dti_glob_next(const char **list, const char **pattern, const char **end);
/* A text for a message: cut to fit, with control characters as \\x1a. */
typedef struct dti_shown {
    char text[96];
} dti_shown;
static dti_shown dti_show(const char *text);
static bool dti_utf8_valid(const char *data, size_t size);
/* UTF-8, not empty, without control characters. */
static bool dti_name_fits(const char *name);

/* ---- sought.c */
typedef const char *dti_name_fn(const void *object, uint32_t i);
typedef struct dti_hint {
    char text[512];
} dti_hint;
/* `find` has no such name, which may be NULL. Returns -1. */
static int dti_sought_none(dti_base *base, const char *find, const char *name);
/* Finds the first pattern of a list that matches no name, or an empty list. The hint names the
 * pattern and the names there are; it is empty if each pattern matches. what: the kind of object
 * that has names. A name may be NULL: it is skipped. */
static dti_hint dti_glob_missed(const char *list, const char *what, const void *object,
                                uint32_t count, dti_name_fn *name);
/* The hint for an error about a wrong index. For -1: the name that was sought, the nearest name,
 * and some names. For other indices it is empty. */
static dti_hint dti_sought_hint(dti_base *base, const char *find, int index, const void *object,
                                uint32_t count, dti_name_fn *name);

/* ---- array.c: room for `count` items of `size` bytes, by doubling; new ones are zero; false = no
 * memory, and nothing changed. `items` is the address of a pointer to them. */
static bool dti_array_reserve(dti_base *base, void *items, size_t *capacity, size_t count,
                              size_t size);
#define DTI_RESERVE(base, items, capacity, count)                                                  \
    dti_array_reserve((base), &(items), &(capacity), (count), sizeof *(items))

/* ---- threads.c: the pool. threads: 0 or 1 = none but the caller's, or DT_THREADS_ALL. With a job
 * system the host's threads do the work. dti_parallel_for cuts [0, count) into pieces of at least
 * `grain` and calls fn(arg, begin, end, worker) with 0 <= worker < dti_pool_threads(); it never
 * allocates, and each worker has the floating-point control register set to IEEE (round to nearest,
 * denormals kept) while in fn. */
static dt_result dti_pool_create(dti_base *base, int threads, const dt_job_system *jobs,
                                 dti_pool **out);
static void dti_pool_destroy(dti_base *base, dti_pool *pool);
static int dti_pool_threads(const dti_pool *pool);
/* For work that needs a deep stack: the pool, or NULL if its threads are the host's. */
static dti_pool *dti_pool_own(dti_pool *pool);
typedef void dti_range_fn(void *arg, int64_t begin, int64_t end, int worker);
static void dti_parallel_for(dti_pool *pool, int64_t count, int64_t grain, dti_range_fn *fn,
                             void *arg);
/* Sets the library's modes: round to nearest, denormals kept, no traps. Returns the old modes and
 * flags. The outermost public call does this (enter.c), and each thread of the library. */
static dti_fp_modes dti_fp_enter(void);
/* The same, but that denormals are zero, as operands and as results. */
static dti_fp_modes dti_fp_flush(void);
static void dti_fp_leave(dti_fp_modes saved);

/* ---- rng.c: Philox4x32-10 (Salmon et al., SC'11): counter-based, the same on every backend. */
typedef struct dti_u32x4 {
    uint32_t v[4];
} dti_u32x4;
static dti_u32x4 dti_philox(uint64_t key, uint64_t counter, uint64_t stream_and_step);
static double dti_ln(double x);  /* natural logarithm, the same bits on every machine; x > 0 */
static double dti_exp(double x); /* e^x, likewise, to 2e-13 of it; at most e^700 */
static double dti_uniform01(uint64_t key, uint64_t counter, uint64_t stream); /* [0,1), 53 bits */
static double dti_normal(uint64_t key, uint64_t counter, uint64_t stream);    /* N(0,1) */
/* The steps of the two functions, for callers that need many: 53 bits of a counter's words; the
 * uniform made of them. And the p in (0,1) whose quantile the normal is. */
static inline uint64_t dti_bits53(const uint32_t words[2]) {
    return ((uint64_t)words[1] << 32 | words[0]) >> 11;
}
static inline double dti_uniform_of(uint64_t bits53) {
    return (double)bits53 * 0x1p-53;
}
static inline double dti_normal_p_of(uint64_t bits53) {
    return ((double)(bits53 >> 1) + 0.5) * 0x1p-52;
}
static double dti_normal_quantile(double p);

/* ---- hash.c: FNV-1a 64, start 14695981039346656037 */
static uint64_t dti_hash64(uint64_t hash, const void *data, size_t bytes);
/* CRC-32 of PNG and ZIP: of the earlier bytes (crc; 0 at the start) and these. */
static uint32_t dti_crc32(uint32_t crc, const void *data, size_t bytes);

/* ---- crc32c.c: CRC32C of the earlier bytes (crc; 0 at the start) and these. */
static uint32_t dti_crc32c(uint32_t crc, const void *data, size_t bytes);

/* ---- sha256.c */
typedef struct dti_sha256 {
    uint32_t h[8];
    uint64_t bytes;
    uint8_t block[64];
} dti_sha256;
static void dti_sha256_init(dti_sha256 *s);
static void dti_sha256_add(dti_sha256 *s, const void *data, size_t bytes);
static void dti_sha256_end(dti_sha256 *s, uint8_t digest[32]);

/* ---- hmac.c: functions for secrets. A key is prepared once; 55 bytes then cost two
 * compressions. */
typedef struct dti_hmac_key { /* as secret as its source */
    uint32_t inner[8], outer[8];
} dti_hmac_key;
static void dti_hmac_prepare(dti_hmac_key *key, const void *secret, size_t bytes);
static void dti_hmac(const dti_hmac_key *key, const void *data, size_t bytes, uint8_t tag[32]);
/* The same of several pieces: begin, dti_sha256_add of each, end. */
static void dti_hmac_begin(dti_sha256 *s, const dti_hmac_key *key);
static void dti_hmac_end(dti_sha256 *s, const dti_hmac_key *key, uint8_t tag[32]);
/* HKDF-SHA256; salt and info may be empty. out_bytes: at most 255 * 32. */
static void dti_hkdf(const void *secret, size_t secret_bytes, const void *salt, size_t salt_bytes,
                     const void *info, size_t info_bytes, void *out, size_t out_bytes);
static bool dti_equal_secret(const void *a, const void *b, size_t bytes); /* in constant time */
static void dti_wipe(void *memory, size_t bytes); /* zeros that no compiler leaves out */

/* ---- half.c: 16-bit conversion; round to nearest even, NaN stays NaN. */
static float dti_f32_from_f16(uint16_t bits);
static float dti_f32_from_bf16(uint16_t bits);
static uint16_t dti_bf16_from_f32(float value);

/* ---- json.c: a reader over bytes that may be hostile; nothing is copied, the depth is bounded. */
typedef struct dti_json {
    const char *at, *end;
    int depth;
    bool fresh; /* just after '{' or '[': no comma comes first */
    bool bad;   /* for good: every call from here on returns false */
} dti_json;
/* string contents, escapes undecoded */
typedef struct dti_slice {
    const char *data;
    size_t size;
} dti_slice;
static inline dti_json dti_json_open(const char *data, size_t size) {
    return (dti_json){.at = data, .end = data + size};
}
static bool dti_json_object(dti_json *j); /* consumes '{'; false = bad */
/* false at '}' (consumed) or when bad */
static bool dti_json_next_key(dti_json *j, dti_slice *key);
static bool dti_json_array(dti_json *j);     /* consumes '[' */
static bool dti_json_next_item(dti_json *j); /* false at ']' (consumed) or when bad */
/* a whole number without sign; overflow = bad */
static bool dti_json_u64(dti_json *j, uint64_t *value);
static bool dti_json_string(dti_json *j, dti_slice *value);
static bool dti_json_skip(dti_json *j); /* any value */
static char dti_json_peek(dti_json *j); /* the next character, white space aside; 0: the end, or
                                         * bad */
static bool dti_json_done(dti_json *j); /* only white space is left, and not bad */
static inline bool dti_slice_is(dti_slice s, const char *text) {
    return s.size == strlen(text) && memcmp(s.data, text, s.size) == 0;
}

/* ---- file.c: reads regular files, piece by piece; the size is known before. Writing goes to
 * "path.tmp.PID.RANDOM", a new file. That is flushed and renamed, so a crash or a full disk never
 * leaves half a file under `path`. Links are followed, and the new file gets the old one's
 * permissions. */
typedef struct dti_reader {
    dti_base *base;
    const char *path; /* for messages; the caller's */
    uint64_t size, at;
    int stream; /* system/file.h */
} dti_reader;
/* IO: the file does not exist, or is not a regular one. Nothing is open then. */
static dt_result dti_reader_open(dti_base *base, const char *path, dti_reader *r);
/* The next bytes. IO: also when fewer are left. */
static dt_result dti_reader_take(dti_reader *r, void *to, size_t bytes);
/* The same into memory of the base's, followed by a zero. Check `bytes` with r->size first. */
static dt_result dti_reader_take_new(dti_reader *r, uint64_t bytes, char **out);
static dt_result dti_reader_seek(dti_reader *r, uint64_t at);
static void dti_reader_close(dti_reader *r);

typedef struct dti_writer dti_writer;
/* bytes: the final size, for the text of a full disk; 0 = not known. */
static dt_result dti_writer_open(dti_base *base, const char *path, uint64_t bytes,
                                 dti_writer **out);
static dt_result dti_writer_add(dti_writer *w, const void *data, size_t bytes);
/* CRC32C of the bytes added since the opening, or since the last call of this function. */
static uint32_t dti_writer_take_crc(dti_writer *w);
/* IO also if an earlier dti_writer_add failed. keep=false removes the temporary, as an error does.
 * One error comes when the whole file exists already: its folder cannot be flushed. The text says
 * so. */
static dt_result dti_writer_close(dti_writer *w, bool keep);
/* All three, of a file that is in memory. */
static dt_result dti_file_write(dti_base *base, const char *path, const void *data, size_t bytes);
static dt_result dti_text_write(dti_text *text, const char *path); /* and frees the text */
/* The same. mode: of a file that replaces no other, before the umask; else 0666. */
static dt_result dti_file_write_as(dti_base *base, const char *path, unsigned mode,
                                   const void *data, size_t bytes);
/* UNSUPPORTED: where POSIX is hidden there are no folders. */
static dt_result dti_folders_check(dti_base *base, const char *path);
/* Creates a file and removes it again, to learn whether files can be created. `whose`: "the
 * log's". */
static dt_result dti_folder_probe(dti_base *base, const char *whose, const char *folder);
/* The regular file that writing to `path` would replace; its links stay. */
static void dti_file_remove(const char *path);

/* ---- grow.c: a file that grows by whole records: a record that cannot be written whole is
 * removed. */
typedef struct dti_growing {
    int stream;
    uint64_t size; /* the number of bytes in it */
    bool open;
} dti_growing;
/* Creates the file if needed. lines: an unfinished last line gets its end. */
static dt_result dti_grow_open(dti_base *base, const char *path, bool lines, dti_growing *file);
static dt_result dti_grow_add(dti_base *base, const char *path, dti_growing *file, const void *data,
                              size_t bytes);
/* The newest `bytes` are taken back. */
static void dti_grow_take_back(dti_growing *file, size_t bytes);
static void dti_grow_close(dti_growing *file);

/* ---- system/time.c */
static uint64_t dti_now_ns(void);     /* monotonic */
static double dti_unix_seconds(void); /* the time of day, UTC */

/* ---- system/process.c */
static bool dti_process_is_raised(void); /* it has more rights than the user who started it */
static long dti_process(void);           /* its number */
static bool dti_process_lives(long process);
/* A word that is not 0, but is 0 in a child of fork. Reading it takes no system call. NULL where
 * the system has no such memory. */
static const volatile int *dti_at_home_open(void);
static void dti_at_home_close(const volatile int *at_home); /* NULL is fine */
#define DTI_HUGE_PAGE ((size_t)2 << 20)
#define DTI_HUGE_MOST                                                                              \
    ((size_t)1 << 28) /* of a block; a larger one may have only few pages in
                                         * use */
static void dti_pages_huge(void *at, size_t bytes); /* asks for them where whole ones fit */
static void *dti_library_open(const char *name, const char **why);
static void *dti_library_find(void *library, const char *symbol);
static void dti_library_close(void *library);
/* One that is open stays in memory until the process ends, even if it is closed. */
static void dti_library_stay(const char *name);
static bool dti_random_bytes(void *to, size_t bytes); /* the system's; false = it has none */
