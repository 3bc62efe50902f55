/* What dtbench measures of steps by a budget (dt_program_advance_for): how long frames take. One of
 * dtbench.c's files. */

static dt_tensor frame_gpt(dt_graph *g, dt_tensor *target) {
    const dt_shape time = dt_dims(LAUNCHES_TIME);
    dt_tensor x = dt_input(g, "x", DT_I32, time);
    *target = dt_input(g, "t", DT_I32, time);
    dt_tensor h = dt_nn_embedding(x, "characters", LAUNCHES_CHARACTERS, LAUNCHES_WIDTH);
    for (int i = 0; i < 4; i++)
        h = launches_gpt_layer(h, i);
    return dt_nn_linear(dt_nn_layer_norm(h, "norm", 1), "head", LAUNCHES_CHARACTERS);
}

static const launches_net frame_nets[] = {
    {"mlp", 64, launches_mlp}, {"cnn", 64, launches_cnn}, {"gpt4", 1, frame_gpt}};

static void frame_program(session *s, const launches_net *net, const char *device) {
    dt_tensor target, logits = net->make(s->graph, &target);
    dt_optim_desc optim = {.lr = 1e-4};
    dt_program_desc desc = {.label = net->name,
                            .loss = dt_cross_entropy(logits, target, NULL),
                            .batch = net->batch,
                            .optim = &optim};
    try(s->ctx, dt_store_create(s->graph, &(dt_store_desc){.device = device}, &s->store), "store");
    try(s->ctx, dt_program_create(s->store, &desc, &s->program), net->name);
    for (uint32_t i = 0; i < s->program->code->port_count; i++) { /* class numbers: 0 */
        const dti_port *port = &s->program->code->ports[i];
        const dt_tensor x = {s->graph, port->node};
        const bool whole = dti_is_whole(s->graph->nodes[x.id].dtype);
        float *values = random_floats((size_t)port->bytes / 4, 1);
        if (whole)
            memset(values, 0, (size_t)port->bytes);
        if (!port->output)
            try(s->ctx, dt_program_write(s->program, x, values, (size_t)port->bytes), net->name);
        free(values);
    }
}

/* One step in frames; on a device that runs on its own a frame lasts until that is idle. period: a
 * frame begins so many ms after the one before, and its thread sleeps till then; 0: at once. */
static void frame_step(const session *s, double budget, double period, samples *times, int most) {
    dt_step_state state = DT_STEP_READY;
    try(s->ctx, dt_program_begin(s->program, NULL), "begin");
    while (state != DT_STEP_DONE) {
        const double start = now_ms();
        try(s->ctx, dt_program_advance_for(s->program, budget, &state), "advance_for");
        try(s->ctx, dti_drive_wait(s->program), "wait");
        if (s->program->now->at == s->program->now->end)
            state = DT_STEP_DONE;
        const double took = now_ms() - start;
        if (times->count < most)
            add(times, took);
        if (took < period)
            sleep_ms((long)(period - took));
    }
    try(s->ctx, dt_program_end(s->program, NULL), "end");
}

static void frames(const char *name, int threads, const char *device, double budget, int count,
                   double period) {
    static samples times, whole, none;
    const launches_net *net = frame_nets;
    for (size_t i = 0; i < DTI_COUNT(frame_nets); i++)
        net = strcmp(name, frame_nets[i].name) ? net : &frame_nets[i];
    session s = session_open(threads, device);
    int steps = 0;
    frame_program(&s, net, device);
    for (int i = 0; i < WARM_STEPS; i++)
        frame_step(&s, budget, period, &none, 0);
    for (; times.count < count; steps++)
        frame_step(&s, budget, period, &times, count);
    for (int i = 0; i < WARM_STEPS; i++) {
        const double start = now_ms();
        try(s.ctx, dt_program_run(s.program, NULL, NULL), "run");
        add(&whole, now_ms() - start);
    }
    double sum = 0;
    for (int i = 0; i < times.count; i++)
        sum += times.ms[i];
    const double p50 = median(&times);
    printf("{\"kind\": \"frame\", \"workload\": \"%s\", \"batch\": %d, \"threads\": %d, "
           "\"device\": \"%s\", \"budget_ms\": %g, \"period_ms\": %g, \"frames\": %d, \"p50\": "
           "%.3f, \"p99\": %.3f, "
           "\"most\": %.3f, \"frames_a_step\": %.1f, \"step_ms\": %.3f, \"whole_ms\": %.3f}\n",
           net->name, net->batch, threads, device, budget, period, times.count, p50,
           times.ms[times.count * 99 / 100], times.ms[times.count - 1], (double)times.count / steps,
           sum / steps, median(&whole));
    session_close(&s);
}
