/* Single-precision matrix product. C[m,n] = sum_k A[m,k] * B[k,n], then + bias, then the epilogue.
 * Strides are in elements and free, so a transposition is a swap of strides; C must not overlap A,
 * B, bias or mask. Sum-order class "chunked-k": k is cut into chunks of DTI_GEMM_KC; each is summed
 * serially by FMA from zero; the chunks are added in order, to C if `accumulate`, else to the
 * first. Spans of DTI_GEMM_SPAN are added in double, so that the error does not grow with k. So the
 * bits depend on the operands only: not on the set, the tiles or the threads.
 *
 * Class "pairs", of two operands in bf16: chunks have DTI_GEMM_PAIR_CHUNK elements. A chunk is one
 * chain of FMAs in which element 2i + 1 comes before element 2i. The last pair of an odd k is
 * filled up with a zero. Denormals are zero in the sums. That is what VDPBF16PS does; other sets do
 * it by FMAs. Chunks and spans are added as above, then bias and epilogue in IEEE's modes. B may be
 * f32, which is rounded to bf16 as it is packed.
 *
 * Class "amx", of two operands in bf16, if dt_ctx_desc.amx asks for it: as pairs, but with other
 * chains. Each 32 elements of a chunk make two chains of FMAs from zero: even and odd
 * elements. Their sum is added to the chunk's. That is what TDPBF16PS does by Intel's manual. */

#define DTI_GEMM_KC 256 /* 256 to 512 measured alike; the shortest asks least of L1 and L2 */
#define DTI_GEMM_PAIR_CHUNK                                                                        \
    (2 * DTI_GEMM_KC)                    /* the same number of 32-bit words: the rest is as for
                                               * floats */
#define DTI_GEMM_SPAN (16 * DTI_GEMM_KC) /* then doubles are read and written: 1 % of the time */
#define DTI_GEMM_WIDE_ROWS 1024          /* of C, whose sums are in double */
#define DTI_GEMM_WIDE_COLS 512
#define DTI_GEMM_TILE_MACS (1 << 18) /* less work a tile than this is not worth a thread */

/* GEMM's spec[1]. RELU_GRAD: binding 3 is a mask, laid out like C, and there is no bias. ADD: it is
 * added. */
enum { DTI_GEMM_NONE, DTI_GEMM_RELU, DTI_GEMM_RELU_GRAD, DTI_GEMM_ADD };

/* Operands of which some have 16 bits. c_col is 1, and nothing is accumulated; see gemm_half.c. */
typedef struct dti_gemm_half {
    const void *a, *b, *bias, *operand; /* bias, the epilogue's operand: NULL = none */
    void *c;
    dt_dtype a_type, b_type, c_type, bias_type, operand_type;
    bool rounds; /* b is f32, and the product that of b rounded to bf16 */
} dti_gemm_half;

typedef struct dti_gemm {
    int64_t m, n, k;
    const float *a;
    int64_t a_row, a_col;
    const float *b;
    int64_t b_row, b_col;
    float *c;
    int64_t c_row, c_col; /* c_col 1 is fast */
    const float *bias;    /* NULL = none; bias[j * bias_stride] is added to column j, once */
    int64_t bias_stride;
    bool accumulate; /* C += */
    int epilogue;    /* DTI_GEMM_RELU: x < 0 ? 0 : x, so NaN stays */
    /* NULL = none; c_row and c_col as C: x = mask > 0 ? x : 0 at the very end (NaN is not > 0) */
    const float *mask;
    const float *addend; /* NULL = none; c_row as C, c_col is 1: x = x + addend at the very end */
    const dti_gemm_half *half; /* NULL = all are floats; else the pointers above are not used */
} dti_gemm;

/* The outer index space: independent tiles of C, about one a thread; 1 if threads do not pay. */
static int64_t dti_gemm_tiles(const dti_gemm *g, int threads);
/* The scratch of one worker, 64-byte aligned; a function of m, n, k only. */
static size_t dti_gemm_scratch_bytes(const dti_gemm *g);
/* Tiles [tile_begin, tile_end); neighbours in one call share their packing. */
struct dti_isa_kernels;
static void dti_gemm_run(const struct dti_isa_kernels *kernels, const dti_gemm *g, int threads,
                         int64_t tile_begin, int64_t tile_end, void *scratch);

/* The scratch of one worker if there is a `half`; a function of m, n, k only. */
static size_t dti_gemm_half_scratch_bytes(const dti_gemm *g);

/* For gemm_body.h: sums that go to C through memory that stays in L2. finish() gets those of rows
 * [i, i + rows) and columns [j, j + cols) of the block, complete; it may change them. */
typedef struct dti_gemm_strip {
    float *sums; /* DTI_GEMM_STRIP_ROWS x DTI_GEMM_STRIP_ROW */
    void (*finish)(struct dti_gemm_strip *strip, int64_t i, int64_t rows, int64_t j, int64_t cols);
    const char *to; /* the output of finish(), from the block's first element on */
    int64_t to_row; /* bytes from row to row */
    int to_bytes;   /* of an element */
} dti_gemm_strip;

struct dti_gemm_out;

/* For gemm_body.h: tiles of words of pairs that replace a set's own. */
typedef struct dti_gemm_kernels {
    int rows;                /* of a panel: the most */
    void (*begin)(int rows); /* the next tiles have that many */
    void (*tile)(int rows, int vecs, int64_t k, const float *a, int64_t a_row, int64_t a_col,
                 const float *b, int64_t b_row, const struct dti_gemm_out *out);
} dti_gemm_kernels;

/* For gemm_body.h: a rectangle of C with its operands; bias may run along rows or columns. */
typedef struct dti_gemm_block {
    int64_t m, n, k;
    const void *a, *b; /* floats; with `pairs` bf16, but B with `rounds` */
    const float *bias, *mask;
    float *c;
    int64_t a_row, a_col, b_row, b_col, c_row, c_col, bias_row, bias_col;
    bool add, relu, pairs, rounds;
    int64_t chunk;                 /* 0 = DTI_GEMM_KC; floats only */
    dti_gemm_strip *strip;         /* NULL = sums go to c */
    float *kept;                   /* NULL, or dti_gemm_kept() floats: B is packed there */
    bool is_kept;                  /* by an earlier call with the same m, n and k */
    const dti_gemm_kernels *tiles; /* of pairs; NULL = the set's own tiles */
} dti_gemm_block;
typedef void dti_gemm_block_fn(const dti_gemm_block *block, float *scratch);

/* How a block is walked: decided once, from its shape. */
typedef struct dti_gemm_plan {
    int64_t columns;             /* in a chunk */
    int64_t words, chunk, depth; /* of k; in a chunk; for which B is packed at once */
    int mr, rows; /* of a panel: the most; the first `more` panels have one more than `rows` */
    int64_t panels, more;
    int group; /* panels that are computed one after the other, chunk by chunk */
    bool pack_a, pack_b;
} dti_gemm_plan;

/* Panels of columns, of `vecs` vectors each; the first `more` have one more. */
typedef struct dti_gemm_cols {
    int panels, vecs, more;
} dti_gemm_cols;

/* One chunk of k, in words, with the columns that are packed together. */
typedef struct dti_gemm_chunk {
    int64_t k0, kc, j0, nc;
    float *c; /* the sums of row i0 and column j0 */
    int64_t i0, c_row, c_col;
    dti_gemm_cols cols;
    const float *packed_b; /* all columns, or only an edge that is not whole vectors */
    bool pack_b, last;     /* of k */
    bool far;              /* operands may lie where it takes time to fetch them */
} dti_gemm_chunk;

/* One tile of C, as it leaves the registers. It goes to C itself if its rows are contiguous and
 * nothing follows the sum. Else it goes to memory, and is finished from there. */
typedef struct dti_gemm_out {
    float *c, *to;
    int64_t to_row;
    int to_last;              /* columns of the last vector that are stored */
    bool to_sum;              /* added to the old value */
    const float *bias, *mask; /* mask: NULL unless it is to be used now */
    int64_t c_row, c_col, bias_row, bias_col;
    int cols;
    bool add, last, relu;
    bool straight, turned; /* contiguous rows, columns, of C and bias */
} dti_gemm_out;
typedef void dti_gemm_tile_fn(int64_t k, const float *a, int64_t a_row, int64_t a_col,
                              const float *b, int64_t b_row, const dti_gemm_out *out);

/* ---- Sizes by which gemm.c and every set of gemm_body.h cut. */
#define DTI_GEMM_PACKED_B (512 * DTI_GEMM_KC) /* floats of B packed at once: they lie in L2 */
/* Panels of A packed together have 96 rows, see pack_a; +16: whole vectors. */
#define DTI_GEMM_GROUP(mr) (DTI_GEMM_STRIP_ROWS / (mr))
#define DTI_GEMM_PANEL_A(mr, chunk) ((mr) * (chunk) + 16)
#define DTI_GEMM_PACKED_A(chunk) (16 * DTI_GEMM_PANEL_A(6, chunk))
#define DTI_GEMM_STRIP_ROWS 96
#define DTI_GEMM_STRIP_COLS 512
#define DTI_GEMM_STRIP_ROW (DTI_GEMM_STRIP_COLS + 16) /* rows begin in different sets of L1 */
#define DTI_GEMM_AHEAD 8 /* columns of A that are fetched before they are packed */

/* Columns of B packed at once, whole vectors of any set. */
static int64_t dti_gemm_columns(int64_t k) {
    return DTI_GEMM_PACKED_B / DTI_MIN(DTI_MAX(k, 64), DTI_GEMM_KC) / 64 * 64;
}

/* Floats of a packed B that is kept for the next products. words: of k. */
static int64_t dti_gemm_kept(int64_t n, int64_t words) {
    return (n + 15) / 16 * 16 * words;
}

/* Element i of A, and of B. */
static const void *dti_gemm_a(const dti_gemm_block *g, int64_t i) {
    return (const char *)g->a + i * (int64_t)(g->pairs ? sizeof(uint16_t) : sizeof(float));
}

static const void *dti_gemm_b(const dti_gemm_block *g, int64_t i) {
    const bool half = g->pairs && !g->rounds;
    return (const char *)g->b + i * (int64_t)(half ? sizeof(uint16_t) : sizeof(float));
}

/* Columns [begin, end). */
static dti_gemm_block dti_gemm_columns_of(const dti_gemm_block *g, int64_t begin, int64_t end) {
    dti_gemm_block part = *g;
    part.n = end - begin;
    part.b = dti_gemm_b(g, begin * g->b_col);
    part.c += begin * g->c_col;
    if (g->bias)
        part.bias += begin * g->bias_col;
    if (g->mask)
        part.mask += begin * g->c_col;
    return part;
}

/* The product of the transposed: C' = B' A'. */
static dti_gemm_block dti_gemm_turn(const dti_gemm_block *g) {
    dti_gemm_block t = *g;
    t.m = g->n, t.n = g->m;
    t.a = g->b, t.a_row = g->b_col, t.a_col = g->b_row;
    t.b = g->a, t.b_row = g->a_col, t.b_col = g->a_row;
    t.c_row = g->c_col, t.c_col = g->c_row;
    t.bias_row = g->bias_col, t.bias_col = g->bias_row;
    return t;
}
