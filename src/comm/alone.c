/* With DT_NO_COMM: a comm has one rank, this process. Whatever would connect it to others is an
 * error that says so; replicas of one process (dt_trainer_desc.parallel.replicas) need none of
 * it. */

#define DTI_NO_COMM_TEXT "this dtrain was compiled with DT_NO_COMM and supports one process only"

DTI_ABSENT(dt_result, dti_comm_open_tcp, (dt_comm * comm, const dt_comm_desc *desc),
           dti_fail(comm->base, DT_ERROR_UNSUPPORTED, ".world_size is %d: " DTI_NO_COMM_TEXT,
                    desc->world_size));
DTI_ABSENT(dt_result, dti_comm_measure, (dt_comm * comm, const dt_comm_desc *desc), DT_OK);
DTI_ABSENT(dt_result, dti_mpi_enter, (dti_base * base, dt_comm_desc *desc, bool ask, bool *owns),
           dti_fail(base, DT_ERROR_UNSUPPORTED, ".transport is DT_COMM_MPI: " DTI_NO_COMM_TEXT));

#ifndef DT_COMM_ONLY
static const dti_message_server_calls *dti_message_server_calls_of(void) {
    return NULL;
}
#endif

DTI_ABSENT(void, dti_mpi_leave, (bool owns), );
DTI_ABSENT(dt_result, dti_comm_open_mpi, (dt_comm * comm, const dt_comm_desc *desc, bool owns),
           dti_fail(comm->base, DT_ERROR_UNSUPPORTED, DTI_NO_COMM_TEXT));

DT_API dt_result dt_comm_create_threads(const dt_comm_desc *desc, int size, dt_comm **out) {
    dti_base base;
    dti_base_init(&base, desc ? &desc->allocator : NULL, desc ? &desc->logger : NULL);
    DTI_NEED(&base, out);
    /* a size that is wrong says nothing of the room at out, but for the first */
    for (int i = 0; i < (size <= 1024 ? size : 1); i++)
        out[i] = NULL;
    dt_result result =
        dti_fail(&base, DT_ERROR_UNSUPPORTED, "dt_comm_create_threads: " DTI_NO_COMM_TEXT);
    out[0] = dti_comm_new(&base, NULL, 0, 1); /* reports the error */
    return result;
}

/* One process; but a launcher that started several must not see each of them train by itself. */
DT_API dt_comm_desc dt_comm_desc_from_env(void) {
    static const char *const sizes[] = {"DTRAIN_WORLD_SIZE",    "WORLD_SIZE",
                                        "OMPI_COMM_WORLD_SIZE", "PMI_SIZE",
                                        "SLURM_STEP_NUM_TASKS", "PET_NNODES"};
    dt_comm_desc desc = {.world_size = 1};
    for (size_t i = 0; i < DTI_COUNT(sizes) && !desc.error[0]; i++) {
        const char *text = getenv(sizes[i]);
        if (text && atoi(text) > 1)
            snprintf(desc.error, sizeof desc.error, "%s is %.20s: " DTI_NO_COMM_TEXT, sizes[i],
                     text);
    }
    return desc;
}
