/* Pipeline schedules, played in mind. Included by main.c. */

enum { SCHEDULE_STAGES = 16, SCHEDULE_MICROS = 64, SCHEDULE_CHUNKS = 4 };

static dti_base *schedule_base(dt_ctx **ctx) {
    return dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, ctx) ? NULL : dti_ctx_base(*ctx);
}

/* Every action of a device once, on its own chunks; backward parts in ascending order. */
static bool schedule_is_whole(const dti_pipe_schedule *s, uint32_t device) {
    static uint8_t seen[3][SCHEDULE_STAGES * SCHEDULE_CHUNKS][SCHEDULE_MICROS];
    uint32_t next[3][SCHEDULE_STAGES * SCHEDULE_CHUNKS] = {{0}};
    bool fine = true;
    memset(seen, 0, sizeof seen);
    for (uint32_t i = 0; i < s->each; i++) {
        const dti_pipe_action a = dti_pipe_list(s, device)[i];
        fine = fine && a.chunk % s->devices == device && a.chunk < s->chunks &&
               a.micro < s->micros && a.kind < 2 + s->split;
        if (!fine)
            return false;
        fine = !seen[a.kind][a.chunk][a.micro]++ && next[a.kind][a.chunk]++ == a.micro;
    }
    return fine;
}

/* Devices take turns in an order of chance, each as far as its list allows: whether all end. */
static bool schedule_ends(const dti_pipe_schedule *s, uint32_t seed) {
    static uint8_t done[3][SCHEDULE_STAGES * SCHEDULE_CHUNKS][SCHEDULE_MICROS];
    uint32_t at[SCHEDULE_STAGES] = {0}, left = s->devices * s->each, tries = 0;
    memset(done, 0, sizeof done);
    while (left && tries < 64 * s->devices) {
        seed = seed * 1664525u + 1013904223u;
        const uint32_t d = (seed >> 8) % s->devices;
        const dti_pipe_action a = dti_pipe_list(s, d)[DTI_MIN(at[d], s->each - 1)];
        bool may = at[d] < s->each;
        if (a.kind == DTI_PIPE_FORWARD)
            may = may && (a.chunk == 0 || done[DTI_PIPE_FORWARD][a.chunk - 1][a.micro]);
        else
            may = may && done[a.kind - 1][a.chunk][a.micro];
        if (a.kind == DTI_PIPE_BACKWARD && a.chunk + 1u < s->chunks)
            may = may && done[DTI_PIPE_BACKWARD][a.chunk + 1][a.micro];
        tries = may ? 0 : tries + 1;
        if (!may)
            continue;
        done[a.kind][a.chunk][a.micro] = 1;
        at[d]++;
        left--;
    }
    return left == 0;
}

static void schedule_each(dt_pipeline_schedule kind, uint32_t per_device,
                          void (*check)(const dti_pipe_schedule *s, uint32_t p, uint32_t m,
                                        uint32_t v)) {
    dt_ctx *ctx;
    dti_base *base = schedule_base(&ctx);
    REQUIRE(base);
    for (uint32_t p = 1; p <= SCHEDULE_STAGES; p++) {
        for (uint32_t m = 1; m <= SCHEDULE_MICROS; m++) {
            dti_pipe_schedule s;
            REQUIRE(!dti_pipe_schedule_make(base, kind, p, per_device, m, NULL, &s));
            bool fine = schedule_ends(&s, p * 64 + m);
            for (uint32_t d = 0; d < p; d++)
                fine = fine && schedule_is_whole(&s, d);
            test_check(fine, __FILE__, __LINE__, "schedule %d of %u devices, %u chunks, %u", kind,
                       p, per_device, m);
            check(&s, p, m, per_device);
            dti_pipe_schedule_free(base, &s);
        }
    }
    dt_ctx_destroy(ctx);
}

static void schedule_fill_drain(const dti_pipe_schedule *s, uint32_t p, uint32_t m, uint32_t v) {
    (void)v;
    CHECK_NEAR(s->bubble, (double)(p - 1) / m, 1e-12);
    CHECK(s->alive == m);
}

static void schedule_1f1b(const dti_pipe_schedule *s, uint32_t p, uint32_t m, uint32_t v) {
    (void)v;
    CHECK_NEAR(s->bubble, (double)(p - 1) / m, 1e-12);
    for (uint32_t c = 0; c < p; c++)
        CHECK(s->micro_slots[c] == DTI_MIN(p - c, m));
}

static void schedule_interleaved(const dti_pipe_schedule *s, uint32_t p, uint32_t m, uint32_t v) {
    const double bubble = (double)(p - 1) / (v * m);
    if (m % p == 0)
        CHECK_NEAR(s->bubble, bubble, 1e-12);
    CHECK(s->bubble > bubble - 1e-12);
    CHECK(s->bubble < (double)(p - 1) / m + 1e-12); /* as 1F1B, or less */
    CHECK(s->alive <= DTI_MIN(v * m, 2 * (p - 1) + (v - 1) * p + 1));
}

static void schedule_zero_bubble(const dti_pipe_schedule *s, uint32_t p, uint32_t m, uint32_t v) {
    (void)v;
    if (m >= p)
        CHECK_NEAR(s->bubble, (double)(p - 1) / (3 * m), 1e-12);
    CHECK(s->bubble < (double)(p - 1) / m + 1e-12);
    CHECK(s->alive <= DTI_MIN(p, m));
}

TEST(pipeline_fill_drain_runs_in_order_and_waits_the_time_of_its_formula) {
    schedule_each(DT_PIPELINE_FILL_DRAIN, 1, schedule_fill_drain);
}

TEST(pipeline_1f1b_keeps_no_more_micro_batches_than_stages_that_follow) {
    schedule_each(DT_PIPELINE_1F1B, 1, schedule_1f1b);
}

TEST(pipeline_interleaved_divides_the_bubble_by_its_chunks_and_never_waits_longer_than_1f1b) {
    for (uint32_t v = 1; v <= SCHEDULE_CHUNKS; v++)
        schedule_each(DT_PIPELINE_INTERLEAVED, v, schedule_interleaved);
}

TEST(pipeline_zero_bubble_waits_a_third_of_1f1b_and_keeps_no_more) {
    schedule_each(DT_PIPELINE_ZERO_BUBBLE, 1, schedule_zero_bubble);
}

/* Where sums begin again, all gradients of the sum before are there. */
static bool schedule_is_apart(const dti_pipe_schedule *s, uint32_t device, uint32_t group) {
    uint32_t weights = 0;
    bool fine = true;
    for (uint32_t i = 0; i < s->each; i++) {
        const dti_pipe_action a = dti_pipe_list(s, device)[i];
        weights += a.kind == DTI_PIPE_WEIGHT;
        fine = fine && (a.kind != DTI_PIPE_BACKWARD || weights >= a.micro / group * group);
    }
    return fine;
}

TEST(pipeline_zero_bubble_ends_a_sum_before_the_next_one_begins) {
    dt_ctx *ctx;
    dti_base *base = schedule_base(&ctx);
    REQUIRE(base);
    for (uint32_t p = 1; p <= 8; p++) {
        for (uint32_t m = 1; m <= 32; m++) {
            const uint32_t group = 1 + (p * m) % 7;
            uint8_t begins[SCHEDULE_MICROS];
            for (uint32_t i = 0; i < m; i++)
                begins[i] = i % group == 0;
            dti_pipe_schedule s;
            REQUIRE(!dti_pipe_schedule_make(base, DT_PIPELINE_ZERO_BUBBLE, p, 1, m, begins, &s));
            bool fine = schedule_ends(&s, p * 64 + m);
            for (uint32_t d = 0; d < p; d++)
                fine = fine && schedule_is_whole(&s, d) && schedule_is_apart(&s, d, group);
            test_check(fine, __FILE__, __LINE__, "%u devices, %u in groups of %u", p, m, group);
            CHECK(s.bubble < (double)(p - 1) / m + 1e-12);
            dti_pipe_schedule_free(base, &s);
        }
    }
    dt_ctx_destroy(ctx);
}
