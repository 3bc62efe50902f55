/* Rows of a table, with one padding row. It is looked up like the others, but no gradient flows to
 * it, and a bag does not count it. */

#define DTI_TABLE_PADDED_ROWS (1 << 24) /* row numbers are compared as f32 */

/* Of a row counted from the end, where it is below 0, its number; -1: an error is recorded. */
static int64_t dti_table_row(const char *op, dt_graph *g, int64_t rows, int64_t row) {
    if (rows > 0 && rows <= DTI_TABLE_PADDED_ROWS && row >= -rows && row < rows)
        return row < 0 ? row + rows : row;
    dti_graph_fail(g,
                   "%s: padding_idx is %lld of a table of %lld rows; it must be a row, or -1, -2 "
                   "... from the end, and the table have at most 2^24 rows",
                   op, (long long)row, (long long)rows);
    return -1;
}

/* 1 where index: [I...] is the row, as [I..., 1]. */
static dt_tensor dti_table_is_row(dt_tensor index, int64_t row) {
    dt_shape s = dti_tensor_shape(index);
    dt_tensor at = dt_cast(index, DT_F32);
    dt_tensor is = dt_eq(at, dt_fill(index.graph, (dt_shape){0}, (float)row));
    s.dim[s.rank++] = 1;
    return dt_reshape(is, s);
}

static bool dti_table_fits(const char *op, dt_tensor table, dt_tensor index) {
    const dt_shape s = dti_tensor_shape(index), t = dti_tensor_shape(table);
    if (t.rank == 2 && s.rank >= 1 && dti_tensor_dtype(index) == DT_I32)
        return true;
    return dti_graph_refuse(table.graph,
                            "%s: the table %s must be [rows, D] and the index %s [..., n], i32", op,
                            dti_tensor_print(table).text, dti_tensor_print(index).text);
}

/* ---- bags */

/* An index of any number of dimensions, as [bags, n]: its rows have one more. */
static dt_tensor dti_table_bags(dt_tensor index) {
    const dt_shape s = dti_tensor_shape(index);
    int64_t bags = 1;
    for (int i = 0; i + 1 < s.rank; i++)
        bags *= s.dim[i];
    return s.rank < DT_MAX_DIMS ? index
                                : dt_reshape(index, (dt_shape){2, {bags, s.dim[s.rank - 1]}});
}

/* Bags, [..., D], as the index' dimensions. */
static dt_tensor dti_table_bags_back(dt_tensor bags, dt_tensor index) {
    dt_shape s = dti_tensor_shape(index);
    if (s.rank < DT_MAX_DIMS || dti_is_nil(bags))
        return bags;
    s.dim[s.rank - 1] = dti_tensor_shape(bags).dim[1];
    return dt_reshape(bags, s);
}

static dt_tensor dti_bag_make(dt_graph *g, const dti_call *c) {
    const dt_tensor table = dti_call_in(g, c, 0), index = dti_call_in(g, c, 1);
    if (!dti_table_fits(c->name, table, index))
        return dti_nil(g);
    dt_tensor rows = dt_embedding(table, dti_table_bags(index));
    const dt_shape axes = {1, {-2}};
    rows = c->attr.i[0] ? dt_mean(rows, axes, false) : dt_sum(rows, axes, false);
    return dti_table_bags_back(rows, index);
}

DT_API dt_tensor dt_embedding_bag(dt_tensor table, dt_tensor index, bool mean) {
    return dti_compose("embedding_bag", dti_bag_make, 2, (dti_inputs){{table, index}},
                       (dti_attr){.i = {mean}});
}

/* A bag of nothing is 0: its mean is divided by 1. i: mean; dim: padding_idx */
static dt_tensor dti_bag_padded_make(dt_graph *g, const dti_call *c) {
    const dt_tensor table = dti_call_in(g, c, 0), index = dti_call_in(g, c, 1);
    if (!dti_table_fits(c->name, table, index))
        return dti_nil(g);
    const int64_t row = dti_table_row(c->name, g, dti_tensor_shape(table).dim[0], c->attr.dim[0]);
    if (row < 0)
        return dti_nil(g);
    const dt_shape axes = {1, {-2}};
    const dt_tensor bags = dti_table_bags(index);
    const dt_tensor rows = dt_embedding(table, bags), none = dti_table_is_row(bags, row);
    dt_tensor y = dt_sum(dt_mask_inv(rows, none), axes, false);
    if (c->attr.i[0] && !dti_is_nil(y)) {
        const dt_tensor count = dt_sum(dti_not(none), axes, false);
        y = dt_div(y, dt_maximum(count, dti_number(count, 1.0f)));
    }
    return dti_table_bags_back(y, index);
}

DT_API dt_tensor dt_embedding_bag_padded(dt_tensor table, dt_tensor index, bool mean,
                                         int64_t padding_idx) {
    return dti_compose("embedding_bag_padded", dti_bag_padded_make, 2, (dti_inputs){{table, index}},
                       (dti_attr){.i = {mean}, .dim = {padding_idx}});
}

/* ---- the layer */

/* dt_embedding, with the row's value kept from the gradient: the table may hold another than 0.
 * dim: row */
static dt_tensor dti_gather_padded_make(dt_graph *g, const dti_call *c) {
    const dt_tensor index = dti_call_in(g, c, 1), y = dt_embedding(dti_call_in(g, c, 0), index);
    if (dti_is_nil(y))
        return y;
    const dt_tensor pad = dti_table_is_row(index, c->attr.dim[0]);
    const dt_tensor kept = dt_mask(dt_detach(y), pad);
    return dt_add(kept, dt_mask_inv(y, pad));
}

DT_API dt_tensor dt_nn_embedding_with(dt_tensor index, const char *name, int64_t rows, int64_t cols,
                                      const dt_embedding_desc *desc) {
    dti_nn nn;
    if (!dti_nn_begin(&nn, index, "embedding", name))
        return dti_nil(index.graph);
    const dt_embedding_desc d = desc ? *desc : (dt_embedding_desc){0};
    int64_t row = -1;
    if ((unsigned)d.tensor > DT_TENSOR_ROW)
        return dti_graph_fail(index.graph, "embedding '%s': .tensor is %d, not a dt_tensor_style",
                              name, (int)d.tensor);
    if (d.padding_idx) {
        const int64_t at = d.padding_idx == DT_ZERO ? 0 : d.padding_idx;
        if ((row = dti_table_row("embedding", index.graph, rows, at)) < 0)
            return dti_nil(index.graph);
    }
    const dt_init normal = {DT_INIT_NORMAL, 0.0f, 1.0f};
    dt_tensor table = dti_nn_param(&nn, name, "weight", (dt_shape){2, {rows, cols}},
                                   d.weight.kind ? d.weight : normal);
    if (d.tensor && !dti_is_nil(table))
        table = dt_tensor_parallel(table, d.tensor == DT_TENSOR_ROW ? 0 : 1);
    if (row < 0 || dti_is_nil(table))
        return dti_nn_end(&nn, dt_embedding(table, index));
    dti_node_of(table)->attr.dim[0] = row + 1;
    return dti_nn_end(&nn, dti_compose("embedding", dti_gather_padded_make, 2,
                                       (dti_inputs){{table, index}}, (dti_attr){.dim = {row}}));
}

DT_API dt_tensor dt_nn_embedding(dt_tensor index, const char *name, int64_t rows, int64_t cols) {
    return dt_nn_embedding_with(index, name, rows, cols, NULL);
}
