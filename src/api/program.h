/* ---- Stores: a graph's values on one device
 *
 * A step is open between dt_program_begin and dt_program_end, or after dt_program_start until
 * dt_program_wait. Functions that would disturb an open step return INVALID. */

typedef struct dt_store dt_store;

/* Sees a parameter's initial values, and may replace them. values: the shape's elements,
 * row-major. */
typedef void dt_init_fn(void *user, const char *name, dt_shape shape, float *values);

/* Where a store is and what it starts with.
 *
 * device: "auto" (or NULL), "cpu", "vulkan" (the best hardware device, otherwise a software one),
 * "vulkan:N", or a part of a device's name, ignoring case. "auto" takes the CPU if a training step
 * is estimated below 10 MFLOP, or if there is no hardware device. Otherwise it takes the best
 * hardware device: discrete before integrated before virtual.
 *
 * host_checkpoint_steps: keeps the state on the host after every this many committed steps, for
 * dt_store_restore. It takes twice the memory of parameters, moments and counts on the host. Such a
 * step waits until they are read. dt_program_start starts no step ahead of it.
 *
 * parameter_dtype DT_BF16: on the CPU. A step computes with the stored values, and gradients are
 * f32. The update computes in f32 and is rounded stochastically. It has the same bits for any
 * number of threads and replicas, and after a resume. Reading gives f32. Writing rounds to the
 * nearest, and a value of 3.396e38 or more to infinity. A program in f32 needs an f32 copy of each
 * parameter while it reads it; use it with .precision. Averages stay f32. Cannot be combined with
 * .zero_stage above 1, split parameters, pipelines, local steps, parameter servers, or optimizers
 * that need whole parameters. */
typedef struct dt_store_desc {
    const char *device;        /* see above; NULL = "auto" */
    uint64_t seed;             /* of the initial values */
    int batch_hint;            /* for "auto": samples of a training step; 0 = 64 */
    int host_checkpoint_steps; /* see above; 0 = never */
    /* Called for each parameter and buffer, in order of creation, during dt_store_create and
     * dt_store_reset. NULL: the values of their dt_init stay. */
    dt_init_fn *init;
    void *init_user;
    /* Accept NaN and infinities in files of dt_store_load, _load_matching and _load_state.
     * dt_store_write and init accept any value. */
    bool allow_nonfinite;
    /* What parameters are stored as: DT_F32 (0), or DT_BF16, in half of the bytes and without f32
     * masters: see above. Buffers stay f32. */
    dt_dtype parameter_dtype;
} dt_store_desc;

/* Creates a graph's parameters on a device, with the initial values of their dt_init. While it has
 * a store, the graph accepts no further parameters.
 * Ownership: the graph's.
 * Errors: INVALID (an op's error, with op and shapes), DEVICE (no such device, or it cannot be
 * used, or it computes a known sum wrong when it is opened), UNSUPPORTED (parameter_dtype on this
 * device), MEMORY, DEVICE_MEMORY. */
DT_API dt_result dt_store_create(dt_graph *graph, const dt_store_desc *desc, dt_store **out);
/* Destroys a store and its programs. For a trainer's store it does nothing, and dt_ctx_error() says
 * so. */
DT_API void dt_store_destroy(dt_store *store);
/* Returns the store's device. Valid as long as the store. */
DT_API const dt_device_info *dt_store_device(const dt_store *store);

/* Parameters, in order of creation. Names are valid as long as the graph. */
typedef struct dt_param_info {
    const char *name;  /* with its scopes: "h.0.fc.weight" */
    dt_shape shape;    /* as given to dt_param */
    bool frozen;       /* by dt_freeze: not trained */
    bool buffer;       /* made by dt_buffer: not trained, no gradient */
    uint64_t elements; /* the product of the shape's dimensions */
    dt_dtype dtype;    /* as it is stored: DT_F32, or DT_BF16 */
} dt_param_info;
/* Returns the number of parameters. */
DT_API int dt_store_param_count(const dt_store *store);
/* Describes a parameter. index: 0 to dt_store_param_count() - 1. */
DT_API dt_result dt_store_get_param(const dt_store *store, int index, dt_param_info *info);
/* Returns the index of the parameter of that name, or -1. The error of a call with that -1 has the
 * name. */
DT_API int dt_store_find(const dt_store *store, const char *name);

typedef enum dt_value_kind {
    DT_VALUE_PARAM,    /* the parameter itself */
    DT_VALUE_GRADIENT, /* of the last step */
    DT_VALUE_MOMENT1,  /* SGD's momentum buffer; Adam's and AdamW's exp_avg */
    DT_VALUE_MOMENT2,  /* Adam's and AdamW's exp_avg_sq */
    DT_VALUE_MOMENT3,  /* AMSGrad's max_exp_avg_sq */
    /* The average of dt_optim_desc.average; the parameter itself before the first step, or if it is
     * not averaged. Writing needs an average. */
    DT_VALUE_AVERAGE
} dt_value_kind;

/* Reads or writes a parameter's values, gradient or optimizer state as f32, row-major. Waits for
 * the device. Any value may be written, but a step that would train one that is not finite returns
 * NUMERIC.
 * bytes: exactly 4 * elements.
 * Errors: INVALID (index, bytes, a gradient or moment that no program has; writing to the store of
 * a trainer with several ranks), DEVICE_LOST. */
DT_API dt_result dt_store_read(dt_store *store, int index, dt_value_kind kind, void *data,
                               size_t bytes);
DT_API dt_result dt_store_write(dt_store *store, int index, dt_value_kind kind, const void *data,
                                size_t bytes);

/* Copies all parameters and buffers to another store of the same graph, on any device. Optimizer
 * state, averages and the number of steps of `to` stay as they are. Waits for the devices;
 * allocates nothing.
 * from: may have an open step, and gives the values from before it; a commit that has begun is
 * finished first.
 * Errors: INVALID (two graphs, the same store, an open step in `to`, `to` is a trainer's),
 * DEVICE_LOST. */
DT_API dt_result dt_store_copy(dt_store *from, dt_store *to);

/* Gives the Vulkan buffer that has these values. The application's own device (dt_ctx_desc.vulkan)
 * may read it, ordered after a step as an output is. Valid until the store's next program is
 * created, or the store ends. With a trainer's .parallel.zero_stage 2 or 3: valid until its next
 * step.
 * Errors: INVALID (index, kind; the store's device is not the application's). */
DT_API dt_result dt_store_vulkan_buffer(dt_store *store, int index, dt_value_kind kind,
                                        dt_vulkan_buffer *out);

/* Restores a store after DEVICE_LOST. It moves the store with its programs to a device, with the
 * values of the newest host checkpoint (dt_store_desc.host_checkpoint_steps). Values that the
 * application wrote to the store since that step are lost. If the device works, the present values
 * move, and no host checkpoint is needed. Training continues with the bits of a run from that step.
 * Inputs must be written again. On failure the store is unchanged.
 * device: as in dt_store_desc; NULL = the same device, opened again.
 * step: gets the number of the checkpoint's step; 0 = no step was committed. May be NULL.
 * Errors: INVALID (no host checkpoint; an open step; a trainer's store), UNSUPPORTED (a program has
 * .external, or uses features that the new device lacks: destroy it), DEVICE, DEVICE_LOST (the
 * application's own device, which cannot be opened again), DEVICE_MEMORY, MEMORY. */
DT_API dt_result dt_store_restore(dt_store *store, const char *device, uint64_t *step);

typedef enum dt_reset_kind {
    /* Moments and step counts. To train with another kind of optimizer, destroy the programs with
     * an optimizer first. */
    DT_RESET_OPTIM,
    /* Everything, as when the store was created: also parameters, buffers and the number of
     * steps. */
    DT_RESET_ALL
} dt_reset_kind;

/* Resets a store. Errors: INVALID (an open step, a trainer's store), MEMORY, DEVICE_LOST. */
DT_API dt_result dt_store_reset(dt_store *store, dt_reset_kind kind);
/* Computes a 64-bit hash of all parameters' bits (FNV-1a, in order of creation). Errors:
 * DEVICE_LOST. */
DT_API dt_result dt_store_hash(dt_store *store, uint64_t *hash);
/* Computes the same hash over everything that training changes: also moments and step counts.
 * Errors: DEVICE_LOST. */
DT_API dt_result dt_store_state_hash(dt_store *store, uint64_t *hash);

/* ---- Optimizers */

/* Without a source they are torch.optim's. LAMB, LARS, Muon and Adafactor look at whole parameters.
 * A group of theirs can be .elementwise, as biases and the weights of norms mostly are. It cannot
 * be .sparse. */
typedef enum dt_optim_kind {
    DT_OPTIM_DEFAULT,  /* AdamW */
    DT_OPTIM_SGD,      /* SGD */
    DT_OPTIM_ADAM,     /* Adam: decay is added to the gradient */
    DT_OPTIM_ADAMW,    /* AdamW: decay shrinks the weight */
    DT_OPTIM_AMSGRAD,  /* Adam with amsgrad=True */
    DT_OPTIM_AMSGRADW, /* AdamW with amsgrad=True */
    DT_OPTIM_RMSPROP,  /* RMSprop */
    DT_OPTIM_ADAGRAD,  /* Adagrad */
    DT_OPTIM_ADADELTA, /* Adadelta */
    DT_OPTIM_ADAMAX,   /* Adamax */
    DT_OPTIM_NADAM,    /* NAdam, of momentum_decay 4e-3; keeps three moments */
    DT_OPTIM_RADAM,    /* RAdam */
    DT_OPTIM_RPROP,    /* Rprop, of etas 0.5 and 1.2 and sizes of 1e-6 to 50 */
    DT_OPTIM_LION,     /* Chen et al. 2023: only signs; decay shrinks the weight */
    DT_OPTIM_LAMB,     /* You et al. 2020: AdamW's direction, scaled to the weight's length */
    /* You et al. 2017: SGD by gradients scaled to .trust_coefficient of the weight's length. */
    DT_OPTIM_LARS,
    DT_OPTIM_MUON, /* Muon, in f32: orthogonal steps for matrices, else AdamW */
    /* Adafactor, of epsilon1 None and d 1; keeps one moment. For matrices that is only
     * the means of rows and columns. */
    DT_OPTIM_ADAFACTOR
} dt_optim_kind;

/* Parameters with settings of their own. A parameter belongs to the first group whose patterns
 * match its name. A group to which no parameter of the graph belongs, trained or not, is an error.
 *
 * .sparse is for tables of which a step reads few rows, as torch.optim.SparseAdam and SGD with
 * sparse gradients. A row (of the first axis) whose gradient is all 0 is unchanged: no decay, and
 * its moments stay. Step counts are the parameter's. Rows have at most 16384 elements.
 *
 * A step touches only rows indexed now or in the step before, if all of this holds. Only a
 * dt_embedding reads the table, with indices for at most half of its rows. The table has 65536
 * elements or more. There is one replica, without micro-batches, ZeRO, stages or tensor ranks.
 * Elsewhere only the update is cheaper. */
typedef struct dt_optim_group {
    const char *params;  /* patterns: "*.bias", "head.*, tok.weight"; see PATTERNS above */
    double lr_scale;     /* 0 = 1 */
    double weight_decay; /* 0 = the optimizer's; DT_ZERO = none */
    bool sparse;         /* skip rows whose gradient is 0: see above */
    /* LAMB and LARS do not scale steps here. Muon is AdamW. Adafactor keeps a mean for each
     * element. INVALID for other optimizers. */
    bool elementwise;
} dt_optim_group;

/* What a store keeps moments as; on the CPU, for SGD, Adam, AdamW and Lion. */
typedef enum dt_state_dtype {
    DT_STATE_F32,  /* the default */
    DT_STATE_BF16, /* half of the bytes, rounded stochastically */
    /* Dettmers et al. 2022: 8 bits, in blocks of 256 with an f32 scale; 1.016 bytes an element.
     * Parameters of fewer than 4096 elements keep f32. */
    DT_STATE_8BIT
} dt_state_dtype;

typedef enum dt_average_kind {
    DT_AVERAGE_NONE, /* the default: no average */
    DT_AVERAGE_EMA,  /* a <- a + (1 - decay) (w - a): torch.optim.swa_utils.get_ema_multi_avg_fn */
    DT_AVERAGE_SWA   /* the mean of all weights that it saw: AveragedModel's default */
} dt_average_kind;

/* A second set of weights: the average of the weights after step .start and every .every steps
 * later. Up to the first of these steps the average is the weights themselves. So it is at a
 * store's first step that averages the parameter. Buffers, such as batch norm's statistics, are not
 * averaged.
 *
 * An average takes the memory of one moment, and is in checkpoints as moments are.
 * dt_program_desc.averaged, dt_trainer_desc.averaged, dt_save_desc.averaged and dt_store_read use
 * it. All programs of a store share it. */
typedef struct dt_average {
    dt_average_kind kind;  /* 0 = DT_AVERAGE_NONE */
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
 *
 * AMSGradW has AdamW's. LAMB has AdamW's, with eps 1e-6. Muon has AdamW's for matrices and the
 * others, with weight_decay 0.1. Matrices have momentum 0.95, always Nesterov's. Without decay:
 *   RMSprop, Rprop   lr 1e-2
 *   Adagrad          lr 1e-2, eps 1e-10
 *   Adadelta         lr 1, eps 1e-6
 *   Adamax, NAdam    lr 2e-3
 *   RAdam            lr 1e-3
 *   Lion             lr 1e-4, beta2 0.99
 *   LARS             lr 1
 *
 * Adafactor: lr 1e-2 is the largest step relative to the weight's root mean square. eps 1e-3 is the
 * least root mean square that counts (epsilon2). beta2 0.8 is minus torch's beta2_decay, at least
 * 0: step t adds t^-beta2 of its squares to the mean.
 *
 * A member that its kind does not use must be 0 or DT_ZERO (INVALID).
 *
 * Ranges are PyTorch's: at least 0; beta1 and beta2 below 1, rho at most 1. Also alpha is at most
 * 1, and Muon's momentum below 1. */
typedef struct dt_optim_desc {
    dt_optim_kind kind;         /* 0 = AdamW */
    double lr;                  /* learning rate; 0 = as in the table */
    double weight_decay;        /* 0 = as in the table, DT_ZERO = none */
    double momentum, dampening; /* SGD's, RMSprop's, LARS's and Muon's momentum; SGD's dampening */
    bool nesterov;              /* SGD, LARS: Nesterov's momentum */
    double beta1, beta2, eps;   /* 0 = as in the table */
    double alpha;               /* RMSprop's; 0 = 0.99 */
    bool centered;              /* RMSprop's: by the variance */
    double rho;                 /* Adadelta's; 0 = 0.9 */
    double lr_decay;            /* Adagrad's: lr / (1 + steps * lr_decay) */
    double initial_accumulator; /* Adagrad's sum begins here */
    double trust_coefficient;   /* LARS's; 0 = 1e-3 */
    bool maximize;              /* maximize the loss: steps go along the gradient */
    double clip_norm;  /* 0 = off; the gradient's 2-norm over all parameters, as clip_grad_norm_ */
    double clip_value; /* 0 = off; each element, as clip_grad_value_ */
    /* Up to the first without .params. */
    dt_optim_group groups[DT_MAX_GROUPS - 1];
    dt_schedule schedule[DT_MAX_PHASES]; /* of the rate; {{0}}: lr in every step */
    dt_average average;                  /* {0} = none */
    /* Of moments; 0 = DT_STATE_F32. The same in all programs of a store. Cannot be combined with
     * .average, of 8 bits .sparse and ZeRO, and what .parameter_dtype cannot be either. */
    dt_state_dtype state_dtype;
} dt_optim_desc;

/* Computes the learning rate of one step of a description. A plateau is a constant here.
 * step: counted from 1.
 * Errors, with *lr 0: INVALID (the errors of desc; a phase with .epochs: give its .steps, with
 * dt_trainer_info.epoch_steps). */
DT_API dt_result dt_optim_lr(dt_ctx *ctx, const dt_optim_desc *desc, uint64_t step, double *lr);

/* ---- Programs: a graph compiled against a store
 *
 * The programs of a store share memory, so only one of them can have an open step. Programs with
 * .concurrent run beside it, one at a time, by dt_program_run and dt_program_start. After
 * DEVICE_LOST the store must be restored (dt_store_restore) or created again. */

typedef struct dt_program dt_program;

/* A term to minimise, such as dt_cross_entropy or dt_mean_loss. */
typedef struct dt_loss {
    dt_tensor term;    /* nil ends a list of losses */
    float coefficient; /* 0 = 1, DT_ZERO = 0 */
} dt_loss;

typedef enum dt_mode {
    DT_MODE_DEFAULT, /* train when gradients are computed, else eval */
    DT_MODE_TRAIN,   /* dropout drops, batch norm uses the batch's statistics */
    DT_MODE_EVAL     /* no dropout; batch norm uses the running statistics */
} dt_mode;

/* An input at another shape than the graph's, with the same number of dimensions. */
typedef struct dt_input_shape {
    dt_tensor input; /* an input of the graph; nil ends the list */
    dt_shape shape;  /* of one sample, or of the whole shared input */
} dt_input_shape;

/* An input or output in a buffer of the application's Vulkan device. Row-major, `batch` samples.
 * Nothing is copied. */
typedef struct dt_external_buffer {
    dt_tensor tensor; /* an input or output of the program; nil ends the list */
    /* Made with VK_BUFFER_USAGE_STORAGE_BUFFER_BIT. offset: a multiple of dt_device_info's
     * offset_alignment. bytes: at least the tensor's. */
    dt_vulkan_buffer memory;
} dt_external_buffer;

/* What a program computes.
 *
 * shapes: inputs with another shape in this program, such as shorter sequences. The shapes of all
 * other tensors follow as if the graph had been built with these. Parameters keep their shapes.
 *
 * external: inputs and outputs in the application's buffers, on a store of dt_ctx_desc.vulkan.
 * dt_program_write and _read refuse them. Class numbers and indices cannot be external. The
 * application orders its own use by the step's semaphores; docs/embedding.md has other ways. The
 * buffers must outlive the program.
 *
 * cached: layers with a cache (dt_attention_cached) keep keys and values of every run, and attend
 * to all of them. Without gradients.
 *
 * concurrent: may run while another program of the store has an open step. It sees the parameters
 * from before that step, or from after it once the step's commit has begun. It has memory of its
 * own. It cannot have .optim or gradients. */
typedef struct dt_program_desc {
    dt_tensor loss;                    /* short for losses[0].term */
    dt_loss losses[DT_MAX_TERMS];      /* minimised together: the sum of coefficient * value */
    dt_tensor metrics[DT_MAX_TERMS];   /* terms that are reported, not minimised */
    dt_tensor outputs[DT_MAX_OUTPUTS]; /* tensors that the host reads */
    /* Tensors whose dL/dy the host writes (dt_program_write_gradient) between forward and
     * backward. */
    dt_tensor host_gradients[DT_MAX_OUTPUTS];
    int batch;                                   /* samples; 0 = 1 */
    dt_input_shape shapes[DT_MAX_OUTPUTS];       /* see above */
    dt_external_buffer external[DT_MAX_OUTPUTS]; /* see above */
    const dt_optim_desc *optim;                  /* NULL: the program does not train */
    bool gradients;                              /* compute gradients without an optimizer */
    const char *params;     /* patterns of the parameters to train; NULL = all not frozen */
    dt_mode mode;           /* of dropout and batch norm; 0 = DT_MODE_DEFAULT */
    dt_precision precision; /* 0 = f32 */
    bool cached;            /* see above */
    /* Use the averages that an earlier program's dt_optim_desc.average keeps. Without gradients. */
    bool averaged;
    bool concurrent; /* see above */
    int in_flight;   /* the most steps that dt_program_start has in flight: 1 or 2; 0 = 1 */
    /* Gradients can be accumulated over any number of micro-batches (dt_step_desc). Doubles the
     * gradients' memory. */
    bool accumulate;
    /* Commit nothing if dt_report.empty. Needs .optim, targets that are inputs, and .in_flight 1. A
     * GPU's step waits once more. */
    bool skip_empty;
    size_t bucket_bytes; /* a backward segment ends after this many bytes of gradients; 0 = 4 MiB */
    uint64_t memory_bytes; /* the most transient bytes, by dt_recompute of some tensors; 0 = no
                            * limit */
    /* Do not check losses, gradients and updated values for NaN and infinity. With .clip_norm a
     * gradient that is not finite is still NUMERIC. */
    bool no_check;
    const char *label; /* for messages; copied; NULL = "program" */
} dt_program_desc;

/* Compiles a program, and allocates all memory that it needs. The error's text lists everything
 * wrong with the description.
 * Ownership: the store's.
 * Errors, with the store unchanged: INVALID (nil tensors or those of another graph; no parameter to
 * train; an op without a gradient; .shapes that do not fit, with the op or parameter; an open step;
 * a parameter without a gradient, as below), UNSUPPORTED, MEMORY, DEVICE_MEMORY (also a
 * memory_bytes that nothing fits: the text has the least that was found), DEVICE, DEVICE_LOST.
 *
 * A parameter without a gradient: no loss depends on it, or only through dt_detach, comparisons or
 * class numbers. If losses depend on it only through step functions (dt_sign, dt_round,
 * dt_heaviside), its gradient is 0; momentum and decay move it. */
DT_API dt_result dt_program_create(dt_store *store, const dt_program_desc *desc, dt_program **out);
/* Destroys a program. An open step is cancelled, or finished if its commit has started. */
DT_API void dt_program_destroy(dt_program *program);

/* Known before anything runs. Bytes are of device memory. */
typedef struct dt_program_info {
    int batch; /* samples */
    /* of the store */
    uint64_t param_bytes, gradient_bytes, state_bytes;
    uint64_t cache_bytes; /* keys and values that it keeps for programs of .cached */
    /* What it uses of the store's shared memory; with .concurrent: its own memory. */
    uint64_t transient_bytes;
    uint64_t io_bytes;       /* inputs, outputs, step and status */
    uint64_t flops;          /* of the matrix products and convolutions of a step */
    int launches;            /* kernels that a step runs */
    int segments;            /* parts of a step, for dt_program_advance */
    int launches_recomputed; /* launches that recomputation adds; counted in launches */
} dt_program_info;
/* Describes a program. */
DT_API void dt_program_get_info(const dt_program *program, dt_program_info *info);

/* Writes an input for the following steps: row-major, `batch` samples (one value for a shared
 * input). The values stay until they are written again. Class numbers and indices are checked here,
 * except those that the graph computes, and those of dt_gather, dt_scatter_add and dt_one_hot.
 * bytes: exactly the input's size.
 * Errors: INVALID (not an input of this program; bytes; a class number or index out of range, with
 * its row; an open step). */
DT_API dt_result dt_program_write(dt_program *program, dt_tensor input, const void *data,
                                  size_t bytes);
/* Writes dL/dy of a tensor listed in host_gradients. As dt_program_write, and also allowed between
 * two segments. */
DT_API dt_result dt_program_write_gradient(dt_program *program, dt_tensor y, const void *data,
                                           size_t bytes);
/* Reads an output of the last run: row-major, `batch` samples; from the end of the forward segment
 * on.
 * Errors: INVALID (not one of the outputs, bytes, nothing has run yet). */
DT_API dt_result dt_program_read(dt_program *program, dt_tensor output, void *data, size_t bytes);

/* {0} or NULL: the next step, of one batch.
 *
 * Micro-batches: run micro_batch = 0 .. micro_batches - 1 in order, with programs created with
 * .accumulate. These may be one, or several that train the same parameters. The last micro-batch
 * commits. After one that failed, or was cancelled in its backward pass, start again at 0. */
typedef struct dt_step_desc {
    uint64_t seed; /* of dropout: seed and step determine the random numbers */
    /* 0 = the number of steps committed to the store, plus 1. Number steps without an optimizer
     * yourself, or dropout's masks stay the same. */
    uint64_t step;
    uint32_t first_row; /* the row of this batch's first sample in the global batch */
    double lr;          /* 0 = the optimizer's, DT_ZERO = 0 */
    uint32_t micro_batch, micro_batches; /* micro_batches: 0 = 1 */
    /* For each loss the global batch's weight (dt_program_add_loss_weights); NULL = this batch's.
     * 0: no target of that loss counts. */
    const double *loss_weights;
    /* For each loss its coefficient, where 0 is 0; NULL = the program's. The same in all
     * micro-batches of a step. */
    const double *coefficients;
    /* On the application's Vulkan device: what the first work waits for, and what the last signals.
     * It is also signalled if the step is cancelled or fails, except on a lost device. */
    dt_vulkan_semaphore wait, signal;
} dt_step_desc;

/* The results of a step. A term's value is sum / weight. As an argument it may be NULL. It is empty
 * if a call fails before the step's end.
 *
 * empty: no loss has a target that counts, as all are ignored or have weight 0. Loss and gradients
 * are 0 (PyTorch: NaN). Momentum and decay still move weights; with .skip_empty the store is
 * unchanged. dt_step_desc.loss_weights decide if they are given, not this micro-batch. */
typedef struct dt_report {
    uint64_t step; /* its number: dt_step_desc.step */
    double loss;   /* the sum over all losses of coefficient * sum / weight */
    double loss_sum[DT_MAX_TERMS], loss_weight[DT_MAX_TERMS]; /* of this batch */
    double metric[DT_MAX_TERMS]; /* metric_sum / metric_weight; 0 if the weight is 0 */
    double metric_sum[DT_MAX_TERMS], metric_weight[DT_MAX_TERMS]; /* of this batch */
    double gradient_norm; /* before clipping; 0 if the step commits nothing */
    double lr;            /* before a group's .lr_scale; 0 if the step commits nothing */
    bool empty;           /* no loss has a target that counts */
    bool committed;       /* parameters and optimizer state are those after the step */
    bool skipped;         /* there was a NaN or infinity, and the store is unchanged */
    bool not_run;         /* skipped, because the step before it was: it was in flight already */
    /* The op that produced it first, "input", "optimizer", or NULL. A constant. */
    const char *fault_op;
} dt_report;

/* Runs a step and waits for it.
 * Errors: NUMERIC (a NaN or infinity in a loss or gradient, with the op; or in a weight, moment or
 * running statistic that the update would write, with the parameter), DEVICE_LOST, INVALID (an
 * input was never written, an open step in this store, a wrong dt_step_desc). After NUMERIC the
 * store is unchanged and the report is filled.
 *
 * .concurrent: also runs between the segments of another program's step, and sees whole steps. If
 * the other step's commit has begun, it is finished first, and that step is then DONE. */
DT_API dt_result dt_program_run(dt_program *program, const dt_step_desc *step, dt_report *report);

/* Starts a step and does not wait for it. With .in_flight = 2 the host may start the next one too.
 * Inputs and outputs then take memory twice. The bits are those of dt_program_run. On the CPU a
 * step has run when the call returns.
 *
 * If .in_flight steps are in flight, dt_program_start and dt_program_write first wait for the
 * oldest. Its report is lost, unless dt_program_wait gets it. If it failed, they return its error,
 * and do nothing else. A step that was in flight after a failed one does not run. It ends with
 * NUMERIC, and a report with .not_run. Steps that commit nothing wait for those before them.
 * Errors: as for dt_program_run. */
DT_API dt_result dt_program_start(dt_program *program, const dt_step_desc *step);
/* Waits for the oldest step that dt_program_start has in flight, and ends it. dt_program_read then
 * reads its outputs, until a dt_program_start reuses the slot.
 * Errors: INVALID (no such step), and those of dt_program_run. */
DT_API dt_result dt_program_wait(dt_program *program, dt_report *report);

/* Adds the weights of this batch's losses to weights[0 .. losses). Call it once for each
 * micro-batch, after writing its inputs, before the first micro-batch runs. It reads only the
 * targets.
 * Errors: UNSUPPORTED (targets that are computed in the graph), INVALID (an input was never
 * written, an open step), DEVICE_LOST. */
DT_API dt_result dt_program_add_loss_weights(dt_program *program, double *weights);

/* A step in segments: forward, several of backward, commit. Begin; advance until *state is DONE;
 * end. On a GPU no call waits. On the CPU each advance computes one segment. */
typedef enum dt_step_state {
    DT_STEP_RUNNING, /* not finished: call again, on a GPU later */
    DT_STEP_READY,   /* between two segments: outputs can be read, gradients written */
    DT_STEP_DONE     /* all segments have run: call dt_program_end */
} dt_step_state;

/* Begins a step in segments. Errors: INVALID, as for dt_program_run. */
DT_API dt_result dt_program_begin(dt_program *program, const dt_step_desc *step);
/* Starts the next segment, or checks whether the running one has ended.
 * Errors: INVALID (no open step; a host gradient was never written, and the step stays open),
 * DEVICE_LOST (the step has ended). */
DT_API dt_result dt_program_advance(dt_program *program, dt_step_state *state);
/* Advances a step by the work that is expected to take `ms` milliseconds, at least a part of one
 * launch. It stops after the forward segment if the host writes gradients. dt_program_advance may
 * be mixed in: it continues to the end of the segment. The bits are those of dt_program_run.
 * ms: of the device's time. While a GPU is busy with an earlier call, nothing more is started.
 * Errors: as for dt_program_advance; INVALID (ms is not above 0). */
DT_API dt_result dt_program_advance_for(dt_program *program, double ms, dt_step_state *state);
/* Ends a step all of whose segments were started. Waits for the last one.
 * Errors: as for dt_program_run. */
DT_API dt_result dt_program_end(dt_program *program, dt_report *report);
/* Ends a step early. Waits for the running segment, or the running part of it. A commit that has
 * started is finished, as by dt_program_end. Otherwise parameters and optimizer state are as before
 * dt_program_begin.
 * Errors: INVALID (no open step), DEVICE_LOST, NUMERIC (as for dt_program_end, if the commit had
 * started). */
DT_API dt_result dt_program_cancel(dt_program *program, dt_report *report);
