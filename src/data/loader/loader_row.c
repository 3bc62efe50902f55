/* The values of a set's samples: the columns' values, the application's callback, and augmentation.
 * It runs on the threads of a loader, so nothing here allocates, logs or touches a context. A
 * failure's text goes to dt_sample.error. */

#define DTI_ROWS_ALIGN ((size_t)64)

/* ---- columns */

static int64_t dti_column_class(const dti_loader_column *c, uint64_t row) {
    return c->dtype == DT_U8 ? (int64_t)((const uint8_t *)c->data)[row]
                             : (int64_t)((const int32_t *)(const void *)c->data)[row];
}

static void dti_column_gather_one_hot(const dti_loader_column *c, const uint32_t *sources,
                                      uint64_t first, uint32_t count, float *values) {
    memset(values, 0, count * c->elements * sizeof *values);
    for (uint32_t i = 0; i < count; i++) {
        const int64_t class = dti_column_class(c, sources ? sources[i] : first + i);
        if (class >= 0 && class < (int64_t)c->elements)
            values[i * c->elements + (size_t) class] = 1.0f;
    }
}

static void dti_column_gather(const dti_loader_column *c, const uint32_t *sources, uint64_t first,
                              uint32_t count, void *values) {
    const size_t cols = c->elements, bytes = cols * c->element_bytes;
    const bool u8 = c->kind == DTI_COLUMN_U8_F32 || c->kind == DTI_COLUMN_U8_I32;
    const char *data = c->data;
    if (c->kind == DTI_COLUMN_ZERO) {
        memset(values, 0, count * bytes);
        return;
    }
    if (c->kind == DTI_COLUMN_ONE_HOT) {
        dti_column_gather_one_hot(c, sources, first, count, values);
        return;
    }
    if (!sources)
        data += first * (u8 ? cols : bytes);
    if (c->kind == DTI_COLUMN_U8_F32)
        dti_rows_of_table(values, (const uint8_t *)data, sources, count, cols, c->table);
    else if (c->kind == DTI_COLUMN_U8_I32)
        dt_gather_rows_u8_to_i32(values, (const uint8_t *)data, sources, count, cols);
    else if (!sources)
        memcpy(values, data, count * bytes);
    else
        for (uint32_t i = 0; i < count; i++)
            memcpy((char *)values + i * bytes, data + sources[i] * bytes, bytes);
}

/* Fills rows [begin, end) of a slot that have no sample. */
static void dti_column_pad(const dti_loader_column *c, uint32_t begin, uint32_t end, void *values) {
    if (begin >= end)
        return;
    if (!c->is_i32) {
        const size_t bytes = c->elements * c->element_bytes;
        memset((char *)values + begin * bytes, 0, (end - begin) * bytes);
        return;
    }
    for (size_t i = begin * c->elements; i < end * c->elements; i++)
        ((int32_t *)values)[i] = c->pad;
}

/* ---- a sample */

/* at: the sample's row of the columns' data. */
static dt_result dti_rows_read(const dti_rows *r, const dt_sample *s, uint64_t at,
                               void *const *values) {
    for (int c = 0; c < r->column_count; c++) {
        const dti_loader_column *column = &r->columns[c];
        dti_column_gather(column, NULL, at, 1, values[c]);
        if (column->kind != DTI_COLUMN_ONE_HOT)
            continue;
        const int64_t class = dti_column_class(column, at);
        if (class < 0 || class >= (int64_t)column->elements) {
            snprintf(s->error, s->error_bytes,
                     "column %d: class %lld is not in [0, %zu) (.one_hot)", c, (long long)class,
                     column->elements);
            return DT_ERROR_INVALID;
        }
    }
    const dt_sample copy = *s; /* not the callback's to change */
    void *places[DT_MAX_COLUMNS];
    memcpy(places, values, sizeof places);
    if (!r->data->sample)
        return DT_OK;
    dti_visit visit;
    dti_visit_host(&visit, r->base, DTI_IN_VALUES);
    const dt_result result = r->data->sample(r->data->user, &copy, places);
    dti_visit_returned(&visit);
    return result;
}

static size_t dti_rows_aligned(size_t bytes) {
    return (bytes + DTI_ROWS_ALIGN - 1) / DTI_ROWS_ALIGN * DTI_ROWS_ALIGN;
}

static size_t dti_column_bytes(const dti_loader_column *c) {
    return c->elements * c->element_bytes;
}

static size_t dti_column_data_bytes(const dti_loader_column *c) {
    const size_t each = dti_dtype_bytes(c->dtype);
    return c->kind == DTI_COLUMN_ONE_HOT ? each : c->elements * each;
}

static size_t dti_rows_column_bytes(const dti_rows *r, int column) {
    return dti_rows_aligned(dti_column_bytes(&r->columns[column]));
}

static size_t dti_rows_room(const dti_rows *r) {
    return dti_rows_aligned(r->augment.elements * sizeof(float));
}

static size_t dti_rows_scratch(const dti_rows *r) {
    size_t bytes = dti_rows_augment(r) ? dti_rows_room(r) : 0;
    for (int c = 0; c < r->column_count && dti_rows_augment(r) && dti_augment_mixes(&r->augment);
         c++)
        bytes += dti_rows_column_bytes(r, c);
    return bytes;
}

/* The partner is read as it is in the set, and augmented by numbers of the sample that gets it. */
static dt_result dti_rows_mix(const dti_rows *r, const dt_sample *s, void *const *values,
                              char *scratch) {
    const dti_augment *a = &r->augment;
    const dti_draw draw = dti_draw_of(a, s, false), others = dti_draw_of(a, s, true);
    void *other[DT_MAX_COLUMNS] = {0};
    uint64_t partner;
    if (!dti_augment_partner(a, &draw, r->data->rows, &partner))
        return DT_OK;
    char *at = scratch + dti_rows_room(r);
    for (int c = 0; c < r->column_count; at += dti_rows_column_bytes(r, c++))
        other[c] = at;
    dt_sample p = *s;
    p.row = r->data->indices ? r->data->indices[partner] : partner;
    DTI_TRY(dti_rows_read(r, &p, p.row, other));
    const int x = a->desc.column, t = a->target;
    dti_augment_run(a, &others, other[x], (float *)(void *)scratch);
    dti_augment_mix(a, &draw, values[x], other[x], values[t], other[t]);
    return DT_OK;
}

static dt_result dti_rows_sample(const dti_rows *r, const dt_sample *s, uint64_t at,
                                 void *const *values, char *scratch) {
    dt_result result = dti_rows_read(r, s, at, values);
    if (result || !dti_rows_augment(r))
        return result;
    const dti_draw draw = dti_draw_of(&r->augment, s, false);
    dti_augment_run(&r->augment, &draw, values[r->augment.desc.column], (float *)(void *)scratch);
    return dti_augment_mixes(&r->augment) ? dti_rows_mix(r, s, values, scratch) : DT_OK;
}

/* ---- checks */

static dt_result dti_column_check_one_hot(dti_base *base, const dt_column *column, int i,
                                          const char *name) {
    const bool classes = column->dtype == DT_U8 || column->dtype == DT_I32;
    if (classes && dti_tensor_dtype(column->input) == DT_F32 &&
        dti_tensor_shape(column->input).rank == 1 && column->scale == 0.0f &&
        column->offset == 0.0f)
        return DT_OK;
    return dti_fail(base, DT_ERROR_INVALID,
                    "dataset column %d ('%s'): .one_hot needs u8 or i32 class numbers and an f32 "
                    "input [classes], without .scale and .offset",
                    i, name);
}

/* The input's own type, and U8 for f32 and i32. */
static dt_result dti_column_check_dtype(dti_base *base, const dt_column *column, int i,
                                        const char *name) {
    dt_dtype input = dti_tensor_dtype(column->input);
    if (column->data && column->one_hot)
        return dti_column_check_one_hot(base, column, i, name);
    const bool u8 = column->dtype == DT_U8 && !dti_is_half(input);
    if (!column->data || u8 || column->dtype == input) {
        bool scales = column->data && (column->scale != 0 || column->offset != 0);
        if (!scales || (column->dtype == DT_U8 && input == DT_F32))
            return DT_OK;
        return dti_fail(
            base, DT_ERROR_INVALID,
            "dataset column %d ('%s'): .scale and .offset need u8 data and an f32 input", i, name);
    }
    return dti_fail(
        base, DT_ERROR_INVALID, "dataset column %d ('%s'): the input is %s, so .dtype must be %s%s",
        i, name, dti_dtype_name(input), dti_dtype_name(input), dti_is_half(input) ? "" : " or u8");
}

static dt_result dti_column_check(dti_base *base, const dt_dataset *data, int i) {
    const dt_column *column = &data->columns[i];
    const dti_node *n = dti_node_of(column->input);
    if (n->op != DTI_OP_INPUT || n->values) {
        return dti_fail(
            base, DT_ERROR_INVALID,
            "dataset column %d: '%s' is not an input; a column needs a tensor of dt_input", i,
            n->label ? n->label : dti_op_info_of(n->op)->name);
    }
    if (!n->samples)
        return dti_fail(base, DT_ERROR_INVALID,
                        "dataset column %d: '%s' is shared by all samples (dt_input_shared), so "
                        "it has no rows",
                        i, n->label);
    for (int other = 0; other < i; other++) {
        if (data->columns[other].input.graph != column->input.graph)
            return dti_fail(base, DT_ERROR_INVALID,
                            "dataset columns %d and %d have inputs of different graphs", other, i);
        if (data->columns[other].input.id == column->input.id)
            return dti_fail(base, DT_ERROR_INVALID,
                            "dataset columns %d and %d both have the input '%s'", other, i,
                            n->label);
    }
    if (!column->data && !data->sample)
        return dti_fail(
            base, DT_ERROR_INVALID,
            "dataset column %d ('%s'): .data is NULL, and there is no dt_dataset.sample to fill it",
            i, n->label);
    if (!dti_fits_f32((double)column->scale) || !dti_fits_f32((double)column->offset))
        return dti_fail(
            base, DT_ERROR_INVALID,
            "dataset column %d ('%s'): .scale is %g and .offset %g; both must be finite", i,
            n->label, (double)column->scale, (double)column->offset);
    return dti_column_check_dtype(base, column, i, n->label);
}

static int dti_dataset_columns(const dt_dataset *data) {
    int count = 0;
    while (count < DT_MAX_COLUMNS && !dti_is_nil(data->columns[count].input))
        count++;
    return count;
}

static dt_result dti_dataset_check(dti_base *base, const dt_dataset *data) {
    int count = dti_dataset_columns(data);
    for (int i = count; i < DT_MAX_COLUMNS; i++) {
        const dt_column *column = &data->columns[i];
        if (column->data || !dti_is_nil(column->input)) {
            return dti_fail(base, DT_ERROR_INVALID,
                            "dataset column %d: its input is nil; it failed (see dt_graph_error), "
                            "or was left out",
                            count);
        }
    }
    if (count == 0)
        return dti_fail(base, DT_ERROR_INVALID, "the dataset has no columns (no input, or nil)");
    for (int i = 0; i < count; i++)
        DTI_TRY(dti_column_check(base, data, i));
    return DT_OK;
}

/* ---- opening */

static void dti_loader_column_open(dti_loader_column *c, const dt_column *from, int32_t pad) {
    const bool is_i32 = dti_tensor_dtype(from->input) == DT_I32;
    *c = (dti_loader_column){.input = from->input,
                             .is_i32 = is_i32,
                             .element_bytes = dti_dtype_bytes(dti_tensor_dtype(from->input)),
                             .data = from->data,
                             .dtype = from->dtype,
                             .elements = (size_t)dti_shape_elements(dti_tensor_shape(from->input)),
                             .pad = pad};
    if (from->data && from->one_hot)
        c->kind = DTI_COLUMN_ONE_HOT;
    else if (from->data && from->dtype == DT_U8)
        c->kind = is_i32 ? DTI_COLUMN_U8_I32 : DTI_COLUMN_U8_F32;
    else if (from->data)
        c->kind = DTI_COLUMN_WORDS;
    if (c->kind == DTI_COLUMN_U8_F32)
        dti_u8_table(c->table, (float)dti_or((double)from->scale, 1.0), from->offset);
}

static dt_result dti_rows_open(dti_base *base, const dt_dataset *data, const int32_t *pad,
                               dti_rows *r) {
    DTI_TRY(dti_dataset_check(base, data));
    r->base = base;
    r->data = data;
    r->column_count = dti_dataset_columns(data);
    for (int c = 0; c < r->column_count; c++)
        dti_loader_column_open(&r->columns[c], &data->columns[c], pad[c]);
    r->augments = data->augment != NULL;
    if (!DTI_HAS_AUGMENT && r->augments)
        return dti_fail_off(base, "dt_dataset.augment", DTI_OFF(AUGMENT));
    return r->augments ? dti_augment_open(base, data, &r->augment) : DT_OK;
}
