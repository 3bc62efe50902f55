/* The model that a file describes, and its comparison with the model here. A file may come from
 * anywhere. So its text is bytes with a length, and it is shown without control characters. */

static const char dti_param_line[] = "parameter '";

static void dti_model_text_params(const dt_graph *g, dti_text *text) {
    for (uint32_t i = 0; i < g->param_count; i++) {
        const dti_node *n = &g->nodes[g->params[i]];
        dti_text_add(text, "%s%s' %s%s\n", dti_param_line, n->label,
                     dti_shape_print(n->shape, false).text, n->buffer ? " (buffer)" : "");
    }
}

/* ---- ops */

/* NaNs and infinities by their bits: all of them differ. */
static void dti_model_text_float(const char *name, int index, float value, dti_text *text) {
    const uint32_t bits = dti_bits_from_f32(value);
    if (!bits)
        return;
    dti_text_add(text, ", %s%d ", name, index);
    if ((bits >> 23 & 0xFF) == 0xFF)
        dti_text_add(text, "%08x", (unsigned)bits);
    else
        dti_text_add_number(text, (double)value);
}

static void dti_model_text_attr(const dti_attr *attr, dti_text *text) {
    const size_t start = text->size;
    for (size_t k = 0; k < DTI_COUNT(attr->i); k++) {
        if (attr->i[k])
            dti_text_add(text, ", i%d %d", (int)k, (int)attr->i[k]);
    }
    for (size_t k = 0; k < DTI_COUNT(attr->f); k++)
        dti_model_text_float("f", (int)k, attr->f[k], text);
    for (size_t k = 0; k < DTI_COUNT(attr->dim); k++) {
        if (attr->dim[k])
            dti_text_add(text, ", d%d %lld", (int)k, (long long)attr->dim[k]);
    }
    if (!text->ok || text->size == start)
        return;
    memcpy(text->data + start, " (", 2); /* in the place of the first ", " */
    dti_text_add(text, ")");
}

static void dti_model_text_ops(const dt_graph *g, uint32_t count, bool attributes, dti_text *text) {
    for (uint32_t id = 1; id < count; id++) {
        const dti_node *n = &g->nodes[id];
        if (n->op == DTI_OP_PARAM || dti_is_kept_for_gradient(g, id))
            continue;
        dti_text_add(text, "%s %s%s%s%s", dti_op_info_of(n->op)->name, n->label ? "'" : "",
                     n->label ? n->label : "", n->label ? "' " : "",
                     dti_shape_print(n->shape, n->samples).text);
        if (attributes)
            dti_model_text_attr(&n->attr, text);
        dti_text_add(text, "\n");
    }
}

/* ---- lines */

static dti_slice dti_model_line(const char *text, size_t size) {
    const char *end = size ? memchr(text, '\n', size) : NULL;
    return (dti_slice){text, end ? (size_t)(end - text) : size};
}

static bool dti_model_texts_differ(const char *a, size_t a_size, const char *b, size_t b_size,
                                   size_t *line) {
    size_t at = 0;
    *line = 0;
    for (; at < a_size && at < b_size && a[at] == b[at]; at++)
        *line = a[at] == '\n' ? at + 1 : *line;
    return at < a_size || at < b_size;
}

static bool dti_model_line_is_param(dti_slice line) {
    const size_t size = sizeof dti_param_line - 1;
    return line.size >= size && !memcmp(line.data, dti_param_line, size);
}

static dti_line_text dti_show_line(dti_slice line) {
    dti_line_text shown;
    const size_t size = DTI_MIN(line.size, sizeof shown.text - 1);
    for (size_t i = 0; i < size; i++) {
        const unsigned char c = (unsigned char)line.data[i];
        shown.text[i] = c < 0x20 || c == 0x7F ? '?' : (char)c;
    }
    shown.text[size] = 0;
    return shown;
}

/* Version 1: "node 6: conv2d  [B, 2, 6, 6] of 3, 4, 5, attributes 9d44a14255cb0c94". */
static dti_slice dti_model_first_line(dti_slice line) {
    static const char tail[] = ", attributes ";
    size_t at = 0, end = line.size;
    while (at < line.size && line.data[at] != ':')
        at++;
    at = DTI_MIN(at + 2, line.size);
    while (end > at && (line.size - end < sizeof tail - 1 ||
                        memcmp(line.data + end, tail, sizeof tail - 1) != 0))
        end--;
    size_t of = end;
    while (of > at && strchr("0123456789, ", line.data[of - 1]))
        of--;
    if (of - at > 3 && !memcmp(line.data + of - 3, " of", 3))
        end = of - 3;
    return (dti_slice){line.data + at, end - at};
}

static void dti_model_text_first(const char *file, size_t size, dti_text *text) {
    for (size_t at = 0; at < size;) {
        dti_slice line = dti_model_line(file + at, size - at);
        at += line.size + 1;
        if (!dti_model_line_is_param(line))
            line = dti_model_first_line(line);
        for (size_t i = 0; i < line.size; i++) { /* a second space stood for no label */
            const bool again = i && line.data[i] == ' ' && line.data[i - 1] == ' ';
            if (!again && line.data[i])
                dti_text_add(text, "%c", line.data[i]);
        }
        dti_text_add(text, "\n");
    }
}

/* ---- comparing */

/* Whether `text` has the line; *at: where it is likely, the end of the last one found. */
static bool dti_model_has(const char *text, size_t size, dti_slice want, size_t *at) {
    for (int pass = 0; pass < 2; pass++) {
        size_t end = pass ? size : DTI_MIN(*at + want.size, size);
        for (size_t i = pass ? 0 : *at; i < size && i <= end;) {
            dti_slice line = dti_model_line(text + i, size - i);
            i += line.size + 1;
            if (line.size != want.size || memcmp(line.data, want.data, want.size) != 0)
                continue;
            *at = DTI_MIN(i, size);
            return true;
        }
    }
    return false;
}

static size_t dti_model_params(const char *text, size_t size) {
    size_t params = 0;
    for (size_t at = 0; at < size;) {
        dti_slice line = dti_model_line(text + at, size - at);
        at += line.size + 1;
        params += dti_model_line_is_param(line);
    }
    return params;
}

/* The first parameter's line of `text` that `other` lacks, or has less often. A file that repeats
 * lines takes no longer than one that does not. Empty: `other` has all. */
static dti_slice dti_model_missing(const char *text, size_t size, const char *other,
                                   size_t other_size) {
    size_t found = 0, left = dti_model_params(other, other_size);
    for (size_t at = 0; at < size;) {
        dti_slice line = dti_model_line(text + at, size - at);
        at += line.size + 1;
        if (!dti_model_line_is_param(line))
            continue;
        if (!left-- || !dti_model_has(other, other_size, line, &found))
            return line;
    }
    return (dti_slice){NULL, 0};
}

/* The difference of two models, in words. */
static void dti_model_both(dti_slice file, dti_slice here, char text[400]) {
    if (file.size && here.size)
        snprintf(text, 400, "the file has \"%s\", the graph \"%s\"", dti_show_line(file).text,
                 dti_show_line(here).text);
    else if (file.size)
        snprintf(text, 400, "the file also has \"%s\"", dti_show_line(file).text);
    else
        snprintf(text, 400, "the graph also has \"%s\"", dti_show_line(here).text);
}

static dt_result dti_model_text_contract(dti_base *base, const char *path, const char *file,
                                         size_t size, const dti_text *here) {
    const dti_slice theirs = dti_model_missing(file, size, here->data, here->size);
    const dti_slice mine = dti_model_missing(here->data, here->size, file, size);
    char text[400];
    if (!theirs.size && !mine.size)
        return DT_OK;
    dti_model_both(theirs, mine, text);
    return dti_fail(base, DT_ERROR_INVALID, "%s: a checkpoint of another model: %s", path, text);
}

/* Whether a line begins at `at`. */
static bool dti_model_begins(const char *text, size_t at) {
    return at == 0 || text[at - 1] == '\n';
}

static void dti_model_text_warn(dti_base *base, const char *path, const char *file, size_t size,
                                const dti_text *here) {
    const char *mine = here->data;
    const size_t most = DTI_MIN(size, here->size);
    size_t same, tail = 0; /* bytes of lines */
    char text[400];
    if (!dti_model_texts_differ(file, size, mine, here->size, &same))
        return;
    while (tail < most - same && file[size - 1 - tail] == mine[here->size - 1 - tail])
        tail++;
    while (tail &&
           !(dti_model_begins(file, size - tail) && dti_model_begins(mine, here->size - tail)))
        tail--;
    dti_model_both(dti_model_line(file + same, size - tail - same),
                   dti_model_line(mine + same, here->size - tail - same), text);
    dti_log(base, DT_LOG_WARNING, "%s: a checkpoint of another graph with the same parameters: %s",
            path, text);
}
