/* The driver of sums, with parts that are arrays: threads arrive when they like, and who comes by
 * folds. Included by main.c after train_model.h. */

enum { REDUCER_SUMS = 5, REDUCER_PARTS = 4, REDUCER_LEAVES = 13, REDUCER_WINDOW = 2 };

typedef struct reducer_case {
    dti_base base;
    dti_parallel par;
    _Atomic uint32_t counters[1]; /* of sums that have ended */
    uint32_t leaves, firsts[REDUCER_PARTS + 1];
    bool in_order, windowed;
    uint64_t begin[REDUCER_SUMS + 1];   /* of each sum in the arrays */
    float *values;                      /* [leaf][elements] */
    float *of[REDUCER_PARTS], *stacked; /* a part's slots; of a windowed case all sums */
    float *totals, *heard;
    dti_subtrees subtrees[REDUCER_PARTS];
    _Atomic uint32_t ended[REDUCER_SUMS], wrong;
    _Atomic uint64_t spread[REDUCER_SUMS];
} reducer_case;

static reducer_case *reducer_now;

static uint64_t reducer_elements(const reducer_case *c) {
    return c->begin[c->par.sums.count];
}

/* Leaves [first, first + count) of an element, in the tree. */
static float reducer_tree(const reducer_case *c, uint32_t first, uint32_t count, uint64_t at) {
    if (count == 1)
        return c->values[first * reducer_elements(c) + at];
    const uint32_t left = dti_tree_split(count);
    return reducer_tree(c, first, left, at) + reducer_tree(c, first + left, count - left, at);
}

static dti_sums_operands reducer_operands(const dti_parallel *par, uint32_t number, uint32_t part) {
    (void)par;
    const reducer_case *c = reducer_now;
    return (dti_sums_operands){c->of[part] + c->begin[number], reducer_elements(c),
                               &c->subtrees[part]};
}

static void reducer_spread(const dti_parallel *par, uint32_t number, uint64_t at, uint64_t n) {
    reducer_case *c = reducer_now;
    const dti_sum *s = &par->sums.list[number];
    const float *from = s->partial ? s->partial : s->total;
    memcpy(c->heard + c->begin[number] + at, from + at, n * sizeof *from);
    atomic_fetch_add(&c->spread[number], n);
    if (number >= atomic_load(dti_sums_ended(par)) + par->sums.window ||
        atomic_load(&s->arrived) != s->parts)
        atomic_fetch_add(&c->wrong, 1);
    dti_thread_yield(); /* so that others take slices too */
}

static const dti_sum_kind reducer_kind = {.operands = reducer_operands, .spread = reducer_spread};

static void reducer_draw(reducer_case *c, uint32_t *state) {
    const uint32_t sums = 1 + train_random(state) % REDUCER_SUMS;
    const uint32_t parts = 1 + train_random(state) % REDUCER_PARTS;
    c->leaves = parts + train_random(state) % (REDUCER_LEAVES - parts + 1);
    c->windowed = train_random(state) % 2;
    c->in_order = c->windowed || train_random(state) % 2;
    for (uint32_t i = 0; i < sums; i++)
        c->begin[i + 1] = c->begin[i] + 1 + train_random(state) % (2 * DTI_SLICE + 9);
    for (uint32_t i = 1; i < parts; i++) { /* each has a leaf */
        const uint32_t room = c->leaves - (parts - i) - c->firsts[i - 1];
        c->firsts[i] = c->firsts[i - 1] + 1 + train_random(state) % room;
    }
    c->firsts[parts] = c->leaves;
    CHECK(!dti_sums_make(&c->par, &reducer_kind, sums, c->windowed ? REDUCER_WINDOW : sums, 1));
    c->par.job = (dti_partition){.local = parts, .batch_slices = c->leaves};
}

/* Each part has the sums of its maximal subtrees. */
static void reducer_fill(reducer_case *c, uint32_t *state) {
    const uint64_t n = reducer_elements(c);
    c->values = malloc(c->leaves * n * sizeof *c->values);
    c->stacked = malloc(REDUCER_WINDOW * n * sizeof *c->stacked);
    c->totals = malloc(n * sizeof *c->totals);
    c->heard = malloc(n * sizeof *c->heard);
    for (uint64_t i = 0; i < c->leaves * n; i++)
        c->values[i] = ((float)train_random(state) - 3e4f) / (float)(1 + i % 77);
    for (uint32_t k = 0; k < c->par.job.local; k++) {
        c->subtrees[k] = dti_partition_subtrees(&c->par.job, c->firsts[k], c->firsts[k + 1]);
        c->of[k] = malloc(c->subtrees[k].count * n * sizeof(float));
        for (uint32_t i = 0; i < c->subtrees[k].count; i++) {
            const dt_comm_span span = c->subtrees[k].at[i];
            for (uint64_t at = 0; at < n; at++)
                c->of[k][i * n + at] = reducer_tree(c, span.first, span.count, at);
        }
    }
    for (uint32_t i = 0; i < c->par.sums.count; i++) {
        dti_sum *s = &c->par.sums.list[i];
        s->elements = c->begin[i + 1] - c->begin[i];
        s->parts = c->par.job.local;
        s->slices = (uint32_t)((s->elements + DTI_SLICE - 1) / DTI_SLICE);
        s->subtrees = dti_partition_subtrees(&c->par.job, 0, c->leaves);
        s->total = c->totals + c->begin[i];
        s->partial = c->windowed ? c->stacked + i % REDUCER_WINDOW * n : NULL;
    }
    c->par.counters = c->counters;
    dti_sums_begin(&c->par);
}

static void reducer_part(void *arg, uint32_t part) {
    reducer_case *c = arg;
    uint32_t state = 77 + part + c->leaves;
    bool all = false;
    for (uint32_t next = 0; !all;) {
        const uint32_t left = c->par.sums.count - next, some = train_random(&state) % (left + 1);
        dti_exchange_arrive(&c->par, next, next + some);
        next += some;
        all = c->in_order ? dti_sums_fold(&c->par) : next == c->par.sums.count;
        for (uint32_t i = 0; i < c->par.sums.count && !c->in_order; i++) {
            atomic_fetch_add(&c->ended[i], dti_sum_fold(&c->par, i));
            all = all && dti_sum_is_folded(&c->par.sums.list[i]);
        }
        dti_sums_advance(&c->par);
        dti_thread_yield();
    }
}

static void reducer_check(reducer_case *c) {
    uint64_t different = 0;
    for (uint64_t at = 0; at < reducer_elements(c); at++)
        different += c->heard[at] != reducer_tree(c, 0, c->leaves, at);
    CHECK(!different && !atomic_load(&c->wrong) && !dti_exchange_finish(&c->par));
    CHECK(atomic_load(dti_sums_ended(&c->par)) == c->par.sums.count);
    for (uint32_t i = 0; i < c->par.sums.count; i++) {
        CHECK(atomic_load(&c->spread[i]) == c->par.sums.list[i].elements);
        CHECK(c->in_order || atomic_load(&c->ended[i]) == 1);
    }
}

TEST(a_sum_has_the_bits_of_its_tree_for_any_threads) {
    uint32_t state = 11;
    for (int round = 0; round < 40; round++) {
        reducer_case *c = reducer_now = calloc(1, sizeof *c);
        dti_device_team *team = NULL;
        dti_base_init(&c->base, NULL, NULL);
        c->par.base = &c->base;
        reducer_draw(c, &state);
        reducer_fill(c, &state);
        CHECK(!dti_device_team_create(&c->base, NULL, c->par.job.local, false, &team));
        dti_device_team_run(team, reducer_part, c);
        dti_device_team_destroy(team);
        reducer_check(c);
        dti_sums_free(&c->par);
        void *all[] = {c->values, c->stacked, c->totals, c->heard};
        for (size_t i = 0; i < DTI_COUNT(all); i++)
            free(all[i]);
        for (uint32_t k = 0; k < REDUCER_PARTS; k++)
            free(c->of[k]);
        free(c);
    }
}
