/* Settings from environment variables, host lists, keys and PMI. The environments of Open MPI
 * 4.1.4, MPICH 4.0.2 (Hydra) and Slurm 22.05 were recorded on one host. The others follow the
 * launchers' sources (docs/distributed/jobs.md names them). Variables without effect are not there.
 */
#include <sys/wait.h>

/* ---- environments that are lists of "NAME=value" */

typedef struct env_case {
    const char *const *lines;
    bool pmix_loads;
    uint32_t pmix_rank, pmix_size; /* size 0: PMIx does not answer */
    const char *descriptor;        /* what each descriptor holds; NULL = not open */
    int pmix_asked;
} env_case;

static const char *env_get(void *user, const char *name) {
    const env_case *c = user;
    size_t size = strlen(name);
    for (const char *const *line = c->lines; *line; line++)
        if (!strncmp(*line, name, size) && (*line)[size] == '=')
            return *line + size + 1;
    return NULL;
}

static bool env_pmix_loads(void *user) {
    return ((env_case *)user)->pmix_loads;
}

static bool env_pmix_job(void *user, uint32_t *rank, uint32_t *size) {
    env_case *c = user;
    c->pmix_asked++;
    *rank = c->pmix_rank;
    *size = c->pmix_size;
    return c->pmix_size > 0;
}

static int env_descriptor(void *user, int descriptor, char *to, size_t room) {
    const env_case *c = user;
    size_t size = c->descriptor ? DTI_MIN(strlen(c->descriptor), room) : 0;
    (void)descriptor;
    if (!c->descriptor)
        return -1;
    memcpy(to, c->descriptor, size);
    return (int)size;
}

static dt_comm_desc env_read_case(env_case *c) {
    dti_env env = {env_get, env_pmix_loads, env_pmix_job, env_descriptor, c};
    dt_comm_desc desc = dti_env_read(&env);
    for (const char *at = desc.error; *at; at++)
        CHECK((unsigned char)*at >= 0x20 && (unsigned char)*at < 0x7F);
    return desc;
}

#define ENV(...)                                                                                   \
    env_read_case(                                                                                 \
        &(env_case){.lines = (const char *const[]){__VA_ARGS__, NULL}, .pmix_loads = true})

/* A desc that came from `launcher` and says these. */
static void check_place(const dt_comm_desc *d, const char *launcher, int rank, int size,
                        int local_rank, int local_size, const char *rendezvous) {
    CHECK_STR(d->error, "");
    CHECK_STR(d->launcher, launcher);
    CHECK(d->rank == rank && d->world_size == size);
    CHECK(d->local_rank == local_rank && d->local_size == local_size);
    CHECK_STR(d->rendezvous, rendezvous);
}

#define CHECK_ERROR(desc, ...)                                                                     \
    do {                                                                                           \
        dt_comm_desc in_desc = (desc);                                                             \
        const char *in_parts[] = {__VA_ARGS__};                                                    \
        for (size_t in_i = 0; in_i < DTI_COUNT(in_parts); in_i++)                                  \
            CHECK_CONTAINS(in_desc.error, in_parts[in_i]);                                         \
    } while (0)

#define TORCHRUN                                                                                   \
    "GROUP_RANK=1", "ROLE_RANK=3", "ROLE_NAME=default", "GROUP_WORLD_SIZE=2", "ROLE_WORLD_SIZE=4", \
        "TORCHELASTIC_RESTART_COUNT=2", "TORCHELASTIC_MAX_RESTARTS=3",                             \
        "TORCHELASTIC_RUN_ID=abc-1", "OMP_NUM_THREADS=1", "TORCH_NCCL_ASYNC_ERROR_HANDLING=1",     \
        "RANK=3", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2", "WORLD_SIZE=4", "MASTER_ADDR=node0",       \
        "MASTER_PORT=29500"
#define MPIRUN4                                                                                    \
    "OMPI_APP_CTX_NUM_PROCS=2", "OMPI_COMM_WORLD_LOCAL_RANK=1", "OMPI_COMM_WORLD_LOCAL_SIZE=2",    \
        "OMPI_COMM_WORLD_NODE_RANK=1", "OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=2",         \
        "OMPI_MCA_ess_base_jobid=589824001", "OMPI_MCA_orte_num_nodes=1",                          \
        "OMPI_MCA_orte_hnp_uri=589824000.0;tcp://192.0.2.2:33007;tcp6://[fd00::2]:53017",          \
        "OMPI_UNIVERSE_SIZE=2", "PMIX_HOSTNAME=vm", "PMIX_NAMESPACE=589824001", "PMIX_RANK=1",     \
        "PMIX_SECURITY_MODE=native", "PMIX_SERVER_URI3=589824000.0;tcp4://127.0.0.1:58887"
#define HYDRA                                                                                      \
    "MPIR_CVAR_CH3_INTERFACE_HOSTNAME=vm", "MPI_LOCALNRANKS=2", "MPI_LOCALRANKID=1", "PMI_RANK=1", \
        "PMI_FD=8", "PMI_SIZE=2"
#define SRUN_STEP(RANK, LOCAL, NODE, SIZE, NODES, LIST, TASKS)                                     \
    "SLURM_PROCID=" RANK, "SLURM_LOCALID=" LOCAL, "SLURM_NODEID=" NODE, "SLURM_NTASKS=" SIZE,      \
        "SLURM_NPROCS=" SIZE, "SLURM_STEP_NUM_TASKS=" SIZE, "SLURM_STEP_NUM_NODES=" NODES,         \
        "SLURM_STEP_NODELIST=" LIST, "SLURM_STEP_TASKS_PER_NODE=" TASKS, "SLURM_JOB_ID=1234",      \
        "SLURM_JOBID=1234", "SLURM_STEP_ID=5", "SLURM_STEPID=5", "SLURM_JOB_NODELIST=gpu[01-09]",  \
        "SLURM_LAUNCH_NODE_IPADDR=127.0.0.1", "SLURM_SRUN_COMM_HOST=127.0.0.1",                    \
        "SLURM_TASK_PID=20551"
#define SRUN SRUN_STEP("3", "1", "1", "5", "2", "gpu[07-08]", "2,3")
#define SBATCH                                                                                     \
    "SLURM_PROCID=0", "SLURM_LOCALID=0", "SLURM_NODEID=0", "SLURM_NTASKS=2", "SLURM_NPROCS=2",     \
        "SLURM_JOB_ID=4", "SLURM_JOB_NODELIST=vm", "SLURM_NODELIST=vm", "SLURM_TASKS_PER_NODE=2",  \
        "SLURM_GTIDS=0", "SLURM_TASK_PID=20657"
#define PYTORCH_JOB(SIZE, EACH)                                                                    \
    "MASTER_ADDR=job-master-0", "MASTER_PORT=23456", "WORLD_SIZE=" SIZE, "RANK=1",                 \
        "PET_MASTER_ADDR=job-master-0", "PET_MASTER_PORT=23456", "PET_NNODES=2",                   \
        "PET_NODE_RANK=1", "PET_NPROC_PER_NODE=" EACH, "PYTHONUNBUFFERED=1"
#define TRAINER_V2(NODES, EACH)                                                                    \
    "PET_NNODES=" NODES, "PET_NPROC_PER_NODE=" EACH, "PET_NODE_RANK=1",                            \
        "PET_MASTER_ADDR=job-node-0-0.job", "PET_MASTER_PORT=29500", "JOB_COMPLETION_INDEX=1"
#define RAY                                                                                        \
    "RANK=1", "LOCAL_RANK=1", "WORLD_SIZE=2", "LOCAL_WORLD_SIZE=2", "NODE_RANK=0",                 \
        "MASTER_ADDR=10.0.0.4", "MASTER_PORT=41233"
#define HOROVOD                                                                                    \
    "HOROVOD_RANK=1", "HOROVOD_SIZE=2", "HOROVOD_LOCAL_RANK=1", "HOROVOD_LOCAL_SIZE=2",            \
        "HOROVOD_CROSS_RANK=0", "HOROVOD_CROSS_SIZE=1", "HOROVOD_HOSTNAME=vm",                     \
        "HOROVOD_GLOO_RENDEZVOUS_ADDR=127.0.0.1", "HOROVOD_GLOO_RENDEZVOUS_PORT=12345"

TEST(env_with_nothing_is_a_single_process) {
    dt_comm_desc d = ENV("PATH=/bin", "RANKS=3", "XRANK=1");
    check_place(&d, "", 0, 1, 0, 0, "");
    d = ENV("RANK=", "WORLD_SIZE="); /* empty ones count as missing */
    check_place(&d, "", 0, 1, 0, 0, "");
    d = ENV(HOROVOD); /* not one of ours */
    check_place(&d, "", 0, 1, 0, 0, "");
}

TEST(env_reads_the_variables_of_dtrain) {
    dt_comm_desc d =
        ENV("DTRAIN_RANK=2", "DTRAIN_WORLD_SIZE=4", "DTRAIN_LOCAL_RANK=0", "DTRAIN_LOCAL_SIZE=2",
            "DTRAIN_RDZV=tcp://[fd00::1]:99", "DTRAIN_JOB=mine", "DTRAIN_ATTEMPT=7",
            "DTRAIN_IFNAME=eth,^docker", "DTRAIN_PORT_RANGE=4000-4100", "DTRAIN_TIMEOUT=60",
            "DTRAIN_SILENCE=3", "DTRAIN_CONGESTION=reno", "DTRAIN_WINDOW=16",
            "DTRAIN_SECRET_FILE=/run/secrets/key", "DTRAIN_LINK=50000,125000000,2000");
    check_place(&d, "dtrain", 2, 4, 0, 2, "tcp://[fd00::1]:99");
    CHECK(!strcmp(d.job, "mine") && d.attempt == 7);
    CHECK(!strcmp(d.interfaces, "eth,^docker") && d.port_low == 4000 && d.port_high == 4100);
    CHECK(d.join_timeout_ms == 60000 && d.silence_ms == 3000);
    CHECK(!strcmp(d.congestion, "reno") && d.window == 16);
    CHECK_ERROR(ENV("DTRAIN_WINDOW=65"), "DTRAIN_WINDOW");
    CHECK(d.link.latency_ns == 50000 && d.link.bytes_per_s == 125000000 &&
          d.link.message_ns == 2000 && !d.no_link);
    CHECK(ENV("DTRAIN_LINK=off").no_link && ENV("DTRAIN_LINK=1,1000").link.message_ns == 0);
    CHECK(!strcmp(d.key_file, "/run/secrets/key") && !d.key[0] && !d.insecure);
    d = ENV("DTRAIN_INSECURE=1", "DTRAIN_RANK=0", "DTRAIN_WORLD_SIZE=1");
    CHECK(d.insecure);
    check_place(&d, "dtrain", 0, 1, 0, 0, "");
    CHECK(d.integrity == DT_COMM_CRC);
    d = ENV("DTRAIN_INTEGRITY=tls", "DTRAIN_TLS_CA=/c/ca.pem", "DTRAIN_TLS_CERT=/c/a.pem",
            "DTRAIN_TLS_KEY=/c/a.key", "DTRAIN_TLS_NAME=job.example");
    CHECK(d.integrity == DT_COMM_TLS && !strcmp(d.tls_ca, "/c/ca.pem"));
    CHECK(!strcmp(d.tls_certificate, "/c/a.pem") && !strcmp(d.tls_private_key, "/c/a.key"));
    CHECK(!strcmp(d.tls_name, "job.example"));
    CHECK_ERROR(ENV("DTRAIN_INTEGRITY=crc32"), "crc32", "crc, mac, tls or none");
    CHECK(ENV("DTRAIN_SHARED_MEMORY=off").shared_memory == DT_COMM_SHARED_OFF);
    CHECK(ENV("DTRAIN_SHARED_MEMORY=required").shared_memory == DT_COMM_SHARED_REQUIRED);
    CHECK(ENV("DTRAIN_SHARED_MEMORY=default").shared_memory == DT_COMM_SHARED_DEFAULT);
    CHECK_ERROR(ENV("DTRAIN_SHARED_MEMORY=1"), "DTRAIN_SHARED_MEMORY is \"1\"", "off or required");
}

TEST(env_reads_the_variables_of_torchrun) {
    dt_comm_desc d = ENV(TORCHRUN, "TORCHELASTIC_USE_AGENT_STORE=False");
    check_place(&d, "torch", 3, 4, 1, 2, "tcp://node0:29500");
    CHECK(!strcmp(d.job, "abc-1") && d.attempt == 2);
    d = ENV(TORCHRUN, "TORCHELASTIC_USE_AGENT_STORE=True"); /* the agent listens there already */
    check_place(&d, "torch", 3, 4, 1, 2, "tcpstore://node0:29500");
    d = ENV(TORCHRUN, "TORCHELASTIC_USE_AGENT_STORE=True", "DTRAIN_PORT=31000");
    check_place(&d, "torch", 3, 4, 1, 2, "tcp://node0:31000");
    d = ENV(RAY);
    check_place(&d, "torch", 1, 2, 1, 2, "tcp://10.0.0.4:41233");
    d = ENV("RANK=0", "WORLD_SIZE=1"); /* a single process waits for no other */
    check_place(&d, "torch", 0, 1, 0, 0, "");
}

TEST(env_puts_brackets_around_ipv6_addresses) {
    dt_comm_desc d = ENV("RANK=0", "WORLD_SIZE=2", "MASTER_PORT=1", "MASTER_ADDR=fe80::1%eth0");
    check_place(&d, "torch", 0, 2, 0, 0, "tcp://[fe80::1%eth0]:1");
    d = ENV("RANK=0", "WORLD_SIZE=2", "MASTER_PORT=65535", "MASTER_ADDR=[::1]");
    check_place(&d, "torch", 0, 2, 0, 0, "tcp://[::1]:65535");
    CHECK_ERROR(ENV("RANK=0", "WORLD_SIZE=2", "MASTER_PORT=1", "MASTER_ADDR=a/b"), "MASTER_ADDR",
                "a/b");
    CHECK_ERROR(ENV("RANK=0", "WORLD_SIZE=2", "MASTER_PORT=0", "MASTER_ADDR=a"), "MASTER_PORT");
    CHECK_ERROR(ENV("RANK=0", "WORLD_SIZE=2", "MASTER_PORT=65536", "MASTER_ADDR=a"), "65535");
}

TEST(env_reads_the_variables_of_mpirun) {
    dt_comm_desc d = ENV(MPIRUN4);
    check_place(&d, "ompi", 1, 2, 1, 2, "pmix:");
    CHECK(!strcmp(d.job, "589824001"));
    d = ENV("OMPI_COMM_WORLD_LOCAL_RANK=1", "OMPI_COMM_WORLD_LOCAL_SIZE=2",
            "OMPI_COMM_WORLD_RANK=5", "OMPI_COMM_WORLD_SIZE=8", "OMPI_COMM_WORLD_NODE_RANK=1",
            "PRTE_LAUNCHED=1", "PMIX_NAMESPACE=prterun-n0-1@1", "PMIX_RANK=5"); /* 5.0 */
    check_place(&d, "ompi", 5, 8, 1, 2, "pmix:");
    env_case c = {.lines = (const char *const[]){MPIRUN4, NULL}}; /* no libpmix */
    d = env_read_case(&c);
    CHECK_CONTAINS(d.error, "mpirun -x DTRAIN_RDZV");
    c.lines = (const char *const[]){MPIRUN4, "MASTER_ADDR=n", "MASTER_PORT=7", NULL};
    d = env_read_case(&c);
    check_place(&d, "ompi", 1, 2, 1, 2, "tcp://n:7");
    CHECK(c.pmix_asked == 0);
    d = ENV(MPIRUN4, "DTRAIN_RDZV=file:///shared/x");
    check_place(&d, "ompi", 1, 2, 1, 2, "file:///shared/x");
    d = ENV(MPIRUN4, SBATCH); /* mpirun in a batch script */
    check_place(&d, "ompi", 1, 2, 1, 2, "pmix:");
}

TEST(env_of_pmix_asks_for_the_size) {
    const char *const lines[] = {"PMIX_NAMESPACE=prte-1", "PMIX_RANK=3", NULL};
    env_case c = {.lines = lines, .pmix_loads = true, .pmix_rank = 3, .pmix_size = 6};
    dt_comm_desc d = env_read_case(&c);
    check_place(&d, "pmix", 3, 6, 0, 0, "pmix:");
    CHECK(c.pmix_asked == 1 && !strcmp(d.job, "prte-1"));
    c.pmix_size = 0;
    CHECK_ERROR(env_read_case(&c), "PMIX_RANK", "size", "DTRAIN_RDZV");
    c.pmix_loads = false;
    c.pmix_size = 6;
    CHECK_ERROR(env_read_case(&c), "libpmix");
    c = (env_case){
        .lines = (const char *const[]){"PMIX_RANK=3", "PMIX_NAMESPACE=slurm.pmix.3.0", SRUN, NULL},
        .pmix_loads = true};
    d = env_read_case(&c); /* srun --mpi=pmix: the size is Slurm's */
    check_place(&d, "pmix", 3, 5, 1, 3, "pmix:");
    CHECK(c.pmix_asked == 0);
}

TEST(env_reads_the_variables_of_hydra_and_pmi) {
    dt_comm_desc d = ENV(HYDRA);
    check_place(&d, "pmi", 1, 2, 1, 2, "pmi:8");
    d = ENV(SRUN, "PMI_RANK=3", "PMI_SIZE=5", "PMI_FD=10", "PMI_JOBID=1234.5",
            "SLURM_MPI_TYPE=pmi2");
    check_place(&d, "pmi", 3, 5, 1, 3, "pmi:10");
    CHECK(!strcmp(d.job, "slurm-1234.5"));
    d = ENV(SRUN, "PMI_RANK=3", "PMI_SIZE=5"); /* cray's: no descriptor */
    check_place(&d, "pmi", 3, 5, 1, 3, "tcp://gpu07:62835+16");
    CHECK_ERROR(ENV("PMI_RANK=0", "PMI_SIZE=2"), "PMI_RANK", "DTRAIN_RDZV");
    CHECK_ERROR(ENV("PMI_ID=0", "PMI_PORT=a:1"), "PMI_RANK, PMI_SIZE");
    CHECK_ERROR(ENV("DTRAIN_RANK=0", "DTRAIN_WORLD_SIZE=2", "DTRAIN_RDZV=pmi:"), "PMI_FD");
    CHECK_ERROR(ENV("PMI_RANK=0", "PMI_SIZE=2", "PMI_FD=x"), "PMI_FD");
}

TEST(env_reads_the_variables_of_srun) {
    dt_comm_desc d = ENV(SRUN);
    check_place(&d, "slurm", 3, 5, 1, 3,
                "tcp://gpu07:62835+16"); /* 61440 + (1234 * 31 + 5) % 4096 */
    CHECK(!strcmp(d.job, "slurm-1234.5") && d.attempt == 0);
    d = ENV(SRUN, "SLURM_RESTART_COUNT=4", "DTRAIN_PORT=1111");
    check_place(&d, "slurm", 3, 5, 1, 3, "tcp://gpu07:1111");
    CHECK(d.attempt == 4);
    d = ENV(SRUN, "MASTER_ADDR=gpu08", "MASTER_PORT=12", "WORLD_SIZE=5"); /* of the batch script */
    check_place(&d, "slurm", 3, 5, 1, 3, "tcp://gpu08:12");
    d = ENV(SRUN_STEP("4", "0", "3", "5", "4", "a1,b[2-4]", "1,2(x1),1(x2)"));
    check_place(&d, "slurm", 4, 5, 0, 1, "tcp://a1:62835+16");
    d = ENV(SRUN_STEP("4", "0", "3", "5", "4", "a1,b[2-4]", "1,2(x,"));
    check_place(&d, "slurm", 4, 5, 0, 0, "tcp://a1:62835+16");
    CHECK_ERROR(ENV(SRUN_STEP("0", "0", "0", "2", "2", "a[1", "1(x2)")), "SLURM_STEP_NODELIST",
                "a[1");
    CHECK_ERROR(ENV("SLURM_PROCID=0", "SLURM_STEP_NUM_TASKS=2"), "SLURM_STEP_NODELIST",
                "DTRAIN_RDZV");
    CHECK_ERROR(ENV("SLURM_PROCID=0", "SLURM_STEP_NUM_TASKS=2", "SLURM_STEP_NODELIST=a"),
                "SLURM_JOB_ID");
    d = ENV("SLURM_PROCID=0", "SLURM_STEP_NUM_TASKS=1", "SLURM_NTASKS=1"); /* srun --pty */
    check_place(&d, "slurm", 0, 1, 0, 0, "");
}

TEST(env_of_a_batch_script_is_a_single_process_with_a_note) {
    dt_comm_desc d = ENV(SBATCH);
    check_place(&d, "", 0, 1, 0, 0, "");
    CHECK_CONTAINS(d.warning, "srun");
    CHECK_CONTAINS(d.warning, "SLURM_NTASKS is 2");
    d = ENV("SLURM_PROCID=0", "SLURM_NTASKS=1");
    CHECK(!d.warning[0]);
}

TEST(env_reads_the_variables_of_kubeflow) {
    dt_comm_desc d = ENV(PYTORCH_JOB("2", "1"));
    check_place(&d, "torch", 1, 2, 0, 1, "tcp://job-master-0:23456"); /* PET_* say one a pod */
    CHECK_ERROR(ENV(PYTORCH_JOB("8", "4")), "PET_NPROC_PER_NODE is 4", "torchrun --no-python",
                "nprocPerNode 1");
    /* torchrun in the pod has made ranks of it */
    d = ENV("RANK=5", "WORLD_SIZE=8", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=4", "GROUP_WORLD_SIZE=2",
            PYTORCH_JOB("8", "4"));
    check_place(&d, "torch", 5, 8, 1, 4, "tcp://job-master-0:23456");
    d = ENV("RANK=0", "WORLD_SIZE=2", "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=1", "GROUP_WORLD_SIZE=2",
            PYTORCH_JOB("2", "1")); /* torchrun may give pods other ranks */
    check_place(&d, "torch", 0, 2, 0, 1, "tcp://job-master-0:23456");
    d = ENV(TRAINER_V2("4", "auto"));
    check_place(&d, "k8s", 1, 4, 0, 1, "tcp://job-node-0-0.job:29500");
    d = ENV(TRAINER_V2("4", "1"), "DTRAIN_PORT=5");
    check_place(&d, "k8s", 1, 4, 0, 1, "tcp://job-node-0-0.job:5");
    CHECK_ERROR(ENV(TRAINER_V2("4", "8")), "PET_NPROC_PER_NODE is 8", "torchrun --no-python");
    CHECK_ERROR(ENV(TRAINER_V2("1:4", "1")), "PET_NNODES is 1:4", "torchrun --no-python");
}

TEST(env_reads_the_variables_of_an_indexed_job) {
    dt_comm_desc d = ENV("JOB_COMPLETION_INDEX=2", "DTRAIN_WORLD_SIZE=3",
                         "DTRAIN_RDZV=tcp://job-0.svc:29400", "HOSTNAME=job-2");
    check_place(&d, "k8s", 2, 3, 0, 0, "tcp://job-0.svc:29400");
    d = ENV("JOB_COMPLETION_INDEX=2", "DTRAIN_WORLD_SIZE=3", "MASTER_ADDR=js-w-0-0.js",
            "DTRAIN_PORT=29400"); /* a JobSet's coordinator, by the downward API */
    check_place(&d, "k8s", 2, 3, 0, 0, "tcp://js-w-0-0.js:29400");
    d = ENV("JOB_COMPLETION_INDEX=1", "DTRAIN_RANK=5", "DTRAIN_WORLD_SIZE=8",
            "DTRAIN_RDZV=tcp://a:1");
    check_place(&d, "dtrain", 5, 8, 0, 0, "tcp://a:1");
    CHECK_ERROR(ENV("JOB_COMPLETION_INDEX=2"), "DTRAIN_WORLD_SIZE");
    CHECK_ERROR(ENV("JOB_COMPLETION_INDEX=2", "DTRAIN_WORLD_SIZE=3"), "DTRAIN_RDZV");
    CHECK_ERROR(ENV("JOB_COMPLETION_INDEX=3", "DTRAIN_WORLD_SIZE=3", "DTRAIN_RDZV=tcp://a:1"),
                "JOB_COMPLETION_INDEX is 3; it must be below DTRAIN_WORLD_SIZE");
}

TEST(env_sets_that_agree_are_one) {
    dt_comm_desc d = ENV(RAY, "PMI_RANK=1", "PMI_SIZE=2", "PMI_FD=3", MPIRUN4,
                         SRUN_STEP("1", "1", "0", "2", "1", "vm", "2"));
    check_place(&d, "torch", 1, 2, 1, 2, "tcp://10.0.0.4:41233");
}

TEST(env_sets_that_disagree_are_refused_and_can_be_forced) {
    CHECK_ERROR(ENV(RAY, HYDRA, "SLURM_PROCID=0", "SLURM_STEP_NUM_TASKS=2"), "torch: rank 1 of 2",
                "slurm: rank 0 of 2", "RANK, WORLD_SIZE", "SLURM_PROCID, SLURM_STEP_NUM_TASKS",
                "DTRAIN_LAUNCHER=torch or slurm");
    CHECK_ERROR(ENV(MPIRUN4, SRUN), "ompi: rank 1 of 2", "slurm: rank 3 of 5");
    dt_comm_desc d = ENV(MPIRUN4, SRUN, "DTRAIN_LAUNCHER=slurm");
    check_place(&d, "slurm", 3, 5, 1, 3, "tcp://gpu07:62835+16");
    d = ENV(MPIRUN4, SRUN, "DTRAIN_LAUNCHER=ompi");
    check_place(&d, "ompi", 1, 2, 1, 2, "pmix:");
    d = ENV(MPIRUN4, SRUN, "DTRAIN_LAUNCHER=none", "RANK=junk");
    check_place(&d, "", 0, 1, 0, 0, "");
    d = ENV("DTRAIN_RANK=0", "DTRAIN_WORLD_SIZE=4", "DTRAIN_RDZV=tcp://a:1",
            "DTRAIN_LAUNCHER=dtrain", SRUN, "RANK=junk");
    check_place(&d, "dtrain", 0, 4, 0, 0, "tcp://a:1");
    d = ENV(TRAINER_V2("4", "1"), RAY, "DTRAIN_LAUNCHER=k8s");
    check_place(&d, "k8s", 1, 4, 0, 1, "tcp://job-node-0-0.job:29500");
    d = ENV("JOB_COMPLETION_INDEX=0", "DTRAIN_WORLD_SIZE=4", RAY, "DTRAIN_LAUNCHER=k8s");
    check_place(&d, "k8s", 0, 4, 0, 0, "tcp://10.0.0.4:41233");
    CHECK_ERROR(ENV(RAY, "DTRAIN_LAUNCHER=mpi"), "DTRAIN_LAUNCHER", "mpi", "torch, ompi");
    CHECK_ERROR(ENV(RAY, "DTRAIN_LAUNCHER=slurm"), "SLURM_PROCID, SLURM_STEP_NUM_TASKS");
    /* half a set by hand must agree too: somebody meant something by it */
    CHECK_ERROR(ENV(SRUN, "WORLD_SIZE=4", "MASTER_ADDR=a", "MASTER_PORT=1"), "rank ? of 4",
                "rank 3 of 5");
}

TEST(env_of_nested_launchers_is_the_inner_ones) {
    dt_comm_desc d = ENV(TORCHRUN, SRUN_STEP("1", "0", "1", "2", "2", "n[1-2]", "1(x2)"));
    check_place(&d, "torch", 3, 4, 1, 2, "tcp://node0:29500"); /* srun torchrun, one a node */
    d = ENV(TORCHRUN, TRAINER_V2("2", "2"));
    check_place(&d, "torch", 3, 4, 1, 2, "tcp://node0:29500");
    d = ENV(MPIRUN4, SRUN_STEP("0", "0", "0", "1", "1", "vm", "1")); /* mpirun's daemon by srun */
    check_place(&d, "ompi", 1, 2, 1, 2, "pmix:");
    d = ENV(HYDRA, SRUN_STEP("0", "0", "0", "3", "3", "n[1-3]", "1(x3)"));
    check_place(&d, "pmi", 1, 2, 1, 2, "pmi:8");
    env_case c = {.lines = (const char *const[]){TORCHRUN, "PMIX_RANK=1", "PMIX_NAMESPACE=s", NULL},
                  .pmix_loads = true};
    d = env_read_case(&c); /* srun --mpi=pmix torchrun: the workers do not use the agent's PMIx */
    check_place(&d, "torch", 3, 4, 1, 2, "tcp://node0:29500");
    CHECK(c.pmix_asked == 0);
}

TEST(env_names_the_missing_variables_of_an_incomplete_set) {
    CHECK_ERROR(ENV("RANK=0"), "torch", "WORLD_SIZE, MASTER_ADDR, MASTER_PORT",
                "DTRAIN_LAUNCHER=none");
    CHECK_ERROR(ENV("WORLD_SIZE=4"), "RANK, MASTER_ADDR, MASTER_PORT");
    CHECK_ERROR(ENV("WORLD_SIZE=1"), "; set RANK, or");
    CHECK_ERROR(ENV("RANK=0", "WORLD_SIZE=4", "MASTER_ADDR=a"), "; set MASTER_PORT, or");
    CHECK_ERROR(ENV("RANK=0", "WORLD_SIZE=4", "MASTER_PORT=1"), "; set MASTER_ADDR, or");
    CHECK_ERROR(ENV("MASTER_ADDR=a", "MASTER_PORT=1"), "; set RANK, WORLD_SIZE, or");
    CHECK_ERROR(ENV("DTRAIN_RANK=0"), "; set DTRAIN_WORLD_SIZE, or");
    CHECK_ERROR(ENV("DTRAIN_WORLD_SIZE=3"), "; set DTRAIN_RANK, or");
    CHECK_ERROR(ENV("DTRAIN_WORLD_SIZE=3", MPIRUN4), "; set DTRAIN_RANK, or");
    CHECK_ERROR(ENV("DTRAIN_RANK=0", "DTRAIN_WORLD_SIZE=3"), "DTRAIN_RDZV");
    CHECK_ERROR(ENV("OMPI_COMM_WORLD_RANK=0"), "OMPI_COMM_WORLD_SIZE");
    CHECK_ERROR(ENV("OMPI_COMM_WORLD_SIZE=2"), "OMPI_COMM_WORLD_RANK");
    CHECK_ERROR(ENV("PMI_RANK=0"), "PMI_SIZE");
    CHECK_ERROR(ENV("PMI_SIZE=2"), "PMI_RANK");
    CHECK_ERROR(ENV("SLURM_STEP_NUM_TASKS=2"), "SLURM_PROCID");
    CHECK_ERROR(ENV("PET_NNODES=2"), "PET_NODE_RANK");
    CHECK_ERROR(ENV("PET_NODE_RANK=0"), "PET_NNODES");
    CHECK_ERROR(ENV("PET_NODE_RANK=0", "PET_NNODES=2", "PET_MASTER_ADDR=a"), "DTRAIN_RDZV");
}

TEST(env_accepts_only_whole_numbers) {
    const char *const bad[] = {
        "DTRAIN_RANK=1x",       "DTRAIN_RANK= 1", "DTRAIN_RANK=1 ",
        "DTRAIN_RANK=+1",       "DTRAIN_RANK=-1", "DTRAIN_RANK=0x1",
        "DTRAIN_RANK=1e0",      "DTRAIN_RANK=1.", "DTRAIN_RANK=18446744073709551617",
        "DTRAIN_RANK=\033[31m1"};
    for (size_t i = 0; i < DTI_COUNT(bad); i++)
        CHECK_ERROR(ENV(bad[i], "DTRAIN_WORLD_SIZE=4", "DTRAIN_RDZV=tcp://a:1"),
                    "DTRAIN_RANK is \"");
    CHECK_ERROR(ENV("DTRAIN_RANK=4", "DTRAIN_WORLD_SIZE=4", "DTRAIN_RDZV=tcp://a:1"),
                "DTRAIN_RANK is 4; it must be below DTRAIN_WORLD_SIZE");
    CHECK_ERROR(ENV("RANK=0", "WORLD_SIZE=0", "MASTER_ADDR=a", "MASTER_PORT=1"),
                "WORLD_SIZE is \"0\"");
    CHECK_ERROR(ENV("RANK=0", "WORLD_SIZE=2000000", "MASTER_ADDR=a", "MASTER_PORT=1"),
                "WORLD_SIZE");
    CHECK_ERROR(ENV(RAY, "SLURM_PROCID=one"), "SLURM_PROCID");
    CHECK_ERROR(ENV(RAY, "LOCAL_RANK=9", "DTRAIN_LOCAL_RANK=9"), "local rank 9");
    CHECK_ERROR(ENV(RAY, "DTRAIN_LOCAL_SIZE=3"), "local rank");
    CHECK_ERROR(ENV("DTRAIN_ATTEMPT=18446744073709551616"), "DTRAIN_ATTEMPT");
    CHECK(ENV("DTRAIN_ATTEMPT=18446744073709551615").attempt == UINT64_MAX);
    CHECK_ERROR(ENV("DTRAIN_TIMEOUT=0"), "DTRAIN_TIMEOUT");
    CHECK_ERROR(ENV("DTRAIN_TIMEOUT=2147484"), "DTRAIN_TIMEOUT"); /* its milliseconds do not fit
                                                                   * int */
    CHECK_ERROR(ENV("DTRAIN_SILENCE=5s"), "DTRAIN_SILENCE");
    const char *const links[] = {
        "DTRAIN_LINK=on",         "DTRAIN_LINK=1",
        "DTRAIN_LINK=0,1000",     "DTRAIN_LINK=1,0",
        "DTRAIN_LINK=1,1000,",    "DTRAIN_LINK=,1000",
        "DTRAIN_LINK=1,1000,1,1", "DTRAIN_LINK=1us,1000",
        "DTRAIN_LINK=1, 1000",    "DTRAIN_LINK=99999999999999999999999999,1000"};
    for (size_t i = 0; i < DTI_COUNT(links); i++)
        CHECK_ERROR(ENV(links[i]), "DTRAIN_LINK");
    CHECK_ERROR(ENV("DTRAIN_INSECURE=yes"), "DTRAIN_INSECURE");
    const char *const ranges[] = {"DTRAIN_PORT_RANGE=1",       "DTRAIN_PORT_RANGE=-5",
                                  "DTRAIN_PORT_RANGE=0-5",     "DTRAIN_PORT_RANGE=6-5",
                                  "DTRAIN_PORT_RANGE=1-65536", "DTRAIN_PORT_RANGE=0000001-2",
                                  "DTRAIN_PORT_RANGE=1-2-3",   "DTRAIN_PORT_RANGE=1-"};
    for (size_t i = 0; i < DTI_COUNT(ranges); i++)
        CHECK_ERROR(ENV(ranges[i]), "DTRAIN_PORT_RANGE is \"");
}

TEST(env_refuses_values_that_would_be_cut) {
    static const struct {
        const char *name;
        size_t most; /* that fit */
    } texts[] = {{"DTRAIN_RDZV", 255},        {"DTRAIN_JOB", 63},     {"DTRAIN_SECRET", 67},
                 {"DTRAIN_SECRET_FILE", 255}, {"DTRAIN_TLS_CA", 255}, {"DTRAIN_TLS_NAME", 127},
                 {"DTRAIN_IFNAME", 127}};
    char line[400];
    for (size_t i = 0; i < DTI_COUNT(texts); i++)
        for (int over = 0; over < 2; over++) {
            int used = snprintf(line, sizeof line, "%s=%s", texts[i].name, i ? "" : "tcp://");
            size_t fill = texts[i].most + (size_t)over - (i ? 0 : 6);
            memset(line + used, 'a', fill);
            line[(size_t)used + fill] = 0;
            dt_comm_desc d = ENV(line);
            CHECK(over ? strstr(d.error, texts[i].name) != NULL : !d.error[0]);
        }
    char job[100] = "TORCHELASTIC_RUN_ID=", host[300] = "MASTER_ADDR=";
    memset(job + strlen(job), 'j', 64);
    CHECK_ERROR(ENV(job, RAY), "TORCHELASTIC_RUN_ID has 64 characters", "DTRAIN_JOB");
    memset(host + strlen(host), 'h', 250);
    CHECK_ERROR(ENV("RANK=0", "WORLD_SIZE=2", "MASTER_PORT=1", host), "MASTER_ADDR has 250");
    memcpy(host, "SLURM_STEP_NODELIST=", 20);
    CHECK_ERROR(
        ENV(host, "SLURM_PROCID=0", "SLURM_STEP_NUM_TASKS=2", "SLURM_JOB_ID=1", "SLURM_STEP_ID=1"),
        "SLURM_STEP_NODELIST", "hhh...");
}

TEST(env_keys_come_once_and_are_never_shown) {
    char hex[] = "00112233445566778899aabbccddeeff00112233445566778899AABBCCDDEEFF\n";
    env_case c = {.lines = (const char *const[]){"DTRAIN_SECRET_FD=7", NULL}, .descriptor = hex};
    dt_comm_desc d = env_read_case(&c);
    CHECK(!d.error[0] && strlen(d.key) == 64 && !memcmp(d.key, hex, 64));
    hex[64] = 'x';
    CHECK_ERROR(env_read_case(&c), "DTRAIN_SECRET_FD is 7", "64 hex digits");
    CHECK(!strstr(env_read_case(&c).error, "0011"));
    c.descriptor = "";
    CHECK_ERROR(env_read_case(&c), "only once");
    c.descriptor = NULL;
    CHECK_ERROR(env_read_case(&c), "is not an open file");
    CHECK_ERROR(ENV("DTRAIN_SECRET_FD=-1"), "DTRAIN_SECRET_FD");
    CHECK_ERROR(ENV("DTRAIN_SECRET=aa", "DTRAIN_SECRET_FILE=b"), "DTRAIN_SECRET and", "unset one");
    CHECK_ERROR(ENV("DTRAIN_SECRET=aa", "DTRAIN_INSECURE=1"), "DTRAIN_INSECURE and DTRAIN_SECRET");
    CHECK_ERROR(ENV("DTRAIN_RDZV=udp://a:1"), "DTRAIN_RDZV", "udp://a:1", "file:///");
    d = ENV("DTRAIN_RDZV=env:", MPIRUN4);
    check_place(&d, "ompi", 1, 2, 1, 2, "pmix:");
}

TEST(env_of_this_process_is_read_again_each_time) {
    const char *const names[] = {"DTRAIN_RANK", "DTRAIN_WORLD_SIZE", "DTRAIN_RDZV",
                                 "DTRAIN_LAUNCHER", "DTRAIN_SECRET_FD"};
    const char *const values[] = {"1", "3", "tcp://a:1", "dtrain", NULL};
    char number[16];
    FILE *file = tmpfile();
    REQUIRE(file != NULL);
    for (int i = 0; i < 64; i++)
        fputc("0123456789abcdef"[i % 16], file);
    fflush(file);
    snprintf(number, sizeof number, "%d", fileno(file));
    for (int i = 0; i < 5; i++)
        setenv(names[i], values[i] ? values[i] : number, 1);
    for (int again = 0; again < 2; again++) {
        dt_comm_desc d = dt_comm_desc_from_env();
        check_place(&d, "dtrain", 1, 3, 0, 0, "tcp://a:1");
        CHECK(strlen(d.key) == 64);
    }
    CHECK(fcntl(fileno(file), F_GETFD) == FD_CLOEXEC);
    fclose(file);
    for (int i = 0; i < 5; i++)
        unsetenv(names[i]);
}

/* ---- host lists */

static void check_nodes(const char *list, const char *names) {
    uint64_t count = 0;
    char all[400] = "", name[64];
    CHECK(dti_nodelist_count(list, &count));
    for (uint64_t i = 0; i < count && i < 40; i++) {
        CHECK(dti_nodelist_at(list, i, name, sizeof name));
        size_t used = strlen(all);
        snprintf(all + used, sizeof all - used, "%s%s", i ? " " : "", name);
    }
    CHECK(!dti_nodelist_at(list, count, name, sizeof name) && !name[0]);
    CHECK_STR(all, names);
}

TEST(node_lists_give_their_names_in_order) {
    check_nodes("n1", "n1");
    check_nodes("n1,n[01-03,7,010-012],rack[1-2]node[a,c]",
                "n1 n01 n02 n03 n7 n010 n011 n012 rack1nodea rack1nodec rack2nodea rack2nodec");
    check_nodes("a[9-11]b[c-e]", "a9bc a9bd a9be a10bc a10bd a10be a11bc a11bd a11be");
    check_nodes("[1-2][x].example.org", "1x.example.org 2x.example.org");
    check_nodes("a[00-00],b-c_d,e[z9]", "a00 b-c_d ez9");
    check_nodes("a[099-101]", "a099 a100 a101");
    check_nodes("a[1-2]-[A-B]", "a1-A a1-B a2-A a2-B");
}

TEST(node_lists_that_are_malformed_are_refused) {
    const char *const bad[] = {"",
                               ",",
                               "a,",
                               ",a",
                               "a,,b",
                               "a[",
                               "a[1",
                               "a[]",
                               "a[1,]",
                               "a[,1]",
                               "a[1-]",
                               "a[-1]",
                               "a]",
                               "a[1]]",
                               "a[[1]]",
                               "a[2-1]",
                               "a[1-2",
                               "a[1-2-3]",
                               "a[b-a]",
                               "a[1-b]",
                               "a b",
                               "a[Z-a]",
                               "a[aa-ab]",
                               "a[a..]",
                               "-a",
                               "a/b",
                               "a\n",
                               "a[1 ]",
                               "a[1234567890123456789-1234567890123456789]",
                               "a[0-99999999999999999][0-999]"};
    uint64_t count;
    char name[64] = "x";
    for (size_t i = 0; i < DTI_COUNT(bad); i++) {
        test_check(!dti_nodelist_count(bad[i], &count), __FILE__, __LINE__, "takes %s", bad[i]);
        CHECK(!dti_nodelist_first(bad[i], name, sizeof name) && !name[0]);
    }
}

TEST(node_lists_of_many_names_are_not_expanded) {
    const char *list = "a[0-999999999999999999],b[0-999999999]c[0-999999999]";
    uint64_t count;
    char name[64];
    REQUIRE(dti_nodelist_count(list, &count));
    CHECK(count == 2000000000000000000u);
    CHECK(dti_nodelist_at(list, 1999999999999999999u, name, sizeof name));
    CHECK(!strcmp(name, "b999999999c999999999"));
    CHECK(dti_nodelist_at(list, 1000000001000000002u, name, sizeof name));
    CHECK_STR(name, "b1c2");
    CHECK(!dti_nodelist_at(list, count, name, sizeof name));
}

TEST(node_names_that_do_not_fit_are_refused) {
    char name[4];
    CHECK(dti_nodelist_first("abc", name, sizeof name) && !strcmp(name, "abc"));
    CHECK(!dti_nodelist_first("abcd", name, sizeof name) && !name[0]);
    CHECK(dti_nodelist_first("a[01-02]", name, sizeof name) && !strcmp(name, "a01"));
    CHECK(!dti_nodelist_first("ab[01-02]", name, sizeof name) && !name[0]);
    CHECK(!dti_nodelist_first("a", name, 0));
}

/* ---- keys */

#define KEY_HEX "000102030405060708090a0b0c0d0e0f101112131415161718191A1B1C1D1E1F"

typedef struct key_place { /* a folder of its own, and a base */
    dti_base base;
    char folder[64], file[80];
} key_place;

static bool key_place_open(key_place *p) {
    dti_base_init(&p->base, NULL, NULL);
    snprintf(p->folder, sizeof p->folder, "/tmp/dtrain-test-key-XXXXXX");
    if (!mkdtemp(p->folder))
        return false;
    snprintf(p->file, sizeof p->file, "%s/key", p->folder);
    return true;
}

static void key_place_close(key_place *p) {
    unlink(p->file);
    CHECK(rmdir(p->folder) == 0); /* nothing else was left in it */
    CHECK(p->base.bytes_now == 0);
}

static bool key_file_write(const key_place *p, const char *text, size_t size, mode_t mode) {
    unlink(p->file);
    FILE *file = fopen(p->file, "wb");
    bool ok = file && fwrite(text, 1, size, file) == size;
    return file && fclose(file) == 0 && ok && chmod(p->file, mode) == 0;
}

static dt_result key_load(key_place *p, const dt_comm_desc *desc, uint8_t key[32], bool *have) {
    dti_key_share share;
    dt_result result = dti_key_load(&p->base, desc, NULL, key, have, &share);
    CHECK(!share.file && !share.folder);
    return result;
}

TEST(keys_are_64_hex_digits_or_32_bytes_and_not_passphrases) {
    key_place p;
    uint8_t key[32], raw[32];
    bool have;
    REQUIRE(key_place_open(&p));
    dt_comm_desc desc = {.world_size = 2, .key = KEY_HEX};
    CHECK(key_load(&p, &desc, key, &have) == DT_OK && have && key[0] == 0 && key[31] == 0x1F);
    for (int i = 0; i < 32; i++)
        raw[i] = (uint8_t)(200 - i);
    desc.key[0] = 0;
    snprintf(desc.key_file, sizeof desc.key_file, "%s", p.file);
    CHECK(key_file_write(&p, (const char *)raw, 32, 0600));
    CHECK(key_load(&p, &desc, key, &have) == DT_OK && have && !memcmp(key, raw, 32));
    CHECK(key_file_write(&p, KEY_HEX "\n", 65, 0400));
    CHECK(key_load(&p, &desc, key, &have) == DT_OK && have && key[30] == 0x1E);
    const char *const bad[] = {"",
                               "correct horse battery staple",
                               KEY_HEX "0",
                               KEY_HEX " ",
                               "thirty-two characters of my dog!",
                               KEY_HEX "\n\n",
                               "g00102030405060708090a0b0c0d0e0f101112131415161718191A1B1C1D1E1F"};
    for (size_t i = 0; i < DTI_COUNT(bad); i++) {
        CHECK(key_file_write(&p, bad[i], strlen(bad[i]), 0600));
        CHECK(key_load(&p, &desc, key, &have) == DT_ERROR_INVALID && !have);
        CHECK_CONTAINS(p.base.error, "openssl rand -hex 32");
        CHECK(!*bad[i] || !strstr(p.base.error, bad[i]));
    }
    desc.key_file[0] = 0;
    for (size_t i = 1; i < DTI_COUNT(bad); i++) {
        snprintf(desc.key, sizeof desc.key, "%s", bad[i]);
        CHECK(key_load(&p, &desc, key, &have) == DT_ERROR_INVALID && !have);
        CHECK_CONTAINS(p.base.error, "passphrase");
    }
    memset(desc.key, 'a', sizeof desc.key); /* without an end */
    CHECK(key_load(&p, &desc, key, &have) == DT_ERROR_INVALID && !have);
    key_place_close(&p);
}

/* They would be what insecure ranks have. The launcher's way is test_rendezvous.c's. */
TEST(keys_of_zeros_are_refused_from_every_source) {
    key_place p;
    uint8_t key[32];
    bool have;
    char zeros[66] = {0}, secret[80];
    REQUIRE(key_place_open(&p));
    memset(zeros, '0', 64);
    snprintf(secret, sizeof secret, "DTRAIN_SECRET=%s", zeros);
    env_case passed = {.lines = (const char *const[]){"DTRAIN_SECRET_FD=7", NULL},
                       .descriptor = zeros};
    dt_comm_desc ways[5] = {{.key = ""}, ENV(secret), env_read_case(&passed)};
    memcpy(ways[0].key, zeros, 65);
    for (int i = 0; i < 5; i++) {
        dt_comm_desc *d = &ways[i];
        d->world_size = 2;
        if (i >= 3) {
            snprintf(d->key_file, sizeof d->key_file, "%s", p.file);
            CHECK(key_file_write(&p, i == 3 ? zeros : (char[32]){0}, i == 3 ? 64 : 32, 0600));
        }
        CHECK(key_load(&p, d, key, &have) == DT_ERROR_INVALID && !have);
        CHECK_CONTAINS(p.base.error, "all zeros");
        CHECK_CONTAINS(p.base.error, "openssl rand -hex 32");
    }
    key_place_close(&p);
}

TEST(key_files_that_others_can_read_are_refused) {
    key_place p;
    uint8_t key[32];
    bool have;
    char link[96];
    REQUIRE(key_place_open(&p));
    dt_comm_desc desc = {.world_size = 2};
    snprintf(desc.key_file, sizeof desc.key_file, "%s", p.file);
    const mode_t bad[] = {0604, 0602, 0620, 0666, 0444, 0601}, good[] = {0600, 0400, 0440, 0640};
    for (size_t i = 0; i < DTI_COUNT(bad); i++) {
        CHECK(key_file_write(&p, KEY_HEX, 64, bad[i]));
        CHECK(key_load(&p, &desc, key, &have) == DT_ERROR_INVALID && !have);
        CHECK_CONTAINS(p.base.error, "chmod 600");
    }
    snprintf(link, sizeof link, "%s.link", p.file);
    REQUIRE(symlink(p.file, link) == 0);
    snprintf(desc.key_file, sizeof desc.key_file, "%s", link); /* Kubernetes' secrets are links */
    for (size_t i = 0; i < DTI_COUNT(good); i++) {
        CHECK(key_file_write(&p, KEY_HEX, 64, good[i]));
        CHECK(key_load(&p, &desc, key, &have) == DT_OK && have);
    }
    unlink(link);
    CHECK(key_load(&p, &desc, key, &have) == DT_ERROR_IO);
    snprintf(desc.key_file, sizeof desc.key_file, "%s", p.folder);
    CHECK(key_load(&p, &desc, key, &have) == DT_ERROR_INVALID);
    CHECK_CONTAINS(p.base.error, "regular file");
    REQUIRE(unlink(p.file) == 0 && mkfifo(p.file, 0600) == 0);
    snprintf(desc.key_file, sizeof desc.key_file, "%s", p.file);
    CHECK(key_load(&p, &desc, key, &have) == DT_ERROR_INVALID); /* and does not wait for a writer */
    CHECK(unlink(p.file) == 0 && key_file_write(&p, KEY_HEX, 64, 0600));
    if (chown(p.file, 65534, 0) == 0) { /* else nothing can be given away here */
        CHECK(key_load(&p, &desc, key, &have) == DT_ERROR_INVALID);
        CHECK_CONTAINS(p.base.error, "belongs to user 65534");
    }
    key_place_close(&p);
}

TEST(keys_may_be_missing_only_on_one_host) {
    key_place p;
    uint8_t key[32];
    bool have = true;
    dti_key_share share;
    REQUIRE(key_place_open(&p));
    dt_comm_desc desc = {.world_size = 2, .insecure = true};
    CHECK(key_load(&p, &desc, key, &have) == DT_OK && !have);
    snprintf(desc.key, sizeof desc.key, KEY_HEX);
    CHECK(key_load(&p, &desc, key, &have) == DT_ERROR_INVALID);
    desc = (dt_comm_desc){.world_size = 1};
    CHECK(key_load(&p, &desc, key, &have) == DT_OK && !have);
    desc.world_size = 2; /* a file:// rendezvous, and nothing known */
    CHECK(key_load(&p, &desc, key, &have) == DT_ERROR_INVALID && !have);
    CHECK_CONTAINS(p.base.error, "openssl rand -hex 32");
    CHECK_CONTAINS(p.base.error, "DTRAIN_SECRET_FILE");
    CHECK(dti_key_load(&p.base, &desc, "192.0.2.77", key, &have, &share) == DT_ERROR_INVALID);
    desc.local_size = 1; /* two hosts, whatever the address */
    CHECK(dti_key_load(&p.base, &desc, "127.0.0.1", key, &have, &share) == DT_ERROR_INVALID);
    desc.local_size = 0;
    CHECK(dti_key_one_host(&desc, "127.0.0.1") && dti_key_one_host(&desc, "localhost"));
    CHECK(!dti_key_one_host(&desc, "192.0.2.77") && !dti_key_one_host(&desc, "no-such.invalid"));
    key_place_close(&p);
}

/* Rank `rank` of 2 in a process of its own: its key's first byte, or -1. */
static int key_child_wait(pid_t child) {
    int status = 0;
    return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static dti_key_folders key_folders(const key_place *p) {
    dti_key_folders folders;
    snprintf(folders.path[0], sizeof folders.path[0], "/nonexistent");
    snprintf(folders.path[1], sizeof folders.path[1], "%s", p->folder);
    return folders;
}

TEST(ranks_of_one_host_share_a_key_that_ends_with_them) {
    key_place p;
    uint8_t key[32], other[32], stale[32];
    dti_key_share share, none;
    REQUIRE(key_place_open(&p));
    dti_key_folders folders = key_folders(&p);
    dt_comm_desc root = {
        .world_size = 2, .job = "j", .attempt = 1, .rendezvous = "tcp://localhost:1"};
    dt_comm_desc leaf = root;
    leaf.rank = 1;
    leaf.join_timeout_ms = 100;
    CHECK(dti_key_share_in(&p.base, &leaf, &folders, other, &none) == DT_ERROR_TIMEOUT);
    CHECK_CONTAINS(p.base.error, p.folder);

    pid_t crashed = fork(); /* a rank 0 that ends silently */
    if (crashed == 0)
        _exit(dti_key_share_in(&p.base, &root, &folders, stale, &share) == DT_OK ? 0 : 1);
    CHECK(key_child_wait(crashed) == 0);
    CHECK(dti_key_share_in(&p.base, &leaf, &folders, other, &none) == DT_ERROR_TIMEOUT);

    leaf.join_timeout_ms = 5000;
    pid_t early = fork(); /* looks while there is only the crashed one's file */
    if (early == 0) {
        int first = dti_key_share_in(&p.base, &leaf, &folders, other, &none) ? 0 : other[0];
        _exit(first);
    }
    nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    REQUIRE(dti_key_share_in(&p.base, &root, &folders, key, &share) == DT_OK);
    CHECK(dti_key_share_in(&p.base, &leaf, &folders, other, &none) == DT_OK);
    CHECK(!memcmp(key, other, 32));
    CHECK(key_child_wait(early) == key[0]);
    leaf.join_timeout_ms = 50;
    leaf.attempt = 2; /* another attempt has another key */
    CHECK(dti_key_share_in(&p.base, &leaf, &folders, other, &none) == DT_ERROR_TIMEOUT);
    dti_key_forget(&share);
    leaf.attempt = 1;
    CHECK(dti_key_share_in(&p.base, &leaf, &folders, other, &none) == DT_ERROR_TIMEOUT);
    dti_key_forget(&share); /* once more is fine */
    key_place_close(&p);
}

/* Ranks 0 and 1 share a key, of which nothing stands in the folder that was to hold it. */
static void key_goes_elsewhere(key_place *p, const dti_key_folders *folders) {
    uint8_t key[32], other[32];
    dti_key_share share, none;
    dt_comm_desc desc = {.world_size = 2, .rendezvous = "tcp://localhost:1"};
    struct stat place, own;
    REQUIRE(dti_key_share_in(&p->base, &desc, folders, key, &share) == DT_OK);
    CHECK(fstat(share.folder - 1, &place) == 0 && (place.st_mode & 0777) == 0700);
    CHECK(place.st_uid == geteuid() && stat(p->folder, &own) == 0 && place.st_ino != own.st_ino);
    desc.rank = 1;
    desc.join_timeout_ms = 1000;
    CHECK(dti_key_share_in(&p->base, &desc, folders, other, &none) == DT_OK);
    CHECK(!memcmp(key, other, 32));
    dti_key_forget(&share);
}

/* Those that were made beside the test's own; how many. */
static int key_remove_others(const key_place *p) {
    int count = 0;
    char path[64 + NAME_MAX];
    DIR *list = opendir("/tmp");
    for (const struct dirent *e; list && (e = readdir(list)) != NULL;) {
        snprintf(path, sizeof path, "/tmp/%s", e->d_name);
        if (!strncmp(path, p->folder, strlen(p->folder)) && path[strlen(p->folder)] == '-')
            count += rmdir(path) == 0; /* nothing is left in it */
    }
    closedir(list);
    return count;
}

TEST(folders_that_others_can_write_hold_no_keys_and_stop_no_job) {
    key_place p;
    char link[80], theirs[96];
    REQUIRE(key_place_open(&p));
    dti_key_folders folders = key_folders(&p);
    REQUIRE(chmod(p.folder, 0777) == 0);
    key_goes_elsewhere(&p, &folders);
    key_goes_elsewhere(&p, &folders);
    CHECK(key_remove_others(&p) == 1); /* the second job has found it */
    REQUIRE(chmod(p.folder, 0711) == 0);
    snprintf(theirs, sizeof theirs, "%s-others", p.folder); /* of that name, and not its own */
    REQUIRE(mkdir(theirs, 0700) == 0 && chmod(theirs, 0777) == 0);
    key_goes_elsewhere(&p, &folders);
    CHECK(rmdir(theirs) == 0 && key_remove_others(&p) == 1);
    REQUIRE(chmod(p.folder, 0700) == 0);
    snprintf(link, sizeof link, "%.50s.link", p.folder);
    REQUIRE(symlink(p.folder, link) == 0);
    memcpy(folders.path[1], link, strlen(link) + 1);
    key_goes_elsewhere(&p, &folders);
    unlink(link);
    memcpy(p.folder, link, strlen(link) + 1);
    CHECK(key_remove_others(&p) == 1);
    p.folder[strlen(p.folder) - 5] = 0;
    folders = key_folders(&p);
    if (chown(p.folder, 65534, 0) == 0) { /* else nothing can be given away here */
        key_goes_elsewhere(&p, &folders);
        CHECK(key_remove_others(&p) == 1);
    }
    key_place_close(&p);
}

TEST(keys_without_a_file_are_an_error_that_says_what_to_do) {
    key_place p;
    uint8_t key[32];
    dti_key_share share;
    REQUIRE(key_place_open(&p));
    dti_key_folders folders = {{"/nonexistent/a", "/nonexistent/b"}};
    dt_comm_desc root = {.world_size = 2, .rendezvous = "tcp://localhost:1"};
    CHECK(dti_key_share_in(&p.base, &root, &folders, key, &share) == DT_ERROR_IO);
    CHECK_CONTAINS(p.base.error, "set DTRAIN_SECRET_FILE, or make that folder this user's with "
                                 "mode 700");
    CHECK_CONTAINS(p.base.error, "openssl rand -hex 32");
    folders = (dti_key_folders){{"/nonexistent/a", "/sys/dtrain-none"}};
    CHECK(mkdir(folders.path[1], 0700) != 0); /* why it cannot be made, not that it is not there */
    char why[96];
    snprintf(why, sizeof why, "(/sys/dtrain-none: %s)", strerror(errno));
    CHECK(dti_key_share_in(&p.base, &root, &folders, key, &share) == DT_ERROR_IO);
    CHECK_CONTAINS(p.base.error, why);
    key_place_close(&p);
}

TEST(secrets_in_pipes_are_read_once_and_in_files_as_often_as_asked) {
    int ends[2];
    char text[80];
    REQUIRE(pipe(ends) == 0);
    CHECK(write(ends[1], KEY_HEX, 64) == 64);
    close(ends[1]);
    CHECK(dti_descriptor_read(NULL, ends[0], text, sizeof text) == 64 &&
          !memcmp(text, KEY_HEX, 64));
    CHECK(dti_descriptor_read(NULL, ends[0], text, sizeof text) == 0);
    close(ends[0]);
    CHECK(dti_descriptor_read(NULL, ends[0], text, sizeof text) == -1);
    CHECK(dti_descriptor_read(NULL, -1, text, sizeof text) == -1);
    int null = open("/dev/null", O_RDONLY);
    CHECK(dti_descriptor_read(NULL, null, text, sizeof text) == -1);
    close(null);
}

/* ---- PMI: a launcher that is a list of answers */

typedef struct pmi_server {
    int descriptor;
    const char *const *answers; /* "" closes */
    char asked[2000];
    size_t size;
} pmi_server;

/* Answers a line by each; a byte at a time, so that a line comes in pieces. */
static void *pmi_serve(void *arg) {
    pmi_server *s = arg;
    for (const char *const *answer = s->answers; *answer && **answer; answer++) {
        do {
            if (s->size + 1 >= sizeof s->asked || read(s->descriptor, s->asked + s->size, 1) != 1)
                break;
        } while (s->asked[s->size++] != '\n');
        for (const char *at = *answer; *at; at++)
            if (send(s->descriptor, at, 1, MSG_NOSIGNAL) != 1)
                break;
    }
    shutdown(s->descriptor, SHUT_RDWR);
    return NULL;
}

typedef struct pmi_case {
    dti_base base;
    pmi_server server;
    char text[64];
    dt_result result;
} pmi_case;

static void pmi_run(pmi_case *c, uint32_t rank, const char *const *answers) {
    int ends[2];
    pthread_t thread;
    *c = (pmi_case){.server = {.answers = answers}};
    dti_base_init(&c->base, NULL, NULL);
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0)
        return;
    c->server.descriptor = ends[1];
    pthread_create(&thread, NULL, pmi_serve, &c->server);
    c->result = dti_pmi_exchange(&c->base, ends[0], rank, 300, "a:1", c->text, sizeof c->text);
    shutdown(ends[0], SHUT_RDWR);
    pthread_join(thread, NULL);
    close(ends[0]);
    close(ends[1]);
}

#define PMI_START                                                                                  \
    "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n", "cmd=my_kvsname kvsname=k_1\n"

TEST(pmi_gives_all_ranks_the_text_of_rank_0) {
    pmi_case c;
    pmi_run(&c, 0,
            (const char *const[]){
                PMI_START, "cmd=put_result rc=0 msg=success\n", "cmd=barrier_out rc=0\n",
                "cmd=get_result rc=0 msg=success value=613a31\n", "cmd=finalize_ack\n", NULL});
    CHECK(c.result == DT_OK && !strcmp(c.text, "a:1"));
    CHECK_CONTAINS(c.server.asked, "cmd=put kvsname=k_1 key=dtrain value=613a31\n");
    pmi_run(&c, 1,
            (const char *const[]){PMI_START, "cmd=barrier_out\n",
                                  "cmd=get_result rc=0 value=783a32\n", "cmd=finalize_ack\n",
                                  NULL});
    CHECK(c.result == DT_OK && !strcmp(c.text, "x:2"));
    CHECK(!strstr(c.server.asked, "put") && strstr(c.server.asked, "finalize"));
}

TEST(pmi_that_answers_nonsense_is_an_error) {
    static char lines[3000];
    memset(lines, 'x', sizeof lines - 1);
    const char *const cases[][6] = {
        {"\n"},
        {"cmd=response_to_init rc=-1\n"},
        {"cmd=other rc=0\n"},
        {"cmd=response_to_init rc=0\ncmd=my_kvsname kvsname=k\n"},
        {"cmd=response_to_init rc=0\n", "cmd=my_kvsname kvsname=\n"},
        {"cmd=response_to_init rc=0\n", "cmd=my_kvsname\n"},
        {lines},
        {PMI_START, "cmd=barrier_out\n", "cmd=get_result rc=0 value=6g\n"},
        {PMI_START, "cmd=barrier_out\n", "cmd=get_result rc=0 value=616\n"},
        {PMI_START, "cmd=barrier_out\n", "cmd=get_result rc=0 value=6100\n"},
        {PMI_START, "cmd=barrier_out\n", "cmd=get_result rc=1\n"},
        {PMI_START, "cmd=barrier_out\n", "cmd=get_result rc=0\n"},
        {PMI_START, ""},
    };
    for (size_t i = 0; i < DTI_COUNT(cases); i++) {
        pmi_case c;
        pmi_run(&c, 1, cases[i]);
        bool is_text = i >= 7 && i <= 9; /* rank 0's, which is not valid */
        CHECK(c.result == DT_ERROR_FORMAT || (c.result == DT_ERROR_IO && !is_text));
        CHECK_CONTAINS(c.base.error, "PMI: ");
    }
}

TEST(pmi_that_is_silent_ends_in_time) {
    int ends[2];
    dti_base base;
    char text[8];
    dti_base_init(&base, NULL, NULL);
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    CHECK(dti_pmi_exchange(&base, ends[0], 0, 50, "a", text, sizeof text) == DT_ERROR_TIMEOUT);
    close(ends[1]); /* and no SIGPIPE */
    CHECK(dti_pmi_exchange(&base, ends[0], 0, 50, "a", text, sizeof text) == DT_ERROR_IO);
    close(ends[0]);
    CHECK(dti_pmi_exchange(&base, ends[0], 0, 50, "a", text, sizeof text) == DT_ERROR_IO);
    REQUIRE(pipe(ends) == 0); /* no socket */
    CHECK(dti_pmi_exchange(&base, ends[1], 0, 50, "a", text, sizeof text) == DT_ERROR_IO);
    close(ends[0]);
    close(ends[1]);
}
