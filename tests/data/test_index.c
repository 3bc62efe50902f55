/* Weights in several files with an index: written, read, and refused when files and index do not
 * belong together. */
#include "dtrain.h"

#include "harness.h"
#include "temp.h"

#include <errno.h>

/* ---- A store of three parameters, 24, 12 and 4 bytes */

typedef struct index_fixture {
    dt_ctx *ctx;
    dt_graph *graph;
    dt_store *store;
} index_fixture;

static index_fixture index_open(uint64_t seed) {
    const dt_init uniform = {DT_INIT_UNIFORM, -1, 1};
    index_fixture f = {0};
    dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &f.ctx);
    dt_graph_create(f.ctx, &f.graph);
    dt_param(f.graph, "w", dt_dims(2, 3), uniform);
    dt_param(f.graph, "b", dt_dims(3), uniform);
    dt_param(f.graph, "odd \"\\\xC3\xA9", dt_dims(), uniform);
    CHECK(!dt_store_create(f.graph, &(dt_store_desc){.device = "cpu", .seed = seed}, &f.store));
    return f;
}

static void index_close(index_fixture *f) {
    dt_store_destroy(f->store);
    dt_graph_destroy(f->graph);
    dt_ctx_destroy(f->ctx);
}

static uint64_t index_hash(const index_fixture *f) {
    uint64_t hash = 0;
    CHECK(dt_store_hash(f->store, &hash) == DT_OK);
    return hash;
}

/* ---- A folder */

static const char *index_path(const char *name) {
    static char path[2][700];
    static int turn;
    turn = !turn;
    snprintf(path[turn], sizeof path[0], "%s%s%s", temp_path("sharded"), *name ? "/" : "", name);
    return path[turn];
}

static int index_files(void) {
    int count = 0;
    DIR *list = opendir(index_path(""));
    for (struct dirent *entry; list && (entry = readdir(list));)
        count += entry->d_name[0] != '.';
    if (list)
        closedir(list);
    return count;
}

static void index_put(const char *name, const char *text) {
    FILE *file = fopen(index_path(name), "wb");
    CHECK(file && fputs(text, file) >= 0);
    if (file)
        fclose(file);
}

static void index_remove(void) {
    static const char *const names[] = {"model.safetensors",
                                        "model.safetensors.index.json",
                                        "other.json",
                                        "model-00001-of-00002.safetensors",
                                        "model-00002-of-00002.safetensors",
                                        "model-00001-of-00003.safetensors",
                                        "model-00002-of-00003.safetensors",
                                        "model-00003-of-00003.safetensors"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        remove(index_path(names[i]));
    CHECK(rmdir(index_path("")) == 0 || errno == ENOENT);
}

static dt_result index_save(const index_fixture *f, uint64_t bytes) {
    return dt_store_save_matching(f->store, index_path(""),
                                  &(dt_save_desc){.max_file_bytes = bytes});
}

static bool index_is_there(const char *name) {
    return access(index_path(name), F_OK) == 0;
}

/* ---- Tests */

TEST(weights_in_several_files_are_loaded_from_their_folder_or_their_index) {
    index_fixture from = index_open(1);
    static const struct {
        uint64_t bytes;
        int files; /* with the index */
    } cases[] = {{1, 4}, {16, 3}, {36, 3}, {24, 3}, {40, 1}, {1000, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        CHECK(index_save(&from, cases[i].bytes) == DT_OK);
        CHECK(index_files() == cases[i].files);
        index_fixture to = index_open(2);
        CHECK(dt_store_load(to.store, index_path("")) == DT_OK);
        CHECK(index_hash(&to) == index_hash(&from));
        index_close(&to);
        to = index_open(2);
        CHECK(dt_store_load(to.store, index_path(cases[i].files > 1 ? "model.safetensors.index.json"
                                                                    : "model.safetensors")) ==
              DT_OK);
        CHECK(index_hash(&to) == index_hash(&from));
        index_close(&to);
    }
    index_close(&from);
    index_remove();
}

TEST(files_of_an_earlier_saving_are_replaced_and_others_stay) {
    index_fixture f = index_open(1), to = index_open(2);
    CHECK(index_save(&f, 1) == DT_OK && index_files() == 4);
    index_put("other.json", "{}");
    CHECK(index_save(&f, 1000) == DT_OK && index_files() == 2);
    CHECK(index_is_there("model.safetensors") && index_is_there("other.json"));
    CHECK(index_save(&f, 24) == DT_OK && index_files() == 4);
    CHECK(!index_is_there("model.safetensors") && index_is_there("other.json"));
    CHECK(dt_store_load(to.store, index_path("")) == DT_OK && index_hash(&to) == index_hash(&f));
    index_close(&f);
    index_close(&to);
    index_remove();
}

TEST(tensors_of_several_files_are_found_as_those_of_one) {
    index_fixture f = index_open(1);
    dt_safetensors *w;
    dt_safetensors_tensor info;
    float values[6];
    CHECK(index_save(&f, 1) == DT_OK);
    REQUIRE(dt_safetensors_open(f.ctx, index_path(""), &w) == DT_OK);
    CHECK(dt_safetensors_count(w) == 3 && dt_safetensors_find(w, "none") == -1);
    REQUIRE(dt_safetensors_get_tensor(w, dt_safetensors_find(w, "w"), &info) == DT_OK);
    CHECK(info.rank == 2 && info.dim[0] == 2 && info.dim[1] == 3 && info.bytes == 24);
    CHECK(dt_store_read(f.store, 0, DT_VALUE_PARAM, values, sizeof values) == DT_OK);
    CHECK(!memcmp(info.data, values, sizeof values));
    dt_safetensors_close(w);
    index_close(&f);
    index_remove();
}

#define INDEX_ONE "model-00001-of-00002.safetensors"
#define INDEX_TWO "model-00002-of-00002.safetensors"

TEST(index_that_does_not_fit_its_files_is_refused_with_the_wrong_name) {
    static const struct {
        const char *text, *part;
    } cases[] = {
        {"", "not a JSON object"},
        {"[]", "not a JSON object"},
        {"{}", "no weight_map"},
        {"{\"weight_map\": {}, \"metadata\": {}", "not valid JSON"},
        {"{\"weight_map\": []}", "weight_map is not one object"},
        {"{\"weight_map\": {}, \"weight_map\": {}}", "weight_map is not one object"},
        {"{\"weight_map\": {\"w\": 1}}", "not an object of strings"},
        {"{\"weight_map\": {\"w\": \"" INDEX_ONE "\", \"w\": \"" INDEX_ONE "\"}}", "used twice"},
        {"{\"weight_map\": {\"w\": \"gone.safetensors\"}}", "\"gone.safetensors\" is missing"},
        {"{\"weight_map\": {\"w\": \"" INDEX_TWO "\"}}",
         "\"w\": its file \"" INDEX_TWO "\" does not have this tensor"},
        {"{\"weight_map\": {\"w\": \"../sharded/" INDEX_ONE "\"}}", "is not a name in the"},
        {"{\"weight_map\": {\"w\": \"/etc/passwd\"}}", "is not a name in the"},
        {"{\"weight_map\": {\"w\": \"a\\\\b\"}}", "is not a name in the"},
        {"{\"weight_map\": {\"w\": \"..\"}}", "is not a name in the"},
        {"{\"weight_map\": {\"w\": \"\"}}", "is not a name in the"},
        {"{\"weight_map\": {\"w\\u0000\": \"" INDEX_ONE "\"}}", "a NUL"},
        {"{\"metadata\": {\"dtrain\": 1}, \"weight_map\": {}}", "metadata is damaged"},
        {"{\"weight_map\": {\"\xFF\": \"a\"}}", "not UTF-8"},
        {"{\"weight_map\": {\"w\": \"other.json\"}}", "not a safetensors file"},
    };
    index_fixture f = index_open(1);
    CHECK(index_save(&f, 24) == DT_OK);
    const uint64_t before = index_hash(&f);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        index_put("other.json", cases[i].text);
        test_check(dt_store_load(f.store, index_path("other.json")) == DT_ERROR_FORMAT, __FILE__,
                   __LINE__, "%s", cases[i].text);
        CHECK_CONTAINS(dt_ctx_error(f.ctx), "sharded/other.json");
        CHECK_CONTAINS(dt_ctx_error(f.ctx), cases[i].part);
    }
    CHECK(index_hash(&f) == before);
    remove(index_path(INDEX_TWO));
    CHECK(dt_store_load(f.store, index_path("")) == DT_ERROR_FORMAT);
    CHECK_CONTAINS(dt_ctx_error(f.ctx), "\"" INDEX_TWO "\" is missing");
    remove(index_path("model.safetensors.index.json"));
    CHECK(dt_store_load(f.store, index_path("")) == DT_ERROR_IO);
    CHECK_CONTAINS(dt_ctx_error(f.ctx), "has no model.safetensors and no");
    index_close(&f);
    index_remove();
}

TEST(files_that_would_be_too_many_are_refused_before_any_is_written) {
    dt_ctx *ctx;
    dt_graph *graph;
    dt_store *store;
    REQUIRE(dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &ctx) == DT_OK);
    REQUIRE(dt_graph_create(ctx, &graph) == DT_OK);
    for (int i = 0; i < 4097; i++) {
        char name[16];
        snprintf(name, sizeof name, "p%d", i);
        dt_param(graph, name, dt_dims(1), (dt_init){0});
    }
    REQUIRE(dt_store_create(graph, &(dt_store_desc){.device = "cpu"}, &store) == DT_OK);
    CHECK(dt_store_save_matching(store, index_path(""), &(dt_save_desc){.max_file_bytes = 1}) ==
          DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_ctx_error(ctx), "max_file_bytes is 1, which needs 4097 files; at most 4096");
    CHECK(!index_is_there(""));
    dt_store_destroy(store);
    dt_graph_destroy(graph);
    dt_ctx_destroy(ctx);
}

/* ---- With the reference implementation */

TEST(weights_in_several_files_are_those_of_huggingface_in_both_directions) {
    if (!temp_python("import numpy, safetensors.numpy", true))
        SKIP("no Python with numpy and safetensors");
    index_fixture f = index_open(1);
    char program[2048];
    float w[6] = {1, 2, 3, -4, 0.5f, 7}, b[3] = {7, 8, 9};
    dt_store_write(f.store, 0, DT_VALUE_PARAM, w, sizeof w);
    dt_store_write(f.store, 1, DT_VALUE_PARAM, b, sizeof b);
    CHECK(index_save(&f, 24) == DT_OK);
    snprintf(
        program, sizeof program,
        "import json, safetensors.numpy as s\n"
        "p = '%s/'\n"
        "i = json.load(open(p + 'model.safetensors.index.json'))\n"
        "assert i['metadata']['total_size'] == 40, i\n"
        "d = {k: s.load_file(p + v)[k] for k, v in i['weight_map'].items()}\n"
        "assert d['w'].tolist() == [[1, 2, 3], [-4, 0.5, 7]] and d['b'].tolist() == [7, 8, 9]\n"
        "assert len(d) == 3 and d['odd ' + chr(34) + chr(92) + chr(233)].shape == ()\n"
        "d['w'] = d['w'] * 2\n"
        "m = {}\n"
        "for n, k in enumerate(sorted(d)):\n"
        "    m[k] = 'model-%%05d-of-00003.safetensors' %% (n + 1)\n"
        "    s.save_file({k: d[k]}, p + m[k], {'format': 'pt'})\n"
        "json.dump({'metadata': {'total_size': 40, 'total_parameters': 10.0},\n"
        "  'weight_map': m}, open(p + 'model.safetensors.index.json', 'w'), indent=2)\n",
        index_path(""));
    CHECK(temp_python(program, false));
    CHECK(dt_store_load(f.store, index_path("")) == DT_OK);
    dt_store_read(f.store, 0, DT_VALUE_PARAM, w, sizeof w);
    CHECK(w[0] == 2 && w[3] == -8 && w[5] == 14);
    index_close(&f);
    index_remove();
}
