/* The gradient of convolution's weights. An item is one part of the samples, one group and one
 * block of output channels; consecutive items share copies. k runs over positions, in chunks that
 * are cut by shape: parts of a sample, or some small samples together. */

#define DTI_CONV_CHUNK 256 /* positions of a chunk, about, or pairs of them */
#define DTI_CONV_SPAN 16   /* chunks that are added in float before double takes over */

typedef struct dti_conv_dw_plan {
    bool few, in_place,
        packed;         /* packed: x's values for each tap, where rows of channels are few */
    int64_t rows;       /* ci * taps, in the order (tap, channel) */
    int64_t pair, line; /* positions that are added as a pair; pairs of a row of y */
    int64_t alone;      /* column of the copy for the last pair of an odd row; 0: rows are even */
    int64_t positions, cuts, samples, chunk; /* in pairs: of a sample; its parts, or some samples */
    int64_t units, together;                 /* of output channels; at once */
    dti_conv_pad copy;
    int64_t wide, turned, lines, gathered, tables, images,
        floats; /* in the scratch; sums lie at 0 */
} dti_conv_dw_plan;

/* Rows of x that rows [p0, p1) of y see, or columns. */
static dti_conv_span dti_conv_dw_reads(const dti_conv_dw *c, int d, int64_t p0, int64_t p1) {
    const int64_t from = p0 * c->stride[d] - c->pad[d];
    return (dti_conv_span){from,
                           from + (p1 - p0 - 1) * c->stride[d] + (c->taps[d] - 1) * c->dil[d] + 1};
}

static void dti_conv_dw_plan_copy(const dti_conv_dw *c, dti_conv_dw_plan *p) {
    const dti_conv_span rows = dti_conv_dw_reads(c, 0, 0, c->y_size[0]);
    const dti_conv_span cols = dti_conv_dw_reads(c, 1, 0, p->line * p->pair);
    const int64_t step = p->few ? c->stride[1] : 1;
    const int64_t seen = dti_conv_ceil(cols.to - cols.from, step);
    p->alone = p->pair > 1 && c->y_size[1] % p->pair ? seen : 0;
    const int64_t run = seen + (p->alone ? (c->taps[1] - 1) * c->dil[1] + 1 : 0);
    p->in_place = c->type == DT_F32 && !p->few && rows.from >= 0 && rows.to <= c->x_size[0] &&
                  cols.from >= 0 && cols.to <= c->x_size[1];
    p->copy = (dti_conv_pad){.channels = p->few ? 1 : c->ci,
                             .given = p->few ? 1 : c->ci,
                             .type = c->type,
                             .height = c->x_size[0],
                             .width = c->x_size[1],
                             .from = {rows.from, cols.from},
                             .to = {rows.to, cols.to},
                             .row = run * step,
                             .step = step,
                             .run = run};
    const int64_t part = dti_conv_ceil(p->positions, p->cuts) + p->line - 2;
    const int64_t most =
        p->few ? c->y_size[0] : DTI_MIN(c->y_size[0], part / DTI_MAX(1, p->line) + 1);
    const dti_conv_span band = dti_conv_dw_reads(c, 0, 0, most);
    p->copy.plane = (band.to - band.from) * p->copy.row;
    if (p->in_place) {
        p->copy.row = c->x_size[1];
        p->copy.plane = c->x_size[0] * c->x_size[1];
    }
}

static dti_conv_dw_plan dti_conv_dw_plan_of(const dti_conv_dw *c) {
    dti_conv_dw_plan p = {.few = c->co < DTI_CONV_FEW,
                          .packed = c->ci <= 4,
                          .rows = c->ci * c->taps[0] * c->taps[1],
                          .pair = c->co < DTI_CONV_FEW ? 1 : dti_conv_pair(c->type),
                          .samples = 1,
                          .units = dti_conv_ceil(c->co, DTI_CONV_UNIT)};
    p.line = dti_conv_ceil(c->y_size[1], p.pair);
    p.positions = c->y_size[0] * p.line;
    p.cuts = DTI_MAX(1, dti_conv_ceil(p.positions, DTI_CONV_CHUNK));
    dti_conv_dw_plan_copy(c, &p);
    const int64_t plane = DTI_MAX(1, p.copy.channels * p.copy.plane);
    if (!p.few && p.cuts == 1)
        p.samples = DTI_MIN(DTI_CONV_CHUNK / DTI_MAX(1, p.positions), DTI_CONV_BUDGET / plane);
    p.samples = DTI_MAX(p.samples, 1);
    p.chunk = p.samples * dti_conv_ceil(p.positions, p.cuts);
    p.together = DTI_MIN(p.units, DTI_CONV_BUDGET / DTI_MAX(1, p.rows * DTI_CONV_UNIT));
    p.together = DTI_MAX(p.together, 1);
    p.wide = p.together * p.rows * DTI_CONV_UNIT;
    p.turned = p.wide * 3; /* the same number of doubles */
    p.lines = p.turned + p.together * p.chunk * p.pair * DTI_CONV_UNIT;
    p.gathered = p.lines + (c->type == DT_F32 ? 0
                            : p.few           ? dti_conv_ceil(p.positions, 16) * 16
                                              : DTI_CONV_UNIT * p.chunk * p.pair);
    p.tables = p.gathered + (p.packed ? dti_conv_ceil(p.rows, 12) * 12 * p.chunk * p.pair : 0);
    p.images = p.tables + dti_conv_ceil(3 * p.chunk * p.pair, 16) * 16;
    p.floats = p.images + DTI_CONV_SLACK + (p.in_place ? 0 : p.samples * plane);
    return p;
}

static int64_t dti_conv_dw_items(const dti_conv_dw *c) {
    return c->splits * c->groups * dti_conv_ceil(c->co, DTI_CONV_UNIT);
}

static size_t dti_conv_dw_scratch_bytes(const dti_conv_dw *c) {
    return (size_t)dti_conv_dw_plan_of(c).floats * sizeof(float);
}

/* ---- the walk */

typedef struct dti_conv_dw_job {
    const dti_isa_kernels *set;
    const dti_conv_kernels *kernels;
    const dti_conv_dw *c;
    const dti_conv_dw_plan *p;
    int64_t each; /* floats or words that a pair has */
    float *sums, *turned, *lines, *gathered, *images;
    double *wide; /* of spans; of few channels all sums */
    int32_t *source, *panels,
        *narrow; /* for each k: offset in x; k * 2 vectors; k * rows of a tile */
    int64_t split, group, channel, channels;
    const float *x; /* of the chunk */
    int64_t k;      /* of the chunk: positions, or words */
    int64_t chunks; /* before this one */
} dti_conv_dw_job;

/* The last element of an odd row has no partner. The elements that its taps read are copied to
 * column `alone`. Words have only their even halves there, and floats have zeros for the partner.
 * So no x of another window meets y's zero. */
static void dti_conv_dw_alone(const dti_conv_dw_job *j, float *image, int64_t rows) {
    const dti_conv_dw *c = j->c;
    const dti_conv_pad *copy = &j->p->copy;
    const int64_t from = (c->y_size[1] - 1) * c->stride[1] - c->pad[1] - copy->from[1];
    const bool words = j->each < j->p->pair;
    for (int64_t i = 0; i < copy->channels * rows && j->p->alone; i++) {
        float *row = image + i / rows * copy->plane + i % rows * copy->row;
        for (int64_t k = j->p->alone; k < copy->run; k++) {
            const uint32_t word = dti_bits_from_f32(row[from + k - j->p->alone]);
            row[k] = dti_f32_from_bits(words ? word & 0xFFFF : 0);
        }
    }
}

/* Positions [at, at + count) of samples [sample, sample + samples): x, and where each k finds
 * it. */
static void dti_conv_dw_source(dti_conv_dw_job *j, int64_t sample, int64_t samples, int64_t at,
                               int64_t count) {
    const dti_conv_dw *c = j->c;
    const dti_conv_pad *copy = &j->p->copy;
    const int64_t plane = c->x_size[0] * c->x_size[1], cols = j->p->line;
    const int64_t x = (sample * c->groups + j->group) * c->ci * plane;
    const int64_t between = j->p->in_place ? c->groups * c->ci * plane : c->ci * copy->plane;
    const dti_conv_span rows = dti_conv_dw_reads(c, 0, at / cols, (at + count - 1) / cols + 1);
    j->x = (const float *)c->x + x;
    if (!j->p->in_place) {
        dti_conv_pad pad = *copy;
        pad.from[0] = rows.from, pad.to[0] = rows.to;
        for (int64_t s = 0; s < samples; s++) {
            float *image = j->images + s * between;
            j->kernels->pad(image, dti_half_at(c->x, c->type, x + s * c->groups * c->ci * plane),
                            &pad);
            dti_conv_dw_alone(j, image, rows.to - rows.from);
        }
        j->x = j->images;
    }
    const int64_t first = j->p->in_place ? 0 : rows.from, left = j->p->in_place ? 0 : copy->from[1];
    int32_t *to = j->source;
    for (int64_t s = 0; s < samples; s++) {
        int64_t p = at / cols, q = at % cols;
        for (int64_t k = 0; k < count; k++) {
            for (int64_t e = j->each - 1; e >= 0; e--) {
                const bool alone = j->p->alone && q + 1 == cols && (e || j->each == 1);
                const int64_t col = (q * j->p->pair + e) * c->stride[1] - c->pad[1] - left;
                *to++ = (int32_t)(s * between + (p * c->stride[0] - c->pad[0] - first) * copy->row +
                                  (alone ? j->p->alone : col));
            }
            if (++q == cols)
                q = 0, p++;
        }
    }
    j->k = samples * count * j->each;
}

/* Pairs [at, at + count) of a channel of y in 16 bits, y, as a line of words or floats. */
static void dti_conv_dw_line(const dti_conv_dw_job *j, float *line, int64_t y, int64_t at,
                             int64_t count) {
    const dti_conv_dw *c = j->c;
    const int64_t cols = c->y_size[1];
    for (int64_t k = 0; k < count; k++) {
        const int64_t p = (at + k) / j->p->line, q = (at + k) % j->p->line * j->p->pair;
        const int64_t from = y + p * cols + q;
        const bool odd = q + 1 < cols;
        const uint16_t *even = (const uint16_t *)c->y + from;
        if (j->each < j->p->pair)
            *line++ = dti_f32_from_bits(even[0] | (odd ? (uint32_t)even[1] << 16 : 0));
        for (int64_t e = j->each - 1; j->each == j->p->pair && e >= 0; e--)
            *line++ = e && !odd ? 0 : dti_half_value(c->y, c->type, from + e);
    }
}

/* The address of `lines` channels of y, transposed, and their distance. Rows of an even number of
 * elements in bf16 are words. */
static const float *dti_conv_dw_lines(const dti_conv_dw_job *j, int64_t y, int lines, int64_t at,
                                      int64_t count, int64_t *apart) {
    const dti_conv_dw *c = j->c;
    *apart = c->y_plane;
    if (c->type == DT_F32)
        return (const float *)c->y + y + at;
    *apart = c->y_plane / 2;
    if (j->each < j->p->pair && !(c->y_size[1] & 1) && !(c->y_plane & 1))
        return (const float *)dti_half_at(c->y, c->type, y + 2 * at);
    *apart = count * j->each;
    for (int i = 0; i < lines; i++)
        dti_conv_dw_line(j, j->lines + i * *apart, y + i * c->y_plane, at, count);
    return j->lines;
}

/* y of the same positions, by channels: [panel][k][2 vectors]. */
static void dti_conv_dw_turn(dti_conv_dw_job *j, int64_t sample, int64_t samples, int64_t at,
                             int64_t count) {
    const dti_conv_dw *c = j->c;
    const int64_t lanes = j->kernels->lanes, ld = 2 * lanes;
    for (int64_t o = 0; o < j->channels; o += lanes) {
        float *dst = j->turned + o / ld * ld * j->k + o % ld;
        for (int64_t s = 0; s < samples; s++, dst += count * j->each * ld) {
            const int lines = (int)DTI_MIN(j->channels - o, lanes);
            const int64_t channel = ((sample + s) * c->groups + j->group) * c->co + j->channel + o;
            int64_t apart;
            const float *y = dti_conv_dw_lines(j, channel * c->y_plane, lines, at, count, &apart);
            j->kernels->turn(dst, ld, y, apart, lines, count * j->each);
        }
    }
}

static const float *dti_conv_dw_tap(const dti_conv_dw_job *j, int64_t tap) {
    const dti_conv_dw *c = j->c;
    return j->x + tap / c->taps[1] * c->dil[0] * j->p->copy.row + tap % c->taps[1] * c->dil[1];
}

/* Rows (tap, channel) in equal panels: [panel][k][rows of a tile]. */
static void dti_conv_dw_gather(dti_conv_dw_job *j) {
    const int64_t ld = j->kernels->rows, panels = dti_conv_ceil(j->p->rows, ld);
    for (int64_t i = 0; i < panels; i++) {
        const int64_t begin = j->p->rows * i / panels, end = j->p->rows * (i + 1) / panels;
        for (int64_t row = begin; row < end; row++) {
            const float *x = dti_conv_dw_tap(j, row / j->c->ci) + row % j->c->ci * j->p->copy.plane;
            float *to = j->gathered + i * j->k * ld + row - begin;
            for (int64_t k = 0; k < j->k; k++, to += ld)
                *to = x[j->source[k]];
        }
    }
}

/* All rows of one panel of output channels. */
static void dti_conv_dw_panel(const dti_conv_dw_job *j, float *sums, const float *y, int vecs) {
    const int64_t ld = 2 * j->kernels->lanes, most = j->kernels->rows;
    const int64_t ci = j->p->packed ? j->p->rows : j->c->ci, parts = dti_conv_ceil(ci, most);
    const bool add = j->chunks % DTI_CONV_SPAN != 0;
    const dti_fp_modes modes = dti_conv_enter(j->c->type);
    for (int64_t row = 0; row < j->p->rows; row += ci)
        for (int64_t i = 0; i < parts; i++) {
            const int64_t first = ci * i / parts, rows = ci * (i + 1) / parts - first;
            dti_conv_tile_fn *fn = j->kernels->tile[rows - 1][vecs];
            float *to = sums + (row + first) * ld;
            if (j->p->packed)
                fn(to, j->k, j->gathered + i * j->k * most, j->narrow, 1, y, j->panels, add);
            else
                fn(to, j->k, dti_conv_dw_tap(j, row / ci) + first * j->p->copy.plane, j->source,
                   j->p->copy.plane, y, j->panels, add);
        }
    dti_conv_leave(j->c->type, modes);
}

/* The sums of a span, of all channels' panels. */
static void dti_conv_dw_span(const dti_conv_dw_job *j, bool first) {
    const int64_t ld = 2 * j->kernels->lanes;
    const int64_t n = dti_conv_ceil(j->channels, ld) * ld * j->p->rows;
    dti_wide_add((dti_wide){j->wide, j->sums, 1, n, 0, 1}, first);
}

static void dti_conv_dw_chunk(dti_conv_dw_job *j, int64_t sample, int64_t samples, int64_t at,
                              int64_t count) {
    const int64_t lanes = j->kernels->lanes;
    if (j->chunks && j->chunks % DTI_CONV_SPAN == 0)
        dti_conv_dw_span(j, j->chunks == DTI_CONV_SPAN);
    dti_conv_dw_source(j, sample, samples, at, count);
    dti_conv_dw_turn(j, sample, samples, at, count);
    if (j->p->packed)
        dti_conv_dw_gather(j);
    for (int64_t o = 0; o < j->channels; o += 2 * lanes)
        dti_conv_dw_panel(j, j->sums + o * j->p->rows, j->turned + o * j->k,
                          j->channels - o > lanes);
    j->chunks++;
}

/* From the sums' order, [panel][tap][ci][2 vectors], to w's. */
static void dti_conv_dw_write(const dti_conv_dw_job *j) {
    const dti_conv_dw *c = j->c;
    const int64_t ld = 2 * j->kernels->lanes, taps = c->taps[0] * c->taps[1];
    float *w = c->w + ((j->split * c->groups + j->group) * c->co + j->channel) * j->p->rows;
    const bool wide = j->chunks > DTI_CONV_SPAN;
    if (wide)
        dti_conv_dw_span(j, false);
    for (int64_t o = 0; o < j->channels; o++) {
        const int64_t from = o / ld * ld * j->p->rows + o % ld;
        for (int64_t i = 0; i < c->ci; i++)
            for (int64_t t = 0; t < taps; t++) {
                const int64_t at = from + (t * c->ci + i) * ld;
                *w++ = wide ? (float)j->wide[at] : j->chunks ? j->sums[at] : 0;
            }
    }
}

static void dti_conv_dw_units(dti_conv_dw_job *j, int64_t begin, int64_t end) {
    const dti_conv_dw_plan *p = j->p;
    j->chunks = 0;
    for (int64_t sample = begin; sample < end; sample += p->samples)
        for (int64_t cut = 0; cut < p->cuts && p->positions; cut++) {
            const int64_t at = p->positions * cut / p->cuts;
            dti_conv_dw_chunk(j, sample, DTI_MIN(p->samples, end - sample), at,
                              p->positions * (cut + 1) / p->cuts - at);
        }
    dti_conv_dw_write(j);
}

/* Few output channels: lanes of positions, one weight at a time. */
static void dti_conv_dw_few(dti_conv_dw_job *j, int64_t begin, int64_t end) {
    const dti_conv_dw *c = j->c;
    const dti_conv_pad *copy = &j->p->copy;
    const int64_t taps = c->taps[0] * c->taps[1], plane = c->x_size[0] * c->x_size[1];
    const int64_t n = c->co * j->p->rows;
    float *w = c->w + (j->split * c->groups + j->group) * n;
    memset(j->wide, 0, (size_t)n * sizeof *j->wide);
    for (int64_t i = 0; i < c->ci; i++)
        for (int64_t s = begin; s < end; s++) {
            const int64_t image = s * c->groups + j->group;
            j->kernels->pad(j->images, dti_half_at(c->x, c->type, (image * c->ci + i) * plane),
                            copy);
            for (int64_t o = 0; o < c->co; o++) {
                const int64_t at = (image * c->co + o) * c->y_plane;
                const float *y = (const float *)c->y + at;
                if (c->type != DT_F32)
                    j->set->widen[c->type](j->lines, dti_half_at(c->y, c->type, at),
                                           j->p->positions);
                if (c->type != DT_F32)
                    y = j->lines;
                for (int64_t t = 0; t < taps;) {
                    const int64_t first = t % c->taps[1], row = t / c->taps[1];
                    const int count = (int)DTI_MIN(c->taps[1] - first, 4);
                    int32_t off[4];
                    for (int64_t q = 0; q < count; q++) {
                        const int64_t col = (first + q) * c->dil[1];
                        off[q] = (int32_t)(col % copy->step * copy->run + col / copy->step);
                    }
                    j->kernels->dot(j->wide + (o * c->ci + i) * taps + t, y,
                                    j->images + row * c->dil[0] * copy->row, off, count,
                                    c->y_size[0], c->y_size[1], c->stride[0] * copy->row);
                    t += count;
                }
            }
        }
    for (int64_t i = 0; i < n; i++)
        w[i] = (float)j->wide[i];
}

static void dti_conv_dw_run(const struct dti_isa_kernels *kernels, const dti_conv_dw *c,
                            int64_t begin, int64_t end, void *scratch) {
    dti_conv_dw_plan p = dti_conv_dw_plan_of(c);
    float *floats = scratch;
    const bool words = p.pair > 1 && kernels->conv_pairs;
    p.copy.apart = c->stride[1];
    dti_conv_dw_job j = {.set = kernels,
                         .kernels = words ? kernels->conv_pairs : kernels->conv,
                         .each = words ? 1 : p.pair,
                         .c = c,
                         .p = &p,
                         .sums = floats,
                         .wide = (double *)(void *)(floats + p.wide),
                         .turned = floats + p.turned,
                         .lines = floats + p.lines,
                         .gathered = floats + p.gathered,
                         .images = floats + p.images,
                         .source = (int32_t *)(void *)(floats + p.tables)};
    j.panels = j.source + p.chunk * p.pair, j.narrow = j.panels + p.chunk * p.pair;
    for (int64_t k = 0; k < p.chunk * p.pair; k++) {
        j.panels[k] = (int32_t)(k * 2 * j.kernels->lanes);
        j.narrow[k] = (int32_t)(k * j.kernels->rows);
    }
    for (int64_t item = begin, units; item < end; item += units) {
        const int64_t unit = item % p.units;
        units = DTI_MIN(DTI_MIN(p.together, p.units - unit), end - item);
        j.group = item / p.units % c->groups, j.split = item / p.units / c->groups;
        j.channel = unit * DTI_CONV_UNIT;
        j.channels = DTI_MIN(c->co - j.channel, units * DTI_CONV_UNIT);
        const int64_t first = c->n * j.split / c->splits, last = c->n * (j.split + 1) / c->splits;
        (p.few ? dti_conv_dw_few : dti_conv_dw_units)(&j, first, last);
    }
}
