/* A store: the values of a graph's parameters on one device, and the arenas that its programs
 * share. The layout (lower/layout.h) has each parameter's place in them. */

/* A store's facts about a parameter's values and its optimizer's state. */
typedef struct dti_kept {
    uint8_t optim;     /* dt_optim_kind that keeps state for it; 0 = none yet */
    uint8_t bounded;   /* what is within `largest`: 0 = its values; also the given number of
                        * moments */
    uint8_t moments;   /* the most that an optimizer here keeps of it, without the average */
    bool rows;         /* the state's words say which rows of its gradient are 0; lower/sparse.c */
    uint64_t averaged; /* 1 + the step after which its average began; 0: no average yet */
    uint64_t from;     /* the number of the step that it counts from */
} dti_kept;

typedef struct dti_kept_code dti_kept_code;

struct dt_store {
    dti_owned owned; /* first */
    dt_graph *graph;
    dti_base *base;
    dti_device *device;
    dti_layout layout;
    dti_kept *kept; /* by parameter */
    uint64_t transient_bytes;
    uint32_t slots;       /* gradients: copies of the arena, see batch_slices.h; 0 = 1 */
    bool allow_nonfinite; /* in files */
    bool exchange;        /* the host reads and writes parameters and gradients during a step */
    bool trainer;         /* it is a trainer's: only the trainer trains and ends it */
    bool ranks;           /* other processes of its trainer have replicas too */
    bool written;         /* the application wrote to the trainer's store: the host's copy is old */
    uint64_t writes;      /* from outside of steps; dti_host_copy_stale counts them */
    dt_store *replica;    /* the trainer's next one here, which gets the same values */
    uint32_t moments;     /* arrays in the state arena: moments, followed by the average */
    uint64_t cache_bytes;
    dti_memory *memories[DTI_ARENAS]; /* TRANSIENT to CACHE; NULL until a program needs it */
    /* For programs with units (lower/units.c), in place of PARAM and GRADIENT: parameters and
     * gradients, each of unit_elements. */
    dti_memory *units[2];
    uint64_t unit_elements[2];
    /* Trained values lie elsewhere, with units or in other stores: PARAM is old, or NULL. */
    bool apart;
    /* The processor, if the host makes the update (offload.c). It has STATE, and parameters and
     * gradients of the own part and untrained values. NULL: the device does. */
    dti_device *host;
    dti_memory *own[2];
    dt_program *programs; /* alive, newest first */
    dti_kept_code *codes; /* codes.c's */
    dt_program *running;  /* between begin and end */
    dt_program *reading;  /* the same for programs of .concurrent */
    uint64_t steps;       /* committed */
    uint64_t seed;        /* of the initial values */
    dt_init_fn *init;     /* the application's, or NULL */
    void *init_user;
    struct dti_host_copy *host_copy;  /* host_copy.c's; NULL: none is kept */
    double largest[DTI_OPTIM_VALUES]; /* of the weights and moments of parameters with a bound */
    /* The sum in the gradient arena. The number of micro-batches in it, out of how many, and the
     * hash of its parameters. summed = 0: no sum to continue. */
    uint32_t summed, micros;
    uint64_t summed_params;
    bool empty; /* none of the summed micro-batches has had a target that counts */
};

/* ---- init.c: initial values */
typedef struct dti_fill {
    const dt_store *store;
    const dti_isa_kernels *kernels;
    const dti_node *param;
    uint64_t seed, at, made; /* out has elements [at, at + made) of the parameter */
    uint32_t stream;         /* its index */
    float *out;
} dti_fill;
/* With room for those of a store's parameters; close it, also after an error. MEMORY */
static dt_result dti_fill_open(const dt_store *s, dti_fill *f);
static void dti_fill_close(const dt_store *s, dti_fill *f);
/* The values of a parameter from element `at` on: n of them, valid until the next call. MEMORY */
static dt_result dti_fill_read(dti_fill *f, uint32_t param, uint64_t at, const float **values,
                               uint64_t *n);

/* ---- codes.c: the code of a description, made now or before. Give it back. */
static dt_result dti_code_take(dt_store *s, const dt_program_desc *desc,
                               const dti_batch_slices *batch_slices, const dti_staged *staged,
                               const dti_code **out);
static void dti_code_release(dt_store *s, const dti_code *code); /* NULL is fine */
static void dti_codes_free(dt_store *s);

/* ---- stored_values.c: values that a store keeps in fewer bits */
/* Whether array 0 (the values) or an array of the state has fewer bits. */
static inline bool dti_store_is_stored(const dt_store *s, uint32_t array) {
    return array ? s->layout.state != DT_STATE_F32 : s->layout.dtype != DT_F32;
}
/* UNSUPPORTED: the device has no kernels for them. */
static dt_result dti_stored_here(const dt_store *s, const dti_device *device);
/* From the first optimizer or file on, the moments have this type. INVALID: they have another. */
static dt_result dti_store_set_state(dt_store *s, dt_state_dtype state, const char *who);
static dt_result dti_stored_values_read(dt_store *s, uint32_t array, uint64_t at, uint64_t n,
                                        float *data);
static dt_result dti_stored_values_write(dt_store *s, uint32_t array, uint64_t at, uint64_t n,
                                         const float *data);
/* For a parameter, bytes from `at` on as they are stored; also for F32. */
static dt_result dti_stored_raw(dt_store *s, uint32_t array, const dti_param *p, uint64_t at,
                                void *data, uint64_t bytes, bool write);
/* For an array of bf16 that replicas shard: the same as in a store that has all of it. */
static dt_result dti_stored_hash(dt_store *s, uint32_t array, uint64_t *hash);
static dt_state_dtype dti_stored_type(const dt_store *s, uint32_t array, const dti_param *p);

/* ---- offload.c */
/* Before its programs are made: their updates will be the host's. */
static dt_result dti_store_offload(dt_store *s, bool one_thread);
static dt_result dti_offload_arenas(dt_store *s); /* own; MEMORY */
/* Makes STATE again, with the first `keep` bytes of the old one. */
static dt_result dti_offload_state(dt_store *s, uint64_t bytes, uint64_t keep);
static void dti_offload_free(dt_store *s);
/* The backend of an arena: STATE may be the host's. */
static inline const dti_backend *dti_store_backend(const dt_store *s, int arena) {
    return arena == DTI_ARENA_STATE && s->host ? s->host->backend : s->device->backend;
}

/* A store without arenas: programs make those that they need, with zeros. `apart` is for its maker.
 * On an error *out may be one, to be freed. */
static dt_result dti_store_create_bare(dt_graph *graph, const dt_store_desc *desc, dt_store **out);
/* PARAM if the store has none, and STATE if `state` is set. MEMORY */
static dt_result dti_store_arenas(dt_store *s, bool state);
/* Ends them, unless a program reads them. */
static void dti_store_arenas_drop(dt_store *s, bool state);
/* Makes an arena larger, with its first `keep` bytes; zeros after those. */
static dt_result dti_arena_grow(dt_store *s, dti_arena arena, uint64_t bytes, uint64_t keep);
static const char *dti_store_name(const void *store, uint32_t i); /* of parameter i */
#define DTI_HASH_START 14695981039346656037ull
/* Adds bytes of an arena to a hash. */
static dt_result dti_store_hash_range(dt_store *s, dti_arena arena, uint64_t offset, uint64_t bytes,
                                      uint64_t *hash);
static dt_result dti_store_idle(const dt_store *s); /* INVALID: a program has a step under way */
/* INVALID: the store has not the parameters now. */
static dt_result dti_store_whole(const dt_store *s);
/* Ends it, also when it is a trainer's. */
static void dti_store_free(dt_store *s);
/* INVALID: the store belongs to a trainer, which excludes `what` ("... would ..."). */
static dt_result dti_store_alone(const dt_store *s, const char *what);

/* The kind of optimizer of the programs that train a parameter now; 0 = none. */
static uint8_t dti_store_optim(const dt_store *s, uint32_t param);
/* Zeros moments and counts, and no sum can be continued. Parameters belong to the optimizers of the
 * existing programs. The caller brings the zeros, so memory never runs out between two changes. */
enum { DTI_STORE_PIECE = 65536 };
static dt_result dti_store_forget(dt_store *s, const char zeros[DTI_STORE_PIECE]);
/* Before something reads averages that no step has made: they become the weights. */
static dt_result dti_store_average(dt_store *s);
/* The parameter's average begins at the step of that number, unless it has begun before. */
static void dti_store_averaged(dt_store *s, uint32_t param, uint64_t step);
/* Where a parameter's value lies. in_array: the elements of an array (dti_store_array_read),
 * because the store may have a part of it, or fewer bits. Then memory and offset mean nothing. */
typedef struct dti_store_place {
    dti_memory *memory;
    uint64_t offset;
    bool in_array;
    uint32_t array;
    uint64_t at, elements;
} dti_store_place;
static dt_result dti_store_locate(dt_store *s, int index, dt_value_kind kind, size_t bytes,
                                  dti_store_place *place);
/* Reads or writes elements [at, at + n) of an array of the arenas. Array 0 is the values, and 1 + i
 * the moment or average i. Where replicas shard moments, a read includes those of all replicas
 * here. A write skips elements that the store does not have. The same holds for values of one
 * parameter in a store without PARAM. As floats, whatever their stored type. UNSUPPORTED: another
 * process has some. */
static dt_result dti_store_array_read(dt_store *s, uint32_t array, uint64_t at, uint64_t n,
                                      void *data);
static dt_result dti_store_array_write(dt_store *s, uint32_t array, uint64_t at, uint64_t n,
                                       const void *data);
static dt_result dti_state_elsewhere(const dt_store *s); /* this UNSUPPORTED */
/* The steps that trained parameters [param, param + n), a u32 each. */
static dt_result dti_store_counts(const dt_store *s, uint64_t param, uint64_t n, void *counts,
                                  bool write);
/* The gradients' arena was written outside a step, or by half of one. */
static void dti_store_rows_lost(dt_store *s);
/* finite.c: the size of the values is not known. Called by all code that writes values outside a
 * step. */
static void dti_store_unbound(dt_store *s);

/* ---- host_copy.c: the state on the host */
/* Makes room for the copy, as large as the state is now; `every` 0: no copy. */
static dt_result dti_host_copy_reserve(dt_store *s, uint32_t every);
static void dti_host_copy_free(dt_store *s);
static void dti_host_copy_stale(dt_store *s); /* the host wrote to the store */
/* Before a step, and after one that was committed: takes it where that is due. */
static dt_result dti_host_copy_before(dt_store *s);
static dt_result dti_host_copy_after(dt_store *s);
static bool dti_host_copy_due(const dt_store *s, uint64_t steps); /* after that number of steps */

/* Of the state arena; 0: no arena. */
static inline uint64_t dti_store_state_bytes(const dt_store *s) {
    return s->memories[DTI_ARENA_STATE] ? dti_state_bytes(&s->layout, s->moments) : 0;
}
static inline dti_base *dti_store_base(const dt_store *store) {
    return store->base;
}
