/* The fuzz targets on the files that are kept in tests/corpus: what once broke a reader, or comes
 * near to it, is read in every run of the tests. */
#define FUZZ_REPLAY
#include "fuzz_idx.c"
#include "fuzz_safetensors.c"

#include <dirent.h>

#define FILE_MAX 2048 /* the largest that is kept */

typedef dt_result fuzz_fn(const uint8_t *data, size_t size);

static void replay_file(const char *path, fuzz_fn *run, int counts[2]) {
    static uint8_t data[FILE_MAX + 1];
    FILE *file = fopen(path, "rb");
    if (!test_check(file != NULL, __FILE__, __LINE__, "%s cannot be opened", path))
        return;
    size_t size = fread(data, 1, sizeof data, file);
    fclose(file);
    uint8_t *exact = malloc(size ? size : 1); /* its end is where the sanitizers look */
    if (!test_check(exact && size <= FILE_MAX, __FILE__, __LINE__, "%s is too large", path))
        return;
    memcpy(exact, data, size);
    int failures = test_now.failures;
    counts[run(exact, size) == DT_OK]++;
    free(exact);
    if (test_now.failures != failures)
        printf("  with %s\n", path);
}

/* counts: files that were refused, and that were taken. */
static bool replay_folder(const char *folder, fuzz_fn *run, int counts[2]) {
    DIR *list = opendir(folder);
    if (!list)
        return false;
    for (struct dirent *entry; (entry = readdir(list));) {
        char path[512];
        if (entry->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        replay_file(path, run, counts);
    }
    closedir(list);
    return true;
}

TEST(every_kept_idx_file_is_read_or_refused_cleanly) {
    int counts[2] = {0};
    REQUIRE(replay_folder("tests/corpus/idx", fuzz_idx, counts));
    CHECK(counts[0] >= 5 && counts[1] >= 2);
}

TEST(every_kept_weight_file_is_loaded_or_refused_cleanly) {
    int counts[2] = {0};
    REQUIRE(replay_folder("tests/corpus/safetensors", fuzz_safetensors, counts));
    CHECK(counts[0] >= 10 && counts[1] >= 3);
}
