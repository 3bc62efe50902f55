/* The data layer: IDX files good and bad, the shuffle, batches of rows. Included by main.c. */
#include "temp.h"

/* ---- IDX */

/* A context, and the host bytes it held when it was made: what a failed call must come back to. */
typedef struct data_fixture {
    dt_ctx *ctx;
    uint64_t bytes;
} data_fixture;

static uint64_t data_host_bytes(dt_ctx *ctx) {
    dt_ctx_info info;
    dt_ctx_get_info(ctx, &info);
    return info.host_bytes;
}

static data_fixture data_open(void) {
    data_fixture f = {0};
    dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &f.ctx);
    f.bytes = f.ctx ? data_host_bytes(f.ctx) : 0;
    return f;
}

static const unsigned char idx_good[] = {0, 0, 8, 2, 0, 0, 0,   2,   0,
                                         0, 0, 3, 1, 2, 3, 250, 251, 252};

TEST(idx_file_gives_its_dimensions_and_bytes) {
    data_fixture f = data_open();
    REQUIRE(f.ctx);
    dt_array array;
    const char *path = temp_write("good.idx", idx_good, sizeof idx_good);
    CHECK(dt_idx_load(f.ctx, path, &array) == DT_OK);
    CHECK(array.rank == 2 && array.dim[0] == 2 && array.dim[1] == 3);
    CHECK(array.bytes == 6 && array.element_bytes == 1);
    CHECK(array.data && !memcmp(array.data, idx_good + 12, 6));
    dt_array_destroy(&array);
    CHECK(!array.data && data_host_bytes(f.ctx) == f.bytes);
    dt_array_destroy(&array);
    dt_array_destroy(NULL);
    dt_ctx_destroy(f.ctx);
}

TEST(idx_file_cut_at_any_byte_is_an_error_and_leaks_nothing) {
    data_fixture f = data_open();
    REQUIRE(f.ctx);
    for (size_t size = 0; size < sizeof idx_good; size++) {
        dt_array array;
        const char *path = temp_write("cut.idx", idx_good, size);
        CHECK(dt_idx_load(f.ctx, path, &array) == DT_ERROR_FORMAT);
        CHECK_CONTAINS(dt_ctx_error(f.ctx), "cut.idx");
        CHECK(!array.data && data_host_bytes(f.ctx) == f.bytes);
    }
    dt_ctx_destroy(f.ctx);
}

TEST(idx_file_that_is_not_valid_is_refused_with_the_reason) {
    static const struct {
        const char *part;
        unsigned char bytes[40];
        size_t size;
    } bad[] = {
        {"gzip", {0x1F, 0x8B, 8, 0, 1, 2, 3, 4}, 8},
        {"two zero bytes", {1, 0, 8, 1, 0, 0, 0, 1, 9}, 9},
        {"two zero bytes", {0, 1, 8, 1, 0, 0, 0, 1, 9}, 9},
        {"0x0D", {0, 0, 0x0D, 1, 0, 0, 0, 1, 9, 9, 9, 9}, 12},
        {"rank 0", {0, 0, 8, 0, 9}, 5},
        {"rank 9", {0, 0, 8, 9, 0, 0, 0, 1}, 40},
        {"dimension 1 is 0", {0, 0, 8, 2, 0, 0, 0, 1, 0, 0, 0, 0, 9}, 13},
        {"says 1 bytes of data, but 2", {0, 0, 8, 1, 0, 0, 0, 1, 9, 9}, 10},
        {"dimension 0 is 4294967295", {0, 0, 8, 1, 255, 255, 255, 255, 9}, 9},
        /* 2^31 times 2^31 times 4 is 0 in 64 bits. */
        {"truncated", {0, 0, 8, 3, 128, 0, 0, 0, 128, 0, 0, 0, 0, 0, 0, 4}, 16},
        {"truncated", {0, 0, 8, 3, 0, 0, 0, 1, 128, 0, 0, 0, 128, 0, 0, 0, 1, 1}, 18},
    };
    data_fixture f = data_open();
    REQUIRE(f.ctx);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        dt_array array;
        const char *path = temp_write("bad.idx", bad[i].bytes, bad[i].size);
        CHECK(dt_idx_load(f.ctx, path, &array) == DT_ERROR_FORMAT);
        CHECK_CONTAINS(dt_ctx_error(f.ctx), bad[i].part);
        CHECK_CONTAINS(dt_ctx_error(f.ctx), "bad.idx");
        CHECK(!array.data && data_host_bytes(f.ctx) == f.bytes);
    }
    dt_ctx_destroy(f.ctx);
}

TEST(idx_file_that_is_missing_or_a_folder_is_an_io_error) {
    data_fixture f = data_open();
    REQUIRE(f.ctx);
    dt_array array;
    CHECK(dt_idx_load(f.ctx, temp_path("none.idx"), &array) == DT_ERROR_IO);
    CHECK_CONTAINS(dt_ctx_error(f.ctx), "none.idx");
    CHECK(dt_idx_load(f.ctx, "/", &array) == DT_ERROR_IO);
    CHECK(dt_idx_load(f.ctx, NULL, &array) == DT_ERROR_INVALID);
    CHECK(dt_idx_load(NULL, "x", &array) == DT_ERROR_INVALID);
    dt_ctx_destroy(f.ctx);
}

TEST(idx_reader_takes_the_real_fashion_mnist) {
    data_fixture f = data_open();
    REQUIRE(f.ctx);
    dt_array array = {0};
    dt_result result = dt_idx_load(f.ctx, "build/data/t10k-images-idx3-ubyte", &array);
    bool right = array.rank == 3 && array.dim[0] == 10000 && array.dim[2] == 28;
    dt_array_destroy(&array);
    dt_ctx_destroy(f.ctx);
    if (result == DT_ERROR_IO)
        SKIP("no build/data; ./build.sh train gets it");
    CHECK(result == DT_OK && right);
}

/* ---- Shuffle */

#define SHUFFLE_COUNT 1000

static bool shuffle_is_permutation(const uint32_t *order, uint32_t count) {
    bool seen[SHUFFLE_COUNT] = {false};
    for (uint32_t i = 0; i < count; i++) {
        if (order[i] >= count || seen[order[i]])
            return false;
        seen[order[i]] = true;
    }
    return true;
}

TEST(shuffle_is_a_permutation_for_every_count) {
    uint32_t order[SHUFFLE_COUNT + 1];
    for (uint32_t count = 0; count <= SHUFFLE_COUNT; count += count < 20 ? 1 : 97) {
        order[count] = 12345;
        dt_shuffle(order, count, 7, 3);
        CHECK(shuffle_is_permutation(order, count));
        CHECK(order[count] == 12345);
    }
}

TEST(shuffle_depends_only_on_seed_and_epoch) {
    uint32_t a[100], b[100];
    dt_shuffle(a, 100, 1, 1);
    dt_shuffle(b, 100, 1, 1);
    CHECK(!memcmp(a, b, sizeof a));
    dt_shuffle(b, 100, 1, 2);
    CHECK(memcmp(a, b, sizeof a));
    dt_shuffle(b, 100, 2, 1);
    CHECK(memcmp(a, b, sizeof a));
    /* Recorded: training runs with the same seed stay the same from version to version. */
    CHECK(dti_hash64(14695981039346656037u, a, sizeof a) == 0x44B1364DE1151A85u);
}

TEST(shuffle_gives_all_permutations_equally_often) {
    int seen[27] = {0};
    for (uint64_t epoch = 0; epoch < 6000; epoch++) {
        uint32_t order[3];
        dt_shuffle(order, 3, 99, epoch);
        seen[order[0] * 9 + order[1] * 3 + order[2]]++;
    }
    for (int i = 0; i < 27; i++) /* each of six: 1000, standard deviation 29 */
        CHECK(seen[i] == 0 || (seen[i] > 850 && seen[i] < 1150));
}

/* ---- Rows */

TEST(rows_are_gathered_scaled_and_shifted) {
    uint8_t src[4 * 3];
    for (int i = 0; i < 12; i++)
        src[i] = (uint8_t)(i * 23);
    const uint32_t order[] = {3, 0, 3};
    float dst[10] = {0};
    int32_t labels[3];
    dst[9] = 77;
    dt_gather_rows_u8_to_f32(dst, src, order, 3, 3, 0.5f, -1.0f);
    for (int i = 0; i < 9; i++)
        CHECK(dst[i] == (float)src[order[i / 3] * 3 + (uint32_t)(i % 3)] * 0.5f - 1.0f);
    CHECK(dst[9] == 77);
    dt_gather_rows_u8_to_f32(dst, src, NULL, 3, 3, 1, 0);
    for (int i = 0; i < 9; i++)
        CHECK(dst[i] == (float)src[i]);
    dt_gather_rows_u8_to_i32(labels, src, order, 3, 1);
    CHECK(labels[0] == src[3] && labels[1] == src[0] && labels[2] == src[3]);
    dt_gather_rows_u8_to_f32(dst, src, NULL, 0, 3, 1, 0);
    dt_gather_rows_u8_to_f32(dst, src, NULL, 3, 0, 1, 0);
}

TEST(rows_of_pixels_over_255_are_within_a_rounding_of_the_quotient) {
    uint8_t src[256];
    float dst[256];
    for (int i = 0; i < 256; i++)
        src[i] = (uint8_t)i;
    dt_gather_rows_u8_to_f32(dst, src, NULL, 1, 256, 1.0f / 255.0f, 0);
    for (int i = 0; i < 256; i++)
        CHECK_NEAR(dst[i], i / 255.0, i / 255.0 * 0x1p-22);
    CHECK(dst[0] == 0 && dst[255] == 1);
}
