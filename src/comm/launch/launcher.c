/* Finds the launcher whose variables give this rank. It knows the sets of the launchers in env.h
 * and takes the first complete one. It refuses half a set, and two sets that disagree, because
 * ranks would wait for each other forever. Each set names its source, the launcher's own code.
 *
 * A launcher may run inside another one, such as torchrun or mpirun below srun. Then the outer
 * one's set describes the inner one's daemons, and may disagree. dti_launcher_is_outer() finds
 * certain cases; otherwise DTRAIN_LAUNCHER decides. */

/* ---- the launchers' sets */

/* A place to meet that is given by hand, for torch's set and as a way out for others. */
static bool dti_env_has_master(const dti_env_reader *r) {
    return dti_env_get(r, "MASTER_ADDR") &&
           (dti_env_get(r, "MASTER_PORT") || dti_env_get(r, "DTRAIN_PORT"));
}

/* Tasks on a node, of Slurm's "2(x3),1"; -1 = the list does not say. */
static int64_t dti_slurm_tasks(const char *list, uint64_t node) {
    uint64_t tasks, times;
    while (list && dti_digits(&list, DTI_WORLD_MAX, &tasks)) {
        times = 1;
        if (list[0] == '(' && list[1] == 'x') {
            list += 2;
            if (!dti_digits(&list, DTI_WORLD_MAX, &times) || *list++ != ')')
                return -1;
        }
        if (node < times)
            return (int64_t)tasks;
        node -= times;
        if (*list++ != ',')
            return -1;
    }
    return -1;
}

/* PET_* are torchrun's own settings. Without torchrun they are a set only if each pod is one rank.
 * That is a fixed number of pods, with one process in each ("auto": the number that torchrun would
 * choose). */
static bool dti_env_read_pet(dti_env_reader *r, dti_launched *set) {
    const char *nodes = dti_env_get(r, "PET_NNODES");
    const char *each = dti_env_get(r, "PET_NPROC_PER_NODE");
    bool elastic = nodes && strchr(nodes, ':');
    bool several = each && dti_is_digit(*each) && strcmp(each, "1") != 0;
    set->local_rank = 0;
    set->local_size = 1;
    if (!dti_env_count(r, "PET_NODE_RANK", 0, &set->rank) ||
        (!elastic && !dti_env_count(r, "PET_NNODES", 1, &set->size)))
        return false;
    set->complete = set->rank >= 0 && set->size >= 1 && !several;
    return true;
}

static bool dti_env_read_set(dti_env_reader *r, int id) {
    const struct dti_launcher_names *names = &dti_launchers[id];
    dti_launched *set = &r->launch[id];
    if (id == DTI_LAUNCHER_PET)
        return dti_env_read_pet(r, set);
    if (!dti_env_count(r, names->rank, 0, &set->rank) ||
        !dti_env_count(r, names->size, 1, &set->size) ||
        !dti_env_count(r, names->local_rank, 0, &set->local_rank) ||
        !dti_env_count(r, names->local_size, 1, &set->local_size))
        return false;
    set->complete = set->rank >= 0 && set->size >= 1;
    if (id == DTI_LAUNCHER_TORCH && set->size > 1 && !r->desc.rendezvous[0])
        set->complete = set->complete && dti_env_has_master(r);
    if (DTI_HAS_LAUNCHERS && id == DTI_LAUNCHER_SLURM) {
        uint64_t node = UINT64_MAX;
        const char *tasks = dti_env_get(r, "SLURM_STEP_TASKS_PER_NODE");
        const char *text = dti_env_get(r, "SLURM_NODEID");
        if (text && dti_env_parse(text, UINT64_MAX, &node))
            set->local_size = dti_slurm_tasks(tasks, node);
    }
    if (id == DTI_LAUNCHER_INDEX && dti_env_get(r, "DTRAIN_RANK"))
        *set = (dti_launched){-1, -1, -1, -1, false}; /* another variable has the rank */
    return true;
}

/* PMIx has no variable for the size. Its library is asked only if PMIx would be chosen. Else each
 * worker of a torchrun below would take the rank's connection. */
static void dti_env_complete_pmix(dti_env_reader *r) {
    dti_launched *pmix = &r->launch[DTI_LAUNCHER_PMIX], *slurm = &r->launch[DTI_LAUNCHER_SLURM];
    uint32_t rank = 0, size = 0;
    if (pmix->rank < 0)
        return;
    for (int i = 0; i < DTI_LAUNCHER_PMIX; i++)
        if (r->launch[i].complete) {
            pmix->rank = -1;
            return;
        }
    if (slurm->complete && slurm->rank == pmix->rank)
        pmix->size = slurm->size;
    else if (r->env->pmix_loads(r->env->user) && r->env->pmix_job(r->env->user, &rank, &size) &&
             rank == pmix->rank && size <= DTI_WORLD_MAX)
        pmix->size = size;
    pmix->complete = pmix->size > 0;
}

/* ---- which set */

/* Whether `outer` describes the daemons or agents of `inner`'s launcher. torchrun reports its
 * number of agents. mpirun and Hydra start one daemon on each node of a Slurm job by srun. That is
 * a step with one task per node, below a launcher that counts the ranks of a node itself. */
static bool dti_launcher_is_outer(const dti_env_reader *r, int inner, int outer) {
    const dti_launched *in = &r->launch[inner], *out = &r->launch[outer];
    const char *agents = dti_env_get(r, "GROUP_WORLD_SIZE");
    const char *nodes = dti_env_get(r, "SLURM_STEP_NUM_NODES");
    uint64_t count;
    if (inner == DTI_LAUNCHER_TORCH && out->complete && agents &&
        dti_env_parse(agents, DTI_WORLD_MAX, &count) && (int64_t)count == out->size)
        return true;
    return outer == DTI_LAUNCHER_SLURM && inner != outer && in->local_size > 0 && nodes &&
           dti_env_parse(nodes, DTI_WORLD_MAX, &count) && (int64_t)count == out->size;
}

/* torch's names are common, and scripts set some of them by hand. So those that are set must agree
 * even if the set is not complete. */
static bool dti_launches_agree(const dti_env_reader *r, int chosen, int other) {
    const dti_launched *a = &r->launch[chosen], *b = &r->launch[other];
    if (!b->complete && other != DTI_LAUNCHER_TORCH)
        return true;
    return (b->rank < 0 || a->rank == b->rank) && (b->size < 0 || a->size == b->size);
}

static bool dti_env_check_others(dti_env_reader *r, int chosen) {
    for (int i = 0; i < DTI_LAUNCHER_COUNT; i++) {
        const struct dti_launcher_names *a = &dti_launchers[chosen], *b = &dti_launchers[i];
        char of[2][24] = {"?", "?"};
        if (dti_launches_agree(r, chosen, i) || dti_launcher_is_outer(r, chosen, i))
            continue;
        if (r->launch[i].rank >= 0)
            snprintf(of[0], sizeof of[0], "%d", (int)r->launch[i].rank);
        if (r->launch[i].size >= 0)
            snprintf(of[1], sizeof of[1], "%d", (int)r->launch[i].size);
        return dti_env_fail(
            r,
            "the launchers' variables disagree; %s: rank %d of %d (%s, %s); %s: rank %s of %s (%s, "
            "%s); unset one set, or set DTRAIN_LAUNCHER=%s or %s",
            a->name, (int)r->launch[chosen].rank, (int)r->launch[chosen].size, a->rank,
            a->size[0] ? a->size : "PMIx", b->name, of[0], of[1], b->rank,
            b->size[0] ? b->size : "PMIx", a->name, b->name);
    }
    return true;
}

/* Adds ", NAME" for a variable that is not set. */
static void dti_env_add_missing(const dti_env_reader *r, const char *name, char list[128]) {
    size_t used = strlen(list);
    if (*name && !dti_env_get(r, name))
        snprintf(list + used, 128 - used, "%s%s", used ? ", " : "", name);
}

/* The error of an incomplete set. */
static bool dti_env_fail_incomplete(dti_env_reader *r, int id) {
    const struct dti_launcher_names *names = &dti_launchers[id];
    const char *each = dti_env_get(r, "PET_NPROC_PER_NODE");
    char list[128] = "";
    dti_env_add_missing(r, names->rank, list);
    dti_env_add_missing(r, names->size, list);
    if (id == DTI_LAUNCHER_PMIX && !list[0])
        return dti_env_fail(r, "PMIX_RANK is set, but libpmix.so.2 cannot be loaded or reports no "
                               "job size; set DTRAIN_RANK, DTRAIN_WORLD_SIZE and DTRAIN_RDZV");
    if (id == DTI_LAUNCHER_PET && !list[0])
        return dti_env_fail(
            r,
            "PET_NNODES is %s and PET_NPROC_PER_NODE is %s, which only torchrun reads; use "
            "torchrun --no-python, or a fixed number of nodes and nprocPerNode 1",
            dti_env_quote(dti_env_get(r, "PET_NNODES")).text, dti_env_quote(each ? each : "").text);
    if (id == DTI_LAUNCHER_TORCH && !r->desc.rendezvous[0] && r->launch[id].size != 1) {
        dti_env_add_missing(r, "MASTER_ADDR", list);
        dti_env_add_missing(r, "MASTER_PORT", list);
    }
    return dti_env_fail(r,
                        "the variables of %s are not complete; set %s, or use a launcher (dtrun, "
                        "torchrun, mpirun, srun), or DTRAIN_LAUNCHER=none for one process",
                        names->name, list);
}

/* Whether some variables of a set are set. Slurm's rank is not enough: each batch script has it. */
static bool dti_env_has_some(const dti_env_reader *r, int id) {
    const dti_launched *set = &r->launch[id];
    if (id == DTI_LAUNCHER_SLURM)
        return set->size >= 0;
    if (id == DTI_LAUNCHER_TORCH &&
        (dti_env_get(r, "MASTER_ADDR") || dti_env_get(r, "MASTER_PORT")))
        return true;
    if (id == DTI_LAUNCHER_PET && dti_env_get(r, "PET_NNODES"))
        return true; /* "1:4" */
    if (id == DTI_LAUNCHER_PMI && (dti_env_get(r, "PMI_FD") || dti_env_get(r, "PMI_PORT")))
        return true;
    return set->rank >= 0 || set->size >= 0;
}

/* An incomplete set of dtrain's own names is an error whatever else there is; but a Job's pods have
 * their rank from the Job. */
static bool dti_env_check_own(dti_env_reader *r) {
    const dti_launched *own = &r->launch[DTI_LAUNCHER_DTRAIN];
    if (own->complete || !dti_env_has_some(r, DTI_LAUNCHER_DTRAIN) ||
        (own->rank < 0 && dti_env_get(r, "JOB_COMPLETION_INDEX")))
        return true;
    return dti_env_fail_incomplete(r, DTI_LAUNCHER_DTRAIN);
}

/* Kubeflow's PyTorchJob v1 counts all processes in WORLD_SIZE, but RANK is the pod's. Only torchrun
 * in the pod makes ranks of it, and sets LOCAL_RANK. */
static bool dti_env_check_pytorch_job(dti_env_reader *r) {
    const char *each = dti_env_get(r, "PET_NPROC_PER_NODE");
    uint64_t count;
    if (!each || !dti_env_parse(each, UINT64_MAX, &count) || count <= 1 ||
        dti_env_get(r, "LOCAL_RANK"))
        return true;
    return dti_env_fail(r,
                        "PET_NPROC_PER_NODE is %s, so RANK (%d) is the pod's, not a process's; use "
                        "torchrun --no-python in the pod, or nprocPerNode 1",
                        dti_env_quote(each).text, (int)r->launch[DTI_LAUNCHER_TORCH].rank);
}

/* No launcher's set: a single process, if that is certain. */
static bool dti_env_choose_none(dti_env_reader *r) {
    const char *tasks = dti_env_get(r, "SLURM_NTASKS");
    uint64_t count;
    for (int i = 0; i < DTI_LAUNCHER_COUNT; i++)
        if (dti_env_has_some(r, i))
            return dti_env_fail_incomplete(r, i);
    if (dti_env_get(r, "SLURM_PROCID") && tasks && dti_env_parse(tasks, UINT64_MAX, &count) &&
        count > 1)
        snprintf(r->desc.warning, sizeof r->desc.warning,
                 "this runs as a single process, although SLURM_NTASKS is %s; start the program "
                 "with srun, as a batch script runs only once",
                 dti_env_quote(tasks).text);
    return true;
}

/* DTRAIN_LAUNCHER: the set that alone counts, DTI_LAUNCHER_COUNT for "none", -1 for no word. */
static bool dti_env_forced(dti_env_reader *r, int *forced) {
    const char *name = dti_env_get(r, "DTRAIN_LAUNCHER");
    *forced = -1;
    if (!name)
        return true;
    if (!strcmp(name, "none")) {
        *forced = DTI_LAUNCHER_COUNT;
        return true;
    }
    for (int i = 0; i < DTI_LAUNCHER_COUNT; i++)
        if (*forced < 0 && !strcmp(name, dti_launchers[i].name))
            *forced = i;
    if (*forced == DTI_LAUNCHER_PET && !dti_env_get(r, "PET_NODE_RANK") &&
        !dti_env_get(r, "PET_NNODES"))
        *forced = DTI_LAUNCHER_INDEX;
    return *forced >= 0 || dti_env_fail(r,
                                        "DTRAIN_LAUNCHER is \"%s\"; it must be dtrain, torch, "
                                        "ompi, pmix, pmi, slurm, k8s or none",
                                        dti_env_quote(name).text);
}

/* Without the other launchers: dtrun's names. A set of another launcher is an error, unless it is
 * of one process or equals dtrun's. */
static bool dti_env_choose_own(dti_env_reader *r, int forced, int *chosen) {
    if (forced == DTI_LAUNCHER_DTRAIN && !r->launch[forced].complete)
        return dti_env_fail_incomplete(r, forced);
    if (!dti_env_check_own(r))
        return false;
    if (r->launch[DTI_LAUNCHER_DTRAIN].complete) {
        *chosen = DTI_LAUNCHER_DTRAIN;
        return dti_env_check_others(r, *chosen);
    }
    for (int i = DTI_LAUNCHER_DTRAIN + 1; i < DTI_LAUNCHER_COUNT; i++)
        if (forced == i || (dti_env_has_some(r, i) && r->launch[i].size != 1))
            return dti_env_fail(r,
                                "launched by %s (%s): %s; use dtrun, or set DTRAIN_RANK, "
                                "DTRAIN_WORLD_SIZE and DTRAIN_RDZV, or DTRAIN_LAUNCHER=none",
                                dti_launchers[i].name, dti_launchers[i].rank, DTI_OFF(LAUNCHERS));
    return true;
}

/* *chosen: DTI_LAUNCHER_COUNT = a single process. */
static bool dti_env_choose(dti_env_reader *r, int *chosen) {
    int forced;
    *chosen = DTI_LAUNCHER_COUNT;
    if (!dti_env_forced(r, &forced) || forced == DTI_LAUNCHER_COUNT)
        return !r->failed;
    for (int i = 0; i < DTI_LAUNCHER_COUNT; i++) {
        r->launch[i] = (dti_launched){-1, -1, -1, -1, false};
        if ((forced < 0 || forced == i) && !dti_env_read_set(r, i))
            return false;
    }
    if (!DTI_HAS_LAUNCHERS)
        return dti_env_choose_own(r, forced, chosen);
    dti_env_complete_pmix(r);
    if (forced >= 0) {
        *chosen = forced;
        if (!r->launch[forced].complete)
            return dti_env_fail_incomplete(r, forced);
    } else if (!dti_env_check_own(r)) {
        return false;
    }
    for (int i = DTI_LAUNCHER_COUNT - 1; i >= 0; i--)
        if (r->launch[i].complete)
            *chosen = i;
    if (*chosen == DTI_LAUNCHER_COUNT)
        return dti_env_choose_none(r);
    if (*chosen == DTI_LAUNCHER_TORCH && !dti_env_check_pytorch_job(r))
        return false;
    return dti_env_check_others(r, *chosen);
}
