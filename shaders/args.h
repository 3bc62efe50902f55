/* The arguments of every kernel: included by C (where a kernel gets a pointer to the struct) and by
 * GLSL (where the same fields are push constants, at most 124 bytes: after them comes the first
 * workgroup of a dispatch). Offsets, strides and counts are in elements, counted from the start
 * of the bound range. The includer defines DTI_U32, DTI_I32, DTI_F32 and DTI_U16S, two of
 * 16 bits in a word. Axes: at most 6 (the sample axis and DT_MAX_DIMS), innermost last; unused
 * leading axes have dim 1 and stride 0, so a walk may always go over all 6. */
#ifndef DTI_ARGS_H
#define DTI_ARGS_H

#define DTI_AXES 6

/* y[i] = f(x[i]) over strided views. n = product of dim. p0, p1: the op's parameters. far: the
 * device's, of walks over more than DTI_WALK_QUICK axes. */
#define DTI_ARGS_MAP1                                                                              \
    DTI_U32 n;                                                                                     \
    DTI_U32 dim[6];                                                                                \
    DTI_U32 x_stride[6];                                                                           \
    DTI_U32 y_stride[6];                                                                           \
    DTI_U32 x_offset;                                                                              \
    DTI_U32 y_offset;                                                                              \
    DTI_F32 p0;                                                                                    \
    DTI_F32 p1;                                                                                    \
    DTI_U32 far[5];

/* y[i] = f(a[i], b[i]); also dx = b * f'(a). */
#define DTI_ARGS_MAP2                                                                              \
    DTI_U32 n;                                                                                     \
    DTI_U32 dim[6];                                                                                \
    DTI_U32 a_stride[6];                                                                           \
    DTI_U32 b_stride[6];                                                                           \
    DTI_U32 y_stride[6];                                                                           \
    DTI_U32 a_offset;                                                                              \
    DTI_U32 b_offset;                                                                              \
    DTI_U32 y_offset;                                                                              \
    DTI_F32 p0;                                                                                    \
    DTI_F32 p1;

/* y[i] = scale * reduce_j x[i, j]: the first `kept` of the 6 axes are kept (product n), the others
 * are reduced (product r). y is contiguous. by: here and below, factors of what Vulkan's kernels
 * divide by (divide.c): of all axes. */
#define DTI_ARGS_REDUCE                                                                            \
    DTI_U32 n;                                                                                     \
    DTI_U32 r;                                                                                     \
    DTI_U32 kept;                                                                                  \
    DTI_U32 dim[6];                                                                                \
    DTI_U32 x_stride[6];                                                                           \
    DTI_U32 x_offset;                                                                              \
    DTI_U32 y_offset;                                                                              \
    DTI_F32 scale;                                                                                 \
    DTI_U32 by[6];

/* c[i, j, m, n] = sum_k a[i, j, m, k] * b[i, j, k, n] (+ bias[n]), i < batch0, j < batch1.
 * chunk: this number of k is added in one chain, and chunks in ascending order; 0: all k are.
 * apart: i is not a batch, but a part of this number of k. Each has a result of its own, which
 * PRODUCT_SUM adds; 0: i is a batch. */
#define DTI_ARGS_GEMM                                                                              \
    DTI_U32 m;                                                                                     \
    DTI_U32 n;                                                                                     \
    DTI_U32 k;                                                                                     \
    DTI_U32 a_row;                                                                                 \
    DTI_U32 a_col;                                                                                 \
    DTI_U32 b_row;                                                                                 \
    DTI_U32 b_col;                                                                                 \
    DTI_U32 c_row;                                                                                 \
    DTI_U32 batch0;                                                                                \
    DTI_U32 batch1;                                                                                \
    DTI_U32 a_batch0;                                                                              \
    DTI_U32 a_batch1;                                                                              \
    DTI_U32 b_batch0;                                                                              \
    DTI_U32 b_batch1;                                                                              \
    DTI_U32 c_batch0;                                                                              \
    DTI_U32 c_batch1;                                                                              \
    DTI_U32 a_offset;                                                                              \
    DTI_U32 b_offset;                                                                              \
    DTI_U32 c_offset;                                                                              \
    DTI_U32 bias_offset;                                                                           \
    DTI_U32 operand_offset;                                                                        \
    DTI_U32 chunk;                                                                                 \
    DTI_U32 apart;

/* c[i] = the sum of `parts` values of x, the first x[i] and each next one `part` on, in order
 * (+ bias[i % cols]), i < n. */
#define DTI_PRODUCT_CHAIN 64 /* parts that one chain adds, at most */
#define DTI_ARGS_PRODUCT_SUM                                                                       \
    DTI_U32 n;                                                                                     \
    DTI_U32 cols;                                                                                  \
    DTI_U32 parts;                                                                                 \
    DTI_U32 part;                                                                                  \
    DTI_U32 x_offset;                                                                              \
    DTI_U32 c_offset;                                                                              \
    DTI_U32 bias_offset;                                                                           \
    DTI_U32 operand_offset;

/* Rows of `cols` contiguous values: y = softmax(x), or with the grad kernel dx from (y, dy). */
#define DTI_ARGS_ROWS                                                                              \
    DTI_U32 rows;                                                                                  \
    DTI_U32 cols;                                                                                  \
    DTI_U32 x_offset;                                                                              \
    DTI_U32 y_offset;                                                                              \
    DTI_U32 dy_offset;

/* Cross-entropy and accuracy over rows of logits [rows, classes] with targets [rows] (i32).
 * s: class weights, or in the gradient the seed times the class weights: s[c * s_stride]. Of each
 * row the loss may keep DTI_XENT_KEPT words after the pairs. They are its maximum, the sum of
 * exp(x - maximum), and its target; t_offset of XENT_DX is where they begin. */
#define DTI_XENT_KEPT 3
#define DTI_ARGS_XENT                                                                              \
    DTI_U32 rows;                                                                                  \
    DTI_U32 classes;                                                                               \
    DTI_I32 ignore_index;                                                                          \
    DTI_F32 smoothing;                                                                             \
    DTI_U32 s_stride;                                                                              \
    DTI_U32 x_offset;                                                                              \
    DTI_U32 t_offset;                                                                              \
    DTI_U32 s_offset;                                                                              \
    DTI_U32 y_offset;

/* A loss term's pairs (sum, weight): chunks of values of a (and b) make one pair each; then pairs
 * are summed to one. */
#define DTI_ARGS_TERM                                                                              \
    DTI_U32 n;                                                                                     \
    DTI_U32 chunk;                                                                                 \
    DTI_U32 a_offset;                                                                              \
    DTI_U32 b_offset;                                                                              \
    DTI_U32 y_offset;

/* seed = coefficient / weight of loss `index` (see DTI_STEP_*); term = its pair (sum, weight). */
#define DTI_ARGS_SEED                                                                              \
    DTI_U32 index;                                                                                 \
    DTI_U32 term_offset;                                                                           \
    DTI_U32 y_offset;

/* y[i, :] = table[index[i], :], and its adjoint dtable[v, :] = sum over i with index[i] = v of
 * dy[i, :]. */
/* x's rows of [samples, heads, tokens, size] to a cache of `positions` rows a sample. */
#define DTI_ARGS_CACHE                                                                             \
    DTI_U32 samples;                                                                               \
    DTI_U32 heads;                                                                                 \
    DTI_U32 tokens;                                                                                \
    DTI_U32 size;                                                                                  \
    DTI_U32 positions;                                                                             \
    DTI_U32 x_offset;                                                                              \
    DTI_U32 x_sample;                                                                              \
    DTI_U32 x_head;                                                                                \
    DTI_U32 x_row;                                                                                 \
    DTI_U32 x_col;                                                                                 \
    DTI_U32 at_offset;                                                                             \
    DTI_U32 at_sample;                                                                             \
    DTI_U32 y_row;                                                                                 \
    DTI_U32 y_offset;

#define DTI_ARGS_GATHER                                                                            \
    DTI_U32 n;                                                                                     \
    DTI_U32 table_rows;                                                                            \
    DTI_U32 cols;                                                                                  \
    DTI_U32 table_offset;                                                                          \
    DTI_U32 index_offset;                                                                          \
    DTI_U32 y_offset;                                                                              \
    DTI_U32 by; /* of cols */

/* The gradient of a table with many indices (scatter.c). SORT: entries (key, place), `n` keys
 * and then `n` places, whose runs of `run` are sorted by key, become sorted runs of `made`; keys
 * above `keys` are taken for `keys`. spec0: 1 = the first pass, only of keys, by place. */
#define DTI_ARGS_SORT                                                                              \
    DTI_U32 n;                                                                                     \
    DTI_U32 keys;                                                                                  \
    DTI_U32 run;                                                                                   \
    DTI_U32 made;                                                                                  \
    DTI_U32 index_offset;

/* SEGMENTS: the inverse index of sorted entries: `n` places, then where each row's entries begin,
 * and the end of the last's. SCATTER_PARTS and SCATTER_ROWS: of rows with more than `chunk` entries
 * what each `chunk` of them sums to, and all rows. spec0: 1 = by fours. spec1 of SCATTER_ROWS: 1 =
 * rows without entries are left alone, which SCATTER_CLEAR, whose words begin with number y_offset,
 * has made 0. */
#define DTI_ARGS_SCATTER                                                                           \
    DTI_U32 n;                                                                                     \
    DTI_U32 table_rows;                                                                            \
    DTI_U32 cols;                                                                                  \
    DTI_U32 chunk;                                                                                 \
    DTI_U32 table_offset;                                                                          \
    DTI_U32 y_offset;

/* y = keep(i) ? x * scale : 0 with keep = philox(i) < threshold; i counts over the global batch:
 * first + i + first_row * row_elements where the tensor has a sample axis (row_elements > 0).
 * spec0: skip elements are left out after each run of `run`. A threshold of 0: y = the word as an
 * odd number between +-2^23, times scale, + offset. */
#define DTI_ARGS_DROPOUT                                                                           \
    DTI_U32 n;                                                                                     \
    DTI_U32 first;                                                                                 \
    DTI_U32 row_elements;                                                                          \
    DTI_U32 run;                                                                                   \
    DTI_U32 skip;                                                                                  \
    DTI_U32 threshold;                                                                             \
    DTI_F32 scale;                                                                                 \
    DTI_F32 offset;                                                                                \
    DTI_U32 stream;                                                                                \
    DTI_U32 x_offset;                                                                              \
    DTI_U32 y_offset;

/* g = (first micro-batch of the step ? 0 : g) + x */
#define DTI_ARGS_ACCUMULATE                                                                        \
    DTI_U32 n;                                                                                     \
    DTI_U32 x_offset;                                                                              \
    DTI_U32 y_offset;

/* The commit: `blocks` entries of the program's block table (see DTI_TABLE_*) from `first` on, 256
 * elements each. Offsets are in words of the state arena: counts of steps by parameter; shares by
 * parameter (0: none are made); pairs by entry, or words of rows by block. Of `moments` moments the
 * first one's element 0 lies at moment_fours, each next one stride_fours on. Both are in fours of
 * words and modulo 2^32. Where a store has a part of the moments, only the sum with a four of it is
 * a place. */
#define DTI_ARGS_COMMIT                                                                            \
    DTI_U32 blocks;                                                                                \
    DTI_U32 moments;                                                                               \
    DTI_U32 moment_fours;                                                                          \
    DTI_U32 stride_fours;                                                                          \
    DTI_U32 t_offset;                                                                              \
    DTI_U32 share_offset;                                                                          \
    DTI_U32 pair_offset;                                                                           \
    DTI_U32 first;                                                                                 \
    DTI_U32 terms;                                                                                 \
    DTI_U32 flags;

/* y[i] = x_part * x[i] + z_part * z[i], i < n */
#define DTI_ARGS_MIX                                                                               \
    DTI_U32 n;                                                                                     \
    DTI_F32 x_part;                                                                                \
    DTI_F32 z_part;

/* Adafactor's factors f of a parameter of matrices of rows by cols, one after the other; element i
 * has those of its row and its column, and the mean of its matrix, at row_offset, col_offset and
 * mean_offset. FACTORS: n words of f, of which `kept` lie in the state at moment_offset too, the
 * rest becomes 0; t_offset: the count of steps. DIVIDE: n elements of x. */
#define DTI_ARGS_FACTORS                                                                           \
    DTI_U32 n;                                                                                     \
    DTI_U32 kept;                                                                                  \
    DTI_U32 rows;                                                                                  \
    DTI_U32 cols;                                                                                  \
    DTI_U32 row_offset;                                                                            \
    DTI_U32 col_offset;                                                                            \
    DTI_U32 mean_offset;                                                                           \
    DTI_U32 moment_offset;                                                                         \
    DTI_U32 t_offset;                                                                              \
    DTI_U32 group;

/* Looks for the first NaN or infinity in x[0..n): status fault word = min(itself, code). */
#define DTI_ARGS_SCAN                                                                              \
    DTI_U32 n;                                                                                     \
    DTI_U32 x_offset;                                                                              \
    DTI_U32 code;

/* Convolution of x [n, groups * ci, ih, iw] with w [groups * co, ci, kh, kw] to y [n, groups * co,
 * oh, ow], all contiguous:
 *   y[b, g, o, p, q] = sum over c, r, s of w[g, o, c, r, s] *
 *       x[b, g, c, p * stride_h - pad_h + r * dil_h, q * stride_w - pad_w + s * dil_w]
 * with x = 0 outside. The three kernels have the same fields. CONV_DX writes x from y and w (its
 * adjoint; x is taken whole, so positions that no window covers become 0). CONV_DW writes partial
 * sums of w, [cuts, splits, groups * co, ci, kh, kw]. Part (j, i) is over rows [oh * j / cuts, oh *
 * (j + 1) / cuts) of y. Where y has one row it is over that range of columns. Its samples are [n *
 * i / splits, n * (i + 1) / splits). If there are more cuts than rows, each row has cuts / oh
 * pieces. z_offset: of the bias (of the written image's channels) or of the mask (laid out as what
 * is written). */
#define DTI_ARGS_CONV                                                                              \
    DTI_U32 n;                                                                                     \
    DTI_U32 groups;                                                                                \
    DTI_U32 ci;                                                                                    \
    DTI_U32 co;                                                                                    \
    DTI_U32 ih;                                                                                    \
    DTI_U32 iw;                                                                                    \
    DTI_U32 oh;                                                                                    \
    DTI_U32 ow;                                                                                    \
    DTI_U32 kh;                                                                                    \
    DTI_U32 kw;                                                                                    \
    DTI_U32 stride_h;                                                                              \
    DTI_U32 stride_w;                                                                              \
    DTI_U32 pad_h;                                                                                 \
    DTI_U32 pad_w;                                                                                 \
    DTI_U32 dil_h;                                                                                 \
    DTI_U32 dil_w;                                                                                 \
    DTI_U32 splits;                                                                                \
    DTI_U32 cuts;                                                                                  \
    DTI_U32 x_offset;                                                                              \
    DTI_U32 w_offset;                                                                              \
    DTI_U32 y_offset;                                                                              \
    DTI_U32 z_offset;

/* Pooling of n planes [ih, iw] to [oh, ow]. Window (p, q) covers rows p * stride_h - pad_h + [0,
 * kh) and columns likewise, cut to the plane. Adaptive: rows floor(p * ih / oh) up to
 * ceil((p + 1) * ih / oh). x: [n, ih, iw]; y: [n, oh, ow]; g: of MAX_POOL, laid out as x.
 * by: of ih, iw, oh, ow and the strides. */
#define DTI_ARGS_POOL                                                                              \
    DTI_U32 n;                                                                                     \
    DTI_U32 ih;                                                                                    \
    DTI_U32 iw;                                                                                    \
    DTI_U32 oh;                                                                                    \
    DTI_U32 ow;                                                                                    \
    DTI_U32 kh;                                                                                    \
    DTI_U32 kw;                                                                                    \
    DTI_U32 stride_h;                                                                              \
    DTI_U32 stride_w;                                                                              \
    DTI_U32 pad_h;                                                                                 \
    DTI_U32 pad_w;                                                                                 \
    DTI_U32 x_offset;                                                                              \
    DTI_U32 g_offset;                                                                              \
    DTI_U32 y_offset;                                                                              \
    DTI_U32 by[6];

/* Resizing of n planes [ih, iw] to [oh, ow] as PyTorch's interpolate does, in f32, scale = in /
 * out. Nearest: source row min(floor(p * scale_h), ih - 1). Bilinear (align_corners false): src =
 * max((p + 0.5) * scale_h - 0.5, 0), i = floor(src), weights 1 - (src - i) of row i and src - i of
 * row min(i + 1, ih - 1); columns likewise. The adjoint sums the same weights in order of (p,
 * q). by: of ih, iw, oh and ow. */
#define DTI_ARGS_RESIZE                                                                            \
    DTI_U32 n;                                                                                     \
    DTI_U32 ih;                                                                                    \
    DTI_U32 iw;                                                                                    \
    DTI_U32 oh;                                                                                    \
    DTI_U32 ow;                                                                                    \
    DTI_F32 scale_h;                                                                               \
    DTI_F32 scale_w;                                                                               \
    DTI_U32 x_offset;                                                                              \
    DTI_U32 y_offset;                                                                              \
    DTI_U32 by[4];

/* Normalisation of x, n contiguous elements. Element e has channel (e / spatial) % channels. Its
 * group is its channel where `batch` is 1 (all samples together), else e / cols: runs of cols
 * elements. cols: elements of one group in either case. stats: (mean, biased variance) of each
 * group; of RMS norm (0, mean of squares). w, b: by channel; s_offset: of stats; b_offset: of b,
 * and of its result. A group, or a channel, of more than DTI_NORM_CHUNK elements is summed in
 * `chunks`, each by a workgroup; their pairs lie from p_offset on, that of chunk i of group g at
 * g * chunks + i. Up to one chunk they are missing. Workgroup number i * groups + g has chunk i of
 * group g. by: of spatial, channels and cols. */
#define DTI_ARGS_NORM                                                                              \
    DTI_U32 n;                                                                                     \
    DTI_U32 groups;                                                                                \
    DTI_U32 cols;                                                                                  \
    DTI_U32 batch;                                                                                 \
    DTI_U32 channels;                                                                              \
    DTI_U32 spatial;                                                                               \
    DTI_F32 eps;                                                                                   \
    DTI_U32 chunks;                                                                                \
    DTI_U32 x_offset;                                                                              \
    DTI_U32 s_offset;                                                                              \
    DTI_U32 w_offset;                                                                              \
    DTI_U32 dy_offset;                                                                             \
    DTI_U32 y_offset;                                                                              \
    DTI_U32 b_offset;                                                                              \
    DTI_U32 p_offset;                                                                              \
    DTI_U32 by[3];

/* Running statistics: y[i] = keep * (first micro-batch of the step ? x[i] : y[i]) +
 * take * s[2 * i], i < n; then n2 elements of a second vector (n2 = n, or 0), with their own take,
 * from s + 1. */
#define DTI_ARGS_RUNNING                                                                           \
    DTI_U32 n;                                                                                     \
    DTI_U32 n2;                                                                                    \
    DTI_F32 keep;                                                                                  \
    DTI_F32 take;                                                                                  \
    DTI_F32 take2;                                                                                 \
    DTI_U32 x_offset;                                                                              \
    DTI_U32 x2_offset;                                                                             \
    DTI_U32 s_offset;                                                                              \
    DTI_U32 y_offset;                                                                              \
    DTI_U32 y2_offset;

/* y = the elements of a, b and c one after the other: up to a_end, b_end and n. Each is a row of
 * `cols` elements, or several that begin `stride` (modulo 2^32) apart. */
#define DTI_ARGS_JOIN                                                                              \
    DTI_U32 n;                                                                                     \
    DTI_U32 a_end;                                                                                 \
    DTI_U32 b_end;                                                                                 \
    DTI_U32 cols[3];                                                                               \
    DTI_U32 stride[3];                                                                             \
    DTI_U32 offset[3];                                                                             \
    DTI_U32 y_offset;

/* Attention of q [heads, tq, d], k [kv_heads, tk, d], v [kv_heads, tk, dv]: rows that begin *_row
 * apart, whose elements lie side by side; of heads and samples *_head and *_sample. Row t of the
 * result has the heads' dv elements, then log sum e^score of each head; sample after sample. The
 * mask is added, or hides (spec0). For the gradient rows of the heads' dy, and, where their value
 * begins, of these logarithms and sums of y dy; its result: rows (dq, dk, dv) of the heads where
 * tq = tk, else all dq, all dk, all dv. The weight (h, i, j) of sample s has element ((s +
 * first_row) heads + h) tq tk + i tk + j of the random stream. */
#define DTI_ARGS_ATTENTION                                                                         \
    DTI_U32 samples;                                                                               \
    DTI_U16S(heads, kv_heads)                                                                      \
    DTI_U32 tq;                                                                                    \
    DTI_U32 tk;                                                                                    \
    DTI_U32 d;                                                                                     \
    DTI_U32 dv;                                                                                    \
    DTI_F32 scale;                                                                                 \
    DTI_U32 window; /* 0 = all */                                                                  \
    DTI_U32 q_offset;                                                                              \
    DTI_U32 q_sample;                                                                              \
    DTI_U32 q_head;                                                                                \
    DTI_U32 q_row;                                                                                 \
    DTI_U32 k_offset;                                                                              \
    DTI_U32 k_sample;                                                                              \
    DTI_U32 k_head;                                                                                \
    DTI_U32 k_row;                                                                                 \
    DTI_U32 v_offset;                                                                              \
    DTI_U32 v_sample;                                                                              \
    DTI_U32 v_head;                                                                                \
    DTI_U32 v_row;                                                                                 \
    DTI_U32 mask_offset;                                                                           \
    DTI_U32 mask_sample;                                                                           \
    DTI_U32 mask_head;                                                                             \
    DTI_U32 mask_row;                                                                              \
    DTI_U32 mask_col;                                                                              \
    DTI_U32 dy_offset;                                                                             \
    DTI_U32 y_offset;                                                                              \
    DTI_U32 stream;                                                                                \
    DTI_U32 threshold;                                                                             \
    DTI_F32 keep_scale;                                                                            \
    DTI_U32 first_row;

/* A recurrence over `steps` of `hidden` units, whose state has `size`. What is read: x (rows of
 * gates' sums) or, by the gradient, a sample's results; then weights, rows `w_row` apart (turned,
 * and back as they are), and after them at e_offset the state's bias or the projection; then the
 * state before, or what flows to the results with it. *_sample: elements from a sample to the next.
 * flags: DTI_RECURRENCE_*. block: samples of a workgroup. */
#define DTI_ARGS_RECURRENCE                                                                        \
    DTI_U32 samples;                                                                               \
    DTI_U32 steps;                                                                                 \
    DTI_U32 hidden;                                                                                \
    DTI_U32 size;                                                                                  \
    DTI_U32 flags;                                                                                 \
    DTI_U32 block;                                                                                 \
    DTI_U32 x_offset;                                                                              \
    DTI_U32 x_sample;                                                                              \
    DTI_U32 w_offset;                                                                              \
    DTI_U32 w_row;                                                                                 \
    DTI_U32 e_offset;                                                                              \
    DTI_U32 s_offset;                                                                              \
    DTI_U32 s_sample;                                                                              \
    DTI_U32 y_offset;                                                                              \
    DTI_U32 y_sample;

/* CTC of `samples`: log-probabilities x [steps, classes], t: `labels` of a target, n: the numbers
 * of steps and labels (flag LENGTHS). The gradient reads what CTC kept in t's place and dy in n's.
 * *_sample: elements from a sample to the next. flags: DTI_CTC_*. */
#define DTI_ARGS_CTC                                                                               \
    DTI_U32 samples;                                                                               \
    DTI_U32 steps;                                                                                 \
    DTI_U32 classes;                                                                               \
    DTI_U32 labels;                                                                                \
    DTI_U32 blank;                                                                                 \
    DTI_U32 flags;                                                                                 \
    DTI_U32 x_offset;                                                                              \
    DTI_U32 x_sample;                                                                              \
    DTI_U32 t_offset;                                                                              \
    DTI_U32 t_sample;                                                                              \
    DTI_U32 n_offset;                                                                              \
    DTI_U32 n_sample;                                                                              \
    DTI_U32 y_offset;                                                                              \
    DTI_U32 y_sample;

/* All of them, by the names that C has: dti_args_map1, and member map1 of dti_args. */
#define DTI_ARGS_LIST(X)                                                                           \
    X(map1, DTI_ARGS_MAP1)                                                                         \
    X(map2, DTI_ARGS_MAP2)                                                                         \
    X(reduce, DTI_ARGS_REDUCE)                                                                     \
    X(gemm, DTI_ARGS_GEMM)                                                                         \
    X(product_sum, DTI_ARGS_PRODUCT_SUM)                                                           \
    X(rows, DTI_ARGS_ROWS)                                                                         \
    X(xent, DTI_ARGS_XENT)                                                                         \
    X(term, DTI_ARGS_TERM)                                                                         \
    X(seed, DTI_ARGS_SEED)                                                                         \
    X(cache, DTI_ARGS_CACHE)                                                                       \
    X(gather, DTI_ARGS_GATHER)                                                                     \
    X(sort, DTI_ARGS_SORT)                                                                         \
    X(scatter, DTI_ARGS_SCATTER)                                                                   \
    X(dropout, DTI_ARGS_DROPOUT)                                                                   \
    X(accumulate, DTI_ARGS_ACCUMULATE)                                                             \
    X(commit, DTI_ARGS_COMMIT)                                                                     \
    X(mix, DTI_ARGS_MIX)                                                                           \
    X(factors, DTI_ARGS_FACTORS)                                                                   \
    X(scan, DTI_ARGS_SCAN)                                                                         \
    X(conv, DTI_ARGS_CONV)                                                                         \
    X(pool, DTI_ARGS_POOL)                                                                         \
    X(resize, DTI_ARGS_RESIZE)                                                                     \
    X(norm, DTI_ARGS_NORM)                                                                         \
    X(running, DTI_ARGS_RUNNING)                                                                   \
    X(join, DTI_ARGS_JOIN)                                                                         \
    X(attention, DTI_ARGS_ATTENTION)                                                               \
    X(recurrence, DTI_ARGS_RECURRENCE)                                                             \
    X(ctc, DTI_ARGS_CTC)

/* COPY: 32-bit words as they are, or converted. FILL ignores x and writes p0 (as f32 or, for
 * FILL_I32, rounded). f32 -> i32 truncates toward zero and saturates; NaN gives 0. */
#define DTI_COPY_WORD 0
#define DTI_COPY_I32_F32 1
#define DTI_COPY_F32_I32 2
#define DTI_COPY_FILL_F32 3
#define DTI_COPY_FILL_I32 4
#define DTI_COPY_IOTA_F32 5 /* y[i] = i, the linear index */

/* Walks of 2 to this number of axes divide by factors on Vulkan, MAP1's of any: see
 * lib/index.glsl. */
#define DTI_WALK_QUICK 4u

/* What a binding holds: two bits of the constant TYPES for each (lib/storage.glsl). */
#define DTI_STORED_WORD 0u
#define DTI_STORED_BF16 1u
#define DTI_STORED_F16 2u
#define DTI_STORED_COUNT 3

/* Elementwise kernels, spec2: an invocation has four elements that follow each other along the last
 * axis, in memory too; or operand a (x) or b is one element for all of them; the last invocation
 * may have fewer. */
#define DTI_FOURS 1u
#define DTI_FOURS_OF_ONE_A 2u
#define DTI_FOURS_OF_ONE_B 4u
#define DTI_FOURS_AND_REST 8u

/* ACCUMULATE_LONG, spec0: whether it sets a sum or adds to it. */
#define DTI_ACCUMULATE_BY_STEP 0u /* sets it in the step's first micro-batch */
#define DTI_ACCUMULATE_ADD 1u

/* Epilogues, spec1 of GEMM, PRODUCT_SUM, CONV, CONV_DX, NORM, MAP2 and MAX_POOL_GRAD: what happens
 * to a result before it is written. RELU: x < 0 ? 0 : x, after the bias. RELU_GRAD: operand > 0 ?
 * x : 0, without a bias. ADD: x + operand, after the bias; only of GEMM and PRODUCT_SUM. The
 * operand is binding 3 (of MAX_POOL_GRAD: x, binding 0), laid out as the result. */
#define DTI_EPILOGUE_NONE 0
#define DTI_EPILOGUE_RELU 1
#define DTI_EPILOGUE_RELU_GRAD 2
#define DTI_EPILOGUE_ADD 3

/* GEMM and PRODUCT_SUM, spec0: where the bias is: in binding 3; or in 1, as 3 is an operand. */
#define DTI_BIAS 1
#define DTI_BIAS_BESIDE 2

/* GEMM in tiles, spec3: which operands are contiguous along k, and which are loaded by fours along
 * the contiguous axis. Also whether C is stored so, and whether a workgroup makes several
 * chunks. */
#define DTI_GEMM_LIES_A_K 1u
#define DTI_GEMM_LIES_B_K 2u
#define DTI_GEMM_LIES_A_FOURS 4u
#define DTI_GEMM_LIES_B_FOURS 8u
#define DTI_GEMM_LIES_C_FOURS 16u
#define DTI_GEMM_IN_CHUNKS 32u
#define DTI_GEMM_WHOLE 64u /* each sum is of whole steps of k */

/* CONV, CONV_DX and CONV_DW in tiles, spec3: whether four neighbours are loaded and stored at once.
 * These are weights (of CONV_DW: y) along the summed axis, and results. */
#define DTI_CONV_LIES_A_FOURS 1u
#define DTI_CONV_LIES_C_FOURS 2u
#define DTI_CONV_ADJOINT 4u /* CONV_DX */
#define DTI_CONV_WHOLE 8u   /* each sum is of whole steps of k */
#define DTI_CONV_AHEAD 32u  /* k that a workgroup places at once */
/* Spec2 in registers: the taps of a row that share loads, or 0; and this. */
#define DTI_CONV_SLIDE_ADJOINT 8u /* CONV_DX */

/* AVG_POOL, spec0. PyTorch's count_include_pad: divide by the window's size cut to the padded plane
 * (rows up to ih + pad_h); EXCLUDE: by the elements of the plane in it. */
#define DTI_POOL_INCLUDE_PAD 0
#define DTI_POOL_EXCLUDE_PAD 1
#define DTI_POOL_ADAPTIVE 2

/* NORM, spec0: y = (x - mean) / sqrt(var + eps), then ... */
#define DTI_NORM_PLAIN 0
#define DTI_NORM_SCALE 1  /* * w[channel] */
#define DTI_NORM_AFFINE 2 /* * w[channel] + b[channel]; b lies `channels` elements after w */

/* Elements that a workgroup sums: a multiple of 4. */
#define DTI_NORM_CHUNK 4096

/* ATTENTION and ATTENTION_GRAD, spec0; spec1 and spec2: d and dv, in blocks of
 * DTI_ATTENTION_BLOCK. */
#define DTI_ATTENTION_CAUSAL 1u
#define DTI_ATTENTION_ADD 2u  /* the mask is added */
#define DTI_ATTENTION_KEEP 4u /* the mask hides where it is 0 */
#define DTI_ATTENTION_ALIBI 8u
#define DTI_ATTENTION_DROPOUT 16u
#define DTI_ATTENTION_SAMPLES 32u /* of the global batch: the random stream counts them */
#define DTI_ATTENTION_FOURS 64u   /* rows of q, k, v and dy are read by fours */
#define DTI_ATTENTION_BLOCK 32u
#define DTI_ATTENTION_BLOCKS 128u /* that are added up before sums are stored */
#define DTI_ATTENTION_LANES 64u   /* that sum a block */
/* spec3: what ATTENTION_GRAD makes, by a workgroup of a block of queries, or of keys. 0:
 * ATTENTION. */
#define DTI_ATTENTION_DQ 1u
#define DTI_ATTENTION_DK 2u
#define DTI_ATTENTION_DV 4u
/* The logarithm of a sum of none. */
#define DTI_ATTENTION_NONE 1e30

/* RECURRENCE and RECURRENCE_GRAD, spec0. */
#define DTI_RECURRENCE_LSTM 0u
#define DTI_RECURRENCE_GRU 1u
#define DTI_RECURRENCE_TANH 2u
#define DTI_RECURRENCE_RELU 3u
#define DTI_RECURRENCE_SAMPLES 4u /* of a workgroup, at most */
/* And flags: the last step comes first; the state ends with how many steps there are; LSTM's state
 * is projected. Of the gradient: something flows to the last state, and cell; the state before has
 * a gradient. */
#define DTI_RECURRENCE_REVERSE 1u
#define DTI_RECURRENCE_LENGTHS 2u
#define DTI_RECURRENCE_PROJECTED 4u
#define DTI_RECURRENCE_DH 8u
#define DTI_RECURRENCE_DC 16u
#define DTI_RECURRENCE_STATE 32u

/* CTC and CTC_GRAD, flags: an impossible target's loss is 0; lengths are bound. */
#define DTI_CTC_ZERO 1u
#define DTI_CTC_LENGTHS 2u
/* The logarithm of 0 in sums, which keeps them finite; what lies below IMPOSSIBLE has come of
 * it. */
#define DTI_CTC_NONE 1e30
#define DTI_CTC_IMPOSSIBLE 1e29
/* Kept of a sample: these, then its labels. Then a row of cells for each step from the first step
 * on, then another from the last step back. */
#define DTI_CTC_LOSS 0u
#define DTI_CTC_COUNT 1u /* of labels in use */
#define DTI_CTC_ALL 2u   /* log of the target's probability */
#define DTI_CTC_STEPS 3u /* in use */
#define DTI_CTC_HEAD 4u

/* NORM_GROUP, spec2. Without WHOLE the pairs of chunks are joined. */
#define DTI_NORM_GROUP_WHOLE 1 /* a workgroup has a group, and makes its statistics as well */
#define DTI_NORM_GROUP_RMS 2

/* Kernels that go over rows, or groups, spec3. What an invocation keeps in registers (HELD units,
 * fours or elements) depends on a row's size: the logarithm of its units, rounded up, from bit
 * DTI_LIES_SIZE on. The kernel does not ask, since a driver may run both sides of what it cannot
 * decide. */
#define DTI_LIES_SIZE 8
#define DTI_LIES_HELD 2u
/* SOFTMAX, SOFTMAX_GRAD, XENT and XENT_GRAD: rows are read by fours; what is written does not lie
 * so (XENT_GRAD); there is a weight for each class, and they do (likewise). */
#define DTI_ROW_FOURS 1u
#define DTI_ROW_APART 4u
#define DTI_ROW_SEED_FOURS 8u
/* Of normalisation: x lies by fours where statistics are made; all that is read and written. */
#define DTI_NORM_FOURS_X 1u
#define DTI_NORM_FOURS 2u

/* NORM_FINISH, spec0: of NORM_STATS or NORM_DW. */
#define DTI_NORM_FINISH_STATS 0
#define DTI_NORM_FINISH_DW 1

/* REDUCE and its like, spec2: what is reduced is one line, x_stride[5] apart; from these bits on
 * which axes are kept and longer than 1, and which are reduced. */
#define DTI_REDUCE_LINE 1u
#define DTI_REDUCE_KEPT 8
#define DTI_REDUCE_GONE 16

#define DTI_R_SUM 0
#define DTI_R_MAX 1
#define DTI_R_MIN 2

#define DTI_XENT_LOSS 0     /* pair = (loss of the row * its weight, its weight) */
#define DTI_XENT_WEIGHT 1   /* pair = (0, weight): does not read logits */
#define DTI_XENT_ACCURACY 2 /* pair = (argmax == target, target is not ignored) */
#define DTI_XENT_NLL 3      /* as LOSS, of logits that are log-probabilities: no softmax */

#define DTI_TERM_SUM 0      /* sum of a, count */
#define DTI_TERM_SQUARE 1   /* sum of (a-b)^2, count */
#define DTI_TERM_WEIGHTED 2 /* sum of a*b, sum of b */
#define DTI_TERM_WEIGHT 3   /* 0, sum of b */

/* ---- The step block: what changes from step to step, as 32-bit words of one uniform buffer.
 * Word numbers; DTI_STEP_GROUP(g) is the first of a parameter group's DTI_GROUP_WORDS (8) words,
 * which lib/optim_body.h names. */
#define DTI_STEP_SEED_LO 0
#define DTI_STEP_SEED_HI 1
#define DTI_STEP_NUMBER 2      /* the random stream's step number */
#define DTI_STEP_FIRST_ROW 3   /* the first sample's row in the global batch */
#define DTI_STEP_FLAGS 4       /* DTI_FLAG_* */
#define DTI_STEP_CLIP_NORM 5   /* f32; 0 = off */
#define DTI_STEP_CLIP_VALUE 6  /* f32; 0 = off */
#define DTI_STEP_PROVEN 7      /* f32: up to this norm the update is finite; -1 = unknown */
#define DTI_STEP_COEFFICIENT 8 /* f32[8] of each loss */
#define DTI_STEP_WEIGHT 16     /* f32[8]: the global batch's weight; 0 = this batch's own */
#define DTI_STEP_GROUP(g) (24 + 8 * (g))
#define DTI_STEP_AVERAGE 88 /* f32: how far the average goes to the weights */
#define DTI_STEP_WORDS 92
#define DTI_FLAG_FIRST 1u  /* the first micro-batch: gradients are set, not added */
#define DTI_FLAG_BEHIND 2u /* started before the host knew how the step before it ended */
#define DTI_FLAG_WHOLE 4u  /* what words say of rows (DTI_ROW_BIT) does not hold: all count */

/* ---- The status buffer, written by the device, read by the host after the last segment. 32-bit
 * words; term i is the pair of f32 at DTI_STATUS_TERM(i), its own 256-byte line, so it can be
 * bound. */
#define DTI_STATUS_FAULT 0 /* code of the first fault, 0xffffffff = none (only SCAN writes it) */
/* 1 = something is not finite, or would be; DTI_ABORT_BEHIND = the step before this one, after
 * which it was started, was aborted. Nothing was written. */
#define DTI_STATUS_ABORT 1
#define DTI_ABORT_BEHIND 2u
#define DTI_STATUS_NORM 2               /* f32: 2-norm of the whole gradient before clipping */
#define DTI_STATUS_BAD 3                /* as DTI_CONTROL_BAD */
#define DTI_STATUS_LARGEST(i) (4 + (i)) /* as DTI_CONTROL_LARGEST */
#define DTI_STATUS_TERM(i) (64 + 64 * (i))
#define DTI_STATUS_TERMS 16 /* 8 losses, then 8 metrics */
#define DTI_STATUS_WORDS (64 + 64 * DTI_STATUS_TERMS)

/* ---- The state arena begins with control words, set by CLIP_FINISH, read by the commit. */
#define DTI_CONTROL_ABORT 0 /* u32 */
#define DTI_CONTROL_CLIP 1  /* f32: gradients are multiplied by this, then clamped to clip_value */
#define DTI_CONTROL_CHECK 2 /* 1 = the dry pass must look */
/* What the dry pass found: the least 8 * parameter + DTI_BAD_*; DTI_BAD_NONE: nothing. */
#define DTI_CONTROL_BAD 3
/* Bits of the largest magnitude after the update: of trained weights (i = 0, set by the update) and
 * of each moment (set by the dry pass). They are in the order of the values, NaN and infinity above
 * all numbers. There are DTI_OPTIM_VALUES (lib/optim_body.h). */
#define DTI_CONTROL_LARGEST(i) (4 + (i))
#define DTI_CONTROL_WORDS 256

#define DTI_BAD_BEFORE 0 /* a weight or moment is not finite already */
#define DTI_BAD_MOMENT 1 /* and up: the first moment, the second ... */
#define DTI_BAD_WEIGHT 6
#define DTI_BAD_FINE 7 /* of one element: it is finite */
#define DTI_BAD_NONE 0xffffffffu

/* ---- A program's block table: 4 words for each block of 256 elements that it updates. */
#define DTI_TABLE_BLOCK 0            /* the block's number in the parameter and gradient arenas */
#define DTI_TABLE_GROUP 1            /* low 8 bits; above them DTI_TABLE_COLS_OF */
#define DTI_TABLE_PARAM 2            /* index of t, and five flags */
#define DTI_TABLE_FIRST 0x80000000u  /* the parameter's first block: t is counted here */
#define DTI_TABLE_BUFFER 0x40000000u /* not trained: takes the value that lies as its gradient */
#define DTI_TABLE_PLAIN 0x20000000u  /* the optimizer treats it element by element */
#define DTI_TABLE_APART 0x10000000u  /* it has launches of its own, and no others change it */
#define DTI_TABLE_SPARSE 0x08000000u /* a word says which rows have a gradient: DTI_ROW_BIT */
#define DTI_TABLE_INDEX 0x07ffffffu
#define DTI_TABLE_USED 3 /* low 9 bits; above them DTI_TABLE_PLACE_OF */
#define DTI_TABLE_WORDS 4
#define DTI_TABLE_GROUP_OF(word) ((word)&0xffu)
/* Elements in use, 1..256; the rest is padding and stays 0. */
#define DTI_TABLE_USED_OF(word) ((word)&0x1ffu)
/* Elements of a row, where rows without a gradient are left alone; else 0. */
#define DTI_TABLE_COLS_OF(word) ((word) >> 8)
#define DTI_TABLE_COLS_MAX 16384 /* each of its blocks looks at a row's whole gradient */
/* Where in its row the block begins. */
#define DTI_TABLE_PLACE_OF(word) ((word) >> 9)
#define DTI_BLOCK 256
/* For gradients of which only touched rows are written. The state has a word for each block of the
 * arena, from pair_offset on. Row r of those that lie in the block, counted from the one that it
 * begins in, has this bit; where it is 0, so are the row's elements there. */
#define DTI_ROW_BIT(r) (1u << ((r)&31u))

/* COMMIT flags. Of CLIP_FINISH: losses must be finite (GRAD_NORM was run when blocks > 0); the
 * factor of gradients is negative. Of OPTIM: the dry pass, which computes the same and writes only
 * DTI_CONTROL_BAD. Of OPTIM_TICK: nothing is counted, only reported. Of OPTIM_PAIRS: the direction
 * of one parameter is made there; of it and OPTIM: it is given, in place of gradients. Of OPTIM:
 * nobody asks how large weights are. */
#define DTI_COMMIT_LOSSES 1u
#define DTI_COMMIT_DRY 2u
#define DTI_COMMIT_TELL 4u
#define DTI_COMMIT_MAXIMIZE 8u
#define DTI_COMMIT_DIRECTION 16u
#define DTI_COMMIT_DIRECTED 32u
#define DTI_COMMIT_UNTOLD 64u

/* OPTIM, spec1: of some parameters rows without a gradient are left alone; and of some a word says
 * which rows may have one. */
#define DTI_OPTIM_ROW_SPARSE 1u
#define DTI_OPTIM_SPARSE 2u
#endif
