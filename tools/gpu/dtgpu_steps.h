/* Part of dtgpu.c: training steps of the networks of launches.h, and their losses beside the
 * CPU's. */

enum { TRAINING_INPUTS = 2, DEAREST = 15, LOSS_STEPS = 20, STEP_RUNS = 50 };

typedef struct training { /* with one batch to train on again and again */
    dt_ctx *ctx;
    dt_graph *graph;
    dt_store *store;
    dt_program *program;
    dt_program_desc desc;
    dt_optim_desc optim;
    const launches_net *net;
    struct {
        dt_tensor tensor;
        void *data;
        size_t bytes;
    } inputs[TRAINING_INPUTS];
    uint32_t input_count;
} training;

/* Random values and classes below 10, which every one of the networks has. */
static void training_data(training *t) {
    for (uint32_t i = 0; i < t->graph->count && t->input_count < TRAINING_INPUTS; i++) {
        const dti_node *n = &t->graph->nodes[i];
        const size_t count = (size_t)(dti_shape_elements(n->shape) * t->desc.batch);
        if (n->op != DTI_OP_INPUT)
            continue;
        uint32_t *data = malloc(4 * count + 1);
        for (size_t k = 0; data && k < count; k++) {
            const double at = dti_uniform01(1, k, i);
            const float value = (float)(2 * at - 1);
            data[k] = (uint32_t)(10 * at);
            if (n->dtype == DT_F32)
                memcpy(&data[k], &value, sizeof value);
        }
        t->inputs[t->input_count].tensor = (dt_tensor){t->graph, i};
        t->inputs[t->input_count].data = data;
        t->inputs[t->input_count++].bytes = 4 * count;
    }
}

static void training_open(training *t, const launches_net *net, const char *device, int batch) {
    dt_tensor target;
    *t = (training){.ctx = context_open(), .net = net};
    try(t->ctx, dt_graph_create(t->ctx, &t->graph), net->name);
    const dt_tensor logits = net->make(t->graph, &target);
    t->optim = (dt_optim_desc){.kind = DT_OPTIM_ADAMW, .lr = 1e-3};
    t->desc = (dt_program_desc){.label = net->name,
                                .loss = dt_cross_entropy(logits, target, NULL),
                                .batch = batch,
                                .optim = &t->optim};
    training_data(t);
    try(t->ctx, dt_store_create(t->graph, &(dt_store_desc){.device = device}, &t->store),
        net->name);
}

static void training_program(training *t) {
    dt_program_destroy(t->program);
    try(t->ctx, dt_program_create(t->store, &t->desc, &t->program), t->net->name);
}

static void training_close(training *t) {
    for (uint32_t i = 0; i < t->input_count; i++)
        free(t->inputs[i].data);
    dt_ctx_destroy(t->ctx);
}

/* Writes the batch and runs a step; the loss. */
static double training_step(training *t, double *ms) {
    dt_report report = {0};
    const double begin = now_ms();
    for (uint32_t i = 0; i < t->input_count; i++)
        try(t->ctx,
            dt_program_write(t->program, t->inputs[i].tensor, t->inputs[i].data,
                             t->inputs[i].bytes),
            t->net->name);
    try(t->ctx, dt_program_run(t->program, NULL, &report), t->net->name);
    *ms = now_ms() - begin;
    return report.loss;
}

/* The typical milliseconds of a step, after some that are not counted. */
static double training_typical(training *t, int most) {
    double ms[STEP_RUNS], one = 0;
    int n = 0;
    training_step(t, &one);
    if (has_time(2 * one))
        training_step(t, &one);
    while (n < most && (!n || has_time(2 * one))) {
        training_step(t, &one);
        ms[n++] = one;
    }
    return median_of(ms, n);
}

/* ---- steps */

typedef struct dear { /* launches of one kernel that look alike */
    const dti_vk_shader *shader;
    span first;
    uint32_t count;
    double ms;
} dear;

static int dear_order(const void *a, const void *b) {
    const double x = ((const dear *)a)->ms, y = ((const dear *)b)->ms;
    return (x < y) - (x > y);
}

static void dear_shape(const dear *d, char text[96]) {
    const dti_args_gemm *g = &d->first.args.gemm;
    const dti_args_conv *c = &d->first.args.conv;
    if (d->shader && d->shader->kernel == DTI_K_GEMM)
        snprintf(text, 96, "%u x %u x %u, %u times", g->m, g->n, g->k, g->batch0 * g->batch1);
    else if (d->shader && !strncmp(d->shader->name, "conv", 4))
        snprintf(text, 96, "%u x %u x %ux%u to %u, %ux%u", c->n, c->ci * c->groups, c->ih, c->iw,
                 c->co * c->groups, c->kh, c->kw);
    else
        snprintf(text, 96, "%u", d->first.args.map1.n);
}

static void steps_dearest(const char *net) {
    static dear list[CLOCK_QUERIES / 2];
    uint32_t count = 0;
    double all = 0;
    clock_read();
    for (uint32_t i = 0; i < clocks.count; i++) {
        const span *s = &clocks.spans[i];
        uint32_t k = 0;
        if (!s->ran)
            continue;
        all += s->ms;
        while (k < count && (list[k].first.pipeline != s->pipeline || list[k].first.x != s->x ||
                             list[k].first.y != s->y ||
                             memcmp(&list[k].first.args, &s->args, 3 * DTI_WORD_BYTES) != 0))
            k++;
        if (k == count)
            list[count++] = (dear){.shader = clock_shader(s), .first = *s};
        list[k].count++;
        list[k].ms += s->ms;
    }
    qsort(list, count, sizeof *list, dear_order);
    say("table\tdear-%s\t%s: the dearest launches, each by itself (%.3f ms in all)\tkernel\tshape"
        "\tworkgroups\ttimes\tms\tof all %%",
        net, net, all);
    for (uint32_t i = 0; i < count && i < DEAREST; i++) {
        char shape[96];
        dear_shape(&list[i], shape);
        say("row\tdear-%s\t%s\t%s\t%u\t%u\t%.4f\t%.1f", net,
            list[i].shader ? check_name(list[i].shader) : "?", shape,
            list[i].first.x * list[i].first.y, list[i].count, list[i].ms, share(list[i].ms, all));
    }
}

/* The time that the device is busy with a step, and the content of its command buffers. It is from
 * the first to the last command of those that run. Segments are recorded too, and a whole step
 * runs. */
static double steps_busy(training *t, uint32_t *launches, uint32_t *barriers) {
    double busy = 0, ms;
    clock_start((dti_vk_device *)t->store->device, CLOCK_SEGMENTS);
    training_program(t);
    clock_stop();
    *launches = *barriers = 0;
    for (int i = 0; i < 3 && (!i || has_time(2 * ms)); i++)
        training_step(t, &ms);
    if (clocks.has)
        clock_read();
    for (uint32_t i = 0; i < clocks.count; i++) {
        const span *s = &clocks.spans[i];
        if (!s->ran)
            continue;
        busy += s->ms;
        *launches += s->launches;
        *barriers += s->launches ? s->barriers : 0;
    }
    clock_close();
    return busy;
}

static void steps_net(const launches_net *net, const char *id, int batch) {
    training t;
    uint32_t launches, barriers;
    double ms;
    training_open(&t, net, id, batch);
    training_program(&t);
    const double wall = training_typical(&t, STEP_RUNS);
    const double busy = steps_busy(&t, &launches, &barriers);
    char timed[64] = "?\t?\t?\t?"; /* without timestamps */
    if (busy > 0)
        snprintf(timed, sizeof timed, "%.3f\t%.1f\t%u\t%u", busy,
                 100 - share(DTI_MIN(busy, wall), wall), launches, barriers);
    say("row\tsteps\t%s\t%d\t%.3f\t%s\t%.0f", net->name, batch, wall, timed, batch / wall * 1e3);
    clock_start((dti_vk_device *)t.store->device, CLOCK_LAUNCHES);
    training_program(&t);
    clock_stop();
    training_step(&t, &ms);
    if (clocks.has)
        steps_dearest(net->name);
    clock_close();
    training_close(&t);
}

static bool device_is_software(const char *id) {
    rig r;
    rig_open(&r, id);
    const bool software = is_software(&r);
    rig_close(&r);
    return software;
}

/* Calls `each` with every network that there is time for. Software has no whole batches. It leaves
 * out steps that would take too long, by the times of the ones before. */
static void for_each_net(const char *id, void (*each)(const launches_net *, const char *, int)) {
    static const double costs[] = {1, 2, 4, 6, 30, 3, 4}; /* of launches_nets, roughly */
    const double all = out.limit_ms;
    const bool software = device_is_software(id);
    const size_t count = DTI_COUNT(launches_nets);
    double done = 0, spent = 0;
    _Static_assert(DTI_COUNT(costs) == DTI_COUNT(launches_nets), "one for each");
    for (size_t i = 0; i < count; i++) {
        const launches_net *net = &launches_nets[i];
        out.limit_ms = 1.2 * all;
        if (!has_time(software && done > 0 ? spent / done * costs[i] : 0)) {
            say("note\t%s was left out: it would take too long", net->name);
            continue;
        }
        out.limit_ms = all * (double)(i + 1) / (double)count;
        const double begin = now_ms();
        each(net, id, software ? DTI_MAX(net->batch / 32, 1) : net->batch);
        spent += now_ms() - begin;
        done += costs[i];
    }
    out.limit_ms = all;
}

static void section_steps(const char *id) {
    say("table\tsteps\tTraining steps with AdamW: the input written, the step run and waited for"
        "\tnetwork\tbatch\twall, ms\tGPU busy, ms\tGPU idle %%\tlaunches\tbarriers\tsamples/s");
    for_each_net(id, steps_net);
}

/* ---- loss */

static void loss_net(const launches_net *net, const char *id, int most) {
    const char *const devices[2] = {id, "cpu"};
    const int batch = DTI_MIN(most, 8);
    training t[2];
    double loss[2] = {0}, ms[2] = {0};
    int steps = 0;
    for (int k = 0; k < 2; k++) {
        training_open(&t[k], net, devices[k], batch);
        training_program(&t[k]);
    }
    while (steps < LOSS_STEPS && (!steps || has_time(2 * (ms[0] + ms[1])))) {
        for (int k = 0; k < 2; k++)
            loss[k] = training_step(&t[k], &ms[k]);
        steps++;
    }
    const double off = fabs(loss[0] - loss[1]) / DTI_MAX(fabs(loss[1]), 1e-3);
    say("row\tloss\t%s\t%d\t%d\t%.6f\t%.6f\t%.2g\t%s", net->name, batch, steps, loss[0], loss[1],
        off, off < 0.02 ? "agrees" : "DIFFERS");
    if (!(off < 0.02))
        say("bad\t%s: the loss after %d steps is %.6f, the CPU's %.6f", net->name, steps, loss[0],
            loss[1]);
    for (int k = 0; k < 2; k++)
        training_close(&t[k]);
}

static void section_loss(const char *id) {
    say("table\tloss\tThe loss after some steps from the same values, on the same batch\tnetwork"
        "\tbatch\tsteps\tthis device\tCPU\trelative difference\tverdict");
    for_each_net(id, loss_net);
}
