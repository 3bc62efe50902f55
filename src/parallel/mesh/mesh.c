/* The positions of devices and ranks: see mesh.h. */

static void dti_mesh_fill(dti_mesh *mesh, const int *devices, uint32_t each) {
    for (uint32_t rank = 0; rank < mesh->world; rank++)
        mesh->firsts[rank + 1] = mesh->firsts[rank] + (uint32_t)devices[rank] * each;
    mesh->data = dti_mesh_size(mesh) / (mesh->stages * mesh->tensor);
}

static uint32_t dti_mesh_size(const dti_mesh *mesh) {
    return mesh->firsts[mesh->world];
}

static dti_mesh_place dti_mesh_at(const dti_mesh *mesh, uint32_t position) {
    const uint32_t row = position / mesh->tensor;
    return (dti_mesh_place){row / mesh->stages, row % mesh->stages, position % mesh->tensor};
}

static uint32_t dti_mesh_position(const dti_mesh *mesh, dti_mesh_place at) {
    return (at.data * mesh->stages + at.stage) * mesh->tensor + at.tensor;
}

static uint32_t dti_mesh_rank(const dti_mesh *mesh, uint32_t position) {
    uint32_t rank = 0;
    while (mesh->firsts[rank + 1] <= position)
        rank++;
    return rank;
}

static dt_comm_span dti_mesh_own(const dti_mesh *mesh, uint32_t rank) {
    return (dt_comm_span){mesh->firsts[rank], mesh->firsts[rank + 1] - mesh->firsts[rank]};
}

static dt_comm_span dti_mesh_rows(const dti_mesh *mesh, uint32_t rank, uint32_t each) {
    const uint32_t first = mesh->firsts[rank] / each, last = (mesh->firsts[rank + 1] - 1) / each;
    return (dt_comm_span){first, last - first + 1};
}

static dt_comm_span dti_mesh_replicas(const dti_mesh *mesh, uint32_t rank) {
    return dti_mesh_rows(mesh, rank, mesh->stages * mesh->tensor);
}

static dt_comm_span dti_mesh_batch_slices(const dti_mesh *mesh, uint32_t batch_slices,
                                          dt_comm_span replicas) {
    const dti_partition job = {.replicas = mesh->data, .batch_slices = batch_slices};
    const uint32_t first = dti_partition_begin(&job, replicas.first);
    return (dt_comm_span){first,
                          dti_partition_begin(&job, replicas.first + replicas.count) - first};
}

/* ---- along an axis */

static dti_mesh_line dti_mesh_along(const dti_mesh *mesh, dti_mesh_axis axis, uint32_t position) {
    dti_mesh_place at = dti_mesh_at(mesh, position);
    uint32_t *const along[] = {&at.data, &at.stage, &at.tensor};
    const uint32_t counts[] = {mesh->data, mesh->stages, mesh->tensor},
                   steps[] = {mesh->stages * mesh->tensor, mesh->tensor, 1};
    *along[axis] = 0;
    return (dti_mesh_line){dti_mesh_position(mesh, at), steps[axis], counts[axis]};
}

static dti_mesh_line dti_mesh_pair(uint32_t a, uint32_t b) {
    const uint32_t first = DTI_MIN(a, b);
    return (dti_mesh_line){first, DTI_MAX(a, b) - first, 2};
}

/* The number of positions of a line before a position. */
static uint32_t dti_mesh_before(dti_mesh_line line, uint32_t position) {
    const uint32_t beyond = position > line.first ? position - line.first : 0;
    return DTI_MIN((beyond + line.step - 1) / line.step, line.count);
}

static dt_comm_span dti_mesh_share(const dti_mesh *mesh, dti_mesh_line line, uint32_t rank) {
    const uint32_t first = dti_mesh_before(line, mesh->firsts[rank]);
    return (dt_comm_span){first, dti_mesh_before(line, mesh->firsts[rank + 1]) - first};
}

static int dti_mesh_ranks(const dti_mesh *mesh, dti_mesh_line line, int *ranks) {
    int count = 0;
    for (uint32_t rank = 0; rank < mesh->world; rank++) {
        if (dti_mesh_share(mesh, line, rank).count)
            ranks[count++] = (int)rank;
    }
    return count;
}

static bool dti_mesh_is_within(const dti_mesh *mesh, dti_mesh_line line) {
    return dti_mesh_share(mesh, line, dti_mesh_rank(mesh, line.first)).count == line.count;
}

static bool dti_mesh_is_even(const dti_mesh *mesh, dti_mesh_line line) {
    const uint32_t first = dti_mesh_share(mesh, line, dti_mesh_rank(mesh, line.first)).count;
    bool even = true;
    for (uint32_t rank = 0; rank < mesh->world; rank++) {
        const uint32_t count = dti_mesh_share(mesh, line, rank).count;
        even = even && (!count || count == first);
    }
    return even;
}
