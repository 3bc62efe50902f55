/* A call that fails logs one error, on each rank and in every mode. */
#include "train/train_modes.h"

#include <math.h>
#include <string.h>

typedef struct logged_run {
    int rank, seen, errors; /* errors in the log; of the newest call */
    bool differ;            /* ranks have other rates */
    char log[4000], text[1200];
} logged_run;

static void logged_log(void *user, dt_log_level level, const char *message) {
    logged_run *r = user;
    if (level != DT_LOG_ERROR)
        return;
    r->errors++;
    snprintf(r->log + strlen(r->log), sizeof r->log - strlen(r->log), "\n      %.300s", message);
}

/* What a call logged: once, the text that the context has. */
static void logged_call(logged_run *r, const train_model *m, const char *call, dt_result result) {
    const char *text = dt_ctx_error(m->ctx);
    const size_t size = strlen(text) < 300 ? strlen(text) : 300;
    if (!result || r->errors != 1 || strncmp(r->log + 7, text, size))
        snprintf(r->text, sizeof r->text, "rank %d, %s: result %d, %d errors, '%.300s'%.700s",
                 r->rank, call, result, r->errors, text, r->log);
    r->errors = 0;
    r->log[0] = 0;
    r->seen++;
}

static void logged_rank(const train_mode *mode, dt_comm *comm, void *user) {
    logged_run *r = user;
    static _Thread_local train_model m;
    dt_trainer *t = NULL;
    dt_train_report report;
    const dt_ctx_desc ctx = {
        .no_vulkan = !mode->vulkan, .threads = 1, .logger = {logged_log, user}};
    r->rank = comm ? dt_comm_rank(comm) : 0;
    if (!train_model_make(&m, &ctx, mode->kind))
        return;
    dt_trainer_desc d = train_desc(&m);
    train_mode_take(mode, comm, &d);
    d.no_shuffle = true;
    for (int i = 0; i < TRAIN_SIDE; i++)
        m.data.x[i] = NAN;
    m.adam.lr = r->differ ? 0.1 * (r->rank + 1) : 0.1;
    const dt_result made = dt_trainer_create(m.graph, &d, &t);
    if (made)
        logged_call(r, &m, "create", made);
    if (!made)
        logged_call(r, &m, "step", dt_trainer_step(t, &report));
    if (!made)
        logged_call(r, &m, "load", dt_trainer_load(t, "build/no-such-file"));
    dt_ctx_destroy(m.ctx);
}

TEST(a_call_that_fails_logs_one_error_on_each_rank_in_every_mode) {
    const bool vulkan = train_has_vulkan();
    for (size_t i = 0; i < 2 * (sizeof train_modes / sizeof *train_modes); i++) {
        const train_mode *mode = &train_modes[i / 2];
        logged_run all[MODE_RANKS] = {{.differ = i % 2}, {.differ = i % 2}};
        if ((mode->vulkan && !vulkan) || (i % 2 && !mode->ranks))
            continue;
        for (int k = train_mode_job(mode, logged_rank, all, sizeof *all); k-- > 0;)
            CHECK_TEXT(all[k].seen == 2 - (int)(i % 2) && !all[k].text[0], "%s: %s", mode->name,
                       all[k].text);
    }
}
