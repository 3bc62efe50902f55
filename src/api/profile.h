/* ---- Profiles: where the time of a step goes ----------------------------------------------------
 *
 * A dt_profile collects events with their times. dt_profile_save writes them as a Chrome trace
 * (JSON). https://ui.perfetto.dev and chrome://tracing open it. dt_profile_run profiles one step,
 * launch by launch. dt_profile_fit profiles whole steps of dt_trainer_fit. Nothing is measured in
 * other steps, so they are not slower.
 *
 * In the trace a process is a rank, and a thread is a device. Each rank saves a file of its own. A
 * viewer can open several files together.
 *
 * Threads: the context's. */

typedef struct dt_profile dt_profile;

typedef struct dt_profile_desc {
    int rank;  /* rank of this process: dt_comm_rank */
    int steps; /* dt_profile_fit: number of steps to record, from the first on; 0 = 100 */
} dt_profile_desc;

/* Creates a profile.
 * desc: NULL = {0}.
 * Ownership: *out is yours. Destroy it before the context.
 * Errors, with *out NULL: INVALID (NULL, negative numbers), MEMORY. */
DT_API dt_result dt_profile_create(dt_ctx *ctx, const dt_profile_desc *desc, dt_profile **out);
/* Frees a profile. NULL is allowed. */
DT_API void dt_profile_destroy(dt_profile *profile);

/* Does the same as dt_program_run, and records each launch. The bits are the same. It is slower,
 * because launches do not overlap. An event has the op, the tensor and the kernel. It has the bytes
 * of all values that the kernel binds, and the operations that the kernel claims. A long launch is
 * several events.
 *
 * Times: the device's; on Vulkan its timestamps. A device without timestamps gives one event for
 * each segment of the step that was submitted.
 *
 * The first steps of a program compile and warm up. Profile a later one.
 * Errors: as dt_program_run; MEMORY. */
DT_API dt_result dt_profile_run(dt_profile *profile, dt_program *program, const dt_step_desc *step,
                                dt_report *report);
/* Records the steps of dt_trainer_fit. Put {dt_profile_fit, profile} into dt_fit_desc.callbacks.
 * Each step is an event. It contains two waits of the rank: for samples, and after its own work for
 * sums from other ranks.
 * Errors: INVALID (NULL, a state that is not from dt_trainer_fit). */
DT_API dt_result dt_profile_fit(void *profile, dt_fit_state *state);

/* Writes all events so far. The file appears completely or not at all.
 * Errors: INVALID (NULL), IO, MEMORY (also if an earlier event was lost because memory ran out). */
DT_API dt_result dt_profile_save(const dt_profile *profile, const char *path);
