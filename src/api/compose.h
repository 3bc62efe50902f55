/* ---- Functions made of other ops
 *
 * They have gradients of any order. Formulas and gradients are those of the PyTorch function that
 * is named. A negative axis counts from the end. Errors (nil): an axis, shape or type that does not
 * fit. */

/* Selects elements: c == 0 ? b : a, as torch.where. All three broadcast. An element that is not
 * selected contributes nothing to the value, even if it is NaN. Its gradient is 0, but 0 times an
 * infinite slope before it is NaN. No gradient flows to c. */
DT_API dt_tensor dt_where(dt_tensor c, dt_tensor a, dt_tensor b);
/* Replaces elements by a number: c == 0 ? x : value. PyTorch: Tensor.masked_fill. */
DT_API dt_tensor dt_masked_fill(dt_tensor x, dt_tensor c, float value);
/* Zero the elements above (dt_tril) or below (dt_triu) a diagonal: torch.tril, torch.triu.
 * x: [..., R, C].
 * diagonal: 0 is the main one, 1 the next one above it, -1 the next one below. */
DT_API dt_tensor dt_tril(dt_tensor x, int64_t diagonal);
DT_API dt_tensor dt_triu(dt_tensor x, int64_t diagonal);
/* Shifts elements along an axis, those past the end to the start: torch.roll. */
DT_API dt_tensor dt_roll(dt_tensor x, int axis, int64_t shift);
/* Reverses an axis: torch.flip. */
DT_API dt_tensor dt_flip(dt_tensor x, int axis);
/* Pad one axis with elements of x, as dt_padding_mode says: F.pad, modes 'reflect', 'replicate' and
 * 'circular'. */
DT_API dt_tensor dt_pad_reflect(dt_tensor x, int axis, int64_t before, int64_t after);
DT_API dt_tensor dt_pad_replicate(dt_tensor x, int axis, int64_t before, int64_t after);
DT_API dt_tensor dt_pad_circular(dt_tensor x, int axis, int64_t before, int64_t after);

/* Compute the variance and the standard deviation: torch.var, torch.std.
 * axes, keep: as in dt_sum.
 * unbiased: divide by n - 1 instead of n.
 * dt_std is correct even if the variance overflows f32. Its gradient is 0 where it is 0.
 * Errors (nil): also fewer than 2 elements with `unbiased`. */
DT_API dt_tensor dt_var(dt_tensor x, dt_shape axes, bool unbiased, bool keep);
DT_API dt_tensor dt_std(dt_tensor x, dt_shape axes, bool unbiased, bool keep);
/* Computes log(sum of e^x) over axes, stably: torch.logsumexp. */
DT_API dt_tensor dt_logsumexp(dt_tensor x, dt_shape axes, bool keep);
/* Computes a norm over axes: torch.linalg.vector_norm.
 * p: 1 = sum |x|. 2 = sqrt(sum x^2), with gradient 0 at 0. INFINITY = max |x|.
 * Errors (nil): also another p. */
DT_API dt_tensor dt_vector_norm(dt_tensor x, float p, dt_shape axes, bool keep);
/* Multiplies the elements of an axis: torch.prod. */
DT_API dt_tensor dt_prod(dt_tensor x, int axis, bool keep);
/* Computes running sums along an axis, in log2(n) launches: torch.cumsum. */
DT_API dt_tensor dt_cumsum(dt_tensor x, int axis);
/* Find the index of the largest (smallest) element along an axis, of equal ones the first. NaN
 * counts as largest in dt_argmax, and as smallest in dt_argmin.
 * PyTorch: torch.argmax, torch.argmin.
 * axis: of 1 to 2^24 elements.
 * result: i32, without that axis. */
DT_API dt_tensor dt_argmax(dt_tensor x, int axis);
DT_API dt_tensor dt_argmin(dt_tensor x, int axis);

/* Picks elements along an axis: y[..., i] = x[..., index[..., i]]. PyTorch: torch.gather. See also
 * dt_index_select and dt_embedding.
 * x: f32, n elements along the axis, at most 2^24.
 * index: i32, m along the axis; other dimensions as x. One outside [0, n) gives 0.
 * It costs O(n m): keep n or m small. */
DT_API dt_tensor dt_gather(dt_tensor x, int axis, dt_tensor index);
/* Picks slices along an axis: y[.., i, ..] = x[.., index[i], ..]. PyTorch: torch.index_select.
 * x: f32; index: [M] i32.
 * An x without samples is looked up by dt_embedding: an index outside gives NaN. An x with samples
 * goes through dt_gather, at its cost: an index outside gives 0. */
DT_API dt_tensor dt_index_select(dt_tensor x, int axis, dt_tensor index);
/* Adds elements up by index: y[..., j] = sum of x[..., i] where index[..., i] = j. It costs what
 * dt_gather costs. PyTorch: torch.scatter_add to zeros.
 * index: i32, of x's shape.
 * size: elements of y along the axis, 0 to 2^24. */
DT_API dt_tensor dt_scatter_add(dt_tensor x, int axis, dt_tensor index, int64_t size);
/* Sort along an axis: dt_topk returns the first k elements, dt_sort all. Equal elements keep their
 * order. NaN is largest. PyTorch: torch.topk, and torch.sort (stable).
 * axis: of at most 2^24 elements.
 * largest, descending: largest first; else smallest first.
 * index: receives the positions in x, i32. May be NULL.
 *
 * Above 2^24 pairs to compare, a gradient keeps 2 log2(n) log2(k) bytes per element. */
DT_API dt_tensor dt_topk(dt_tensor x, int axis, int64_t k, bool largest, dt_tensor *index);
DT_API dt_tensor dt_sort(dt_tensor x, int axis, bool descending, dt_tensor *index);

/* Computes the outer product: torch.outer.
 * a: [N]; b: [M]; result: [N, M]. */
DT_API dt_tensor dt_outer(dt_tensor a, dt_tensor b);
/* Sums products by index letters, as torch.einsum: "qd,kd->qk" multiplies by a transposed matrix.
 * equation: each letter is a dimension of one sample. The sample axis has no letter and stays.
 * operands: 1 to 5, f32.
 *
 * Letters: those that the result lacks are summed. A letter twice in an operand takes the diagonal.
 * "..." stands for the other dimensions. A size of 1 broadcasts. Blanks are ignored. Without "->"
 * the result has the letters that occur once, in alphabetical order, capitals first.
 *
 * Operands are multiplied from the left.
 *
 * Errors (nil): an equation that does not fit the operands; a product of more than 5 dimensions.
 * Without operands: as dt_concat. */
DT_API dt_tensor dt_einsum(const char *equation, const dt_tensor *operands, int count);
/* Computes the cross product of vectors: torch.cross.
 * a, b: [..., 3]. */
DT_API dt_tensor dt_cross(dt_tensor a, dt_tensor b);
/* Applies a gated linear unit: a * sigmoid(b), where a and b are the halves of an axis.
 * PyTorch: F.glu. */
DT_API dt_tensor dt_glu(dt_tensor x, int axis);
/* Computes max(x, 0) + min(0, alpha (e^(x / alpha) - 1)): F.celu.
 * alpha: above 0. */
DT_API dt_tensor dt_celu(dt_tensor x, float alpha);
/* Computes x > 0 ? x : w x. PyTorch: F.prelu.
 * x: [C, ...]; w: [C], or [1] for an x of any shape. */
DT_API dt_tensor dt_prelu(dt_tensor x, dt_tensor w);
/* Compute the arc sine and the arc cosine, in radians: torch.asin, torch.acos.
 * x: in [-1, 1], else NaN. At -1 and 1 the slope is NaN, where PyTorch's is infinite. */
DT_API dt_tensor dt_asin(dt_tensor x);
DT_API dt_tensor dt_acos(dt_tensor x);
/* Computes the angle of (x, y), in (-pi, pi]. At the origin it is 0, with gradients 0. PyTorch:
 * torch.atan2.
 * y, x: finite, and so must be their quotients. The sign of a zero is ignored. */
DT_API dt_tensor dt_atan2(dt_tensor y, dt_tensor x);
/* Compute remainders: dt_fmod a - trunc(a / b) b, with a's sign, dt_remainder a - floor(a / b) b,
 * with b's. If |a / b| is below 2^22 and b is finite, the error is at most one rounding of a. An
 * infinite b gives NaN. PyTorch: torch.fmod, torch.remainder. */
DT_API dt_tensor dt_fmod(dt_tensor a, dt_tensor b);
DT_API dt_tensor dt_remainder(dt_tensor a, dt_tensor b);
/* Returns value's values; the gradient flows to x only: dt_straight_through(dt_round(x), x).
 * value, x: finite, and of one shape. */
DT_API dt_tensor dt_straight_through(dt_tensor value, dt_tensor x);
/* Normalises each channel of each sample: dt_group_norm with one channel per group.
 * PyTorch: F.instance_norm. */
DT_API dt_tensor dt_instance_norm(dt_tensor x, dt_tensor w, dt_tensor b, float eps);
/* Computes g v / |v|, with the norm |v| over all dimensions except the first. PyTorch: weight_norm
 * with dim=0.
 * v: [O, ...], of 2 dimensions or more; g: [O]. */
DT_API dt_tensor dt_weight_norm(dt_tensor v, dt_tensor g);

/* Drop whole channels, of x [C, ...], or whole samples, as dt_dropout drops elements. PyTorch:
 * Dropout1d, Dropout2d; torchvision: stochastic_depth. */
DT_API dt_tensor dt_dropout_channels(dt_tensor x, float p);
DT_API dt_tensor dt_drop_path(dt_tensor x, float p);
/* Drops elements and keeps the mean and variance of selu's output: F.alpha_dropout. */
DT_API dt_tensor dt_alpha_dropout(dt_tensor x, float p);

/* Rearrange [C r r, H, W] to [C, H r, W r] (dt_pixel_shuffle), and back.
 * PyTorch: F.pixel_shuffle, F.pixel_unshuffle. */
DT_API dt_tensor dt_pixel_shuffle(dt_tensor x, int64_t r);
DT_API dt_tensor dt_pixel_unshuffle(dt_tensor x, int64_t r);
/* Turn windows into columns, and add columns up into an image: F.unfold, F.fold.
 * x: finite. dt_unfold: [C, H, W]. dt_fold: [C kernel_h kernel_w, L].
 * kernel_h, kernel_w: 1 to 256.
 * desc: stride, padding and dilation.
 * result: [C kernel_h kernel_w, L] from dt_unfold, [C, height, width] from dt_fold. */
DT_API dt_tensor dt_unfold(dt_tensor x, int64_t kernel_h, int64_t kernel_w,
                           const dt_conv_desc *desc);
DT_API dt_tensor dt_fold(dt_tensor x, int64_t height, int64_t width, int64_t kernel_h,
                         int64_t kernel_w, const dt_conv_desc *desc);
/* Looks rows of a table up and sums or averages each bag of n of them: F.embedding_bag.
 * table: [rows, D]; index: [..., n] i32; result: [..., D].
 * mean: true = mean, false = sum. */
DT_API dt_tensor dt_embedding_bag(dt_tensor table, dt_tensor index, bool mean);
/* Does the same, but leaves out the entries that are padding_idx. That row gets no gradient. A bag
 * of nothing else is 0.
 * padding_idx: a row of the table; negative: from its end.
 * Errors (nil): also a table of more than 2^24 rows. */
DT_API dt_tensor dt_embedding_bag_padded(dt_tensor table, dt_tensor index, bool mean,
                                         int64_t padding_idx);
