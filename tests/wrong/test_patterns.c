/* Patterns of names: each field that takes them, in one table, must read a list in the same way. */
#include "temp.h"

#include "dtrain.h"
#include "harness.h"

enum { PATTERN_NAMES = 5 };

static const char *const pattern_names[PATTERN_NAMES] = {"head.weight", "head.bias", "body.weight",
                                                         "body.bias", "b"};

/* A list, and the names that it matches, as bits. */
static const struct {
    const char *list;
    uint32_t matches;
} pattern_lists[] = {{"*", 31},
                     {"head.*", 3},
                     {"*.bias", 10},
                     {"*.bias, head.*", 11},
                     {" head.weight\t,  b ", 17},
                     {"?ody.*", 12},
                     {"b", 16},
                     {"b*", 28},
                     {"*.*,", 15},
                     {"h*w*t", 1},
                     {"????.bias,?", 26}};

typedef struct pattern_job {
    dt_ctx *ctx;
    dt_graph *graph;
    dt_store *store;
    dt_tensor x, loss;
} pattern_job;

static void pattern_read(dt_store *store, float values[PATTERN_NAMES]) {
    for (int i = 0; i < PATTERN_NAMES; i++) {
        CHECK(!dt_store_read(store, dt_store_find(store, pattern_names[i]), DT_VALUE_PARAM,
                             &values[i], sizeof values[i]));
    }
}

/* Which of them differ from a store's as it was made. */
static uint32_t pattern_changed(dt_store *store) {
    float values[PATTERN_NAMES];
    uint32_t changed = 0;
    pattern_read(store, values);
    for (int i = 0; i < PATTERN_NAMES; i++)
        changed |= (uint32_t)(values[i] != 1.0f) << i;
    return changed;
}

static bool pattern_open(pattern_job *j) {
    dt_tensor sum;
    if (dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &j->ctx) ||
        dt_graph_create(j->ctx, &j->graph))
        return false;
    sum = j->x = dt_input(j->graph, "x", DT_F32, dt_dims());
    for (int i = 0; i < PATTERN_NAMES; i++)
        sum = dt_mul(sum, dt_param(j->graph, pattern_names[i], dt_dims(),
                                   (dt_init){DT_INIT_CONSTANT, 1.0f, 0.0f}));
    j->loss = dt_mean_loss(sum);
    return !dt_store_create(j->graph, &(dt_store_desc){.device = "cpu"}, &j->store);
}

/* ---- the fields */

static uint32_t pattern_of_step(pattern_job *j, const dt_optim_desc *optim, const char *params) {
    dt_program *p = NULL;
    const float one = 1.0f;
    const dt_program_desc d = {.loss = j->loss, .optim = optim, .params = params};
    CHECK(!dt_store_reset(j->store, DT_RESET_ALL) && !dt_program_create(j->store, &d, &p) &&
          !dt_program_write(p, j->x, &one, sizeof one) && !dt_program_run(p, NULL, NULL));
    const uint32_t changed = pattern_changed(j->store);
    dt_program_destroy(p);
    return changed;
}

static uint32_t pattern_of_program(pattern_job *j, const char *list) {
    return pattern_of_step(j, &(dt_optim_desc){.kind = DT_OPTIM_SGD}, list);
}

/* Its rate is 0. */
static uint32_t pattern_of_group(pattern_job *j, const char *list) {
    const dt_optim_desc optim = {.kind = DT_OPTIM_SGD,
                                 .groups = {{.params = list, .lr_scale = DT_ZERO}}};
    return ~pattern_of_step(j, &optim, NULL) & ((1u << PATTERN_NAMES) - 1);
}

static uint32_t pattern_of_trainer(pattern_job *j, const char *list) {
    const float one = 1.0f;
    dt_trainer *t = NULL;
    const dt_trainer_desc d = {.loss = j->loss,
                               .params = list,
                               .optim = &(dt_optim_desc){.kind = DT_OPTIM_SGD},
                               .devices = "cpu",
                               .data = {.rows = 1, .columns = {{.input = j->x, .data = &one}}}};
    CHECK(!dt_trainer_create(j->graph, &d, &t) && !dt_trainer_step(t, NULL));
    const uint32_t changed = pattern_changed(dt_trainer_store(t));
    dt_trainer_destroy(t);
    return changed;
}

/* Saves them, and reads that file whole. */
static uint32_t pattern_of_save(pattern_job *j, const char *list) {
    const char *path = temp_path("patterns.safetensors");
    dt_safetensors *w = NULL;
    uint32_t found = 0;
    CHECK(!dt_store_save_matching(j->store, path, &(dt_save_desc){list}) &&
          !dt_safetensors_open(j->ctx, path, &w));
    for (int i = 0; i < PATTERN_NAMES; i++)
        found |= (uint32_t)(dt_safetensors_find(w, pattern_names[i]) >= 0) << i;
    dt_safetensors_close(w);
    return found;
}

static uint32_t pattern_of_load(pattern_job *j, const char *list) {
    const char *path = temp_path("patterns.all.safetensors");
    const float two = 2.0f;
    for (int i = 0; i < PATTERN_NAMES; i++)
        CHECK(!dt_store_write(j->store, dt_store_find(j->store, pattern_names[i]), DT_VALUE_PARAM,
                              &two, sizeof two));
    CHECK(!dt_store_save(j->store, path) && !dt_store_reset(j->store, DT_RESET_ALL) &&
          !dt_store_load_matching(j->store, path, &(dt_load_desc){.params = list}, NULL));
    return pattern_changed(j->store);
}

static uint32_t pattern_of_rule(pattern_job *j, const char *list) {
    char text[256] = "";
    for (int line = 0; line < 2; line++)
        for (int i = 0; i < PATTERN_NAMES; i++)
            snprintf(text + strlen(text), sizeof text - strlen(text), "%s%c",
                     line ? "1" : pattern_names[i], i + 1 < PATTERN_NAMES ? ',' : '\n');
    const dt_csv_desc d = {.rules = {{.columns = list, .kind = DT_CSV_CATEGORY}}};
    dt_csv *csv = NULL;
    uint32_t found = 0;
    CHECK(!dt_csv_open(j->ctx, temp_write("patterns.csv", text, strlen(text)), &d, &csv));
    for (int i = 0; i < PATTERN_NAMES; i++) {
        dt_csv_column column;
        CHECK(!dt_csv_get_column(csv, i, &column));
        found |= (uint32_t)(column.kind == DT_CSV_CATEGORY) << i;
    }
    dt_csv_close(csv);
    return found;
}

TEST(one_list_of_patterns_matches_the_same_names_in_every_field) {
    static const struct {
        const char *name;
        uint32_t (*of)(pattern_job *j, const char *list);
    } fields[] = {{"dt_optim_group.params", pattern_of_group},
                  {"dt_program_desc.params", pattern_of_program},
                  {"dt_trainer_desc.params", pattern_of_trainer},
                  {"dt_save_desc.params", pattern_of_save},
                  {"dt_load_desc.params", pattern_of_load},
                  {"dt_csv_rule.columns", pattern_of_rule}};
    pattern_job j = {0};
    REQUIRE(pattern_open(&j));
    for (size_t f = 0; f < sizeof fields / sizeof *fields; f++) {
        for (size_t i = 0; i < sizeof pattern_lists / sizeof *pattern_lists; i++) {
            const uint32_t matched = fields[f].of(&j, pattern_lists[i].list);
            test_check(matched == pattern_lists[i].matches, __FILE__, __LINE__,
                       "%s of \"%s\" matches %u, not %u: %s", fields[f].name, pattern_lists[i].list,
                       matched, pattern_lists[i].matches, dt_ctx_error(j.ctx));
        }
    }
    dt_ctx_destroy(j.ctx);
}
