/* ---- The context: memory, log, threads, devices ---------------------------------------------- */

typedef struct dt_ctx dt_ctx;

typedef struct dt_ctx_desc {
    dt_allocator allocator; /* {0}: malloc */
    dt_logger logger;       /* {0}: silent */
    int threads;            /* threads that compute, the caller's included; 0 = 1, DT_THREADS_ALL */
    dt_job_system jobs;     /* instead of own threads */
    /* Path of the Vulkan loader; NULL: the system's. Not copied: it is read when devices are first
     * asked for. */
    const char *vulkan_loader;
    /* What dt_ctx_pipeline_cache gave in an earlier run; checked, and ignored when it is from
     * another device or driver. NULL = none. Copied. */
    const void *pipeline_cache;
    size_t pipeline_cache_bytes;
    bool no_vulkan;  /* do not look for the Vulkan loader */
    bool no_fast;    /* Vulkan: only the portable kernels. CPU: only the portable class */
    bool validation; /* Vulkan: load the Khronos validation layer where there is one; its messages
                        go to the logger */
} dt_ctx_desc;

#define DT_THREADS_ALL (-1) /* one per processor this process may use */

typedef enum dt_device_kind {
    DT_DEVICE_CPU,
    DT_DEVICE_DISCRETE,
    DT_DEVICE_INTEGRATED,
    DT_DEVICE_VIRTUAL,
    DT_DEVICE_SOFTWARE
} dt_device_kind;

/* One device as it was found. */
typedef struct dt_device_info {
    char name[256];   /* the driver's name for it; "cpu" for the CPU backend */
    char id[32];      /* what to ask for: "cpu", "vulkan:0", "vulkan:1" */
    char driver[256]; /* driver name and version, or the CPU's instruction set */
    dt_device_kind kind;
    uint32_t api_major, api_minor, api_patch; /* Vulkan */
    uint32_t vendor_id, device_id;
    uint64_t memory_bytes;        /* of its largest device-local heap */
    uint64_t memory_budget_bytes; /* free, where the driver reports it; else 0 */
    uint64_t storage_range_bytes; /* the largest tensor it can bind */
    uint32_t workgroup_invocations, shared_bytes, storage_buffers, push_constant_bytes;
    uint32_t subgroup_size, offset_alignment;
    bool has_float16, has_storage16, has_cooperative_matrix, has_timeline, has_memory_budget;
    bool usable; /* false: `driver` ends with why */
} dt_device_info;

/* Makes a context. desc may be NULL: it is copied, what it points to stays yours and must outlive
 * the context (pipeline_cache need not). On failure *out is NULL, and desc's logger
 * was told the text.
 * Ownership: yours; dt_ctx_destroy ends it. Errors: INVALID (alloc without free, fewer than -1 or
 * more than 1024 threads, pipeline_cache_bytes without pipeline_cache), MEMORY.
 * Threads: any; one context is used by one thread at a time; several contexts run in parallel. This
 * holds for every function below unless it says otherwise. */
DT_API dt_result dt_ctx_create(const dt_ctx_desc *desc, dt_ctx **out);

/* Ends a context with all graphs, stores, programs and trainers made from it: do not destroy those
 * after it, which cannot be detected. NULL is fine. Arrays and weight files (dt_array, dt_weights)
 * are the caller's: free them before.
 * A child of fork has a copy of the memory, but no threads, drivers or sockets: there steps,
 * programs, stores' values and trainers are DT_ERROR_FORKED, whatever they compute on, and the
 * destroy functions only give memory back. A context that is made in the child works. */
DT_API void dt_ctx_destroy(dt_ctx *ctx);

/* The text of the newest failure: what, which value, what to do. "" when there was none; for NULL a
 * constant that says so. Valid until the next call with this context or what was made from it. */
DT_API const char *dt_ctx_error(const dt_ctx *ctx);

/* The devices found, the CPU first; an index from 0 to dt_ctx_device_count() - 1, NULL when it is
 * out of range. Looks for the Vulkan loader at the first call, and again after one that ran out of
 * host memory and knew of the CPU alone. The info lives as long as the context. */
DT_API int dt_ctx_device_count(dt_ctx *ctx);
DT_API const dt_device_info *dt_ctx_device(dt_ctx *ctx, int index);

/* Host memory that the context holds now and held at most, and how often the allocator was called:
 * while programs run these do not move. */
typedef struct dt_memory_info {
    uint64_t host_bytes, host_bytes_peak, host_alloc_calls;
    uint64_t device_bytes, device_alloc_calls; /* Vulkan memory; 0 for the CPU */
} dt_memory_info;
DT_API void dt_ctx_memory(const dt_ctx *ctx, dt_memory_info *info);

/* Copies the compiled kernels of the opened Vulkan devices to `data`. *bytes: the room at `data`
 * before the call, what the blob takes after it (0: no Vulkan); with data NULL only that is set.
 * Keep the blob and give it to the next run's dt_ctx_desc. Errors: INVALID (too little room),
 * DEVICE, DEVICE_LOST. */
DT_API dt_result dt_ctx_pipeline_cache(dt_ctx *ctx, void *data, size_t *bytes);
