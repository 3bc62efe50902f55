/* Servers and workers that hear anything (fuzz_server.c), on the files of tests/fuzz/corpus and on
 * inputs made by a machine. It is compiled with the implementation. */
#include "fuzz/fuzz_server.c"
#include "fuzz/fuzz_replay.h"

static void quarrels_end(served_world *w) {
    dt_server_destroy(w->server);
    dt_ctx_destroy(w->model.ctx);
    free(w->start);
    *w = (served_world){0};
}

/* Their loaders' threads go too: processes of other tests are forked without any. */
static void quarrels_close(void) {
    for (size_t i = 0; i < DTI_COUNT(served_worlds); i++)
        quarrels_end(&served_worlds[i]);
    quarrels_end(&served_at.world);
    dt_ctx_destroy(served_at.model.ctx); /* and the worker */
    memset(&served_at, 0, sizeof served_at);
}

TEST(every_kept_broken_session_leaves_server_and_worker_usable) {
    int counts[2] = {0};
    REQUIRE(replay_folder("tests/fuzz/corpus/server", fuzz_server, counts));
    CHECK(counts[0] >= 10 && counts[1] >= 5);
    quarrels_close();
}

TEST(servers_and_workers_survive_any_bytes_from_a_peer_with_the_key) {
    const int inputs = getenv("DTRAIN_TEST_LONG") ? 300000 : 10000;
    uint64_t random = 1;
    int counts[2] = {0};
    uint8_t data[1024];
    for (int i = 0; i < inputs && !test_now.failures; i++) {
        const size_t size = 20 + (size_t)(random >> 40) % 900;
        for (size_t k = 0; k < size; k++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            data[k] = (uint8_t)(random >> 56);
        }
        counts[fuzz_server(data, size) == DT_OK]++;
        test_check(!test_now.failures, __FILE__, __LINE__, "input %d", i);
    }
    CHECK(counts[0] > inputs / 10 && counts[1] > inputs / 10);
    quarrels_close();
}

/* What a server knows of skipped batches is of those before its place. */
TEST(server_does_not_report_skipped_batches_after_loading) {
    served_world *w = served_open(0);
    dt_server *s = w->server;
    served_reset(w);
    s->skipped_bits = 3;
    REQUIRE(!dti_server_position(s)); /* it is where it was */
    CHECK(s->skipped_bits == 3);
    s->trainer->epoch = 2;
    REQUIRE(!dti_server_position(s));
    CHECK(s->skipped_bits == 0 && s->tickets.base == 2 * s->tickets.batches + 1);
    quarrels_close();
}

static void quarrel_push(const served_world *w, uint32_t batch_slice, float value) {
    const uint64_t bytes = w->server->shape.bytes;
    char *body = calloc(1, (size_t)bytes);
    for (uint64_t at = sizeof(dti_push_head); at < bytes; at += sizeof value)
        memcpy(body + at, &value, sizeof value);
    CHECK(served_ask(DTI_SAY_PUSH, batch_slice, 1, body, bytes)->part == DTI_PUSH_TAKEN);
    free(body);
}

/* Batch slices that are finite, with a sum that is not: the part's owner reports a NaN, */
TEST(server_reports_metrics_that_are_not_finite_as_nan) {
    served_world *w = served_open(5);
    const dti_resolved told = {.clips = {1.0f}};
    float squares[2] = {0, 0};
    served_reset(w);
    served_begin(0, 0);
    quarrel_push(w, 0, 3e38f);
    quarrel_push(w, 1, 3e38f);
    const dti_message *m = served_ask(DTI_SAY_MEASURE, 0, 1, &told, sizeof told);
    REQUIRE(m->kind == DTI_SAY_SQUARES && m->bytes == sizeof squares);
    memcpy(squares, w->conns[0].answer, sizeof squares);
    CHECK(isnan(squares[0]) && isnan(squares[1]));
    served_end(0);
    quarrels_close();
}

/* and the first one skips the batch for all. */
TEST(server_skips_a_step_for_all_parts_if_one_is_not_finite) {
    served_world *w = served_open(4);
    const dti_request ask = {0, dti_worker_mark(w->server->trainer), 0};
    const float squares[2] = {(float)NAN, 1.0f};
    served_reset(w);
    served_begin(0, 0);
    for (uint32_t i = 0; i < 2; i++) {
        CHECK(served_ask(DTI_SAY_ASK, 100, 0, &ask, sizeof ask)->kind == DTI_SAY_TICKET);
        quarrel_push(w, i, 0.5f);
    }
    CHECK(served_ask(DTI_SAY_ASK, 100, 0, &ask, sizeof ask)->kind == DTI_SAY_BRING);
    REQUIRE(served_squares_bytes() == sizeof squares);
    CHECK(served_ask(DTI_SAY_BROUGHT, 1, 1, squares, sizeof squares)->part == DTI_PUSH_TAKEN);
    CHECK(w->server->skipped_bits == 1 && w->server->info.skipped == 1 &&
          w->server->tickets.base == 2 && served_store(w)->steps == 0);
    served_end(0);
    quarrels_close();
}
