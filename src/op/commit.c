/* The commit segment on the CPU: gradients of several micro-batches added up, their norm, the
 * decision over the step, the optimizers (semantics of torch.optim), the search for a fault. One
 * item is one entry of the program's block table, 256 elements, so sums and updates depend on no
 * cut. Nothing here is an op; the program emits these launches. */

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
    for (uint32_t i = 0; (a->flags & 1u) && i < a->terms; i++) {
        if (!dti_finite_f32(dti_bits_f32(status[DTI_STATUS_TERM(i)])))
            return false;
    }
    return true;
}

/* torch.nn.utils.clip_grad_norm_: min(1, max_norm / (norm + 1e-6)) */
static void dti_cpu_norm_finish(const dti_cpu_task *task, int64_t begin, int64_t end,
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
    float clip = 1.0f;
    if (limit > 0.0f)
        clip = limit / (norm + 1e-6f);
    if (!(clip < 1.0f))
        clip = 1.0f;
    state[DTI_CONTROL_ABORT] = status[DTI_STATUS_ABORT] = fine ? 0 : 1;
    memcpy(state + DTI_CONTROL_CLIP, &clip, sizeof clip);
    memcpy(status + DTI_STATUS_NORM, &norm, sizeof norm);
}

/* ---- the optimizers: what one block's update needs, from its group's words and the step count
 * t */

#define DTI_NO_OFFSET 0xffffffffu

static float dti_group_f32(const dti_cpu_task *task, uint32_t group, uint32_t word) {
    return dti_step_f32(task->step, DTI_STEP_GROUP(group) + word);
}

static float dti_control_clip(const dti_cpu_task *task) {
    const uint32_t *state = task->buf[2];
    return dti_bits_f32(state[DTI_CONTROL_CLIP]);
}

static dti_adam dti_adam_of(const dti_cpu_task *task, uint32_t group, uint32_t t) {
    const float ln_beta1 = dti_group_f32(task, group, DTI_GROUP_LN_BETA1);
    const float ln_beta2 = dti_group_f32(task, group, DTI_GROUP_LN_BETA2);
    const float steps = (float)(t + 1u);
    /* 1 - beta and 1 - beta^t as expm1 of logarithms: the difference would lose half of its
     * digits */
    float minus[4] = {ln_beta1, ln_beta2, steps * ln_beta1, steps * ln_beta2}, root2;
    task->k->unary[DTI_U_EXPM1](minus, minus, 4, 0.0f, 0.0f);
    float bias2 = -minus[3];
    task->k->unary[DTI_U_SQRT](&root2, &bias2, 1, 0.0f, 0.0f);
    return (dti_adam){.lr = dti_group_f32(task, group, DTI_GROUP_LR),
                      .beta1 = dti_group_f32(task, group, DTI_GROUP_BETA1),
                      .beta2 = dti_group_f32(task, group, DTI_GROUP_BETA2),
                      .eps = dti_group_f32(task, group, DTI_GROUP_EPS),
                      .weight_decay = dti_group_f32(task, group, DTI_GROUP_DECAY),
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
    return (dti_sgd){.lr = dti_group_f32(task, group, DTI_GROUP_LR),
                     .momentum = moments ? dti_group_f32(task, group, DTI_GROUP_BETA1) : 0.0f,
                     .dampening = dti_group_f32(task, group, DTI_GROUP_BETA2),
                     .weight_decay = dti_group_f32(task, group, DTI_GROUP_DECAY),
                     .clip = dti_control_clip(task),
                     .limit = dti_step_f32(task->step, DTI_STEP_CLIP_VALUE),
                     .nesterov = dti_group_f32(task, group, DTI_GROUP_NESTEROV) != 0.0f,
                     .first = t == 0}; /* takes the gradient as it is, even with dampening */
}

static void dti_cpu_optim(const dti_cpu_task *task, int64_t begin, int64_t end, void *scratch) {
    (void)scratch;
    const dti_args_commit *a = &task->launch->args.commit;
    float *params = task->buf[0], *moments = task->buf[2];
    const uint32_t *state = task->buf[2];
    const uint32_t *row = (const uint32_t *)task->buf[3] + begin * DTI_TABLE_WORDS;
    if (state[DTI_CONTROL_ABORT] != 0)
        return;
    const bool is_sgd = task->launch->spec[0] == DTI_OPTIM_SGD;
    uint32_t group = DTI_NO_OFFSET, t = 0;
    dti_sgd sgd = {0};
    dti_adam adam = {0};
    for (int64_t i = begin; i < end; i++, row += DTI_TABLE_WORDS) {
        if (row[DTI_TABLE_PARAM] & DTI_TABLE_BUFFER) {
            const int64_t block = (int64_t)row[DTI_TABLE_BLOCK] * DTI_BLOCK;
            memcpy(params + block, (const float *)task->buf[1] + block,
                   row[DTI_TABLE_USED] * sizeof *params);
            continue;
        }
        const uint32_t now = state[a->t_offset + (row[DTI_TABLE_PARAM] & DTI_TABLE_INDEX)];
        if (row[DTI_TABLE_GROUP] != group || now != t) {
            group = row[DTI_TABLE_GROUP];
            t = now;
            if (is_sgd)
                sgd = dti_sgd_of(task, group, t);
            else
                adam = dti_adam_of(task, group, t);
        }
        const int64_t at = (int64_t)row[DTI_TABLE_BLOCK] * DTI_BLOCK, n = row[DTI_TABLE_USED];
        const float *g = (const float *)task->buf[1] + at;
        float *m = a->m_offset == DTI_NO_OFFSET ? NULL : moments + a->m_offset + at;
        if (is_sgd)
            task->k->sgd(params + at, g, m, n, &sgd);
        else
            task->k->adam(params + at, g, m, moments + a->v_offset + at, n, &adam);
    }
}

static void dti_cpu_optim_tick(const dti_cpu_task *task, int64_t begin, int64_t end,
                               void *scratch) {
    (void)scratch;
    uint32_t *state = task->buf[0];
    const uint32_t *table = task->buf[1];
    if (state[DTI_CONTROL_ABORT] != 0)
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
    uint32_t *word = (uint32_t *)task->buf[1] + DTI_STATUS_FAULT;
    uint32_t seen = __atomic_load_n(word, __ATOMIC_RELAXED);
    while (seen > a->code && !__atomic_compare_exchange_n(word, &seen, a->code, false,
                                                          __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
}
