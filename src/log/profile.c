/* A trace of steps ("Trace Event Format", Google). It has complete events, "ph":"X", of launches. A
 * step that is made part by part knows when they began and ended. */

#define DTI_PROFILE_STEPS 100
#define DTI_PROFILE_PART_MS 50.0

static double dti_profile_now(const dt_profile *p) {
    return (double)(dti_now_ns() - p->began) * 1e-3;
}

static void dti_profile_open(dt_profile *p, const char *name, const char *category, int thread,
                             double begin, double length) {
    dti_text *to = &p->events;
    dti_text_add(to, "{\"ph\":\"X\",\"cat\":\"%s\",\"pid\":%d,\"tid\":%d,\"ts\":", category,
                 p->rank, thread);
    dti_text_add_number(to, begin);
    dti_text_add(to, ",\"dur\":");
    dti_text_add_number(to, length > 0.0 ? length : 0.0);
    dti_text_add(to, ",\"name\":\"");
    dti_text_add_quoted(to, name, strlen(name));
    dti_text_add(to, "\",\"args\":{\"rank\":%d", p->rank);
}

static void dti_profile_argument(dt_profile *p, const char *name, uint64_t value) {
    dti_text_add(&p->events, ",\"%s\":%llu", name, (unsigned long long)value);
}

static void dti_profile_close(dt_profile *p) {
    dti_text_add(&p->events, "}},\n");
}

/* ---- launches */

/* The thread of a device; 1 and more. */
static int dti_profile_device(dt_profile *p, const char *id) {
    const int count = DTI_COUNT(p->devices);
    int i = 0;
    while (i < count - 1 && p->devices[i][0] && strcmp(p->devices[i], id) != 0)
        i++;
    if (!p->devices[i][0])
        snprintf(p->devices[i], sizeof p->devices[i], "%s", id);
    return i + 1;
}

/* Of each value that it binds once. */
static uint64_t dti_profile_bytes(const dti_code *code, const dti_launch *l) {
    const int bindings = dti_kernel_info_of(l->kernel)->bindings;
    uint64_t bytes = 0;
    for (int i = 0; i < bindings; i++) {
        bool again = l->value[i] == DTI_UNBOUND || l->value[i] >= code->list.value_count;
        for (int k = 0; k < i; k++)
            again = again || l->value[k] == l->value[i];
        bytes += again ? 0 : code->places[l->value[i]].bytes;
    }
    return bytes;
}

static uint64_t dti_profile_flops(const dti_launch *l) {
    const dti_kernel_info *k = dti_kernel_info_of(l->kernel);
    return k->effort ? k->effort(l, 0, k->local[0] ? k->local[0] : 64u).flops : l->items;
}

/* Launches of the commit belong to no node. */
static dti_name dti_profile_name(const dti_code *code, const dti_launch *l) {
    dti_name name;
    if (l->node && l->node < code->work->count)
        return dti_tensor_name((dt_tensor){code->work, l->node});
    snprintf(name.text, sizeof name.text, "%s", dti_kernel_info_of(l->kernel)->name);
    return name;
}

static void dti_profile_launch(dt_profile *p, const dt_program *program, int thread, double begin,
                               const dti_exec_time *t) {
    const dti_code *code = program->code;
    const dti_launch *l = &code->list.launches[t->launch];
    const bool backward = l->node >= code->backward_node;
    const dti_name name = dti_profile_name(code, l);
    dti_profile_open(p, name.text,
                     !l->node   ? "commit"
                     : backward ? "backward"
                                : "forward",
                     thread, begin + t->begin * 1e3, (t->end - t->begin) * 1e3);
    dti_text_add(&p->events, ",\"kernel\":\"%s\"", dti_kernel_info_of(l->kernel)->name);
    dti_profile_argument(p, "bytes", dti_profile_bytes(code, l));
    dti_profile_argument(p, "flops", dti_profile_flops(l));
    dti_profile_argument(p, "launch", t->launch);
    dti_profile_close(p);
}

/* The launches of the part that began at `begin`; without a device's clock it is one event. */
static void dti_profile_launches(dt_profile *p, const dt_program *program, int thread,
                                 double begin) {
    dti_exec_time times[DTI_EXEC_TIMES];
    const uint32_t count = program->store->device->backend->exec_times(program->now->exec, times);
    for (uint32_t i = 0; i < count; i++)
        dti_profile_launch(p, program, thread, begin, &times[i]);
    if (count)
        return;
    dti_profile_open(p, "launches", "part", thread, begin, dti_profile_now(p) - begin);
    dti_profile_close(p);
}

/* A call that starts nothing finds that all has ended. */
static dt_result dti_profile_parts(dt_profile *p, dt_program *program, int thread) {
    dt_result result = DT_OK;
    for (dt_step_state state = DT_STEP_READY; state != DT_STEP_DONE && !result;) {
        const double begin = dti_profile_now(p);
        const uint32_t at = program->now->at;
        const dti_exec_cursor cursor = program->now->cursor;
        result = dt_program_advance_for(program, DTI_PROFILE_PART_MS, &state);
        if (!result && program->now->busy)
            result = dti_drive_wait(program);
        const dti_exec_cursor now = program->now->cursor;
        if (!result &&
            (program->now->at != at || now.launch != cursor.launch || now.part != cursor.part))
            dti_profile_launches(p, program, thread, begin);
    }
    return result;
}

DTI_PUBLIC_REPORT(dt_profile_run,
                  (dt_profile * p, dt_program *program, const dt_step_desc *step,
                   dt_report *report),
                  p, DTI_OF(dt_profile), (p, program, step, report)) {
    dt_report own;
    DTI_NEED(p->base, program);
    const int thread = dti_profile_device(p, dt_store_device(program->store)->id);
    const double begin = dti_profile_now(p);
    report = report ? report : &own;
    DTI_TRY(dt_program_begin(program, step));
    dt_result result = dti_profile_parts(p, program, thread);
    if (result) {
        if (dti_drive_is_open(program))
            dti_drive_drop(program, result);
        return result;
    }
    result = dt_program_end(program, report);
    dti_profile_open(p, program->code->label, "step", thread, begin, dti_profile_now(p) - begin);
    dti_profile_argument(p, "step", report->step);
    dti_profile_argument(p, "flops", program->code->list.flops);
    dti_profile_close(p);
    return result || p->events.ok ? result : DT_ERROR_MEMORY;
}

/* ---- the file */

DTI_PUBLIC_OUT(dt_profile_create, (dt_ctx * ctx, const dt_profile_desc *desc, dt_profile **out),
               ctx, DTI_CTX, (ctx, desc, out)) {
    const dt_profile_desc d = desc ? *desc : (dt_profile_desc){0};
    dti_base *base = dti_ctx_base(ctx);
    if (d.rank < 0 || d.steps < 0)
        return dti_fail(base, DT_ERROR_INVALID,
                        "dt_profile_create: .rank is %d, .steps %d; both must be at least 0",
                        d.rank, d.steps);
    dt_profile *p = dti_alloc(base, sizeof *p);
    DTI_HAVE(p);
    *p = (dt_profile){.base = base, .rank = d.rank, .steps = d.steps ? d.steps : DTI_PROFILE_STEPS};
    p->began = dti_now_ns();
    p->events = dti_text_open(base);
    *out = p;
    return DT_OK;
}

DTI_PUBLIC_VOID(dt_profile_destroy, (dt_profile * p), p, DTI_OF(dt_profile) | DTI_UNUSED, (p)) {
    dti_text_free(&p->events);
    dti_free(p->base, p);
}

/* The names of the trace's processes and threads. */
static void dti_profile_names(const dt_profile *p, dti_text *to) {
    dti_text_add(
        to,
        "{\"ph\":\"M\",\"pid\":%d,\"name\":\"process_name\",\"args\":{\"name\":\"rank %d\"}},\n"
        "{\"ph\":\"M\",\"pid\":%d,\"tid\":0,\"name\":\"thread_name\",\"args\":{\"name\":"
        "\"trainer\"}}",
        p->rank, p->rank, p->rank);
    for (size_t i = 0; i < DTI_COUNT(p->devices) && p->devices[i][0]; i++)
        dti_text_add(to,
                     ",\n{\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"name\":\"thread_name\",\"args\":{"
                     "\"name\":\"%s\"}}",
                     p->rank, (int)i + 1, p->devices[i]);
}

DTI_PUBLIC(dt_profile_save, (const dt_profile *p, const char *path), p, DTI_OF(dt_profile),
           (p, path)) {
    DTI_NEED(p->base, path);
    DTI_HAVE(p->events.ok);
    dti_text text = dti_text_open(p->base);
    dti_text_add(&text, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n");
    if (p->events.size)
        dti_text_add_bytes(&text, p->events.data, p->events.size);
    dti_profile_names(p, &text);
    dti_text_add(&text, "\n]}\n");
    return dti_text_write(&text, path);
}
