/* Replicas on Vulkan of a network whose sums are cut. It has products in chunks of k, norms in
 * chunks, reductions of columns, and convolutions' weights in parts. Where the cuts are depends on
 * no replica, so 1, 2, 4 and 8 of them give the same bits. Included by main.c, after
 * test_parallel.c. */
#ifndef DT_NO_VULKAN

enum { CUTS_ROWS = 16, CUTS_SIDE = 24 };

typedef struct cuts_case {
    dt_ctx *ctx;
    dt_trainer *trainer;
    float *x;
    int32_t t[2 * CUTS_ROWS];
    dt_dataset data;
} cuts_case;

static dt_tensor cuts_net(dt_tensor x) {
    dt_tensor h = dt_reshape(x, dt_dims(1, CUTS_SIDE, CUTS_SIDE));
    h = dt_nn_conv2d(h, "conv", 8, 3, &(dt_conv_layer_desc){.conv = {.padding = {1, 1}}});
    h = dt_relu(dt_nn_group_norm(h, "norm", 1)); /* of 4608 elements */
    h = dt_flatten(dt_max_pool2d(h, &(dt_pool_desc){.kernel = {2, 2}}));
    h = dt_relu(dt_nn_linear(h, "long", 512)); /* k = 1152 */
    h = dt_relu(dt_nn_linear(dt_reshape(h, dt_dims(64, 8)), "tokens", 96));
    return dt_nn_linear(dt_flatten(h), "head", 5);
}

/* parallel.zero_stage < 0: the host makes the updates. Averaged: evaluations are of averages. */
static bool cuts_open(cuts_case *c, const char *devices, int zero_stage, bool averaged) {
    const size_t one = CUTS_SIDE * CUTS_SIDE;
    dt_optim_desc adam = {.kind = DT_OPTIM_ADAM, .lr = 1e-3};
    dt_graph *g;
    if (averaged)
        adam.average = (dt_average){.kind = DT_AVERAGE_EMA, .decay = 0.9};
    *c = (cuts_case){0};
    if (dt_ctx_create(NULL, &c->ctx) || dt_graph_create(c->ctx, &g))
        return false;
    dt_tensor x = dt_input(g, "x", DT_F32, dt_dims(CUTS_SIDE * CUTS_SIDE));
    dt_tensor t = dt_input(g, "t", DT_I32, dt_dims());
    c->x = malloc(2 * CUTS_ROWS * one * sizeof *c->x);
    for (size_t i = 0; i < 2 * CUTS_ROWS * one; i++)
        c->x[i] = (float)dti_normal(5, i, 2);
    for (int i = 0; i < 2 * CUTS_ROWS; i++)
        c->t[i] = i * 7 % 5;
    c->data = (dt_dataset){
        .rows = 2 * CUTS_ROWS,
        .columns = {{.input = x, .data = c->x}, {.input = t, .data = c->t, .dtype = DT_I32}}};
    const dt_trainer_desc d = {.loss = dt_cross_entropy(cuts_net(x), t, NULL),
                               .optim = &adam,
                               .batch = CUTS_ROWS,
                               .parallel.batch_slices = 8,
                               .devices = devices,
                               .parallel.zero_stage = abs(zero_stage),
                               .parallel.offload = zero_stage < 0,
                               .averaged = averaged,
                               .parallel.bucket_bytes = zero_stage ? 65536 : 0,
                               .data = c->data};
    return !dt_trainer_create(g, &d, &c->trainer);
}

/* The sums that are meant are there, whatever the replicas. */
static void cuts_look(const cuts_case *c, uint32_t *kinds) {
    const dti_listing *list = &c->trainer->par.replicas[0].full.runs[0].program->code->list;
    bool chunks = false;
    for (uint32_t i = 0; i < list->launch_count; i++) {
        const dti_launch *l = &list->launches[i];
        chunks = chunks || l->kernel == DTI_K_PRODUCT_SUM ||
                 (l->kernel == DTI_K_GEMM && l->args.gemm.chunk);
        const bool norm = l->kernel == DTI_K_NORM_GROUP || l->kernel == DTI_K_NORM_STATS;
        *kinds |= norm && l->args.norm.chunks > 1 ? 1u : 0u;
        *kinds |= l->kernel == DTI_K_REDUCE_COLUMN ? 2u : 0u;
        *kinds |= l->kernel == DTI_K_CONV_DW ? 4u : l->kernel == DTI_K_CONV ? 8u : 0u;
    }
    *kinds |= chunks ? 16u : 0u;
}

static uint64_t cuts_hash(const char *devices, int zero_stage) {
    cuts_case c;
    uint64_t hash = 0;
    uint32_t kinds = 0;
    if (cuts_open(&c, devices, zero_stage, false)) {
        cuts_look(&c, &kinds);
        test_check(kinds == 31, __FILE__, __LINE__, "%s: sums of kinds %u", devices, kinds);
        CHECK(!dt_trainer_epoch(c.trainer, NULL));
        CHECK(!dt_store_state_hash(dt_trainer_store(c.trainer), &hash));
    }
    test_check(hash != 0, __FILE__, __LINE__, "%s: %s", devices, dt_ctx_error(c.ctx));
    dt_ctx_destroy(c.ctx);
    free(c.x);
    return hash;
}

/* All of 1, 2, 4 and 8 in the long form. */
TEST(replicas_on_vulkan_cut_long_sums_with_the_same_bits) {
    const int quick = vulkan_quick_device();
    const bool all = getenv("DTRAIN_TEST_LONG") != NULL;
    char devices[8 * 16] = "";
    uint64_t one = 0;
    if (!quick && !ahead_has_vulkan())
        SKIP("no Vulkan device");
    for (int n = 1; n <= 8; n++) {
        char id[16];
        snprintf(id, sizeof id, "%svulkan:%d", n > 1 ? "," : "", quick);
        strcat(devices, id);
        if (n == 1)
            one = cuts_hash(devices, 0);
        else if (all ? n == 2 || n == 4 || n == 8 : n == 2)
            CHECK(cuts_hash(devices, 0) == one);
    }
}

/* Values that leave and come are copied by the segments, and between them. The other side sees
 * nothing of it before. */
TEST(zero_2_and_3_on_devices_with_their_own_memory_have_the_bits_of_one_replica) {
    const int quick = vulkan_quick_device();
    const bool all = getenv("DTRAIN_TEST_LONG") != NULL;
    char one[16], two[32], three[48];
    if (!quick && !ahead_has_vulkan())
        SKIP("no Vulkan device");
    snprintf(one, sizeof one, "vulkan:%d", quick);
    snprintf(two, sizeof two, "%s,%s", one, one);
    snprintf(three, sizeof three, "%s,%s", two, one);
    harness_apart = true;
    const uint64_t want = cuts_hash(one, 0);
    for (int level = all ? 1 : 2; level <= DT_SHARD_PARAMETERS; level++) {
        if (all || level == DT_SHARD_PARAMETERS)
            CHECK(cuts_hash(two, level) == want);
        if (all || level == DT_SHARD_GRADIENTS) /* of 8 batch slices: several sums each */
            CHECK(cuts_hash(three, level) == want);
    }
    const uint64_t host = cuts_hash(one, -DT_SHARD_GRADIENTS);
    CHECK(host && cuts_hash(two, -DT_SHARD_PARAMETERS) == host);
    harness_apart = false;
}

/* ---- a device without memory for all parameters */

static dt_result cuts_no_memory(dti_device *device, uint64_t bytes, dti_memory_kind kind,
                                dti_memory **out) {
    (void)kind;
    *out = NULL;
    return dti_fail(device->base, DT_ERROR_MEMORY, "no %llu bytes", (unsigned long long)bytes);
}

TEST(a_replica_without_memory_for_all_parameters_reports_it_and_gathers_them_later) {
    cuts_case c;
    const bool ready =
        cuts_open(&c, "cpu:2", DT_SHARD_PARAMETERS, false) && !dt_trainer_step(c.trainer, NULL);
    if (test_check(ready, __FILE__, __LINE__, "%s", dt_ctx_error(c.ctx))) {
        dti_device *second = c.trainer->par.replicas[1].store->device;
        const dti_backend *own = second->backend;
        dti_backend full = *own;
        full.memory_create = cuts_no_memory;
        second->backend = &full;
        CHECK(!dt_trainer_store(c.trainer));
        CHECK_CONTAINS(dt_ctx_error(c.ctx), "replica 1: no ");
        second->backend = own;
        CHECK(dt_trainer_store(c.trainer) != NULL && !dt_trainer_step(c.trainer, NULL));
    }
    dt_ctx_destroy(c.ctx);
    free(c.x);
}

/* ---- a device that fails while averages take the weights' place */

static struct {
    dti_base *base; /* whose context says so */
    const dti_backend *own;
    bool once;
} cuts_broken;

/* Once: the weights come back to their place. */
static dt_result cuts_no_write(dti_memory *memory, uint64_t at, const void *from, uint64_t bytes) {
    if (!cuts_broken.once)
        return cuts_broken.own->memory_write(memory, at, from, bytes);
    cuts_broken.once = false;
    return dti_fail(cuts_broken.base, DT_ERROR_DEVICE, "cannot write %llu bytes at %llu",
                    (unsigned long long)bytes, (unsigned long long)at);
}

TEST(a_replica_that_cannot_take_averages_is_named_with_its_reason) {
    cuts_case c;
    const bool ready =
        cuts_open(&c, "cpu:2", DT_SHARD_OPTIMIZER, true) && !dt_trainer_step(c.trainer, NULL);
    if (test_check(ready, __FILE__, __LINE__, "%s", dt_ctx_error(c.ctx))) {
        dti_device *second = c.trainer->par.replicas[1].store->device;
        const dti_backend *own = second->backend;
        dti_backend broken = *own;
        cuts_broken.base = dti_ctx_base(c.trainer->par.replicas[1].ctx);
        cuts_broken.own = own;
        cuts_broken.once = true;
        broken.memory_write = cuts_no_write;
        second->backend = &broken;
        CHECK(dt_trainer_evaluate(c.trainer, &c.data, 0, NULL) == DT_ERROR_DEVICE);
        CHECK_CONTAINS(dt_ctx_error(c.ctx), "replica 1: cannot write ");
        second->backend = own;
        CHECK(!dt_trainer_evaluate(c.trainer, &c.data, 0, NULL));
    }
    dt_ctx_destroy(c.ctx);
    free(c.x);
}

#endif
