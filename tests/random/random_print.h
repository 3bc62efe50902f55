/* A random model as C: the calls that build it, for a reader and for a compiler. */
#ifndef DTRAIN_TESTS_RANDOM_PRINT_H
#define DTRAIN_TESTS_RANDOM_PRINT_H

static const char *const rnd_texts[] = {
#define RND_X(id, text) text,
    RND_KINDS(RND_X)
#undef RND_X
};
static const char *const rnd_kind_names[] = {
#define RND_X(id, text) #id,
    RND_KINDS(RND_X)
#undef RND_X
};

static void rnd_print_dims(dt_shape s) {
    printf("dt_dims(");
    for (int i = 0; i < s.rank; i++)
        printf("%s%lld", i ? ", " : "", (long long)s.dim[i]);
    printf(")");
}

static void rnd_print_real(float x) {
    char text[32];
    snprintf(text, sizeof text, "%.9g", (double)x);
    printf("%s%sf", text, strpbrk(text, ".e") ? "" : ".0");
}

static void rnd_print_call(const rnd_stmt *s, int number) {
    const char *const function =
        s->kind == RND_BINARY ? rnd_binary_names[s->function] : rnd_unary_names[s->function];
    for (const char *c = rnd_texts[s->kind]; *c; c++) {
        const bool digit = c[1] >= '0' && c[1] <= '9';
        if (*c == '$' && s->in[c[1] - '0'] < 0)
            printf("(dt_tensor){0}"), c++;
        else if (*c == '$')
            printf("t%d", s->in[*++c - '0']);
        else if (*c == '#' && digit)
            printf("%d", (int)s->number[*++c - '0']);
        else if (*c == '~' && digit)
            rnd_print_real(s->real[*++c - '0']);
        else if (*c == '@')
            rnd_print_dims(s->shape);
        else if (*c == '?')
            printf("%s", s->number[0] ? "true" : "false");
        else if (*c == '^')
            printf("%s", function);
        else if (*c == '%')
            printf("%d", number);
        else
            putchar(*c);
    }
}

static void rnd_print_values(const rnd_model *m, int i) {
    const rnd_stmt *s = &m->stmts[i];
    const bool samples = s->kind == RND_INPUT || s->kind == RND_INDEX;
    const int64_t n = rnd_elements(s->shape) * (samples ? m->rows : 1);
    printf(" //");
    if (samples)
        printf(" %d rows of", m->rows);
    for (int64_t k = 0; k < n && k < 12; k++)
        printf(" %.9g", rnd_value(m, i, k));
    printf("%s", n > 12 ? " ..." : "");
}

static void rnd_print(const rnd_model *m) {
    for (int i = 0; i < m->count; i++) {
        printf("    dt_tensor t%d = ", i);
        rnd_print_call(&m->stmts[i], i);
        printf(";");
        if (rnd_is_leaf(m->stmts[i].kind))
            rnd_print_values(m, i);
        printf("\n");
    }
    printf("    dt_program_desc desc = {.batch = %d, .losses = {", m->batch);
    for (int i = 0; i < m->loss_count; i++)
        printf("%s{t%d, %.9gf}", i ? ", " : "", m->losses[i], (double)m->coefficients[i]);
    printf("}");
    for (int i = 0; i < m->metric_count; i++)
        printf("%st%d", i ? ", " : ", .metrics = {", m->metrics[i]);
    printf("%s", m->metric_count ? "}" : "");
    for (int i = 0; i < m->output_count; i++)
        printf("%st%d", i ? ", " : ", .outputs = {", m->outputs[i]);
    printf("%s, .gradients = true%s};\n", m->output_count ? "}" : "",
           rnd_precision ? ", .precision = DT_PRECISION_BF16" : "");
    printf("    // micro-batches:");
    for (int i = 0; i < m->micro_count; i++)
        printf(" %d", m->micros[i]);
    printf(
        "; a trainer: %d rows in order, batch %d, batch slices %d, accumulate %d, optimizer %d\n",
        m->rows, m->batch, m->batch_slices, m->accumulate, (int)m->optim);
    fflush(stdout);
}

#endif
