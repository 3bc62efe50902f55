/* A driver without the loader. Drivers leave manifests, which name their libraries; a library that
 * is asked as the loader would ask (interface version 2 or newer) gives the same functions. One
 * driver is opened, the first that has a device: one that computes before one that is software. So
 * there are no layers, and no devices of a second vendor. The loader has both, and is used where it
 * exists. Of a manifest only the library's name is used. That is not a new risk. A user who may
 * write manifests can run code in every program that uses Vulkan. */

enum {
    DTI_VK_MANIFEST_PATH = 512,
    DTI_VK_MANIFESTS_MAX = 32,
    DTI_VK_MANIFEST_BYTES = 1 << 16, /* larger files are not manifests */
    DTI_VK_ICD_VERSION = 5           /* our version; drivers answer with the one that both
                                      * support */
};

typedef struct dti_vk_manifests {
    int count;
    char path[DTI_VK_MANIFESTS_MAX][DTI_VK_MANIFEST_PATH];
} dti_vk_manifests;

typedef dti_VkResult(DTI_VKAPI *dti_vk_icd_negotiate)(uint32_t *version);

/* ---- The contents of a manifest */

/* The string "library_path" in the object "ICD". */
static bool dti_vk_manifest_path(const char *text, size_t size, dti_slice *path) {
    dti_json j = dti_json_open(text, size);
    dti_slice key;
    *path = (dti_slice){0};
    for (bool good = dti_json_object(&j); good && dti_json_next_key(&j, &key);) {
        if (!dti_slice_is(key, "ICD")) {
            good = dti_json_skip(&j);
            continue;
        }
        for (good = dti_json_object(&j); good && dti_json_next_key(&j, &key);)
            good =
                dti_slice_is(key, "library_path") ? dti_json_string(&j, path) : dti_json_skip(&j);
    }
    return dti_json_done(&j) && path->size > 0 && !memchr(path->data, '\\', path->size) &&
           !memchr(path->data, 0, path->size);
}

/* As the loader resolves it: a name is looked for where libraries are, a path begins at the
 * manifest's folder. */
static bool dti_vk_manifest_library(const char *manifest, const char *text, size_t size,
                                    char library[2 * DTI_VK_MANIFEST_PATH]) {
    dti_slice path;
    if (!dti_vk_manifest_path(text, size, &path) || path.size >= DTI_VK_MANIFEST_PATH)
        return false;
    const char *end = strrchr(manifest, '/');
    const bool relative = path.data[0] != '/' && memchr(path.data, '/', path.size) && end;
    snprintf(library, 2 * DTI_VK_MANIFEST_PATH, "%.*s%.*s",
             relative ? (int)(end - manifest + 1) : 0, manifest, (int)path.size, path.data);
    return true;
}

/* Nothing is logged if it cannot be read. */
static bool dti_vk_manifest_read(dti_vk_instance *in, const char *manifest,
                                 char library[2 * DTI_VK_MANIFEST_PATH]) {
    int stream;
    uint64_t size = 0, at = 0;
    if (dti_stream_open(manifest, &stream, &size))
        return false;
    const bool fits = size <= DTI_VK_MANIFEST_BYTES;
    char *text = fits ? dti_alloc(in->base, (size_t)size + 1) : NULL;
    in->no_memory = in->no_memory || (fits && !text);
    for (int64_t got = 1; text && at < size && got > 0; at += got > 0 ? (uint64_t)got : 0)
        got = dti_stream_read(stream, text + at, (size_t)(size - at));
    const bool good =
        text && at == size && dti_vk_manifest_library(manifest, text, (size_t)size, library);
    dti_stream_close(stream);
    dti_free(in->base, text);
    return good;
}

/* ---- Which there are */

#if DTI_FOLDERS && !defined _WIN32 && !defined __APPLE__
/* Where the loader searches, in its order: in vulkan/icd.d below the folders of a variable. If that
 * is not set, below its default folders (XDG Base Directory Specification 0.8). below: in HOME. */
typedef struct dti_vk_manifest_folder {
    const char *variable, *usual;
    bool below;
} dti_vk_manifest_folder;

static const dti_vk_manifest_folder dti_vk_manifest_folders[] = {
    {"XDG_CONFIG_HOME", "/.config", true},
    {"XDG_CONFIG_DIRS", "/etc/xdg", false},
    {NULL, "/etc", false},
    {"XDG_DATA_HOME", "/.local/share", true},
    {"XDG_DATA_DIRS", "/usr/local/share:/usr/share", false}};

static void dti_vk_manifests_add(dti_vk_manifests *m, const char *path, size_t size) {
    if (m->count == DTI_VK_MANIFESTS_MAX || size == 0 || size >= DTI_VK_MANIFEST_PATH)
        return;
    memcpy(m->path[m->count], path, size);
    m->path[m->count++][size] = 0;
}

static int dti_vk_manifest_order(const void *a, const void *b) {
    return strcmp(a, b);
}

/* In the order of their names, whatever the folder's is. */
static void dti_vk_manifests_in(dti_vk_manifests *m, const char *folder) {
    char path[2 * DTI_VK_MANIFEST_PATH];
    dti_folder_names names;
    const int first = m->count;
    if (!dti_folder_names_open(&names, folder))
        return;
    for (const char *name; (name = dti_folder_names_next(&names)) != NULL;) {
        const size_t size = strlen(name);
        const int wrote = snprintf(path, sizeof path, "%s/%s", folder, name);
        if (size > 5 && !strcmp(name + size - 5, ".json") && wrote > 0)
            dti_vk_manifests_add(m, path, (size_t)wrote);
    }
    dti_folder_names_close(&names);
    qsort(m->path + first, (size_t)(m->count - first), sizeof *m->path, dti_vk_manifest_order);
}

/* NULL: not set. Also in a process with more rights than the user who started it. */
static const char *dti_vk_variable(const char *name) {
    const char *value = name && !dti_process_is_raised() ? getenv(name) : NULL;
    return value && *value ? value : NULL;
}

/* A list of files with colons between them; false: the variable is not set. */
static bool dti_vk_manifests_named(dti_vk_manifests *m, const char *variable) {
    const char *list = dti_vk_variable(variable);
    if (!list)
        return false;
    for (const char *at = list; at;) {
        const char *end = strchr(at, ':');
        dti_vk_manifests_add(m, at, end ? (size_t)(end - at) : strlen(at));
        at = end ? end + 1 : NULL;
    }
    return true;
}

/* Below each folder of a list. A relative path is ignored. */
static void dti_vk_manifests_below(dti_vk_manifests *m, const char *list) {
    char folder[DTI_VK_MANIFEST_PATH];
    for (const char *at = list; at;) {
        const char *end = strchr(at, ':');
        const size_t size = end ? (size_t)(end - at) : strlen(at);
        if (*at == '/' && size + sizeof "/vulkan/icd.d" <= sizeof folder) {
            snprintf(folder, sizeof folder, "%.*s/vulkan/icd.d", (int)size, at);
            dti_vk_manifests_in(m, folder);
        }
        at = end ? end + 1 : NULL;
    }
}

static void dti_vk_manifests_usual(dti_vk_manifests *m, const dti_vk_manifest_folder *f) {
    char folder[DTI_VK_MANIFEST_PATH];
    const char *list = dti_vk_variable(f->variable), *home = dti_vk_variable("HOME");
    if (list || !f->below) {
        dti_vk_manifests_below(m, list ? list : f->usual);
    } else if (home && strlen(home) + strlen(f->usual) < sizeof folder) {
        snprintf(folder, sizeof folder, "%s%s", home, f->usual);
        dti_vk_manifests_below(m, folder);
    }
}

static void dti_vk_manifests_find(const dti_vk_instance *in, dti_vk_manifests *m) {
    m->count = 0;
    if (in->options.manifests) {
        dti_vk_manifests_in(m, in->options.manifests);
        return;
    }
    dti_vk_manifests_named(m, "VK_ADD_DRIVER_FILES");
    if (dti_vk_manifests_named(m, "VK_DRIVER_FILES") ||
        dti_vk_manifests_named(m, "VK_ICD_FILENAMES"))
        return;
    for (size_t i = 0; i < DTI_COUNT(dti_vk_manifest_folders); i++)
        dti_vk_manifests_usual(m, &dti_vk_manifest_folders[i]);
}
#else /* there drivers come with the loader */
static void dti_vk_manifests_find(const dti_vk_instance *in, dti_vk_manifests *m) {
    m->count = 0;
}
#endif

/* ---- A driver's library */

/* Asks a library as the loader would. False: not a usable driver. */
static bool dti_vk_icd_ask(dti_vk_instance *in) {
    uint32_t version = DTI_VK_ICD_VERSION;
    dti_vk_icd_negotiate negotiate = NULL;
    void *symbol = dti_library_find(in->library, "vk_icdNegotiateLoaderICDInterfaceVersion");
    memcpy(&negotiate, &symbol, sizeof symbol);
    if (!negotiate || negotiate(&version) || version < 2)
        return false;
    symbol = dti_library_find(in->library, "vk_icdGetInstanceProcAddr");
    memcpy(&in->vk.GetInstanceProcAddr, &symbol, sizeof symbol);
    in->icd = symbol != NULL;
    return in->icd;
}
