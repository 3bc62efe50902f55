/* What training steps ask of a device, from their plans. Included by main.c; what leaves a GPU idle
 * is found by tools/dtlint.c, which has the same networks. */
#ifndef DT_NO_VULKAN
#include "tools/launches.h"

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
TEST(a_step_has_these_launches_and_barriers) {
    static const launches_count expected[] = {
        {"mlp", 17, 11},      {"mlp_wide", 23, 14}, {"cnn", 34, 23},
        {"resnet", 252, 184}, {"gpt", 340, 239},    {"lstm", 486, 243},
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

TEST(a_row_tells_the_steps_of_a_lane) {
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
