/* The rows of a description: see field.h. */

static double dti_field_number(uint32_t type, const void *at) {
    uint64_t whole;
    const void *pointer;
    switch (type) {
    case DTI_FIELD_INT:
    case DTI_FIELD_INT_ZERO:
    case DTI_FIELD_ENUM: return *(const int *)at;
    case DTI_FIELD_U32: return *(const uint32_t *)at;
    case DTI_FIELD_U64: memcpy(&whole, at, sizeof whole); return (double)whole; /* or a size_t */
    case DTI_FIELD_BOOL: return *(const bool *)at;
    case DTI_FIELD_F32: return (double)*(const float *)at;
    case DTI_FIELD_F64: return *(const double *)at;
    case DTI_FIELD_TEXT:
    case DTI_FIELD_POINTER: memcpy(&pointer, at, sizeof pointer); return pointer != NULL;
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

static const char *dti_field_enumerator(const dti_field_range *r, double x) {
    return r->names && x >= 0.0 && x <= r->most ? r->names[(int)x] : NULL;
}

static bool dti_field_fits(const dti_field *f, const dti_field_range *r, double x) {
    if (r->names)
        return dti_field_enumerator(r, x) != NULL;
    if (f->type >= DTI_FIELD_F32 && !dti_fits_f32(x))
        return false;
    if (r->single)
        x = (double)(float)x;
    return (r->above ? x > r->least : x >= r->least) && (r->below ? x < r->most : x <= r->most);
}

static void dti_field_enumerators(dti_text *text, const dti_field_range *r) {
    const int most = (int)r->most;
    for (int i = 0; i <= most; i++)
        if (r->names[i])
            dti_text_add(text, "%s%s", !i ? "" : i < most ? ", " : " or ", r->names[i]);
}

static void dti_field_problem(dti_text *text, const char *prefix, dti_field_at at,
                              const dti_field_range *r, double value) {
    dti_text_add(text, "%s%s is ", prefix, at.name);
    dti_text_add_number(text, value);
    dti_text_add(text, "; it must be ");
    if (r->names) {
        dti_field_enumerators(text, r);
        return;
    }
    dti_text_add(text, "%s%s ", r->kind ? r->kind : "", r->above ? "above" : "at least");
    dti_text_add_number(text, r->least);
    if (r->most != (double)INT_MAX) {
        dti_text_add(text, " and %s ", r->below ? "below" : "at most");
        dti_text_add_number(text, r->most);
    }
    if (r->otherwise != 0.0) {
        dti_text_add(text, " (0 = ");
        dti_text_add_number(text, r->otherwise);
        dti_text_add(text, ")");
    }
}

static void dti_fields_problems(dti_text *text, const char *prefix, const dti_fields *fields,
                                const void *of) {
    dti_field_at at = dti_fields_first(fields);
    do {
        const dti_field_range *r = &fields->ranges[at.row->range];
        const double x = dti_field_number(at.row->type, (const char *)of + at.row->offset);
        if (at.row->range && !dti_field_fits(at.row, r, x))
            dti_field_problem(text, prefix, at, r, x);
    } while (dti_fields_next(fields, &at));
}

static dt_result dti_fields_check(dti_base *base, const char *prefix, const dti_fields *fields,
                                  const void *of) {
    char line[64];
    dti_text text = dti_text_open(base);
    snprintf(line, sizeof line, "\n%s", prefix);
    dti_fields_problems(&text, line, fields, of);
    dt_result result = text.ok ? DT_OK : DT_ERROR_MEMORY;
    if (text.ok && text.size)
        result = dti_fail(base, DT_ERROR_INVALID, "%.*s", (int)strcspn(text.data + 1, "\n"),
                          text.data + 1);
    dti_text_free(&text);
    return result;
}

/* All digits: integers have more than a double. */
static void dti_field_describe(dti_text *text, uint32_t type, const dti_field_range *r,
                               const void *at) {
    uint64_t whole;
    const char *name = dti_field_enumerator(r, dti_field_number(type, at));
    if (name) {
        dti_text_add(text, " %s", name);
    } else if (type == DTI_FIELD_TEXT) {
        const char *const words = *(const char *const *)at;
        dti_text_add(text, " '%s'", words ? words : "*");
    } else if (type == DTI_FIELD_U64) {
        memcpy(&whole, at, sizeof whole);
        dti_text_add(text, " %llu", (unsigned long long)whole);
    } else {
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
            dti_field_describe(text, at.row->type, &fields->ranges[at.row->range], p + i * size);
        dti_text_add(text, "\n");
    } while (dti_fields_next(fields, &at));
}
