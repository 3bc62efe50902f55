/* The device team: one thread for each replica of a process, the caller's included. All of them run
 * a phase of a step, which ends when all have finished. */

typedef struct dti_device_team dti_device_team;
typedef void dti_device_team_fn(void *arg, uint32_t index);

/* count - 1 threads, with all signals blocked. comm: NULL, or the comm that the caller of
 * dti_device_team_run holds. Then all threads may use it. pin: thread i keeps to the i-th processor
 * that this process may use (the caller's too, until the device team goes). Errors: MEMORY, INVALID
 * (no threads). */
static dt_result dti_device_team_create(dti_base *base, dt_comm *comm, uint32_t count, bool pin,
                                        dti_device_team **out);
static void dti_device_team_destroy(dti_device_team *device_team);
/* fn(arg, i) for i in [0, count), 0 on this thread. */
static void dti_device_team_run(dti_device_team *device_team, dti_device_team_fn *fn, void *arg);
