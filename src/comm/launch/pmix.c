/* A client of PMIx, by which Open MPI, PRRTE and `srun --mpi=pmix` let their processes exchange
 * texts. The site's library is loaded if a launcher's variables ask for it. So dtrain needs nothing
 * to be built, or to run elsewhere. It declares only what it uses, by the PMIx standard (the layout
 * of these three types is the same since version 3; checked against the headers of 4.2.2).
 *
 * PMIx counts its users: a program that calls MPI as well shares its one connection. The library
 * has a thread of its own for as long as it is in use. */

#define DTI_PMIX_KEY_MAX 511
#define DTI_PMIX_SPACE_MAX 255
#define DTI_PMIX_WILDCARD (UINT32_MAX - 1) /* the job itself, in a place for a rank */

enum { DTI_PMIX_STRING = 3, DTI_PMIX_INT = 6, DTI_PMIX_UINT32 = 14, DTI_PMIX_BOOL = 1 };
enum { DTI_PMIX_GLOBAL = 3 }; /* a scope: all ranks may ask for it */

typedef struct dti_pmix_proc {
    char space[DTI_PMIX_SPACE_MAX + 1];
    uint32_t rank;
} dti_pmix_proc;

typedef struct dti_pmix_value {
    uint16_t type;
    union {
        bool flag;
        int integer;
        uint32_t uint32;
        char *string;
        void
            *widest[3]; /* as wide as the widest in the standard: an envar's two texts and a char */
    } data;
} dti_pmix_value;

typedef struct dti_pmix_info {
    char key[DTI_PMIX_KEY_MAX + 1];
    uint32_t flags;
    dti_pmix_value value;
} dti_pmix_info;

_Static_assert(sizeof(dti_pmix_proc) == 260, "as pmix_common.h has it");
_Static_assert(sizeof(void *) != 8 || sizeof(dti_pmix_value) == 32, "as pmix_common.h has it");
_Static_assert(sizeof(void *) != 8 || sizeof(dti_pmix_info) == 552, "as pmix_common.h has it");

#if DTI_POSIX_2008

typedef struct dti_pmix {
    void *library;
    dti_pmix_proc self;
    int (*init)(dti_pmix_proc *self, dti_pmix_info *info, size_t infos);
    int (*put)(uint8_t scope, const char *key, dti_pmix_value *value);
    int (*commit)(void);
    int (*fence)(const dti_pmix_proc *procs, size_t count, const dti_pmix_info *info, size_t infos);
    int (*get)(const dti_pmix_proc *proc, const char *key, const dti_pmix_info *info, size_t infos,
               dti_pmix_value **value);
    int (*finalize)(const dti_pmix_info *info, size_t infos);
} dti_pmix;

/* A data pointer as a function pointer: POSIX allows it; ISO C has no cast for it. */
static bool dti_pmix_symbol(void *library, const char *name, void *to) {
    void *symbol = dti_library_find(library, name);
    memcpy(to, &symbol, sizeof symbol);
    return symbol != NULL;
}

static bool dti_pmix_load(dti_pmix *pmix) {
    const char *why;
    *pmix = (dti_pmix){.library = dti_library_open("libpmix.so.2", &why)};
    return pmix->library && dti_pmix_symbol(pmix->library, "PMIx_Init", &pmix->init) &&
           dti_pmix_symbol(pmix->library, "PMIx_Put", &pmix->put) &&
           dti_pmix_symbol(pmix->library, "PMIx_Commit", &pmix->commit) &&
           dti_pmix_symbol(pmix->library, "PMIx_Fence", &pmix->fence) &&
           dti_pmix_symbol(pmix->library, "PMIx_Get", &pmix->get) &&
           dti_pmix_symbol(pmix->library, "PMIx_Finalize", &pmix->finalize);
}

/* The library itself stays: threads of it may still be on their way out. */
static bool dti_pmix_open(dti_pmix *pmix) {
    return dti_pmix_load(pmix) && pmix->init(&pmix->self, NULL, 0) == 0;
}

static bool dti_pmix_loads(void *user) {
    dti_pmix pmix;
    return dti_pmix_load(&pmix);
}

/* The value is the library's malloc's. */
static void dti_pmix_value_free(dti_pmix_value *value) {
    if (value && value->type == DTI_PMIX_STRING && value->data.string) {
        dti_wipe(value->data.string, strlen(value->data.string));
        free(value->data.string);
    }
    free(value);
}

static bool dti_pmix_get_size(dti_pmix *pmix, uint32_t *size) {
    dti_pmix_proc job = pmix->self;
    dti_pmix_value *value = NULL;
    job.rank = DTI_PMIX_WILDCARD;
    if (pmix->get(&job, "pmix.job.size", NULL, 0, &value) != 0 || !value)
        return false;
    bool ok = value->type == DTI_PMIX_UINT32;
    *size = value->data.uint32;
    dti_pmix_value_free(value);
    return ok;
}

/* This process's rank and its job's size. */
static bool dti_pmix_job(void *user, uint32_t *rank, uint32_t *size) {
    dti_pmix pmix;
    if (!dti_pmix_open(&pmix))
        return false;
    bool ok = dti_pmix_get_size(&pmix, size);
    *rank = pmix.self.rank;
    pmix.finalize(NULL, 0);
    return ok;
}

/* The runtime's own time limit. A rank that waits for a missing one gets an error from it. */
static dti_pmix_info dti_pmix_timeout(int timeout_ms) {
    dti_pmix_info info = {.key = "pmix.timeout", .value = {.type = DTI_PMIX_INT}};
    info.value.data.integer = timeout_ms / 1000 + 1;
    return info;
}

static int dti_pmix_put(dti_pmix *pmix, const char *key, char *text) {
    dti_pmix_value value = {.type = DTI_PMIX_STRING};
    value.data.string = text; /* copied by it */
    int status = pmix->put(DTI_PMIX_GLOBAL, key, &value);
    return status ? status : pmix->commit();
}

static int dti_pmix_get(dti_pmix *pmix, const char *key, const dti_pmix_info *limit, char *text,
                        size_t room) {
    dti_pmix_proc root = pmix->self;
    dti_pmix_value *value = NULL;
    root.rank = 0;
    int status = pmix->get(&root, key, limit, 1, &value);
    if (status)
        return status;
    bool ok = value && value->type == DTI_PMIX_STRING && value->data.string &&
              strlen(value->data.string) < room;
    if (ok)
        memcpy(text, value->data.string, strlen(value->data.string) + 1);
    dti_pmix_value_free(value);
    return ok ? 0 : -1;
}

/* All ranks call it; each gets rank 0's text. A second call in a process gives the new text (4.2.2,
 * mpirun and srun). But if MPI keeps the library open, its cache may have the old text. */
static dt_result dti_pmix_exchange(dti_base *base, uint32_t rank, int timeout_ms, char *mine,
                                   char *of_rank0, size_t room) {
    static const char key[] = "dtrain";
    dti_pmix pmix;
    dti_pmix_info limit = dti_pmix_timeout(timeout_ms);
    const char *what = "PMIx_Put";
    if (!dti_pmix_open(&pmix))
        return dti_fail(base, DT_ERROR_IO,
                        "PMIx: %s. Set DTRAIN_RDZV to tcp://host:port or file:///shared/path",
                        pmix.library ? "PMIx_Init failed: was it started by a PMIx launcher?"
                                     : "libpmix.so.2 cannot be loaded");
    int status = pmix.self.rank == rank ? 0 : -1;
    if (status)
        what = "PMIx_Init (it reports another rank)";
    if (!status && rank == 0)
        status = dti_pmix_put(&pmix, key, mine);
    if (!status) {
        what = "PMIx_Fence";
        status = pmix.fence(NULL, 0, &limit, 1);
    }
    if (!status) {
        what = "PMIx_Get of rank 0's address";
        status = dti_pmix_get(&pmix, key, &limit, of_rank0, room);
    }
    pmix.finalize(NULL, 0);
    if (!status)
        return DT_OK;
    return dti_fail(base, status == -24 ? DT_ERROR_TIMEOUT : DT_ERROR_IO,
                    "PMIx: %s failed with status %d%s. Set DTRAIN_RDZV to tcp://host:port or "
                    "file:///shared/path to avoid PMIx",
                    what, status, status == -24 ? ", a timeout: a rank is missing" : "");
}

#else

DTI_ABSENT(bool, dti_pmix_loads, (void *user), false);

static bool dti_pmix_job(void *user, uint32_t *rank, uint32_t *size) {
    *rank = *size = 0;
    return false;
}

DTI_ABSENT(dt_result, dti_pmix_exchange,
           (dti_base * base, uint32_t rank, int timeout_ms, char *mine, char *of_rank0,
            size_t room),
           dti_fail(base, DT_ERROR_UNSUPPORTED,
                    "PMIx requires POSIX (-std=gnu11); set DTRAIN_RDZV instead"));

#endif
