/* One-shot all-reduce: every rank sends its array to every other, and each sums all.
 *
 * 1 message in a row; (N-1) S bytes sent and received per rank. Memory: (N-1) S of WORK, so that
 * all may arrive before the sum begins. It has the least latency if N-1 messages leave at once. On
 * few cores doubling is faster, as it handles log2 N messages (8 ranks on 2 cores: 83 to 108 us
 * instead of 161 to 208). So it runs only on request.
 *
 * In place: the FOLD of a chunk waits until the chunk has been sent to all. Sending waits for no
 * FOLD. The order of summing is fold.h's tree. */

static void dti_algo_all_reduce_one_shot(dti_builder *b, const dti_collective *c) {
    uint8_t dtype = (uint8_t)c->op.dtype;
    dti_stretch in = dti_stretch_all(c, DTI_REGION_IN);
    dti_stretch work = dti_add_work(b, dtype, c->op.count * (c->size - 1));
    uint32_t send = (uint32_t)b->s->step_count; /* SENDs have numbers in a row, and so have RECVs */
    for (uint32_t i = 1; i < c->size; i++)
        dti_add_send(b, (c->rank + i) % c->size, 0, in, false);
    uint32_t recv = (uint32_t)b->s->step_count;
    for (uint32_t i = 0; i + 1 < c->size; i++)
        dti_add_recv(b, i + (i >= c->rank), 0, dti_stretch_part(work, i * c->op.count, c->op.count),
                     false);
    dti_add_fold(b, dti_stretch_all(c, DTI_REGION_OUT), true);
    for (uint32_t rank = 0; rank < c->size; rank++) {
        uint32_t i = rank - (rank > c->rank);
        if (rank == c->rank)
            dti_add_source(b, in, DTI_NO_STEP, (dt_comm_span){rank, 1});
        else
            dti_add_source(b, dti_stretch_part(work, i * c->op.count, c->op.count), recv + i,
                           (dt_comm_span){rank, 1});
    }
    if (dti_coll_overlap(c) == DTI_SAME)
        for (uint32_t i = 0; i + 1 < c->size; i++)
            dti_add_after(b, send + i);
}
