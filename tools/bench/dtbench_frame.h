/* dtbench's measurements of steps by a budget (dt_program_advance_for). They show how long frames
 * take beside programs that want the processors as much. They also show frames with the priority
 * that an application gives them. One of dtbench.c's files. */

#ifdef __linux__
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#endif

typedef struct frame_plan {
    const char *name, *device;
    int threads, count;
    double budget, period; /* ms; period 0: a frame begins when the one before is over */
    const char *priority;  /* fifo, a nice value, or NULL: as everybody's */
    bool late;             /* the context is made before the thread gets its priority */
    int busy;              /* processes that do nothing but want a processor, as everybody does */
} frame_plan;

/* ---- The other programs there, and this thread's place among them */

#ifdef __linux__
static pid_t frame_busy[64];

static void frame_busy_start(int count) {
    if (count < 0 || count > (int)DTI_COUNT(frame_busy))
        fail("--busy", "at most 64 loops");
    for (int i = 0; i < count; i++) {
        frame_busy[i] = fork();
        if (frame_busy[i] < 0)
            fail("--busy", "no process");
        if (frame_busy[i])
            continue;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (volatile uint64_t turns = 0;; turns++) {
        }
    }
}

static void frame_busy_end(void) {
    for (size_t i = 0; i < DTI_COUNT(frame_busy) && frame_busy[i] > 0; i++) {
        kill(frame_busy[i], SIGKILL);
        waitpid(frame_busy[i], NULL, 0);
    }
}

/* Of the thread that calls; those that it makes from then on have it as well. */
static void frame_raise(const char *priority) {
    const struct sched_param low = {.sched_priority = 1};
    const bool fifo = priority && !strcmp(priority, "fifo");
    if (fifo && sched_setscheduler(0, SCHED_FIFO, &low))
        fail("--priority fifo", "the system refuses it: RLIMIT_RTPRIO (ulimit -r) is too low");
    if (priority && !fifo && setpriority(PRIO_PROCESS, 0, atoi(priority)))
        fail("--priority", "the system refuses it: RLIMIT_NICE (ulimit -e) is too low");
}

/* How many of the process's threads have it, and how many there are: drivers make some. */
static void frame_raised(const char *priority, int count[2]) {
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *e; tasks && (e = readdir(tasks));) {
        const pid_t id = atoi(e->d_name);
        if (id <= 0)
            continue;
        count[1]++;
        if (priority)
            count[0] += strcmp(priority, "fifo")
                            ? getpriority(PRIO_PROCESS, (id_t)id) == atoi(priority)
                            : sched_getscheduler(id) == SCHED_FIFO;
    }
    if (tasks)
        closedir(tasks);
}
#else
static void frame_busy_start(int count) {
    if (count)
        fail("--busy", "on Linux alone");
}

static void frame_busy_end(void) {
}

static void frame_raise(const char *priority) {
    if (priority)
        fail("--priority", "on Linux alone");
}

static void frame_raised(const char *priority, int count[2]) {
    (void)priority, (void)count;
}
#endif

/* ---- The networks */

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
    for (uint32_t i = 0; i < s->program->code->binding_count; i++) { /* class numbers: 0 */
        const dti_binding *binding = &s->program->code->bindings[i];
        const dt_tensor x = {s->graph, binding->node};
        const bool whole = dti_is_whole(s->graph->nodes[x.id].dtype);
        float *values = random_floats((size_t)binding->bytes / 4, 1);
        if (whole)
            memset(values, 0, (size_t)binding->bytes);
        if (!binding->output)
            try(s->ctx, dt_program_write(s->program, x, values, (size_t)binding->bytes), net->name);
        free(values);
    }
}

/* ---- Frames */

/* The rest of the period, asleep. */
static void frame_rest(double start, double period, samples *times, int most) {
    const double took = now_ms() - start;
    if (times->count < most)
        add(times, took);
    if (took < period)
        sleep_ms((long)(period - took));
}

/* One step; on a device that runs on its own a frame lasts until that is idle. */
static void frame_step(const session *s, const frame_plan *p, double period, samples *times) {
    const int most = period < 0 ? 0 : p->count;
    dt_step_state state = DT_STEP_READY;
    try(s->ctx, dt_program_begin(s->program, NULL), "begin");
    while (state != DT_STEP_DONE) {
        const double start = now_ms();
        try(s->ctx, dt_program_advance_for(s->program, p->budget, &state), "advance_for");
        try(s->ctx, dti_drive_wait(s->program), "wait");
        if (s->program->now->at == s->program->now->end)
            state = DT_STEP_DONE;
        frame_rest(start, period, times, most);
    }
    try(s->ctx, dt_program_end(s->program, NULL), "end");
}

/* The scheduler's effect on the same work: `ms` of the thread's own time. */
static void frame_bare(const frame_plan *p, samples *times) {
    while (times->count < p->count) {
        const double start = now_ms(), begin = work_ms(1);
        while (work_ms(1) - begin < p->budget) {
        }
        frame_rest(start, p->period, times, p->count);
    }
}

static void frame_print(const frame_plan *p, int batch, samples *times) {
    const double p50 = median(times);
    int raised[2] = {0};
    frame_raised(p->priority, raised);
    printf("{\"kind\": \"frame\", \"workload\": \"%s\", \"batch\": %d, \"threads\": %d, "
           "\"device\": \"%s\", \"budget_ms\": %g, \"period_ms\": %g, \"busy\": %d, "
           "\"priority\": \"%s%s\", \"raised\": \"%d of %d\", \"frames\": %d, \"p50\": %.3f, "
           "\"p99\": %.3f, \"most\": %.3f",
           p->name, batch, p->threads, p->device, p->budget, p->period, p->busy,
           p->priority ? p->priority : "", p->late ? ", late" : "", raised[0], raised[1],
           times->count, p50, times->ms[times->count * 99 / 100], times->ms[times->count - 1]);
}

static void frame_train(const frame_plan *p) {
    static samples times, whole, none;
    const launches_net *net = frame_nets;
    for (size_t i = 0; i < DTI_COUNT(frame_nets); i++)
        net = strcmp(p->name, frame_nets[i].name) ? net : &frame_nets[i];
    if (!p->late)
        frame_raise(p->priority);
    session s = session_open(p->threads, p->device);
    int steps = 0;
    frame_program(&s, net, p->device);
    if (p->late)
        frame_raise(p->priority);
    for (int i = 0; i < WARM_STEPS; i++)
        frame_step(&s, p, -1, &none);
    for (; times.count < p->count; steps++)
        frame_step(&s, p, p->period, &times);
    for (int i = 0; i < WARM_STEPS; i++) {
        const double start = now_ms();
        try(s.ctx, dt_program_run(s.program, NULL, NULL), "run");
        add(&whole, now_ms() - start);
    }
    double sum = 0;
    for (int i = 0; i < times.count; i++)
        sum += times.ms[i];
    frame_print(p, net->batch, &times);
    printf(", \"frames_a_step\": %.1f, \"step_ms\": %.3f, \"whole_ms\": %.3f}\n",
           (double)times.count / steps, sum / steps, median(&whole));
    session_close(&s);
}

static frame_plan frame_options(int argc, char **argv) {
    frame_plan p = {.name = argv[0],
                    .device = argv[2],
                    .threads = atoi(argv[1]),
                    .count = DTI_MIN(atoi(argv[4]), SAMPLES_MAX),
                    .budget = atof(argv[3])};
    int at = 5;
    if (argc > at && argv[at][0] != '-')
        p.period = atof(argv[at++]);
    for (; at < argc; at++) {
        const bool more = at + 1 < argc;
        if (!strcmp(argv[at], "--late"))
            p.late = true;
        else if (!strcmp(argv[at], "--priority") && more)
            p.priority = argv[++at];
        else if (!strcmp(argv[at], "--busy") && more)
            p.busy = atoi(argv[++at]);
        else
            fail(argv[at], "frame takes --priority fifo or a nice value, --late and --busy N");
    }
    return p;
}

/* NAME THREADS DEVICE MS N [PERIOD] [options] */
static void frames(int argc, char **argv) {
    static samples times;
    const frame_plan p = frame_options(argc, argv);
    frame_busy_start(p.busy);
    if (strcmp(p.name, "bare")) {
        frame_train(&p);
    } else {
        frame_raise(p.priority);
        frame_bare(&p, &times);
        frame_print(&p, 0, &times);
        printf("}\n");
    }
    frame_busy_end();
}
