/* Several ranks on each host: hierarchical's schedules on executor.h against direct's bits, and the
 * bytes that leave a host. Also when it is chosen, and real processes that share a host. */

/* ---- schedules */

static const struct {
    uint32_t hosts, local;
} plan_layouts[] = {{2, 2}, {3, 2}, {5, 2}, {7, 2}, {16, 2}, {2, 4}, {3, 4},
                    {4, 4}, {8, 4}, {2, 8}, {3, 8}, {4, 8},  {2, 16}};

static plan_case plan_hosts(size_t layout, uint64_t seed) {
    return (plan_case){.kind = DT_COMM_ALL_REDUCE,
                       .algorithm = DT_COMM_ALGORITHM_HIERARCHICAL,
                       .size = plan_layouts[layout].hosts * plan_layouts[layout].local,
                       .local = plan_layouts[layout].local,
                       .chunk_bytes = 64,
                       .rough = true,
                       .seed = seed};
}

/* Runs it by direct too: the bits are the same. */
static void plan_run_both(plan_case p, const dt_comm_span *leaves) {
    uint64_t hash = plan_run(&p, leaves);
    p.algorithm = DT_COMM_ALGORITHM_DIRECT;
    CHECK(plan_run(&p, leaves) == hash);
}

TEST(ranks_on_several_hosts_get_the_bits_of_direct) {
    static const dt_dtype types[] = {DT_F32, DT_BF16, DT_F64, DT_I32, DT_U8};
    static const uint64_t counts[] = {0, 1, 17, 333, 1500};
    for (size_t l = 0; l < DTI_COUNT(plan_layouts); l++)
        for (size_t n = 0; n < DTI_COUNT(counts); n++)
            for (int same = 0; same < 2; same++) {
                plan_case p = plan_hosts(l, 31 * l + 7 * n + (uint64_t)same);
                p.count = p.size > 16 ? counts[n] * 3 / 2 : counts[n];
                p.chunk_bytes = p.size > 16 ? 256 : 64;
                p.dtype = types[(l + n + (size_t)same) % DTI_COUNT(types)];
                p.reduction = (dt_comm_reduction)((l + n) % 5);
                p.overlap = same ? DTI_SAME : DTI_APART;
                plan_run_both(p, NULL);
            }
}

/* One leaf a rank, and more; always a power of two. */
TEST(ranks_on_several_hosts_get_the_bits_of_direct_in_tree_mode) {
    static const dt_dtype types[] = {DT_F32, DT_F16, DT_I32};
    for (size_t l = 0; l < DTI_COUNT(plan_layouts); l++)
        for (uint32_t each = 1; each <= 4; each *= 2) {
            dt_comm_span leaves[EXEC_RANKS];
            plan_case p = plan_hosts(l, 5 * l + each);
            p.leaves = p.size * each;
            if (p.leaves > 64)
                continue;
            for (uint32_t rank = 0; rank < p.size; rank++)
                leaves[rank] = (dt_comm_span){rank * each, each};
            p.count = 333;
            p.dtype = types[(l + each) % 3];
            p.overlap = p.dtype == DT_F32 ? DTI_SAME : DTI_APART;
            plan_run_both(p, leaves);
        }
}

/* Bytes that a rank sends to other hosts; into *slots how many streams of it come into slots. */
static uint64_t plan_leaving(const plan_case *p, uint32_t rank, uint32_t *slots) {
    dti_base base;
    dti_base_init(&base, NULL, NULL);
    dt_comm_op op = {.kind = p->kind, .count = p->count, .dtype = p->dtype};
    op.algorithm = p->algorithm;
    dti_collective c = {op, rank, p->size, p->chunk_bytes, NULL, 0, p->local, 0, NULL};
    dti_schedule s = {0};
    uint64_t bytes = 0;
    dti_algorithm_fn *build = dti_algorithm_choose(&base, &c, &c.op.algorithm);
    CHECK(build && dti_schedule_build(&base, &c, build, &s));
    for (size_t i = 0; i < s.step_count; i++) {
        const dti_schedule_step *step = &s.steps[i];
        bool away = step->kind == DTI_SCHEDULE_SEND && step->peer / p->local != rank / p->local;
        bytes += away ? exec_bytes(step->count, step->dtype) : 0;
        *slots += step->kind == DTI_SCHEDULE_RECV && step->place == DTI_REGION_SLOT;
    }
    dti_schedule_free(&base, &s);
    return bytes;
}

TEST(each_host_sends_a_rings_bytes_for_any_number_of_ranks) {
    for (size_t l = 0; l < DTI_COUNT(plan_layouts); l++)
        for (int half = 0; half < 2; half++) {
            plan_case p = plan_hosts(l, 0), q;
            uint32_t hosts = plan_layouts[l].hosts;
            uint64_t whole = p.size * 160u, direct = 0;
            p.count = whole;
            p.dtype = half ? DT_BF16 : DT_F32;
            q = p;
            q.algorithm = DT_COMM_ALGORITHM_DIRECT;
            for (uint32_t host = 0; host < hosts; host++) {
                uint64_t leaves = 0;
                for (uint32_t rank = host * p.local; rank < (host + 1) * p.local; rank++) {
                    uint32_t slots = 0, more = 0;
                    leaves += plan_leaving(&p, rank, &slots);
                    direct += plan_leaving(&q, rank, &more);
                    CHECK(slots <= more);
                }
                /* 2 (H-1)/H S; of 16-bit floats sums go there as float32. */
                CHECK(leaves * hosts == (half ? 6 : 8) * (hosts - 1) * whole);
            }
            CHECK(direct == (half ? 4 : 8) * (hosts - 1) * whole * p.local);
        }
}

static uint32_t plan_local_of(uint32_t each, uint32_t size, const uint32_t *ranks) {
    return dti_local_of(each, ranks, size);
}

TEST(a_groups_hosts_follow_from_its_ranks) {
    CHECK(plan_local_of(4, 8, NULL) == 4);
    CHECK(plan_local_of(2, 6, NULL) == 2);
    CHECK(plan_local_of(6, 12, NULL) == 2); /* three subtrees on each */
    CHECK(plan_local_of(3, 6, NULL) == 1);
    CHECK(plan_local_of(8, 8, NULL) == 1); /* one host */
    CHECK(plan_local_of(1, 8, NULL) == 1);
    CHECK(plan_local_of(0, 8, NULL) == 1);
    CHECK(plan_local_of(4, 7, NULL) == 1);
    CHECK(plan_local_of(UINT32_MAX, 8, NULL) == 1);
    CHECK(plan_local_of(4, 4, (uint32_t[]){0, 1, 4, 5}) == 2);
    CHECK(plan_local_of(4, 4, (uint32_t[]){2, 3, 8, 11}) == 2);
    CHECK(plan_local_of(4, 8, (uint32_t[]){0, 1, 2, 3, 8, 9, 10, 11}) == 4);
    CHECK(plan_local_of(4, 4, (uint32_t[]){0, 1, 2, 3}) == 1);
    CHECK(plan_local_of(4, 4, (uint32_t[]){0, 4, 8, 12}) == 1);
    CHECK(plan_local_of(4, 4, (uint32_t[]){0, 1, 4, 8}) == 1);
    CHECK(plan_local_of(4, 4, (uint32_t[]){0, 4, 5, 6}) == 1);
    CHECK(plan_local_of(4, 5, (uint32_t[]){0, 1, 4, 5, 6}) == 1);
    CHECK(plan_local_of(6, 6, (uint32_t[]){0, 1, 2, 6, 7, 8}) == 1);
    CHECK(plan_local_of(6, 8, (uint32_t[]){0, 1, 2, 3, 6, 7, 8, 9}) == 4);
}

/* ---- choice */

static int plan_chosen_on_hosts(uint32_t size, uint32_t local, uint64_t bytes,
                                const dt_comm_span *leaves) {
    dti_base base;
    dti_base_init(&base, NULL, NULL);
    dti_collective c = plan_collective(DT_COMM_ALL_REDUCE, size, bytes / 4);
    dt_comm_algorithm chosen = DT_COMM_ALGORITHM_DEFAULT;
    c.local = local;
    c.op.tree = leaves != NULL;
    c.leaves = leaves;
    c.leaf_total = leaves ? leaves[size - 1].first + leaves[size - 1].count : 0;
    CHECK(dti_algorithm_choose(&base, &c, &chosen) != NULL);
    return (int)chosen;
}

TEST(hierarchical_is_chosen_where_hosts_are_shared_and_bytes_many) {
    const int hierarchical = DT_COMM_ALGORITHM_HIERARCHICAL, direct = DT_COMM_ALGORITHM_DIRECT;
    dt_comm_span even[4] = {{0, 2}, {2, 2}, {4, 2}, {6, 2}};
    dt_comm_span odd[4] = {{0, 1}, {1, 2}, {3, 3}, {6, 2}};
    CHECK(plan_chosen_on_hosts(4, 2, (64 << 10) + 4, NULL) == hierarchical);
    CHECK(plan_chosen_on_hosts(4, 2, 32 << 10, NULL) == DT_COMM_ALGORITHM_DOUBLING);
    CHECK(plan_chosen_on_hosts(1024, 32, 1 << 30, NULL) == hierarchical);
    CHECK(plan_chosen_on_hosts(1056, 32, 1 << 30, NULL) == DT_COMM_ALGORITHM_RING);
    CHECK(plan_chosen_on_hosts(256, 64, 1 << 19, NULL) == DT_COMM_ALGORITHM_HALVING);
    for (uint32_t local = 0; local < 10; local++)
        CHECK((plan_chosen_on_hosts(8, local, 1 << 20, NULL) == hierarchical) ==
              (local == 2 || local == 4));
    CHECK(plan_chosen_on_hosts(8, UINT32_MAX, 1 << 20, NULL) == direct);
    CHECK(plan_chosen_on_hosts(4, 2, 1 << 20, even) == hierarchical);
    CHECK(plan_chosen_on_hosts(4, 2, 1 << 20, odd) == direct);
    CHECK(plan_chosen_on_hosts(4, 2, 32 << 10, even) == direct);
    CHECK(plan_chosen_on_hosts(4, 1, 1 << 20, even) == direct);
}

/* ---- real processes, all on this host, that say they are on several */

typedef struct layout {
    int size, local;
    int odd_one;    /* a rank that says nothing; -1: all do */
    uint32_t known; /* what all must come to know */
    bool dealt;     /* ranks are dealt out to the hosts in turn */
} layout;

static void layout_describe(proc *p, dt_comm_desc *desc) {
    const layout *l = p->all->arg;
    desc->local_size = l->local;
    desc->local_rank = l->dealt ? p->index / (l->size / l->local) : p->index % l->local;
    if (p->index == l->odd_one)
        desc->local_size = desc->local_rank = 0;
    if (p->index == 0)
        desc->logger = (dt_logger){.log = proc_log, .user = p};
}

enum { LAYOUT_MOST = 40000 };

/* The three ways give the same bits, in place too. */
static void layout_sum(mate *m, dt_comm_op op, float *x, float *y, float *first) {
    static const dt_comm_algorithm ways[] = {
        DT_COMM_ALGORITHM_DIRECT, DT_COMM_ALGORITHM_HIERARCHICAL, DT_COMM_ALGORITHM_DEFAULT};
    size_t bytes = op.count * dti_dtype_bytes(op.dtype);
    for (size_t way = 0; way < 3; way++)
        for (int same = 0; same < (op.tree && op.dtype != DT_F32 ? 1 : 2); same++) {
            for (size_t i = 0; i < op.count; i++)
                x[i] = ordered_at(m->rank, i);
            op.in = x;
            op.out = same ? x : y;
            op.algorithm = ways[way];
            EXPECT(m, !dt_comm_run(m->comm, &op));
            if (way == 0)
                memcpy(first, op.out, bytes);
            EXPECT(m, !memcmp(first, op.out, bytes));
        }
}

static void layout_sums(mate *m, bool tree) {
    static const uint64_t counts[] = {0, 1, 37, 5000, LAYOUT_MOST};
    static const dt_dtype types[] = {DT_F32, DT_BF16, DT_I32};
    float *memory = malloc(sizeof *memory * LAYOUT_MOST * 3);
    for (size_t n = 0; n < DTI_COUNT(counts); n++)
        for (size_t d = 0; d < DTI_COUNT(types) - tree; d++) /* the tree is for floats */
            layout_sum(m,
                       (dt_comm_op){.kind = DT_COMM_ALL_REDUCE,
                                    .count = counts[n],
                                    .dtype = types[d],
                                    .reduction = (dt_comm_reduction)((n + d) % 5),
                                    .tree = tree},
                       memory, memory + LAYOUT_MOST, memory + 2 * LAYOUT_MOST);
    free(memory);
}

static void layout_refused(mate *m, bool tree, const char *why) {
    float x[64] = {0}, y[64];
    dt_comm_op op = {.kind = DT_COMM_ALL_REDUCE, .in = x, .out = y, .count = 3, .tree = tree};
    op.algorithm = DT_COMM_ALGORITHM_HIERARCHICAL;
    EXPECT(m, dt_comm_run(m->comm, &op) == DT_ERROR_INVALID);
    EXPECT(m, strstr(dt_comm_error(m->comm), why) != NULL);
}

/* A group of those ranks r for which bit r is set. */
static void layout_group(mate *m, uint32_t mask, uint32_t known) {
    int ranks[32], count = 0;
    mate inside = *m;
    for (int r = 0; r < m->size; r++)
        if (mask >> r & 1)
            ranks[count++] = r;
    EXPECT(m, !dt_comm_group_create(m->comm, ranks, count, &inside.comm));
    if (inside.comm) {
        inside.rank = dt_comm_rank(inside.comm);
        EXPECT(&inside, inside.comm->local == known);
        if (known > 1)
            layout_sums(&inside, false);
        else
            layout_refused(&inside, false, "several hosts");
        dt_comm_destroy(inside.comm);
    }
    m->failed_line = m->failed_line ? m->failed_line : inside.failed_line;
}

static void layout_leaves(mate *m) {
    uint32_t rank = (uint32_t)m->rank, size = (uint32_t)m->size, more = rank > 0;
    EXPECT(m, !dt_comm_set_leaves(m->comm, rank, 1, size, NULL, NULL));
    layout_sums(m, true);
    /* Rank 0 has two. */
    EXPECT(m, !dt_comm_set_leaves(m->comm, rank + more, 2 - more, size + 1, NULL, NULL));
    layout_refused(m, true, "the same number of leaves");
}

static void on_hosts(proc *p) {
    mate *m = &p->m;
    const layout *l = p->all->arg;
    dt_comm_algorithm chosen = DT_COMM_ALGORITHM_DEFAULT;
    if (!proc_join(p))
        return;
    dti_collective c = {.op = {.kind = DT_COMM_ALL_REDUCE, .count = LAYOUT_MOST},
                        .size = (uint32_t)m->size,
                        .local = m->comm->local};
    EXPECT(m, m->comm->local == l->known);
    EXPECT(m, dti_algorithm_choose(m->comm->base, &c, &chosen) != NULL);
    EXPECT(m, (chosen == DT_COMM_ALGORITHM_HIERARCHICAL) == (l->known > 1));
    if (l->known > 1) {
        layout_sums(m, false);
        layout_leaves(m);
    } else {
        layout_refused(m, false, "several hosts");
        sum_once(p, LAYOUT_MOST);
    }
    if (m->size == 8 && l->known == 4) {
        layout_group(m, 0x33, 2);
        layout_group(m, 0x0f, 1);
        layout_group(m, 0x17, 1);
        layout_group(m, 0xff, 4);
    }
    bool noted = m->rank == 0 && (l->odd_one > 0 || l->dealt);
    EXPECT(m, (strstr(p->log, "hierarchical sums require") != NULL) == noted);
}

TEST(processes_on_several_hosts_get_the_bits_of_direct) {
    static const layout layouts[] = {{4, 2, -1, 2, false},
                                     {6, 2, -1, 2, false},
                                     {8, 4, -1, 4, false},
                                     {8, 2, -1, 2, false},
                                     {12, 6, -1, 2, false}};
    for (size_t i = 0; i < DTI_COUNT(layouts); i++)
        for (int sockets = 1; sockets <= (i < 2 ? 2 : 1); sockets++) {
            fleet *f = fleet_new(layouts[i].size);
            f->desc.chunk_bytes = 4096;
            f->desc.sockets = sockets;
            f->describe = layout_describe;
            f->arg = &layouts[i];
            fleet_run(f, on_hosts);
            fleet_free(f);
        }
}

TEST(processes_that_disagree_on_shared_hosts_still_sum) {
    static const layout layouts[] = {
        {4, 4, -1, 1, false}, {4, 1, -1, 1, false}, {6, 3, -1, 1, false}, {4, 3, -1, 1, false},
        {4, 2, 0, 1, false},  {4, 2, 3, 1, false},  {4, 2, 2, 1, false},  {8, 4, -1, 1, true}};
    for (size_t i = 0; i < DTI_COUNT(layouts); i++) {
        fleet *f = fleet_new(layouts[i].size);
        f->describe = layout_describe;
        f->arg = &layouts[i];
        fleet_run(f, on_hosts);
        fleet_free(f);
    }
}
