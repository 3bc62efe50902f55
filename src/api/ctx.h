/* ---- The context: memory, log, threads, devices */

typedef struct dt_ctx dt_ctx;

/* Vulkan: when to compare a fast kernel with the portable one. A kernel whose bits differ, by a
 * fault of the driver, or that is slower, is not used. The log says so. */
typedef enum dt_kernel_check {
    DT_KERNEL_CHECK_ONCE,  /* at a kernel's first use, unless pipeline_cache has a result for it */
    DT_KERNEL_CHECK_NEVER, /* trust all kernels, and assume that they are faster */
    DT_KERNEL_CHECK_ALWAYS /* at a kernel's first use, whatever pipeline_cache has */
} dt_kernel_check;

/* {0}: malloc, silent, one thread, and all devices that are found. */
typedef struct dt_ctx_desc {
    dt_allocator allocator; /* {0}: malloc */
    dt_logger logger;       /* {0}: silent */
    dt_on_error on_error;   /* {0}: only results report that a call failed */
    /* Threads that compute, with the calling one: 1 to 1024; 0 = 1; or DT_THREADS_ALL. They inherit
     * the priority of the thread that creates the context. Does not change results. */
    int threads;
    dt_job_system jobs; /* compute on the application's threads instead; {0}: on .threads */
    /* Path of a Vulkan loader or of a driver's library. NULL = the system's loader; without one, on
     * Linux and BSD, a driver found by its manifest (without layers). */
    const char *vulkan_loader;
    /* The application's own device, which is then the only Vulkan device of the context. Copied,
     * but not what it points to. NULL: dtrain opens devices. */
    const dt_vulkan_desc *vulkan;
    /* A blob that dt_ctx_pipeline_cache wrote in an earlier run; NULL = none. A blob of another
     * device or driver is ignored. Copied. */
    const void *pipeline_cache;
    size_t pipeline_cache_bytes;
    bool no_vulkan; /* do not look for the Vulkan loader */
    bool no_fast;   /* use only the portable kernels, on Vulkan and the CPU */
    /* On Linux, for CPUs with AMX: products of bf16 use it. Their bits differ from those of other
     * CPUs, so all ranks of a job have it or none. The process asks the system for AMX's registers.
     * Without AMX the log has a warning, and products are as without this field. */
    bool amx;
    /* Vulkan: load the Khronos validation layer, if installed. The logger gets its messages. */
    bool validation;
    dt_kernel_check kernel_check; /* costs some milliseconds for each fast kernel */
} dt_ctx_desc;

#define DT_THREADS_ALL (-1) /* one thread for each processor that this process may use */

typedef enum dt_device_kind {
    DT_DEVICE_CPU,        /* the CPU backend */
    DT_DEVICE_DISCRETE,   /* Vulkan: a GPU with memory of its own */
    DT_DEVICE_INTEGRATED, /* Vulkan: a GPU that shares the CPU's memory */
    DT_DEVICE_VIRTUAL,    /* Vulkan: a GPU of a virtual machine */
    DT_DEVICE_SOFTWARE    /* Vulkan on the CPU, such as lavapipe */
} dt_device_kind;

/* The properties of a device. */
typedef struct dt_device_info {
    char name[256];      /* the driver's name for it; "cpu" for the CPU backend */
    char id[32];         /* selects the device in descriptions: "cpu", "vulkan:0", "vulkan:1" */
    char driver[256];    /* name and version; of the CPU "native AVX2, 1 of 16 processors" */
    dt_device_kind kind; /* CPU or a kind of Vulkan device */
    /* Vulkan's version */
    uint32_t api_major, api_minor, api_patch;
    uint32_t vendor_id, device_id; /* PCI numbers; 0 for the CPU backend */
    uint64_t memory_bytes;         /* size of the largest device-local heap */
    uint64_t memory_budget_bytes;  /* free memory; 0 = the driver does not report it */
    uint64_t storage_range_bytes;  /* the largest tensor that a kernel can bind */
    /* Vulkan: the most invocations and bytes of shared memory of a workgroup; the most storage
     * buffers and bytes of push constants of a kernel. */
    uint32_t workgroup_invocations, shared_bytes, storage_buffers, push_constant_bytes;
    uint32_t subgroup_size;    /* Vulkan: invocations of a subgroup */
    uint32_t offset_alignment; /* Vulkan: bytes; see dt_external_buffer */
    /* Vulkan: f16 arithmetic; 16-bit storage; cooperative matrices; timeline semaphores; the driver
     * reports free memory. */
    bool has_float16, has_storage16, has_cooperative_matrix, has_timeline, has_memory_budget;
    bool has_float_controls; /* kernels ask the driver to keep infinities, NaN and signed zeros */
    bool usable;             /* if false, .driver ends with the reason */
} dt_device_info;

/* Creates a context. desc is copied. What it points to must outlive the context, except
 * pipeline_cache. On failure desc's logger and on_error get the text.
 * Errors: INVALID (alloc without free; lock without unlock; jobs without parallel_for; a handle
 * that .vulkan lacks; .vulkan with no_vulkan, vulkan_loader or validation), MEMORY. With .vulkan
 * also UNSUPPORTED (its device or queue cannot be used; DT_NO_VULKAN).
 * Threads: any. One thread at a time may use a context (else BUSY). Different contexts can be used
 * concurrently. So it is for all functions below, unless their comment says otherwise. */
DT_API dt_result dt_ctx_create(const dt_ctx_desc *desc, dt_ctx **out);

/* Destroys a context and all graphs, stores, programs and trainers made from it. Destroy other
 * objects first: files, folders, logs, profiles, metrics, arrays, histories.
 *
 * After fork(), in the child process, functions that run steps, make programs, read or write
 * values, or use a trainer return DT_ERROR_FORKED. The destroy functions only release memory. A
 * context that the child creates works. */
DT_API void dt_ctx_destroy(dt_ctx *ctx);

/* Returns the text of the most recent failure, with what to do; or "". Valid until the next call
 * that uses this context or an object made from it. */
DT_API const char *dt_ctx_error(const dt_ctx *ctx);

/* Returns the number of devices. Device 0 is the CPU. The first call looks for the Vulkan loader,
 * again if host memory ran out. */
DT_API int dt_ctx_device_count(dt_ctx *ctx);
/* Returns the properties of a device, valid as long as the context.
 * index: 0 to dt_ctx_device_count() - 1; NULL if it is out of range. */
DT_API const dt_device_info *dt_ctx_device(dt_ctx *ctx, int index);

/* Memory. Running programs changes none of these. */
typedef struct dt_ctx_info {
    uint64_t host_bytes, host_peak_bytes, host_alloc_calls; /* now; at most; calls of .allocator */
    uint64_t device_bytes, device_alloc_calls;              /* Vulkan memory; 0 for the CPU */
} dt_ctx_info;
/* Returns the memory that the context holds. */
DT_API void dt_ctx_get_info(const dt_ctx *ctx, dt_ctx_info *info);

/* Copies the compiled kernels of the open Vulkan devices, for dt_ctx_desc.pipeline_cache.
 * data: the blob; NULL sets only *bytes.
 * bytes: the size of `data` on entry, and of the blob on return; 0 without Vulkan.
 * Errors: INVALID (`data` is too small), DEVICE, DEVICE_LOST. */
DT_API dt_result dt_ctx_pipeline_cache(dt_ctx *ctx, void *data, size_t *bytes);
