/* ---- Stores: a graph's values on one device
 * ------------------------------------------------------ */

typedef struct dt_store dt_store;

typedef struct dt_store_desc {
    /* "auto" (or NULL), "cpu", "vulkan" (the best hardware device, else a software one),
     * "vulkan:N", or a part of a device's name. auto: the CPU when a training step is estimated
     * under 10 MFLOP, else the best discrete or integrated GPU, else the CPU. */
    const char *device;
    uint64_t seed;  /* of the initial values */
    int batch_hint; /* for "auto": samples of a training step; 0 = 64 */
} dt_store_desc;

/* Seals the graph and places its parameters on a device, filled as their dt_init says. desc may be
 * NULL. Errors: INVALID (an op's error, said with op and shapes), DEVICE, MEMORY, DEVICE_MEMORY. */
DT_API dt_result dt_store_create(dt_graph *graph, const dt_store_desc *desc, dt_store **out);
DT_API void dt_store_destroy(dt_store *store);
/* The device that was chosen. */
DT_API const dt_device_info *dt_store_device(const dt_store *store);

/* Parameters in order of creation. Names live as long as the graph. */
typedef struct dt_param_info {
    const char *name;
    dt_shape shape;
    bool frozen;
    uint64_t elements;
} dt_param_info;
DT_API int dt_store_param_count(const dt_store *store);
DT_API dt_result dt_store_param(const dt_store *store, int index, dt_param_info *info);
DT_API int dt_store_find(const dt_store *store, const char *name); /* -1 = none */

typedef enum dt_value_kind {
    DT_VALUE_PARAM,
    DT_VALUE_GRADIENT,
    DT_VALUE_MOMENT1,
    DT_VALUE_MOMENT2
} dt_value_kind;
/* Copies a parameter's values, or its gradient or optimizer state, as f32, row-major; bytes must be
 * exactly 4 * elements. A moment that no optimizer keeps is INVALID. */
DT_API dt_result dt_store_read(dt_store *store, int index, dt_value_kind kind, void *data,
                               size_t bytes);
DT_API dt_result dt_store_write(dt_store *store, int index, dt_value_kind kind, const void *data,
                                size_t bytes);
/* A 64-bit hash of all parameters' bits (FNV-1a, names' order of creation): equal iff the bits are.
 */
DT_API dt_result dt_store_hash(dt_store *store, uint64_t *hash);
/* Also over moments and step counts: the whole state that training changes. */
DT_API dt_result dt_store_state_hash(dt_store *store, uint64_t *hash);

/* ---- Optimizers
 * ---------------------------------------------------------------------------------- */

typedef enum dt_optim_kind {
    DT_OPTIM_DEFAULT, /* AdamW */
    DT_SGD,           /* torch.optim.SGD */
    DT_ADAM,          /* torch.optim.Adam: decay is added to the gradient */
    DT_ADAMW          /* torch.optim.AdamW: decay shrinks the weight */
} dt_optim_kind;

/* Parameters that differ from the rest. The first group whose pattern matches a name takes it. */
typedef struct dt_optim_group {
    const char *match;   /* "*.bias", "head.*,tok.weight": '*' and '?', commas between patterns */
    double lr_scale;     /* 0 = 1 */
    double weight_decay; /* 0 = the optimizer's */
    bool no_decay;
} dt_optim_group;

/* {0} is AdamW with PyTorch's defaults.
 *   field         SGD     Adam    AdamW
 *   lr            1e-3    1e-3    1e-3
 *   weight_decay  0       0       1e-2
 *   momentum      0       -       -        dampening 0, nesterov off
 *   beta1, beta2  -       .9, .999
 *   eps           -       1e-8    1e-8 */
typedef struct dt_optim_desc {
    dt_optim_kind kind;
    double lr;
    double weight_decay;
    bool no_decay; /* weight_decay is really 0 */
    double momentum, dampening;
    bool nesterov;
    double beta1, beta2, eps;
    double clip_norm;  /* 0 = off; the gradient's 2-norm over all parameters, as clip_grad_norm_ */
    double clip_value; /* 0 = off; each element, as clip_grad_value_ */
    dt_optim_group groups[DT_MAX_TERMS - 1];
} dt_optim_desc;

/* ---- Programs: a graph compiled against a store
 * --------------------------------------------------- */

typedef struct dt_program dt_program;

typedef struct dt_loss {
    dt_tensor term;
    float coefficient; /* 0 = 1 */
} dt_loss;

typedef enum dt_mode {
    DT_MODE_DEFAULT, /* train when there is an optimizer or a host gradient, else eval */
    DT_MODE_TRAIN,
    DT_MODE_EVAL
} dt_mode;

typedef struct dt_program_desc {
    const char *label; /* for messages; NULL = "program" */
    int batch;         /* samples; 0 = 1 */
    dt_tensor loss;    /* short for losses[0] */
    dt_loss losses[DT_MAX_TERMS];
    dt_tensor metrics[DT_MAX_TERMS]; /* terms that are reported, not minimised */
    dt_tensor outputs[DT_MAX_TERMS]; /* tensors that the host reads */
    /* Outputs whose dL/dy the host writes (dt_program_write_gradient) between forward and backward.
     */
    dt_tensor host_gradients[DT_MAX_TERMS];
    const dt_optim_desc *optim; /* NULL: gradients are not computed, unless `gradients` */
    bool gradients;             /* compute gradients, without an optimizer */
    const char *params;         /* patterns of the parameters to train; NULL = all not frozen */
    dt_mode mode;
    bool accumulate;     /* gradients may be added up over micro-batches (dt_step_desc) */
    size_t bucket_bytes; /* a backward segment ends when this many gradient bytes are done; 0 = 25
                            MiB */
    bool no_check;       /* do not look for NaN and infinity in losses and gradients */
} dt_program_desc;

/* Compiles. Everything that can fail, fails here, and the text lists all that is wrong: nil or
 * foreign tensors, a parameter that no loss reaches, no parameter to train, an op without a
 * gradient, memory. After it nothing allocates. Errors: INVALID, UNSUPPORTED, MEMORY,
 * DEVICE_MEMORY, DEVICE. */
DT_API dt_result dt_program_create(dt_store *store, const dt_program_desc *desc, dt_program **out);
DT_API void dt_program_destroy(dt_program *program);

/* What the plan says before anything runs, exact. Bytes of device memory. */
typedef struct dt_program_info {
    int batch;
    uint64_t param_bytes, gradient_bytes, state_bytes; /* of the store */
    uint64_t transient_bytes; /* this program's need of the store's shared arena */
    uint64_t io_bytes;        /* inputs, outputs, step and status */
    uint64_t
        used_bytes; /* what the launches really touch at most in the arena: == transient_bytes */
    uint64_t flops; /* of the products, one step */
    int launches, segments;
} dt_program_info;
DT_API void dt_program_info_get(const dt_program *program, dt_program_info *info);

/* Copies an input for the next step: row-major, `batch` samples (or one value for a shared input).
 * bytes must be exact. Labels and indices are checked here: a target out of range is INVALID and
 * named by row. The values stay until they are written again. */
DT_API dt_result dt_program_write(dt_program *program, dt_tensor input, const void *data,
                                  size_t bytes);
/* Copies dL/dy of a tensor listed in host_gradients. */
DT_API dt_result dt_program_write_gradient(dt_program *program, dt_tensor y, const void *data,
                                           size_t bytes);
/* Copies an output of the newest run (from the end of its forward segment on). */
DT_API dt_result dt_program_read(dt_program *program, dt_tensor output, void *data, size_t bytes);

typedef struct dt_step_desc {
    uint64_t seed;      /* of dropout; with `step` it names the step's random numbers */
    uint64_t step;      /* 0 = this program's count of steps so far, plus 1 */
    uint32_t first_row; /* of this batch's first sample in the global batch */
    float lr;           /* 0 = the optimizer's */
    /* Micro-batches of one step: run each with micro = 0 .. micros - 1 (programs made with
     * `accumulate`); the last one commits. weights: of the global batch, from dt_program_weigh. */
    uint32_t micro, micros;
    const double *weights; /* one for each loss; NULL = this batch's own */
} dt_step_desc;

typedef struct dt_report {
    uint64_t step;
    double loss; /* sum of coefficient * sum / weight */
    double loss_sum[DT_MAX_TERMS], loss_weight[DT_MAX_TERMS];
    double metric_sum[DT_MAX_TERMS], metric_weight[DT_MAX_TERMS];
    double gradient_norm; /* before clipping; 0 without an optimizer */
    bool skipped;         /* a NaN or infinity: the store is unchanged */
    const char *fault_op; /* and the op that made it first, or NULL */
} dt_report;

/* Runs one step and waits for it. step and report may be NULL. Errors: NUMERIC (the store is
 * unchanged; the text names the op), DEVICE_LOST, INVALID (an input never written). */
DT_API dt_result dt_program_run(dt_program *program, const dt_step_desc *step, dt_report *report);

/* Adds the weights of this batch's losses to weights[0 .. losses). Reads targets alone. */
DT_API dt_result dt_program_weigh(dt_program *program, double *weights);

/* The same step cut into segments (forward; backward, cut at bucket ends; commit), for a frame's
 * time budget, host gradients, or cancelling. begin; advance until *state is DONE; end. None of the
 * three blocks where the device runs on its own (on the CPU advance computes one segment). cancel
 * may take the place of any advance: the store is as it was before begin, provided commit has not
 * started. */
typedef enum dt_step_state {
    DT_STEP_RUNNING, /* the device is busy: come again */
    DT_STEP_READY,   /* between two segments: outputs may be read, gradients written */
    DT_STEP_DONE
} dt_step_state;
DT_API dt_result dt_program_begin(dt_program *program, const dt_step_desc *step);
DT_API dt_result dt_program_advance(dt_program *program, dt_step_state *state);
DT_API dt_result dt_program_end(dt_program *program, dt_report *report);
DT_API dt_result dt_program_cancel(dt_program *program);
