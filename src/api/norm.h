/* ---- Normalisation ------------------------------------------------------------------------------
 *
 * y = (x - mean) / sqrt(variance + eps) * w + b with the biased variance; w and b may be {0}. eps 0
 * means PyTorch's default: 1e-5, of RMS norm FLT_EPSILON; DT_ZERO is 0. Errors (nil), with op and
 * shapes: i32, weights of another shape, groups that do not divide the channels, a negative eps. */

/* Over the last `dims` dimensions of each sample; w, b: their shape. PyTorch's F.layer_norm. */
DT_API dt_tensor dt_layer_norm(dt_tensor x, int dims, dt_tensor w, dt_tensor b, float eps);
/* x / sqrt(mean of squares + eps) * w over the last `dims` dimensions. PyTorch's RMSNorm. */
DT_API dt_tensor dt_rms_norm(dt_tensor x, int dims, dt_tensor w, float eps);
/* Over each sample's groups of channels, x: [C, ...]; w, b: [C]. PyTorch's F.group_norm; with
 * groups = C it is instance norm. */
DT_API dt_tensor dt_group_norm(dt_tensor x, int groups, dt_tensor w, dt_tensor b, float eps);

/* A named value of the store that no gradient trains, saved and loaded like a parameter: a running
 * statistic. Errors: as dt_param's. PyTorch's register_buffer. */
DT_API dt_tensor dt_buffer(dt_graph *graph, const char *name, dt_shape shape, dt_init init);

/* {0}: PyTorch's defaults. */
typedef struct dt_batch_norm_desc {
    float eps;      /* 0 = 1e-5 */
    float momentum; /* share of the new value in a running statistic; 0 = 0.1 */
    bool frozen;    /* keep the running statistics as they are; training uses the batch's own */
} dt_batch_norm_desc;

/* Over all samples and positions of each channel, x: [C, ...] with samples; w, b: [C] or {0};
 * running_mean, running_var: buffers [C]. In a training program it uses the batch's own statistics,
 * and a step that commits moves the running ones towards them (the variance unbiased, n / (n - 1));
 * micro-batches do so one after the other. What a program computes moves: a batch norm that none of
 * its losses, metrics and outputs needs is left out of it, and its running statistics stay as they
 * are (so do w and b, which have no gradient: dt_freeze them, or leave them out of .params). With
 * .params that train other parameters alone it still moves, unless it is .frozen or the mode is
 * DT_MODE_EVAL. In other programs it uses the running ones. One call moves a buffer: where two
 * share buffers, one is .frozen. Errors: (nil) running tensors that are no buffers, or moved by
 * another call already, a momentum outside (0, 1]; at dt_program_create, a training program with
 * one value a channel. PyTorch's F.batch_norm. */
DT_API dt_tensor dt_batch_norm(dt_tensor x, dt_tensor w, dt_tensor b, dt_tensor running_mean,
                               dt_tensor running_var, const dt_batch_norm_desc *desc);
