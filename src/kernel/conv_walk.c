/* Convolution, the part that no instruction set changes. It has the form of a shape, the cut of an
 * image into items, and the walk over an item. An item is a band of rows of one sample, for some
 * panels of output channels; the weights are packed when these change. The adjoint with strides is
 * one problem with stride 1 for each phase (position modulo stride), with the taps that reach
 * it. */

enum { DTI_CONV_CHANNELS, DTI_CONV_POSITIONS, DTI_CONV_PLANES };
enum {
    DTI_CONV_PACKED = 36, /* packed weights of a unit's channels for each k: panels round up */
    DTI_CONV_SLACK = 64,  /* vectors of positions read past the last row */
    DTI_CONV_BLOCK = 4    /* tiles transposed together */
};

/* One phase along one axis. Position u of `count` is written at to0 + u * to_step. Tap t of `taps`
 * is tap0 + t * tap_step of the weights, and reads at from0 + u * from_step + t * from_tap. */
typedef struct dti_conv_axis {
    int64_t count, to0, to_step;
    int64_t taps, tap0, tap_step;
    int64_t from0, from_step, from_tap;
} dti_conv_axis;

typedef struct dti_conv_span {
    int64_t from, to;
} dti_conv_span;

typedef struct dti_conv_plan {
    int form;
    bool in_place;
    int64_t pairs, pair;  /* of channels that k runs over, and the channels of each */
    int64_t phases[2], k; /* k: of all phases, in floats */
    int64_t units, unit_groups, group_units, bands;
    dti_conv_span columns; /* of the source that are read */
    dti_conv_pad copy;
    int64_t tables, images, bias, floats; /* where in the scratch; weights lie at 0 */
} dti_conv_plan;

/* How many elements of k are added as a pair. */
static int64_t dti_conv_pair(dt_dtype type) {
    return type == DT_BF16 ? 2 : 1;
}

static int64_t dti_conv_ceil(int64_t n, int64_t unit) {
    return (n + unit - 1) / unit;
}

static dti_conv_axis dti_conv_axis_of(const dti_conv *c, int d, int64_t phase) {
    const int64_t stride = c->stride[d], dil = c->dil[d];
    dti_conv_axis a = {.count = c->to_size[d],
                       .to_step = 1,
                       .taps = c->taps[d],
                       .tap_step = 1,
                       .from0 = -c->pad[d],
                       .from_step = stride,
                       .from_tap = dil};
    if (!c->transposed)
        return a;
    a.to0 = ((phase - c->pad[d]) % stride + stride) % stride;
    a.to_step = stride;
    a.count = a.count > a.to0 ? dti_conv_ceil(a.count - a.to0, stride) : 0;
    while (a.tap_step * dil % stride)
        a.tap_step++;
    while (a.tap0 < a.tap_step && a.tap0 * dil % stride != phase)
        a.tap0++;
    bool reached = a.tap0 < DTI_MIN(a.tap_step, c->taps[d]);
    a.taps = reached ? dti_conv_ceil(c->taps[d] - a.tap0, a.tap_step) : 0;
    a.from0 = reached ? (a.to0 + c->pad[d] - a.tap0 * dil) / stride : 0;
    a.from_step = 1;
    a.from_tap = -(a.tap_step * dil / stride);
    return a;
}

/* With a 1 x 1 kernel rows are joined until they are long enough for whole tiles. */
static dti_conv dti_conv_flat(const dti_conv *c) {
    dti_conv flat = *c;
    bool plain = true;
    for (int d = 0; d < 2; d++)
        plain = plain && c->taps[d] == 1 && c->stride[d] == 1 && c->pad[d] == 0 &&
                c->from_size[d] == c->to_size[d];
    const int64_t rows = c->to_size[0], cols = c->to_size[1];
    int64_t join = 1;
    while (plain && join < rows && (join * cols < 64 || rows % join))
        join++;
    if (join > 1) {
        flat.from_size[0] = flat.to_size[0] = rows / join;
        flat.from_size[1] = flat.to_size[1] = cols * join;
    }
    return flat;
}

/* The elements that positions [u0, u1) of an axis read. */
static dti_conv_span dti_conv_span_of(const dti_conv_axis *a, int64_t u0, int64_t u1) {
    if (u0 >= u1 || a->taps == 0)
        return (dti_conv_span){0, 0};
    const int64_t reach = (a->taps - 1) * a->from_tap;
    return (dti_conv_span){a->from0 + u0 * a->from_step + DTI_MIN(reach, 0),
                           a->from0 + (u1 - 1) * a->from_step + DTI_MAX(reach, 0) + 1};
}

/* The elements that band `band` of `bands` reads along axis d, all phases together. */
static dti_conv_span dti_conv_reads(const dti_conv *c, int d, int64_t band, int64_t bands) {
    dti_conv_span all = {0, 0};
    for (int64_t phase = 0; phase < (c->transposed ? c->stride[d] : 1); phase++) {
        const dti_conv_axis a = dti_conv_axis_of(c, d, phase);
        const dti_conv_span s =
            dti_conv_span_of(&a, a.count * band / bands, a.count * (band + 1) / bands);
        if (s.to == s.from)
            continue;
        const bool first = all.to == all.from;
        all.from = first ? s.from : DTI_MIN(all.from, s.from);
        all.to = first ? s.to : DTI_MAX(all.to, s.to);
    }
    return all;
}

static int64_t dti_conv_rows_most(const dti_conv *c, int64_t bands) {
    int64_t most = 0;
    for (int64_t b = 0; b < bands; b++) {
        dti_conv_span s = dti_conv_reads(c, 0, b, bands);
        most = DTI_MAX(most, s.to - s.from);
    }
    return most;
}

/* The cost of a tile relative to its multiply-adds, if its rows cut `n` into equal parts. */
static double dti_conv_tile_cost(int64_t n, int64_t lanes) {
    double rows = (double)n / (double)dti_conv_ceil(n, 12), vecs = lanes > 16 ? 2 : 1;
    return (vecs > 1 ? 1.0 : 1.25) * DTI_MAX(1.0, 8 / (rows * vecs));
}

/* In 1/32 cycles a row of positions, about: multiply-adds, the cost of transposing or storing,
 * copies. */
static int dti_conv_form(const dti_conv *c, int64_t k, int64_t cols) {
    const int64_t to = c->to_channels;
    if (to < DTI_CONV_FEW)
        return DTI_CONV_PLANES;
    const double copied =
        (double)(c->from_channels * cols * (c->transposed ? 1 : c->stride[0] * c->stride[1]));
    const bool dealt = !c->transposed && c->stride[1] > 1;
    double channels = (double)(k + 13) * (double)(dti_conv_ceil(to, 16) * 16 * cols) *
                          dti_conv_tile_cost(cols, to) +
                      (c->pad[0] + c->pad[1] ? 5 : 0) * copied;
    double positions = (double)(k + 4) * (double)(dti_conv_ceil(cols, 16) * 16 * to) *
                           dti_conv_tile_cost(to, cols) +
                       (dealt ? 32 : 5) * copied;
    return channels <= positions ? DTI_CONV_CHANNELS : DTI_CONV_POSITIONS;
}

/* The copy of a band. It is not needed where windows stay inside and no vector reads past a row.
 * The row of all channels is contiguous, in the order of k. So few pages are in use at a time. */
static void dti_conv_plan_copy(const dti_conv *c, dti_conv_plan *p) {
    const int64_t step = c->transposed || p->form == DTI_CONV_CHANNELS ? 1 : c->stride[1];
    const dti_conv_span rows = dti_conv_reads(c, 0, 0, 1), cols = dti_conv_reads(c, 1, 0, 1);
    p->columns = cols;
    p->in_place = c->type == DT_F32 && p->form == DTI_CONV_CHANNELS && rows.from >= 0 &&
                  rows.to <= c->from_size[0] && cols.from >= 0 && cols.to <= c->from_size[1];
    const int64_t run = dti_conv_ceil(cols.to - cols.from, step);
    p->copy = (dti_conv_pad){.channels = p->pairs * p->pair,
                             .given = c->from_channels,
                             .type = c->type,
                             .height = c->from_size[0],
                             .width = c->from_size[1],
                             .from = {0, cols.from},
                             .to = {0, cols.to},
                             .plane = run * step,
                             .row = run * step * p->pairs * p->pair,
                             .step = step,
                             .run = run};
}

static void dti_conv_plan_bands(const dti_conv *c, dti_conv_plan *p, int threads) {
    const int64_t most = DTI_MAX(1, dti_conv_ceil(c->to_size[0], p->phases[0]));
    const int64_t items = DTI_MAX(1, c->n * c->groups * p->unit_groups);
    p->bands = 1;
    if (threads > 1)
        p->bands = DTI_MIN(most, dti_conv_ceil(4 * (int64_t)threads, items));
    while (!p->in_place && p->bands * 2 <= most &&
           dti_conv_rows_most(c, p->bands) * p->copy.row > DTI_CONV_BUDGET)
        p->bands *= 2;
    if (p->in_place) {
        p->copy.row = c->from_size[1];
        p->copy.plane = c->from_size[0] * c->from_size[1];
    }
}

static dti_conv_plan dti_conv_plan_of(const dti_conv *c, int threads) {
    dti_conv_plan p = {
        .pair = dti_conv_pair(c->type),
        .phases = {c->transposed ? c->stride[0] : 1, c->transposed ? c->stride[1] : 1},
        .units = dti_conv_ceil(c->to_channels, DTI_CONV_UNIT)};
    p.pairs = dti_conv_ceil(c->from_channels, p.pair);
    p.k = p.pairs * p.pair * c->taps[0] * c->taps[1];
    p.form = dti_conv_form(c, p.k / p.pair / (p.phases[0] * p.phases[1]),
                           dti_conv_ceil(c->to_size[1], p.phases[1]));
    const int64_t fit = DTI_CONV_BUDGET / DTI_MAX(1, p.k * DTI_CONV_PACKED);
    p.group_units = DTI_MAX(1, DTI_MIN(fit, p.units));
    p.unit_groups = dti_conv_ceil(p.units, p.group_units);
    dti_conv_plan_copy(c, &p);
    dti_conv_plan_bands(c, &p, threads);
    p.tables = dti_conv_ceil(p.group_units * p.k * DTI_CONV_PACKED, 16) * 16;
    p.images = p.tables + dti_conv_ceil(2 * p.k, 16) * 16;
    p.bias = p.images + DTI_CONV_SLACK;
    if (!p.in_place)
        p.bias += dti_conv_rows_most(c, p.bands) * p.copy.row;
    p.floats = p.bias + (c->type == DT_F32 ? 0 : p.group_units * DTI_CONV_UNIT);
    return p;
}

static int64_t dti_conv_items(const dti_conv *c, int threads) {
    const dti_conv flat = dti_conv_flat(c);
    const dti_conv_plan p = dti_conv_plan_of(&flat, threads);
    return c->groups * p.unit_groups * c->n * p.bands;
}

static size_t dti_conv_scratch_bytes(const dti_conv *c, int threads) {
    const dti_conv flat = dti_conv_flat(c);
    return (size_t)dti_conv_plan_of(&flat, threads).floats * sizeof(float);
}

/* ---- the walk */

/* The inputs of an item, phase by phase. */
typedef struct dti_conv_job {
    const dti_conv_kernels *kernels;
    const dti_conv *c;
    const dti_conv_plan *p;
    bool words;          /* pairs lie in words; else their elements are floats */
    int64_t each, chunk; /* floats or words that a pair has; of k in a chunk */
    float *weights, *bias;
    int32_t *source, *line; /* offsets for each k: in the source; k * ld */
    float *images;
    int64_t group, channel, channels; /* channels that this item writes */
    int64_t sample, band;
    const float *from; /* of the band: row `first`, column p->columns.from */
    int64_t first;
    bool tables;         /* they are those of this phase already */
    const float *packed; /* of the phase */
    dti_conv_axis h, w;
    int64_t k;
} dti_conv_job;

/* Channels side by side in the packed weights, and how they are cut. */
static int64_t dti_conv_ld(const dti_conv_job *j) {
    return j->p->form == DTI_CONV_CHANNELS    ? 2 * j->kernels->lanes
           : j->p->form == DTI_CONV_POSITIONS ? j->kernels->rows
                                              : 1;
}
static int64_t dti_conv_panels(const dti_conv_job *j) {
    return dti_conv_ceil(j->channels, dti_conv_ld(j));
}
/* Where panel i begins: whole vectors, or equal parts. */
static int64_t dti_conv_panel(const dti_conv_job *j, int64_t i) {
    if (j->p->form == DTI_CONV_CHANNELS)
        return DTI_MIN(i * dti_conv_ld(j), j->channels);
    return j->channels * i / dti_conv_panels(j);
}

static void dti_conv_phase(dti_conv_job *j, int64_t row_phase, int64_t col_phase) {
    j->h = dti_conv_axis_of(j->c, 0, row_phase);
    j->w = dti_conv_axis_of(j->c, 1, col_phase);
    j->k = j->p->pairs * j->each * j->h.taps * j->w.taps;
}

/* Weights `by` apart of a channel of the source; of words also those of the next channel. */
static void dti_conv_pack_line(const dti_conv_job *j, float *dst, int64_t channel, int64_t at,
                               int64_t by, int64_t next, int64_t count) {
    const dti_conv *c = j->c;
    const float *floats = (const float *)c->w + at;
    const uint16_t *even = (const uint16_t *)c->w + at;
    const int64_t n = channel < c->from_channels ? count : 0, ld = dti_conv_ld(j);
    const uint32_t odd = channel + 1 < c->from_channels ? UINT32_MAX : 0;
    const int64_t to_odd = odd ? next : 0;
    for (int64_t i = 0; i < n && j->words; i++)
        dst[i] = dti_f32_from_bits(even[i * by] | ((uint32_t)even[i * by + to_odd] << 16 & odd));
    for (int64_t i = 0; i < n && c->type == DT_F32; i++)
        dst[i] = floats[i * by];
    for (int64_t i = 0; i < n && !j->words && c->type != DT_F32; i++)
        dst[i] = dti_half_value(even, c->type, i * by);
    for (int64_t i = n; i < ld; i++)
        dst[i] = 0;
}

/* Channels [first, first + count) of the phase to dst[k * ld + i], filled up with zeros. */
static void dti_conv_pack(const dti_conv_job *j, float *dst, int64_t first, int64_t count) {
    const dti_conv *c = j->c;
    const int64_t taps = c->taps[0] * c->taps[1], ld = dti_conv_ld(j);
    const int64_t by_to = taps * (c->transposed ? 1 : c->from_channels);
    const int64_t by_from = taps * (c->transposed ? c->to_channels : 1);
    const int64_t w = j->group * c->from_channels * c->to_channels * taps + first * by_to;
    for (int64_t r = 0; r < j->h.taps; r++)
        for (int64_t f = 0; f < j->p->pairs; f++)
            for (int64_t s = 0; s < j->w.taps; s++)
                for (int64_t e = j->each - 1; e >= 0; e--, dst += ld) {
                    const int64_t channel = f * j->p->pair + e;
                    const int64_t tap = j->w.tap0 + s * j->w.tap_step +
                                        (j->h.tap0 + r * j->h.tap_step) * c->taps[1];
                    dti_conv_pack_line(j, dst, channel, w + channel * by_from + tap, by_to, by_from,
                                       count);
                }
}

static void dti_conv_pack_all(dti_conv_job *j) {
    float *dst = j->weights;
    for (int64_t phase = 0; phase < j->p->phases[0] * j->p->phases[1]; phase++) {
        dti_conv_phase(j, phase / j->p->phases[1], phase % j->p->phases[1]);
        for (int64_t i = 0; i < dti_conv_panels(j); i++, dst += j->k * dti_conv_ld(j)) {
            const int64_t first = dti_conv_panel(j, i);
            dti_conv_pack(j, dst, j->channel + first, dti_conv_panel(j, i + 1) - first);
        }
    }
}

static void dti_conv_make_tables(dti_conv_job *j) {
    const dti_conv_pad *p = &j->p->copy;
    int32_t *to = j->source;
    for (int64_t r = 0; r < j->h.taps; r++)
        for (int64_t f = 0; f < j->p->pairs; f++)
            for (int64_t s = 0; s < j->w.taps; s++) {
                int64_t at = j->w.from0 + s * j->w.from_tap;
                if (!j->p->in_place)
                    at -= j->p->columns.from;
                if (p->step > 1)
                    at = at % p->step * p->run + at / p->step;
                at += r * j->h.from_tap * p->row;
                for (int64_t e = j->each - 1; e >= 0; e--)
                    *to++ = (int32_t)((f * j->each + e) * p->plane + at);
            }
    for (int64_t i = 0; i < j->k; i++)
        j->line[i] = (int32_t)(i * dti_conv_ld(j));
}

/* Where position (u, v) reads tap 0 of channel 0, less its table entry. */
static const float *dti_conv_at(const dti_conv_job *j, int64_t u, int64_t v) {
    const int64_t row = j->h.from0 + u * j->h.from_step - j->first;
    return j->from + row * j->p->copy.row + v * (j->p->copy.step > 1 ? 1 : j->w.from_step);
}

static dti_conv_out dti_conv_out_of(const dti_conv_job *j, int64_t channel, int64_t u, int64_t v) {
    const dti_conv *c = j->c;
    const int64_t o = j->group * c->to_channels + j->channel + channel;
    const int64_t plane = j->sample * c->groups * c->to_channels + o;
    const int64_t row = j->h.to0 + u * j->h.to_step, col = j->w.to0 + v * j->w.to_step;
    const int64_t at = (plane * c->to_size[0] + row) * c->to_size[1] + col;
    return (dti_conv_out){.to = c->to,
                          .at = at,
                          .type = c->type,
                          .bias = c->bias ? j->bias + channel : NULL,
                          .mask = c->mask,
                          .mask_type = c->operand_type,
                          .relu = c->relu};
}

/* The k of row u whose taps lie inside the source; those outside only add zeros. */
static dti_conv_span dti_conv_inside(const dti_conv_job *j, int64_t u) {
    const int64_t first = j->h.from0 + u * j->h.from_step, size = j->c->from_size[0];
    const int64_t taps = j->h.taps, tap = j->h.from_tap, each = j->p->pairs * j->each * j->w.taps;
    int64_t r = 0, end = taps;
    while (r < end && (first + r * tap < 0 || first + r * tap >= size))
        r++;
    while (end > r && (first + (end - 1) * tap < 0 || first + (end - 1) * tap >= size))
        end--;
    return (dti_conv_span){r * each, end * each};
}

/* Sums of pairs are made without denormals; bias, epilogue and rounding are IEEE's. */
static dti_fp_modes dti_conv_enter(dt_dtype type) {
    return type == DT_BF16 ? dti_fp_flush() : 0;
}
static void dti_conv_leave(dt_dtype type, dti_fp_modes modes) {
    if (type == DT_BF16)
        dti_fp_leave(modes);
}

/* Some tiles of positions, which may lie in several rows, and where each begins in the buffer. */
typedef struct dti_conv_block {
    int count;
    int64_t row[DTI_CONV_BLOCK], col[DTI_CONV_BLOCK], cols[DTI_CONV_BLOCK], at[DTI_CONV_BLOCK];
    dti_conv_span k[DTI_CONV_BLOCK];
} dti_conv_block;

static void dti_conv_block_add(const dti_conv_job *j, dti_conv_block *b, int64_t parts,
                               int64_t tile) {
    const int i = b->count++;
    const int64_t part = tile % parts;
    b->row[i] = tile / parts;
    b->col[i] = j->w.count * part / parts;
    b->cols[i] = j->w.count * (part + 1) / parts - b->col[i];
    b->at[i] = i ? b->at[i - 1] + b->cols[i - 1] : 0;
    b->k[i] = i && b->row[i] == b->row[i - 1] ? b->k[i - 1] : dti_conv_inside(j, b->row[i]);
}

/* The block times one panel of channels: chunk by chunk, so that the panel's stays in L1. */
static void dti_conv_block_sum(const dti_conv_job *j, const dti_conv_block *b, float *sums,
                               const float *weights, int64_t channels) {
    const int64_t ld = dti_conv_ld(j);
    const int vecs = channels > j->kernels->lanes;
    const dti_fp_modes modes = dti_conv_enter(j->c->type);
    for (int64_t chunk = 0; chunk == 0 || chunk < j->k; chunk += j->chunk)
        for (int i = 0; i < b->count; i++) {
            const dti_conv_span all = b->k[i];
            const int64_t k = DTI_MAX(chunk, all.from);
            const int64_t n = DTI_MIN(chunk + j->chunk, all.to) - k;
            if (n <= 0 && (chunk > 0 || all.to > all.from))
                continue;
            j->kernels->tile[b->cols[i] - 1][vecs](
                sums + b->at[i] * ld, DTI_MAX(n, 0), dti_conv_at(j, b->row[i], b->col[i]),
                j->source + k, j->w.from_step, weights, j->line + k, k > all.from);
        }
    dti_conv_leave(j->c->type, modes);
}

static void dti_conv_block_store(const dti_conv_job *j, const dti_conv_block *b, const float *sums,
                                 int64_t channel, int64_t channels) {
    for (int i = 0, next; i < b->count; i = next) {
        int64_t cols = 0;
        for (next = i; next < b->count && b->row[next] == b->row[i]; next++)
            cols += b->cols[next];
        dti_conv_out out = dti_conv_out_of(j, channel, b->row[i], b->col[i]);
        out.row = j->w.to_step, out.col = j->c->to_size[0] * j->c->to_size[1], out.bias_col = 1;
        j->kernels->turned(&out, sums + b->at[i] * dti_conv_ld(j), cols, channels);
    }
}

static void dti_conv_channels(const dti_conv_job *j, const float *weights, int64_t channel,
                              int64_t channels, int64_t u0, int64_t u1) {
    float sums[(12 * DTI_CONV_BLOCK + 16) * 32];
    const int64_t parts = dti_conv_ceil(j->w.count, j->kernels->rows);
    for (int64_t tile = u0 * parts; tile < u1 * parts;) {
        dti_conv_block b = {.count = 0};
        while (b.count < DTI_CONV_BLOCK && tile < u1 * parts)
            dti_conv_block_add(j, &b, parts, tile++);
        dti_conv_block_sum(j, &b, sums, weights, channels);
        dti_conv_block_store(j, &b, sums, channel, channels);
    }
}

/* One panel of channels times a row of positions. */
static void dti_conv_row_positions(const dti_conv_job *j, const float *a, int64_t channel,
                                   int64_t channels, int64_t u) {
    float tile[12 * 32];
    const int64_t wide = 2 * j->kernels->lanes;
    const dti_conv_span all = dti_conv_inside(j, u);
    for (int64_t v = 0; v < j->w.count; v += wide) {
        const int64_t cols = DTI_MIN(j->w.count - v, wide);
        dti_conv_tile_fn *fn = j->kernels->tile[channels - 1][cols > j->kernels->lanes];
        int64_t k = all.from, n;
        const dti_fp_modes modes = dti_conv_enter(j->c->type);
        do {
            n = DTI_MIN(all.to, (k / j->chunk + 1) * j->chunk) - k;
            fn(tile, n, a, j->line + k, 1, dti_conv_at(j, u, v), j->source + k, k > all.from);
            k += n;
        } while (k < all.to);
        dti_conv_leave(j->c->type, modes);
        dti_conv_out out = dti_conv_out_of(j, channel, u, v);
        out.row = j->c->to_size[0] * j->c->to_size[1], out.col = j->w.to_step, out.bias_row = 1;
        j->kernels->straight(&out, tile, channels, cols);
    }
}

/* Rows [u0, u1) of one channel; the last four rows may be computed twice. */
static void dti_conv_plane(const dti_conv_job *j, const float *a, int64_t channel, int64_t u0,
                           int64_t u1) {
    float tile[4 * 32];
    const int64_t wide = 2 * j->kernels->lanes, rows = u1 - u0 < 4 ? 1 : 4;
    for (int64_t i = u0; i < u1; i += rows)
        for (int64_t v = 0; v < j->w.count; v += wide) {
            const int64_t cols = DTI_MIN(j->w.count - v, wide), u = DTI_MIN(i, u1 - rows);
            dti_conv_plane_fn *fn = j->kernels->plane[rows > 1][cols > j->kernels->lanes];
            int64_t k = 0;
            const dti_fp_modes modes = dti_conv_enter(j->c->type);
            do {
                fn(tile, DTI_MIN(j->k - k, j->chunk), a + k, dti_conv_at(j, u, v), j->source + k,
                   j->h.from_step * j->p->copy.row, k > 0);
                k += j->chunk;
            } while (k < j->k);
            dti_conv_leave(j->c->type, modes);
            dti_conv_out out = dti_conv_out_of(j, channel, u, v);
            out.row = j->h.to_step * j->c->to_size[1], out.col = j->w.to_step;
            j->kernels->straight(&out, tile, rows, cols);
        }
}

static void dti_conv_run_phase(dti_conv_job *j) {
    const int64_t u0 = j->h.count * j->band / j->p->bands;
    const int64_t u1 = j->h.count * (j->band + 1) / j->p->bands;
    if (!j->tables)
        dti_conv_make_tables(j);
    for (int64_t i = 0; i < dti_conv_panels(j); i++, j->packed += j->k * dti_conv_ld(j)) {
        const int64_t first = dti_conv_panel(j, i), count = dti_conv_panel(j, i + 1) - first;
        if (j->p->form == DTI_CONV_PLANES)
            dti_conv_plane(j, j->packed, first, u0, u1);
        else if (j->p->form == DTI_CONV_CHANNELS)
            dti_conv_channels(j, j->packed, first, count, u0, u1);
        else
            for (int64_t u = u0; u < u1; u++)
                dti_conv_row_positions(j, j->packed, first, count, u);
    }
}

static void dti_conv_run_item(dti_conv_job *j) {
    const dti_conv *c = j->c;
    const dti_conv_plan *p = j->p;
    const int64_t plane = c->from_size[0] * c->from_size[1];
    const int64_t at = (j->sample * c->groups + j->group) * c->from_channels * plane;
    j->from = (const float *)c->from + at;
    j->first = 0;
    if (!p->in_place) {
        dti_conv_span rows = dti_conv_reads(c, 0, j->band, p->bands);
        dti_conv_pad pad = p->copy;
        pad.from[0] = rows.from, pad.to[0] = rows.to;
        j->kernels->pad(j->images, dti_half_at(c->from, c->type, at), &pad);
        j->from = j->images, j->first = rows.from;
    }
    j->packed = j->weights;
    for (int64_t row = 0; row < p->phases[0]; row++)
        for (int64_t col = 0; col < p->phases[1]; col++) {
            if (!j->tables)
                dti_conv_phase(j, row, col);
            dti_conv_run_phase(j);
        }
    j->tables = p->phases[0] * p->phases[1] == 1;
}

/* The bias of the item's channels, as floats. */
static void dti_conv_take_bias(dti_conv_job *j, const struct dti_isa_kernels *kernels,
                               float *room) {
    const dti_conv *c = j->c;
    const int64_t first = j->group * c->to_channels + j->channel;
    j->bias = (float *)(uintptr_t)c->bias + first;
    if (c->bias && dti_is_half(c->operand_type)) {
        kernels->widen[c->operand_type](room, dti_half_at(c->bias, c->operand_type, first),
                                        j->channels);
        j->bias = room;
    }
}

static void dti_conv_run(const struct dti_isa_kernels *kernels, const dti_conv *conv, int threads,
                         int64_t begin, int64_t end, void *scratch) {
    const dti_conv c = dti_conv_flat(conv);
    dti_conv_plan p = dti_conv_plan_of(&c, threads);
    float *floats = scratch;
    const bool words = c.type == DT_BF16 && p.form != DTI_CONV_PLANES && kernels->conv_pairs;
    dti_conv_job j = {.kernels = words ? kernels->conv_pairs : kernels->conv,
                      .c = &c,
                      .p = &p,
                      .words = words,
                      .each = words ? 1 : p.pair,
                      .weights = floats,
                      .source = (int32_t *)(void *)(floats + p.tables),
                      .images = floats + p.images};
    j.line = j.source + p.k;
    j.chunk = j.each * DTI_GEMM_KC;
    if (words) {
        p.copy.channels = p.pairs;
        p.copy.row /= p.pair;
    }
    for (int64_t item = begin; item < end; item++) {
        const int64_t outer = item / (c.n * p.bands), inner = item % (c.n * p.bands);
        if (item == begin || inner == 0) {
            j.group = outer / p.unit_groups;
            j.channel = outer % p.unit_groups * p.group_units * DTI_CONV_UNIT;
            j.channels = DTI_MIN(c.to_channels - j.channel, p.group_units * DTI_CONV_UNIT);
            dti_conv_take_bias(&j, kernels, floats + p.bias);
            dti_conv_pack_all(&j);
        }
        j.sample = inner / p.bands, j.band = inner % p.bands;
        dti_conv_run_item(&j);
    }
}
