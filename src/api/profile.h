/* ---- Profiles: where the time of a step goes
 *
 * dt_profile_save writes a Chrome trace (JSON). https://ui.perfetto.dev and chrome://tracing open
 * it. In it a process is a rank, and a thread is a device. Each rank saves a file of its own. A
 * viewer can open several together.
 *
 * Threads: the context's. */

typedef struct dt_profile dt_profile;

typedef struct dt_profile_desc {
    int rank;  /* rank of this process: dt_comm_rank */
    int steps; /* dt_profile_fit: number of steps to record, from the first on; 0 = 100 */
} dt_profile_desc;

/* Creates a profile. Errors: INVALID, MEMORY. */
DT_API dt_result dt_profile_create(dt_ctx *ctx, const dt_profile_desc *desc, dt_profile **out);
/* Frees a profile, before its context is destroyed. */
DT_API void dt_profile_destroy(dt_profile *profile);

/* Does the same as dt_program_run, and records each launch; they do not overlap. An event has the
 * op, the tensor, the kernel, the bytes of all values that it binds, and its operations. A long
 * launch is several events.
 *
 * Times are the device's. A Vulkan device without timestamps gives one event for each segment. The
 * first steps of a program warm up: profile a later one.
 * Errors: as dt_program_run; MEMORY. */
DT_API dt_result dt_profile_run(dt_profile *profile, dt_program *program, const dt_step_desc *step,
                                dt_report *report);
/* Records the steps of dt_trainer_fit. Put {dt_profile_fit, profile} into dt_fit_desc.callbacks.
 * Each step is an event. It contains two waits of the rank: for samples, and for sums from other
 * ranks. */
DT_API dt_result dt_profile_fit(void *profile, dt_fit_state *state);

/* Writes all events so far. Errors: IO, MEMORY (also if it ran out for an earlier event). */
DT_API dt_result dt_profile_save(const dt_profile *profile, const char *path);
