/* The inside of data-parallel training: the rows of each replica, the order of sums, instruction
 * sets side by side. Also the gradient against float64, and a device that is lost in the middle of
 * a step. */
#include "train/train_model.h"

/* ---- which rows */

/* Rows of each part of each batch slice, by who has them. */
static void parallel_pieces(const dti_partition *job, uint32_t rows, uint32_t *out) {
    dti_base base;
    dti_base_init(&base, NULL, NULL);
    uint32_t row = 0;
    for (uint32_t replica = 0; replica < job->replicas; replica++) {
        dti_runs runs;
        uint32_t first, end, piece = 0;
        REQUIRE(dti_runs_make(&base, job, replica, rows, &runs) == DT_OK);
        dti_partition_batch_slices(job, replica, &first, &end);
        for (uint32_t i = 0; i < runs.count; i++) {
            const dti_micro_run *run = &runs.runs[i];
            uint32_t sum = 0;
            CHECK(run->rows > 0 && run->row == row && run->micro == i);
            CHECK(run->last == (i + 1 == runs.count));
            CHECK(run->first_piece == first * job->parts + piece);
            for (uint32_t k = 0; k < run->piece_count; k++, piece++) {
                out[first * job->parts + piece] = run->pieces[k].rows;
                CHECK(run->pieces[k].leaf == first + piece / job->parts);
                CHECK(run->pieces[k].begins == (piece % job->parts == 0));
                CHECK(run->pieces[k].ends == (piece % job->parts == job->parts - 1));
                sum += run->pieces[k].rows;
            }
            CHECK(sum == run->rows);
            row += run->rows;
        }
        CHECK(!runs.count || piece == (end - first) * job->parts);
        dti_runs_free(&base, &runs);
    }
    CHECK(row == rows);
}

TEST(every_row_is_in_exactly_one_piece_on_any_number_of_replicas) {
    enum { MOST = 16 * 5 };
    for (uint32_t batch_slices = 1; batch_slices <= 16; batch_slices += 3)
        for (uint32_t parts = 1; parts <= 5; parts++)
            for (uint32_t batch = batch_slices; batch < 90; batch += 17)
                for (uint32_t rows = 1; rows <= batch; rows += 5) {
                    uint32_t want[MOST] = {0}, got[MOST];
                    dti_partition job = {1, 0, 1, batch_slices, parts, batch, false, NULL};
                    parallel_pieces(&job, rows, want);
                    for (job.replicas = 2; job.replicas <= batch_slices; job.replicas++) {
                        memset(got, 0, sizeof got);
                        parallel_pieces(&job, rows, got);
                        CHECK(!memcmp(want, got, sizeof got));
                    }
                }
}

/* A replica's share of the processors, which changes no bit. */
TEST(all_threads_of_a_trainer_are_the_processors_shared_by_its_replicas) {
    static const char *const devices[] = {"cpu", "cpu:2", "cpu:3"};
    uint64_t hash[2] = {0, 0};
    for (int i = 0; i < 6; i++) {
        train_model m;
        dt_trainer *trainer = NULL;
        REQUIRE(train_model_make(&m, &(dt_ctx_desc){.no_vulkan = true}, true));
        dt_trainer_desc d = train_desc(&m);
        d.devices = devices[i / 2];
        d.threads = i % 2 ? DT_THREADS_ALL : 0;
        REQUIRE(dt_trainer_create(m.graph, &d, &trainer) == DT_OK);
        CHECK(i % 2 == 0 || trainer->desc.threads == DTI_MAX(dti_processors() / (i / 2 + 1), 1));
        CHECK(!dt_trainer_step(trainer, NULL) &&
              !dt_store_hash(dt_trainer_store(trainer), &hash[i % 2]));
        CHECK(i % 2 == 0 || hash[0] == hash[1]);
        dt_ctx_destroy(m.ctx);
    }
}

/* ---- the order of sums */

/* What a replica's runs leave, on numbers whose sums round. */
static uint32_t parallel_subtrees(const dti_partition *job, uint32_t replica, const float *leaves,
                                  dti_operand *out, float *values) {
    dti_base base;
    dti_runs runs;
    dti_subtrees s = {.count = 0};
    dti_base_init(&base, NULL, NULL);
    if (dti_runs_make(&base, job, replica, job->batch, &runs))
        return 0;
    for (uint32_t i = 0; i < runs.count; i++) {
        CHECK(runs.runs[i].before.count == s.count);
        for (uint32_t k = 0; k < runs.runs[i].piece_count; k++) {
            const dti_piece *p = &runs.runs[i].pieces[k];
            uint32_t at = dti_subtrees_add(&s, p);
            values[at] = (p->begins ? 0.0f : values[at]) + leaves[p->leaf] / (float)job->parts;
            while (p->ends && dti_subtrees_join(&s, job->batch_slices))
                values[s.count - 1] += values[s.count];
        }
    }
    CHECK(s.count <= runs.slots);
    for (uint32_t i = 0; i < s.count; i++)
        out[i] = (dti_operand){&values[i], DT_F32, s.at[i]};
    dti_runs_free(&base, &runs);
    return s.count;
}

TEST(replicas_produce_the_subtree_sums_that_the_collectives_add) {
    float leaves[70], values[70][DTI_SUBTREES_MAX];
    for (int i = 0; i < 70; i++)
        leaves[i] = 1.0f / (float)(3 + i * i);
    for (uint32_t batch_slices = 1; batch_slices < 70; batch_slices++) {
        dti_partition job = {1, 0, 1, batch_slices, 1, 2 * batch_slices, false, NULL};
        dti_operand all[70];
        float want, got;
        for (uint32_t i = 0; i < batch_slices; i++)
            all[i] = (dti_operand){&leaves[i], DT_F32, {i, 1}};
        dti_fold(&want, all, batch_slices, 1, DT_F32, DT_COMM_SUM, true, 1);
        for (job.replicas = 1; job.replicas <= batch_slices && job.replicas < 12; job.replicas++) {
            uint32_t count = 0;
            for (uint32_t r = 0; r < job.replicas; r++) {
                uint32_t more = parallel_subtrees(&job, r, leaves, all + count, values[r]);
                uint32_t first, end;
                dti_partition_batch_slices(&job, r, &first, &end);
                CHECK(more == dti_partition_subtrees(&job, first, end).count);
                count += more;
            }
            dti_fold(&got, all, count, 1, DT_F32, DT_COMM_SUM, true, 1);
            CHECK(memcmp(&want, &got, sizeof got) == 0);
        }
    }
}

/* ---- instruction sets side by side */

static void parallel_set_kernels(dt_trainer *t, uint32_t replica, int isa) {
    for (dt_program *p = t->par.replicas[replica].store->programs; p; p = p->next) {
        dti_cpu_exec *x = (dti_cpu_exec *)(void *)p->now->exec;
        for (uint32_t i = 0; i < x->desc->launch_count; i++)
            x->tasks[i].k = dti_isa_kernels_select(isa);
    }
}

static uint64_t parallel_isa_hash(bool mixed) {
    train_model m;
    dt_trainer *t;
    uint64_t hash = 0;
    if (!train_model_make(&m, &(dt_ctx_desc){.no_vulkan = true}, true))
        return 0;
    dt_trainer_desc d = train_desc(&m);
    d.devices = mixed ? "cpu:2" : "cpu";
    d.parallel.batch_slices = 4;
    if (dt_trainer_create(m.graph, &d, &t) == DT_OK) {
        if (mixed)
            parallel_set_kernels(t, 1, DTI_ISA_AVX2);
        for (int i = 0; i < 8; i++)
            CHECK(dt_trainer_step(t, NULL) == DT_OK);
        CHECK(dt_store_state_hash(t->par.replicas[mixed].store, &hash) == DT_OK);
    }
    dt_ctx_destroy(m.ctx);
    return hash;
}

TEST(a_replica_with_avx2_and_one_with_the_best_set_train_the_same_bits) {
    if (dti_isa_select(DTI_ISA_AVX2) != DTI_ISA_AVX2)
        return; /* one class of instruction sets only */
    uint64_t one = parallel_isa_hash(false);
    CHECK(one && one == parallel_isa_hash(true));
}

/* ---- against float64 */

static void parallel_reference(train_model *m, dt_store *store, uint32_t rows, uint64_t step,
                               dt_tensor *dx, ref_run *run) {
    const int count = dt_store_param_count(store);
    static dt_tensor wrt[16];
    dt_tensor seed = dti_append1(DTI_OP_SEED, m->loss, &(dti_attr){.i = {0}});
    for (int i = 0; i < count; i++)
        wrt[i] = (dt_tensor){m->graph, store->layout.params[i].node};
    dti_differentiate(m->graph, m->loss, seed, wrt, (uint32_t)count, dx);
    ref_open(run, m->graph, rows);
    run->train = true;
    run->step.seed = 3;
    run->step.step = step;
    run->step.coefficient[0] = 1;
    for (int i = 0; i < count; i++) {
        float values[2048];
        ref_tensor *t = ref_tensor_of(run, wrt[i]);
        REQUIRE((size_t)t->elements <= sizeof values / 4);
        dt_store_read(store, i, DT_VALUE_PARAM, values, 4 * (size_t)t->elements);
        for (int64_t k = 0; k < t->elements; k++)
            t->data[k] = (double)values[k];
    }
    ref_tensor *x = ref_tensor_of(run, m->x), *t = ref_tensor_of(run, m->t);
    for (int64_t k = 0; k < x->elements; k++)
        x->data[k] = (double)m->data.x[k];
    for (int64_t k = 0; k < t->elements; k++)
        t->data[k] = m->data.t[k];
    REQUIRE(ref_values(run, dx, (uint32_t)count) == DT_OK);
}

static void parallel_against_reference(const char *devices, int batch_slices, int accumulate) {
    train_model m, again;
    dt_trainer *t;
    dt_store *before;
    dt_tensor dx[16];
    ref_run run;
    enum { BATCH = 67 };
    REQUIRE(train_model_make(&m, &(dt_ctx_desc){.no_vulkan = true}, false));
    REQUIRE(train_model_make(&again, &(dt_ctx_desc){.no_vulkan = true}, false));
    for (int i = 0; i < 33; i++) /* one replica has 3 valid targets, another all of its */
        m.data.t[i] = again.data.t[i] = i < 3 ? i : -100;
    dt_trainer_desc d = train_desc(&m);
    d.no_shuffle = true;
    d.devices = devices;
    d.parallel.batch_slices = batch_slices;
    d.accumulate = accumulate;
    d.batch = BATCH;
    REQUIRE(dt_trainer_create(m.graph, &d, &t) == DT_OK);
    REQUIRE(dt_store_create(again.graph, &(dt_store_desc){.device = "cpu", .seed = 3}, &before) ==
            DT_OK);
    parallel_reference(&again, before, BATCH, 1, dx, &run);
    REQUIRE(dt_trainer_step(t, NULL) == DT_OK);
    for (int i = 0; i < dt_store_param_count(before); i++) {
        float got[2048];
        const ref_tensor *want = ref_tensor_of(&run, dx[i]);
        double largest = 0;
        for (int64_t k = 0; k < want->elements; k++)
            largest = fmax(largest, fabs(want->data[k]));
        CHECK(!dt_store_read(dt_trainer_store(t), i, DT_VALUE_GRADIENT, got,
                             4 * (size_t)want->elements));
        /* a few hundred additions and products of f32, each off by at most 2^-24 of the terms */
        for (int64_t k = 0; k < want->elements; k++)
            CHECK_NEAR(want->data[k], (double)got[k], 2e-6 * largest + 1e-9);
    }
    ref_close(&run);
    dt_ctx_destroy(m.ctx);
    dt_ctx_destroy(again.ctx);
}

TEST(the_gradient_of_replicas_is_that_of_the_whole_batch_in_float64) {
    parallel_against_reference("cpu", 1, 1);
    parallel_against_reference("cpu:2", 2, 1);
    parallel_against_reference("cpu:3", 7, 3);
    parallel_against_reference("cpu:8", 8, 2);
}

/* ---- a device that is lost */
#ifndef DT_NO_VULKAN

static int parallel_waits_left;   /* until the device is lost */
static uint64_t parallel_late_ns; /* and so much later, while the other rank waits */

static dti_VkResult DTI_VKAPI parallel_wait(dti_VkDevice device, uint32_t count,
                                            const dti_VkFence *fences, dti_VkBool32 all,
                                            uint64_t timeout) {
    if (parallel_waits_left-- > 0)
        return exchange_wait(device, count, fences, all, timeout);
    dti_thread_sleep(parallel_late_ns);
    return exchange_lost(device, count, fences, all, timeout);
}

/* So that every segment is waited for. */
static dti_VkResult DTI_VKAPI parallel_not_ready(dti_VkDevice device, dti_VkFence fence) {
    (void)device, (void)fence;
    return DTI_VK_NOT_READY;
}

/* In truth the device has not ended, and what it still runs is destroyed soon. */
static void parallel_settle(dti_vk_device *device) {
    device->vk.WaitForFences = exchange_wait;
    device->lost = false;
    CHECK(dti_vk_drain(device) == DT_OK);
    device->lost = true;
}

typedef struct parallel_rank {
    dt_comm *comm;
    const char *device;
    bool loses;
    dt_result result;
    uint64_t before, after, step;
    char error[1024];
} parallel_rank;

static void *parallel_rank_main(void *arg) {
    parallel_rank *r = arg;
    train_model *m = calloc(1, sizeof *m);
    dt_trainer *t;
    dt_train_report report;
    if (!m || !train_model_make(m, NULL, false))
        return NULL;
    dt_trainer_desc d = train_desc(m);
    d.devices = r->device;
    d.comm = r->comm;
    r->result = dt_trainer_create(m->graph, &d, &t);
    for (int i = 0; i < 3 && !r->result; i++)
        r->result = dt_trainer_step(t, &report);
    if (!r->result) {
        dt_store_state_hash(dt_trainer_store(t), &r->before);
        r->after = r->before;
        if (r->loses) {
            dti_vk_device *device = (dti_vk_device *)t->par.replicas[0].store->device;
            exchange_wait = device->vk.WaitForFences;
            device->vk.WaitForFences = parallel_wait;
            device->vk.GetFenceStatus = parallel_not_ready;
        }
        r->result = dt_trainer_step(t, &report);
        snprintf(r->error, sizeof r->error, "%s", dt_ctx_error(m->ctx));
        r->step = report.step;
        CHECK(dt_trainer_step(t, NULL) != DT_OK);
        if (r->loses)
            parallel_settle((dti_vk_device *)t->par.replicas[0].store->device);
        if (!r->loses)
            dt_store_state_hash(dt_trainer_store(t), &r->after);
    }
    dt_ctx_destroy(m->ctx);
    free(m);
    return NULL;
}

/* Lost when it is waited for the first time, and later. Later is while targets are weighed, in the
 * backward part, in the commit, or after the other's step. */
static void parallel_lose_anywhere(const char *id) {
    int given_up = 0, ended = 0, made = 0;
    for (int waits = 0; waits < 6; waits++) {
        dt_comm *comms[2];
        pthread_t thread;
        REQUIRE(dt_comm_create_threads(NULL, 2, comms) == DT_OK);
        parallel_rank ranks[2] = {{.comm = comms[0], .device = "cpu"},
                                  {.comm = comms[1], .device = id, .loses = true}};
        parallel_waits_left = waits;
        REQUIRE(pthread_create(&thread, NULL, parallel_rank_main, &ranks[1]) == 0);
        parallel_rank_main(&ranks[0]);
        pthread_join(thread, NULL);
        CHECK(ranks[1].result == DT_ERROR_DEVICE_LOST);
        made += ranks[0].result == DT_OK;
        given_up += strstr(ranks[0].error, "nothing has changed") != NULL;
        ended += strstr(ranks[0].error, "the weights are those of step 3") != NULL;
        if (ranks[0].result == DT_OK)
            CHECK(ranks[0].step == 4);
        else
            test_check(ranks[0].result == DT_ERROR_CANCELLED && ranks[0].step == 3 &&
                           ranks[0].before == ranks[0].after,
                       __FILE__, __LINE__, "%s, step %llu, state %s: %s",
                       dt_result_text(ranks[0].result), (unsigned long long)ranks[0].step,
                       ranks[0].before == ranks[0].after ? "kept" : "changed", ranks[0].error);
        dt_comm_destroy(comms[0]);
        dt_comm_destroy(comms[1]);
        if (made)
            break;
    }
    CHECK(given_up > 0 && ended > 0 && made == 1);
}

TEST(a_device_lost_during_a_step_is_an_error_on_all_ranks_and_leaves_whole_steps) {
    char id[32];
    if (!ops_vulkan(0, id))
        SKIP("no Vulkan device");
    for (int late = 0; late < 4 && test_now.failures < 3; late++) {
        parallel_late_ns = (uint64_t)late * 20000000u;
        parallel_lose_anywhere(id);
    }
}

#endif
