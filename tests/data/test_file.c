/* Weight files: what is read, what is refused with which text, and interoperability with the
 * reference implementation of safetensors. Included by main.c. */
#include "temp.h"

#include <sys/stat.h>

/* ---- Files from text */

/* A file with this header, of the length `header_bytes` (0: its own), and data 0, 1, 2 ... */
static size_t weights_compose(unsigned char *file, const char *header, uint64_t header_bytes,
                              size_t data_bytes) {
    size_t size = strlen(header);
    if (!header_bytes)
        header_bytes = size;
    for (int i = 0; i < 8; i++)
        file[i] = (unsigned char)(header_bytes >> 8 * i);
    memcpy(file + 8, header, size);
    for (size_t i = 0; i < data_bytes; i++)
        file[8 + size + i] = (unsigned char)i;
    return 8 + size + data_bytes;
}

/* What the reader says to a file of these bytes. */
static dt_result weights_parse(dti_base *base, const unsigned char *bytes, size_t size,
                               dt_safetensors **out) {
    return dti_weights_load(base, temp_write("weights", bytes, size), out);
}

#define GOOD_HEADER                                                                                \
    "{\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[12,20]},"                           \
    "\"__metadata__\":{\"format\":\"pt\",\"x\":\"\\n\"},"                                          \
    "\"a\":{\"dtype\":\"I16\",\"shape\":[2,3],\"data_offsets\":[0,12]},"                           \
    "\"e\":{\"shape\":[4,0],\"data_offsets\":[20,20],\"dtype\":\"BOOL\",\"more\":[1,{}]},"         \
    "\"s\\u00e9\\ud83d\\ude00\\\"\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[20,21]}}  "

TEST(weights_file_gives_its_tensors_by_index_and_name) {
    dti_base base;
    dti_base_init(&base, NULL, NULL);
    unsigned char bytes[1024];
    size_t size = weights_compose(bytes, GOOD_HEADER, 0, 21);
    dt_safetensors *w;
    dt_safetensors_tensor info;
    REQUIRE(weights_parse(&base, bytes, size, &w) == DT_OK);
    CHECK(dt_safetensors_count(w) == 4);
    CHECK(dt_safetensors_get_tensor(w, 0, &info) == DT_OK);
    CHECK_STR(info.name, "a");
    CHECK_STR(info.dtype, "I16");
    CHECK(info.rank == 2 && info.dim[0] == 2 && info.dim[1] == 3 && info.bytes == 12);
    CHECK(*(const unsigned char *)info.data == 0);
    CHECK(dt_safetensors_get_tensor(w, dt_safetensors_find(w, "b"), &info) == DT_OK);
    CHECK(info.bytes == 8 && *(const unsigned char *)info.data == 12);
    CHECK(dt_safetensors_get_tensor(w, dt_safetensors_find(w, "s\xC3\xA9\xF0\x9F\x98\x80\""),
                                    &info) == DT_OK);
    CHECK(info.rank == 0 && info.bytes == 1 && *(const unsigned char *)info.data == 20);
    CHECK(dt_safetensors_find(w, "e") >= 0 && dt_safetensors_find(w, "c") == -1);
    CHECK(dt_safetensors_find(w, "__metadata__") == -1 && dt_safetensors_find(w, "") == -1);
    CHECK(dt_safetensors_get_tensor(w, -1, &info) == DT_ERROR_INVALID);
    CHECK(dt_safetensors_get_tensor(w, 4, &info) == DT_ERROR_INVALID);
    dt_safetensors_close(w);
    dt_safetensors_close(NULL);
    CHECK(base.bytes_now == 0);
}

/* One F32 tensor "a" of shape [2] and 8 bytes of data, but for one thing. */
#define ONE(description) "{\"a\":{" description "}}"
#define F32_2 "\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]"

static const struct {
    const char *part, *header;
    size_t data_bytes;
    uint64_t header_bytes;
} weights_bad[] = {
    {"does not begin with '{'", "[]", 0, 0},
    {"does not begin with '{'", "{", 0, 0},
    {"not valid JSON", "{} x", 0, 0},
    {"not valid JSON", "{\"a\"", 0, 0},
    {"not valid JSON", "{}{}", 0, 0},
    {"UTF-8", "{\"\xFF\":{" F32_2 "}}", 8, 0},
    {"UTF-8", "{\"\xC0\x80\":{" F32_2 "}}", 8, 0},
    {"UTF-8", "{\"\xED\xA0\x80\":{" F32_2 "}}", 8, 0},
    {"NUL", "{\"a\\u0000b\":{" F32_2 "}}", 8, 0},
    {"surrogate", "{\"\\ud800\":{" F32_2 "}}", 8, 0},
    {"surrogate", "{\"\\ud800\\u0041\":{" F32_2 "}}", 8, 0},
    {"surrogate", "{\"\\udc00\":{" F32_2 "}}", 8, 0},
    {"header would have 100000001", "{}", 0, 100000001},
    {"header would have 18446744073709551615", "{}", 0, UINT64_MAX},
    {"header would have 3", "{}", 0, 3},
    {"__metadata__", "{\"__metadata__\":[]}", 0, 0},
    {"__metadata__", "{\"__metadata__\":{\"a\":1}}", 0, 0},
    {"\"a\": its description is not an object", "{\"a\":[]}", 0, 0},
    {"\"a\": it lacks", ONE("\"dtype\":\"F32\",\"shape\":[2]"), 8, 0},
    {"\"a\": it lacks", ONE(""), 0, 0},
    {"\"a\": a field is given twice", ONE("\"dtype\":\"F32\"," F32_2), 8, 0},
    {"\"a\": its dtype", ONE("\"dtype\":\"\",\"shape\":[2],\"data_offsets\":[0,8]"), 8, 0},
    {"not valid JSON", "  {\"a\"", 0, 0},
    {"does not begin with '{'", "n ull", 0, 0},
    {"not a JSON object", "  []", 0, 0},
    {"__metadata__", "{\"__metadata__\":nul}", 0, 0},
    {"__metadata__", "{\"__metadata__\":true}", 0, 0},
    {"\"a\": its data_offsets [0, 9]",
     ONE("\"dtype\":\"F31\",\"shape\":[2],\"data_offsets\":[0,9]"), 8, 0},
    {"\"a\": its dtype", ONE("\"dtype\":5,\"shape\":[2],\"data_offsets\":[0,8]"), 8, 0},
    {"\"a\": its shape", ONE("\"dtype\":\"F32\",\"shape\":2,\"data_offsets\":[0,8]"), 8, 0},
    {"\"a\": a dimension", ONE("\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]"), 8, 0},
    {"\"a\": a dimension", ONE("\"dtype\":\"F32\",\"shape\":[2.0],\"data_offsets\":[0,8]"), 8, 0},
    {"\"a\": a dimension",
     ONE("\"dtype\":\"F32\",\"shape\":[9223372036854775808],\"data_offsets\":[0,8]"), 8, 0},
    {"\"a\": a dimension",
     ONE("\"dtype\":\"F32\",\"shape\":[18446744073709551618],\"data_offsets\":[0,8]"), 8, 0},
    {"need 7 bytes", ONE("\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,7],\"data_offsets\":[0,8]"),
     8, 0},
    {"\"a\": the product",
     ONE("\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,4294967296,4294967296],"
         "\"data_offsets\":[0,8]"),
     8, 0},
    {"\"a\": the product",
     ONE("\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]"), 0, 0},
    {"\"a\": the product",
     ONE("\"dtype\":\"F32\",\"shape\":[4611686018427387904],\"data_offsets\":[0,0]"), 0, 0},
    {"need 12 bytes", ONE("\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]"), 8, 0},
    {"need 4 bytes", ONE("\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":[0,8]"), 8, 0},
    {"\"a\": its data_offsets", ONE("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0]"), 8, 0},
    {"\"a\": its data_offsets", ONE("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8,8]"), 8,
     0},
    {"\"a\": its data_offsets", ONE("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":{}"), 8, 0},
    {"[8, 0] are not inside", ONE("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]"), 8, 0},
    {"truncated", ONE(F32_2), 7, 0},
    {"truncated", ONE("\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[18446744073709551608,0]"),
     8, 0},
    {"9 bytes of data follow the header, but its tensors have 8", ONE(F32_2), 9, 0},
    {"1 bytes of data follow", "{}", 1, 0},
    {"a hole", ONE("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]"), 12, 0},
    {"overlaps",
     "{\"a\":{" F32_2 "},\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]}}", 12, 0},
    {"overlaps", "{\"a\":{" F32_2 "},\"b\":{" F32_2 "}}", 8, 0},
    {"\"a\": the name is used twice",
     "{\"a\":{" F32_2 "},\"\\u0061\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,16]}}",
     16, 0},
};

TEST(weights_file_that_is_wrong_is_refused_with_tensor_and_reason) {
    dti_base base;
    dti_base_init(&base, NULL, NULL);
    for (size_t i = 0; i < sizeof weights_bad / sizeof weights_bad[0]; i++) {
        unsigned char bytes[1024];
        dt_safetensors *w;
        size_t size = weights_compose(bytes, weights_bad[i].header, weights_bad[i].header_bytes,
                                      weights_bad[i].data_bytes);
        *base.error = 0;
        CHECK(weights_parse(&base, bytes, size, &w) == DT_ERROR_FORMAT);
        CHECK_CONTAINS(base.error, weights_bad[i].part);
        CHECK_CONTAINS(base.error, "/weights: ");
        CHECK(!w && base.bytes_now == 0);
    }
}

TEST(weights_file_shows_hostile_names_without_control_bytes) {
    dti_base base;
    dti_base_init(&base, NULL, NULL);
    unsigned char bytes[1024];
    char header[900] = "{\"\\u001b[2J";
    memset(header + strlen(header), 'n', 500);
    strcat(header, "\":[]}");
    dt_safetensors *w;
    size_t size = weights_compose(bytes, header, 0, 0);
    CHECK(weights_parse(&base, bytes, size, &w) == DT_ERROR_FORMAT);
    CHECK_CONTAINS(base.error, "\"\\x1b[2Jnnn");
    CHECK_CONTAINS(base.error, "nnn...\"");
    CHECK(!strchr(base.error, 0x1B));
}

TEST(weights_file_cut_at_any_byte_is_an_error) {
    dti_base base;
    dti_base_init(&base, NULL, NULL);
    unsigned char bytes[1024];
    size_t size = weights_compose(bytes, GOOD_HEADER, 0, 21);
    for (size_t cut = 0; cut < size; cut++) {
        dt_safetensors *w;
        CHECK(weights_parse(&base, bytes, cut, &w) == DT_ERROR_FORMAT);
        CHECK(base.bytes_now == 0);
    }
}

/* Every byte that a tensor claims is touched, so that the sanitizers see a wrong bound. */
static uint64_t weights_touch(const dt_safetensors *w) {
    uint64_t sum = 0;
    for (int i = 0; i < dt_safetensors_count(w); i++) {
        dt_safetensors_tensor info;
        dt_safetensors_get_tensor(w, i, &info);
        for (uint64_t j = 0; j < info.bytes; j++)
            sum += ((const unsigned char *)info.data)[j];
        sum += (uint64_t)(dt_safetensors_find(w, info.name) == i ? 0 : 1) << 32;
    }
    return sum;
}

TEST(weights_file_with_random_damage_is_read_or_refused) {
    static const char spice[] = "\"\\{}[]:,0189u-eE. \n\0\xFF";
    dti_base base;
    dti_base_init(&base, NULL, NULL);
    unsigned char good[1024], bytes[1024];
    size_t size = weights_compose(good, GOOD_HEADER, 0, 21);
    int taken = 0;
    for (uint32_t i = 0; i < 20000; i++) {
        memcpy(bytes, good, size);
        dti_u32x4 r = dti_philox(1, i, 2);
        for (uint32_t j = 0; j < 1 + r.v[0] % 3; j++)
            bytes[(r.v[1] >> 8 * j) % 7 ? 8 + (r.v[2] >> 3 * j) % (size - 8) : r.v[2] % 8] =
                (unsigned char)(r.v[0] & 64 ? spice[(r.v[3] >> 5 * j) % (sizeof spice - 1)]
                                            : (char)(r.v[3] >> 8 * j));
        dt_safetensors *w;
        dt_result result = weights_parse(&base, bytes, size, &w);
        CHECK(result == DT_OK || result == DT_ERROR_FORMAT);
        if (result == DT_OK)
            CHECK(weights_touch(w) < (uint64_t)1 << 32);
        taken += result == DT_OK;
        dt_safetensors_close(w);
        CHECK(base.bytes_now == 0);
    }
    CHECK(taken > 100 && taken < 19000); /* both ways were taken */
}

TEST(weights_file_with_many_tensors_is_read_fast) {
    enum { COUNT = 20000 };
    dti_base base;
    dti_base_init(&base, NULL, NULL);
    dti_text text = dti_text_open(&base);
    for (int i = COUNT; i-- > 0;)
        dti_text_add(&text,
                     "%c\"layer.%d\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[%d,%d]}",
                     i == COUNT - 1 ? '{' : ',', i, i, i + 1);
    dti_text_add(&text, "}");
    REQUIRE(text.ok);
    unsigned char *bytes = dti_alloc(&base, text.size + 8 + COUNT);
    REQUIRE(bytes);
    size_t size = weights_compose(bytes, text.data, 0, COUNT);
    dt_safetensors *w;
    uint64_t start = dti_now_ns();
    REQUIRE(weights_parse(&base, bytes, size, &w) == DT_OK);
    CHECK(dti_now_ns() - start < 2000000000u); /* a square of 20000 would take longer */
    CHECK(dt_safetensors_find(w, "layer.123") == 123 &&
          dt_safetensors_find(w, "layer.20000") == -1);
    dt_safetensors_close(w);
    dti_free(&base, bytes);
    dti_text_free(&text);
    CHECK(base.bytes_now == 0);
}

/* ---- Stores */

typedef struct file_fixture {
    dt_ctx *ctx;
    dt_graph *graph;
    dt_store *store;
} file_fixture;

/* Parameters "w" [rows, 3], "b" [3] and one whose name needs escapes. */
static file_fixture file_open(int64_t rows, uint64_t seed) {
    dt_init uniform = {DT_INIT_UNIFORM, -1, 1};
    file_fixture f = {0};
    dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &f.ctx);
    dt_graph_create(f.ctx, &f.graph);
    dt_param(f.graph, "w", dt_dims(rows, 3), uniform);
    dt_param(f.graph, "b", dt_dims(3), uniform);
    dt_param(f.graph, "odd \"\\\t\xC3\xA9", dt_dims(), uniform);
    dt_store_create(f.graph, &(dt_store_desc){.device = "cpu", .seed = seed}, &f.store);
    return f;
}

static const dt_load_desc file_any = {.strict = true, .allow_nonfinite = true};

static void file_close(file_fixture *f) {
    dt_store_destroy(f->store);
    dt_graph_destroy(f->graph);
    dt_ctx_destroy(f->ctx);
}

static uint64_t file_hash(const file_fixture *f) {
    uint64_t hash = 0;
    CHECK(dt_store_hash(f->store, &hash) == DT_OK);
    return hash;
}

TEST(store_saved_and_loaded_has_the_same_bits) {
    static const uint32_t odd[6] = {0x7FC12345, 0x80000000, 1, 0xFF800000, 0x7F7FFFFF, 0x80000001};
    file_fixture a = file_open(2, 1), b = file_open(2, 2);
    REQUIRE(a.store && b.store);
    CHECK(dt_store_write(a.store, 0, DT_VALUE_PARAM, odd, sizeof odd) == DT_OK);
    CHECK(file_hash(&a) != file_hash(&b));
    const char *path = temp_path("same.safetensors");
    CHECK(dt_store_save(a.store, path) == DT_OK);
    CHECK(dt_store_load_matching(b.store, path, &file_any, NULL) == DT_OK); /* NaN and infinity */
    CHECK(file_hash(&a) == file_hash(&b));
    CHECK(temp_unfinished(temp_path("same.safetensors")) == 0);
    file_close(&a);
    file_close(&b);
}

TEST(store_file_begins_its_data_at_a_multiple_of_8) {
    file_fixture f = file_open(2, 1);
    REQUIRE(f.store);
    const char *path = temp_path("aligned.safetensors");
    CHECK(dt_store_save(f.store, path) == DT_OK);
    unsigned char size[8] = {0};
    FILE *file = fopen(path, "rb");
    REQUIRE(file);
    CHECK(fread(size, 1, 8, file) == 8 && size[0] % 8 == 0);
    fclose(file);
    file_close(&f);
}

TEST(store_of_another_model_is_refused_and_nothing_changes) {
    file_fixture a = file_open(2, 1), b = file_open(4, 2);
    REQUIRE(a.store && b.store);
    const char *path = temp_path("other.safetensors");
    CHECK(dt_store_save(a.store, path) == DT_OK);
    uint64_t before = file_hash(&b);
    CHECK(dt_store_load(b.store, path) == DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_ctx_error(b.ctx), "\"w\" is [2, 3] in the file and [4, 3] in the model");
    CHECK_CONTAINS(dt_ctx_error(b.ctx), "other.safetensors");
    CHECK(file_hash(&b) == before);
    file_close(&a);
    file_close(&b);
}

/* The parameters of file_open in a scope, and one beside them. */
static file_fixture file_open_part(int64_t rows) {
    file_fixture f = {0};
    dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &f.ctx);
    dt_graph_create(f.ctx, &f.graph);
    dt_scope_push(f.graph, "encoder");
    dt_param(f.graph, "w", dt_dims(rows, 3), (dt_init){0});
    dt_param(f.graph, "b", dt_dims(3), (dt_init){0});
    dt_scope_pop(f.graph);
    dt_param(f.graph, "head", dt_dims(3), (dt_init){DT_INIT_CONSTANT, 7, 0});
    dt_store_create(f.graph, &(dt_store_desc){.device = "cpu"}, &f.store);
    return f;
}

static float file_sum(const file_fixture *f, const char *name) {
    float values[16] = {0}, sum = 0;
    dt_param_info info = {0};
    const int index = dt_store_find(f->store, name);
    CHECK(dt_store_get_param(f->store, index, &info) == DT_OK);
    CHECK(dt_store_read(f->store, index, DT_VALUE_PARAM, values, 4 * info.elements) == DT_OK);
    for (int i = 0; i < 16; i++)
        sum += values[i];
    return sum;
}

TEST(a_file_loads_into_a_part_of_a_model_and_a_part_of_a_file_into_a_model) {
    file_fixture a = file_open(2, 1), b = file_open_part(2), c = file_open(2, 3);
    const char *path = temp_path("whole.safetensors"), *part = temp_path("part.safetensors");
    int loaded = -1;
    REQUIRE(a.store && b.store && c.store);
    CHECK(dt_store_save(a.store, path) == DT_OK);
    CHECK(dt_store_load_matching(b.store, path, NULL, &loaded) == DT_ERROR_INVALID && !loaded);
    CHECK_CONTAINS(dt_ctx_error(b.ctx), "nothing for this store");
    dt_load_desc desc = {.prefix = "encoder.", .params = "*.w"};
    CHECK(dt_store_load_matching(b.store, path, &desc, &loaded) == DT_OK && loaded == 1);
    CHECK(file_sum(&b, "encoder.w") == file_sum(&a, "w") && file_sum(&b, "encoder.b") == 0);
    desc = (dt_load_desc){.prefix = "encoder.", .strict = true};
    CHECK(dt_store_load_matching(b.store, path, &desc, NULL) == DT_OK);
    CHECK(file_sum(&b, "encoder.b") == file_sum(&a, "b") && file_sum(&b, "head") == 21);
    desc.params = "head"; /* of none, each is in the file */
    CHECK(dt_store_load_matching(b.store, path, &desc, &loaded) == DT_ERROR_INVALID && !loaded);
    CHECK_CONTAINS(dt_ctx_error(b.ctx), "the name of a parameter that matches \"head\", with "
                                        ".file_prefix = \"\" in place of .prefix = \"encoder.\"");
    desc = (dt_load_desc){.params = "head"};
    CHECK(dt_store_load_matching(b.store, path, &desc, &loaded) == DT_ERROR_INVALID && !loaded);
    CHECK(!strcmp(strstr(dt_ctx_error(b.ctx), "no tensor"),
                  "no tensor has the name of a parameter that matches \"head\""));
    desc = (dt_load_desc){.prefix = "encoder.", .params = "decoder.*", .strict = true};
    CHECK(dt_store_load_matching(b.store, path, &desc, &loaded) == DT_ERROR_INVALID && !loaded);
    CHECK_CONTAINS(dt_ctx_error(b.ctx), "\"decoder.*\" matches the name of no parameter");

    CHECK(dt_store_save(b.store, part) == DT_OK);
    desc = (dt_load_desc){.file_prefix = "encoder.", .strict = true};
    const uint64_t before = file_hash(&c);
    CHECK(dt_store_load_matching(c.store, part, &desc, &loaded) == DT_ERROR_INVALID && !loaded);
    CHECK_CONTAINS(dt_ctx_error(c.ctx), "no \"encoder.odd");
    CHECK(file_hash(&c) == before);
    desc.strict = false;
    CHECK(dt_store_load_matching(c.store, part, &desc, &loaded) == DT_OK && loaded == 2);
    CHECK(file_sum(&c, "w") == file_sum(&a, "w") && file_hash(&c) != file_hash(&a));
    file_close(&a);
    file_close(&b);
    file_close(&c);
}

TEST(a_part_of_another_shape_is_refused_and_nothing_changes) {
    file_fixture a = file_open(2, 1), b = file_open_part(4);
    const char *path = temp_path("another.safetensors");
    const dt_load_desc desc = {.prefix = "encoder."};
    REQUIRE(a.store && b.store && dt_store_save(a.store, path) == DT_OK);
    const uint64_t before = file_hash(&b);
    CHECK(dt_store_load_matching(b.store, path, &desc, NULL) == DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_ctx_error(b.ctx), "\"w\" is [2, 3] in the file and [4, 3] in the model");
    CHECK(file_hash(&b) == before);
    file_close(&a);
    file_close(&b);
}

TEST(scopes_prefix_the_names_of_parameters_until_their_pop) {
    dt_ctx *ctx;
    dt_graph *g;
    REQUIRE(dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &ctx) == DT_OK);
    REQUIRE(dt_graph_create(ctx, &g) == DT_OK);
    dt_tensor x = dt_input(g, "x", DT_F32, dt_dims(4)), y = x;
    for (int layer = 0; layer < 2; layer++) {
        char name[16];
        snprintf(name, sizeof name, "h.%d", layer);
        dt_scope_push(g, name);
        y = dt_nn_linear(y, "fc", 4);
        dt_scope_push(g, "inner");
        dt_buffer(g, "count", dt_dims(1), (dt_init){0});
        dt_scope_pop(g);
        dt_scope_pop(g);
    }
    dt_nn_linear(y, "fc", 4);
    static const char *const want[] = {"h.0.fc.weight", "h.0.fc.bias", "h.0.inner.count",
                                       "h.1.fc.weight", "h.1.fc.bias", "h.1.inner.count",
                                       "fc.weight",     "fc.bias"};
    dt_store *store;
    REQUIRE(dt_store_create(g, &(dt_store_desc){.device = "cpu"}, &store) == DT_OK);
    CHECK(dt_store_param_count(store) == (int)DTI_COUNT(want));
    for (int i = 0; i < (int)DTI_COUNT(want); i++) {
        dt_param_info info = {0};
        CHECK(dt_store_get_param(store, i, &info) == DT_OK && strcmp(info.name, want[i]) == 0);
    }
    dt_ctx_destroy(ctx);
}

TEST(scopes_that_are_too_many_or_too_few_are_errors_that_leave_them_balanced) {
    dt_ctx *ctx;
    dt_graph *g;
    REQUIRE(dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &ctx) == DT_OK);
    REQUIRE(dt_graph_create(ctx, &g) == DT_OK);
    for (int i = 0; i < 40; i++)
        dt_scope_push(g, "s");
    CHECK_CONTAINS(dt_graph_error(g), "at most 32 scopes nest");
    dt_graph_clear_error(g);
    for (int i = 0; i < 39; i++)
        dt_scope_pop(g);
    CHECK(dt_graph_error(g) == NULL && strcmp(g->scope, "s.") == 0);
    dt_scope_pop(g);
    CHECK(dt_graph_error(g) == NULL && g->scope[0] == 0);
    dt_scope_pop(g);
    CHECK_CONTAINS(dt_graph_error(g), "no scope is open");
    dt_ctx_destroy(ctx);
}

/* "w" fits and comes first: a loader that writes as it goes would have changed it. */
TEST(store_file_that_lacks_a_parameter_is_refused_and_nothing_changes) {
    unsigned char bytes[1024];
    file_fixture f = file_open(2, 2);
    REQUIRE(f.store);
    uint64_t before = file_hash(&f);
    size_t size = weights_compose(
        bytes, "{\"w\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}}", 0, 24);
    const char *path = temp_write("lack.safetensors", bytes, size);
    CHECK(dt_store_load(f.store, path) == DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_ctx_error(f.ctx), "no \"b\" [3]");
    CHECK(file_hash(&f) == before);
    CHECK(dt_store_load(f.store, temp_path("none.safetensors")) == DT_ERROR_IO);
    CHECK(file_hash(&f) == before);
    file_close(&f);
}

TEST(store_file_of_integers_is_refused) {
    unsigned char bytes[1024];
    file_fixture f = file_open(2, 2);
    REQUIRE(f.store);
    size_t size = weights_compose(
        bytes, "{\"w\":{\"dtype\":\"I32\",\"shape\":[2,3],\"data_offsets\":[0,24]}}", 0, 24);
    const char *path = temp_write("int.safetensors", bytes, size);
    CHECK(dt_store_load(f.store, path) == DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_ctx_error(f.ctx), "\"w\" is I32");
    file_close(&f);
}

TEST(store_that_cannot_be_saved_leaves_the_old_file_and_no_other) {
    file_fixture f = file_open(2, 2);
    REQUIRE(f.store);
    CHECK(dt_store_save(f.store, temp_path("no-such-folder/x.safetensors")) == DT_ERROR_IO);
    CHECK_CONTAINS(dt_ctx_error(f.ctx), "x.safetensors");
    const char *path = temp_path("folder.safetensors"); /* what no file replaces */
    REQUIRE(mkdir(path, 0700) == 0);
    CHECK(dt_store_save(f.store, path) == DT_ERROR_IO);
    CHECK_CONTAINS(dt_ctx_error(f.ctx), "folder.safetensors: cannot be replaced: ");
    CHECK(temp_unfinished(path) == 0 && rmdir(path) == 0);
    file_close(&f);
}

TEST(store_is_loaded_from_every_float_type) {
    static const char header[] =
        "{\"w\":{\"dtype\":\"F16\",\"shape\":[1,3],\"data_offsets\":[0,6]},"
        "\"b\":{\"dtype\":\"BF16\",\"shape\":[3],\"data_offsets\":[6,12]},"
        "\"more\":{\"dtype\":\"I64\",\"shape\":[0],\"data_offsets\":[12,12]},"
        "\"odd \\\"\\\\\\t\xC3\xA9\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[12,20]}}";
    /* 1, -2.5, infinity as F16; 1, -2.5, 2^-130 (a denormal) as BF16 */
    static const uint16_t halves[6] = {0x3C00, 0xC100, 0x7C00, 0x3F80, 0xC020, 0x0008};
    const double third = 1.0 / 3;
    unsigned char bytes[1024];
    size_t size = weights_compose(bytes, header, 0, 20);
    memcpy(bytes + size - 20, halves, 12);
    memcpy(bytes + size - 8, &third, 8);
    file_fixture f = file_open(1, 2);
    REQUIRE(f.store);
    const char *path = temp_write("types.safetensors", bytes, size);
    CHECK(dt_store_load(f.store, path) == DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_ctx_error(f.ctx),
                   "value 2 of \"w\" is NaN or infinite: load a file from before training "
                   "failed, or, if intended, set .allow_nonfinite of dt_load_desc, ");
    CHECK(dt_store_load_matching(f.store, path, &file_any, NULL) == DT_OK);
    float w[3] = {0}, b[3] = {0}, odd = 0;
    dt_store_read(f.store, 0, DT_VALUE_PARAM, w, sizeof w);
    dt_store_read(f.store, 1, DT_VALUE_PARAM, b, sizeof b);
    dt_store_read(f.store, 2, DT_VALUE_PARAM, &odd, sizeof odd);
    CHECK(w[0] == 1 && w[1] == -2.5f && isinf(w[2]) && w[2] > 0);
    CHECK(b[0] == 1 && b[1] == -2.5f && b[2] == 0x1p-130f);
    CHECK(odd == 1.0f / 3);
    file_close(&f);
}

/* Tensors of a file that are not wanted may be of any kind. The first three parameters are those of
 * file_open, and 4 more bytes belong to the others. */
TEST(store_file_may_have_unused_tensors_of_any_type) {
    static const char *const beside[] = {
        "\"x\":{\"dtype\":\"F31\",\"shape\":[2,5],\"data_offsets\":[40,44]}",
        "\"x\":{\"dtype\":\"F8_E4M3FNUZ\",\"shape\":[4],\"data_offsets\":[40,44]}",
        "\"x\":{\"dtype\":\"F4\",\"shape\":[8],\"data_offsets\":[40,44]}",
        "\"x\":{\"dtype\":\"a dtype of more than 15 bytes\",\"shape\":[],\"data_offsets\":[40,44]}",
        "\"x\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[40,44]}",
        "\"x\":{\"dtype\":\"F31\",\"shape\":[1,1,1,1,1,1,1,1,1,2],\"data_offsets\":[40,44]}",
        "\"__metadata__\":null,\"x\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[40,44]}",
        "\"x\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[40,44]}", /* a NaN */
    };
    static const char *const spaces[] = {"", " ", "\n\t\r  "};
    unsigned char bytes[1024];
    char header[900];
    file_fixture f = file_open(2, 2);
    REQUIRE(f.store);
    for (size_t i = 0; i < 3 * DTI_COUNT(beside); i++) {
        snprintf(header, sizeof header,
                 "%s{\"w\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"
                 "\"b\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[24,36]},"
                 "\"odd \\\"\\\\\\t\xC3\xA9\":{\"dtype\":\"F32\",\"shape\":[],"
                 "\"data_offsets\":[36,40]},%s}",
                 spaces[i % 3], beside[i / 3]);
        const size_t size = weights_compose(bytes, header, 0, 44);
        memset(bytes + size - 4, 0xFF, 4);
        const char *path = temp_write("more.safetensors", bytes, size);
        test_check(dt_store_load(f.store, path) == DT_OK, __FILE__, __LINE__, "%s: %s", header,
                   dt_ctx_error(f.ctx));
    }
    file_close(&f);
}

TEST(store_file_whose_parameter_is_of_another_kind_is_refused_by_name) {
    static const struct {
        const char *dtype, *shape, *text;
    } kinds[] = {{"F31", "2,3", "\"w\" is F31 in the file; weights are read from F32"},
                 {"F8_E5M2FNUZ\x7F", "2,3", "\"w\" is F8_E5M2FNUZ\\x7f in"},
                 {"F32", "1,1,1,1,1,1,1,2,3", "kind.safetensors: tensor \"w\" has 9 dimensions"}};
    unsigned char bytes[1024];
    char header[300];
    file_fixture f = file_open(2, 2);
    REQUIRE(f.store);
    const uint64_t before = file_hash(&f);
    for (size_t i = 0; i < DTI_COUNT(kinds); i++) {
        snprintf(header, sizeof header,
                 "{\"w\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[0,24]}}",
                 kinds[i].dtype, kinds[i].shape);
        const size_t size = weights_compose(bytes, header, 0, 24);
        CHECK(dt_store_load(f.store, temp_write("kind.safetensors", bytes, size)) ==
              DT_ERROR_INVALID);
        CHECK_CONTAINS(dt_ctx_error(f.ctx), kinds[i].text);
    }
    CHECK(file_hash(&f) == before);
    file_close(&f);
}

/* "b" of every type with one value that is not allowed, at every place; F64 also with one that is
 * finite and no float. "w" comes first and fits. */
TEST(store_file_with_a_nan_or_a_number_too_large_is_refused_by_name_and_place) {
    static const struct {
        const char *dtype;
        int bytes;
        uint64_t bits[4]; /* NaN, infinities, and of F64 what does not fit */
    } types[] = {{"F32", 4, {0x7FC00001, 0x7F800000, 0xFF800000}},
                 {"F16", 2, {0x7E00, 0x7C00, 0xFC00}},
                 {"BF16", 2, {0x7F81, 0x7F80, 0xFF80}},
                 {"F64",
                  8,
                  {0x7FF0000000000001, 0x7FF0000000000000, 0xFFF0000000000000,
                   0x7E37E43C8800759C}}}; /* 1e300 */
    file_fixture f = file_open(2, 2);
    REQUIRE(f.store);
    const uint64_t before = file_hash(&f);
    for (size_t i = 0; i < DTI_COUNT(types) * 4 * 3; i++) {
        const int place = (int)(i % 3), each = types[i / 12].bytes;
        const uint64_t bits = types[i / 12].bits[i / 3 % 4];
        const bool large = i / 3 % 4 == 3;
        unsigned char bytes[1024];
        char header[400], text[100];
        if (!bits)
            continue;
        snprintf(header, sizeof header,
                 "{\"w\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"
                 "\"odd \\\"\\\\\\t\xC3\xA9\":{\"dtype\":\"F32\",\"shape\":[],"
                 "\"data_offsets\":[24,28]},"
                 "\"b\":{\"dtype\":\"%s\",\"shape\":[3],\"data_offsets\":[28,%d]}}",
                 types[i / 12].dtype, 28 + 3 * each);
        const size_t size = weights_compose(bytes, header, 0, 28 + 3 * (size_t)each);
        memset(bytes + size - 3 * each, 0, 3 * (size_t)each);
        memcpy(bytes + size - (3 - place) * each, &bits, (size_t)each);
        const char *path = temp_write("value.safetensors", bytes, size);
        CHECK(dt_store_load(f.store, path) == DT_ERROR_INVALID && file_hash(&f) == before);
        snprintf(text, sizeof text,
                 large ? "value %d of \"b\", 1e+300, does not fit into F32"
                       : "value %d of \"b\" is NaN or infinite",
                 place);
        CHECK_CONTAINS(dt_ctx_error(f.ctx), text);
        file_fixture any = file_open(2, 2);
        CHECK(dt_store_load_matching(any.store, path, &file_any, NULL) ==
              (large ? DT_ERROR_INVALID : DT_OK));
        CHECK((file_hash(&any) == before) == large);
        file_close(&any);
    }
    file_close(&f);
}

typedef struct file_told {
    int warnings;
    char text[512];
} file_told;

static void file_tell(void *user, dt_log_level level, const char *text) {
    file_told *told = user;
    told->warnings += level == DT_LOG_WARNING;
    snprintf(told->text, sizeof told->text, "%s", text);
}

/* Once a file, and not where it is meant. */
TEST(saving_a_nan_warns_with_the_name_of_its_tensor) {
    static const float bad[2][3] = {{1, 2, INFINITY}, {NAN, NAN, 1}};
    const char *path = temp_path("nan.safetensors");
    for (int allow = 0; allow < 2; allow++) {
        file_told told = {0};
        dt_ctx *ctx;
        dt_graph *graph;
        dt_store *store;
        const dt_store_desc d = {.device = "cpu", .allow_nonfinite = allow};
        const dt_ctx_desc desc = {.no_vulkan = true, .logger = {file_tell, &told}};
        REQUIRE(!dt_ctx_create(&desc, &ctx) && !dt_graph_create(ctx, &graph));
        dt_param(graph, "w", dt_dims(3), (dt_init){0});
        dt_param(graph, "b", dt_dims(3), (dt_init){0});
        dt_param(graph, "c", dt_dims(3), (dt_init){0});
        REQUIRE(!dt_store_create(graph, &d, &store));
        CHECK(!dt_store_save(store, path) && !dt_store_save_state(store, path) && !told.warnings);
        dt_store_write(store, 1, DT_VALUE_PARAM, bad[0], sizeof bad[0]);
        dt_store_write(store, 2, DT_VALUE_PARAM, bad[1], sizeof bad[1]);
        CHECK(dt_store_save(store, path) == DT_OK && told.warnings == !allow);
        CHECK_CONTAINS(told.text, allow ? "" : "saved value 2 of \"b\" is NaN or inf");
        told.text[0] = 0;
        CHECK(dt_store_save_state(store, path) == DT_OK && told.warnings == 2 * !allow);
        CHECK_CONTAINS(told.text, allow ? "" : "saved value 2 of \"b\" is NaN or inf");
        dt_ctx_destroy(ctx);
    }
}

/* ---- 16-bit files */

/* Of ties, what is between, denormals, NaN and infinity. */
static const struct {
    uint32_t f32;
    uint16_t bf16, f16;
} file_halves[] = {
    {0x3F800000, 0x3F80, 0x3C00}, {0x3F808000, 0x3F80, 0x3C04}, {0x3F818000, 0x3F82, 0x3C0C},
    {0x3F808001, 0x3F81, 0x3C04}, {0xBF801000, 0xBF80, 0xBC00}, {0xBF803000, 0xBF80, 0xBC02},
    {0x477FDFFF, 0x4780, 0x7BFF}, {0x33800000, 0x3380, 0x0001}, {0x33000000, 0x3300, 0x0000},
    {0x33000001, 0x3300, 0x0001}, {0x80000001, 0x8000, 0x8000}, {0x00018000, 0x0002, 0x0000},
    {0x7FC12345, 0x7FC0, 0x7E00}, {0xFF800001, 0x7FC0, 0x7E00}, {0xFF800000, 0xFF80, 0xFC00},
    {0x387FC000, 0x3880, 0x03FF},
};
enum { FILE_HALVES = sizeof file_halves / sizeof file_halves[0] };

static dt_store *file_halves_open(dt_ctx **ctx, dt_graph **graph) {
    dt_store *store = NULL;
    const dt_store_desc d = {.device = "cpu", .allow_nonfinite = true};
    if (dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, ctx) || dt_graph_create(*ctx, graph))
        return NULL;
    dt_param(*graph, "small", dt_dims(3), (dt_init){0});
    dt_param(*graph, "w", dt_dims(FILE_HALVES), (dt_init){0});
    CHECK(!dt_store_create(*graph, &d, &store));
    return store;
}

TEST(store_saved_in_16_bits_is_rounded_to_nearest_even_and_loaded_again) {
    dt_ctx *ctx;
    dt_graph *graph;
    dt_store *store = file_halves_open(&ctx, &graph);
    const char *path = temp_path("halves.safetensors");
    uint32_t values[FILE_HALVES];
    for (int i = 0; i < FILE_HALVES; i++)
        values[i] = file_halves[i].f32;
    for (int f16 = 0; f16 < 2 && store; f16++) {
        const dt_save_desc d = {.params = "w", .dtype = f16 ? DT_F16 : DT_BF16};
        dt_safetensors *file = NULL;
        dt_safetensors_tensor t;
        CHECK(!dt_store_write(store, 1, DT_VALUE_PARAM, values, sizeof values) &&
              !dt_store_save_matching(store, path, &d) && !dt_safetensors_open(ctx, path, &file) &&
              dt_safetensors_count(file) == 1 && !dt_safetensors_get_tensor(file, 0, &t));
        CHECK(!strcmp(t.dtype, f16 ? "F16" : "BF16") && t.bytes == 2 * FILE_HALVES);
        for (int i = 0; i < FILE_HALVES; i++) {
            uint16_t half;
            memcpy(&half, (const char *)t.data + 2 * i, 2);
            const uint16_t want = f16 ? file_halves[i].f16 : file_halves[i].bf16;
            test_check(half == want, __FILE__, __LINE__, "%08x as %s is %04x, not %04x",
                       (unsigned)file_halves[i].f32, t.dtype, half, want);
        }
        dt_safetensors_close(file);
        int loaded = 0;
        CHECK(!dt_store_load_matching(store, path, &(dt_load_desc){0}, &loaded) && loaded == 1);
        CHECK(!dt_store_save_matching(store, path, &d)); /* a rounded value has no other rounding */
    }
    dt_ctx_destroy(ctx);
}

TEST(store_saved_in_16_bits_refuses_a_number_that_would_be_infinite_and_leaves_the_old_file) {
    static const struct {
        float value;
        dt_dtype dtype;
        const char *says;
    } large[] = {
        {65519.0f, DT_F16, NULL},
        {-65520.0f, DT_F16, "value 1 of \"w\" is -65520, which is infinite as F16; save it"},
        {3.3961e38f, DT_BF16, NULL},
        {3.4e38f, DT_BF16, "value 1 of \"w\" is 3.4e+38, which is infinite as BF16"},
        {3.4e38f, DT_F32, NULL}};
    file_fixture f = file_open(2, 1);
    REQUIRE(f.store);
    const char *path = temp_path("large.safetensors");
    for (size_t i = 0; i < sizeof large / sizeof large[0]; i++) {
        const dt_save_desc d = {.dtype = large[i].dtype};
        const float w[6] = {1, large[i].value, 3};
        CHECK(!dt_store_write(f.store, 0, DT_VALUE_PARAM, w, sizeof w));
        const dt_result result = dt_store_save_matching(f.store, path, &d);
        CHECK(result == (large[i].says ? DT_ERROR_INVALID : DT_OK));
        CHECK_CONTAINS(large[i].says ? dt_ctx_error(f.ctx) : "",
                       large[i].says ? large[i].says : "");
        CHECK(!dt_store_load(f.store, path)); /* the file before it */
        CHECK(temp_unfinished(temp_path("large.safetensors")) == 0);
    }
    CHECK(dt_store_save_matching(f.store, path, &(dt_save_desc){.dtype = DT_F64}) ==
          DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_ctx_error(f.ctx), "dt_save_desc.dtype is 2; it must be DT_F32, DT_BF16 or");
    file_close(&f);
}

/* ---- The reference implementation */

static bool file_has_reference(void) {
    return temp_python("import numpy, safetensors.numpy", true);
}

TEST(store_saved_is_read_by_the_safetensors_package) {
    if (!file_has_reference())
        SKIP("no Python with numpy and safetensors");
    file_fixture f = file_open(2, 1);
    REQUIRE(f.store);
    float w[6] = {1, 2, 3, -4, 0.1f, 1e-40f}, b[3] = {7, 8, 9}, odd = 5;
    dt_store_write(f.store, 0, DT_VALUE_PARAM, w, sizeof w);
    dt_store_write(f.store, 1, DT_VALUE_PARAM, b, sizeof b);
    dt_store_write(f.store, 2, DT_VALUE_PARAM, &odd, sizeof odd);
    const char *path = temp_path("reference.safetensors");
    CHECK(dt_store_save(f.store, path) == DT_OK);
    char program[1024];
    snprintf(program, sizeof program,
             "import numpy as np, safetensors.numpy as s, safetensors\n"
             "d = s.load_file('%s')\n"
             "odd = 'odd ' + chr(34) + chr(92) + chr(9) + chr(233)\n"
             "assert sorted(d) == sorted(['w', 'b', odd]), list(d)\n"
             "w = np.array([[1, 2, 3], [-4, 0.1, 1e-40]], np.float32)\n"
             "assert d['w'].dtype == np.float32 and np.array_equal(d['w'], w), d\n"
             "assert d['b'].tolist() == [7, 8, 9] and d[odd].shape == () and d[odd] == 5\n"
             "f = safetensors.safe_open('%s', 'np')\n"
             "assert f.metadata() == {'format': 'pt'}\n",
             path, path);
    CHECK(temp_python(program, false));
    file_close(&f);
}

TEST(store_saved_in_16_bits_is_read_by_torch) {
    if (!temp_python("import torch, safetensors.torch", true))
        SKIP("no Python with torch and safetensors");
    file_fixture f = file_open(2, 1);
    REQUIRE(f.store);
    float w[6] = {1, 2, 3, -4, 0.1f, 1e-7f};
    dt_store_write(f.store, 0, DT_VALUE_PARAM, w, sizeof w);
    char paths[2][512], program[2048];
    for (int f16 = 0; f16 < 2; f16++) {
        snprintf(paths[f16], sizeof paths[f16], "%s",
                 temp_path(f16 ? "torch16.safetensors" : "torch.safetensors"));
        const dt_save_desc d = {.dtype = f16 ? DT_F16 : DT_BF16};
        CHECK(dt_store_save_matching(f.store, paths[f16], &d) == DT_OK);
    }
    snprintf(program, sizeof program,
             "import torch, safetensors.torch as s\n"
             "for path, dtype in ('%s', torch.bfloat16), ('%s', torch.float16):\n"
             "    w = s.load_file(path)['w']\n"
             "    want = torch.tensor([[1, 2, 3], [-4, 0.1, 1e-7]]).to(dtype)\n"
             "    assert w.dtype == dtype and torch.equal(w, want), w\n",
             paths[0], paths[1]);
    CHECK(temp_python(program, false));
    file_close(&f);
}

TEST(store_is_loaded_from_files_of_the_safetensors_package) {
    if (!file_has_reference())
        SKIP("no Python with numpy and safetensors");
    file_fixture f = file_open(2, 1);
    REQUIRE(f.store);
    const char *path = temp_path("written.safetensors");
    char program[1024];
    snprintf(program, sizeof program,
             "import numpy as np, safetensors.numpy as s\n"
             "odd = 'odd ' + chr(34) + chr(92) + chr(9) + chr(233)\n"
             "s.save_file({'w': np.arange(6, dtype=np.float64).reshape(2, 3) / 3,\n"
             "  'b': np.array([1, -2, 65504], np.float16), odd: np.array(2.5, np.float32),\n"
             "  'unused': np.zeros((3, 0, 2), np.int64), 'flag': np.array([True])}, '%s')\n",
             path);
    CHECK(temp_python(program, false));
    CHECK(dt_store_load(f.store, path) == DT_OK);
    float w[6] = {0}, b[3] = {0}, odd = 0;
    dt_store_read(f.store, 0, DT_VALUE_PARAM, w, sizeof w);
    dt_store_read(f.store, 1, DT_VALUE_PARAM, b, sizeof b);
    dt_store_read(f.store, 2, DT_VALUE_PARAM, &odd, sizeof odd);
    for (int i = 0; i < 6; i++)
        CHECK(w[i] == (float)(i / 3.0));
    CHECK(b[0] == 1 && b[1] == -2 && b[2] == 65504 && odd == 2.5f);
    file_close(&f);
}
