/* Products of operands in 16 bits. Two in bf16 go to the kernel of pairs where the set has one. All
 * others go in tiles: they are widened, and the float kernel makes chunks of k. The sums are
 * narrowed when they are complete. So the result is that of gemm.h's class on the widened operands,
 * bit for bit, rounded once. Strides are gemm.h's. */

#define DTI_GEMM_HALF_ROWS 96 /* a tile: its operands and the kernel's own fit L2 */
#define DTI_GEMM_HALF_COLS 256
#define DTI_GEMM_HALF_WIDE_ROWS 512 /* of sums in double of pairs */

/* The end of a product: elements of C from complete sums. */
typedef struct dti_gemm_half_tail {
    dti_gemm_strip strip;
    const dti_isa_kernels *kernels;
    const dti_gemm *gemm;
    int64_t i, j; /* of C: where the strip's block begins */
    float bias[DTI_GEMM_STRIP_COLS], operand[DTI_GEMM_STRIP_COLS];
} dti_gemm_half_tail;

typedef struct dti_gemm_half_room {
    dti_gemm_half_tail end;
    float a[DTI_GEMM_HALF_ROWS * DTI_GEMM_PAIR_CHUNK];
    float b[DTI_GEMM_PAIR_CHUNK * DTI_GEMM_HALF_COLS];
    float c[DTI_GEMM_HALF_ROWS * DTI_GEMM_STRIP_ROW];
    double sums[DTI_GEMM_HALF_ROWS * DTI_GEMM_HALF_COLS]; /* of spans */
} dti_gemm_half_room;

/* Sums of pairs of a rectangle of C, where k has more than `least` elements. */
static int64_t dti_gemm_pairs_wide(const dti_gemm *g, int64_t least) {
    return g->k <= least
               ? 0
               : DTI_MIN(g->m, DTI_GEMM_HALF_WIDE_ROWS) * DTI_MIN(g->n, DTI_GEMM_WIDE_COLS);
}

#define DTI_GEMM_64(bytes) (((bytes) + 63) / 64 * 64)

static size_t dti_gemm_half_scratch_bytes(const dti_gemm *g) {
    const size_t room =
        DTI_GEMM_64(sizeof(dti_gemm_half_room)) +
        (DTI_GEMM_PACKED_A(DTI_GEMM_PAIR_CHUNK) + DTI_GEMM_PACKED_B) * sizeof(float);
    const size_t pairs = DTI_GEMM_64(sizeof(dti_gemm_half_tail)) +
                         (DTI_GEMM_STRIP_ROWS * DTI_GEMM_STRIP_ROW +
                          DTI_GEMM_PACKED_A(DTI_GEMM_KC) + DTI_GEMM_PACKED_B) *
                             sizeof(float) +
                         (size_t)dti_gemm_pairs_wide(g, DTI_GEMM_SPAN) * sizeof(double) +
                         (size_t)dti_gemm_pairs_wide(g, DTI_GEMM_PAIR_CHUNK) * sizeof(float);
    return DTI_MAX(room, pairs);
}

/* n neighbours as floats. */
static void dti_gemm_half_line(const dti_isa_kernels *k, float *to, const void *from,
                               dt_dtype dtype, int64_t n) {
    if (dti_is_half(dtype))
        k->widen[dtype](to, from, n);
    else
        memcpy(to, from, (size_t)n * sizeof *to);
}

/* Of an operand of pairs, which is rounded where it is f32. */
static void dti_gemm_half_pairs(const dti_isa_kernels *k, float *to, const void *from,
                                dt_dtype dtype, int64_t n) {
    uint16_t halves[64];
    dti_gemm_half_line(k, to, from, dtype, n);
    for (int64_t i = 0, count; i < n && !dti_is_half(dtype); i += count) {
        count = DTI_MIN(n - i, (int64_t)DTI_COUNT(halves));
        k->narrow[DT_BF16](halves, to + i, count);
        k->widen[DT_BF16](to + i, halves, count);
    }
}

/* ---- to C: bias, epilogue, type, in IEEE's modes as everywhere */

static void dti_gemm_half_row(dti_gemm_half_tail *e, float *sums, int64_t at, int64_t cols) {
    const dti_gemm_half *h = e->gemm->half;
    const dti_isa_kernels *k = e->kernels;
    const int epilogue = e->gemm->epilogue;
    if (h->bias)
        k->binary[DTI_B_ADD](sums, sums, 1, e->bias, 1, cols);
    if (epilogue == DTI_GEMM_RELU)
        k->unary[DTI_U_RELU](sums, sums, cols, 0, 0);
    if (h->operand)
        dti_gemm_half_line(k, e->operand, dti_half_at(h->operand, h->operand_type, at),
                           h->operand_type, cols);
    if (epilogue == DTI_GEMM_RELU_GRAD)
        k->unary_grad[DTI_U_RELU](sums, e->operand, sums, cols, 0, 0);
    if (epilogue == DTI_GEMM_ADD)
        k->binary[DTI_B_ADD](sums, sums, 1, e->operand, 1, cols);
    char *to = (char *)h->c + at * (int64_t)dti_dtype_bytes(h->c_type);
    if (dti_is_half(h->c_type))
        k->narrow[h->c_type](to, sums, cols);
    else
        memcpy(to, sums, (size_t)cols * sizeof *sums);
}

static void dti_gemm_half_out(dti_gemm_strip *strip, int64_t i, int64_t rows, int64_t j,
                              int64_t cols) {
    dti_gemm_half_tail *e = (dti_gemm_half_tail *)(void *)strip;
    const dti_gemm *g = e->gemm;
    const dti_gemm_half *h = g->half;
    const dti_fp_modes modes = dti_fp_enter();
    if (h->bias)
        dti_gemm_half_line(e->kernels, e->bias, dti_half_at(h->bias, h->bias_type, e->j + j),
                           h->bias_type, cols);
    for (int64_t r = 0; r < rows; r++)
        dti_gemm_half_row(e, strip->sums + r * DTI_GEMM_STRIP_ROW,
                          (e->i + i + r) * g->c_row + e->j + j, cols);
    dti_fp_leave(modes);
}

/* ---- pairs */

/* k of several chunks: rectangles, whose sums are complete before any goes to C. */
static void dti_gemm_pairs_long(const dti_isa_kernels *k, const dti_gemm *g,
                                const dti_gemm_block *all, dti_gemm_half_tail *end, float *scratch,
                                float *sums, double *wide) {
    for (int64_t j = 0; j < all->n; j += DTI_GEMM_WIDE_COLS)
        for (int64_t i = 0; i < all->m; i += DTI_GEMM_HALF_WIDE_ROWS) {
            dti_gemm_block part = *all;
            part.strip = NULL;
            part.m = DTI_MIN(all->m - i, DTI_GEMM_HALF_WIDE_ROWS);
            part.n = DTI_MIN(all->n - j, DTI_GEMM_WIDE_COLS);
            part.a = dti_gemm_a(all, i * all->a_row);
            part.b = dti_gemm_b(all, j * all->b_col);
            part.c = all->strip ? sums : all->c + i * all->c_row + j;
            part.c_row = all->strip ? part.n : all->c_row;
            if (g->k > DTI_GEMM_SPAN)
                dti_gemm_spans(k, &part, scratch, wide);
            else
                k->gemm_pairs(&part, scratch);
            for (int64_t r = 0; r < part.m && all->strip; r++) {
                end->strip.sums = sums + r * part.n;
                dti_gemm_half_out(&end->strip, i + r, 1, j, part.n);
            }
        }
}

static void dti_gemm_pairs_block(const dti_isa_kernels *k, const dti_gemm *g, int64_t i0,
                                 int64_t i1, int64_t j0, int64_t j1, void *scratch) {
    const dti_gemm_half *h = g->half;
    dti_gemm_half_tail *end = scratch;
    float *strip = (float *)(void *)((char *)scratch + DTI_GEMM_64(sizeof *end));
    float *packed = strip + DTI_GEMM_STRIP_ROWS * DTI_GEMM_STRIP_ROW;
    double *wide = (double *)(void *)(packed + DTI_GEMM_PACKED_A(DTI_GEMM_KC) + DTI_GEMM_PACKED_B);
    const int bytes = (int)dti_dtype_bytes(h->c_type);
    end->strip =
        (dti_gemm_strip){strip, dti_gemm_half_out, dti_half_at(h->c, h->c_type, i0 * g->c_row + j0),
                         g->c_row * bytes, bytes};
    end->kernels = k;
    end->gemm = g;
    end->i = i0, end->j = j0;
    const bool straight = !dti_is_half(h->c_type) && !h->bias && !g->epilogue;
    const dti_gemm_block block = {
        .m = i1 - i0,
        .n = j1 - j0,
        .k = g->k,
        .a = dti_half_at(h->a, h->a_type, i0 * g->a_row),
        .b = dti_half_at(h->b, h->b_type, j0 * g->b_col),
        .a_row = g->a_row,
        .a_col = g->a_col,
        .b_row = g->b_row,
        .b_col = g->b_col,
        .c = straight ? (float *)h->c + i0 * g->c_row + j0 : NULL,
        .c_row = g->c_row,
        .c_col = 1,
        .pairs = true,
        .rounds = h->rounds,
        .strip = straight ? NULL : &end->strip,
    };
    /* A strip of much k has few columns: too few to pack A for each time. */
    const bool packs = g->a_col != 1 || (g->a_row | g->k) & 1;
    if (g->k <= (packs && !straight ? DTI_GEMM_PAIR_CHUNK : DTI_GEMM_SPAN))
        k->gemm_pairs(&block, packed);
    else
        dti_gemm_pairs_long(k, g, &block, end, packed,
                            (float *)(void *)(wide + dti_gemm_pairs_wide(g, DTI_GEMM_SPAN)), wide);
}

/* ---- widened */

/* An operand's lines as floats at to[line * *to_line + k * *to_step], in the order that they lie
 * in. Of pairs the elements of each are exchanged, and the last is filled up. */
static void dti_gemm_half_tile(const dti_isa_kernels *kernels, float *to, const char *from,
                               dt_dtype dtype, int64_t lines, int64_t k, int64_t line, int64_t step,
                               bool pairs, int64_t *to_line, int64_t *to_step) {
    const bool along = line != 1 || step == 1; /* k lies along the contiguous elements */
    const int64_t deep = k + (pairs && k & 1), n = along ? k : lines, row = along ? deep : lines;
    void (*const widen)(const dti_isa_kernels *, float *, const void *, dt_dtype, int64_t) =
        pairs ? dti_gemm_half_pairs : dti_gemm_half_line;
    for (int64_t i = 0; i < (along ? lines : k); i++) {
        const char *at = dti_half_at(from, dtype, i * (along ? line : step));
        float *dst = to + (pairs && !along ? i ^ 1 : i) * row;
        for (int64_t j = 0; along && step != 1 && j < n; j++)
            widen(kernels, dst + j, dti_half_at(at, dtype, j * step), dtype, 1);
        if (!along || step == 1)
            widen(kernels, dst, at, dtype, n);
        if (along && deep > k)
            dst[k] = 0;
        for (int64_t j = 0; along && pairs && j < deep; j += 2) {
            const float even = dst[j];
            dst[j] = dst[j + 1];
            dst[j + 1] = even;
        }
    }
    if (!along && deep > k)
        memset(to + (k - 1) * row, 0, (size_t)row * sizeof *to);
    *to_line = along ? row : 1;
    *to_step = along ? 1 : row;
}

/* The sums of one chunk of k, added to those before it. */
static void dti_gemm_half_chunk(const dti_isa_kernels *k, const dti_gemm *g, bool pairs, int64_t i0,
                                int64_t j0, int64_t k0, dti_gemm_block *block,
                                dti_gemm_half_room *room) {
    const dti_gemm_half *h = g->half;
    block->a = room->a;
    block->b = room->b;
    dti_gemm_half_tile(k, room->a, dti_half_at(h->a, h->a_type, i0 * g->a_row + k0 * g->a_col),
                       h->a_type, block->m, block->k, g->a_row, g->a_col, pairs, &block->a_row,
                       &block->a_col);
    dti_gemm_half_tile(k, room->b, dti_half_at(h->b, h->b_type, k0 * g->b_row + j0 * g->b_col),
                       h->b_type, block->n, block->k, g->b_col, g->b_row, pairs, &block->b_col,
                       &block->b_row);
    block->k += pairs && block->k & 1;
    k->gemm_block(block, (float *)(void *)((char *)room + DTI_GEMM_64(sizeof *room)));
}

static void dti_gemm_half_one(const dti_isa_kernels *k, const dti_gemm *g, bool pairs, int64_t i0,
                              int64_t j0, dti_gemm_block *block, dti_gemm_half_room *room) {
    block->c = room->c;
    block->c_row = DTI_GEMM_STRIP_ROW;
    block->c_col = 1;
    block->chunk = pairs ? DTI_GEMM_PAIR_CHUNK : DTI_GEMM_KC;
    for (int64_t k0 = 0; k0 == 0 || k0 < g->k; k0 += block->chunk) {
        const bool wide = k0 && g->k > DTI_GEMM_SPAN, last = g->k - k0 <= block->chunk;
        const bool span = wide && (last || k0 % DTI_GEMM_SPAN == 0); /* as in gemm.c */
        if (span)
            dti_wide_add(dti_gemm_wide(block, room->sums), k0 <= DTI_GEMM_SPAN);
        if (span && last)
            dti_wide_take(dti_gemm_wide(block, room->sums));
        block->add = k0 > 0 && (!span || last);
        block->k = DTI_MIN(g->k - k0, block->chunk);
        dti_gemm_half_chunk(k, g, pairs, i0, j0, k0, block, room);
    }
    room->end.strip.sums = room->c;
    dti_gemm_half_out(&room->end.strip, i0, block->m, j0, block->n);
}

/* Rows [i0, i1) and columns [j0, j1) of C. */
static void dti_gemm_half_block(const dti_isa_kernels *k, const dti_gemm *g, int64_t i0, int64_t i1,
                                int64_t j0, int64_t j1, void *scratch) {
    const dti_gemm_half *h = g->half;
    const bool pairs = h->a_type == DT_BF16 && (h->b_type == DT_BF16 || h->rounds);
    const dti_fp_modes modes = pairs ? dti_fp_flush() : dti_fp_enter();
    dti_gemm_half_room *room = scratch;
    if (pairs && k->gemm_pairs) {
        if (i1 > i0 && j1 > j0)
            dti_gemm_pairs_block(k, g, i0, i1, j0, j1, scratch);
        dti_fp_leave(modes);
        return;
    }
    room->end.kernels = k;
    room->end.gemm = g;
    room->end.i = room->end.j = 0;
    for (int64_t j = j0; j < j1; j += DTI_GEMM_HALF_COLS)
        for (int64_t i = i0; i < i1; i += DTI_GEMM_HALF_ROWS) {
            dti_gemm_block block = {.m = DTI_MIN(i1 - i, DTI_GEMM_HALF_ROWS),
                                    .n = DTI_MIN(j1 - j, DTI_GEMM_HALF_COLS)};
            dti_gemm_half_one(k, g, pairs, i, j, &block, room);
        }
    dti_fp_leave(modes);
}
