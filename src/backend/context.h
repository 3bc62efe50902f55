/* The context: a dti_base, the devices that were found, and the open ones. */

#define DTI_DEVICES_MAX 32

struct dt_ctx {
    dti_base base; /* first: see dti_ctx_base */
    dt_ctx_desc desc;
    void *cache; /* copy of the pipeline cache that the host gave */
    dti_vk_instance *vulkan;
    bool listed; /* infos are filled */
    int device_count;
    dt_device_info infos[DTI_DEVICES_MAX]; /* [0] is the CPU */
};

/* Opens the device that `name` asks for ("auto", NULL, "cpu", "vulkan", "vulkan:N" or a part of
 * a name); `flops` is the estimate of one training step, for "auto". Logs the choice and its
 * reason. */
static dt_result dti_device_open(dt_ctx *ctx, const char *name, double flops, dti_device **out);
static void dti_device_close(dti_device *device);
