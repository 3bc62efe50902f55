/* ---- Inside a renderer: the application's Vulkan device ----------------------------------------
 *
 * No Vulkan header is needed: handles that point (VkInstance, VkPhysicalDevice, VkDevice, VkQueue)
 * are void *, the others (VkSemaphore, VkBuffer) uint64_t, to which C casts both of their forms:
 * (uint64_t)semaphore. docs/embedding.md has a page on all of this, with code. */

/* The application's device, for dt_ctx_desc.vulkan. dtrain makes objects of its own on it, submits
 * to the queue, and destroys nothing else. All of it stays alive until the context is destroyed. */
typedef struct dt_vulkan_desc {
    /* vkGetInstanceProcAddr of the loader that made the instance, cast to this type. */
    void (*get_instance_proc_addr)(void);
    void *instance; /* made for Vulkan 1.1 or newer (VkApplicationInfo.apiVersion) */
    void *physical_device;
    void *device;
    void *queue;           /* can compute; the application may use it too, under the lock */
    uint32_t queue_family; /* the queue's */
    /* The feature timelineSemaphore was enabled at vkCreateDevice: needed by dt_step_desc.wait and
     * .signal, and by nothing else. Kernels need no feature and no extension. */
    bool timeline_semaphore;
    /* The extension VK_KHR_shader_float_controls was enabled at vkCreateDevice. Where the driver
     * reports shaderSignedZeroInfNanPreserveFloat32 too, kernels ask it to keep infinities and NaN
     * what they are; without that a driver with fast mathematics (MoltenVK) may not. */
    bool float_controls;
    /* Called around each submission to the queue, on the thread that uses the context, and never
     * held while something is waited for. Both or neither; NULL: nobody else submits to the queue
     * while a function of the context runs. */
    void (*lock)(void *user);
    void (*unlock)(void *user);
    void *user;
} dt_vulkan_desc;

/* A range of a VkBuffer of that device. */
typedef struct dt_vulkan_buffer {
    uint64_t buffer;
    uint64_t offset, bytes;
} dt_vulkan_buffer;

/* A timeline semaphore of the application and a value of it. semaphore 0: none. */
typedef struct dt_vulkan_semaphore {
    uint64_t semaphore;
    uint64_t value;
} dt_vulkan_semaphore;
