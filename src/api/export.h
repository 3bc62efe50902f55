/* ---- For other runtimes: ONNX -------------------------------------------------------------------
 *
 * dt_onnx_save writes what outputs are computed from as an ONNX model: opset 17, IR version 8.
 * Names of inputs and parameters are theirs here, the number of samples is the dimension "batch",
 * weights are initializers. It computes what a program that does not train computes: dropout
 * passes, batch norm has its running statistics. docs/export.md says which ops there are.
 *
 * Threads: the context's. */

typedef struct dt_onnx_desc {
    dt_tensor outputs[DT_MAX_OUTPUTS]; /* of the store's graph, up to the first nil; no terms */
    const char *names[DT_MAX_OUTPUTS]; /* of them; NULL = their dt_label, or "output", "output2" */
    dt_input_shape shapes[DT_MAX_OUTPUTS]; /* inputs at other shapes, as in dt_program_desc */
    bool averaged; /* the averages of dt_optim_desc.average as the weights */
} dt_onnx_desc;

/* The file appears complete or not at all. Errors: INVALID (NULL, no output, one of another graph,
 * a name that two tensors would have, shapes that do not fit), UNSUPPORTED (an op that ONNX has
 * none for, named with its tensor; a loss; a file of more than 2 GiB), IO, MEMORY, DEVICE_LOST. */
DT_API dt_result dt_onnx_save(dt_store *store, const dt_onnx_desc *desc, const char *path);

/* ---- For microcontrollers: C --------------------------------------------------------------------
 *
 * dt_c_save writes a small model as one C file: a function that computes the outputs of one sample,
 * weights as constants, all memory static. It needs C99 with math.h, and dtrain no more. Its bits
 * are those of dtrain's portable class of CPUs (dt_ctx_desc.no_fast) on x86; with DT_FMA defined
 * those of classes with a fused multiply-add. docs/export.md says which ops there are. */

typedef struct dt_c_desc {
    dt_tensor outputs[DT_MAX_OUTPUTS]; /* of the store's graph, f32, up to the first nil */
    const char *name;                  /* of the function; NULL = "model" */
    bool averaged;                     /* the averages of dt_optim_desc.average as the weights */
} dt_c_desc;

/* The function takes a pointer for each input, in order of creation (const float *, const int32_t *
 * of indices), and one for each output (float *). The file appears complete or not at all. Errors:
 * INVALID (NULL, no output, one of another graph, a name that is none in C), UNSUPPORTED (an op
 * that there is no function for, or a weight that is not finite, named with its tensor; a loss),
 * IO, MEMORY, DEVICE_LOST. */
DT_API dt_result dt_c_save(dt_store *store, const dt_c_desc *desc, const char *path);
