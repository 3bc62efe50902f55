/* The members of an optimizer's description. */

#define DTI_OPTIM_FIELDS(X)                                                                        \
    X(dt_optim_desc, kind, ENUM, ALL, ANY, 1)                                                      \
    X(dt_optim_desc, lr, F64, ALL, ANY, 1)                                                         \
    X(dt_optim_desc, weight_decay, F64, ALL, ANY, 1)                                               \
    X(dt_optim_desc, momentum, F64, ALL, ANY, 1)                                                   \
    X(dt_optim_desc, dampening, F64, ALL, ANY, 1)                                                  \
    X(dt_optim_desc, nesterov, BOOL, ALL, ANY, 1)                                                  \
    X(dt_optim_desc, beta1, F64, ALL, ANY, 1)                                                      \
    X(dt_optim_desc, beta2, F64, ALL, ANY, 1)                                                      \
    X(dt_optim_desc, eps, F64, ALL, ANY, 1)                                                        \
    X(dt_optim_desc, alpha, F64, ALL, ANY, 1)                                                      \
    X(dt_optim_desc, centered, BOOL, ALL, ANY, 1)                                                  \
    X(dt_optim_desc, rho, F64, ALL, ANY, 1)                                                        \
    X(dt_optim_desc, lr_decay, F64, ALL, ANY, 1)                                                   \
    X(dt_optim_desc, initial_accumulator, F64, ALL, ANY, 1)                                        \
    X(dt_optim_desc, trust_coefficient, F64, ALL, ANY, 1)                                          \
    X(dt_optim_desc, maximize, BOOL, ALL, ANY, 1)                                                  \
    X(dt_optim_desc, clip_norm, F64, ALL, ANY, 1)                                                  \
    X(dt_optim_desc, clip_value, F64, ALL, ANY, 1)                                                 \
    X(dt_optim_desc, groups, OTHER, CODE, ANY, 1)                                                  \
    X(dt_optim_desc, schedule, OTHER, CODE, ANY, 1)                                                \
    X(dt_optim_desc, average, OTHER, CODE, ANY, 1)
DTI_FIELDS(dti_optim_fields, DTI_OPTIM_FIELDS, NULL);

#define DTI_GROUP_FIELDS(X)                                                                        \
    X(dt_optim_group, params, TEXT, ALL, ANY, 1)                                                   \
    X(dt_optim_group, lr_scale, F64, ALL, ANY, 1)                                                  \
    X(dt_optim_group, weight_decay, F64, ALL, ANY, 1)                                              \
    X(dt_optim_group, sparse, BOOL, ALL, ANY, 1)                                                   \
    X(dt_optim_group, elementwise, BOOL, ALL, ANY, 1)
DTI_FIELDS(dti_group_fields, DTI_GROUP_FIELDS, NULL);

#define DTI_AVERAGE_FIELDS(X)                                                                      \
    X(dt_average, kind, ENUM, ALL, ANY, 1)                                                         \
    X(dt_average, decay, F64, ALL, ANY, 1)                                                         \
    X(dt_average, warmup, BOOL, ALL, ANY, 1)                                                       \
    X(dt_average, start, U64, ALL, ANY, 1)                                                         \
    X(dt_average, every, U64, ALL, ANY, 1)
DTI_FIELDS(dti_average_fields, DTI_AVERAGE_FIELDS, NULL);

#define DTI_SCHEDULE_FIELDS(X)                                                                     \
    X(dt_schedule, kind, ENUM, ALL, ANY, 1)                                                        \
    X(dt_schedule, steps, U64, ALL, ANY, 1)                                                        \
    X(dt_schedule, epochs, F64, ALL, ANY, 1)                                                       \
    X(dt_schedule, period, U64, ALL, ANY, 1)                                                       \
    X(dt_schedule, gamma, F64, ALL, ANY, 1)                                                        \
    X(dt_schedule, start, F64, ALL, ANY, 1)                                                        \
    X(dt_schedule, end, F64, ALL, ANY, 1)                                                          \
    X(dt_schedule, power, F64, ALL, ANY, 1)                                                        \
    X(dt_schedule, lr_min, F64, ALL, ANY, 1)                                                       \
    X(dt_schedule, t_mult, U32, ALL, ANY, 1)                                                       \
    X(dt_schedule, div_factor, F64, ALL, ANY, 1)                                                   \
    X(dt_schedule, final_div_factor, F64, ALL, ANY, 1)                                             \
    X(dt_schedule, pct_start, F64, ALL, ANY, 1)                                                    \
    X(dt_schedule, base_momentum, F64, ALL, ANY, 1)                                                \
    X(dt_schedule, max_momentum, F64, ALL, ANY, 1)                                                 \
    X(dt_schedule, warmup, U64, ALL, ANY, 1)                                                       \
    X(dt_schedule, decay, U64, ALL, ANY, 1)                                                        \
    X(dt_schedule, milestones, U64, ALL, ANY, DT_MAX_MILESTONES)                                   \
    X(dt_schedule, patience, INT_ZERO, ALL, ANY, 1)                                                \
    X(dt_schedule, cooldown, INT_ZERO, ALL, ANY, 1)                                                \
    X(dt_schedule, threshold, F64, ALL, ANY, 1)                                                    \
    X(dt_schedule, threshold_absolute, BOOL, ALL, ANY, 1)                                          \
    X(dt_schedule, maximize, BOOL, ALL, ANY, 1)                                                    \
    X(dt_schedule, rate, POINTER, RANK, ANY, 1)                                                    \
    X(dt_schedule, user, POINTER, RANK, ANY, 1)
DTI_FIELDS(dti_schedule_fields, DTI_SCHEDULE_FIELDS, NULL);
