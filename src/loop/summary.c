/* The ops that compute a tensor, as a table: a row for each op that computes, in order. Parameters
 * belong to the first op that reads them, also through views, so those of tied layers count once.
 * Numbers are of one sample and of the graph only: dt_program_info has a device's needs. */

typedef struct dti_summary {
    const dt_graph *g;
    dti_text text;
    bool json;
    uint8_t *seen;                      /* by node: 1: needed, 2: counted */
    const char *layer;                  /* of the row: a parameter's name */
    uint64_t row, total, trained, rows; /* parameters; and rows so far */
    double macs;
} dti_summary;

static bool dti_summary_is_view(const dt_graph *g, uint32_t id) {
    const dti_node *n = &g->nodes[id];
    return n->count && dti_op_info_of(n->op)->family->view;
}

static void dti_summary_param(dti_summary *s, uint32_t id) {
    const dti_node *n = &s->g->nodes[id];
    const uint64_t elements = (uint64_t)dti_shape_elements(n->shape);
    s->layer = s->layer ? s->layer : n->label;
    if (s->seen[id] == 2)
        return;
    s->seen[id] = 2;
    s->row += elements;
    s->total += elements;
    s->trained += n->frozen || n->buffer ? 0 : elements;
}

/* A row's operand that is a parameter, or a view of one. */
static void dti_summary_params(dti_summary *s, uint32_t id) {
    const dti_node *n = &s->g->nodes[id];
    s->row = 0;
    s->layer = NULL;
    for (uint32_t k = 0; k < n->count; k++) {
        uint32_t in = dti_input_id(s->g, n, k);
        while (dti_summary_is_view(s->g, in))
            in = dti_input_id(s->g, &s->g->nodes[in], 0);
        if (s->g->nodes[in].op == DTI_OP_PARAM)
            dti_summary_param(s, in);
    }
}

/* A layer's name is that of its parameters, without the part after the last dot. */
static int dti_summary_name(const char *param) {
    const char *dot = param ? strrchr(param, '.') : NULL;
    return dot ? (int)(dot - param) : param ? (int)strlen(param) : 0;
}

static void dti_summary_row(dti_summary *s, uint32_t id) {
    const dti_node *n = &s->g->nodes[id];
    const dti_op_info *info = dti_op_info_of(n->op);
    dti_summary_params(s, id);
    const char *layer = s->layer ? s->layer : n->label;
    const int size = s->layer ? dti_summary_name(layer) : layer ? (int)strlen(layer) : 0;
    const double macs = info->family->macs ? info->family->macs(s->g, n) : 0.0;
    const unsigned long long params = s->row,
                             bytes = dti_bytes(n->dtype, (uint64_t)dti_shape_elements(n->shape));
    s->macs += macs;
    if (!s->json) {
        dti_text_add(&s->text, "%-28.*s %-16s %-20s %12llu %12llu %14.0f\n", size,
                     layer ? layer : "", info->name, dti_shape_print(n->shape, n->samples).text,
                     params, bytes, macs);
        return;
    }
    dti_text_add(&s->text, "%s{\"layer\":\"", s->rows++ ? ",\n" : "");
    dti_text_add_quoted(&s->text, layer ? layer : "", (size_t)size);
    dti_text_add(&s->text, "\",\"op\":\"%s\",\"shape\":[", info->name);
    for (int i = 0; i < n->shape.rank; i++)
        dti_text_add(&s->text, "%s%lld", i ? "," : "", (long long)n->shape.dim[i]);
    dti_text_add(&s->text,
                 "],\"samples\":%s,\"parameters\":%llu,\"bytes\":%llu,\"multiply_adds\":%.0f}",
                 n->samples ? "true" : "false", params, bytes, macs);
}

static void dti_summary_head(dti_summary *s) {
    if (s->json)
        dti_text_add(&s->text, "{\"rows\":[");
    else
        dti_text_add(&s->text, "%-28s %-16s %-20s %12s %12s %14s\n", "layer", "op", "output",
                     "parameters", "bytes", "multiply-adds");
}

static void dti_summary_foot(dti_summary *s) {
    const unsigned long long total = s->total, trained = s->trained, rest = s->total - s->trained;
    if (s->json)
        dti_text_add(&s->text,
                     "],\n\"parameters\":%llu,\"trained\":%llu,\"not_trained\":%llu,"
                     "\"parameter_bytes\":%llu,\"multiply_adds\":%.0f}\n",
                     total, trained, rest, 4 * total, s->macs);
    else
        dti_text_add(&s->text,
                     "parameters %llu (%llu trained, %llu not), %.2f MB; multiply-adds of a "
                     "sample %.0f\n",
                     total, trained, rest, 4e-6 * (double)total, s->macs);
}

static void dti_summary_write(dti_summary *s, uint32_t id) {
    s->seen[id] = 1;
    dti_need_inputs(s->g, NULL, s->seen);
    dti_summary_head(s);
    for (uint32_t i = 1; i <= id; i++) {
        if (s->seen[i] && s->g->nodes[i].count && !dti_summary_is_view(s->g, i))
            dti_summary_row(s, i);
    }
    dti_summary_foot(s);
}

DTI_PUBLIC(dt_summary,
           (dt_tensor output, dt_summary_format format, char *out, size_t size, size_t *needed),
           output.graph, DTI_OF(dt_graph) | DTI_LACKING, (output, format, out, size, needed)) {
    if (needed)
        *needed = 0;
    if (out && size)
        *out = 0;
    dti_base *base = output.graph ? output.graph->base : NULL;
    if (!base)
        return DT_ERROR_INVALID;
    if (dti_is_nil(output) || (!out && size) || (unsigned)format > DT_SUMMARY_JSON)
        return dti_fail(base, DT_ERROR_INVALID, "dt_summary: %s",
                        dti_is_nil(output) ? "a nil tensor"
                        : !out && size     ? "out is NULL, with a size"
                                           : "no such format");
    dti_summary s = {.g = output.graph,
                     .text = dti_text_open(base),
                     .json = format == DT_SUMMARY_JSON,
                     .seen = dti_alloc(base, output.graph->count)};
    if (s.seen)
        dti_summary_write(&s, output.id);
    const bool made = s.seen && s.text.ok && s.text.data;
    if (made && size)
        snprintf(out, size, "%s", s.text.data);
    if (made && needed)
        *needed = s.text.size;
    dti_text_free(&s.text);
    dti_free(base, s.seen);
    return made ? DT_OK : DT_ERROR_MEMORY;
}
