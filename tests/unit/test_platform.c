/* What a platform may have of its own, from the inside: threads, clock, processors, processes,
 * folders, chance, sockets; and a training, whose bits are those of the CPU's class everywhere.
 * Included by platforms.c after the implementation;./build.sh platforms runs it. */

/* ---- threads */

typedef struct plat_calls {
    dti_mutex lock;
    dti_cond changed;
    int calls, answers;
} plat_calls;

static void plat_answer(void *arg) {
    plat_calls *m = arg;
    dti_mutex_lock(&m->lock);
    while (m->calls < 3) {
        const int seen = m->calls;
        m->answers++;
        dti_cond_broadcast(&m->changed);
        while (m->calls == seen)
            dti_cond_wait(&m->changed, &m->lock);
    }
    dti_mutex_unlock(&m->lock);
}

TEST(threads_synchronise_by_a_lock_and_a_condition) {
    plat_calls m = {.calls = 0};
    dti_thread thread;
    dti_mutex_init(&m.lock);
    dti_cond_init(&m.changed);
    if (!dti_thread_start(&thread, (size_t)256 * 1024, plat_answer, &m))
        SKIP("this platform has no threads");
    dti_mutex_lock(&m.lock);
    while (m.calls < 3) {
        while (m.answers == m.calls)
            dti_cond_wait(&m.changed, &m.lock);
        m.calls++;
        dti_cond_broadcast(&m.changed);
    }
    dti_mutex_unlock(&m.lock);
    dti_thread_join(&thread);
    CHECK(m.answers == 3);
    dti_cond_destroy(&m.changed);
    dti_mutex_destroy(&m.lock);
}

#if DTI_THREADS
static _Thread_local char plat_large[96 * 1024];

static void plat_fill(void *arg) {
    memset(plat_large, 1, sizeof plat_large);
    *(int *)arg = plat_large[sizeof plat_large - 1];
}

TEST(a_thread_starts_when_thread_local_variables_exceed_its_stack) {
    dti_thread thread;
    int filled = 0;
    REQUIRE(dti_thread_start(&thread, (size_t)32 * 1024, plat_fill, &filled));
    dti_thread_join(&thread);
    CHECK(filled == 1);
}
#endif

TEST(a_wait_with_a_deadline_ends_with_it) {
    dti_mutex lock;
    dti_cond nothing;
    if (!DTI_THREADS)
        SKIP("this platform has no threads");
    dti_mutex_init(&lock);
    dti_cond_init(&nothing);
    dti_mutex_lock(&lock);
    const uint64_t start = dti_now_ns(), deadline = start + 30000000;
    uint64_t now = start;
    while (now < deadline) { /* it may be woken early */
        dti_cond_wait_until(&nothing, &lock, deadline);
        now = dti_now_ns();
    }
    dti_mutex_unlock(&lock);
    CHECK(now - start < 5000000000u);
    dti_cond_destroy(&nothing);
    dti_mutex_destroy(&lock);
}

TEST(the_clock_advances_while_a_thread_sleeps) {
    const uint64_t start = dti_now_ns();
    dti_thread_sleep(20000000);
    const uint64_t slept = dti_now_ns() - start;
    CHECK(slept >= 15000000 && slept < 5000000000u);
}

TEST(at_least_one_processor_is_found) {
    const int count = dti_processors();
    CHECK(count >= 1 && count <= DTI_MAX_THREADS);
#ifdef _WIN32
    SYSTEM_INFO info;
    GetSystemInfo(&info);
    CHECK(count <= (int)info.dwNumberOfProcessors);
#endif
}

/* ---- processes, chance, folders */

TEST(this_process_is_alive_and_random_bytes_differ_each_time) {
    uint8_t a[600] = {0}, b[600] = {0};
    CHECK(dti_process() > 0 && dti_process_lives(dti_process()));
    CHECK(dti_random_bytes(a, sizeof a) && dti_random_bytes(b, sizeof b));
    CHECK(memcmp(a, b, sizeof a) != 0);
    CHECK(memcmp(a + 300, b + 300, 300) != 0 && memcmp(a + 590, b + 590, 10) != 0);
}

#if DTI_FOLDERS
static int plat_count(const char *folder, const char *wanted) {
    dti_folder_names names;
    int count = 0;
    if (!dti_folder_names_open(&names, folder))
        return -1;
    for (const char *name; (name = dti_folder_names_next(&names)) != NULL;)
        count += !strcmp(name, wanted);
    dti_folder_names_close(&names);
    return errno ? -1 : count;
}
#endif

TEST(a_folder_is_made_once_and_lists_its_files) {
#if DTI_FOLDERS
    char folder[512], file[600];
    dti_base base;
    dti_writer *w;
    dti_base_init(&base, NULL, NULL);
    snprintf(folder, sizeof folder, "%s", temp_path("folder"));
    snprintf(file, sizeof file, "%s/one", folder);
    REQUIRE(dti_folder_make(folder));
    CHECK(!dti_folder_make(folder) && errno == EEXIST);
    CHECK(plat_count(folder, "one") == 0);
    for (int i = 0; i < 2; i++) { /* the second takes the place of the first */
        REQUIRE(dti_writer_open(&base, file, 4, &w) == DT_OK);
        CHECK(dti_writer_add(w, "data", 4) == DT_OK && dti_writer_close(w, true) == DT_OK);
        CHECK(plat_count(folder, "one") == 1);
    }
    CHECK(plat_count(file, "one") < 0 && plat_count("no/such/folder", "one") < 0);
    CHECK(errno == ENOENT);
    remove(file);
    rmdir(folder);
    CHECK(base.bytes_now == 0);
#else
    SKIP("this build hides POSIX, so there are no folders");
#endif
}

/* ---- sockets */

#define PLAT_RANKS 3
#define PLAT_COUNT 100003

typedef struct plat_rank {
    dti_thread thread;
    int rank;
    dt_result result;
    char error[256];
    bool right;
} plat_rank;

static void plat_sum(plat_rank *r, dt_comm *comm) {
    float *x = malloc(PLAT_COUNT * sizeof *x);
    for (int i = 0; x && i < PLAT_COUNT; i++)
        x[i] = (float)(i % 1000 + r->rank);
    r->result = dt_comm_all_reduce(comm, x, x, PLAT_COUNT, DT_F32, DT_COMM_SUM);
    r->right = r->result == DT_OK;
    for (int i = 0; r->right && i < PLAT_COUNT; i++)
        r->right = x[i] == (float)(PLAT_RANKS * (i % 1000) + PLAT_RANKS * (PLAT_RANKS - 1) / 2);
    free(x);
}

static void plat_rank_main(void *arg) {
    plat_rank *r = arg;
    dt_comm *comm = NULL;
    dt_comm_desc desc = {.rank = r->rank, .world_size = PLAT_RANKS, .join_timeout_ms = 20000};
    /* Below the ports that systems give to outgoing connections, and a second choice if one of
     * them is in use. */
    snprintf(desc.rendezvous, sizeof desc.rendezvous, "tcp://127.0.0.1:%d+16",
             20000 + (int)(dti_process() % 12000));
    snprintf(desc.job, sizeof desc.job, "platform-%u", (unsigned)dti_process());
    memset(desc.key, 'a', 64);
    r->result = dt_comm_create(&desc, &comm);
    if (!r->result)
        plat_sum(r, comm);
    snprintf(r->error, sizeof r->error, "%s", dt_comm_error(comm));
    dt_comm_destroy(comm);
}

TEST(ranks_sum_over_sockets) {
    plat_rank ranks[PLAT_RANKS];
    int started = 0;
    for (; started < PLAT_RANKS; started++) {
        ranks[started] = (plat_rank){.rank = started};
        if (!dti_thread_start(&ranks[started].thread, (size_t)1024 * 1024, plat_rank_main,
                              &ranks[started]))
            break;
    }
    for (int i = 0; i < started; i++)
        dti_thread_join(&ranks[i].thread);
    if (!started)
        SKIP("this platform has no threads");
    if (ranks[0].result == DT_ERROR_UNSUPPORTED)
        SKIP("this platform has no sockets");
    for (int i = 0; i < started; i++)
        test_check(ranks[i].right, __FILE__, __LINE__, "rank %d: %s", i, ranks[i].error);
}

/* ---- training */

/* The first is of all CPUs that fuse a product and a sum. The second is of those that do not. */
static const uint64_t plat_bits[2] = {0x83aaa572b1a6d271, 0xc5336c418295d193};

TEST(xor_is_learned_with_the_bits_of_the_cpus_class) {
    static const float inputs[4][2] = {{0, 0}, {0, 1}, {1, 0}, {1, 1}}, targets[4] = {0, 1, 1, 0};
    dt_ctx *ctx;
    dt_graph *graph;
    dt_store *store;
    dt_program *train;
    dt_report report = {0};
    uint64_t hash = 0;
    REQUIRE(dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true, .threads = 2}, &ctx) == DT_OK);
    REQUIRE(dt_graph_create(ctx, &graph) == DT_OK);
    dt_tensor x = dt_input(graph, "x", DT_F32, dt_dims(2));
    dt_tensor t = dt_input(graph, "t", DT_F32, dt_dims(1));
    dt_tensor h = dt_tanh(dt_nn_linear(x, "fc1", 8));
    dt_tensor loss = dt_mse(dt_sigmoid(dt_nn_linear(h, "fc2", 1)), t);
    dt_optim_desc adam = {.kind = DT_OPTIM_ADAM, .lr = 0.05};
    dt_program_desc desc = {.batch = 4, .loss = loss, .optim = &adam};
    REQUIRE(dt_store_create(graph, &(dt_store_desc){.device = "cpu", .seed = 1}, &store) == DT_OK);
    REQUIRE(dt_program_create(store, &desc, &train) == DT_OK);
    CHECK(dt_program_write(train, x, inputs, sizeof inputs) == DT_OK);
    CHECK(dt_program_write(train, t, targets, sizeof targets) == DT_OK);
    for (int step = 0; step < 300; step++)
        REQUIRE(dt_program_run(train, NULL, &report) == DT_OK);
    CHECK(report.loss < 0.01);
    CHECK(dt_store_state_hash(store, &hash) == DT_OK);
    const bool fused = DTI_PORTABLE_FMA || !strstr(dt_store_device(store)->driver, "portable");
    test_check(hash == plat_bits[!fused], __FILE__, __LINE__, "the bits are %016llx on \"%s\"",
               (unsigned long long)hash, dt_store_device(store)->driver);
    dt_ctx_destroy(ctx);
}
