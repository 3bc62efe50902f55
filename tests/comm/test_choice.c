/* The choice of algorithms by link costs. It never changes a result, is alike on all ranks, and is
 * the expected one in a table of links; and real processes that measure. */

/* ---- choice */

/* From 100 ns to 100 ms, 1 MB/s to 100 GB/s, evenly in powers. */
static dti_costs choice_costs(uint64_t *random) {
    dti_costs costs = {.chunk_bytes = 64 << 10, .window = 4, .early_bytes = DTI_EARLY_BYTES};
    for (int level = 0; level < 2; level++) {
        dt_comm_link link = {.latency_ns = 100, .bytes_per_s = 1000000};
        for (uint32_t k = exec_draw(random, 21); k > 0; k--)
            link.latency_ns *= 2;
        for (uint32_t k = exec_draw(random, 17); k > 0; k--)
            link.bytes_per_s *= 2;
        link.message_ns = link.latency_ns / (1 + exec_draw(random, 50));
        *(level ? &costs.local : &costs.network) = dti_link_cost_of(&link);
    }
    return costs;
}

/* Alike on all ranks; DEFAULT where there are leaves that only direct can do. */
static dt_comm_algorithm choice_of(const plan_case *p, const dt_comm_span *leaves) {
    dt_comm_algorithm first = DT_COMM_ALGORITHM_DEFAULT, chosen;
    dti_base base;
    dti_base_init(&base, NULL, NULL);
    for (uint32_t rank = 0; rank < p->size; rank++) {
        dt_comm_op op = {.kind = p->kind, .count = p->count, .dtype = p->dtype};
        op.reduction = p->reduction, op.root = (int)p->root, op.tree = leaves != NULL;
        dti_collective c = {.op = op, .rank = rank, .size = p->size, .leaves = leaves};
        c.leaf_total = p->leaves, c.chunk_bytes = p->chunk_bytes;
        c.local = c.each = p->local, c.costs = p->costs;
        CHECK(dti_algorithm_choose(&base, &c, &chosen));
        CHECK(!rank || chosen == first);
        first = chosen;
    }
    return first;
}

/* plan_run holds the sums against those of single leaves in the tree's order. */
TEST(link_costs_never_change_the_bits) {
    static const dt_dtype types[] = {DT_F32, DT_BF16, DT_F64, DT_F16};
    static const dt_comm_kind kinds[] = {DT_COMM_ALL_REDUCE, DT_COMM_ALL_REDUCE, DT_COMM_REDUCE,
                                         DT_COMM_BROADCAST};
    int seen[4][DTI_ALGORITHMS] = {{0}};
    uint64_t random = 4711;
    for (int i = 0; i < 900; i++) {
        dti_costs costs = choice_costs(&random);
        dt_comm_span leaves[EXEC_RANKS];
        int kind = i % 4;
        bool tree = kind == 1;
        plan_case p = {.kind = kinds[kind], .chunk_bytes = 256, .rough = true, .costs = &costs};
        p.size = 2 + exec_draw(&random, i % 3 ? 8 : 31);
        p.local = i % 5 ? 1 : plan_local(p.size);
        p.dtype = types[exec_draw(&random, 4)];
        p.reduction = exec_draw(&random, 2) ? DT_COMM_SUM : DT_COMM_MEAN;
        p.root = plan_has_root(&p) ? exec_draw(&random, p.size) : 0;
        p.count = 1 + exec_draw(&random, p.size < 10 ? 3000 : 400);
        p.overlap = !tree && exec_draw(&random, 2) ? DTI_SAME : DTI_APART;
        p.seed = (uint64_t)i;
        if (tree) {
            p.leaves = p.size * (exec_draw(&random, 2) + 1);
            plan_deal(leaves, p.size, p.leaves, exec_draw(&random, 3));
        }
        seen[kind][choice_of(&p, tree ? leaves : NULL)]++;
        plan_run(&p, tree ? leaves : NULL);
    }
    for (int a = DT_COMM_ALGORITHM_DIRECT; a < DTI_ALGORITHMS; a++) {
        bool ring = a == DT_COMM_ALGORITHM_RING, one = a == DT_COMM_ALGORITHM_ONE_SHOT;
        CHECK((seen[0][a] > 0) == !ring);
        CHECK((seen[1][a] > 0) == (!ring && !one && a != DT_COMM_ALGORITHM_DOUBLING));
    }
    CHECK(seen[2][DT_COMM_ALGORITHM_DIRECT] && seen[2][DT_COMM_ALGORITHM_DOUBLING]);
    CHECK(seen[3][DT_COMM_ALGORITHM_ONE_SHOT] && seen[3][DT_COMM_ALGORITHM_DOUBLING] &&
          seen[3][DT_COMM_ALGORITHM_DIRECT]);
}

/* Above 32 ranks and 64 KiB ring and halving add in orders of their own. There no link may
 * decide. */
TEST(link_speeds_do_not_change_the_order_of_sums) {
    uint64_t random = 99;
    for (int i = 0; i < 2000; i++) {
        dti_costs costs = choice_costs(&random);
        plan_case p = {.kind = i % 2 ? DT_COMM_ALL_REDUCE : DT_COMM_REDUCE_SCATTER, .local = 1};
        p.size = i % 2 ? 33 + exec_draw(&random, 300) : 2 + exec_draw(&random, 64);
        p.count = (64 << 8) + 1 + exec_draw(&random, 1 << 22);
        dt_comm_algorithm known = choice_of(&p, NULL);
        p.costs = &costs;
        CHECK(choice_of(&p, NULL) == known);
    }
}

/* Others would send partial sums as f32, in orders that ranks of threads do not have. */
TEST(sums_of_16_bit_floats_over_more_than_32_ranks_are_direct) {
    for (int dtype = 0; dtype < 3; dtype++) {
        plan_case p = {.kind = DT_COMM_ALL_REDUCE,
                       .size = 33,
                       .local = 1,
                       .dtype = dtype ? dtype == 1 ? DT_BF16 : DT_F16 : DT_F32};
        p.count = 1 << 20;
        const dt_comm_algorithm chosen = choice_of(&p, NULL);
        CHECK((chosen == DT_COMM_ALGORITHM_DIRECT) == (dtype > 0));
    }
}

TEST(algorithms_are_chosen_by_the_links) {
    enum { LO = 8, LAN = 50, WAN = 20000 }; /* us */
    static const struct {
        uint32_t us, message_us, mbit, size;
        uint64_t bytes;
        dt_comm_algorithm chosen;
    } rows[] = {
        /* loopback, more ranks than cores: a message is all processor */
        {40, 40, 8000, 8, 1 << 10, DT_COMM_ALGORITHM_DOUBLING},
        {40, 40, 8000, 8, 16 << 10, DT_COMM_ALGORITHM_DOUBLING},
        {20, 16, 16000, 4, 16 << 10, DT_COMM_ALGORITHM_DOUBLING},
        {LO, 0, 16000, 2, 64 << 10, DT_COMM_ALGORITHM_DOUBLING},
        {LO, 0, 16000, 2, 256 << 10, DT_COMM_ALGORITHM_HALVING},
        {LO, 0, 16000, 2, 4 << 20, DT_COMM_ALGORITHM_DIRECT},
        /* 1 Gbit/s: what is sent is all, from a few KiB on */
        {LAN, 2, 1000, 4, 1 << 10, DT_COMM_ALGORITHM_ONE_SHOT},
        {LAN, 2, 1000, 4, 16 << 10, DT_COMM_ALGORITHM_DIRECT},
        {LAN, 2, 1000, 4, 64 << 10, DT_COMM_ALGORITHM_DIRECT},
        {LAN, 2, 1000, 3, 256 << 10, DT_COMM_ALGORITHM_DIRECT},
        {LAN, 2, 1000, 2, 64 << 10, DT_COMM_ALGORITHM_DOUBLING},
        {LAN, 2, 100000, 8, 64 << 20, DT_COMM_ALGORITHM_DIRECT},
        /* 20 ms: messages in a row are all; and a window of 256 KiB would be */
        {WAN, 2, 1000, 4, 64 << 10, DT_COMM_ALGORITHM_ONE_SHOT},
        {WAN, 2, 1000, 8, 1 << 20, DT_COMM_ALGORITHM_DIRECT},
        {WAN, 2, 1000, 2, 64 << 20, DT_COMM_ALGORITHM_HALVING},
    };
    for (size_t i = 0; i < DTI_COUNT(rows); i++) {
        dt_comm_link link = {rows[i].us * 1000u, rows[i].message_us * 1000u,
                             rows[i].mbit * 125000ull};
        dti_link_cost cost = dti_link_cost_of(&link);
        dti_costs costs = {cost, cost, 64 << 10, 4, DTI_EARLY_BYTES};
        plan_case p = {.kind = DT_COMM_ALL_REDUCE, .size = rows[i].size, .local = 1};
        p.count = rows[i].bytes / 4;
        p.costs = &costs;
        dt_comm_algorithm chosen = choice_of(&p, NULL);
        test_check(chosen == rows[i].chosen, __FILE__, __LINE__, "row %d: %s, not %s", (int)i,
                   dti_algorithm_name(chosen), dti_algorithm_name(rows[i].chosen));
    }
}

TEST(two_ranks_halve_up_to_256_kib_unless_they_share_a_host) {
    for (uint32_t local = 0; local <= 2; local++)
        for (uint64_t kib = 128; kib <= 512; kib *= 2) {
            plan_case p = {.kind = DT_COMM_ALL_REDUCE, .size = 2, .local = local};
            p.count = (kib << 10) / 4;
            CHECK(choice_of(&p, NULL) ==
                  (local < 2 && kib <= 256 ? DT_COMM_ALGORITHM_HALVING : DT_COMM_ALGORITHM_DIRECT));
        }
}

/* Nothing overflows to a small cost, and WORK stays within its bound. */
TEST(costs_grow_with_the_bytes_and_end_at_the_largest_number) {
    static const dt_comm_link worst = {DTI_LATENCY_MOST_NS, DTI_LATENCY_MOST_NS,
                                       DTI_BYTES_PER_S_LEAST};
    dti_link_cost cost = dti_link_cost_of(&worst);
    dti_costs costs = {cost, cost, 64 << 10, 4, DTI_EARLY_BYTES};
    for (int a = DT_COMM_ALGORITHM_DIRECT; a < DTI_ALGORITHMS; a++)
        for (uint32_t size = 2; size < 65536; size = size * 3 + 1)
            for (int kind = 0; kind < 3; kind++) {
                uint64_t before = 0;
                dti_collective c = plan_collective(
                    (dt_comm_kind[]){DT_COMM_ALL_REDUCE, DT_COMM_REDUCE, DT_COMM_BROADCAST}[kind],
                    size, 0);
                c.local = c.each = 1;
                c.costs = &costs;
                for (c.op.count = 1; c.op.count < UINT64_MAX / 8 / size; c.op.count *= 7) {
                    uint64_t ns = dti_cost_algorithm(&c, (dt_comm_algorithm)a);
                    CHECK(ns >= before && ns > 0);
                    before = ns;
                }
            }
}

/* ---- processes that measure */

/* numbers: latency, message, bytes/s; measured; bytes sent at first */
static void choice_note(proc *p) {
    dt_comm_info info;
    dt_comm_get_info(p->m.comm, &info);
    p->numbers[0] = info.link.latency_ns;
    p->numbers[1] = info.link.message_ns;
    p->numbers[2] = info.link.bytes_per_s;
    p->numbers[3] = info.link_measured;
    p->numbers[4] = info.bytes_sent;
    p->numbers[5] = info.payload_bytes_sent;
    p->numbers[6] = info.operations;
    p->numbers[7] = info.local_link.latency_ns;
}

static void choice_measures(proc *p) {
    int32_t x[2000];
    if (!proc_join(p))
        return;
    choice_note(p);
    for (int i = 0; i < 2000; i++)
        x[i] = p->m.rank + i;
    for (int count = 1; count <= 2000; count += 333) {
        EXPECT(&p->m, !dt_comm_all_reduce(p->m.comm, x, x, (uint64_t)count, DT_I32, DT_COMM_MAX));
        for (int i = 0; i < count; i++)
            EXPECT(&p->m, x[i] == p->m.size - 1 + i);
    }
}

/* Rank 0 has the last word; the others' descriptions differ. */
static void choice_describe(proc *p, dt_comm_desc *desc) {
    const dt_comm_desc *rank_0 = p->all->arg;
    desc->link = p->index ? (dt_comm_link){1, 1, 1000} : rank_0->link;
    desc->no_link = p->index ? false : rank_0->no_link;
}

static void choice_run(int size, const dt_comm_desc *rank_0, uint64_t first[8]) {
    fleet *f = fleet_new(size);
    f->arg = rank_0;
    f->describe = rank_0 ? choice_describe : NULL;
    fleet_run(f, choice_measures);
    for (int r = 0; r < size; r++) /* all know the same */
        CHECK(!memcmp(f->at[r].numbers, f->at[0].numbers, 4 * sizeof f->at[r].numbers[0]));
    memcpy(first, f->at[0].numbers, sizeof f->at[0].numbers);
    fleet_free(f);
}

TEST(processes_measure_their_links_and_agree) {
    for (int size = 2; size <= 9; size += size == 4 ? 5 : 1) {
        uint64_t n[8], off[8];
        choice_run(size, NULL, n);
        CHECK(n[3] && n[0] >= 500 && n[0] < 100000000 && n[1] <= n[0] && n[7]);
        CHECK(n[2] > 1000000 && n[2] < 100000000000);
        choice_run(size, &(dt_comm_desc){.no_link = true}, off);
        CHECK(!off[0] && !off[1] && !off[2] && !off[3]);
        CHECK(n[5] == off[5] && n[6] == off[6]); /* what measuring has sent is not counted */
        CHECK(n[4] < off[4] + 2000);             /* some heartbeats, where joining took long */
    }
}

TEST(rank_0_decides_link_costs_for_all_ranks) {
    uint64_t n[8];
    choice_run(3, &(dt_comm_desc){.link = {5000, 7, 2000}}, n);
    CHECK(n[0] == 5000 && n[1] == 7 && n[2] == 2000 && !n[3] && n[7] == 5000);
    choice_run(3, &(dt_comm_desc){.no_link = true}, n);
    CHECK(!n[0] && !n[1] && !n[2] && !n[3]);
}

/* Rank 1's memory ends at each allocation of measuring in turn. The join fails there, and at rank
 * 0, which gets the error; both begin again. */
static void choice_starving(proc *p) {
    meagre memory = {.left = -1};
    dt_comm_desc desc = proc_desc(p);
    dt_comm_info info = {0};
    if (p->index)
        desc.allocator = (dt_allocator){meagre_alloc, meagre_free, &memory};
    dt_result result = DT_ERROR_MEMORY;
    for (int i = 0; i < 400 && result && !p->m.failed_line; i++) {
        desc.no_link = i == 0;
        desc.attempt = (uint64_t)i;
        snprintf(desc.rendezvous, sizeof desc.rendezvous, "file://%s/%d", p->all->folder, i);
        atomic_store(&memory.left, i && p->index ? (int)info.host_alloc_calls + i - 1 : -1);
        result = proc_try_desc(p, &desc);
        if (i == 0) {
            EXPECT(&p->m, result == DT_OK);
            dt_comm_get_info(p->m.comm, &info);
            result = DT_ERROR_MEMORY;
        } else if (result) {
            EXPECT(&p->m, result == (p->index ? DT_ERROR_MEMORY : DT_ERROR_PEER_LOST));
            EXPECT(&p->m, p->index || strstr(p->text, "rank 1"));
            p->numbers[0]++;
        }
        proc_leave(p);
        EXPECT(&p->m, atomic_load(&memory.live) == 0);
    }
    EXPECT(&p->m, result == DT_OK && p->numbers[0] > 10);
}

TEST(a_rank_that_fails_while_links_are_measured_fails_the_join_of_all) {
    fleet *f = fleet_new(2);
    folder_make(f->folder);
    fleet_run(f, choice_starving);
    folder_remove(f->folder);
    fleet_free(f);
}
