/* Values of whole parameters that optimizers need before they change an element. The lengths by
 * which LAMB and LARS scale a step, Muon's orthogonal directions, Adafactor's factors. They are
 * made before the dry pass, which writes no parameter and no moment. So a refused step leaves the
 * store unchanged. Formulas: shaders/lib/optim_whole_body.h. */

/* ---- launches */

/* Bound to two values, the state and the table. */
static void dti_optim_launch(const dti_optim_site *s, dti_kernel_id kernel,
                             const dti_args_commit *args, uint32_t first, uint32_t second) {
    DTI_EMIT(s->e, kernel, args->blocks, *args, first, second, s->state, s->table)->spec[0] =
        (uint32_t)s->optim->kind;
}

static void dti_optim_emit_sums(const dti_optim_site *s, const dti_args_commit *args) {
    DTI_EMIT(s->e, DTI_K_OPTIM_SUMS, args->blocks, *args, s->state, s->table)->spec[0] =
        (uint32_t)s->optim->kind;
}

static void dti_optim_emit_measured(const dti_optim_site *s, const dti_args_commit *args,
                                    uint32_t grads) {
    dti_optim_launch(s, DTI_K_OPTIM_PAIRS, args, s->params, grads);
    dti_optim_emit_sums(s, args);
}

static void dti_optim_emit_shares(const dti_optim_site *s) {
    dti_optim_emit_measured(s, &s->args, s->grads);
}

static dti_args_commit dti_optim_matrix_args(const dti_optim_site *s, const dti_optim_matrix *m,
                                             uint32_t flags) {
    dti_args_commit args = s->args;
    args.first = m->first;
    args.blocks = m->blocks;
    args.flags |= flags;
    return args;
}

/* The gradients of a parameter as an update uses them, or sums of their squares. */
static void dti_optim_emit_direction(const dti_optim_site *s, const dti_optim_matrix *m) {
    const dti_args_commit args = dti_optim_matrix_args(s, m, DTI_COMMIT_DIRECTION);
    dti_optim_launch(s, DTI_K_OPTIM_PAIRS, &args, m->direction, s->grads);
}

static void dti_optim_apply_matrix(const dti_optim_site *s, const dti_optim_matrix *m) {
    const dti_args_commit args = dti_optim_matrix_args(s, m, DTI_COMMIT_DIRECTED);
    dti_optim_launch(s, DTI_K_OPTIM, &args, s->params, m->direction);
}

/* ---- Muon, torch.optim's Newton-Schulz iteration: X = U / |U|, then five times X = a X + (b G + c
 * G G) X, G = X X^T. A matrix that is higher than wide is transposed first. It moves all singular
 * values near 1. In f32; torch computes it in bf16. */

static const float dti_muon_a = 3.4445f, dti_muon_b = -4.775f, dti_muon_c = 2.0315f;
enum { DTI_MUON_ROUNDS = 5 };

/* Values of one matrix; its short side is k. */
typedef struct dti_muon {
    const dti_optim_site *s;
    uint32_t rows, cols, k;
    uint32_t x[2], gram, gram2;
} dti_muon;

static void dti_optim_emit_mix(dti_emit *e, uint64_t n, uint32_t x, float x_part, uint32_t z,
                               float z_part, uint32_t y) {
    const dti_args_mix a = {.n = (uint32_t)n, .x_part = x_part, .z_part = z_part};
    DTI_EMIT(e, DTI_K_OPTIM_MIX, n, a, x, z, y);
}

/* c [m, n] = a [m, k] b [k, n]; strides of rows and columns, c without gaps. */
static void dti_muon_product(const dti_muon *u, dti_args_gemm g, uint32_t a, uint32_t b,
                             uint32_t c) {
    dti_emit *e = u->s->e;
    g.batch0 = g.batch1 = 1;
    g.c_row = g.n;
    e->out.value = c;
    dti_emit_gemm(e, &g, a, b, DTI_UNBOUND, dti_gemm_cuts_over_rows(g.m, g.n, g.k));
}

static void dti_muon_gram(const dti_muon *u, uint32_t x) {
    const bool wide = u->rows <= u->cols;
    const uint32_t cols = u->cols;
    dti_args_gemm g = {.m = u->k, .n = u->k, .k = wide ? u->cols : u->rows};
    g.a_row = g.b_col = wide ? cols : 1;
    g.a_col = g.b_row = wide ? 1 : cols;
    dti_muon_product(u, g, x, x, u->gram);
}

/* y = X' as said above, times `scale`. */
static void dti_muon_round(const dti_muon *u, uint32_t x, uint32_t y, float scale) {
    const uint64_t n = (uint64_t)u->rows * u->cols, square = (uint64_t)u->k * u->k;
    const bool wide = u->rows <= u->cols;
    dti_args_gemm g = {.m = u->k, .n = u->k, .k = u->k};
    g.a_row = g.b_row = u->k;
    g.a_col = g.b_col = 1;
    dti_muon_gram(u, x);
    dti_muon_product(u, g, u->gram, u->gram, u->gram2);
    dti_optim_emit_mix(u->s->e, square, u->gram, dti_muon_b * scale, u->gram2, dti_muon_c * scale,
                       u->gram);
    g.m = u->rows;
    g.n = g.b_row = u->cols;
    if (!wide) {
        g.a_row = u->cols;
        dti_muon_product(u, g, x, u->gram, y);
    } else {
        dti_muon_product(u, g, u->gram, x, y);
    }
    dti_optim_emit_mix(u->s->e, n, x, dti_muon_a * scale, y, 1.0f, y);
}

/* x = U * share, the share lying in the state. */
static void dti_muon_scale(const dti_muon *u, const dti_optim_matrix *m, uint32_t from) {
    const int64_t n = (int64_t)u->rows * u->cols, at = u->s->args.share_offset + (int64_t)m->param;
    const dti_view x = dti_view_line(from, n, 1, 0), y = dti_view_line(u->x[0], n, 1, 0);
    const dti_view share = dti_view_line(u->s->state, 1, 1, at);
    dti_emit_map2_views(u->s->e, DTI_K_MAP2, DTI_B_MUL, &x, &share, &y, (const float[2]){0, 0});
}

static void dti_optim_emit_matrix(const dti_optim_site *s, dti_optim_matrix *m) {
    const dti_args_commit args = dti_optim_matrix_args(s, m, DTI_COMMIT_DIRECTION);
    const uint64_t n = (uint64_t)m->blocks * DTI_BLOCK;
    dti_muon u = {.s = s, .rows = m->rows, .cols = m->cols, .k = DTI_MIN(m->rows, m->cols)};
    const float scale = sqrtf(DTI_MAX(1.0f, (float)m->rows / (float)m->cols));
    m->direction = dti_emit_scratch(s->e, DT_F32, n);
    u.x[0] = dti_emit_scratch(s->e, DT_F32, n);
    u.x[1] = dti_emit_scratch(s->e, DT_F32, n);
    u.gram = dti_emit_scratch(s->e, DT_F32, (uint64_t)u.k * u.k);
    u.gram2 = dti_emit_scratch(s->e, DT_F32, (uint64_t)u.k * u.k);
    dti_optim_emit_direction(s, m);
    dti_optim_emit_sums(s, &args);
    dti_muon_scale(&u, m, m->direction);
    for (int i = 0; i < DTI_MUON_ROUNDS; i++) {
        const bool last = i == DTI_MUON_ROUNDS - 1;
        dti_muon_round(&u, u.x[i % 2], last ? m->direction : u.x[1 - i % 2], last ? scale : 1.0f);
    }
}

/* ---- Adafactor: for each matrix the means of its rows' and columns' squares, and the mean of all.
 * Rows' and columns' means lie in the state, one after the other. A matrix of one row or column
 * takes that factor from the mean of all, because two would not fit. */

typedef struct dti_factored {
    const dti_optim_site *s;
    const dti_optim_matrix *m;
    uint32_t rows_kept, cols_kept; /* words of each that lie in the state */
    uint32_t squares;              /* value */
    dti_args_factors args;
} dti_factored;

static dti_factored dti_factored_of(const dti_optim_site *s, const dti_optim_matrix *m) {
    dti_factored f = {.s = s, .m = m};
    const uint32_t behind = m->blocks * DTI_BLOCK;
    f.rows_kept = m->rows > 1 || m->cols == 1 ? m->count * m->rows : 0;
    f.cols_kept = m->cols > 1 ? m->count * m->cols : 0;
    f.args = (dti_args_factors){.kept = f.rows_kept + f.cols_kept,
                                .rows = m->rows,
                                .cols = m->cols,
                                .row_offset = f.rows_kept ? 0 : behind,
                                .col_offset = f.cols_kept ? f.rows_kept : behind,
                                .mean_offset = behind,
                                .moment_offset = 4 * s->args.moment_fours + m->offset,
                                .t_offset = s->args.t_offset + m->param,
                                .group = m->group};
    return f;
}

/* y [count, kept] = means of x, of `r` each, `apart` from each other; strides of x's axes. */
static void dti_factored_mean(const dti_factored *f, uint32_t x, uint32_t x_at, uint32_t y_at,
                              dti_args_reduce a, uint32_t apart) {
    const uint32_t r = a.dim[DTI_AXES - 1];
    dti_kernel_id kernel = apart == 1 ? DTI_K_REDUCE_ROW : DTI_K_REDUCE_COLUMN;
    a.kept = DTI_AXES - 1;
    a.n = a.dim[3] * a.dim[4];
    a.r = r;
    a.dim[0] = a.dim[1] = a.dim[2] = 1;
    a.x_stride[DTI_AXES - 1] = apart;
    a.x_offset = x_at;
    a.y_offset = y_at;
    a.scale = 1.0f / (float)r;
    DTI_EMIT(f->s->e, r < 64 ? DTI_K_REDUCE : kernel, a.n, a, x, f->m->factors)->spec[0] =
        DTI_R_SUM;
}

static void dti_factored_squares(dti_factored *f) {
    const dti_optim_matrix *m = f->m;
    const uint32_t rows = m->count * m->rows, size = m->rows * m->cols;
    const int64_t n = (int64_t)rows * m->cols;
    const dti_view x = dti_view_line(m->direction, n, 1, 0), y = dti_view_line(f->squares, n, 1, 0);
    dti_emit_map1(f->s->e, DTI_K_MAP1, DTI_U_SQUARE, &x, &y, (const float[2]){0, 0});
    if (f->rows_kept)
        dti_factored_mean(f, f->squares, 0, 0,
                          (dti_args_reduce){.dim = {[3] = 1, [4] = rows, [5] = m->cols},
                                            .x_stride = {[4] = m->cols}},
                          1);
    if (f->cols_kept)
        dti_factored_mean(f, f->squares, 0, f->rows_kept,
                          (dti_args_reduce){.dim = {[3] = m->count, [4] = m->cols, [5] = m->rows},
                                            .x_stride = {[3] = size, [4] = 1}},
                          m->cols);
}

static void dti_factored_launch(const dti_factored *f, dti_kernel_id kernel, uint64_t n,
                                uint32_t first, uint32_t second) {
    dti_args_factors a = f->args;
    a.n = (uint32_t)n;
    DTI_EMIT(f->s->e, kernel, n, a, first, second)->spec[0] = (uint32_t)f->s->optim->kind;
}

static void dti_optim_emit_factored(const dti_optim_site *s, dti_optim_matrix *m) {
    const dti_args_commit given = dti_optim_matrix_args(s, m, DTI_COMMIT_DIRECTED);
    const uint64_t n = (uint64_t)m->blocks * DTI_BLOCK;
    m->direction = dti_emit_scratch(s->e, DT_F32, n);
    m->factors = dti_emit_scratch(s->e, DT_F32, n + m->count);
    dti_factored f = dti_factored_of(s, m);
    const uint32_t each = f.rows_kept ? m->rows : m->cols; /* of which the mean of all is made */
    f.squares = dti_emit_scratch(s->e, DT_F32, n);
    dti_optim_emit_direction(s, m);
    dti_factored_squares(&f);
    dti_factored_launch(&f, DTI_K_OPTIM_FACTORS, n, m->factors, s->state);
    dti_factored_mean(
        &f, m->factors, 0, f.args.mean_offset,
        (dti_args_reduce){.dim = {[3] = 1, [4] = m->count, [5] = each}, .x_stride = {[4] = each}},
        1);
    dti_factored_launch(&f, DTI_K_OPTIM_DIVIDE, (uint64_t)m->count * m->rows * m->cols,
                        m->direction, m->factors);
    dti_optim_emit_measured(s, &given, m->direction);
}

/* Weights first, because both depend on their new size. */
static void dti_optim_apply_factored(const dti_optim_site *s, const dti_optim_matrix *m) {
    dti_args_commit args = dti_optim_matrix_args(s, m, DTI_COMMIT_DIRECTED);
    const dti_factored f = dti_factored_of(s, m);
    args.moments = 0;
    dti_optim_launch(s, DTI_K_OPTIM, &args, s->params, m->direction);
    args.moments = 1;
    args.share_offset = 0;
    args.blocks = (f.args.kept + DTI_BLOCK - 1) / DTI_BLOCK;
    dti_optim_launch(s, DTI_K_OPTIM, &args, s->params, m->factors);
}

/* ---- CPU */

#define DTI_OPTIM_PART 16
#include "../../shaders/lib/optim_body.h"
#undef DTI_OPTIM_PART

static void dti_cpu_optim_pairs(const dti_cpu_task *task, int64_t begin, int64_t end,
                                void *scratch) {
    const dti_args_commit *c = &task->launch->args.commit;
    const uint32_t *row = (const uint32_t *)task->buf[3] + (c->first + begin) * DTI_TABLE_WORDS;
    const bool direction = c->flags & DTI_COMMIT_DIRECTION;
    float *pairs = (float *)task->buf[2] + c->pair_offset + 2 * (size_t)c->first;
    dti_cpu_update u = {.k = task->k, .kind = task->launch->spec[0], .group = UINT32_MAX};
    for (int64_t i = begin; i < end; i++, row += DTI_TABLE_WORDS) {
        float a[DTI_BLOCK], b[DTI_BLOCK];
        if (row[DTI_TABLE_PARAM] & (DTI_TABLE_BUFFER | DTI_TABLE_PLAIN) || dti_cpu_is_left(c, row))
            continue;
        dti_cpu_update_place(task, row, &u);
        u.v[0] = direction ? NULL : u.v[0]; /* no weights are bound */
        if (c->flags & DTI_COMMIT_DIRECTED)
            dti_cpu_update_directed(task, &u, i);
        u.rates.constants[DTI_OPTIM_SHARE] =
            c->flags & (DTI_COMMIT_DIRECTION | DTI_COMMIT_DIRECTED) ? -1.0f : 0.0f;
        task->k->optim_measure[u.kind](u.v, u.g, u.n, &u.rates, a, b);
        pairs[2 * i] = task->k->row_sum_sq(a, u.n);
        pairs[2 * i + 1] = task->k->row_sum_sq(b, u.n);
        if (direction)
            memcpy((float *)task->buf[0] + i * DTI_BLOCK, b, (size_t)u.n * sizeof *b);
    }
}

static float dti_optim_share_of(uint32_t kind, const float roots[4], const float *w) {
    switch (kind) {
#define DTI_X(number, ID, name, least, most)                                                       \
    case number: return dti_m_share_##name(roots[0], roots[1], roots[2], roots[3], w);
        DTI_OPTIM_WHOLE_LIST(DTI_X)
#undef DTI_X
    default: return 1.0f;
    }
}

/* Of the parameter of entry i: the two sums, the number of elements and the number of steps. */
static void dti_cpu_optim_sum(const dti_args_commit *c, const uint32_t *state, const uint32_t *row,
                              int64_t i, double sums[4]) {
    const uint32_t index = row[DTI_TABLE_PARAM] & DTI_TABLE_INDEX;
    const float *pairs = (const float *)state + c->pair_offset + 2 * (size_t)c->first;
    sums[3] = (double)state[c->t_offset + index] + 1.0;
    for (int64_t k = i; k < (int64_t)c->blocks; k++, row += DTI_TABLE_WORDS) {
        if ((row[DTI_TABLE_PARAM] & DTI_TABLE_INDEX) != index)
            break;
        sums[0] += (double)pairs[2 * k];
        sums[1] += (double)pairs[2 * k + 1];
        sums[2] += DTI_TABLE_USED_OF(row[DTI_TABLE_USED]);
    }
}

static void dti_cpu_optim_sums(const dti_cpu_task *task, int64_t begin, int64_t end,
                               void *scratch) {
    const dti_args_commit *c = &task->launch->args.commit;
    float *state = task->buf[0];
    const uint32_t *row =
        (const uint32_t *)task->buf[1] + ((size_t)c->first + (size_t)begin) * DTI_TABLE_WORDS;
    for (int64_t i = begin; i < end; i++, row += DTI_TABLE_WORDS) {
        const uint32_t param = row[DTI_TABLE_PARAM];
        float w[DTI_GROUP_WORDS], roots[4];
        double sums[4] = {0};
        if (!(param & DTI_TABLE_FIRST) || param & (DTI_TABLE_BUFFER | DTI_TABLE_PLAIN) ||
            dti_cpu_is_left(c, row))
            continue;
        dti_cpu_optim_sum(c, (const uint32_t *)state, row, i, sums);
        for (int k = 0; k < 4; k++)
            roots[k] = (float)sqrt(sums[k]);
        memcpy(w, task->step + DTI_STEP_GROUP(DTI_TABLE_GROUP_OF(row[DTI_TABLE_GROUP])), sizeof w);
        const float made = dti_optim_share_of(task->launch->spec[0], roots, w);
        const bool fine = dti_finite_f32((float)sums[0]) && dti_finite_f32((float)sums[1]);
        state[c->share_offset + (param & DTI_TABLE_INDEX)] =
            fine ? DTI_MAX(made, DTI_SHARE_LEAST) : NAN;
    }
}

static void dti_cpu_optim_mix(const dti_cpu_task *task, int64_t begin, int64_t end, void *scratch) {
    const dti_args_mix *a = &task->launch->args.mix;
    const float *x = (const float *)task->buf[0] + begin, *z = (const float *)task->buf[1] + begin;
    float *y = (float *)task->buf[2] + begin, part[DTI_BLOCK];
    for (int64_t left = end - begin, n; left > 0; left -= n, x += n, z += n, y += n) {
        n = DTI_MIN(left, (int64_t)DTI_BLOCK);
        task->k->binary[DTI_B_MUL](part, z, 1, &a->z_part, 0, n);
        task->k->axpy(part, a->x_part, x, n);
        memcpy(y, part, (size_t)n * sizeof *y);
    }
}

static void dti_cpu_optim_factors(const dti_cpu_task *task, int64_t begin, int64_t end,
                                  void *scratch) {
    const dti_args_factors *a = &task->launch->args.factors;
    const uint32_t *state = task->buf[1];
    const float *old = (const float *)state + a->moment_offset;
    float *factors = task->buf[0], part[DTI_BLOCK];
    dti_optim_rates_f32 rates = {.t = (float)state[a->t_offset]};
    memcpy(rates.words, task->step + DTI_STEP_GROUP(a->group), sizeof rates.words);
    task->k->optim_constants[task->launch->spec[0]](&rates);
    for (int64_t i = begin, n; i < end; i += n) {
        const bool behind = i >= (int64_t)a->kept;
        n = DTI_MIN((behind ? end : DTI_MIN(end, (int64_t)a->kept)) - i, (int64_t)DTI_BLOCK);
        memset(part, 0, sizeof part);
        if (!behind) {
            const float share = rates.constants[DTI_ADAFACTOR_PART];
            const float rest = 1.0f - share;
            memcpy(part, old + i, (size_t)n * sizeof *part);
            if (share < 0.5f) /* see lerp in optim_body.h */
                task->k->binary[DTI_B_SUB](factors + i, factors + i, 1, part, 1, n);
            else
                task->k->binary[DTI_B_MUL](part, part, 1, &rest, 0, n);
            task->k->axpy(part, share, factors + i, n);
        }
        memcpy(factors + i, part, (size_t)n * sizeof *part);
    }
}

/* The mean of squares of n elements from i on, by factors. */
static void dti_cpu_factored(const dti_args_factors *a, const float *factors, int64_t i, int64_t n,
                             float *square) {
    int64_t row = i / a->cols, col = i % a->cols;
    for (int64_t end = i + n, run; i < end; i += run, square += run, row++, col = 0) {
        const int64_t matrix = row / a->rows;
        const float *of_col = factors + a->col_offset + matrix * a->cols + col;
        const float mean = DTI_MAX(factors[a->mean_offset + matrix], DTI_ADAFACTOR_EPS);
        const float part = factors[a->row_offset + row] / mean;
        run = DTI_MIN((int64_t)a->cols - col, end - i);
        for (int64_t k = 0; k < run; k++)
            square[k] = of_col[k] * part;
    }
}

static void dti_cpu_optim_divide(const dti_cpu_task *task, int64_t begin, int64_t end,
                                 void *scratch) {
    const dti_isa_kernels *k = task->k;
    const float least = DTI_ADAFACTOR_LEAST;
    float *x = task->buf[0], square[DTI_BLOCK];
    for (int64_t i = begin, n; i < end; i += n) {
        n = DTI_MIN(end - i, (int64_t)DTI_BLOCK);
        dti_cpu_factored(&task->launch->args.factors, task->buf[1], i, n, square);
        k->binary[DTI_B_MAXIMUM](square, square, 1, &least, 0, n);
        k->unary[DTI_U_SQRT](square, square, n, 0, 0);
        k->binary[DTI_B_DIV](x + i, x + i, 1, square, 1, n);
    }
}

/* ---- Rows of the tables */

/* (params, or with DTI_COMMIT_DIRECTION the measured values, grads, state, table) spec0: the
 * kind */
DTI_KERNEL(OPTIM_PAIRS, optim_pairs, "urur", GROUP, .run = dti_cpu_optim_pairs, .grain = 64,
           .lanes = DTI_BLOCK / 4, .rounds = dti_blocks_rounds, .effort = dti_blocks_effort);

static dti_effort dti_optim_sums_effort(const dti_launch *l, uint32_t variant, uint32_t local) {
    return dti_effort_rows(1, l->args.commit.blocks, 1, local);
}

/* (state, table) spec0: the kind */
DTI_KERNEL(OPTIM_SUMS, optim_sums, "ur", GROUP, .run = dti_cpu_optim_sums,
           .each = DTI_WORD(commit, blocks), .passes = 1, .rounds = dti_row_rounds,
           .effort = dti_optim_sums_effort);

static void dti_optim_mix_tile(const dti_launch *l, uint32_t variant, uint32_t spec[4]) {
    spec[2] = dti_fours(l->args.mix.n, 0);
}

/* (x, z, y); y may be x or z */
DTI_KERNEL(OPTIM_MIX, optim_mix, "rrw", ITEM, .run = dti_cpu_optim_mix, .grain = DTI_GRAIN_FLAT,
           .tile = dti_optim_mix_tile, .invocations = dti_fours_invocations);

/* (factors, state) spec0: the kind */
DTI_KERNEL(OPTIM_FACTORS, optim_factors, "ur", ITEM, .run = dti_cpu_optim_factors,
           .grain = DTI_GRAIN_FLAT);

/* (x, factors) */
DTI_KERNEL(OPTIM_DIVIDE, optim_divide, "ur", ITEM, .run = dti_cpu_optim_divide,
           .grain = DTI_GRAIN_FLAT);
