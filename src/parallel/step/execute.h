/* Works off lists: one loop, and one way to wait, for all strategies. A thread that waits helps
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
    /* Actions before `end` have ended; NULL: each has when its function returns. */
    dt_result (*reach)(struct dti_parallel *par, uint32_t index, uint32_t end);
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
