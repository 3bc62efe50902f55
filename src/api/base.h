/* ---- Results, errors, memory, logging -------------------------------------------------------- */

/* What a call that meets the outside world returns. DT_OK is 0. The text with values and a remedy is
 * at dt_ctx_error(); of a dt_comm, at dt_comm_error(). A number, an index or an enum that means
 * nothing is INVALID.
 *
 * NULL is INVALID wherever a pointer is needed: an object, `out`, data, a name, a description whose
 * comment does not say that it may be NULL; the text names the function and the argument. When it
 * is the object itself there is none to hold a text: then dt_ctx_error(NULL) has a constant one.
 * Ops give nil, getters 0, NULL, false or -1, and functions that return nothing do nothing.
 *
 * What was destroyed, by itself or with what it was made from (a store with its graph, all with the
 * context), may not be used or destroyed again. That cannot be detected. */
typedef enum dt_result {
    DT_OK = 0,              /* no error */
    DT_ERROR_INVALID,       /* a wrong argument or a call in a wrong state */
    DT_ERROR_MEMORY,        /* out of host memory */
    DT_ERROR_DEVICE_MEMORY, /* out of device memory */
    DT_ERROR_DEVICE,        /* no such device, or its driver failed */
    DT_ERROR_DEVICE_LOST,   /* the device was lost; its store must be created again */
    DT_ERROR_UNSUPPORTED,   /* not supported on this device or for this type */
    DT_ERROR_IO,            /* a file could not be opened, read or written */
    DT_ERROR_FORMAT,        /* a file is not what it should be */
    DT_ERROR_NUMERIC,       /* a NaN or an infinity; the store is unchanged */
    DT_ERROR_TIMEOUT,       /* not done in the time that was given */
    DT_ERROR_REFUSED,   /* ranks do not accept each other: another key, job, version or setting */
    DT_ERROR_PEER_LOST, /* a rank or the way to it is lost */
    DT_ERROR_MISMATCH,  /* ranks posted different operations */
    DT_ERROR_CORRUPT,   /* bytes changed on their way */
    DT_ERROR_CANCELLED, /* a rank gave an operation up */
    DT_ERROR_REVOKED,   /* the group has ended */
    DT_ERROR_FORKED,    /* called in a child of fork with what is the parent's */
    DT_ERROR_LATE       /* a rank has not posted an operation in time */
} dt_result;

/* Types of elements. Tensors are f32 and i32; collectives know all. */
typedef enum dt_dtype {
    DT_F32 = 0, /* the default */
    DT_I32,     /* class labels, indices */
    DT_F64,
    DT_BF16,
    DT_F16,
    DT_I64,
    DT_U8
} dt_dtype;

/* How much an event that a logger is told of matters. */
typedef enum dt_log_level {
    DT_LOG_ERROR,   /* a call failed; the same text is at dt_ctx_error() */
    DT_LOG_WARNING, /* it works, but not as asked or not as fast */
    DT_LOG_INFO     /* choices: the device and why, the plan's bytes, the kernels' variant */
} dt_log_level;

/* Your allocator. `align` is a power of two, at most 4096. alloc returns NULL when it has no
 * memory; dtrain then fails the call with DT_ERROR_MEMORY and leaks nothing. free gets the size it
 * asked for. Threads: called on the thread that calls dtrain, never from the pool. */
typedef struct dt_allocator {
    void *(*alloc)(void *user, size_t bytes, size_t align);
    void (*free)(void *user, void *memory, size_t bytes);
    void *user;
} dt_allocator;

/* Your logger. Without one dtrain says nothing. `message` has no newline at its end and is valid
 * during the call.
 * Threads: called on the thread that calls dtrain. */
typedef struct dt_logger {
    void (*log)(void *user, dt_log_level level, const char *message);
    void *user;
} dt_logger;

/* Your job system: run body(arg, i) for every i in [0, count), in any order, on any threads, and
 * return when all are done. Results do not depend on how many threads that is. */
typedef struct dt_job_system {
    void (*parallel_for)(void *user, int64_t count, void (*body)(void *arg, int64_t i), void *arg);
    void *user;
    int threads; /* how many run at once: the largest `count` that you are called with; 0 = 1 */
} dt_job_system;

/* The short text of a result; never NULL. Threads: any. */
DT_API const char *dt_result_text(dt_result result);
