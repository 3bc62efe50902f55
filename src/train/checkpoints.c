/* Checkpoints of a job's folder: when they are written, and failed ones. With .background the
 * newest may not be on the disk yet. All ranks wait for it at the same places
 * (dti_checkpoint_wait), so all count the same. */

static bool dti_checkpoint_is_lost(const dt_trainer *t, dt_result result) {
    return (result == DT_ERROR_IO || result == DT_ERROR_MEMORY) && !t->par.lost;
}

static dt_result dti_checkpoint_counted(dt_trainer *t, dt_result result) {
    if (!dti_checkpoint_is_lost(t, result))
        return result;
    t->checkpoints_failed++;
    snprintf(t->checkpoint_error, sizeof t->checkpoint_error, "%.*s",
             (int)sizeof t->checkpoint_error - 1, t->base->error);
    return result;
}

/* Rounds need not end at such steps, nor steps of trainers that share replicas. A failed checkpoint
 * is tried again when the next is due. */
static bool dti_checkpoint_is_due(const dt_trainer *t, uint64_t step) {
    const uint64_t every = (uint64_t)t->desc.checkpoint.every_steps;
    const bool passes = dti_parallel_is_local(&t->par) || t->others;
    return every && (passes ? step / every > t->tried / every
                            : step && step % every == 0 && step != t->tried);
}

/* Rank 0 waits for the others' parts, which are there now, or never will be. Where it failed by
 * itself, others' failures may come of that: it has removed the folder. */
static dt_result dti_checkpoint_last(dt_trainer *t, dt_result others) {
    const dti_error_text error = dti_error_of(&t->par);
    const bool last = t->par.mesh.rank == 0;
    dt_result own = last ? dti_checkpoint_join(t, others ? 0 : DTI_CHECKPOINT_GRACE_NS) : DT_OK;
    if (last && others && t->parts->unseen)
        own = DT_OK;
    own = dti_agree_result(&t->par, own);
    if (others && !own)
        dti_error_back(&t->par, &error);
    return own ? own : others;
}

static dt_result dti_checkpoint_wait(dt_trainer *t) {
    if (!t->writing)
        return DT_OK;
    t->writing = false;
    const bool sharded = t->desc.checkpoint.sharded;
    dt_result result = dti_agree_result(&t->par, sharded && t->par.mesh.rank == 0
                                                     ? DT_OK
                                                     : dti_checkpoint_copy_wait(t->base, t->copy));
    if (sharded)
        result = dti_checkpoint_last(t, result);
    return dti_checkpoint_counted(t, result);
}

static dt_result dti_checkpoint_join(dt_trainer *t, uint64_t wait_ns) {
    if (t->parts)
        atomic_store(&t->parts->until, wait_ns ? dti_now_ns() + wait_ns : 1);
    return dti_checkpoint_copy_wait(t->base, t->copy);
}

static dt_result dti_checkpoint_settle(dt_trainer *t) {
    const dt_result result = dti_checkpoint_wait(t);
    return dti_checkpoint_is_lost(t, result) ? DT_OK : result;
}

static dt_result dti_trainer_folder(dt_trainer *t) {
    const bool looks = t->desc.checkpoint.folder && t->par.mesh.rank == 0;
    return dti_agree_result(
        &t->par, looks ? dti_checkpoint_folder_ready(t->base, t->desc.checkpoint.folder) : DT_OK);
}

/* Before the first step of a fit, or the first checkpoint, on all ranks together. A rank of a lost
 * job writes for all: rank 0 may still have the lock. */
static dt_result dti_trainer_lock(dt_trainer *t) {
    const bool locks = t->par.mesh.rank == 0;
    int lock = -1;
    if (t->locked || t->par.lost || !t->desc.checkpoint.folder)
        return DT_OK;
    const dt_result result = dti_agree_result(
        &t->par,
        locks ? dti_checkpoint_folder_lock(t->base, t->desc.checkpoint.folder, &lock) : DT_OK);
    if (result && lock >= 0)
        dti_stream_close(lock);
    t->lock = lock;
    t->locked = !result;
    return result;
}

static void dti_trainer_unlock(dt_trainer *t) {
    if (t->locked && t->lock >= 0)
        dti_stream_close(t->lock);
    t->locked = false;
}

DTI_PUBLIC(dt_trainer_checkpoint, (dt_trainer * t), t, DTI_OF(dt_trainer) | DTI_WITH, (t)) {
    DTI_TRY(dti_sharing_is_first(t, "saved"));
    if (!t->desc.checkpoint.folder)
        return dti_fail(t->base, DT_ERROR_INVALID,
                        ".checkpoint.folder is not set; set it to the folder for checkpoints");
    DTI_TRY(dti_check_forked(t->base));
    DTI_TRY(dti_checkpoint_settle(t));
    dt_result result = dti_trainer_lock(t);
    if (!result)
        result = dti_trainer_file(t, t->desc.checkpoint.folder, true);
    t->tried = t->par.replicas[0].store->steps;
    if (!result) {
        t->saved = t->tried;
        t->writing = t->desc.checkpoint.background;
    }
    return dti_checkpoint_counted(t, result);
}
