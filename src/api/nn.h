/* ---- Layers: ops with named parameters ----------------------------------------------------------
 *
 * Names, shapes and initial distributions are PyTorch's. A layer's name is used once in a graph,
 * since its parameters' names are; they come to 255 characters at most. Errors: as ops, nil. */

typedef struct dt_linear_desc {
    bool no_bias;
    dt_init weight, bias; /* {0}: PyTorch's, uniform in +-1/sqrt(in); zeros: DT_INIT_CONSTANT */
} dt_linear_desc;

/* Makes "name.weight" [out, in] and "name.bias" [out], and applies them to x: [..., in], f32;
 * result [..., out]. PyTorch's nn.Linear. */
DT_API dt_tensor dt_nn_linear(dt_tensor x, const char *name, int64_t out);
/* The same without a bias, or with other initial values. desc may be NULL. */
DT_API dt_tensor dt_nn_linear_with(dt_tensor x, const char *name, int64_t out,
                                   const dt_linear_desc *desc);
/* Makes "name.weight" [rows, cols], N(0,1), and looks rows up: index [I...] i32 to [I..., cols].
 * PyTorch's nn.Embedding. */
DT_API dt_tensor dt_nn_embedding(dt_tensor index, const char *name, int64_t rows, int64_t cols);
