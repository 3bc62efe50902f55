/* The mesh of a job against counting: positions written down one by one, each with its coordinates
 * and its rank. Included by main.c. */

enum { MESH_MOST = 4 * 4 * 4, MESH_RANKS = 8, MESH_RANDOM = 3000 };

typedef struct mesh_case {
    dti_mesh mesh;
    uint32_t firsts[MESH_RANKS + 1];
    int ranks[MESH_RANKS];
    dti_mesh_place at[MESH_MOST];
    uint32_t owner[MESH_MOST], size;
} mesh_case;

static uint32_t mesh_draw(uint32_t *seed, uint32_t below) {
    *seed = *seed * 1664525u + 1013904223u;
    return (uint32_t)(((uint64_t)*seed * below) >> 32);
}

/* A mesh of at most 4 x 4 x 4, on ranks with different numbers of devices, each at least one. */
static void mesh_make(mesh_case *c, uint32_t *seed) {
    const uint32_t data = 1 + mesh_draw(seed, 4), stages = 1 + mesh_draw(seed, 4),
                   tensor = 1 + mesh_draw(seed, 4);
    const uint32_t each = tensor % 2 == 0 && mesh_draw(seed, 4) == 0 ? 2 : 1;
    int devices[MESH_RANKS];
    *c = (mesh_case){.size = data * stages * tensor};
    const uint32_t all = c->size / each, world = 1 + mesh_draw(seed, DTI_MIN(all, MESH_RANKS + 0u));
    for (uint32_t r = 0; r < world; r++)
        devices[r] = 1;
    for (uint32_t i = world; i < all; i++)
        devices[mesh_draw(seed, world)]++;
    c->mesh = (dti_mesh){.stages = stages,
                         .tensor = tensor,
                         .rank = mesh_draw(seed, world),
                         .world = world,
                         .firsts = c->firsts,
                         .ranks = c->ranks};
    dti_mesh_fill(&c->mesh, devices, each);
    CHECK(c->mesh.data == data);
    uint32_t p = 0;
    for (uint32_t d = 0; d < data; d++)
        for (uint32_t s = 0; s < stages; s++)
            for (uint32_t t = 0; t < tensor; t++)
                c->at[p++] = (dti_mesh_place){d, s, t};
    p = 0;
    for (uint32_t r = 0; r < world; r++)
        for (uint32_t i = 0; i < (uint32_t)devices[r] * each; i++)
            c->owner[p++] = r;
}

TEST(every_position_of_a_mesh_has_its_coordinates_and_one_rank) {
    uint32_t seed = 1;
    for (int k = 0; k < MESH_RANDOM; k++) {
        mesh_case c;
        mesh_make(&c, &seed);
        CHECK(dti_mesh_size(&c.mesh) == c.size);
        for (uint32_t p = 0; p < c.size; p++) {
            const dti_mesh_place at = dti_mesh_at(&c.mesh, p);
            CHECK(!memcmp(&at, &c.at[p], sizeof at));
            CHECK(dti_mesh_position(&c.mesh, at) == p);
            CHECK(dti_mesh_rank(&c.mesh, p) == c.owner[p]);
        }
        for (uint32_t r = 0; r < c.mesh.world; r++) {
            const dt_comm_span own = dti_mesh_own(&c.mesh, r);
            for (uint32_t p = 0; p < c.size; p++)
                CHECK((p - own.first < own.count) == (c.owner[p] == r));
        }
    }
}

/* Whether two positions differ in that coordinate at most. */
static bool mesh_is_along(dti_mesh_axis axis, dti_mesh_place a, dti_mesh_place b) {
    return (axis == DTI_MESH_DATA || a.data == b.data) &&
           (axis == DTI_MESH_STAGE || a.stage == b.stage) &&
           (axis == DTI_MESH_TENSOR || a.tensor == b.tensor);
}

/* Positions of a line by looking at all, their ranks each once, and how many each rank has. */
static void mesh_check_line(const mesh_case *c, dti_mesh_axis axis, uint32_t position) {
    const dti_mesh_line line = dti_mesh_along(&c->mesh, axis, position);
    uint32_t count = 0, counts[MESH_RANKS] = {0}, before[MESH_RANKS], ranks = 0;
    int got[MESH_RANKS];
    bool even = true;
    const int found = dti_mesh_ranks(&c->mesh, line, got);
    for (uint32_t p = 0; p < c->size; p++) {
        if (!mesh_is_along(axis, c->at[position], c->at[p]))
            continue;
        const uint32_t owner = c->owner[p];
        CHECK(line.first + count * line.step == p);
        if (!counts[owner]++) {
            CHECK((int)ranks < found && got[ranks] == (int)owner);
            before[owner] = count;
            ranks++;
        }
        count++;
    }
    CHECK(count == line.count && (int)ranks == found);
    for (uint32_t r = 0; r < c->mesh.world; r++) {
        const dt_comm_span share = dti_mesh_share(&c->mesh, line, r);
        CHECK(share.count == counts[r] && (!share.count || share.first == before[r]));
        even = even && (!counts[r] || counts[r] == counts[got[0]]);
    }
    CHECK(dti_mesh_is_within(&c->mesh, line) == (ranks == 1));
    CHECK(dti_mesh_is_even(&c->mesh, line) == even);
}

TEST(an_axis_of_a_mesh_has_its_positions_and_each_of_their_ranks_once) {
    uint32_t seed = 2;
    for (int k = 0; k < MESH_RANDOM; k++) {
        mesh_case c;
        mesh_make(&c, &seed);
        for (uint32_t p = 0; p < c.size; p++)
            for (int axis = DTI_MESH_DATA; axis <= DTI_MESH_TENSOR; axis++)
                mesh_check_line(&c, (dti_mesh_axis)axis, p);
    }
}

/* Any two positions, as chunks of a pipeline are that send to each other. */
TEST(two_positions_of_a_mesh_have_the_ranks_of_the_two) {
    uint32_t seed = 3;
    for (int k = 0; k < MESH_RANDOM; k++) {
        mesh_case c;
        mesh_make(&c, &seed);
        const uint32_t a = mesh_draw(&seed, c.size), b = mesh_draw(&seed, c.size);
        if (c.owner[a] == c.owner[b])
            continue;
        const dti_mesh_line line = dti_mesh_pair(a, b);
        int ranks[MESH_RANKS];
        CHECK(dti_mesh_ranks(&c.mesh, line, ranks) == 2);
        CHECK(ranks[0] == (int)DTI_MIN(c.owner[a], c.owner[b]));
        CHECK(ranks[1] == (int)DTI_MAX(c.owner[a], c.owner[b]));
    }
}

/* Replicas and stages of which a rank has a position, and the batch slices of those replicas. */
TEST(a_rank_of_a_mesh_has_the_batch_slices_of_its_replicas) {
    uint32_t seed = 4;
    for (int k = 0; k < MESH_RANDOM; k++) {
        mesh_case c;
        mesh_make(&c, &seed);
        const uint32_t all = c.mesh.data + mesh_draw(&seed, 20), stages = c.mesh.stages;
        const dti_partition job = {.replicas = c.mesh.data, .batch_slices = all};
        for (uint32_t r = 0; r < c.mesh.world; r++) {
            const dt_comm_span replicas = dti_mesh_replicas(&c.mesh, r),
                               groups = dti_mesh_rows(&c.mesh, r, c.mesh.tensor),
                               slices = dti_mesh_batch_slices(&c.mesh, all, replicas);
            bool has[MESH_MOST] = {0}, row[MESH_MOST] = {0};
            for (uint32_t p = 0; p < c.size; p++) {
                has[c.at[p].data] |= c.owner[p] == r;
                row[c.at[p].data * stages + c.at[p].stage] |= c.owner[p] == r;
            }
            for (uint32_t q = 0; q < c.mesh.data * stages; q++)
                CHECK(row[q] == (q - groups.first < groups.count));
            for (uint32_t d = 0; d < c.mesh.data; d++) {
                uint32_t first, end;
                dti_partition_batch_slices(&job, d, &first, &end);
                CHECK(has[d] == (d - replicas.first < replicas.count));
                for (uint32_t i = first; i < end; i++)
                    CHECK((i - slices.first < slices.count) == has[d]);
            }
        }
    }
}
