/* Rows that move elements: copies, views, outputs, rows by index, parts of tensor ranks. */

/* ---- copy */

static void ref_copy(const ref_call *r) {
    memcpy(r->out.data, r->in[0].data, (size_t)r->out.elements * sizeof *r->out.data);
}

static double ref_cast_i32_f64(double x) {
    if (isnan(x))
        return 0;
    double whole = trunc(x);
    return whole > INT32_MAX ? INT32_MAX : whole < INT32_MIN ? INT32_MIN : whole;
}

static void ref_cast(const ref_call *r) {
    for (int64_t i = 0; i < r->out.elements; i++) {
        double x = r->in[0].data[i];
        r->out.data[i] = r->node->dtype == DT_I32 ? ref_cast_i32_f64(x) : (double)(float)x;
    }
}

static void ref_concat(const ref_call *r) {
    int axis = DTI_AXES - r->node->shape.rank + r->node->attr.i[0];
    for (int64_t i = 0; i < r->out.elements; i++) {
        int64_t at[DTI_AXES];
        uint32_t from = 0;
        ref_place(&r->out, i, at);
        while (at[axis] >= r->in[from].dim[axis])
            at[axis] -= r->in[from++].dim[axis];
        const ref_tensor *x = &r->in[from];
        int64_t along = at[axis];
        at[axis] = 0;
        int64_t stride = 1;
        for (int after = axis + 1; after < DTI_AXES; after++)
            stride *= x->dim[after];
        r->out.data[i] = x->data[ref_element(x, at) + along * stride];
    }
}

static void ref_pad(const ref_call *r) {
    int axis = DTI_AXES - r->node->shape.rank + r->node->attr.i[1];
    int64_t start = r->node->attr.i[2], length = r->in[0].dim[axis];
    for (int64_t i = 0; i < r->out.elements; i++) {
        int64_t at[DTI_AXES];
        ref_place(&r->out, i, at);
        at[axis] -= start;
        bool inside = at[axis] >= 0 && at[axis] < length;
        r->out.data[i] = inside ? r->in[0].data[ref_element(&r->in[0], at)] : 0;
    }
}

/* ---- view */

/* The place in the input of a place in the result. */
static void ref_view_from(const dti_node *node, int64_t at[DTI_AXES]) {
    int first = DTI_AXES - node->shape.rank;
    int64_t from[DTI_AXES];
    memcpy(from, at, sizeof from);
    if (node->op == DTI_OP_SLICE)
        from[first + node->attr.i[0]] += node->attr.dim[0];
    if (node->op == DTI_OP_PERMUTE) {
        for (int i = 0; i < node->shape.rank; i++)
            from[first + node->attr.dim[i]] = at[first + i];
    }
    memcpy(at, from, sizeof from);
}

static void ref_view(const ref_call *r) {
    bool in_order = r->node->op == DTI_OP_RESHAPE || r->node->op == DTI_OP_DETACH;
    for (int64_t i = 0; i < r->out.elements; i++) {
        int64_t at[DTI_AXES], from = i;
        if (!in_order) {
            ref_place(&r->out, i, at);
            ref_view_from(r->node, at);
            from = ref_element(&r->in[0], at);
        }
        r->out.data[i] = r->in[0].data[from];
    }
}

/* ---- output */

static void ref_output_of(const ref_call *r) {
    const int64_t samples = r->out.dim[0], n = samples ? r->out.elements / samples : 0;
    const int64_t all = samples ? r->in[0].elements / samples : 0;
    const int64_t start = r->node->attr.dim[0];
    for (int64_t i = 0; i < r->out.elements; i++)
        r->out.data[i] = r->in[0].data[i / n * all + start + i % n];
}

/* ---- gather */

static void ref_gather(const ref_call *r) {
    int64_t n = r->in[1].elements, cols = n ? r->out.elements / n : 0;
    int64_t rows = cols ? r->in[0].elements / cols : 0;
    for (int64_t i = 0; i < n * cols; i++) {
        int64_t row = (int64_t)r->in[1].data[i / cols];
        bool inside = row >= 0 && row < rows;
        r->out.data[i] = inside ? r->in[0].data[row * cols + i % cols] : NAN;
    }
}

/* ---- scatter */

static void ref_scatter_add(const ref_call *r) {
    int64_t rows = r->node->shape.dim[0], cols = rows ? r->out.elements / rows : 0;
    ref_zero(r);
    for (int64_t i = 0; i < r->in[1].elements * cols; i++) {
        int64_t row = (int64_t)r->in[1].data[i / cols];
        if (row >= 0 && row < rows)
            r->out.data[row * cols + i % cols] += r->in[0].data[i];
    }
}

/* ---- collective: of one tensor rank, whose part is all */

static void ref_meet(const ref_call *r) {
    const double count = (double)r->batch * r->node->attr.i[DTI_ALL_SPATIAL];
    const bool mean = dti_op_info_of(r->node->op)->selector == DTI_MEET_MEAN;
    for (int64_t i = 0; i < r->out.elements; i++)
        r->out.data[i] = r->in[0].data[i] / (mean ? count : 1.0);
}

static void ref_parted_cut(const ref_call *r) {
    const int32_t *i = r->node->attr.i;
    const int64_t run = dti_meet_of(r->node).run;
    for (int64_t k = 0; k < r->out.elements; k++)
        r->out.data[k] =
            r->in[0].data[(k / run * i[DTI_ALONG_TP_RANKS] + i[DTI_ALONG_TP_RANK]) * run + k % run];
}
