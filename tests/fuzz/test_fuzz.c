/* The fuzz targets on the files of tests/fuzz/corpus. Inputs that once broke a reader, or nearly
 * do, are read in every run of the tests. */
#define FUZZ_REPLAY
#include "fuzz/fuzz_csv.c"
#include "fuzz/fuzz_idx.c"
#include "fuzz/fuzz_index.c"
#include "fuzz/fuzz_npy.c"
#include "fuzz/fuzz_picture.c"
#include "fuzz/fuzz_replay_file.c"
#include "fuzz/fuzz_safetensors.c"
#include "fuzz/fuzz_tokens.c"
#include "fuzz/fuzz_wav.c"

#include "fuzz/fuzz_replay.h"

TEST(every_kept_idx_file_is_read_or_refused_cleanly) {
    int counts[2] = {0};
    REQUIRE(replay_folder("tests/fuzz/corpus/idx", fuzz_idx, counts));
    CHECK(counts[0] >= 5 && counts[1] >= 2);
}

TEST(every_kept_index_is_read_or_refused_cleanly) {
    int counts[2] = {0};
    REQUIRE(replay_folder("tests/fuzz/corpus/index", fuzz_index, counts));
    CHECK(counts[0] == 6 && counts[1] == 4);
}

TEST(every_kept_csv_file_is_read_or_refused_cleanly) {
    int counts[2] = {0};
    REQUIRE(replay_folder("tests/fuzz/corpus/csv", fuzz_csv, counts));
    CHECK(counts[0] >= 6 && counts[1] >= 6);
}

TEST(every_kept_numpy_file_is_read_or_refused_cleanly) {
    int counts[2] = {0};
    REQUIRE(replay_folder("tests/fuzz/corpus/npy", fuzz_npy, counts));
    CHECK(counts[0] >= 8 && counts[1] >= 8);
}

TEST(every_kept_picture_is_decoded_or_refused_cleanly) {
    int counts[2] = {0};
    REQUIRE(replay_folder("tests/fuzz/corpus/picture", fuzz_picture, counts));
#if defined DT_WITH_PNG && defined DT_WITH_JPEG
    CHECK(counts[0] >= 8 && counts[1] >= 15);
#else
    CHECK(counts[0] >= 8);
#endif
}

TEST(every_kept_weight_file_is_loaded_or_refused_cleanly) {
    int counts[2] = {0};
    REQUIRE(replay_folder("tests/fuzz/corpus/safetensors", fuzz_safetensors, counts));
    CHECK(counts[0] >= 10 && counts[1] >= 3);
}

TEST(every_kept_wav_file_is_read_or_refused_cleanly) {
    int counts[2] = {0};
    REQUIRE(replay_folder("tests/fuzz/corpus/wav", fuzz_wav, counts));
    CHECK(counts[0] == 9 && counts[1] == 9);
}

TEST(every_kept_token_file_is_read_or_refused_cleanly) {
    int counts[2] = {0};
    REQUIRE(replay_folder("tests/fuzz/corpus/tokens", fuzz_tokens, counts));
    CHECK(counts[0] == 9 && counts[1] == 5);
}

TEST(every_kept_replay_file_is_loaded_or_refused_cleanly) {
    int counts[2] = {0};
    REQUIRE(replay_folder("tests/fuzz/corpus/replay_file", fuzz_replay_file, counts));
    CHECK(counts[0] == 10 && counts[1] == 5);
}
