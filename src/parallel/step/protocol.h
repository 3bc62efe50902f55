/* The commit protocol: the one step of replicas, ZeRO, local steps, and grids of pipelines. Tensor
 * groups are pipelines of one stage. A strategy is a table of its own functions. protocol.c has the
 * order, the messages between ranks, texts of errors, and the state after a failed step.
 *
 *   state     what happens                               what a failure leaves
 *   AGREE     samples, labels, loss weights, rates,      all learn of it: step s on all ranks,
 *             and requests; summed over ranks            and the job goes on
 *   RUN       forward, backward; gradients and running   a device or a rank is lost: the group
 *             statistics are summed                      ends, and step s is on all ranks
 *   NORM      each device its blocks of the norm,        a device: BARRIER reports it. A rank: as
 *             joined in the order of one model           in RUN
 *   VALIDATE  each device: whether what it would write   as in NORM, also NaN or infinity
 *             is finite
 *   BARRIER   losses and findings, summed over ranks;    a finding: all drop the step, all report
 *             after it all can write                    it, and the job goes on. A rank that dies:
 *                                                        some are at s, some at s + 1
 *   WRITE     each store by itself, without the network  weights of two steps here; others are at
 *                                                        s + 1, or at s where BARRIER had not ended
 *   PUBLISH   ZeRO-1: new values from their owners       back to s where `undo` keeps it
 *   DONE      step s + 1; a shown host's values come     all are at s + 1; the group ends
 *
 * AGREE ends before the first action that others wait for. Plain replicas wait for nobody in their
 * first forward part, so it runs while the weights travel. Where others wait, nothing has begun
 * when AGREE fails.
 *
 * That is a step of scope JOB. In scope REPLICA each replica makes its own step, or two ranks make
 * one:
 *
 *   AGREE     samples, labels and the rate of this rank  this rank can try again; others do not
 *                                                        hear of it
 *   RUN       each replica makes and writes its step; a  a device or a rank is lost: the group
 *             NaN skips the step of one replica          ends, and here is the round's start
 *   DONE      step s + 1 of the round                    then comes the plan of `next`
 *
 * An asynchronous device (one.c) is such a replica. Its AGREE starts the program, its RUN
 * waits for it, and the next step's AGREE may come before that. So two steps are under way, each an
 * object of its own (dti_step).
 *
 * A round of local steps has three plans. They are the local step (inner.c), the average of two
 * ranks (gossip.c, REPLICA), and the end of the round (round.c, JOB). The end begins with RUN,
 * where differences are summed. Its BARRIER is before its VALIDATE, as all ranks look at the same
 * sums. Before WRITE, the outer step on the host, `drop` leaves the round's start. PUBLISH brings
 * the new weights to the replicas; one that fails has those of its own last step.
 *
 * The files of this folder in the order in which to read them:
 *
 *   actions.h, actions.c           a step as lists of actions, one for each device
 *   execute.h, execute.c           executes a list, and waits
 *   nan_search.c                   which op made a NaN: the lists once more
 *   reducer.h, reducer.c           sums of gradients, and their order
 *   scalar_sums.c                  sums of a few doubles
 *   slice_stack.h, slice_stack.c   sums over batch slices of one device
 *   protocol.c                     the driver of the protocol */

typedef enum dti_protocol_state {
    DTI_PROTOCOL_AGREE,
    DTI_PROTOCOL_RUN,
    DTI_PROTOCOL_NORM,
    DTI_PROTOCOL_VALIDATE,
    DTI_PROTOCOL_BARRIER,
    DTI_PROTOCOL_WRITE,
    DTI_PROTOCOL_PUBLISH,
    DTI_PROTOCOL_DONE
} dti_protocol_state;

typedef enum dti_protocol_scope { DTI_STEP_OF_JOB, DTI_STEP_OF_REPLICA } dti_protocol_scope;

typedef void dti_parallel_clean(dti_parallel *par);
typedef dt_result dti_parallel_part(dti_parallel *par);
/* The arguments for a replica, or a grid's chunk. */
typedef dt_result dti_phase_fn(dti_parallel *par, uint32_t part);

typedef struct dti_phase_call { /* in flight */
    dti_parallel *par;
    dti_phase_fn *fn;
} dti_phase_call;

/* Functions that may be NULL say so. Those of the type dti_phase_fn are called for each part of a
 * device on its thread, until one fails. `result` finds the failure. */
typedef struct dti_strategy {
    dti_protocol_scope scope;
    bool others_wait; /* in a forward part, for another device's */
    bool split;       /* a device has a part of the model, and the host all of it on demand */
    const dti_action_calls *calls; /* how devices execute their lists */
    dti_parallel_clean *prepare;
    void (*team)(dti_parallel *par, dti_phase_fn *fn); /* for all parts */
    dti_parallel_part *result;                         /* the first one's, in the job's words */

    dti_parallel_part *before;             /* NULL: nothing. On all ranks together, before AGREE */
    dti_phase_fn *weigh;                   /* samples and labels are looked at, targets weighed */
    dti_phase_fn *forward, *weigh_forward; /* NULL if others wait: they are a part of run */
    dti_parallel_part *run, *statistics;   /* sums have been computed */
    uint64_t (*waited)(const dti_parallel *par); /* nanoseconds; NULL: not reported */
    dti_phase_fn *norm;                          /* NULL: a part of validate */
    dti_parallel_part *pairs;                    /* of all blocks, to all; NULL: each has them */
    /* Start the work that the next two wait for, on devices that one thread drives; NULL:
     * nothing. */
    dti_phase_fn *validate_start, *write_start;
    dti_phase_fn *validate;   /* sets par->now->faulty if a value is not finite */
    dti_parallel_part *check; /* the error; NULL: validate is before BARRIER, which reports */
    dti_phase_fn *write;
    dti_parallel_part *publish; /* NULL: nothing. Reports itself the state after its failure */
    /* After a step was made; and last, the failure of the report. Each NULL: nothing. */
    void (*report)(dti_parallel *par, dti_parallel_result *out);
    dt_result (*done)(dti_parallel *par, dti_parallel_result *out);
    const struct dti_strategy *(*next)(const dti_parallel *par); /* comes after it, from RUN on */
    /* Whether the next step's AGREE must wait for the end of one in flight; NULL: it must. */
    bool (*waits)(const dti_parallel *par, uint32_t rows, const dt_step_desc *step);

    /* Values that are not finite (nan_search.c). */
    const char *(*statistic)(
        const dti_parallel *par); /* the name of one that is not finite, or NULL */
    dti_phase_fn *updates;        /* calls dti_search_update */
    dti_parallel_clean *rewind;   /* the current lists begin again */
    dti_parallel_part *lists;     /* all devices execute them */
    dti_parallel_part *load;      /* running statistics as they were; nothing runs any more */
    dti_parallel_clean *drop;     /* for actions that have begun; of a round, its steps */
    dti_parallel_clean *leave; /* others wait for data that never comes: cancels their operation */
    /* The state after a failed WRITE; NULL: the text names .parts. */
    dt_result (*partial_commit)(dti_parallel *par, dt_result result);
    const char *parts; /* for that text: "stages" */
} dti_strategy;

static const dti_strategy dti_replicas_strategy, dti_units_strategy, dti_pipe_strategy,
    dti_inner_strategy, dti_alone_strategy;

/* Runs fn for all parts, and returns the result. */
static dt_result dti_protocol_phase(dti_parallel *par, dti_phase_fn *fn);
/* The state after a failure. Each of the two may be NULL: then the error is unchanged. */
static dt_result dti_protocol_over(dti_parallel *par, dt_result result, dti_parallel_clean *leave,
                                   dti_parallel_clean *drop);
/* All current lists. A failure ends the job, since other ranks wait for the results. */
static dt_result dti_protocol_lists(dti_parallel *par);
/* In WRITE or after it: the group ends. The error reports the parts that may be a step apart. */
static dt_result dti_protocol_partial_commit(dti_parallel *par, dt_result result);
static void dti_parallel_prepare(dti_parallel *par, const dti_batch *batch,
                                 const dt_step_desc *step);
/* Whether no target of the whole batch counts, and such a step is left out: all ranks know it. */
static bool dti_parallel_leaves_out(const dti_parallel *par, dti_parallel_result *out);
static void dti_terms_add(double *sum, const dt_report *r); /* of a program by itself */
static bool dti_losses_finite(const double *terms);
/* A hash of the values that a rank sets by itself for a step. Another step has another hash. */
static uint64_t dti_parallel_mark(const dti_parallel *par);
/* In parts whose sums and squares are exact for any number of ranks: to parts[2 * DTI_MARKS]. */
static void dti_mark_put(uint64_t mark, double *parts);
static bool dti_mark_same(const dti_parallel *par, const double *sums);
/* Begins one step of the whole job over a batch that all ranks know: its AGREE. `own`: this rank's
 * result before it (a callback's error). If that failed all ranks fail, and nothing has changed.
 * After an error no step has begun. */
static dt_result dti_parallel_start(dti_parallel *par, const dti_batch *batch, dt_result own,
                                    const dt_step_desc *step);
/* Whether a step of `rows` rows cannot begin before the oldest step in flight has ended. */
static bool dti_parallel_waits(const dti_parallel *par, uint32_t rows, const dt_step_desc *step);
/* The rest of the oldest step in flight. */
static dt_result dti_parallel_end(dti_parallel *par, dti_parallel_result *out);
/* The end of a step whose gradients, losses and statistics others computed. They lie in the
 * replicas' arenas and par's leaves. dti_parallel_prepare has run. */
static dt_result dti_parallel_conclude(dti_parallel *par, dti_parallel_result *out);
