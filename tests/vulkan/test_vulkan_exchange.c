/* What replicas ask of the Vulkan backend, on every driver that is present. The validation layer is
 * used where it is installed. The exchange arena, with several starts under way and one of them
 * waited for; a device that is full, or lost in the middle of a step; and contexts in threads, each
 * with its own instance and device. Included by main.c, after test_vulkan.c. */

#ifndef DT_NO_VULKAN

/* ---- The exchange arena ----------------------------------------------------------------------
 * Three segments: 0 gives G = x and fetches every other piece of it; 1 works for long, then gives
 * S = x and fetches all of it; 2 puts the middle of P and gives y = 3 + P. */

#define EXCHANGE_N 1000
#define EXCHANGE_LONG 64 /* launches of segment 1 */
/* Values of each: the host is to come before their end. */
#define EXCHANGE_BIG(software) (1u << ((software) ? 15 : 24))
#define EXCHANGE_PIECE 5  /* values of a range that segment 0 fetches: 100 ranges */
#define EXCHANGE_FROM 100 /* values of P that are put: FROM .. TO - 1 */
#define EXCHANGE_TO 700
enum { EXCHANGE_X, EXCHANGE_G, EXCHANGE_S, EXCHANGE_P, EXCHANGE_Y, EXCHANGE_B, EXCHANGE_L };
#define EXCHANGE_PLACES (EXCHANGE_L + 1)
#define EXCHANGE_LAUNCHES (EXCHANGE_LONG + 5)

typedef struct exchange {
    dti_memory *memories[4];
    dti_place places[EXCHANGE_PLACES];
    dti_launch launches[EXCHANGE_LAUNCHES];
    dti_segment segments[3];
    dti_fetch fetches[3]; /* two of segment 0, which meet each other's ranges nowhere */
    dti_exec_desc desc;
    dti_exec *exec;
    bool staged; /* the host's side of the exchange arena is memory of its own */
} exchange;

static void exchange_fill(exchange *p, uint32_t big) {
    const uint64_t bytes = 4 * EXCHANGE_N;
    p->places[EXCHANGE_X] = (dti_place){1, 512, bytes};
    p->places[EXCHANGE_G] = (dti_place){3, 4096, bytes};
    p->places[EXCHANGE_S] = (dti_place){3, 8192, bytes};
    p->places[EXCHANGE_P] = (dti_place){3, 12288, bytes};
    p->places[EXCHANGE_Y] = (dti_place){2, 4096, bytes};
    p->places[EXCHANGE_B] = (dti_place){0, 0, bytes};
    p->places[EXCHANGE_L] = (dti_place){0, 4096, 4ull * big};
    dti_launch *l = p->launches;
    *l++ = vulkan_copy_launch(EXCHANGE_X, EXCHANGE_G, DTI_COPY_WORD, 0);
    for (int i = 0; i < EXCHANGE_LONG; i++, l++) {
        *l = vulkan_copy_launch(EXCHANGE_L, EXCHANGE_L, DTI_COPY_FILL_F32, 1);
        l->items = l->args.map1.n = l->args.map1.dim[5] = big;
    }
    *l++ = vulkan_copy_launch(EXCHANGE_X, EXCHANGE_S, DTI_COPY_WORD, 0);
    *l++ = vulkan_copy_launch(EXCHANGE_X, EXCHANGE_B, DTI_COPY_FILL_F32, 3);
    *l++ = (dti_launch){.kernel = DTI_K_ACCUMULATE,
                        .args_bytes = sizeof(dti_args_accumulate),
                        .items = EXCHANGE_N,
                        .value = {EXCHANGE_P, EXCHANGE_B, EXCHANGE_P, EXCHANGE_P},
                        .args.accumulate.n = EXCHANGE_N};
    *l++ = vulkan_copy_launch(EXCHANGE_B, EXCHANGE_Y, DTI_COPY_WORD, 0);
    const uint64_t piece = 4 * EXCHANGE_PIECE, from = 12288 + 4 * EXCHANGE_FROM;
    p->segments[0] = (dti_segment){.first = 0, .count = 1, .upload = {0, 512 + bytes}};
    const uint32_t half = EXCHANGE_N / EXCHANGE_PIECE / 4;
    p->fetches[0] = (dti_fetch){4096, piece, 2 * piece, half};
    p->fetches[1] = (dti_fetch){4096 + half * 2 * piece, piece, 2 * piece, half};
    p->segments[0].fetch = p->fetches;
    p->segments[0].fetch_count = 2;
    p->segments[1] = (dti_segment){.first = 1, .count = EXCHANGE_LONG + 1};
    p->fetches[2] = (dti_fetch){8192, bytes, 0, 1};
    p->segments[1].fetch = &p->fetches[2];
    p->segments[1].fetch_count = 1;
    p->segments[2] = (dti_segment){.first = EXCHANGE_LONG + 2, .count = 3};
    p->segments[2].put = (dti_range){from, 4 * (EXCHANGE_TO - EXCHANGE_FROM)};
    p->segments[2].download = (dti_range){0, 4096 + bytes};
}

static bool exchange_create(vulkan_rig *rig, exchange *p) {
    const dti_backend *b = rig->device->backend;
    static const dti_memory_kind kinds[4] = {DTI_MEMORY_DEVICE, DTI_MEMORY_IN, DTI_MEMORY_OUT,
                                             DTI_MEMORY_EXCHANGE};
    *p = (exchange){.staged = !((dti_vk_device *)rig->device)->unified};
    const uint32_t big = EXCHANGE_BIG(rig->device->info.kind == DT_DEVICE_SOFTWARE);
    exchange_fill(p, big);
    for (int i = 0; i < 4; i++)
        if (b->memory_create(rig->device, i ? 16384 : 4096 + 4ull * big, kinds[i], &p->memories[i]))
            return false;
    p->desc = (dti_exec_desc){.label = "exchange",
                              .memories = p->memories,
                              .memory_count = 4,
                              .places = p->places,
                              .place_count = EXCHANGE_PLACES,
                              .launches = p->launches,
                              .launch_count = EXCHANGE_LAUNCHES,
                              .segments = p->segments,
                              .segment_count = 3,
                              .in = 1,
                              .out = 2,
                              .exchange = 3};
    return !b->exec_create(rig->device, &p->desc, &p->exec);
}

static void exchange_destroy(vulkan_rig *rig, exchange *p) {
    rig->device->backend->exec_destroy(p->exec);
    for (int i = 0; i < 4; i++)
        rig->device->backend->memory_destroy(p->memories[i]);
}

/* The host's side of a value. */
static float *exchange_host(vulkan_rig *rig, exchange *p, int value) {
    const dti_place *place = &p->places[value];
    return (float *)((char *)rig->device->backend->memory_host(p->memories[place->memory]) +
                     place->offset);
}

static bool exchange_is_fetched(int i) {
    return i / EXCHANGE_PIECE % 2 == 0;
}

/* Values of x in a round; the host's answer to what it fetched; what is nobody's. */
static float exchange_x(int round, int i) {
    return (float)(i * 3 + round * 10007);
}
#define EXCHANGE_NONE (-7.0f)

/* One step as a replica makes it: the host reads G and writes P while segment 1 runs. Returns
 * whether segment 1 still ran when G had been read. */
static bool exchange_round(vulkan_rig *rig, exchange *p, int round) {
    const dti_backend *b = rig->device->backend;
    float *x = exchange_host(rig, p, EXCHANGE_X), *g = exchange_host(rig, p, EXCHANGE_G);
    float *s = exchange_host(rig, p, EXCHANGE_S), *put = exchange_host(rig, p, EXCHANGE_P);
    const float *y = exchange_host(rig, p, EXCHANGE_Y);
    int bad_g = 0, bad_s = 0, bad_y = 0;
    bool busy = false;
    for (int i = 0; i < EXCHANGE_N; i++)
        x[i] = exchange_x(round, i), g[i] = s[i] = EXCHANGE_NONE;
    CHECK(!b->exec_start(p->exec, 0, 1) && !b->exec_start(p->exec, 1, 1));
    CHECK(!b->exec_reach(p->exec, 0));
    for (int i = 0; i < EXCHANGE_N; i++) {
        bool fetched = exchange_is_fetched(i) || !p->staged;
        bad_g += g[i] != (fetched ? x[i] : EXCHANGE_NONE);
        put[i] = 2 * exchange_x(round, i);
    }
    CHECK(!b->exec_poll(p->exec, &busy));
    CHECK(!b->exec_start(p->exec, 2, 1));
    CHECK(!b->exec_reach(p->exec, 1));
    for (int i = 0; i < EXCHANGE_N; i++)
        bad_s += s[i] != exchange_x(round, i);
    CHECK(!b->exec_reach(p->exec, 2));
    for (int i = 0; i < EXCHANGE_N; i++) {
        bool seen = !p->staged || (i >= EXCHANGE_FROM && i < EXCHANGE_TO);
        bad_y += y[i] != 3 + (seen ? 2 * exchange_x(round, i) : 0);
    }
    test_check(!bad_g && !bad_s && !bad_y, __FILE__, __LINE__,
               "round %d: %d wrong in G, %d in S, %d in y", round, bad_g, bad_s, bad_y);
    return busy;
}

static void exchange_try_rounds(vulkan_rig *rig) {
    exchange p;
    int overlaps = 0;
    bool busy = true;
    if (test_check(exchange_create(rig, &p), __FILE__, __LINE__, "%s", rig->base.error)) {
        uint64_t calls = rig->base.alloc_calls;
        CHECK(rig->device->backend->memory_bytes(p.memories[3]) >= (p.staged ? 32768u : 16384u));
        for (int round = 0; round < 3; round++)
            overlaps += exchange_round(rig, &p, round);
        CHECK(overlaps > 0); /* each alone may be unlucky: the thread was not scheduled */
        CHECK(!rig->device->backend->exec_poll(p.exec, &busy) && !busy);
        CHECK(rig->base.alloc_calls == calls);
    }
    exchange_destroy(rig, &p);
}

TEST(vulkan_fetch_is_read_and_put_is_written_while_later_segments_run) {
    ON_EACH(exchange_try_rounds);
}

/* Started in one piece, only the end of the piece is known. */
static void exchange_try_piece(vulkan_rig *rig) {
    const dti_backend *b = rig->device->backend;
    exchange p;
    bool busy = true;
    CHECK(exchange_create(rig, &p));
    if (p.exec) {
        CHECK(!b->exec_reach(p.exec, 2)); /* nothing runs */
        CHECK(!b->exec_start(p.exec, 0, 3) && !b->exec_reach(p.exec, 1));
        CHECK(!b->exec_poll(p.exec, &busy) && !busy);
        CHECK(exchange_host(rig, &p, EXCHANGE_Y)[0] == 3);
        CHECK(!b->exec_start(p.exec, 0, 1) && !b->exec_start(p.exec, 1, 1));
        CHECK(b->exec_start(p.exec, 1, 2) == DT_ERROR_INVALID); /* 1 still runs */
        CHECK(!b->exec_wait(p.exec));
        CHECK(b->exec_start(p.exec, 2, 2) == DT_ERROR_INVALID);
        CHECK(b->exec_start(p.exec, 4, 1) == DT_ERROR_INVALID);
    }
    exchange_destroy(rig, &p);
}

TEST(vulkan_segments_that_start_together_end_together) {
    ON_EACH(exchange_try_piece);
}

/* Blocking copies reach the device's side, between runs. */
static void exchange_try_copies(vulkan_rig *rig) {
    const dti_backend *b = rig->device->backend;
    exchange p;
    float values[EXCHANGE_N], back[EXCHANGE_N] = {0};
    CHECK(exchange_create(rig, &p));
    if (p.exec) {
        float *put = exchange_host(rig, &p, EXCHANGE_P), *y = exchange_host(rig, &p, EXCHANGE_Y);
        for (int i = 0; i < EXCHANGE_N; i++)
            values[i] = (float)i;
        CHECK(!b->memory_write(p.memories[3], 12288, values, sizeof values));
        for (int i = EXCHANGE_FROM; i < EXCHANGE_TO; i++)
            put[i] = -values[i];
        CHECK(!b->exec_start(p.exec, 2, 1)); /* the copies wait for it */
        CHECK(!b->memory_read(p.memories[3], 12288, back, sizeof back));
        CHECK(!b->exec_wait(p.exec));
        int bad = 0;
        for (int i = 0; i < EXCHANGE_N; i++) {
            float expect = i >= EXCHANGE_FROM && i < EXCHANGE_TO ? -values[i] : values[i];
            bad += back[i] != expect || y[i] != 3 + expect;
        }
        CHECK(!bad);
        CHECK(b->memory_read(p.memories[3], 16384, back, 4) == DT_ERROR_INVALID);
    }
    exchange_destroy(rig, &p);
}

TEST(vulkan_exchange_arena_is_written_and_read_like_any_other) {
    ON_EACH(exchange_try_copies);
}

static void exchange_try_fault(vulkan_rig *rig) {
    const dti_backend *b = rig->device->backend;
    exchange p;
    uint32_t fault = 99;
    CHECK(exchange_create(rig, &p));
    for (int bad = 0; bad < 2 && p.exec; bad++) {
        exchange_host(rig, &p, EXCHANGE_P)[EXCHANGE_FROM] = bad ? (float)NAN : 1;
        CHECK(!b->exec_start(p.exec, 0, 1) && !b->exec_start(p.exec, 2, 1));
        CHECK(!b->exec_find_fault(p.exec, EXCHANGE_LONG + 1, 4, &fault));
        CHECK(fault == (bad ? EXCHANGE_LONG + 3 : EXCHANGE_LAUNCHES)); /* the sum with P */
    }
    exchange_destroy(rig, &p);
}

TEST(vulkan_fault_in_a_put_value_is_found_where_it_is_used) {
    ON_EACH(exchange_try_fault);
}

static void exchange_refused(vulkan_rig *rig, exchange *p, const char *what) {
    dti_exec *exec = NULL;
    dt_result result = rig->device->backend->exec_create(rig->device, &p->desc, &exec);
    test_check(result == DT_ERROR_INVALID && !exec, __FILE__, __LINE__, "%s: result %d", what,
               (int)result);
    if (exec)
        rig->device->backend->exec_destroy(exec);
}

static void exchange_try_misuse(vulkan_rig *rig) {
    exchange p;
    CHECK(exchange_create(rig, &p));
    dti_fetch *fetch = &p.fetches[1], good = *fetch;
    static const dti_fetch bad[] = {
        {16384, 4, 0, 1},
        {16380, 8, 0, 1},
        {UINT64_MAX, 8, 0, 1},
        {0, UINT64_MAX, 0, 1},
        {0, 8, 4, 2},
        {0, 8, 0, 2},
        {16000, 128, 128, 4},
        {0, 4, 1ull << 63, 3},
        {0, 4, 4, UINT32_MAX},
        {4, 4, UINT64_MAX - 3, 2},
        {0, 1ull << 32, 1ull << 32, 1 << 31},
    };
    for (size_t i = 0; i < DTI_COUNT(bad); i++) {
        *fetch = bad[i];
        exchange_refused(rig, &p, "a fetch out of range");
    }
    *fetch = good;
    p.segments[2].put.offset = 16384 - 4;
    exchange_refused(rig, &p, "a put out of range");
    p.segments[2].put.offset = 0;
    for (p.desc.exchange = 0; p.desc.exchange <= 4; p.desc.exchange++)
        if (p.desc.exchange != 3)
            exchange_refused(rig, &p, "a fetch and a put of another memory");
    for (int i = 0; i < 3; i++)
        p.fetches[i].bytes = p.segments[i].put.bytes = 0;
    dti_exec *exec = NULL; /* nothing is exchanged: the index is not looked at */
    CHECK(!rig->device->backend->exec_create(rig->device, &p.desc, &exec));
    rig->device->backend->exec_destroy(exec);
    exchange_destroy(rig, &p);
}

TEST(vulkan_exec_refuses_an_exchange_out_of_range) {
    ON_EACH(exchange_try_misuse);
}

/* Ranges that fill an arena to its last byte, by one copy and by several of its calls. */
static void exchange_try_ends(vulkan_rig *rig) {
    exchange p;
    dti_exec *exec = NULL;
    const dti_backend *b = rig->device->backend;
    CHECK(exchange_create(rig, &p));
    float *host = (float *)b->memory_host(p.memories[3]), values[4096];
    const dti_fetch all[] = {
        {0, 16384, 0, 1}, {0, 64, 64, 256}, {4, 4, 8, 2048}, {16384, 0, 9, 7}, {16380, 4, 99, 1}};
    for (int i = 0; i < 4096; i++)
        values[i] = (float)i + 1;
    CHECK(!b->memory_write(p.memories[3], 0, values, sizeof values));
    for (size_t k = 0; k < DTI_COUNT(all) && p.exec; k++) {
        p.segments[0] = (dti_segment){.fetch = &all[k], .fetch_count = 1};
        CHECK(!b->exec_create(rig->device, &p.desc, &exec));
        for (int i = 0; i < 4096 && p.staged; i++)
            host[i] = 0;
        CHECK(exec && !b->exec_start(exec, 0, 1) && !b->exec_reach(exec, 0));
        for (uint32_t i = 0; i < all[k].count; i++)
            CHECK(!memcmp((char *)host + all[k].offset + i * all[k].stride,
                          (char *)values + all[k].offset + i * all[k].stride, all[k].bytes));
        CHECK(!p.staged || host[0] == (k < 2 ? 1 : 0));
        b->exec_destroy(exec);
    }
    exchange_destroy(rig, &p);
}

TEST(vulkan_fetch_reaches_the_ends_of_the_arena) {
    ON_EACH(exchange_try_ends);
}

/* ---- A device that is full or lost ----------------------------------------------------------- */

static int exchange_allocations_left;
static dti_PFN_vkAllocateMemory exchange_allocate;

static dti_VkResult DTI_VKAPI exchange_full(dti_VkDevice device,
                                            const dti_VkMemoryAllocateInfo *info,
                                            const void *allocator, dti_VkDeviceMemory *out) {
    if (exchange_allocations_left-- > 0)
        return exchange_allocate(device, info, allocator, out);
    return DTI_VK_ERROR_OUT_OF_DEVICE_MEMORY;
}

static dti_VkResult DTI_VKAPI exchange_no_buffer(dti_VkDevice device,
                                                 const dti_VkBufferCreateInfo *info,
                                                 const void *allocator, dti_VkBuffer *out) {
    (void)device, (void)info, (void)allocator, (void)out;
    return DTI_VK_ERROR_OUT_OF_DEVICE_MEMORY;
}

/* The refusal names the object, its bytes, and the memory of the device. */
static void exchange_check_refusal(vulkan_rig *rig, uint64_t held) {
    dti_vk_device *device = (dti_vk_device *)rig->device;
    dti_memory *m = NULL;
    uint64_t after, calls;
    char has[32];
    const bool known = rig->device->info.has_memory_budget;
    uint64_t heap = device->heaps.memoryHeaps[0].size; /* software drivers have one */
    CHECK(rig->device->backend->memory_create(rig->device, 77 << 20, DTI_MEMORY_EXCHANGE, &m) ==
          DT_ERROR_DEVICE_MEMORY);
    CHECK(!m);
    CHECK_CONTAINS(rig->base.error, "the exchange arena needs 80740352 bytes");
    CHECK_CONTAINS(rig->base.error, known ? "free" : "in all");
    snprintf(has, sizeof has, "has %llu bytes", (unsigned long long)heap);
    if (!known && device->heaps.memoryHeapCount == 1)
        CHECK_CONTAINS(rig->base.error, has);
    dti_vk_memory_used(rig->in, &after, &calls);
    CHECK(after == held);
}

static void exchange_try_full(vulkan_rig *rig) {
    dti_vk_device *device = (dti_vk_device *)rig->device;
    uint64_t held, calls;
    dti_vk_memory_used(rig->in, &held, &calls);
    exchange_allocate = device->vk.AllocateMemory;
    device->vk.AllocateMemory = exchange_full;
    for (int made = 0; made < (device->unified ? 1 : 2); made++) {
        exchange_allocations_left = made; /* then its host side does not fit */
        exchange_check_refusal(rig, held);
    }
    device->vk.AllocateMemory = exchange_allocate;
    device->vk.CreateBuffer = exchange_no_buffer;
    exchange_check_refusal(rig, held);
}

TEST(vulkan_device_that_is_full_reports_the_bytes_needed_and_available) {
    ON_EACH(exchange_try_full);
}

static dti_PFN_vkWaitForFences exchange_wait;
static dti_PFN_vkGetFenceStatus exchange_status;

/* In truth the device goes on, and is let finish: what it uses is destroyed soon. */
static dti_VkResult DTI_VKAPI exchange_lost(dti_VkDevice device, uint32_t count,
                                            const dti_VkFence *fences, dti_VkBool32 all,
                                            uint64_t timeout) {
    while (exchange_wait(device, count, fences, all, timeout) == DTI_VK_TIMEOUT)
        ;
    return DTI_VK_ERROR_DEVICE_LOST;
}

/* A fast device has ended before it is waited for. */
static dti_VkResult DTI_VKAPI exchange_lost_status(dti_VkDevice device, dti_VkFence fence) {
    while (exchange_status(device, fence) == DTI_VK_NOT_READY)
        ;
    return DTI_VK_ERROR_DEVICE_LOST;
}

static void exchange_try_loss(vulkan_rig *rig) {
    const dti_backend *b = rig->device->backend;
    dti_vk_device *device = (dti_vk_device *)rig->device;
    exchange p;
    bool busy;
    CHECK(exchange_create(rig, &p));
    CHECK(!b->exec_start(p.exec, 0, 1) && !b->exec_start(p.exec, 1, 1));
    CHECK(!b->exec_reach(p.exec, 0));
    exchange_wait = device->vk.WaitForFences;
    exchange_status = device->vk.GetFenceStatus;
    device->vk.WaitForFences = exchange_lost;
    device->vk.GetFenceStatus = exchange_lost_status;
    CHECK(b->exec_reach(p.exec, 1) == DT_ERROR_DEVICE_LOST);
    CHECK_CONTAINS(rig->base.error, "lost");
    device->vk.GetFenceStatus = exchange_status;
    device->vk.WaitForFences = exchange_wait; /* it stays lost, whatever the driver says */
    for (uint32_t i = 0; i < 3; i++) {
        CHECK(b->exec_reach(p.exec, i) == DT_ERROR_DEVICE_LOST);
        CHECK(b->exec_start(p.exec, i, 1) == DT_ERROR_DEVICE_LOST);
    }
    CHECK(b->exec_poll(p.exec, &busy) == DT_ERROR_DEVICE_LOST);
    CHECK(b->exec_wait(p.exec) == DT_ERROR_DEVICE_LOST);
    CHECK_CONTAINS(rig->base.error, device->head.info.name);
    exchange_destroy(rig, &p);
}

TEST(vulkan_device_lost_in_the_middle_of_a_step_stays_lost) {
    ON_EACH(exchange_try_loss);
}

/* ---- Replicas: contexts in threads ----------------------------------------------------------- */

#define REPLICAS 3

typedef struct replica {
    const char *device;
    int rounds; /* contexts, one after the other: some open while others close */
    vulkan_log log;
    dt_result result;
    uint64_t hash[2];
    char error[256];
} replica;

static dt_result replica_steps(dt_program *train, dt_tensor x, dt_tensor t) {
    float xs[16][8], ts[16][3];
    dt_result result = DT_OK;
    for (int step = 0; step < 12 && !result; step++) {
        for (int i = 0; i < 16 * 8; i++)
            xs[i / 8][i % 8] = (float)((i * 31 + step * 7) % 23 - 11) * 0.1f;
        for (int i = 0; i < 16 * 3; i++)
            ts[i / 3][i % 3] = (float)((i * 13 + step) % 17) * 0.1f;
        result = dt_program_write(train, x, xs, sizeof xs);
        if (!result)
            result = dt_program_write(train, t, ts, sizeof ts);
        if (!result)
            result = dt_program_run(train, NULL, NULL);
    }
    return result;
}

/* A model of few kernels: SwiftShader compiles each again in every context. */
static dt_result replica_train(dt_ctx *ctx, const char *device, uint64_t *hash) {
    dt_graph *graph = NULL;
    dt_store *store = NULL;
    dt_program *train = NULL;
    dt_result result = dt_graph_create(ctx, &graph);
    if (result)
        return result;
    dt_tensor x = dt_input(graph, "x", DT_F32, dt_dims(8));
    dt_tensor t = dt_input(graph, "t", DT_F32, dt_dims(3));
    dt_tensor y = dt_nn_linear(dt_nn_linear(x, "a", 16), "b", 3);
    dt_optim_desc adamw = {.lr = 1e-2};
    dt_program_desc desc = {
        .loss = dt_mse(y, t), .batch = 16, .optim = &adamw, .bucket_bytes = 256};
    dt_store_desc where = {.device = device, .seed = 5};
    result = dt_store_create(graph, &where, &store);
    if (!result)
        result = dt_program_create(store, &desc, &train);
    if (!result)
        result = replica_steps(train, x, t);
    return result ? result : dt_store_state_hash(store, hash);
}

/* Thread function. */
static void *replica_run(void *arg) {
    replica *r = arg;
    dt_ctx_desc desc = {.validation = true, .logger = {vulkan_listen, &r->log}};
    for (int round = 0; round < r->rounds && !r->result; round++) {
        dt_ctx *ctx = NULL;
        r->result = dt_ctx_create(&desc, &ctx);
        if (!r->result)
            r->result = replica_train(ctx, r->device, &r->hash[round]);
        snprintf(r->error, sizeof r->error, "%.255s", dt_ctx_error(ctx));
        dt_ctx_destroy(ctx);
    }
    return NULL;
}

static void replicas_on(const char *device) {
    replica all[REPLICAS];
    pthread_t threads[REPLICAS];
    int started = 0;
    for (int i = 0; i < REPLICAS; i++)
        all[i] = (replica){.device = device, .rounds = i ? 1 : 2};
    while (started < REPLICAS &&
           !pthread_create(&threads[started], NULL, replica_run, &all[started]))
        started++;
    CHECK(started == REPLICAS);
    for (int i = 0; i < started; i++) {
        pthread_join(threads[i], NULL);
        test_check(!all[i].result && !all[i].log.validation && !all[i].log.errors, __FILE__,
                   __LINE__, "%s, thread %d: %s", device, i, all[i].error);
        for (int round = 0; round < all[i].rounds; round++)
            CHECK(all[i].hash[round] && all[i].hash[round] == all[0].hash[0]);
    }
}

TEST(vulkan_contexts_in_threads_train_the_same_bits_at_the_same_time) {
    dt_ctx *ctx = NULL;
    REQUIRE(dt_ctx_create(NULL, &ctx) == DT_OK);
    int tried = 0;
    for (int i = 1; i < dt_ctx_device_count(ctx); i++)
        if (dt_ctx_device(ctx, i)->usable) {
            replicas_on(dt_ctx_device(ctx, i)->id);
            tried++;
        }
    dt_ctx_destroy(ctx);
    if (!tried)
        SKIP("no Vulkan driver");
}

#endif
