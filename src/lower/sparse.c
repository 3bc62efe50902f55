/* Gradients of which a step writes only touched rows: those of tables whose optimizer skips rows
 * without a gradient (dt_optim_group.sparse). The gradient is an array like any other, with zeros
 * in other rows. A word of each of its blocks, in the state arena, says which rows were touched
 * (DTI_ROW_BIT). So the commit need not read the others. Words are valid while only programs with
 * the same words write the gradient. The store records that (dti_kept.rows), and a step after
 * another writer regards all rows as touched (DTI_FLAG_WHOLE).
 *
 * It does not apply to gradients that others write between the backward part and the commit. Those
 * are gradients of replicas, stages and tensor ranks, accumulated micro-batches, and sharded state
 * (ZeRO). */

/* A program by itself, or the only replica of a job that is computed at once. */
static bool dti_sparse_may(const dti_code *code) {
    const bool lone = code->slices.piece_count == 1 && code->slices.leaves == 1 &&
                      !dti_pieces_fold(code) && !code->slices.any_part &&
                      code->slices.pieces[0].begins && code->slices.pieces[0].ends;
    return code->has_optim && !code->desc.accumulate && !code->stage_blocks &&
           !code->layout->parted && (!code->slices.piece_count || lone);
}

/* The parameter in whose gradient's place the node is made; NULL: not of one parameter only. */
static const dti_param *dti_sparse_param(const dti_lowering *w, uint32_t id) {
    const dti_code *code = w->code;
    const uint32_t param = w->param_of[id];
    if (!param || w->next_param[param - 1] || !w->pin[id] ||
        code->list.values[w->pin[id]].kind != DTI_VALUE_GRADIENT)
        return NULL;
    return &code->layout->params[param - 1];
}

static void dti_sparse_offer(dti_lowering *w, uint32_t id) {
    dti_code *code = w->code;
    const dti_layout *l = code->layout;
    w->e.sparse = (dti_sparse){0};
    const dti_param *p = dti_sparse_may(code) ? dti_sparse_param(w, id) : NULL;
    if (!p || dti_cut_needed(code, &w->e) ||
        !dti_optim_row_sparse_cols(
            code, p, dti_optim_group_of(&code->optim, code->work->nodes[p->node].label)))
        return;
    w->e.sparse.first = (uint32_t)(p->offset / DTI_BLOCK);
    w->e.sparse.words =
        dti_listing_value(&code->list, DTI_VALUE_STATE, DT_I32, l->elements / DTI_BLOCK,
                          DTI_WORD_BYTES * dti_state_pair_offset(l));
}

static void dti_sparse_take(dti_lowering *w, uint32_t id) {
    if (w->e.sparse.taken)
        w->code->sparse[w->param_of[id] - 1] = 1;
    w->e.sparse = (dti_sparse){0};
}

static void dti_sparse_table(dti_code *code) {
    for (uint32_t i = 0; i < code->table_entries; i++) {
        uint32_t *param = &code->table[(size_t)i * DTI_TABLE_WORDS + DTI_TABLE_PARAM];
        if (code->sparse[*param & DTI_TABLE_INDEX])
            *param |= DTI_TABLE_SPARSE;
    }
}
