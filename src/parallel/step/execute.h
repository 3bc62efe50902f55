/* Executes lists: one loop, and one way to wait, for all strategies. A thread that waits helps
 * meanwhile: it sums, and uses the network. */

struct dti_parallel;
typedef dt_result dti_action_fn(struct dti_parallel *par, uint32_t index, const dti_action *a);

typedef struct dti_list_walk { /* a device's thread in a step */
    const dti_list *list;
    uint32_t at, ended; /* actions that have begun, and ended */
    bool given_up;      /* another device failed, or the network, in the middle of it */
    uint64_t waited;    /* nanoseconds of waiting for its actions' needs */
    uint64_t since;     /* when a part of the step began, less the time that it waited */
} dti_list_walk;

/* The functions of a strategy's devices; index: of the device. */
typedef struct dti_action_calls {
    dti_list_walk *(*walk)(const struct dti_parallel *par, uint32_t index);
    dti_action_fn *act;
    /* Actions before `end` have ended. NULL, and in a search: each has when its function
     * returns. */
    dt_result (*reach)(struct dti_parallel *par, uint32_t index, uint32_t end);
    dti_action_fn *search; /* segments, in a search (nan_search.c); may be NULL */
    bool (*failed)(const struct dti_parallel *par);
    /* Does some work for a thread that waits. wait: the action that waits to begin; NULL: something
     * else. */
    void (*help)(struct dti_parallel *par, uint32_t index, const dti_action *wait);
} dti_action_calls;

/* Works off a device's list, from its place to before action `end`. */
static dt_result dti_list_run(struct dti_parallel *par, uint32_t index, uint32_t end);

/* A sync point of devices here, each on its thread. All bring operands. Then one computes the value
 * for all, or each reads all operands. */
typedef struct dti_device_meet {
    _Atomic uint32_t *arrived, *made;  /* operands that were brought; values that were made */
    uint32_t index, brings, here, met; /* device; its operands, all here; sync points before */
    bool makes;                        /* this device does it */
    dt_result (*make)(struct dti_parallel *par, const void *of, bool *given_up); /* NULL: no other
                                                                                    device */
    const void *of;
} dti_device_meet;

/* Until the value is ready, or all operands are. *given_up: another device failed. */
static dt_result dti_meet_all(struct dti_parallel *par, const dti_device_meet *m, bool *given_up);

/* ---- nan_search.c */
typedef struct dti_finding { /* the first NaN of a device */
    uint64_t at;             /* in the order of all devices' launches */
    char text[512];
} dti_finding;

/* For a job of that many devices here. MEMORY */
static dt_result dti_search_make(struct dti_parallel *par, uint32_t devices);
/* On a device's thread: its program's update; or segments of an action, of a part of the model. */
static void dti_search_update(struct dti_parallel *par, uint32_t index, dt_program *p,
                              uint32_t part);
static dt_result dti_search_segments(struct dti_parallel *par, uint32_t index, dt_program *p,
                                     const dti_action *a, uint32_t part);
static dti_action_fn dti_search_act; /* an action, in a search */
/* On all ranks together: works the lists in use off. *out: the first finding, where it is
 * here, else NULL. After an error the job has ended. */
static dt_result dti_search_lists(struct dti_parallel *par, const dti_finding **out);
/* The same of a step that is given up; its update is looked at first. NUMERIC on all ranks, with
 * the name. DT_OK: nothing was found. */
static dt_result dti_search_step(struct dti_parallel *par);
