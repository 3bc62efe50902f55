/* Launches on the CPU whose operands are in 16 bits. A kernel of floats says which elements an item
 * has of each binding. Blocks of items are widened, computed and narrowed while they are in the
 * cache. So each formula exists once, for floats. It must not know any kernel. */

#define DTI_STAGE_BLOCK 1024 /* floats of an operand, where an item has no more: all stay in L1 */

/* Of binding b, where it is in 16 bits. */
static dti_stage dti_stage_of(const dti_launch *l, int b) {
    const dti_kernel_info *k = dti_kernel_info_of(l->kernel);
    const bool staged = k->stage && b < k->bindings && dti_is_half(l->dtype[b]);
    return staged ? k->stage(l, b) : (dti_stage){DTI_STAGE_OWN, 0};
}

/* Items of a block: all, where nothing is staged. */
static int64_t dti_stage_items(const dti_launch *l) {
    int64_t most = 0;
    for (int b = 0; b < DTI_BINDINGS_MAX; b++)
        most = DTI_MAX(most, dti_stage_of(l, b).each);
    return most ? DTI_MAX(DTI_STAGE_BLOCK / most, 1) : (int64_t)1 << 40;
}

/* Floats of a block of binding b. */
static int64_t dti_stage_floats(const dti_launch *l, int b) {
    return (DTI_MAX(dti_stage_of(l, b).each, 0) * dti_stage_items(l) + 15) / 16 * 16;
}

static size_t dti_stage_bytes(const dti_launch *l) {
    size_t floats = dti_launch_is_half(l) ? DTI_ROOM : 0;
    for (int b = 0; b < DTI_BINDINGS_MAX; b++)
        floats += (size_t)dti_stage_floats(l, b);
    return floats * sizeof(float);
}

static size_t dti_cpu_scratch(const dti_launch *l, int threads) {
    const dti_kernel_info *k = dti_kernel_info_of(l->kernel);
    return dti_stage_bytes(l) + (k->scratch_bytes ? k->scratch_bytes(l, threads) : 0);
}

static const float *dti_cpu_rows(const dti_cpu_task *t, int binding, int64_t at, int64_t rows,
                                 int64_t n, int64_t *ld, int64_t to) {
    const dt_dtype dtype = (dt_dtype)t->launch->dtype[binding];
    const int64_t apart = *ld;
    if (!dti_is_half(dtype))
        return (const float *)t->buf[binding] + at;
    const uint16_t *from = (const uint16_t *)t->buf[binding] + at;
    uint16_t column[DTI_ROOM_ROWS];
    *ld = n;
    if (n == 1 && rows <= DTI_ROOM_ROWS) { /* at once */
        for (int64_t i = 0; i < rows; i++)
            column[i] = from[i * apart];
        from = column, n = rows, rows = 1;
    }
    for (int64_t i = 0; i < rows; i++)
        t->k->widen[dtype](t->room + to + i * n, from + i * apart, n);
    return t->room + to;
}

/* A launch of floats: operands that are staged lie in `floats`, as if all of them did. */
typedef struct dti_stage_job {
    dti_launch launch;
    dti_cpu_task task;
    float *floats[DTI_BINDINGS_MAX];
    dti_stage of[DTI_BINDINGS_MAX]; /* each 0: not staged */
} dti_stage_job;

/* Another binding before b that reads the same elements; b: no such binding. */
static int dti_stage_shared(const dti_cpu_task *task, const dti_stage_job *s, int b) {
    const char *access = dti_kernel_info_of(s->launch.kernel)->access;
    for (int other = 0; other < b && access[b] == 'r'; other++) {
        if (s->of[other].each == s->of[b].each && s->of[other].first == s->of[b].first &&
            task->buf[other] == task->buf[b])
            return other;
    }
    return b;
}

static void dti_stage_open(dti_stage_job *s, const dti_cpu_task *task, float *room) {
    s->task = *task;
    s->launch = *task->launch;
    s->task.launch = &s->launch;
    s->task.room = room;
    room += DTI_ROOM;
    for (int b = 0; b < DTI_BINDINGS_MAX; b++) {
        s->of[b] = dti_stage_of(task->launch, b);
        if (s->of[b].each <= 0)
            continue;
        s->launch.dtype[b] = DT_F32;
        s->floats[b] = room;
        room += dti_stage_floats(task->launch, b);
        s->floats[b] = s->floats[dti_stage_shared(task, s, b)];
    }
}

/* Widens the elements that items [begin, end) read, or narrows those that they have written. */
static void dti_stage_move(dti_stage_job *s, const dti_cpu_task *task, int64_t begin, int64_t end,
                           bool back) {
    const char *access = dti_kernel_info_of(s->launch.kernel)->access;
    for (int b = 0; b < DTI_BINDINGS_MAX; b++) {
        const int64_t n = (end - begin) * s->of[b].each, at = s->of[b].first;
        const dt_dtype dtype = (dt_dtype)task->launch->dtype[b];
        uint16_t *halves = (uint16_t *)task->buf[b] + at + begin * s->of[b].each;
        if (n <= 0 || access[b] == (back ? 'r' : 'w') || dti_stage_shared(task, s, b) != b)
            continue;
        if (back)
            task->k->narrow[dtype](halves, s->floats[b], n);
        else
            task->k->widen[dtype](s->floats[b], halves, n);
    }
}

static void dti_stage_run(dti_stage_job *s, const dti_cpu_task *task, int64_t begin, int64_t end,
                          void *scratch) {
    const int64_t block = dti_stage_items(task->launch);
    for (int64_t i = begin; i < end; i += block) {
        const int64_t to = DTI_MIN(end, i + block);
        for (int b = 0; b < DTI_BINDINGS_MAX; b++) {
            const int64_t before = (s->of[b].first + i * s->of[b].each) * (int64_t)sizeof(float);
            if (s->of[b].each > 0) /* element 0 would lie here: items find theirs */
                s->task.buf[b] = (void *)((uintptr_t)s->floats[b] - (uintptr_t)before);
        }
        dti_stage_move(s, task, i, to, false);
        dti_kernel_info_of(s->launch.kernel)->run(&s->task, i, to, scratch);
        dti_stage_move(s, task, i, to, true);
    }
}

static void dti_cpu_run(const dti_cpu_task *task, int64_t begin, int64_t end, void *scratch) {
    if (!dti_launch_is_half(task->launch)) {
        dti_kernel_info_of(task->launch->kernel)->run(task, begin, end, scratch);
        return;
    }
    dti_stage_job s = {.launch = {0}};
    dti_stage_open(&s, task, scratch);
    dti_stage_run(&s, task, begin, end, (char *)scratch + dti_stage_bytes(task->launch));
}
