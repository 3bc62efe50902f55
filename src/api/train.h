/* ---- Training: a model, its data, devices and ranks --------------------------------------------
 *
 * A trainer owns one replica of the model on each of its devices and trains them as one. A step
 * takes `batch` samples for the whole job and gives each replica its share; gradients are summed
 * while the backward pass is still running; then all replicas make the same update. With a dt_comm
 * the same job runs on several processes and hosts, and nothing else in the program changes.
 *
 * Threads: every function in this part is called on the context's thread, unless its comment says
 * otherwise. A trainer with several devices starts one thread for each device but the first, and
 * those that read the next batch (dt_dataset.threads). */

typedef struct dt_trainer dt_trainer;

/* The values of one input of the model, for all samples of a dataset. */
typedef struct dt_column {
    dt_tensor input;  /* one with a batch dimension; for others see dt_trainer_set_input */
    const void *data; /* the values, sample after sample; NULL: dt_dataset.sample provides them */
    dt_dtype dtype;   /* of data: the input's; for an f32 or i32 input also U8 */
    float scale, offset; /* U8 to f32: value * scale + offset; scale 0 = 1, DT_ZERO = 0 */
    /* data is one class number a sample, U8 or I32, and an f32 input [classes] gets 1 at its place
     * and 0 elsewhere. One that is no class is an error of its step. */
    bool one_hot;
} dt_column;

/* Which sample is wanted. Compute it from these fields alone, so that results do not depend on the
 * number of devices. */
typedef struct dt_sample {
    uint64_t seed; /* the trainer's */
    uint64_t epoch, step;
    uint64_t row;      /* of the data (dt_dataset.indices) */
    uint64_t position; /* in the batch of the whole job */
    /* Room for an error's text, error_bytes with its closing 0. It becomes part of the step's
     * error. Empty at first. */
    char *error;
    size_t error_bytes;
} dt_sample;

/* Samples to train on or to evaluate. What it points to stays yours and must outlive its use. */
typedef struct dt_dataset {
    uint64_t rows; /* how many samples */
    dt_column columns[DT_MAX_COLUMNS];
    /* Optional: fills in or changes a sample after its columns have been copied; do augmentation
     * here. values[i] is what columns[i].input will receive, in its type. A result other than
     * DT_OK ends the step with that result. Threads: called on a thread of the trainer, one call at
     * a time, or on .threads of them at once. */
    dt_result (*sample)(void *user, const dt_sample *sample, void *const *values);
    void *user;
    /* Threads that read the next batch; 0 = 1, at most 64. With more, .sample is called by several
     * at once, for different samples. The values are the same. */
    int threads;
    /* NULL, or [rows]: sample i is row indices[i] of the columns' data and for .sample, as
     * dt_data_split gives them. They are not checked against the data. PyTorch's Subset. */
    const uint32_t *indices;
    /* NULL, or [rows]: an epoch of training draws `rows` samples with replacement, each in
     * proportion to its weight (0 or more, finite, not all 0). Evaluation takes each once. With
     * .indices, weights[i] (and lengths[i]) is of sample i, so of row pick[i]. */
    const float *weights;
    /* NULL, or [rows]: batches of training have samples of like lengths, in an order by chance: an
     * epoch's order is cut into pieces of 32 batches, each is sorted by length, and batches change
     * places. Not with .weights. */
    const uint32_t *lengths;
    const dt_augment_desc *augment; /* NULL = none */
} dt_dataset;

/* What happens to the last batch of an epoch when there are too few samples to fill it. */
typedef enum dt_tail {
    DT_TAIL_KEEP, /* the default: a smaller step */
    DT_TAIL_DROP, /* no step */
    /* It is filled up with samples of weight 0. Requires losses whose targets can be ignored
     * (dt_cross_entropy of an input), and no batch norm. */
    DT_TAIL_PAD
} dt_tail;

/* How the replicas of a job share what they learn. */
typedef enum dt_train_mode {
    DT_TRAIN_SYNCHRONOUS, /* the default: gradients are summed in every step */
    /* Local SGD (McMahan et al. 2017) and DiLoCo (Douillard et al. 2023): each replica makes
     * .local.steps steps by itself, a round. Then the weights are averaged: see dt_local_desc. */
    DT_TRAIN_LOCAL,
    /* A worker of parameter servers (dt_server): each dt_trainer_step computes the gradient of one
     * batch slice for them. One device. Workers may join and leave at any time. */
    DT_TRAIN_SERVER
} dt_train_mode;

/* In which order the stages of a pipeline compute the micro-batches of a step. All orders give the
 * same bits. With p stages and m micro-batches (.accumulate) they differ in idle time, as a share
 * of the time that devices compute, and in how many micro-batches keep their activations. */
typedef enum dt_pipeline_schedule {
    DT_PIPELINE_1F1B,       /* the default: (p - 1) / m idle; p micro-batches are kept */
    DT_PIPELINE_FILL_DRAIN, /* GPipe: (p - 1) / m idle; all m are kept */
    /* Megatron's interleaved schedule: v chunks of the model on each device (.parallel.chunks). (p - 1) /
     * (v m) idle; 2 p / v + p micro-batches of a chunk are kept; v times the tensors are sent. */
    DT_PIPELINE_INTERLEAVED,
    DT_PIPELINE_ZERO_BUBBLE /* ZB-H1: weight gradients fill idle time: (p - 1) / (3 m) idle */
} dt_pipeline_schedule;

typedef enum dt_balance {
    DT_BALANCE_EQUAL,   /* batch slices of equal size */
    DT_BALANCE_MEASURED /* sizes follow each replica's speed; results are not reproducible */
} dt_balance;

/* The stages of ZeRO (Rajbhandari et al. 2020): what the replicas of a job shard, so that each has
 * its shard of it instead of all. */
typedef enum dt_zero_stage {
    DT_SHARD_NONE,      /* the default: each replica has all */
    DT_SHARD_OPTIMIZER, /* ZeRO-1: optimizer state and averages */
    /* ZeRO-2: also gradients. The sum of a bucket goes only to the replica that owns it. */
    DT_SHARD_GRADIENTS,
    /* ZeRO-3, FSDP: also parameters. A bucket is gathered before the segments that read it. */
    DT_SHARD_PARAMETERS
} dt_zero_stage;

/* How one model is trained on several devices: data (.parallel.replicas) x pipeline (.parallel.pipeline) x tensor
 * (.tensor) parallelism, with ZeRO. {0} is data parallelism: a replica on each device.
 * All ranks' .devices together, rank by rank, are the job's devices. Device p has tensor rank
 * p % tensor of stage (p / tensor) % pipeline of replica p / (tensor * pipeline).
 * What can be combined, memory formulas and costs: docs/distributed.md. */
typedef struct dt_parallel_desc {
    int replicas; /* data-parallel copies of the model; 0 = devices / (pipeline * tensor) */
    /* The number of gradients that a batch is split into. They are added in a fixed order, so the
     * bits depend on this number and not on replicas: 8 slices give the same on 1, 2, 4 or 8.
     * 0 = the number of replicas, or what the checkpoint says; at most .batch. */
    int batch_slices;
    dt_balance balance;
    size_t bucket_bytes; /* gradients that are summed at a time; 0 = 4 MiB, the first 1 MiB */
    bool no_overlap;     /* sum gradients after the backward pass only: for measurements */
    int pipeline;        /* stages that the model is cut into; 0 or 1 = none. See dt_stage */
    dt_pipeline_schedule schedule;
    int chunks; /* of each device, for DT_PIPELINE_INTERLEAVED; 0 = 2 */
    /* Tensor ranks: each replica (or stage) is split across this number of devices of one kind.
     * Layers with .tensor set hold 1 / tensor of their weights, gradients and state on each.
     * 0 or 1 = none. */
    int tensor;
    /* Between those layers each tensor rank has its share of the positions, axis 0 of [positions,
     * width] (Korthikanti et al. 2022). Saves the memory of activations. */
    bool sequence_parallel;
    /* Slices that the tensor axis is split into, a multiple of .tensor, at most 64. The bits depend
     * on this number and not on .tensor. 0 = .tensor. */
    int tensor_slices;
    /* What replicas shard: 1 optimizer state, 2 also gradients, 3 also parameters (dt_zero_stage).
     * Results and checkpoints have the bits of 0, the default. */
    int zero_stage;
    /* With zero_stage 2 or 3: the shard of a Vulkan device lies on the host, and the CPU updates it
     * (Ren et al. 2021, "ZeRO-Offload"). */
    bool offload;
} dt_parallel_desc;

/* The outer optimizer of DT_TRAIN_LOCAL: SGD with momentum on the averaged differences d,
 * v = momentum * v + d, w = w - lr * (d + momentum * v), or w - lr * v without Nesterov. Both
 * numbers are rounded to f32. */
typedef struct dt_outer_desc {
    double lr;       /* 0 = 0.7; above 0 */
    double momentum; /* 0 = 0.9, DT_ZERO = 0; below 1 */
    bool no_nesterov;
} dt_outer_desc;

/* How ranks encode what they exchange at the end of a round. What an encoding loses is added to the
 * next round (error feedback). All ranks have the same bits, which depend on how replicas are
 * spread over ranks. Replicas of one rank exchange f32. */
typedef enum dt_compress {
    DT_COMPRESS_NONE, /* the default: f32 */
    DT_COMPRESS_BF16, /* half of the bytes */
    DT_COMPRESS_INT8, /* a quarter: 8 bits, and a scale for each 256 elements */
    DT_COMPRESS_TOPK  /* only the largest elements: .compress_ratio of them, 8 bytes each */
} dt_compress;

/* DT_TRAIN_LOCAL: a round is .steps steps of each replica, with its own optimizer. It ends early
 * with an epoch. Then the differences (weights at the round's start minus weights now) are
 * averaged over all replicas, and the outer optimizer moves the round's start by them.
 * Local SGD: .local.outer = {1, DT_ZERO}. DiLoCo: AdamW and .local.outer = {0}. See docs/distributed.md. */
typedef struct dt_local_desc {
    int steps; /* of a round; 0 = 100 */
    /* Gossip averaging: after every .steps steps, average the weights with one other rank. After
     * every gossip * .steps steps, with all ranks as above. 0 or 1 = no gossip. */
    int gossip;
    dt_outer_desc outer;
    dt_compress compress;  /* what is lost is not part of a checkpoint */
    double compress_ratio; /* DT_COMPRESS_TOPK: share of each bucket that is sent; 0 = 0.01; to 1 */
} dt_local_desc;

/* DT_TRAIN_SERVER: which parameter servers a worker works for. */
typedef struct dt_worker_desc {
    /* Where the servers listen, in the order of their .index, separated by commas: "host:port", or
     * the "file:///path" that they listen by. */
    const char *addresses;
    const dt_comm_desc *security; /* key, job, attempt and integrity, as the servers have them */
    int wait_ms; /* a server that is away or silent for longer is PEER_LOST; 0 = 30 s */
} dt_worker_desc;

/* Where and when a trainer writes checkpoints. */
typedef struct dt_checkpoint_desc {
    /* NULL = none. Rank 0 makes it, in a folder that exists, and writes to it. A folder that cannot
     * be written is IO on all ranks before the first step. */
    const char *folder;
    int every_steps; /* write one after every this many steps; 0 = only when asked for */
    int keep;        /* the number of the newest ones that are kept; 0 = 3 */
    bool strict;     /* dt_trainer_resume fails if the newest checkpoint is damaged */
    /* Accept NaN and infinities in checkpoints, in dt_trainer_load and in .load; false: FORMAT, or
     * INVALID for .load. Rank 0's value decides. */
    bool allow_nonfinite;
} dt_checkpoint_desc;

/* Limits of memory and of how far a GPU runs ahead. */
typedef struct dt_limits_desc {
    /* The most transient bytes of a replica while it trains: see dt_program_desc.memory_bytes. The
     * bits are the same, so ranks may differ. 0 = what keeping everything takes. */
    uint64_t memory_bytes;
    /* Steps in flight on a GPU that trains alone (one rank, device, batch slice, micro-batch):
     * 1, or 2 so that it does not wait for the host. 0 = 2 in dt_trainer_epoch, and in a
     * dt_trainer_fit without callbacks; else 1. Same bits. See dt_trainer_wait. */
    int in_flight;
} dt_limits_desc;

/* {0} but for a loss and data trains on one device. Members are ordered as they are usually written,
 * because C++20 requires designated initialisers in the order of declaration. */
typedef struct dt_trainer_desc {
    /* The model. */
    dt_tensor loss; /* short for losses[0].term */
    dt_loss losses[DT_MAX_TERMS];
    /* Terms that are reported, not minimised. Their names are their dt_label, or their op's name:
     * "accuracy", a second one "accuracy 2". Losses with a label are reported too. */
    dt_tensor metrics[DT_MAX_TERMS];
    const dt_optim_desc *optim; /* NULL = {0} */
    const char *params;         /* patterns of the parameters to train; NULL = all not frozen */
    const char *load; /* a safetensors file with the initial values, read by rank 0; NULL = none */
    bool averaged;    /* dt_trainer_evaluate uses the averaged weights (.optim->average) */
    /* The data. */
    dt_dataset data; /* to train on; every rank provides the whole set */
    int batch;       /* samples of a step, over the whole job; 0 = 1 */
    /* Micro-batches of each batch slice, computed one after the other to save memory; 0 = 1. More
     * than 16 take 4 more bytes a parameter on each device, for an exact sum. */
    int accumulate;
    dt_tail tail;
    /* Leave out steps in which no loss has a target that counts: no decay, no momentum, no batch
     * norm statistics. dt_train_report.empty counts them. Needs .limits.in_flight of 0 or 1. */
    bool skip_empty;
    uint64_t seed;   /* of initial values, order of samples and dropout */
    bool no_shuffle; /* take the rows in order in every epoch */
    /* The devices and ranks. */
    /* Names as in dt_store_desc.device, separated by commas. "cpu:2" is two CPU replicas:
     * "vulkan:0,vulkan:1,cpu". NULL = "auto". */
    const char *devices;
    /* Threads of each CPU replica; 0 = 1, or the context's number if there is one replica. With
     * more than 1, the first replica uses the context's threads. */
    int threads;
    bool pin; /* bind each replica's thread to its own processor */
    /* NULL = this process only. Borrowed: destroy it after the trainer. The trainer's calls return
     * BUSY while another thread uses it. None of your own operations may be pending. */
    dt_comm *comm;
    dt_train_mode mode;
    dt_parallel_desc parallel;
    dt_local_desc local;   /* of DT_TRAIN_LOCAL */
    dt_worker_desc server; /* of DT_TRAIN_SERVER */
    dt_checkpoint_desc checkpoint;
    dt_limits_desc limits;
} dt_trainer_desc;

/* Creates the replicas, gives all of them rank 0's values, and checks that all ranks have the same
 * model, settings and build. All ranks call it. desc is not kept, but what its data and comm and
 * the graph's context refer to is. No parameters can be added to the graph afterwards. The graph
 * owns the trainer; dt_trainer_destroy ends it earlier. Errors, on all ranks and with *out NULL:
 * INVALID (what dt_program_create says; fewer samples or shards than replicas; a difference between
 * ranks, which is named; two metrics of one name; weights of another model), IO and FORMAT (from
 * `load`), DEVICE, DEVICE_MEMORY, MEMORY; and those of dt_comm. */
DT_API dt_result dt_trainer_create(dt_graph *graph, const dt_trainer_desc *desc, dt_trainer **out);
/* Destroys a trainer and its replicas. NULL is allowed. */
DT_API void dt_trainer_destroy(dt_trainer *trainer);
/* The store of this process's first replica: create programs from it to predict, or save its
 * weights. Of a pipeline: one on the CPU with the values of all stages, which are fetched now and
 * behind every step from then on, so with several ranks all of them call it; NULL if a device or a
 * rank is lost whose values it has not; so of .tensor, and of parameters that are shared out
 * (dt_zero_stage), which are fetched now alone. A value written to it between two steps
 * reaches all replicas of this process; with several ranks, writing is INVALID. So is a program
 * with an optimizer. The trainer owns it. */
DT_API dt_store *dt_trainer_store(dt_trainer *trainer);

/* Sets the value of an input made by dt_input_shared, from the next step or evaluation on: a mask,
 * class weights, a temperature. The data is copied; `bytes` must be its exact size. All ranks call
 * it with the same values, which is checked by a hash. The value remains until it is written again,
 * also across a resume, but is not part of a checkpoint. Write each such input before the first
 * step. Errors, on all ranks and with nothing changed: INVALID (not a shared input that a loss or
 * metric reads; a wrong `bytes`; a class number or index out of range; ranks that differ), and
 * those of dt_comm. */
DT_API dt_result dt_trainer_set_input(dt_trainer *trainer, dt_tensor input, const void *data,
                                      size_t bytes);

/* The results of one or more steps, over the whole job. All but the times are the same on all
 * ranks.
 * With DT_TRAIN_LOCAL nobody knows of the whole job but at a round's end. What dt_trainer_step
 * reports in the middle of a round is of that step and this process: losses, metrics, samples (of
 * the whole batch), the norm of the first replica's gradient here, steps skipped here. Where
 * round_ended, all is of the whole round and job, and the same on all ranks; gradient_norm is that
 * of the averaged difference. dt_trainer_epoch reports the rounds that ended in it. */
typedef struct dt_train_report {
    uint64_t step;           /* steps committed since the beginning of training */
    uint64_t epoch;          /* of these samples, counted from 0 */
    bool epoch_ended;        /* these samples were the last of the epoch */
    uint64_t samples, steps; /* in this report */
    double loss;             /* the sum of coefficient * loss_sum / loss_weight */
    double loss_sum[DT_MAX_TERMS], loss_weight[DT_MAX_TERMS];
    double metric[DT_MAX_TERMS]; /* metric_sum / metric_weight; 0 where nothing weighs */
    double metric_sum[DT_MAX_TERMS], metric_weight[DT_MAX_TERMS];
    double gradient_norm; /* of the newest step, before clipping */
    /* The rate of the newest step, by schedule, plateau or dt_trainer_set_lr, before a group's
     * .lr_scale. 0 of dt_trainer_evaluate, and of a server's worker: servers make the update. */
    double lr;
    double seconds; /* wall time in this process */
    /* Of that, waiting for gradients after its own backward pass; of a pipeline, the time for which
     * this process's first device waited for other stages. */
    double wait_seconds;
    double data_seconds; /* of that, waiting for samples */
    /* Of that, this process's first device, by the host's clock: sums of forward and backward parts
     * (of recomputing too, and with the waits at meetings in them) and of updates. A GPU that runs
     * on while the host goes on ends its forward part in the time of the backward one. 0 where a
     * GPU trains alone (.in_flight), with local steps, and of a server's workers: there is
     * dt_profile. */
    double forward_seconds, backward_seconds, commit_seconds;
    uint64_t round;   /* DT_TRAIN_LOCAL: rounds that have ended since the beginning of training */
    bool round_ended; /* all replicas have the same weights again */
    uint64_t skipped; /* and replicas' steps that were skipped for a NaN or infinity */
    /* Steps in which no loss of the whole batch has a target that counts (DT_TRAIN_LOCAL: replicas'
     * steps). Their loss is 0; momentum and decay move weights unless .skip_empty. 0 of
     * dt_trainer_evaluate, which makes no steps: there every loss_weight 0 says it of the set. */
    uint64_t empty;
    /* Checkpoints that could not be written, of dt_trainer_step and _epoch; a fit counts them in
     * dt_fit_state. Why: dt_trainer_info. */
    uint64_t checkpoints_failed;
} dt_train_report;

/* Makes one step. report may be NULL. On an error the weights are as before the step: NUMERIC (a
 * NaN or infinity in a loss or gradient, with op and rank, or in what the update would write, with
 * the parameter; training can go on), INVALID (a label out of range, with its row; a shared input
 * that was never written), what dt_dataset.sample returned, DEVICE_LOST, DEVICE_MEMORY, or an error
 * of dt_comm. After one of dt_comm the message says which step the weights belong to; the store can
 * be read and saved, and the job continues from a checkpoint. The next call tries a failed step
 * again. The retry's samples are prefetched immediately: if you repair the data after the error,
 * the next call may still fail once.
 * With DT_TRAIN_LOCAL an error in the middle of a round is this rank's alone, and its step is to be
 * tried again; the others go on, and wait at the round's end. A replica whose step has a NaN or
 * infinity leaves that step out, and the others go on; all ranks get NUMERIC at the round's end,
 * with the first of its reasons, when the round has ended. Ranks that set different rates or
 * coefficients (INVALID), or an outer step that is not finite (NUMERIC), end a round with the
 * weights that it began with. Where a rank or a device is lost, the others learn it at the round's
 * end, and all keep the weights of the round's beginning, or of its end where it had come.
 * With DT_TRAIN_SERVER a step is one shard of a batch, and the report is of that shard; the store
 * has the parameters that it was computed with. When an epoch is over for all workers, a step
 * computes nothing (`steps` 0, `epoch_ended`) and brings its last parameters. NUMERIC: a NaN or
 * infinity was found here, and the servers skip the batch. PEER_LOST, REFUSED, INVALID: a server is
 * gone, refuses this worker, or is another one than before; the next call tries again. */
DT_API dt_result dt_trainer_step(dt_trainer *trainer, dt_train_report *report);
/* Waits for the steps that are under way, for .in_flight = 2. With it dt_trainer_step returns with
 * the last step that it started still under way: its report and error come with the next call, or
 * with this one; `steps` of the first report is 0, and at an epoch's end all have ended. A step
 * behind one that failed is made again, so it fails nothing. Evaluation, checkpoints, loading,
 * dt_trainer_set_coefficient and dt_trainer_store end what is under way first; between two calls of
 * the last the store may be busy, and using it INVALID. report may be NULL. Errors: as for
 * dt_trainer_step. */
DT_API dt_result dt_trainer_wait(dt_trainer *trainer, dt_train_report *report);
/* Makes steps until the epoch ends; after dt_trainer_resume that may be from its middle on. A step
 * that fails with NUMERIC is skipped; NUMERIC is returned at the end unless another error ends the
 * epoch first. */
DT_API dt_result dt_trainer_epoch(dt_trainer *trainer, dt_train_report *report);
/* Computes losses and metrics over a dataset without training. All ranks call it, and each takes a
 * share. A pipeline's trainer does it on the CPU of each rank, with the values of all stages.
 * batch: samples per replica (of a pipeline: per rank) at a time; 0 = as in training. The first
 * call creates programs. In the middle of a round (DT_TRAIN_LOCAL) it is INVALID. A NaN or infinity
 * in a loss is NUMERIC: the text names the first op, and *report covers all samples. */
DT_API dt_result dt_trainer_evaluate(dt_trainer *trainer, const dt_dataset *data, int batch,
                                     dt_train_report *report);
/* Sets the learning rate from the next step on, instead of the optimizer's or its schedule's. 0
 * really means 0. All ranks must set the same rate, or the next step is INVALID on all of them. It
 * is not part of a checkpoint. Errors, with the rate unchanged: INVALID (negative, not finite, or
 * too large for an f32, also after multiplication by a group's lr_scale). */
DT_API dt_result dt_trainer_set_lr(dt_trainer *trainer, double lr);
/* Tells a plateau (DT_SCHEDULE_PLATEAU) the value of its metric, after an evaluation or an epoch;
 * the next step's rate follows. Ignored before the plateau's phase. What it has seen is part of a
 * checkpoint. All ranks tell the same value, as the reports have it: rates that differ are INVALID
 * in the next step. A NaN counts as not better, as in PyTorch. Errors: INVALID (no plateau in the
 * optimizer's schedule). */
DT_API dt_result dt_trainer_report_metric(dt_trainer *trainer, double value);
/* Sets the coefficient of losses[loss] from the next step on. 0 really means 0. All ranks must set
 * the same value, as with the learning rate; it is not part of a checkpoint either. Errors, with
 * the coefficient unchanged: INVALID (no such loss; a value that is not finite or too large for an
 * f32). */
DT_API dt_result dt_trainer_set_coefficient(dt_trainer *trainer, int loss, double value);

/* Writes all state that training changes, and nothing that depends on devices or ranks: parameters,
 * buffers, optimizer state, step, sample order, shards. All ranks call it; rank 0 writes, and all
 * get its result. The file appears completely or not at all. Errors: IO (training can go on),
 * MEMORY.
 * With DT_TRAIN_LOCAL a file also has the outer optimizer's momentum and the moments of each
 * replica, which rank 0 collects: it takes memory for them while it saves. As many replicas go on
 * from it with the same bits; of another number R, the k-th takes the moments of the file's k-th,
 * counted around, so bits differ. In the middle of a round saving is INVALID; the checkpoints of
 * .checkpoint.every_steps and dt_trainer_request_checkpoint are written at the next round's end. */
DT_API dt_result dt_trainer_save(dt_trainer *trainer, const char *path);
/* Continues from a file written by dt_trainer_save. Rank 0 reads it; as in saving, `path` matters
 * there alone. There may be any number of replicas up to the file's shards. If its shards are not
 * the current ones, programs are created for them; should that fail, the trainer can only be saved
 * and destroyed. The model must have parameters and buffers of the same names and shapes, in any
 * order, and the same kind of optimizer. If the graph differs otherwise, a warning in the log names
 * the first op that does. Errors, with the state unchanged: IO, FORMAT (truncated, or a wrong
 * checksum; a value that is NaN or infinite, with its tensor), INVALID (another model: the first
 * parameter that differs is named; another batch, seed or number of samples; other shards than
 * asked for; fewer shards than replicas, or more than samples in a batch). A file of either .mode
 * can be read in the other: local steps begin with the moments of the file for all replicas, and a
 * round that is under way is dropped. */
DT_API dt_result dt_trainer_load(dt_trainer *trainer, const char *path);
/* Saves to the folder `checkpoint`, under a name with the step, and deletes all but the newest
 * `checkpoint.keep` checkpoints. */
DT_API dt_result dt_trainer_checkpoint(dt_trainer *trainer);
/* Continues from the newest checkpoint in that folder. If there is none, *found (which may be NULL)
 * is false and nothing changes. If it is damaged (FORMAT; also by a NaN), the newest good one of an
 * earlier step is taken: the result is DT_OK, and a warning in the log and in dt_ctx_error() names
 * the damage and the step. If no good one is left, or with checkpoint.strict, the result is the error
 * of dt_trainer_load, and its message names the good ones, if there are any. */
DT_API dt_result dt_trainer_resume(dt_trainer *trainer, bool *found);
/* Asks for a checkpoint after the current step. Safe in a signal handler, on any thread and on any
 * rank. */
DT_API void dt_trainer_request_checkpoint(dt_trainer *trainer);

/* How a trainer has been set up, and where it stands. */
typedef struct dt_trainer_info {
    int rank, world_size;
    /* Replicas in this process (with a pipeline: that have a stage here); in the whole job. */
    int local_replicas, replicas;
    int batch_slices, batch, accumulate;
    int replica_batch; /* samples of this process's first replica in a full batch */
    int micro_batch;   /* samples of one of its micro-batches */
    int micro_batches; /* number of micro-batches */
    uint64_t epoch_steps;
    uint64_t step, epoch;
    uint64_t round;  /* DT_TRAIN_LOCAL: rounds that have ended, */
    int round_steps; /* and steps of the one under way */
    int buckets;
    uint64_t gradient_bytes;
    uint64_t transient_bytes; /* of this process's first replica while it trains */
    /* Memory that parallel training takes besides the model: on the host, and on devices, where a
     * replica keeps gradient_bytes for each partial sum that it cannot add yet. */
    uint64_t staging_bytes, partial_sum_bytes;
    int stages;             /* of the pipeline, each chunk counted; 0 = no pipeline */
    int live_micro_batches; /* the most whose activations a device keeps at the same time */
    int tensor_ranks;       /* 0 = no tensor parallelism */
    double bubble;          /* estimated idle time / compute time of the pipeline's schedule */
    uint64_t state_bytes;   /* optimizer state of this process's first replica */
    /* Its parameters and gradients while it trains, with room for those that are gathered. */
    uint64_t replica_param_bytes, replica_gradient_bytes;
    uint64_t checkpoints_failed;  /* that could not be written, since the trainer was made */
    const char *checkpoint_error; /* why the newest of them; "": none. Until the next one */
} dt_trainer_info;
DT_API void dt_trainer_get_info(const dt_trainer *trainer, dt_trainer_info *info);
