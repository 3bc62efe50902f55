/* Fuzz targets on the files of tests/fuzz/corpus, without libFuzzer. Inputs that once broke the
 * library, or nearly do, run in every run of the tests. Each file is taken as it is, cut short, and
 * with some bytes changed, always the same ones. FUZZ_REPLAY is defined before the targets are
 * included. */
#ifndef DTRAIN_TESTS_FUZZ_REPLAY_H
#define DTRAIN_TESTS_FUZZ_REPLAY_H

#include "fuzz/fuzz.h"

#include <dirent.h>

#define REPLAY_FILE_MAX 2048 /* the largest that is kept */
#define REPLAY_CUTS 8
#define REPLAY_CHANGES 16

typedef dt_result fuzz_fn(const uint8_t *data, size_t size);

typedef struct replay {
    fuzz_fn *run;
    char path[512];
    uint64_t random;
    size_t size;
    uint8_t data[REPLAY_FILE_MAX + 1];
} replay;

static dt_result replay_bytes(const replay *r, const uint8_t *data, size_t size, const char *how) {
    int failures = test_now.failures;
    uint8_t *exact = malloc(size ? size : 1); /* its end is where the sanitizers look */
    if (!test_check(exact != NULL, __FILE__, __LINE__, "no memory for %s", r->path))
        return DT_ERROR_MEMORY;
    memcpy(exact, data, size);
    dt_result result = r->run(exact, size);
    free(exact);
    if (test_now.failures != failures)
        printf("  with %s %s (%d bytes)\n", r->path, how, (int)size);
    return result;
}

static uint32_t replay_random(replay *r) {
    r->random = r->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(r->random >> 33);
}

static void replay_damaged(replay *r) {
    uint8_t changed[REPLAY_FILE_MAX];
    char how[48];
    for (size_t i = 0; i < REPLAY_CUTS; i++)
        replay_bytes(r, r->data, r->size * i / REPLAY_CUTS, "cut short");
    for (int i = 0; i < REPLAY_CHANGES && r->size; i++) {
        memcpy(changed, r->data, r->size);
        for (int k = 0; k <= i % 4; k++)
            changed[replay_random(r) % r->size] ^= (uint8_t)(1 + replay_random(r) % 255);
        snprintf(how, sizeof how, "as changed the %d. time", i + 1);
        replay_bytes(r, changed, r->size, how);
    }
}

static void replay_file(replay *r, int counts[2]) {
    FILE *file = fopen(r->path, "rb");
    if (!test_check(file != NULL, __FILE__, __LINE__, "%s cannot be opened", r->path))
        return;
    r->size = fread(r->data, 1, sizeof r->data, file);
    r->random = 1;
    fclose(file);
    if (!test_check(r->size <= REPLAY_FILE_MAX, __FILE__, __LINE__, "%s is too large", r->path))
        return;
    counts[replay_bytes(r, r->data, r->size, "as it is") == DT_OK]++;
    replay_damaged(r);
}

/* counts: kept files that were refused, and that were taken. */
static bool replay_folder(const char *folder, fuzz_fn *run, int counts[2]) {
    replay r = {.run = run};
    DIR *list = opendir(folder);
    if (!list)
        return false;
    for (struct dirent *entry; (entry = readdir(list));) {
        if (entry->d_name[0] == '.')
            continue;
        snprintf(r.path, sizeof r.path, "%s/%s", folder, entry->d_name);
        replay_file(&r, counts);
    }
    closedir(list);
    return true;
}

#endif
