/* Makes a desc of the process's environment: dt_comm_desc_from_env(). The chosen launcher's
 * variables (launcher.c) give rank and world size. This file adds the rendezvous, the job's name,
 * and the rank's place on its host. It starts nothing and joins nothing, but asks PMIx for a job's
 * size if no variable has it. */

/* Slurm: where ports for ranks to meet begin, and how many there are. */
#define DTI_SLURM_PORT 61440u
#define DTI_SLURM_PORTS 4096u
#define DTI_SLURM_TRIES 16

/* ---- where to meet */

/* SCHEME://host:port; brackets around an IPv6 address, whether it came with them or not. */
static bool dti_env_url(dti_env_reader *r, const char *scheme, const char *host_name,
                        const char *host, const char *port_name) {
    char *url = r->desc.rendezvous;
    size_t room = sizeof r->desc.rendezvous, size = strlen(host);
    uint64_t port = 0;
    if (dti_env_get(r, "DTRAIN_PORT"))
        port_name = "DTRAIN_PORT";
    if (!dti_env_u64(r, port_name, 1, 65535, &port))
        return false;
    if (size > 2 && host[0] == '[' && host[size - 1] == ']')
        host++, size -= 2;
    bool colon = memchr(host, ':', size) != NULL;
    for (size_t i = 0; i < size; i++)
        if (!dti_is_host_char(host[i]) && (!colon || (host[i] != ':' && host[i] != '%')))
            return dti_env_fail(r, "%s is \"%s\"; it must be the name or address of a host",
                                host_name, dti_env_quote(host).text);
    if (size > 200) /* a name has at most 253, and the URL must fit */
        return dti_env_fail(r, "%s has %llu characters; it must have at most 200", host_name,
                            (unsigned long long)size);
    snprintf(url, room, "%s://%s%.*s%s:%u", scheme, colon ? "[" : "", (int)size, host,
             colon ? "]" : "", (unsigned)port);
    return true;
}

/* torchrun's agent may listen on MASTER_PORT already, with PyTorch's store: then rank 0 cannot. */
static bool dti_env_meet_master(dti_env_reader *r) {
    const char *store = dti_env_get(r, "TORCHELASTIC_USE_AGENT_STORE");
    bool agent = store && !strcmp(store, "True") && !dti_env_get(r, "DTRAIN_PORT");
    return dti_env_url(r, agent ? "tcpstore" : "tcp", "MASTER_ADDR", dti_env_get(r, "MASTER_ADDR"),
                       "MASTER_PORT");
}

/* The step's first host, and ports that its jobs are unlikely to share. Rank 0 takes the first free
 * one. A rank that finds another job there, by the job's name in the hello, tries the next. */
static bool dti_env_meet_slurm(dti_env_reader *r) {
    const char *list = dti_env_get(r, "SLURM_STEP_NODELIST");
    char host[201];
    uint64_t job = 0, step = 0;
    int port = 0;
    if (!list || !dti_env_get(r, "SLURM_JOB_ID") || !dti_env_get(r, "SLURM_STEP_ID"))
        return dti_env_fail(r, "%s is not set, so rank 0's address is unknown; set DTRAIN_RDZV",
                            !list                            ? "SLURM_STEP_NODELIST"
                            : dti_env_get(r, "SLURM_JOB_ID") ? "SLURM_STEP_ID"
                                                             : "SLURM_JOB_ID");
    if (!dti_env_u64(r, "SLURM_JOB_ID", 0, UINT64_MAX, &job) ||
        !dti_env_u64(r, "SLURM_STEP_ID", 0, UINT64_MAX, &step) ||
        !dti_env_int(r, "DTRAIN_PORT", 1, 65535, &port))
        return false;
    if (!dti_nodelist_first(list, host, sizeof host))
        return dti_env_fail(
            r, "SLURM_STEP_NODELIST is \"%s\", which is not a list of hosts; set DTRAIN_RDZV",
            dti_env_quote(list).text);
    job %= DTI_SLURM_PORTS;
    step %= DTI_SLURM_PORTS;
    if (port)
        snprintf(r->desc.rendezvous, sizeof r->desc.rendezvous, "tcp://%s:%d", host, port);
    else
        snprintf(r->desc.rendezvous, sizeof r->desc.rendezvous, "tcp://%s:%d+%d", host,
                 (int)(DTI_SLURM_PORT + (job * 31 + step) % DTI_SLURM_PORTS), DTI_SLURM_TRIES);
    return true;
}

/* "pmi:N", for only this file reads the environment. */
static bool dti_env_meet_pmi(dti_env_reader *r) {
    int descriptor = -1;
    if (!dti_env_get(r, "PMI_FD"))
        return dti_env_fail(r, "DTRAIN_RDZV is \"pmi:\" but PMI_FD is not set; start with "
                               "mpiexec.hydra or srun --mpi=pmi2");
    if (!dti_env_int(r, "PMI_FD", 0, INT_MAX, &descriptor))
        return false;
    snprintf(r->desc.rendezvous, sizeof r->desc.rendezvous, "pmi:%d", descriptor);
    return true;
}

static bool dti_env_meet(dti_env_reader *r, int chosen) {
    const bool here = DTI_HAS_LAUNCHERS;
    bool by_pmix = here && (chosen == DTI_LAUNCHER_PMIX || chosen == DTI_LAUNCHER_OMPI);
    if (r->desc.world_size == 1)
        return true;
    if (here && !strcmp(r->desc.rendezvous, "pmi:"))
        return dti_env_meet_pmi(r);
    if (r->desc.rendezvous[0])
        return true;
    if (by_pmix && dti_env_get(r, "PMIX_NAMESPACE") && r->env->pmix_loads(r->env->user)) {
        memcpy(r->desc.rendezvous, "pmix:", sizeof "pmix:");
        return true;
    }
    if (here && chosen == DTI_LAUNCHER_PMI && dti_env_get(r, "PMI_FD"))
        return dti_env_meet_pmi(r);
    if (here && chosen == DTI_LAUNCHER_PET && dti_env_get(r, "PET_MASTER_ADDR") &&
        (dti_env_get(r, "PET_MASTER_PORT") || dti_env_get(r, "DTRAIN_PORT")))
        return dti_env_url(r, "tcp", "PET_MASTER_ADDR", dti_env_get(r, "PET_MASTER_ADDR"),
                           "PET_MASTER_PORT");
    if (here && dti_env_has_master(r))
        return dti_env_meet_master(r);
    if (here && r->launch[DTI_LAUNCHER_SLURM].complete &&
        !dti_launcher_is_outer(r, chosen, DTI_LAUNCHER_SLURM))
        return dti_env_meet_slurm(r);
    return dti_env_fail(r,
                        "rank %d of %d by %s, but without a rendezvous: set DTRAIN_RDZV to "
                        "tcp://host:port or file:///shared/path on all ranks%s",
                        r->desc.rank, r->desc.world_size, dti_launchers[chosen].rank,
                        chosen == DTI_LAUNCHER_OMPI ? " (mpirun -x DTRAIN_RDZV=...)" : "");
}

/* ---- the job's name, this rank's place on its host, all of it */

static bool dti_env_job(dti_env_reader *r, int chosen) {
    static const char hint[] = "; set DTRAIN_JOB to a shorter name";
    dt_comm_desc *desc = &r->desc;
    bool torch = chosen == DTI_LAUNCHER_TORCH, slurm = chosen == DTI_LAUNCHER_SLURM;
    const char *name = torch ? "TORCHELASTIC_RUN_ID" : "PMIX_NAMESPACE";
    uint64_t job = 0, step = 0;
    if (!dti_env_get(r, "DTRAIN_ATTEMPT") && chosen != DTI_LAUNCHER_DTRAIN &&
        !dti_env_u64(r, torch ? "TORCHELASTIC_RESTART_COUNT" : "SLURM_RESTART_COUNT", 0, UINT64_MAX,
                     &desc->attempt))
        return false;
    if (desc->job[0])
        return true;
    if (torch || chosen == DTI_LAUNCHER_OMPI || chosen == DTI_LAUNCHER_PMIX)
        return dti_env_text(r, name, desc->job, sizeof desc->job, hint);
    if ((slurm || chosen == DTI_LAUNCHER_PMI) && dti_env_get(r, "SLURM_JOB_ID")) {
        if (!dti_env_u64(r, "SLURM_JOB_ID", 0, UINT64_MAX, &job) ||
            !dti_env_u64(r, "SLURM_STEP_ID", 0, UINT64_MAX, &step))
            return false;
        snprintf(desc->job, sizeof desc->job, "slurm-%llu.%llu", (unsigned long long)job,
                 (unsigned long long)step);
    }
    return true;
}

/* The chosen set's own words; else those of one that agrees, as srun's beside PMI. */
static bool dti_env_local(dti_env_reader *r, int chosen) {
    dt_comm_desc *desc = &r->desc;
    const dti_launched *set = &r->launch[chosen];
    for (int i = 0; set->local_rank < 0 && i < DTI_LAUNCHER_COUNT; i++)
        if (r->launch[i].complete && r->launch[i].local_rank >= 0 &&
            r->launch[i].size == desc->world_size && r->launch[i].rank == desc->rank)
            set = &r->launch[i];
    desc->local_rank = (int)DTI_MAX(set->local_rank, 0);
    desc->local_size = (int)DTI_MAX(set->local_size, 0);
    if (!dti_env_int(r, "DTRAIN_LOCAL_RANK", 0, DTI_WORLD_MAX, &desc->local_rank) ||
        !dti_env_int(r, "DTRAIN_LOCAL_SIZE", 1, DTI_WORLD_MAX, &desc->local_size))
        return false;
    if ((desc->local_size && desc->local_rank >= desc->local_size) ||
        desc->local_rank >= desc->world_size || desc->local_size > desc->world_size)
        return dti_env_fail(r,
                            "local rank %d of %d (0 = not known) is not possible with %d ranks in "
                            "all; check %s, DTRAIN_LOCAL_RANK and DTRAIN_LOCAL_SIZE",
                            desc->local_rank, desc->local_size, desc->world_size,
                            dti_launchers[chosen].local_rank);
    return true;
}

static bool dti_env_fill(dti_env_reader *r, int chosen) {
    const dti_launched *set = &r->launch[chosen];
    const struct dti_launcher_names *names = &dti_launchers[chosen];
    if (set->rank >= set->size)
        return dti_env_fail(r, "%s is %d; it must be below %s, which is %d", names->rank,
                            (int)set->rank, names->size[0] ? names->size : "the job size of PMIx",
                            (int)set->size);
    r->desc.rank = (int)set->rank;
    r->desc.world_size = (int)set->size;
    snprintf(r->desc.launcher, sizeof r->desc.launcher, "%s", names->name);
    return dti_env_local(r, chosen) && dti_env_job(r, chosen) && dti_env_meet(r, chosen);
}

static dt_comm_desc dti_env_read(const dti_env *env) {
    dti_env_reader r = {.env = env};
    int chosen = DTI_LAUNCHER_COUNT;
    r.desc.world_size = 1;
    if (dti_env_own(&r) && dti_env_choose(&r, &chosen) && chosen < DTI_LAUNCHER_COUNT)
        dti_env_fill(&r, chosen);
    dt_comm_desc desc = r.desc;
    dti_wipe(r.desc.key, sizeof r.desc.key);
    return desc;
}

/* ---- this process's environment */

static const char *dti_env_process_get(void *user, const char *name) {
    return getenv(name);
}

DT_API dt_comm_desc dt_comm_desc_from_env(void) {
    const dti_env env = {
        .get = dti_env_process_get,
        .pmix_loads = DTI_HAS_LAUNCHERS ? dti_pmix_loads : NULL,
        .pmix_job = DTI_HAS_LAUNCHERS ? dti_pmix_job : NULL,
        .descriptor_read = dti_descriptor_read,
    };
    return dti_env_read(&env);
}
