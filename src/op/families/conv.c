/* Convolution: three rows that differentiate into each other. conv2d is a linear map of x for fixed
 * w, and of w for fixed x. conv2d_dx and conv2d_dw are its two adjoints. The transposed convolution
 * is conv2d_dx. Signals are images of height 1. Each row is one launch of an implicit product: no
 * matrix of patches exists. attr.i: the window (op/attributes.h); attr.dim[0..1]: the height and
 * width of the image (dx) or the kernel (dw), which the inputs do not have. */

/* ---- Shapes. Sizes below 2^31 and 64-bit sums: nothing overflows. */

/* Windows along one axis; 0 if none fits. */
static int64_t dti_conv_windows(const dti_attr *attr, int axis, int64_t in, int64_t kernel) {
    int64_t span = (int64_t)attr->i[DTI_CONV_DILATION + axis] * (kernel - 1) + 1;
    int64_t room = in + 2 * (int64_t)attr->i[DTI_CONV_PADDING + axis] - span;
    return room < 0 ? 0 : room / attr->i[DTI_CONV_STRIDE + axis] + 1;
}

static bool dti_conv_attr_fits(dti_build *b) {
    static const char *const what[] = {"stride", "padding", "dilation"};
    const int32_t *i = b->out.attr.i;
    for (int k = 0; k < 6; k++) {
        if (i[k] < (k / 2 == 1 ? 0 : 1)) {
            return dti_build_fail(b, "%s {%d, %d}: it must be at least %d in both dimensions",
                                  what[k / 2], i[k & ~1], i[k | 1], k / 2 == 1 ? 0 : 1);
        }
    }
    if (i[DTI_CONV_GROUPS] < 1)
        return dti_build_fail(b, "groups is %d; it must be at least 1", i[DTI_CONV_GROUPS]);
    return true;
}

static const char *dti_image_hint(dt_shape image, int64_t channels) {
    const int64_t *d = image.dim;
    const bool line = d[1] == 1; /* dt_conv1d made it of two dimensions */
    bool last = channels
                    ? d[2] == channels && d[0] != channels
                    : (d[2] == 1 || d[2] == 3 || d[2] == 4) && d[0] > d[2] && (line || d[1] > d[2]);
    if (image.rank != 3 || !last)
        return "";
    if (line)
        return "; if the channels are last (NLC): dtrain's order is [channels, length], so "
               "dt_permute(x, dt_dims(1, 0)) first";
    return "; if the channels are last (NHWC): dtrain's order is [channels, height, width] (NCHW), "
           "so dt_permute(x, dt_dims(2, 0, 1)) first";
}

static const char *dti_image_rank_hint(int rank, int wanted) {
    return rank == wanted - 1   ? "; one channel needs a dimension too: dt_reshape it"
           : rank == wanted + 1 ? "; the axis of samples is implied: leave it out of the shape"
                                : "";
}

static bool dti_conv_ranks_fit(dti_build *b, const dti_node *image, const dti_node *w) {
    if (image->shape.rank != 3)
        return dti_build_fail(b, "the image must be [channels, height, width]%s",
                              dti_image_rank_hint(image->shape.rank, 3));
    if (w && (w->shape.rank != 4 || w->samples))
        return dti_build_fail(b, "the weight must be [out, in / groups, height, width], without "
                                 "samples");
    return true;
}

/* Kernels count in 32 bits, over a copy of either image with zeros around it. */
static bool dti_conv_offsets_fit(dti_build *b, const int64_t *x, const int64_t *w) {
    const dti_attr *attr = &b->out.attr;
    double elements = (double)DTI_MAX(x[0], w[0]);
    for (int axis = 0; axis < 2; axis++) {
        double span = (double)attr->i[DTI_CONV_DILATION + axis] * (double)(w[2 + axis] - 1);
        elements *= (double)x[1 + axis] + 2.0 * attr->i[DTI_CONV_PADDING + axis] + 2.0 * span;
    }
    return elements <= INT32_MAX ||
           dti_build_fail(b,
                          "with its padding and dilation an image has %.3g elements, more than "
                          "2^31",
                          elements);
}

/* x [c, ih, iw], w, and the image y that they make. */
static bool dti_conv_fits(dti_build *b, const int64_t *x, const int64_t *w, int64_t *y) {
    const dti_attr *attr = &b->out.attr;
    int32_t groups = attr->i[DTI_CONV_GROUPS];
    if (w[0] % groups || x[0] % groups || x[0] / groups != w[1]) {
        return dti_build_fail(b,
                              "%lld channels in and %lld out in %d groups do not fit a weight of "
                              "%lld input channels a group%s",
                              (long long)x[0], (long long)w[0], groups, (long long)w[1],
                              dti_image_hint((dt_shape){3, {x[0], x[1], x[2]}}, w[1] * groups));
    }
    y[0] = w[0];
    for (int axis = 0; axis < 2; axis++) {
        int64_t in = x[1 + axis], kernel = w[2 + axis];
        if (kernel < 1)
            return dti_build_fail(b, "the kernel is %lld x %lld; both must be at least 1",
                                  (long long)w[2], (long long)w[3]);
        y[1 + axis] = dti_conv_windows(attr, axis, in, kernel);
        if (y[1 + axis] < 1) {
            return dti_build_fail(
                b,
                "the kernel of %lld with dilation %d covers %lld, and the %s with padding has "
                "%lld; make the kernel smaller or the padding larger%s",
                (long long)kernel, attr->i[DTI_CONV_DILATION + axis],
                (long long)(attr->i[DTI_CONV_DILATION + axis] * (kernel - 1) + 1),
                axis ? "width" : "height",
                (long long)(in + 2 * (int64_t)attr->i[DTI_CONV_PADDING + axis]),
                dti_image_hint((dt_shape){3, {x[0], x[1], x[2]}}, 0));
        }
    }
    return dti_conv_offsets_fit(b, x, w);
}

static bool dti_conv_bias_fits(dti_build *b, int64_t channels) {
    if (b->count < 3)
        return true;
    const dti_node *bias = dti_node_of(b->inputs[2]);
    if (b->count > 3 || bias->shape.rank != 1 || bias->samples || bias->shape.dim[0] != channels) {
        return dti_build_fail(b, "the bias must be [%lld], without samples", (long long)channels);
    }
    return true;
}

static bool dti_conv2d_shape(dti_build *b) {
    b->out.shape.rank = 3;
    return dti_build_product(b) && dti_conv_attr_fits(b) &&
           dti_conv_ranks_fit(b, b->in[0], b->in[1]) &&
           dti_conv_fits(b, b->in[0]->shape.dim, b->in[1]->shape.dim, b->out.shape.dim) &&
           dti_conv_bias_fits(b, b->out.shape.dim[0]);
}

/* (dy, w, b): the image whose convolution has dy's shape. */
static bool dti_conv2d_dx_shape(dti_build *b) {
    if (!dti_build_product(b) || !dti_conv_attr_fits(b) ||
        !dti_conv_ranks_fit(b, b->in[0], b->in[1]))
        return false;
    const int64_t *dy = b->in[0]->shape.dim, *w = b->in[1]->shape.dim, *size = b->out.attr.dim;
    int64_t x[3] = {w[1] * b->out.attr.i[DTI_CONV_GROUPS], size[0], size[1]}, y[3];
    if (dy[0] != w[0])
        return dti_build_fail(b, "%lld channels do not fit a weight of %lld%s", (long long)dy[0],
                              (long long)w[0], dti_image_hint(b->in[0]->shape, w[0]));
    if (x[0] > INT32_MAX)
        return dti_build_fail(b, "%lld channels are too many; there must be below 2^31",
                              (long long)x[0]);
    if (!dti_conv_fits(b, x, w, y) || !dti_conv_bias_fits(b, x[0]))
        return false;
    if (memcmp(y, dy, sizeof y) != 0) {
        return dti_build_fail(
            b, "dy must have the shape that an image of %lld x %lld gives, [%lld, %lld, %lld]",
            (long long)x[1], (long long)x[2], (long long)y[0], (long long)y[1], (long long)y[2]);
    }
    b->out.shape = (dt_shape){.rank = 3, .dim = {x[0], x[1], x[2]}};
    return true;
}

/* (dy, x): the weight. */
static bool dti_conv2d_dw_shape(dti_build *b) {
    if (!dti_build_real(b) || !dti_conv_attr_fits(b) || !dti_conv_ranks_fit(b, b->in[0], NULL) ||
        !dti_conv_ranks_fit(b, b->in[1], NULL))
        return false;
    const int64_t *dy = b->in[0]->shape.dim, *x = b->in[1]->shape.dim, *size = b->out.attr.dim;
    int64_t w[4] = {dy[0], x[0] / b->out.attr.i[DTI_CONV_GROUPS], size[0], size[1]}, y[3];
    if (!dti_conv_fits(b, x, w, y))
        return false;
    if (memcmp(y, dy, sizeof y) != 0 || b->in[0]->samples != b->in[1]->samples)
        return dti_build_fail(b, "dy must have the shape of the result of x");
    b->out.shape = (dt_shape){.rank = 4, .dim = {w[0], w[1], w[2], w[3]}};
    b->out.samples = false;
    b->out.dtype = DT_F32; /* sums over all samples */
    return true;
}

/* ---- Gradients */

/* By the height and width of `like`. */
static dt_tensor dti_conv_to(const dti_grad *g, dti_op op, dt_tensor a, dt_tensor b,
                             dt_tensor like) {
    const dt_shape s = dti_node_of(like)->shape;
    dti_attr attr = g->node.attr;
    memcpy(attr.dim, s.dim + s.rank - 2, 2 * sizeof *s.dim);
    return dti_append2(op, a, b, &attr);
}

static dt_tensor dti_conv_to_weight(const dti_grad *g, dt_tensor y, dt_tensor x) {
    return dt_cast(dti_conv_to(g, DTI_OP_CONV2D_DW, y, x, g->in[1]), dti_grad_dtype(g->in[1]));
}

/* Of an image that got one number a channel: over its samples and positions. */
static dt_tensor dti_conv_to_bias(dt_tensor dy) {
    const dti_node *n = dti_node_of(dy);
    dy = dt_cast(dy, DT_F32);
    return dti_append1(DTI_OP_SUM, dy, &(dti_attr){.f = {1.0f}, .i = {6, n->samples, 0}});
}

static void dti_conv2d_grad(dti_grad *g) {
    if (g->wanted[0])
        g->dx[0] = dti_conv_to(g, DTI_OP_CONV2D_DX, g->dy, g->in[1], g->in[0]);
    if (g->wanted[1])
        g->dx[1] = dti_conv_to_weight(g, g->dy, g->in[0]);
    if (g->wanted[2])
        g->dx[2] = dti_conv_to_bias(g->dy);
}

static void dti_conv2d_dx_grad(dti_grad *g) {
    if (g->wanted[0])
        g->dx[0] = dti_append2(DTI_OP_CONV2D, g->dy, g->in[1], &g->node.attr);
    if (g->wanted[1])
        g->dx[1] = dti_conv_to_weight(g, g->in[0], g->dy);
    if (g->wanted[2])
        g->dx[2] = dti_conv_to_bias(g->dy);
}

static void dti_conv2d_dw_grad(dti_grad *g) {
    const dt_tensor w = dt_cast(g->dy, dti_node_of(g->in[0])->dtype);
    if (g->wanted[0])
        g->dx[0] = dti_append2(DTI_OP_CONV2D, g->in[1], w, &g->node.attr);
    if (g->wanted[1])
        g->dx[1] = dti_conv_to(g, DTI_OP_CONV2D_DX, g->in[0], w, g->in[1]);
}

/* ---- Launches */

static dti_args_conv dti_conv_args(const dti_attr *attr, const dti_view *x, const dti_view *y,
                                   const int64_t *w) {
    dti_args_conv a = {.n = (uint32_t)x->dim[0], .groups = (uint32_t)attr->i[DTI_CONV_GROUPS]};
    a.ci = (uint32_t)w[1];
    a.co = (uint32_t)w[0] / a.groups;
    a.ih = (uint32_t)x->dim[4];
    a.iw = (uint32_t)x->dim[5];
    a.oh = (uint32_t)y->dim[4];
    a.ow = (uint32_t)y->dim[5];
    a.kh = (uint32_t)w[2];
    a.kw = (uint32_t)w[3];
    a.stride_h = (uint32_t)attr->i[DTI_CONV_STRIDE];
    a.stride_w = (uint32_t)attr->i[DTI_CONV_STRIDE + 1];
    a.pad_h = (uint32_t)attr->i[DTI_CONV_PADDING];
    a.pad_w = (uint32_t)attr->i[DTI_CONV_PADDING + 1];
    a.dil_h = (uint32_t)attr->i[DTI_CONV_DILATION];
    a.dil_w = (uint32_t)attr->i[DTI_CONV_DILATION + 1];
    if (a.oh == 1) /* the stride of one window has no meaning, and kernels loop over it */
        a.stride_h = 1;
    if (a.ow == 1)
        a.stride_w = 1;
    a.splits = a.cuts = 1;
    a.x_offset = (uint32_t)x->offset;
    a.y_offset = (uint32_t)y->offset;
    return a;
}

static uint64_t dti_conv_flops(const dti_args_conv *a) {
    return 2ull * a->n * a->oh * a->ow * a->groups * a->co * a->ci * a->kh * a->kw;
}

/* conv2d and conv2d_dx: in[0] and the output are images, and a bias goes to the output. */
static void dti_conv_image_emit(dti_emit *e) {
    dti_view in = dti_emit_dense_in(e, 0), w = dti_emit_dense_in(e, 1), out = e->out;
    const bool forward = e->node->op == DTI_OP_CONV2D;
    dti_args_conv a =
        dti_conv_args(&e->node->attr, forward ? &in : &out, forward ? &out : &in, w.dim + 2);
    a.w_offset = (uint32_t)w.offset;
    const uint32_t bias = dti_emit_given(e, 2, &a.z_offset);
    e->list->flops += dti_conv_flops(&a);
    dti_launch *l =
        DTI_EMIT(e, forward ? DTI_K_CONV : DTI_K_CONV_DX, (uint64_t)dti_view_elements(&out), a,
                 in.value, w.value, out.value, bias);
    l->spec[0] = bias != DTI_UNBOUND;
    l->dtype[0] = in.dtype; /* the possible epilogues depend on it */
}

/* The sum over all samples in parts, for parallel work where the weight is small. The cut is a
 * function of the shapes only, because it decides the order of the sum. */
#define DTI_CONV_PARTS 8
#define DTI_CONV_PARTS_ELEMENTS (1 << 20)  /* of all parts together */
#define DTI_CONV_FILLS 256                 /* workgroups that fill a device */
#define DTI_CONV_PART 64                   /* positions that a part has at least */
#define DTI_CONV_CHAIN 2048                /* and one chain adds at most; */
#define DTI_CONV_CHAIN_SMALL 128           /* for fewer weights, whose parts cost little */
#define DTI_CONV_SMALL 4096                /* than these */
#define DTI_CONV_CHAINS_ELEMENTS (1 << 24) /* of all parts together, where chains would be long */

static void dti_conv_split(dti_args_conv *a, uint64_t elements) {
    const uint64_t room = DTI_CONV_PARTS_ELEMENTS / DTI_MAX(elements, 1);
    const uint64_t splits = DTI_MIN((uint64_t)DTI_CONV_PARTS, DTI_MIN(a->n, room));
    a->splits = (uint32_t)DTI_MAX(splits, 1);
}

/* How many parts fill a device: workgroups make 64 x 64 of the weights, and invocations that work
 * alone 8 x 8. */
static uint64_t dti_conv_parts(const dti_args_conv *a) {
    const uint64_t weights = (uint64_t)a->ci * a->kh * a->kw;
    const uint64_t tiles = a->co < 8
                               ? dti_ceil_div(dti_ceil_div(weights, 8) * a->groups, 64)
                               : dti_ceil_div(a->co, 64) * dti_ceil_div(weights, 64) * a->groups;
    return dti_ceil_div(DTI_CONV_FILLS, DTI_MAX(tiles, 1));
}

static uint64_t dti_conv_chain(uint64_t elements) {
    return elements < DTI_CONV_SMALL ? DTI_CONV_CHAIN_SMALL : DTI_CONV_CHAIN;
}

/* The most parts. All of them take at most 64 MiB or a quarter of x and y. So a device that can
 * bind x and y can bind them. So a part's length depends on the weights, not on the samples. */
static uint64_t dti_conv_parts_most(const dti_args_conv *a, uint64_t elements) {
    const uint64_t positions = (uint64_t)a->n * a->oh * a->ow;
    const uint64_t quarter = positions * a->groups * ((uint64_t)a->ci + a->co) / 4;
    return DTI_MAX(quarter, (uint64_t)DTI_CONV_CHAINS_ELEMENTS) / DTI_MAX(elements, 1);
}

/* Into parts of some samples and some of their rows, so that the largest part is small. The parts
 * are enough to fill a device, and to keep chains of additions short. */
static void dti_conv_split_finely(dti_args_conv *a, uint64_t elements) {
    const uint64_t lines = a->oh > 1 ? a->oh : a->ow, positions = (uint64_t)a->n * a->oh * a->ow;
    const uint64_t room = DTI_CONV_PARTS_ELEMENTS / DTI_MAX(elements, 1);
    const uint64_t chain = dti_conv_chain(elements);
    uint64_t least = UINT64_MAX, most = DTI_MIN(room, positions / DTI_CONV_PART);
    uint64_t parts = DTI_MIN(dti_conv_parts(a), most);
    if (positions > 2 * chain * DTI_MAX(parts, 1)) {
        const uint64_t limit = DTI_MAX(dti_conv_parts_most(a, elements), 1);
        parts = DTI_MIN(dti_ceil_div(positions, chain), limit);
        most = DTI_MAX(most, DTI_MIN(2 * parts, limit));
    }
    for (uint64_t samples = 1; parts > 1 && samples <= a->n; samples++) {
        const uint64_t splits = dti_ceil_div(a->n, samples);
        if (splits > most || splits > 2 * parts)
            continue;
        uint64_t cuts = DTI_MIN(dti_ceil_div(parts, splits), most / splits);
        cuts = DTI_MIN(cuts, lines);
        const uint64_t largest = samples * dti_ceil_div(lines, cuts);
        if (largest < least || (largest == least && splits * cuts > a->splits * a->cuts)) {
            least = largest;
            a->splits = (uint32_t)splits;
            a->cuts = (uint32_t)cuts;
        }
    }
}

/* Cuts rows into pieces where parts of one row are still too long. */
static void dti_conv_split_rows(dti_args_conv *a, uint64_t elements) {
    const uint64_t most = dti_conv_parts_most(a, elements) / ((uint64_t)a->splits * a->cuts);
    const uint64_t pieces = DTI_MIN(dti_ceil_div(a->ow, dti_conv_chain(elements)), most);
    if (pieces > 1 && a->oh > 1 && a->cuts == a->oh && a->ow > 2 * dti_conv_chain(elements))
        a->cuts *= (uint32_t)pieces;
}

static void dti_conv2d_dw_emit(dti_emit *e) {
    dti_view dy = dti_emit_dense_in(e, 0), x = dti_emit_dense_in(e, 1);
    const uint64_t elements = (uint64_t)dti_view_elements(&e->out);
    dti_args_conv a = dti_conv_args(&e->node->attr, &x, &dy, e->node->shape.dim);
    (e->workgroups ? dti_conv_split_finely : dti_conv_split)(&a, elements);
    if (e->workgroups)
        dti_conv_split_rows(&a, elements);
    const uint32_t count = a.splits * a.cuts;
    uint32_t parts = e->out.value;
    a.w_offset = (uint32_t)e->out.offset;
    if (count > 1) {
        parts = dti_emit_scratch(e, DT_F32, count * elements);
        a.w_offset = 0;
    }
    e->list->flops += dti_conv_flops(&a);
    DTI_EMIT(e, DTI_K_CONV_DW, count * elements, a, dy.value, x.value, parts);
    if (count > 1)
        dti_emit_sum_parts(e, parts, count, (uint32_t)elements, &e->out, 1.0f);
}

/* ---- Constructors */

static dti_attr dti_conv_attr(const dt_conv_desc *desc) {
    dt_conv_desc d = desc ? *desc : (dt_conv_desc){0};
    dti_attr attr = {.i = {d.stride[0], d.stride[1], d.padding[0], d.padding[1], d.dilation[0],
                           d.dilation[1], d.groups ? d.groups : 1}};
    for (int k = 0; k < 6; k += 4) { /* the stride and the dilation */
        if (!attr.i[k] && !attr.i[k + 1])
            attr.i[k] = attr.i[k + 1] = 1;
    }
    return attr;
}

DT_API dt_tensor dt_conv2d(dt_tensor x, dt_tensor w, dt_tensor b, const dt_conv_desc *desc) {
    dt_tensor in[3] = {x, w, b};
    dti_attr attr = dti_conv_attr(desc);
    return dti_append(x.graph, DTI_OP_CONV2D, in, dti_is_nil(b) && !b.graph ? 2 : 3, &attr);
}

/* A size of the transposed convolution's result; -1 after an error. */
static int64_t dti_conv_transposed_size(dt_tensor x, const dti_attr *attr, int axis, int64_t in,
                                        int64_t kernel, int32_t more) {
    int64_t stride = attr->i[DTI_CONV_STRIDE + axis], dil = attr->i[DTI_CONV_DILATION + axis];
    int64_t padding = attr->i[DTI_CONV_PADDING + axis];
    if (more < 0 || (more && more >= stride && more >= dil)) {
        dti_graph_fail(x.graph,
                       "conv_transpose: output_padding %d must be below the stride %lld or the "
                       "dilation %lld",
                       more, (long long)stride, (long long)dil);
        return -1;
    }
    if (stride < 1 || in < 1)
        return 1; /* the row's own check reports it */
    int64_t size = (in - 1) * stride - 2 * padding + dil * (kernel - 1) + more + 1;
    if (size >= 1 && size <= INT32_MAX)
        return size;
    dti_graph_fail(
        x.graph,
        "conv_transpose(%s): the result would have size %lld; it must be from 1 to 2^31 - 1",
        dti_shape_of(x).text, (long long)size);
    return -1;
}

/* With output_padding at or above the stride (and below the dilation) the result has room for more
 * windows than x has elements: zeros. */
static dt_tensor dti_conv_transposed_fill(dt_tensor x, const dti_attr *attr, int axis,
                                          int64_t kernel) {
    if (dti_is_nil(x) || attr->i[DTI_CONV_STRIDE + axis] < 1)
        return x;
    int64_t more =
        dti_conv_windows(attr, axis, attr->dim[axis], kernel) - dti_node_of(x)->shape.dim[1 + axis];
    return more > 0 ? dt_pad(x, 1 + axis, 0, more) : x;
}

/* ---- Calls: attr.i = the window as given, dim[0..1] = output_padding */

static dt_tensor dti_conv_compose(const char *name, dti_make_fn *make, dt_tensor x, dt_tensor w,
                                  dt_tensor b, const dt_conv_desc *desc) {
    const dt_conv_desc d = desc ? *desc : (dt_conv_desc){0};
    const dti_attr attr = {.i = {d.stride[0], d.stride[1], d.padding[0], d.padding[1],
                                 d.dilation[0], d.dilation[1], d.groups},
                           .dim = {d.output_padding[0], d.output_padding[1]}};
    return dti_compose(name, make, 2, (dti_inputs){{x, w, b}}, attr);
}

static dt_conv_desc dti_conv_desc_of(const dti_call *c) {
    const dti_attr *a = &c->attr;
    return (dt_conv_desc){.stride = {a->i[0], a->i[1]},
                          .padding = {a->i[2], a->i[3]},
                          .dilation = {a->i[4], a->i[5]},
                          .groups = a->i[6],
                          .output_padding = {(int)a->dim[0], (int)a->dim[1]}};
}

static dt_tensor dti_conv_transposed_make(dt_graph *g, const dti_call *c) {
    const dt_tensor x = dti_call_in(g, c, 0), w = dti_call_in(g, c, 1), b = dti_call_in(g, c, 2);
    const dt_conv_desc d = dti_conv_desc_of(c);
    dt_tensor in[3] = {x, w, b};
    dti_attr attr = dti_conv_attr(&d);
    const bool known = dti_node_of(x)->shape.rank == 3 && dti_node_of(w)->shape.rank == 4;
    for (int axis = 0; known && axis < 2; axis++) { /* else the row's own check reports it */
        attr.dim[axis] =
            dti_conv_transposed_size(x, &attr, axis, dti_node_of(x)->shape.dim[1 + axis],
                                     dti_node_of(w)->shape.dim[2 + axis], d.output_padding[axis]);
        if (attr.dim[axis] < 0)
            return dti_nil(g);
        in[0] = dti_conv_transposed_fill(in[0], &attr, axis, dti_node_of(w)->shape.dim[2 + axis]);
    }
    return dti_append(g, DTI_OP_CONV2D_DX, in, b.graph ? 3 : 2, &attr);
}

DT_API dt_tensor dt_conv_transpose2d(dt_tensor x, dt_tensor w, dt_tensor b,
                                     const dt_conv_desc *desc) {
    return dti_conv_compose("conv_transpose2d", dti_conv_transposed_make, x, w, b, desc);
}

/* ---- Signals: [C, L] is [C, 1, L] */

typedef dt_tensor dti_conv_fn(dt_tensor x, dt_tensor w, dt_tensor b, const dt_conv_desc *desc);

static dt_tensor dti_conv_signal(dt_graph *g, const dti_call *c, dti_conv_fn *conv) {
    dt_tensor x = dti_call_in(g, c, 0), w = dti_call_in(g, c, 1);
    dt_shape s = dti_node_of(x)->shape, k = dti_node_of(w)->shape;
    if (s.rank != 2 || k.rank != 3) {
        return dti_graph_fail(
            g, "%s(%s, %s): x must be [channels, length], the weight [out, in / groups, length]",
            c->name, dti_shape_print(s, dti_node_of(x)->samples).text,
            dti_shape_print(k, dti_node_of(w)->samples).text);
    }
    dt_conv_desc d = dti_conv_desc_of(c);
    d = (dt_conv_desc){.stride = {1, d.stride[0] ? d.stride[0] : 1},
                       .padding = {0, d.padding[0]},
                       .dilation = {1, d.dilation[0] ? d.dilation[0] : 1},
                       .groups = d.groups,
                       .output_padding = {0, d.output_padding[0]}};
    x = dt_reshape(x, (dt_shape){3, {s.dim[0], 1, s.dim[1]}}); /* in one order by any compiler */
    w = dt_reshape(w, (dt_shape){4, {k.dim[0], k.dim[1], 1, k.dim[2]}});
    dt_tensor y = conv(x, w, dti_call_in(g, c, 2), &d);
    if (dti_is_nil(y))
        return y;
    dt_shape t = dti_node_of(y)->shape;
    return dt_reshape(y, (dt_shape){2, {t.dim[0], t.dim[2]}});
}

static dt_tensor dti_conv1d_make(dt_graph *g, const dti_call *c) {
    return dti_conv_signal(g, c, dt_conv2d);
}

static dt_tensor dti_conv_transposed1d_make(dt_graph *g, const dti_call *c) {
    return dti_conv_signal(g, c, dt_conv_transpose2d);
}

DT_API dt_tensor dt_conv1d(dt_tensor x, dt_tensor w, dt_tensor b, const dt_conv_desc *desc) {
    return dti_conv_compose("conv1d", dti_conv1d_make, x, w, b, desc);
}

DT_API dt_tensor dt_conv_transpose1d(dt_tensor x, dt_tensor w, dt_tensor b,
                                     const dt_conv_desc *desc) {
    return dti_conv_compose("conv_transpose1d", dti_conv_transposed1d_make, x, w, b, desc);
}

/* ---- Rows of the tables */

DTI_FAMILY_BY(conv2d, conv_image, .low = 3, .shape = dti_conv2d_shape, .grad = dti_conv2d_grad,
              .macs = dti_weighted_macs);

DTI_FAMILY_BY(conv2d_dx, conv_image, .low = 3, .shape = dti_conv2d_dx_shape,
              .grad = dti_conv2d_dx_grad, .macs = dti_weighted_dx_macs);

DTI_FAMILY(conv2d_dw, .low = 3, .shape = dti_conv2d_dw_shape, .grad = dti_conv2d_dw_grad,
           .macs = dti_weighted_dw_macs);
