/* Schedules: every algorithm's, on executor.h, against the result by definition, with other values,
 * types, places, roots, orders of events; then the parts that algorithms are written with, and
 * choice. */
#include "comm/executor.h"

/* ---- Operations for it */

typedef struct plan_case {
    dt_comm_kind kind;
    dt_comm_algorithm algorithm;
    dt_dtype dtype;
    dt_comm_reduction reduction;
    uint32_t size, root;
    uint64_t count, chunk_bytes;
    dti_overlap overlap;
    uint32_t leaves;        /* tree mode: their number */
    uint32_t local;         /* ranks on each host */
    const dti_costs *costs; /* of links */
    bool rough;             /* values whose sum depends on the order; else small whole numbers */
    uint64_t seed;
} plan_case;

/* Element i of leaf (or rank) `leaf`. */
static void plan_value(const plan_case *p, uint32_t leaf, uint64_t i, uint8_t *to) {
    uint64_t state = (leaf + 1) * 0x9e3779b97f4a7c15u ^ (i + 7) * 0xbf58476d1ce4e5b9u;
    for (int k = 0; k < 3; k++)
        exec_draw(&state, 2);
    int64_t whole = (int64_t)exec_draw(&state, 4) - (p->dtype == DT_U8 ? 0 : 1);
    double rough[] = {1e4, 1, -1e4, 0.37, 3.3e-4, -7.77, 1000.5, 0.1};
    double real = p->rough ? rough[exec_draw(&state, 8)] : (double)whole;
    if (p->rough && exec_draw(&state, 50) == 0)
        real = NAN;
    float single = (float)real;
    int32_t narrow = (int32_t)whole * (p->rough ? 500000007 : 1);
    uint16_t half = p->dtype == DT_F16 ? f16_from_f32(single) : dti_bf16_from_f32(single);
    switch (p->dtype) {
    case DT_F32: memcpy(to, &single, 4); break;
    case DT_F64: memcpy(to, &real, 8); break;
    case DT_I32: memcpy(to, &narrow, 4); break;
    case DT_I64: memcpy(to, &whole, 8); break;
    case DT_U8: *to = (uint8_t)(whole * (p->rough ? 77 : 1)); break;
    default: memcpy(to, &half, 2);
    }
}

static bool plan_is_block(dt_comm_kind kind) { /* in or out is a block for each rank */
    return kind == DT_COMM_GATHER || kind == DT_COMM_ALL_GATHER || kind == DT_COMM_SCATTER ||
           kind == DT_COMM_REDUCE_SCATTER || kind == DT_COMM_ALL_TO_ALL;
}

/* Elements of one rank's contribution. */
static uint64_t plan_given(const plan_case *p) {
    bool blocks = p->kind == DT_COMM_SCATTER || p->kind == DT_COMM_REDUCE_SCATTER ||
                  p->kind == DT_COMM_ALL_TO_ALL;
    return blocks ? p->count * p->size : p->count;
}

static bool plan_has_root(const plan_case *p) {
    return p->kind == DT_COMM_BROADCAST || p->kind == DT_COMM_REDUCE || p->kind == DT_COMM_GATHER ||
           p->kind == DT_COMM_SCATTER;
}

/* The sum of leaves first .. first + count - 1, in the tree over all of the rank's operation. */
static void plan_sum(const plan_case *p, uint32_t first, uint32_t count, uint64_t from,
                     uint64_t elements, bool finish, uint32_t divisor, uint8_t *to) {
    uint64_t size = dti_dtype_bytes(p->dtype);
    uint8_t *leaves = malloc(count * elements * size + 1);
    dti_operand operands[64];
    for (uint32_t k = 0; k < count; k++) {
        for (uint64_t i = 0; i < elements; i++)
            plan_value(p, first + k, from + i, leaves + (k * elements + i) * size);
        operands[k] =
            (dti_operand){leaves + k * elements * size, (uint8_t)p->dtype, {first + k, 1}};
    }
    dti_fold(to, operands, count, elements, p->dtype, p->reduction, finish, divisor);
    free(leaves);
}

static void plan_fill_in(const plan_case *p, exec_rank *r) {
    uint64_t size = dti_dtype_bytes(p->dtype), elements = plan_given(p);
    if (!p->leaves) {
        for (uint64_t i = 0; i < elements && r->in; i++)
            plan_value(p, r->c.rank, i, r->in + i * size);
    } else {
        dt_comm_span spans[DTI_TREE_SPANS];
        uint32_t n = dti_collective_spans(&r->c, r->c.rank, spans);
        for (uint32_t k = 0; k < n; k++)
            plan_sum(p, spans[k].first, spans[k].count, 0, p->count, false, 1,
                     r->in + exec_bytes(k * p->count, dti_in_dtype(&r->c)));
    }
    r->given = malloc(r->in_bytes + 1);
    if (r->in)
        memcpy(r->given, r->in, r->in_bytes);
}

static uint8_t *plan_memory(exec_world *w, exec_rank *r, int i, uint64_t bytes) {
    r->memory[i] = malloc(bytes + (bytes == 0));
    for (uint64_t k = 0; k < bytes; k++)
        r->memory[i][k] = (uint8_t)exec_draw(&w->random, 256);
    return r->memory[i];
}

/* Which buffers a rank has, and how they lie to each other. */
static void plan_buffers(const plan_case *p, exec_world *w, exec_rank *r) {
    bool root = r->c.rank == p->root, other = plan_has_root(p) && !root;
    uint64_t size = dti_dtype_bytes(p->dtype), block = p->count * size;
    bool gathers =
        p->kind == DT_COMM_GATHER || p->kind == DT_COMM_ALL_GATHER || p->kind == DT_COMM_ALL_TO_ALL;
    dt_comm_span spans[DTI_TREE_SPANS];
    r->in_bytes = plan_given(p) * size;
    if (p->leaves)
        r->in_bytes = dti_collective_spans(&r->c, r->c.rank, spans) *
                      exec_bytes(p->count, dti_in_dtype(&r->c));
    r->out_bytes = gathers ? block * p->size : block;
    if (other && (p->kind == DT_COMM_REDUCE || p->kind == DT_COMM_GATHER))
        r->out_bytes = 0;
    if ((other && (p->kind == DT_COMM_BROADCAST || p->kind == DT_COMM_SCATTER)) ||
        p->kind == DT_COMM_BARRIER)
        r->in_bytes = 0;
    if (p->kind == DT_COMM_BARRIER ||
        (p->kind == DT_COMM_BROADCAST && root && p->overlap == DTI_APART))
        r->out_bytes = 0;
    bool both = r->in_bytes && r->out_bytes && p->overlap != DTI_APART;
    uint64_t most = r->in_bytes > r->out_bytes ? r->in_bytes : r->out_bytes;
    uint64_t shift = p->overlap == DTI_OWN ? r->c.rank * block : 0;
    if (both) {
        r->in = r->out = plan_memory(w, r, 0, most);
        *(gathers ? &r->in : &r->out) += shift;
    } else {
        r->in = r->in_bytes ? plan_memory(w, r, 0, r->in_bytes) : NULL;
        r->out = r->out_bytes ? plan_memory(w, r, 1, r->out_bytes) : NULL;
    }
    plan_fill_in(p, r);
    r->c.op.in = r->in;
    r->c.op.out = r->out;
}

static bool plan_build(const plan_case *p, dti_base *base, exec_world *w,
                       const dt_comm_span *leaves) {
    w->size = p->size;
    w->random = p->seed * 0x9e3779b97f4a7c15u + 1;
    w->window = 1 + (uint32_t)(p->seed % 3);
    w->mode = (uint32_t)(p->seed / 3 % 3);
    w->victim = exec_draw(&w->random, p->size);
    for (uint32_t rank = 0; rank < p->size; rank++) {
        exec_rank *r = &w->ranks[rank];
        dt_comm_op op = {.kind = p->kind,
                         .count = p->count,
                         .dtype = p->dtype,
                         .reduction = p->reduction,
                         .root = (int)p->root,
                         .algorithm = p->algorithm,
                         .tree = leaves != NULL};
        r->c = (dti_collective){op,       rank, p->size, p->chunk_bytes, leaves, p->leaves,
                                p->local, 0,    NULL};
        plan_buffers(p, w, r);
        dti_algorithm_fn *build = dti_algorithm_choose(base, &r->c, &r->c.op.algorithm);
        if (!build || !dti_schedule_build(base, &r->c, build, &r->s))
            return exec_fail(w, rank, 0, base->error);
        r->work = malloc(r->s.work_bytes + 1);
        for (uint64_t i = 0; i < r->s.work_bytes; i++)
            r->work[i] = (uint8_t)exec_draw(&w->random, 256);
    }
    return true;
}

/* What `out` must hold at a rank whose out has bytes. */
static void plan_expect(const plan_case *p, uint32_t rank, uint8_t *to) {
    uint64_t size = dti_dtype_bytes(p->dtype), n = p->count, from;
    uint32_t leaves = p->leaves ? p->leaves : p->size;
    switch (p->kind) {
    case DT_COMM_REDUCE:
    case DT_COMM_ALL_REDUCE: plan_sum(p, 0, leaves, 0, n, true, leaves, to); return;
    case DT_COMM_REDUCE_SCATTER: plan_sum(p, 0, p->size, rank * n, n, true, p->size, to); return;
    default: break;
    }
    bool all =
        p->kind == DT_COMM_GATHER || p->kind == DT_COMM_ALL_GATHER || p->kind == DT_COMM_ALL_TO_ALL;
    for (uint64_t i = 0; i < (all ? n * p->size : n); i++) {
        uint32_t giver = all ? (uint32_t)(i / n) : p->root;
        from = all ? i % n : i;
        if (p->kind == DT_COMM_SCATTER || p->kind == DT_COMM_ALL_TO_ALL)
            from += rank * n;
        plan_value(p, giver, from, to + i * size);
    }
}

/* The tree over ranks is what all follow but the ring and halving over ranks that pair up. */
static bool plan_follows_tree(const plan_case *p) {
    bool two = (p->size & (p->size - 1)) == 0;
    return p->algorithm != DT_COMM_ALGORITHM_RING &&
           (p->algorithm != DT_COMM_ALGORITHM_HALVING || two);
}

static void plan_check(const plan_case *p, exec_world *w) {
    uint64_t most = p->count * p->size * 8 + 8;
    uint8_t *expected = malloc(most), *first = NULL;
    for (uint32_t rank = 0; rank < w->size; rank++) {
        exec_rank *r = &w->ranks[rank];
        if (r->in && (!r->out || p->overlap == DTI_APART) &&
            memcmp(r->in, r->given, r->in_bytes) != 0)
            exec_fail(w, rank, 0, "`in` has changed");
        if (!r->out || p->count == 0)
            continue;
        plan_expect(p, rank, expected);
        if ((!p->rough || plan_follows_tree(p)) && memcmp(expected, r->out, r->out_bytes) != 0)
            exec_fail(w, rank, 0, "the result is wrong");
        if (p->kind == DT_COMM_ALL_REDUCE && first && memcmp(first, r->out, r->out_bytes) != 0)
            exec_fail(w, rank, 0, "ranks have different bits");
        first = r->out;
    }
    free(expected);
}

/* Runs the case; returns the hash of all results. */
static uint64_t plan_run(const plan_case *p, const dt_comm_span *leaves) {
    dti_base base;
    dti_base_init(&base, NULL, NULL);
    exec_world *w = calloc(1, sizeof *w);
    uint64_t hash = 14695981039346656037u;
    if (plan_build(p, &base, w, leaves) && exec_run(w))
        plan_check(p, w);
    for (uint32_t rank = 0; rank < w->size; rank++)
        for (uint64_t i = 0; w->ranks[rank].out && i < w->ranks[rank].out_bytes; i++)
            hash = (hash ^ w->ranks[rank].out[i]) * 1099511628211u;
    test_check(!w->failure[0], __FILE__, __LINE__,
               "%s by %s, N %u, root %u, %llu %s of reduction %d, %s, seed %llu: %s",
               dti_kind_name(p->kind), dti_algorithm_name(p->algorithm), p->size, p->root,
               (unsigned long long)p->count, dti_dtype_name(p->dtype), (int)p->reduction,
               p->overlap == DTI_APART  ? "apart"
               : p->overlap == DTI_SAME ? "in place"
                                        : "at its own place",
               (unsigned long long)p->seed, w->failure);
    exec_free(w, &base);
    CHECK(base.bytes_now == 0);
    free(w);
    return hash;
}

/* ---- The tests */

static const uint32_t plan_sizes[] = {2, 3, 4, 5, 7, 8, 13, 16, 33};

enum { PLAN_COUNTS = 5 };

/* None, one, odd, fewer segments than most numbers of ranks, several chunks of every segment. */
static uint64_t plan_count(const plan_case *p, int i) {
    uint64_t most = plan_is_block(p->kind) ? 45 : p->size < 16 ? 331 : p->size * 21 + 1;
    return i == 0 ? 0 : i == 1 ? 1 : i == 2 ? 17 : i == 3 ? 48 : most;
}

/* All overlaps and counts of a case, at a root or two. */
static void plan_run_variants(plan_case p) {
    int overlaps = plan_is_block(p.kind) && p.kind != DT_COMM_ALL_TO_ALL ? 3 : 2;
    p.chunk_bytes = p.size < 16 ? 64 : 256;
    for (int overlap = 0; overlap < overlaps; overlap++)
        for (int i = 0; i < PLAN_COUNTS; i++) {
            p.overlap = (dti_overlap)overlap;
            p.count = plan_count(&p, i);
            p.seed += 1;
            p.root = plan_has_root(&p) ? (uint32_t)(p.seed % p.size) : 0;
            plan_run(&p, NULL);
        }
}

/* Two hosts, if the ranks can be on two. */
static uint32_t plan_local(uint32_t size) {
    return dti_local_of(size / 2, NULL, size);
}

static bool plan_exists(dt_comm_kind kind, int algorithm, uint32_t size) {
    return dti_algorithm_of(kind, (dt_comm_algorithm)algorithm) &&
           (algorithm != DT_COMM_ALGORITHM_HIERARCHICAL || plan_local(size) > 1);
}

TEST(schedules_of_all_kinds_and_algorithms_give_the_result) {
    uint64_t seed = 0;
    for (int kind = DT_COMM_BROADCAST; kind <= DT_COMM_BARRIER; kind++)
        for (int a = DT_COMM_ALGORITHM_DIRECT; a < DTI_ALGORITHMS; a++)
            for (size_t n = 0; n < DTI_COUNT(plan_sizes); n++) {
                if (!plan_exists((dt_comm_kind)kind, a, plan_sizes[n]))
                    continue;
                plan_case p = {.kind = (dt_comm_kind)kind,
                               .algorithm = (dt_comm_algorithm)a,
                               .size = plan_sizes[n],
                               .local = plan_local(plan_sizes[n]),
                               .seed = seed += 100};
                plan_run_variants(p);
            }
}

TEST(schedules_give_the_result_for_every_type_and_reduction) {
    static const dt_comm_kind kinds[] = {DT_COMM_ALL_REDUCE, DT_COMM_REDUCE,
                                         DT_COMM_REDUCE_SCATTER};
    uint64_t seed = 5;
    for (size_t k = 0; k < DTI_COUNT(kinds); k++)
        for (int a = DT_COMM_ALGORITHM_DIRECT; a < DTI_ALGORITHMS; a++)
            for (int dtype = DT_F32; dtype <= DT_U8; dtype++)
                for (int r = DT_COMM_SUM; r <= DT_COMM_PRODUCT; r++)
                    for (uint32_t n = 2; n < 7; n++) {
                        if (!plan_exists(kinds[k], a, n))
                            continue;
                        plan_case p = {.kind = kinds[k],
                                       .algorithm = (dt_comm_algorithm)a,
                                       .dtype = (dt_dtype)dtype,
                                       .reduction = (dt_comm_reduction)r,
                                       .size = n,
                                       .local = plan_local(n),
                                       .seed = seed += 17};
                        plan_run_variants(p);
                    }
}

TEST(schedules_reach_every_root) {
    for (int kind = DT_COMM_BROADCAST; kind <= DT_COMM_SCATTER; kind++)
        for (int a = DT_COMM_ALGORITHM_DIRECT; a < DTI_ALGORITHMS; a++)
            for (uint32_t root = 0; root < 7 * 9; root++) {
                plan_case p = {.kind = (dt_comm_kind)kind,
                               .algorithm = (dt_comm_algorithm)a,
                               .dtype = DT_F16,
                               .size = root % 7 + 3,
                               .root = root / 7,
                               .count = 150,
                               .chunk_bytes = 64,
                               .overlap = root % 2 ? DTI_SAME : DTI_APART,
                               .seed = root};
                if (plan_has_root(&p) && p.root < p.size && plan_exists(p.kind, a, p.size))
                    plan_run(&p, NULL);
            }
}

/* Values whose sum depends on the order, in many orders of events: ranks and runs agree. */
TEST(schedules_give_the_same_bits_in_any_order_of_events) {
    static const dt_dtype types[] = {DT_F32, DT_BF16, DT_F64};
    for (int a = DT_COMM_ALGORITHM_DIRECT; a < DTI_ALGORITHMS; a++)
        for (uint32_t n = 2; n < 18; n += 1 + n / 9)
            for (size_t d = 0; d < DTI_COUNT(types); d++) {
                if (!plan_exists(DT_COMM_ALL_REDUCE, a, n))
                    continue;
                plan_case p = {.kind = DT_COMM_ALL_REDUCE,
                               .algorithm = (dt_comm_algorithm)a,
                               .dtype = types[d],
                               .size = n,
                               .local = plan_local(n),
                               .count = 199,
                               .chunk_bytes = 64,
                               .rough = true};
                uint64_t first = plan_run(&p, NULL);
                for (p.seed = 1; p.seed < 7; p.seed++) {
                    p.overlap = p.seed % 2 ? DTI_SAME : DTI_APART;
                    p.chunk_bytes = 64 << p.seed % 4;
                    CHECK(plan_run(&p, NULL) == first);
                }
            }
}

/* The leaves dealt out as evenly as whole leaves allow, or in a jagged way; some rank may have
 * none. */
static void plan_deal(dt_comm_span *leaves, uint32_t size, uint32_t total, uint64_t seed) {
    uint64_t state = seed + 99;
    uint32_t first = 0;
    for (uint32_t rank = 0; rank < size; rank++) {
        uint32_t end = total * (rank + 1) / size;
        if (seed % 3 == 2 && rank + 1 < size)
            end = first + exec_draw(&state, total - first + 1);
        leaves[rank] = (dt_comm_span){first, end - first};
        first = end;
    }
}

TEST(tree_mode_gives_the_same_bits_on_any_number_of_ranks) {
    static const dt_dtype types[] = {DT_F32, DT_F16, DT_I32};
    for (uint32_t total = 1; total <= 16; total++)
        for (uint32_t n = 2; n <= 16; n++)
            for (uint64_t seed = 0; seed < 6; seed++) {
                dt_comm_span leaves[EXEC_RANKS];
                plan_case p = {.kind = seed % 2 ? DT_COMM_REDUCE : DT_COMM_ALL_REDUCE,
                               .algorithm = DT_COMM_ALGORITHM_DIRECT,
                               .dtype = types[seed % 3],
                               .reduction = seed == 4 ? DT_COMM_SUM : DT_COMM_MEAN,
                               .size = n,
                               .root = (uint32_t)seed % n,
                               .count = 131 + 70 * (n > 8),
                               .chunk_bytes = 64,
                               .overlap = seed % 3 == 0 ? DTI_SAME : DTI_APART,
                               .leaves = total,
                               .rough = true,
                               .seed = seed + n};
                plan_deal(leaves, n, total, seed);
                plan_run(&p, leaves); /* against the fold of single leaves */
                p.algorithm = DT_COMM_ALGORITHM_HALVING;
                p.kind = DT_COMM_ALL_REDUCE;
                if ((n & (n - 1)) == 0 && (total & (total - 1)) == 0 && n <= total && seed < 2)
                    plan_run(&p, leaves);
            }
}

TEST(a_send_and_its_receive_form_one_stream) {
    for (uint64_t count = 0; count < 200; count += 33) {
        dti_base base;
        dti_base_init(&base, NULL, NULL);
        exec_world *w = calloc(1, sizeof *w);
        w->size = 2;
        w->random = count + 1;
        for (uint32_t rank = 0; rank < 2; rank++) {
            exec_rank *r = &w->ranks[rank];
            dt_comm_op op = {.kind = rank ? DT_COMM_RECV : DT_COMM_SEND,
                             .count = count,
                             .dtype = DT_I64,
                             .root = 1 - (int)rank};
            r->c = (dti_collective){op, rank, 2, 64, NULL, 0, 0, 0, NULL};
            *(rank ? &r->out : &r->in) = plan_memory(w, r, 0, count * 8);
            dti_algorithm_fn *build = dti_algorithm_choose(&base, &r->c, &r->c.op.algorithm);
            CHECK(build && dti_schedule_build(&base, &r->c, build, &r->s));
            CHECK(r->s.step_count == (count > 0));
        }
        CHECK(exec_run(w));
        CHECK(memcmp(w->ranks[0].in, w->ranks[1].out, count * 8) == 0);
        exec_free(w, &base);
        free(w);
    }
}

/* ---- Parts of it */

/* By definition: a node of the tree that is inside and whose parent is not. */
static uint32_t plan_spans(uint32_t lo, uint32_t n, uint32_t first, uint32_t end,
                           dt_comm_span *spans) {
    if (lo >= end || lo + n <= first)
        return 0;
    if (first <= lo && lo + n <= end) {
        *spans = (dt_comm_span){lo, n};
        return 1;
    }
    uint32_t half = 1;
    while (half * 2 < n)
        half *= 2;
    uint32_t left = plan_spans(lo, half, first, end, spans);
    return left + plan_spans(lo + half, n - half, first, end, spans + left);
}

TEST(leaf_spans_are_the_maximal_subtrees) {
    dt_comm_span spans[DTI_TREE_SPANS], expected[DTI_TREE_SPANS];
    for (uint32_t total = 1; total <= 40; total++)
        for (uint32_t first = 0; first <= total; first++)
            for (uint32_t count = 0; first + count <= total; count++) {
                uint32_t n = plan_spans(0, total, first, first + count, expected);
                REQUIRE(dti_tree_spans(first, count, total, spans) == n);
                CHECK(memcmp(spans, expected, n * sizeof *spans) == 0);
            }
    CHECK(dti_tree_spans(3, 5, 7, spans) == 0);
    CHECK(dti_tree_spans(UINT32_MAX, 2, UINT32_MAX, spans) == 0);
    CHECK(dti_tree_spans(0, UINT32_MAX, UINT32_MAX, spans) == 1);
    CHECK(dti_tree_spans(1, UINT32_MAX - 2, UINT32_MAX, spans) == 31 + 30);
}

TEST(segments_are_even_and_cover_all_launches) {
    for (uint64_t count = 0; count < 400; count++)
        for (uint32_t parts = 1; parts < 9; parts++) {
            uint64_t next = 0, most = 0, least = count;
            for (uint32_t i = 0; i < parts; i++) {
                dti_part part = dti_part_of(count, i, parts);
                CHECK(part.first == next && (part.first % DTI_UNIT == 0 || part.count == 0));
                next += part.count;
                most = part.count > most ? part.count : most;
                least = part.count < least ? part.count : least;
            }
            CHECK(next == count && most - least <= 2 * DTI_UNIT);
        }
}

static dti_collective plan_collective(dt_comm_kind kind, uint32_t size, uint64_t count) {
    dt_comm_op op = {.kind = kind, .count = count, .dtype = DT_F32};
    return (dti_collective){op, size - 1, size, 1 << 18, NULL, 0, 0, 0, NULL};
}

static int plan_chosen(dt_comm_kind kind, uint32_t size, uint64_t bytes) {
    dti_base base;
    dti_base_init(&base, NULL, NULL);
    dti_collective c = plan_collective(kind, size, bytes / 4);
    dt_comm_algorithm chosen = DT_COMM_ALGORITHM_DEFAULT;
    CHECK(dti_algorithm_choose(&base, &c, &chosen) != NULL);
    return (int)chosen;
}

TEST(algorithms_are_chosen_by_ranks_and_bytes) {
    CHECK(plan_chosen(DT_COMM_ALL_REDUCE, 8, 32 << 10) == DT_COMM_ALGORITHM_DOUBLING);
    CHECK(plan_chosen(DT_COMM_ALL_REDUCE, 8, (64 << 10) + 4) == DT_COMM_ALGORITHM_DIRECT);
    CHECK(plan_chosen(DT_COMM_ALL_REDUCE, 2, 64 << 10) == DT_COMM_ALGORITHM_DOUBLING);
    CHECK(plan_chosen(DT_COMM_ALL_REDUCE, 2, (64 << 10) + 4) == DT_COMM_ALGORITHM_HALVING);
    CHECK(plan_chosen(DT_COMM_ALL_REDUCE, 33, 1 << 19) == DT_COMM_ALGORITHM_HALVING);
    CHECK(plan_chosen(DT_COMM_ALL_REDUCE, 33, 1 << 20) == DT_COMM_ALGORITHM_RING);
    CHECK(plan_chosen(DT_COMM_BROADCAST, 8, 64 << 10) == DT_COMM_ALGORITHM_ONE_SHOT);
    CHECK(plan_chosen(DT_COMM_BROADCAST, 9, 64 << 10) == DT_COMM_ALGORITHM_DOUBLING);
    CHECK(plan_chosen(DT_COMM_BROADCAST, 8, 65 << 10) == DT_COMM_ALGORITHM_DIRECT);
    CHECK(plan_chosen(DT_COMM_BROADCAST, 40, 1 << 20) == DT_COMM_ALGORITHM_RING);
    CHECK(plan_chosen(DT_COMM_REDUCE, 8, 1 << 10) == DT_COMM_ALGORITHM_DOUBLING);
    CHECK(plan_chosen(DT_COMM_REDUCE, 8, 1 << 20) == DT_COMM_ALGORITHM_DIRECT);
    CHECK(plan_chosen(DT_COMM_BARRIER, 8, 0) == DT_COMM_ALGORITHM_DOUBLING);
    for (int kind = DT_COMM_SEND; kind <= DT_COMM_BARRIER; kind++)
        for (uint64_t bytes = 0; bytes < 1u << 30; bytes = bytes * 8 + 4) {
            plan_chosen((dt_comm_kind)kind, 3, bytes);
            plan_chosen((dt_comm_kind)kind, 100, bytes);
        }
}

static void plan_refused(const dti_collective *c, const char *part) {
    dti_base base;
    dt_comm_algorithm chosen;
    dti_base_init(&base, NULL, NULL);
    CHECK(dti_algorithm_choose(&base, c, &chosen) == NULL);
    CHECK(base.result == DT_ERROR_INVALID);
    CHECK_CONTAINS(base.error, part);
}

TEST(a_forced_algorithm_that_does_not_exist_is_refused_with_the_list_of_valid_ones) {
    dti_collective c = plan_collective(DT_COMM_ALL_GATHER, 4, 10);
    c.op.algorithm = DT_COMM_ALGORITHM_HALVING;
    plan_refused(&c, "all-gather: .algorithm is halving; it must be direct, ring");
    c.op.kind = DT_COMM_BARRIER;
    plan_refused(&c, "it must be doubling");
    c.op.algorithm = (dt_comm_algorithm)77;
    plan_refused(&c, "it must be doubling");
    c.op.kind = DT_COMM_REDUCE;
    c.op.algorithm = DT_COMM_ALGORITHM_HIERARCHICAL;
    c.local = 2;
    plan_refused(&c, "reduce: .algorithm is hierarchical; it must be direct, doubling");
    c.op.kind = DT_COMM_ALL_REDUCE;
    for (c.local = 0; c.local < 6; c.local++)
        if (c.local != 2)
            plan_refused(&c, "HIERARCHICAL requires several hosts");
}

TEST(tree_mode_refuses_operations_with_another_order) {
    dt_comm_span leaves[4] = {{0, 2}, {2, 1}, {3, 1}, {4, 2}};
    float x[8];
    dti_collective c = plan_collective(DT_COMM_ALL_REDUCE, 4, 4);
    c.op.tree = true;
    c.op.algorithm = DT_COMM_ALGORITHM_DIRECT;
    plan_refused(&c, "dt_comm_set_leaves");
    c.leaves = leaves;
    c.leaf_total = 6;
    c.op.algorithm = DT_COMM_ALGORITHM_RING;
    plan_refused(&c, "DIRECT");
    c.op.algorithm = DT_COMM_ALGORITHM_HALVING;
    plan_refused(&c, "HALVING requires that");
    c.op.algorithm = DT_COMM_ALGORITHM_HIERARCHICAL;
    c.local = 2;
    plan_refused(&c, "the same number of leaves on each rank");
    c.op.algorithm = DT_COMM_ALGORITHM_DEFAULT;
    c.op.dtype = DT_F16;
    c.op.in = c.op.out = x;
    plan_refused(&c, ".in and .out must be different");
    c.op.kind = DT_COMM_GATHER;
    plan_refused(&c, "only all-reduce and reduce");
}

/* An allocator that has `left` allocations to give. */
static void *plan_alloc(void *user, size_t bytes, size_t align) {
    int *left = user;
    return (*left)-- > 0 ? aligned_alloc(align, (bytes + align - 1) / align * align) : NULL;
}

static void plan_free(void *user, void *memory, size_t bytes) {
    (void)user, (void)bytes;
    free(memory);
}

TEST(a_schedule_fails_without_memory_and_allocates_nothing_when_built_again) {
    for (int kind = DT_COMM_SEND; kind <= DT_COMM_BARRIER; kind++)
        for (int left = 0; left < 60; left++) {
            int tokens = left;
            dt_allocator allocator = {.user = &tokens, .alloc = plan_alloc, .free = plan_free};
            dti_base base;
            dti_base_init(&base, &allocator, NULL);
            dti_collective c = plan_collective((dt_comm_kind)kind, 20, 100000);
            dti_schedule s = {0};
            dti_algorithm_fn *build = dti_algorithm_choose(&base, &c, &c.op.algorithm);
            bool built = build && dti_schedule_build(&base, &c, build, &s);
            CHECK(built == !s.failed && (built || base.result == DT_ERROR_MEMORY));
            tokens = 0;
            CHECK(!built || dti_schedule_build(&base, &c, build, &s));
            dti_schedule_free(&base, &s);
            CHECK(base.bytes_now == 0);
            CHECK(left < 59 || built);
        }
}

TEST(scratch_beyond_all_addresses_and_streams_beyond_16_bits_are_refused) {
    dti_base base;
    dti_base_init(&base, NULL, NULL);
    dti_collective c = plan_collective(DT_COMM_ALL_REDUCE, 1u << 15, UINT64_MAX / 8);
    dti_schedule s = {0};
    CHECK(!dti_schedule_build(&base, &c, dti_algo_all_reduce_doubling, &s));
    CHECK(base.result == DT_ERROR_MEMORY);
    c = plan_collective(DT_COMM_ALL_REDUCE, 40000, 1u << 30); /* 79,998 streams in a row */
    CHECK(!dti_schedule_build(&base, &c, dti_algo_all_reduce_ring, &s));
    CHECK(base.result == DT_ERROR_INVALID);
    dti_schedule_free(&base, &s);
}

TEST(schedules_are_the_same_when_only_buffers_move) {
    float memory[64];
    dti_collective a = plan_collective(DT_COMM_ALL_GATHER, 2, 8), b;
    a.op.in = memory;
    a.op.out = memory + 16;
    b = a;
    b.op.in = memory + 48;
    CHECK(dti_schedule_same(&a, &b));
    b.op.in = memory + 24; /* rank 1's place */
    CHECK(!dti_schedule_same(&a, &b));
    b.op.in = b.op.out;
    CHECK(!dti_schedule_same(&a, &b));
    b = a;
    b.op.count = 7;
    CHECK(!dti_schedule_same(&a, &b));
    b = a;
    b.local = 2;
    CHECK(!dti_schedule_same(&a, &b));
}
