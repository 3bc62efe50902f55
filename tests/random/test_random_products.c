/* Random jobs (random_jobs.h) with any product of replicas, stages and tensor ranks, and any stage
 * of ZeRO, also in shard groups. In the middle and at the end they have the bits of one device that
 * makes all steps. A group of tensor ranks is then the same number of slices of that device.
 *
 *     DTRAIN_TEST_LONG=1 build/dtest random_products     2,000 of them
 *     DTRAIN_PRODUCT=17 build/dtest random_products      only this one, and describes it */
#include "random/random_jobs_run.h"

enum { PRODUCTS = 2000, PRODUCTS_FEW = 36 };

/* A number of replicas, and one that divides it; 0: all. Some fit no ranks, and are refused. */
static void products_draw_groups(jobs_job *j, uint64_t *state) {
    static const int replicas[] = {2, 3, 4, 4, 6};
    int *v = j->v;
    v[F_REPLICAS] = replicas[jobs_random(state, sizeof replicas / sizeof *replicas)];
    j->shard_degree = (int)jobs_random(state, (uint32_t)v[F_REPLICAS]);
    while (j->shard_degree && v[F_REPLICAS] % j->shard_degree)
        j->shard_degree--;
    v[F_ZERO] = j->shard_degree && !v[F_ZERO] ? DT_SHARD_OPTIMIZER : v[F_ZERO];
}

/* Most have replicas of several devices each. */
static jobs_job products_draw(int number) {
    uint64_t state = (uint64_t)number * 104729 + 11;
    jobs_job j;
    do
        j = jobs_draw((int)jobs_random(&state, 1000000));
    while (j.kind < (jobs_random(&state, 3) ? JOB_STAGES : JOB_REPLICAS) || j.kind > JOB_GRID);
    int *v = j.v;
    v[F_REPLICAS] = v[F_REPLICAS] < 2 && jobs_random(&state, 4) ? 2 : v[F_REPLICAS];
    while (v[F_REPLICAS] > 1 && v[F_REPLICAS] * v[F_STAGES] * v[F_TENSOR] > JOB_DEVICES)
        v[F_REPLICAS]--;
    if (v[F_TENSOR_SLICES] <= v[F_TENSOR])
        v[F_ZERO] = (int)jobs_random(&state, 4);
    if (j.kind <= JOB_ZERO)
        products_draw_groups(&j, &state);
    v[F_OFFLOAD] = v[F_OFFLOAD] && v[F_ZERO] > 1;
    v[F_ROWS] = v[F_ROWS] < v[F_REPLICAS] ? v[F_REPLICAS] : v[F_ROWS];
    v[F_BATCH] = jobs_clamp(v[F_BATCH], v[F_REPLICAS], v[F_ROWS]);
    v[F_SLICES] = jobs_clamp(v[F_SLICES], v[F_REPLICAS], v[F_BATCH]);
    v[F_RANKS] = jobs_clamp(v[F_RANKS], 1, v[F_REPLICAS] * v[F_STAGES] * v[F_TENSOR]);
    v[F_STEPS] = jobs_clamp(v[F_STEPS], 2, 4);
    j.predicts = true;
    return j;
}

static jobs_job products_alone(const jobs_job *j) {
    jobs_job one = *j;
    int *v = one.v;
    if (v[F_TENSOR] > 1 && v[F_TENSOR_SLICES] < v[F_TENSOR])
        v[F_TENSOR_SLICES] = v[F_TENSOR];
    v[F_REPLICAS] = v[F_STAGES] = v[F_TENSOR] = v[F_RANKS] = 1;
    v[F_ZERO] = v[F_OFFLOAD] = v[F_GIVEN] = v[F_CHUNKS] = v[F_SCHEDULE] = 0;
    v[F_MEMORY] = 0; /* one device has more */
    one.shard_degree = 0;
    return one;
}

/* All evaluate the same number of samples at a time, and add up without rounding. */
static bool products_evaluate(const jobs_end *a, const jobs_end *b) {
    const bool fine = !a->texts[0] && !b->texts[0];
    bool same = !fine || a->evaluated.of == b->evaluated.of;
    for (int i = 0; i < JOB_PREDICTED && fine; i++)
        same = same && (!a->predicted[i] || a->predicted[i] == b->predicted[i]);
    return same;
}

/* Whether there was such a job. */
static bool products_case(int number, int made[5]) {
    static jobs_rank all[JOB_RANKS], alone[JOB_RANKS];
    static char words[6000];
    const jobs_job j = products_draw(number), one = products_alone(&j);
    jobs_words(&j, words, sizeof words);
    if (getenv("DTRAIN_PRODUCT"))
        printf("  %s, shard groups of %d\n", words, j.shard_degree);
    jobs_run(&j, WAY_STRAIGHT, all);
    const jobs_end *a = &all[0].end, *b = &alone[0].end;
    if (!a->made) {
        jobs_run(&one, WAY_STRAIGHT, alone);
        CHECK_TEXT(
            products_evaluate(a, b),
            "job %d, %s: evaluated %016llx, predicted %016llx %016llx %016llx; on one device "
            "%016llx, %016llx %016llx %016llx",
            number, words, (unsigned long long)a->evaluated.of, (unsigned long long)a->predicted[0],
            (unsigned long long)a->predicted[1], (unsigned long long)a->predicted[2],
            (unsigned long long)b->evaluated.of, (unsigned long long)b->predicted[0],
            (unsigned long long)b->predicted[1], (unsigned long long)b->predicted[2]);
        const bool reports = !a->texts[0] && !b->texts[0]; /* errors name the device */
        CHECK_TEXT(!b->made && a->weights == b->weights && a->saved == b->saved &&
                       a->last == b->last && (!a->state || a->state == b->state) &&
                       a->steps == b->steps && (!reports || a->reports.of == b->reports.of),
                   "job %d, %s, shard groups of %d: weights %016llx, file %016llx, then %016llx, "
                   "%d steps; on one device "
                   "%016llx, %016llx, %016llx, %d; %s; %s",
                   number, words, j.shard_degree, (unsigned long long)a->weights,
                   (unsigned long long)a->saved, (unsigned long long)a->last, a->steps,
                   (unsigned long long)b->weights, (unsigned long long)b->saved,
                   (unsigned long long)b->last, b->steps, a->texts, b->texts);
    }
    if (getenv("DTRAIN_PRODUCT"))
        printf("  %s\n", a->texts);
    remove(all[0].half);
    remove(all[0].full);
    if (!a->made)
        made[j.v[F_ZERO]] += j.v[F_REPLICAS] > 1 && j.v[F_STAGES] * j.v[F_TENSOR] > 1;
    made[4] += !a->made && j.shard_degree > 0;
    return !a->made;
}

TEST(random_products_of_meshes_zero_and_schedules_have_the_bits_of_one_device) {
    const char *one = getenv("DTRAIN_PRODUCT");
    const int count = test_is_long() ? PRODUCTS : test_takes(1, 2, 3) ? 8 : PRODUCTS_FEW;
    int made[5] = {0}, number = one ? atoi(one) : 0, all = 0;
#if defined __i386__
    SKIP("arithmetic without FMA rounds otherwise");
#endif
    for (; all < (one ? 1 : count) && test_now.failures < 8; number++)
        all += products_case(number, made) || one;
    printf("  %d jobs drawn; replicas of several devices: %d without ZeRO, and %d, %d, %d with "
           "ZeRO-1, 2, 3; shard groups: %d\n",
           number, made[0], made[1], made[2], made[3], made[4]);
}
