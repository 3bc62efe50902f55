/* ---- Normalisation
 *
 * y = (x - mean) / sqrt(variance + eps) * w + b, with the biased variance. w and b may be {0}.
 * eps: 0 = PyTorch's default: 1e-5, for RMS norm FLT_EPSILON. DT_ZERO = 0.
 *
 * Large values: from about 1e19 the variance overflows f32, and all values normalised together
 * become NaN.
 *
 * Errors (nil): an i32 tensor, weights of a wrong shape, groups that do not divide the channels. */

/* Normalises over the last `dims` dimensions of each sample: F.layer_norm.
 * w, b: of the shape of these dimensions. */
DT_API dt_tensor dt_layer_norm(dt_tensor x, int dims, dt_tensor w, dt_tensor b, float eps);
/* Divides by the root mean square over the last `dims` dimensions: x / sqrt(mean of
 * squares + eps) * w. PyTorch: RMSNorm. */
DT_API dt_tensor dt_rms_norm(dt_tensor x, int dims, dt_tensor w, float eps);
/* Normalises over groups of channels of each sample: F.group_norm.
 * x: [C, ...].
 * groups: divides C. C gives dt_instance_norm.
 * w, b: [C]. */
DT_API dt_tensor dt_group_norm(dt_tensor x, int groups, dt_tensor w, dt_tensor b, float eps);

/* Makes a buffer, as register_buffer: a named value that no gradient trains. It is saved and loaded
 * like a parameter. Errors: as dt_param. */
DT_API dt_tensor dt_buffer(dt_graph *graph, const char *name, dt_shape shape, dt_init init);

/* {0}: PyTorch's defaults. */
typedef struct dt_batch_norm_desc {
    float eps;      /* 0 = 1e-5 */
    float momentum; /* share of the new value in a running statistic; in (0, 1]; 0 = 0.1 */
    bool frozen;    /* do not update the running statistics; training still uses the batch's */
    /* In a trainer, take statistics and gradient over the batch of the whole job, on all ranks.
     * false: over each batch slice by itself. Without a trainer the batch is the program's.
     * PyTorch: SyncBatchNorm. */
    bool sync;
} dt_batch_norm_desc;

/* Normalises each channel over all samples and positions: F.batch_norm.
 * x: [C, ...] with samples; w, b: [C] or {0}.
 * running_mean, running_var: buffers [C].
 *
 * Training programs use the statistics of the batch. Each committed step moves the running
 * statistics towards them, with the unbiased variance (n / (n - 1)). With micro-batches each of
 * these moves them, in order. Other programs use the running statistics.
 *
 * A batch norm that no loss, metric or output of a program needs is not part of it. Its running
 * statistics do not change. Its w and b get no gradient: use dt_freeze, or leave them out of
 * .params.
 *
 * If .params selects other parameters only, the statistics are still updated, except with .frozen
 * or DT_MODE_EVAL. If two calls share buffers, one of them needs .frozen.
 *
 * Errors (nil): running tensors that are not buffers or that another call updates. From
 * dt_program_create: a training program with a single value per channel. */
DT_API dt_tensor dt_batch_norm(dt_tensor x, dt_tensor w, dt_tensor b, dt_tensor running_mean,
                               dt_tensor running_var, const dt_batch_norm_desc *desc);
