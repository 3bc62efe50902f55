/* The whole boundary between programs and devices. A backend knows memory, launches and segments.
 * It must not know graphs, ops or optimizers, and program/ must not know Vulkan.
 *
 * Threads: a device and all that is made from it belong to the thread that uses its context.
 *
 * The files of this folder in the order in which to read them:
 *
 *   context.h, context.c    contexts, and which device a name means
 *   trial.h, trial.c        launches that show whether a kernel is right
 *   cpu/cpu.c               the CPU
 *   vulkan/                 Vulkan (vulkan.h) */

typedef struct dti_device dti_device; /* opened: a store was created on it */
typedef struct dti_memory dti_memory; /* one arena; zeroed when created */
typedef struct dti_exec dti_exec;     /* a program's launches, compiled */

/* Where a value lies: a range of one of the exec's memories. Offsets are multiples of 256 bytes,
 * the largest minStorageBufferOffsetAlignment that Vulkan allows. */
#define DTI_PLACE_ALIGN 256u
typedef struct dti_place {
    uint32_t memory;
    uint64_t offset, bytes;
} dti_place;

typedef struct dti_range {
    uint64_t offset, bytes;
} dti_range;

/* Ranges of `bytes`, `count` of them, with `stride` from one to the next. */
typedef struct dti_fetch {
    uint64_t offset, bytes, stride;
    uint32_t count;
} dti_fetch;

/* A run of launches that goes to the device in one piece. upload: range of memory `in` that is
 * copied from the host's side before it; download: range of memory `out` copied back after it. */
typedef struct dti_segment {
    uint32_t first, count;
    dti_range upload, download;
    dti_range put;          /* of memory `exchange`, copied from the host's side before it */
    const dti_fetch *fetch; /* of memory `exchange`, copied to the host's side after the segment */
    uint32_t fetch_count;
} dti_segment;

typedef enum dti_memory_kind {
    DTI_MEMORY_DEVICE, /* arenas: parameters, gradients, state, transients, tables */
    DTI_MEMORY_IN,     /* step block at offset 0, then inputs: the host writes, the device reads */
    DTI_MEMORY_OUT,    /* status at offset 0, then outputs: the device writes, the host reads */
    /* An arena on which host and device work alternately. Segments fetch values for the host, and
     * put values from it. Its host side is cached memory. */
    DTI_MEMORY_EXCHANGE
} dti_memory_kind;

/* The position in a segment that runs part by part. It has the number of finished launches, and of
 * finished items of the next one. The backend decides what an item is. */
typedef struct dti_exec_cursor {
    uint32_t launch;
    uint64_t part;
} dti_exec_cursor;

/* When a launch, or a part of one, was computed: milliseconds after its exec_part's beginning. */
#define DTI_EXEC_TIMES 256
typedef struct dti_exec_time {
    uint32_t launch;
    double begin, end;
} dti_exec_time;

typedef struct dti_exec_desc {
    const char *label;
    dti_memory *const *memories;
    uint32_t memory_count;
    const dti_place *places; /* by value number */
    uint32_t place_count;
    const dti_launch *launches;
    uint32_t launch_count;
    const dti_segment *segments;
    uint32_t segment_count;
    /* Segments, from the first, that are mostly started as one: of a step, and of one without
     * commit; 0: none. */
    uint32_t whole[2];
    uint32_t in, out;  /* which of the memories are IN and OUT; the step block is at IN + 0 */
    uint32_t exchange; /* the one that segments fetch from and put to; ignored if none does */
} dti_exec_desc;

typedef struct dti_backend {
    bool workgroups; /* it runs a launch as workgroups */
    dt_result (*memory_create)(dti_device *device, uint64_t bytes, dti_memory_kind kind,
                               dti_memory **out);
    void (*memory_destroy)(dti_memory *memory);
    uint64_t (*memory_bytes)(const dti_memory *memory); /* device bytes that it really takes */
    /* The host's side of IN, OUT and EXCHANGE: written before, and read after, the segment that
     * copies. Stable. On the CPU, and where memory is unified, it is the memory itself. */
    void *(*memory_host)(dti_memory *memory);
    /* For a device that `hosts`: the application's buffer as a memory, which has no host side. Then
     * an arena's buffer, for the application. */
    dt_result (*memory_import)(dti_device *device, const dt_vulkan_buffer *buffer,
                               dti_memory **out);
    void (*memory_where)(const dti_memory *memory, dt_vulkan_buffer *out);
    /* For the processor: the host's own bytes as a memory. The memory must end before them. */
    dt_result (*memory_over)(dti_device *device, void *data, uint64_t bytes, dti_memory **out);
    /* Blocking copies, between runs and between the segments of one. Not of memory that a started
     * segment uses which has not been waited for. */
    dt_result (*memory_write)(dti_memory *memory, uint64_t offset, const void *data,
                              uint64_t bytes);
    dt_result (*memory_read)(dti_memory *memory, uint64_t offset, void *data, uint64_t bytes);
    /* Copies the first bytes of a memory, also to one of another device of the same backend;
     * blocking, like the others. NULL: memory is the host's. */
    dt_result (*memory_copy)(dti_memory *from, dti_memory *to, uint64_t bytes);
    /* Compiles new kernels; all memory is allocated here. Places of launches must stay valid. */
    dt_result (*exec_create)(dti_device *device, const dti_exec_desc *desc, dti_exec **out);
    void (*exec_destroy)(dti_exec *exec); /* waits for running work */
    /* Starts segments [first, first + count), in order. Never blocks where the device runs on
     * its own. */
    dt_result (*exec_start)(dti_exec *exec, uint32_t first, uint32_t count);
    /* Runs from *cursor of segment *at on, in order, for about `ms` of the device's time, but at
     * least something. Advances both; stops where segment `end` begins. Else as exec_start; nothing
     * of the exec may be running. */
    dt_result (*exec_part)(dti_exec *exec, uint32_t *at, dti_exec_cursor *cursor, uint32_t end,
                           double ms);
    /* The newest exec_part's launches, in order, by the device's clock, once it has ended. to: room
     * for DTI_EXEC_TIMES, at which a part ends. Returns the number; 0: no clock. */
    uint32_t (*exec_times)(const dti_exec *exec, dti_exec_time *to);
    dt_result (*exec_poll)(dti_exec *exec, bool *busy);
    dt_result (*exec_wait)(dti_exec *exec);
    /* Waits until segment `segment`, started by an exec_start of its own, has finished. Segments
     * started after it continue. */
    dt_result (*exec_reach)(dti_exec *exec, uint32_t segment);
    /* Runs launches [first, first + count) again, each followed by a SCAN of its results. It ends
     * at the first NaN or infinity: *fault is that launch's number, or launch_count. Their segments
     * read the host's inputs, and give outputs to the host. Slow; blocks. */
    dt_result (*exec_find_fault)(dti_exec *exec, uint32_t first, uint32_t count, uint32_t *fault);
    /* All work started after this waits until `wait` has its value. `signal` gets its value when
     * all work started before has finished. semaphore 0: none. For devices that `hosts` with
     * has_timeline. */
    dt_result (*sync)(dti_device *device, const dt_vulkan_semaphore *wait,
                      const dt_vulkan_semaphore *signal);
    void (*close)(dti_device *device);
} dti_backend;

/* One kind of devices. A driver's state between calls is its instance, one a context. */
typedef struct dti_driver {
    const char *name;  /* of its best device, where a device is chosen by name */
    const char *title; /* in messages */
    /* Writes the first `capacity` infos; *count is the number of devices. A library that is not
     * installed is not an error: there are no devices, and the log has the reason. Makes the
     * instance (NULL before) if it needs one. */
    dt_result (*list)(dti_base *base, const dt_ctx_desc *desc, void **instance,
                      dt_device_info *infos, int capacity, int *count);
    dt_result (*open)(dti_base *base, const dt_ctx_desc *desc, void *instance, int index,
                      dti_device **out);
    /* NULL for drivers without an instance. */
    void (*destroy)(void *instance);
    /* The compiled kernels of its open devices; with data NULL only sets *bytes. */
    dt_result (*cache_export)(void *instance, void *data, size_t *bytes);
    /* The memory that its open devices hold now, and the number of allocations. */
    void (*memory_used)(const void *instance, uint64_t *bytes, uint64_t *calls);
} dti_driver;

struct dti_device { /* the common head of each backend's device */
    const dti_backend *backend;
    dti_base *base;
    dt_device_info info;
    int open_count;
    bool one_thread;     /* CPU: without the pool, whose threads may be in use elsewhere */
    int isa_class;       /* CPU: the class of its kernels, DTI_CLASS_... */
    bool no_hard_halves; /* kernels with hard_halves (launch.h) take no 16 bits */
    bool hosts; /* the application's (dt_vulkan_desc): `sync` works, and buffers can be imported */
};
