/* ---- Results, errors, memory, logging */

/* The result of a call that can fail. dt_ctx_error(), or dt_comm_error() for a dt_comm, has a text
 * with the values and a remedy. An index, number or enumerator outside its range is INVALID.
 *
 * NULL is INVALID wherever a pointer is required. If the object itself is NULL, dt_ctx_error(NULL)
 * returns a constant text. With NULL, ops return nil, getters return 0, NULL, false or -1, and
 * functions without a result do nothing.
 *
 * One call at a time: a context and all objects made from it serve one call at a time. So do a
 * dt_comm and its groups. During that call, a call on another thread or in a callback returns BUSY.
 * It changes nothing, not even the text of dt_ctx_error(). Functions without a dt_result do as for
 * NULL. When the first call ends, one warning in the log names such functions.
 *
 * Callbacks of dt_trainer_fit: see dt_fit_state. Other callbacks may call functions of other
 * contexts and comms, and functions with "Threads: any". They may also call dt_ctx_error() and
 * dt_comm_error(), on the thread of the call. No longjmp or exception may leave a callback.
 *
 * Floating-point modes: all functions compute with round to nearest, with denormals and without
 * traps, and restore the caller's modes and flags. Callbacks run in the caller's modes, but those
 * that supply values (dt_dataset.sample, a store's init, a schedule's rate) in dtrain's.
 *
 * Ownership: an object belongs to the caller, who destroys or closes it before its context, unless
 * a comment says otherwise. Do not use an object after it was destroyed, by itself or with its
 * owner. dtrain cannot detect this. An object that is in use is not destroyed. */
typedef enum dt_result {
    DT_OK = 0,              /* no error */
    DT_ERROR_INVALID,       /* a wrong argument, or a call in a wrong state */
    DT_ERROR_MEMORY,        /* out of host memory */
    DT_ERROR_DEVICE_MEMORY, /* out of device memory */
    DT_ERROR_DEVICE,        /* no such device, or its driver failed */
    DT_ERROR_DEVICE_LOST,   /* the device was lost; restore its store or create it again */
    DT_ERROR_UNSUPPORTED,   /* not supported by this device, type or build */
    DT_ERROR_IO,            /* a file could not be opened, read or written */
    DT_ERROR_FORMAT,        /* the contents of a file are not valid */
    DT_ERROR_NUMERIC,       /* a NaN or an infinity; the store is unchanged */
    DT_ERROR_TIMEOUT,       /* not done within the given time */
    DT_ERROR_REFUSED,       /* ranks reject each other: another key, job, version or setting */
    DT_ERROR_PEER_LOST,     /* a rank, or the connection to it, was lost */
    DT_ERROR_MISMATCH,      /* ranks posted different operations */
    DT_ERROR_CORRUPT,       /* bytes changed in transit */
    DT_ERROR_CANCELLED,     /* a rank cancelled an operation */
    DT_ERROR_REVOKED,       /* the group has ended */
    DT_ERROR_FORKED,        /* called in a child process of fork, with an object of the parent */
    DT_ERROR_LATE,          /* a rank did not post an operation in time */
    /* The object is in use, by another thread or by the call that runs this callback. */
    DT_ERROR_BUSY
} dt_result;

/* Types of elements. Tensors are f32, i32, bf16 and f16; collectives accept all types. */
typedef enum dt_dtype {
    DT_F32 = 0, /* the default */
    DT_I32,     /* class labels, indices */
    DT_F64,     /* not for tensors */
    DT_BF16,    /* the upper half of an f32 */
    DT_F16,     /* IEEE 754 binary16 */
    DT_I64,     /* not for tensors */
    DT_U8       /* not for tensors; bytes of pictures in a dt_column */
} dt_dtype;

/* What the ops of a program compute in. It changes no type of parameters, gradients, optimizer
 * state, inputs or outputs. */
typedef enum dt_precision {
    DT_PRECISION_F32, /* the default */
    /* Mixed precision, PyTorch's autocast: products, and what follows them, are in bf16; norms,
     * losses and sums are in f32. docs/ops.md has each op. */
    DT_PRECISION_BF16
} dt_precision;

/* The severity of a log message. */
typedef enum dt_log_level {
    DT_LOG_ERROR,   /* a call failed; dt_ctx_error() has the same text */
    DT_LOG_WARNING, /* a call works, but not as requested, or more slowly */
    DT_LOG_INFO     /* choices: the device and why, the program's bytes, the kernels' variant */
} dt_log_level;

/* The application's allocator. Threads: called on the thread that calls dtrain. */
typedef struct dt_allocator {
    /* Returns memory; `align` is a power of two, at most 4096. NULL = out of memory
     * (DT_ERROR_MEMORY). */
    void *(*alloc)(void *user, size_t bytes, size_t align);
    /* Frees memory; `bytes` is the size that was allocated. */
    void (*free)(void *user, void *memory, size_t bytes);
    void *user; /* passed to both */
} dt_allocator;

/* The application's logger; without one dtrain is silent.
 * Threads: called on the thread that calls dtrain. */
typedef struct dt_logger {
    /* Takes a message without a newline, valid during the call. */
    void (*log)(void *user, dt_log_level level, const char *message);
    void *user; /* passed to log */
} dt_logger;

/* A handler of errors. It is called once for each of your calls that fails, also with NUMERIC,
 * before that returns. It may call whatever was allowed where the failed call was made. It may also
 * end the process. It is not called if the object is NULL, or for a dt_comm. Nor is it for
 * dt_csv_read on a thread that did not open the file.
 *
 * Threads: the thread of the failed call. */
typedef struct dt_on_error {
    /* Takes the text of dt_ctx_error(), valid during the call; for BUSY its constant text. */
    void (*call)(void *user, dt_result result, const char *text);
    void *user; /* passed to call */
} dt_on_error;

/* The application's job system. Results do not depend on the number of threads. */
typedef struct dt_job_system {
    /* Calls body(arg, i) for every i in [0, count), in any order, on any threads, and waits for
     * all. */
    void (*parallel_for)(void *user, int64_t count, void (*body)(void *arg, int64_t i), void *arg);
    void *user;  /* passed to parallel_for */
    int threads; /* number of concurrent calls; `count` never exceeds it; 0 = 1 */
} dt_job_system;

/* Returns the short text of a result; never NULL. Threads: any. */
DT_API const char *dt_result_text(dt_result result);
