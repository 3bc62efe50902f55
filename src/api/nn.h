/* ---- Layers: ops with named parameters, PyTorch's names, shapes and initial distributions
 * -------- */

typedef struct dt_linear_desc {
    bool no_bias;
    dt_init weight, bias; /* {0}: PyTorch's, uniform in +-1/sqrt(in) */
} dt_linear_desc;

/* Makes "name.weight" [out, in] and "name.bias" [out], and applies them to x [..., in]. */
DT_API dt_tensor dt_nn_linear(dt_tensor x, const char *name, int64_t out);
DT_API dt_tensor dt_nn_linear_with(dt_tensor x, const char *name, int64_t out,
                                   const dt_linear_desc *desc);
/* Makes "name.weight" [rows, cols], N(0,1), and looks rows up: index [I...] i32 to [I..., cols]. */
DT_API dt_tensor dt_nn_embedding(dt_tensor index, const char *name, int64_t rows, int64_t cols);
