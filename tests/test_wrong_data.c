/* Wrong arguments of what reads pictures and makes sets of them. */
#include "wrong_args.h"

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
    dt_array_free(&array);
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

ROW(STORE, dt_folder_class, ) {
    NEEDS_PNG
    dt_folder *folder = wrong_folder_open();
    const bool there = dt_folder_class(OBJECT(folder), INDEX(1, 2)) != NULL;
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
    augment.deviation[1] = (float)NUMBER(0.5, -0.5, (double)INFINITY);
    desc.data.augment = &augment;
    desc.data.threads = INT(2, -1, 65);
    desc.data.weights = weights;
    for (int i = 0; i < 3; i++)
        desc.data.weights = wrong_turn("weights", 1) ? all[i] : desc.data.weights;
    dt_result result = dt_trainer_create(here.graph, &desc, &trainer);
    dt_trainer_destroy(trainer);
    return RESULT(result);
}
