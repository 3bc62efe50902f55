/* What the process's environment says about its place in a group: dt_comm_desc_from_env(). It
 * knows the variables of the launchers below, takes the first complete set of them, and refuses
 * what would make ranks wait for each other forever: half a set, two sets that disagree, numbers
 * with anything behind them, values that would be cut. It starts nothing and joins nothing, but
 * asks PMIx for a job's size where no variable has it. The sources are the launchers' own, named
 * at each.
 *
 * A launcher may run inside another one, torchrun or mpirun below srun for one: then the outer
 * one's set speaks of the inner one's daemons and disagrees by right. dti_launch_is_outer() says
 * when that is certain; otherwise DTRAIN_LAUNCHER decides. */

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
/* Slurm: where ports for ranks to meet begin, and how many there are. */
#define DTI_SLURM_PORT 61440u
#define DTI_SLURM_PORTS 4096u
#define DTI_SLURM_TRIES 16

/* Where the answers come from; tests and fuzzing have their own. */
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

/* ---- values */

/* The first error stays. false, for the caller to return. */
DTI_PRINTF(2, 3)
static bool dti_env_fail(dti_env_reader *r, const char *format, ...) {
    if (r->failed)
        return false;
    va_list list;
    va_start(list, format);
    vsnprintf(r->desc.error, sizeof r->desc.error, format, list);
    va_end(list);
    r->failed = true;
    return false;
}

/* An empty variable counts as none: manifests and scripts leave such behind. */
static const char *dti_env_get(const dti_env_reader *r, const char *name) {
    const char *value = *name ? r->env->get(r->env->user, name) : NULL;
    return value && *value ? value : NULL;
}

typedef struct dti_quoted {
    char text[44];
} dti_quoted;

/* For an error's text: short, and nothing in it that a terminal would obey. */
static dti_quoted dti_env_quote(const char *value) {
    dti_quoted q;
    size_t i = 0, most = sizeof q.text - 4;
    for (; value[i] && i < most; i++)
        q.text[i] = value[i] >= 0x20 && value[i] < 0x7F ? value[i] : '?';
    memcpy(q.text + i, value[i] ? "..." : "", value[i] ? 4 : 1);
    return q;
}

/* Digits alone, all of them; no sign, no space. */
static bool dti_env_parse(const char *text, uint64_t most, uint64_t *value) {
    uint64_t v = 0;
    const char *at = text;
    for (; dti_is_digit(*at); at++) {
        uint64_t digit = (uint64_t)(*at - '0');
        if (v > (UINT64_MAX - digit) / 10)
            return false;
        v = v * 10 + digit;
    }
    *value = v;
    return at > text && !*at && v <= most;
}

/* *value stays as it is when the variable is not set. */
static bool dti_env_u64(dti_env_reader *r, const char *name, uint64_t least, uint64_t most,
                        uint64_t *value) {
    const char *text = dti_env_get(r, name);
    uint64_t v;
    if (!text)
        return true;
    if (!dti_env_parse(text, most, &v) || v < least)
        return dti_env_fail(r, "%s=\"%s\" is not a whole number from %llu to %llu", name,
                            dti_env_quote(text).text, (unsigned long long)least,
                            (unsigned long long)most);
    *value = v;
    return true;
}

static bool dti_env_int(dti_env_reader *r, const char *name, int least, int most, int *value) {
    uint64_t v = 0;
    if (!dti_env_get(r, name))
        return true;
    if (!dti_env_u64(r, name, (uint64_t)least, (uint64_t)most, &v))
        return false;
    *value = (int)v;
    return true;
}

/* A rank or a number of ranks; -1 when not set. */
static bool dti_env_count(dti_env_reader *r, const char *name, int least, int64_t *value) {
    int v = -1;
    bool ok = dti_env_int(r, name, least, DTI_WORLD_MAX, &v);
    *value = v;
    return ok;
}

/* Copies a text; one that would be cut is an error. `hint` says what else can be done. */
static bool dti_env_text(dti_env_reader *r, const char *name, char *to, size_t room,
                         const char *hint) {
    const char *text = dti_env_get(r, name);
    if (!text)
        return true;
    size_t size = strlen(text);
    if (size >= room)
        return dti_env_fail(r, "%s has %llu characters; at most %llu fit%s", name,
                            (unsigned long long)size, (unsigned long long)room - 1, hint);
    memcpy(to, text, size + 1);
    return true;
}

/* ---- dtrain's own variables */

static bool dti_env_seconds(dti_env_reader *r, const char *name, int *ms) {
    int seconds = 0;
    bool ok = dti_env_int(r, name, 1, INT_MAX / 1000, &seconds);
    if (seconds)
        *ms = seconds * 1000;
    return ok;
}

static bool dti_env_port_range(dti_env_reader *r) {
    const char *text = dti_env_get(r, "DTRAIN_PORT_RANGE");
    const char *dash = text ? strchr(text, '-') : NULL;
    char low[8] = "";
    uint64_t from = 0, to = 0;
    if (!text)
        return true;
    if (dash && dash - text < 6)
        memcpy(low, text, (size_t)(dash - text));
    if (!dash || !dti_env_parse(low, 65535, &from) || !dti_env_parse(dash + 1, 65535, &to) ||
        from == 0 || from > to)
        return dti_env_fail(r,
                            "DTRAIN_PORT_RANGE=\"%s\" is not LOW-HIGH, two ports from 1 to 65535",
                            dti_env_quote(text).text);
    r->desc.port_low = (int)from;
    r->desc.port_high = (int)to;
    return true;
}

static bool dti_env_rendezvous(dti_env_reader *r) {
    static const char *const schemes[] = {"tcp://", "file:///", "tcpstore://", "pmix:", "pmi:"};
    char *url = r->desc.rendezvous;
    if (!dti_env_text(r, "DTRAIN_RDZV", url, sizeof r->desc.rendezvous, ""))
        return false;
    if (!strcmp(url, "env:"))
        *url = 0;
    for (size_t i = 0; i < DTI_COUNT(schemes); i++)
        if (!*url || !strncmp(url, schemes[i], strlen(schemes[i])))
            return true;
    return dti_env_fail(r,
                        "DTRAIN_RDZV=\"%s\" is none of tcp://host:port, file:///path, "
                        "tcpstore://host:port, pmix:, pmi: and env:",
                        dti_env_quote(url).text);
}

/* What the descriptor holds stays secret: no text shows it. */
static bool dti_env_secret_descriptor(dti_env_reader *r) {
    int descriptor = 0;
    char text[sizeof r->desc.key] = "";
    if (!dti_env_int(r, "DTRAIN_SECRET_FD", 0, INT_MAX, &descriptor))
        return false;
    int got = r->env->descriptor_read
                  ? r->env->descriptor_read(r->env->user, descriptor, text, sizeof text)
                  : -1;
    if (got == 65 && text[64] == '\n')
        text[got = 64] = 0;
    if (got < 0)
        dti_env_fail(r,
                     "DTRAIN_SECRET_FD=%d cannot be read: it is not an open file or pipe of this "
                     "process (dtrun hands it down; a program in between closed it?)",
                     descriptor);
    else if (got == 0)
        dti_env_fail(r, "DTRAIN_SECRET_FD=%d holds nothing: a pipe can be read only once",
                     descriptor);
    else if (got != 64)
        dti_env_fail(r, "DTRAIN_SECRET_FD=%d does not hold 64 hex digits", descriptor);
    else
        memcpy(r->desc.key, text, 65);
    dti_wipe(text, sizeof text);
    return !r->failed;
}

static bool dti_env_secret(dti_env_reader *r) {
    static const char *const names[] = {"DTRAIN_SECRET", "DTRAIN_SECRET_FILE", "DTRAIN_SECRET_FD"};
    const char *set = NULL;
    int insecure = 0;
    if (!dti_env_int(r, "DTRAIN_INSECURE", 0, 1, &insecure))
        return false;
    r->desc.insecure = insecure == 1;
    if (insecure)
        set = "DTRAIN_INSECURE";
    for (size_t i = 0; i < DTI_COUNT(names); i++) {
        if (!dti_env_get(r, names[i]))
            continue;
        if (set)
            return dti_env_fail(r, "%s and %s are both set: unset one", set, names[i]);
        set = names[i];
    }
    if (!dti_env_text(r, names[0], r->desc.key, sizeof r->desc.key,
                      ": a key is 64 hex digits (openssl rand -hex 32)") ||
        !dti_env_text(r, names[1], r->desc.key_file, sizeof r->desc.key_file, ""))
        return false;
    return !dti_env_get(r, names[2]) || dti_env_secret_descriptor(r);
}

static bool dti_env_own(dti_env_reader *r) {
    dt_comm_desc *desc = &r->desc;
    return dti_env_rendezvous(r) && dti_env_port_range(r) &&
           dti_env_text(r, "DTRAIN_JOB", desc->job, sizeof desc->job, "") &&
           dti_env_u64(r, "DTRAIN_ATTEMPT", 0, UINT64_MAX, &desc->attempt) &&
           dti_env_text(r, "DTRAIN_IFNAME", desc->interfaces, sizeof desc->interfaces, "") &&
           dti_env_seconds(r, "DTRAIN_TIMEOUT", &desc->join_timeout_ms) &&
           dti_env_seconds(r, "DTRAIN_SILENCE", &desc->silence_ms) && dti_env_secret(r);
}

/* ---- the launchers' sets */

/* A place to meet that is given by hand, for torch's set and as a way out for others. */
static bool dti_env_has_master(const dti_env_reader *r) {
    return dti_env_get(r, "MASTER_ADDR") &&
           (dti_env_get(r, "MASTER_PORT") || dti_env_get(r, "DTRAIN_PORT"));
}

/* Tasks on a node, of Slurm's "2(x3),1"; -1 = the list does not say. */
static int64_t dti_slurm_tasks(const char *list, uint64_t node) {
    while (list && dti_is_digit(*list)) {
        uint64_t tasks = 0, times = 1;
        for (; dti_is_digit(*list) && tasks < DTI_WORLD_MAX; list++)
            tasks = tasks * 10 + (uint64_t)(*list - '0');
        if (list[0] == '(' && list[1] == 'x') {
            times = 0;
            for (list += 2; dti_is_digit(*list) && times < DTI_WORLD_MAX; list++)
                times = times * 10 + (uint64_t)(*list - '0');
            if (*list++ != ')')
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

/* PET_* are torchrun's own settings. Without torchrun they are a set only where each pod is one
 * rank: a fixed number of pods, and one process in each ("auto": as many as torchrun would
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
    if (id == DTI_LAUNCHER_SLURM) {
        uint64_t node = UINT64_MAX;
        const char *tasks = dti_env_get(r, "SLURM_STEP_TASKS_PER_NODE");
        const char *text = dti_env_get(r, "SLURM_NODEID");
        if (text && dti_env_parse(text, UINT64_MAX, &node))
            set->local_size = dti_slurm_tasks(tasks, node);
    }
    if (id == DTI_LAUNCHER_INDEX && dti_env_get(r, "DTRAIN_RANK"))
        *set = (dti_launched){-1, -1, -1, -1, false}; /* the rank is said better */
    return true;
}

/* PMIx has no variable for the size. Its library is asked only where it would be the one chosen: a
 * rank's connection is not to be taken by each of a torchrun's workers below it. */
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

/* Whether `outer` speaks of the daemons or agents of `inner`'s launcher. torchrun says how many
 * agents it has. mpirun and Hydra start one daemon on each node of a Slurm job by srun: a step with
 * one task a node, below a launcher that counts the ranks of a node itself. */
static bool dti_launch_is_outer(const dti_env_reader *r, int inner, int outer) {
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

/* torch's names are common ones, and scripts set some of them by hand: what there is of them has to
 * agree also where the set is not complete. */
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
        if (dti_launches_agree(r, chosen, i) || dti_launch_is_outer(r, chosen, i))
            continue;
        if (r->launch[i].rank >= 0)
            snprintf(of[0], sizeof of[0], "%d", (int)r->launch[i].rank);
        if (r->launch[i].size >= 0)
            snprintf(of[1], sizeof of[1], "%d", (int)r->launch[i].size);
        return dti_env_fail(r,
                            "%s: rank %d of %d (%s, %s); %s: rank %s of %s (%s, %s). They "
                            "disagree: unset one, or set DTRAIN_LAUNCHER=%s or %s",
                            a->name, (int)r->launch[chosen].rank, (int)r->launch[chosen].size,
                            a->rank, a->size[0] ? a->size : "PMIx", b->name, of[0], of[1], b->rank,
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

/* Says what a set lacks. */
static bool dti_env_fail_incomplete(dti_env_reader *r, int id) {
    const struct dti_launcher_names *names = &dti_launchers[id];
    const char *each = dti_env_get(r, "PET_NPROC_PER_NODE");
    char list[128] = "";
    dti_env_add_missing(r, names->rank, list);
    dti_env_add_missing(r, names->size, list);
    if (id == DTI_LAUNCHER_PMIX && !list[0])
        return dti_env_fail(r,
                            "PMIX_RANK is set, but libpmix.so.2 cannot be loaded or does not tell "
                            "the job's size: set DTRAIN_RANK, DTRAIN_WORLD_SIZE and DTRAIN_RDZV");
    if (id == DTI_LAUNCHER_PET && !list[0])
        return dti_env_fail(r,
                            "PET_NNODES=%s and PET_NPROC_PER_NODE=%s are for torchrun: use "
                            "torchrun --no-python, or a fixed number of nodes and nprocPerNode 1",
                            dti_env_quote(dti_env_get(r, "PET_NNODES")).text,
                            dti_env_quote(each ? each : "").text);
    if (id == DTI_LAUNCHER_TORCH && !r->desc.rendezvous[0] && r->launch[id].size != 1) {
        dti_env_add_missing(r, "MASTER_ADDR", list);
        dti_env_add_missing(r, "MASTER_PORT", list);
    }
    return dti_env_fail(r,
                        "The variables of %s are not complete: %s is not set. Set it, or use a "
                        "launcher (dtrun, torchrun, mpirun, srun), or DTRAIN_LAUNCHER=none for a "
                        "single process",
                        names->name, list);
}

/* Whether some of a set is there. Slurm's rank alone is not: each batch script has it. */
static bool dti_env_has_some(const dti_env_reader *r, int id) {
    const dti_launched *set = &r->launch[id];
    if (id == DTI_LAUNCHER_SLURM)
        return set->size >= 0;
    if (id == DTI_LAUNCHER_TORCH &&
        (dti_env_get(r, "MASTER_ADDR") || dti_env_get(r, "MASTER_PORT")))
        return true;
    if (id == DTI_LAUNCHER_PET && dti_env_get(r, "PET_NNODES"))
        return true; /* "1:4" */
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

/* Kubeflow's PyTorchJob v1 counts all processes in WORLD_SIZE, but RANK is the pod's: only torchrun
 * in the pod makes ranks of it, and that sets LOCAL_RANK. */
static bool dti_env_check_pytorch_job(dti_env_reader *r) {
    const char *each = dti_env_get(r, "PET_NPROC_PER_NODE");
    uint64_t count;
    if (!each || !dti_env_parse(each, UINT64_MAX, &count) || count <= 1 ||
        dti_env_get(r, "LOCAL_RANK"))
        return true;
    return dti_env_fail(r,
                        "PET_NPROC_PER_NODE=%s: RANK=%d is this pod's, not a process's. Use "
                        "torchrun --no-python in the pod, or nprocPerNode 1",
                        dti_env_quote(each).text, (int)r->launch[DTI_LAUNCHER_TORCH].rank);
}

/* Nobody's set: a single process, if that is for sure. */
static bool dti_env_choose_none(dti_env_reader *r) {
    const char *tasks = dti_env_get(r, "SLURM_NTASKS");
    uint64_t count;
    for (int i = 0; i < DTI_LAUNCHER_COUNT; i++)
        if (dti_env_has_some(r, i))
            return dti_env_fail_incomplete(r, i);
    if (dti_env_get(r, "PMI_FD") || dti_env_get(r, "PMI_PORT"))
        return dti_env_fail_incomplete(r, DTI_LAUNCHER_PMI);
    if (dti_env_get(r, "SLURM_PROCID") && tasks && dti_env_parse(tasks, UINT64_MAX, &count) &&
        count > 1)
        snprintf(r->desc.note, sizeof r->desc.note,
                 "a single process, though SLURM_NTASKS=%s: this is the batch script itself; "
                 "start the program with srun to have all tasks",
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
    return *forced >= 0 ||
           dti_env_fail(r,
                        "DTRAIN_LAUNCHER=\"%s\" is none of dtrain, torch, ompi, pmix, pmi, slurm, "
                        "k8s and none",
                        dti_env_quote(name).text);
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
            return dti_env_fail(r, "%s=\"%s\" is neither a host's name nor an address", host_name,
                                dti_env_quote(host).text);
    if (size > 200) /* a name has at most 253, and the URL must fit */
        return dti_env_fail(r, "%s has %llu characters; at most 200 fit", host_name,
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

/* The step's first host, and ports that its jobs are unlikely to share: rank 0 takes the first free
 * one. Who finds another job there sees it by the job's name in the hello, and tries the next. */
static bool dti_env_meet_slurm(dti_env_reader *r) {
    const char *list = dti_env_get(r, "SLURM_STEP_NODELIST");
    char host[201];
    uint64_t job = 0, step = 0;
    int port = 0;
    if (!list || !dti_env_get(r, "SLURM_JOB_ID") || !dti_env_get(r, "SLURM_STEP_ID"))
        return dti_env_fail(r, "%s is not set, by which the ranks would meet: set DTRAIN_RDZV",
                            !list                            ? "SLURM_STEP_NODELIST"
                            : dti_env_get(r, "SLURM_JOB_ID") ? "SLURM_STEP_ID"
                                                             : "SLURM_JOB_ID");
    if (!dti_env_u64(r, "SLURM_JOB_ID", 0, UINT64_MAX, &job) ||
        !dti_env_u64(r, "SLURM_STEP_ID", 0, UINT64_MAX, &step) ||
        !dti_env_int(r, "DTRAIN_PORT", 1, 65535, &port))
        return false;
    if (!dti_nodelist_first(list, host, sizeof host))
        return dti_env_fail(r, "SLURM_STEP_NODELIST=\"%s\" is not a list of hosts: set DTRAIN_RDZV",
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
        return dti_env_fail(r, "DTRAIN_RDZV=pmi: needs PMI_FD, which mpiexec.hydra and srun "
                               "--mpi=pmi2 set");
    if (!dti_env_int(r, "PMI_FD", 0, INT_MAX, &descriptor))
        return false;
    snprintf(r->desc.rendezvous, sizeof r->desc.rendezvous, "pmi:%d", descriptor);
    return true;
}

static bool dti_env_meet(dti_env_reader *r, int chosen) {
    bool by_pmix = chosen == DTI_LAUNCHER_PMIX || chosen == DTI_LAUNCHER_OMPI;
    if (r->desc.world_size == 1)
        return true;
    if (!strcmp(r->desc.rendezvous, "pmi:"))
        return dti_env_meet_pmi(r);
    if (r->desc.rendezvous[0])
        return true;
    if (by_pmix && dti_env_get(r, "PMIX_NAMESPACE") && r->env->pmix_loads(r->env->user)) {
        memcpy(r->desc.rendezvous, "pmix:", sizeof "pmix:");
        return true;
    }
    if (chosen == DTI_LAUNCHER_PMI && dti_env_get(r, "PMI_FD")) {
        return dti_env_meet_pmi(r);
    }
    if (chosen == DTI_LAUNCHER_PET && dti_env_get(r, "PET_MASTER_ADDR") &&
        (dti_env_get(r, "PET_MASTER_PORT") || dti_env_get(r, "DTRAIN_PORT")))
        return dti_env_url(r, "tcp", "PET_MASTER_ADDR", dti_env_get(r, "PET_MASTER_ADDR"),
                           "PET_MASTER_PORT");
    if (dti_env_has_master(r))
        return dti_env_meet_master(r);
    if (r->launch[DTI_LAUNCHER_SLURM].complete &&
        !dti_launch_is_outer(r, chosen, DTI_LAUNCHER_SLURM))
        return dti_env_meet_slurm(r);
    return dti_env_fail(r,
                        "rank %d of %d by %s, but nothing says where to meet: set DTRAIN_RDZV to "
                        "tcp://host:port or file:///shared/path on all ranks%s",
                        r->desc.rank, r->desc.world_size, dti_launchers[chosen].rank,
                        chosen == DTI_LAUNCHER_OMPI ? " (mpirun -x DTRAIN_RDZV=...)" : "");
}

/* ---- the job's name, this rank's place on its host, all of it */

static bool dti_env_job(dti_env_reader *r, int chosen) {
    static const char hint[] = ": set DTRAIN_JOB to a shorter name";
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
                            "local rank %d of %d (0 = not known) cannot be, with %d ranks in all "
                            "(%s, DTRAIN_LOCAL_RANK, DTRAIN_LOCAL_SIZE)",
                            desc->local_rank, desc->local_size, desc->world_size,
                            dti_launchers[chosen].local_rank);
    return true;
}

static bool dti_env_fill(dti_env_reader *r, int chosen) {
    const dti_launched *set = &r->launch[chosen];
    const struct dti_launcher_names *names = &dti_launchers[chosen];
    if (set->rank >= set->size)
        return dti_env_fail(r, "%s=%d is not below %s=%d", names->rank, (int)set->rank,
                            names->size[0] ? names->size : "PMIx's job size", (int)set->size);
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
    (void)user;
    return getenv(name);
}

static bool dti_env_process_pmix_loads(void *user) {
    (void)user;
    return dti_pmix_loads();
}

static bool dti_env_process_pmix_job(void *user, uint32_t *rank, uint32_t *size) {
    (void)user;
    return dti_pmix_job(rank, size);
}

static int dti_env_process_read(void *user, int descriptor, char *to, size_t room) {
    (void)user;
    return dti_key_descriptor_read(descriptor, to, room);
}

DT_API dt_comm_desc dt_comm_desc_from_env(void) {
    const dti_env env = {
        .get = dti_env_process_get,
        .pmix_loads = dti_env_process_pmix_loads,
        .pmix_job = dti_env_process_pmix_job,
        .descriptor_read = dti_env_process_read,
    };
    return dti_env_read(&env);
}
