/* A program: a code bound to a store's memory and to its own, and the step that it is in. Made by
 * compile.c, run by run.c and replica.c. It must not know the job, only one device.
 *
 * Read the store first, and then these:
 *
 *   store/store.h       the store: values of parameters on a device
 *   store/store.c       creates, reads and hashes one
 *   store/init.c        initial values
 *   store/stored_values.c   values in fewer bits, as floats or as they are stored
 *   store/offload.c     arenas on the host, and the commit there
 *   store/host_copy.c   the state on the host, for when a device is lost
 *   codes.c             the codes of a store's programs, by description
 *   compile.c           creates a program
 *   run/step_block.c    what launches read of a step's description
 *   run/finite.c        the bound below which no update can overflow
 *   run/drive.c         the state machine of a step
 *   run/run.c           dt_program_run, and the same cut open
 *   run/inflight.c      steps that start before the one before has ended
 *   run/external.c      the application's buffers as inputs and outputs
 *   run/host_weights.c   weights of losses by the host
 *   run/replica.c       what a replica of a job calls
 *   run/micro_slots.c   micro-batch slots of a pipeline's stage */

/* A place for a step in flight. It has memory of its own for inputs and outputs, and the launches
 * over it. All slots share the rest. */
#define DTI_STEP_SLOTS_MAX 2
typedef struct dti_step_slot {
    dti_memory *memories[DTI_MEMORIES];
    dti_exec_desc exec_desc;
    dti_exec *exec, *exec_next; /* next: while an arena grows */

    /* offload.c's: the commit on the host, over its memory and the host's sides of IN and OUT */
    dti_memory *host_memories[DTI_MEMORIES];
    dti_exec_desc host_desc;
    dti_exec *host; /* NULL: the device's */

    /* drive.c's, which alone writes them */
    uint32_t at, end;       /* next segment, and one past the last of this step */
    dti_exec_cursor cursor; /* in segment `at`, of which a part may have been started */
    bool busy;              /* a segment was started and not yet seen finished */
    bool forward_done;      /* outputs can be read */

    /* the step under way */
    bool commits;
    bool made; /* it makes its gradients itself, so words of rows are valid after it */
    double weights[DT_MAX_TERMS]; /* of the global batch, as given; 0 = the program's own */
    double coefficients[DT_MAX_TERMS];
    double lr;
    float proven; /* DTI_STEP_PROVEN */
    uint64_t step;
    uint32_t micro, micros;     /* of the step under way */
    dt_vulkan_semaphore signal; /* the semaphore for the application; semaphore 0: none, or done */

    /* how it ended, until that is asked for */
    dt_report report;
    dt_result result;
    char said[1024]; /* as dti_base.error */
} dti_step_slot;

typedef struct dti_host_weights dti_host_weights;

struct dt_program {
    dt_store *store;
    dti_base *base;
    dt_program *next;
    const dti_code *code; /* nothing changes it */
    dti_step_slot *step_slots;
    uint32_t step_slot_count;
    bool micro_slots; /* slots hold concurrent micro-batches, not consecutive steps */
    bool borrows;     /* its transients are an older program's, which outlives it */
    dti_memory *external[DT_MAX_OUTPUTS]; /* the application's buffers; NULL after the last */
    dti_step_slot *now;                   /* that the host writes inputs to, and drives */
    dti_step_slot *shown;                 /* its outputs are readable */
    bool *written;                        /* by binding: the host has written it */
    uint64_t *stale; /* by binding: bit t: slot t has an older value of it, or no value */

    /* inflight.c's: `started` step slots from the oldest on have steps that were started as a
     * whole */
    uint32_t oldest, started;
    uint32_t ended;                 /* of these, have ended, but their reports were not read */
    bool failed;                    /* a step before them was aborted: they do not run */
    dti_host_weights *host_weights; /* NULL: the device weighs losses */
};

/* ---- compile.c: dt_program_create; with batch_slices, of a replica's share of a step. Then losses
 * need weights (dt_step_desc) and an optimizer. Between the last backward segment and the commit
 * the caller brings the sums of all replicas to slot 0. The graph may have an error: the nodes of
 * desc are older, and valid. */
static dt_result dti_program_create(dt_store *store, const dt_program_desc *desc,
                                    const dti_batch_slices *batch_slices, dt_program **out);

/* The store is of a code that other stores train: it may keep the state. */
static void dti_store_train_elsewhere(dt_store *s, const dti_code *code);

static inline const dti_code *dti_program_code(const dt_program *p) {
    return p->code;
}

/* Its transients are its own, and it writes nothing of the store (dt_program_desc.concurrent). */
static inline bool dti_is_concurrent(const dt_program *p) {
    return p->code && p->code->desc.concurrent;
}

/* The store's pointer to the program of its kind that has a step under way. */
static inline dt_program **dti_running_of(const dt_program *p) {
    return dti_is_concurrent(p) ? &p->store->reading : &p->store->running;
}

/* The program that has a step under way; NULL: no program. */
static inline dt_program *dti_store_open(const dt_store *s) {
    return s->running ? s->running : s->reading;
}

/* ---- drive.c: a step's segments. Errors close it. */
static inline bool dti_drive_is_open(const dt_program *p) {
    return *dti_running_of(p) == p;
}
static inline bool dti_drive_is_busy(const dt_program *p) { /* something started has not ended */
    return p->now->busy;
}
static void dti_drive_open(dt_program *p, uint32_t first, uint32_t end);
/* Starts the next segments, which the device takes as one piece. */
static dt_result dti_drive_start(dt_program *p, uint32_t count);
/* Starts work for about `ms`, at least something, and nothing of segment `end`. */
static dt_result dti_drive_part(dt_program *p, uint32_t end, double ms);
/* The next segment was started in part. */
static inline bool dti_drive_inside(const dt_program *p) {
    return p->now->cursor.launch || p->now->cursor.part;
}
static dt_result dti_drive_poll(dt_program *p); /* checks whether the started work has ended */
static dt_result dti_drive_reach(dt_program *p, uint32_t segment); /* waits for it */
static dt_result dti_drive_wait(dt_program *p);                    /* for all that was started */
static void dti_drive_close(dt_program *p);
static dt_result dti_drive_drop(dt_program *p, dt_result result);
/* Runs the rest of a step that was advanced; it is then DONE, and still open. */
static dt_result dti_drive_rest(dt_program *p);
/* A segment outside of any step: that of loss weights. Waits for it. */
static dt_result dti_drive_alone(dt_program *p, uint32_t segment);

/* ---- inflight.c: steps started ahead of those under way */
static dt_result dti_inflight_place(dt_program *p); /* makes a slot free for inputs */
/* The i-th of those, oldest first. */
static inline dti_step_slot *dti_step_slot_ahead(dt_program *p, uint32_t i) {
    return &p->step_slots[(p->oldest + i) % p->step_slot_count];
}
/* dt_program_start; weights: of losses, over the whole batch, which may be 0; NULL: step's. */
static dt_result dti_program_start(dt_program *p, const dt_step_desc *step, const double *weights);
/* Whether dt_program_start would wait for one of them. */
static bool dti_inflight_waits(dt_program *p, const dt_step_desc *step);
static uint64_t dti_step_number(dt_program *p, const dt_step_desc *step);
static uint64_t dti_inflight_commits(dt_program *p); /* of those that have not ended */
/* How many of them have not ended. */
static inline uint32_t dti_inflight_count(const dt_program *p) {
    return p->started - p->ended;
}
static void dti_step_slot_written(dt_program *p, uint32_t binding); /* in the slot now */
static void dti_step_slot_refresh(dt_program *p); /* copies written inputs to another slot */
static dt_result dti_step_not_run(dt_program *p, dt_report *r);

/* ---- replica.c: a step of such a program, cut open. begin is dt_program_begin. */
static inline uint32_t dti_program_segments(const dt_program *p) { /* forward and backward ones */
    return p->code->commit_segment;
}
static inline uint32_t dti_program_forward(const dt_program *p) { /* forward ones */
    return p->code->forward_segments;
}
/* Those, and the sent part of a split backward part. */
static uint32_t dti_program_leaving(const dt_program *p);
/* The host's side of OUT. */
static inline const uint32_t *dti_program_out(const dt_program *p) {
    return p->store->device->backend->memory_host(p->now->memories[DTI_ARENA_OUT]);
}
/* A piece's statistics in OUT, of the newest run: `channels` pairs (mean, variance). */
static inline const float *dti_program_words(const dt_program *p, dti_out_words at,
                                             uint32_t piece) {
    return (const float *)(const void *)(dti_program_out(p) + at.word + piece * at.stride);
}
/* Where the caller writes a sync point's value. */
static float *dti_program_value(const dt_program *p, const dti_sync_point *m);
/* The host's side of the gradients: slots one after the other. */
static float *dti_program_gradients(dt_program *p);
/* For a piece of the newest run: a loss's or metric's (sum, weight). */
static void dti_program_term(const dt_program *p, uint32_t term, uint32_t piece, double pair[2]);
/* Whether the inputs decide a loss's weight, so that they must be written before weigh. */
static inline bool dti_program_weighs(const dt_program *p) {
    return p->code->weighs;
}
static bool dti_program_weighs_by(const dt_program *p, const dti_binding *binding); /* this one */
/* Whether an input is checked when it is written: a class number or an index. */
static bool dti_program_labels(const dt_program *p);
/* Adds the weights of each piece's losses to weights[piece * DT_MAX_TERMS + loss]; without slices
 * all is one piece. If the host computes weights: of the inputs of dti_host_weights_write. */
static dt_result dti_program_weigh(dt_program *p, double *weights);
/* dt_program_run with weights of the batch that may be 0, as where no target counts. */
static dt_result dti_program_run_weighed(dt_program *p, const dt_step_desc *step,
                                         const double *weights, dt_report *report);
/* After begin, before the backward part: the weights of the whole job's batch. */
static void dti_program_set_weights(dt_program *p, const double *weights);
/* Opens a step that only commits: a replica without rows in it. */
static dt_result dti_program_begin_commit(dt_program *p, const dt_step_desc *step);
/* Ends a run that does not commit. */
static dt_result dti_program_end(dt_program *p);
/* With units first: writes the pairs of its own blocks. The next function needs those of all. */
static dt_result dti_program_measure(dt_program *p);
/* The waits of the next two functions; each starts the work if it has not started. update: both at
 * once; the device skips the update if a value is not finite. */
static dt_result dti_program_validate_start(dt_program *p, bool update);
static dt_result dti_program_commit_start(dt_program *p);
/* The part of the commit that writes nothing; *norm is the gradient's. *faulty: the norm, or a
 * value that the update would write, is not finite. */
static dt_result dti_program_validate(dt_program *p, double *norm, bool *faulty);
/* After it: the update. Starts it and waits. */
static dt_result dti_program_commit(dt_program *p);
/* After a validation: whether a parameter, or what the update would make of one, is not finite.
 * The error's text names it. */
static bool dti_program_attribute(dt_program *p);

/* ---- host_weights.c: only for an asynchronous device, and if targets are inputs */
/* MEMORY; after it p->host_weights may be NULL */
static dt_result dti_host_weights_make(dt_program *p);
static void dti_host_weights_free(dt_program *p);
/* Checks labels as dt_program_write does, and keeps the inputs for weights. It waits for no
 * step. */
static dt_result dti_host_weights_write(dt_program *p, dt_tensor x, const void *data, size_t bytes,
                                        const uint32_t *rows);
static void dti_host_weights_copy(dt_program *p, const dti_binding *binding, const void *data);
static dt_result dti_host_weights_run(const dt_program *p, const uint32_t **out); /* *out: as OUT */

/* ---- offload.c */
static dt_result dti_step_slot_offload(dt_program *p, dti_step_slot *t);
static void dti_step_slot_offload_free(const dt_program *p, dti_step_slot *t);
static dt_result dti_offload_start(dt_program *p, uint32_t first, uint32_t count);
static char *dti_program_in(const dt_program *p); /* where the commit finds the host's values */

/* ---- micro_slots.c: a program of a stage, in which several micro-batches are alive at once. Each
 * has a micro-batch slot of its own: transients, inputs and outputs. One at a time is the program's
 * current one; between two actions none is. */
#define DTI_MICRO_SLOTS_MAX 64
static dt_result dti_program_create_micro_slots(dt_store *store, const dt_program_desc *desc,
                                                const dti_batch_slices *batch_slices,
                                                const dti_staged *staged, uint32_t micro_slots,
                                                dt_program **out);
/* Makes the slot the current one: inputs are written to it, and its step is driven. */
static inline void dti_micro_slot_take(dt_program *p, uint32_t micro_slot) {
    p->now = p->shown = &p->step_slots[micro_slot];
}
/* A micro-batch begins: dt_program_begin with the weights of the whole batch. */
static dt_result dti_micro_slot_begin(dt_program *p, const dt_step_desc *step,
                                      const double *weights);
/* Runs the next segments of its step and waits for them; then another slot may be the current one.
 */
static dt_result dti_micro_slot_run(dt_program *p, uint32_t segments);
static void dti_micro_slot_end(dt_program *p); /* a micro-batch that no update follows */
/* Bytes of transients of its own, over its micro-batch slots. */
static inline uint64_t dti_micro_slot_transients(const dt_program *p) {
    const uint32_t slots = p->code->has_gradients ? p->step_slot_count : !p->borrows;
    return p->code->transient_bytes * slots;
}
/* The host side of a binding of a micro-batch slot. */
static void *dti_micro_slot_host(const dt_program *p, uint32_t micro_slot,
                                 const dti_binding *binding);
/* The pairs of its blocks, and where those of all stages are to come. */
static const float *dti_micro_slot_pairs(const dt_program *p);
static float *dti_micro_slot_pairs_of_all(const dt_program *p);

/* ---- external.c */
/* The application's buffers of desc.external, checked against the program's bindings; for all step
 * slots. */
static dt_result dti_program_import(dt_program *p);
static void dti_program_drop_imports(dt_program *p);

/* ---- finite.c */
static float dti_status_f32(const uint32_t *status, uint32_t word);
/* The largest norm of the gradient with which the update cannot overflow; -1: not known. */
static double dti_step_proven(dt_program *p);
static void dti_store_remember(dt_program *p, const uint32_t *status);
static bool dti_update_fault(dt_program *p, dt_report *r, const char *kept);

/* ---- run.c: ends a step that has begun to write to the store */
static void dti_step_settle(dt_program *p);
/* Finds why a step is not finite, for the report. segments: the number of forward and backward ones
 * that may be the reason. */
static dt_result dti_step_fault(dt_program *p, dt_report *r, uint32_t segments);
/* Runs segments [from, end) of an open step, up to the first launch that gives such a value.
 * NUMERIC, with its name: *fault is its number. DT_OK: no launch gave one. */
static dt_result dti_step_search(dt_program *p, dt_report *r, uint32_t from, uint32_t end,
                                 uint32_t *fault);
static double dti_term_value(double sum, double weight); /* 0 where nothing weighs */
/* Finishes a commit that has begun, so that the store has a whole step. */
static dt_result dti_store_finish_commit(const dt_store *s);
/* dt_program_write, or _write_gradient; rows: which ones of a data set they are, or NULL. */
static dt_result dti_binding_write(dt_program *p, dt_tensor x, bool gradient, const void *data,
                                   size_t bytes, const uint32_t *rows);

/* ---- step_block.c */
/* Before a first step, and after one that committed: which averages exist. */
static dt_result dti_step_average_begin(dt_program *p);
static void dti_step_averaged(dt_program *p);
static void dti_step_block_fill(dt_program *p, const dt_step_desc *step);
/* Called where a step begins that may write gradients, and after it. */
static void dti_step_rows(const dt_program *p, bool ended);
