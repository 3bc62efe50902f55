/* Wrong arguments of logs. */
#include "wrong_args.h"

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
    desc.names[0] = TEXT("accuracy", "", "a\nb", "\xFF");
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
