/* Part of dtbench.c: what each launch of a plain step costs. A profile starts a launch by itself, in
 * items; here launches run one after the other as in a step, with the caches as the one before left
 * them. Launches of one kernel, node's op and shape are one row. CPU, one thread. */

#define LAUNCH_ROWS_MAX 1024

typedef struct launch_row {
    char text[128]; /* op, kernel, and of products m x n x k, strides of a, b and types */
    double ms, gflop;
    int count;
} launch_row;

static void launch_text(const dt_program *p, const dti_launch *l, launch_row *row) {
    const dt_graph *g = dti_program_code(p)->work;
    const char *op =
        l->node && l->node < g->count ? dti_op_info_of(g->nodes[l->node].op)->name : "-";
    int n = snprintf(row->text, sizeof row->text, "%s %s", op, dti_kernel_info_of(l->kernel)->name);
    if (l->kernel != DTI_K_GEMM)
        return;
    const dti_args_gemm *a = &l->args.gemm;
    snprintf(row->text + n, sizeof row->text - (size_t)n,
             " %u x %u x %u x %u, a %u %u, b %u %u, types %d %d %d", a->batch0 * a->batch1, a->m,
             a->n, a->k, a->a_row, a->a_col, a->b_row, a->b_col, l->dtype[0], l->dtype[1],
             l->dtype[2]);
    row->gflop = 2e-9 * a->m * a->n * a->k * a->batch0 * a->batch1;
}

static int compare_rows(const void *a, const void *b) {
    const launch_row *x = a, *y = b;
    return x->ms < y->ms ? 1 : x->ms > y->ms ? -1 : 0;
}

static void print_launches(const dt_program *p, const dti_exec_desc *d, const double *ms) {
    static launch_row rows[LAUNCH_ROWS_MAX];
    int count = 0;
    double total = 0;
    for (uint32_t i = 0; i < d->launch_count; i++) {
        launch_row row = {.ms = ms[i], .count = 1};
        launch_text(p, &d->launches[i], &row);
        int at = 0;
        while (at < count && strcmp(rows[at].text, row.text) != 0)
            at++;
        if (at == count && count < LAUNCH_ROWS_MAX)
            rows[count++] = (launch_row){0};
        launch_row *to = &rows[at < count ? at : count - 1];
        memcpy(to->text, row.text, sizeof to->text);
        to->ms += row.ms, to->gflop += row.gflop, to->count += row.count;
        total += row.ms;
    }
    qsort(rows, (size_t)count, sizeof *rows, compare_rows);
    for (int i = 0; i < count; i++)
        printf("{\"kind\": \"launches\", \"what\": \"%s\", \"count\": %d, \"ms\": %.4f, "
               "\"share\": %.4f, \"gflops\": %.1f}\n",
               rows[i].text, rows[i].count, rows[i].ms, rows[i].ms / total,
               rows[i].gflop / rows[i].ms * 1e3);
    printf("{\"kind\": \"launches_all\", \"count\": %u, \"ms\": %.4f}\n", d->launch_count, total);
}

/* The least of `count` steps, of each launch, by its thread's own time. */
static void launches(const char *name, int count) {
    training r = training_open(name, 1, "cpu");
    training_step(&r);
    const dti_step_slot *slot = r.session.program->now;
    const dti_exec_desc *d = &slot->exec_desc;
    double *ms = malloc(d->launch_count * sizeof *ms);
    if (!ms)
        fail(name, "no memory");
    for (int s = 0; s < WARM_STEPS + count; s++)
        for (uint32_t i = 0; i < d->launch_count; i++) {
            const double start = work_ms(1);
            dti_cpu_run_launch((const dti_cpu_exec *)(const void *)slot->exec, i);
            const double took = work_ms(1) - start;
            ms[i] = s <= WARM_STEPS ? took : DTI_MIN(ms[i], took);
        }
    print_launches(r.session.program, d, ms);
    free(ms);
    training_close(&r);
}
