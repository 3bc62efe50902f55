/* What a trainer's settings can be combined with: one row a feature, one a rule. The rules are the
 * check, the error's text and docs/distributed.md#combinations. */

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
    X(COMPRESS, local.compress, 1, DTI_FEATURE_OPEN, "")                                           \
    X(TOPK, local.compress, DT_COMPRESS_TOPK, DT_COMPRESS_TOPK, "DT_COMPRESS_TOPK")                \
    X(RATIO, local.compress_ratio, DTI_FEATURE_CODE, DTI_FEATURE_CODE, "")                         \
    X(ADDRESSES, server.addresses, 1, 1, "")                                                       \
    X(SECURITY, server.security, 1, 1, "")                                                         \
    X(WAIT_MS, server.wait_ms, 1, DTI_FEATURE_OPEN, "")                                            \
    X(EVERY_STEPS, checkpoint.every_steps, 1, DTI_FEATURE_OPEN, "")

#define DTI_X(ID, ...) DTI_FEATURE_##ID,
typedef enum dti_feature { DTI_FEATURES(DTI_X) DTI_FEATURE_COUNT } dti_feature;
#undef DTI_X

typedef struct dti_rule {
    uint64_t features, others; /* bits; the two highest of features: */
} dti_rule;
#define DTI_RULE_NEEDS (UINT64_C(1) << 63) /* one of the others; else: cannot have any of them */
#define DTI_RULE_U (UINT64_C(1) << 62)     /* UNSUPPORTED; else INVALID */

/* Bits of what a description and its graph ask for, before defaults. */
static uint64_t dti_features_asked(const dt_graph *graph, const dt_trainer_desc *desc);
/* The first rule that refuses them, or NULL. */
static const dti_rule *dti_rule_of(uint64_t asked);
static dt_result dti_compat_check(dti_base *base, const dt_trainer_desc *desc, uint64_t asked);
