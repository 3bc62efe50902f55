/* Pooling and resizing: maps between planes of two sizes. The mean, the resampling and their
 * adjoints are linear, so each is the other's gradient. The maximum is max_pool2d_at(x, x). Which
 * element is largest depends on x, and the result is linear in g. No index is stored: the adjoint
 * looks for the largest again.
 *
 * attr.i: the window (op/attributes.h); attr.dim[0..1]: the height and width of the larger side
 * where an input does not have it, or those that were requested. */

/* ---- Shapes */

static bool dti_plane_fits(dti_build *b) {
    if (!dti_build_real(b))
        return false;
    if (b->in[0]->shape.rank != 3)
        return dti_build_fail(b, "the image must be [channels, height, width]%s",
                              dti_image_rank_hint(b->in[0]->shape.rank, 3));
    b->out.shape = b->in[0]->shape;
    return true;
}

static bool dti_pooling_attr_fits(dti_build *b) {
    const int32_t *i = b->out.attr.i;
    for (int axis = 0; axis < 2; axis++) {
        int32_t kernel = i[DTI_POOL_KERNEL + axis], stride = i[DTI_POOL_STRIDE + axis];
        int32_t padding = i[DTI_POOL_PADDING + axis];
        if (kernel < 1 || stride < 1)
            return dti_build_fail(b, "kernel {%d, %d}, stride {%d, %d}: each must be at least 1",
                                  i[0], i[1], i[2], i[3]);
        if (padding < 0 || padding > kernel / 2)
            return dti_build_fail(b,
                                  "padding {%d, %d}: it must be at least 0 and at most half of "
                                  "the kernel {%d, %d}",
                                  i[4], i[5], i[0], i[1]);
    }
    return true;
}

/* Windows along one axis; 0 where none fits. With ceil_mode none starts in the padding at the
 * end. */
static int64_t dti_pooling_windows(const dti_attr *attr, int axis, int64_t in) {
    int64_t kernel = attr->i[DTI_POOL_KERNEL + axis], stride = attr->i[DTI_POOL_STRIDE + axis];
    int64_t padding = attr->i[DTI_POOL_PADDING + axis], room = in + 2 * padding - kernel;
    if (!attr->i[DTI_POOL_CEIL])
        return room < 0 ? 0 : room / stride + 1;
    if (room + stride - 1 < 0)
        return 0;
    int64_t windows = (room + stride - 1) / stride + 1;
    return (windows - 1) * stride >= in + padding ? windows - 1 : windows;
}

/* The size of the pooled x. */
static bool dti_pooling_sizes(dti_build *b, const dt_shape *x, dt_shape *y) {
    const dti_attr *attr = &b->out.attr;
    *y = *x;
    if (!dti_pooling_attr_fits(b))
        return false;
    for (int axis = 0; axis < 2; axis++) {
        if (x->dim[1 + axis] < 1)
            return dti_build_fail(b, "the image has no elements");
        y->dim[1 + axis] = dti_pooling_windows(attr, axis, x->dim[1 + axis]);
        if (y->dim[1 + axis] < 1) {
            return dti_build_fail(b, "the kernel {%d, %d} is larger than the padded image%s",
                                  attr->i[DTI_POOL_KERNEL], attr->i[DTI_POOL_KERNEL + 1],
                                  dti_image_hint(*x, 0));
        }
    }
    return true;
}

static bool dti_max_pool2d_shape(dti_build *b) {
    return dti_plane_fits(b) && dti_pooling_sizes(b, &b->in[0]->shape, &b->out.shape);
}

static bool dti_max_pool2d_at_shape(dti_build *b) {
    if (!dti_max_pool2d_shape(b))
        return false;
    bool same =
        dti_shape_equal(b->in[0]->shape, b->in[1]->shape) && b->in[0]->samples == b->in[1]->samples;
    return same || dti_build_fail(b, "x and g differ in shape");
}

static bool dti_max_pool2d_grad_shape(dti_build *b) {
    dt_shape y;
    if (!dti_plane_fits(b) || !dti_pooling_sizes(b, &b->in[0]->shape, &y))
        return false;
    bool same = dti_shape_equal(y, b->in[1]->shape) && b->in[0]->samples == b->in[1]->samples;
    return same || dti_build_fail(b, "dy must have the shape of the result of x");
}

static bool dti_size_fits(dti_build *b, const int64_t *size) {
    for (int axis = 0; axis < 2; axis++) {
        if (size[axis] < 1 || size[axis] > INT32_MAX)
            return dti_build_fail(b, "a size of %lld x %lld; both must be at least 1",
                                  (long long)size[0], (long long)size[1]);
    }
    return true;
}

static bool dti_avg_pool2d_shape(dti_build *b) {
    if (!dti_plane_fits(b))
        return false;
    if (b->out.attr.i[DTI_POOL_MODE] != DTI_POOL_ADAPTIVE)
        return dti_pooling_sizes(b, &b->in[0]->shape, &b->out.shape);
    const dt_shape *x = &b->in[0]->shape;
    if (!dti_size_fits(b, b->out.attr.dim) || !dti_size_fits(b, x->dim + 1))
        return false;
    b->out.shape.dim[1] = b->out.attr.dim[0];
    b->out.shape.dim[2] = b->out.attr.dim[1];
    return true;
}

static bool dti_avg_pool2d_grad_shape(dti_build *b) {
    if (!dti_plane_fits(b) || !dti_size_fits(b, b->out.attr.dim))
        return false;
    dt_shape x = b->in[0]->shape, y;
    x.dim[1] = b->out.attr.dim[0];
    x.dim[2] = b->out.attr.dim[1];
    b->out.shape = x;
    if (b->out.attr.i[DTI_POOL_MODE] == DTI_POOL_ADAPTIVE)
        return true;
    if (!dti_pooling_sizes(b, &x, &y))
        return false;
    return dti_shape_equal(y, b->in[0]->shape) ||
           dti_build_fail(b, "dy must have the shape of the result of x");
}

/* ---- Gradients */

static void dti_max_pool2d_grad_rule(dti_grad *g) {
    g->dx[0] = dti_append2(DTI_OP_MAX_POOL2D_GRAD, g->in[0], g->dy, &g->node.attr);
}

/* Of max_pool2d_at and its adjoint: each is the other's. */
static void dti_max_pool2d_at_grad(dti_grad *g) {
    const bool at = g->node.op == DTI_OP_MAX_POOL2D_AT;
    if (g->wanted[1])
        g->dx[1] = dti_append2(at ? DTI_OP_MAX_POOL2D_GRAD : DTI_OP_MAX_POOL2D_AT, g->in[0], g->dy,
                               &g->node.attr);
}

/* The mean, resampling and their adjoints, which follow them in the table, likewise. With the size
 * of the row's input: on the pooled side it is the requested size of adaptive pooling. */
static void dti_plane_grad(dti_grad *g) {
    const bool forward = g->node.op == DTI_OP_AVG_POOL2D || g->node.op == DTI_OP_RESIZE;
    const dt_shape s = dti_node_of(g->in[0])->shape;
    dti_attr attr = g->node.attr;
    attr.dim[0] = s.dim[1];
    attr.dim[1] = s.dim[2];
    g->dx[0] = dti_append1((dti_op)(forward ? g->node.op + 1 : g->node.op - 1), g->dy, &attr);
}

/* ---- Launches */

/* (x, g) -> y, or (x, dy) -> x; of the mean x -> y, or dy -> x. */
static void dti_pool_emit(dti_emit *e) {
    const dti_kernel_id kernel = (dti_kernel_id)dti_op_info_of(e->node->op)->selector;
    const bool max = kernel == DTI_K_MAX_POOL || kernel == DTI_K_MAX_POOL_GRAD;
    const bool adjoint = kernel == DTI_K_MAX_POOL_GRAD || kernel == DTI_K_AVG_POOL_GRAD;
    const int32_t *i = e->node->attr.i;
    const dti_view in = dti_emit_dense_in(e, 0), out = e->out;
    const dti_view last = e->node->count > 1 ? dti_emit_dense_in(e, 1) : in;
    const dti_view *x = adjoint && !max ? &out : &in, *y = adjoint ? &last : &out;
    const dti_args_pool a = {.n = (uint32_t)(x->dim[0] * x->dim[3]),
                             .ih = (uint32_t)x->dim[4],
                             .iw = (uint32_t)x->dim[5],
                             .oh = (uint32_t)y->dim[4],
                             .ow = (uint32_t)y->dim[5],
                             .kh = (uint32_t)i[DTI_POOL_KERNEL],
                             .kw = (uint32_t)i[DTI_POOL_KERNEL + 1],
                             .stride_h = (uint32_t)i[DTI_POOL_STRIDE],
                             .stride_w = (uint32_t)i[DTI_POOL_STRIDE + 1],
                             .pad_h = (uint32_t)i[DTI_POOL_PADDING],
                             .pad_w = (uint32_t)i[DTI_POOL_PADDING + 1],
                             .x_offset = (uint32_t)x->offset,
                             .y_offset = (uint32_t)y->offset,
                             .g_offset = (uint32_t)(!max      ? 0
                                                    : adjoint ? out.offset
                                                              : last.offset)};
    DTI_EMIT(e, kernel, (uint64_t)dti_view_elements(&out), a, in.value,
             max ? last.value : out.value, max ? out.value : DTI_UNBOUND)
        ->spec[0] = (uint32_t)i[DTI_POOL_MODE]; /* of the mean */
}

/* ---- Constructors */

static dti_attr dti_pooling_attr(const dt_pool_desc *d, int mode) {
    if (!d)
        return (dti_attr){0}; /* a kernel of 0 x 0: the row's check reports it */
    bool own = d->stride[0] || d->stride[1];
    return (dti_attr){.i = {d->kernel[0], d->kernel[1], own ? d->stride[0] : d->kernel[0],
                            own ? d->stride[1] : d->kernel[1], d->padding[0], d->padding[1], mode,
                            d->ceil_mode}};
}

DT_API dt_tensor dt_max_pool2d(dt_tensor x, const dt_pool_desc *desc) {
    dti_attr attr = dti_pooling_attr(desc, 0);
    return dti_append1(DTI_OP_MAX_POOL2D, x, &attr);
}

DT_API dt_tensor dt_avg_pool2d(dt_tensor x, const dt_pool_desc *desc) {
    dti_attr attr = dti_pooling_attr(desc, desc && desc->exclude_pad ? DTI_POOL_EXCLUDE_PAD
                                                                     : DTI_POOL_INCLUDE_PAD);
    return dti_append1(DTI_OP_AVG_POOL2D, x, &attr);
}

DT_API dt_tensor dt_adaptive_avg_pool2d(dt_tensor x, int64_t height, int64_t width) {
    return dti_append1(
        DTI_OP_AVG_POOL2D, x,
        &(dti_attr){.i = {1, 1, 1, 1, 0, 0, DTI_POOL_ADAPTIVE, 0}, .dim = {height, width}});
}

/* ---- Resizing: attr.i[0] = mode, attr.dim[0..1] = the size of the result. */

static bool dti_resize_shape(dti_build *b) {
    const int64_t *size = b->out.attr.dim;
    if (!dti_plane_fits(b) || !dti_size_fits(b, size) || !dti_size_fits(b, b->in[0]->shape.dim + 1))
        return false;
    if (b->out.attr.i[0] != DT_RESIZE_NEAREST && b->out.attr.i[0] != DT_RESIZE_BILINEAR)
        return dti_build_fail(b, "mode %d is unknown", b->out.attr.i[0]);
    b->out.shape.dim[1] = size[0];
    b->out.shape.dim[2] = size[1];
    return true;
}

static void dti_resize_emit(dti_emit *e) {
    const bool forward = e->node->op == DTI_OP_RESIZE;
    const dti_view in = dti_emit_dense_in(e, 0);
    const dti_view *x = forward ? &in : &e->out, *y = forward ? &e->out : &in; /* resampled: x */
    const dti_args_resize a = {.n = (uint32_t)(x->dim[0] * x->dim[3]),
                               .ih = (uint32_t)x->dim[4],
                               .iw = (uint32_t)x->dim[5],
                               .oh = (uint32_t)y->dim[4],
                               .ow = (uint32_t)y->dim[5],
                               .scale_h = (float)x->dim[4] / (float)y->dim[4],
                               .scale_w = (float)x->dim[5] / (float)y->dim[5],
                               .x_offset = (uint32_t)x->offset,
                               .y_offset = (uint32_t)y->offset};
    DTI_EMIT(e, forward ? DTI_K_RESIZE : DTI_K_RESIZE_GRAD, (uint64_t)dti_view_elements(&e->out), a,
             in.value, e->out.value)
        ->spec[0] = (uint32_t)e->node->attr.i[0];
}

DT_API dt_tensor dt_resize(dt_tensor x, int64_t height, int64_t width, dt_resize_mode mode) {
    return dti_append1(DTI_OP_RESIZE, x, &(dti_attr){.i = {(int32_t)mode}, .dim = {height, width}});
}

/* ---- Rows of the tables */

DTI_FAMILY_BY(max_pool2d, pool, .halves = DTI_HALF_ALL, .shape = dti_max_pool2d_shape,
              .grad = dti_max_pool2d_grad_rule);

DTI_FAMILY_BY(max_pool2d_at, pool, .halves = DTI_HALF_ALL, .shape = dti_max_pool2d_at_shape,
              .grad = dti_max_pool2d_at_grad);

DTI_FAMILY_BY(max_pool2d_grad, pool, .halves = DTI_HALF_ALL, .shape = dti_max_pool2d_grad_shape,
              .grad = dti_max_pool2d_at_grad);

DTI_FAMILY_BY(avg_pool2d, pool, .halves = DTI_HALF_ALL, .shape = dti_avg_pool2d_shape,
              .grad = dti_plane_grad);

DTI_FAMILY_BY(avg_pool2d_grad, pool, .halves = DTI_HALF_ALL, .shape = dti_avg_pool2d_grad_shape,
              .grad = dti_plane_grad);

DTI_FAMILY(resize, .halves = DTI_HALF_ALL, .shape = dti_resize_shape, .grad = dti_plane_grad);

DTI_FAMILY_BY(resize_grad, resize, .halves = DTI_HALF_ALL, .shape = dti_resize_shape,
              .grad = dti_plane_grad);
