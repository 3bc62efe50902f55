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
    dt_tensor input;  /* one with a batch dimension; for others see dt_trainer_write */
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
    uint64_t row;      /* of the data (dt_dataset.pick) */
    uint64_t position; /* in the batch of the whole job */
    /* Where a text of an error may be written, at most why_bytes with the closing 0: it becomes
     * part of the step's. Empty at first. */
    char *why;
    size_t why_bytes;
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
    /* NULL, or [rows]: sample i is row pick[i] of the columns' data and for .sample, as dt_split
     * gives them. They are not checked against the data. */
    const uint32_t *pick;
    /* NULL, or [rows]: an epoch of training draws `rows` samples with replacement, each in
     * proportion to its weight (0 or more, finite, not all 0). Evaluation takes each once. With
     * .pick, weights[i] (and lengths[i]) is of sample i, so of row pick[i]. */
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

typedef enum dt_balance {
    DT_BALANCE_EQUAL,   /* shards of equal size */
    DT_BALANCE_MEASURED /* sizes follow each replica's speed, so results are not reproducible */
} dt_balance;

/* What the replicas of a job, threads and ranks alike, share out instead of having it each
 * (.shard_state; Rajbhandari et al. 2020, "ZeRO"). The bits are those of none, and so are
 * checkpoints, whatever the number of replicas that wrote them. */
typedef enum dt_shard {
    DT_SHARD_NONE,
    DT_SHARD_OPTIMIZER, /* ZeRO-1: moments and averages; see .shard_state */
    /* ZeRO-2: gradients too. A bucket's sum goes to the replicas that own its parameters alone,
     * and its place is another bucket's then. Parameters come from their owners when a step
     * begins. */
    DT_SHARD_GRADIENTS,
    /* ZeRO-3: parameters too. Those of a bucket come before the segments that read them, forward
     * and again backward, and their place is another bucket's then; between ranks the next bucket
     * is on its way meanwhile. */
    DT_SHARD_PARAMETERS
} dt_shard;

/* When replicas tell each other what they have learnt. */
typedef enum dt_train_mode {
    DT_TRAIN_SYNCHRONOUS, /* the default: gradients, in every step */
    /* Each replica makes .local_steps steps over its own part of each batch, with an optimizer of
     * its own and without a word to the others: a round. It ends early with an epoch. Then the
     * differences of all (its beginning less what a replica has now) are averaged, and the outer
     * optimizer moves the round's beginning by them; all go on from there. So there is one exchange
     * a round, which is what slow links need; the results depend on the number of replicas. Local
     * SGD (McMahan et al. 2017) with .outer = {1, DT_ZERO}, DiLoCo (Douillard et al. 2023) with
     * AdamW and .outer = {0}. See docs/distributed.md. */
    DT_TRAIN_LOCAL,
    /* A worker of parameter servers (server.h: dt_server), which hold the parameters, update them
     * and hand out work; each dt_trainer_step computes a shard of a batch for them. One device;
     * workers come and go at any time. */
    DT_TRAIN_SERVER
} dt_train_mode;

/* The outer optimizer of DT_TRAIN_LOCAL: SGD with momentum over the averaged differences d,
 * v = momentum * v + d, w = w - lr * (d + momentum * v), or w - lr * v without Nesterov's. Both
 * numbers are taken as f32. */
typedef struct dt_outer_desc {
    double lr;       /* 0 = 0.7; above 0 */
    double momentum; /* 0 = 0.9, DT_ZERO = 0; below 1 */
    bool no_nesterov;
} dt_outer_desc;

/* What replaces the numbers that processes exchange at a round's end, where links are slow. What an
 * approximation leaves out is added to the next round's (error feedback), so nothing is lost in the
 * long run. Sums are made in the order of ranks: all have the same bits, which depend on how
 * replicas are spread over processes. Within one process nothing is compressed. */
typedef enum dt_compress {
    DT_COMPRESS_NONE, /* the default: f32 */
    DT_COMPRESS_BF16, /* half of the bytes */
    DT_COMPRESS_INT8, /* a quarter: 8 bits, and a scale for each 256 elements */
    DT_COMPRESS_TOPK  /* the largest alone: .compress_keep of them, 8 bytes each */
} dt_compress;

/* In which order the devices of a pipeline compute their parts of the micro-batches. The bits are
 * the same with all of them; what differs is how long devices wait for each other, and for how many
 * micro-batches at once activations are kept. p devices, m micro-batches (.accumulate). */
typedef enum dt_pipeline_schedule {
    DT_PIPELINE_1F1B,       /* the default: (p - 1) / m of the time idle, p micro-batches kept */
    DT_PIPELINE_FILL_DRAIN, /* GPipe: as much idle, all m kept */
    /* Several chunks of the model on each device (.chunks = v): (p - 1) / (v m) idle, about
     * 2 p / v + p micro-batches of a chunk kept, v times as many tensors between devices. */
    DT_PIPELINE_INTERLEAVED,
    DT_PIPELINE_ZERO_BUBBLE /* ZB-H1: parameters' gradients wait for idle time: (p - 1) / (3 m) */
} dt_pipeline_schedule;

typedef struct dt_trainer_desc {
    /* As in dt_program_desc. */
    dt_tensor loss;
    dt_loss losses[DT_MAX_TERMS];
    /* Bars, logs, histories and dt_watch.metric call one by its dt_label, or its op: "accuracy", a
     * second one "accuracy 2". Of several losses those with a label are shown too. */
    dt_tensor metrics[DT_MAX_TERMS];
    int batch;                  /* samples per step of the whole job; 0 = 1 */
    const dt_optim_desc *optim; /* NULL = {0} */
    const char *params;
    dt_dataset data; /* to train on; every rank provides the whole set */
    uint64_t seed;   /* for initial values, sample order and dropout */
    /* A safetensors file with initial parameters and buffers, read as by dt_store_load, on rank 0.
     * NULL = initialise them as their dt_init says. */
    const char *load;
    bool no_shuffle; /* take the rows in order in every epoch */
    dt_tail tail;
    /* Leaves out steps in which no loss of the whole batch (DT_TRAIN_LOCAL: of a replica's part)
     * has a target that counts: no decay, momentum or batch norm statistics. Their samples are used
     * up; dt_train_report.empty counts them. Needs an .in_flight of 0 or 1, and makes it 1. */
    bool skip_empty;
    /* Each shard is computed in this many parts, one after the other; 0 = 1. More than 16 take 4
     * more bytes a parameter on each device, so that the sum's error does not grow. */
    int accumulate;
    /* The most transient bytes of each replica while it trains, as in dt_program_desc: where those
     * are more, tensors are computed again by the backward pass. The results are the same, so ranks
     * may differ. 0 = as many as keeping everything takes. */
    uint64_t memory_bytes;
    /* The batch is split into this many shards. Each gives its own gradient; the gradients are
     * added in a fixed tree, so the result does not depend on the number of replicas: with 8
     * shards, 1, 2, 4 or 8 replicas give the same bits. 0 = the number of replicas, or what the
     * checkpoint says; at most `batch`. Batch norm takes its statistics over one shard. */
    int shards;
    dt_balance balance;
    /* Names as dt_store_desc.device takes them, separated by commas; the same device may be named
     * several times, and "cpu:2" stands for two CPU replicas. "cpu", "vulkan:0,vulkan:1,cpu",
     * "auto"; NULL = "auto". */
    const char *devices;
    /* Threads of each CPU replica; 0 = 1 with several replicas, the context's number with one. With
     * more than 1, the first replica uses the context's threads. */
    int threads;
    bool pin; /* bind each replica's thread to a processor of its own */
    /* NULL = this process alone. Borrowed: destroy it after the trainer. The trainer's calls return
     * BUSY while another thread uses it. None of your own operations may be pending. */
    dt_comm *comm;
    size_t bucket_bytes; /* gradients exchanged at a time; 0 = 4 MiB, the first bucket 1 MiB */
    bool no_overlap;     /* exchange gradients only after the backward pass: for measurements */
    /* A folder for dt_trainer_checkpoint; NULL = none. Rank 0 writes to it, and makes it, in one
     * that is there. With .checkpoint_steps dt_trainer_create looks whether files can be made in
     * it, and dt_trainer_fit before its first step: IO on all ranks where they cannot. */
    const char *checkpoint;
    int checkpoint_steps; /* write one every so many steps; 0 = only on request */
    /* How many steps are under way at once on a GPU that trains alone (one device, one rank, one
     * shard, no .accumulate), so that it does not wait for the host between them. 0: two in
     * dt_trainer_epoch and in a dt_trainer_fit without callbacks, one in dt_trainer_step; 1; or 2,
     * and dt_trainer_step too does not wait for the step that it starts, and a fit's callbacks see
     * a step when the next one has begun. The bits are the same. Elsewhere it is always one: sums
     * pass the host before a commit. */
    int in_flight;
    int checkpoint_keep; /* how many of the newest to keep; 0 = 3 */
    bool strict_resume;  /* dt_trainer_resume: fail if the newest checkpoint is damaged */
    /* .load, dt_trainer_load and dt_trainer_resume accept NaN and infinities in weights, moments
     * and statistics; false: FORMAT (.load: INVALID). Rank 0's value decides. */
    bool allow_nonfinite;
    bool averaged; /* dt_trainer_evaluate takes the averages of .optim->average for weights */
    /* DT_TRAIN_LOCAL goes with no .shards (each replica's part is one), no DT_BALANCE_MEASURED
     * (INVALID) and no .optim->average (UNSUPPORTED). `batch` is still that of the whole job. */
    dt_train_mode mode;
    int local_steps; /* of a round of DT_TRAIN_LOCAL; 0 = 100 */
    /* Gossip: a round has .gossip x .local_steps steps, and behind each .local_steps within it each
     * rank averages its weights with one other rank instead of with all: pairs follow from the
     * number of the meeting. What a rank has mid-round is its own; at the round's end all become
     * the same, as without. 0 or 1 = none. See docs/distributed.md. */
    int gossip;
    dt_outer_desc outer;
    dt_compress compress; /* of DT_TRAIN_LOCAL; what was left out is not part of a checkpoint */
    double compress_keep; /* DT_COMPRESS_TOPK: of each bucket; 0 = 0.01; to 1 */
    /* A grid: .replicas of the model, each a pipeline of .pipeline stages. The job has a device for
     * each: all ranks' .devices together, rank by rank, each rank's in its order. Device number p
     * has stage p mod .pipeline of replica p / .pipeline, so the stages of a replica are
     * neighbours; a rank may have any of them. replicas 0 = as many as there are devices for;
     * pipeline 0 or 1 = no pipeline, a device a replica. The model is cut into stages, and the
     * .accumulate micro-batches of a step go through them one behind the other. A device holds the
     * parameters, gradients and optimizer state of its stage alone; between ranks go tensors of the
     * cuts, forward and back, and a stage's gradients among the replicas. On CPUs a step gives the
     * same bits as one device with the same .shards (0 = one a replica) and .accumulate. Where
     * dt_stage marks nothing, the cuts balance the stages' work and let few bytes cross. On
     * each rank's host all values and state come together to be saved, evaluated or read by way of
     * dt_trainer_store; in between that memory is given back to the system (Linux), unless the
     * application has the store. With .tensor each stage is a squad of members (see there): the
     * job has .replicas x .pipeline x .tensor devices, and number p is member p mod .tensor of
     * stage p / .tensor mod .pipeline of replica p / (.tensor x .pipeline). With shard_state 1 the
     * replicas of a stage share out its state; 2 and 3 are UNSUPPORTED. */
    int replicas, pipeline;
    dt_pipeline_schedule schedule;
    int chunks; /* stages of each device, for DT_PIPELINE_INTERLEAVED; 0 = 2 */
    /* 1 = the replicas of the job, on threads and ranks, share out the optimizer's moments and the
     * averages of weights (ZeRO-1; Rajbhandari et al. 2020): each keeps those of its part of the
     * parameters, updates that part, and gets the rest from the others, once a step, in the bytes
     * of all parameters. The bits are those of 0, and so are checkpoints: one of 4 replicas goes on
     * with 2, with 1, or without sharing. With B blocks of 256 elements of all parameters (each
     * padded to blocks), P of those, R replicas and A arrays (moments, and one for averages),
     * replica r has n = floor((r+1) B / R) - floor(r B / R) blocks, and its state takes 1024 *
     * (1 + 2 ceil(P / 256) + ceil(B / 128) + A n) bytes; without sharing n = B. Optimizers that
     * look at whole parameters (LAMB, LARS, Muon, Adafactor) are shared out by whole parameters.
     * Between ranks a process keeps what its replicas update once more in host memory. If a rank is
     * lost, its part of the state is: weights can be saved then (dt_store_save), and the job goes
     * on from a checkpoint. dt_store_read of a moment or an average works where all replicas are of
     * this process, and gradients cannot be read. DT_TRAIN_LOCAL goes with 0 alone (UNSUPPORTED).
     * With .pipeline or .tensor the replicas of each stage or member share out what it has, by the
     * same formula; a rank that is lost ends the job then, which goes on from a checkpoint.
     * 0 = each replica has all.
     * 2 and 3 (dt_shard): let a replica's own part be O elements, F those that are not trained,
     * and buffers, which each has, and T all that are trained, each padded to blocks. Its gradients
     * take 4 (O + F + V) bytes: V are the most elements of buckets whose gradients are there at
     * once, mostly two (.bucket_bytes), one that is computed and one that leaves; T where a step
     * has several micro-batches; and V or T once for each partial sum. Its parameters take
     * 4 (O + F + T) with 2, and 4 (O + F + W) with 3: W are those that a segment reads, mostly one
     * bucket. Each process has two buckets more on the host. So small buckets take least memory;
     * there are at most 56. Lazy groups are shared out by whole parameters too.
     * Between steps parameters are with their owners. dt_trainer_store, evaluation, prediction and
     * files bring all of them to each replica, which takes memory for them, and the next step lets
     * them go. With several ranks all call dt_trainer_store; behind a step, what reads parameters
     * of the store is INVALID until it is called again. Where the application has a program on that
     * store the memory stays. If a rank is lost, so is its part of the parameters, and the job goes
     * on from a checkpoint. A NaN is told without the op that made it. A Vulkan device has these
     * arenas in its memory; the host has the gradients' once more, and O + F of parameters, from
     * where others take them. UNSUPPORTED with .balance. */
    int shard_state;
    /* With shard_state 2 or 3, also of one replica: the part that a replica on a Vulkan device owns
     * lies on the host, moments, averages, parameters and gradients, and the processor's kernels
     * update it (Ren et al. 2021, "ZeRO-Offload"); DeepSpeed's offload_optimizer. In the formulas
     * of 2 and 3 the device has no O: its parameters take 4 (F + T) or 4 (F + W), its gradients
     * 4 (F + V), and no state; the host has state_bytes, 8 (O + F), and 4 (F + V) for what comes.
     * Each step sends the bytes of all gradients to the host, and of all parameters to the device
     * (twice with 3, where they go in between). An update has the bits of the processor's class,
     * forward and backward parts those of the device; so any number of replicas has the same bits,
     * and checkpoints are as ever. Where devices are processors nothing moves. */
    bool offload;
    /* Of DT_TRAIN_SERVER: where the servers are, in the order of their places, with commas between
     * them: each a "host:port", or the "file:///path" that it listens by; and key,
     * job, attempt and integrity, as the servers have them. It goes with no .load, .checkpoint,
     * .comm, .shard_state, .averaged or .balance; optimizer, .shards (0 = as they say) and all else
     * must be the servers'. */
    const char *servers;
    const dt_comm_desc *servers_by;
    int servers_wait_ms; /* a server that is away, or silent, for longer is PEER_LOST; 0 = 30 s */
    /* Tensor parallelism: squads of so many members, each on one of the .devices, all of one
     * kind, share out the parameters that layers mark, with their gradients and optimizer state:
     * linear layers by dt_linear_desc.tensor, embeddings by dt_embedding_desc.tensor, any
     * parameter by dt_part, dt_nn_multi_head_attention by heads, dt_nn_swiglu and dt_nn_geglu by
     * hidden units. Cross-entropy and accuracy take logits in parts. The members of a squad
     * compute all of its samples, and meet behind each pair of layers, forward and backward
     * (Shoeybi et al., "Megatron-LM", 2019). The model is written as for one device, and so are
     * files; the host of each rank has room for all values too (see .pipeline). .replicas squads
     * share the batch: a grid, in which device number p of the job (see there) is member p mod
     * .tensor of replica p / .tensor; gradients of each part are summed over the squads. The same
     * bits for as many members and .shards (0 = one a squad), however many squads there are and
     * on whichever ranks, and those of one device within rounding. With .pipeline each stage of a
     * replica is a squad, and what goes from stage to stage goes from each member to the one of
     * its number: the bits of as many members without stages. 0 or 1 = none. Goes with
     * .accumulate and shard_state 1; with more of that, .mode, .balance, optimizers that look at
     * whole parameters, and rows that do not take parts (normalisation, dropout, softmax, a sum
     * along the axis) it is UNSUPPORTED; INVALID: marks that do not divide, or none, devices that
     * are no such grid. */
    int tensor;
    /* Between those layers the members of a squad share out the rows of the sequence, axis 0 of
     * [positions, width] where it divides: norms, dropout and residuals are computed of own rows,
     * an all_gather stands in front of column layers and a reduce_scatter behind row layers
     * (Korthikanti et al., "Reducing activation recomputation in large transformer models", 2022).
     * What takes no rows gets all of them. Dropout draws what it draws for the whole sequence. */
    bool tensor_rows;
    /* Fixed slices: the model is cut into so many parts, a multiple of .tensor and at most 64, and
     * each of the .tensor devices (0 or 1 = one) computes those that follow each other, one after
     * the other. All that is said of members is true of slices, so the same bits for as many
     * slices and .shards, whatever .tensor, .replicas and ranks are; and marks have to divide by
     * slices. 0 = .tensor. More slices than members are UNSUPPORTED with .pipeline and with
     * .shard_state. Costs: what no layer marks is kept and computed once a slice. */
    int tensor_slices;
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
 * (dt_shard), which are fetched now alone. A value written to it between two steps
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
DT_API dt_result dt_trainer_write(dt_trainer *trainer, dt_tensor input, const void *data,
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
DT_API dt_result dt_trainer_metric(dt_trainer *trainer, double value);
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
 * .checkpoint_steps and dt_trainer_request_checkpoint are written at the next round's end. */
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
 * `checkpoint_keep` checkpoints. */
DT_API dt_result dt_trainer_checkpoint(dt_trainer *trainer);
/* Continues from the newest checkpoint in that folder. If there is none, *found (which may be NULL)
 * is false and nothing changes. If it is damaged (FORMAT; also by a NaN), the newest good one of an
 * earlier step is taken: the result is DT_OK, and a warning in the log and in dt_ctx_error() names
 * the damage and the step. If no good one is left, or with strict_resume, the result is the error
 * of dt_trainer_load, and its message names the good ones, if there are any. */
DT_API dt_result dt_trainer_resume(dt_trainer *trainer, bool *found);
/* Asks for a checkpoint after the current step. Safe in a signal handler, on any thread and on any
 * rank. */
DT_API void dt_trainer_request_checkpoint(dt_trainer *trainer);

/* How a trainer has been set up, and where it stands. */
typedef struct dt_trainer_info {
    int rank, world_size;
    /* In this process, in the whole job; of a pipeline: of which a stage is here, and all. */
    int local_replicas, replicas;
    int shards, batch, accumulate;
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
    /* Memory that parallel training takes in addition to the model: on the host, and on devices,
     * where a replica needs gradient_bytes for each partial sum that it cannot add up itself. */
    uint64_t staging_bytes, subtree_bytes;
    int stages;           /* of a pipeline, chunks counted each; 0: there is none */
    int alive;            /* the most micro-batches whose activations a device keeps at once */
    int members;          /* that share out a model (.tensor); 0: there are none */
    double bubble;        /* by unit times, how long devices are idle for the time that they work */
    uint64_t state_bytes; /* of this process's first replica: the optimizer's; see shard_state; */
    /* while it trains, its parameters' and gradients', with places for those that come and go */
    uint64_t replica_param_bytes, replica_gradient_bytes;
    uint64_t checkpoints_failed;  /* that could not be written, since the trainer was made */
    const char *checkpoint_error; /* why the newest of them; "": none. Until the next one */
} dt_trainer_info;
DT_API void dt_trainer_get_info(const dt_trainer *trainer, dt_trainer_info *info);
