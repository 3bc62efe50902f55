/* The context: a dti_base, the devices that were found, and the open ones. */

/* The drivers of devices, each a folder here; the first gives device 0, the CPU. */
#ifndef DTI_DRIVER_LIST_TESTS /* of a test program, after this library */
#define DTI_DRIVER_LIST_TESTS(X)
#endif
#define DTI_DRIVER_LIST(X) X(cpu) X(vk) DTI_DRIVER_LIST_TESTS(X)
#define DTI_X(name) +1
enum { DTI_DRIVERS = 0 DTI_DRIVER_LIST(DTI_X) };
#undef DTI_X

#define DTI_DEVICES_MAX 32

struct dt_ctx {
    dti_base base; /* first: see dti_ctx_base */
    dt_ctx_desc desc;
    dt_vulkan_desc vulkan;        /* desc.vulkan, where the application gave one */
    void *cache;                  /* copy of the pipeline cache that the host gave */
    void *instances[DTI_DRIVERS]; /* each driver's instance */
    int first[DTI_DRIVERS];       /* its first device */
    bool listed;                  /* infos are filled */
    int device_count;
    dt_device_info infos[DTI_DEVICES_MAX]; /* [0] is the CPU */
};

/* Opens the device that `name` asks for ("auto", NULL, "cpu", "vulkan", "vulkan:N" or a part of
 * a name); `flops` is the estimate of one training step, for "auto". Logs the choice and its
 * reason. */
static dt_result dti_device_open(dt_ctx *ctx, const char *name, double flops, dti_device **out);
static void dti_device_close(dti_device *device);
