/* ---- Inside a renderer: the application's Vulkan device
 *
 * No Vulkan header is needed. VkInstance, VkPhysicalDevice, VkDevice and VkQueue are void *.
 * VkSemaphore and VkBuffer are uint64_t: cast them, (uint64_t)semaphore. docs/embedding.md has
 * code. */

/* The application's device, for dt_ctx_desc.vulkan. dtrain destroys only its own objects. All
 * handles must stay alive until the context is destroyed. */
typedef struct dt_vulkan_desc {
    /* vkGetInstanceProcAddr of the loader that made the instance, cast to this type. */
    void (*get_instance_proc_addr)(void);
    void *instance;        /* made for Vulkan 1.1 or newer (VkApplicationInfo.apiVersion) */
    void *physical_device; /* the one that .device was made from */
    void *device;          /* the logical device */
    void *queue;           /* supports compute; shared with the application under the lock */
    uint32_t queue_family; /* the family of .queue */
    /* timelineSemaphore was enabled at vkCreateDevice. Only dt_step_desc.wait and .signal need
     * it. */
    bool timeline_semaphore;
    /* VK_KHR_shader_float_controls was enabled at vkCreateDevice. Otherwise a driver with fast
     * mathematics (MoltenVK) may change infinities and NaN. */
    bool float_controls;
    /* Held around each submission to the queue, never during a wait. Set both or neither. NULL:
     * only dtrain submits to the queue while a function of the context runs. */
    void (*lock)(void *user);
    void (*unlock)(void *user);
    void *user;
} dt_vulkan_desc;

/* A range of a VkBuffer of that device, in bytes. */
typedef struct dt_vulkan_buffer {
    uint64_t buffer;        /* the VkBuffer */
    uint64_t offset, bytes; /* its first byte, and their number */
} dt_vulkan_buffer;

/* A value of one of the application's timeline semaphores. */
typedef struct dt_vulkan_semaphore {
    uint64_t semaphore; /* the VkSemaphore; 0 = no semaphore */
    uint64_t value;     /* to wait for, or to signal */
} dt_vulkan_semaphore;
