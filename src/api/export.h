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
