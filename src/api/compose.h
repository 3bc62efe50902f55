/* ---- Functions made of the ops above ------------------------------------------------------------
 *
 * Each appends a few ops, so that gradients of any order follow. Formulas and gradients are
 * PyTorch's, of the function that is named. A negative axis counts from the end. Errors (nil): an
 * axis, a shape or a type that does not fit, naming op and shapes. */

/* c == 0 ? b : a, element by element; all broadcast. What is not chosen gets gradient 0, its NaN
 * does not reach the value; but 0 times the infinite slope of what made it is NaN, as in PyTorch. c
 * gets no gradient. torch.where. */
DT_API dt_tensor dt_where(dt_tensor c, dt_tensor a, dt_tensor b);
/* c == 0 ? x : value. Tensor.masked_fill. */
DT_API dt_tensor dt_masked_fill(dt_tensor x, dt_tensor c, float value);
/* x: [..., R, C]; 0 above, or below, the diagonal; 1 is the one above the main one. torch.tril. */
DT_API dt_tensor dt_tril(dt_tensor x, int64_t diagonal);
DT_API dt_tensor dt_triu(dt_tensor x, int64_t diagonal);
/* x moved by `shift` places along an axis, what leaves at the end enters in front. torch.roll. */
DT_API dt_tensor dt_roll(dt_tensor x, int axis, int64_t shift);
/* The last element of an axis first. torch.flip. */
DT_API dt_tensor dt_flip(dt_tensor x, int axis);
/* Pads one axis with elements of x: mirrored at the ends (before, after < size), the end element
 * repeated (size > 0), or taken from the other end (before, after <= size). F.pad, modes 'reflect',
 * 'replicate' and 'circular'. Errors: as dt_pad. */
DT_API dt_tensor dt_pad_reflect(dt_tensor x, int axis, int64_t before, int64_t after);
DT_API dt_tensor dt_pad_replicate(dt_tensor x, int axis, int64_t before, int64_t after);
DT_API dt_tensor dt_pad_circular(dt_tensor x, int axis, int64_t before, int64_t after);

/* The mean of squared distances from the mean, over axes as in dt_sum; with `unbiased` times n /
 * (n - 1). dt_std is its root: right also where the variance overflows float32. Its gradient is 0
 * where it is 0. Errors (nil): also fewer than 2 elements with `unbiased`. torch.var, torch.std. */
DT_API dt_tensor dt_var(dt_tensor x, dt_shape axes, bool unbiased, bool keep);
DT_API dt_tensor dt_std(dt_tensor x, dt_shape axes, bool unbiased, bool keep);
/* log sum e^x, stably. torch.logsumexp. */
DT_API dt_tensor dt_logsumexp(dt_tensor x, dt_shape axes, bool keep);
/* p = 1: sum |x|; 2: sqrt(sum x^2), gradient 0 at 0; INFINITY: max |x|. Errors (nil): also another
 * p. torch.linalg.vector_norm. */
DT_API dt_tensor dt_vector_norm(dt_tensor x, float p, dt_shape axes, bool keep);
/* The product over one axis, by halves; the gradient needs no division. torch.prod. */
DT_API dt_tensor dt_prod(dt_tensor x, int axis, bool keep);
/* y_i = x_0 + ... + x_i along an axis, added up by doubling: log2(n) launches. torch.cumsum. */
DT_API dt_tensor dt_cumsum(dt_tensor x, int axis);
/* The place of the largest (smallest) along an axis, of equals the first; NaN is largest (and
 * smallest). i32, without that axis; sizes up to 2^24. torch.argmax. */
DT_API dt_tensor dt_argmax(dt_tensor x, int axis);
DT_API dt_tensor dt_argmin(dt_tensor x, int axis);

/* y[..., i] = x[..., index[..., i]] along an axis: x's n by index's m elements are compared, so one
 * of the two is to be short. index: i32, other dimensions x's; one outside gives 0. x has at most
 * 2^24 elements along the axis. torch.take_along_dim, torch.gather. */
DT_API dt_tensor dt_gather(dt_tensor x, int axis, dt_tensor index);
/* y[.., i, ..] = x[.., index[i], ..] along an axis: the same places of all other axes. index: [M]
 * i32; f32. Rows of an x without samples are looked up, as by dt_embedding, an index outside giving
 * NaN; of one with samples they are compared, as by dt_gather, and it gives 0.
 * torch.index_select. */
DT_API dt_tensor dt_index_select(dt_tensor x, int axis, dt_tensor index);
/* The adjoint of dt_gather: y[..., j] = the sum of x[..., i] where index[..., i] = j, of `size`
 * elements along the axis. torch.scatter_add of zeros. */
DT_API dt_tensor dt_scatter_add(dt_tensor x, int axis, dt_tensor index, int64_t size);
/* The k largest (or smallest) along an axis, in order, of equals the first first; NaN is largest.
 * Axes have at most 2^24 elements. Above 2^24 pairs to compare it is a sorting network of about
 * log2(n) log2(k) steps; for a gradient each step keeps 2 bytes an element. *index, unless NULL:
 * their places, i32. dt_sort: all of them; from the smallest on, or `descending`. torch.topk;
 * torch.sort, stable. */
DT_API dt_tensor dt_topk(dt_tensor x, int axis, int64_t k, bool largest, dt_tensor *index);
DT_API dt_tensor dt_sort(dt_tensor x, int axis, bool descending, dt_tensor *index);

/* a: [N], b: [M]; result [N, M]. torch.outer. */
DT_API dt_tensor dt_outer(dt_tensor a, dt_tensor b);
/* Sums of products by letters, as torch.einsum: "qd,kd->qk" multiplies by a transposed matrix. A
 * letter is a dimension of one sample; samples are not named, and stay. Letters that the result
 * lacks are summed, one that stands twice in an operand takes the diagonal, "..." is what is not
 * named, a size of 1 goes with any. Without "->" the result has what stands once, by the alphabet,
 * capitals first. Spaces do not count. 1 to 5 operands, multiplied from the left: a pair is one
 * product of batches of matrices, or of elements where it sums nothing. f32. Errors (nil): NULL,
 * too many operands, a text that does not fit them, a product of more than 5 dimensions; of no
 * operand, as dt_concat. */
DT_API dt_tensor dt_einsum(const char *equation, const dt_tensor *operands, int count);
/* a, b: [..., 3]. torch.cross. */
DT_API dt_tensor dt_cross(dt_tensor a, dt_tensor b);
/* a * sigmoid(b) of the halves a, b of an axis. F.glu. */
DT_API dt_tensor dt_glu(dt_tensor x, int axis);
/* max(x, 0) + min(0, alpha (e^(x / alpha) - 1)). alpha > 0. F.celu. */
DT_API dt_tensor dt_celu(dt_tensor x, float alpha);
/* x > 0 ? x : w x. x: [C, ...]; w: [C], or [1] for any x. F.prelu. */
DT_API dt_tensor dt_prelu(dt_tensor x, dt_tensor w);
/* Arc sine and arc cosine of [-1, 1], in radians; NaN outside; at -1 and 1 the slope is NaN, where
 * PyTorch's is infinite. torch.asin, torch.acos. */
DT_API dt_tensor dt_asin(dt_tensor x);
DT_API dt_tensor dt_acos(dt_tensor x);
/* The angle of the point (x, y), in (-pi, pi]; 0, with gradients 0, at the origin. Both finite and
 * of a size whose quotients are; a zero's sign does not count. torch.atan2. */
DT_API dt_tensor dt_atan2(dt_tensor y, dt_tensor x);
/* a - trunc(a / b) b, of a's sign, and a - floor(a / b) b, of b's: within a rounding of a, so for
 * |a / b| below 2^22 and a finite b: of an infinite one NaN. torch.fmod, torch.remainder. */
DT_API dt_tensor dt_fmod(dt_tensor a, dt_tensor b);
DT_API dt_tensor dt_remainder(dt_tensor a, dt_tensor b);
/* value's values; the gradient flows to x alone: the straight-through estimator,
 * dt_straight_through(dt_round(x), x). Both finite and of one shape. */
DT_API dt_tensor dt_straight_through(dt_tensor value, dt_tensor x);
/* Each channel of each sample by itself: dt_group_norm of as many groups. F.instance_norm. */
DT_API dt_tensor dt_instance_norm(dt_tensor x, dt_tensor w, dt_tensor b, float eps);
/* g v / |v|, |v| over all dimensions but the first. v: [O, ...], g: [O]. weight_norm, dim 0. */
DT_API dt_tensor dt_weight_norm(dt_tensor v, dt_tensor g);

/* In training programs drop whole channels of x: [C, ...], or whole samples (DropPath, stochastic
 * depth), as dt_dropout drops elements. Dropout1d, Dropout2d; torchvision's stochastic_depth. */
DT_API dt_tensor dt_dropout_channels(dt_tensor x, float p);
DT_API dt_tensor dt_drop_path(dt_tensor x, float p);
/* Keeps mean and variance of what selu gives. F.alpha_dropout. */
DT_API dt_tensor dt_alpha_dropout(dt_tensor x, float p);

/* [C r r, H, W] to [C, H r, W r], and back. F.pixel_shuffle, F.pixel_unshuffle. */
DT_API dt_tensor dt_pixel_shuffle(dt_tensor x, int64_t r);
DT_API dt_tensor dt_pixel_unshuffle(dt_tensor x, int64_t r);
/* The windows of x: [C, H, W] as columns: [C kernel_h kernel_w, L], and columns added up where they
 * came from: [C, height, width]. A convolution by kernels of one 1 each, so x must be finite. desc:
 * stride, padding and dilation; NULL: {0}. Kernels of at most 256 x 256. F.unfold, F.fold. */
DT_API dt_tensor dt_unfold(dt_tensor x, int64_t kernel_h, int64_t kernel_w,
                           const dt_conv_desc *desc);
DT_API dt_tensor dt_fold(dt_tensor x, int64_t height, int64_t width, int64_t kernel_h,
                         int64_t kernel_w, const dt_conv_desc *desc);
/* The sum, or the mean, of the rows of each bag. table: [rows, D], index: [..., n]; result [...,
 * D]. F.embedding_bag. */
DT_API dt_tensor dt_embedding_bag(dt_tensor table, dt_tensor index, bool mean);
/* The same, but entries that are the row padding_idx (negative: from the end of the table) are left
 * out of sum and mean, and the row gets no gradient; a bag of nothing else is 0. Errors (nil): also
 * a row that the table has not, a table of more than 2^24 rows. */
DT_API dt_tensor dt_embedding_bag_padded(dt_tensor table, dt_tensor index, bool mean,
                                         int64_t padding_idx);
