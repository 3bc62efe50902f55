/* What rows of a description say: see field.h. */

static double dti_field_number(uint32_t type, const void *at) {
    switch (type) {
    case DTI_FIELD_INT:
    case DTI_FIELD_INT_ZERO:
    case DTI_FIELD_ENUM: return *(const int *)at;
    case DTI_FIELD_U32: return *(const uint32_t *)at;
    case DTI_FIELD_U64: return (double)*(const uint64_t *)at;
    case DTI_FIELD_BOOL: return *(const bool *)at;
    case DTI_FIELD_F32: return (double)*(const float *)at;
    case DTI_FIELD_F64: return *(const double *)at;
    case DTI_FIELD_TEXT:
    case DTI_FIELD_POINTER: return *(const void *const *)at != NULL;
    default: return 0.0;
    }
}

static dti_field_at dti_fields_first(const dti_fields *fields) {
    return (dti_field_at){fields->rows, fields->names};
}

static bool dti_fields_next(const dti_fields *fields, dti_field_at *at) {
    at->row++;
    at->name += strlen(at->name) + 1;
    return at->row < fields->rows + fields->count;
}

static dti_field_at dti_fields_find(const dti_fields *fields, size_t offset) {
    dti_field_at at = dti_fields_first(fields);
    while (at.row->offset != offset && dti_fields_next(fields, &at))
        ;
    return at;
}

static void dti_fields_resolve(const dti_fields *fields, void *of) {
    for (const dti_field *f = fields->rows; f < fields->rows + fields->count; f++) {
        const double otherwise = f->range ? fields->ranges[f->range].otherwise : 0.0;
        void *at = (char *)of + f->offset;
        const double x = dti_field_number(f->type, at);
        const bool zero = f->type == DTI_FIELD_F64 || f->type == DTI_FIELD_INT_ZERO;
        const double value = zero ? dti_or(x, otherwise) : otherwise;
        if (value == x || (x != 0.0 && !zero))
            continue;
        switch (f->type) {
        case DTI_FIELD_INT:
        case DTI_FIELD_INT_ZERO: *(int *)at = (int)value; break;
        case DTI_FIELD_U32: *(uint32_t *)at = (uint32_t)value; break;
        case DTI_FIELD_U64: *(uint64_t *)at = (uint64_t)value; break;
        case DTI_FIELD_F64: *(double *)at = value; break;
        default: break;
        }
    }
}

static bool dti_field_fits(const dti_field *f, const dti_field_range *r, double x) {
    if (f->type >= DTI_FIELD_F32 && !dti_fits_f32(x))
        return false;
    if (r->single)
        x = (double)(float)x;
    return (r->above ? x > r->least : x >= r->least) && (r->below ? x < r->most : x <= r->most);
}

static dti_field_at dti_fields_wrong(const dti_fields *fields, const void *of, double *value) {
    dti_field_at at = dti_fields_first(fields);
    do {
        *value = dti_field_number(at.row->type, (const char *)of + at.row->offset);
        if (at.row->range && !dti_field_fits(at.row, &fields->ranges[at.row->range], *value))
            return at;
    } while (dti_fields_next(fields, &at));
    return (dti_field_at){NULL, NULL};
}

static dti_field_text dti_field_problem(const dti_fields *fields, dti_field_at at, double value) {
    const dti_field_range *r = &fields->ranges[at.row->range];
    dti_field_text p;
    int n = snprintf(p.text, sizeof p.text, "%s is %.10g; it must be %s%s %.10g", at.name, value,
                     r->kind ? r->kind : "", r->above ? "above" : "at least", r->least);
    if (r->most != (double)INT_MAX)
        n += snprintf(p.text + n, sizeof p.text - (size_t)n, " and %s %.10g",
                      r->below ? "below" : "at most", r->most);
    if (r->otherwise != 0.0)
        snprintf(p.text + n, sizeof p.text - (size_t)n, " (0 = %.10g)", r->otherwise);
    return p;
}

static dt_result dti_fields_check(dti_base *base, const dti_fields *fields, const void *of) {
    double value;
    const dti_field_at at = dti_fields_wrong(fields, of, &value);
    return at.row
               ? dti_fail(base, DT_ERROR_INVALID, "%s", dti_field_problem(fields, at, value).text)
               : DT_OK;
}

/* All digits: integers have more than a double. */
static void dti_field_describe(dti_text *text, uint32_t type, const void *at) {
    const char *const words = type == DTI_FIELD_TEXT ? *(const char *const *)at : NULL;
    if (type == DTI_FIELD_TEXT)
        dti_text_add(text, " '%s'", words ? words : "*");
    else if (type == DTI_FIELD_U64)
        dti_text_add(text, " %llu", (unsigned long long)*(const uint64_t *)at);
    else {
        dti_text_add(text, " ");
        dti_text_add_number(text, dti_field_number(type, at));
    }
}

static void dti_fields_describe(dti_text *text, const char *prefix, const dti_fields *fields,
                                const void *of, bool servers) {
    const size_t length = strlen(prefix);
    const bool arrow = length && prefix[length - 1] == '>'; /* "->lr" in place of "->.lr" */
    dti_field_at at = dti_fields_first(fields);
    do {
        if (at.row->scope > (servers ? DTI_SCOPE_ALL : DTI_SCOPE_JOB))
            continue;
        const size_t size = at.row->type == DTI_FIELD_U64 ? sizeof(uint64_t) : sizeof(float);
        const char *p = (const char *)of + at.row->offset; /* other arrays have floats */
        dti_text_add(text, "%s%s", prefix, at.name + arrow);
        for (uint32_t i = 0; i < at.row->count; i++)
            dti_field_describe(text, at.row->type, p + i * size);
        dti_text_add(text, "\n");
    } while (dti_fields_next(fields, &at));
}
