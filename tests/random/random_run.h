/* A random model on devices, in every way that one is run: as a program, in micro-batches, by a
 * trainer. What differs from the reference, or in bits that are promised, is kept as a text. */
#ifndef DTRAIN_TESTS_RANDOM_RUN_H
#define DTRAIN_TESTS_RANDOM_RUN_H

typedef struct rnd_fault { /* the first thing that is wrong with a model */
    char text[1200];
} rnd_fault;

static void rnd_wrong(rnd_fault *f, const char *format, ...)
    __attribute__((__format__(__printf__, 2, 3)));
static void rnd_wrong(rnd_fault *f, const char *format, ...) {
    va_list list;
    if (f->text[0])
        return;
    va_start(list, format);
    vsnprintf(f->text, sizeof f->text, format, list);
    va_end(list);
}

/* A device with the model's values. */
typedef struct rnd_device {
    const rnd_model *m;
    const char *way;
    rnd_built b;
    dt_store *store;
    rnd_fault *fault;
} rnd_device;

typedef struct rnd_way {
    const char *name, *device;
    int threads;
    bool no_fast, cpu;
    bool commits; /* a step of rate 0, else gradients only */
    bool marks;   /* half of the tensors are not kept */
    bool budget;  /* in less memory, if it is found */
    dt_ctx *ctx;  /* one for many models; NULL = its own */
} rnd_way;

/* Of all nodes, also those that a call makes on its way. */
static void rnd_forget(const rnd_model *m, dt_graph *g) {
    for (uint32_t id = 1; id < g->count; id++) {
        if (dti_philox(m->seed, id, 0).v[0] & 1)
            dt_recompute((dt_tensor){g, id});
    }
}

static void rnd_device_wrong(rnd_device *d, const char *what) {
    rnd_wrong(d->fault, "%s: %s: %s", d->way, what, dt_ctx_error(d->b.ctx));
}

static void rnd_write_params(rnd_device *d, dt_store *store) {
    const rnd_model *m = d->m;
    for (int i = 0; i < m->count; i++) {
        char name[16];
        size_t bytes;
        if (!rnd_is_param(m->stmts[i].kind))
            continue;
        void *words = rnd_words(m, i, 0, 1, &bytes);
        snprintf(name, sizeof name, "x%d", i);
        if (dt_store_write(store, dt_store_find(store, name), DT_VALUE_PARAM, words, bytes))
            rnd_device_wrong(d, "dt_store_write");
        free(words);
    }
}

static bool rnd_device_open(rnd_device *d, const rnd_model *m, const rnd_way *way,
                            rnd_fault *fault) {
    const dt_ctx_desc ctx = {
        .threads = way->threads, .no_fast = way->no_fast, .no_vulkan = way->cpu};
    *d = (rnd_device){.m = m, .way = way->name, .fault = fault};
    if (!rnd_build(m, &ctx, way->ctx, &d->b)) {
        rnd_wrong(fault, "%s: %s", way->name, rnd_build_error(&d->b));
        return false;
    }
    if (dt_store_create(d->b.graph, &(dt_store_desc){.device = way->device}, &d->store)) {
        rnd_device_wrong(d, "dt_store_create");
        return false;
    }
    rnd_write_params(d, d->store);
    if (way->marks)
        rnd_forget(m, d->b.graph);
    return !fault->text[0];
}

static void rnd_device_close(rnd_device *d) {
    rnd_unbuild(&d->b);
}

/* ---- programs */

static dt_program_desc rnd_desc(const rnd_device *d, int batch) {
    const rnd_model *m = d->m;
    dt_program_desc desc = {.batch = batch, .precision = rnd_precision};
    for (int i = 0; i < m->loss_count; i++)
        desc.losses[i] = (dt_loss){d->b.at[m->losses[i]], m->coefficients[i]};
    for (int i = 0; i < m->metric_count; i++)
        desc.metrics[i] = d->b.at[m->metrics[i]];
    for (int i = 0; i < m->output_count; i++)
        desc.outputs[i] = d->b.at[m->outputs[i]];
    return desc;
}

static dt_program *rnd_program(rnd_device *d, const dt_program_desc *desc) {
    dt_program *program = NULL;
    if (dt_program_create(d->store, desc, &program))
        rnd_device_wrong(d, "dt_program_create");
    return program;
}

static void rnd_write_inputs(rnd_device *d, dt_program *program, int first, int rows) {
    for (int i = 0; i < d->m->count; i++) {
        size_t bytes;
        bool read = false;
        for (uint32_t k = 0; k < program->code->binding_count; k++)
            read = read || (program->code->bindings[k].node == d->b.at[i].id &&
                            !program->code->bindings[k].output);
        if (!rnd_is_input(d->m->stmts[i].kind) || !read)
            continue;
        void *words = rnd_words(d->m, i, first, rows, &bytes);
        if (dt_program_write(program, d->b.at[i], words, bytes))
            rnd_device_wrong(d, "dt_program_write");
        free(words);
    }
}

/* In 5/8 of what keeping everything takes, where that can be. */
static dt_program *rnd_program_within(rnd_device *d, dt_program_desc *desc) {
    dt_program_info info;
    dt_program *program = rnd_program(d, desc);
    dt_program_get_info(program, &info);
    desc->memory_bytes = info.transient_bytes * 5 / 8;
    if (!program || dt_program_create(d->store, desc, &program) == DT_ERROR_DEVICE_MEMORY)
        desc->memory_bytes = 0;
    return program ? program : rnd_program(d, desc);
}

/* Adds the terms of a run. */
static void rnd_take_terms(const rnd_ref *r, const dt_report *report, double *got) {
    const rnd_model *m = r->m;
    for (int i = 0; i < m->loss_count; i++) {
        got[2 * i] += report->loss_sum[i];
        got[2 * i + 1] += report->loss_weight[i];
    }
    for (int i = 0; i < m->metric_count; i++) {
        got[2 * (m->loss_count + i)] += report->metric_sum[i];
        got[2 * (m->loss_count + i) + 1] += report->metric_weight[i];
    }
}

static void rnd_take_floats(const rnd_result *result, const float *values, double *got) {
    for (int64_t k = 0; k < result->count; k++)
        got[result->at + k] = (double)values[k];
}

static void rnd_take_outputs(rnd_device *d, const rnd_ref *r, dt_program *program, double *got) {
    for (int i = 0; i < d->m->output_count; i++) {
        const rnd_result *x = &r->results[d->m->loss_count + d->m->metric_count + i];
        float *values = malloc((size_t)(x->count + 1) * 4);
        if (dt_program_read(program, d->b.at[x->stmt], values, (size_t)x->count * 4))
            rnd_device_wrong(d, "dt_program_read");
        else
            rnd_take_floats(x, values, got);
        free(values);
    }
}

static void rnd_take_values(rnd_device *d, const rnd_ref *r, dt_store *store, dt_value_kind kind,
                            int first, int end, double *got) {
    for (int i = first; i < end; i++) {
        const rnd_result *x = &r->results[i];
        char name[16];
        float *values = malloc((size_t)(x->count + 1) * 4);
        snprintf(name, sizeof name, "x%d", x->stmt);
        if (dt_store_read(store, dt_store_find(store, name), kind, values, (size_t)x->count * 4))
            rnd_device_wrong(d, "dt_store_read");
        else
            rnd_take_floats(x, values, got);
        free(values);
    }
}

static void rnd_take_gradients(rnd_device *d, const rnd_ref *r, dt_store *store, double *got) {
    rnd_take_values(d, r, store, DT_VALUE_GRADIENT, r->gradients, r->buffers, got);
}

static void rnd_take_buffers(rnd_device *d, const rnd_ref *r, dt_store *store, double *got) {
    rnd_take_values(d, r, store, DT_VALUE_PARAM, r->buffers, r->count, got);
}

/* ---- comparing */

enum { RND_TERMS = 1, RND_OUTPUTS = 2, RND_GRADIENTS = 4, RND_BUFFERS = 8, RND_ALL = 15 };

static bool rnd_compared(const rnd_ref *r, int i, int what) {
    const int terms = r->m->loss_count + r->m->metric_count;
    return (what & (i < terms          ? RND_TERMS
                    : i < r->gradients ? RND_OUTPUTS
                    : i < r->buffers   ? RND_GRADIENTS
                                       : RND_BUFFERS)) != 0;
}

static double rnd_worst; /* of all: off / allowed */

static void rnd_compare_norms(const rnd_ref *r, const rnd_expected *e, const double *got, int what,
                              const char *way, rnd_fault *fault) {
    for (int i = 0; i < r->count && !e->ill; i++) {
        const rnd_result *x = &r->results[i];
        const double off = rnd_norm(x, got, e->value);
        if (!rnd_compared(r, i, what))
            continue;
        if (!(off <= e->norm[i]))
            rnd_wrong(
                fault,
                "%s: %s t%d in mixed precision: the error is %.3g, its norm %.3g, allowed %.3g",
                way, x->what, x->stmt, off, rnd_norm(x, e->value, NULL), e->norm[i]);
        else
            rnd_worst = fmax(rnd_worst, off / e->norm[i]);
    }
}

static void rnd_compare(const rnd_ref *r, const rnd_expected *e, const double *got, int what,
                        const char *way, rnd_fault *fault) {
    if (r->mixed) {
        rnd_compare_norms(r, e, got, what, way, fault);
        return;
    }
    for (int i = 0; i < r->count && !e->ill; i++) {
        const rnd_result *x = &r->results[i];
        for (int64_t k = x->at; k < x->at + x->count && rnd_compared(r, i, what); k++) {
            const double off = fabs(got[k] - e->value[k]);
            if (off <= e->allowed[k]) {
                rnd_worst = fmax(rnd_worst, off / e->allowed[k]);
                continue;
            }
            rnd_wrong(
                fault, "%s: %s t%d [%d] = %.9g, the reference says %.9g: off by %.3g, allowed %.3g",
                way, x->what, x->stmt, (int)(k - x->at), got[k], e->value[k], off, e->allowed[k]);
            return;
        }
    }
}

static void rnd_compare_bits(const rnd_ref *r, const double *a, const double *b, int what,
                             const char *way, rnd_fault *fault) {
    for (int i = 0; i < r->count; i++) {
        const rnd_result *x = &r->results[i];
        for (int64_t k = x->at; k < x->at + x->count && rnd_compared(r, i, what); k++)
            if (memcmp(&a[k], &b[k], sizeof a[k])) {
                rnd_wrong(fault, "%s: %s t%d [%d] = %.9g and %.9g: not the same bits", way, x->what,
                          x->stmt, (int)(k - x->at), a[k], b[k]);
                return;
            }
    }
}

/* ---- the ways */

/* A step of rate 0 moves buffers and nothing else. */
static void rnd_check_still(rnd_device *d) {
    for (int i = 0; i < d->m->count; i++) {
        char name[16];
        size_t bytes;
        const int kind = d->m->stmts[i].kind;
        if (kind != RND_PARAM && kind != RND_FROZEN)
            continue;
        void *words = rnd_words(d->m, i, 0, 1, &bytes), *now = malloc(bytes + 1);
        snprintf(name, sizeof name, "x%d", i);
        if (dt_store_read(d->store, dt_store_find(d->store, name), DT_VALUE_PARAM, now, bytes))
            rnd_device_wrong(d, "dt_store_read");
        else if (memcmp(words, now, bytes))
            rnd_wrong(d->fault, "%s: a step of rate 0 changed t%d", d->way, i);
        free(words);
        free(now);
    }
}

/* Where a step leaves nothing after: two at once, and what the second one says. */
static dt_result rnd_run_or_start(dt_program *program, const dt_step_desc *step,
                                  dt_report *report) {
    if (program->step_slot_count == 1)
        return dt_program_run(program, step, report);
    dt_result result = dt_program_start(program, step);
    if (!result)
        result = dt_program_start(program, step);
    if (!result)
        result = dt_program_wait(program, NULL);
    return result ? result : dt_program_wait(program, report);
}

/* One program over the whole batch: losses, metrics, outputs, gradients, and buffers after it. */
static void rnd_run_program(const rnd_ref *r, const rnd_way *way, bool eval, double *got,
                            rnd_fault *fault) {
    rnd_device d;
    dt_report report;
    memset(got, 0, (size_t)r->total * sizeof *got);
    if (rnd_device_open(&d, r->m, way, fault)) {
        dt_program_desc desc = rnd_desc(&d, r->m->batch);
        const dt_optim_desc still = {.kind = DT_OPTIM_SGD, .lr = DT_ZERO};
        desc.gradients = !eval;
        desc.in_flight = eval ? 2 : 1;
        if (!eval && way->commits)
            desc.optim = &still;
        dt_program *program = way->budget ? rnd_program_within(&d, &desc) : rnd_program(&d, &desc);
        const dt_step_desc step = {.seed = r->m->seed, .step = 1};
        if (program)
            rnd_write_inputs(&d, program, 0, r->m->batch);
        if (program && rnd_run_or_start(program, &step, &report)) {
            rnd_device_wrong(&d, "dt_program_run");
        } else if (program) {
            rnd_take_terms(r, &report, got);
            rnd_take_outputs(&d, r, program, got);
            if (!eval)
                rnd_take_gradients(&d, r, d.store, got);
            if (desc.optim)
                rnd_check_still(&d);
            if (desc.optim)
                rnd_take_buffers(&d, r, d.store, got);
        }
    }
    rnd_device_close(&d);
}

/* Programs of the sizes of the micro-batches. False: their weights cannot be known before. */
static bool rnd_micros_weigh(rnd_device *d, dt_program **programs, double *weights) {
    bool ok = true;
    for (int i = 0, row = 0; i < d->m->micro_count && ok; row += d->m->micros[i++]) {
        rnd_write_inputs(d, programs[i], row, d->m->micros[i]);
        dt_result result = dt_program_add_loss_weights(programs[i], weights);
        if (result && result != DT_ERROR_UNSUPPORTED)
            rnd_device_wrong(d, "dt_program_add_loss_weights");
        ok = !result;
    }
    for (int i = 0; i < d->m->loss_count; i++)
        ok = ok && weights[i] >= 0;
    return ok;
}

static void rnd_run_micros(const rnd_ref *r, const rnd_way *way, double *got, bool *ran,
                           rnd_fault *fault) {
    const rnd_model *m = r->m;
    rnd_device d;
    dt_program *programs[8] = {NULL};
    double weights[DT_MAX_TERMS] = {0};
    memset(got, 0, (size_t)r->total * sizeof *got);
    *ran = false;
    bool ok = rnd_device_open(&d, m, way, fault);
    for (int i = 0; i < m->micro_count && ok; i++) {
        dt_program_desc desc = rnd_desc(&d, m->micros[i]);
        memset(desc.outputs, 0, sizeof desc.outputs);
        desc.gradients = desc.accumulate = true;
        programs[i] = rnd_program(&d, &desc);
        ok = programs[i] != NULL;
    }
    *ran = ok = ok && rnd_micros_weigh(&d, programs, weights);
    for (int i = 0, row = 0; i < m->micro_count && ok; row += m->micros[i++]) {
        dt_report report;
        const dt_step_desc step = {.seed = m->seed,
                                   .step = 1,
                                   .first_row = (uint32_t)row,
                                   .micro_batch = (uint32_t)i,
                                   .micro_batches = (uint32_t)m->micro_count,
                                   .loss_weights = weights};
        rnd_write_inputs(&d, programs[i], row, m->micros[i]);
        ok = !dt_program_run(programs[i], &step, &report);
        if (ok)
            rnd_take_terms(r, &report, got);
        else
            rnd_device_wrong(&d, "a micro-batch");
    }
    if (ok)
        rnd_take_gradients(&d, r, d.store, got);
    rnd_device_close(&d);
}

#endif
