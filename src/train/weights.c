/* The weights of a job as a file, when no rank has all of them. A walk (parallel/values/values.h)
 * brings them to rank 0 piece by piece, and rank 0 writes them. */

typedef struct dti_weights_walk {
    dt_trainer *t;
    dti_writer *file;
    uint32_t warned; /* 1 + the newest parameter with a NaN or an infinity */
} dti_weights_walk;

static dt_result dti_weights_walk_write(void *user, uint32_t param, uint32_t array, uint64_t at,
                                        uint64_t n, float *values) {
    dti_weights_walk *w = user;
    const dt_store *s = w->t->par.replicas[0].store;
    if (!s->allow_nonfinite && w->warned != param + 1 &&
        dti_warn_infinite(w->t->base, dti_store_name(s, param), values, DT_F32, at, n))
        w->warned = param + 1;
    return dti_writer_add(w->file, values, (size_t)dti_arena_bytes(n));
}

/* Whether the application's store lacks some of the values to save. */
static bool dti_weights_are_apart(const dt_trainer *t, bool averaged) {
    const dti_parallel *par = &t->par;
    return dti_pipe_of(par) || dti_units_are(par) || (averaged && dti_is_sharded(par));
}

static dt_result dti_weights_save_apart(dt_trainer *t, const char *path, bool averaged) {
    dti_parallel *par = &t->par;
    dti_weights_walk w = {.t = t};
    const dti_values_file f = {.user = &w, .move = dti_weights_walk_write, .averages = averaged};
    char *piece;
    DTI_TRY(dti_agree_result(par, dti_full_given(par)));
    dt_result result =
        par->mesh.rank == 0 ? dti_weights_begin(par->replicas[0].store, path, &w.file) : DT_OK;
    result = dti_agree_result(par, result);
    if (!result)
        result = dti_agree_piece(par, &piece);
    if (!result) {
        result = dti_values_save(par, &f, 1, piece);
        dti_free(t->base, piece);
    }
    if (w.file) {
        const dt_result closed = dti_writer_close(w.file, result == DT_OK);
        result = result ? result : closed;
    }
    return dti_agree_result(par, result);
}

/* On all ranks together; rank 0 writes. */
static dt_result dti_weights_save(dt_trainer *t, const char *path, bool averaged) {
    const dt_save_desc d = {.averaged = averaged};
    if (dti_weights_are_apart(t, averaged))
        return dti_weights_save_apart(t, path, averaged);
    dt_result result = DT_OK;
    if (t->par.mesh.rank == 0)
        result = dt_store_save_matching(t->par.replicas[0].store, path, &d);
    return dti_agree_result(&t->par, result);
}
