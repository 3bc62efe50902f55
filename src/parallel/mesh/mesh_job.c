/* The mesh of a job that runs: its devices, comm groups along its axes, and the log of it. It
 * refuses devices that form no mesh. */

static dt_result dti_mesh_open(dti_parallel *par) {
    dti_mesh *mesh = &par->mesh;
    par->now = par->steps;
    mesh->stages = DTI_MAX(par->desc.stages, 1u);
    mesh->tensor = DTI_MAX(par->desc.tensor, 1u);
    mesh->firsts = dti_alloc_array(par->base, mesh->world + 1u, sizeof *mesh->firsts);
    mesh->ranks = dti_alloc_array(par->base, mesh->world, sizeof *mesh->ranks);
    return mesh->firsts && mesh->ranks ? DT_OK : DT_ERROR_MEMORY;
}

static dt_result dti_mesh_count(dti_parallel *par) {
    int *devices = par->mesh.ranks;
    dt_result result = DT_OK;
    if (par->desc.comm)
        result = dti_parallel_comm_failed(
            par, dt_comm_all_gather(par->desc.comm, &par->job.local, devices, 1, DT_I32));
    else
        devices[0] = (int)par->job.local;
    if (!result)
        dti_mesh_fill(&par->mesh, devices, par->desc.slices);
    return result;
}

typedef struct dti_mesh_name {
    char text[64];
} dti_mesh_name;

/* The split of a replica: "2 stages x 3 tensor ranks". */
static dti_mesh_name dti_mesh_text(uint32_t stages, uint32_t tp_ranks) {
    dti_mesh_name name = {""};
    if (stages > 1 && tp_ranks)
        snprintf(name.text, sizeof name.text, "%u stages x %u tensor ranks", stages, tp_ranks);
    else
        snprintf(name.text, sizeof name.text, "%u %s", tp_ranks ? tp_ranks : DTI_MAX(stages, 1u),
                 tp_ranks ? "tensor ranks" : "stages");
    return name;
}

static dt_result dti_mesh_fits(dti_parallel *par, uint32_t data) {
    const dti_mesh *mesh = &par->mesh;
    const uint32_t each = par->desc.slices, all = dti_mesh_size(mesh) / each,
                   across = mesh->stages * mesh->tensor / each;
    const uint32_t want = data ? data : all / across;
    if (want && want * (uint64_t)across == all)
        return DT_OK;
    return dti_fail(par->base, DT_ERROR_INVALID,
                    "a grid of %u replicas x %s needs %llu devices, but the .devices of the job's "
                    "%u rank%s name%s %u",
                    DTI_MAX(want, 1u),
                    dti_mesh_text(par->desc.stages, par->desc.tensor / each).text,
                    (unsigned long long)DTI_MAX(want, 1u) * (unsigned long long)across, mesh->world,
                    mesh->world == 1 ? "" : "s", mesh->world == 1 ? "s" : "", all);
}

static void dti_mesh_cut(dti_parallel *par) {
    const dti_mesh *mesh = &par->mesh;
    const dt_comm_span own =
        dti_mesh_batch_slices(mesh, par->job.batch_slices, dti_mesh_replicas(mesh, mesh->rank));
    par->first_batch_slice = own.first;
    par->batch_slices = own.count;
}

static dt_comm_span dti_mesh_slices_of(const dti_parallel *par, uint32_t position) {
    const dti_mesh *mesh = &par->mesh;
    const dti_mesh_line line = dti_mesh_along(mesh, DTI_MESH_DATA, position);
    return dti_mesh_batch_slices(mesh, par->job.batch_slices,
                                 dti_mesh_share(mesh, line, mesh->rank));
}

static dti_subtrees dti_mesh_subtrees(const dti_parallel *par, dti_mesh_line line, uint32_t rank) {
    const dt_comm_span own = dti_mesh_batch_slices(&par->mesh, par->job.batch_slices,
                                                   dti_mesh_share(&par->mesh, line, rank));
    return dti_partition_subtrees(&par->job, own.first, own.first + own.count);
}

/* ---- comm groups */

static dt_result dti_mesh_leaves(dti_parallel *par, dt_comm *comm, dt_comm_span own,
                                 uint32_t total) {
    return dti_parallel_comm_failed(par,
                                    dt_comm_set_leaves(comm, own.first, own.count, total, NULL,
                                                       (dt_comm_span[DTI_SUBTREES_MAX]){{0, 0}}));
}

static dt_result dti_mesh_line_group(dti_parallel *par, dti_mesh_line line, dt_comm **out) {
    int *ranks = par->mesh.ranks;
    const int count = dti_mesh_ranks(&par->mesh, line, ranks);
    return dti_parallel_comm_failed(par, dt_comm_group_create(par->desc.comm, ranks, count, out));
}

static dt_result dti_mesh_group(dti_parallel *par, dti_mesh_axis axis, uint32_t position,
                                dt_comm **out) {
    const dti_mesh *mesh = &par->mesh;
    const dti_mesh_line line = dti_mesh_along(mesh, axis, position);
    if (dti_mesh_is_within(mesh, line))
        return DT_OK;
    dt_result result = dti_mesh_line_group(par, line, out);
    if (result || !*out)
        return result;
    if (axis == DTI_MESH_DATA)
        return dti_mesh_leaves(par, *out, dti_mesh_slices_of(par, position), par->job.batch_slices);
    return dti_mesh_leaves(par, *out, dti_mesh_share(mesh, line, mesh->rank), line.count);
}

/* ---- the log */

/* A position's replica, and which of its devices it is: "1.0", or of stages of tensor ranks
 * "1.0.2". */
static int dti_mesh_print(const dti_parallel *par, uint32_t p, char *to, size_t size) {
    const dti_mesh_place at = dti_mesh_at(&par->mesh, p);
    if (par->desc.stages > 1 && par->desc.tensor)
        return snprintf(to, size, " %u.%u.%u", at.data, at.stage, at.tensor);
    return snprintf(to, size, " %u.%u", at.data, at.stage * par->mesh.tensor + at.tensor);
}

/* All positions, rank by rank: "rank 0: 0.0 0.1, rank 1: 1.0 1.1". */
static void dti_mesh_log(const dti_parallel *par) {
    const dti_mesh *mesh = &par->mesh;
    const bool stages = par->desc.stages > 1, tp = par->desc.tensor > 0;
    char text[600] = "";
    size_t at = 0;
    for (uint32_t p = 0; p < dti_mesh_size(mesh); p++) {
        const uint32_t rank = dti_mesh_rank(mesh, p);
        const bool begins = p == mesh->firsts[rank];
        int n =
            begins ? snprintf(text + at, sizeof text - at, "%srank %u:", p ? ", " : "", rank) : 0;
        at += n > 0 && at + (size_t)n < sizeof text ? (size_t)n : 0;
        n = dti_mesh_print(par, p, text + at, sizeof text - at);
        at += n > 0 && at + (size_t)n < sizeof text ? (size_t)n : 0;
    }
    dti_log(par->base, DT_LOG_INFO, "%s: a grid of %u replicas x %s (replica%s%s): %s",
            stages ? "pipeline" : "tensor", mesh->data,
            dti_mesh_text(par->desc.stages, par->desc.tensor).text, stages ? ".stage" : "",
            tp ? ".tensor_rank" : "", text);
}
