/* CSV files as arrays. Rows are found again by the places that the first reading kept. */

static dt_result dti_csv_check_desc(dti_base *base, const dt_csv_desc *desc) {
    if (desc->delimiter == '"' || desc->delimiter == '\n' || desc->delimiter == '\r')
        return dti_fail(base, DT_ERROR_INVALID,
                        "dt_csv_open: .delimiter must not be a quote or the end of a line");
    if (desc->max_categories < 0)
        return dti_fail(base, DT_ERROR_INVALID,
                        "dt_csv_open: .max_categories is %d; it must be at least 0",
                        desc->max_categories);
    int rules = 0;
    for (; rules < DT_MAX_CSV_RULES && desc->rules[rules].columns; rules++) {
        const dt_csv_rule *r = &desc->rules[rules];
        if ((unsigned)r->kind > DT_CSV_SKIP || (unsigned)r->missing > DT_CSV_MISSING_VALUE ||
            !dti_fits_f32(r->value))
            return dti_fail(base, DT_ERROR_INVALID,
                            "dt_csv_open: .rules[%d] ('%.100s') has an unknown .kind or .missing, "
                            "or a .value that is not finite",
                            rules, r->columns);
    }
    for (int i = rules; i < DT_MAX_CSV_RULES; i++) {
        const dt_csv_rule *r = &desc->rules[i];
        if (r->columns || r->kind || r->missing || r->value != 0.0 || r->standardize)
            return dti_fail(base, DT_ERROR_INVALID,
                            "dt_csv_open: .rules[%d] has no .columns, which ends the rules, but "
                            ".rules[%d] is set; give each .columns, \"*\" for all",
                            rules, i);
    }
    return DT_OK;
}

/* An address that differs between threads. */
static const void *dti_csv_thread(void) {
    static DTI_THREAD_LOCAL char here;
    return &here;
}

/* From now on reading touches no context: the trainer's thread may do it during a step. */
static void dti_csv_settle(dt_csv *csv) {
    csv->home = dti_csv_thread();
    dti_base_init(&csv->reading, NULL, NULL);
    csv->cursor.settled = true;
    csv->cursor.base = csv->cursor.reader.base = &csv->reading;
}

DTI_PUBLIC_NEW(dt_csv_open, (dt_ctx * ctx, const char *path, const dt_csv_desc *desc, dt_csv **out),
               ctx, DTI_CTX, (ctx, path, desc, out), dt_csv_close) {
    static const dt_csv_desc none;
    dti_base *base = dti_ctx_base(ctx);
    DTI_NEED(base, path);
    desc = desc ? desc : &none;
    DTI_TRY(dti_csv_check_desc(base, desc));
    dt_csv *csv = *out = dti_alloc(base, sizeof *csv);
    DTI_HAVE(csv);
    csv->base = base;
    csv->skip_bad = desc->skip_bad;
    csv->categories_max = desc->max_categories ? (size_t)desc->max_categories : 1000;
    if (desc->like)
        csv->categories_max = DTI_MAX(csv->categories_max, desc->like->categories_max);
    csv->path = dti_alloc_text(base, path);
    DTI_HAVE(csv->path);
    DTI_TRY(dti_csv_cursor_open(base, csv->path, desc->delimiter ? desc->delimiter : ',',
                                &csv->cursor));
    DTI_TRY(dti_csv_scan(csv, desc));
    dti_csv_settle(csv);
    return DT_OK;
}

DTI_PUBLIC_VOID(dt_csv_close, (dt_csv * csv), csv, DTI_OF(dt_csv) | DTI_UNUSED, (csv)) {
    csv->cursor.base = csv->base;
    if (csv->cursor.window)
        dti_csv_cursor_close(&csv->cursor);
    for (uint32_t i = 0; i < csv->count; i++) {
        dti_csv_categories_free(csv->base, &csv->columns[i]);
        dti_free(csv->base, csv->columns[i].name);
    }
    DTI_FREE(csv->base, csv->columns, csv->places, csv->path, csv);
}

DT_API void dt_csv_get_info(const dt_csv *csv, dt_csv_info *info) {
    if (info)
        *info = !csv ? (dt_csv_info){0} : (dt_csv_info){csv->rows, csv->skipped, (int)csv->count};
}

static double dti_csv_deviation(const dti_csv_column *column) {
    return column->count ? sqrt(column->squares / (double)column->count) : 0.0;
}

static dti_hint dti_csv_hint(const dt_csv *csv, int index) {
    return dti_sought_hint(csv->base, "dt_csv_find", index, csv, csv->count, dti_csv_name);
}

DTI_PUBLIC_OUT(dt_csv_get_column, (const dt_csv *csv, int index, dt_csv_column *out), csv,
               DTI_OF(dt_csv), (csv, index, out)) {
    if (index < 0 || (uint32_t)index >= csv->count)
        return dti_fail(csv->base, DT_ERROR_INVALID,
                        "%s: the column index is %d; the file has %u columns%s", csv->path, index,
                        csv->count, dti_csv_hint(csv, index).text);
    const dti_csv_column *c = &csv->columns[index];
    const bool numbers = c->kind == DT_CSV_NUMBER, texts = c->kind == DT_CSV_CATEGORY;
    *out = (dt_csv_column){.name = c->name, .kind = c->kind, .missing = c->missing};
    out->min = numbers ? c->min : 0.0;
    out->max = numbers ? c->max : 0.0;
    out->mean = numbers ? c->mean : 0.0;
    out->std = numbers ? dti_csv_deviation(c) : 0.0;
    out->categories = texts ? (int)c->categories : 0;
    out->category = texts ? (const char *const *)c->names : NULL;
    return DT_OK;
}

static int dti_csv_find(const dt_csv *csv, const char *name) {
    for (uint32_t i = 0; i < csv->count; i++) {
        if (!strcmp(csv->columns[i].name, name))
            return (int)i;
    }
    return -1;
}

DTI_PUBLIC_GET(int, dt_csv_find, (const dt_csv *csv, const char *name), csv, DTI_OF(dt_csv),
               (csv, name)) {
    const int found = csv && name ? dti_csv_find(csv, name) : -1;
    return csv && found < 0 ? dti_sought_none(csv->base, "dt_csv_find", name) : found;
}

/* ---- rows */

/* The next row that counts; the file is as it was when it was opened, or this is an error. */
static dt_result dti_csv_next(dt_csv *csv) {
    char why[400];
    for (;;) {
        bool more;
        dt_result result = dti_csv_cursor_next(&csv->cursor, &more);
        const dti_csv_verdict verdict =
            result || !more ? DTI_CSV_BAD : dti_csv_judge(csv, why, sizeof why);
        if (result == DT_ERROR_FORMAT ||
            (!result && (!more || (verdict == DTI_CSV_BAD && !csv->skip_bad))))
            result = dti_fail(&csv->reading, DT_ERROR_IO,
                              "%s:%llu: the file has changed since it was opened", csv->path,
                              (unsigned long long)csv->cursor.line);
        csv->next += !result && verdict == DTI_CSV_KEPT;
        if (result || verdict == DTI_CSV_KEPT)
            return result;
    }
}

static dt_result dti_csv_go_to(dt_csv *csv, uint64_t row) {
    const uint64_t at = row / DTI_CSV_STRIDE;
    if (csv->next > row || row - csv->next > DTI_CSV_STRIDE) {
        DTI_TRY(dti_csv_cursor_seek(&csv->cursor, csv->places[2 * at], csv->places[2 * at + 1]));
        csv->next = at * DTI_CSV_STRIDE;
    }
    while (csv->next < row)
        DTI_TRY(dti_csv_next(csv));
    return DT_OK;
}

static double dti_csv_value_of(const dti_csv_column *column, const char *text) {
    const bool missing = dti_csv_is_missing(text);
    double x = column->mean;
    bool found;
    if (column->kind == DT_CSV_CATEGORY)
        return (double)dti_csv_category(column, missing ? "" : text, &found);
    if (missing && column->rule.missing == DT_CSV_MISSING_VALUE)
        x = column->rule.value;
    if (!missing)
        dti_csv_number(text, &x);
    if (!column->rule.standardize)
        return x;
    const double deviation = dti_csv_deviation(column);
    return (x - column->mean) / (deviation > 0.0 ? deviation : 1.0);
}

static dt_result dti_csv_store(dt_csv *csv, const int *columns, int count, dt_dtype dtype,
                               void *out, uint64_t at) {
    for (int i = 0; i < count; i++) {
        const dti_csv_column *column = &csv->columns[columns[i]];
        const double x = dti_csv_value_of(column, dti_csv_field(&csv->cursor, (size_t)columns[i]));
        const bool fits = dtype == DT_F32
                              ? dti_fits_f32(x)
                              : x >= (double)INT32_MIN && x <= (double)INT32_MAX && x == floor(x);
        if (!fits)
            return dti_fail(&csv->reading, DT_ERROR_INVALID, "%s:%llu: the value of '%s' is %s",
                            csv->path, (unsigned long long)csv->cursor.row_line, column->name,
                            dtype == DT_F32 ? "too large for DT_F32"
                                            : "not whole, or too large for DT_I32");
        if (dtype == DT_F32)
            ((float *)out)[at + (uint64_t)i] = (float)x;
        else
            ((int32_t *)out)[at + (uint64_t)i] = (int32_t)x;
    }
    return DT_OK;
}

static dt_result dti_csv_check_read(dt_csv *csv, const int *columns, int count, uint64_t first,
                                    uint64_t rows, dt_dtype dtype) {
    if (count < 1 || (dtype != DT_F32 && dtype != DT_I32))
        return dti_fail(
            &csv->reading, DT_ERROR_INVALID,
            "dt_csv_read: count is %d; it must be at least 1, and dtype DT_F32 or DT_I32", count);
    if (first > csv->rows || rows > csv->rows - first)
        return dti_fail(&csv->reading, DT_ERROR_INVALID,
                        "%s: %llu rows from row %llu on; the file has %llu", csv->path,
                        (unsigned long long)rows, (unsigned long long)first,
                        (unsigned long long)csv->rows);
    for (int i = 0; i < count; i++) {
        if (columns[i] < 0 || (uint32_t)columns[i] >= csv->count ||
            csv->columns[columns[i]].kind == DT_CSV_SKIP)
            return dti_fail(&csv->reading, DT_ERROR_INVALID,
                            "%s: column %d of %u does not exist, or is skipped%s", csv->path,
                            columns[i], csv->count, dti_csv_hint(csv, columns[i]).text);
    }
    return DT_OK;
}

static dt_result dti_call_dt_csv_read(dt_csv *csv, const int *columns, int count, uint64_t first,
                                      uint64_t rows, dt_dtype dtype, void *out) {
    DTI_NEED(&csv->reading, columns);
    DTI_NEED(&csv->reading, out);
    dt_result result = dti_csv_check_read(csv, columns, count, first, rows, dtype);
    if (!result && rows)
        result = dti_csv_go_to(csv, first);
    for (uint64_t i = 0; i < rows && !result; i++) {
        result = dti_csv_next(csv);
        if (!result)
            result = dti_csv_store(csv, columns, count, dtype, out, i * (uint64_t)count);
    }
    if (result)
        csv->next = UINT64_MAX; /* nowhere that is known */
    return result;
}

/* On any thread, whichever owns the context. Only the owner writes a text. */
DT_API dt_result dt_csv_read(dt_csv *csv, const int *columns, int count, uint64_t first,
                             uint64_t rows, dt_dtype dtype, void *out) {
    dti_visit visit;
    if (!DTI_HERE)
        return dti_fail_off(NULL, __func__, DTI_HERE_OFF);
    DTI_NEED(NULL, csv);
    dti_enter(NULL, &visit, 0, __func__);
    dt_result result = dti_call_dt_csv_read(csv, columns, count, first, rows, dtype, out);
    dti_leave(&visit, result);
    if (!result || csv->home != dti_csv_thread() ||
        !dti_enter(csv, &visit, DTI_OF(dt_csv) | DTI_READS | DTI_TELLS, __func__))
        return result;
    return dti_leave(&visit, dti_fail(csv->base, result, "%s", csv->reading.error));
}
