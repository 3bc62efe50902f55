/* The -1 of a find. A caller that uses it without a look gets an error. It has the missing name,
 * the nearest one, and the list of all. */
#include "temp.h"

#include "dtrain.h"
#include "harness.h"

typedef struct sought_job {
    dt_ctx *ctx;
    dt_csv *csv;
    dt_store *store;
    dt_safetensors *weights;
} sought_job;

static bool sought_open(sought_job *j) {
    static const char text[] = "size,kind,price\n1,2,3\n4,5,6\n";
    const char *file = temp_path("sought.safetensors");
    dt_graph *g;
    *j = (sought_job){0};
    if (dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &j->ctx) ||
        dt_csv_open(j->ctx, temp_write("sought.csv", text, strlen(text)), NULL, &j->csv) ||
        dt_graph_create(j->ctx, &g))
        return false;
    dt_param(g, "size", dt_dims(1), (dt_init){0});
    dt_param(g, "kind", dt_dims(1), (dt_init){0});
    dt_param(g, "price", dt_dims(1), (dt_init){0});
    return !dt_store_create(g, &(dt_store_desc){.device = "cpu"}, &j->store) &&
           !dt_store_save(j->store, file) && !dt_safetensors_open(j->ctx, file, &j->weights);
}

static void sought_close(sought_job *j) {
    dt_csv_close(j->csv);
    dt_safetensors_close(j->weights);
    dt_ctx_destroy(j->ctx);
}

/* ---- the function that finds, and the one that uses the result */

static int sought_csv(sought_job *j, const char *name) {
    return dt_csv_find(j->csv, name);
}

static int sought_store(sought_job *j, const char *name) {
    return dt_store_find(j->store, name);
}

static int sought_weights(sought_job *j, const char *name) {
    return dt_safetensors_find(j->weights, name);
}

static dt_result sought_csv_read(sought_job *j, int index) {
    float x[2];
    return dt_csv_read(j->csv, &index, 1, 0, 2, DT_F32, x);
}

static dt_result sought_csv_column(sought_job *j, int index) {
    dt_csv_column column;
    return dt_csv_get_column(j->csv, index, &column);
}

static dt_result sought_store_param(sought_job *j, int index) {
    dt_param_info info;
    return dt_store_get_param(j->store, index, &info);
}

static dt_result sought_store_read(sought_job *j, int index) {
    float x;
    return dt_store_read(j->store, index, DT_VALUE_PARAM, &x, sizeof x);
}

static dt_result sought_store_write(sought_job *j, int index) {
    const float x = 0.0f;
    return dt_store_write(j->store, index, DT_VALUE_PARAM, &x, sizeof x);
}

static dt_result sought_weights_info(sought_job *j, int index) {
    dt_safetensors_tensor info;
    return dt_safetensors_get_tensor(j->weights, index, &info);
}

static const struct {
    const char *name;
    int (*find)(sought_job *j, const char *name);
    dt_result (*use)(sought_job *j, int index);
} sought_uses[] = {{"dt_csv_find", sought_csv, sought_csv_read},
                   {"dt_csv_find", sought_csv, sought_csv_column},
                   {"dt_store_find", sought_store, sought_store_param},
                   {"dt_store_find", sought_store, sought_store_read},
                   {"dt_store_find", sought_store, sought_store_write},
                   {"dt_safetensors_find", sought_weights, sought_weights_info}};

enum { SOUGHT_USES = sizeof sought_uses / sizeof *sought_uses };

TEST(index_of_an_unknown_name_is_an_error_with_the_name) {
    for (int i = 0; i < SOUGHT_USES; i++) {
        sought_job j;
        char want[128];
        REQUIRE(sought_open(&j));
        CHECK(sought_uses[i].use(&j, -1) == DT_ERROR_INVALID); /* nobody sought anything */
        CHECK(!strstr(dt_ctx_error(j.ctx), "did not find"));
        CHECK(!sought_uses[i].use(&j, sought_uses[i].find(&j, "price")));
        CHECK(sought_uses[i].use(&j, sought_uses[i].find(&j, "pirce")) == DT_ERROR_INVALID);
        snprintf(want, sizeof want, "; %s did not find 'pirce'; did you mean 'price'?; there are '",
                 sought_uses[i].name);
        CHECK_CONTAINS(dt_ctx_error(j.ctx), want);
        CHECK_CONTAINS(dt_ctx_error(j.ctx), "'size'");
        CHECK(sought_uses[i].use(&j, sought_uses[i].find(&j, "weight")) == DT_ERROR_INVALID);
        CHECK_CONTAINS(dt_ctx_error(j.ctx), "did not find 'pirce', 'weight'; there are '");
        CHECK(sought_uses[i].use(&j, 3) == DT_ERROR_INVALID); /* a number of its own */
        CHECK(!strstr(dt_ctx_error(j.ctx), "did not find"));
        sought_close(&j);
    }
}

/* Names of any length and number, with bytes that a terminal would obey: the text stays short. */
TEST(unknown_names_keep_an_error_short) {
    sought_job j;
    char name[300];
    REQUIRE(sought_open(&j));
    for (int i = 0; i < 200; i++) {
        memset(name, i % 7 ? 'a' + i % 26 : 27, sizeof name);
        name[i + 1] = 0;
        CHECK(dt_csv_find(j.csv, name) == -1);
        CHECK(sought_csv_read(&j, -1) == DT_ERROR_INVALID);
        CHECK(strlen(dt_ctx_error(j.ctx)) < 700 && !strchr(dt_ctx_error(j.ctx), 27));
        CHECK_CONTAINS(dt_ctx_error(j.ctx), "did not find '");
    }
    CHECK(dt_csv_find(j.csv, NULL) == -1 && dt_csv_find(NULL, "a") == -1);
    sought_close(&j);
}
