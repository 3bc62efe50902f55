/* ---- Training: a model, its data, devices and ranks --------------------------------------------
 *
 * A trainer owns one replica of the model on each of its devices and trains them as one: a step
 * takes `batch` samples of the whole job, each replica its share, gradients are summed while the
 * backward pass is still running, and all replicas make the same update. With a dt_comm the same
 * job runs on several processes and hosts; nothing else in the program changes.
 *
 * Threads: of all functions in this part, the context's, unless it says otherwise. A trainer with
 * several devices starts a thread for each but the first, and one that reads the next batch. */

typedef struct dt_trainer dt_trainer;

/* One input of the model, for all samples of a set. */
typedef struct dt_column {
    dt_tensor input;  /* one with samples; others: dt_trainer_write */
    const void *data; /* the samples' values, one behind the other; NULL: dt_dataset.sample fills */
    dt_dtype dtype;   /* of data: F32 or U8 for an f32 input, I32 or U8 for an i32 one */
    float scale, offset; /* U8 to f32: value * scale + offset; scale 0 = 1, DT_ZERO = 0 */
} dt_column;

/* Which sample is asked for. What it becomes may depend on these alone: then results do not depend
 * on how many devices there are. */
typedef struct dt_sample {
    uint64_t seed; /* the trainer's */
    uint64_t epoch, step;
    uint64_t row;      /* in the set */
    uint64_t position; /* in the step's batch, of the whole job */
} dt_sample;

/* Samples to train on, or to evaluate. What it points to stays yours and must outlive its use. */
typedef struct dt_dataset {
    uint64_t rows; /* how many samples */
    dt_column columns[DT_MAX_COLUMNS];
    /* NULL, or fills or changes a sample after the columns were copied: values[i] is what
     * columns[i].input gets, f32 or i32. Augmentation lives here. Not DT_OK ends the step with that
     * result. Threads: called on a thread of the trainer's, one call at a time. */
    dt_result (*sample)(void *user, const dt_sample *sample, void *const *values);
    void *user;
} dt_dataset;

/* What becomes of the last batch of an epoch when there are too few samples for a whole one. */
typedef enum dt_tail {
    DT_TAIL_KEEP, /* the default: a step of its own size */
    DT_TAIL_DROP,
    /* Filled up with samples that weigh nothing. Needs losses whose targets can be ignored
     * (dt_cross_entropy of an input), and no batch norm. */
    DT_TAIL_PAD
} dt_tail;

typedef enum dt_balance {
    DT_BALANCE_EQUAL,   /* shards of one size */
    DT_BALANCE_MEASURED /* by the speed of each replica: gives up the same bits, see `shards` */
} dt_balance;

typedef struct dt_trainer_desc {
    /* As in dt_program_desc. */
    dt_tensor loss;
    dt_loss losses[DT_MAX_TERMS];
    dt_tensor metrics[DT_MAX_TERMS];
    int batch;                  /* samples of a step of the whole job; 0 = 1 */
    const dt_optim_desc *optim; /* NULL = {0} */
    const char *params;
    dt_dataset data; /* to train on; all ranks have all of it */
    uint64_t seed;   /* of initial values, order and dropout */
    /* A safetensors file that parameters and buffers start from, as dt_store_load reads it; rank 0
     * does. NULL = as their dt_init says. */
    const char *load;
    bool no_shuffle; /* the rows in order, in every epoch */
    dt_tail tail;
    int accumulate; /* parts that each shard is computed in, one after the other; 0 = 1 */
    /* Parts of the batch that gradients are made of, each by itself, and summed in one order. With
     * the same number, 1, 2, 4 or 8 replicas give the same bits. 0 = the number of replicas, or
     * what the checkpoint says; at most `batch`. Batch norm sees a shard. */
    int shards;
    dt_balance balance;
    /* "cpu", "cpu:2" (two replicas), "vulkan:0,vulkan:1,cpu", "auto"; a name may come again. NULL =
     * "auto". What dt_store_desc.device takes, with commas; behind "cpu" a number of replicas. */
    const char *devices;
    /* Of each CPU replica; 0 = 1 of several, the context's of one. The first replica has the
     * context's threads, or one. */
    int threads;
    bool pin; /* each replica's thread keeps to a processor of its own */
    /* NULL = this process alone. Borrowed: no operation of yours may be under way during a call
     * with the trainer, and it is destroyed after it. */
    dt_comm *comm;
    size_t bucket_bytes; /* of gradients that travel together; 0 = 4 MiB, the first 1 MiB */
    bool no_overlap;     /* exchange gradients only after the backward pass: to measure */
    /* A folder for dt_trainer_checkpoint; NULL = none. Rank 0 writes. */
    const char *checkpoint;
    int checkpoint_steps; /* also after so many steps; 0 = only when asked */
    int checkpoint_keep;  /* the newest so many stay; 0 = 3 */
    bool strict_resume;   /* dt_trainer_resume: a damaged newest one is an error */
} dt_trainer_desc;

/* Makes the replicas, gives all of them rank 0's values and compares what the ranks have: the same
 * model, settings and build. All ranks call it. desc is not kept, but what data, comm and the
 * graph's context point to is used. The graph takes no more parameters. Ownership: the graph's;
 * dt_trainer_destroy ends it earlier, and a dt_comm goes after it. Errors, with *out NULL and on
 * all ranks: INVALID (what dt_program_create says; fewer samples or shards than replicas; a
 * difference between ranks, by name; weights of another model), IO and FORMAT (of `load`), DEVICE,
 * DEVICE_MEMORY, MEMORY; and those of dt_comm. */
DT_API dt_result dt_trainer_create(dt_graph *graph, const dt_trainer_desc *desc, dt_trainer **out);
/* Ends a trainer with its replicas. NULL is fine. */
DT_API void dt_trainer_destroy(dt_trainer *trainer);
/* The store of this process's first replica: make programs of it (to predict), save its weights.
 * A value that is written to it, between two steps, comes to all replicas of this process; where
 * there are other ranks, writing is INVALID. A program with an optimizer is INVALID; it ends with
 * the trainer alone. */
DT_API dt_store *dt_trainer_store(dt_trainer *trainer);

/* Copies what an input made by dt_input_shared holds from the next step and evaluation on: a mask,
 * weights of classes, a temperature. All ranks call it, with the same values (a hash is compared).
 * It stays until it is written again, over a resume too, but is in no checkpoint. bytes must be
 * exact. Each such input is written before the first step. Errors, on all ranks, with nothing
 * changed: INVALID (not an input that is shared and that a loss or metric reads, bytes, a class
 * number or index out of range, ranks that differ), and those of dt_comm. */
DT_API dt_result dt_trainer_write(dt_trainer *trainer, dt_tensor input, const void *data,
                                  size_t bytes);

/* What one or more steps gave, over the whole job: the same on all ranks. */
typedef struct dt_train_report {
    uint64_t step;           /* committed so far */
    uint64_t epoch;          /* that the samples were of, from 0 */
    bool epoch_ended;        /* they were its last */
    uint64_t samples, steps; /* in this report */
    double loss;             /* coefficient * sum / weight, added up; the newest coefficients */
    double loss_sum[DT_MAX_TERMS], loss_weight[DT_MAX_TERMS];
    double metric[DT_MAX_TERMS]; /* metric_sum / metric_weight; 0 where nothing weighs */
    double metric_sum[DT_MAX_TERMS], metric_weight[DT_MAX_TERMS];
    double gradient_norm; /* of the newest step, before clipping */
    double seconds;       /* this process's: all of it; */
    double wait_seconds;  /* for gradients, after its own backward pass; */
    double data_seconds;  /* and for samples */
} dt_train_report;

/* One step. report may be NULL. Errors, with the weights as before the step: NUMERIC (a NaN or
 * infinity in a loss or gradient, with op and rank, or in what the update would write, with the
 * parameter; training can go on), INVALID (a label out of range, by row; a shared input never
 * written), what dt_dataset.sample gave, DEVICE_LOST, DEVICE_MEMORY; and those of dt_comm: then the
 * text says which step the weights are of, the store can be read and saved, and the job goes on
 * from a checkpoint. A step that failed is tried again by the next call; its samples are read anew
 * at once, in the background, so data that is mended later may fail once more. */
DT_API dt_result dt_trainer_step(dt_trainer *trainer, dt_train_report *report);
/* Steps to the end of the epoch (from its middle after dt_trainer_resume). NUMERIC skips a step and
 * is returned at the end, if nothing worse happens. */
DT_API dt_result dt_trainer_epoch(dt_trainer *trainer, dt_train_report *report);
/* Losses and metrics over a set, without training; all ranks call it, each takes a share. batch:
 * samples at a time and replica; 0 = those of training. Makes programs at its first call. */
DT_API dt_result dt_trainer_evaluate(dt_trainer *trainer, const dt_dataset *data, int batch,
                                     dt_train_report *report);
/* The learning rate from the next step on, in place of the optimizer's (to go back, give that); 0
 * is 0. The same on all ranks, else the next step is INVALID on all; no checkpoint has it. Errors,
 * with the rate as before: INVALID (negative, not finite, or too large for an f32, also times a
 * group's lr_scale). */
DT_API dt_result dt_trainer_set_lr(dt_trainer *trainer, double lr);
/* The coefficient of losses[loss] from the next step on; 0 is 0. The same on all ranks, as the
 * rate; no checkpoint has it. Errors, with the coefficient as before: INVALID (no such loss, a
 * value that is not finite or too large for an f32). */
DT_API dt_result dt_trainer_set_coefficient(dt_trainer *trainer, int loss, double value);

/* The whole state that training changes, and nothing that depends on devices or ranks: parameters,
 * buffers, optimizer, step, order, shards. All ranks call it; rank 0 writes, and all get its
 * result. The file appears whole or not at all. Errors: IO (the training can go on), MEMORY. */
DT_API dt_result dt_trainer_save(dt_trainer *trainer, const char *path);
/* Goes on from a file of dt_trainer_save; rank 0 reads (path matters there alone, as in saving), on
 * any number of replicas up to its shards. Programs for other shards than now are made; where that
 * fails the trainer can only save and be destroyed. The model must have the same parameters and
 * buffers, by name and shape, in any order, and the same kind of optimizer. Another graph around
 * them is a warning in the log that names the first op that differs. Errors, with the state as
 * before: IO, FORMAT (truncated, a wrong checksum), INVALID (another model, names the first
 * parameter that differs; another batch, seed or number of samples; other shards than asked for;
 * fewer than replicas, or more than samples of a batch). */
DT_API dt_result dt_trainer_load(dt_trainer *trainer, const char *path);
/* The same in the folder `checkpoint`, under a name with the step; older ones than the newest
 * `checkpoint_keep` go. */
DT_API dt_result dt_trainer_checkpoint(dt_trainer *trainer);
/* Goes on from the newest one there; *found (may be NULL) false: there is none, and nothing is
 * changed. When it is damaged (FORMAT), from the newest good one of an earlier step: that is DT_OK,
 * with a warning in the log and at dt_ctx_error(), which name the damage and the step. Where none
 * is good, or with strict_resume, it is the error of dt_trainer_load, and the text names what is
 * good, if anything is. */
DT_API dt_result dt_trainer_resume(dt_trainer *trainer, bool *found);
/* A checkpoint after the step under way. Async-signal-safe, any thread, on any rank. */
DT_API void dt_trainer_request_checkpoint(dt_trainer *trainer);

/* What it is made of. */
typedef struct dt_trainer_info {
    int rank, world_size;
    int local_replicas, replicas; /* of this process; of the job */
    int shards, batch, accumulate;
    int replica_batch; /* samples of this process's first replica in a full step; */
    int micro_batch;   /* and at a time; */
    int micro_batches; /* so many of them */
    uint64_t epoch_steps;
    uint64_t step, epoch;
    int buckets;
    uint64_t gradient_bytes;
    /* What parallel training takes beside the model, of host memory and of devices; each replica
     * has gradient_bytes for every subtree that it cannot add up by itself. */
    uint64_t staging_bytes, subtree_bytes;
} dt_trainer_info;
DT_API void dt_trainer_get_info(const dt_trainer *trainer, dt_trainer_info *info);
