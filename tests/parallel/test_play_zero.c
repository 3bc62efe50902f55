/* Lists of ZeRO-2 and ZeRO-3 jobs, played without their devices, as test_play.c plays others.
 * Addresses follow what each device has of parameters and gradients. So a need that is one too
 * small is seen.
 * A rank's network moves only while its first device waits, or has ended: less than in a job.
 * Included by main.c, after test_play.c. */

typedef struct zero_device {
    uint64_t resident, at[DTI_UNITS_MAX]; /* units that are there, and where */
    uint32_t taken, given;                /* units that came or passed; buckets */
} zero_device;

typedef struct zero_rank {
    zero_device device[PLAY_DEVICES];
    uint32_t posted; /* sums */
} zero_rank;

static zero_rank zero_ranks[PLAY_RANKS];

/* What is played: a step, or batches of an evaluation one after the other, whose units stay. */
typedef enum zero_what { ZERO_STEP, ZERO_FIRST, ZERO_NEXT, ZERO_TAIL, ZERO_WHATS } zero_what;
static zero_what zero_now;

static zero_rank *zero_of(const play_rank *r) {
    return &zero_ranks[r->index];
}

static const dti_list *zero_list(const play_rank *r, int d) {
    return &r->trainer->par.replicas[d].runs->list;
}

static uint32_t zero_counter(const play_rank *r, uint32_t which) {
    return r->trainer->par.counters[which];
}

static void zero_raise(const play_rank *r, uint32_t which) {
    r->trainer->par.counters[which]++;
}

static const dti_code *zero_code(const play_rank *r, int d, uint32_t micro) {
    const dti_runs *runs = r->trainer->par.replicas[d].runs;
    return runs->count ? dti_program_code(runs->runs[micro].program)
                       : dti_program_code(dti_parallel_last(&r->trainer->par.replicas[d]));
}

/* ---- what must hold when an action begins */

/* Elements from `at` on of the gradients' arena are written: the former ones have left. */
static void zero_writes(const play_rank *r, int d, const dti_code *code, uint64_t at, uint64_t n) {
    const uint64_t from = dti_units_from(code);
    if (at < from)
        return;
    for (uint32_t u = 0; u < zero_of(r)->device[d].given && code->units_leave; u++)
        CHECK_TEXT(zero_counter(r, DTI_UNITS_SUMMED) > u ||
                       !play_overlap(from + (at - from) % code->unit_stride, n,
                                     code->unit_gradient[u],
                                     dti_bucket_elements(code->slices.buckets[u])),
                   "rank %d, device %d: bucket %u has not left", r->index, d, u);
}

static void zero_segment(const play_rank *r, int d, const dti_action *a) {
    const dti_code *code = zero_code(r, d, a->micro);
    const dti_segment *s = &code->segments[a->what];
    const zero_device *own = &zero_of(r)->device[d];
    for (uint32_t u = 0; u < code->slices.bucket_count; u++)
        CHECK_TEXT(!(code->unit_reads[a->what] & dti_unit_bit(u)) ||
                       (own->resident & dti_unit_bit(u) && own->at[u] == code->unit_param[u]),
                   "rank %d, device %d, segment %u: unit %u is not there", r->index, d, a->what, u);
    for (uint32_t i = s->first; i < s->first + s->count; i++) {
        for (int b = 0; b < DTI_BINDINGS_MAX; b++) {
            const dti_value *v = &code->list.values[code->list.launches[i].value[b]];
            if (v->kind == DTI_VALUE_GRADIENT)
                zero_writes(r, d, code, v->offset / sizeof(float), v->bytes / sizeof(float));
        }
    }
}

static void zero_gather(const play_rank *r, int d, const dti_action *a) {
    const dti_code *code = zero_code(r, d, a->micro);
    zero_device *own = &zero_of(r)->device[d];
    const uint64_t n = dti_bucket_elements(code->slices.buckets[a->what]);
    for (uint32_t u = 0; u < code->slices.bucket_count; u++) {
        if (play_overlap(own->at[u], dti_bucket_elements(code->slices.buckets[u]),
                         code->unit_param[a->what], n))
            own->resident &= ~dti_unit_bit(u);
    }
    own->resident |= dti_unit_bit(a->what);
    own->at[a->what] = code->unit_param[a->what];
    CHECK(a->after == r->device[d].at && own->taken == a->met);
}

static void zero_check(const play_rank *r, int d, const dti_action *a) {
    const dti_code *code = zero_code(r, d, a->kind == DTI_ACTION_PASS ? 0 : a->micro);
    zero_device *own = &zero_of(r)->device[d];
    if (a->kind == DTI_ACTION_FORWARD || a->kind == DTI_ACTION_BACKWARD)
        zero_segment(r, d, a);
    if (a->kind == DTI_ACTION_GATHER)
        zero_gather(r, d, a);
    if (a->kind == DTI_ACTION_GATHER || a->kind == DTI_ACTION_PASS) {
        CHECK(!r->comm || zero_counter(r, DTI_UNITS_ARRIVED) > own->taken);
        own->taken++;
    }
    for (uint32_t b = own->given; b < a->buckets && a->kind == DTI_ACTION_ZEROS; b++)
        zero_writes(r, d, code, code->unit_gradient[b],
                    dti_bucket_elements(code->slices.buckets[b]));
    own->given = DTI_MAX(own->given, a->buckets);
}

/* ---- what may happen next */

static const dti_action *zero_next(const play_rank *r, int d) {
    const dti_list *list = zero_list(r, d);
    return r->device[d].at < list->count ? &list->actions[r->device[d].at] : NULL;
}

static bool zero_may(const play_rank *r, int d) {
    const dti_action *a = zero_next(r, d);
    return a && !r->failed && dti_list_may(&r->trainer->par, zero_list(r, d), a);
}

/* Whether it came to something, or did its next action. */
static bool zero_act(play_rank *r, int d) {
    play_device *own = &r->device[d];
    const dti_action *a = zero_next(r, d);
    if (!zero_may(r, d))
        return false;
    if (a->kind == DTI_ACTION_COLLECTIVE && !own->arrived) {
        own->arrived = true;
        own->met++;
    }
    if (a->kind == DTI_ACTION_COLLECTIVE && !play_all_met(r, d))
        return false;
    zero_check(r, d, a);
    if (a->raises)
        zero_raise(r, a->raises - 1);
    own->arrived = false;
    own->at++;
    return true;
}

static uint32_t zero_given(const play_rank *r) {
    uint32_t least = UINT32_MAX;
    for (int d = 0; d < r->devices; d++)
        least = DTI_MIN(least, zero_of(r)->device[d].given);
    return least;
}

/* On all ranks; sums, or units. */
static uint32_t zero_posted(bool sums) {
    uint32_t least = UINT32_MAX;
    for (int i = 0; i < play.count; i++)
        least =
            DTI_MIN(least, sums ? zero_ranks[i].posted : play.rank[i].trainer->par.units.posted);
    return least;
}

/* The first device helps: it waits, or has ended and others here have not given all. */
static bool zero_speaks(const play_rank *r, bool sums) {
    const uint32_t all = zero_now == ZERO_STEP ? r->trainer->par.bucket_count : 0;
    const bool waits = !zero_may(r, 0) || r->device[0].arrived; /* at a sync point, or for a need */
    return !r->failed && waits && (zero_next(r, 0) || sums || zero_given(r) < all);
}

static bool zero_post_unit(play_rank *r) {
    dti_parallel *par = &r->trainer->par;
    const dti_action *a =
        zero_speaks(r, false) && r->comm ? dti_units_next(par, &par->units) : NULL;
    if (!a)
        return false;
    for (int d = 0; d < r->devices; d++) /* the place that it takes is free */
        CHECK(zero_of(r)->device[d].taken + DTI_UNITS_STAGED > par->units.posted);
    CHECK(par->units.posted - zero_counter(r, DTI_UNITS_ARRIVED) < DTI_UNITS_STAGED);
    par->units.posted++;
    par->units.at++;
    return true;
}

static bool zero_post_sum(play_rank *r) {
    const dti_sums *sums = &r->trainer->par.sums;
    uint32_t *posted = &zero_of(r)->posted;
    if (!zero_speaks(r, true) || *posted >= zero_given(r) ||
        *posted >= zero_counter(r, DTI_UNITS_SUMMED) + sums->window)
        return false;
    ++*posted;
    return true;
}

static bool zero_end(play_rank *r, bool sums) {
    const uint32_t which = sums ? DTI_UNITS_SUMMED : DTI_UNITS_ARRIVED,
                   there = r->comm ? zero_posted(sums)
                           : sums  ? zero_given(r)
                                   : 0;
    if ((r->comm && !zero_speaks(r, sums)) || zero_counter(r, which) >= there)
        return false;
    zero_raise(r, which);
    return true;
}

static bool zero_network(play_rank *r, uint32_t *state) {
    const uint32_t what = train_random(state) % 4;
    return what == 0   ? zero_post_unit(r)
           : what == 1 ? r->comm && zero_post_sum(r)
                       : zero_end(r, what == 2);
}

/* ---- a play */

static dti_runs *zero_runs(play_rank *r, int d) {
    dti_replica *replica = &r->trainer->par.replicas[d];
    dti_unit_pass_run *full = &r->trainer->evaluation.pass.runs[d], *tail = full + r->devices;
    return zero_now == ZERO_FIRST  ? &full->first
           : zero_now == ZERO_NEXT ? &full->next
           : zero_now == ZERO_TAIL ? &tail->next
           : r->job->short_batch   ? &replica->tail
                                   : &replica->full;
}

static void zero_begin(void) {
    for (int i = 0; i < PLAY_RANKS; i++) {
        for (int d = 0; d < PLAY_DEVICES; d++) {
            zero_device *own = &zero_ranks[i].device[d];
            own->taken = own->given = 0;
            own->resident = zero_now > ZERO_FIRST ? own->resident : 0;
        }
        zero_ranks[i].posted = 0;
    }
    for (int i = 0; i < play.count; i++) {
        play_rank *r = &play.rank[i];
        dti_parallel *par = &r->trainer->par;
        memset(r->device, 0, sizeof r->device);
        r->failed = false;
        par->units.posted = par->units.at = 0;
        for (uint32_t k = 0; k < DTI_UNITS_COUNTERS; k++)
            par->counters[k] = 0;
        for (int d = 0; d < r->devices; d++)
            par->replicas[d].runs = zero_runs(r, d);
        par->units.list = zero_list(r, 0);
    }
}

static bool zero_rank_ended(const play_rank *r) {
    bool all = true;
    for (int d = 0; d < r->devices; d++)
        all = all && !zero_next(r, d);
    return all;
}

static bool zero_ended(void) {
    bool all = true;
    for (int i = 0; i < play.count; i++) {
        const play_rank *r = &play.rank[i];
        all = all && zero_rank_ended(r) &&
              (zero_now != ZERO_STEP ||
               zero_counter(r, DTI_UNITS_SUMMED) == r->trainer->par.bucket_count) &&
              (!r->comm || zero_counter(r, DTI_UNITS_ARRIVED) == zero_of(r)->device[0].taken);
    }
    return all;
}

/* All devices here have come to a sync point, or a message is under way: the network reports it. */
static bool zero_hears(const play_rank *r) {
    bool meets = true;
    for (int d = 0; d < r->devices; d++) {
        const dti_action *a = zero_next(r, d);
        meets = meets && (!a || a->kind == DTI_ACTION_COLLECTIVE);
    }
    return meets || r->trainer->par.units.posted > zero_counter(r, DTI_UNITS_ARRIVED) ||
           zero_of(r)->posted > zero_counter(r, DTI_UNITS_SUMMED);
}

/* As play_run. */
static bool zero_run(int fault, uint32_t *state, int *actions) {
    bool failed = false, told = true;
    zero_begin();
    *actions = 0;
    for (uint32_t idle = 0; idle < 1000; idle++) {
        play_rank *r = &play.rank[train_random(state) % (uint32_t)play.count];
        const int d = (int)(train_random(state) % (uint32_t)r->devices);
        if (zero_network(r, state))
            idle = 0;
        if (!zero_act(r, d))
            continue;
        idle = 0;
        if ((*actions)++ == fault)
            failed = r->failed = true;
    }
    for (int i = 0; i < play.count; i++) {
        const play_rank *r = &play.rank[i];
        told = told && (r->failed || zero_rank_ended(r) || zero_hears(r));
    }
    return failed ? told : zero_ended();
}

/* ---- jobs */

static void zero_draw(uint32_t *state, play_job *j) {
    static const int kinds[] = {PIPE_SKIP, PIPE_TIED, TRAIN_SYNC};
    *j = (play_job){.stages = 1,
                    .tensor = 1,
                    .slices = 1,
                    .data = 2 + (int)(train_random(state) % 5),
                    .accumulate = 1 + (int)(train_random(state) % 3),
                    .kind = kinds[train_random(state) % 3],
                    .zero = DT_SHARD_GRADIENTS + (int)(train_random(state) % 2),
                    .bucket_bytes = 512 << train_random(state) % 3,
                    .short_batch = train_random(state) % 2};
    j->rows = 24 + (int)(train_random(state) % 20); /* a batch of 22, and a short one */
    j->evaluates = 3;                               /* of 18 at most, and a short one */
    j->batch_slices = j->data * (1 + (int)(train_random(state) % 3));
    j->accumulate = j->kind == TRAIN_SYNC ? 1 : j->accumulate;
    j->ranks = 1 + (int)(train_random(state) % (uint32_t)DTI_MIN(j->data, PLAY_RANKS));
}

/* Which of what lists may have a job's have. */
static void zero_has(uint32_t has[DTI_ACTION_KINDS]) {
    for (int i = 0; i < play.count; i++) {
        for (int d = 0; d < play.rank[i].devices; d++) {
            const dti_list *list = zero_list(&play.rank[i], d);
            for (uint32_t k = 0; k < list->count; k++)
                has[list->actions[k].kind]++;
        }
    }
}

TEST(lists_of_random_zero_2_and_3_jobs_end_and_find_the_values_they_read) {
    uint32_t state = 5, has[DTI_ACTION_KINDS] = {0};
    for (int round = 0; round < (test_is_long() ? 400 : test_takes(1, 2, 3) ? 12 : 40); round++) {
        play_job j;
        pthread_t threads[PLAY_RANKS];
        dt_comm *comms[PLAY_RANKS] = {NULL};
        int actions = 0, ignored;
        zero_draw(&state, &j);
        play_job_open(&j, threads, comms);
        bool made = true;
        for (int i = 0; i < j.ranks; i++)
            made = made && play.rank[i].trainer;
        for (int again = 0; made && again < ZERO_WHATS + 2; again++) {
            static const zero_what plays[] = {ZERO_FIRST, ZERO_NEXT, ZERO_TAIL};
            zero_now = again < 3 ? plays[again] : ZERO_STEP;
            CHECK_TEXT(zero_run(-1, &state, &actions),
                       "play %d, round %d: ZeRO-%d, %d replicas, %d ranks, %d batch slices of %d "
                       "micro-batches, %d rows: nobody moves",
                       again, round, j.zero, j.data, j.ranks, j.batch_slices, j.accumulate,
                       j.short_batch ? j.rows - 22 : 22);
            zero_has(has);
        }
        for (int fault = 0; made && fault < actions; fault += 1 + actions / 40)
            CHECK_TEXT(zero_run(fault, &state, &ignored), "round %d: fault %d of %d", round, fault,
                       actions);
        play.over = 1;
        for (int i = 0; i < j.ranks; i++)
            pthread_join(threads[i], NULL);
        for (int i = 0; i < j.ranks; i++)
            dt_comm_destroy(comms[i]);
    }
    CHECK(has[DTI_ACTION_GATHER] && has[DTI_ACTION_PASS] && has[DTI_ACTION_ZEROS] &&
          has[DTI_ACTION_COLLECTIVE]);
}
