/* The commit segment: check and norm of the gradient, the optimizer over blocks, the step counts.
 * Everything that a step changes in the store is written only here, and only if the abort word is
 * clear. The device owns t. */

/* ---- the optimizer of a program */

static uint64_t dti_optim_row_sparse_cols(const dti_code *code, const dti_param *param,
                                          uint32_t group) {
    const dt_shape s = code->work->nodes[param->node].shape;
    if (!group || !code->optim.groups[group - 1].sparse || !param->elements)
        return 0;
    return s.rank ? param->elements / (uint64_t)s.dim[0] : 1;
}

/* DTI_TABLE_PLAIN, _APART or 0. If matrices are apart, plain ones are treated like vectors. */
static uint32_t dti_optim_treatment(const dti_code *code, const dti_param *param, uint32_t group) {
    const dti_optim_row *row = dti_optim_row_of(code->optim.kind);
    const bool plain = group && code->optim.groups[group - 1].elementwise;
    const int rank = code->work->nodes[param->node].shape.rank;
    if (row->apart)
        return plain || rank < 2 ? 0 : DTI_TABLE_APART;
    return plain || (row->matrix && rank != 2) ? DTI_TABLE_PLAIN : 0;
}

/* A group that takes no parameter is a pattern with a mistake: its numbers would count for nothing.
 * Parameters that this program does not train count, since two programs may share a description. */
static void dti_optim_groups_check(const dti_code *code, dti_text *problems) {
    const uint32_t params = code->layout->param_count;
    uint32_t taken[DT_MAX_GROUPS] = {0};
    for (uint32_t i = 0; i < params; i++) {
        const dti_node *n = &code->work->nodes[code->layout->params[i].node];
        const uint32_t group = dti_optim_group_of(&code->optim, n->label);
        const uint64_t cols = dti_optim_row_sparse_cols(code, &code->layout->params[i], group);
        taken[group] += !n->buffer;
        if (cols > DTI_TABLE_COLS_MAX)
            dti_text_add(
                problems,
                "\n- optimizer: .groups[%u].sparse: rows of '%s' have %llu elements; at most %d",
                group - 1, n->label, (unsigned long long)cols, DTI_TABLE_COLS_MAX);
    }
    for (uint32_t g = 0; g < DT_MAX_GROUPS - 1; g++) {
        const dt_optim_group *given = &code->desc.optim->groups[g];
        const dti_hint missed =
            dti_glob_missed(given->params, "parameter", code, params, dti_code_param_name);
        if (!given->params && (given->lr_scale != 0.0 || given->weight_decay != 0.0 ||
                               given->sparse || given->elementwise))
            dti_text_add(problems, "\n- optimizer: .groups[%u] has settings, but no .params", g);
        if (given->params && (missed.text[0] || !taken[g + 1]))
            dti_text_add(
                problems, "\n- optimizer: .groups[%u].params = \"%.100s\": %s", g, given->params,
                missed.text[0]
                    ? missed.text
                    : "the group is empty: earlier groups match all its parameters; put it first");
    }
}

/* Settings that exclude fewer bits; train/compat.h checks those of a trainer. */
static void dti_optim_stored_check(const dti_code *code, dti_text *problems) {
    const dt_optim_desc *d = &code->optim;
    const dti_optim_row *row = dti_optim_row_of(d->kind);
    bool sparse = false;
    for (int i = 0; i < DT_MAX_GROUPS - 1; i++)
        sparse = sparse || d->groups[i].sparse;
    if (d->state_dtype && row && !dti_stored_kind_fits(d->kind))
        dti_text_add(problems,
                     "\n- optimizer: %s needs .state_dtype = DT_STATE_F32; SGD, Adam, AdamW and "
                     "Lion support others",
                     row->name);
    if (code->layout->dtype != DT_F32 && dti_optim_is_whole(row))
        dti_text_add(problems,
                     "\n- optimizer: %s cannot be combined with .parameter_dtype = DT_BF16, as it "
                     "needs whole parameters; use another, such as AdamW",
                     row->name);
    if (d->state_dtype && d->average.kind)
        dti_text_add(problems, "\n- optimizer: .average cannot be combined with .state_dtype: an "
                               "average is f32, as its steps are small; leave one out");
    if (d->state_dtype == DT_STATE_8BIT && sparse)
        dti_text_add(problems, "\n- optimizer: .groups with .sparse cannot be combined with "
                               "DT_STATE_8BIT: rows of a block have one scale; use DT_STATE_BF16");
}

static void dti_optim_resolve(dti_code *code, dti_text *problems) {
    code->optim = dti_optim_resolved(code->desc.optim);
    dti_optim_check(&code->optim, problems);
    dti_optim_check_unused(code->desc.optim, problems);
    dti_optim_stored_check(code, problems);
    if (!code->stage_blocks) /* the whole model's code has looked: a group may be another stage's */
        dti_optim_groups_check(code, problems);
}

/* ---- the block table */

/* Kernels find a moment by a 32-bit word number. */
static dt_result dti_state_fits(const dti_code *code) {
    uint64_t words = dti_state_size(code->layout, dti_optim_arrays(&code->optim));
    if (words <= UINT32_MAX)
        return DT_OK;
    return dti_code_fail(code, DT_ERROR_UNSUPPORTED,
                         "the optimizer's state has %llu values, at most 2^32; train fewer "
                         "parameters, or with SGD without momentum",
                         (unsigned long long)words);
}

/* Which blocks of parameters follow each other. */
typedef enum dti_table_part { DTI_TABLE_ALL, DTI_TABLE_OWN, DTI_TABLE_OTHERS } dti_table_part;

static bool dti_table_has(const dti_code *code, uint64_t at, dti_table_part part) {
    const bool own = at >= code->layout->own_begin && at < code->layout->own_end;
    return part == DTI_TABLE_ALL || own == (part == DTI_TABLE_OWN);
}

/* Where a block lies in the arenas that an update works on. With units the own blocks come first,
 * and others have no place. */
static uint32_t dti_table_block(const dti_code *code, const dti_param *param, uint64_t at) {
    const dti_layout *l = code->layout;
    uint64_t element = param->offset + at;
    if (dti_code_has_units(code) && param->rest != DTI_NO_REST)
        element = param->rest + at;
    else if (dti_code_has_units(code))
        element = dti_table_has(code, element, DTI_TABLE_OWN) ? element - l->own_begin : 0;
    return (uint32_t)(element / DTI_BLOCK);
}

/* Returns the place of the next one. */
static uint32_t *dti_table_param(const dti_code *code, uint32_t i, dti_table_part part,
                                 uint32_t *entry) {
    const dti_param *param = &code->layout->params[i];
    uint32_t group = dti_optim_group_of(&code->optim, code->work->nodes[param->node].label);
    const uint32_t kind =
        code->update[i] ? DTI_TABLE_BUFFER : dti_optim_treatment(code, param, group);
    const uint32_t cols = (uint32_t)dti_optim_row_sparse_cols(code, param, group);
    for (uint64_t at = 0; at < param->elements; at += DTI_BLOCK) {
        if (!dti_table_has(code, param->offset + at, part))
            continue;
        entry[DTI_TABLE_BLOCK] = dti_table_block(code, param, at);
        entry[DTI_TABLE_GROUP] = group | cols << 8;
        entry[DTI_TABLE_PARAM] = i | kind | (at == 0 ? DTI_TABLE_FIRST : 0u);
        entry[DTI_TABLE_USED] = (uint32_t)DTI_MIN(param->elements - at, (uint64_t)DTI_BLOCK) |
                                (cols ? (uint32_t)(at % cols) << 9 : 0);
        entry += DTI_TABLE_WORDS;
    }
    return entry;
}

static uint32_t dti_table_blocks(const dti_code *code, uint32_t i, bool buffers) {
    const bool has = buffers ? code->update[i] != 0 : code->trained[i] && !code->update[i];
    return has ? (uint32_t)dti_ceil_div(code->layout->params[i].elements, DTI_BLOCK) : 0;
}

/* Trained parameters in the arena's order, so that a part of the arena is a run of entries; then
 * buffers. */
static uint32_t *dti_table_fill(dti_code *code, bool buffers, dti_table_part part,
                                uint32_t *entry) {
    for (uint32_t i = code->layout->param_count; i-- > 0;) {
        if (dti_table_blocks(code, i, buffers))
            entry = dti_table_param(code, i, part, entry);
    }
    return entry;
}

static void dti_table_fill_all(dti_code *code) {
    const bool units = dti_code_has_units(code);
    uint32_t *entry =
        dti_table_fill(code, false, units ? DTI_TABLE_OWN : DTI_TABLE_ALL, code->table);
    entry = dti_table_fill(code, true, DTI_TABLE_ALL, entry);
    if (units)
        dti_table_fill(code, false, DTI_TABLE_OTHERS, entry);
}

/* Where only a part is: the run of entries of blocks in it. */
static void dti_table_own(dti_code *code) {
    const dti_layout *l = code->layout;
    code->own_entries = l->parted ? 0 : code->table_entries;
    for (uint32_t i = 0; i < l->param_count && l->parted; i++) {
        const uint64_t blocks = dti_table_blocks(code, i, false);
        for (uint64_t k = 0; k < blocks; k++) {
            const uint64_t at = l->params[i].offset + k * DTI_BLOCK;
            code->own_first += at < l->own_begin;
            code->own_entries += dti_table_has(code, at, DTI_TABLE_OWN);
        }
    }
    code->pairs_own = code->stage_blocks ? code->table_entries : 0;
    code->pairs_all = code->stage_blocks;
    if (!dti_code_has_units(code))
        return;
    code->pair_first = code->own_first;
    code->own_first = 0;
    code->pairs_own = code->own_entries + code->buffer_entries;
    if (!code->stage_blocks)
        code->pairs_all = code->table_entries;
}

/* Where blocks lie that are in fewer bits: the words after all entries. */
static void dti_table_stored(const dti_code *code) {
    const dti_layout *l = code->layout;
    uint32_t *to = code->table + (size_t)code->table_entries * DTI_TABLE_WORDS, block = 0;
    for (uint32_t i = 0; i < code->table_entries; i++, to += DTI_STORED_WORDS) {
        const uint32_t word = code->table[(size_t)i * DTI_TABLE_WORDS + DTI_TABLE_PARAM];
        const dti_param *p = &l->params[word & DTI_TABLE_INDEX];
        const dt_state_dtype state = dti_layout_state(l, p);
        block = word & DTI_TABLE_FIRST ? 0 : block + 1;
        to[DTI_STORED_BLOCK] = block | (state == DT_STATE_F32 ? DTI_STORED_F32 : 0u);
        to[DTI_STORED_STATE] =
            (uint32_t)dti_layout_state_at(l, p) + block * dti_stored_words(state);
    }
}

static dt_result dti_pass_table(dti_lowering *w) {
    dti_code *code = w->code;
    dt_result result = code->has_optim ? dti_state_fits(code) : DT_OK;
    if (result || !code->has_optim)
        return result;
    code->table_entries = code->buffer_entries = 0;
    for (uint32_t i = 0; i < code->layout->param_count; i++) {
        code->buffer_entries += dti_table_blocks(code, i, true);
        code->table_entries += dti_table_blocks(code, i, false);
    }
    code->table_entries += code->buffer_entries;
    const bool stored = dti_layout_is_stored(code->layout);
    code->table_bytes = (uint64_t)DTI_WORD_BYTES * DTI_MAX(code->table_entries, 1u) *
                        (DTI_TABLE_WORDS + (stored ? DTI_STORED_WORDS : 0u));
    code->table = dti_alloc(code->base, (size_t)code->table_bytes);
    DTI_HAVE(code->table);
    dti_table_fill_all(code);
    dti_table_own(code);
    if (stored)
        dti_table_stored(code);
    return DT_OK;
}

/* ---- launches */

/* A stage's pairs leave with a segment of their own; those of all stages come with the next, in the
 * order that the blocks have in one table. So their sum has the same bits as on one device. */
static uint32_t dti_commit_pairs_of_all(dti_code *code, const dti_optim_site *site) {
    const uint64_t own = 2ull * code->pairs_own, all = 2ull * code->pairs_all;
    code->pairs_out = code->out_bytes;
    code->pairs_in = code->in_bytes;
    code->out_bytes += dti_aligned(dti_bytes(DT_F32, own));
    code->in_bytes += dti_aligned(dti_bytes(DT_F32, all));
    const uint32_t pairs =
        dti_listing_value(&code->list, DTI_VALUE_OUT, DT_F32, own, code->pairs_out);
    if (own)
        dti_emit_grad_norm(site, code->pairs_own, pairs);
    dti_segment_end(code);
    return dti_listing_value(&code->list, DTI_VALUE_IN, DT_F32, all, code->pairs_in);
}

/* Checks the losses of a whole program. A replica's own do not decide: the whole job's are checked
 * before the commit. */
static uint32_t dti_commit_losses(const dti_code *code) {
    return code->desc.no_check || code->slices.piece_count ? 0u : DTI_COMMIT_LOSSES;
}

/* So the next micro-batch can be started before the host has seen this one's losses. */
static void dti_commit_check(dti_code *code, const dti_optim_site *site, uint32_t status) {
    const dti_args_commit args = {.terms = code->loss_count, .flags = dti_commit_losses(code)};
    if (!code->desc.accumulate || code->slices.piece_count)
        return;
    dti_emit_clip_finish(site->e, &args, status, status, site->state);
    dti_segment_end(code);
}

static void dti_commit_norm(dti_code *code, const dti_optim_site *site, uint32_t status) {
    const bool apart = code->pairs_all > 0;
    bool norm = apart || !code->desc.no_check || code->optim.clip_norm > 0.0;
    uint32_t pairs = status;
    if (apart) {
        pairs = dti_commit_pairs_of_all(code, site);
    } else if (norm) {
        pairs = dti_emit_scratch(site->e, DT_F32, 2ull * code->table_entries);
        dti_emit_grad_norm(site, code->table_entries, pairs);
    }
    const uint32_t blocks = apart ? code->pairs_all : code->table_entries;
    const uint32_t maximize = code->optim.maximize ? DTI_COMMIT_MAXIMIZE : 0u;
    const dti_args_commit args = {.blocks = norm ? blocks : 0,
                                  .terms = code->loss_count,
                                  .flags = dti_commit_losses(code) | maximize};
    dti_emit_clip_finish(site->e, &args, pairs, status, site->state);
}

/* The element that lies first in the arenas of an update, and how many there are. */
static uint64_t dti_commit_base(const dti_code *code) {
    return dti_code_has_units(code) ? code->layout->own_begin : 0;
}

static uint32_t dti_commit_arena(dti_code *code, dti_value_kind kind) {
    const dti_layout *l = code->layout;
    return dti_listing_value(&code->list, kind, kind == DTI_VALUE_PARAM ? l->dtype : DT_F32,
                             dti_code_has_units(code) ? l->fixed : l->elements, 0);
}

/* Below 0 for a part of the moments, so it is divided before it is cut to 32 bits. */
static uint32_t dti_commit_fours(const dti_code *code, uint32_t moment) {
    const uint64_t at = dti_state_moment_offset(code->layout, moment) + dti_commit_base(code);
    return (uint32_t)((int64_t)at / 4);
}

static dti_optim_site dti_commit_site(dti_code *code, dti_emit *e) {
    const uint64_t table = code->table_bytes / DTI_WORD_BYTES;
    const uint64_t words = dti_state_size(code->layout, dti_optim_arrays(&code->optim));
    const dti_layout *layout = code->layout;
    const bool whole = dti_optim_is_whole(dti_optim_row_of(code->optim.kind));
    const dti_args_commit args = {.first = code->own_first,
                                  .blocks = code->own_entries,
                                  .moments = dti_optim_moments(&code->optim),
                                  .moment_fours = dti_commit_fours(code, 0),
                                  .stride_fours = (uint32_t)(dti_state_array_words(layout) / 4),
                                  .t_offset = (uint32_t)dti_state_t_offset(code->layout),
                                  .share_offset = whole ? DTI_STATE_SHARES : 0,
                                  .pair_offset = (uint32_t)dti_state_pair_offset(layout)};
    return (dti_optim_site){
        .e = e,
        .optim = &code->optim,
        .params = dti_commit_arena(code, DTI_VALUE_PARAM),
        .grads = dti_commit_arena(code, DTI_VALUE_GRADIENT),
        .state = dti_listing_value(&code->list, DTI_VALUE_STATE, DT_F32, words, 0),
        .table = dti_listing_value(&code->list, DTI_VALUE_TABLE, DT_I32, table, 0),
        .sparse = dti_code_is_sparse(code),
        .stored = dti_layout_is_stored(layout) ? 1u + (uint32_t)layout->state : 0u,
        .entries = code->table_entries,
        .args = args};
}

/* Of a parameter of entry i of two axes or more: the last two are those of its matrices. */
static dti_optim_matrix dti_commit_matrix(const dti_code *code, uint32_t i) {
    const uint32_t *entry = code->table + (size_t)i * DTI_TABLE_WORDS;
    const uint32_t param = entry[DTI_TABLE_PARAM] & DTI_TABLE_INDEX;
    const dti_param *p = &code->layout->params[param];
    const dt_shape s = code->work->nodes[p->node].shape;
    const uint32_t rows = (uint32_t)s.dim[s.rank - 2], cols = (uint32_t)s.dim[s.rank - 1];
    return (dti_optim_matrix){.param = param,
                              .first = i,
                              .blocks = (uint32_t)dti_ceil_div(p->elements, DTI_BLOCK),
                              .group = DTI_TABLE_GROUP_OF(entry[DTI_TABLE_GROUP]),
                              .offset = (uint32_t)(p->offset - dti_commit_base(code)),
                              .count = (uint32_t)(p->elements / ((uint64_t)rows * cols)),
                              .rows = rows,
                              .cols = cols,
                              .direction = code->directions[2 * param],
                              .factors = code->directions[2 * param + 1]};
}

/* Calls `each` for every matrix of this part that its optimizer treats as a matrix, in the table's
 * order. Parts end between parameters then. */
static void dti_commit_matrices(dti_code *code, const dti_optim_site *site,
                                void (*each)(dti_code *, const dti_optim_site *,
                                             dti_optim_matrix *)) {
    const bool apart = dti_optim_row_of(code->optim.kind)->apart;
    for (uint32_t i = code->own_first; i < code->own_first + code->own_entries; i++) {
        const uint32_t word = code->table[i * DTI_TABLE_WORDS + DTI_TABLE_PARAM];
        const bool plain = apart ? !(word & DTI_TABLE_APART) : word & DTI_TABLE_PLAIN;
        if (!(word & DTI_TABLE_FIRST) || word & DTI_TABLE_BUFFER || plain)
            continue;
        dti_optim_matrix m = dti_commit_matrix(code, i);
        each(code, site, &m);
    }
}

static void dti_commit_direct(dti_code *code, const dti_optim_site *site, dti_optim_matrix *m) {
    dti_optim_row_of(code->optim.kind)->matrix(site, m);
    code->directions[2 * m->param] = m->direction;
    code->directions[2 * m->param + 1] = m->factors;
}

static void dti_commit_directed(dti_code *code, const dti_optim_site *site, dti_optim_matrix *m) {
    dti_optim_row_of(code->optim.kind)->apply(site, m);
}

/* The values of whole parameters for the dry pass and the update. */
static void dti_commit_whole(dti_code *code, const dti_optim_site *site) {
    const dti_optim_row *row = dti_optim_row_of(code->optim.kind);
    if (!dti_optim_is_whole(row) || !code->own_entries)
        return;
    if (row->whole)
        row->whole(site);
    if (row->matrix)
        dti_commit_matrices(code, site, dti_commit_direct);
}

/* Each replica writes the buffers for itself, because all have their next values. */
static void dti_commit_buffers(const dti_code *code, const dti_optim_site *site) {
    dti_optim_site buffers = *site;
    buffers.args.first =
        dti_code_has_units(code) ? code->own_entries : code->table_entries - code->buffer_entries;
    buffers.args.blocks = code->buffer_entries;
    if (code->layout->parted && code->buffer_entries)
        dti_optim_emit_blocks(&buffers);
}

static void dti_commit_optim(dti_code *code, const dti_optim_site *site, uint32_t flags) {
    dti_optim_site update = *site;
    update.args.flags = flags;
    if (!code->own_entries)
        return;
    dti_optim_emit_blocks(&update);
    if (dti_optim_row_of(code->optim.kind)->matrix)
        dti_commit_matrices(code, &update, dti_commit_directed);
}

static void dti_commit_average(const dti_code *code, const dti_optim_site *site) {
    const uint32_t at = dti_commit_fours(code, dti_optim_moments(&code->optim));
    const dti_args_commit args = {
        .first = code->own_first, .blocks = code->own_entries, .moment_fours = at};
    if (code->optim.average.kind != DT_AVERAGE_NONE && code->own_entries)
        dti_emit_average(site->e, &args, site->params, site->state, site->table);
}

static void dti_commit_tick(const dti_code *code, const dti_optim_site *site, uint32_t status,
                            uint32_t flags) {
    const uint32_t items = flags & DTI_COMMIT_TELL ? 1 : code->table_entries;
    const dti_args_commit args = {
        .blocks = code->table_entries, .t_offset = site->args.t_offset, .flags = flags};
    dti_emit_optim_tick(site->e, items, &args, site->state, site->table, status);
}

/* ---- the segment */

static dt_result dti_pass_commit(dti_lowering *w) {
    dti_code *code = w->code;
    code->check_segment = code->commit_segment = UINT32_MAX;
    if (!code->has_optim)
        return DT_OK;
    dti_sparse_table(code);
    w->e.id = 0;
    w->e.workgroups = w->e.workgroups && !code->layout->offload; /* the host's */
    const dti_optim_site site = dti_commit_site(code, &w->e);
    code->check_segment = code->segment_count;
    dti_commit_check(code, &site, w->status);
    code->commit_segment = code->update_segment = code->segment_count;
    dti_commit_norm(code, &site, w->status);
    dti_commit_whole(code, &site);
    if (!code->desc.no_check)
        dti_commit_optim(code, &site, DTI_COMMIT_DRY);
    if (code->slices.piece_count) { /* whether all may write is agreed in between */
        dti_commit_tick(code, &site, w->status, DTI_COMMIT_TELL);
        dti_segment_end(code);
        code->update_segment = code->segment_count;
    }
    dti_commit_optim(code, &site, code->desc.no_check ? DTI_COMMIT_UNTOLD : 0);
    dti_commit_buffers(code, &site);
    dti_commit_average(code, &site);
    dti_commit_tick(code, &site, w->status, 0);
    dti_segment_end(code);
    return code->list.result;
}
