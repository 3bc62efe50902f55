/* Servers and workers that hear anything (fuzz_server.c), on what is kept in tests/corpus and on
 * inputs made by a machine. It is compiled with the implementation. */
#include "fuzz_server.c"
#include "fuzz_replay.h"

TEST(every_kept_quarrel_leaves_server_and_worker_sound) {
    int counts[2] = {0};
    REQUIRE(replay_folder("tests/corpus/server", fuzz_server, counts));
    CHECK(counts[0] >= 10 && counts[1] >= 5);
}

/* Their servers are those of the test above, and of no other: each input begins anew. */
TEST(servers_and_workers_hear_anything_from_who_has_the_key) {
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
}

/* What a server knows of skipped batches is of those before its place. */
TEST(server_that_was_loaded_says_of_no_batch_that_it_was_skipped) {
    served_world *w = served_open(0);
    dt_server *s = w->server;
    served_reset(w);
    s->skipped_bits = 3;
    REQUIRE(!dti_server_position(s)); /* it is where it was */
    CHECK(s->skipped_bits == 3);
    s->trainer->epoch = 2;
    REQUIRE(!dti_server_position(s));
    CHECK(s->skipped_bits == 0 && s->tickets.base == 2 * s->tickets.batches + 1);
    served_reset(w);
}
