/* The members of an optimizer's description. optim.c and rate.c check those that depend on its
 * kind. */

#define DTI_X(number, ID, name, least, most) [number] = "DT_OPTIM_" #ID,
static const char *const dti_enum_optim_kind[] = {DTI_ENUMERATOR(DT_OPTIM_DEFAULT),
                                                  DTI_OPTIM_LIST(DTI_X)};
#undef DTI_X
static const char *const dti_enum_average_kind[] = {DTI_ENUMERATOR(DT_AVERAGE_NONE),
                                                    DTI_ENUMERATOR(DT_AVERAGE_EMA),
                                                    DTI_ENUMERATOR(DT_AVERAGE_SWA)};
static const char *const dti_enum_state_dtype[] = {
    DTI_ENUMERATOR(DT_STATE_F32), DTI_ENUMERATOR(DT_STATE_BF16), DTI_ENUMERATOR(DT_STATE_8BIT)};
static const char *const dti_enum_schedule_kind[] = {
    DTI_ENUMERATOR(DT_SCHEDULE_DEFAULT),      DTI_ENUMERATOR(DT_SCHEDULE_CONSTANT),
    DTI_ENUMERATOR(DT_SCHEDULE_STEP),         DTI_ENUMERATOR(DT_SCHEDULE_MULTI_STEP),
    DTI_ENUMERATOR(DT_SCHEDULE_EXPONENTIAL),  DTI_ENUMERATOR(DT_SCHEDULE_POLYNOMIAL),
    DTI_ENUMERATOR(DT_SCHEDULE_LINEAR),       DTI_ENUMERATOR(DT_SCHEDULE_GEOMETRIC),
    DTI_ENUMERATOR(DT_SCHEDULE_COSINE),       DTI_ENUMERATOR(DT_SCHEDULE_COSINE_RESTARTS),
    DTI_ENUMERATOR(DT_SCHEDULE_ONE_CYCLE),    DTI_ENUMERATOR(DT_SCHEDULE_WSD),
    DTI_ENUMERATOR(DT_SCHEDULE_INVERSE_SQRT), DTI_ENUMERATOR(DT_SCHEDULE_PLATEAU),
    DTI_ENUMERATOR(DT_SCHEDULE_CALLBACK)};

#define DTI_OPTIM_RANGES(X)                                                                        \
    X(OPTIM_KIND, DTI_RANGE_ENUM(dti_enum_optim_kind))                                             \
    X(NUMBER, .most = (double)FLT_MAX)                                                             \
    X(FINITE, .least = -(double)FLT_MAX, .most = (double)FLT_MAX)                                  \
    X(BETA1, .most = 1.0, .otherwise = 0.9, .below = true)                                         \
    X(ALPHA, .most = 1.0, .otherwise = 0.99)                                                       \
    X(RHO, .most = 1.0, .otherwise = 0.9)                                                          \
    X(TRUST, .most = (double)FLT_MAX, .otherwise = 1e-3)                                           \
    X(LR_SCALE, .most = (double)FLT_MAX, .otherwise = 1.0)                                         \
    X(AVERAGE_KIND, DTI_RANGE_ENUM(dti_enum_average_kind))                                         \
    X(AVERAGE_DECAY, .most = 1.0, .otherwise = 0.999, .below = true)                               \
    X(STATE_DTYPE, DTI_RANGE_ENUM(dti_enum_state_dtype))                                           \
    X(FROM_1, .most = 1.8446744073709552e19, .otherwise = 1.0)                                     \
    X(SCHEDULE_KIND, DTI_RANGE_ENUM(dti_enum_schedule_kind))                                       \
    X(GAMMA, .most = 10.0, .otherwise = 0.1)                                                       \
    X(START, .most = 1e30)                                                                         \
    X(END, .most = 1e30, .otherwise = 1.0)                                                         \
    X(POWER, .most = 1000.0, .otherwise = 1.0)                                                     \
    X(LR_MIN, .most = 1e30)                                                                        \
    X(DIV_FACTOR, .least = 1e-30, .most = 1e30, .otherwise = 25.0)                                 \
    X(FINAL_DIV_FACTOR, .least = 1e-30, .most = 1e30, .otherwise = 1e4)                            \
    X(PCT_START, .most = 1.0, .otherwise = 0.3)                                                    \
    X(BASE_MOMENTUM, .most = 0.9999999, .otherwise = 0.85)                                         \
    X(MAX_MOMENTUM, .most = 0.9999999, .otherwise = 0.95)                                          \
    X(PATIENCE, .most = (double)INT_MAX, .otherwise = 10.0)                                        \
    X(COOLDOWN, .most = (double)INT_MAX)                                                           \
    X(THRESHOLD, .most = 1e30, .otherwise = 1e-4)
DTI_RANGES(dti_optim_ranges, DTI_OPTIM_RANGES);

#define DTI_OPTIM_FIELDS(X)                                                                        \
    X(dt_optim_desc, kind, ENUM, ALL, OPTIM_KIND, 1)                                               \
    X(dt_optim_desc, lr, F64, ALL, NUMBER, 1)                                                      \
    X(dt_optim_desc, weight_decay, F64, ALL, NUMBER, 1)                                            \
    X(dt_optim_desc, momentum, F64, ALL, NUMBER, 1)                                                \
    X(dt_optim_desc, dampening, F64, ALL, FINITE, 1)                                               \
    X(dt_optim_desc, nesterov, BOOL, ALL, ANY, 1)                                                  \
    X(dt_optim_desc, beta1, F64, ALL, BETA1, 1)                                                    \
    X(dt_optim_desc, beta2, F64, ALL, NUMBER, 1)                                                   \
    X(dt_optim_desc, eps, F64, ALL, NUMBER, 1)                                                     \
    X(dt_optim_desc, alpha, F64, ALL, ALPHA, 1)                                                    \
    X(dt_optim_desc, centered, BOOL, ALL, ANY, 1)                                                  \
    X(dt_optim_desc, rho, F64, ALL, RHO, 1)                                                        \
    X(dt_optim_desc, lr_decay, F64, ALL, NUMBER, 1)                                                \
    X(dt_optim_desc, initial_accumulator, F64, ALL, NUMBER, 1)                                     \
    X(dt_optim_desc, trust_coefficient, F64, ALL, TRUST, 1)                                        \
    X(dt_optim_desc, maximize, BOOL, ALL, ANY, 1)                                                  \
    X(dt_optim_desc, clip_norm, F64, ALL, NUMBER, 1)                                               \
    X(dt_optim_desc, clip_value, F64, ALL, NUMBER, 1)                                              \
    X(dt_optim_desc, groups, OTHER, CODE, ANY, 1)                                                  \
    X(dt_optim_desc, schedule, OTHER, CODE, ANY, 1)                                                \
    X(dt_optim_desc, average, OTHER, CODE, ANY, 1)                                                 \
    X(dt_optim_desc, state_dtype, ENUM, ALL, STATE_DTYPE, 1)
DTI_FIELDS(dti_optim_fields, DTI_OPTIM_FIELDS, dti_optim_ranges);

#define DTI_GROUP_FIELDS(X)                                                                        \
    X(dt_optim_group, params, TEXT, ALL, ANY, 1)                                                   \
    X(dt_optim_group, lr_scale, F64, ALL, LR_SCALE, 1)                                             \
    X(dt_optim_group, weight_decay, F64, ALL, NUMBER, 1)                                           \
    X(dt_optim_group, sparse, BOOL, ALL, ANY, 1)                                                   \
    X(dt_optim_group, elementwise, BOOL, ALL, ANY, 1)
DTI_FIELDS(dti_group_fields, DTI_GROUP_FIELDS, dti_optim_ranges);

#define DTI_AVERAGE_FIELDS(X)                                                                      \
    X(dt_average, kind, ENUM, ALL, AVERAGE_KIND, 1)                                                \
    X(dt_average, decay, F64, ALL, AVERAGE_DECAY, 1)                                               \
    X(dt_average, warmup, BOOL, ALL, ANY, 1)                                                       \
    X(dt_average, start, U64, ALL, FROM_1, 1)                                                      \
    X(dt_average, every, U64, ALL, FROM_1, 1)
DTI_FIELDS(dti_average_fields, DTI_AVERAGE_FIELDS, dti_optim_ranges);

#define DTI_SCHEDULE_FIELDS(X)                                                                     \
    X(dt_schedule, kind, ENUM, ALL, SCHEDULE_KIND, 1)                                              \
    X(dt_schedule, steps, U64, ALL, ANY, 1)                                                        \
    X(dt_schedule, epochs, F64, ALL, ANY, 1)                                                       \
    X(dt_schedule, period, U64, ALL, ANY, 1)                                                       \
    X(dt_schedule, gamma, F64, ALL, GAMMA, 1)                                                      \
    X(dt_schedule, start, F64, ALL, START, 1)                                                      \
    X(dt_schedule, end, F64, ALL, END, 1)                                                          \
    X(dt_schedule, power, F64, ALL, POWER, 1)                                                      \
    X(dt_schedule, lr_min, F64, ALL, LR_MIN, 1)                                                    \
    X(dt_schedule, t_mult, U32, ALL, FROM_1, 1)                                                    \
    X(dt_schedule, div_factor, F64, ALL, DIV_FACTOR, 1)                                            \
    X(dt_schedule, final_div_factor, F64, ALL, FINAL_DIV_FACTOR, 1)                                \
    X(dt_schedule, pct_start, F64, ALL, PCT_START, 1)                                              \
    X(dt_schedule, base_momentum, F64, ALL, BASE_MOMENTUM, 1)                                      \
    X(dt_schedule, max_momentum, F64, ALL, MAX_MOMENTUM, 1)                                        \
    X(dt_schedule, warmup, U64, ALL, ANY, 1)                                                       \
    X(dt_schedule, decay, U64, ALL, ANY, 1)                                                        \
    X(dt_schedule, milestones, U64, ALL, ANY, DT_MAX_MILESTONES)                                   \
    X(dt_schedule, patience, INT_ZERO, ALL, PATIENCE, 1)                                           \
    X(dt_schedule, cooldown, INT_ZERO, ALL, COOLDOWN, 1)                                           \
    X(dt_schedule, threshold, F64, ALL, THRESHOLD, 1)                                              \
    X(dt_schedule, threshold_absolute, BOOL, ALL, ANY, 1)                                          \
    X(dt_schedule, maximize, BOOL, ALL, ANY, 1)                                                    \
    X(dt_schedule, rate, POINTER, RANK, ANY, 1)                                                    \
    X(dt_schedule, user, POINTER, RANK, ANY, 1)
DTI_FIELDS(dti_schedule_fields, DTI_SCHEDULE_FIELDS, dti_optim_ranges);

/* Each member that is out of its range, on a line of its own: ".schedule[1].gamma is ...". */
static void dti_optim_problems(dti_text *problems, const char *member, int index,
                               const dti_fields *fields, const void *of) {
    char prefix[48];
    snprintf(prefix, sizeof prefix, "\n- optimizer: %s[%d]", member, index);
    if (index < 0)
        snprintf(prefix, sizeof prefix, "\n- optimizer: %s", member);
    dti_fields_problems(problems, prefix, fields, of);
}
