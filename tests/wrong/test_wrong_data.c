/* Wrong arguments of what reads pictures and makes sets of them. */
#include "temp.h"
#include "wrong/wrong_args.h"

/* Without the library for it the row has nothing to try: the error is tested in test_pictures.c. */
#ifdef DT_WITH_PNG
#define NEEDS_PNG
#else
#define NEEDS_PNG return TAKEN;
#endif

#define CLASSES "tests/golden/classes"

ROW(STORE, dt_image_load, ) {
    NEEDS_PNG
    dt_array array = {0};
    dt_image_desc desc = {.width = INT(0, -1, 5), .height = 0};
    desc.channels = INT(3, -1, 5);
    desc.dtype = (dt_dtype)INT(DT_U8, -1, DT_I32, 99);
    dt_result result =
        dt_image_load(OBJECT(here.ctx), PATH(CLASSES "/one/1.png"), &desc, POINTER(&array));
    dt_array_destroy(&array);
    return RESULT(result);
}

static dt_folder *wrong_folder_open(void) {
    dt_folder *folder = NULL;
    dt_folder_open(here.ctx, CLASSES, NULL, &folder);
    return folder;
}

static dt_result wrong_folder_close(dt_folder *folder, dt_result result) {
    dt_folder_close(folder);
    return result;
}

ROW(STORE, dt_folder_open, ) {
    NEEDS_PNG
    dt_folder *folder = NULL;
    dt_folder_desc desc = {.width = INT(0, -1, 5), .height = 0};
    desc.channels = INT(3, -1, 5);
    desc.sizes = (dt_folder_sizes)ENUM(DT_FOLDER_CROP, DT_FOLDER_SKIP + 1);
    desc.threads = INT(2, -1, 65);
    desc.cache_bytes = 100;
    desc.verify = true;
    dt_result result = dt_folder_open(
        OBJECT(here.ctx),
        TEXT(CLASSES, NULL, "", "/nowhere/at/all", CLASSES "/one", CLASSES "/one/1.png"), &desc,
        POINTER(&folder));
    return RESULT(wrong_folder_close(folder, result));
}

ROW(STORE, dt_folder_close, ) {
    NEEDS_PNG
    dt_folder *folder = wrong_folder_open(), *given;
    dt_folder_close(given = OBJECT(folder));
    dt_folder_close(given ? NULL : folder);
    return NOTHING;
}

ROW(STORE, dt_folder_get_info, ) {
    NEEDS_PNG
    dt_folder *folder = wrong_folder_open();
    dt_folder_info info = {0};
    dt_folder_get_info(OBJECT(folder), POINTER(&info));
    dt_folder_close(folder);
    return NOTHING;
}

ROW(STORE, dt_folder_class_name, ) {
    NEEDS_PNG
    dt_folder *folder = wrong_folder_open();
    const bool there = dt_folder_class_name(OBJECT(folder), INDEX(1, 2)) != NULL;
    dt_folder_close(folder);
    return GIVES(there);
}

ROW(STORE, dt_folder_labels, ) {
    NEEDS_PNG
    dt_folder *folder = wrong_folder_open();
    const bool there = dt_folder_labels(OBJECT(folder)) != NULL;
    dt_folder_close(folder);
    return GIVES(there);
}

ROW(GRAPH, dt_folder_dataset, ) {
    NEEDS_PNG
    dt_folder *folder = wrong_folder_open();
    dt_dataset set;
    const dt_tensor picture = dt_input(here.graph, "picture", DT_F32, dt_dims(1, 7, 9));
    const dt_tensor label = dt_input(here.graph, "number", DT_I32, dt_dims());
    dt_result result =
        dt_folder_dataset(OBJECT(folder), ONLY_F32(picture),
                          wrong_turn("a label that is none", 1) ? here.x : label, POINTER(&set));
    return RESULT(wrong_folder_close(folder, result));
}

/* ---- which rows */

static const uint32_t wrong_classes[8] = {0, 1, 0, 1, 0, 1, 0, 1};

ROW(STORE, dt_data_split, ) {
    uint32_t train[8], valid[8], counts[2];
    dt_data_split_desc desc = {.labels = wrong_classes};
    desc.rows = (uint32_t)INTEGER(8, 0, 1);
    desc.share = NUMBER(0.25, -0.5, 1.0, 2.0, (double)INFINITY);
    return RESULT(dt_data_split(OBJECT(here.ctx), POINTER(&desc), POINTER(train),
                                POINTER(&counts[0]), POINTER(valid), POINTER(&counts[1])));
}

ROW(STORE, dt_data_split, folds) {
    uint32_t train[8], valid[8], counts[2];
    dt_data_split_desc desc = {.rows = 8};
    desc.folds = INT(3, 1, -1);
    desc.fold = INT(2, 3, -1, INT_MAX);
    return RESULT(dt_data_split(OBJECT(here.ctx), &desc, train, &counts[0], valid, &counts[1]));
}

ROW(STORE, dt_balanced_weights, ) {
    static const uint32_t wide[8] = {0, UINT32_MAX};
    float weights[8];
    const uint32_t *labels = wrong_turn("a class", 1) ? wide : wrong_classes;
    return RESULT(dt_balanced_weights(OBJECT(here.ctx), POINTER(labels), (uint32_t)INTEGER(8, 0),
                                      POINTER(weights)));
}

/* ---- WAV and token files */

ROW(STORE, dt_wav_load, ) {
    dt_array array = {0};
    int rate;
    dt_result result =
        dt_wav_load(OBJECT(here.ctx), PATH("tests/fuzz/corpus/wav/pcm16"), POINTER(&array), &rate);
    dt_array_destroy(&array);
    return RESULT(result);
}

static dt_tokens *wrong_tokens_open(void) {
    const dt_tokens_desc desc = {.window = 3};
    dt_tokens *tokens = NULL;
    dt_tokens_open(here.ctx, "tests/fuzz/corpus/wav/pcm16", &desc, &tokens);
    return tokens;
}

static dt_result wrong_tokens_close(dt_tokens *tokens, dt_result result) {
    dt_tokens_close(tokens);
    return result;
}

ROW(STORE, dt_tokens_open, ) {
    dt_tokens *tokens = NULL;
    dt_tokens_desc desc = {.bits = INT(16, 8, -1, 64)};
    desc.window = INT(3, 0, -1, 4000, INT_MAX);
    desc.stride = INT(2, -1);
    desc.threads = INT(2, -1, 65);
    desc.skip_bytes = (uint64_t)INTEGER(2, 1, 1000, -1);
    dt_result result = dt_tokens_open(OBJECT(here.ctx), PATH("tests/fuzz/corpus/wav/pcm16"),
                                      POINTER(&desc), POINTER(&tokens));
    return RESULT(wrong_tokens_close(tokens, result));
}

ROW(STORE, dt_tokens_close, ) {
    dt_tokens *tokens = wrong_tokens_open(), *given;
    dt_tokens_close(given = OBJECT(tokens));
    dt_tokens_close(given ? NULL : tokens);
    return NOTHING;
}

ROW(STORE, dt_tokens_rows, ) {
    dt_tokens *tokens = wrong_tokens_open();
    const bool some = dt_tokens_rows(OBJECT(tokens)) > 0;
    dt_tokens_close(tokens);
    return GIVES(some);
}

ROW(GRAPH, dt_tokens_dataset, ) {
    dt_tokens *tokens = wrong_tokens_open();
    dt_dataset set;
    const dt_tensor ids = dt_input(here.graph, "window", DT_I32, dt_dims(3));
    const dt_tensor next = dt_input(here.graph, "next", DT_I32, dt_dims(3));
    dt_result result =
        dt_tokens_dataset(OBJECT(tokens), ONLY_I32(ids),
                          wrong_turn("targets that are none", 1) ? here.x : next, POINTER(&set));
    return RESULT(wrong_tokens_close(tokens, result));
}

/* ---- replay */

static dt_replay *wrong_replay_create(void) {
    const dt_replay_desc desc = {.capacity = 4, .item_bytes = sizeof(float), .alpha = 0.5};
    dt_replay *replay = NULL;
    if (dt_replay_create(here.ctx, &desc, &replay) == DT_OK)
        for (int i = 0; i < 3; i++)
            dt_replay_add(replay, &wrong_x[i]);
    return replay;
}

static dt_result wrong_replay_destroy(dt_replay *replay, dt_result result) {
    dt_replay_destroy(replay);
    return result;
}

ROW(STORE, dt_replay_create, ) {
    dt_replay *replay = NULL;
    dt_replay_desc desc = {.capacity = (uint64_t)INTEGER(4, 0, -1, INT64_MAX)};
    desc.item_bytes = (size_t)INTEGER(4, 0);
    desc.alpha = NUMBER(0.5, -0.5, 5.0, (double)INFINITY);
    desc.epsilon = NUMBER(0.1, -0.5, 1e-40, (double)INFINITY);
    dt_result result = dt_replay_create(OBJECT(here.ctx), POINTER(&desc), POINTER(&replay));
    return RESULT(wrong_replay_destroy(replay, result));
}

ROW(STORE, dt_replay_destroy, ) {
    dt_replay *replay = wrong_replay_create(), *given;
    dt_replay_destroy(given = OBJECT(replay));
    dt_replay_destroy(given ? NULL : replay);
    return NOTHING;
}

ROW(STORE, dt_replay_add, ) {
    dt_replay *replay = wrong_replay_create();
    dt_result result = dt_replay_add(OBJECT(replay), POINTER(wrong_x));
    return RESULT(wrong_replay_destroy(replay, result));
}

ROW(STORE, dt_replay_count, ) {
    dt_replay *replay = wrong_replay_create();
    const bool some = dt_replay_count(OBJECT(replay)) == 3;
    dt_replay_destroy(replay);
    return GIVES(some);
}

ROW(STORE, dt_replay_sample, ) {
    dt_replay *replay = wrong_replay_create();
    float items[2], weights[2];
    uint64_t places[2];
    dt_result result =
        dt_replay_sample(OBJECT(replay), INT(2, 0, -1), NUMBER(0.5, -0.5, 5.0, (double)INFINITY),
                         items, POINTER(places), weights);
    return RESULT(wrong_replay_destroy(replay, result));
}

ROW(STORE, dt_replay_update, ) {
    dt_replay *replay = wrong_replay_create();
    const uint64_t places[2] = {1, (uint64_t)INTEGER(2, 3, -1)};
    const float errors[2] = {(float)FINITE(0.5), -1};
    dt_result result =
        dt_replay_update(OBJECT(replay), POINTER(places), POINTER(errors), INT(2, 0, -1));
    return RESULT(wrong_replay_destroy(replay, result));
}

ROW(STORE, dt_replay_save, ) {
    dt_replay *replay = wrong_replay_create();
    const char *path = temp_path("wrong.replay");
    dt_result result = dt_replay_save(OBJECT(replay), PATH(path));
    remove(path);
    return RESULT(wrong_replay_destroy(replay, result));
}

ROW(STORE, dt_replay_load, ) {
    dt_replay *replay = wrong_replay_create();
    const char *path = temp_path("wrong.replay");
    dt_result result = dt_replay_save(replay, path);
    if (!result)
        result = dt_replay_load(OBJECT(replay), PATH(path));
    remove(path);
    return RESULT(wrong_replay_destroy(replay, result));
}

/* What a dataset may have beside its columns. */
ROW(TRAINER, dt_trainer_create, samples) {
    static const float weights[8] = {1, 2, 0, 1, 1, 1, 1, 1}, none[8] = {0};
    static const float wrong_one[8] = {1, -1}, wrong_two[8] = {1, (float)NAN};
    static const float *const all[] = {none, wrong_one, wrong_two};
    dt_trainer_desc desc = wrong_trainer();
    dt_trainer *trainer = NULL;
    dt_augment_desc augment = {.column = INT(0, -1, 1, 9)};
    augment.crop_padding = INT(1, -1, INT_MAX);
    augment.shift = INT(1, -1, INT_MAX);
    augment.cutout = INT(1, -1, INT_MAX);
    augment.fill = FINITE(1.0);
    augment.flip = NUMBER(0.5, -0.5, 1.5);
    augment.flip_vertical = NUMBER(0.5, -0.5, 1.5);
    augment.rotate = NUMBER(5.0, -0.5, 181.0);
    augment.brightness = AT_LEAST_0(0.1);
    augment.contrast = AT_LEAST_0(0.1);
    augment.saturation = NUMBER(0.0, 0.1, -1.0); /* one channel */
    augment.noise = AT_LEAST_0(0.1);
    augment.mixup = NUMBER(0.0, 0.1, -1.0); /* labels are i32 */
    augment.cutmix = NUMBER(0.0, 0.1, -1.0);
    augment.mix_chance = NUMBER(0.0, 1.5, -1.0);
    augment.mean[1] = (float)FINITE(0.5);
    augment.std[1] = (float)NUMBER(0.5, -0.5, (double)INFINITY);
    desc.data.augment = &augment;
    desc.data.threads = INT(2, -1, 65);
    desc.data.weights = weights;
    for (int i = 0; i < 3; i++)
        desc.data.weights = wrong_turn("weights", 1) ? all[i] : desc.data.weights;
    dt_result result = dt_trainer_create(here.graph, &desc, &trainer);
    dt_trainer_destroy(trainer);
    return RESULT(result);
}
