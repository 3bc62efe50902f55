/* Convolution: its forward pass and both gradients, over raw pointers. Nothing is unfolded: one
 * micro-kernel, GEMM's tile, reads activations in place (or a copy with zeros around it) through a
 * table of offsets: sums[i][v] += a[a_off[k] + i * a_row] * b[b_off[k] + v].
 *
 * Three forms, chosen by shape. CHANNELS has vectors of output channels and rows of positions, and
 * transposes its tiles as it writes them. POSITIONS has vectors of positions and rows of channels,
 * for few input channels. PLANES has vectors and rows of positions, for few output channels.
 *
 * Sum-order class "chunked-k", as GEMM: k = (tap row, channel, tap column) is cut into chunks of
 * DTI_GEMM_KC, each summed serially by FMA from zero; the chunks are added in order. The form does
 * not matter, nor samples, threads or the instruction set. In the gradient of the weights k =
 * (sample, position) of a part, cut by shape. Parts are added in order, spans of DTI_CONV_SPAN
 * chunks in double. With fewer than DTI_CONV_FEW output channels a group, 16 lanes of positions are
 * summed for each sample. Samples are added in order, in double.
 *
 * Class "pairs" of bf16, as GEMM: k counts pairs of channels 2i and 2i + 1. In the gradient of the
 * weights it counts pairs of columns of y. The last pair of an odd number is filled up with zeros.
 * A set with VDPBF16PS multiplies words of pairs; others multiply floats, the odd element's
 * first. */

#define DTI_CONV_FEW 4
#define DTI_CONV_UNIT 32          /* channels of a panel, on every instruction set */
#define DTI_CONV_BUDGET (1 << 16) /* floats of a copy or of packed weights, where they can be cut */

/* Writes the image `to` from the image `from`. Forward: y from x. Transposed (the adjoint): x from
 * y. Channels are those of one group. [0] is along the height, [1] along the width. */
typedef struct dti_conv {
    bool transposed;
    int64_t n, groups, from_channels, to_channels;
    int64_t from_size[2], to_size[2], taps[2], stride[2], pad[2], dil[2];
    const void *from, *w;
    const void *bias, *mask; /* NULL = none; bias: by `to`'s channels; mask: like `to` */
    void *to;
    bool relu;
    dt_dtype type, operand_type; /* operand: the bias or the mask */
} dti_conv;

/* The weights' gradient: `splits` partial sums, [splits, groups * co, ci, kh, kw]. */
typedef struct dti_conv_dw {
    int64_t n, groups, ci, co, splits;
    int64_t x_size[2], y_size[2], taps[2], stride[2], pad[2], dil[2];
    int64_t y_plane; /* from channel to channel: y may be a part of an image's rows */
    const void *x, *y;
    float *w;
    dt_dtype type; /* of x and y */
} dti_conv_dw;

struct dti_isa_kernels;
static int64_t dti_conv_items(const dti_conv *c, int threads);
static size_t dti_conv_scratch_bytes(const dti_conv *c, int threads);
static void dti_conv_run(const struct dti_isa_kernels *kernels, const dti_conv *c, int threads,
                         int64_t begin, int64_t end, void *scratch);
static int64_t dti_conv_dw_items(const dti_conv_dw *c);
static size_t dti_conv_dw_scratch_bytes(const dti_conv_dw *c);
static void dti_conv_dw_run(const struct dti_isa_kernels *kernels, const dti_conv_dw *c,
                            int64_t begin, int64_t end, void *scratch);

/* ---- for conv_body.h */

/* tile[i * ld + v] (+)= sum over k, ld = 2 vectors. Tables are walked from their starts. */
typedef void dti_conv_tile_fn(float *tile, int64_t k, const float *a, const int32_t *a_off,
                              int64_t a_row, const float *b, const int32_t *b_off, bool add);
/* The same with one a for all rows and rows of b: a[k], b[b_off[k] + i * b_row + v]. */
typedef void dti_conv_plane_fn(float *tile, int64_t k, const float *a, const float *b,
                               const int32_t *b_off, int64_t b_row, bool add);

/* A finished tile: element (i, j) goes to element at + i * row + j * col of `to`; mask likewise. */
typedef struct dti_conv_out {
    void *to;
    const float *bias; /* of the first channel */
    const void *mask;
    dt_dtype type, mask_type;
    int64_t at, row, col;
    int64_t bias_row, bias_col; /* 0 or 1 */
    bool relu;
} dti_conv_out;
typedef void dti_conv_store_fn(const dti_conv_out *out, const float *tile, int64_t rows,
                               int64_t cols);

/* Rows and columns [from, to) of `channels` planes, with zeros outside of them. Columns are
 * distributed over `step` runs of `run` floats: column j to run j % step. */
typedef struct dti_conv_pad {
    int64_t channels, height, width; /* of the source, contiguous */
    int64_t from[2], to[2];
    int64_t plane, row, step, run; /* of the copy */
    int64_t given;                 /* channels of the source; the others are zeros */
    int64_t apart;                 /* words of pairs: of columns; 0: of channels */
    dt_dtype type;
} dti_conv_pad;
typedef void dti_conv_pad_fn(float *copy, const void *source, const dti_conv_pad *p);

/* dst[p * ld + i] = src[i * row + p], i < rows <= lanes; whole vectors are written. */
typedef void dti_conv_turn_fn(float *dst, int64_t ld, const float *src, int64_t row, int rows,
                              int64_t k);
/* sums[t] += sum over rows and columns of y * x[off[t]], t < count <= 4, x rows x_row apart. */
typedef void dti_conv_dot_fn(double *sums, const float *y, const float *x, const int32_t *off,
                             int count, int64_t rows, int64_t cols, int64_t x_row);

typedef struct dti_conv_kernels {
    int lanes, rows;                    /* of a tile, at most */
    dti_conv_tile_fn *const (*tile)[2]; /* [rows - 1][vectors - 1] */
    dti_conv_plane_fn *plane[2][2];     /* [4 rows instead of 1][vectors - 1] */
    dti_conv_store_fn *turned;          /* rows contiguous, or `row` apart */
    dti_conv_store_fn *straight;        /* columns contiguous, or `col` apart */
    dti_conv_pad_fn *pad;
    dti_conv_turn_fn *turn;
    dti_conv_dot_fn *dot;
} dti_conv_kernels;
