/* ---- Where a step's time goes: a trace ----------------------------------------------------------
 *
 * A dt_profile collects when things happened, and dt_profile_save writes them as a Chrome trace
 * (JSON), which https://ui.perfetto.dev and chrome://tracing open. dt_profile_run makes one step
 * with a time for each launch; dt_profile_fit is a callback of dt_trainer_fit for whole steps.
 * Steps that are made otherwise are not slowed down: nothing is measured unless it is asked for.
 *
 * A process of the trace is a rank, a thread of it a device. One that has several ranks gives each
 * a file, and they can be opened together.
 *
 * Threads: the context's. */

typedef struct dt_profile dt_profile;

typedef struct dt_profile_desc {
    int rank;  /* of this process: dt_comm_rank */
    int steps; /* of dt_profile_fit that are kept, the first of them; 0 = 100 */
} dt_profile_desc;

/* desc may be NULL. Ownership: *out is yours; destroy it before the context. Errors, with *out
 * NULL: INVALID (NULL, negative numbers), MEMORY. */
DT_API dt_result dt_profile_create(dt_ctx *ctx, const dt_profile_desc *desc, dt_profile **out);
/* NULL is allowed. */
DT_API void dt_profile_destroy(dt_profile *profile);

/* dt_program_run, launch by launch: same bits, but slower, for launches do not overlap. Each is an
 * event with its op and tensor, its kernel, the bytes of all values that it binds, and its
 * operations as the kernel's own figures have them; long ones are several. Times are the device's:
 * timestamps on Vulkan (where a device has none, only the parts that it was given are seen). The
 * first steps of a program compile and warm up: profile a later one. Errors: as dt_program_run, and
 * MEMORY. */
DT_API dt_result dt_profile_run(dt_profile *profile, dt_program *program, const dt_step_desc *step,
                                dt_report *report);
/* For dt_fit_desc.callbacks, {dt_profile_fit, profile}: an event for each step, and within it how
 * long the rank waited for samples and, behind its own work, for the sums of others. Errors:
 * INVALID (NULL; a state that is of no dt_trainer_fit). */
DT_API dt_result dt_profile_fit(void *profile, dt_fit_state *state);

/* Writes all events so far; the file appears complete or not at all. Errors: INVALID (NULL), IO,
 * MEMORY (also where an event was lost for it). */
DT_API dt_result dt_profile_save(const dt_profile *profile, const char *path);
