/* What the files of the Vulkan backend share: the instance, a device, memory and pipelines. The
 * function tables are called `vk` everywhere: tools/generate/vkdecl finds the used functions by
 * that name. */

#define DTI_VK_1_1 (1u << 22 | 1u << 12) /* versions as Vulkan packs them */
#define DTI_VK_1_2 (1u << 22 | 2u << 12)
#define DTI_VK_DEVICES_MAX 16
#define DTI_VK_STAGING_BYTES (4u << 20) /* of blocking copies: large enough to hide the submit */
#define DTI_VK_POLL_NS 50000            /* before sleeping: to be woken takes as long */
/* The longest time that one submission keeps a device busy, by estimate. Drivers regard a device as
 * hung after 2 s, and an estimate may be wrong by a factor. */
#define DTI_VK_SUBMISSION_MS 500.0
#define DTI_VK_PART_LEAST_MS 0.05 /* the least work that is worth a submission */
#define DTI_VK_PART_MS 0.5        /* a launch above it can be cut for a frame's budget (parts.c) */
#define DTI_VK_STEP_MS 0.001      /* a pass of an inner loop that waits for memory, at most */
/* On a discrete GPU the host can mostly write only a window of this size: it is not used. */
#define DTI_VK_WINDOW_BYTES ((uint64_t)256 << 20)
#define DTI_VK_GROUPS_MAX 65535u /* per axis; the portable core's limit, used everywhere */

typedef struct dti_vk_device dti_vk_device;

#define DTI_X(name) dti_PFN_vk##name name;
typedef struct dti_vk_instance_functions {
    DTI_VK_GLOBAL_COMMANDS(DTI_X)
    DTI_VK_INSTANCE_COMMANDS(DTI_X)
    dti_PFN_vkGetInstanceProcAddr GetInstanceProcAddr;
} dti_vk_instance_functions;
typedef struct dti_vk_device_functions {
    DTI_VK_DEVICE_COMMANDS(DTI_X)
} dti_vk_device_functions;
#undef DTI_X

struct dti_vk_instance {
    dti_base *base;
    dti_vk_options options;
    void *library;
    bool no_memory; /* ran out while it looked for devices */
    bool icd;       /* the library is a driver, not the loader (icd.c) */
    dti_vk_instance_functions vk;
    dti_VkInstance handle;
    dti_VkDebugUtilsMessengerEXT messenger;
    int device_count;
    dti_VkPhysicalDevice physical[DTI_VK_DEVICES_MAX];
    dt_device_info infos[DTI_VK_DEVICES_MAX];
    dti_vk_device *open[DTI_VK_DEVICES_MAX];
};

typedef struct dti_vk_buffer {
    dti_VkBuffer handle;
    dti_VkDeviceMemory memory;
    uint64_t bytes; /* of the allocation */
    void *mapped;   /* while it lives; NULL when the host cannot see it */
} dti_vk_buffer;

typedef struct dti_vk_memory {
    dti_vk_device *device;
    uint64_t bytes;
    dti_vk_buffer buffer;  /* the device's side; the host's too when it is mapped */
    dti_vk_buffer staging; /* else the host's side, except of DEVICE; handle 0 = none */
    uint64_t at;           /* offset in the buffer: only for the application's */
    bool external;         /* by the application, which destroys it */
    dti_memory_kind kind;
} dti_vk_memory;

typedef struct dti_vk_pipeline {
    uint32_t kernel, variant, local, types, spec[4];
    dti_VkPipeline handle;
    /* While it is made: its module, the driver's result, and whether it was in the driver's cache.
     * sums: of an invocation, if the driver is asked about spills. */
    uint32_t *words;
    dti_VkResult result;
    uint32_t sums;
    bool cached;
} dti_vk_pipeline;

/* Pipelines that were made since the log said so. */
typedef struct dti_vk_made {
    uint32_t count, cached;
    uint64_t ns;
} dti_vk_made;

#define DTI_VK_VARIANTS_MAX 10 /* of one kernel */

/* The verdict on a variant on this device; it is written to disk. */
typedef enum dti_vk_verdict {
    DTI_VK_UNCHECKED,
    DTI_VK_GOOD,
    DTI_VK_STRUCK, /* wrong */
    DTI_VK_VERDICTS
} dti_vk_verdict;

/* SwiftShader's vendor. Its compiler repeats itself without end over CONV and CONV_DX in 16 bits,
 * and takes all memory (Chromium 156). */
#define DTI_VK_SWIFTSHADER 0x1ae0

/* The maker of a pipeline cache. A blob of another maker is useless, and some drivers trust it. */
typedef struct dti_vk_identity {
    uint32_t vendor_id, device_id, driver_version;
    uint8_t uuid[16];
} dti_vk_identity;

/* While a variant is checked or measured: every launch of this kernel runs it. */
typedef struct dti_vk_forcing {
    bool forced;
    uint32_t kernel, variant;
} dti_vk_forcing;

struct dti_vk_device {
    dti_device head; /* first: dti_device * and dti_vk_device * are the same address */
    dti_vk_instance *instance;
    int index;
    dti_vk_device_functions vk;
    dti_VkPhysicalDevice physical;
    dti_VkDevice handle;
    dti_VkQueue queue;
    uint32_t family;
    const dt_vulkan_desc *host; /* device and queue are the application's; NULL: made here */
    dti_VkPhysicalDeviceMemoryProperties heaps;
    uint64_t allocation_max; /* bytes in one vkAllocateMemory */
    dti_vk_identity identity;
    bool software; /* all memory is host memory: arenas are mapped too */
    bool unified;  /* IN, OUT and EXCHANGE are one mapped buffer */
    bool direct;   /* IN is one: the host writes it where the device reads it */
    bool lost;
    bool feedback;       /* the driver reports whether a pipeline was in its cache */
    bool statistics;     /* the driver reports statistics of a pipeline (spills.c) */
    double flops_per_ms; /* that it makes at least, of kernels that fill it badly */
    double bytes_per_ms; /* that it reads and writes at least, of those that compute little */
    uint64_t stamp_mask; /* the bits of the queue's clock; 0: no clock */
    double stamp_ms;     /* of a tick */
    uint64_t bytes, alloc_calls;
    uint64_t submitted, finished; /* submission numbers; the queue finishes in order */

    dti_VkCommandPool pool;
    dti_VkCommandBuffer transfer; /* of blocking copies */
    dti_VkFence fence;
    dti_vk_buffer staging;

    dti_VkDescriptorSetLayout set_layout;
    dti_VkPipelineLayout layout;
    dti_VkPipelineCache cache;
    dti_vk_pipeline *pipelines;
    /* Those from pipeline_ready on are wanted and not made yet. */
    size_t pipeline_ready, pipeline_count, pipeline_capacity;
    _Atomic size_t pipeline_next; /* to compile */
    dti_vk_made made;

    uint8_t verdicts[DTI_K_COUNT][DTI_VK_VARIANTS_MAX]; /* dti_vk_verdict */
    /* 1 + the variant that makes the launches for which a variant is meant; 0: not known yet. */
    uint8_t chosen[DTI_K_COUNT][DTI_VK_VARIANTS_MAX];
    /* Variants, as bits, whose spills the driver was asked for. The most sums of an invocation
     * after such a report; 0: no report. */
    uint16_t asked[DTI_K_COUNT];
    uint32_t sums;
    dti_vk_forcing forcing;
    /* Runs a segment of a program for timing and returns its time; tests replace it. */
    dt_result (*time_run)(dti_exec *exec, uint32_t variant, uint32_t segment, double *ms);
};

/* ---- load.c */
static dt_result dti_vk_load_device(dti_vk_device *device);

/* ---- device.c */
static void dti_vk_describe(dti_vk_instance *instance, int index);
static void dti_vk_device_destroy(dti_vk_device *device);
static void dti_vk_close(dti_device *device);
/* Free bytes of a memory heap if the driver reports them, else 0. */
static uint64_t dti_vk_budget(dti_vk_instance *instance, int index, uint32_t heap);
/* DT_OK for VK_SUCCESS; else records "what: reason" and, on a lost device, remembers it. */
static dt_result dti_vk_check(dti_vk_device *device, dti_VkResult result, const char *what);
/* Every entry begins with this: a lost device fails at once, always with the same error. */
static dt_result dti_vk_alive(dti_vk_device *device);

/* ---- vk_memory.c */
static dt_result dti_vk_buffer_create(dti_vk_device *device, uint64_t bytes, const char *what,
                                      uint32_t required, uint32_t preferred, dti_vk_buffer *out);
static void dti_vk_buffer_destroy(dti_vk_device *device, dti_vk_buffer *buffer);
static dt_result dti_vk_memory_create(dti_device *device, uint64_t bytes, dti_memory_kind kind,
                                      dti_memory **out);
static dt_result dti_vk_memory_import(dti_device *device, const dt_vulkan_buffer *buffer,
                                      dti_memory **out);
static void dti_vk_memory_where(const dti_memory *memory, dt_vulkan_buffer *out);
static void dti_vk_memory_destroy(dti_memory *memory);
static uint64_t dti_vk_memory_bytes(const dti_memory *memory);
static void *dti_vk_memory_host(dti_memory *memory);
static dt_result dti_vk_memory_write(dti_memory *memory, uint64_t offset, const void *data,
                                     uint64_t bytes);
static dt_result dti_vk_memory_read(dti_memory *memory, uint64_t offset, void *data,
                                    uint64_t bytes);

/* ---- grid.c: functions of a launch and a device's known properties */
static uint32_t dti_vk_grid_variant(const dti_launch *launch, const dti_grid_device *device);
/* dti_grid_device.sums, for a device that is not software: by the vendors' registers. */
static uint32_t dti_vk_grid_sums(uint32_t vendor_id, uint32_t device_id);
/* Those of an invocation of a variant. */
#define DTI_VK_SUMS_MOST 64
static uint32_t dti_vk_grid_sums_of(uint32_t kernel, uint32_t variant, const uint32_t spec[4],
                                    const dti_grid_device *device);
static void dti_vk_spec_of(const dti_launch *launch, uint32_t variant,
                           const dti_grid_device *device, uint32_t spec[4]);
/* The constant TYPES of the launch's pipeline: DTI_STORED_* of each binding. */
static uint32_t dti_vk_types_of(const dti_launch *launch);
static uint32_t dti_vk_grid_local(uint32_t kernel, uint32_t variant, const dti_grid_device *device);
/* The same or less, where a workgroup's row is short. */
static uint32_t dti_vk_grid_local_of(const dti_launch *launch, uint32_t variant,
                                     const dti_grid_device *device);
static uint64_t dti_vk_groups_of(const dti_launch *launch, const uint32_t spec[4], uint32_t variant,
                                 uint32_t local);

/* ---- spills.c */
#define DTI_VK_STATISTICS "VK_KHR_pipeline_executable_properties"
static bool dti_vk_has_statistics(dti_vk_instance *in, dti_VkPhysicalDevice physical);
static void dti_vk_spills_mark(dti_vk_device *device, dti_vk_pipeline *p);
static void dti_vk_spills_read(dti_vk_device *device, const dti_vk_pipeline *p);

/* ---- pipeline.c */
static dt_result dti_vk_layouts_create(dti_vk_device *device); /* and the pipeline cache */
static void dti_vk_layouts_destroy(dti_vk_device *device);
/* The kernel's variant and its workgroup size: functions of shape and device only. */
static uint32_t dti_vk_variant_of(const dti_vk_device *device, const dti_launch *launch);
static uint32_t dti_vk_local_of(const dti_vk_device *device, uint32_t kernel, uint32_t variant);
/* Wants a pipeline: *index is its number at the device. local: invocations of a workgroup; types:
 * dti_vk_types_of its launch. */
static dt_result dti_vk_pipeline_want(dti_vk_device *device, uint32_t kernel, uint32_t variant,
                                      uint32_t local, uint32_t types, const uint32_t spec[4],
                                      uint32_t *index);
/* Makes all wanted pipelines, on the threads of the context's pool. `result` is the result of
 * wanting them: after an error none is made. After any error pipelines that were not made are
 * forgotten, and no index is valid. */
static dt_result dti_vk_pipelines_make(dti_vk_device *device, dt_result result);
/* Logs the pipelines that were made for a program. */
static void dti_vk_say_made(dti_vk_device *device);
static dti_grid_device dti_vk_grid_device(const dti_vk_device *device);

/* ---- tune.c */
static dt_result dti_vk_time_run(dti_exec *exec, uint32_t variant, uint32_t segment, double *ms);
/* The variants that were timed by a launch for which the variant is meant. The fastest is first;
 * with milliseconds of each. count 0: there is no such launch. */
#define DTI_VK_TUNE_NEVER 1e30 /* the driver cannot compile it */
typedef struct dti_vk_race {
    uint32_t count, variant[DTI_VK_VARIANTS_MAX];
    double ms[DTI_VK_VARIANTS_MAX];
} dti_vk_race;
static dt_result dti_vk_tune(dti_vk_device *device, uint32_t kernel, uint32_t variant,
                             dti_vk_race *race);

/* ---- qualify.c */
/* How a variant compares with the portable one. If they differ: the trial, the word of the memory
 * and its bits. */
typedef struct dti_vk_finding {
    bool same;
    dti_trial_data data;
    uint32_t launches, number, is, should;
    dti_trial trial; /* number */
    uint64_t word;
    double ms;
} dti_vk_finding;
/* The one check of a variant, for ./build.sh gpu too. An error: it could not be made. */
static dt_result dti_vk_compare(dti_vk_device *device, uint32_t kernel, uint32_t variant,
                                dti_vk_finding *finding);
/* Stops using a variant; finding NULL: the driver cannot compile or run it, and the error says
 * why. */
static void dti_vk_strike(dti_vk_device *device, const dti_vk_shader *shader,
                          const dti_vk_finding *finding);
/* Whether it may run here at all; its speed is another question. */
static bool dti_vk_fits(const dti_vk_device *device, uint32_t kernel, uint32_t variant);
/* The variant that makes the launches for which this variant is meant: the fastest correct one.
 * Tests and times on the device if that was not done yet. */
static uint32_t dti_vk_allowed(dti_vk_device *device, uint32_t kernel, uint32_t variant);
/* The device's verdicts, for a later run: to out (NULL: measures); returns the bytes. */
static size_t dti_vk_verdicts_write(const dti_vk_device *device, void *out);
static void dti_vk_verdicts_read(dti_vk_device *device, const void *data, size_t bytes);

/* ---- self_test.c */
/* DT_ERROR_DEVICE, with the difference, if the device does not compute the known result. */
static dt_result dti_vk_self_test(dti_vk_device *device);

/* ---- command.c */
static dt_result dti_vk_command_create(dti_vk_device *device, uint32_t count,
                                       dti_VkCommandBuffer *out);
static dt_result dti_vk_command_begin(dti_vk_device *device, dti_VkCommandBuffer command);
static dt_result dti_vk_command_end(dti_vk_device *device, dti_VkCommandBuffer command);
static dt_result dti_vk_fence_create(dti_vk_device *device, dti_VkFence *out);
static dt_result dti_vk_submit(dti_vk_device *device, const dti_VkCommandBuffer *commands,
                               uint32_t count, dti_VkFence fence);
static dt_result dti_vk_fence_wait(dti_vk_device *device, dti_VkFence fence);
/* Submits the recorded command buffer (NULL: nothing) with the device's own fence and waits. */
static dt_result dti_vk_run(dti_vk_device *device, dti_VkCommandBuffer command);
/* Submits nothing but a wait and a signal; see dti_backend. */
static dt_result dti_vk_sync(dti_device *device, const dt_vulkan_semaphore *wait,
                             const dt_vulkan_semaphore *signal);
/* Everything submitted so far is finished when this returns. */
static dt_result dti_vk_drain(dti_vk_device *device);
/* Memory barriers: all later commands see all earlier writes (by kernels and copies). */
static void dti_vk_barrier_all(dti_vk_device *device, dti_VkCommandBuffer command);
static void dti_vk_barrier_compute(dti_vk_device *device, dti_VkCommandBuffer command);
static void dti_vk_barrier_host(dti_vk_device *device, dti_VkCommandBuffer command);
static void dti_vk_copy(dti_vk_device *device, dti_VkCommandBuffer command,
                        const dti_vk_buffer *from, uint64_t from_offset, const dti_vk_buffer *to,
                        uint64_t to_offset, uint64_t bytes);
static void dti_vk_copy_fetch(dti_vk_device *device, dti_VkCommandBuffer command,
                              const dti_vk_buffer *from, const dti_vk_buffer *to,
                              const dti_fetch *fetch);

/* ---- hazard.c: barriers, derived. It records the accesses since the last barrier. A launch that
 * conflicts with one (read after write, write after read, write after write, on bytes that overlap)
 * needs a barrier first. A barrier clears the record. Transient values share bytes over time, so
 * ranges are compared, never value numbers. */
typedef struct dti_vk_access {
    uint32_t memory;
    bool write;
    uint64_t begin, end; /* bytes */
    /* In each period of bytes, from `begin` on, those that are touched; period 0: all. */
    uint64_t period, from, to;
} dti_vk_access;

/* A full record also asks for a barrier. One in 64 launches or more costs nothing, and so recording
 * needs no memory. */
#define DTI_VK_ACCESSES_MAX 256
typedef struct dti_vk_hazard {
    uint32_t count;
    dti_vk_access access[DTI_VK_ACCESSES_MAX];
} dti_vk_hazard;

/* At most DTI_BINDINGS_MAX; how many. */
static uint32_t dti_vk_accesses_of(const dti_launch *launch, const dti_place *places,
                                   dti_vk_access *accesses);
/* Adds a launch's accesses (at most DTI_BINDINGS_MAX); true: put a barrier before the launch. */
static bool dti_vk_hazard_add(dti_vk_hazard *hazard, const dti_vk_access *accesses, uint32_t count);

/* ---- exec.c */
static dt_result dti_vk_exec_create(dti_device *device, const dti_exec_desc *desc, dti_exec **out);
static void dti_vk_exec_destroy(dti_exec *exec);
static dt_result dti_vk_exec_start(dti_exec *exec, uint32_t first, uint32_t count);
static dt_result dti_vk_exec_poll(dti_exec *exec, bool *busy);
static dt_result dti_vk_exec_wait(dti_exec *exec);
static dt_result dti_vk_exec_reach(dti_exec *exec, uint32_t segment);

/* ---- search.c */
static dt_result dti_vk_exec_find_fault(dti_exec *exec, uint32_t first, uint32_t count,
                                        uint32_t *fault);

/* ---- parts.c */
static dt_result dti_vk_exec_part(dti_exec *exec, uint32_t *at, dti_exec_cursor *cursor,
                                  uint32_t end, double ms);
static uint32_t dti_vk_exec_times(const dti_exec *exec, dti_exec_time *to);
