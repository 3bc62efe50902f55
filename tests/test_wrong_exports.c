/* Wrong arguments of what writes models for other runtimes. */
#include "wrong_args.h"

ROW(STORE, dt_onnx_save, ) {
    dt_onnx_desc desc = {.outputs = {TENSOR(here.logits)}};
    desc.names[0] = TEXT("y", "", "dt:1", "x", "\xFF");
    return RESULT(dt_onnx_save(OBJECT(here.store), POINTER(&desc),
                               PATH(wrong_path("wrong-args-saved.onnx"))));
}

ROW(STORE, dt_onnx_save, shapes) {
    dt_onnx_desc desc = {.outputs = {here.logits}};
    desc.shapes[0] = (dt_input_shape){MAYBE(here.x, 0), SHAPE(dt_tensor_shape(here.x))};
    return RESULT(dt_onnx_save(here.store, &desc, wrong_path("wrong-args-saved.onnx")));
}
