/* A random model as a line of JSON, with its results in float64 and in mixed precision. It is for
 * tools/golden/compare_autocast.py, which makes it in PyTorch. Appended to DTRAIN_RANDOM_DUMP. */
#ifndef DTRAIN_TESTS_RANDOM_DUMP_H
#define DTRAIN_TESTS_RANDOM_DUMP_H

static void rnd_dump_numbers(FILE *f, const char *name, const double *values, int64_t count) {
    fprintf(f, ",\"%s\":[", name);
    for (int64_t i = 0; i < count; i++)
        fprintf(f, "%s%.17g", i ? "," : "", values[i]);
    fprintf(f, "]");
}

static void rnd_dump_whole(FILE *f, const char *name, const int *values, int count) {
    fprintf(f, ",\"%s\":[", name);
    for (int i = 0; i < count; i++)
        fprintf(f, "%s%d", i ? "," : "", values[i]);
    fprintf(f, "]");
}

static void rnd_dump_stmt(FILE *f, const rnd_ref *r, int i) {
    const rnd_stmt *s = &r->m->stmts[i];
    int in[RND_INPUTS], number[RND_NUMBERS], dims[DT_MAX_DIMS];
    for (int k = 0; k < RND_INPUTS; k++)
        in[k] = s->in[k];
    for (int k = 0; k < RND_NUMBERS; k++)
        number[k] = s->number[k];
    for (int k = 0; k < s->shape.rank; k++)
        dims[k] = (int)s->shape.dim[k];
    fprintf(f, "%s{\"kind\":\"%s\",\"function\":\"%s\",\"real\":[%.9g,%.9g]", i ? "," : "",
            rnd_kind_names[s->kind],
            s->kind == RND_BINARY ? rnd_binary_names[s->function] : rnd_unary_names[s->function],
            (double)s->real[0], (double)s->real[1]);
    rnd_dump_whole(f, "in", in, RND_INPUTS);
    rnd_dump_whole(f, "number", number, RND_NUMBERS);
    rnd_dump_whole(f, "shape", dims, s->shape.rank);
    if (rnd_is_leaf(s->kind)) {
        const bool samples = s->kind == RND_INPUT || s->kind == RND_INDEX;
        const int64_t n = rnd_elements(s->shape) * (samples ? r->m->batch : 1);
        double *values = malloc((size_t)(n + 1) * sizeof *values);
        for (int64_t k = 0; k < n; k++)
            values[k] = rnd_value(r->m, i, k);
        rnd_dump_numbers(f, "values", values, n);
        free(values);
    }
    fprintf(f, "}");
}

static void rnd_dump(const rnd_ref *r, const rnd_expected *e, const double *got) {
    const rnd_model *m = r->m;
    FILE *f = getenv("DTRAIN_RANDOM_DUMP") ? fopen(getenv("DTRAIN_RANDOM_DUMP"), "a") : NULL;
    double coefficients[RND_LOSSES];
    if (!f || e->ill) {
        if (f)
            fclose(f);
        return;
    }
    fprintf(f, "{\"seed\":%llu,\"batch\":%d", (unsigned long long)m->seed, m->batch);
    for (int i = 0; i < m->loss_count; i++)
        coefficients[i] = (double)m->coefficients[i];
    rnd_dump_numbers(f, "coefficients", coefficients, m->loss_count);
    rnd_dump_whole(f, "losses", m->losses, m->loss_count);
    fprintf(f, ",\"stmts\":[");
    for (int i = 0; i < m->count; i++)
        rnd_dump_stmt(f, r, i);
    fprintf(f, "],\"results\":[");
    for (int i = 0; i < r->buffers; i++) {
        const rnd_result *x = &r->results[i];
        fprintf(f, "%s{\"what\":\"%s\",\"stmt\":%d", i ? "," : "", x->what, x->stmt);
        rnd_dump_numbers(f, "exact", e->value + x->at, x->count);
        rnd_dump_numbers(f, "ours", got + x->at, x->count);
        fprintf(f, "}");
    }
    fprintf(f, "]}\n");
    fclose(f);
}

#endif
