/* ---- Results, errors, memory, logging -------------------------------------------------------- */

/* The result of a call that can fail. DT_OK is 0. A text with the values and a remedy is in
 * dt_ctx_error(), or for a dt_comm in dt_comm_error(). A number, index or enumerator without a
 * meaning is INVALID.
 *
 * NULL is INVALID wherever a pointer is required: an object, `out`, data, a name, a description
 * (unless its comment allows NULL); the text names the function and the argument. If the object
 * itself is NULL there is nothing to hold the text; dt_ctx_error(NULL) then gives a constant one.
 * With NULL, ops give nil, getters give 0, NULL, false or -1, and functions without a result do
 * nothing.
 *
 * Threads and callbacks: a context, with everything made from it, serves one call at a time, and so
 * does a dt_comm with its groups. Meanwhile a call on another thread, or in a callback, returns
 * BUSY with a constant text, and changes nothing, also not the text of dt_ctx_error(). Then getters
 * and ops give what they give for NULL, and functions without a result do nothing. When the call
 * under way ends, the log has one warning for them: the newest one's name and how many others there
 * were. Callbacks of dt_trainer_fit may call everything but what drives
 * or ends their trainer and what it uses. Other callbacks may call what belongs to other contexts
 * and comms, dt_ctx_error() and dt_comm_error() on the thread of the call, and what says "Threads:
 * any". docs/embedding.md has the table. A callback returns: no longjmp or exception leaves it.
 *
 * Floating-point modes: all functions compute with round to nearest, denormals and no traps, and
 * the caller's modes and flags are restored. Callbacks run in the caller's modes; those that give
 * values (dt_dataset.sample, a store's init, a schedule's rate) run in dtrain's.
 *
 * An object that was destroyed, directly or with its owner (a store with its graph, everything with
 * the context), must not be used or destroyed again. This cannot be detected; that it is in use is,
 * and then it is not destroyed. */
typedef enum dt_result {
    DT_OK = 0,              /* no error */
    DT_ERROR_INVALID,       /* a wrong argument or a call in a wrong state */
    DT_ERROR_MEMORY,        /* out of host memory */
    DT_ERROR_DEVICE_MEMORY, /* out of device memory */
    DT_ERROR_DEVICE,        /* no such device, or its driver failed */
    DT_ERROR_DEVICE_LOST,   /* the device was lost; its store is revived or created again */
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
    DT_ERROR_LATE,      /* a rank has not posted an operation in time */
    /* The object is in use, by another thread or by the call that this callback belongs to: call
     * again when that has returned. */
    DT_ERROR_BUSY
} dt_result;

/* Types of elements. Tensors are f32, i32, bf16 and f16; collectives know all. */
typedef enum dt_dtype {
    DT_F32 = 0, /* the default */
    DT_I32,     /* class labels, indices */
    DT_F64,
    DT_BF16,
    DT_F16,
    DT_I64,
    DT_U8
} dt_dtype;

/* The severity of a log message. */
typedef enum dt_log_level {
    DT_LOG_ERROR,   /* a call failed; the same text is at dt_ctx_error() */
    DT_LOG_WARNING, /* it works, but not as requested, or more slowly */
    DT_LOG_INFO     /* choices: the device and why, the plan's bytes, the kernels' variant */
} dt_log_level;

/* The application's allocator. `align` is a power of two, at most 4096. alloc returns NULL when it
 * is out of memory; the call of dtrain then fails with DT_ERROR_MEMORY and leaks nothing. free
 * gets the size that was allocated. Threads: called on the thread that calls dtrain, never from a
 * pool. */
typedef struct dt_allocator {
    void *(*alloc)(void *user, size_t bytes, size_t align);
    void (*free)(void *user, void *memory, size_t bytes);
    void *user;
} dt_allocator;

/* The application's logger; without one dtrain is silent. `message` does not end in a newline and
 * is valid during the call.
 * Threads: called on the thread that calls dtrain. */
typedef struct dt_logger {
    void (*log)(void *user, dt_log_level level, const char *message);
    void *user;
} dt_logger;

/* Called once for each call of yours that fails, before it returns: with its result, and the text
 * of dt_ctx_error(), which is valid during the call. The context is free again, so the handler may
 * call everything that its place allows; it may also end the process. Called for BUSY too, with the
 * constant text, and for NUMERIC, after which training can go on. Not called where the object is
 * NULL, for errors of a dt_comm by itself, nor for dt_csv_read on a thread that did not open the
 * file. Threads: the one whose call failed. */
typedef struct dt_on_error {
    void (*call)(void *user, dt_result result, const char *text);
    void *user;
} dt_on_error;

/* The application's job system: it calls body(arg, i) for every i in [0, count), in any order, on
 * any threads, and returns when all calls have. Results do not depend on the number of threads. */
typedef struct dt_job_system {
    void (*parallel_for)(void *user, int64_t count, void (*body)(void *arg, int64_t i), void *arg);
    void *user;
    int threads; /* how many calls run at once; `count` is never larger; 0 = 1 */
} dt_job_system;

/* The short text of a result; never NULL. Threads: any. */
DT_API const char *dt_result_text(dt_result result);
