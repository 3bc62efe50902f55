/* ---- Normalisation ------------------------------------------------------------------------------
 *
 * y = (x - mean) / sqrt(variance + eps) * w + b with the biased variance; w and b may be {0}. eps
 * = 0 means PyTorch's default: 1e-5, for RMS norm FLT_EPSILON; DT_ZERO means 0. Values near 1e19
 * and above, whose variance overflows float32, make all of their group NaN. Errors (nil), naming op
 * and shapes: an i32 tensor, weights of a wrong shape, groups that do not divide the channels, a
 * negative eps. */

/* Over the last `dims` dimensions of each sample; w, b: their shape. PyTorch's F.layer_norm. */
DT_API dt_tensor dt_layer_norm(dt_tensor x, int dims, dt_tensor w, dt_tensor b, float eps);
/* x / sqrt(mean of squares + eps) * w over the last `dims` dimensions. PyTorch's RMSNorm. */
DT_API dt_tensor dt_rms_norm(dt_tensor x, int dims, dt_tensor w, float eps);
/* Over each sample's groups of channels, x: [C, ...]; w, b: [C]. PyTorch's F.group_norm; with
 * groups = C it is instance norm. */
DT_API dt_tensor dt_group_norm(dt_tensor x, int groups, dt_tensor w, dt_tensor b, float eps);

/* A named value of the store that is not trained by gradients, but saved and loaded like a
 * parameter; a running statistic, for example. Errors: as dt_param. PyTorch's register_buffer. */
DT_API dt_tensor dt_buffer(dt_graph *graph, const char *name, dt_shape shape, dt_init init);

/* {0}: PyTorch's defaults. */
typedef struct dt_batch_norm_desc {
    float eps;      /* 0 = 1e-5 */
    float momentum; /* share of the new value in a running statistic; 0 = 0.1 */
    bool frozen;    /* do not update the running statistics; training still uses the batch's */
    /* A trainer takes the statistics over the whole batch of the job, over all its shards,
     * replicas, threads and ranks, and so does the gradient; else over each shard by itself. In
     * other programs the batch is the whole. PyTorch's SyncBatchNorm. */
    bool sync;
} dt_batch_norm_desc;

/* Normalises each channel over all samples and positions. x: [C, ...] with samples; w, b: [C] or
 * {0}; running_mean, running_var: buffers [C].
 * In a training program it uses the statistics of the batch, and each committed step moves the
 * running statistics towards them (with the unbiased variance, n / (n - 1)); with micro-batches,
 * once for each in turn. In other programs it uses the running statistics.
 * Only what a program computes is updated: a batch norm that none of its losses, metrics and
 * outputs needs is not part of it, so its running statistics stay as they are (and its w and b get
 * no gradient: dt_freeze them, or leave them out of .params). If .params selects other parameters
 * only, the statistics are still updated, unless it is .frozen or the mode is DT_MODE_EVAL. A
 * buffer is updated by one call only: if two calls share buffers, one of them must be .frozen.
 * Errors: (nil) running tensors that are not buffers or that another call already updates, a
 * momentum outside (0, 1]; from dt_program_create, a training program with a single value per
 * channel. PyTorch's F.batch_norm. */
DT_API dt_tensor dt_batch_norm(dt_tensor x, dt_tensor w, dt_tensor b, dt_tensor running_mean,
                               dt_tensor running_var, const dt_batch_norm_desc *desc);
