/* The commit segment on the CPU: gradients of several micro-batches added up, their norm, the
 * decision over the step, the optimizers (semantics of torch.optim), the search for a fault. One
 * item is one entry of the program's block table, 256 elements, so sums and updates depend on no
 * cut. The program emits these launches. */

/* ---- CPU */

static void dti_cpu_accumulate(const dti_cpu_task *task, int64_t begin, int64_t end,
                               void *scratch) {
    (void)scratch;
    const dti_args_accumulate *a = &task->launch->args.accumulate;
    const float *x = dti_cpu_in(task, 0, a->x_offset) + begin;
    float *y = dti_cpu_out(task, 1, a->y_offset) + begin;
    if (task->step[DTI_STEP_FLAGS] & 1u)
        memmove(y, x, (size_t)(end - begin) * sizeof *y);
    else
        task->k->binary[DTI_B_ADD](y, x, 1, y, 1, end - begin);
}

static int64_t dti_cpu_grain_blocks(const dti_cpu_task *task) {
    (void)task;
    return 64; /* 16k elements */
}

static bool dti_all_finite_f32(const float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        if (!dti_finite_f32(x[i]))
            return false;
    }
    return true;
}

static void dti_cpu_grad_norm(const dti_cpu_task *task, int64_t begin, int64_t end, void *scratch) {
    (void)scratch;
    const float *grads = task->buf[0];
    const uint32_t *row = (const uint32_t *)task->buf[1] + begin * DTI_TABLE_WORDS;
    float *pairs = task->buf[2];
    for (int64_t i = begin; i < end; i++, row += DTI_TABLE_WORDS) {
        const float *g = grads + (int64_t)row[DTI_TABLE_BLOCK] * DTI_BLOCK;
        const int64_t used = row[DTI_TABLE_USED];
        float sum = task->k->row_sum_sq(g, used);
        bool fine = dti_finite_f32(sum) || dti_all_finite_f32(g, used); /* squares may overflow */
        pairs[2 * i] = row[DTI_TABLE_PARAM] & DTI_TABLE_BUFFER ? 0.0f : sum;
        pairs[2 * i + 1] = fine ? 0.0f : 1.0f;
    }
}

static bool dti_terms_finite(const dti_args_commit *a, const uint32_t *status) {
    for (uint32_t i = 0; (a->flags & DTI_COMMIT_LOSSES) && i < a->terms; i++) {
        for (uint32_t k = 0; k < 2; k++) /* its sum and its weight */
            if (!dti_finite_f32(dti_bits_f32(status[DTI_STATUS_TERM(i) + k])))
                return false;
    }
    return true;
}

/* torch.nn.utils.clip_grad_norm_: min(1, max_norm / (norm + 1e-6)) */
static void dti_cpu_clip_finish(const dti_cpu_task *task, int64_t begin, int64_t end,
                                void *scratch) {
    (void)begin, (void)end, (void)scratch;
    const dti_args_commit *a = &task->launch->args.commit;
    const float *pairs = task->buf[0];
    uint32_t *status = task->buf[1], *state = task->buf[2];
    bool fine = dti_terms_finite(a, status);
    double sum = 0;
    for (uint32_t i = 0; i < a->blocks; i++) {
        sum += (double)pairs[2 * (size_t)i];
        fine = fine && pairs[2 * (size_t)i + 1] == 0.0f;
    }
    const float norm = (float)sqrt(sum), limit = dti_step_f32(task->step, DTI_STEP_CLIP_NORM);
    const bool proven = norm <= dti_step_f32(task->step, DTI_STEP_PROVEN);
    float clip = 1.0f;
    if (limit > 0.0f)
        clip = limit / (norm + 1e-6f);
    if (!(clip < 1.0f))
        clip = 1.0f;
    state[DTI_CONTROL_ABORT] = status[DTI_STATUS_ABORT] = fine ? 0 : 1;
    state[DTI_CONTROL_CHECK] = fine && !proven;
    state[DTI_CONTROL_BAD] = status[DTI_STATUS_BAD] = DTI_BAD_NONE;
    for (int i = 0; i < 3; i++)
        state[DTI_CONTROL_LARGEST(i)] = status[DTI_STATUS_LARGEST(i)] = 0;
    memcpy(state + DTI_CONTROL_CLIP, &clip, sizeof clip);
    memcpy(status + DTI_STATUS_NORM, &norm, sizeof norm);
}

/* ---- the optimizers: what one block's update needs, from its group's words and the step count
 * t */

#define DTI_NO_OFFSET 0xffffffffu

static float dti_param_group_f32(const dti_cpu_task *task, uint32_t group, uint32_t word) {
    return dti_step_f32(task->step, DTI_STEP_GROUP(group) + word);
}

static float dti_control_clip(const dti_cpu_task *task) {
    const uint32_t *state = task->buf[2];
    return dti_bits_f32(state[DTI_CONTROL_CLIP]);
}

static dti_adam dti_adam_of(const dti_cpu_task *task, uint32_t group, uint32_t t) {
    const float ln_beta1 = dti_param_group_f32(task, group, DTI_GROUP_LN_BETA1);
    const float ln_beta2 = dti_param_group_f32(task, group, DTI_GROUP_LN_BETA2);
    const float steps = (float)t + 1.0f;
    /* 1 - beta and 1 - beta^t as expm1 of logarithms: the difference would lose half of its
     * digits */
    float minus[4] = {ln_beta1, ln_beta2, steps * ln_beta1, steps * ln_beta2}, root2;
    task->k->unary[DTI_U_EXPM1](minus, minus, 4, 0.0f, 0.0f);
    float bias2 = -minus[3];
    task->k->unary[DTI_U_SQRT](&root2, &bias2, 1, 0.0f, 0.0f);
    return (dti_adam){.lr = dti_param_group_f32(task, group, DTI_GROUP_LR),
                      .beta1 = dti_param_group_f32(task, group, DTI_GROUP_BETA1),
                      .beta2 = dti_param_group_f32(task, group, DTI_GROUP_BETA2),
                      .eps = dti_param_group_f32(task, group, DTI_GROUP_EPS),
                      .weight_decay = dti_param_group_f32(task, group, DTI_GROUP_DECAY),
                      .clip = dti_control_clip(task),
                      .limit = dti_step_f32(task->step, DTI_STEP_CLIP_VALUE),
                      .one_minus_beta1 = -minus[0],
                      .one_minus_beta2 = -minus[1],
                      .bias1 = -minus[2],
                      .bias2_sqrt = root2,
                      .decoupled = task->launch->spec[0] == DTI_OPTIM_ADAMW};
}

static dti_sgd dti_sgd_of(const dti_cpu_task *task, uint32_t group, uint32_t t) {
    const bool moments = task->launch->args.commit.m_offset != DTI_NO_OFFSET;
    return (dti_sgd){.lr = dti_param_group_f32(task, group, DTI_GROUP_LR),
                     .momentum = moments ? dti_param_group_f32(task, group, DTI_GROUP_BETA1) : 0.0f,
                     .dampening = dti_param_group_f32(task, group, DTI_GROUP_BETA2),
                     .weight_decay = dti_param_group_f32(task, group, DTI_GROUP_DECAY),
                     .clip = dti_control_clip(task),
                     .limit = dti_step_f32(task->step, DTI_STEP_CLIP_VALUE),
                     .nesterov = dti_param_group_f32(task, group, DTI_GROUP_NESTEROV) != 0.0f,
                     .first = t == 0}; /* takes the gradient as it is, even with dampening */
}

/* A parameter's constants, and where one of its blocks lies; m and v: NULL = it has none. */
typedef struct dti_cpu_update {
    const dti_isa_kernels *k;
    bool is_sgd;
    uint32_t group, t;
    dti_sgd sgd;
    dti_adam adam;
    float *w, *m, *v;
    const float *g;
    int64_t n;
} dti_cpu_update;

static void dti_cpu_update_place(const dti_cpu_task *task, const uint32_t *row, dti_cpu_update *u) {
    const dti_args_commit *a = &task->launch->args.commit;
    const int64_t at = (int64_t)row[DTI_TABLE_BLOCK] * DTI_BLOCK;
    float *moments = task->buf[2];
    const uint32_t *state = task->buf[2];
    const uint32_t t = state[a->t_offset + (row[DTI_TABLE_PARAM] & DTI_TABLE_INDEX)];
    u->w = (float *)task->buf[0] + at;
    u->g = (const float *)task->buf[1] + at;
    u->m = a->m_offset == DTI_NO_OFFSET ? NULL : moments + a->m_offset + at;
    u->v = a->v_offset == DTI_NO_OFFSET ? NULL : moments + a->v_offset + at;
    u->n = row[DTI_TABLE_USED];
    if (row[DTI_TABLE_GROUP] == u->group && t == u->t)
        return;
    u->group = row[DTI_TABLE_GROUP];
    u->t = t;
    if (u->is_sgd)
        u->sgd = dti_sgd_of(task, u->group, t);
    else
        u->adam = dti_adam_of(task, u->group, t);
}

static void dti_cpu_update_run(const dti_cpu_update *u) {
    if (u->is_sgd)
        u->k->sgd(u->w, u->g, u->m, u->n, &u->sgd);
    else
        u->k->adam(u->w, u->g, u->m, u->v, u->n, &u->adam);
}

static void dti_cpu_update_largest(const dti_cpu_update *u, uint32_t largest[3]) {
    const float *const all[3] = {u->w, u->m, u->v};
    for (int i = 0; i < 3; i++) {
        if (all[i])
            largest[i] = DTI_MAX(largest[i], u->k->row_largest(all[i], u->n));
    }
}

/* The same update of copies: which DTI_BAD_* it would be; 4 = none. */
static uint32_t dti_cpu_update_dry(const dti_cpu_update *u, uint32_t largest[3]) {
    const uint32_t infinity = 0x7f800000u;
    float copies[3][DTI_BLOCK];
    float *const from[3] = {u->w, u->m, u->v};
    dti_cpu_update dry = *u;
    float **to[3] = {&dry.w, &dry.m, &dry.v};
    uint32_t before[3] = {0}, after[3] = {0};
    for (int i = 0; i < 3; i++) {
        if (!from[i])
            continue;
        memcpy(copies[i], from[i], (size_t)u->n * sizeof(float));
        *to[i] = copies[i];
    }
    dti_cpu_update_largest(u, before);
    dti_cpu_update_run(&dry);
    dti_cpu_update_largest(&dry, after);
    for (int i = 1; i < 3; i++)
        largest[i] = DTI_MAX(largest[i], after[i]);
    if (before[0] >= infinity || before[1] >= infinity || before[2] >= infinity)
        return DTI_BAD_BEFORE;
    return after[1] >= infinity   ? DTI_BAD_MOMENT1
           : after[2] >= infinity ? DTI_BAD_MOMENT2
           : after[0] >= infinity ? DTI_BAD_WEIGHT
                                  : 4u;
}

static void dti_atomic_min(uint32_t *word, uint32_t value) {
    uint32_t seen = __atomic_load_n(word, __ATOMIC_RELAXED);
    while (seen > value && !__atomic_compare_exchange_n(word, &seen, value, false, __ATOMIC_RELAXED,
                                                        __ATOMIC_RELAXED)) {
    }
}

static void dti_atomic_max(uint32_t *word, uint32_t value) {
    uint32_t seen = __atomic_load_n(word, __ATOMIC_RELAXED);
    while (seen < value && !__atomic_compare_exchange_n(word, &seen, value, false, __ATOMIC_RELAXED,
                                                        __ATOMIC_RELAXED)) {
    }
}

static void dti_cpu_optim(const dti_cpu_task *task, int64_t begin, int64_t end, void *scratch) {
    (void)scratch;
    uint32_t *state = task->buf[2], largest[3] = {0};
    const uint32_t *row = (const uint32_t *)task->buf[3] + begin * DTI_TABLE_WORDS;
    const bool dry = task->launch->args.commit.flags & DTI_COMMIT_DRY;
    dti_cpu_update u = {
        .k = task->k, .is_sgd = task->launch->spec[0] == DTI_OPTIM_SGD, .group = DTI_NO_OFFSET};
    if (dry ? !state[DTI_CONTROL_CHECK]
            : state[DTI_CONTROL_ABORT] || state[DTI_CONTROL_BAD] != DTI_BAD_NONE)
        return;
    for (int64_t i = begin; i < end; i++, row += DTI_TABLE_WORDS) {
        const uint32_t param = row[DTI_TABLE_PARAM] & DTI_TABLE_INDEX;
        if (row[DTI_TABLE_PARAM] & DTI_TABLE_BUFFER) {
            const int64_t block = (int64_t)row[DTI_TABLE_BLOCK] * DTI_BLOCK;
            if (!dry)
                memcpy((float *)task->buf[0] + block, (const float *)task->buf[1] + block,
                       row[DTI_TABLE_USED] * sizeof(float));
            continue;
        }
        dti_cpu_update_place(task, row, &u);
        if (dry) {
            const uint32_t bad = dti_cpu_update_dry(&u, largest);
            dti_atomic_min(&state[DTI_CONTROL_BAD], bad < 4 ? param << 2 | bad : DTI_BAD_NONE);
            continue;
        }
        dti_cpu_update_run(&u);
        largest[0] = DTI_MAX(largest[0], u.k->row_largest(u.w, u.n)); /* while it is in the cache */
    }
    for (int i = 0; i < 3; i++)
        dti_atomic_max(&state[DTI_CONTROL_LARGEST(i)], largest[i]);
}

static void dti_cpu_optim_tell(const uint32_t *state, uint32_t *status) {
    status[DTI_STATUS_BAD] = state[DTI_CONTROL_BAD];
    if (state[DTI_CONTROL_BAD] != DTI_BAD_NONE)
        status[DTI_STATUS_ABORT] = 1;
    for (int i = 0; i < 3; i++)
        status[DTI_STATUS_LARGEST(i)] = state[DTI_CONTROL_LARGEST(i)];
}

static void dti_cpu_optim_tick(const dti_cpu_task *task, int64_t begin, int64_t end,
                               void *scratch) {
    (void)scratch;
    uint32_t *state = task->buf[0];
    const uint32_t *table = task->buf[1];
    if (begin == 0)
        dti_cpu_optim_tell(state, task->buf[2]);
    if (state[DTI_CONTROL_ABORT] || state[DTI_CONTROL_BAD] != DTI_BAD_NONE ||
        (task->launch->args.commit.flags & DTI_COMMIT_TELL))
        return;
    for (int64_t i = begin; i < end; i++) {
        uint32_t param = table[i * DTI_TABLE_WORDS + DTI_TABLE_PARAM];
        if (param & DTI_TABLE_FIRST)
            state[task->launch->args.commit.t_offset + (param & DTI_TABLE_INDEX)]++;
    }
}

/* ---- scan: the status word becomes the least code of a launch that wrote what is not finite. */
static void dti_cpu_scan(const dti_cpu_task *task, int64_t begin, int64_t end, void *scratch) {
    (void)scratch;
    const dti_args_scan *a = &task->launch->args.scan;
    if (dti_all_finite_f32(dti_cpu_in(task, 0, a->x_offset) + begin, end - begin))
        return;
    dti_atomic_min((uint32_t *)task->buf[1] + DTI_STATUS_FAULT, a->code);
}

/* ---- Rows of the tables */

DTI_KERNEL(ACCUMULATE, accumulate, "ru", ITEM, .run = dti_cpu_accumulate,
           .grain = dti_cpu_grain_flat);

/* (grads, table, pairs [blocks, 2]) */
DTI_KERNEL(GRAD_NORM, grad_norm, "rrw", GROUP, .run = dti_cpu_grad_norm,
           .grain = dti_cpu_grain_blocks);

/* (pairs, status, state) one workgroup */
DTI_KERNEL(CLIP_FINISH, clip_finish, "ruu", GROUP, .run = dti_cpu_clip_finish);

/* (params, grads, state, table) spec0: DTI_OPTIM_* */
DTI_KERNEL(OPTIM, optim, "urur", GROUP, .run = dti_cpu_optim, .grain = dti_cpu_grain_blocks);

/* (state, table, status) */
DTI_KERNEL(OPTIM_TICK, optim_tick, "uru", ITEM, .run = dti_cpu_optim_tick,
           .grain = dti_cpu_grain_copy);

/* (x, status) */
DTI_KERNEL(SCAN, scan, "ru", ITEM, .run = dti_cpu_scan, .grain = dti_cpu_grain_copy);
