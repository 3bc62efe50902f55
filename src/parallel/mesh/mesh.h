/* The mesh of a job: its positions as replicas x stages x tensor ranks. Position p is tensor rank t
 * of stage s of replica d: p = (d * stages + s) * tensor + t. So tensor ranks of a stage are
 * neighbours, and then the stages of a replica. A rank has consecutive positions, in the order of
 * ranks: one for each of its devices, or with .tensor_slices several. A job without pipelines and
 * tensor groups has a position for each replica. The mesh has only numbers, which are the same on
 * all ranks.
 *
 * The files of this folder in the order in which to read them:
 *
 *   mesh.c                         positions and axes
 *   mesh_job.c                     the mesh of a job that runs: devices, comm groups
 *   partition.h, partition.c       the rows of each replica
 *   agree.c                        what all ranks must have in common
 *   replicas.c                     the devices of a process, each with a store
 *   device_team.h, device_team.c   a thread for each device */

typedef struct dti_mesh {
    uint32_t data, stages, tensor; /* replicas, stages of each, tensor ranks of each stage */
    uint32_t rank, world;          /* this process's; of the job */
    uint32_t *firsts; /* [world + 1]: the first position of each rank, and the number of all */
    int *ranks;       /* [world]: room for those of a group */
} dti_mesh;

typedef enum dti_mesh_axis { DTI_MESH_DATA, DTI_MESH_STAGE, DTI_MESH_TENSOR } dti_mesh_axis;

typedef struct dti_mesh_place { /* a position's coordinates */
    uint32_t data, stage, tensor;
} dti_mesh_place;

typedef struct dti_mesh_line { /* positions first, first + step, ... */
    uint32_t first, step, count;
} dti_mesh_line;

/* Sets firsts and data. devices: the number of each rank, of `each` positions; the other members
 * are set. */
static void dti_mesh_fill(dti_mesh *mesh, const int *devices, uint32_t each);
static uint32_t dti_mesh_size(const dti_mesh *mesh); /* positions of the job */
static dti_mesh_place dti_mesh_at(const dti_mesh *mesh, uint32_t position);
static uint32_t dti_mesh_position(const dti_mesh *mesh, dti_mesh_place at);
static uint32_t dti_mesh_rank(const dti_mesh *mesh, uint32_t position);
static dt_comm_span dti_mesh_own(const dti_mesh *mesh, uint32_t rank); /* positions of a rank */
/* The rows of `each` positions of which a rank has some. */
static dt_comm_span dti_mesh_rows(const dti_mesh *mesh, uint32_t rank, uint32_t each);
static dt_comm_span dti_mesh_replicas(const dti_mesh *mesh, uint32_t rank);
/* Batch slices that replicas `replicas` compute. */
static dt_comm_span dti_mesh_batch_slices(const dti_mesh *mesh, uint32_t batch_slices,
                                          dt_comm_span replicas);

/* The line of positions along an axis, through a position. */
static dti_mesh_line dti_mesh_along(const dti_mesh *mesh, dti_mesh_axis axis, uint32_t position);
static dti_mesh_line dti_mesh_pair(uint32_t a, uint32_t b); /* of two positions */
/* The positions of a line that a rank has. */
static dt_comm_span dti_mesh_share(const dti_mesh *mesh, dti_mesh_line line, uint32_t rank);
/* The ranks that have some of these positions, in order, each once. Returns their number. */
static int dti_mesh_ranks(const dti_mesh *mesh, dti_mesh_line line, int *ranks);
static bool dti_mesh_is_within(const dti_mesh *mesh, dti_mesh_line line); /* one process */
/* Whether all ranks that have positions of a line have the same number. */
static bool dti_mesh_is_even(const dti_mesh *mesh, dti_mesh_line line);
