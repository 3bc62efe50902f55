/* Drivers without the loader: their manifests, also hostile ones. And the functions of a library
 * that is asked as the loader would. Included by main.c. */
#ifndef DT_NO_VULKAN
#include "fuzz/fuzz_manifest.c" /* fuzz_replay.h: test_checkpoint.c */

enum { ICD_ROOM = 2 * DTI_VK_MANIFEST_PATH };

typedef struct icd_case {
    const char *text, *library; /* NULL: it is not valid */
} icd_case;

TEST(vulkan_manifest_names_a_library_as_the_loader_reads_it) {
    static const icd_case cases[] = {
        {"{\"ICD\": {\"library_path\": \"libx.so\"}}", "libx.so"},
        {"{\"ICD\": {\"library_path\": \"/a/libx.so\", \"api_version\": \"1.1\"}}", "/a/libx.so"},
        {"{\"a\": [{}, 1], \"ICD\": {\"b\": null, \"library_path\": \"./libx.so\"}}",
         "/etc/icd.d/./libx.so"},
        {"{\"ICD\": {\"library_path\": \"../libx.so\"}} ", "/etc/icd.d/../libx.so"},
        {"", NULL},
        {"{}", NULL},
        {"[]", NULL},
        {"{\"library_path\": \"libx.so\"}", NULL},
        {"{\"layer\": {\"library_path\": \"libx.so\"}}", NULL},
        {"{\"ICD\": {\"library_path\": \"\"}}", NULL},
        {"{\"ICD\": {\"library_path\": 1}}", NULL},
        {"{\"ICD\": {\"library_path\": [\"libx.so\"]}}", NULL},
        {"{\"ICD\": [\"library_path\", \"libx.so\"]}", NULL},
        {"{\"ICD\": {\"library_path\": \"lib\\u0000x.so\"}}", NULL},
        {"{\"ICD\": {\"library_path\": \"libx.so\"}", NULL},
        {"{\"ICD\": {\"library_path\": \"libx.so\"}}}", NULL},
        {"{\"ICD\": {\"library_path\": \"libx.so\"}} {}", NULL},
    };
    char library[ICD_ROOM];
    for (size_t i = 0; i < DTI_COUNT(cases); i++) {
        const char *text = cases[i].text;
        const bool good = dti_vk_manifest_library("/etc/icd.d/x.json", text, strlen(text), library);
        test_check(good == (cases[i].library != NULL), __FILE__, __LINE__, "%s", text);
        if (good)
            CHECK_STR(library, cases[i].library);
    }
    CHECK(dti_vk_manifest_library("x.json", cases[2].text, strlen(cases[2].text), library));
    CHECK_STR(library, "./libx.so");
}

TEST(vulkan_manifest_that_is_hostile_names_nothing_beyond_its_bytes) {
    static const char good[] = "{\"file\": [1, {\"a\": \"b\\\"\"}], \"ICD\": {\"library_path\": "
                               "\"./libx.so\", \"api_version\": \"1.1\"}}";
    uint32_t random = 7, kept = 0;
    char library[ICD_ROOM];
    for (int i = 0; i < 20000; i++) {
        const size_t size = sizeof good - 1 - vulkan_random(&random) % 4 * (i % 3);
        char *text = malloc(size + 1); /* so that a sanitizer sees a read after it */
        memcpy(text, good, size);
        for (int k = i % 4; k > 0; k--)
            text[vulkan_random(&random) % size] = (char)vulkan_random(&random);
        memset(library, 1, sizeof library);
        if (dti_vk_manifest_library("/d/x.json", text, size, library)) {
            kept++;
            CHECK(memchr(library, 0, sizeof library) != NULL && library[0] != 0);
        }
        free(text);
    }
    CHECK(kept > 1000 && kept < 19000);
    char *deep = malloc(1 << 16); /* and one that is nothing but depth, or one name */
    memset(deep, '[', 1 << 16);
    CHECK(!dti_vk_manifest_library("/d/x.json", deep, 1 << 16, library));
    memset(deep, 'x', 1 << 16);
    memcpy(deep, "{\"ICD\":{\"library_path\":\"", 24);
    memcpy(deep + (1 << 16) - 3, "\"}}", 3);
    CHECK(!dti_vk_manifest_library("/d/x.json", deep, 1 << 16, library));
    free(deep);
}

TEST(every_kept_manifest_is_read_or_refused_cleanly) {
    int counts[2] = {0};
    REQUIRE(replay_folder("tests/fuzz/corpus/manifest", fuzz_manifest, counts));
    CHECK(counts[0] == 11 && counts[1] == 7);
}

/* ---- drivers that are here */

/* Those of Debian's packages; NULL-ended pairs of a manifest and a word of its device's name. */
static const char *const icd_drivers[][2] = {
    {"/usr/share/vulkan/icd.d/lvp_icd.x86_64.json", "llvmpipe"},
    {"/usr/lib/chromium/vk_swiftshader_icd.json", "SwiftShader"},
};

static bool icd_library(const char *manifest, char library[ICD_ROOM]) {
    dti_base base;
    dti_base_init(&base, NULL, NULL);
    dti_vk_instance in = {.base = &base};
    const bool good = dti_vk_manifest_read(&in, manifest, library);
    CHECK(base.bytes_now == 0);
    return good;
}

static void icd_write(const char *folder, const char *name, const char *text) {
    char path[ICD_ROOM];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    REQUIRE(file);
    CHECK(fputs(text, file) >= 0);
    CHECK(fclose(file) == 0);
}

static void icd_remove(const char *folder, const char *name) {
    char path[ICD_ROOM];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    CHECK(remove(path) == 0);
}

/* A file that is too large, or a folder, or cut, is ignored, and nothing of it is kept. */
TEST(vulkan_manifest_file_that_is_damaged_is_ignored) {
    static const char good[] = "{\"ICD\": {\"library_path\": \"libx.so\"}}";
    char library[ICD_ROOM], *text = malloc(DTI_VK_MANIFEST_BYTES + 1);
    REQUIRE(text);
    memset(text, ' ', DTI_VK_MANIFEST_BYTES + 1);
    memcpy(text, good, sizeof good - 1);
    for (size_t size = 0; size < sizeof good - 1; size++)
        CHECK(!icd_library(temp_write("cut.json", text, size), library));
    CHECK(icd_library(temp_write("cut.json", text, sizeof good - 1), library));
    CHECK_STR(library, "libx.so");
    CHECK(icd_library(temp_write("cut.json", text, DTI_VK_MANIFEST_BYTES), library));
    CHECK(!icd_library(temp_write("cut.json", text, DTI_VK_MANIFEST_BYTES + 1), library));
    CHECK(!icd_library(temp_path("there-is-none.json"), library));
    CHECK(!icd_library("/", library));
    free(text);
}

typedef struct icd_memory {
    int left; /* allocations until one fails */
} icd_memory;

static void *icd_alloc(void *user, size_t bytes, size_t align) {
    (void)align;
    return ((icd_memory *)user)->left-- > 0 ? calloc(1, bytes) : NULL;
}

static void icd_free(void *user, void *memory, size_t bytes) {
    (void)user, (void)bytes;
    free(memory);
}

/* Every allocation fails once. All is freed, and the only report is that memory ran out. True: it
 * was not enough for a driver to be looked at. */
static bool icd_starve(const char *folder, int left) {
    icd_memory memory = {left};
    const dt_allocator allocator = {icd_alloc, icd_free, &memory};
    const dti_vk_options options = {.loader = "/nowhere/libvulkan.so.1", .manifests = folder};
    dti_base base;
    vulkan_log log = {0};
    dti_vk_instance *in = NULL;
    const dt_logger logger = {vulkan_listen, &log};
    dti_base_init(&base, &allocator, &logger);
    const dt_result result = dti_vk_instance_create(&base, &options, &in);
    const bool starved = memory.left < 0;
    test_check(result == (starved ? DT_ERROR_MEMORY : DT_OK), __FILE__, __LINE__,
               "%d allocations: %d", left, (int)result);
    CHECK(!starved || (!in && !strstr(log.last, "no Vulkan devices")));
    dti_vk_instance_destroy(in);
    CHECK(base.bytes_now == 0);
    return starved;
}

/* A launch on the one device, which is as it is through the loader. */
static void icd_try(const char *name, dti_vk_options options) {
    vulkan_rig rig;
    const bool open = vulkan_rig_open(&rig, 0, options);
    test_check(open, __FILE__, __LINE__, "%s: %s", name, rig.log.last);
    CHECK(!open || strstr(rig.device->info.name, name) != NULL);
    CHECK(rig.in->icd && rig.in->device_count == 1);
    float *x = vulkan_numbers(1000, 9, 1), *y = vulkan_zeros(1000);
    vulkan_call call = {.launch = vulkan_copy_launch(0, 1, DTI_COPY_WORD, 0)};
    call.data[0] = x, call.data[1] = y;
    call.count[0] = call.count[1] = PROGRAM_N;
    if (open && vulkan_call_run(&rig, &call))
        CHECK(!memcmp(x, y, sizeof *x * PROGRAM_N));
    free(x), free(y);
    vulkan_rig_close(&rig);
}

TEST(vulkan_driver_is_opened_by_its_manifest_where_there_is_no_loader) {
    const char *folder = temp_path("drivers.d");
    char library[ICD_ROOM], text[2 * ICD_ROOM];
    int found = 0;
    REQUIRE(mkdir(folder, 0700) == 0);
    const dti_vk_options options = {.loader = "/nowhere/libvulkan.so.1", .manifests = folder};
    icd_write(folder, "a.json", "{\"ICD\": {\"library_path\": \"/nowhere/libdriver.so\"}}");
    icd_write(folder, "b.json", "{\"ICD\": {\"library_path\": \"libm.so.6\"}}"); /* no driver */
    icd_write(folder, "c.json", "{\"ICD\": ");
    for (size_t i = 0; i < DTI_COUNT(icd_drivers); i++) {
        if (!icd_library(icd_drivers[i][0], library))
            continue;
        snprintf(text, sizeof text, "{\"ICD\": {\"library_path\": \"%s\"}}", library);
        icd_write(folder, "d.json", text);
        icd_try(icd_drivers[i][1], options);
        int left = 0;
        while (i == 0 && left < 99 && icd_starve(folder, left))
            left++;
        CHECK(i > 0 || (left > 5 && left < 99));
        icd_remove(folder, "d.json");
        if (i == 0) /* SwiftShader's is a loader, too */
            icd_try(icd_drivers[i][1], (dti_vk_options){.loader = library});
        found++;
    }
    icd_remove(folder, "a.json"), icd_remove(folder, "b.json"), icd_remove(folder, "c.json");
    CHECK(rmdir(folder) == 0);
    if (!found)
        SKIP("there is no driver's manifest");
}

/* ---- where they are looked for */

static const char *const icd_variables[] = {
    "XDG_CONFIG_HOME", "XDG_CONFIG_DIRS",  "XDG_DATA_HOME",       "XDG_DATA_DIRS",
    "VK_DRIVER_FILES", "VK_ICD_FILENAMES", "VK_ADD_DRIVER_FILES", "HOME"};
enum { ICD_VARIABLES = DTI_COUNT(icd_variables) };

/* The folder of a letter, with a manifest in it at the end of `below`. */
static void icd_folder(const char *root, char letter, const char *below, bool make) {
    char path[ICD_ROOM];
    snprintf(path, sizeof path, "%s/%c%s/vulkan/icd.d", root, letter, below);
    if (!make)
        icd_remove(path, "x.json");
    for (size_t i = strlen(root); make && i <= strlen(path); i++)
        if (path[i] == '/' || !path[i]) {
            const char held = path[i];
            path[i] = 0;
            mkdir(path, 0700);
            path[i] = held;
        }
    if (make)
        icd_write(path, "x.json", "{}");
    for (; !make && strlen(path) > strlen(root); *strrchr(path, '/') = 0)
        rmdir(path); /* fails where another is in it */
}

/* The letters of the folders of `root` in the order in which their manifests are found. */
static void icd_found(const char *root, char *letters) {
    static dti_vk_manifests found;
    const dti_vk_instance in = {.options = {0}};
    dti_vk_manifests_find(&in, &found);
    for (int i = 0; i < found.count; i++)
        if (!strncmp(found.path[i], root, strlen(root)))
            *letters++ = found.path[i][strlen(root) + 1];
    *letters = 0;
}

/* Each variable's value: letters are folders of `root`. */
static void icd_set(const char *root, const char *const values[ICD_VARIABLES]) {
    for (int i = 0; i < ICD_VARIABLES; i++) {
        char value[8 * ICD_ROOM];
        size_t size = 0;
        for (const char *at = values[i]; at && *at; at++)
            size += (size_t)(*at == ':' || *at == '.'
                                 ? snprintf(value + size, 2, "%c", *at)
                                 : snprintf(value + size, ICD_ROOM, "%s/%c", root, *at));
        CHECK((values[i] ? setenv(icd_variables[i], size ? value : "", 1)
                         : unsetenv(icd_variables[i])) == 0);
    }
}

TEST(vulkan_manifests_are_looked_for_where_the_loader_looks) {
    static const struct {
        const char *values[ICD_VARIABLES], *found;
    } cases[] = {
        {{"a", "b:c", "d", "e:f"}, "abcdef"},
        {{"a", "b:c", "d", "e:f", NULL, NULL, NULL, "h"}, "abcdef"},
        {{NULL, "c", NULL, "f", NULL, NULL, NULL, "h"}, "hchf"}, /* .config, .local/share */
        {{"", "c:", "", ":f", NULL, NULL, NULL, NULL}, "cf"},
        {{"..", "./:c", ".", ".::f", NULL, NULL, NULL, "."}, "cf"}, /* not by where we are */
        {{"z", "z:z", "z", "z"}, ""},
    };
    const char *root = temp_path("xdg.d");
    char *before[ICD_VARIABLES], found[DTI_VK_MANIFESTS_MAX + 1];
    REQUIRE(mkdir(root, 0700) == 0);
    for (int i = 0; i < ICD_VARIABLES; i++)
        before[i] = getenv(icd_variables[i]) ? strdup(getenv(icd_variables[i])) : NULL;
    for (char letter = 'a'; letter <= 'f'; letter++)
        icd_folder(root, letter, "", true);
    icd_folder(root, 'h', "/.config", true);
    icd_folder(root, 'h', "/.local/share", true);
    for (size_t i = 0; i < DTI_COUNT(cases); i++) {
        icd_set(root, cases[i].values);
        icd_found(root, found);
        test_check(!strcmp(found, cases[i].found), __FILE__, __LINE__, "%d: %s", (int)i, found);
    }
    for (char letter = 'a'; letter <= 'f'; letter++)
        icd_folder(root, letter, "", false);
    icd_folder(root, 'h', "/.config", false);
    icd_folder(root, 'h', "/.local/share", false);
    for (int i = 0; i < ICD_VARIABLES; i++) {
        CHECK((before[i] ? setenv(icd_variables[i], before[i], 1) : unsetenv(icd_variables[i])) ==
              0);
        free(before[i]);
    }
    CHECK(rmdir(root) == 0);
}

#endif
