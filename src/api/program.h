/* ---- Stores: a graph's values on one device -----------------------------------------------------
 *
 * Threads: of all functions in this part, the context's. Where a function finds a step under way
 * (between dt_program_begin and _end) that it would disturb, it is INVALID. */

typedef struct dt_store dt_store;

typedef struct dt_store_desc {
    /* "auto" (or NULL), "cpu", "vulkan" (the best hardware device, else a software one),
     * "vulkan:N", or a part of a device's name, in any case. auto: the CPU when a training step is
     * estimated under 10 MFLOP, else the best hardware device, else the CPU. Best: discrete, then
     * integrated, then virtual. */
    const char *device;
    uint64_t seed;  /* of the initial values */
    int batch_hint; /* for "auto": samples of a training step; 0 = 64 */
} dt_store_desc;

/* Places a graph's parameters on a device, filled as their dt_init says. The graph takes no more
 * parameters while it has a store; other ops, yes. desc may be NULL; it is not kept. Ownership: the
 * graph's; dt_store_destroy ends it earlier. Errors, with *out NULL: INVALID (an op's error, said
 * with op and shapes), DEVICE (none such, or it cannot be used), MEMORY, DEVICE_MEMORY. */
DT_API dt_result dt_store_create(dt_graph *graph, const dt_store_desc *desc, dt_store **out);
/* Ends a store and its programs. NULL is fine. A trainer's ends with the trainer: here it stays,
 * and dt_ctx_error() says so. */
DT_API void dt_store_destroy(dt_store *store);
/* The device that was chosen. Lives as long as the store. */
DT_API const dt_device_info *dt_store_device(const dt_store *store);

/* Parameters in order of creation. Names live as long as the graph. */
typedef struct dt_param_info {
    const char *name;
    dt_shape shape;
    bool frozen;
    bool buffer; /* made by dt_buffer: not trained, no gradient */
    uint64_t elements;
} dt_param_info;
/* How many parameters there are. */
DT_API int dt_store_param_count(const dt_store *store);
/* Describes one, index from 0 to dt_store_param_count() - 1. Errors: INVALID (out of range). */
DT_API dt_result dt_store_param(const dt_store *store, int index, dt_param_info *info);
/* The index of the parameter of that name; -1 = none. */
DT_API int dt_store_find(const dt_store *store, const char *name);

typedef enum dt_value_kind {
    DT_VALUE_PARAM,
    DT_VALUE_GRADIENT, /* of the newest step */
    DT_VALUE_MOMENT1,  /* SGD's momentum buffer; Adam's and AdamW's exp_avg */
    DT_VALUE_MOMENT2,  /* Adam's and AdamW's exp_avg_sq */
    DT_VALUE_MOMENT3   /* AMSGrad's max_exp_avg_sq */
} dt_value_kind;

/* Copies a parameter's values, or its gradient or optimizer state, out or in, as f32, row-major;
 * bytes must be exactly 4 * elements. Waits for the device. Any value may be written; a step that
 * trains one that is not finite is NUMERIC and names it. Errors: INVALID (index, bytes, a gradient
 * or moment that no program keeps; writing to the store of a trainer of several ranks),
 * DEVICE_LOST. */
DT_API dt_result dt_store_read(dt_store *store, int index, dt_value_kind kind, void *data,
                               size_t bytes);
DT_API dt_result dt_store_write(dt_store *store, int index, dt_value_kind kind, const void *data,
                                size_t bytes);

typedef enum dt_reset_kind {
    /* The optimizer's state: moments and counts of steps. What lives of programs with an optimizer
     * goes on from nothing; to train with another kind destroy them first. */
    DT_RESET_OPTIM,
    /* That, parameters and buffers (as their dt_init and the store's seed say), and the number of
     * steps: as the store was created. */
    DT_RESET_ALL
} dt_reset_kind;

/* Puts a store back. Errors: INVALID (a step is under way, a trainer's store), MEMORY, DEVICE_LOST.
 */
DT_API dt_result dt_store_reset(dt_store *store, dt_reset_kind kind);
/* A 64-bit hash of all parameters' bits (FNV-1a, in order of creation): to see that two stores of
 * one model are the same, bit for bit. Errors: DEVICE_LOST. */
DT_API dt_result dt_store_hash(dt_store *store, uint64_t *hash);
/* Also over moments and step counts: the whole state that training changes. */
DT_API dt_result dt_store_state_hash(dt_store *store, uint64_t *hash);

/* ---- Optimizers ------------------------------------------------------------------------------ */

typedef enum dt_optim_kind {
    DT_OPTIM_DEFAULT, /* AdamW */
    DT_OPTIM_SGD,     /* torch.optim.SGD */
    DT_OPTIM_ADAM,    /* torch.optim.Adam: decay is added to the gradient */
    DT_OPTIM_ADAMW,   /* torch.optim.AdamW: decay shrinks the weight */
    DT_OPTIM_AMSGRAD  /* torch.optim.Adam with amsgrad=True */
} dt_optim_kind;

/* Parameters that differ from the rest. The first group whose pattern matches a name takes it; a
 * group that gets no parameter of the graph, trained or not, is an error. */
typedef struct dt_optim_group {
    const char *match;   /* "*.bias", "head.*,tok.weight": '*' and '?', commas between patterns */
    double lr_scale;     /* 0 = 1 */
    double weight_decay; /* 0 = the optimizer's; DT_ZERO = none */
} dt_optim_group;

/* {0} is AdamW with PyTorch's defaults. A field that is 0 has this value, one that is DT_ZERO is 0:
 *   field         SGD     Adam, AMSGrad   AdamW
 *   lr            1e-3    1e-3            1e-3
 *   weight_decay  0       0               1e-2
 *   momentum      0       -               -        dampening 0, nesterov off
 *   beta1         -       0.9             0.9
 *   beta2         -       0.999           0.999
 *   eps           -       1e-8            1e-8 */
typedef struct dt_optim_desc {
    dt_optim_kind kind;
    double lr;
    double weight_decay;
    double momentum, dampening;
    bool nesterov;
    double beta1, beta2, eps;
    double clip_norm;  /* 0 = off; the gradient's 2-norm over all parameters, as clip_grad_norm_ */
    double clip_value; /* 0 = off; each element, as clip_grad_value_ */
    dt_optim_group groups[DT_MAX_GROUPS - 1];
} dt_optim_desc;

/* ---- Programs: a graph compiled against a store -------------------------------------------------
 *
 * Threads: of all functions in this part, the context's. A store has one step under way at a time,
 * since its programs share memory. After DEVICE_LOST the store must be created again. */

typedef struct dt_program dt_program;

typedef struct dt_loss {
    dt_tensor term;
    float coefficient; /* 0 = 1, DT_ZERO = 0 */
} dt_loss;

typedef enum dt_mode {
    DT_MODE_DEFAULT, /* train when gradients are computed, else eval */
    DT_MODE_TRAIN,
    DT_MODE_EVAL
} dt_mode;

/* Members stand in the order in which they are mostly written: C++20 wants designators in it. */
typedef struct dt_program_desc {
    dt_tensor loss; /* short for losses[0].term */
    dt_loss losses[DT_MAX_TERMS];
    dt_tensor metrics[DT_MAX_TERMS];   /* terms that are reported, not minimised */
    dt_tensor outputs[DT_MAX_OUTPUTS]; /* tensors that the host reads */
    /* Tensors whose dL/dy the host writes (dt_program_write_gradient) between forward and
     * backward. To read their values as well, list them in outputs too. */
    dt_tensor host_gradients[DT_MAX_OUTPUTS];
    int batch;                  /* samples; 0 = 1 */
    const dt_optim_desc *optim; /* NULL: nothing is trained; gradients only with one of these */
    bool gradients;             /* compute gradients, without an optimizer */
    const char *params;         /* patterns of the parameters to train; NULL = all not frozen */
    dt_mode mode;
    bool accumulate;     /* gradients may be added up over micro-batches (dt_step_desc) */
    size_t bucket_bytes; /* gradients that end a backward segment; 0 = 4 MiB */
    /* Do not look for NaN and infinity in losses, gradients and what a step writes: then a store
     * may come to hold some. (With .clip_norm a gradient that is not finite is NUMERIC even so.) */
    bool no_check;
    const char *label; /* for messages; copied; NULL = "program" */
} dt_program_desc;

/* Compiles. What is wrong with a description is found here, and the text lists all of it: nil or
 * foreign tensors, a parameter that no loss reaches, no parameter to train, an op without a
 * gradient. All memory of its runs is taken here. desc and what it points to are not kept.
 * Ownership: the store's; dt_program_destroy ends it earlier. Errors, with *out NULL and the store
 * as it was: INVALID (also while a step is under way), UNSUPPORTED, MEMORY, DEVICE_MEMORY, DEVICE,
 * DEVICE_LOST. */
DT_API dt_result dt_program_create(dt_store *store, const dt_program_desc *desc, dt_program **out);
/* Ends a program; a step under way is cancelled. NULL is fine. */
DT_API void dt_program_destroy(dt_program *program);

/* What the plan says before anything runs, exact. Bytes of device memory. */
typedef struct dt_program_info {
    int batch;
    uint64_t param_bytes, gradient_bytes, state_bytes; /* of the store */
    uint64_t transient_bytes; /* this program's need of the store's shared arena */
    uint64_t io_bytes;        /* inputs, outputs, step and status */
    uint64_t flops;           /* of the products, one step */
    int launches, segments;
} dt_program_info;
/* Fills *info. */
DT_API void dt_program_get_info(const dt_program *program, dt_program_info *info);

/* Copies an input for the next step: row-major, `batch` samples (or one value for a shared input).
 * bytes must be exact. The values stay until they are written again. Errors: INVALID (not an input
 * of this program, bytes, a class number or index out of range, named by row, a step under way).
 * Checked are the elements that an op takes as class numbers or indices, through views, copies,
 * dt_concat and dt_pad too; what the graph computes is not. */
DT_API dt_result dt_program_write(dt_program *program, dt_tensor input, const void *data,
                                  size_t bytes);
/* Copies dL/dy of a tensor listed in host_gradients: as dt_program_write, and also between two
 * segments. It stays until it is written again. */
DT_API dt_result dt_program_write_gradient(dt_program *program, dt_tensor y, const void *data,
                                           size_t bytes);
/* Copies an output of the newest run (from the end of its forward segment on): row-major, `batch`
 * samples. Errors: INVALID (not one of the outputs, bytes, nothing has run yet). */
DT_API dt_result dt_program_read(dt_program *program, dt_tensor output, void *data, size_t bytes);

/* {0}, or NULL in its place: the next step, one batch. */
typedef struct dt_step_desc {
    uint64_t seed; /* of dropout; with `step` it names the step's random numbers */
    /* 0 = the number of steps committed to the store, plus 1. Without an optimizer nothing is
     * committed: number the steps, or dropout's masks stay the same. */
    uint64_t step;
    uint32_t first_row; /* of this batch's first sample in the global batch */
    double lr;          /* 0 = the optimizer's, DT_ZERO = 0 */
    /* Micro-batches of one step: run each with micro = 0 .. micros - 1 (programs made with
     * `accumulate`, one or several that train the same parameters), in order; the last one commits.
     * After one that failed, or was cancelled in its backward part, begin again at 0. weights: of
     * the global batch, from dt_program_weigh. */
    uint32_t micro, micros; /* micros: 0 = 1 */
    const double *weights;  /* one for each loss, above 0; NULL = this batch's own */
    /* One for each loss, 0 is 0; NULL = those of the program. Of micro-batches all the same. */
    const double *coefficients;
} dt_step_desc;

/* What a step gave. A term's value is sum / weight. */
typedef struct dt_report {
    uint64_t step;
    double loss; /* of all losses: coefficient * sum / weight, added up */
    double loss_sum[DT_MAX_TERMS], loss_weight[DT_MAX_TERMS]; /* of this batch */
    double metric[DT_MAX_TERMS]; /* metric_sum / metric_weight; 0 where nothing weighs */
    double metric_sum[DT_MAX_TERMS], metric_weight[DT_MAX_TERMS];
    double gradient_norm; /* before clipping; 0 when the step commits nothing */
    bool skipped;         /* a NaN or infinity: the store is unchanged */
    /* and the op that made it first, "input", "optimizer", or NULL; never freed */
    const char *fault_op;
} dt_report;

/* Runs one step and waits for it. step and report may be NULL. Errors: NUMERIC (a NaN or infinity
 * in a loss or gradient, by op, or in a weight, moment or running statistic that the update would
 * write, by parameter; the store is unchanged; the report is filled), DEVICE_LOST, INVALID (an
 * input never written, a step under way in this store, a wrong dt_step_desc). */
DT_API dt_result dt_program_run(dt_program *program, const dt_step_desc *step, dt_report *report);

/* Adds the weights of this batch's losses to weights[0 .. losses): call it for each micro-batch,
 * after its inputs are written and before the first one runs. Computes from the targets alone.
 * Errors: UNSUPPORTED (targets that are computed in the graph), INVALID (an input never written, a
 * step under way), DEVICE_LOST. */
DT_API dt_result dt_program_weigh(dt_program *program, double *weights);

/* The same step cut into segments (forward; backward, cut at bucket ends; commit), for a frame's
 * time budget, host gradients, or cancelling. begin; advance until *state is DONE; end. None of the
 * three blocks then where the device runs on its own (on the CPU advance computes one segment). */
typedef enum dt_step_state {
    DT_STEP_RUNNING, /* the device is busy: come again */
    DT_STEP_READY,   /* between two segments: outputs may be read, gradients written */
    DT_STEP_DONE
} dt_step_state;

/* Opens a step; step may be NULL. Errors: INVALID, as dt_program_run. */
DT_API dt_result dt_program_begin(dt_program *program, const dt_step_desc *step);
/* Starts the next segment, or looks whether the one that runs has ended. Errors: INVALID (no step
 * is under way, a host gradient never written: the step stays open), DEVICE_LOST (it is over). */
DT_API dt_result dt_program_advance(dt_program *program, dt_step_state *state);
/* Closes a step whose segments were all started; waits for the last. report may be NULL. Errors: as
 * dt_program_run. */
DT_API dt_result dt_program_end(dt_program *program, dt_report *report);
/* Takes the place of any advance, and drops the step: the store's parameters and optimizer state
 * are as before begin. Waits for the segment that runs. Errors: INVALID (no step is under way, or
 * its commit has started), DEVICE_LOST. */
DT_API dt_result dt_program_cancel(dt_program *program);
