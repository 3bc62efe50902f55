/* The members of a trainer's description. */

static const char *const dti_enum_tail[] = {
    DTI_ENUMERATOR(DT_TAIL_KEEP), DTI_ENUMERATOR(DT_TAIL_DROP), DTI_ENUMERATOR(DT_TAIL_PAD)};
static const char *const dti_enum_precision[] = {DTI_ENUMERATOR(DT_PRECISION_F32),
                                                 DTI_ENUMERATOR(DT_PRECISION_BF16)};
static const char *const dti_enum_train_mode[] = {DTI_ENUMERATOR(DT_TRAIN_SYNCHRONOUS),
                                                  DTI_ENUMERATOR(DT_TRAIN_LOCAL),
                                                  DTI_ENUMERATOR(DT_TRAIN_SERVER)};
static const char *const dti_enum_balance[] = {DTI_ENUMERATOR(DT_BALANCE_EQUAL),
                                               DTI_ENUMERATOR(DT_BALANCE_MEASURED)};
static const char *const dti_enum_pipeline_schedule[] = {
    DTI_ENUMERATOR(DT_PIPELINE_1F1B), DTI_ENUMERATOR(DT_PIPELINE_FILL_DRAIN),
    DTI_ENUMERATOR(DT_PIPELINE_INTERLEAVED), DTI_ENUMERATOR(DT_PIPELINE_ZERO_BUBBLE)};
static const char *const dti_enum_zero_stage[] = {
    DTI_ENUMERATOR(DT_SHARD_NONE), DTI_ENUMERATOR(DT_SHARD_OPTIMIZER),
    DTI_ENUMERATOR(DT_SHARD_GRADIENTS), DTI_ENUMERATOR(DT_SHARD_PARAMETERS)};
static const char *const dti_enum_compress[] = {
    DTI_ENUMERATOR(DT_COMPRESS_NONE), DTI_ENUMERATOR(DT_COMPRESS_BF16),
    DTI_ENUMERATOR(DT_COMPRESS_INT8), DTI_ENUMERATOR(DT_COMPRESS_TOPK)};
static const char *const dti_enum_parameter_dtype[] = {DTI_ENUMERATOR(DT_F32),
                                                       DTI_ENUMERATOR(DT_BF16)};

#define DTI_TRAINER_RANGES(X)                                                                      \
    X(LEAST_0, .most = (double)INT_MAX)                                                            \
    X(LEAST_1, .least = 1.0, .most = (double)INT_MAX, .otherwise = 1.0)                            \
    X(KEEP, .least = 1.0, .most = (double)INT_MAX, .otherwise = 3.0)                               \
    X(LOCAL_STEPS, .least = 1.0, .most = (double)INT_MAX, .otherwise = 100.0) /* paper: 50-500 */  \
    X(TAIL, DTI_RANGE_ENUM(dti_enum_tail))                                                         \
    X(PARAMETER_DTYPE, DTI_RANGE_ENUM(dti_enum_parameter_dtype))                                   \
    X(PRECISION, DTI_RANGE_ENUM(dti_enum_precision))                                               \
    X(MODE, DTI_RANGE_ENUM(dti_enum_train_mode))                                                   \
    X(BALANCE, DTI_RANGE_ENUM(dti_enum_balance))                                                   \
    X(ORDER, DTI_RANGE_ENUM(dti_enum_pipeline_schedule))                                           \
    X(ZERO_STAGE, DTI_RANGE_ENUM(dti_enum_zero_stage))                                             \
    X(ENCODING, DTI_RANGE_ENUM(dti_enum_compress))                                                 \
    X(THREADS, DT_THREADS_ALL, DTI_MAX_THREADS, .kind = "DT_THREADS_ALL (-1), or ")                \
    X(STAGES, .most = DTI_REPLICAS_MAX)                                                            \
    X(TENSOR_RANKS, .most = DTI_TP_MAX)                                                            \
    X(STEPS_AHEAD, .most = 2.0)                                                                    \
    X(OUTER_LR, 0.0, (double)FLT_MAX, 0.7, .above = true, .single = true)                          \
    X(OUTER_MOMENTUM, 0.0, 1.0, 0.9, .below = true, .single = true)                                \
    X(RATIO, 0.0, 1.0, 0.01, .above = true)
DTI_RANGES(dti_trainer_ranges, DTI_TRAINER_RANGES);

#define DTI_TRAINER_FIELDS(X)                                                                      \
    X(dt_trainer_desc, loss, OTHER, CODE, ANY, 1)                                                  \
    X(dt_trainer_desc, losses, OTHER, CODE, ANY, 1)                                                \
    X(dt_trainer_desc, metrics, OTHER, CODE, ANY, 1)                                               \
    X(dt_trainer_desc, optim, OTHER, CODE, ANY, 1)                                                 \
    X(dt_trainer_desc, params, TEXT, ALL, ANY, 1)                                                  \
    X(dt_trainer_desc, load, POINTER, RANK, ANY, 1)                                                \
    X(dt_trainer_desc, averaged, BOOL, ALL, ANY, 1)                                                \
    X(dt_trainer_desc, precision, ENUM, ALL, PRECISION, 1)                                         \
    X(dt_trainer_desc, data, OTHER, CODE, ANY, 1)                                                  \
    X(dt_trainer_desc, batch, INT, ALL, LEAST_1, 1)                                                \
    X(dt_trainer_desc, accumulate, INT, ALL, LEAST_1, 1)                                           \
    X(dt_trainer_desc, tail, ENUM, ALL, TAIL, 1)                                                   \
    X(dt_trainer_desc, skip_empty, BOOL, ALL, ANY, 1)                                              \
    X(dt_trainer_desc, seed, U64, ALL, ANY, 1)                                                     \
    X(dt_trainer_desc, no_shuffle, BOOL, ALL, ANY, 1)                                              \
    X(dt_trainer_desc, no_prefetch, BOOL, RANK, ANY, 1)                                            \
    X(dt_trainer_desc, replicas_of, POINTER, CODE, ANY, 1)                                         \
    X(dt_trainer_desc, parameter_dtype, ENUM, ALL, PARAMETER_DTYPE, 1)                             \
    X(dt_trainer_desc, devices, TEXT, RANK, ANY, 1)                                                \
    X(dt_trainer_desc, threads, INT, RANK, THREADS, 1)                                             \
    X(dt_trainer_desc, pin, BOOL, RANK, ANY, 1)                                                    \
    X(dt_trainer_desc, comm, POINTER, RANK, ANY, 1)                                                \
    X(dt_trainer_desc, mode, ENUM, JOB, MODE, 1)                                                   \
    X(dt_trainer_desc, parallel.replicas, INT, ALL, LEAST_0, 1)                                    \
    X(dt_trainer_desc, parallel.batch_slices, INT, ALL, LEAST_0, 1)                                \
    X(dt_trainer_desc, parallel.balance, ENUM, ALL, BALANCE, 1)                                    \
    X(dt_trainer_desc, parallel.bucket_bytes, SIZE, ALL, ANY, 1)                                   \
    X(dt_trainer_desc, parallel.no_overlap, BOOL, ALL, ANY, 1)                                     \
    X(dt_trainer_desc, parallel.compress, ENUM, ALL, ENCODING, 1)                                  \
    X(dt_trainer_desc, parallel.compress_ratio, F64, ALL, RATIO, 1)                                \
    X(dt_trainer_desc, parallel.pipeline, INT, ALL, STAGES, 1)                                     \
    X(dt_trainer_desc, parallel.schedule, ENUM, ALL, ORDER, 1)                                     \
    X(dt_trainer_desc, parallel.chunks, INT, ALL, LEAST_0, 1)                                      \
    X(dt_trainer_desc, parallel.tensor, INT, ALL, TENSOR_RANKS, 1)                                 \
    X(dt_trainer_desc, parallel.sequence_parallel, BOOL, ALL, ANY, 1)                              \
    X(dt_trainer_desc, parallel.tensor_slices, INT, ALL, TENSOR_RANKS, 1)                          \
    X(dt_trainer_desc, parallel.zero_stage, INT, ALL, ZERO_STAGE, 1)                               \
    X(dt_trainer_desc, parallel.shard_degree, INT, ALL, LEAST_0, 1)                                \
    X(dt_trainer_desc, parallel.offload, BOOL, ALL, ANY, 1)                                        \
    X(dt_trainer_desc, local.steps, INT, ALL, LOCAL_STEPS, 1)                                      \
    X(dt_trainer_desc, local.gossip, INT, ALL, LEAST_0, 1)                                         \
    X(dt_trainer_desc, local.outer.lr, F64, ALL, OUTER_LR, 1)                                      \
    X(dt_trainer_desc, local.outer.momentum, F64, ALL, OUTER_MOMENTUM, 1)                          \
    X(dt_trainer_desc, local.outer.no_nesterov, BOOL, ALL, ANY, 1)                                 \
    X(dt_trainer_desc, server.addresses, TEXT, RANK, ANY, 1)                                       \
    X(dt_trainer_desc, server.security, POINTER, RANK, ANY, 1)                                     \
    X(dt_trainer_desc, server.wait_ms, INT, RANK, LEAST_0, 1)                                      \
    X(dt_trainer_desc, checkpoint.folder, POINTER, JOB, ANY, 1)                                    \
    X(dt_trainer_desc, checkpoint.every_steps, INT, JOB, LEAST_0, 1)                               \
    X(dt_trainer_desc, checkpoint.keep, INT, RANK, KEEP, 1)                                        \
    X(dt_trainer_desc, checkpoint.strict, BOOL, JOB, ANY, 1)                                       \
    X(dt_trainer_desc, checkpoint.background, BOOL, JOB, ANY, 1)                                   \
    X(dt_trainer_desc, checkpoint.sharded, BOOL, JOB, ANY, 1)                                      \
    X(dt_trainer_desc, checkpoint.allow_nonfinite, BOOL, RANK, ANY, 1)                             \
    X(dt_trainer_desc, limits.memory_bytes, U64, RANK, ANY, 1)                                     \
    X(dt_trainer_desc, limits.in_flight, INT, RANK, STEPS_AHEAD, 1)
DTI_FIELDS(dti_trainer_fields, DTI_TRAINER_FIELDS, dti_trainer_ranges);
