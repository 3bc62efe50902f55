/* The commit segment on the CPU. It adds up gradients of several micro-batches, makes their norm,
 * decides over the step, and runs the optimizers (semantics of torch.optim). It also searches for a
 * fault. One item is one entry of the program's block table, 256 elements, so sums and updates do
 * not depend on a cut. The program emits these launches. */

/* ---- CPU */

static void dti_cpu_accumulate(const dti_cpu_task *task, int64_t begin, int64_t end,
                               void *scratch) {
    const dti_args_accumulate *a = &task->launch->args.accumulate;
    const float *x = dti_cpu_in(task, 0, a->x_offset) + begin;
    float *y = dti_cpu_out(task, 1, a->y_offset) + begin;
    if (task->step[DTI_STEP_FLAGS] & DTI_FLAG_FIRST)
        memmove(y, x, (size_t)(end - begin) * sizeof *y);
    else
        task->k->binary[DTI_B_ADD](y, x, 1, y, 1, end - begin);
}

static void dti_cpu_accumulate_long(const dti_cpu_task *task, int64_t begin, int64_t end,
                                    void *scratch) {
    const dti_args_accumulate *a = &task->launch->args.accumulate;
    const float *x = dti_cpu_in(task, 0, a->x_offset) + begin;
    float *y = dti_cpu_out(task, 1, a->y_offset) + begin, *lost = dti_cpu_out(task, 2, 0) + begin;
    const dti_isa_kernels *k = task->k;
    const bool first = !task->launch->spec[0] && task->step[DTI_STEP_FLAGS] & DTI_FLAG_FIRST;
    for (int64_t i = 0, n; i < end - begin; i += n) {
        float more[DTI_BLOCK], sum[DTI_BLOCK];
        n = DTI_MIN(end - begin - i, (int64_t)DTI_BLOCK);
        if (first) {
            memmove(y + i, x + i, (size_t)n * sizeof *y);
            memset(lost + i, 0, (size_t)n * sizeof *lost);
            continue;
        }
        k->binary[DTI_B_SUB](more, x + i, 1, lost + i, 1, n);
        k->binary[DTI_B_ADD](sum, y + i, 1, more, 1, n);
        k->binary[DTI_B_SUB](lost + i, sum, 1, y + i, 1, n);
        k->binary[DTI_B_SUB](lost + i, lost + i, 1, more, 1, n);
        memcpy(y + i, sum, (size_t)n * sizeof *y);
    }
}

/* Which rows of an entry's block may have a gradient, as their bits. */
static uint32_t dti_cpu_rows_of(const dti_cpu_task *task, const uint32_t *state,
                                const uint32_t *row) {
    if (!(row[DTI_TABLE_PARAM] & DTI_TABLE_SPARSE) || task->step[DTI_STEP_FLAGS] & DTI_FLAG_WHOLE)
        return UINT32_MAX;
    return state[task->launch->args.commit.pair_offset + row[DTI_TABLE_BLOCK]];
}

static void dti_cpu_grad_norm(const dti_cpu_task *task, int64_t begin, int64_t end, void *scratch) {
    const float *grads = task->buf[0];
    const uint32_t *row = (const uint32_t *)task->buf[1] + begin * DTI_TABLE_WORDS;
    float *pairs = task->buf[3];
    for (int64_t i = begin; i < end; i++, row += DTI_TABLE_WORDS) {
        if (task->launch->spec[0] && !dti_cpu_rows_of(task, task->buf[2], row)) {
            pairs[2 * i] = pairs[2 * i + 1] = 0.0f;
            continue;
        }
        const float *g = grads + (int64_t)row[DTI_TABLE_BLOCK] * DTI_BLOCK;
        const int64_t used = DTI_TABLE_USED_OF(row[DTI_TABLE_USED]);
        float sum = task->k->row_sum_sq(g, used);
        bool fine = dti_finite_f32(sum) ||
                    dti_all_finite(g, DT_F32, (uint64_t)used); /* squares may overflow */
        pairs[2 * i] = row[DTI_TABLE_PARAM] & DTI_TABLE_BUFFER ? 0.0f : sum;
        pairs[2 * i + 1] = fine ? 0.0f : 1.0f;
    }
}

static bool dti_terms_finite(const dti_args_commit *a, const uint32_t *status) {
    for (uint32_t i = 0; (a->flags & DTI_COMMIT_LOSSES) && i < a->terms; i++) {
        for (uint32_t k = 0; k < 2; k++) /* its sum and its weight */
            if (!dti_finite_f32(dti_f32_from_bits(status[DTI_STATUS_TERM(i) + k])))
                return false;
    }
    return true;
}

/* torch.nn.utils.clip_grad_norm_: min(1, max_norm / (norm + 1e-6)) */
static void dti_cpu_clip_finish(const dti_cpu_task *task, int64_t begin, int64_t end,
                                void *scratch) {
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
    const bool behind = task->step[DTI_STEP_FLAGS] & DTI_FLAG_BEHIND;
    const bool lost = state[DTI_CONTROL_ABORT] || state[DTI_CONTROL_BAD] != DTI_BAD_NONE;
    const bool looked = behind && state[DTI_CONTROL_CHECK]; /* how large values are is not known */
    const bool proven = norm <= dti_step_f32(task->step, DTI_STEP_PROVEN) && !looked;
    float clip = 1.0f;
    if (limit > 0.0f)
        clip = limit / (norm + 1e-6f);
    if (!(clip < 1.0f))
        clip = 1.0f;
    if (a->flags & DTI_COMMIT_MAXIMIZE)
        clip = -clip;
    const uint32_t abort = behind && lost ? DTI_ABORT_BEHIND : fine ? 0 : 1;
    state[DTI_CONTROL_ABORT] = status[DTI_STATUS_ABORT] = abort;
    state[DTI_CONTROL_CHECK] = !abort && !proven;
    state[DTI_CONTROL_BAD] = status[DTI_STATUS_BAD] = DTI_BAD_NONE;
    for (int i = 0; i < DTI_OPTIM_VALUES; i++)
        state[DTI_CONTROL_LARGEST(i)] = status[DTI_STATUS_LARGEST(i)] = 0;
    memcpy(state + DTI_CONTROL_CLIP, &clip, sizeof clip);
    memcpy(status + DTI_STATUS_NORM, &norm, sizeof norm);
}

/* ---- the update of one block, from its group's words and its parameter's count of steps t */

/* A parameter's constants, and where one of its blocks lies. */
typedef struct dti_cpu_update {
    const dti_isa_kernels *k;
    uint32_t kind, group, t;
    float share;
    dti_optim_rates_f32 rates;
    float *v[DTI_OPTIM_VALUES]; /* the weight and its moments; NULL = it has no such one */
    const float *g;
    int64_t n, cols, place; /* cols: of rows that are left alone without a gradient; or 0 */
    uint32_t rows;          /* bits of those that may have one */
    bool known;             /* how large weights are that it leaves alone */
} dti_cpu_update;

static void dti_cpu_update_rates(const dti_cpu_task *task, dti_cpu_update *u) {
    const uint32_t *state = task->buf[2];
    memcpy(u->rates.words, task->step + DTI_STEP_GROUP(u->group), sizeof u->rates.words);
    u->rates.t = (float)u->t;
    u->rates.clip = dti_f32_from_bits(state[DTI_CONTROL_CLIP]);
    u->rates.limit = dti_step_f32(task->step, DTI_STEP_CLIP_VALUE);
    u->k->optim_constants[u->kind](&u->rates);
    u->rates.constants[DTI_OPTIM_SHARE] = u->share;
}

/* The parameter's own share in a step; 0: none; negative: its direction is given. */
static float dti_cpu_update_share(const dti_cpu_task *task, uint32_t param) {
    const dti_args_commit *a = &task->launch->args.commit;
    if (!a->share_offset || param & DTI_TABLE_PLAIN)
        return 0.0f;
    const float share = ((const float *)task->buf[2])[a->share_offset + (param & DTI_TABLE_INDEX)];
    return a->flags & DTI_COMMIT_DIRECTED ? -share : share;
}

static void dti_cpu_update_place(const dti_cpu_task *task, const uint32_t *row, dti_cpu_update *u) {
    const dti_args_commit *a = &task->launch->args.commit;
    const int64_t at = (int64_t)row[DTI_TABLE_BLOCK] * DTI_BLOCK;
    const uint32_t *state = task->buf[2];
    const uint32_t t = state[a->t_offset + (row[DTI_TABLE_PARAM] & DTI_TABLE_INDEX)];
    u->g = (const float *)task->buf[1] + at;
    u->v[0] = (float *)task->buf[0] + at;
    for (uint32_t i = 0; i < a->moments; i++)
        u->v[1 + i] = (float *)task->buf[2] +
                      (uint32_t)(4ull * (a->moment_fours + i * a->stride_fours) + (uint64_t)at);
    const uint32_t group = DTI_TABLE_GROUP_OF(row[DTI_TABLE_GROUP]);
    u->n = DTI_TABLE_USED_OF(row[DTI_TABLE_USED]);
    u->cols = DTI_TABLE_COLS_OF(row[DTI_TABLE_GROUP]);
    u->place = DTI_TABLE_PLACE_OF(row[DTI_TABLE_USED]);
    const float share = dti_cpu_update_share(task, row[DTI_TABLE_PARAM]);
    if (group == u->group && t == u->t && share == u->share)
        return;
    u->group = group;
    u->t = t;
    u->share = share;
    dti_cpu_update_rates(task, u);
}

/* Parameters with launches of their own are left to those. */
static bool dti_cpu_is_left(const dti_args_commit *a, const uint32_t *row) {
    return row[DTI_TABLE_PARAM] & DTI_TABLE_APART &&
           !(a->flags & (DTI_COMMIT_DIRECTION | DTI_COMMIT_DIRECTED));
}

/* Gradients are directions, only of the launch's blocks, and are not clipped. */
static void dti_cpu_update_directed(const dti_cpu_task *task, dti_cpu_update *u, int64_t block) {
    u->g = (const float *)task->buf[1] + block * DTI_BLOCK;
    u->rates.clip = 1.0f;
    u->rates.limit = 0.0f;
}

/* Row by row. A row counts if its gradient, also the part in other blocks, is not 0. Returns the
 * largest weight of those. */
static uint32_t dti_cpu_update_rows(const dti_cpu_update *u) {
    uint32_t r = 0, largest = 0;
    for (int64_t row = -u->place; row < u->n; row += u->cols, r++) {
        const int64_t at = DTI_MAX(row, 0), end = DTI_MIN(row + u->cols, u->n);
        float *v[DTI_OPTIM_VALUES];
        if (!(u->rows & DTI_ROW_BIT(r)) || !u->k->row_largest(u->g + row, u->cols))
            continue;
        for (int i = 0; i < DTI_OPTIM_VALUES; i++)
            v[i] = u->v[i] ? u->v[i] + at : NULL;
        u->k->optim_update[u->kind](v, u->g + at, end - at, &u->rates);
        const uint32_t most = u->k->row_largest(v[0], end - at);
        largest = DTI_MAX(largest, most);
    }
    return largest;
}

/* Returns the largest weight, as far as it is not known, while it is in the cache. */
static uint32_t dti_cpu_update_run(const dti_cpu_update *u) {
    uint32_t largest = 0;
    if (u->cols)
        largest = dti_cpu_update_rows(u);
    else
        u->k->optim_update[u->kind](u->v, u->g, u->n, &u->rates);
    return u->known ? largest : u->k->row_largest(u->v[0], u->n);
}

static void dti_cpu_update_largest(const dti_cpu_update *u, uint32_t largest[DTI_OPTIM_VALUES]) {
    for (int i = 0; i < DTI_OPTIM_VALUES; i++) {
        if (u->v[i])
            largest[i] = DTI_MAX(largest[i], u->k->row_largest(u->v[i], u->n));
    }
}

/* Which DTI_BAD_* it is that the largest become `after`. */
static uint32_t dti_cpu_update_bad(const uint32_t before[DTI_OPTIM_VALUES],
                                   const uint32_t after[DTI_OPTIM_VALUES]) {
    const uint32_t infinity = 0x7f800000u;
    uint32_t worst = after[0] >= infinity ? DTI_BAD_WEIGHT : DTI_BAD_FINE;
    for (uint32_t i = DTI_MOMENTS_MAX; i-- > 0;)
        worst = after[1 + i] >= infinity ? DTI_BAD_MOMENT + i : worst;
    for (int i = 0; i < DTI_OPTIM_VALUES; i++)
        worst = before[i] >= infinity ? DTI_BAD_BEFORE : worst;
    return worst;
}

/* The same update of copies: which DTI_BAD_* it would be. */
static uint32_t dti_cpu_update_dry(const dti_cpu_update *u, uint32_t largest[DTI_OPTIM_VALUES]) {
    float copies[DTI_OPTIM_VALUES][DTI_BLOCK];
    dti_cpu_update dry = *u;
    uint32_t before[DTI_OPTIM_VALUES] = {0}, after[DTI_OPTIM_VALUES] = {0};
    for (int i = 0; i < DTI_OPTIM_VALUES; i++) {
        if (!u->v[i])
            continue;
        memcpy(copies[i], u->v[i], (size_t)u->n * sizeof(float));
        dry.v[i] = copies[i];
    }
    dti_cpu_update_largest(u, before);
    dti_cpu_update_run(&dry);
    dti_cpu_update_largest(&dry, after);
    for (int i = 1; i < DTI_OPTIM_VALUES; i++)
        largest[i] = DTI_MAX(largest[i], after[i]);
    return dti_cpu_update_bad(before, after);
}

/* The smaller or the larger of the two. */
static void dti_atomic_extreme(uint32_t *word, uint32_t value, bool largest) {
    uint32_t seen = __atomic_load_n(word, __ATOMIC_RELAXED);
    while ((largest ? seen < value : seen > value) &&
           !__atomic_compare_exchange_n(word, &seen, value, false, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED)) {
    }
}

/* ---- values in fewer bits: a block at a time as floats (stored.c) */

/* Where the block's values are stored, and their float copies. */
typedef struct dti_cpu_stored {
    const uint32_t *words; /* DTI_STORED_WORDS of the block */
    void *at[DTI_OPTIM_VALUES];
    dt_state_dtype type[DTI_OPTIM_VALUES];
    float v[DTI_OPTIM_VALUES][DTI_BLOCK];
    dti_map8 maps[2]; /* the first moment's, with a sign, and others' */
} dti_cpu_stored;

static void dti_cpu_stored_begin(const dti_cpu_task *task, dti_cpu_stored *s) {
    if (task->launch->spec[2] != 1u + DT_STATE_8BIT)
        return;
    for (int i = 0; i < 2; i++)
        dti_map8_make(&s->maps[i], i == 0);
}

/* In 16 bits a buffer is f32, in twice the room. */
static void *dti_cpu_stored_value(const dti_cpu_task *task, const uint32_t *row,
                                  const dti_cpu_stored *s) {
    const uint64_t block = row[DTI_TABLE_BLOCK];
    const bool half = task->launch->dtype[0] != DT_F32;
    const uint64_t more =
        half && row[DTI_TABLE_PARAM] & DTI_TABLE_BUFFER ? s->words[DTI_STORED_BLOCK] : 0;
    return (char *)task->buf[0] +
           (block + (more & ~DTI_STORED_F32)) * DTI_BLOCK * dti_dtype_bytes(task->launch->dtype[0]);
}

static const dti_map8 *dti_cpu_stored_map(const dti_cpu_stored *s, int value) {
    return &s->maps[value != 1];
}

static void dti_cpu_stored_read(const dti_cpu_task *task, const uint32_t *row, dti_cpu_stored *s,
                                dti_cpu_update *u) {
    const dti_args_commit *a = &task->launch->args.commit;
    const bool wide = s->words[DTI_STORED_BLOCK] & DTI_STORED_F32;
    s->at[0] = dti_cpu_stored_value(task, row, s);
    s->type[0] = task->launch->dtype[0] == DT_F32 ? DT_STATE_F32 : DT_STATE_BF16;
    for (uint32_t i = 0; i < a->moments; i++) {
        s->at[1 + i] =
            (uint32_t *)task->buf[2] +
            (uint32_t)(4ull * (a->moment_fours + i * a->stride_fours) + s->words[DTI_STORED_STATE]);
        s->type[1 + i] = wide ? DT_STATE_F32 : (dt_state_dtype)(task->launch->spec[2] - 1);
    }
    for (uint32_t i = 0; i <= a->moments; i++) {
        u->v[i] = s->type[i] == DT_STATE_F32 ? s->at[i] : s->v[i];
        if (s->type[i] != DT_STATE_F32)
            dti_stored_read(task->k, s->v[i], s->at[i], u->n, s->type[i],
                            dti_cpu_stored_map(s, (int)i));
    }
}

/* Draws depend only on seed, step, parameter, value and element. */
static void dti_cpu_stored_write(const dti_cpu_task *task, const uint32_t *row,
                                 const dti_cpu_stored *s, const dti_cpu_update *u) {
    uint32_t words[DTI_STORED_DRAWS];
    const uint64_t seed = task->step[DTI_STEP_SEED_LO] | (uint64_t)task->step[DTI_STEP_SEED_HI]
                                                             << 32;
    const uint64_t block = s->words[DTI_STORED_BLOCK] & ~DTI_STORED_F32;
    for (uint32_t i = 0; i <= task->launch->args.commit.moments; i++) {
        if (s->type[i] == DT_STATE_BF16)
            task->k->philox(words, DTI_STORED_DRAWS, seed, block * DTI_STORED_DRAWS,
                            task->step[DTI_STEP_NUMBER],
                            DTI_STORED_STREAM(row[DTI_TABLE_PARAM] & DTI_TABLE_INDEX, i));
        if (s->type[i] != DT_STATE_F32)
            dti_stored_write(task->k, s->at[i], s->v[i], u->n, s->type[i],
                             dti_cpu_stored_map(s, (int)i), words);
    }
}

/* ---- the launch */

/* A buffer takes its new value from its gradient's place. */
static void dti_cpu_optim_buffer(const dti_cpu_task *task, const uint32_t *row,
                                 const dti_cpu_stored *s) {
    const int64_t at = (int64_t)row[DTI_TABLE_BLOCK] * DTI_BLOCK;
    void *to = s ? dti_cpu_stored_value(task, row, s) : (float *)task->buf[0] + at;
    memcpy(to, (const float *)task->buf[1] + at,
           DTI_TABLE_USED_OF(row[DTI_TABLE_USED]) * sizeof(float));
}

/* The update of a block, or its dry pass. */
static void dti_cpu_optim_block(const dti_cpu_task *task, const uint32_t *row, dti_cpu_update *u,
                                dti_cpu_stored *s, uint32_t largest[DTI_OPTIM_VALUES]) {
    uint32_t *bad_word = (uint32_t *)task->buf[2] + DTI_CONTROL_BAD;
    const uint32_t param = row[DTI_TABLE_PARAM] & DTI_TABLE_INDEX;
    if (s)
        dti_cpu_stored_read(task, row, s, u);
    if (task->launch->args.commit.flags & DTI_COMMIT_DRY) {
        const uint32_t bad = dti_cpu_update_dry(u, largest);
        dti_atomic_extreme(bad_word, bad < DTI_BAD_FINE ? param << 3 | bad : DTI_BAD_NONE, false);
        return;
    }
    const uint32_t most = dti_cpu_update_run(u);
    largest[0] = DTI_MAX(largest[0], most);
    if (s)
        dti_cpu_stored_write(task, row, s, u);
}

static void dti_cpu_optim_blocks(const dti_cpu_task *task, int64_t begin, int64_t end,
                                 dti_cpu_stored *stored) {
    uint32_t *state = task->buf[2], largest[DTI_OPTIM_VALUES] = {0};
    const dti_args_commit *a = &task->launch->args.commit;
    const uint32_t *row = (const uint32_t *)task->buf[3] + (a->first + begin) * DTI_TABLE_WORDS;
    const uint32_t *words = (const uint32_t *)task->buf[3] +
                            (size_t)task->launch->spec[3] * DTI_TABLE_WORDS +
                            (a->first + begin) * DTI_STORED_WORDS;
    const bool dry = a->flags & DTI_COMMIT_DRY, sparse = task->launch->spec[1] & DTI_OPTIM_SPARSE;
    const bool known = a->flags & DTI_COMMIT_UNTOLD || !state[DTI_CONTROL_CHECK];
    dti_cpu_update u = {.k = task->k, .kind = task->launch->spec[0], .group = UINT32_MAX};
    if (dry ? !state[DTI_CONTROL_CHECK]
            : state[DTI_CONTROL_ABORT] || state[DTI_CONTROL_BAD] != DTI_BAD_NONE)
        return;
    for (int64_t i = begin; i < end; i++, row += DTI_TABLE_WORDS, words += DTI_STORED_WORDS) {
        if (stored)
            stored->words = words;
        if (row[DTI_TABLE_PARAM] & DTI_TABLE_BUFFER) {
            if (!dry)
                dti_cpu_optim_buffer(task, row, stored);
            continue;
        }
        if (dti_cpu_is_left(a, row))
            continue;
        u.rows = sparse ? dti_cpu_rows_of(task, state, row) : UINT32_MAX;
        u.known = known && row[DTI_TABLE_PARAM] & DTI_TABLE_SPARSE;
        if (u.known && !u.rows)
            continue;
        dti_cpu_update_place(task, row, &u);
        if (a->flags & DTI_COMMIT_DIRECTED)
            dti_cpu_update_directed(task, &u, i);
        dti_cpu_optim_block(task, row, &u, stored, largest);
    }
    for (int i = 0; i < DTI_OPTIM_VALUES; i++)
        dti_atomic_extreme(&state[DTI_CONTROL_LARGEST(i)], largest[i], true);
}

/* A function of its own: the float copies take 10 KB of stack. */
static void dti_cpu_optim_stored(const dti_cpu_task *task, int64_t begin, int64_t end) {
    dti_cpu_stored stored;
    dti_cpu_stored_begin(task, &stored);
    dti_cpu_optim_blocks(task, begin, end, &stored);
}

static void dti_cpu_optim(const dti_cpu_task *task, int64_t begin, int64_t end, void *scratch) {
    if (task->launch->spec[2])
        dti_cpu_optim_stored(task, begin, end);
    else
        dti_cpu_optim_blocks(task, begin, end, NULL);
}

/* ---- the average of weights */

/* Without a fused multiplication, so that it has the same bits everywhere. */
static void dti_cpu_average_block(const dti_cpu_task *task, const uint32_t *row, float part) {
    const int64_t n = DTI_TABLE_USED_OF(row[DTI_TABLE_USED]);
    const int64_t at = (int64_t)row[DTI_TABLE_BLOCK] * DTI_BLOCK;
    const void *from = (char *)task->buf[0] + dti_bytes(task->launch->dtype[0], (uint64_t)at);
    const float *w = from;
    float *a = (float *)task->buf[1] +
               (uint32_t)(4ull * task->launch->args.commit.moment_fours + (uint64_t)at);
    const float rest = 1.0f - part;
    float way[DTI_BLOCK], wide[DTI_BLOCK];
    if (task->launch->dtype[0] != DT_F32) {
        task->k->widen[DT_BF16](wide, from, n);
        w = wide;
    }
    if (part == 1.0f) {
        memcpy(a, w, (size_t)n * sizeof *a);
        return;
    }
    if (part < 0.5f) /* see lerp in optim_body.h */
        task->k->binary[DTI_B_SUB](way, w, 1, a, 1, n);
    else
        task->k->binary[DTI_B_MUL](a, a, 1, &rest, 0, n);
    task->k->binary[DTI_B_MUL](way, part < 0.5f ? way : w, 1, &part, 0, n);
    task->k->binary[DTI_B_ADD](a, a, 1, way, 1, n);
}

static void dti_cpu_average(const dti_cpu_task *task, int64_t begin, int64_t end, void *scratch) {
    const uint32_t *state = task->buf[1];
    const int64_t first = task->launch->args.commit.first + begin;
    const uint32_t *row = (const uint32_t *)task->buf[2] + first * DTI_TABLE_WORDS;
    const float part = dti_step_f32(task->step, DTI_STEP_AVERAGE);
    if (state[DTI_CONTROL_ABORT] || state[DTI_CONTROL_BAD] != DTI_BAD_NONE || part == 0.0f)
        return;
    for (int64_t i = begin; i < end; i++, row += DTI_TABLE_WORDS) {
        if (!(row[DTI_TABLE_PARAM] & DTI_TABLE_BUFFER))
            dti_cpu_average_block(task, row, part);
    }
}

static void dti_cpu_optim_tell(const uint32_t *state, uint32_t *status) {
    status[DTI_STATUS_BAD] = state[DTI_CONTROL_BAD];
    if (state[DTI_CONTROL_BAD] != DTI_BAD_NONE)
        status[DTI_STATUS_ABORT] = 1;
    for (int i = 0; i < DTI_OPTIM_VALUES; i++)
        status[DTI_STATUS_LARGEST(i)] = state[DTI_CONTROL_LARGEST(i)];
}

static void dti_cpu_optim_tick(const dti_cpu_task *task, int64_t begin, int64_t end,
                               void *scratch) {
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

/* ---- scan: the status word becomes the least code of a launch that wrote a NaN or an infinity. */
static void dti_cpu_scan(const dti_cpu_task *task, int64_t begin, int64_t end, void *scratch) {
    const dti_args_scan *a = &task->launch->args.scan;
    if (dti_all_finite(dti_cpu_in(task, 0, a->x_offset) + begin, DT_F32, (uint64_t)(end - begin)))
        return;
    dti_atomic_extreme((uint32_t *)task->buf[1] + DTI_STATUS_FAULT, a->code, false);
}

/* ---- Rows of the tables */

static void dti_accumulate_tile(const dti_launch *l, uint32_t variant, uint32_t spec[4]) {
    const dti_args_accumulate *a = &l->args.accumulate;
    spec[2] = dti_fours(a->n, a->x_offset | a->y_offset);
}

DTI_KERNEL(ACCUMULATE, accumulate, "ru", ITEM, .run = dti_cpu_accumulate, .grain = DTI_GRAIN_FLAT,
           .tile = dti_accumulate_tile, .invocations = dti_fours_invocations);

/* spec0: DTI_ACCUMULATE_* */
DTI_KERNEL(ACCUMULATE_LONG, accumulate_long, "ruu", ITEM, .run = dti_cpu_accumulate_long,
           .grain = DTI_GRAIN_FLAT, .tile = dti_accumulate_tile,
           .invocations = dti_fours_invocations);

/* An invocation has four elements of a block at a time. */
static dti_effort dti_blocks_effort(const dti_launch *l, uint32_t variant, uint32_t local) {
    return (dti_effort){dti_effort_rows(1, DTI_BLOCK / 4, 1, local).steps,
                        l->items * 2 * DTI_BLOCK};
}

/* A block's elements, twice where its rows are looked for first. */
static uint64_t dti_blocks_rounds(const dti_launch *l, uint32_t local) {
    return dti_rounds_of(2 * DTI_BLOCK, 4, local);
}

/* (grads, table, state, pairs [blocks, 2]) spec0: 1 = the state has words of some rows */
DTI_KERNEL(GRAD_NORM, grad_norm, "rrrw", GROUP, .run = dti_cpu_grad_norm, .grain = 64,
           .lanes = DTI_BLOCK / 4, .rounds = dti_blocks_rounds, .effort = dti_blocks_effort);

static dti_effort dti_clip_finish_effort(const dti_launch *l, uint32_t variant, uint32_t local) {
    const dti_args_commit *a = &l->args.commit;
    return dti_effort_rows(1, DTI_MAX(a->blocks, a->terms), 1, local);
}

static uint64_t dti_clip_finish_rounds(const dti_launch *l, uint32_t local) {
    const dti_args_commit *a = &l->args.commit;
    return dti_rounds_of(a->terms, 1, local) + dti_rounds_of(a->blocks, 1, 8 * local);
}

/* (pairs, status, state) one workgroup */
DTI_KERNEL(CLIP_FINISH, clip_finish, "ruu", GROUP, .run = dti_cpu_clip_finish,
           .rounds = dti_clip_finish_rounds, .effort = dti_clip_finish_effort);

/* (params, grads, state, table) spec0: a kind, DTI_OPTIM_*; spec1: DTI_OPTIM_ROW_SPARSE |
 * _SPARSE; spec2, spec3, on the CPU: .stored and .entries of dti_optim_site */
DTI_KERNEL(OPTIM, optim, "urur", GROUP, .run = dti_cpu_optim, .grain = 64, .lanes = DTI_BLOCK / 4,
           .halves = true, .rounds = dti_blocks_rounds, .effort = dti_blocks_effort);

/* (params, state, table) */
DTI_KERNEL(AVERAGE, average, "rur", GROUP, .run = dti_cpu_average, .grain = 64,
           .lanes = DTI_BLOCK / 4, .halves = true, .rounds = dti_blocks_rounds,
           .effort = dti_blocks_effort);

/* (state, table, status) */
DTI_KERNEL(OPTIM_TICK, optim_tick, "uru", ITEM, .run = dti_cpu_optim_tick, .grain = DTI_GRAIN_COPY);

/* (x, status) */
DTI_KERNEL(SCAN, scan, "ru", ITEM, .run = dti_cpu_scan, .grain = DTI_GRAIN_COPY);
