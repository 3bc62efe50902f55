/* The Vulkan loader and the instance. Opens the loader's library at run time, so a program that
 * carries dtrain starts on a machine without any Vulkan; reads the functions' addresses by name;
 * makes one VkInstance 1.1 per context. Only a lack of host memory is an error. A missing part is
 * logged, and leaves the instance without devices. The application's instance is used unchanged; if
 * it lacks something, that is an error. */

/* Where the loader may be; MoltenVK is a driver that is a loader of its own. dyld does not search
 * Homebrew's folder. */
static const char *const dti_vk_libraries[] = {
#if defined _WIN32
    "vulkan-1.dll",
#elif defined __APPLE__
    "libvulkan.1.dylib",
    "libvulkan.dylib",
    "/opt/homebrew/lib/libvulkan.1.dylib",
    "libMoltenVK.dylib",
    "/opt/homebrew/lib/libMoltenVK.dylib",
#else
    "libvulkan.so.1",
#endif
};

#define DTI_VK_LAYER "VK_LAYER_KHRONOS_validation"
#define DTI_VK_PORTABILITY "VK_KHR_portability_enumeration"
#define DTI_VK_DEBUG_UTILS "VK_EXT_debug_utils"
#define DTI_VK_FEATURES "VK_EXT_validation_features"

/* m: drivers that were tried, or NULL. */
static void dti_vk_no_loader(dti_vk_instance *in, const char *path, const char *why,
                             const dti_vk_manifests *m) {
    if (m && m->count)
        dti_log(in->base, DT_LOG_WARNING,
                "no Vulkan devices: the driver %s has none by itself, and the loader %s could not "
                "be opened (%s); install the loader (Debian, Ubuntu: libvulkan1; Fedora, Alpine: "
                "vulkan-loader; Arch: vulkan-icd-loader)",
                m->path[0], path, why);
    else
        dti_log(in->base, in->options.loader ? DT_LOG_WARNING : DT_LOG_INFO,
                "no Vulkan devices: the loader %s could not be opened (%s)", path, why);
}

/* The first library that exists, with its name in *path; else the reason. */
static const char *dti_vk_find_library(dti_vk_instance *in, const char **path) {
    const char *why = NULL;
    const size_t count = in->options.loader ? 1 : DTI_COUNT(dti_vk_libraries);
    for (size_t i = 0; i < count && !in->library; i++) {
        *path = in->options.loader ? in->options.loader : dti_vk_libraries[i];
        in->library = dti_library_open(*path, &why);
    }
    return in->library ? NULL : why;
}

/* Of a loader, or of a driver that is named in its place. */
static bool dti_vk_library_functions(dti_vk_instance *in, const char *path) {
    void *symbol = dti_library_find(in->library, "vkGetInstanceProcAddr");
    memcpy(&in->vk.GetInstanceProcAddr, &symbol, sizeof symbol);
    if (symbol || dti_vk_icd_ask(in))
        return true;
    dti_log(in->base, DT_LOG_WARNING, "no Vulkan devices: %s is not a Vulkan loader", path);
    return false;
}

/* In the order of the structs of functions. */
#define DTI_X(command) "vk" #command,
static const char *const dti_vk_instance_names[] = {DTI_VK_GLOBAL_COMMANDS(DTI_X)
                                                        DTI_VK_INSTANCE_COMMANDS(DTI_X)};
static const char *const dti_vk_device_names[] = {DTI_VK_DEVICE_COMMANDS(DTI_X)};
#undef DTI_X
#define DTI_X(command) +1
enum { DTI_VK_GLOBALS = 0 DTI_VK_GLOBAL_COMMANDS(DTI_X) };
#undef DTI_X

/* Commands [from, end) of a device, or of the instance (NULL). Returns the first of the core that
 * is missing; an extension's may be. */
static const char *dti_vk_load(dti_vk_instance *in, dti_vk_device *device, size_t from,
                               size_t end) {
    char *to = device ? (char *)&device->vk : (char *)&in->vk;
    for (size_t i = from; i < end; i++) {
        const char *name = device ? dti_vk_device_names[i] : dti_vk_instance_names[i];
        const char *tail = name + strlen(name) - 3;
        const dti_PFN_vkVoidFunction found = device ? in->vk.GetDeviceProcAddr(device->handle, name)
                                                    : in->vk.GetInstanceProcAddr(in->handle, name);
        if (!found && strcmp(tail, "EXT") && strcmp(tail, "KHR"))
            return name;
        memcpy(to + i * sizeof found, &found, sizeof found);
    }
    return NULL;
}

static bool dti_vk_load_global(dti_vk_instance *in) {
    const char *lacks = dti_vk_load(in, NULL, 0, DTI_VK_GLOBALS);
    if (lacks)
        dti_log(in->base, DT_LOG_INFO, "no Vulkan devices: the loader has no %s", lacks);
    return !lacks;
}

static bool dti_vk_load_instance(dti_vk_instance *in) {
    const char *lacks = dti_vk_load(in, NULL, DTI_VK_GLOBALS, DTI_COUNT(dti_vk_instance_names));
    if (lacks)
        dti_log(in->base, DT_LOG_WARNING, "no Vulkan devices: the instance has no %s", lacks);
    return !lacks;
}

static dt_result dti_vk_load_device(dti_vk_device *device) {
    const char *lacks = dti_vk_load(device->instance, device, 0, DTI_COUNT(dti_vk_device_names));
    return lacks ? dti_fail(device->head.base, DT_ERROR_DEVICE, "the driver of %s has no %s",
                            device->head.info.name, lacks)
                 : DT_OK;
}

static dti_VkResult dti_vk_extensions(const dti_vk_instance *in, dti_VkPhysicalDevice physical,
                                      const char *layer, uint32_t *count,
                                      dti_VkExtensionProperties *list) {
    return physical ? in->vk.EnumerateDeviceExtensionProperties(physical, layer, count, list)
                    : in->vk.EnumerateInstanceExtensionProperties(layer, count, list);
}

/* Whether a device has an extension, or the instance (NULL), or a layer of it. */
static bool dti_vk_has(dti_vk_instance *in, dti_VkPhysicalDevice physical, const char *layer,
                       const char *name) {
    uint32_t count = 0;
    if (dti_vk_extensions(in, physical, layer, &count, NULL) || !count)
        return false;
    dti_VkExtensionProperties *list = dti_alloc_array(in->base, count, sizeof *list);
    bool found = false;
    in->no_memory = in->no_memory || !list;
    if (list && dti_vk_extensions(in, physical, layer, &count, list) >= 0)
        for (uint32_t i = 0; i < count && !found; i++)
            found = !strcmp(list[i].extensionName, name);
    dti_free(in->base, list);
    return found;
}

static dti_VkBool32 DTI_VKAPI dti_vk_message(dti_VkDebugUtilsMessageSeverityFlagBitsEXT severity,
                                             dti_VkDebugUtilsMessageTypeFlagsEXT types,
                                             const dti_VkDebugUtilsMessengerCallbackDataEXT *data,
                                             void *user) {
    dti_vk_instance *in = user;
    bool error = severity & DTI_VK_DEBUG_UTILS_MESSAGE_SEVERITY_ERROR_BIT_EXT;
    dti_log(in->base, error ? DT_LOG_ERROR : DT_LOG_WARNING, "vulkan validation: %s",
            data->pMessage);
    return DTI_VK_FALSE;
}

/* Also chained to the instance's creation, so that its own messages are heard. */
static dti_VkDebugUtilsMessengerCreateInfoEXT dti_vk_messenger_info(dti_vk_instance *in) {
    return (dti_VkDebugUtilsMessengerCreateInfoEXT){
        .sType = DTI_VK_STRUCTURE_TYPE_DEBUG_UTILS_MESSENGER_CREATE_INFO_EXT,
        .messageSeverity = DTI_VK_DEBUG_UTILS_MESSAGE_SEVERITY_WARNING_BIT_EXT |
                           DTI_VK_DEBUG_UTILS_MESSAGE_SEVERITY_ERROR_BIT_EXT,
        .messageType = DTI_VK_DEBUG_UTILS_MESSAGE_TYPE_VALIDATION_BIT_EXT |
                       DTI_VK_DEBUG_UTILS_MESSAGE_TYPE_PERFORMANCE_BIT_EXT,
        .pfnUserCallback = dti_vk_message,
        .pUserData = in,
    };
}

/* Whether the layer and its messenger extension exist; only a loader has layers. */
static bool dti_vk_want_validation(dti_vk_instance *in) {
    if (!in->options.validation)
        return false;
    const bool found = !in->icd && dti_vk_has(in, NULL, DTI_VK_LAYER, DTI_VK_DEBUG_UTILS);
    if (!found)
        dti_log(in->base, DT_LOG_WARNING,
                "validation was asked for, but " DTI_VK_LAYER " is not installed");
    return found;
}

/* Makes the instance with the layers and extensions that exist; `next` is chained to its
 * creation. */
static dti_VkResult dti_vk_create_instance(dti_vk_instance *in, bool validation, bool hazards,
                                           const void *next) {
    const char *extensions[3], *layer = DTI_VK_LAYER;
    uint32_t extension_count = 0;
    bool portability = dti_vk_has(in, NULL, NULL, DTI_VK_PORTABILITY);
    if (validation)
        extensions[extension_count++] = DTI_VK_DEBUG_UTILS;
    if (portability)
        extensions[extension_count++] = DTI_VK_PORTABILITY;
    if (hazards)
        extensions[extension_count++] = DTI_VK_FEATURES;
    dti_VkApplicationInfo application = {
        .sType = DTI_VK_STRUCTURE_TYPE_APPLICATION_INFO,
        .pEngineName = "dtrain",
        .apiVersion = DTI_VK_1_1, /* newer devices are used as 1.1 */
    };
    dti_VkInstanceCreateInfo info = {
        .sType = DTI_VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO,
        .pNext = next,
        .flags = portability ? DTI_VK_INSTANCE_CREATE_ENUMERATE_PORTABILITY_BIT_KHR : 0,
        .pApplicationInfo = &application,
        .enabledLayerCount = validation,
        .ppEnabledLayerNames = &layer,
        .enabledExtensionCount = extension_count,
        .ppEnabledExtensionNames = extensions,
    };
    return in->vk.CreateInstance(&info, NULL, &in->handle);
}

static bool dti_vk_make_instance(dti_vk_instance *in) {
    bool validation = dti_vk_want_validation(in);
    bool hazards = validation && dti_vk_has(in, NULL, DTI_VK_LAYER, DTI_VK_FEATURES);
    /* The layer then also looks for barriers that are missing. */
    dti_VkValidationFeatureEnableEXT enable =
        DTI_VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT;
    dti_VkValidationFeaturesEXT features = {
        .sType = DTI_VK_STRUCTURE_TYPE_VALIDATION_FEATURES_EXT,
        .enabledValidationFeatureCount = 1,
        .pEnabledValidationFeatures = &enable,
    };
    dti_VkDebugUtilsMessengerCreateInfoEXT messenger = dti_vk_messenger_info(in);
    messenger.pNext = hazards ? &features : NULL;
    dti_VkResult result =
        dti_vk_create_instance(in, validation, hazards, validation ? &messenger : NULL);
    if (result) {
        in->handle = NULL;
        dti_log(in->base, DT_LOG_INFO, "no Vulkan devices: no driver (vkCreateInstance gave %d)",
                (int)result);
        return false;
    }
    messenger.pNext = NULL;
    if (!dti_vk_load_instance(in))
        return false;
    if (validation && in->vk.CreateDebugUtilsMessengerEXT)
        in->vk.CreateDebugUtilsMessengerEXT(in->handle, &messenger, NULL, &in->messenger);
    return true;
}

static void dti_vk_find_devices(dti_vk_instance *in) {
    uint32_t count = DTI_VK_DEVICES_MAX;
    dti_VkResult result = in->vk.EnumeratePhysicalDevices(in->handle, &count, in->physical);
    if (result < 0)
        count = 0;
    if (result > 0)
        dti_log(in->base, DT_LOG_WARNING, "only the first %d Vulkan devices are listed",
                DTI_VK_DEVICES_MAX);
    in->device_count = (int)count;
    if (!count)
        dti_log(in->base, DT_LOG_INFO, "no Vulkan devices: the loader is there, no driver is");
    for (int i = 0; i < in->device_count; i++)
        dti_vk_describe(in, i);
}

/* The application's: its one device must be usable. */
static dt_result dti_vk_adopt(dti_vk_instance *in) {
    const dt_vulkan_desc *host = in->options.host;
    in->vk.GetInstanceProcAddr = (dti_PFN_vkGetInstanceProcAddr)host->get_instance_proc_addr;
    in->handle = host->instance;
    if (!dti_vk_load_instance(in))
        return dti_fail(in->base, DT_ERROR_UNSUPPORTED,
                        "dt_ctx_desc.vulkan: the instance lacks functions of Vulkan 1.1; make it "
                        "with VkApplicationInfo.apiVersion VK_API_VERSION_1_1 or newer");
    in->device_count = 1;
    in->physical[0] = host->physical_device;
    dti_vk_describe(in, 0);
    if (in->no_memory || in->infos[0].usable)
        return DT_OK;
    return dti_fail(in->base, DT_ERROR_UNSUPPORTED, "dt_ctx_desc.vulkan: %s: %s", in->infos[0].name,
                    in->infos[0].driver);
}

/* Closes the driver, and all is as if it had never been opened. */
static void dti_vk_leave_driver(dti_vk_instance *in) {
    if (in->handle && in->vk.DestroyInstance)
        in->vk.DestroyInstance(in->handle, NULL);
    if (in->library)
        dti_library_close(in->library);
    in->handle = NULL;
    in->library = NULL;
    in->icd = false;
    in->device_count = 0;
    memset(&in->vk, 0, sizeof in->vk);
    memset(in->infos, 0, sizeof in->infos);
}

/* The driver of a manifest stays open if it has a device that can be used. */
static bool dti_vk_enter_driver(dti_vk_instance *in, const char *manifest, bool software) {
    char library[2 * DTI_VK_MANIFEST_PATH];
    const char *why = NULL;
    bool found = false;
    if (!dti_vk_manifest_read(in, manifest, library))
        return false;
    in->library = dti_library_open(library, &why);
    if (in->library && dti_vk_icd_ask(in) && dti_vk_load_global(in) && dti_vk_make_instance(in))
        dti_vk_find_devices(in);
    for (int i = 0; i < in->device_count; i++)
        found |= in->infos[i].usable && (software || in->infos[i].kind != DT_DEVICE_SOFTWARE);
    if (found)
        dti_library_stay(library);
    else
        dti_vk_leave_driver(in);
    return found;
}

/* The first driver with a device that is not software, else the first with any. */
static void dti_vk_open_driver(dti_vk_instance *in, const char *path, const char *why) {
    dti_vk_manifests *m = dti_alloc(in->base, sizeof *m);
    bool found = false;
    in->no_memory = !m;
    if (m)
        dti_vk_manifests_find(in, m);
    for (int i = 0; m && i < 2 * m->count && !found && !in->no_memory; i++) {
        const char *manifest = m->path[i % m->count];
        found = dti_vk_enter_driver(in, manifest, i >= m->count);
        if (found)
            dti_log(in->base, DT_LOG_INFO,
                    "the loader %s could not be opened (%s): the driver of %s is used without it",
                    path, why, manifest);
    }
    if (m && !found && !in->no_memory)
        dti_vk_no_loader(in, path, why, m);
    dti_free(in->base, m);
}

/* NVIDIA's driver 580 cannot be loaded more than 30 times in a process: its static TLS runs out. So
 * drivers stay loaded when a context ends. */
static void dti_vk_keep_drivers(dti_vk_instance *in) {
    char library[2 * DTI_VK_MANIFEST_PATH];
    dti_vk_manifests *m = dti_alloc(in->base, sizeof *m);
    if (!m)
        return;
    dti_vk_manifests_find(in, m);
    for (int i = 0; i < m->count; i++)
        if (dti_vk_manifest_read(in, m->path[i], library))
            dti_library_stay(library);
    dti_free(in->base, m);
}

/* Finds devices, by the loader or else by one driver. If a loader is requested by name and missing,
 * no driver replaces it. */
static void dti_vk_look(dti_vk_instance *in) {
    char why[DTI_VK_MANIFEST_PATH];
    const char *path = "", *missing = dti_vk_find_library(in, &path);
    /* The system's own text is lost when the next library is opened. */
    snprintf(why, sizeof why, "%s", missing ? missing : "");
    if (missing && in->options.loader && !in->options.manifests)
        dti_vk_no_loader(in, path, why, NULL);
    else if (missing)
        dti_vk_open_driver(in, path, why);
    else if (dti_vk_library_functions(in, path) && dti_vk_load_global(in) &&
             dti_vk_make_instance(in)) {
        dti_vk_keep_drivers(in);
        dti_vk_find_devices(in);
    }
}

static dt_result dti_vk_instance_create(dti_base *base, const dti_vk_options *options,
                                        dti_vk_instance **out) {
    dti_vk_instance *in = dti_alloc(base, sizeof *in);
    *out = in;
    DTI_HAVE(in);
    in->base = base;
    in->options = *options;
    /* Drivers' threads inherit the floating-point modes of the thread that starts them: the
     * library's, as this is within a call. */
    dt_result result = DT_OK;
    if (options->host)
        result = dti_vk_adopt(in);
    else
        dti_vk_look(in);
    if (!result && !in->no_memory)
        return DT_OK;
    dti_vk_instance_destroy(in); /* its devices would lack functions */
    *out = NULL;
    return result ? result : DT_ERROR_MEMORY;
}

static void dti_vk_instance_destroy(void *instance) {
    dti_vk_instance *in = instance;
    if (!in)
        return;
    for (int i = 0; i < in->device_count; i++)
        dti_vk_device_destroy(in->open[i]);
    const bool forked = dti_forked(in->base);
    if (in->messenger && !forked)
        in->vk.DestroyDebugUtilsMessengerEXT(in->handle, in->messenger, NULL);
    if (in->handle && in->vk.DestroyInstance && !forked && !in->options.host)
        in->vk.DestroyInstance(in->handle, NULL);
    if (in->library && !forked) /* its end would wait for its threads */
        dti_library_close(in->library);
    dti_free(in->base, in);
}
