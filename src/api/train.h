/* ---- Training: a model, its data, devices and ranks
 *
 * A trainer owns one replica of the model on each of its devices and trains them as one. A step
 * takes `batch` samples for the whole job and gives each replica its share. With a dt_comm the same
 * job runs on several processes and hosts.
 *
 * Threads: the context's. A trainer starts one thread for each device after the first, those of
 * dt_dataset.threads, and one for .checkpoint.background. */

typedef struct dt_trainer dt_trainer;

/* The values of one input, for all samples of a dataset. */
typedef struct dt_column {
    dt_tensor input; /* an input with a sample axis; for shared ones see dt_trainer_set_input */
    /* The values, sample after sample. NULL: dt_dataset.sample provides them, or .stream. */
    const void *data;
    /* Of data, or of a stream: the input's; for an f32 or i32 input also U8. 0 is DT_F32, also for
     * labels: an i32 input needs DT_I32 or DT_U8 here. */
    dt_dtype dtype;
    float scale, offset; /* U8 to f32: value * scale + offset; scale 0 = 1, DT_ZERO = 0 */
    /* data has one class number for each sample, U8 or I32. The f32 input [classes] gets 1 at that
     * class and 0 elsewhere. Any other number is an error of its step. */
    bool one_hot;
} dt_column;

/* Which sample is wanted. Compute it from these fields only: then results do not depend on the
 * number of devices. */
typedef struct dt_sample {
    uint64_t seed;        /* the trainer's */
    uint64_t epoch, step; /* of the step that wants it; epochs from 0, steps of training from 1 */
    uint64_t row;         /* of the data (dt_dataset.indices), or of the stream */
    uint64_t position;    /* in the batch of the whole job */
    /* Room for an error's text: error_bytes with the closing 0, empty at first. The text becomes
     * part of the step's error. */
    char *error;
    size_t error_bytes;
} dt_sample;

/* One sample of a stream, which dt_stream_desc.next fills in. */
typedef struct dt_stream_sample {
    uint64_t row; /* its number in the stream, from 0 */
    /* By column: room for the sample, in the column's .dtype, [shape of its input]; of a .one_hot
     * column one class number. */
    void *const *values;
    /* By column: the bytes of that room. Set it to the bytes that came, if they differ, and write
     * no more than the room. Another number than the room is FORMAT. */
    size_t *bytes;
    bool end; /* set it, and return DT_OK, if the stream has no further sample */
    /* as in dt_sample */
    char *error;
    size_t error_bytes;
} dt_stream_sample;

/* A stream of samples, without a length and read once: a socket, a simulator, a log that grows
 * (PyTorch's IterableDataset).
 *
 * Order: blocks of .shuffle samples of the stream are each put in the order of dt_shuffle(order,
 * .shuffle, seed of the trainer, number of the block). A step takes the next .batch samples of that
 * order. Only the last block of a stream that ends is smaller.
 *
 * Ranks: each reads the whole stream, and all streams give the same samples. So the results do not
 * depend on the number of replicas and ranks.
 *
 * Resume: a checkpoint has the position. With .seek the stream continues at the beginning of its
 * block. Without it the samples before that position are read again and dropped, so the new stream
 * begins at sample 0. A stream without a past gives .seek and returns DT_OK: it continues with new
 * samples.
 *
 * Errors of a step, which start with .name, and after which the step is not made: IO (the stream
 * ended, and the samples that are left do not fill the step's batch), TIMEOUT (.stall_ms), FORMAT
 * (.bytes), INVALID (no .seek, and an earlier position is loaded), and what .next or .seek
 * returned. The next step tries again; an end is final. A sample that .sample or .one_hot refuses
 * stays, and each further step fails with it: check samples in .next.
 *
 * Trainers: give each its own dt_stream_desc and source. Two that share them are not detected, and
 * take samples from each other.
 *
 * Memory: .shuffle + 4 * .batch samples, and 24 bytes for each of them.
 *
 * Threads: .next and .seek are called on a thread of the trainer, one call at a time, also between
 * steps. dt_trainer_destroy waits for a call that has begun, and so does a change of the batch
 * slices (dt_trainer_load, DT_BALANCE_MEASURED). */
typedef struct dt_stream_desc {
    const char *name; /* for errors; NULL = "stream" */
    /* Fills in the next sample. Required. If none has come within about 100 ms, return
     * DT_ERROR_TIMEOUT. It is called again at once, for the same sample. */
    dt_result (*next)(void *user, dt_stream_sample *sample);
    /* Makes sample `row` the next one. Also called before the first sample. NULL = not possible. */
    dt_result (*seek)(void *user, uint64_t row);
    void *user;       /* passed to both */
    uint32_t shuffle; /* samples of the shuffle buffer, at most 2^30; 0 or 1 = do not shuffle */
    /* The longest that a step waits for one sample; 0 = 30000. Above .comm's op_timeout_ms the job
     * ends with LATE instead of TIMEOUT. */
    int stall_ms;
} dt_stream_desc;

/* Samples to train on or to evaluate. What it points to must outlive its use, unchanged: a trainer
 * prefetches batches, between calls too (but see .no_prefetch).
 *
 * .sample fills in or changes a sample after its columns have been copied. values[i] is what
 * columns[i].input will receive, in its type. A result other than DT_OK ends the step with that
 * result.
 *
 * Threads: .sample is called on .threads threads of the trainer at once, for different samples.
 * Callbacks of several trainers run at the same time. */
typedef struct dt_dataset {
    /* The number of samples. With .stream: samples of an epoch; 0 = an epoch without an end. */
    uint64_t rows;
    dt_column columns[DT_MAX_COLUMNS]; /* one for each input, up to the first without .input */
    /* See above; NULL = columns only. */
    dt_result (*sample)(void *user, const dt_sample *sample, void *const *values);
    void *user;  /* passed to .sample */
    int threads; /* that read the next batch; 0 = 1, at most 64 */
    /* NULL, or [rows]: sample i is row indices[i] of the columns' data and for .sample, as
     * dt_data_split gives them (PyTorch's Subset). They are not checked against the data. */
    const uint32_t *indices;
    /* NULL, or [rows], of sample i, so of row indices[i]: 0 or more, finite, not all 0. Training
     * draws `rows` samples an epoch in proportion to them, with replacement. Evaluation takes each
     * sample once. */
    const float *weights;
    /* NULL, or [rows], of sample i: batches of training have samples of like lengths. Each 32
     * batches of an epoch are sorted, and batches are shuffled. Not with .weights. */
    const uint32_t *lengths;
    const dt_augment_desc *augment; /* NULL = none */
    /* NULL, or where all columns' values come from: see above. Only to train on, and not with
     * .indices, .weights, .lengths, and partners of .augment. .sample may change its samples. */
    const dt_stream_desc *stream;
} dt_dataset;

/* The last batch of an epoch, if there are too few samples to fill it. */
typedef enum dt_tail {
    DT_TAIL_KEEP, /* the default: a smaller step */
    DT_TAIL_DROP, /* no step */
    /* Filled up with samples of weight 0. Needs losses whose targets can be ignored
     * (dt_cross_entropy of an input), and no batch norm. */
    DT_TAIL_PAD
} dt_tail;

/* How the replicas of a job share what they learn. */
typedef enum dt_train_mode {
    DT_TRAIN_SYNCHRONOUS, /* the default: gradients are summed in every step */
    /* Local SGD (McMahan et al. 2017) and DiLoCo (Douillard et al. 2023): see dt_local_desc. */
    DT_TRAIN_LOCAL,
    /* A worker of parameter servers (dt_server): see dt_worker_desc. */
    DT_TRAIN_SERVER
} dt_train_mode;

/* The order in which p pipeline stages compute the m micro-batches (.accumulate) of a step. All
 * give the same bits. They differ in idle time, as a share of computing time, and in the
 * micro-batches whose activations are kept. */
typedef enum dt_pipeline_schedule {
    DT_PIPELINE_1F1B,       /* the default: (p - 1) / m idle; p micro-batches are kept */
    DT_PIPELINE_FILL_DRAIN, /* GPipe: (p - 1) / m idle; all m are kept */
    /* Megatron's interleaved schedule, v = .parallel.chunks on each device: (p - 1) / (v m) idle,
     * for v times the tensors sent. At most p (v + 1) - 1 micro-batches of a chunk are kept. */
    DT_PIPELINE_INTERLEAVED,
    DT_PIPELINE_ZERO_BUBBLE /* ZB-H1: weight gradients fill idle time: (p - 1) / (3 m) idle */
} dt_pipeline_schedule;

typedef enum dt_balance {
    DT_BALANCE_EQUAL,   /* batch slices of equal size */
    DT_BALANCE_MEASURED /* sizes follow each replica's speed; results are not reproducible */
} dt_balance;

/* ZeRO (Rajbhandari et al. 2020): what the replicas of a job, threads and ranks alike, shard.
 * Results and checkpoints have the bits of DT_SHARD_NONE. Memory, costs and limits:
 * docs/distributed/zero.md. */
typedef enum dt_zero_stage {
    DT_SHARD_NONE,      /* the default: each replica has all */
    DT_SHARD_OPTIMIZER, /* ZeRO-1: optimizer state and averages */
    /* ZeRO-2, FSDP2's reshard_after_forward=False: also gradients. Those of a pipeline, or of
     * .accumulate, are whole until the last micro-batch. */
    DT_SHARD_GRADIENTS,
    /* ZeRO-3, FSDP: also parameters, gathered forward and again backward, for each micro-batch. */
    DT_SHARD_PARAMETERS
} dt_zero_stage;

/* How ranks encode what they exchange. Replicas of one rank exchange f32. All ranks have the same
 * bits, which depend on how replicas are spread over ranks.
 *
 * DT_TRAIN_SYNCHRONOUS: gradients, in every step (torch's bf16_compress_hook). A rank rounds its
 * f32 sum to bf16. The ranks' values are summed in f32, and the sum is rounded to bf16. No error
 * feedback: a step has no memory of the one before. See
 * docs/distributed/data-parallel.md#gradients-in-bf16.
 *
 * DT_TRAIN_LOCAL: the differences at the end of a round. What an encoding loses is added to the
 * next round (error feedback), and is not part of a checkpoint. */
typedef enum dt_compress {
    DT_COMPRESS_NONE, /* the default: f32 */
    DT_COMPRESS_BF16, /* half of the bytes */
    DT_COMPRESS_INT8, /* local: a quarter: 8 bits, and a scale for each 256 elements */
    DT_COMPRESS_TOPK  /* local: only the largest elements: .compress_ratio of them, 8 bytes each */
} dt_compress;

/* How one model is trained on several devices: data x pipeline x tensor parallelism, with ZeRO.
 * {0}: a replica on each device. What can be combined:
 * docs/distributed/settings.md#combinations.
 *
 * Devices: all ranks' .devices together, rank by rank, are the job's devices. Device p has tensor
 * rank p % tensor of stage (p / tensor) % pipeline of replica p / (tensor * pipeline).
 *
 * Data: the batch is cut into .batch_slices, each with its own gradient and batch norm statistics.
 *
 * Pipeline: a device holds one stage of the model, with its gradients and optimizer state. Stages
 * are cut by work, or by dt_stage. See docs/distributed/large-models.md#a-pipeline-of-devices.
 *
 * Tensor: layers with .tensor set (dt_linear_desc, dt_embedding_desc, attention, dt_nn_swiglu and
 * dt_nn_geglu) and parameters of dt_tensor_parallel are split across devices of one kind (Shoeybi
 * et al. 2019, "Megatron-LM"). Each holds 1 / tensor of their weights, gradients and optimizer
 * state. See docs/distributed/large-models.md#tensor-parallelism. */
typedef struct dt_parallel_desc {
    int replicas; /* data-parallel copies of the model; 0 = devices / (pipeline * tensor) */
    /* Gradients that a step adds in a fixed order. The bits depend on this number, not on replicas.
     * At most .batch. 0 = the number of replicas, or the checkpoint's number. */
    int batch_slices;
    dt_balance balance;
    size_t bucket_bytes;   /* gradients that are summed at a time; 0 = 4 MiB, the first 1 MiB */
    bool no_overlap;       /* sum gradients only after the backward pass: for measurements */
    dt_compress compress;  /* of what ranks exchange; not with tensor ranks */
    double compress_ratio; /* DT_COMPRESS_TOPK: share of each bucket that is sent; 0 = 0.01; to 1 */
    int pipeline;          /* stages that the model is cut into; 0 or 1 = no pipeline */
    dt_pipeline_schedule schedule; /* order of micro-batches; 0 = DT_PIPELINE_1F1B */
    int chunks;                    /* on each device, of DT_PIPELINE_INTERLEAVED; 0 = 2 */
    int tensor; /* tensor ranks, at most 64: devices that each stage is split across; 0 = 1 */
    /* Sequence parallelism: between those layers each tensor rank has its share of the positions,
     * axis 0 of [positions, width], if it divides (Korthikanti et al. 2022). Saves activations. */
    bool sequence_parallel;
    /* Slices of the model, a multiple of .tensor, at most 64; 0 = .tensor. The bits depend on this
     * number and not on .tensor. */
    int tensor_slices;
    int zero_stage; /* a dt_zero_stage: 0 to 3 */
    /* Replicas of a shard group (HSDP, FSDP's HYBRID_SHARD); 0 = all, 1 = nothing is sharded. It
     * divides the number of replicas. A rank has replicas of one group, or whole groups. */
    int shard_degree;
    /* With zero_stage 2 or 3: a Vulkan device's shard is in host memory, and the CPU updates it
     * (Ren et al. 2021, "ZeRO-Offload"). Also for one replica. */
    bool offload;
} dt_parallel_desc;

/* The outer optimizer of DT_TRAIN_LOCAL: SGD with momentum on the averaged differences d.
 *
 *     v = momentum * v + d
 *     w = w - lr * (d + momentum * v)         without Nesterov: w - lr * v
 *
 * Both numbers are rounded to f32. */
typedef struct dt_outer_desc {
    double lr;        /* 0 = 0.7; above 0 */
    double momentum;  /* 0 = 0.9, DT_ZERO = 0; below 1 */
    bool no_nesterov; /* see above */
} dt_outer_desc;

/* DT_TRAIN_LOCAL: a round is .steps steps of each replica, over its own part of each batch and with
 * its own optimizer. A round ends early with an epoch. Then the differences (weights at the round's
 * start minus weights now) are averaged over all replicas. The outer optimizer moves the round's
 * start by the average. Results depend on the number of replicas. Leave .parallel.batch_slices at
 * 0.
 *
 * Local SGD: .local.outer = {1, DT_ZERO}. DiLoCo: AdamW and .local.outer = {0}. See
 * docs/distributed/local-steps.md. */
typedef struct dt_local_desc {
    int steps; /* of a round; 0 = 100 */
    /* Gossip averaging: every .steps steps a rank averages its weights with one other rank. Every
     * gossip * .steps steps the round ends, with all ranks. 0 or 1 = no gossip. */
    int gossip;
    dt_outer_desc outer;
} dt_local_desc;

/* DT_TRAIN_SERVER: the parameter servers of a worker, which has one device. Its model, optimizer,
 * data and all other settings must be the servers'. .parallel.batch_slices may be 0, for their
 * number. A worker has no .load, .checkpoint.folder, .comm, .parallel.zero_stage, .averaged or
 * .parallel.balance. */
typedef struct dt_worker_desc {
    /* Where the servers listen, separated by commas, in the order of their .index. Each is a
     * "host:port", or the "file:///path" that the server listens by. */
    const char *addresses;
    const dt_comm_desc *security; /* key, job, attempt and integrity, as the servers have them */
    int wait_ms;                  /* PEER_LOST if a server is away or silent for longer; 0 = 30 s */
} dt_worker_desc;

/* Where and when a trainer writes checkpoints.
 *
 * folder: one job at a time writes to it. Another gets IO, from dt_trainer_fit before its first
 * step, or else from its first checkpoint.
 *
 * background: a thread writes, from a copy. Rank 0 keeps one of the file's size, and with .sharded
 * each rank one of its part. A step waits only for the copy. The next checkpoint, dt_trainer_wait,
 * _load, _resume, _destroy and the end of a fit wait for the thread. All but _destroy count a
 * failure, and dt_trainer_wait returns it. The thread's own memory is malloc's. UNSUPPORTED with a
 * server.
 *
 * sharded: a checkpoint is a folder, to which each rank writes the tensors of which it has most. So
 * does dt_trainer_save. All ranks must see it. dt_trainer_load and dt_trainer_resume read both
 * kinds, whatever this is. UNSUPPORTED with local steps and with a server. */
typedef struct dt_checkpoint_desc {
    /* NULL = none. Rank 0 makes it, in a folder that exists. IO on all ranks if it cannot be
     * written: from dt_trainer_fit before its first step, and with .every_steps from
     * dt_trainer_create. */
    const char *folder;
    /* Write one after every this many steps; 0 = never by step. dt_trainer_fit writes one at each
     * epoch's end in any case. */
    int every_steps;
    int keep;        /* the number of the newest checkpoints that are kept; 0 = 3 */
    bool strict;     /* dt_trainer_resume fails if the newest checkpoint is damaged */
    bool background; /* a thread writes them; see above */
    bool sharded;    /* each rank writes its part; see above */
    /* Accept NaN and infinities in weights, moments and statistics: of .load (else INVALID),
     * dt_trainer_load and dt_trainer_resume (else FORMAT). Rank 0's value decides. */
    bool allow_nonfinite;
} dt_checkpoint_desc;

/* Limits of memory and of how far a GPU runs ahead.
 *
 * in_flight: steps in flight at once on a GPU that is the whole job: one rank, device and batch
 * slice. It needs no offload, local steps or DT_BALANCE_MEASURED. With .accumulate it also needs no
 * .skip_empty and no running statistics of batch norm. Elsewhere it is 1. With 2, dt_trainer_step
 * returns while its step is in flight (dt_trainer_wait). A fit's callbacks see a step when the next
 * one has begun. The bits are the same. */
typedef struct dt_limits_desc {
    /* The most transient bytes of each replica while it trains, as in dt_program_desc; 0 = no
     * limit. The bits are the same, so ranks may differ. */
    uint64_t memory_bytes;
    /* 1 or 2. 0 = 2 in dt_trainer_epoch, and in a dt_trainer_fit without callbacks; else 1. */
    int in_flight;
} dt_limits_desc;

/* {0} except for a loss and data trains on one device.
 *
 * replicas_of: a trainer of this graph. The new trainer trains the same replicas, with losses,
 * .params, optimizer, data and batch of its own. So the two networks of a GAN have a trainer each,
 * and an agent's policy and value too. The host makes steps of all of them in any order, the same
 * one on all ranks. All have the same bits on any number of replicas. Steps are numbered over all
 * of them: .seed and the momentum of DT_SCHEDULE_ONE_CYCLE see that number. A schedule's rates
 * count the batches of its own trainer.
 *
 * Leave .load, .checkpoint and all from .parameter_dtype to .server 0: they are the first
 * trainer's. The first one saves and loads, also where the others are in their data. Create all
 * before it loads. dt_trainer_save, _load, _checkpoint and _resume of another are INVALID. Call
 * dt_trainer_set_input for each trainer. A .sample that computes noise from dt_sample gives
 * trainers of one .seed the same noise. UNSUPPORTED if the first one has .pipeline, .tensor,
 * .tensor_slices, .zero_stage, DT_BALANCE_MEASURED, or another mode than DT_TRAIN_SYNCHRONOUS.
 * Destroying that one destroys the others. */
typedef struct dt_trainer_desc {
    dt_tensor loss;               /* short for losses[0].term */
    dt_loss losses[DT_MAX_TERMS]; /* minimised together: the sum of coefficient * value */
    /* Terms that are reported, not minimised, by their dt_label, or their op: "accuracy", a second
     * one "accuracy 2". Of several losses those with a label are reported too. */
    dt_tensor metrics[DT_MAX_TERMS];
    const dt_optim_desc *optim; /* NULL = {0} */
    const char *params;         /* patterns of the parameters to train; NULL = all not frozen */
    /* A safetensors file of initial parameters and buffers, read on rank 0 as by dt_store_load.
     * NULL = their dt_init. */
    const char *load;
    bool averaged;          /* dt_trainer_evaluate uses the averaged weights (.optim->average) */
    dt_precision precision; /* of steps and evaluations, on all replicas; 0 = f32 */

    dt_dataset data; /* to train on; every rank provides the whole set */
    int batch;       /* samples of a step, over the whole job; 0 = 1 */
    /* Micro-batches of each batch slice, computed one after the other to save memory; 0 = 1. More
     * than 16 take 4 more bytes a parameter on each device, so the sum's error does not grow. */
    int accumulate;
    dt_tail tail;
    /* Leave out steps in which no loss of the batch (DT_TRAIN_LOCAL: of a replica's part) has a
     * target that counts. Their samples are used up, and their metrics count nothing. Makes
     * .limits.in_flight 1; 2 is INVALID. */
    bool skip_empty;
    uint64_t seed;   /* of initial values, order of samples and dropout */
    bool no_shuffle; /* take the rows, or a stream's samples, in order in every epoch */
    /* Read the samples of a step in its call, not before: .data's values may change between two
     * calls. Then .data.threads does not matter. */
    bool no_prefetch;
    dt_trainer *replicas_of;  /* NULL = its own; see above */
    dt_dtype parameter_dtype; /* as dt_store_desc.parameter_dtype; 0 = DT_F32 */

    /* Names as in dt_store_desc.device, separated by commas; NULL = "auto". "cpu:2" is two CPU
     * replicas, as "cpu,cpu". */
    const char *devices;
    /* Threads of each CPU replica; 0 = 1, or the context's number if there is one replica.
     * DT_THREADS_ALL = processors / replicas of this process, at least 1. Does not change
     * results. */
    int threads;
    bool pin; /* bind each replica's thread to its own processor */
    /* NULL = this process only. Borrowed: destroy it after the trainer. BUSY while another thread
     * uses it. None of your own operations may be pending. */
    dt_comm *comm;
    dt_train_mode mode;
    dt_parallel_desc parallel;
    dt_local_desc local;           /* of DT_TRAIN_LOCAL */
    dt_worker_desc server;         /* of DT_TRAIN_SERVER */
    dt_checkpoint_desc checkpoint; /* {0} = none */
    dt_limits_desc limits;         /* of memory and of steps in flight */
} dt_trainer_desc;

/* Creates a trainer with its replicas, which all get rank 0's values. All ranks call it, with the
 * same model, settings and build. desc's data and comm must outlive the trainer. No parameters can
 * be added to the graph afterwards.
 * Ownership: the graph's; with .replicas_of that trainer's.
 * Errors, on all ranks: INVALID (the errors of dt_program_create; fewer samples or batch slices
 * than replicas; a difference between ranks, which is named; two metrics of one name; weights of
 * another model; devices that are not the grid asked for; with .replicas_of a member that is the
 * first trainer's, or a loss made after that trainer), UNSUPPORTED
 * (docs/distributed/settings.md#combinations), IO and FORMAT (from .load), IO (the checkpoint
 * folder), DEVICE, DEVICE_MEMORY, MEMORY, and those of dt_comm. */
DT_API dt_result dt_trainer_create(dt_graph *graph, const dt_trainer_desc *desc, dt_trainer **out);
/* Destroys a trainer and its replicas. */
DT_API void dt_trainer_destroy(dt_trainer *trainer);
/* Returns the store of this process's first replica, to predict or to save weights. A value written
 * to it between two steps reaches all replicas of this process. INVALID: writing with several
 * ranks, and a program with an optimizer.
 * Ownership: the trainer's.
 *
 * .parallel.pipeline, .tensor: a store on the CPU with all values, for which each rank needs
 * memory from then on. They are gathered by this call and after every later step, so with several
 * ranks all of them call it. NULL if memory runs out, or a device or rank is lost whose values it
 * lacks.
 *
 * .parallel.zero_stage 2, 3: only this call gathers the parameters, so with several ranks all call
 * it; NULL as above. After a step or a load, reading parameters of the store is INVALID until the
 * next call. */
DT_API dt_store *dt_trainer_store(dt_trainer *trainer);

/* Sets the value of an input made by dt_input_shared, from the next step or evaluation on. The data
 * is copied. All ranks call it with the same values. Set each such input before the first step. The
 * value is not part of a checkpoint.
 * bytes: exactly the input's size.
 * Errors, on all ranks and with nothing changed: INVALID (not a shared input that a loss or metric
 * reads; a wrong bytes; a class number or index out of range; ranks that differ), and those of
 * dt_comm. */
DT_API dt_result dt_trainer_set_input(dt_trainer *trainer, dt_tensor input, const void *data,
                                      size_t bytes);

/* The results of one or more steps, over the whole job. All but the times are the same on all
 * ranks. As an argument it may be NULL.
 *
 * DT_TRAIN_LOCAL: within a round a report of dt_trainer_step is of this process's replicas, but
 * samples are those of the whole batch. gradient_norm is its first replica's. With round_ended the
 * report is of the whole round and job. gradient_norm is then that of the averaged difference.
 * dt_trainer_epoch reports the rounds that ended in it.
 *
 * Times are of this process. forward_seconds, backward_seconds and commit_seconds are of its first
 * device, by the host's clock, with recomputing and collectives within a pass. A GPU's
 * backward_seconds may contain the end of its forward pass. All three are 0 for a GPU that is the
 * whole job (dt_limits_desc), with DT_TRAIN_LOCAL, and for a server's worker: use dt_profile. */
typedef struct dt_train_report {
    uint64_t step;           /* steps committed since training began */
    uint64_t epoch;          /* of these samples, counted from 0 */
    bool epoch_ended;        /* these samples were the last of the epoch */
    uint64_t samples, steps; /* in this report */
    double loss;             /* the sum of coefficient * loss_sum / loss_weight */
    double loss_sum[DT_MAX_TERMS], loss_weight[DT_MAX_TERMS]; /* of each loss, over all samples */
    double metric[DT_MAX_TERMS]; /* metric_sum / metric_weight; 0 if the weight is 0 */
    double metric_sum[DT_MAX_TERMS], metric_weight[DT_MAX_TERMS]; /* of each, over all samples */
    double gradient_norm; /* of the newest step, before clipping */
    /* The rate of the newest step, before a group's .lr_scale. 0 for dt_trainer_evaluate and a
     * server's worker. */
    double lr;
    double seconds; /* wall time */
    /* Of seconds: waiting for gradients after its own backward pass. Of a pipeline: the first
     * device's waiting for other stages. Of a tensor group: only between micro-batches. Of a
     * worker: for servers. */
    double wait_seconds;
    double data_seconds; /* of seconds: waiting for samples */
    /* of seconds: see above */
    double forward_seconds, backward_seconds, commit_seconds;
    uint64_t round;   /* DT_TRAIN_LOCAL: rounds that have ended since then */
    bool round_ended; /* all replicas have the same weights again */
    uint64_t skipped; /* DT_TRAIN_LOCAL, _SERVER: steps left out for a NaN or infinity */
    /* Steps that are .empty as in dt_report (DT_TRAIN_LOCAL: replicas' steps). 0 for
     * dt_trainer_evaluate. */
    uint64_t empty;
    /* Checkpoints that dt_trainer_step and _epoch could not write. The reason: dt_trainer_info. */
    uint64_t checkpoints_failed;
} dt_train_report;

/* Makes one step. On an error the weights are as before the step. The next call tries the step
 * again, except after NUMERIC. Its samples are prefetched: if you repair the data, the next call
 * may still fail once.
 * Errors: NUMERIC (a NaN or infinity in a loss or gradient, with op and rank; or in a value that
 * the update would write, with the parameter; training can continue), INVALID (a label out of
 * range, with its row; a shared input that was never set; ranks that step different trainers of
 * one .replicas_of), the result of dt_dataset.sample, those of dt_stream_desc, DEVICE_LOST,
 * DEVICE_MEMORY, REVOKED (the job has ended in an earlier call), and those of dt_comm. Then the
 * message says which step the weights belong to. The store can be read and saved.
 *
 * DT_TRAIN_LOCAL: an error in the middle of a round is only this rank's, which tries its step
 * again. Other ranks wait at the round's end. A replica whose step has a NaN or infinity leaves
 * that step out. All ranks get NUMERIC when the round has ended. A round may end with the weights
 * that it began with. INVALID: ranks set different rates or coefficients. NUMERIC: the outer step
 * is not finite. Other ranks learn at the round's end that a rank or device is lost. All keep the
 * weights of the round's beginning, or of its end if it had been reached.
 *
 * DT_TRAIN_SERVER: a step is one batch slice, and so is the report. The store has the parameters
 * that it was computed with. When an epoch is over for all workers, a step brings its last
 * parameters. Then .steps is 0, and .epoch_ended is set. NUMERIC: a NaN or infinity was found here,
 * and the servers skip the batch. PEER_LOST, REFUSED, INVALID: a server is gone, refuses this
 * worker, or is another one than before; the next call tries again. */
DT_API dt_result dt_trainer_step(dt_trainer *trainer, dt_train_report *report);
/* Waits for the steps in flight, for .limits.in_flight = 2, and for a checkpoint that is being
 * written (.checkpoint.background: all ranks call it). The report and error of a
 * dt_trainer_step's own step come with the next call, or with this one. So .steps of the first
 * report is 0. At an epoch's end no step is in flight. A step that was in flight after a failed one
 * is made again. Evaluation, checkpoints, loading, dt_trainer_set_coefficient and dt_trainer_store
 * finish the steps in flight first. After a later dt_trainer_step, using the store is INVALID until
 * the next dt_trainer_store. Errors: as for dt_trainer_step. */
DT_API dt_result dt_trainer_wait(dt_trainer *trainer, dt_train_report *report);
/* Makes steps until the epoch ends, also from the middle of one after dt_trainer_resume. A step
 * that fails with NUMERIC is left out, and the result is NUMERIC. Errors: as for
 * dt_trainer_step; INVALID (a stream without .rows). */
DT_API dt_result dt_trainer_epoch(dt_trainer *trainer, dt_train_report *report);
/* Computes losses and metrics over a dataset. All ranks call it, and each computes a share. They
 * must give the same rows and batch (INVALID).
 * batch: samples per replica at a time; 0 = as in training. With the same number above 0, sums have
 * the same bits for any number of replicas and ranks.
 * Random numbers (dt_random_uniform) depend on .seed, the steps made and the sample's row in data,
 * not on batch and devices.
 * Errors: NUMERIC (a NaN or infinity in a loss: the text names the first op, and *report covers all
 * samples), INVALID (in the middle of a round of DT_TRAIN_LOCAL; the data), and those of
 * dt_trainer_step.
 *
 * .parallel.pipeline, .tensor: the grid's devices evaluate, a micro-batch of `batch` samples after
 * the other. */
DT_API dt_result dt_trainer_evaluate(dt_trainer *trainer, const dt_dataset *data, int batch,
                                     dt_train_report *report);
/* Sets the learning rate from the next step on, instead of the optimizer's or its schedule's. All
 * ranks must set the same, or the next step is INVALID on all. Not part of a checkpoint.
 * Errors, with the rate unchanged: INVALID (negative, not finite, or too large for an f32, also
 * after multiplication by a group's lr_scale; a server's worker). */
DT_API dt_result dt_trainer_set_lr(dt_trainer *trainer, double lr);
/* Reports the metric watched by a plateau phase (DT_SCHEDULE_PLATEAU), after an evaluation or an
 * epoch. It is ignored before that phase. The plateau's counts are part of a checkpoint.
 * value: the same on all ranks, or the next step is INVALID. A NaN counts as not better.
 * Errors: INVALID (the optimizer's schedule has no plateau). */
DT_API dt_result dt_trainer_report_metric(dt_trainer *trainer, double value);
/* Sets the coefficient of losses[loss] from the next step on, as dt_trainer_set_lr the rate.
 * Errors: INVALID (no such loss; not finite or too large for an f32). */
DT_API dt_result dt_trainer_set_coefficient(dt_trainer *trainer, int loss, double value);

/* Saves all state that training changes: parameters, buffers, optimizer state, step, sample order,
 * number of batch slices. Nothing in the file depends on devices or ranks. All ranks call it; rank
 * 0 writes, and all get its result.
 * path: matters only on rank 0, until a rank is lost. With .checkpoint.sharded it is a folder that
 * all ranks write to, and must be the same on all.
 * Errors: IO (training can continue), MEMORY, INVALID (a server's worker), REVOKED (the job has
 * ended, and lost ranks had part of the state).
 *
 * After a loss each rank that has all of the state may save it, to its own path, without waiting.
 * docs/guarantees.md#what-the-remaining-ranks-have says which ranks have it.
 *
 * DT_TRAIN_LOCAL: the file also has the outer optimizer's momentum and each replica's moments. Rank
 * 0 needs memory for them while it saves. Another number of replicas continues with other bits:
 * replica k takes the moments of the file's replica k mod its number. In the middle of a round
 * saving is INVALID; checkpoints that are due wait for its end. */
DT_API dt_result dt_trainer_save(dt_trainer *trainer, const char *path);
/* Loads a file written by dt_trainer_save, and continues from it. All ranks call it; rank 0 reads.
 * There may be any number of replicas up to the file's batch slices. If creating programs for the
 * file's slices fails, the trainer can only be saved and destroyed. The model must have parameters
 * and buffers of the same names and shapes, in any order. It must have the same kind of optimizer.
 * If the graph differs otherwise, a warning names the first op.
 * path: matters only on rank 0.
 * Errors, with the state unchanged: IO, FORMAT (truncated; a wrong checksum; a value that is NaN or
 * infinite, with its tensor), INVALID (another model: the first parameter that differs is named;
 * another batch, seed, accumulate, tail, shuffling or number of samples, also of a trainer of
 * .replicas_of; more or fewer of those; such a trainer itself; another .batch_slices than asked
 * for; fewer slices than replicas; more slices than samples in a batch; a server's worker).
 *
 * DT_TRAIN_LOCAL and DT_TRAIN_SYNCHRONOUS read each other's files. Local steps begin with the
 * file's moments on all replicas, a synchronous trainer with those of the first replica. A round
 * that has begun is dropped. */
DT_API dt_result dt_trainer_load(dt_trainer *trainer, const char *path);
/* Saves to .checkpoint.folder, under a name with the step, and deletes all but the newest
 * .checkpoint.keep checkpoints. All ranks call it.
 * Errors: as for dt_trainer_save; INVALID (no folder). */
DT_API dt_result dt_trainer_checkpoint(dt_trainer *trainer);
/* Continues from the newest checkpoint in that folder. All ranks call it. If that is damaged
 * (FORMAT; also by a NaN), it takes the newest good one and returns DT_OK. A warning in the log and
 * in dt_ctx_error() names the damage and the step.
 * found: false if the folder has no checkpoint. May be NULL.
 * Errors: as for dt_trainer_load, if no good checkpoint is left, or if the newest is damaged and
 * .checkpoint.strict is set. */
DT_API dt_result dt_trainer_resume(dt_trainer *trainer, bool *found);
/* Asks for a checkpoint after the current step; with .replicas_of after the first trainer's next.
 * Threads: any, on any rank, and signal handlers. */
DT_API void dt_trainer_request_checkpoint(dt_trainer *trainer);

/* Settings and progress of a trainer. Bytes are known before it runs. */
typedef struct dt_trainer_info {
    int rank, world_size; /* of .comm; 0 and 1 without one */
    /* Replicas in this process (with a pipeline: that have a stage here); in the whole job. */
    int local_replicas, replicas;
    int batch_slices, batch, accumulate; /* as chosen where the description has 0 */
    int replica_batch;       /* samples of this process's first replica in a full batch */
    int micro_batch;         /* samples of one of its micro-batches */
    int micro_batches;       /* number of micro-batches */
    uint64_t epoch_steps;    /* steps of an epoch; of a stream without .rows above 2^30 */
    uint64_t step, epoch;    /* steps committed; epoch of the next sample, from 0 */
    uint64_t round;          /* DT_TRAIN_LOCAL: rounds that have ended */
    int round_steps;         /* DT_TRAIN_LOCAL: steps made in the current round */
    int buckets;             /* of gradients that are summed at a time; 0 in a grid */
    uint64_t gradient_bytes; /* of all trained parameters; 0 in a grid (stages or tensor ranks) */
    /* Of gradients as this rank exchanges them (.parallel.compress). In a grid: of the stages here
     * that other ranks have too. 0 = no other rank has them. */
    uint64_t wire_bytes;
    uint64_t transient_bytes; /* of this process's first replica while it trains; with stages or
                               * tensor ranks of the device that has most */
    /* Memory of parallel training besides the model, of this process. Staging is on the host,
     * partial sums of gradients are on devices. */
    uint64_t staging_bytes, partial_sum_bytes;
    int stages;             /* of the pipeline, each chunk counted; 0 = no pipeline */
    int live_micro_batches; /* the most whose activations a device keeps at the same time */
    int tensor_ranks;       /* 0 = no tensor parallelism */
    double bubble;          /* estimated idle time / compute time of the pipeline's schedule */
    uint64_t state_bytes;   /* optimizer state of the first replica here; in a grid: device */
    /* Its parameters and gradients while it trains, with room for those that are gathered. */
    uint64_t replica_param_bytes, replica_gradient_bytes;
    uint64_t checkpoints_failed;  /* that could not be written, since the trainer was made */
    const char *checkpoint_error; /* why the newest failed; "" = none. Valid until the next one */
} dt_trainer_info;
/* Describes a trainer. */
DT_API void dt_trainer_get_info(const dt_trainer *trainer, dt_trainer_info *info);
