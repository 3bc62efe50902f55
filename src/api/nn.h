/* ---- Layers: ops with named parameters
 *
 * Names, shapes and initial distributions are PyTorch's. A layer's name may be used once in a scope
 * (dt_scope_push). A parameter's name has at most 255 characters, with its scopes. Errors: nil, as
 * ops. */

/* How tensor parallelism (dt_parallel_desc.tensor) splits a linear layer or an embedding. In each
 * pass, a column layer and the row layer after it need one sum over the tensor ranks. Elementwise
 * ops between them keep the split, and so do dt_cross_entropy and dt_accuracy of a column layer's
 * logits.
 *
 * A table that is both embedding and head: mark it by dt_tensor_parallel(table, 0). */
typedef enum dt_tensor_style {
    DT_TENSOR_REPLICATED, /* the default: each tensor rank has the whole layer */
    DT_TENSOR_COLUMN,     /* each rank computes some of the outputs; the result is split */
    DT_TENSOR_ROW         /* each rank takes some of the inputs; the result is complete */
} dt_tensor_style;

typedef struct dt_linear_desc {
    bool no_bias;           /* only x W^T, without "name.bias" */
    dt_tensor_style tensor; /* 0 = DT_TENSOR_REPLICATED */
    dt_init weight, bias;   /* {0} = PyTorch's, uniform in +-1/sqrt(in); zeros: DT_INIT_CONSTANT */
} dt_linear_desc;

/* Applies nn.Linear: x W^T + b. Makes "name.weight" [out, in] and "name.bias" [out].
 * x: [..., in], f32; result: [..., out]. */
DT_API dt_tensor dt_nn_linear(dt_tensor x, const char *name, int64_t out);
/* Applies a linear layer with options. */
DT_API dt_tensor dt_nn_linear_with(dt_tensor x, const char *name, int64_t out,
                                   const dt_linear_desc *desc);
/* Looks up rows of a new table: nn.Embedding. Makes "name.weight" [rows, cols], N(0, 1).
 * index: [I...] i32; result: [I..., cols]. */
DT_API dt_tensor dt_nn_embedding(dt_tensor index, const char *name, int64_t rows, int64_t cols);

typedef struct dt_embedding_desc {
    dt_init weight; /* {0} = PyTorch's, N(0, 1); zeros: DT_INIT_CONSTANT */
    /* A row that starts as 0 and gets no gradient. Weight decay still shrinks values loaded into
     * it. 0 = off, DT_ZERO = row 0, negative: from the end. */
    int32_t padding_idx;
    /* ROW: each tensor rank has some of the rows, and the results are summed. COLUMN: each has some
     * of the columns, and the result is split as a column layer's. */
    dt_tensor_style tensor;
} dt_embedding_desc;

/* Looks up rows of a new table with options.
 * Errors (nil): a padding_idx that is not a row, or in a table of more than 2^24 rows. */
DT_API dt_tensor dt_nn_embedding_with(dt_tensor index, const char *name, int64_t rows, int64_t cols,
                                      const dt_embedding_desc *desc);

/* How x is padded. */
typedef enum dt_padding_mode {
    DT_PADDING_ZEROS,     /* the default: zeros */
    DT_PADDING_REFLECT,   /* x mirrored without its end element; padding below x's size */
    DT_PADDING_REPLICATE, /* the end element repeated */
    DT_PADDING_CIRCULAR   /* x from its other end; padding at most x's size */
} dt_padding_mode;

typedef struct dt_conv_layer_desc {
    dt_conv_desc conv;            /* stride, padding, dilation, groups */
    int32_t kernel_w;             /* width of the kernel; 0 = its height */
    bool no_bias;                 /* without "name.bias" */
    dt_init weight, bias;         /* {0} = PyTorch's, uniform in +-1/sqrt(fan_in) */
    dt_padding_mode padding_mode; /* 0 = DT_PADDING_ZEROS; not for transposed layers */
    bool same; /* PyTorch's padding='same': the result has x's size; stride 1, conv.padding 0 */
} dt_conv_layer_desc;

/* Apply a convolution. Make "name.weight" [out, in / groups, kernel, kernel] and "name.bias" [out].
 * The weight of dt_nn_conv_transpose2d is [in, out / groups, kernel, kernel].
 * PyTorch: nn.Conv2d, nn.Conv1d, nn.ConvTranspose2d.
 * x: [in, H, W]; of dt_nn_conv1d [in, L].
 * kernel: height; .kernel_w sets another width. */
DT_API dt_tensor dt_nn_conv2d(dt_tensor x, const char *name, int64_t out, int64_t kernel,
                              const dt_conv_layer_desc *desc);
DT_API dt_tensor dt_nn_conv1d(dt_tensor x, const char *name, int64_t out, int64_t kernel,
                              const dt_conv_layer_desc *desc);
DT_API dt_tensor dt_nn_conv_transpose2d(dt_tensor x, const char *name, int64_t out, int64_t kernel,
                                        const dt_conv_layer_desc *desc);

typedef struct dt_conv3d_layer_desc {
    dt_conv3d_desc conv;        /* stride, padding, dilation, groups */
    int32_t kernel_h, kernel_w; /* height and width of the kernel; 0 = its depth */
    /* As in dt_conv_layer_desc. */
    bool no_bias;
    dt_init weight, bias;
    dt_padding_mode padding_mode;
    bool same;
} dt_conv3d_layer_desc;

/* Applies a convolution to a volume. Makes "name.weight" [out, in / groups, kernel, kernel_h,
 * kernel_w] and "name.bias" [out]. PyTorch: nn.Conv3d.
 * x: [in, D, H, W].
 * kernel: depth; .kernel_h and .kernel_w set other sides. */
DT_API dt_tensor dt_nn_conv3d(dt_tensor x, const char *name, int64_t out, int64_t kernel,
                              const dt_conv3d_layer_desc *desc);

typedef struct dt_attention_layer_desc {
    dt_attention_desc attention; /* mask, causal, dropout, ... */
    int64_t kv_heads;            /* heads of keys and values; divides heads; 0 = heads */
    bool no_bias;                /* without the two biases */
    bool use_rope;               /* rotate queries and keys by their positions */
    dt_rope_desc rope;           /* of .use_rope */
    /* .positions above 0: dt_attention_cached with this cache. .rope then starts at .position. */
    dt_cache_desc cache;
} dt_attention_layer_desc;

/* Applies nn.MultiheadAttention with batch_first, from x to `from`.
 * x, result: [T, E].
 * from: [S, E]. {0} = x (self-attention).
 * heads: divides E.
 *
 * Parameters: "name.in_proj_weight" [E + 2 E', E] and "name.in_proj_bias": rows of queries, keys
 * and values, in this order. "name.out_proj.weight" [E, E] and "name.out_proj.bias". E' = E
 * kv_heads / heads.
 *
 * With .bool_mask 1 means that a query may attend: the opposite of PyTorch's layer.
 *
 * Errors (nil): x and from of another rank or of two widths; those of dt_attention. */
DT_API dt_tensor dt_nn_multi_head_attention(dt_tensor x, dt_tensor from, const char *name,
                                            int64_t heads, const dt_attention_layer_desc *desc);

/* Applies nn.Bilinear: x1_i W_oij x2_j + b_o. Makes "name.weight" [out, in1, in2] and "name.bias"
 * [out].
 * x1, x2: [..., in1] and [..., in2], with the same leading dimensions.
 * result: [..., out]. */
DT_API dt_tensor dt_nn_bilinear(dt_tensor x1, dt_tensor x2, const char *name, int64_t out);

/* Adds a low-rank update to y, a projection of x: y + alpha / rank * (x A^T) B^T (Hu et al.,
 * "LoRA", 2021). Names and values are those of Hugging Face's peft.
 * y: [..., out]; x: [..., in].
 *
 * Parameters: "name.lora_A.weight" [rank, in], initialised as nn.Linear's, and "name.lora_B.weight"
 * [out, rank], zeros. To train only the updates: dt_program_desc.params = "*.lora_?.weight".
 * dt_store_save_matching saves them.
 *
 * Errors (nil): x and y with other leading dimensions. */
DT_API dt_tensor dt_nn_lora(dt_tensor y, dt_tensor x, const char *name, int64_t rank, float alpha);

/* Apply a gated feed-forward layer: gate(x W_gate) * (x W_up), then W_down. The gate is silu in
 * dt_nn_swiglu (Llama's layer) and gelu in dt_nn_geglu (T5's). Make, under Llama's names,
 * "name.gate_proj.weight" and "name.up_proj.weight" [hidden, E], and "name.down_proj.weight"
 * [E, hidden].
 * x, result: [..., E]. */
DT_API dt_tensor dt_nn_swiglu(dt_tensor x, const char *name, int64_t hidden);
DT_API dt_tensor dt_nn_geglu(dt_tensor x, const char *name, int64_t hidden);

/* Applies batch normalisation. Makes "name.weight" (ones) and "name.bias" (zeros), and the buffers
 * "name.running_mean" (zeros) and "name.running_var" (ones), each [C].
 * PyTorch: nn.BatchNorm1d and nn.BatchNorm2d.
 * x: [C, ...]. */
DT_API dt_tensor dt_nn_batch_norm(dt_tensor x, const char *name, const dt_batch_norm_desc *desc);
/* Apply a normalisation with PyTorch's eps (RMS norm: FLT_EPSILON). Make "name.weight" (ones) and,
 * except for RMS norm, "name.bias" (zeros).
 * PyTorch: nn.LayerNorm over the last `dims` dimensions, nn.GroupNorm, nn.RMSNorm. */
DT_API dt_tensor dt_nn_layer_norm(dt_tensor x, const char *name, int dims);
DT_API dt_tensor dt_nn_group_norm(dt_tensor x, const char *name, int groups);
DT_API dt_tensor dt_nn_rms_norm(dt_tensor x, const char *name, int dims);

typedef struct dt_spectral_norm_desc {
    int32_t iterations; /* of the power method in a training step; 1 to 100; 0 = 1 */
    float eps;          /* smallest length that a vector is divided by; 0 = 1e-12 */
    dt_init weight;     /* {0} = PyTorch's, uniform in +-1/sqrt(fan_in) */
} dt_spectral_norm_desc;

/* Makes a weight and divides it by its largest singular value: W / sigma, sigma = u . (W v).
 * PyTorch: torch.nn.utils.parametrizations.spectral_norm with dim=0.
 * shape: [out, ...]. W is seen as [out, rest].
 *
 * Makes "name.parametrizations.weight.original" of `shape`, and the buffers
 * "name.parametrizations.weight.0._u" [out] and "..._v" [rest].
 *
 * Training programs first update u and v, without a gradient. A step that commits stores them once.
 * At first u and v are N(0, 1), where PyTorch makes 15 iterations. So sigma is too small in the
 * first steps. Evaluate only after the first step.
 *
 * Errors (nil): a shape of fewer than two dimensions or without elements. */
DT_API dt_tensor dt_nn_spectral_norm(dt_graph *graph, const char *name, dt_shape shape,
                                     const dt_spectral_norm_desc *desc);
