/* The transport over an MPI library, for sites whose fabric has no better road. */

static dt_result dti_comm_open_mpi(dt_comm *comm, const dt_comm_desc *desc) {
    (void)desc;
    return dti_fail(comm->base, DT_ERROR_UNSUPPORTED,
                    "this build has no MPI transport: use DT_COMM_TCP, which mpirun starts too");
}
