/* The loop over epochs on several processes: what one rank's callback asks for holds for all, and
 * predictions come to all. */
#include "train_processes.h"

static bool ranks_open(rank *r, train_model *m, dt_trainer **t) {
    if (!EXPECT(r, train_model_make(m, &one_thread, 0)))
        return false;
    dt_trainer_desc d = train_desc(m);
    d.comm = r->comm;
    d.shards = 4;
    return EXPECT_TEXT(r, !dt_trainer_create(m->graph, &d, t), "%s", dt_ctx_error(m->ctx));
}

static dt_result ranks_call(void *user, dt_fit_state *s) {
    const rank *r = user;
    if (r->index == 1 && s->event == DT_FIT_STEP && s->step == 7)
        s->stop = DT_FIT_ASKED;
    return DT_OK;
}

static void stop_rank(rank *r) {
    train_model m;
    dt_trainer *t = NULL;
    dt_history h;
    if (!ranks_open(r, &m, &t))
        return;
    dt_dataset valid = train_desc(&m).data;
    valid.rows = 50;
    dt_fit_desc d = {.epochs = 5, .validation = &valid, .callbacks = {{ranks_call, r}}};
    d.watch.restore_best = true;
    EXPECT_TEXT(r, !dt_trainer_fit(t, &d, &h), "%s", dt_ctx_error(m.ctx));
    EXPECT(r, h.stop == DT_FIT_ASKED && h.steps == 7 && h.count == 1 && h.best_step == 5);
    EXPECT(r, !dt_store_state_hash(dt_trainer_store(t), &r->numbers[0]));
    EXPECT(r, !dt_trainer_predict(t, &valid, m.logits, 0, r->values, 50 * TRAIN_CLASSES * 4));
    dt_history_free(&h);
    dt_ctx_destroy(m.ctx);
}

TEST(one_ranks_callback_stops_all_at_the_same_step_and_all_predict_the_same) {
    for (int count = 2; count <= 3; count++) {
        job *j = job_new(count, NULL);
        job_run(j, stop_rank);
        for (int i = 1; i < count; i++) {
            CHECK(j->at[i].numbers[0] == j->at[0].numbers[0] && j->at[0].numbers[0]);
            CHECK(!memcmp(j->at[i].values, j->at[0].values, 50 * TRAIN_CLASSES * 4));
        }
        for (int i = 0; i < 50 * TRAIN_CLASSES; i++)
            CHECK(j->at[0].values[i] != 0.0f);
        job_free(j);
    }
}

static dt_result ranks_fail(void *user, dt_fit_state *s) {
    const rank *r = user;
    return r->index == 1 && s->event == DT_FIT_STEP && s->step == 3 ? DT_ERROR_IO : DT_OK;
}

static void fail_rank(rank *r) {
    train_model m;
    dt_trainer *t = NULL;
    dt_history h;
    if (!ranks_open(r, &m, &t))
        return;
    dt_fit_desc d = {.epochs = 5, .callbacks = {{ranks_fail, r}}};
    const dt_result result = dt_trainer_fit(t, &d, &h);
    EXPECT_TEXT(r, result == DT_ERROR_IO || r->index != 1, "%s", dt_ctx_error(m.ctx));
    EXPECT(r, result && h.stop == DT_FIT_FAILED && h.steps == 3);
    EXPECT_TEXT(r, !dt_trainer_step(t, NULL), "%s", dt_ctx_error(m.ctx)); /* the job goes on */
    dt_history_free(&h);
    dt_ctx_destroy(m.ctx);
}

TEST(a_callback_that_fails_on_one_rank_ends_the_fit_on_all) {
    job *j = job_new(3, NULL);
    job_run(j, fail_rank);
    job_free(j);
}
