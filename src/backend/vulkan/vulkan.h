/* The Vulkan backend as the context sees it: find the loader and its devices, open one, keep its
 * compiled kernels. Everything else goes through dti_backend. Needs Vulkan 1.1, storage buffers and
 * one compute queue; no feature and no extension is required of a device.
 *
 * DT_NO_VULKAN leaves it out, all but a row without devices (driver.c).
 *
 * The files in the order in which to read them. device/ finds a device, and opens it:
 *
 *   load.c        the loader's library, and the instance
 *   icd.c         a driver without the loader
 *   device.h      what all files here share
 *   device.c      what a device can do, and how it is opened
 *   vk_memory.c   arenas
 *
 * pipeline/ makes a pipeline of a kernel:
 *
 *   unpack.c       decodes a module of shader_table.h
 *   shader.c       modules of shader_table.h
 *   specialize.c   constants in a module before the driver gets it
 *   prune.c        and without what they leave unreachable
 *   pipeline.c     compiles and keeps pipelines
 *   grid.c         how a launch is laid out in workgroups
 *   spills.c       whether registers suffice here
 *   tune.c         which variant of a kernel is the fastest here
 *   qualify.c      whether a fast variant is right here
 *   self_test.c    whether the device computes at all
 *
 * run/ runs a program:
 *
 *   work.c      what a program is made of, and its launches
 *   divide.c    factors for divisions
 *   hazard.c    which launches need a barrier
 *   record.c    command buffers of segments
 *   command.c   submission and waiting
 *   exec.c      runs recorded commands
 *   parts.c     a step part by part
 *   search.c    which launch wrote a value that is not finite
 *
 * Here on top:
 *
 *   driver.c                    Vulkan as a row of the context's list of drivers
 *   vk_decl.h, shader_table.h   declarations and compiled kernels; both are generated */

typedef struct dti_vk_instance dti_vk_instance;

typedef struct dti_vk_options {
    const char *loader;    /* path of the Vulkan loader, or of a driver; NULL = the system's */
    const char *manifests; /* tests: the folder of drivers' manifests; NULL = the system's */
    /* The application's device, which is then the only one; else NULL. Outlives the instance. */
    const dt_vulkan_desc *host;
    const void *cache; /* blob of dti_vk_cache_export, or NULL; must outlive the instance */
    size_t cache_bytes;
    bool validation; /* the Khronos layer if it exists; its messages go to the log */
    bool no_fast;    /* only the portable kernels */
    dt_kernel_check kernel_check;
    bool direct;     /* tests: in spite of no_unified, IN is written to where it lies */
    bool no_unified; /* tests: go through staging also where host and device share memory */
} dti_vk_options;

/* Loads the loader and makes a VkInstance. Without a loader or a driver this succeeds, with no
 * devices and the reason in the log; the CPU backend always exists. With the application's device
 * nothing is loaded or made, and a device that cannot be used is UNSUPPORTED. */
static dt_result dti_vk_instance_create(dti_base *base, const dti_vk_options *options,
                                        dti_vk_instance **out);
static void dti_vk_instance_destroy(void *instance); /* closes its devices; NULL is fine */

/* Writes the first `capacity` infos; *count is how many devices there are. The place of an info is
 * the index for dti_vk_open, and the N of its id "vulkan:N". */
static dt_result dti_vk_list(dti_vk_instance *instance, dt_device_info *infos, int capacity,
                             int *count);

/* Opens a device, or returns the open one again (open_count is raised; close() lowers it). An open
 * device stays until the instance is destroyed, so a new store compiles nothing twice. A lost one
 * is destroyed at its last close(). The next open makes a new one, except for the application's. */
static dt_result dti_vk_open(dti_vk_instance *instance, int index, dti_device **out);

/* The compiled kernels of the open devices; with data NULL only sets *bytes. */
static dt_result dti_vk_cache_export(void *instance, void *data, size_t *bytes);

/* Vulkan memory that the open devices hold now, and how often vkAllocateMemory was called. */
static void dti_vk_memory_used(const void *instance, uint64_t *bytes, uint64_t *calls);
