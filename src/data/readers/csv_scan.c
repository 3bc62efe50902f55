/* The first reading of a CSV file: the kinds of its columns, which rows count, and where they
 * are. */

/* ---- categories */

/* Where a text is among a column's, or would be. */
static size_t dti_csv_category(const dti_csv_column *column, const char *text, bool *found) {
    size_t low = 0, high = column->categories;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (strcmp(column->names[middle], text) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    *found = low < column->categories && !strcmp(column->names[low], text);
    return low;
}

/* One more than may be is kept, to know that there are. */
static dt_result dti_csv_category_add(dt_csv *csv, dti_csv_column *column, const char *text) {
    bool found;
    const size_t at = dti_csv_category(column, text, &found);
    if (found || column->categories > csv->categories_max)
        return DT_OK;
    DTI_HAVE(DTI_RESERVE(csv->base, column->names, column->capacity, column->categories + 1));
    char *copy = dti_alloc_text(csv->base, text);
    DTI_HAVE(copy);
    memmove(column->names + at + 1, column->names + at,
            (column->categories - at) * sizeof *column->names);
    column->names[at] = copy;
    column->categories++;
    return DT_OK;
}

static void dti_csv_categories_free(dti_base *base, dti_csv_column *column) {
    for (size_t i = 0; i < column->categories; i++)
        dti_free(base, column->names[i]);
    dti_free(base, column->names);
    column->names = NULL;
    column->categories = column->capacity = 0;
}

/* ---- columns */

static const char *dti_csv_name(const void *csv, uint32_t i) {
    return ((const dt_csv *)csv)->columns[i].name;
}

static const dt_csv_rule *dti_csv_rule_of(const dt_csv_desc *desc, const char *name) {
    static const dt_csv_rule none = {.kind = DT_CSV_GUESS};
    for (int i = 0; i < DT_MAX_CSV_RULES && desc->rules[i].columns; i++) {
        if (dti_glob(desc->rules[i].columns, name))
            return &desc->rules[i];
    }
    return &none;
}

static const char *dti_csv_other_delimiter(const char *text) {
    return strchr(text, ';')    ? "';': is it the .delimiter?"
           : strchr(text, '\t') ? "'\\t': is it the .delimiter?"
                                : "";
}

/* INVALID: a pattern matches no column, or a rule decides none. */
static dt_result dti_csv_check_rules(const dt_csv *csv, const dt_csv_desc *desc) {
    for (int i = 0; i < DT_MAX_CSV_RULES && desc->rules[i].columns; i++) {
        const char *all = desc->rules[i].columns;
        const dti_hint missed = dti_glob_missed(all, "column", csv, csv->count, dti_csv_name);
        const char *other = csv->count == 1 ? dti_csv_other_delimiter(csv->columns[0].name) : "";
        bool decides = false;
        for (uint32_t k = 0; k < csv->count; k++)
            decides = decides || dti_csv_rule_of(desc, csv->columns[k].name) == &desc->rules[i];
        if (missed.text[0] || !decides)
            return dti_fail(
                csv->base, DT_ERROR_INVALID, "%s: .rules[%d].columns = \"%.100s\": %s%s%s",
                csv->path, i, all,
                missed.text[0]
                    ? missed.text
                    : "it applies to no column: earlier rules match all its columns; put it first",
                *other ? "; the first line has " : "", other);
    }
    return DT_OK;
}

/* Another file's column, whole. */
static dt_result dti_csv_column_like(dt_csv *csv, const dt_csv *like, dti_csv_column *column) {
    const int at = dti_csv_find(like, column->name);
    if (at < 0) {
        column->kind = DT_CSV_SKIP;
        return DT_OK;
    }
    const dti_csv_column *model = &like->columns[at];
    char *name = column->name;
    *column = *model;
    column->name = name;
    column->rule.columns = NULL;
    column->names = NULL;
    column->categories = column->capacity = 0;
    column->missing = 0;
    for (size_t i = 0; i < model->categories; i++)
        DTI_TRY(dti_csv_category_add(csv, column, model->names[i]));
    return DT_OK;
}

static dt_result dti_csv_column_make(dt_csv *csv, const dt_csv_desc *desc, uint32_t i) {
    char number[16];
    dti_csv_column *column = &csv->columns[i];
    snprintf(number, sizeof number, "%u", i);
    const char *field = dti_csv_field(&csv->cursor, i);
    const char *name = desc->no_header || !*field ? number : field;
    column->name = dti_alloc_text(csv->base, name);
    DTI_HAVE(column->name);
    for (uint32_t k = 0; k < i; k++) {
        if (!strcmp(csv->columns[k].name, name))
            return dti_fail(csv->base, DT_ERROR_FORMAT,
                            "%s:%llu: two columns are named '%s', numbers %u and %u; rename one in "
                            "this line",
                            csv->path, (unsigned long long)csv->cursor.row_line, name, k, i);
    }
    if (desc->like)
        return dti_csv_column_like(csv, desc->like, column);
    column->rule = *dti_csv_rule_of(desc, name);
    column->rule.columns = NULL; /* the caller's */
    column->kind = column->rule.kind;
    return DT_OK;
}

static dt_result dti_csv_has_all(const dt_csv *csv, const dt_csv *like) {
    for (uint32_t i = 0; i < like->count; i++) {
        if (like->columns[i].kind != DT_CSV_SKIP && dti_csv_find(csv, like->columns[i].name) < 0)
            return dti_fail(csv->base, DT_ERROR_FORMAT,
                            "%s: the column '%s' of %s is missing; if it is a target, give it a "
                            "rule with DT_CSV_SKIP when %s is opened",
                            csv->path, like->columns[i].name, like->path, like->path);
    }
    return DT_OK;
}

static dt_result dti_csv_head(dt_csv *csv, const dt_csv_desc *desc) {
    bool more;
    DTI_TRY(dti_csv_cursor_next(&csv->cursor, &more));
    if (!more)
        return dti_fail(csv->base, DT_ERROR_FORMAT, "%s: it is empty", csv->path);
    csv->columns = dti_alloc_array(csv->base, csv->cursor.count, sizeof *csv->columns);
    DTI_HAVE(csv->columns);
    csv->count = (uint32_t)csv->cursor.count;
    for (uint32_t i = 0; i < csv->count; i++)
        DTI_TRY(dti_csv_column_make(csv, desc, i));
    return desc->like ? dti_csv_has_all(csv, desc->like) : dti_csv_check_rules(csv, desc);
}

/* ---- rows */

/* Whether a missing value is replaced. The kind of a column, and whether it has the category, is
 * known after the first reading. */
static bool dti_csv_stands_for_missing(const dti_csv_column *column, bool known) {
    const bool takes = column->rule.missing != DT_CSV_MISSING_ERROR;
    bool found;
    if (!takes || !known || column->kind == DT_CSV_NUMBER)
        return takes;
    dti_csv_category(column, "", &found);
    return found;
}

/* A value of a column that is read. */
static bool dti_csv_value_fits(const dti_csv_column *column, const char *text, bool known,
                               char *why, size_t size) {
    double number;
    bool found = true;
    if (dti_csv_is_missing(text)) {
        if (dti_csv_stands_for_missing(column, known))
            return true;
        snprintf(why, size, "the value of '%s' is missing%s%s%s; %s", dti_show(column->name).text,
                 *text ? " ('" : "", text, *text ? "' counts as missing)" : "",
                 known ? ".skip_bad leaves the row out" : "set .missing of a rule, or .skip_bad");
        return false;
    }
    if (column->kind == DT_CSV_NUMBER && !dti_csv_number(text, &number)) {
        const char *almost = dti_csv_almost(text);
        snprintf(why, size, "'%s' of '%s' is not a number%s%s", dti_show(text).text,
                 dti_show(column->name).text, almost ? ": " : "", almost ? almost : "");
        return false;
    }
    if (column->kind == DT_CSV_CATEGORY && known)
        dti_csv_category(column, text, &found);
    if (!found)
        snprintf(why, size, "'%s' is not one of the %zu categories of '%s'", dti_show(text).text,
                 column->categories, dti_show(column->name).text);
    return found;
}

/* A row that is left out may have anything else in it: its categories were not learnt. */
static bool dti_csv_is_left(const dt_csv *csv) {
    for (uint32_t i = 0; i < csv->count; i++) {
        if (csv->columns[i].kind != DT_CSV_SKIP &&
            csv->columns[i].rule.missing == DT_CSV_MISSING_DROP &&
            dti_csv_is_missing(dti_csv_field(&csv->cursor, i)))
            return true;
    }
    return false;
}

/* A row with another number of values may have another delimiter. */
static void dti_csv_explain_count(const dt_csv *csv, char *why, size_t size) {
    const dti_csv_cursor *c = &csv->cursor;
    const char *other = "";
    for (size_t i = 0; i < c->count && !*other; i++)
        other = dti_csv_other_delimiter(dti_csv_field(c, i));
    snprintf(why, size, "%zu values for %u columns%s%s", c->count, csv->count,
             *other ? "; the row has " : "", other);
}

static dti_csv_verdict dti_csv_judge(const dt_csv *csv, char *why, size_t size) {
    const dti_csv_cursor *c = &csv->cursor;
    if (c->count != csv->count) {
        dti_csv_explain_count(csv, why, size);
        return DTI_CSV_BAD;
    }
    if (dti_csv_is_left(csv))
        return DTI_CSV_LEFT;
    for (uint32_t i = 0; i < csv->count; i++) {
        if (csv->columns[i].kind != DT_CSV_SKIP &&
            !dti_csv_value_fits(&csv->columns[i], dti_csv_field(c, i), csv->known, why, size))
            return DTI_CSV_BAD;
    }
    return DTI_CSV_KEPT;
}

/* Welford's running mean and squares. */
static void dti_csv_measure(dti_csv_column *column, double x) {
    column->min = column->count ? DTI_MIN(column->min, x) : x;
    column->max = column->count ? DTI_MAX(column->max, x) : x;
    const double before = x - column->mean;
    column->mean += before / (double)++column->count;
    column->squares += before * (x - column->mean);
}

/* Counts a value that is not a number. The first is kept for messages. */
static void dti_csv_odd(const dt_csv *csv, dti_csv_column *column, const char *text) {
    const char *why = column->odd == column->almost ? dti_csv_almost(text) : NULL;
    column->almost += why != NULL;
    if (column->odd++)
        return;
    column->odd_why = why;
    column->odd_line = csv->cursor.row_line;
    column->odd_text = dti_show(text);
}

static dt_result dti_csv_learn(dt_csv *csv, dti_csv_column *column, const char *text) {
    double number;
    if (column->kind == DT_CSV_SKIP)
        return DT_OK;
    const bool missing = dti_csv_is_missing(text);
    column->missing += missing;
    if (csv->known)
        return DT_OK;
    if (missing)
        return column->kind == DT_CSV_NUMBER ? DT_OK : dti_csv_category_add(csv, column, "");
    if (column->kind != DT_CSV_CATEGORY) {
        if (dti_csv_number(text, &number))
            dti_csv_measure(column, number);
        else
            dti_csv_odd(csv, column, text);
    }
    return column->kind == DT_CSV_NUMBER ? DT_OK : dti_csv_category_add(csv, column, text);
}

static dt_result dti_csv_keep(dt_csv *csv, uint64_t place, uint64_t line) {
    const size_t at = 2 * (size_t)(csv->rows / DTI_CSV_STRIDE);
    if (csv->rows % DTI_CSV_STRIDE == 0) {
        DTI_HAVE(DTI_RESERVE(csv->base, csv->places, csv->place_capacity, at + 2));
        csv->places[at] = place;
        csv->places[at + 1] = line;
    }
    csv->rows++;
    for (uint32_t i = 0; i < csv->count; i++)
        DTI_TRY(dti_csv_learn(csv, &csv->columns[i], dti_csv_field(&csv->cursor, i)));
    return DT_OK;
}

static void dti_csv_tell_skipped(const dt_csv *csv, const dti_csv_skipped *bad) {
    if (bad->rows)
        dti_log(csv->base, DT_LOG_WARNING,
                "%s: %llu of its %llu rows are bad and left out; the first is in line %llu: %s",
                csv->path, (unsigned long long)bad->rows,
                (unsigned long long)(csv->rows + csv->skipped), (unsigned long long)bad->line,
                bad->why);
}

static dt_result dti_csv_rows(dt_csv *csv) {
    char why[400];
    dti_csv_skipped bad = {0};
    for (;;) {
        bool more;
        const uint64_t place = dti_csv_cursor_place(&csv->cursor), line = csv->cursor.line;
        DTI_TRY(dti_csv_cursor_next(&csv->cursor, &more));
        if (!more) {
            dti_csv_tell_skipped(csv, &bad);
            return DT_OK;
        }
        const dti_csv_verdict verdict = dti_csv_judge(csv, why, sizeof why);
        if (verdict == DTI_CSV_BAD && !csv->skip_bad)
            return dti_csv_wrong(&csv->cursor, csv->cursor.row_line, why);
        if (verdict == DTI_CSV_BAD && !bad.rows++) { /* the first one's reason is kept */
            bad.line = csv->cursor.row_line;
            snprintf(bad.why, sizeof bad.why, "%s", why);
        }
        csv->skipped += verdict != DTI_CSV_KEPT;
        if (verdict == DTI_CSV_KEPT)
            DTI_TRY(dti_csv_keep(csv, place, line));
    }
}

/* A column whose values are all numbers is of numbers, else of categories. The log names the value
 * that decided it. FORMAT if every other value looks like a number: then categories are not
 * intended. */
static dt_result dti_csv_guess(dt_csv *csv, dti_csv_column *c) {
    const unsigned long long line = c->odd_line, numbers = c->count, all = c->count + c->odd;
    const char *cell = c->odd_text.text;
    c->kind = c->count && !c->odd ? DT_CSV_NUMBER : DT_CSV_CATEGORY;
    if (c->odd && c->odd == c->almost)
        return dti_fail(csv->base, DT_ERROR_FORMAT,
                        "%s:%llu: '%s' of '%s' is not a number: %s. %llu of its %llu values are "
                        "numbers. Give the column a rule with .kind %sDT_CSV_CATEGORY",
                        csv->path, line, cell, c->name, c->odd_why, numbers, all,
                        numbers ? "DT_CSV_NUMBER (.skip_bad leaves such rows out) or " : "");
    if (c->odd)
        dti_log(csv->base, c->count || c->almost ? DT_LOG_WARNING : DT_LOG_INFO,
                "%s:%llu: '%s' is not a number, so '%s' has categories; %llu of its %llu values "
                "are numbers. %s",
                csv->path, line, cell, c->name, numbers, all,
                numbers ? "To choose, add a rule with .kind = DT_CSV_NUMBER or DT_CSV_CATEGORY"
                        : "To confirm it, and to silence this line, add a rule with .kind = "
                          "DT_CSV_CATEGORY");
    return DT_OK;
}

/* The kind of a column, after all its values were seen. */
static dt_result dti_csv_decide(dt_csv *csv, dti_csv_column *column) {
    if (column->kind == DT_CSV_SKIP || csv->known)
        return DT_OK;
    DTI_TRY(column->kind == DT_CSV_GUESS ? dti_csv_guess(csv, column) : DT_OK);
    if (column->kind == DT_CSV_NUMBER)
        dti_csv_categories_free(csv->base, column);
    if (column->kind == DT_CSV_NUMBER && column->rule.standardize &&
        !dti_fits_f32(sqrt(column->squares)))
        return dti_fail(csv->base, DT_ERROR_FORMAT,
                        "%s: the numbers of '%s' are too large to be standardized", csv->path,
                        column->name);
    if (column->kind == DT_CSV_CATEGORY && column->categories > csv->categories_max)
        return dti_fail(csv->base, DT_ERROR_FORMAT,
                        "%s: the column '%s' has more than %zu different texts: skip it by a rule, "
                        "or raise .max_categories",
                        csv->path, column->name, csv->categories_max);
    return DT_OK;
}

static dt_result dti_csv_scan(dt_csv *csv, const dt_csv_desc *desc) {
    const dti_csv_cursor *c = &csv->cursor;
    const uint64_t place = dti_csv_cursor_place(c), line = c->line;
    csv->known = desc->like != NULL;
    DTI_TRY(dti_csv_head(csv, desc));
    if (desc->no_header)
        DTI_TRY(dti_csv_cursor_seek(&csv->cursor, place, line));
    DTI_TRY(dti_csv_rows(csv));
    for (uint32_t i = 0; i < csv->count; i++)
        DTI_TRY(dti_csv_decide(csv, &csv->columns[i]));
    csv->known = true;
    csv->next = UINT64_MAX; /* nowhere that is known */
    return csv->rows
               ? DT_OK
               : dti_fail(csv->base, DT_ERROR_INVALID, "%s: it has no rows to read (%llu left out)",
                          csv->path, (unsigned long long)csv->skipped);
}
