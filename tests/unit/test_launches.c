/* What training steps ask of a device, from their plans. Included by main.c; what leaves a GPU idle
 * is found by tools/check/dtlint.c, which has the same networks. */
#ifndef DT_NO_VULKAN
#include "tools/check/launches.h"

typedef struct launches_count {
    const char *name;
    uint32_t launches, barriers;
} launches_count;

static void launches_add(void *user, const launches_fact *f) {
    launches_count *n = user;
    n->launches++;
    n->barriers += f->barrier;
    CHECK(f->groups > 0 && f->effort.steps > 0 && f->effort.flops > 0);
}

/* A number that falls is written down here; one that rises is a mistake. */
TEST(each_model_has_its_recorded_launches_and_barriers) {
    static const launches_count expected[] = {
        {"mlp", 17, 11},   {"mlp_wide", 23, 14}, {"cnn", 36, 26},         {"resnet", 245, 177},
        {"gpt", 247, 149}, {"lstm", 386, 194},   {"lstm_layers", 54, 33},
    };
    REQUIRE(DTI_COUNT(expected) == DTI_COUNT(launches_nets));
    for (size_t i = 0; i < DTI_COUNT(expected); i++) {
        launches_step step;
        launches_count n = {.name = launches_nets[i].name};
        REQUIRE(!launches_open(&step, &launches_nets[i]));
        launches_walk(step.code, launches_add, &n);
        launches_close(&step);
        if (n.launches != expected[i].launches || n.barriers != expected[i].barriers)
            printf("%s: %u launches, %u barriers\n", n.name, n.launches, n.barriers);
        CHECK(!strcmp(n.name, expected[i].name) && n.launches == expected[i].launches &&
              n.barriers == expected[i].barriers);
    }
}

/* Of each product of rows: the chunks that its k is cut into. */
static uint32_t launches_chunks(const char *name, int batch, uint32_t chunk[64]) {
    launches_step step;
    launches_net net = {0};
    uint32_t count = 0;
    for (size_t i = 0; i < DTI_COUNT(launches_nets); i++)
        if (!strcmp(launches_nets[i].name, name))
            net = launches_nets[i];
    net.batch = batch;
    CHECK(!launches_open(&step, &net));
    for (uint32_t i = 0; i < step.code->list.launch_count; i++) {
        const dti_launch *l = &step.code->list.launches[i];
        const uint16_t op = step.code->work->nodes[l->node].op;
        if (l->kernel == DTI_K_GEMM && op != DTI_OP_LINEAR_DW && count < 64)
            chunk[count++] = l->args.gemm.chunk ? l->args.gemm.chunk : l->args.gemm.apart;
    }
    launches_close(&step);
    return count;
}

/* Else replicas would add in another order than one device does. */
TEST(a_product_has_the_same_chunks_of_k_for_any_number_of_rows) {
    static const char *const names[] = {"mlp", "mlp_wide", "cnn"};
    for (size_t i = 0; i < DTI_COUNT(names); i++) {
        uint32_t few[64] = {0}, many[64] = {0}, cut = 0;
        const uint32_t count = launches_chunks(names[i], 8, few);
        CHECK(count > 0 && launches_chunks(names[i], 1000, many) == count);
        CHECK(!memcmp(few, many, sizeof few));
        for (uint32_t k = 0; k < count; k++)
            cut += few[k] > 0;
        CHECK(cut > 0);
    }
}

TEST(launch_costs_have_the_steps_of_one_invocation) {
    dti_launch l = {.kernel = DTI_K_REDUCE, .items = 10};
    l.args.reduce = (dti_args_reduce){.n = 10, .r = 2048};
    CHECK(dti_launch_effort(&l, 0, 128).steps == 2048);
    l.kernel = DTI_K_REDUCE_ROW;
    CHECK(dti_launch_effort(&l, 0, 128).steps == 16);
    CHECK(dti_launch_effort(&l, 0, 128).flops == 20480);
    l.kernel = DTI_K_REDUCE_COLUMN;
    CHECK(dti_launch_effort(&l, 0, 128).steps == 256);
    l = (dti_launch){.kernel = DTI_K_MAP1, .items = 1000};
    CHECK(dti_launch_effort(&l, 0, 128).steps == 1);
}

#endif
