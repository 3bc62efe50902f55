/* ---- Stores: a graph's values on one device -----------------------------------------------------
 *
 * Threads: all functions in this part are called on the context's thread. A function that would
 * disturb a step under way (between dt_program_begin and dt_program_end, or started and not waited
 * for) returns INVALID. */

typedef struct dt_store dt_store;

/* Sees a parameter's initial values, and may exchange them: shape's elements, row-major. */
typedef void dt_init_fn(void *user, const char *name, dt_shape shape, float *values);

typedef struct dt_store_desc {
    /* "auto" (or NULL), "cpu", "vulkan" (the best hardware device, otherwise a software one),
     * "vulkan:N", or a part of a device's name, ignoring case. "auto" takes the CPU if a training
     * step is estimated below 10 MFLOP or there is no hardware device, otherwise the best hardware
     * device: discrete before integrated before virtual. */
    const char *device;
    uint64_t seed;  /* of the initial values */
    int batch_hint; /* for "auto": samples of a training step; 0 = 64 */
    /* Keep the state on the host after every so many committed steps, for dt_store_restore: 0 =
     * never. It costs twice the memory of parameters, moments and counts on the host, and, after
     * such a step, reading them from the device once, which is waited for; a step is then not
     * started ahead of it (dt_program_start). */
    int host_checkpoint_steps;
    /* Called for each parameter and buffer, in order of creation, during dt_store_create and
     * dt_store_reset. NULL: their dt_init's values stay. */
    dt_init_fn *init;
    void *init_user;
    /* Accept NaN and infinities in files that dt_store_load, dt_store_load_matching and
     * dt_store_load_state read, as for a buffer with an additive mask; false: an error.
     * dt_store_write and init accept any value. */
    bool allow_nonfinite;
} dt_store_desc;

/* Creates a graph's parameters on a device, with the initial values of their dt_init. While it has
 * a store, the graph accepts further ops but no further parameters. desc may be NULL; it is not
 * kept. The store belongs to the graph and is destroyed with it; dt_store_destroy does so earlier.
 * Errors, with *out NULL: INVALID (an op's error, with op and shapes), DEVICE (no such device, or
 * it cannot be used, or computes a known sum wrong when it is opened), MEMORY, DEVICE_MEMORY. */
DT_API dt_result dt_store_create(dt_graph *graph, const dt_store_desc *desc, dt_store **out);
/* Destroys a store and its programs. NULL is allowed. A trainer's store is destroyed with the
 * trainer only: this call leaves it alone, and dt_ctx_error() says so. */
DT_API void dt_store_destroy(dt_store *store);
/* The device that was chosen. Valid as long as the store. */
DT_API const dt_device_info *dt_store_device(const dt_store *store);

/* Parameters, in order of creation. Names are valid as long as the graph. */
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
DT_API dt_result dt_store_get_param(const dt_store *store, int index, dt_param_info *info);
/* The index of the parameter of that name; -1 = none: the error of who uses it says the name. */
DT_API int dt_store_find(const dt_store *store, const char *name);

typedef enum dt_value_kind {
    DT_VALUE_PARAM,
    DT_VALUE_GRADIENT, /* of the last step */
    DT_VALUE_MOMENT1,  /* SGD's momentum buffer; Adam's and AdamW's exp_avg */
    DT_VALUE_MOMENT2,  /* Adam's and AdamW's exp_avg_sq */
    DT_VALUE_MOMENT3,  /* AMSGrad's max_exp_avg_sq */
    /* dt_optim_desc.average's; of what is not averaged, and before the first step, its value. To
     * write it, there must be one. */
    DT_VALUE_AVERAGE
} dt_value_kind;

/* Read or write a parameter's values, gradient or optimizer state as f32, row-major; bytes must be
 * exactly 4 * elements. Waits for the device. Any value may be written; a step that would train a
 * value that is not finite returns NUMERIC and names the parameter. Errors: INVALID (index, bytes,
 * a gradient or moment that no program has; writing to the store of a trainer with several ranks),
 * DEVICE_LOST. */
DT_API dt_result dt_store_read(dt_store *store, int index, dt_value_kind kind, void *data,
                               size_t bytes);
DT_API dt_result dt_store_write(dt_store *store, int index, dt_value_kind kind, const void *data,
                                size_t bytes);

/* Copies all parameters and buffers (batch norm's statistics, spectral norm's vectors) of a store
 * to another one of the same graph, on any device: the target network of reinforcement learning, a
 * copy to draw with. Optimizer state, averages and the number of steps of `to` stay as they are.
 * Waits for the devices; allocates nothing. `from` may have a step under way, and gives the values
 * of before it; if its commit has begun, that is finished first. Errors: INVALID (two graphs, the
 * same store, a step under way in `to`, `to` is a trainer's), DEVICE_LOST. */
DT_API dt_result dt_store_copy(dt_store *from, dt_store *to);

/* Where those values lie, for the application's own commands on its device (dt_ctx_desc.vulkan),
 * which may read them, ordered behind a step as an output is. Valid until the next program of the
 * store is made, or it ends; where a trainer shares parameters out (parallel.zero_stage 2 and 3), until its
 * next step. Errors: INVALID (index, kind; the store's device is not the
 * application's). */
DT_API dt_result dt_store_vulkan_buffer(dt_store *store, int index, dt_value_kind kind,
                                        dt_vulkan_buffer *out);

/* Goes on after DEVICE_LOST: moves the store with its programs to a device (dt_store_desc.device;
 * NULL: the one that it was on, opened anew), with the values of the newest shadow: what is then
 * trained has the same bits as a run from that step on that device. *step, which may be NULL, gets
 * the number of that step: 0 if none was committed. Inputs must be written again; what
 * the application wrote to the store since then is gone. On a device that works, the present values
 * move, and no shadow is needed. On failure the store is as it was.
 * Errors: INVALID (there is no shadow; a step is under way; a trainer's store),
 * UNSUPPORTED (a program has .external, or was made for a device that can more: destroy it),
 * DEVICE, DEVICE_LOST (the application's device: that cannot be opened anew), DEVICE_MEMORY,
 * MEMORY. */
DT_API dt_result dt_store_restore(dt_store *store, const char *device, uint64_t *step);

typedef enum dt_reset_kind {
    /* The optimizer's state: moments and step counts. Programs with an optimizer continue from an
     * empty state; to train with another kind of optimizer, destroy them first. */
    DT_RESET_OPTIM,
    /* Everything: also parameters and buffers (from their dt_init and the store's seed) and the
     * number of steps, as when the store was created. */
    DT_RESET_ALL
} dt_reset_kind;

/* Resets a store. Errors: INVALID (a step is under way, a trainer's store), MEMORY, DEVICE_LOST. */
DT_API dt_result dt_store_reset(dt_store *store, dt_reset_kind kind);
/* A 64-bit hash of all parameters' bits (FNV-1a, in order of creation), to check that two stores
 * of a model are equal bit for bit. Errors: DEVICE_LOST. */
DT_API dt_result dt_store_hash(dt_store *store, uint64_t *hash);
/* The same including moments and step counts: everything that training changes. */
DT_API dt_result dt_store_state_hash(dt_store *store, uint64_t *hash);

/* ---- Optimizers ------------------------------------------------------------------------------ */

typedef enum dt_optim_kind {
    DT_OPTIM_DEFAULT,  /* AdamW */
    DT_OPTIM_SGD,      /* torch.optim.SGD */
    DT_OPTIM_ADAM,     /* torch.optim.Adam: decay is added to the gradient */
    DT_OPTIM_ADAMW,    /* torch.optim.AdamW: decay shrinks the weight */
    DT_OPTIM_AMSGRAD,  /* torch.optim.Adam with amsgrad=True */
    DT_OPTIM_AMSGRADW, /* torch.optim.AdamW with amsgrad=True */
    DT_OPTIM_RMSPROP,  /* torch.optim.RMSprop */
    DT_OPTIM_ADAGRAD,  /* torch.optim.Adagrad */
    DT_OPTIM_ADADELTA, /* torch.optim.Adadelta */
    DT_OPTIM_ADAMAX,   /* torch.optim.Adamax */
    DT_OPTIM_NADAM,    /* torch.optim.NAdam, of momentum_decay 4e-3; keeps three moments */
    DT_OPTIM_RADAM,    /* torch.optim.RAdam */
    DT_OPTIM_RPROP,    /* torch.optim.Rprop, of etas 0.5 and 1.2 and sizes of 1e-6 to 50 */
    DT_OPTIM_LION,     /* Chen et al. 2023: signs alone; decay shrinks the weight */
    /* What follows looks at whole parameters. A group can be .elementwise: biases and the weights of
     * norms mostly are; and not .sparse. */
    DT_OPTIM_LAMB, /* You et al. 2020: AdamW's direction, scaled to the length of the weight */
    DT_OPTIM_LARS, /* You et al. 2017: SGD by gradients scaled to .trust_coefficient of the weight's length */
    DT_OPTIM_MUON,     /* torch.optim.Muon, in f32: matrices by orthogonal steps; AdamW of others */
    DT_OPTIM_ADAFACTOR /* torch.optim.Adafactor, of epsilon1 None and d 1; keeps one moment, where
                        * matrices have means of rows and columns alone */
} dt_optim_kind;

/* Parameters with settings of their own. A parameter belongs to the first group whose patterns
 * match its name; a group that no parameter of the graph belongs to, trained or not, is an
 * error. */
typedef struct dt_optim_group {
    const char *params;  /* patterns: "*.bias", "head.*, tok.weight"; see PATTERNS above */
    double lr_scale;     /* 0 = 1 */
    double weight_decay; /* 0 = the optimizer's; DT_ZERO = none */
    /* For tables of which a step names few rows: a row (of the first axis) whose gradient is all 0
     * is left alone, its moments too, and nothing decays in it; torch.optim.SparseAdam, and SGD of
     * sparse gradients. Counts of steps are the parameter's. Rows of at most 16384 elements. Where
     * such a parameter is a table that one dt_embedding reads, by at most half as many indices as it
     * has rows, a step reads and writes only rows that are named, or were in the step before: the
     * gradient, its norm and the update, with the bits of a dense gradient, which it still is for
     * whoever reads it. Tables below 65536 elements, tables with other readers, micro-batches,
     * several replicas or ranks, stages and members have dense gradients, of which only the update
     * is cheaper. An average of the weights goes over all of them. */
    bool sparse;
    /* LAMB and LARS do not scale steps here, Muon is AdamW, of matrices too, and Adafactor keeps a
     * mean of each element; others are so anyhow, and refuse it. */
    bool elementwise;
} dt_optim_group;

typedef enum dt_average_kind {
    DT_AVERAGE_NONE,
    DT_AVERAGE_EMA, /* a <- a + (1 - decay) (w - a): torch.optim.swa_utils.get_ema_multi_avg_fn */
    DT_AVERAGE_SWA  /* the mean of all weights that it saw: AveragedModel's default */
} dt_average_kind;

/* A second set of weights, the average of those behind steps `start`, start + every, ...: the first
 * of these, and every step before, sets it to the weights themselves; so does a store's first step
 * that averages a parameter, from which it counts then. Buffers, such as batch norm's statistics,
 * are not averaged: whoever uses averages has them as they are. It takes the memory of one moment,
 * is in checkpoints and shadows as moments are, and dt_program_desc.averaged,
 * dt_trainer_desc.averaged, dt_store_save_averaged and dt_store_read use it. */
typedef struct dt_average {
    dt_average_kind kind;
    double decay;          /* EMA's; 0 = 0.999 */
    bool warmup;           /* EMA's decay is at most (1 + n) / (10 + n) after n averaged steps */
    uint64_t start, every; /* in steps of the optimizer; 0 = 1 */
} dt_average;

/* {0} is AdamW with PyTorch's defaults. DT_ZERO means 0; a field that is 0 means:
 *   field         SGD     Adam, AMSGrad   AdamW
 *   lr            1e-3    1e-3            1e-3
 *   weight_decay  0       0               1e-2
 *   momentum      0       -               -        dampening 0, nesterov off
 *   beta1         -       0.9             0.9
 *   beta2         -       0.999           0.999
 *   eps           -       1e-8            1e-8
 * AMSGradW has AdamW's. Others: RMSprop lr 1e-2; Adagrad 1e-2, eps 1e-10; Adadelta 1, eps 1e-6;
 * Adamax and NAdam 2e-3; RAdam 1e-3; Rprop 1e-2; Lion 1e-4, beta2 0.99; LARS 1; without decay. LAMB
 * has AdamW's, with eps 1e-6. Muon has AdamW's too, for both, with weight_decay 0.1 and, of
 * matrices, momentum 0.95, always Nesterov's. Adafactor lr 1e-2, the most that a step is of the
 * weight's root mean square, eps 1e-3, the least that this is taken for (epsilon2), and beta2 0.8:
 * minus torch's beta2_decay, at least 0, so step t adds t^-beta2 of its squares to the mean. Ranges
 * are PyTorch's: at least 0; beta1 and beta2 below 1, rho at most 1. PyTorch accepts any alpha and
 * any momentum of Muon; here alpha is at most 1 and that momentum below 1, so that moments
 * converge. */
typedef struct dt_optim_desc {
    dt_optim_kind kind;
    double lr;
    double weight_decay;
    double momentum, dampening;
    bool nesterov;
    double beta1, beta2, eps;
    double alpha;               /* RMSprop's; 0 = 0.99 */
    bool centered;              /* RMSprop's: by the variance */
    double rho;                 /* Adadelta's; 0 = 0.9 */
    double lr_decay;            /* Adagrad's: lr / (1 + steps * lr_decay) */
    double initial_accumulator; /* Adagrad's sum begins here */
    double trust_coefficient;   /* LARS's; 0 = 1e-3 */
    bool maximize;              /* the loss is to grow: steps go along the gradient */
    double clip_norm;  /* 0 = off; the gradient's 2-norm over all parameters, as clip_grad_norm_ */
    double clip_value; /* 0 = off; each element, as clip_grad_value_ */
    dt_optim_group groups[DT_MAX_GROUPS - 1];
    dt_schedule schedule[DT_MAX_PHASES]; /* of the rate; {{0}}: lr in every step */
    dt_average average; /* {0}: none. A store keeps one for each parameter, of one place */
} dt_optim_desc;

/* The learning rate that a description gives to step `step`, counted from 1: to print or draw a
 * schedule. A plateau is a constant here. A phase with .epochs is INVALID: give its .steps, with
 * dt_trainer_info.epoch_steps. Errors, with *lr 0: INVALID (what is wrong with desc).
 * Threads: the context's. */
DT_API dt_result dt_optim_lr(dt_ctx *ctx, const dt_optim_desc *desc, uint64_t step, double *lr);

/* ---- Programs: a graph compiled against a store -------------------------------------------------
 *
 * Threads: all functions in this part are called on the context's thread. The programs of a store
 * share memory, so only one of them can have a step under way; those of .concurrent run beside it,
 * one at a time, by dt_program_run and dt_program_start. After DEVICE_LOST the store must be
 * revived (dt_store_restore) or created again. */

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

/* An input at a shape that is not the graph's; it has as many dimensions. */
typedef struct dt_input_shape {
    dt_tensor input;
    dt_shape shape;
} dt_input_shape;

/* An input, or an output, that lies in a buffer of the application's Vulkan device: row-major,
 * `batch` samples, and nothing is copied. */
typedef struct dt_external_buffer {
    dt_tensor tensor;
    /* Made with VK_BUFFER_USAGE_STORAGE_BUFFER_BIT; offset a multiple of dt_device_info's
     * offset_alignment; bytes at least the tensor's. */
    dt_vulkan_buffer memory;
} dt_external_buffer;

/* Members stand in the order in which they are mostly written: C++20 wants designators in it. */
typedef struct dt_program_desc {
    dt_tensor loss; /* short for losses[0].term */
    dt_loss losses[DT_MAX_TERMS];
    dt_tensor metrics[DT_MAX_TERMS];   /* terms that are reported, not minimised */
    dt_tensor outputs[DT_MAX_OUTPUTS]; /* tensors that the host reads */
    /* Tensors whose dL/dy the host writes (dt_program_write_gradient) between forward and
     * backward. To read their values as well, list them in outputs too. */
    dt_tensor host_gradients[DT_MAX_OUTPUTS];
    int batch; /* samples; 0 = 1 */
    /* Inputs that have another shape in this program: sequences of another length, images of
     * another size. The shapes of all other tensors follow as if the graph had been built with
     * these, so -1 in dt_reshape, a mean or a norm mean what they would there. Parameters keep
     * their shapes. */
    dt_input_shape shapes[DT_MAX_OUTPUTS];
    /* Inputs and outputs that kernels read and write in the application's buffers, on a store of
     * dt_ctx_desc.vulkan: dt_program_write and _read refuse them. Not class numbers and indices,
     * which must be checked on the host. The application orders its own use of them by the step's
     * semaphores; docs/embedding.md says how else. They outlive the program. */
    dt_external_buffer external[DT_MAX_OUTPUTS];
    const dt_optim_desc *optim; /* NULL: the program does not train */
    bool gradients;             /* compute gradients though there is no optimizer */
    const char *params;         /* patterns of the parameters to train; NULL = all not frozen */
    dt_mode mode;
    /* Layers with a cache (dt_attention_cached) keep keys and values of every run and attend to all
     * that they kept: to generate, and without gradients. */
    bool cached;
    /* Weights are the averages that a program with dt_optim_desc.average, made before, keeps of
     * them; without gradients. Parameters without an average, and buffers, are as they are. */
    bool averaged;
    /* May run while another program of the store has a step under way, with the parameters of
     * before that step, or after it once its commit has begun. Takes transients of its own
     * (dt_program_info). Without .optim and gradients; see dt_program_run. */
    bool concurrent;
    int in_flight; /* steps that dt_program_start has under way at most: 1 or 2; 0 = 1 */
    /* Gradients can be accumulated over any number of micro-batches (dt_step_desc). Doubles the
     * gradients' memory: what their sum rounds away is kept, and added with the next one. */
    bool accumulate;
    /* Commits nothing if no loss has a target that counts (dt_report.empty): no decay, no momentum.
     * Needs .optim, targets that are inputs, and .in_flight 1. A step on a GPU waits once more. */
    bool skip_empty;
    size_t bucket_bytes; /* a backward segment ends after so many bytes of gradients; 0 = 4 MiB */
    /* The most transient bytes (dt_program_info); 0 = as many as keeping everything takes. Where
     * those are more, tensors are chosen that the backward pass computes again, as by
     * dt_recompute, at the least cost in launches that a few trials find. */
    uint64_t memory_bytes;
    /* Do not check losses, gradients and updated values for NaN and infinity; the store may then
     * come to contain them. (With .clip_norm a gradient that is not finite is still NUMERIC.) */
    bool no_check;
    const char *label; /* for messages; copied; NULL = "program" */
} dt_program_desc;

/* Compiles a program. Everything wrong with the description is found here and listed in the text:
 * nil tensors or those of another graph, no parameter to train, an op without a gradient, a
 * parameter that no loss depends on, or only through dt_detach, comparisons or class numbers
 * (PyTorch leaves its .grad None). A parameter that losses depend on only through step functions
 * (dt_sign, dt_round, dt_heaviside) has gradient 0; momentum and decay move it. The text names an op or
 * parameter that .shapes do not fit. All memory that running it needs is allocated here. desc and
 * what it points to are not kept. The program belongs to the store and is destroyed with it;
 * dt_program_destroy does so earlier. Errors, with *out NULL and
 * the store unchanged: INVALID (also while a step is under way), UNSUPPORTED, MEMORY, DEVICE_MEMORY
 * (also a memory_bytes that nothing fits: the text says the least that was found), DEVICE,
 * DEVICE_LOST. */
DT_API dt_result dt_program_create(dt_store *store, const dt_program_desc *desc, dt_program **out);
/* Destroys a program; a step under way is cancelled, or finished if its commit has started. NULL is
 * allowed. */
DT_API void dt_program_destroy(dt_program *program);

/* Exact figures, known before anything runs. Bytes are of device memory. */
typedef struct dt_program_info {
    int batch;
    uint64_t param_bytes, gradient_bytes, state_bytes; /* of the store */
    uint64_t cache_bytes; /* keys and values that it keeps for programs of .cached */
    /* What this program uses of the store's shared arena; of .concurrent: its own, in all. */
    uint64_t transient_bytes;
    uint64_t io_bytes; /* inputs, outputs, step and status */
    uint64_t flops;    /* of the matrix products and convolutions of a step */
    int launches, segments;
    int launches_recomputed; /* of launches: those that recompute costs */
} dt_program_info;
/* Fills *info. */
DT_API void dt_program_get_info(const dt_program *program, dt_program_info *info);

/* Writes an input for the following steps: row-major, `batch` samples (one value for a shared
 * input). bytes must be exact. The values stay until they are written again. Class numbers and
 * indices are checked here, also where they reach the op through views, copies, dt_concat or
 * dt_pad; those that the graph computes are not. Errors: INVALID (not an input of this program,
 * bytes, a class number or index out of range, with its row, a step under way). */
DT_API dt_result dt_program_write(dt_program *program, dt_tensor input, const void *data,
                                  size_t bytes);
/* Writes dL/dy of a tensor listed in host_gradients. As dt_program_write, and also allowed between
 * two segments. */
DT_API dt_result dt_program_write_gradient(dt_program *program, dt_tensor y, const void *data,
                                           size_t bytes);
/* Reads an output of the last run (available as soon as its forward segment has ended): row-major,
 * `batch` samples. Errors: INVALID (not one of the outputs, bytes, nothing has run yet). */
DT_API dt_result dt_program_read(dt_program *program, dt_tensor output, void *data, size_t bytes);

/* {0}, or NULL instead of it: the next step, of one batch. */
typedef struct dt_step_desc {
    uint64_t seed; /* of dropout: seed and step determine the random numbers */
    /* 0 = the number of steps committed to the store, plus 1. A program without an optimizer
     * commits nothing: number its steps yourself, or dropout's masks stay the same. */
    uint64_t step;
    uint32_t first_row; /* the row of this batch's first sample in the global batch */
    double lr;          /* 0 = the optimizer's, DT_ZERO = 0 */
    /* Micro-batches of a step: run micro = 0 .. micros - 1 in order, with programs created with
     * `accumulate` (one, or several that train the same parameters). The last one commits. After
     * one that failed, or was cancelled in its backward part, start again at 0. */
    uint32_t micro_batch, micro_batches; /* micros: 0 = 1 */
    /* For each loss the weight of the global batch, from dt_program_loss_weights; NULL = this batch's. 0
     * means that no micro-batch has a target of that loss that counts; its gradient is 0. */
    const double *loss_weights;
    /* For each loss its coefficient, where 0 is 0; NULL = the program's. The same in all
     * micro-batches of a step. */
    const double *coefficients;
    /* On the application's Vulkan device: what the step waits for before its first work there, and
     * what is signalled behind its last, also where it is cancelled or fails (but not on a lost
     * device). */
    dt_vulkan_semaphore wait, signal;
} dt_step_desc;

/* The results of a step. A term's value is sum / weight. */
typedef struct dt_report {
    uint64_t step;
    double loss; /* the sum over all losses of coefficient * sum / weight */
    double loss_sum[DT_MAX_TERMS], loss_weight[DT_MAX_TERMS]; /* of this batch */
    double metric[DT_MAX_TERMS]; /* metric_sum / metric_weight; 0 if the weight is 0 */
    double metric_sum[DT_MAX_TERMS], metric_weight[DT_MAX_TERMS];
    double gradient_norm; /* before clipping; 0 if the step commits nothing */
    double lr;            /* before a group's .lr_scale; 0 if the step commits nothing */
    /* No loss has a target that counts: all are ignored or have weight 0. Loss and gradients are 0
     * (PyTorch: NaN). Momentum and decay still move weights; with .skip_empty the store is
     * unchanged. With dt_step_desc.weights they decide, not this micro-batch. */
    bool empty;
    bool committed; /* the store has the step: parameters and optimizer state are those after it */
    bool skipped;   /* there was a NaN or infinity, and the store is unchanged */
    bool not_run;   /* skipped, since the step before it, under way when it started, was */
    /* The op that produced it first, "input", "optimizer", or NULL. A constant. */
    const char *fault_op;
} dt_report;

/* Runs a step and waits for it. step and report may be NULL. A program of .concurrent also runs
 * between the segments of another program's step, and sees whole steps: if the other's commit has
 * begun, it is finished first, and that step is then DONE. Errors: NUMERIC (a NaN or infinity in
 * a loss or gradient, naming the op, or in a weight, moment or running statistic that the update
 * would write, naming the parameter; the store is unchanged and the report is filled),
 * DEVICE_LOST, INVALID (an input was never written, a step is under way in this store, a wrong
 * dt_step_desc). */
DT_API dt_result dt_program_run(dt_program *program, const dt_step_desc *step, dt_report *report);

/* Starts a step and does not wait for it: while the device is busy, the host writes the inputs of
 * the next one and starts it too. With .in_flight = 2 two steps are under way at once, which on a
 * GPU takes the host's time out of a step; their inputs and outputs take memory twice. The bits are
 * those of dt_program_run. On the CPU a step has run when the call returns.
 *
 *     for (;;) { dt_program_write(p, x, ...); dt_program_start(p, NULL); }
 *
 * Where as many as .in_flight are under way, dt_program_start and dt_program_write first wait for
 * the oldest of them. Its report is lost but for its error, which they return, having done nothing
 * else; dt_program_wait gives reports. Behind a step that failed, one that was under way already
 * does not run: it ends with NUMERIC, and a report of its own number with .not_run.
 * Steps of a program that computes gradients and does not commit them are not overlapped, and
 * neither are micro-batches: a start waits for those before. Errors: as for dt_program_run. */
DT_API dt_result dt_program_start(dt_program *program, const dt_step_desc *step);
/* Waits for the oldest step that dt_program_start has under way, and ends it: its report, and by
 * dt_program_read its outputs, until its turn comes again. report may be NULL. Errors: INVALID (no
 * such step), and those of a step, as for dt_program_run. */
DT_API dt_result dt_program_wait(dt_program *program, dt_report *report);

/* Adds the weights of this batch's losses to weights[0 .. losses). Before the first micro-batch
 * runs, call it once for each of them, after writing its inputs; it reads only the targets. Errors:
 * UNSUPPORTED (targets that are computed in the graph), INVALID (an input was never written, a step
 * is under way), DEVICE_LOST. */
DT_API dt_result dt_program_loss_weights(dt_program *program, double *weights);

/* A step in segments (forward, several of backward, commit), to fit a frame's time budget, to
 * provide gradients from the host, or to be able to cancel: begin; advance until *state is DONE;
 * end. On a GPU none of these calls waits; on the CPU each advance computes one segment. */
typedef enum dt_step_state {
    DT_STEP_RUNNING, /* the device is busy: call again later */
    DT_STEP_READY,   /* between two segments: outputs can be read, gradients written */
    DT_STEP_DONE
} dt_step_state;

/* Begins a step; step may be NULL. Errors: INVALID, as for dt_program_run. */
DT_API dt_result dt_program_begin(dt_program *program, const dt_step_desc *step);
/* Starts the next segment, or checks whether the running one has ended. Errors: INVALID (no step is
 * under way; a host gradient was never written, and the step stays open), DEVICE_LOST (the step is
 * over). */
DT_API dt_result dt_program_advance(dt_program *program, dt_step_state *state);
/* Advances the step by what is expected to take `ms` milliseconds: segments, launches and parts of
 * launches, of the forward pass too, one at least. What they take is estimated from their work, and
 * known better from every step that was advanced so. The bits are those of dt_program_run. On the
 * CPU it is computed in the call. On a GPU `ms` are of the device's time, and no call waits: while
 * the device is busy with what an earlier one started, nothing more is. *state: RUNNING, call
 * again, in the next frame; READY, as above; DONE. Between the forward segment and the others it
 * stops where the host gives gradients. dt_program_advance may be called in turn: it goes on to the
 * end of the segment. Errors: as for dt_program_advance; ms is not above 0. */
DT_API dt_result dt_program_advance_for(dt_program *program, double ms, dt_step_state *state);
/* Ends a step all of whose segments were started; waits for the last one. report may be NULL.
 * Errors: as for dt_program_run. */
DT_API dt_result dt_program_end(dt_program *program, dt_report *report);
/* Ends the step early. If its commit has not started, the step is abandoned: parameters and
 * optimizer state are as before dt_program_begin; waits for the running segment, or its part. If it
 * has started, the commit is finished, as by dt_program_end. report->committed says which; report
 * may be NULL. Errors: INVALID (no step is under way), DEVICE_LOST; NUMERIC, as for dt_program_end,
 * if the commit had started. */
DT_API dt_result dt_program_cancel(dt_program *program, dt_report *report);
