/* Convolution of operands in 16 bits: patches of the image are laid out, row k of them for each
 * weight of an output channel, and half_product.h multiplies. Forward: y = W patches. The adjoint
 * in x: patches = W^T y, which are added where they were taken from. The adjoint in w: y patches^T.
 * Sums are floats; results are rounded once. An element's sum depends on shapes only: items and
 * blocks of rows cut positions, and the adjoint in w its sum by shape. */

#define DTI_CONV_HALF_BLOCK (1 << 17) /* elements of patches, and of sums: they lie in L2 */
#define DTI_CONV_HALF_CHANNELS 128    /* whose weights' gradient an item makes */
#define DTI_CONV_HALF_IMAGE 32        /* channels of x whose gradient an item makes */
#define DTI_CONV_HALF_SPAN 16         /* blocks that are added in float before double takes over */

/* An even number of elements, for rows that are read as pairs. */
static int64_t dti_conv_half_even(int64_t n) {
    return (n + 1) / 2 * 2;
}

static float *dti_conv_half_take(float *memory, size_t *at, int64_t n) {
    float *p = memory ? memory + *at : NULL;
    *at += (size_t)((n + 15) / 16 * 16);
    return p;
}

static int64_t dti_conv_half_floats(int64_t halves) {
    return (halves / 2 + 16) / 16 * 16;
}

/* Both images of a group, x's channels ci and y's co; k: weights of an output channel. */
typedef struct dti_conv_half_shape {
    int64_t ci, co, taps, k, rows, cols; /* rows and columns of y */
    int64_t block;                       /* rows of y that are made together */
} dti_conv_half_shape;

static dti_conv_half_shape dti_conv_half_shape_of(const dti_conv_geometry *g, int64_t ci,
                                                  int64_t co) {
    dti_conv_half_shape s = {.ci = ci, .co = co, .taps = g->taps[0] * g->taps[1]};
    s.k = ci * s.taps;
    s.rows = g->y_size[0], s.cols = g->y_size[1];
    const int64_t line = DTI_MAX(s.cols, 1) * DTI_MAX(s.k, co);
    s.block = DTI_MAX(1, DTI_MIN(s.rows, DTI_CONV_HALF_BLOCK / DTI_MAX(line, 1)));
    s.block = dti_conv_ceil(s.rows, DTI_MAX(1, dti_conv_ceil(s.rows, s.block)));
    return s;
}

static dti_conv_geometry dti_conv_geometry_of(const int64_t x[2], const int64_t y[2],
                                              const int64_t taps[2], const int64_t stride[2],
                                              const int64_t pad[2], const int64_t dil[2]) {
    return (dti_conv_geometry){.x_size = {x[0], x[1]},
                               .y_size = {y[0], y[1]},
                               .taps = {taps[0], taps[1]},
                               .stride = {stride[0], stride[1]},
                               .pad = {pad[0], pad[1]},
                               .dil = {dil[0], dil[1]}};
}

/* ---- patches */

DTI_INLINE void dti_conv_half_copy(uint16_t *to, const uint16_t *from, int64_t n) {
    int64_t j = 0;
    for (; j + 8 <= n; j += 8)
        memcpy(to + j, from + j, 16);
    if (j < n && n >= 8)
        memcpy(to + n - 8, from + n - 8, 16);
    for (; n < 8 && j < n; j++)
        to[j] = from[j];
}

/* The columns of y whose tap at column `tap` lies inside of x. */
static dti_conv_span dti_conv_half_inside(const dti_conv_geometry *g, int64_t tap) {
    const int64_t stride = g->stride[1], at = tap * g->dil[1] - g->pad[1];
    const int64_t from = at < 0 ? DTI_MIN(dti_conv_ceil(-at, stride), g->y_size[1]) : 0;
    const int64_t to = g->x_size[1] > at ? (g->x_size[1] - at - 1) / stride + 1 : 0;
    return (dti_conv_span){from, DTI_MAX(from, DTI_MIN(to, g->y_size[1]))};
}

/* Positions of a row of y, of one tap: what row `row` of x has. x: from the tap's column on. */
DTI_INLINE void dti_conv_half_line(const dti_conv_geometry *g, dti_conv_span in, uint16_t *to,
                                   const uint16_t *x, int64_t row) {
    const int64_t stride = g->stride[1], cols = g->y_size[1];
    const bool inside = row >= 0 && row < g->x_size[0] && in.to > in.from;
    if (!inside || in.from || in.to < cols)
        memset(to, 0, (size_t)cols * sizeof *to);
    if (!inside)
        return;
    x += row * g->x_size[1];
    if (stride == 1)
        dti_conv_half_copy(to + in.from, x + in.from, in.to - in.from);
    for (int64_t v = in.from; stride != 1 && v < in.to; v++)
        to[v] = x[v * stride];
}

/* to[k * ld + position], of rows [p0, p1) of y; x: the group's image. */
static void dti_conv_half_patches(const dti_conv_geometry *g, uint16_t *to, int64_t ld,
                                  const uint16_t *x, int64_t channels, int64_t p0, int64_t p1) {
    const int64_t plane = g->x_size[0] * g->x_size[1], taps = g->taps[0] * g->taps[1];
    for (int64_t tap = 0; tap < taps; tap++) {
        const int64_t s = tap % g->taps[1], down = tap / g->taps[1] * g->dil[0] - g->pad[0];
        const dti_conv_span in = dti_conv_half_inside(g, s);
        for (int64_t c = 0; c < channels; c++) {
            uint16_t *line = to + (c * taps + tap) * ld;
            const uint16_t *from = x + c * plane + s * g->dil[1] - g->pad[1];
            for (int64_t p = p0; p < p1; p++, line += g->y_size[1])
                dti_conv_half_line(g, in, line, from, p * g->stride[0] + down);
        }
    }
}

/* The adjoint: x += patches. */
static void dti_conv_half_gather(const dti_isa_kernels *kernels, const dti_conv_geometry *g,
                                 float *x, const float *patches, int64_t channels, int64_t p0,
                                 int64_t p1) {
    const int64_t height = g->x_size[0], width = g->x_size[1], cols = g->y_size[1];
    const int64_t all = g->taps[0] * g->taps[1], step = g->stride[1];
    for (int64_t tap = 0; tap < all; tap++) {
        const int64_t s = tap % g->taps[1], down = tap / g->taps[1] * g->dil[0] - g->pad[0];
        const dti_conv_span in = dti_conv_half_inside(g, s);
        for (int64_t c = 0; c < channels; c++) {
            const float *from = patches + (c * all + tap) * (p1 - p0) * cols;
            for (int64_t p = p0; p < p1; p++, from += cols) {
                const int64_t row = p * g->stride[0] + down;
                if (row < 0 || row >= height)
                    continue;
                float *to = x + (c * height + row) * width + s * g->dil[1] - g->pad[1];
                if (step == 1 && in.to > in.from)
                    kernels->axpy(to + in.from, 1.0f, from + in.from, in.to - in.from);
                for (int64_t v = in.from; step != 1 && v < in.to; v++)
                    to[v * step] += from[v];
            }
        }
    }
}

/* ---- images from images */

static dti_conv_geometry dti_conv_half_geometry(const dti_conv *c) {
    return dti_conv_geometry_of(c->transposed ? c->to_size : c->from_size,
                                c->transposed ? c->from_size : c->to_size, c->taps, c->stride,
                                c->pad, c->dil);
}

static dti_conv_half_shape dti_conv_half_of(const dti_conv *c, const dti_conv_geometry *g) {
    const int64_t ci =
        c->transposed ? DTI_MIN(c->to_channels, DTI_CONV_HALF_IMAGE) : c->from_channels;
    return dti_conv_half_shape_of(g, ci, c->transposed ? c->from_channels : c->to_channels);
}

/* Blocks of rows of y, or units of x's channels. */
static int64_t dti_conv_half_parts(const dti_conv *c, const dti_conv_half_shape *s) {
    return c->transposed ? dti_conv_ceil(c->to_channels, DTI_CONV_HALF_IMAGE)
                         : DTI_MAX(1, dti_conv_ceil(s->rows, s->block));
}

static int64_t dti_conv_half_items(const dti_conv *c) {
    const dti_conv_geometry g = dti_conv_half_geometry(c);
    const dti_conv_half_shape s = dti_conv_half_of(c, &g);
    return c->groups * c->n * dti_conv_half_parts(c, &s);
}

/* A worker's memory: patches, sums, a line of a mask or a bias, the product's. */
typedef struct dti_conv_half_room {
    uint16_t *patches, *lines;
    float *sums, *image, *line, *product;
    double *wide;
    int64_t floats;
} dti_conv_half_room;

static dti_conv_half_room dti_conv_half_lay(const dti_conv *c, const dti_conv_geometry *g,
                                            const dti_conv_half_shape *s, float *memory) {
    const int64_t n = s->block * s->cols, plane = g->x_size[0] * g->x_size[1];
    size_t at = 0;
    dti_conv_half_room r = {0};
    r.patches =
        (void *)dti_conv_half_take(memory, &at, c->transposed ? 0 : dti_conv_half_floats(s->k * n));
    r.sums = dti_conv_half_take(memory, &at, (c->transposed ? s->k : s->co) * n);
    r.image = dti_conv_half_take(memory, &at, c->transposed ? s->ci * plane : 0);
    r.line = dti_conv_half_take(memory, &at, c->transposed ? plane : n);
    r.product = dti_conv_half_take(
        memory, &at,
        dti_half_block_floats(c->transposed ? s->k : s->co, n, c->transposed ? s->co : s->k));
    r.floats = (int64_t)at;
    return r;
}

static size_t dti_conv_half_scratch_bytes(const dti_conv *c) {
    const dti_conv_geometry g = dti_conv_half_geometry(c);
    const dti_conv_half_shape s = dti_conv_half_of(c, &g);
    return (size_t)dti_conv_half_lay(c, &g, &s, NULL).floats * sizeof(float);
}

/* n sums of channel `channel` to elements [at, at + n) of the result. */
static void dti_conv_half_finish(const dti_isa_kernels *k, const dti_conv_half *h, int64_t channel,
                                 int64_t at, float *sums, int64_t n, float *line) {
    const void *operand = h->bias   ? dti_half_at(h->bias, h->operand_type, channel)
                          : h->mask ? dti_half_at(h->mask, h->operand_type, at)
                                    : NULL;
    if (operand && dti_is_half(h->operand_type)) {
        k->widen[h->operand_type](line, operand, h->bias ? 1 : n);
        operand = line;
    }
    if (h->bias)
        k->unary[DTI_U_AFFINE](sums, sums, n, 1.0f, *(const float *)operand);
    if (h->conv.relu)
        k->unary[DTI_U_RELU](sums, sums, n, 0, 0);
    if (h->mask)
        k->unary_grad[DTI_U_RELU](sums, operand, sums, n, 0, 0);
    k->narrow[h->type](dti_half_at(h->to, h->type, at), sums, n);
}

/* Rows of y of one sample and group. */
static void dti_conv_half_forward(const dti_isa_kernels *k, const dti_conv_half *h,
                                  const dti_conv_geometry *g, const dti_conv_half_shape *s,
                                  const dti_conv_half_room *room, int64_t image, int64_t group,
                                  int64_t block) {
    const int64_t p0 = block * s->block, p1 = DTI_MIN(p0 + s->block, s->rows);
    const int64_t n = (p1 - p0) * s->cols, plane = g->x_size[0] * g->x_size[1];
    const dti_gemm_block product = {.m = s->co,
                                    .n = n,
                                    .k = s->k,
                                    .a_row = s->k,
                                    .a_col = 1,
                                    .b_row = n,
                                    .b_col = 1,
                                    .c = room->sums,
                                    .c_row = n,
                                    .c_col = 1};
    dti_conv_half_patches(g, room->patches, n, (const uint16_t *)h->from + image * s->ci * plane,
                          s->ci, p0, p1);
    dti_half_block_run(k,
                       &(dti_half_block){product, (const uint16_t *)h->w + group * s->co * s->k,
                                         room->patches, h->type},
                       room->product);
    for (int64_t o = 0; o < s->co; o++)
        dti_conv_half_finish(k, h, group * s->co + o,
                             ((image * s->co + o) * s->rows + p0) * s->cols, room->sums + o * n, n,
                             room->line);
}

/* Channels of x of one sample and group. */
static void dti_conv_half_adjoint(const dti_isa_kernels *k, const dti_conv_half *h,
                                  const dti_conv_geometry *g, const dti_conv_half_shape *s,
                                  const dti_conv_half_room *room, int64_t image, int64_t group,
                                  int64_t unit) {
    const int64_t all = h->conv.to_channels, first = unit * DTI_CONV_HALF_IMAGE;
    const int64_t ci = DTI_MIN(all - first, DTI_CONV_HALF_IMAGE), y_plane = s->rows * s->cols;
    const int64_t plane = g->x_size[0] * g->x_size[1];
    dti_gemm_block product = {.m = ci * s->taps,
                              .k = s->co,
                              .a_row = 1,
                              .a_col = all * s->taps,
                              .b_row = y_plane,
                              .b_col = 1,
                              .c = room->sums,
                              .c_col = 1};
    const uint16_t *w = (const uint16_t *)h->w + group * s->co * all * s->taps + first * s->taps;
    const uint16_t *y = (const uint16_t *)h->from + image * s->co * y_plane;
    memset(room->image, 0, (size_t)(ci * plane) * sizeof *room->image);
    for (int64_t p0 = 0; p0 < s->rows; p0 += s->block) {
        const int64_t p1 = DTI_MIN(p0 + s->block, s->rows);
        product.n = product.c_row = (p1 - p0) * s->cols;
        dti_half_block_run(k, &(dti_half_block){product, w, y + p0 * s->cols, h->type},
                           room->product);
        dti_conv_half_gather(k, g, room->image, room->sums, ci, p0, p1);
    }
    for (int64_t i = 0; i < ci; i++)
        dti_conv_half_finish(k, h, group * all + first + i, (image * all + first + i) * plane,
                             room->image + i * plane, plane, room->line);
}

static void dti_conv_half_run(const dti_isa_kernels *k, const dti_conv_half *h, int64_t begin,
                              int64_t end, void *scratch) {
    const dti_conv *c = &h->conv;
    const dti_conv_geometry g = dti_conv_half_geometry(c);
    const dti_conv_half_shape s = dti_conv_half_of(c, &g);
    const dti_conv_half_room room = dti_conv_half_lay(c, &g, &s, scratch);
    const int64_t parts = dti_conv_half_parts(c, &s);
    for (int64_t item = begin; item < end; item++) {
        const int64_t image = item / parts, group = image % c->groups;
        (c->transposed ? dti_conv_half_adjoint : dti_conv_half_forward)(k, h, &g, &s, &room, image,
                                                                        group, item % parts);
    }
}

/* ---- the gradient of weights */

static dti_conv_geometry dti_conv_half_dw_geometry(const dti_conv_dw *c) {
    return dti_conv_geometry_of(c->x_size, c->y_size, c->taps, c->stride, c->pad, c->dil);
}

static int64_t dti_conv_half_dw_items(const dti_conv_dw *c) {
    return c->splits * c->groups * dti_conv_ceil(c->co, DTI_CONV_HALF_CHANNELS);
}

static dti_conv_half_room dti_conv_half_dw_lay(const dti_conv_half_shape *s, float *memory) {
    const int64_t ld = dti_conv_half_even(s->block * s->cols);
    size_t at = 0;
    dti_conv_half_room r = {0};
    r.patches = (void *)dti_conv_half_take(memory, &at, dti_conv_half_floats(s->k * ld));
    r.lines = (void *)dti_conv_half_take(memory, &at, dti_conv_half_floats(s->co * ld));
    r.wide = (void *)dti_conv_half_take(memory, &at, 2 * s->co * s->k);
    r.product = dti_conv_half_take(memory, &at, dti_half_block_floats(s->co, s->k, ld));
    r.floats = (int64_t)at;
    return r;
}

static dti_conv_half_shape dti_conv_half_dw_of(const dti_conv_dw *c, const dti_conv_geometry *g) {
    return dti_conv_half_shape_of(g, c->ci, DTI_MIN(c->co, DTI_CONV_HALF_CHANNELS));
}

static size_t dti_conv_half_dw_scratch_bytes(const dti_conv_dw *c) {
    const dti_conv_geometry g = dti_conv_half_dw_geometry(c);
    const dti_conv_half_shape s = dti_conv_half_dw_of(c, &g);
    return (size_t)dti_conv_half_dw_lay(&s, NULL).floats * sizeof(float);
}

/* w (+)= y patches^T over rows [p0, p1) of one image; y: its channels, x: its group's. */
static void dti_conv_half_dw_block(const dti_isa_kernels *k, const dti_conv_dw *c,
                                   const dti_conv_geometry *g, const dti_conv_half_room *room,
                                   dt_dtype type, const uint16_t *x, const uint16_t *y,
                                   int64_t channels, int64_t p0, int64_t p1, float *w, bool add) {
    const int64_t n = (p1 - p0) * g->y_size[1], ld = dti_conv_half_even(n);
    const int64_t weights = c->ci * g->taps[0] * g->taps[1];
    for (int64_t o = 0; o < channels; o++)
        dti_conv_half_copy(room->lines + o * ld, y + o * c->y_plane + p0 * g->y_size[1], n);
    dti_conv_half_patches(g, room->patches, ld, x, c->ci, p0, p1);
    const dti_gemm_block product = {.m = channels,
                                    .n = weights,
                                    .k = n,
                                    .a_row = ld,
                                    .a_col = 1,
                                    .b_row = 1,
                                    .b_col = ld,
                                    .c = w,
                                    .c_row = weights,
                                    .c_col = 1,
                                    .add = add};
    dti_half_block_run(k, &(dti_half_block){product, room->lines, room->patches, type},
                       room->product);
}

/* One part of the samples, one group, some channels of y. */
static void dti_conv_half_dw_item(const dti_isa_kernels *k, const dti_conv_dw *c,
                                  const dti_conv_geometry *g, const dti_conv_half_shape *s,
                                  const dti_conv_half_room *room, dt_dtype type, int64_t item) {
    const int64_t units = dti_conv_ceil(c->co, DTI_CONV_HALF_CHANNELS);
    const int64_t group = item / units % c->groups, split = item / units / c->groups;
    const int64_t first = item % units * DTI_CONV_HALF_CHANNELS, o = group * c->co + first;
    const int64_t channels = DTI_MIN(c->co - first, DTI_CONV_HALF_CHANNELS);
    const int64_t plane = c->ci * g->x_size[0] * g->x_size[1], last = c->n * (split + 1);
    float *w = c->w + (split * c->groups * c->co + o) * s->k;
    const dti_wide wide = {room->wide, w, 1, channels * s->k, 0, 1};
    int64_t blocks = 0, spans = 0;
    for (int64_t i = c->n * split / c->splits; i < last / c->splits; i++)
        for (int64_t p0 = 0; p0 < s->rows; p0 += s->block, blocks++) {
            const uint16_t *x = (const uint16_t *)(const void *)c->x;
            const uint16_t *y = (const uint16_t *)(const void *)c->y;
            const bool over = blocks == DTI_CONV_HALF_SPAN;
            if (over)
                dti_wide_add(wide, spans++ == 0);
            blocks = over ? 0 : blocks;
            dti_conv_half_dw_block(k, c, g, room, type, x + (i * c->groups + group) * plane,
                                   y + (i * c->groups * c->co + o) * c->y_plane, channels, p0,
                                   DTI_MIN(p0 + s->block, s->rows), w, blocks > 0);
        }
    if (spans) {
        dti_wide_add(wide, false);
        dti_wide_take(wide);
    } else if (!blocks) {
        memset(w, 0, (size_t)(channels * s->k) * sizeof *w);
    }
}

static void dti_conv_half_dw_run(const dti_isa_kernels *k, const dti_conv_dw *c, dt_dtype type,
                                 int64_t begin, int64_t end, void *scratch) {
    const dti_conv_geometry g = dti_conv_half_dw_geometry(c);
    const dti_conv_half_shape s = dti_conv_half_dw_of(c, &g);
    const dti_conv_half_room room = dti_conv_half_dw_lay(&s, scratch);
    for (int64_t item = begin; item < end; item++)
        dti_conv_half_dw_item(k, c, &g, &s, &room, type, item);
}
