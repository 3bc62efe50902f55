/* A driver of devices that only tests have. A backend needs of the library only its own file, and a
 * word in the list of drivers. It has no device but in its test, and computes as the CPU does.
 * Included by main.c. */

static struct own_state {
    int devices; /* that there are */
    int made, destroyed, opened;
} own;

static dt_result own_list(dti_base *base, const dt_ctx_desc *desc, void **instance,
                          dt_device_info *infos, int capacity, int *count) {
    (void)desc;
    *count = own.devices;
    if (own.devices && !*instance) {
        *instance = dti_alloc(base, sizeof(dti_base *));
        if (!*instance)
            return DT_ERROR_MEMORY;
        *(dti_base **)*instance = base;
        own.made++;
    }
    for (int i = 0; i < own.devices && i < capacity; i++) {
        infos[i] = (dt_device_info){.kind = DT_DEVICE_VIRTUAL, .usable = true};
        snprintf(infos[i].id, sizeof infos[i].id, "own:%d", i);
        snprintf(infos[i].name, sizeof infos[i].name, "Abacus %d", i);
    }
    return DT_OK;
}

static dt_result own_open(dti_base *base, const dt_ctx_desc *desc, void *instance, int index,
                          dti_device **out) {
    (void)desc;
    dt_result result = dti_cpu_open(base, DTI_ISA_PORTABLE, out);
    CHECK(*(dti_base **)instance == base);
    if (!result) {
        own.opened++;
        snprintf((*out)->info.id, sizeof(*out)->info.id, "own:%d", index);
    }
    return result;
}

static void own_destroy(void *instance) {
    own.destroyed++;
    dti_free(*(dti_base **)instance, instance);
}

static dt_result own_cache_export(void *instance, void *data, size_t *bytes) {
    (void)instance;
    if (data && *bytes >= 3)
        memcpy(data, "own", 3);
    *bytes = 3;
    return DT_OK;
}

static void own_memory_used(const void *instance, uint64_t *bytes, uint64_t *calls) {
    (void)instance;
    *bytes = 4096;
    *calls = 2;
}

static const dti_driver dti_own_driver = {.name = "own",
                                          .title = "Own",
                                          .list = own_list,
                                          .open = own_open,
                                          .destroy = own_destroy,
                                          .cache_export = own_cache_export,
                                          .memory_used = own_memory_used};

static void own_check_device(dt_ctx *ctx, const char *name, const char *id) {
    dt_graph *graph;
    dt_store *store;
    dt_program *program;
    const float in[3] = {-1, 2, 3};
    float out[3];
    REQUIRE(dt_graph_create(ctx, &graph) == DT_OK);
    dt_tensor x = dt_input(graph, "x", DT_F32, dt_dims(3)), y = dt_affine(dt_relu(x), 2, 1);
    REQUIRE(dt_store_create(graph, &(dt_store_desc){.device = name}, &store) == DT_OK);
    CHECK(strcmp(store->device->info.id, id) == 0);
    REQUIRE(dt_program_create(store, &(dt_program_desc){.outputs = {y}}, &program) == DT_OK);
    CHECK(dt_program_write(program, x, in, sizeof in) == DT_OK);
    CHECK(dt_program_run(program, NULL, NULL) == DT_OK);
    CHECK(dt_program_read(program, y, out, sizeof out) == DT_OK);
    CHECK(out[0] == 1 && out[1] == 5 && out[2] == 7);
}

TEST(a_driver_in_the_list_gives_devices_memory_and_a_cache_to_a_context) {
    dt_ctx *ctx;
    char blob[8] = "";
    size_t bytes = sizeof blob;
    dt_ctx_info memory;
    own = (struct own_state){.devices = 2};
    REQUIRE(dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &ctx) == DT_OK);
    CHECK(dt_ctx_device_count(ctx) == 3);
    CHECK(strcmp(dt_ctx_device(ctx, 0)->id, "cpu") == 0);
    CHECK(strcmp(dt_ctx_device(ctx, 2)->id, "own:1") == 0);
    own_check_device(ctx, "own:1", "own:1");
    own_check_device(ctx, "own", "own:0"); /* its best */
    own_check_device(ctx, "abacus 1", "own:1");
    own_check_device(ctx, "cpu", "cpu");
    CHECK(own.made == 1 && own.opened == 3);
    dt_ctx_get_info(ctx, &memory);
    CHECK(memory.device_bytes == 4096 && memory.device_alloc_calls == 2);
    CHECK(dt_ctx_pipeline_cache(ctx, blob, &bytes) == DT_OK);
    CHECK(bytes == 3 && strcmp(blob, "own") == 0);
    dt_ctx_destroy(ctx);
    CHECK(own.destroyed == 1);
    own = (struct own_state){0};
}
