/* A metric's name is given once: bars, logs, histories and what is watched have it from the
 * graph. */
#include "temp.h"

#include "train/train_model.h"

typedef struct names_job {
    train_model m;
    dt_trainer *trainer;
    dt_trainer_desc d;
    dt_dataset valid;
} names_job;

static bool names_open(names_job *j) {
    if (!train_model_make(&j->m, &(dt_ctx_desc){.no_vulkan = true}, 0))
        return false;
    j->trainer = NULL;
    j->d = train_desc(&j->m);
    j->d.devices = "cpu";
    j->valid = j->d.data;
    j->valid.rows = 40;
    return true;
}

/* Two losses, of which one has a name, and three metrics, of which one has. */
static void names_terms(names_job *j) {
    dt_tensor size = dt_mean_loss(dt_abs(j->m.logits));
    j->d.loss = (dt_tensor){0};
    j->d.losses[0].term = j->m.loss;
    j->d.losses[1] = (dt_loss){dt_label(size, "size"), 0.5f};
    j->d.metrics[1] = dt_accuracy(dt_neg(j->m.logits), j->m.t);
    j->d.metrics[2] = dt_label(dt_mean_loss(dt_square(j->m.logits)), "squares, all");
}

static dt_result names_create(names_job *j) {
    return dt_trainer_create(j->m.graph, &j->d, &j->trainer);
}

static void names_read(const char *path, char *text, size_t size) {
    FILE *file = fopen(path, "rb");
    text[file ? fread(text, 1, size - 1, file) : 0] = 0;
    if (file)
        fclose(file);
}

TEST(metric_has_its_name_from_the_graph_in_bar_log_and_history) {
    static const char *const values[] = {"loss", "accuracy", "accuracy 2", "\"squares, all\"",
                                         "size"};
    static char bar[8192], csv[8192];
    const char *folder = temp_path("names.log"), *lines = temp_path("names.log/scalars.csv");
    names_job j;
    dt_run_log *log = NULL;
    dt_history h;
    FILE *file = tmpfile();
    REQUIRE(file && names_open(&j));
    names_terms(&j);
    CHECK_TEXT(!names_create(&j), "%s", dt_ctx_error(j.m.ctx));
    CHECK(!dt_run_log_create(j.m.ctx, &(dt_run_log_desc){.folder = folder, .csv = true}, &log));
    dt_progress p = {.file = file};
    const dt_fit_desc d = {.epochs = 2,
                           .validation = &j.valid,
                           .callbacks = {{dt_progress_show, &p}, {dt_run_log_fit, log}}};
    CHECK_TEXT(!dt_trainer_fit(j.trainer, &d, &h), "%s", dt_ctx_error(j.m.ctx));
    rewind(file);
    bar[fread(bar, 1, sizeof bar - 1, file)] = 0;
    names_read(lines, csv, sizeof csv);
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        char name[64], part[80];
        snprintf(name, sizeof name, "%s", values[i]);
        const char *plain = name[0] == '"' ? strtok(name + 1, "\"") : name;
        snprintf(part, sizeof part, "  val %s ", plain);
        CHECK_CONTAINS(bar, part);
        snprintf(part, sizeof part, "validation/%s", plain);
        CHECK_CONTAINS(csv, part);
        if (i > 0 && i < 4)
            CHECK_STR(h.names[i - 1], plain);
    }
    CHECK_STR(h.names[3], "");
    fclose(file);
    dt_history_destroy(&h);
    dt_run_log_destroy(log);
    dt_ctx_destroy(j.m.ctx);
}

/* Of each value by its name: the best is the least of what a callback sees. */
typedef struct names_seen {
    int value; /* 0: the loss; 1 .. 3: metrics; 4: the second term */
    double least;
} names_seen;

static dt_result names_see(void *user, dt_fit_state *s) {
    names_seen *seen = user;
    const dt_train_report *r = &s->validation;
    const double value = seen->value == 0   ? r->loss
                         : seen->value == 4 ? r->loss_sum[1] / r->loss_weight[1]
                                            : r->metric[seen->value - 1];
    if (s->event == DT_FIT_VALIDATED && value < seen->least)
        seen->least = value;
    return DT_OK;
}

TEST(fit_watches_any_value_by_its_name) {
    static const char *const names[] = {NULL, "accuracy", "accuracy 2", "squares, all", "size"};
    for (int i = -1; i < 5; i++) {
        names_job j;
        dt_history h;
        names_seen seen = {.value = i < 0 ? 0 : i, .least = 1e30};
        REQUIRE(names_open(&j));
        names_terms(&j);
        CHECK_TEXT(!names_create(&j), "%s", dt_ctx_error(j.m.ctx));
        dt_fit_desc d = {.epochs = 4, .validation = &j.valid, .callbacks = {{names_see, &seen}}};
        d.watch.metric = i < 0 ? "loss" : names[i];
        CHECK_TEXT(!dt_trainer_fit(j.trainer, &d, &h), "%s", dt_ctx_error(j.m.ctx));
        CHECK_TEXT(h.best_step && h.best == seen.least, "%d: %g, not %g", i, h.best, seen.least);
        dt_history_destroy(&h);
        d.watch.metric = "acuracy";
        CHECK(dt_trainer_fit(j.trainer, &d, NULL) == DT_ERROR_INVALID);
        CHECK_CONTAINS(dt_ctx_error(j.m.ctx),
                       "is 'acuracy'; this trainer has 'loss', 'accuracy', 'accuracy 2', "
                       "'squares, all', 'size'");
        dt_ctx_destroy(j.m.ctx);
    }
}

TEST(trainer_refuses_two_values_of_one_name) {
    static const char *const taken[] = {"accuracy", "loss", "lr", "gradient_norm"};
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++) {
        names_job j;
        REQUIRE(names_open(&j));
        j.d.metrics[1] = dt_label(dt_mean_loss(j.m.logits), taken[i]);
        CHECK(names_create(&j) == DT_ERROR_INVALID && !j.trainer);
        CHECK_CONTAINS(
            dt_ctx_error(j.m.ctx),
            i ? "' is a name that logs use themselves; give the metric or loss another dt_label"
              : "two metrics or losses are named 'accuracy'; give one of them another dt_label");
        CHECK_CONTAINS(dt_ctx_error(j.m.ctx), taken[i]);
        dt_label(j.d.metrics[1], "mean");
        CHECK_TEXT(!names_create(&j), "%s", dt_ctx_error(j.m.ctx));
        dt_ctx_destroy(j.m.ctx);
    }
}

/* One term as a loss and as a metric has one name, and is shown once. */
TEST(a_loss_term_that_is_also_a_metric_is_one_value) {
    names_job j;
    REQUIRE(names_open(&j));
    names_terms(&j);
    j.d.metrics[3] = j.d.losses[1].term;
    CHECK_TEXT(!names_create(&j), "%s", dt_ctx_error(j.m.ctx));
    dt_ctx_destroy(j.m.ctx);
}
