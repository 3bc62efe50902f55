/* Wrong arguments of logs and of readers of files. */
#include "wrong/wrong_args.h"

#include <stdio.h>

static dt_run_log *wrong_log_open(void) {
    dt_run_log_desc desc = {.folder = wrong_path("wrong-args-log")};
    dt_run_log *log = NULL;
    dt_run_log_create(here.ctx, &desc, &log);
    return log;
}

static dt_result wrong_log_close(dt_run_log *log, dt_result result) {
    dt_run_log_destroy(log);
    wrong_empty(wrong_path("wrong-args-log"));
    return result;
}

ROW(TRAINER, dt_run_log_create, ) {
    dt_run_log *log = NULL;
    dt_run_log_desc desc = {.folder =
                                TEXT(wrong_path("wrong-args-log"), NULL, "", "/nowhere/at/all")};
    desc.every_steps = INT(0, -1);
    dt_result result = dt_run_log_create(OBJECT(here.ctx), POINTER(&desc), POINTER(&log));
    return RESULT(wrong_log_close(log, result));
}

ROW(TRAINER, dt_run_log_destroy, ) {
    dt_run_log *log = wrong_log_open(), *given;
    dt_run_log_destroy(given = OBJECT(log));
    wrong_log_close(given ? NULL : log, DT_OK);
    return NOTHING;
}

ROW(TRAINER, dt_run_log_scalar, ) {
    dt_run_log *log = wrong_log_open();
    dt_result result = dt_run_log_scalar(OBJECT(log), NAME("loss"), 1, 0.5);
    return RESULT(wrong_log_close(log, result));
}

ROW(TRAINER, dt_run_log_text, ) {
    dt_run_log *log = wrong_log_open();
    dt_result result =
        dt_run_log_text(OBJECT(log), NAME("note"), 1, TEXT("some text", NULL, "\xFF"));
    return RESULT(wrong_log_close(log, result));
}

ROW(TRAINER, dt_run_log_histogram, ) {
    dt_run_log *log = wrong_log_open();
    dt_result result = dt_run_log_histogram(OBJECT(log), NAME("w"), 1, POINTER(wrong_x), 8);
    return RESULT(wrong_log_close(log, result));
}

ROW(TRAINER, dt_run_log_image, ) {
    static const uint8_t pixels[12] = {0};
    dt_run_log *log = wrong_log_open();
    dt_result result = dt_run_log_image(OBJECT(log), NAME("w"), 1, POINTER(pixels), COUNT(2),
                                        COUNT(2), INT(3, 0, -1, 2, 5));
    return RESULT(wrong_log_close(log, result));
}

ROW(TRAINER, dt_run_log_hparams, ) {
    const dt_hparam params[2] = {{.name = NAME("lr"), .number = 0.1},
                                 {.name = "net", .text = TEXT("mlp", "\xFF")}};
    dt_run_log *log = wrong_log_open();
    dt_result result =
        dt_run_log_hparams(OBJECT(log), POINTER(params), INT(2, -1), TEXT("loss", "", "\xFF"));
    return RESULT(wrong_log_close(log, result));
}

ROW(TRAINER, dt_run_log_restart, ) {
    dt_run_log *log = wrong_log_open();
    dt_result result = dt_run_log_restart(OBJECT(log), 3);
    return RESULT(wrong_log_close(log, result));
}

ROW(TRAINER, dt_run_log_fit, ) {
    dt_run_log *log = wrong_log_open();
    dt_fit_state state = {.event = DT_FIT_STEP, .trainer = here.trainer};
    dt_result result = dt_run_log_fit(OBJECT(log), OBJECT(&state));
    return RESULT(wrong_log_close(log, result));
}

ROW(GRAPH, dt_png_save, ) {
    static const uint8_t pixels[12] = {0};
    return RESULT(dt_png_save(OBJECT(here.ctx), PATH(wrong_path("wrong-args.png")), POINTER(pixels),
                              COUNT(2), COUNT(2), INT(3, 0, -1, 2, 5)));
}

/* ---- traces */

static dt_profile *wrong_profile(void) {
    dt_profile *p = NULL;
    dt_profile_create(here.ctx, NULL, &p);
    return p;
}

static dt_result wrong_profile_end(dt_profile *p, dt_result result) {
    dt_profile_destroy(p);
    return result;
}

ROW(STORE, dt_profile_create, ) {
    dt_profile *p = NULL;
    const dt_profile_desc desc = {.rank = INT(0, -1), .steps = INT(0, -1)};
    dt_result result = dt_profile_create(OBJECT(here.ctx), &desc, POINTER(&p));
    return RESULT(wrong_profile_end(p, result));
}

ROW(STORE, dt_profile_destroy, ) {
    dt_profile *p = wrong_profile(), *given;
    dt_profile_destroy(given = OBJECT(p));
    wrong_profile_end(given ? NULL : p, DT_OK);
    return NOTHING;
}

ROW(STORE, dt_profile_run, ) {
    dt_profile *p = wrong_profile();
    dt_program_write(here.predict, here.x, wrong_x, 64);
    dt_result result = dt_profile_run(OBJECT(p), POINTER(here.predict), NULL, NULL);
    return RESULT(wrong_profile_end(p, result));
}

ROW(STORE, dt_profile_save, ) {
    dt_profile *p = wrong_profile();
    dt_result result = dt_profile_save(OBJECT(p), PATH(wrong_path("wrong-args-trace.json")));
    return RESULT(wrong_profile_end(p, result));
}

ROW(TRAINER, dt_profile_fit, ) {
    dt_profile *p = wrong_profile();
    dt_fit_state state = {.event = DT_FIT_STEP, .trainer = here.trainer};
    dt_result result = dt_profile_fit(OBJECT(p), OBJECT(&state));
    return RESULT(wrong_profile_end(p, result));
}

/* ---- CSV files */

static dt_csv *wrong_csv_open(void) {
    const char *path = wrong_path("wrong-args.csv");
    FILE *file = fopen(path, "wb");
    dt_csv *csv = NULL;
    if (file) {
        fputs("a,b,c\n1,x,2.5\n2,y,3\n", file);
        fclose(file);
        dt_csv_open(here.ctx, path, NULL, &csv);
    }
    return csv;
}

static dt_result wrong_csv_close(dt_csv *csv, dt_result result) {
    dt_csv_close(csv);
    return result;
}

ROW(STORE, dt_csv_open, ) {
    dt_csv *csv = wrong_csv_open();
    dt_csv_close(csv);
    dt_csv_desc desc = {.rules = {{.columns = "*", .missing = DT_CSV_MISSING_DROP}}};
    desc.rules[0].kind = (dt_csv_kind)ENUM(DT_CSV_GUESS, DT_CSV_SKIP + 1);
    desc.rules[0].missing = (dt_csv_missing)ENUM(DT_CSV_MISSING_DROP, DT_CSV_MISSING_VALUE + 1);
    desc.rules[0].value = FINITE(1.0);
    desc.max_categories = INT(0, -1, 1);
    desc.delimiter = (char)INTEGER(',', '"', '\n');
    csv = NULL;
    dt_result result =
        dt_csv_open(OBJECT(here.ctx), PATH(wrong_path("wrong-args.csv")), &desc, POINTER(&csv));
    return RESULT(wrong_csv_close(csv, result));
}

ROW(STORE, dt_csv_close, ) {
    dt_csv *csv = wrong_csv_open(), *given;
    dt_csv_close(given = OBJECT(csv));
    dt_csv_close(given ? NULL : csv);
    return NOTHING;
}

ROW(STORE, dt_csv_get_info, ) {
    dt_csv *csv = wrong_csv_open();
    dt_csv_info info = {0};
    dt_csv_get_info(OBJECT(csv), POINTER(&info));
    dt_csv_close(csv);
    return NOTHING;
}

ROW(STORE, dt_csv_get_column, ) {
    dt_csv *csv = wrong_csv_open();
    dt_csv_column column;
    dt_result result = dt_csv_get_column(OBJECT(csv), INDEX(0, 3), POINTER(&column));
    return RESULT(wrong_csv_close(csv, result));
}

ROW(STORE, dt_csv_find, ) {
    dt_csv *csv = wrong_csv_open();
    int at = dt_csv_find(OBJECT(csv), TEXT("a", NULL, "", "none"));
    dt_csv_close(csv);
    return GIVES(at >= 0);
}

ROW(STORE, dt_csv_read, ) {
    float out[4];
    dt_csv *csv = wrong_csv_open();
    const int columns[2] = {INDEX(0, 3), 2};
    dt_result result = dt_csv_read(
        OBJECT(csv), POINTER(columns), INT(2, 0, -1), (uint64_t)INTEGER(0, 2, 3, -1),
        (uint64_t)INTEGER(2, 3, INT64_MAX, -1), (dt_dtype)INT(DT_F32, -1, 99), POINTER(out));
    return RESULT(wrong_csv_close(csv, result));
}

/* ---- NumPy's files */

static const char *wrong_npy(void) {
    static const char bytes[] = "\x93NUMPY\1\0\x37\0{'descr': '|u1', 'fortran_order': False, "
                                "'shape': (2,)}abcd";
    const char *path = wrong_path("wrong-args.npy");
    FILE *file = fopen(path, "wb");
    if (file) {
        fwrite(bytes, 1, 10 + 0x37 + 2, file);
        fclose(file);
    }
    return path;
}

ROW(STORE, dt_npy_load, ) {
    dt_array array = {0};
    dt_result result = dt_npy_load(OBJECT(here.ctx), PATH(wrong_npy()), POINTER(&array));
    dt_array_destroy(&array);
    return RESULT(result);
}

/* An archive of one stored array. */
ROW(STORE, dt_npz_load, ) {
    dt_array array = {0};
    dt_result result = dt_npz_load(OBJECT(here.ctx), PATH("tests/fuzz/corpus/npy/stored.npz"),
                                   TEXT("a", "", "b"), POINTER(&array));
    dt_array_destroy(&array);
    return RESULT(result);
}
