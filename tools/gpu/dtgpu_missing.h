/* Part of dtgpu.c: why there is no GPU, as far as that can be seen from here. It looks at the
 * loader, the drivers' files and whether their libraries open, and the devices' files and their
 * users. To standard error; the answers of others (an issue, a search) begin with what it says. */

static const char *const missing_folders[] = {"/etc/vulkan/icd.d",
                                              "/usr/share/vulkan/icd.d",
                                              "/usr/local/share/vulkan/icd.d",
                                              "/usr/local/etc/vulkan/icd.d",
                                              "/usr/local/nvidia/share/vulkan/icd.d",
                                              "/opt/homebrew/share/vulkan/icd.d",
                                              "/opt/homebrew/etc/vulkan/icd.d"};

/* The value of "library_path" in a driver's file; false: it says none. */
static bool missing_library(const char *path, char library[512]) {
    char text[4096];
    FILE *f = fopen(path, "r");
    const size_t size = f ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f)
        fclose(f);
    text[size] = 0;
    const char *at = strstr(text, "\"library_path\"");
    at = at ? strchr(at + 14, ':') : NULL;
    at = at ? strchr(at, '"') : NULL;
    const char *end = at ? strchr(at + 1, '"') : NULL;
    if (!end || end - at > 500)
        return false;
    snprintf(library, 512, "%.*s", (int)(end - at - 1), at + 1);
    return true;
}

/* Paths in the file are relative to it, names without a slash are the system's to find. */
static void missing_driver(const char *folder, const char *name) {
    char path[1024], library[512], whole[2048];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (!missing_library(path, library)) {
        fprintf(stderr, "    %s: names no library\n", path);
        return;
    }
    const bool relative = library[0] != '/' && strchr(library, '/');
    snprintf(whole, sizeof whole, "%s%s%s", relative ? folder : "", relative ? "/" : "", library);
    void *opened = dlopen(whole, RTLD_NOW | RTLD_LOCAL);
    fprintf(stderr, "    %s: %s %s\n", path, library,
            opened ? "opens" : "DOES NOT OPEN, so this driver is not there:");
    if (!opened)
        fprintf(stderr, "        %s\n", dlerror());
}

static int missing_drivers(void) {
    int count = 0;
    fprintf(stderr, "  drivers, by their files:\n");
    for (size_t i = 0; i < DTI_COUNT(missing_folders); i++) {
        DIR *d = opendir(missing_folders[i]);
        for (struct dirent *e; d && (e = readdir(d));)
            if (strstr(e->d_name, ".json")) {
                missing_driver(missing_folders[i], e->d_name);
                count++;
            }
        if (d)
            closedir(d);
    }
    if (!count)
        fprintf(stderr,
                "    none (looked in /usr/share/vulkan/icd.d, /etc/vulkan/icd.d and others)\n");
    return count;
}

static bool missing_file(const char *path, const char *whose) {
    if (access(path, F_OK))
        return false;
    const bool may = !access(path, R_OK | W_OK);
    fprintf(stderr, "    %s is there (%s)%s\n", path, whose,
            may ? ""
                : ", and this user may NOT open it: join its group (ls -l says which, mostly "
                  "render or video), log in again");
    return true;
}

/* Whether the system has a GPU at all, whatever Vulkan says. */
static void missing_hardware(void) {
    bool any = false;
    fprintf(stderr, "  devices that the kernel shows:\n");
    for (int i = 128; i < 136; i++) {
        char path[64];
        snprintf(path, sizeof path, "/dev/dri/renderD%d", i);
        any |= missing_file(path, "AMD, Intel and others");
    }
    any |= missing_file("/dev/nvidia0", "NVIDIA");
    any |= missing_file("/dev/dxg", "WSL");
    any |= missing_file("/dev/mali0", "ARM");
    any |= missing_file("/dev/kgsl-3d0", "Qualcomm");
    if (!any)
        fprintf(stderr,
                "    none: in a container, hand it in (docker: --device /dev/dri, or --gpus "
                "all)\n");
}

static void missing_advice(void) {
#ifdef __APPLE__
    fprintf(stderr, "  Apple: brew install molten-vk vulkan-loader (the driver is MoltenVK)\n");
#else
    fprintf(stderr,
            "  AMD, Intel: the package mesa-vulkan-drivers (Arch: vulkan-radeon, vulkan-intel)\n"
            "  NVIDIA: the Vulkan part of the driver (Debian: nvidia-vulkan-icd; Ubuntu: "
            "libnvidia-gl-NNN of\n"
            "    the driver's version NNN); in a container also -e NVIDIA_DRIVER_CAPABILITIES=all: "
            "the default\n"
            "    leaves the libraries for graphics, and with them Vulkan, outside\n"
            "  the loader: libvulkan1 (Fedora: vulkan-loader, Arch: vulkan-icd-loader), or "
            "--loader FILE\n");
#endif
    static const char *const variables[] = {"VK_DRIVER_FILES", "VK_ICD_FILENAMES",
                                            "VK_ADD_DRIVER_FILES", "LD_LIBRARY_PATH"};
    for (size_t i = 0; i < DTI_COUNT(variables); i++)
        if (getenv(variables[i]))
            fprintf(stderr, "  set: %s=%s\n", variables[i], getenv(variables[i]));
}

/* software: the number of devices that are only software. */
static void missing_say(int software) {
    const char *file = loader_file ? loader_file :
#ifdef __APPLE__
                                   "libvulkan.1.dylib";
#else
                                   "libvulkan.so.1";
#endif
    void *loader = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    fprintf(stderr, software
                        ? "There is no GPU here that Vulkan shows, only software. If this machine "
                          "has one:\n"
                        : "There is no Vulkan device that can be used. What is here:\n");
    fprintf(stderr, "  the loader %s %s\n", file, loader ? "opens" : "DOES NOT OPEN:");
    if (!loader)
        fprintf(stderr, "        %s\n", dlerror());
    missing_drivers();
    missing_hardware();
    missing_advice();
}
