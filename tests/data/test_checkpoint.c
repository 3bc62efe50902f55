/* Checkpoint files and folders: the same bits back, and every damage refused. A write may meet a
 * full disk, an error of any system call, a kill there, or no memory. The folder's newest is good
 * in each case, and no file is left over. Included by main.c. */
#include "temp.h"

#include <dirent.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#if defined __linux__ && defined __x86_64__
#include <sys/user.h>
#define CK_INJECTS 1
#else
#define CK_INJECTS 0
#endif

#define FUZZ_REPLAY
#define DT_COMM_ONLY /* of fuzz.h only what needs no _GNU_SOURCE */
#include "fuzz/fuzz.h"
#undef DT_COMM_ONLY
#include "fuzz/fuzz_checkpoint.c"
#include "fuzz/fuzz_replay.h"

/* ---- What is written: three tensors, or a large one after them, of bytes that a seed gives */

static const int64_t ck_dims[][2] = {{3, 2}, {0, 4}, {0, 0}, {2500003, 0}};
static const dti_safetensors_item ck_items[] = {
    {.name = "w\xC3\xA9 \"1\"", .dtype = "F32", .rank = 2, .dim = ck_dims[0], .bytes = 24},
    {.name = "empty", .dtype = "I64", .rank = 2, .dim = ck_dims[1], .bytes = 0},
    {.name = "scalar", .dtype = "U8", .rank = 0, .dim = ck_dims[2], .bytes = 1},
    {.name = "large", .dtype = "U8", .rank = 1, .dim = ck_dims[3], .bytes = 2500003},
};
#define CK_SMALL 3
#define CK_LARGE 4

typedef struct ck_source {
    uint64_t seed;
    int calls, ends_at; /* at this call (from 1; 0 = never) */
    dt_result with;     /* this result, or a kill when it is DT_OK */
    uint64_t offset;    /* expected next */
    int item, first;    /* first: of the items that a part has */
} ck_source;

static uint8_t ck_byte(uint64_t seed, int item, uint64_t at) {
    return (uint8_t)((seed * 131 + (uint64_t)item * 17 + at) * 0x9E3779B97F4A7C15u >> 56);
}

static dt_result ck_read(void *user, int item, uint64_t offset, void *to, size_t bytes) {
    ck_source *s = user;
    if (++s->calls == s->ends_at) {
        if (!s->with)
            raise(SIGKILL);
        return s->with;
    }
    if (item != s->item)
        s->offset = 0;
    CHECK(item >= s->item && offset == s->offset && bytes > 0);
    s->item = item;
    s->offset += bytes;
    for (size_t i = 0; i < bytes; i++)
        ((uint8_t *)to)[i] = ck_byte(s->seed, s->first + item, offset + i);
    return DT_OK;
}

static dt_result ck_write(dti_base *base, const char *path, uint64_t seed, int count) {
    ck_source s = {.seed = seed};
    return dti_checkpoint_write(base, path, ck_items, count, ck_read, &s);
}

/* Of the step's number, so that files differ. */
static dt_result ck_write_step(dti_base *base, const char *folder, uint64_t step, int keep) {
    ck_source s = {.seed = step};
    return dti_checkpoint_folder_write(base, folder, step, keep, ck_items, CK_SMALL, ck_read, &s);
}

/* The same of two parts, which ranks write. */
static dt_result ck_write_parts(dti_base *base, const char *folder, uint64_t step, int keep) {
    static const uint32_t part_of[CK_SMALL] = {1, 1, 0};
    static const int first[] = {2, 0}, count[] = {1, 2};
    dti_checkpoint_folder_step in = {.step = step, .keep = keep, .parts = true};
    dti_checkpoint_parts parts[2];
    dt_result result = dti_checkpoint_folder_start(base, folder);
    uint64_t name[2];
    dti_checkpoint_parts_name(name);
    snprintf(in.folder, sizeof in.folder, "%s", folder);
    for (uint32_t rank = 0; rank < 2 && !result; rank++)
        result = dti_checkpoint_folder_parts(base, &parts[rank], &in, name, rank, 2);
    if (result)
        return result;
    result = dti_checkpoint_parts_make(base, &parts[0], ck_items, CK_SMALL, part_of);
    for (int rank = 1; rank >= 0 && !result; rank--) {
        dti_checkpoint_file *f;
        ck_source s = {.seed = step, .first = first[rank]};
        result =
            dti_checkpoint_part_begin(base, &parts[rank], ck_items + first[rank], count[rank], &f);
        if (!result)
            result = dti_checkpoint_end(f, dti_checkpoint_fill(f, ck_read, &s));
    }
    atomic_store(&parts[0].until, 1);
    return dti_checkpoint_parts_end(base, &parts[0], result);
}

/* Read in ranges whose sizes divide nothing. */
static bool ck_tensor_holds(const dti_checkpoint *c, uint64_t seed, int i) {
    enum { CK_RANGE = 999 };
    const uint64_t bytes = ck_items[i].bytes;
    uint8_t range[CK_RANGE];
    bool same = true;
    for (uint64_t at = 0, some; at < bytes && same; at += some) {
        some = DTI_MIN((uint64_t)CK_RANGE, bytes - at);
        same = dti_checkpoint_read(c, i, at, some, range) == DT_OK;
        for (uint64_t k = 0; k < some && same; k++)
            same = range[k] == ck_byte(seed, i, at + k);
    }
    return same;
}

static bool ck_holds(const dti_checkpoint *c, uint64_t seed, int count) {
    bool same = (int)c->count == count;
    for (int i = 0; i < count && same; i++) {
        const dt_safetensors_tensor *info = dti_checkpoint_find(c, ck_items[i].name);
        same = info && info == dti_checkpoint_at(c, i) && info->bytes == ck_items[i].bytes &&
               info->rank == ck_items[i].rank && !strcmp(info->dtype, ck_items[i].dtype);
        same = same && !info->data && ck_tensor_holds(c, seed, i);
    }
    return same;
}

static bool ck_file_holds(dti_base *base, const char *path, uint64_t seed, int count) {
    dti_checkpoint *c;
    if (dti_checkpoint_open(base, path, &c))
        return false;
    bool same = ck_holds(c, seed, count);
    dt_safetensors_close(c);
    return same;
}

/* ---- Files and folders */

static bool ck_exists(const char *folder, const char *name) {
    char path[600];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return access(path, F_OK) == 0;
}

static void ck_put(const char *folder, const char *name, const void *data, size_t size) {
    char path[600];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    CHECK(file && fwrite(data, 1, size, file) == size);
    if (file)
        fclose(file);
}

/* How many entries a folder has; `remove_all` removes them. */
static int ck_entries(const char *folder, bool remove_all) {
    int count = 0;
    char path[600];
    DIR *list = opendir(folder);
    for (struct dirent *entry; list && (entry = readdir(list));) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
            continue;
        count++;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        if (remove_all && remove(path) != 0)
            dti_checkpoint_parts_remove(path);
    }
    if (list)
        closedir(list);
    return count;
}

/* An empty place for a folder, which is not there yet. */
static const char *ck_folder(void) {
    const char *folder = temp_path("checkpoints");
    ck_entries(folder, true);
    rmdir(folder);
    return folder;
}

static void ck_remove(const char *folder) {
    ck_entries(folder, true);
    rmdir(folder);
}

/* The step of the folder's newest, which must be good and hold the written values; 0: it is not. */
static uint64_t ck_newest(dti_base *base, const char *folder) {
    char path[DTI_CHECKPOINT_PATH];
    bool found;
    unsigned long long step = 0;
    if (dti_checkpoint_folder_newest(base, folder, path, &found) || !found)
        return 0;
    const char *name = strrchr(path, '/');
    if (!name || sscanf(name, "/step-%llu.safetensors", &step) != 1)
        return 0;
    return ck_file_holds(base, path, step, CK_SMALL) ? step : 0;
}

static int ck_wait(pid_t child) {
    int status = 0;
    return waitpid(child, &status, 0) == child ? status : -1;
}

/* The number of a process that has ended. */
static long ck_dead_process(void) {
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    ck_wait(child);
    return (long)child;
}

/* ---- A file */

TEST(checkpoint_is_read_back_with_the_same_bits) {
    dti_base base;
    dti_base_init(&base, NULL, NULL);
    const char *path = temp_path("round.safetensors");
    for (int count = 0; count <= CK_LARGE; count++) {
        dti_checkpoint *c;
        CHECK(ck_write(&base, path, 7, count) == DT_OK);
        REQUIRE(dti_checkpoint_open(&base, path, &c) == DT_OK);
        CHECK(ck_holds(c, 7, count) && !ck_holds(c, 8, count) == (count > 0));
        CHECK(!dti_checkpoint_find(c, "dtrain.crc32c") && !dti_checkpoint_find(c, "no"));
        CHECK(!dti_checkpoint_at(c, -1) && !dti_checkpoint_at(c, count));
        dt_safetensors_close(c);
    }
    dt_safetensors_close(NULL);
    CHECK(base.bytes_now == 0);
}

/* The same file as one that is read from a function, whatever the pieces. */
TEST(checkpoint_can_be_written_in_pieces_of_any_size) {
    dti_base base;
    dti_base_init(&base, NULL, NULL);
    static const size_t pieces[] = {1, 7, 24, 25, 1000003, 2500028};
    const char *path = temp_path("pieces.safetensors");
    uint8_t *all = malloc(2500028);
    for (size_t i = 0, at = 0; i < CK_LARGE; i++)
        for (uint64_t k = 0; k < ck_items[i].bytes; k++)
            all[at++] = ck_byte(7, (int)i, k);
    for (size_t i = 0; i < DTI_COUNT(pieces); i++) {
        const int count = pieces[i] < 1000 ? CK_SMALL : CK_LARGE;
        const size_t size = count == CK_SMALL ? 25 : 2500028;
        dti_checkpoint_file *f;
        REQUIRE(dti_checkpoint_begin(&base, path, ck_items, count, &f) == DT_OK);
        for (size_t at = 0, some; at < size; at += some) {
            some = DTI_MIN(pieces[i], size - at);
            CHECK(dti_checkpoint_add(f, all + at, some) == DT_OK);
        }
        CHECK(dti_checkpoint_end(f, DT_OK) == DT_OK && ck_file_holds(&base, path, 7, count));
    }
    free(all);
    CHECK(base.bytes_now == 0);
}

TEST(checkpoint_that_ends_in_an_error_leaves_the_file_before_it) {
    dti_base base;
    dti_base_init(&base, NULL, NULL);
    const char *folder = temp_path("ends"), *path;
    char file[600];
    dti_checkpoint_file *f;
    snprintf(file, sizeof file, "%s/one.safetensors", folder);
    path = file;
    REQUIRE(mkdir(folder, 0777) == 0 && ck_write(&base, path, 1, CK_SMALL) == DT_OK);
    REQUIRE(dti_checkpoint_begin(&base, path, ck_items, CK_SMALL, &f) == DT_OK);
    CHECK(dti_checkpoint_add(f, "12345", 5) == DT_OK && ck_entries(folder, false) == 2);
    CHECK(dti_checkpoint_end(f, DT_ERROR_TIMEOUT) == DT_ERROR_TIMEOUT);
    CHECK(ck_entries(folder, false) == 1 && ck_file_holds(&base, path, 1, CK_SMALL) &&
          base.bytes_now == 0);
}

/* Counted here only from the file's bytes. */
TEST(checkpoint_ends_in_the_checksums_of_its_header_and_tensors) {
    dti_base base;
    dti_base_init(&base, NULL, NULL);
    const char *path = temp_path("sums.safetensors");
    base_file file;
    uint32_t sums[CK_SMALL + 1];
    CHECK(ck_write(&base, path, 3, CK_SMALL) == DT_OK);
    REQUIRE(base_read_file(&base, path, &file) == DT_OK);
    size_t header = 8 + (unsigned char)file.data[0] + ((size_t)(unsigned char)file.data[1] << 8);
    REQUIRE(file.size == header + 25 + sizeof sums && header % 8 == 0);
    memcpy(sums, file.data + header + 25, sizeof sums);
    CHECK(sums[0] == dti_crc32c(0, file.data, header));
    CHECK(sums[1] == dti_crc32c(0, file.data + header, 24) && sums[2] == 0);
    CHECK(sums[3] == dti_crc32c(0, file.data + header + 24, 1));
    dt_safetensors *weights; /* as any safetensors file */
    dti_free(&base, file.data);
    REQUIRE(dti_weights_load(&base, path, &weights) == DT_OK);
    CHECK(dt_safetensors_find(weights, "dtrain.crc32c") == CK_SMALL);
    dt_safetensors_close(weights);
    CHECK(base.bytes_now == 0);
}

/* A copy of the first bytes of a file, changed in one; what the reader says to it. */
static dt_result ck_parse(dti_base *base, const base_file *file, size_t size, size_t at, int flip) {
    char *copy = malloc(size + !size);
    dti_checkpoint *c;
    memcpy(copy, file->data, size);
    if (flip)
        copy[at] = (char)(copy[at] ^ flip);
    dt_result result = dti_checkpoint_open(base, temp_write("changed", copy, size), &c);
    if (!result)
        dt_safetensors_close(c);
    free(copy);
    return result;
}

TEST(checkpoint_with_any_bit_flipped_is_refused_and_the_error_names_the_part) {
    dti_base base;
    dti_base_init(&base, NULL, NULL);
    const char *path = temp_path("flip.safetensors");
    base_file file;
    CHECK(ck_write(&base, path, 3, CK_SMALL) == DT_OK);
    REQUIRE(base_read_file(&base, path, &file) == DT_OK);
    size_t header = file.size - 25 - 4 * (CK_SMALL + 1);
    uint64_t bytes = base.bytes_now;
    for (size_t at = 0; at < file.size; at++)
        for (int bit = 0; bit < 9; bit++) {
            base.error[0] = 0;
            int flip = bit < 8 ? 1 << bit : 255;
            bool refused = ck_parse(&base, &file, file.size, at, flip) == DT_ERROR_FORMAT;
            const char *part = at < header ? "/changed: "
                               : at < header + 24
                                   ? "tensor \"w\xC3\xA9 \"1\"\" has a wrong checksum"
                               : at < header + 25 ? "tensor \"scalar\" has a wrong checksum"
                               : at < header + 29 ? "its header has a wrong checksum"
                               : at < header + 33 ? "tensor \"w"
                               : at < header + 37 ? "tensor \"empty\" has a wrong checksum"
                                                  : "tensor \"scalar\" has a wrong checksum";
            bool named = strstr(base.error, "header") || strstr(base.error, "tensor");
            test_check(refused && named && strstr(base.error, part), __FILE__, __LINE__,
                       "byte %d of %d, bit %d: \"%s\"", (int)at, (int)file.size, bit, base.error);
        }
    CHECK(ck_parse(&base, &file, file.size, 0, 0) == DT_OK && base.bytes_now == bytes);
    dti_free(&base, file.data);
}

TEST(checkpoint_that_was_cut_or_grew_is_refused_at_every_length) {
    dti_base base;
    dti_base_init(&base, NULL, NULL);
    const char *path = temp_path("cut.safetensors");
    base_file file; /* a zero comes after its data */
    CHECK(ck_write(&base, path, 3, CK_SMALL) == DT_OK);
    REQUIRE(base_read_file(&base, path, &file) == DT_OK);
    for (size_t size = 0; size <= file.size + 1; size++)
        CHECK(ck_parse(&base, &file, size, 0, 0) == (size == file.size ? DT_OK : DT_ERROR_FORMAT));
    dti_free(&base, file.data);
    dti_checkpoint *c = NULL;
    CHECK(truncate(path, 100) == 0 && dti_checkpoint_open(&base, path, &c) == DT_ERROR_FORMAT);
    CHECK_CONTAINS(base.error, path);
    CHECK(!c && dti_checkpoint_open(&base, "no/such/file", &c) == DT_ERROR_IO && !c);
    CHECK(base.bytes_now == 0);
}

/* A file of one tensor and what stands for its checksums. */
static dt_result ck_write_sums(dti_base *base, const char *path, const char *name,
                               const char *dtype, int rank, const int64_t *dim) {
    const dti_safetensors_item items[] = {ck_items[0],
                                          {name, dtype, rank, dim, dim[0] * sizeof(uint32_t)}};
    static const uint32_t zeros[6 + 4];
    dti_writer *w;
    dti_checkpoint *c;
    if (dti_safetensors_begin(base, path, items, 2, &w))
        return DT_ERROR_IO;
    uint32_t sums[4] = {dti_writer_take_crc(w), dti_crc32c(0, zeros, 24), 0, 0};
    dti_writer_add(w, zeros, 24);
    dti_writer_add(w, sums, (size_t)items[1].bytes);
    dti_writer_close(w, true);
    dt_result result = dti_checkpoint_open(base, path, &c);
    if (!result)
        dt_safetensors_close(c);
    return result;
}

TEST(checkpoint_without_the_right_kind_of_checksums_is_refused) {
    dti_base base;
    dti_base_init(&base, NULL, NULL);
    const char *path = temp_path("kind.safetensors"), *name = "dtrain.crc32c";
    static const int64_t dims[] = {2, 1, 1, 3};
    CHECK(ck_write_sums(&base, path, name, "U32", 1, dims) == DT_OK);
    CHECK(ck_write_sums(&base, path, name, "I32", 1, dims) == DT_ERROR_FORMAT);
    CHECK(ck_write_sums(&base, path, name, "U32", 2, dims) == DT_ERROR_FORMAT);
    CHECK(ck_write_sums(&base, path, name, "U32", 1, dims + 1) == DT_ERROR_FORMAT);
    CHECK(ck_write_sums(&base, path, name, "U32", 1, dims + 3) == DT_ERROR_FORMAT);
    CHECK(ck_write_sums(&base, path, "dtrain.crc32", "U32", 1, dims) == DT_ERROR_FORMAT);
    CHECK_CONTAINS(base.error, "its last tensor is not \"dtrain.crc32c\" of 2 values");
    const dti_safetensors_item item = {name, "U8", 1, dims + 1, 1};
    ck_source s = {0};
    CHECK(dti_checkpoint_write(&base, path, &item, 1, ck_read, &s) == DT_ERROR_INVALID);
    CHECK_CONTAINS(base.error, "\"dtrain.crc32c\" is reserved for");
    CHECK(base.bytes_now == 0);
}

TEST(every_kept_checkpoint_is_read_or_refused_cleanly) {
    int counts[2] = {0};
    REQUIRE(replay_folder("tests/fuzz/corpus/checkpoint", fuzz_checkpoint, counts));
    CHECK(counts[0] >= 8 && counts[1] >= 4);
}

/* ---- A folder */

TEST(checkpoint_folder_is_made_and_its_newest_is_the_last_written) {
    dti_base base;
    dti_base_init(&base, NULL, NULL);
    char path[DTI_CHECKPOINT_PATH];
    const char *folder = ck_folder();
    bool found = true;
    CHECK(dti_checkpoint_folder_newest(&base, folder, path, &found) == DT_OK && !found);
    for (uint64_t step = 1; step <= 3; step++) {
        CHECK(ck_write_step(&base, folder, step * 1000000, 5) == DT_OK);
        CHECK(ck_newest(&base, folder) == step * 1000000);
    }
    CHECK(ck_exists(folder, "step-000003000000.safetensors") && ck_entries(folder, false) == 4);
    CHECK(ck_write_step(&base, folder, 1000000, 5) == DT_OK); /* once more, and now the newest */
    CHECK(ck_newest(&base, folder) == 1000000 && ck_entries(folder, false) == 4);
    CHECK(ck_write_step(&base, folder, UINT64_MAX, 5) == DT_OK);
    CHECK(ck_newest(&base, folder) == UINT64_MAX);
    char slashes[300];
    snprintf(slashes, sizeof slashes, "%s//", folder);
    ck_remove(folder);
    CHECK(ck_write_step(&base, slashes, 4, 5) == DT_OK && ck_newest(&base, folder) == 4);
    ck_remove(folder);
    CHECK(base.bytes_now == 0);
}

TEST(checkpoint_folder_that_is_a_file_is_an_error_that_names_it) {
    dti_base base;
    dti_base_init(&base, NULL, NULL);
    char path[DTI_CHECKPOINT_PATH], far[DTI_CHECKPOINT_PATH];
    const char *file = temp_write("file", "x", 1);
    bool found = true;
    CHECK(dti_checkpoint_folder_newest(&base, file, path, &found) == DT_ERROR_IO && !found);
    CHECK_CONTAINS(base.error, "/file: checkpoints cannot be listed: Not a directory");
    CHECK(ck_write_step(&base, file, 1, 1) == DT_ERROR_IO);
    CHECK_CONTAINS(base.error, "/file/step-000000000001.safetensors: cannot be written: Not a");
    CHECK(ck_write_step(&base, "no/such/folder", 1, 1) == DT_ERROR_IO);
    CHECK_CONTAINS(base.error, "no/such/folder: the folder cannot be made: No such file");
    CHECK(ck_write_step(&base, "", 1, 1) == DT_ERROR_INVALID);
    memset(far, 'x', sizeof far - 1);
    far[sizeof far - 1] = 0;
    CHECK(ck_write_step(&base, far, 1, 1) == DT_ERROR_INVALID);
    CHECK_CONTAINS(base.error, "1023 bytes");
    CHECK(dti_checkpoint_folder_newest(&base, far, path, &found) == DT_ERROR_INVALID && !found);
    CHECK(!dti_checkpoint_folder_good(&base, far, NULL, false, dti_state_finite, path));
    CHECK(base.bytes_now == 0);
}

TEST(checkpoint_folder_keeps_the_newest_and_touches_no_other_files) {
    static const char *const others[] = {"step-12.safetensors", "step-0000000000012.safetensors",
                                         "step-000000000002.safetensors.bak", "notes.txt",
                                         "step-+00000000001.safetensors"};
    dti_base base;
    dti_base_init(&base, NULL, NULL);
    const char *folder = ck_folder();
    CHECK(ck_write_step(&base, folder, 1, 3) == DT_OK);
    for (size_t i = 0; i < DTI_COUNT(others); i++)
        ck_put(folder, others[i], "x", 1);
    for (uint64_t step = 2; step <= 9; step++) {
        CHECK(ck_write_step(&base, folder, step, 3) == DT_OK && ck_newest(&base, folder) == step);
        CHECK(ck_entries(folder, false) == 6 + (int)DTI_MIN(step, 3));
    }
    CHECK(ck_exists(folder, "step-000000000007.safetensors"));
    CHECK(ck_write_step(&base, folder, 10, 1) == DT_OK && ck_entries(folder, false) == 7);
    CHECK(ck_write_step(&base, folder, 11, 0) == DT_OK && ck_entries(folder, false) == 7);
    for (size_t i = 0; i < DTI_COUNT(others); i++)
        CHECK(ck_exists(folder, others[i]));
    ck_remove(folder);
}

/* A run that was taken back to step 20 of 40: later files stay until it gets there. */
TEST(checkpoint_folder_keeps_later_steps_when_a_run_goes_back) {
    dti_base base;
    dti_base_init(&base, NULL, NULL);
    const char *folder = ck_folder();
    for (uint64_t step = 10; step <= 40; step += 10)
        CHECK(ck_write_step(&base, folder, step, 2) == DT_OK);
    CHECK(ck_write_step(&base, folder, 21, 2) == DT_OK && ck_newest(&base, folder) == 21);
    CHECK(ck_write_step(&base, folder, 22, 2) == DT_OK && ck_newest(&base, folder) == 22);
    CHECK(ck_write_step(&base, folder, 23, 2) == DT_OK && ck_newest(&base, folder) == 23);
    CHECK(ck_exists(folder, "step-000000000022.safetensors") && ck_entries(folder, false) == 5);
    CHECK(ck_write_step(&base, folder, 40, 2) == DT_OK && ck_entries(folder, false) == 3);
    CHECK(ck_exists(folder, "step-000000000030.safetensors"));
    ck_remove(folder);
}

TEST(checkpoint_folder_without_a_usable_latest_gives_the_highest_step) {
    static const char *const texts[] = {"",
                                        "\n",
                                        "step-000000000009.safetensors\n", /* is not there */
                                        "../step-000000000001.safetensors",
                                        "step-1.safetensors\n",
                                        "step-000000000001.safetensors\nx",
                                        "step-000000000001.safetensors.tmp.1",
                                        "99999999999999999999999999999999999999999999999999999999"};
    dti_base base;
    dti_base_init(&base, NULL, NULL);
    const char *folder = ck_folder();
    for (uint64_t step = 1; step <= 3; step++)
        CHECK(ck_write_step(&base, folder, step, 3) == DT_OK);
    for (size_t i = 0; i < DTI_COUNT(texts); i++) {
        ck_put(folder, "LATEST", texts[i], strlen(texts[i]));
        CHECK(ck_newest(&base, folder) == 3);
    }
    ck_put(folder, "LATEST", "step-000000000002.safetensors", 29);
    CHECK(ck_newest(&base, folder) == 2);
    char path[600];
    snprintf(path, sizeof path, "%s/LATEST", folder);
    CHECK(remove(path) == 0 && ck_newest(&base, folder) == 3);
    CHECK(mkdir(path, 0700) == 0 && ck_newest(&base, folder) == 3);
    CHECK(ck_write_step(&base, folder, 4, 1) == DT_ERROR_IO);
    CHECK_CONTAINS(base.error, "/LATEST: cannot be replaced: ");
    CHECK_CONTAINS(base.error, "step-000000000004.safetensors is written, but");
    CHECK(ck_newest(&base, folder) == 4 && ck_entries(folder, false) == 5);
    ck_remove(folder);
    CHECK(base.bytes_now == 0);
}

TEST(checkpoint_folder_loses_the_temporary_files_of_writers_that_died) {
    long dead = ck_dead_process(), own = (long)getpid(), alive = (long)getppid();
    const struct {
        const char *of;
        long process;
        bool stays;
        const char *behind;
    } files[] = {{"step-000000000007.safetensors", dead, false, ""},
                 {"step-000000000008.safetensors", own, false, ""},
                 {"LATEST", dead, false, ""},
                 {"LATEST", alive, true, ""},
                 {"step-000000000007.safetensors", alive, true, ""},
                 {"step-7.safetensors", dead, true, ""},
                 {"model.safetensors", dead, true, ""},
                 {"LATEST", 0, true, ""},
                 {"LATEST", -dead, true, ""},
                 {"LATEST", dead, false, ".0123456789abcdef"},
                 {"LATEST", alive, true, ".0123456789abcdef"},
                 {"LATEST", dead, true, ".0123456789abcdeX"},
                 {"LATEST", dead, true, ".0123456789abcdef0"},
                 {"step-000000000007.safetensors", own, false, ".0000000000000000"}};
    dti_base base;
    dti_base_init(&base, NULL, NULL);
    const char *folder = ck_folder();
    char name[128];
    CHECK(ck_write_step(&base, folder, 1, 3) == DT_OK);
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < DTI_COUNT(files); i++) {
            snprintf(name, sizeof name, "%s.tmp.%ld%s", files[i].of, files[i].process,
                     files[i].behind);
            if (pass == 0)
                ck_put(folder, name, "x", 1);
            else
                test_check(ck_exists(folder, name) == files[i].stays, __FILE__, __LINE__, "%s",
                           name);
        }
        CHECK(pass || ck_write_step(&base, folder, 2, 3) == DT_OK);
    }
    ck_remove(folder);
}

static void ck_count_log(void *user, dt_log_level level, const char *message) {
    (void)level, (void)message;
    ++*(int *)user;
}

static void ck_damage(const char *folder, const char *name) {
    char path[600];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "r+b");
    CHECK(file && fseek(file, -17, SEEK_END) == 0 && fputc('!', file) == '!');
    if (file)
        fclose(file);
}

TEST(checkpoint_folder_whose_newest_is_damaged_has_the_good_one_before) {
    dti_base base;
    int logged = 0;
    dti_base_init(&base, NULL, &(dt_logger){ck_count_log, &logged});
    const char *folder = ck_folder();
    char newest[DTI_CHECKPOINT_PATH], good[DTI_CHECKPOINT_PATH];
    bool found;
    dti_checkpoint *c;
    for (uint64_t step = 0; step <= 4; step++)
        CHECK(ck_write_step(&base, folder, step, 5) == DT_OK);
    ck_damage(folder, "step-000000000004.safetensors");
    ck_damage(folder, "step-000000000003.safetensors");
    CHECK(dti_checkpoint_folder_newest(&base, folder, newest, &found) == DT_OK && found);
    CHECK_CONTAINS(newest, "/step-000000000004.safetensors");
    CHECK(dti_checkpoint_open(&base, newest, &c) == DT_ERROR_FORMAT && logged == 1);
    CHECK_CONTAINS(base.error, "tensor \"scalar\"");
    CHECK(dti_checkpoint_folder_good(&base, folder, newest, false, dti_state_finite, good) &&
          logged == 1);
    CHECK_CONTAINS(good, "/step-000000000002.safetensors");
    CHECK_CONTAINS(base.error, "000004.safetensors: tensor"); /* as it was, to be extended */
    CHECK(base.result == DT_ERROR_FORMAT && ck_file_holds(&base, good, 2, CK_SMALL));
    snprintf(newest, sizeof newest, "%s", good);
    CHECK(dti_checkpoint_folder_good(&base, folder, newest, false, dti_state_finite, good));
    CHECK_CONTAINS(good, "/step-000000000001.safetensors");
    for (int step = 0; step < 3; step++) {
        snprintf(newest, sizeof newest, "step-%012d.safetensors", step);
        ck_damage(folder, newest);
    }
    CHECK(!dti_checkpoint_folder_good(&base, folder, NULL, false, dti_state_finite, good) &&
          !good[0]);
    ck_remove(folder);
    CHECK(!dti_checkpoint_folder_good(&base, folder, NULL, false, dti_state_finite, good));
    CHECK(base.bytes_now == 0);
}

/* ---- What goes wrong while one is written */

TEST(checkpoint_whose_values_cannot_be_read_leaves_the_old_one_and_the_error_as_it_is) {
    dti_base base;
    dti_base_init(&base, NULL, NULL);
    const char *folder = ck_folder();
    CHECK(ck_write_step(&base, folder, 1, 1) == DT_OK);
    for (int call = 1; call <= 5; call++) { /* two small ranges, three of the large one */
        ck_source s = {.seed = 2, .ends_at = call, .with = DT_ERROR_IO};
        dti_fail(&base, DT_ERROR_IO, "the device is gone");
        CHECK(dti_checkpoint_folder_write(&base, folder, 2, 1, ck_items, CK_LARGE, ck_read, &s) ==
              DT_ERROR_IO);
        CHECK_STR(base.error, "the device is gone");
        CHECK(s.calls == call && ck_newest(&base, folder) == 1 && ck_entries(folder, false) == 2);
    }
    ck_remove(folder);
    CHECK(base.bytes_now == 0);
}

TEST(checkpoint_at_the_size_limit_is_an_io_error_and_the_old_one_stays) {
    dti_base base;
    dti_base_init(&base, NULL, NULL);
    const char *path = temp_path("grow.safetensors");
    struct stat size;
    struct rlimit old, now;
    CHECK(ck_write(&base, path, 1, CK_SMALL) == DT_OK);
    REQUIRE(stat(path, &size) == 0 && getrlimit(RLIMIT_FSIZE, &old) == 0);
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    for (long limit = 0; limit <= (long)size.st_size; limit++) {
        now = (struct rlimit){(rlim_t)limit, old.rlim_max};
        setrlimit(RLIMIT_FSIZE, &now);
        dt_result result = ck_write(&base, path, 2, CK_SMALL);
        setrlimit(RLIMIT_FSIZE, &old);
        bool fits = limit == (long)size.st_size;
        CHECK(result == (fits ? DT_OK : DT_ERROR_IO) && temp_unfinished(path) == 0);
        CHECK(ck_file_holds(&base, path, fits ? 2 : 1, CK_SMALL) && base.bytes_now == 0);
    }
    signal(SIGXFSZ, handler);
    CHECK_CONTAINS(base.error, "grow.safetensors: cannot be written: File too large");
    CHECK(!strstr(base.error, "bytes")); /* the disk is not full: no advice about its space */
}

/* In a child with mounts of its own: a disk of 64 KiB on the folder. 100 + errno: not allowed. */
static int ck_on_small_disk(void (*body)(const char *folder), const char *folder) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        mkdir(folder, 0700);
        if (syscall(SYS_unshare, 0x00020000 /* CLONE_NEWNS */) != 0 ||
            mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
            mount("dtrain", folder, "tmpfs", 0, "size=64k") != 0)
            _exit(100 + errno);
        test_now.failures = 0;
        body(folder);
        _exit(DTI_MIN(test_now.failures, 98));
    }
    int status = ck_wait(child);
    rmdir(folder);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void ck_fill_disk(const char *folder) {
    static const dti_safetensors_item large = {"large", "U8", 1, ck_dims[3], 2500003};
    static const char page[4096];
    dti_base base;
    dti_base_init(&base, NULL, NULL);
    ck_source s = {0};
    char stale[64];
    CHECK(ck_write_step(&base, folder, 1, 1) == DT_OK);
    CHECK(dti_checkpoint_folder_write(&base, folder, 2, 1, &large, 1, ck_read, &s) == DT_ERROR_IO);
    CHECK_CONTAINS(base.error, "step-000000000002.safetensors: cannot be written: No space left");
    CHECK_CONTAINS(base.error, "needs 2500203 bytes"); /* 192 of header, 8 of checksums */
    CHECK(ck_newest(&base, folder) == 1 && ck_entries(folder, false) == 2);
    snprintf(stale, sizeof stale, "step-000000000009.safetensors.tmp.%ld", ck_dead_process());
    for (bool filled = false; !filled;) { /* to the last page */
        char path[600];
        snprintf(path, sizeof path, "%s/%s", folder, stale);
        FILE *file = fopen(path, "ab");
        filled = !file || fwrite(page, 1, sizeof page, file) != sizeof page || fflush(file) != 0;
        if (file)
            fclose(file);
    }
    char full[600];
    snprintf(full, sizeof full, "%s/full", folder);
    CHECK(ck_write(&base, full, 1, CK_SMALL) == DT_ERROR_IO && access(full, F_OK) != 0);
    CHECK(ck_write_step(&base, folder, 2, 1) == DT_OK && !ck_exists(folder, stale));
    CHECK(ck_newest(&base, folder) == 2 && ck_entries(folder, false) == 2);
    CHECK(base.bytes_now == 0);
}

TEST(checkpoint_on_a_full_disk_is_an_io_error_and_a_dead_writers_file_makes_room) {
    int failures = ck_on_small_disk(ck_fill_disk, ck_folder());
    static char why[96];
    if (failures > 99)
        snprintf(why, sizeof why, "no small disk: unshare or mount: %s", strerror(failures - 100));
    if (failures > 99)
        SKIP(why);
    CHECK(failures == 0);
}

typedef struct ck_meter {
    int64_t bytes, calls, fails_at;
} ck_meter;

static void *ck_meter_alloc(void *user, size_t bytes, size_t align) {
    ck_meter *m = user;
    if (++m->calls == m->fails_at)
        return NULL;
    m->bytes += (int64_t)bytes;
    return fuzz_alloc(NULL, bytes, align);
}

static void ck_meter_free(void *user, void *memory, size_t bytes) {
    ((ck_meter *)user)->bytes -= (int64_t)bytes;
    free(memory);
}

TEST(checkpoint_without_memory_at_any_allocation_reports_it_and_leaves_no_file) {
    ck_meter m = {0};
    dti_base base;
    dti_base_init(&base, &(dt_allocator){ck_meter_alloc, ck_meter_free, &m}, NULL);
    const char *folder = ck_folder();
    CHECK(ck_write_step(&base, folder, 1, 9) == DT_OK && m.bytes == 0);
    int64_t failed = 0;
    for (uint64_t step = 2; failed + 2 == (int64_t)step && failed < 100; step++) {
        m.calls = 0;
        m.fails_at = (int64_t)step - 1;
        dt_result result = ck_write_step(&base, folder, step, 9);
        failed += result == DT_ERROR_MEMORY;
        CHECK(m.bytes == 0 && (result == DT_OK || strstr(base.error, "memory")));
        m.fails_at = 0;
        uint64_t newest = ck_newest(&base, folder);
        CHECK(result == DT_OK ? newest == step : newest == 1);
    }
    CHECK(failed >= 5);
    char path[DTI_CHECKPOINT_PATH];
    bool found;
    dti_checkpoint *c;
    CHECK(dti_checkpoint_folder_newest(&base, folder, path, &found) == DT_OK && found);
    dt_result result = DT_ERROR_MEMORY;
    int64_t k = 0;
    while (result == DT_ERROR_MEMORY && k < 100) {
        m.calls = 0;
        m.fails_at = ++k;
        result = dti_checkpoint_open(&base, path, &c);
        CHECK(result == DT_OK ? m.bytes > 0 : m.bytes == 0 && !c);
    }
    CHECK(result == DT_OK && k > 5);
    dt_safetensors_close(c);
    CHECK(m.bytes == 0);
    ck_remove(folder);
}

/* ---- Parts */

typedef struct ck_late {
    dti_base base; /* the thread's */
    dti_checkpoint_parts parts;
} ck_late;

static void *ck_late_part(void *arg) {
    ck_late *late = arg;
    dti_checkpoint_file *f;
    ck_source s = {.seed = 1};
    dti_thread_sleep(200000000);
    CHECK(!dti_checkpoint_part_begin(&late->base, &late->parts, ck_items, CK_SMALL, &f) &&
          !dti_checkpoint_end(f, dti_checkpoint_fill(f, ck_read, &s)));
    return NULL;
}

TEST(a_checkpoint_part_may_take_as_long_as_the_first_ranks_own) {
    static const uint32_t part_of[CK_SMALL] = {1, 1, 1};
    const char *path = temp_path("parts");
    uint64_t name[2];
    dti_checkpoint_parts own;
    ck_late late;
    dti_checkpoint_file *f;
    pthread_t thread;
    dti_base base;
    dti_base_init(&base, NULL, NULL);
    dti_base_init(&late.base, NULL, NULL);
    for (int took = 0; took < 2; took++) { /* nothing, and 60 s */
        dti_checkpoint_parts_name(name);
        CHECK(!dti_checkpoint_parts_open(&base, &own, path, name, 0, 2) &&
              !dti_checkpoint_parts_open(&base, &late.parts, path, name, 1, 2) &&
              !dti_checkpoint_parts_make(&base, &own, ck_items, CK_SMALL, part_of) &&
              !dti_checkpoint_part_begin(&base, &own, NULL, 0, &f) &&
              !dti_checkpoint_end(f, DT_OK));
        own.begun = dti_now_ns() - (took ? 60000000000u : 0);
        atomic_store(&own.until, dti_now_ns());
        if (took)
            CHECK(pthread_create(&thread, NULL, ck_late_part, &late) == 0);
        CHECK(dti_checkpoint_parts_end(&base, &own, DT_OK) == (took ? DT_OK : DT_ERROR_IO));
        if (took)
            pthread_join(thread, NULL);
    }
    CHECK(ck_file_holds(&base, path, 1, CK_SMALL));
    CHECK(dti_checkpoint_parts_remove(path));
}

/* ---- Kills and errors at every system call: a child writes, its parent traces it */

enum { CK_WHOLE, CK_REFUSED, CK_WRONG }; /* how a child ended that was not killed */

static bool ck_in_parts; /* what the child writes */

static pid_t ck_start(const char *folder, uint64_t step, bool traced, int ends_at) {
    fflush(stdout);
    pid_t child = fork();
    if (child)
        return child;
    dti_base base;
    dti_base_init(&base, NULL, NULL);
    if (traced && (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0 || raise(SIGSTOP) != 0))
        _exit(CK_WRONG);
    ck_source s = {.seed = step, .ends_at = ends_at};
    dt_result result = ck_in_parts ? ck_write_parts(&base, folder, step, 2)
                                   : dti_checkpoint_folder_write(&base, folder, step, 2, ck_items,
                                                                 CK_SMALL, ck_read, &s);
    bool told = result == DT_ERROR_IO && strstr(base.error, "Input/output error");
    _exit(base.bytes_now ? CK_WRONG : !result ? CK_WHOLE : told ? CK_REFUSED : CK_WRONG);
}

/* After whatever happened to a writer of `step`: the newest is good, and the next one cleans up. */
static void ck_check_after(const char *folder, uint64_t step, bool whole, const char *what, int n) {
    dti_base base;
    dti_base_init(&base, NULL, NULL);
    uint64_t newest = ck_newest(&base, folder);
    test_check(whole ? newest == step : newest == step || newest == step - 1, __FILE__, __LINE__,
               "%s %d: the newest good one is of step %d, not %d", what, n, (int)newest, (int)step);
    dt_result result = ck_write_step(&base, folder, step + 1, 2);
    test_check(!result && ck_newest(&base, folder) == step + 1 && ck_entries(folder, false) == 3,
               __FILE__, __LINE__, "%s %d: the next one gives %s: %s, %d entries", what, n,
               dt_result_text(result), base.error, ck_entries(folder, false));
}

TEST(checkpoint_writer_killed_while_it_reads_values_leaves_a_good_newest) {
    dti_base base;
    dti_base_init(&base, NULL, NULL);
    const char *folder = ck_folder();
    CHECK(ck_write_step(&base, folder, 1, 2) == DT_OK &&
          ck_write_step(&base, folder, 2, 2) == DT_OK);
    for (int call = 1; call <= 3; call++) {
        uint64_t step = 1 + 2 * (uint64_t)call;
        int status = ck_wait(ck_start(folder, step, false, call));
        CHECK(call < 3 ? WIFSIGNALED(status) : status == 0);
        CHECK(call == 3 || ck_entries(folder, false) == 4); /* its temporary file is there */
        ck_check_after(folder, step, call == 3, "killed in call", call);
    }
    ck_remove(folder);
}

#if CK_INJECTS
/* Starts a traced child; false: the system does not allow that. */
static bool ck_trace(const char *folder, uint64_t step, pid_t *child) {
    *child = ck_start(folder, step, true, 0);
    long options = PTRACE_O_TRACESYSGOOD | 0x00100000 /* EXITKILL */;
    if (!WIFSTOPPED(ck_wait(*child)))
        return false;
    if (ptrace(PTRACE_SETOPTIONS, *child, NULL, (void *)options) == 0)
        return true;
    kill(*child, SIGKILL);
    ck_wait(*child);
    return false;
}

/* On to the next begin or end of a system call. False: the child has ended, with *status. */
static bool ck_next_stop(pid_t child, int *status) {
    ptrace(PTRACE_SYSCALL, child, NULL, NULL);
    *status = ck_wait(child);
    return WIFSTOPPED(*status);
}

/* again: writes over a step that is there, in parts. */
static void ck_kill_at_any(bool again) {
    dti_base base;
    dti_base_init(&base, NULL, NULL);
    const char *folder = ck_folder();
    const int each = !ck_in_parts || test_is_long() ? 1 : 5;
    bool ended = false;
    int stops = 1, status;
    CHECK(ck_write_step(&base, folder, 1, 2) == DT_OK &&
          ck_write_step(&base, folder, 2, 2) == DT_OK);
    for (uint64_t step = 3; !ended && stops < 2000; step += 2, stops += each) {
        pid_t child;
        CHECK(!again || ck_write_parts(&base, folder, step, 2) == DT_OK);
        if (!ck_trace(folder, step, &child)) {
            ck_remove(folder);
            SKIP("ptrace of a child failed, as TRACEME or SETOPTIONS");
        }
        for (int i = 0; i < stops && !ended; i++)
            ended = !ck_next_stop(child, &status);
        if (!ended) {
            kill(child, SIGKILL);
            ck_wait(child);
        }
        ck_check_after(folder, step, ended || again, "killed at stop", stops);
    }
    CHECK(ended && stops > 60 && WIFEXITED(status) && WEXITSTATUS(status) == CK_WHOLE);
    ck_remove(folder);
}

TEST(checkpoint_writer_killed_at_any_system_call_leaves_a_good_newest) {
    ck_kill_at_any(false);
}

TEST(a_writer_of_parts_killed_at_any_system_call_leaves_a_good_newest) {
    ck_in_parts = true;
    ck_kill_at_any(false);
    ck_kill_at_any(true);
    ck_in_parts = false;
}

/* -1: not one of those that an error is put into; 1: writing must then fail; 0: it may. */
static int ck_weight_of(unsigned long long call) {
    switch (call) {
    case SYS_write:
    case SYS_writev:
    case SYS_fsync:
    case SYS_rename:
    case SYS_mkdir: return 1;
    case SYS_openat:
    case SYS_close:
    case SYS_getdents64:
    case SYS_lseek:
    case SYS_unlink: return 0;
    }
    return -1;
}

/* Lets the n-th of those calls fail with EIO, undone. *weight: of that call, -1: there were fewer;
 * *musts: how many weighed 1. Gives how the child ended. */
static int ck_inject(pid_t child, int n, int *weight, int *musts) {
    struct user_regs_struct regs;
    int status, count = 0;
    *weight = -1;
    *musts = 0;
    for (bool begin = true; ck_next_stop(child, &status); begin = !begin) {
        ptrace(PTRACE_GETREGS, child, NULL, &regs);
        *musts += begin && ck_weight_of(regs.orig_rax) == 1;
        if (begin && ck_weight_of(regs.orig_rax) >= 0 && ++count == n) {
            *weight = ck_weight_of(regs.orig_rax);
            regs.orig_rax = (unsigned long long)-1;
            ptrace(PTRACE_SETREGS, child, NULL, &regs);
        } else if (!begin && count == n && *weight >= 0) {
            regs.rax = (unsigned long long)-EIO;
            ptrace(PTRACE_SETREGS, child, NULL, &regs);
            count++;
        }
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : CK_WRONG;
}

TEST(checkpoint_writer_reports_any_failed_system_call_and_leaves_a_good_newest) {
    dti_base base;
    dti_base_init(&base, NULL, NULL);
    const char *folder = ck_folder();
    int weight = 0, musts = 0, again = 0, n = 1;
    CHECK(ck_write_step(&base, folder, 1, 2) == DT_OK &&
          ck_write_step(&base, folder, 2, 2) == DT_OK);
    for (uint64_t step = 3; weight >= 0 && n < 1000; step += 2, n++) {
        pid_t child;
        if (!ck_trace(folder, step, &child)) {
            ck_remove(folder);
            SKIP("ptrace of a child failed, as TRACEME or SETOPTIONS");
        }
        int end = ck_inject(child, n, &weight, &musts);
        test_check(end == CK_REFUSED || (end == CK_WHOLE && weight <= 0), __FILE__, __LINE__,
                   "an error in call %d of weight %d: the child ended with %d", n, weight, end);
        if (end == CK_REFUSED) /* nothing is left over, but what is good stays */
            CHECK(ck_entries(folder, false) <= 4);
        ck_check_after(folder, step, end == CK_WHOLE, "an error in call", n);
    }
    CHECK(weight < 0 && musts >= 9); /* mkdir; twice: write, flush, rename, flush the folder */
    ck_remove(folder);
    pid_t child;
    CHECK(ck_trace(folder, 1, &child) && ck_inject(child, 1000, &weight, &again) == CK_WHOLE);
    CHECK(again == musts + 1); /* a new folder: the one that it is in is flushed */
    ck_remove(folder);
}
#endif

/* A file may repeat a parameter's line again and again. That is one too many, and must not start a
 * search in all of the model each time. */
TEST(a_model_description_that_repeats_a_parameter_is_another_model) {
    static const char *const texts[] = {"parameter 'a' [1]\nparameter 'b' [2]\nrelu [B]\n",
                                        "parameter 'b' [2]\nparameter 'a' [1]\nrelu [B]\n",
                                        "parameter 'a' [1]\nparameter 'b' [2]\nparameter 'a' [1]\n",
                                        "parameter 'a' [1]\nrelu [B]\n"};
    dti_base base;
    dti_base_init(&base, NULL, NULL);
    dti_text here = dti_text_open(&base);
    dti_text_add(&here, "%s", texts[0]);
    for (int i = 0; i < 4; i++) {
        dt_result result =
            dti_model_text_contract(&base, "path", texts[i], strlen(texts[i]), &here);
        CHECK(result == (i < 2 ? DT_OK : DT_ERROR_INVALID));
        if (i >= 2)
            CHECK_CONTAINS(base.error, i == 2 ? "the file also has \"parameter 'a' [1]\""
                                              : "the graph also has \"parameter 'b' [2]\"");
    }
    dti_text_free(&here);
}
