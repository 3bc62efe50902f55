/* What a trainer's settings can be combined with: one row a feature, one a rule. The rules are the
 * check, the error's text and docs/distributed/settings.md#combinations. */

/* X(ID, member, least, most, name): asked for if the member is from least to most. A least of CODE:
 * if it is another number than 0, or code looks. The name is an enumerator, or stands for the
 * member; "": the member and its value. */
#define DTI_FEATURE_OPEN 255
#define DTI_FEATURE_CODE 254
#define DTI_FEATURES(X)                                                                            \
    X(PIPELINE, parallel.pipeline, 2, DTI_FEATURE_OPEN, "")                                        \
    X(TENSOR, parallel.tensor, 2, DTI_FEATURE_OPEN, "")                                            \
    X(SLICES, parallel.tensor_slices, DTI_FEATURE_CODE, DTI_FEATURE_CODE, "")                      \
    X(ZERO1, parallel.zero_stage, 1, 1, "")                                                        \
    X(ZERO23, parallel.zero_stage, 2, DTI_FEATURE_OPEN, "")                                        \
    X(LOCAL, mode, DT_TRAIN_LOCAL, DT_TRAIN_LOCAL, "DT_TRAIN_LOCAL")                               \
    X(WORKER, mode, DT_TRAIN_SERVER, DT_TRAIN_SERVER, "DT_TRAIN_SERVER")                           \
    X(MEASURED, parallel.balance, DT_BALANCE_MEASURED, DT_BALANCE_MEASURED, "DT_BALANCE_MEASURED") \
    X(SERVES, loss, DTI_FEATURE_CODE, DTI_FEATURE_CODE, "a server's trainer")                      \
    X(REPLICAS, parallel.replicas, 2, DTI_FEATURE_OPEN, "")                                        \
    X(COMM, comm, 1, 1, "")                                                                        \
    X(BATCH_SLICES, parallel.batch_slices, 1, DTI_FEATURE_OPEN, "")                                \
    X(ACCUMULATE, accumulate, 2, DTI_FEATURE_OPEN, "")                                             \
    X(AVERAGE, optim, DTI_FEATURE_CODE, DTI_FEATURE_CODE, ".optim->average")                       \
    X(AVERAGED, averaged, 1, 1, "")                                                                \
    X(WHOLE, optim, DTI_FEATURE_CODE, DTI_FEATURE_CODE, "an optimizer of whole parameters")        \
    X(SYNC, loss, DTI_FEATURE_CODE, DTI_FEATURE_CODE, "a batch_norm with .sync")                   \
    X(LOAD, load, 1, 1, "")                                                                        \
    X(FOLDER, checkpoint.folder, 1, 1, "")                                                         \
    X(SKIP_EMPTY, skip_empty, 1, 1, "")                                                            \
    X(IN_FLIGHT, limits.in_flight, 2, DTI_FEATURE_OPEN, "")                                        \
    X(SCHEDULE, parallel.schedule, 1, DTI_FEATURE_OPEN, "")                                        \
    X(INTERLEAVED, parallel.schedule, DT_PIPELINE_INTERLEAVED, DT_PIPELINE_INTERLEAVED,            \
      "DT_PIPELINE_INTERLEAVED")                                                                   \
    X(CHUNKS, parallel.chunks, 1, DTI_FEATURE_OPEN, "")                                            \
    X(SEQUENCE, parallel.sequence_parallel, 1, 1, "")                                              \
    X(SHARD_DEGREE, parallel.shard_degree, 1, DTI_FEATURE_OPEN, "")                                \
    X(OFFLOAD, parallel.offload, 1, 1, "")                                                         \
    X(LOCAL_STEPS, local.steps, 1, DTI_FEATURE_OPEN, "")                                           \
    X(GOSSIP, local.gossip, 1, DTI_FEATURE_OPEN, "")                                               \
    X(OUTER_LR, local.outer.lr, DTI_FEATURE_CODE, DTI_FEATURE_CODE, "")                            \
    X(OUTER_MOMENTUM, local.outer.momentum, DTI_FEATURE_CODE, DTI_FEATURE_CODE, "")                \
    X(NO_NESTEROV, local.outer.no_nesterov, 1, 1, "")                                              \
    X(COMPRESS, parallel.compress, 1, DTI_FEATURE_OPEN, "")                                        \
    X(INT8, parallel.compress, DT_COMPRESS_INT8, DT_COMPRESS_INT8, "DT_COMPRESS_INT8")             \
    X(TOPK, parallel.compress, DT_COMPRESS_TOPK, DT_COMPRESS_TOPK, "DT_COMPRESS_TOPK")             \
    X(RATIO, parallel.compress_ratio, DTI_FEATURE_CODE, DTI_FEATURE_CODE, "")                      \
    X(ADDRESSES, server.addresses, 1, 1, "")                                                       \
    X(SECURITY, server.security, 1, 1, "")                                                         \
    X(WAIT_MS, server.wait_ms, 1, DTI_FEATURE_OPEN, "")                                            \
    X(EVERY_STEPS, checkpoint.every_steps, 1, DTI_FEATURE_OPEN, "")                                \
    X(BACKGROUND, checkpoint.background, 1, 1, "")                                                 \
    X(SHARDED, checkpoint.sharded, 1, 1, "")                                                       \
    X(HALF, parameter_dtype, DT_BF16, DT_BF16, "DT_BF16")                                          \
    X(STREAM, data, DTI_FEATURE_CODE, DTI_FEATURE_CODE, ".data.stream")                            \
    X(STATE, optim, DTI_FEATURE_CODE, DTI_FEATURE_CODE, ".optim->state_dtype")                     \
    X(STATE8, optim, DTI_FEATURE_CODE, DTI_FEATURE_CODE, ".optim->state_dtype = DT_STATE_8BIT")

#define DTI_X(ID, ...) DTI_FEATURE_##ID,
typedef enum dti_feature { DTI_FEATURES(DTI_X) DTI_FEATURE_COUNT } dti_feature;
#undef DTI_X

typedef struct dti_rule {
    uint64_t features, others; /* bits; the two highest of features: */
} dti_rule;
#define DTI_RULE_NEEDS (UINT64_C(1) << 63) /* one of the others; else: cannot have any of them */
#define DTI_RULE_U (UINT64_C(1) << 62)     /* UNSUPPORTED; else INVALID */

#define DTI_ASKS(ID) (UINT64_C(1) << DTI_FEATURE_##ID)
#define DTI_ASKS_TENSOR (DTI_ASKS(TENSOR) | DTI_ASKS(SLICES))
#define DTI_ASKS_ZERO (DTI_ASKS(ZERO1) | DTI_ASKS(ZERO23))

/* X(NEEDS or WITHOUT, I or U, features, others, why): each of the features needs one of the others,
 * or cannot be combined with any. Else it is INVALID or UNSUPPORTED. If two rules refuse a
 * description, the first makes the error. */
#define DTI_RULES(X)                                                                               \
    X(WITHOUT, U, DTI_ASKS(SERVES),                                                                \
      DTI_ASKS(COMM) | DTI_ASKS(LOCAL) | DTI_ASKS(WORKER) | DTI_ASKS(PIPELINE) | DTI_ASKS_TENSOR | \
          DTI_ASKS(MEASURED) | DTI_ASKS_ZERO,                                                      \
      "it updates the parameters, and workers compute the steps")                                  \
    X(NEEDS, I, DTI_ASKS(SCHEDULE) | DTI_ASKS(CHUNKS), DTI_ASKS(PIPELINE),                         \
      "set it to the number of stages")                                                            \
    X(NEEDS, I, DTI_ASKS(CHUNKS), DTI_ASKS(INTERLEAVED),                                           \
      "other schedules have one chunk on each device")                                             \
    X(WITHOUT, U, DTI_ASKS(PIPELINE), DTI_ASKS(WORKER), "a worker has one device")                 \
    X(WITHOUT, I, DTI_ASKS(PIPELINE), DTI_ASKS(LOCAL), "a replica is one device")                  \
    X(WITHOUT, I, DTI_ASKS(PIPELINE), DTI_ASKS(MEASURED),                                          \
      "a stage computes all rows, so none can move")                                               \
    X(NEEDS, I, DTI_ASKS(SEQUENCE), DTI_ASKS_TENSOR, "tensor ranks split the positions")           \
    X(WITHOUT, U, DTI_ASKS(SLICES), DTI_ASKS(PIPELINE),                                            \
      "a device of a pipeline holds one tensor rank")                                              \
    X(WITHOUT, U, DTI_ASKS_TENSOR, DTI_ASKS(LOCAL) | DTI_ASKS(WORKER),                             \
      "a replica is one device in these modes")                                                    \
    X(WITHOUT, U, DTI_ASKS(SLICES), DTI_ASKS_ZERO,                                                 \
      "a device has the state of each of its slices, unsharded")                                   \
    X(WITHOUT, U, DTI_ASKS_TENSOR, DTI_ASKS(MEASURED), "all tensor ranks compute the same rows")   \
    X(WITHOUT, I, DTI_ASKS(IN_FLIGHT), DTI_ASKS(SKIP_EMPTY),                                       \
      "it reads the targets before each step")                                                     \
    X(WITHOUT, I, DTI_ASKS(MEASURED), DTI_ASKS(BATCH_SLICES),                                      \
      "it moves rows between batch slices")                                                        \
    X(NEEDS, I, DTI_ASKS(RATIO), DTI_ASKS(TOPK), "only top-k sends a share of the elements")       \
    X(NEEDS, U, DTI_ASKS(INT8) | DTI_ASKS(TOPK), DTI_ASKS(LOCAL),                                  \
      "only local steps support error feedback; for gradients of a step use DT_COMPRESS_BF16")     \
    X(WITHOUT, U, DTI_ASKS(COMPRESS), DTI_ASKS_TENSOR,                                             \
      "tensor ranks need equal sums, and may be on different ranks")                               \
    X(WITHOUT, U, DTI_ASKS(COMPRESS), DTI_ASKS(WORKER) | DTI_ASKS(SERVES),                         \
      "workers send gradients to servers in f32")                                                  \
    X(NEEDS, I,                                                                                    \
      DTI_ASKS(LOCAL_STEPS) | DTI_ASKS(GOSSIP) | DTI_ASKS(OUTER_LR) | DTI_ASKS(OUTER_MOMENTUM) |   \
          DTI_ASKS(NO_NESTEROV),                                                                   \
      DTI_ASKS(LOCAL), "only local steps have rounds")                                             \
    X(WITHOUT, I, DTI_ASKS(LOCAL), DTI_ASKS(BATCH_SLICES) | DTI_ASKS(MEASURED),                    \
      "each replica has one batch slice, all of equal size")                                       \
    X(WITHOUT, U, DTI_ASKS(LOCAL), DTI_ASKS(AVERAGE), "the outer step does not update averages")   \
    X(NEEDS, I, DTI_ASKS(ADDRESSES) | DTI_ASKS(SECURITY) | DTI_ASKS(WAIT_MS), DTI_ASKS(WORKER),    \
      "only a worker connects to servers")                                                         \
    X(NEEDS, I, DTI_ASKS(WORKER), DTI_ASKS(ADDRESSES),                                             \
      "name all servers, \"host:port,host:port\"")                                                 \
    X(WITHOUT, U, DTI_ASKS(WORKER),                                                                \
      DTI_ASKS(COMM) | DTI_ASKS_ZERO | DTI_ASKS(AVERAGED) | DTI_ASKS(MEASURED),                    \
      "the servers update the parameters")                                                         \
    X(WITHOUT, I, DTI_ASKS(WORKER), DTI_ASKS(REPLICAS), "a worker is one replica")                 \
    X(WITHOUT, I, DTI_ASKS(WORKER), DTI_ASKS(LOAD) | DTI_ASKS(FOLDER),                             \
      "the servers load and save the parameters")                                                  \
    X(WITHOUT, U, DTI_ASKS_ZERO, DTI_ASKS(LOCAL), "each replica has its own optimizer")            \
    X(NEEDS, I, DTI_ASKS(SHARD_DEGREE), DTI_ASKS_ZERO,                                             \
      "it is the number of replicas that shard the state")                                         \
    X(WITHOUT, U, DTI_ASKS(SHARD_DEGREE), DTI_ASKS(PIPELINE) | DTI_ASKS_TENSOR,                    \
      "the state of a stage is sharded over all replicas")                                         \
    X(NEEDS, U, DTI_ASKS(OFFLOAD), DTI_ASKS(ZERO23),                                               \
      "give 2 or 3, whose gradients reach the host bucket by bucket")                              \
    X(WITHOUT, U, DTI_ASKS(OFFLOAD), DTI_ASKS(PIPELINE) | DTI_ASKS_TENSOR,                         \
      "only a replica of one device can keep its shard on the host")                               \
    X(WITHOUT, U, DTI_ASKS(ZERO23), DTI_ASKS(MEASURED),                                            \
      "give at most 1, as balancing compiles programs again")                                      \
    X(NEEDS, I, DTI_ASKS(AVERAGED), DTI_ASKS(AVERAGE),                                             \
      "set it, as .averaged evaluates these averages")                                             \
    X(NEEDS, I, DTI_ASKS(EVERY_STEPS) | DTI_ASKS(BACKGROUND), DTI_ASKS(FOLDER),                    \
      "set it to the folder for checkpoints")                                                      \
    X(WITHOUT, U, DTI_ASKS(BACKGROUND), DTI_ASKS(SERVES),                                          \
      "a server counts a checkpoint only when it is on disk")                                      \
    X(WITHOUT, U, DTI_ASKS(SHARDED), DTI_ASKS(LOCAL) | DTI_ASKS(WORKER) | DTI_ASKS(SERVES),        \
      "rank 0 or the server has the whole state")                                                  \
    X(WITHOUT, U, DTI_ASKS(WHOLE), DTI_ASKS_TENSOR,                                                \
      "tensor ranks hold parts of parameters; use an elementwise one, such as Adam")               \
    X(WITHOUT, U, DTI_ASKS(SYNC),                                                                  \
      DTI_ASKS(PIPELINE) | DTI_ASKS_TENSOR | DTI_ASKS(LOCAL) | DTI_ASKS(ACCUMULATE),               \
      "leave one out")                                                                             \
    X(WITHOUT, U, DTI_ASKS(SYNC), DTI_ASKS(WORKER) | DTI_ASKS(SERVES),                             \
      "workers compute batch slices one by one; leave .sync out")                                  \
    X(WITHOUT, U, DTI_ASKS(STREAM), DTI_ASKS(WORKER) | DTI_ASKS(SERVES),                           \
      "workers take batches in any order, but a stream has one")                                   \
    X(WITHOUT, U, DTI_ASKS(HALF) | DTI_ASKS(STATE),                                                \
      DTI_ASKS(PIPELINE) | DTI_ASKS_TENSOR | DTI_ASKS(ZERO23) | DTI_ASKS(LOCAL) |                  \
          DTI_ASKS(WORKER) | DTI_ASKS(SERVES),                                                     \
      "these need f32 parameters and moments; leave one out")                                      \
    X(WITHOUT, I, DTI_ASKS(HALF) | DTI_ASKS(STATE), DTI_ASKS(WHOLE),                               \
      "it needs f32 parameters and moments; use an elementwise one, such as AdamW")                \
    X(WITHOUT, I, DTI_ASKS(STATE), DTI_ASKS(AVERAGE),                                              \
      "an average is f32, as its steps are small; leave one out")                                  \
    X(WITHOUT, U, DTI_ASKS(STATE8), DTI_ASKS(ZERO1),                                               \
      "a shard's blocks have scales of their own; use DT_STATE_BF16")

/* X(feature, bits): the settings that a program without the feature (base/optional.h) refuses. */
#define DTI_FEATURES_OPTIONAL(X)                                                                   \
    X(SERVER, DTI_ASKS(WORKER) | DTI_ASKS(SERVES))                                                 \
    X(MODEL_PARALLEL, DTI_ASKS(PIPELINE) | DTI_ASKS_TENSOR)                                        \
    X(ZERO, DTI_ASKS_ZERO)                                                                         \
    X(LOCAL, DTI_ASKS(LOCAL))

/* Bits of the features that a description and its graph ask for, before defaults. */
static uint64_t dti_features_asked(const dt_graph *graph, const dt_trainer_desc *desc);
/* The first rule that refuses them, or NULL. */
static const dti_rule *dti_rule_of(uint64_t asked);
static dt_result dti_compat_check(dti_base *base, const dt_trainer_desc *desc, uint64_t asked);
