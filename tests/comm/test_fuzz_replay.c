/* The fuzz targets of the collectives on the files of tests/fuzz/corpus, and on damaged
 * ones: environments, host lists, handshakes, frames. */
#define FUZZ_REPLAY
#include "fuzz/fuzz_env.c"
#include "fuzz/fuzz_frames.c"
#include "fuzz/fuzz_hello.c"
#include "fuzz/fuzz_nodelist.c"
#include "fuzz/fuzz_message.c"

#include "fuzz/fuzz_replay.h"

TEST(every_kept_environment_is_a_rank_of_a_group_or_an_error) {
    int counts[2] = {0};
    REQUIRE(replay_folder("tests/fuzz/corpus/env", fuzz_env, counts));
    CHECK(counts[0] >= 5 && counts[1] >= 5);
}

TEST(every_kept_host_list_is_one_or_is_refused) {
    int counts[2] = {0};
    REQUIRE(replay_folder("tests/fuzz/corpus/nodelist", fuzz_nodelist, counts));
    CHECK(counts[0] >= 5 && counts[1] >= 5);
}

TEST(every_kept_handshake_without_the_key_changes_nothing) {
    int counts[2] = {0};
    REQUIRE(replay_folder("tests/fuzz/corpus/hello", fuzz_hello, counts));
    CHECK(counts[0] >= 3 && counts[1] >= 10);
}

TEST(every_kept_exchange_of_messages_delivers_all_bytes_or_ends) {
    int counts[2] = {0};
    REQUIRE(replay_folder("tests/fuzz/corpus/message", fuzz_message, counts));
    CHECK(counts[0] >= 2 && counts[1] >= 10);
}

TEST(every_kept_list_of_frames_leaves_the_protocol_core_valid) {
    int counts[2] = {0};
    REQUIRE(replay_folder("tests/fuzz/corpus/frames", fuzz_frames, counts));
    CHECK(counts[0] >= 40 && counts[1] >= 2);
}
