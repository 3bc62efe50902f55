/* Wrong arguments of what writes models for other runtimes, and of the range test of rates. */
#include "wrong/wrong_args.h"

ROW(STORE, dt_onnx_save, ) {
    dt_onnx_desc desc = {.outputs = {TENSOR(here.logits)}};
    desc.names[0] = TEXT("y", "", "dt:1", "x", "\xFF");
    return RESULT(dt_onnx_save(OBJECT(here.store), PATH(wrong_path("wrong-args-saved.onnx")),
                               POINTER(&desc)));
}

ROW(STORE, dt_onnx_save, shapes) {
    dt_onnx_desc desc = {.outputs = {here.logits}};
    desc.shapes[0] = (dt_input_shape){MAYBE(here.x, 0), SHAPE(dt_tensor_shape(here.x))};
    return RESULT(dt_onnx_save(here.store, wrong_path("wrong-args-saved.onnx"), &desc));
}

ROW(STORE, dt_c_save, ) {
    dt_c_desc desc = {.outputs = {TENSOR(here.logits)}};
    desc.name = TEXT("f", "", "1f", "a b", "\xFF");
    return RESULT(
        dt_c_save(OBJECT(here.store), PATH(wrong_path("wrong-args-saved.c")), POINTER(&desc)));
}

ROW(TRAINER, dt_lr_find, ) {
    dt_lr_curve curve = {0};
    const char *path = wrong_path("wrong-args-lr.state");
    const dt_lr_find_desc desc = {.min = NUMBER(1e-4, -1.0, 2.0, (double)INFINITY),
                                  .max = NUMBER(1e-3, -1.0, 1e-5, (double)INFINITY),
                                  .steps = INT(5, -1, 4, 2000000),
                                  .smoothing = NUMBER(0.5, -1.0, 1.0),
                                  .file = TEXT(path, "/nowhere/at/all")};
    const dt_result result = dt_lr_find(OBJECT(here.trainer), &desc, POINTER(&curve));
    dt_lr_curve_destroy(&curve);
    if (result && strstr(dt_ctx_error(here.ctx), "call dt_trainer_load with it")) {
        here.until = -1; /* memory is there again */
        CHECK(!dt_trainer_load(here.trainer, path) && !remove(path));
    }
    return RESULT(result);
}

ROW(TRAINER, dt_lr_curve_destroy, ) {
    dt_lr_curve curve = {0};
    dt_lr_curve_destroy(OBJECT(&curve));
    return NOTHING;
}
