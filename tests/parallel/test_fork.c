/* Children of fork: threads, drivers and sockets are the parent's, and waiting for them never ends.
 * Each call that would do so is FORKED at once, and memory is freed. The parent continues as if
 * nothing had been. On the public API. A way of computing is a row of the table below. */
#include "parallel/train_processes.h"

enum { FORK_BATCH = 16, FORK_HANGS = 100, FORK_DIES = 101, FORK_SECONDS = 20 };

#if defined __SANITIZE_THREAD__
#define FORK_NO_THREADS 1
#elif defined __has_feature
#if __has_feature(thread_sanitizer)
#define FORK_NO_THREADS 1 /* it ends a child of fork that starts one */
#endif
#endif
#ifdef FORK_NO_THREADS
enum { FORK_OWN_THREADS = 1 };
#else
enum { FORK_OWN_THREADS = 3 };
#endif

typedef struct fork_way {
    const char *name;
    int threads;
    bool jobs, vulkan, under_way;
    const char *devices; /* of a trainer; NULL: there is no such one */
    bool comm, apart;    /* apart: the child ends each thing by itself */
} fork_way;

static const fork_way fork_ways[] = {
    {.name = "one thread", .threads = 1},
    {.name = "three threads", .threads = 3, .apart = true},
    {.name = "a step under way", .threads = 3, .under_way = true},
    {.name = "a job system", .jobs = true},
    {.name = "a trainer", .threads = 3, .devices = "cpu"},
    {.name = "a trainer of two replicas", .threads = 1, .devices = "cpu:2", .apart = true},
    {.name = "a trainer with a comm", .threads = 1, .devices = "cpu:2", .comm = true},
    {.name = "a Vulkan device", .threads = 1, .vulkan = true, .under_way = true},
    {.name = "a trainer on a Vulkan device", .threads = 1, .vulkan = true, .devices = "vulkan"},
};

typedef struct fork_case {
    const fork_way *way;
    train_model m;
    dt_store *store;
    dt_program *program;
    dt_trainer *trainer;
    dt_comm *comm;
    float y[FORK_BATCH * TRAIN_CLASSES];
    _Atomic int64_t bytes; /* of all contexts */
    int failures;          /* in a child */
} fork_case;

static void *fork_alloc(void *user, size_t bytes, size_t align) {
    atomic_fetch_add(&((fork_case *)user)->bytes, (int64_t)bytes);
    return aligned_alloc(align, (bytes + align - 1) / align * align);
}

static void fork_free(void *user, void *memory, size_t bytes) {
    atomic_fetch_sub(&((fork_case *)user)->bytes, (int64_t)bytes);
    free(memory);
}

static void fork_jobs(void *user, int64_t count, void (*body)(void *, int64_t), void *arg) {
    (void)user;
    for (int64_t i = 0; i < count; i++)
        body(arg, i);
}

static dt_result fork_write(fork_case *c) {
    const train_data *d = &c->m.data;
    dt_result result =
        dt_program_write(c->program, c->m.x, d->x, FORK_BATCH * TRAIN_SIDE * TRAIN_SIDE * 4);
    return result ? result : dt_program_write(c->program, c->m.t, d->t, FORK_BATCH * 4);
}

static dt_result fork_make_program(fork_case *c) {
    const dt_program_desc d = {
        .batch = FORK_BATCH, .loss = c->m.loss, .outputs = {c->m.logits}, .optim = &c->m.adam};
    const dt_store_desc on = {.device = c->way->vulkan ? "vulkan" : "cpu"};
    dt_result result = dt_store_create(c->m.graph, &on, &c->store);
    if (!result)
        result = dt_program_create(c->store, &d, &c->program);
    return result ? result : fork_write(c);
}

static dt_result fork_make_trainer(fork_case *c) {
    dt_trainer_desc d = train_desc(&c->m);
    d.devices = c->way->devices;
    d.checkpoint.folder = "build/test_fork_checkpoints"; /* none is ever written */
    if (c->way->comm && dt_comm_create(NULL, &c->comm))
        return DT_ERROR_IO;
    d.comm = c->comm;
    return dt_trainer_create(c->m.graph, &d, &c->trainer);
}

/* One step of all there is, by which threads and devices are at work. */
static dt_result fork_step(fork_case *c) {
    dt_result result = DT_OK;
    if (c->program)
        result = dt_program_run(c->program, NULL, NULL);
    if (!result && c->program)
        result = dt_program_read(c->program, c->m.logits, c->y, sizeof c->y);
    return result || !c->trainer ? result : dt_trainer_step(c->trainer, NULL);
}

/* ---- in the child */

static void fork_expect(fork_case *c, dt_result result, const char *what) {
    if (result == DT_ERROR_FORKED && strstr(dt_ctx_error(c->m.ctx), "a child of fork"))
        return;
    c->failures++;
    printf("  %s, %s: %s: %s\n", c->way->name, what, dt_result_text(result),
           dt_ctx_error(c->m.ctx));
}

static void fork_try_program(fork_case *c) {
    const dt_program_desc d = {.batch = 2, .loss = c->m.loss};
    const size_t bytes = sizeof c->y;
    dt_step_state state;
    dt_program *p;
    dt_store *s;
    double weights[DT_MAX_TERMS] = {0};
    uint64_t hash;
    fork_expect(c, dt_program_run(c->program, NULL, NULL), "run");
    fork_expect(c, dt_program_begin(c->program, NULL), "begin");
    fork_expect(c, dt_program_advance(c->program, &state), "advance");
    fork_expect(c, dt_program_end(c->program, NULL), "end");
    fork_expect(c, dt_program_cancel(c->program, NULL), "cancel");
    fork_expect(c, dt_program_add_loss_weights(c->program, weights), "weigh");
    fork_expect(c, fork_write(c), "write");
    fork_expect(c, dt_program_read(c->program, c->m.logits, c->y, bytes), "read");
    fork_expect(c, dt_program_create(c->store, &d, &p), "program");
    fork_expect(c, dt_store_create(c->m.graph, NULL, &s), "store");
    fork_expect(c, dt_store_read(c->store, 0, DT_VALUE_PARAM, c->y, 4), "store read");
    fork_expect(c, dt_store_write(c->store, 0, DT_VALUE_PARAM, c->y, 4), "store write");
    fork_expect(c, dt_store_copy(c->store, c->store), "store copy");
    fork_expect(c, dt_store_hash(c->store, &hash), "hash");
    fork_expect(c, dt_store_state_hash(c->store, &hash), "state hash");
    fork_expect(c, dt_store_save(c->store, "build/test_fork.safetensors"), "save");
}

static void fork_try_trainer(fork_case *c) {
    dt_trainer_desc d = train_desc(&c->m);
    dt_trainer *t;
    bool found;
    fork_expect(c, dt_trainer_step(c->trainer, NULL), "trainer step");
    fork_expect(c, dt_trainer_epoch(c->trainer, NULL), "epoch");
    fork_expect(c, dt_trainer_evaluate(c->trainer, &d.data, 0, NULL), "evaluate");
    fork_expect(c, dt_trainer_save(c->trainer, "build/test_fork.safetensors"), "trainer save");
    fork_expect(c, dt_trainer_checkpoint(c->trainer), "checkpoint");
    fork_expect(c, dt_trainer_load(c->trainer, "build/none"), "load");
    fork_expect(c, dt_trainer_resume(c->trainer, &found), "resume");
    fork_expect(c, dt_trainer_create(c->m.graph, &d, &t), "trainer");
}

static int fork_in_child(fork_case *c) {
    c->failures = 0;
    if (c->program)
        fork_try_program(c);
    if (c->trainer)
        fork_try_trainer(c);
    if (c->way->apart) {
        dt_trainer_destroy(c->trainer);
        dt_program_destroy(c->program);
        dt_store_destroy(c->store);
        dt_graph_destroy(c->m.graph);
    }
    dt_ctx_destroy(c->m.ctx);
    if (c->bytes) {
        c->failures++;
        printf("  %s: %lld bytes are left\n", c->way->name, (long long)c->bytes);
    }
    dt_ctx *own = NULL; /* of this process: everything works */
    c->failures += dt_ctx_create(&(dt_ctx_desc){.threads = FORK_OWN_THREADS, .no_vulkan = true},
                                 &own) != DT_OK;
    c->failures += dt_ctx_device_count(own) != 1;
    dt_ctx_destroy(own);
    return c->failures;
}

static int fork_child(fork_case *c) {
    const uint64_t start = job_now_ns();
    int status;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        int failures = fork_in_child(c);
        fflush(stdout);
        _exit(failures < FORK_HANGS ? failures : FORK_HANGS - 1);
    }
    while (child > 0 && waitpid(child, &status, WNOHANG) == 0) {
        if (job_now_ns() - start > FORK_SECONDS * 1000000000ull) {
            kill(child, SIGKILL);
            waitpid(child, &status, 0);
            return FORK_HANGS;
        }
        job_sleep_us(300);
    }
    return child > 0 && WIFEXITED(status) ? WEXITSTATUS(status) : FORK_DIES;
}

/* ---- in the test */

static void fork_run(fork_case *c) {
    const fork_way *way = c->way;
    dt_ctx_desc desc = {.allocator = {fork_alloc, fork_free, c},
                        .threads = way->threads,
                        .no_vulkan = !way->vulkan};
    if (way->jobs)
        desc.jobs = (dt_job_system){.parallel_for = fork_jobs, .threads = 3};
    CHECK_TEXT(train_model_make(&c->m, &desc, 0), "%s: no model", way->name);
    dt_result result = way->devices ? fork_make_trainer(c) : fork_make_program(c);
    if (result == DT_ERROR_DEVICE && way->vulkan)
        return; /* there is no such one */
    if (!result)
        result = fork_step(c);
    if (!result && way->under_way)
        result = dt_program_begin(c->program, NULL);
    dt_step_state state;
    if (!result && way->under_way)
        result = dt_program_advance(c->program, &state);
    CHECK_TEXT(!result, "%s: %s", way->name, dt_ctx_error(c->m.ctx));
    int failures = result ? 0 : fork_child(c);
    CHECK_TEXT(failures == 0, "%s: the child ended with %d", way->name, failures);
    if (!result && way->under_way)
        result = dt_program_cancel(c->program, NULL);
    if (!result)
        result = fork_step(c);
    CHECK_TEXT(!result, "%s, after the child: %s", way->name, dt_ctx_error(c->m.ctx));
}

TEST(a_child_of_fork_is_refused_at_once_and_frees_its_memory) {
    for (size_t i = 0; i < sizeof fork_ways / sizeof fork_ways[0]; i++) {
        fork_case *c = calloc(1, sizeof *c);
        if (!c)
            return;
        c->way = &fork_ways[i];
        fork_run(c);
        dt_trainer_destroy(c->trainer);
        dt_ctx_destroy(c->m.ctx);
        dt_comm_destroy(c->comm);
        CHECK_TEXT(c->bytes == 0, "%s: %lld bytes are left", c->way->name, (long long)c->bytes);
        free(c);
    }
}

/* ---- with other ranks: theirs and the parent's training goes on */

static void fork_rank(rank *r) {
    static const fork_way way = {.name = "a rank"};
    fork_case *c = calloc(1, sizeof *c);
    const dt_ctx_desc desc = {
        .allocator = {fork_alloc, fork_free, c}, .threads = 1, .no_vulkan = true};
    if (!EXPECT(r, c && train_model_make(&c->m, &desc, 0)))
        return;
    dt_trainer_desc d = train_desc(&c->m);
    c->way = &way;
    d.comm = r->comm;
    d.devices = "cpu:2";
    d.checkpoint.folder = "build/test_fork_checkpoints";
    EXPECT_TEXT(r, !dt_trainer_create(c->m.graph, &d, &c->trainer), "%s", dt_ctx_error(c->m.ctx));
    for (int step = 0; step < 3 && !r->failed[0]; step++) {
        EXPECT_TEXT(r, !dt_trainer_step(c->trainer, NULL), "%s", dt_ctx_error(c->m.ctx));
        int failures = step == 1 ? fork_child(c) : 0;
        EXPECT_TEXT(r, failures == 0, "the child ended with %d", failures);
    }
    dt_store_hash(dt_trainer_store(c->trainer), &r->numbers[0]);
    dt_trainer_destroy(c->trainer);
    dt_ctx_destroy(c->m.ctx);
    free(c);
}

TEST(children_of_ranks_are_refused_and_the_ranks_continue) {
    job *j = job_new(2, NULL);
    if (!j)
        return;
    job_run(j, fork_rank);
    CHECK_TEXT(j->at[0].numbers[0] && j->at[0].numbers[0] == j->at[1].numbers[0], "other bits");
    job_free(j);
}
