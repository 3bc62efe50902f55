/* ---- The context: memory, log, threads, devices ---------------------------------------------- */

typedef struct dt_ctx dt_ctx;

/* Vulkan: when a fast kernel is compared with the portable one. One that gives other bits, on a
 * driver with a fault, is not used, and neither is one that is slower on this device; the log says
 * so. The bits of a program's results depend on neither. */
typedef enum dt_kernel_check {
    DT_KERNEL_CHECK_ONCE,  /* at its first use, unless pipeline_cache has this driver's result */
    DT_KERNEL_CHECK_NEVER, /* all are trusted, and taken for faster */
    DT_KERNEL_CHECK_ALWAYS /* at its first use, whatever pipeline_cache has */
} dt_kernel_check;

typedef struct dt_ctx_desc {
    dt_allocator allocator; /* {0}: malloc */
    dt_logger logger;       /* {0}: silent */
    dt_on_error on_error;   /* {0}: results alone say that a call has failed */
    /* Threads that compute, the calling one included: 1 to 1024; 0 = 1. DT_THREADS_ALL = one for
     * each processor. Results have the same bits with any number. They inherit the priority of the
     * thread that creates the context. */
    int threads;
    dt_job_system jobs; /* compute on the application's threads instead */
    /* Path of the Vulkan loader, or of a driver's library; NULL = the system's loader, or on Linux
     * and BSD, where that is missing, one driver by its manifest (without layers). Not copied: it
     * is used when devices are first enumerated, so keep it valid. */
    const char *vulkan_loader;
    /* The application's own device: the only Vulkan device that the context then has. It is looked
     * at when the context is created. Copied; what it points to is not. NULL: dtrain makes one. */
    const dt_vulkan_desc *vulkan;
    /* A blob that dt_ctx_pipeline_cache wrote in an earlier run. It is checked, and ignored if it
     * came from another device or driver. NULL = none. Copied. */
    const void *pipeline_cache;
    size_t pipeline_cache_bytes;
    bool no_vulkan;  /* do not look for the Vulkan loader */
    bool no_fast;    /* Vulkan: only the portable kernels. CPU: only the portable class */
    bool validation; /* Vulkan: load the Khronos validation layer if it is installed; its messages
                        go to the logger */
    dt_kernel_check kernel_check; /* some milliseconds for each fast kernel */
} dt_ctx_desc;

#define DT_THREADS_ALL (-1) /* one per processor this process may use */

typedef enum dt_device_kind {
    DT_DEVICE_CPU,
    DT_DEVICE_DISCRETE,
    DT_DEVICE_INTEGRATED,
    DT_DEVICE_VIRTUAL,
    DT_DEVICE_SOFTWARE
} dt_device_kind;

/* A device, as it was found. */
typedef struct dt_device_info {
    char name[256];   /* the driver's name for it; "cpu" for the CPU backend */
    char id[32];      /* the name to select it by: "cpu", "vulkan:0", "vulkan:1" */
    char driver[256]; /* its name and version; of the CPU "native AVX2, 1 of 16 processors" */
    dt_device_kind kind;
    uint32_t api_major, api_minor, api_patch; /* Vulkan */
    uint32_t vendor_id, device_id;
    uint64_t memory_bytes;        /* of its largest device-local heap */
    uint64_t memory_budget_bytes; /* free, where the driver reports it; else 0 */
    uint64_t storage_range_bytes; /* the largest tensor that a kernel can bind */
    uint32_t workgroup_invocations, shared_bytes, storage_buffers, push_constant_bytes;
    uint32_t subgroup_size, offset_alignment;
    bool has_float16, has_storage16, has_cooperative_matrix, has_timeline, has_memory_budget;
    bool has_float_controls; /* kernels ask the driver to keep infinities, NaN and signed zeros */
    bool usable;             /* false: `driver` ends with why */
} dt_device_info;

/* Creates a context. desc may be NULL. The description is copied; what it points to remains yours
 * and must outlive the context (except pipeline_cache, which is copied too). On failure *out is
 * NULL and the text goes to desc's logger and on_error.
 * Ownership: yours; end it with dt_ctx_destroy. Errors: INVALID (alloc without free, threads below
 * -1 or above 1024, pipeline_cache_bytes without pipeline_cache, a handle that .vulkan lacks),
 * MEMORY; with .vulkan also UNSUPPORTED (its device or queue cannot be used; DT_NO_VULKAN).
 * Threads: any. A context may be used by one thread at a time (else BUSY: base.h); different
 * contexts may be used in parallel. This holds for every function below unless its comment says
 * otherwise. */
DT_API dt_result dt_ctx_create(const dt_ctx_desc *desc, dt_ctx **out);

/* Destroys a context and every graph, store, program and trainer made from it; destroying one of
 * those afterwards is an error that cannot be detected. NULL is allowed. Arrays and weight files
 * (dt_array, dt_safetensors) belong to the caller: free them first.
 * After fork() the child has a copy of the memory, but not of threads, drivers and sockets. In the
 * child, running steps, making programs, reading or writing values, and trainers return
 * DT_ERROR_FORKED on every device, and the destroy functions only release memory. A context created
 * in the child works. */
DT_API void dt_ctx_destroy(dt_ctx *ctx);

/* The text of the most recent failure: what failed, which value was wrong, what to do. "" if
 * nothing has failed; for NULL a constant text. Valid until the next call that uses this context
 * or anything made from it. */
DT_API const char *dt_ctx_error(const dt_ctx *ctx);

/* The devices that were found; device 0 is the CPU. The index goes from 0 to
 * dt_ctx_device_count() - 1; out of range gives NULL. The first call looks for the Vulkan loader
 * (if host memory ran out while it did, only the CPU is known, and the next call looks again). The
 * info lives as long as the context. */
DT_API int dt_ctx_device_count(dt_ctx *ctx);
DT_API const dt_device_info *dt_ctx_device(dt_ctx *ctx, int index);

/* Memory that the context holds now, its peak, and the number of calls of the allocator. Running
 * programs changes none of these. */
typedef struct dt_ctx_info {
    uint64_t host_bytes, host_bytes_peak, host_alloc_calls;
    uint64_t device_bytes, device_alloc_calls; /* Vulkan memory; 0 for the CPU */
} dt_ctx_info;
DT_API void dt_ctx_get_info(const dt_ctx *ctx, dt_ctx_info *info);

/* Copies the compiled kernels of the open Vulkan devices to `data`, for dt_ctx_desc.pipeline_cache
 * of a later run. *bytes is the size of `data` on entry and the size of the blob on return (0
 * without Vulkan); with data NULL only *bytes is set. Errors: INVALID (`data` too small), DEVICE,
 * DEVICE_LOST. */
DT_API dt_result dt_ctx_pipeline_cache(dt_ctx *ctx, void *data, size_t *bytes);
