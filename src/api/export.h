/* ---- For other runtimes: ONNX
 *
 * dt_onnx_save writes outputs, and everything they are computed from, as an ONNX model: opset 17,
 * IR version 8. Inputs and parameters keep their names. The number of samples is the dimension
 * "batch". Weights are initializers.
 *
 * The model computes the same as a program that does not train. Dropout has no effect, and batch
 * norm uses its running statistics. docs/export.md lists the ops that can be exported. */

typedef struct dt_onnx_desc {
    dt_tensor outputs[DT_MAX_OUTPUTS]; /* of the store's graph, up to the first nil; no losses */
    const char *names[DT_MAX_OUTPUTS]; /* NULL = dt_label, or "output", "output2", ... */
    dt_input_shape shapes[DT_MAX_OUTPUTS]; /* inputs of other shapes, as in dt_program_desc */
    bool averaged;                         /* export the averaged weights (dt_optim_desc.average) */
} dt_onnx_desc;

/* Writes an ONNX model.
 * Errors: INVALID (no output; one of another graph; a name of two tensors; shapes that do not fit),
 * UNSUPPORTED (an op without an equivalent in ONNX, with its tensor; a loss; a file of more than 2
 * GiB), IO, MEMORY, DEVICE_LOST. */
DT_API dt_result dt_onnx_save(dt_store *store, const char *path, const dt_onnx_desc *desc);

/* ---- For microcontrollers: C
 *
 * dt_c_save writes a small model as one C file: a function that computes the outputs of one sample.
 * Weights are constants, and all memory is static. It needs only C99 with math.h.
 *
 * Bits: on x86 they equal those of dtrain's portable CPU kernels (dt_ctx_desc.no_fast). With
 * DT_FMA defined they equal those of kernels with a fused multiply-add. */

typedef struct dt_c_desc {
    dt_tensor outputs[DT_MAX_OUTPUTS]; /* of the store's graph, f32, up to the first nil */
    const char *name;                  /* name of the function; NULL = "model" */
    bool averaged;                     /* export the averaged weights (dt_optim_desc.average) */
} dt_c_desc;

/* Writes a model as a C file. The function takes a pointer for each input, in order of creation:
 * const float *, or const int32_t * for indices. Then it takes one for each output: float *.
 * Errors: INVALID (no output; one of another graph; a name that is not a C identifier), UNSUPPORTED
 * (with the tensor: an op without a C function, a weight that is not finite; a loss), IO, MEMORY,
 * DEVICE_LOST. */
DT_API dt_result dt_c_save(dt_store *store, const char *path, const dt_c_desc *desc);
