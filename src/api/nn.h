/* ---- Layers: ops with named parameters ----------------------------------------------------------
 *
 * Names, shapes and initial distributions are PyTorch's. A layer's name is used once in a scope
 * (dt_scope_push), since its parameters' names are unique in a graph; those come to 255 characters
 * at most, with their scopes. Errors: as ops, nil. */

/* What a member has of a linear layer where a trainer shares out one model (dt_trainer_desc.tensor;
 * Shoeybi et al., "Megatron-LM", 2019). A column layer's result is in parts, which elementwise ops
 * keep; a row layer takes such parts, and its result is whole: one sum a pair, forward and
 * backward. Logits of a column layer stay in parts: dt_cross_entropy and dt_accuracy take them. A
 * table that is embedding and head in one is marked by dt_tensor_parallel(table, 0). Elsewhere it means
 * nothing. */
typedef enum dt_tensor_style {
    DT_TENSOR_REPLICATED, /* the default: every member has all */
    DT_TENSOR_COLUMN,
    DT_TENSOR_ROW
} dt_tensor_style;

typedef struct dt_linear_desc {
    bool no_bias;
    dt_tensor_style tensor;
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

typedef struct dt_embedding_desc {
    dt_init weight; /* {0}: PyTorch's, N(0,1); zeros: DT_INIT_CONSTANT */
    /* A row that is 0 at first and gets no gradient: 0 = none, DT_ZERO = row 0, negative: from the
     * end. An optimizer's weight decay still shrinks what a file has put there. */
    int32_t padding_idx;
    /* DT_TENSOR_ROW: members have runs of rows, look up those, and add the results up; COLUMN: the
     * result is in parts, as a column layer's. */
    dt_tensor_style tensor;
} dt_embedding_desc;

/* The same with other initial values, or a row for padding. desc may be NULL. Errors (nil): a
 * padding_idx that is no row, or with one more than 2^24 rows. */
DT_API dt_tensor dt_nn_embedding_with(dt_tensor index, const char *name, int64_t rows, int64_t cols,
                                      const dt_embedding_desc *desc);

/* What x is padded with. REFLECT needs a padding below x's size, CIRCULAR one of at most it. */
typedef enum dt_padding_mode {
    DT_PADDING_ZEROS,
    DT_PADDING_REFLECT,   /* x mirrored at its ends, without the end element */
    DT_PADDING_REPLICATE, /* the end element repeated */
    DT_PADDING_CIRCULAR   /* x from its other end */
} dt_padding_mode;

typedef struct dt_conv_layer_desc {
    dt_conv_desc conv; /* stride, padding, dilation, groups */
    int32_t kernel_w;  /* 0 = as high as wide */
    bool no_bias;
    dt_init weight, bias;         /* {0}: PyTorch's, uniform in +-1/sqrt(fan_in) */
    dt_padding_mode padding_mode; /* PyTorch's padding_mode; 0 = ZEROS; not of transposed layers */
    bool same; /* PyTorch's padding='same': the result has x's size; stride 1, conv.padding 0 */
} dt_conv_layer_desc;

/* Makes "name.weight" [out, in / groups, kernel, kernel] and "name.bias" [out], and applies them to
 * x: [in, H, W]; result [out, oh, ow]. desc may be NULL. PyTorch's nn.Conv2d and nn.Conv1d (x: [in,
 * L]); nn.ConvTranspose2d, whose weight is [in, out / groups, kernel, kernel]. */
DT_API dt_tensor dt_nn_conv2d(dt_tensor x, const char *name, int64_t out, int64_t kernel,
                              const dt_conv_layer_desc *desc);
DT_API dt_tensor dt_nn_conv1d(dt_tensor x, const char *name, int64_t out, int64_t kernel,
                              const dt_conv_layer_desc *desc);
DT_API dt_tensor dt_nn_conv_transpose2d(dt_tensor x, const char *name, int64_t out, int64_t kernel,
                                        const dt_conv_layer_desc *desc);

typedef struct dt_conv3d_layer_desc {
    dt_conv3d_desc conv;
    int32_t kernel_h, kernel_w; /* 0 = as deep */
    bool no_bias;
    dt_init weight, bias;         /* {0}: PyTorch's, uniform in +-1/sqrt(fan_in) */
    dt_padding_mode padding_mode; /* as dt_conv_layer_desc has it, and so the rest */
    bool same;
} dt_conv3d_layer_desc;

/* Makes "name.weight" [out, in / groups, kernel, kernel_h, kernel_w] and "name.bias" [out], for x:
 * [in, D, H, W]. desc may be NULL. PyTorch's nn.Conv3d. */
DT_API dt_tensor dt_nn_conv3d(dt_tensor x, const char *name, int64_t out, int64_t kernel,
                              const dt_conv3d_layer_desc *desc);

typedef struct dt_attention_layer_desc {
    dt_attention_desc attention; /* mask, causal, dropout, ... */
    int64_t kv_heads;            /* of keys and values; 0 = as many as of queries */
    bool no_bias;
    bool use_rope; /* queries and keys are turned by their positions, as `turn` says */
    dt_rope_desc rope;
    dt_cache_desc cache; /* of positions: as dt_attention_cached; rope then begins at its `at` */
} dt_attention_layer_desc;

/* Makes "name.in_proj_weight" [E + 2 E', E] and "name.in_proj_bias", rows of queries, keys and
 * values in that order (E' = E kv_heads / heads), "name.out_proj.weight" [E, E] and
 * "name.out_proj.bias", and attends from x: [T, E] to `from`: [S, E], {0}: to x itself. Result [T,
 * E]. desc may be NULL. PyTorch's nn.MultiheadAttention (batch_first), its initial values too; but
 * a mask of `keep` says 1 where a query may attend, and PyTorch's layer True where it may not.
 * Errors (nil): E that heads do not divide, heads that kv_heads do not divide, x and from of other
 * ranks or widths, and dt_attention's. */
DT_API dt_tensor dt_nn_multi_head_attention(dt_tensor x, dt_tensor from, const char *name,
                                            int64_t heads, const dt_attention_layer_desc *desc);

/* x1_i W_oij x2_j + b_o. Makes "name.weight" [out, in1, in2] and "name.bias" [out], for x1: [...,
 * in1] and x2: [..., in2] of the same leading dimensions; result [..., out]. PyTorch's
 * nn.Bilinear. */
DT_API dt_tensor dt_nn_bilinear(dt_tensor x1, dt_tensor x2, const char *name, int64_t out);

/* y + alpha / rank * (x A^T) B^T: what a projection y of x learns beside weights that stay (Hu et
 * al., "LoRA: Low-rank adaptation of large language models", 2021). Makes "name.lora_A.weight"
 * [rank, in], as nn.Linear's, and "name.lora_B.weight" [out, rank], zeros: at first the result is
 * y. x: [..., in], y: [..., out]. dt_program_desc.params "*.lora_?.weight" trains these alone, and
 * dt_store_save_matching keeps them. Names and values as Hugging Face's peft. Errors (nil): a rank
 * below 1, an alpha that is not finite, x and y of other leading dimensions. */
DT_API dt_tensor dt_nn_lora(dt_tensor y, dt_tensor x, const char *name, int64_t rank, float alpha);

/* gate(x W_gate) * (x W_up), then W_down; gate: silu, or gelu. Make "name.gate_proj.weight" and
 * "name.up_proj.weight", [hidden, E], and "name.down_proj.weight", [E, hidden], for x: [..., E];
 * result [..., E]. Llama's feed-forward part, under its names; T5's. */
DT_API dt_tensor dt_nn_swiglu(dt_tensor x, const char *name, int64_t hidden);
DT_API dt_tensor dt_nn_geglu(dt_tensor x, const char *name, int64_t hidden);

/* Makes "name.weight" (ones) and "name.bias" (zeros), and buffers "name.running_mean" (zeros) and
 * "name.running_var" (ones), each [C], for x: [C, ...]. desc may be NULL. PyTorch's nn.BatchNorm1d
 * and nn.BatchNorm2d. */
DT_API dt_tensor dt_nn_batch_norm(dt_tensor x, const char *name, const dt_batch_norm_desc *desc);
/* Make "name.weight" (ones) and, but for RMS norm, "name.bias" (zeros), with PyTorch's eps (RMS
 * norm: FLT_EPSILON). PyTorch's nn.LayerNorm over the last `dims` dimensions, nn.GroupNorm,
 * nn.RMSNorm. */
DT_API dt_tensor dt_nn_layer_norm(dt_tensor x, const char *name, int dims);
DT_API dt_tensor dt_nn_group_norm(dt_tensor x, const char *name, int groups);
DT_API dt_tensor dt_nn_rms_norm(dt_tensor x, const char *name, int dims);

typedef struct dt_spectral_norm_desc {
    int32_t iterations; /* of the power method in a training step, 1 to 100; 0 = 1 */
    float eps;          /* the least length that a vector is divided by; 0 = 1e-12 */
    dt_init weight;     /* {0}: PyTorch's, uniform in +-1/sqrt(fan_in) */
} dt_spectral_norm_desc;

/* A weight over its largest singular value, for dt_linear, dt_conv2d ...: W / sigma, sigma = u . (W
 * v), W seen as [out, rest]. Makes "name.parametrizations.weight.original" of `shape`, [out, ...],
 * and buffers "name.parametrizations.weight.0._u" [out] and "..._v" [rest]. A training program
 * first improves these, u = W v / |W v|, v = W^T u / |W^T u|, without a gradient, and a step that
 * commits keeps them: once, however many micro-batches and replicas it has. Other programs read the
 * buffers, and leave them. desc may be NULL.
 * PyTorch's torch.nn.utils.parametrizations.spectral_norm of dim 0. There u and v have made 15
 * iterations when a model begins; here they are N(0, 1), so in the first steps sigma is smaller
 * than the singular value, and evaluation means nothing before the first one. Errors (nil): a shape
 * of less than two dimensions or without elements, iterations or an eps out of range. */
DT_API dt_tensor dt_nn_spectral_norm(dt_graph *graph, const char *name, dt_shape shape,
                                     const dt_spectral_norm_desc *desc);
