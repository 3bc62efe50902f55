/* The stack of subtrees: which sums a run of pieces leaves, and in which order they are made. */

static uint32_t dti_pieces_rows(const dti_piece *pieces, uint32_t count) {
    uint32_t rows = 0;
    for (uint32_t i = 0; i < count; i++)
        rows += pieces[i].rows;
    return rows;
}

static uint32_t dti_subtrees_add(dti_subtrees *s, const dti_piece *piece) {
    if (piece->begins)
        s->at[s->count++] = (dt_comm_span){piece->leaf, 1};
    return s->count - 1;
}

static bool dti_subtrees_join(dti_subtrees *s, uint32_t leaves) {
    if (s->count < 2)
        return false;
    dt_comm_span *left = &s->at[s->count - 2], *right = &s->at[s->count - 1];
    if (!dti_tree_siblings(*left, *right, leaves))
        return false;
    left->count += right->count;
    s->count--;
    return true;
}

static dti_subtrees dti_subtrees_after(const dti_batch_slices *batch_slices) {
    dti_subtrees s = batch_slices->before;
    for (uint32_t i = 0; i < batch_slices->piece_count; i++) {
        dti_subtrees_add(&s, &batch_slices->pieces[i]);
        while (batch_slices->pieces[i].ends && dti_subtrees_join(&s, batch_slices->leaves)) {
        }
    }
    return s;
}
