/* Reading the environment: the source of its values, the known launchers, and the findings so far.
 * env_value.c reads single variables, launcher.c finds the launcher, env.c makes a desc of it. */

/* X(id, name for DTRAIN_LAUNCHER, rank, world size, local rank, local size); the order is the
 * precedence. PMIx has its size in its store, Slurm its local size in a list; "" = none. */
#define DTI_LAUNCHER_LIST(X)                                                                       \
    X(DTRAIN, "dtrain", "DTRAIN_RANK", "DTRAIN_WORLD_SIZE", "DTRAIN_LOCAL_RANK",                   \
      "DTRAIN_LOCAL_SIZE")                                                                         \
    X(TORCH, "torch", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")                      \
    X(OMPI, "ompi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",  \
      "OMPI_COMM_WORLD_LOCAL_SIZE")                                                                \
    X(PMIX, "pmix", "PMIX_RANK", "", "", "")                                                       \
    X(PMI, "pmi", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")                    \
    X(SLURM, "slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "")                 \
    X(PET, "k8s", "PET_NODE_RANK", "PET_NNODES", "", "")                                           \
    X(INDEX, "k8s", "JOB_COMPLETION_INDEX", "DTRAIN_WORLD_SIZE", "", "")

enum {
#define DTI_X(id, name, rank, size, local_rank, local_size) DTI_LAUNCHER_##id,
    DTI_LAUNCHER_LIST(DTI_X)
#undef DTI_X
        DTI_LAUNCHER_COUNT
};

static const struct dti_launcher_names {
    const char *name, *rank, *size, *local_rank, *local_size;
} dti_launchers[] = {
#define DTI_X(id, name, rank, size, local_rank, local_size)                                        \
    {name, rank, size, local_rank, local_size},
    DTI_LAUNCHER_LIST(DTI_X)
#undef DTI_X
};

/* More ranks than this are a mistake. */
#define DTI_WORLD_MAX (1 << 20)

/* The source of values; tests and fuzzing have their own. */
typedef struct dti_env {
    const char *(*get)(void *user, const char *name); /* NULL: not set */
    bool (*pmix_loads)(void *user);
    bool (*pmix_job)(void *user, uint32_t *rank, uint32_t *size);
    /* Up to `room` bytes, -1 = cannot; NULL: descriptors are not read. */
    int (*descriptor_read)(void *user, int descriptor, char *to, size_t room);
    void *user;
} dti_env;

typedef struct dti_launched { /* a launcher's set; -1 = not said */
    int64_t rank, size, local_rank, local_size;
    bool complete;
} dti_launched;

typedef struct dti_env_reader {
    const dti_env *env;
    dt_comm_desc desc;
    dti_launched launch[DTI_LAUNCHER_COUNT];
    bool failed;
} dti_env_reader;
