/* The product of one instruction set for one kind of word. A word is a float, or (DTI_GEMM_PAIRS)
 * two numbers in bf16 that follow each other in k. Both have the same tiles, packing and loops. */

#ifdef DTI_GEMM_PAIRS
#define DTI_G(name) DTI_N(pairs_##name)
#define DTI_GEMM_ELEMENT uint16_t
/* Which of 2 x 32 numbers make words i... i + 15: those of one line follow each other. */
#define DTI_GEMM_WORD(i) ((i) | (32 + (i)) << 16)
#define DTI_GEMM_WORDS(i)                                                                          \
    DTI_GEMM_WORD(i + 3), DTI_GEMM_WORD(i + 2), DTI_GEMM_WORD(i + 1), DTI_GEMM_WORD(i)
#define DTI_GEMM_WEAVE(i)                                                                          \
    DTI_GEMM_WORDS(i + 12), DTI_GEMM_WORDS(i + 8), DTI_GEMM_WORDS(i + 4), DTI_GEMM_WORDS(i)
#else
#define DTI_G(name) DTI_N(gemm_##name)
#define DTI_GEMM_ELEMENT float
#endif
#define DTI_GEMM_SIZE ((int64_t)sizeof(DTI_GEMM_ELEMENT))

/* The most rows of a tile of 1, 2... vectors. */
static const int8_t DTI_G(rows_most)[DTI_GEMM_VECS] = {
#ifdef DTI_GEMM_PAIRS /* as fast as others, and a third of the code */
    6, 6, 6, 6
#elif DTI_GEMM_WIDE
    12, 12, 8, 6
#else
    6, 6
#endif
};

DTI_INLINE DTI_NF DTI_G(fma)(DTI_NF x, DTI_NF y, DTI_NF sum) {
#ifdef DTI_GEMM_PAIRS
    sum = (DTI_NF)_mm512_dpbf16_ps((__m512)sum, (__m512bh)(__m512i)x, (__m512bh)(__m512i)y);
    DTI_HIDE(sum);
    return sum;
#else
    return DTI_N(fma)(x, y, sum);
#endif
}

/* sums = A's rows times B's columns over k words. */
DTI_INLINE void DTI_G(tile)(const int rows, const int vecs, int64_t k, const float *a,
                            int64_t a_row, int64_t a_col, const float *b, int64_t b_row,
                            const dti_gemm_out *out) {
    DTI_NF sums[DTI_GEMM_MR][DTI_GEMM_VECS];
    const float *mid = a + 6 * a_row;
    DTI_UNROLL(12)
    for (int i = 0; i < rows; i++) {
        DTI_UNROLL(4)
        for (int v = 0; v < vecs; v++) {
            sums[i][v] = DTI_N(set1)(0);
            DTI_KEEP(sums[i][v]);
        }
    }
    for (int64_t p = 0; p < k; p++, a += a_col, mid += a_col, b += b_row) {
        DTI_NF y[DTI_GEMM_VECS];
        DTI_UNROLL(4)
        for (int v = 0; v < vecs; v++)
            y[v] = DTI_N(load)(b + v * DTI_LANES);
        DTI_UNROLL(12)
        for (int i = 0; i < rows; i++) {
            DTI_GEMM_IN_ORDER;
            DTI_NF x = DTI_N(set1)(i < 6 ? a[i * a_row] : mid[(i - 6) * a_row]);
            DTI_UNROLL(4)
            for (int v = 0; v < vecs; v++)
                sums[i][v] = DTI_G(fma)(x, y[v], sums[i][v]);
        }
    }
    DTI_N(gemm_store)(rows, vecs, out, sums);
}

/* clang-format off */
#undef DTI_GEMM_LIST
#define DTI_GEMM_TO_6(X, vecs) X(1, vecs) X(2, vecs) X(3, vecs) X(4, vecs) X(5, vecs) X(6, vecs)
#define DTI_GEMM_TO_8(X, vecs) DTI_GEMM_TO_6(X, vecs) X(7, vecs) X(8, vecs)
#define DTI_GEMM_TO_12(X, v) DTI_GEMM_TO_8(X, v) X(9, v) X(10, v) X(11, v) X(12, v)
#ifdef DTI_GEMM_PAIRS
#define DTI_GEMM_LIST(X)                                                                           \
    DTI_GEMM_TO_6(X, 1) DTI_GEMM_TO_6(X, 2) DTI_GEMM_TO_6(X, 3) DTI_GEMM_TO_6(X, 4)
#elif DTI_GEMM_WIDE
#define DTI_GEMM_LIST(X)                                                                           \
    DTI_GEMM_TO_12(X, 1) DTI_GEMM_TO_12(X, 2) DTI_GEMM_TO_8(X, 3) DTI_GEMM_TO_6(X, 4)
#else
#define DTI_GEMM_LIST(X) DTI_GEMM_TO_6(X, 1) DTI_GEMM_TO_6(X, 2)
#endif
/* clang-format on */
#define DTI_GEMM_TILE(rows, vecs)                                                                  \
    static void DTI_G(rows##_##vecs)(int64_t k, const float *a, int64_t a_row, int64_t a_col,      \
                                     const float *b, int64_t b_row, const dti_gemm_out *out) {     \
        DTI_G(tile)(rows, vecs, k, a, a_row, a_col, b, b_row, out);                                \
    }
#define DTI_GEMM_ENTRY(rows, vecs) [rows - 1][vecs - 1] = DTI_G(rows##_##vecs),
DTI_GEMM_LIST(DTI_GEMM_TILE)
static dti_gemm_tile_fn *const DTI_G(tiles)[DTI_GEMM_MR][DTI_GEMM_VECS] = {
    DTI_GEMM_LIST(DTI_GEMM_ENTRY)};

/* Neighbouring lines of an operand, and k: words are made of them. */
typedef struct DTI_G(lines) {
    const DTI_GEMM_ELEMENT *at; /* of line 0 and k 0 */
    int64_t line, step, k;      /* strides of lines and of k; elements of k */
} DTI_G(lines);

/* Word p of a line. */
DTI_INLINE float DTI_G(word)(const DTI_G(lines) * l, int64_t line, int64_t p) {
    const DTI_GEMM_ELEMENT *at = l->at + line * l->line;
#ifdef DTI_GEMM_PAIRS
    const uint32_t odd = 2 * p + 1 < l->k ? at[(2 * p + 1) * l->step] : 0;
    return dti_f32_from_bits(at[2 * p * l->step] | odd << 16);
#else
    return at[p * l->step];
#endif
}

/* Word p of n lines from `line` on, which are contiguous, to whole vectors. */
DTI_INLINE void DTI_G(words)(float *to, const DTI_G(lines) * l, int64_t line, int64_t p, int n) {
#ifdef DTI_GEMM_PAIRS
    const DTI_GEMM_ELEMENT *at = l->at + line + 2 * p * l->step;
    const bool whole = 2 * p + 1 < l->k;
    const __m512i low = _mm512_set_epi32(DTI_GEMM_WEAVE(0));
    const __m512i high = _mm512_set_epi32(DTI_GEMM_WEAVE(16));
    for (int i = 0; i < n; i += 2 * DTI_LANES) {
        const __mmask32 lanes = n - i < 32 ? (1u << (n - i)) - 1u : UINT32_MAX;
        const __m512i x = _mm512_maskz_loadu_epi16(lanes, at + i);
        const __m512i y = _mm512_maskz_loadu_epi16(whole ? lanes : 0, at + i + l->step);
        _mm512_storeu_si512(to + i, _mm512_permutex2var_epi16(x, low, y));
        if (n - i > DTI_LANES)
            _mm512_storeu_si512(to + i + DTI_LANES, _mm512_permutex2var_epi16(x, high, y));
    }
#else
    const float *at = l->at + line + p * l->step;
    for (int i = 0; i < n; i += DTI_LANES)
        DTI_N(store)
    (to + i, n - i >= DTI_LANES ? DTI_N(load)(at + i) : DTI_N(load_n)(at + i, n - i));
#endif
}

/* Whether words lie in memory as they are multiplied, except for half of the last one. */
DTI_INLINE bool DTI_G(ready)(const void *at, int64_t line, int64_t step) {
    return step == 1 && (DTI_GEMM_SIZE == 4 || !((uintptr_t)at & 3 || line & 1));
}

/* `lines` <= LANES of them to dst[p * ld + i], zeros after them: where k is contiguous. */
static void DTI_G(pack_lines)(float *dst, int64_t ld, const DTI_G(lines) * l, int64_t line,
                              int lines, int64_t words) {
    const int64_t whole = DTI_MIN(words, l->k * DTI_GEMM_SIZE / 4);
    DTI_N(pack_turn)
    (dst, ld, (const float *)(const void *)(l->at + line * l->line), l->line * DTI_GEMM_SIZE / 4,
     lines, whole);
    for (int i = 0; whole < words && i < DTI_LANES; i++)
        dst[whole * ld + i] = i < lines ? DTI_G(word)(l, line + i, whole) : 0;
}

/* Prefetches word p of lines that are packed soon; the caches' own prefetch stops at the page's
 * end. */
DTI_INLINE void DTI_G(ahead)(const DTI_G(lines) * a, int64_t line, int64_t p, int rows) {
    const int each = 4 / DTI_GEMM_SIZE;
    const DTI_GEMM_ELEMENT *at = a->at + line + p * each * a->step;
    for (int e = 0; e < each; e++, at += a->step)
        for (int i = 0; i < rows; i += 64 / DTI_GEMM_SIZE)
            __builtin_prefetch(at + i);
}

#ifdef DTI_GEMM_PAIRS
/* Panels' words from where A's columns are contiguous. Lines of all panels are interleaved at once,
 * and are read only later. Loads that cross two recent stores wait for them. */
static void DTI_G(pack_columns)(float *dst, const DTI_G(lines) * a, const dti_gemm_plan *plan,
                                int panels, int more, int64_t words) {
    enum { STEPS = 16, ROW = DTI_GEMM_STRIP_ROWS + 16, COPY = 8 };
    alignas(64) float woven[STEPS * ROW];
    const int rows = panels * plan->rows + more;
    for (int64_t p0 = 0; p0 < words; p0 += STEPS) {
        const int n = (int)DTI_MIN(words - p0, STEPS);
        for (int p = 0; p < n; p++) {
            DTI_G(ahead)(a, 0, p0 + p + 2 * DTI_GEMM_AHEAD, rows);
            DTI_G(words)(woven + p * ROW, a, 0, p0 + p, rows);
        }
        const float *from = woven;
        for (int q = 0; q < panels; q++) {
            float *to = dst + q * DTI_GEMM_PANEL_A(plan->mr, plan->chunk) + p0 * plan->mr;
            for (int p = 0; p < n; p++) { /* the next p writes over words too many */
                memcpy(to + p * plan->mr, from + p * ROW, COPY * sizeof *to);
                if (plan->mr > COPY)
                    memcpy(to + p * plan->mr + COPY, from + p * ROW + COPY, COPY * sizeof *to);
            }
            from += plan->rows + (q < more);
        }
    }
}
#else
static void DTI_G(pack_columns)(float *dst, const DTI_G(lines) * a, const dti_gemm_plan *plan,
                                int panels, int more, int64_t words) {
    const int64_t size_a = DTI_GEMM_PANEL_A(plan->mr, plan->chunk);
    for (int64_t p = 0; p < words; p++) {
        float *to = dst + p * plan->mr;
        int64_t row = 0;
        DTI_G(ahead)(a, 0, p + DTI_GEMM_AHEAD, panels * plan->mr);
        for (int q = 0; q < panels; q++, to += size_a) {
            const int size = plan->rows + (q < more);
            DTI_G(words)(to, a, row, p, size); /* the next p writes over lanes too many */
            row += size;
        }
    }
}
#endif

/* `panels` of A, the first `more` of them of rows + 1 rows, each to its own dst[p * mr + i]. They
 * are packed together where A's columns are contiguous: each may lie on a page of its own. */
static void DTI_G(pack_a)(float *dst, const DTI_G(lines) * a, const dti_gemm_plan *plan, int panels,
                          int more, int64_t words) {
    if (a->line == 1) {
        DTI_G(pack_columns)(dst, a, plan, panels, more, words);
        return;
    }
    for (int64_t q = 0, row = 0; q < panels; q++) {
        int size = plan->rows + (q < more);
        for (int64_t p = 0; p < words; p++)
            for (int i = 0; i < size; i++)
                dst[p * plan->mr + i] = DTI_G(word)(a, row + i, p);
        row += size;
        dst += DTI_GEMM_PANEL_A(plan->mr, plan->chunk);
    }
}

/* B's columns [j0, j0 + cols) to dst[p * ld + j], padded with zeros to whole vectors. */
static void DTI_G(pack_b)(float *dst, int64_t ld, const DTI_G(lines) * b, int64_t j0, int cols,
                          int64_t words) {
    const bool ready = DTI_G(ready)(b->at, b->line, b->step);
    for (int64_t p = 0; b->line == 1 && p < words; p++) {
        if (DTI_GEMM_SIZE == 2)
            DTI_G(ahead)(b, j0, p + 4 * DTI_GEMM_AHEAD, cols);
        DTI_G(words)(dst + p * ld, b, j0, p, cols);
    }
    for (int j = 0; b->line != 1 && j < cols; j += DTI_LANES) {
        int n = DTI_MIN(cols - j, DTI_LANES);
        if (ready)
            DTI_G(pack_lines)(dst + j, ld, b, j0 + j, n, words);
        else
            for (int64_t p = 0; p < words; p++)
                for (int i = 0; i < DTI_LANES; i++)
                    dst[p * ld + j + i] = i < n ? DTI_G(word)(b, j0 + j + i, p) : 0;
    }
}

#ifdef DTI_GEMM_PAIRS
/* Up to 32 neighbours rounded to bf16, to a whole vector. True if a result is 0. */
DTI_INLINE bool DTI_G(round)(uint16_t *to, const float *x, __mmask32 lanes) {
    const __m512 even = _mm512_maskz_loadu_ps((__mmask16)lanes, x);
    const __m512 odd = _mm512_maskz_loadu_ps((__mmask16)(lanes >> 16), x + DTI_LANES);
    __m512i y = (__m512i)_mm512_cvtne2ps_pbh(odd, even);
    DTI_HIDE(y); /* clang would compare floats, one by one */
    _mm512_storeu_si512(to, y);
    return _mm512_mask_testn_epi16_mask(lanes, y, _mm512_set1_epi16(0x7FFF)) != 0;
}

/* n of them. The instruction treats denormals as zeros, but the largest of them round to a normal
 * number. So a line with zeros is rounded again. */
DTI_INLINE void DTI_G(round_line)(uint16_t *to, const float *x, int64_t n) {
    bool zero = false;
    int64_t i = 0;
    for (; i + 2 * DTI_LANES <= n; i += 2 * DTI_LANES)
        zero |= DTI_G(round)(to + i, x + i, UINT32_MAX);
    if (i < n)
        zero |= DTI_G(round)(to + i, x + i, (1u << (n - i)) - 1u);
    if (zero)
        DTI_ISA(dti_half_narrow_bf16)(to, x, n);
}

/* Columns [j, j + cols) of a B in f32, from word k0 on. They are rounded a few words at a time, so
 * that these are in L1 when they are packed. */
static void DTI_G(pack_floats)(float *dst, int64_t ld, const dti_gemm_block *g, int64_t j, int cols,
                               int64_t k0, int64_t words) {
    enum { STEPS = 32 };
    alignas(64) uint16_t room[2 * STEPS * DTI_GEMM_NR];
    const bool across = g->b_col == 1;
    const int64_t next = across ? g->b_row : g->b_col, step = across ? 1 : g->b_row;
    const int64_t row = across ? DTI_GEMM_NR : 2 * STEPS;
    const int64_t ahead = across ? DTI_GEMM_AHEAD * next : 2 * STEPS;
    for (int64_t p = 0; p < words; p += STEPS) {
        const int64_t n = DTI_MIN(words - p, STEPS), k = DTI_MIN(g->k - 2 * (k0 + p), 2 * n);
        const float *from = (const float *)g->b + 2 * (k0 + p) * g->b_row + j * g->b_col;
        const int64_t lines = across ? k : cols, count = across ? cols : k;
        for (int64_t i = 0; i < lines; i++, from += next) {
            for (int64_t e = 0; e < 2 * STEPS; e += 16)
                __builtin_prefetch(from + ahead + e);
            if (step == 1)
                DTI_G(round_line)(room + i * row, from, count);
            for (int64_t e = 0; step != 1 && e < count; e++)
                DTI_ISA(dti_half_narrow_bf16)(room + i * row + e, from + e * step, 1);
        }
        const DTI_G(lines) b = {room, across ? 1 : row, across ? row : 1, k};
        DTI_G(pack_b)(dst + p * ld, ld, &b, 0, cols, n);
    }
}
#endif

/* Lines of A from row i on, and of B, from word k0 of k on. */
DTI_INLINE DTI_G(lines)
    DTI_G(lines_of)(const void *at, int64_t line, int64_t step, int64_t i, int64_t k0, int64_t k) {
    const int64_t skip = k0 * 4 / DTI_GEMM_SIZE;
    return (DTI_G(lines)){(const DTI_GEMM_ELEMENT *)at + i * line + skip * step, line, step,
                          k - skip};
}

/* The columns that are packed together, and how much of k. */
static void DTI_G(plan_b)(const dti_gemm_block *g, dti_gemm_plan *plan) {
    plan->words = (g->k * DTI_GEMM_SIZE + 3) / 4;
    plan->chunk = g->chunk ? g->chunk : DTI_GEMM_KC;
    plan->depth = g->strip ? DTI_MAX(plan->words, 1) : plan->chunk;
    plan->columns = g->n;
    if (g->strip) {
        const int64_t most = DTI_GEMM_PACKED_B / DTI_MAX(plan->words, DTI_GEMM_KC) / 64 * 64;
        plan->columns = DTI_MIN(g->n, most);
    } else if (g->n > DTI_GEMM_PACKED_B / DTI_GEMM_KC) {
        plan->columns = DTI_MIN(g->n, dti_gemm_columns(plan->words));
    }
    if (g->m <= DTI_G(rows_most)[0] && g->b_col != 1) { /* one panel of A: L1 keeps B's buffer */
        const bool wide = g->m <= DTI_G(rows_most)[DTI_GEMM_VECS - 1];
        plan->columns = DTI_MIN(g->n, wide ? DTI_GEMM_NR : 2 * DTI_LANES);
    }
}

/* Small products feel divisions: in 32 bits, and only necessary ones. */
static dti_gemm_plan DTI_G(plan)(const dti_gemm_block *g) {
    dti_gemm_plan plan;
    DTI_G(plan_b)(g, &plan);
    const dti_gemm_cols cols = DTI_N(gemm_cols)(plan.columns);
    plan.mr = g->tiles ? g->tiles->rows : DTI_G(rows_most)[cols.vecs - (cols.more == 0)];
    plan.panels = ((uint32_t)g->m + (uint32_t)plan.mr - 1) / (uint32_t)plan.mr;
    plan.rows = (int)((uint32_t)g->m / (uint32_t)plan.panels);
    plan.more = g->m - plan.rows * plan.panels;
#ifdef DTI_GEMM_PAIRS
    plan.pack_a = !DTI_G(ready)(g->a, g->a_row, g->a_col) || g->k & 1;
    plan.pack_b = true;
#else
    /* A vector of B that crosses cache lines costs twice, for each panel of A */
    const bool aligned = (((uintptr_t)g->b | (uintptr_t)g->b_row * 4) & (DTI_LANES * 4 - 1)) == 0;
    const bool small = aligned && g->k * g->n <= 128 * 128;
    /* rows that are contiguous in k are read in place: as good as a panel */
    plan.pack_a = plan.columns > 2 * DTI_GEMM_NR && g->a_col != 1;
    plan.pack_b = g->kept || g->b_col != 1 || (plan.panels > 3 && !small);
#endif
    plan.group = (g->strip && plan.pack_a) || g->a_row == 1 ? DTI_GEMM_GROUP(plan.mr) : 1;
    return plan;
}

/* Prefetches where a tile's sums go: C, or the output of their strip. */
DTI_INLINE void DTI_G(fetch_tile)(const dti_gemm_strip *strip, const dti_gemm_chunk *chunk,
                                  const dti_gemm_out *out, int64_t i, int64_t j, int rows) {
    const char *to = strip ? strip->to + i * strip->to_row + j * strip->to_bytes : (char *)out->c;
    const int64_t row = strip ? strip->to_row : out->c_row * 4;
    const int bytes = strip ? out->cols * strip->to_bytes : out->straight ? out->cols * 4 : 1;
    for (int r = 0; r < rows && (!strip || chunk->last); r++, to += row)
        for (int at = 0; at < bytes; at += 64)
            __builtin_prefetch(to + at, 1);
}

/* Fetches panel q's share of A's next rows, where they are read in place. */
DTI_INLINE void DTI_G(fetch_rows)(const dti_gemm_chunk *chunk, const float *next, int64_t a_row,
                                  int rows, int64_t q) {
    const int64_t share = chunk->kc / chunk->cols.panels;
    for (int64_t p = q * share; next && p < (q + 1) * share; p += 16)
        for (int64_t i = 0; i < rows; i++)
            __builtin_prefetch(next + i * a_row + p);
}

/* Rows [i0, i0 + rows) times all columns of the chunk. a: word 0 of the chunk. */
static void DTI_G(rows)(const dti_gemm_block *g, const dti_gemm_chunk *chunk, int64_t i0, int rows,
                        const float *a, int64_t a_row, int64_t a_col) {
    const int64_t kc = chunk->kc;
    dti_gemm_out out = {
        .c_row = chunk->c_row,
        .c_col = chunk->c_col,
        .bias_row = g->bias_row,
        .bias_col = g->bias_col,
        .add = g->add || chunk->k0 > 0,
        .last = chunk->last,
        .relu = g->relu,
        .straight = chunk->c_col == 1 && (!g->bias || (g->bias_col == 1 && g->bias_row == 0)),
        .turned = chunk->c_row == 1 && (!g->bias || (g->bias_row == 1 && g->bias_col == 0))};
    alignas(64) float tile[DTI_GEMM_TILE_ROWS * DTI_GEMM_NR];
    const float *next = a_col == 1 ? a + rows * a_row : NULL;
    const dti_gemm_kernels *tiles = DTI_GEMM_SIZE == 4 ? NULL : g->tiles;
    if (tiles)
        tiles->begin(rows);
    const bool bare = out.straight && !(out.last && (g->bias || out.relu || g->mask));
    for (int64_t q = 0, j = 0; q < chunk->cols.panels; q++, j += out.cols) {
        const int64_t col = chunk->j0 + j;
        const int vecs = chunk->cols.vecs + (q < chunk->cols.more);
        out.cols = (int)DTI_MIN(chunk->nc - j, vecs * DTI_LANES);
        const bool whole = out.cols == vecs * DTI_LANES, packed = chunk->pack_b || !whole;
        const float *b = packed ? chunk->packed_b + (chunk->pack_b ? j * kc : 0)
                                : (const float *)g->b + chunk->k0 * g->b_row + col * g->b_col;
        out.c = chunk->c + (i0 - chunk->i0) * out.c_row + j * out.c_col;
        out.bias = g->bias ? g->bias + i0 * g->bias_row + col * g->bias_col : NULL;
        out.mask = g->mask && out.last ? g->mask + (out.c - g->c) : NULL;
        if (chunk->far) {
            DTI_G(fetch_tile)(g->strip, chunk, &out, i0, col, rows);
            DTI_G(fetch_rows)(chunk, next, a_row, rows, q);
        }
        const bool plain = bare && (whole || (DTI_LANES > 4 && !out.add));
        DTI_N(gemm_aim)(&out, plain ? NULL : tile, vecs);
        const int64_t b_row = packed ? vecs * DTI_LANES : g->b_row;
        if (tiles)
            tiles->tile(rows, vecs, kc, a, a_row, a_col, b, b_row, &out);
        else
            DTI_G(tiles)[rows - 1][vecs - 1](kc, a, a_row, a_col, b, b_row, &out);
        if (!plain)
            (out.straight             ? DTI_N(gemm_edge)
             : out.turned && rows > 2 ? DTI_N(gemm_turned)
                                      : DTI_N(gemm_scatter))(&out, tile, rows);
    }
}

/* All columns, or only the last panel where it is not whole vectors. */
static void DTI_G(pack_chunk)(const dti_gemm_block *g, const dti_gemm_chunk *chunk,
                              float *packed_b) {
    const DTI_G(lines) b = DTI_G(lines_of)(g->b, g->b_col, g->b_row, chunk->j0, chunk->k0, g->k);
    for (int64_t q = 0, j = 0; q < chunk->cols.panels; q++) {
        const int width = (chunk->cols.vecs + (q < chunk->cols.more)) * DTI_LANES;
        const int cols = (int)DTI_MIN(chunk->nc - j, width);
        float *to = packed_b + (chunk->pack_b ? j * chunk->kc : 0);
#ifdef DTI_GEMM_PAIRS
        if (g->rounds)
            DTI_G(pack_floats)(to, width, g, chunk->j0 + j, cols, chunk->k0, chunk->kc);
        else
#endif
            if (chunk->pack_b || cols < width)
            DTI_G(pack_b)(to, width, &b, j, cols, chunk->kc);
        j += cols;
    }
}

/* Panels [r, r + count) of A, of which the first has row i, times the chunk's columns. */
static void DTI_G(panels)(const dti_gemm_block *g, const dti_gemm_plan *plan,
                          const dti_gemm_chunk *chunk, int64_t r, int count, int64_t i,
                          float *packed_a) {
    const int longer = (int)DTI_MAX(DTI_MIN(plan->more - r, count), 0);
    const DTI_G(lines) a = DTI_G(lines_of)(g->a, g->a_row, g->a_col, i, chunk->k0, g->k);
    if (plan->pack_a)
        DTI_G(pack_a)(packed_a, &a, plan, count, longer, chunk->kc);
    const float *in_place = (const float *)(const void *)a.at;
    const int64_t each = sizeof *a.at, a_row = g->a_row * each / 4; /* in words */
    for (int q = 0; q < count; q++) {
        const int rows = plan->rows + (q < longer);
        if (plan->pack_a)
            DTI_G(rows)
        (g, chunk, i, rows, packed_a + q * DTI_GEMM_PANEL_A(plan->mr, plan->chunk), 1, plan->mr);
        else DTI_G(rows)(g, chunk, i, rows, in_place, a_row, each == 4 ? g->a_col : 1);
        in_place += rows * a_row;
        i += rows;
    }
}

/* Columns that lie packed: all rows, a group after the other. */
static void DTI_G(groups)(const dti_gemm_block *g, const dti_gemm_plan *plan, dti_gemm_chunk *chunk,
                          int64_t k0, float *packed_a, float *packed_b) {
    const int64_t end = DTI_MIN(plan->words, k0 + plan->depth);
    const int64_t wide = ((chunk->nc + DTI_LANES - 1) / DTI_LANES) * DTI_LANES;
    for (int64_t r = 0, i = 0, count, rows; r < plan->panels; r += count, i += rows) {
        count = DTI_MIN(plan->group, plan->panels - r);
        rows = count * plan->rows + DTI_MAX(DTI_MIN(plan->more - r, count), 0);
        if (g->strip)
            chunk->c = g->strip->sums, chunk->i0 = i;
        for (int64_t k = k0; k == k0 || k < end; k += plan->chunk) {
            chunk->k0 = k;
            chunk->kc = DTI_MIN(end - k, plan->chunk);
            chunk->last = k + chunk->kc == plan->words;
            chunk->packed_b = packed_b + (k - k0) * wide;
            if (r == 0 && !g->is_kept)
                DTI_G(pack_chunk)(g, chunk, packed_b + (k - k0) * wide);
            DTI_G(panels)(g, plan, chunk, r, (int)count, i, packed_a);
        }
        if (g->strip)
            g->strip->finish(g->strip, i, rows, chunk->j0, chunk->nc);
    }
}

/* True if it was one chunk of floats whose A is read in place. For small products the loops of the
 * others cost 15 ns. */
static bool DTI_G(small)(const dti_gemm_block *g, const dti_gemm_plan *plan, dti_gemm_chunk *chunk,
                         float *packed_b) {
    if (DTI_GEMM_SIZE != 4 || g->strip || g->kept || plan->pack_a || plan->words > plan->chunk ||
        plan->columns < g->n)
        return false;
    chunk->c = g->c;
    chunk->nc = g->n;
    chunk->kc = plan->words;
    chunk->cols = DTI_N(gemm_cols)(g->n);
    chunk->packed_b = packed_b;
    chunk->last = true;
    if (plan->pack_b || g->n % DTI_LANES)
        DTI_G(pack_chunk)(g, chunk, packed_b);
    for (int64_t r = 0, i = 0; r < plan->panels; r++) {
        const int rows = plan->rows + (r < plan->more);
        DTI_G(rows)(g, chunk, i, rows, (const float *)g->a + i * g->a_row, g->a_row, g->a_col);
        i += rows;
    }
    return true;
}

/* Chunk by chunk: all of k for some columns. */
static void DTI_G(walk)(const dti_gemm_block *g, float *scratch) {
    const dti_gemm_plan plan = DTI_G(plan)(g);
    dti_gemm_chunk chunk = {.pack_b = plan.pack_b, .c_row = g->c_row, .c_col = g->c_col};
    chunk.far = plan.words * g->n > 128 * 128; /* smaller ones are in L1 and L2 */
    if (DTI_G(small)(g, &plan, &chunk, scratch + DTI_GEMM_PACKED_A(plan.chunk)))
        return;
    if (g->strip)
        chunk.c_row = DTI_GEMM_STRIP_ROW, chunk.c_col = 1;
    for (int64_t j = 0; j < g->n; j += plan.columns) {
        chunk.j0 = j;
        chunk.nc = DTI_MIN(g->n - j, plan.columns);
        chunk.cols = DTI_N(gemm_cols)(chunk.nc);
        if (!g->strip)
            chunk.c = g->c + j * g->c_col;
        const int64_t wide = ((chunk.nc + DTI_LANES - 1) / DTI_LANES) * DTI_LANES;
        for (int64_t k = 0; k == 0 || k < plan.words; k += plan.depth) {
            float *kept = g->kept ? g->kept + j * plan.words + k * wide : NULL;
            float *packed_b = kept ? kept : scratch + DTI_GEMM_PACKED_A(plan.chunk);
            DTI_G(groups)(g, &plan, &chunk, k, scratch, packed_b);
        }
    }
}

/* Few columns do not fill their vectors: they are the rows of the transposed product. */
#ifndef DTI_GEMM_PAIRS
DTI_ISA_FUNCTION(N, gemm_block, gemm_block);
#endif
static void DTI_G(block)(const dti_gemm_block *g, float *scratch) {
    const int64_t rest = g->n % DTI_LANES;
    dti_gemm_block part;
    if (g->strip || g->rounds || g->kept) {
        DTI_G(walk)(g, scratch);
        return;
    }
    if (g->n <= DTI_LANES && g->n * 2 <= g->m) {
        part = dti_gemm_turn(g);
        g = &part;
    } else if (g->a_row == 1 && rest && rest <= DTI_LANES / 4 && g->n > DTI_GEMM_NR) {
        part = dti_gemm_columns_of(g, g->n - rest, g->n);
        part = dti_gemm_turn(&part);
        DTI_G(walk)(&part, scratch);
        part = dti_gemm_columns_of(g, 0, g->n - rest);
        g = &part;
    }
    DTI_G(walk)(g, scratch);
}

#undef DTI_G
#undef DTI_GEMM_ELEMENT
#undef DTI_GEMM_SIZE
