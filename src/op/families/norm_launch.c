/* Launches of norms: statistics, the result and the gradients, by groups and by chunks of them. */

static dti_args_norm dti_norm_args(const dti_emit *e, const dti_view *x) {
    const int32_t *i = e->node->attr.i;
    dti_args_norm a = {.n = (uint32_t)dti_view_elements(x),
                       .batch = i[DTI_NORM_BATCH] != 0,
                       .channels = (uint32_t)i[DTI_NORM_CHANNELS],
                       .spatial = (uint32_t)i[DTI_NORM_SPATIAL],
                       .eps = e->node->attr.f[0],
                       .x_offset = (uint32_t)x->offset,
                       .y_offset = (uint32_t)e->out.offset};
    /* of the whole batch, even where x is a part of it */
    a.cols = a.batch ? a.spatial * (uint32_t)e->batch : (uint32_t)i[DTI_NORM_COLS];
    a.groups = a.batch ? a.channels : a.n / a.cols;
    return a;
}

/* Chunks of the sums over the given number of elements: by shape only. */
static uint32_t dti_norm_chunks(uint64_t elements) {
    return (uint32_t)DTI_MAX(dti_ceil_div(elements, DTI_NORM_CHUNK), 1u);
}

/* In chunks: pairs of groups, which the CPU makes at once, then those of the chunks. */
static void dti_norm_stats_emit(dti_emit *e) {
    dti_view x = dti_emit_dense_in(e, 0);
    dti_args_norm a = dti_norm_args(e, &x);
    if (a.batch) /* x may be a part of the batch */
        a.cols = a.spatial * (uint32_t)x.dim[0];
    a.chunks = dti_norm_chunks(a.cols);
    a.s_offset = a.y_offset;
    uint32_t to = e->out.value;
    if (a.chunks > 1) {
        to = dti_emit_scratch(e, DT_F32, 2ull * a.groups * (1 + a.chunks));
        a.s_offset = 0;
        a.p_offset = 2 * a.groups;
    }
    DTI_EMIT(e, DTI_K_NORM_STATS, (uint64_t)a.groups * a.chunks, a, x.value, to)->spec[0] =
        e->node->attr.i[DTI_NORM_RMS] != 0;
    if (a.chunks == 1)
        return;
    a.s_offset = a.y_offset;
    DTI_EMIT(e, DTI_K_NORM_FINISH, a.groups, a, to, DTI_UNBOUND, DTI_UNBOUND, e->out.value)
        ->spec[0] = DTI_NORM_FINISH_STATS;
}

static void dti_batch_stats_emit(dti_emit *e) {
    if (e->train) {
        dti_norm_stats_emit(e);
        return;
    }
    int64_t channels = e->node->attr.i[DTI_NORM_CHANNELS];
    for (uint32_t k = 0; k < 2; k++) {
        dti_view running = dti_emit_dense_in(e, 1 + k);
        const dti_view from = dti_view_line(running.value, channels, 1, running.offset);
        const dti_view to = dti_view_line(e->out.value, channels, 2, e->out.offset + k);
        dti_emit_copy(e, &from, &to, DTI_COPY_WORD);
    }
}

/* The statistics of the whole from those of parts with share w_i of the samples (Chan, Golub and
 * LeVeque, 1979). mean = mean_0 + sum w_i (mean_i - mean_0), exact if all are equal. variance = sum
 * w_i (variance_i + (mean_i - mean)^2). */
static void dti_batch_stats_join(dti_emit *e, uint32_t parts, uint32_t count, int64_t rows) {
    const int64_t c = e->node->attr.i[DTI_NORM_CHANNELS];
    const float none[2] = {0.0f, 0.0f};
    uint32_t weighted = dti_emit_scratch(e, DT_F32, (uint64_t)c * count);
    uint32_t sums = dti_emit_scratch(e, DT_F32, (uint64_t)c);
    const dti_view sum = dti_view_line(sums, c, 1, 0), first = dti_view_line(parts, c, 2, 0);
    const dti_view mean = dti_view_line(e->out.value, c, 2, e->out.offset);
    for (int64_t which = 0; which < 2; which++) {
        for (int64_t i = 0; i < count; i++) {
            double share = (double)DTI_MIN(rows, e->batch - i * rows) / (double)e->batch;
            const dti_view x = dti_view_line(parts, c, 2, 2 * c * i + which);
            const dti_view y = dti_view_line(weighted, c, 1, c * i);
            const dti_view own = dti_view_line(parts, c, 2, 2 * c * i);
            dti_emit_map2_views(e, DTI_K_MAP2, DTI_B_SUB, &own, which ? &mean : &first, &y, none);
            if (which) {
                dti_emit_map1(e, DTI_K_MAP1, DTI_U_SQUARE, &y, &y, none);
                dti_emit_map2_views(e, DTI_K_MAP2, DTI_B_ADD, &x, &y, &y, none);
            }
            dti_emit_map1(e, DTI_K_MAP1, DTI_U_AFFINE, &y, &y,
                          (const float[2]){(float)share, 0.0f});
        }
        dti_emit_sum_parts(e, weighted, count, (uint32_t)c, &sum, 1.0f);
        const dti_view to = dti_view_line(e->out.value, c, 2, e->out.offset + which);
        if (which)
            dti_emit_copy(e, &sum, &to, DTI_COPY_WORD);
        else
            dti_emit_map2_views(e, DTI_K_MAP2, DTI_B_ADD, &first, &sum, &to, none);
    }
}

static dti_view dti_norm_vector(dti_emit *e, uint32_t input) {
    const dti_view in = dti_emit_dense_in(e, input);
    return dti_view_line(in.value, dti_view_elements(&in), 1, in.offset);
}

/* w and b in one binding: mostly they are neighbouring parameters. */
static uint32_t dti_norm_affine(dti_emit *e, dti_args_norm *a) {
    const dti_view both[2] = {dti_norm_vector(e, 2), dti_norm_vector(e, 3)};
    uint32_t value;
    if (dti_emit_span(e, &both[0], &both[1], &value, &a->w_offset, &a->b_offset))
        return value;
    a->b_offset = a->channels;
    return dti_emit_join(e, both, 2);
}

/* Removes the launch before if it makes these statistics of x and nothing has read them. Then the
 * normalisation makes them as well, with a workgroup for each group or chunk. With chunks they move
 * to where the pairs are. */
static bool dti_norm_takes_stats(dti_emit *e, const dti_args_norm *a, dti_view *stats,
                                 dti_launch *taken) {
    dti_listing *list = e->list;
    if (e->pinned || list->launch_count <= list->ended)
        return false;
    *taken = list->launches[list->launch_count - 1];
    const dti_args_norm *made = &taken->args.norm;
    const bool finish = taken->kernel == DTI_K_NORM_FINISH;
    const bool half =
        !e->workgroups && (dti_is_half(dti_emit_in(e, 0).dtype) || dti_is_half(e->out.dtype));
    if (taken->value[finish ? 3 : 1] != stats->value || made->n != a->n ||
        list->values[stats->value].kind != DTI_VALUE_TRANSIENT)
        return false;
    if (finish) {
        dti_view *own = &e->views[dti_input_id(e->graph, e->node, 1)];
        own->value = stats->value = taken->value[0];
        own->offset = stats->offset = 0;
    } else if (taken->kernel != DTI_K_NORM_STATS || made->chunks != 1 ||
               (made->batch && (made->spatial == 1 || half))) { /* the CPU goes over rows of all
                                                                   channels, or over planes */
        return false;
    }
    list->launch_count--;
    if (e->own)
        e->own[e->id].first = list->launch_count;
    return true;
}

static void dti_norm_emit(dti_emit *e) {
    dti_view x = dti_emit_dense_in(e, 0), stats = dti_emit_dense_in(e, 1);
    dti_args_norm a = dti_norm_args(e, &x);
    dti_launch taken;
    const bool group = dti_norm_takes_stats(e, &a, &stats, &taken);
    const bool both = e->node->count > 3;
    const uint32_t w = both ? dti_norm_affine(e, &a) : dti_emit_given(e, 2, &a.w_offset);
    a.s_offset = (uint32_t)stats.offset;
    a.chunks = group ? taken.args.norm.chunks : 1;
    a.p_offset = group ? taken.args.norm.p_offset : 0;
    dti_launch *l = group ? DTI_EMIT(e, DTI_K_NORM_GROUP, (uint64_t)a.groups * a.chunks, a, x.value,
                                     w, e->out.value, stats.value)
                          : DTI_EMIT(e, DTI_K_NORM, a.n, a, x.value, stats.value, w, e->out.value);
    l->spec[0] = e->node->count - 2; /* DTI_NORM_PLAIN, _SCALE, _AFFINE */
    if (!group)
        return;
    l->spec[2] = a.chunks > 1 ? 0 : DTI_NORM_GROUP_WHOLE;
    l->spec[2] |= taken.kernel == DTI_K_NORM_STATS && taken.spec[0] ? DTI_NORM_GROUP_RMS : 0u;
}

static void dti_norm_dx_emit(dti_emit *e) {
    dti_view x = dti_emit_dense_in(e, 0), dy = dti_emit_dense_in(e, 1);
    dti_args_norm a = dti_norm_args(e, &x);
    const uint32_t w = dti_emit_given(e, 2, &a.w_offset);
    a.dy_offset = (uint32_t)dy.offset;
    dti_launch *l = DTI_EMIT(e, DTI_K_NORM_DX, a.groups, a, x.value, dy.value, w, e->out.value);
    l->spec[0] = e->node->attr.i[DTI_NORM_RMS] != 0;
    l->spec[1] = e->node->count > 2;
}

/* Whether a workgroup has 4 neighbouring channels, with one element of each sample or row. */
static bool dti_norm_dw_by_fours(const dti_args_norm *a) {
    return a->spatial == 1 && (a->channels | a->x_offset | a->dy_offset) % 4 == 0 &&
           (a->batch || a->cols % 4 == 0);
}

static void dti_norm_dw_emit(dti_emit *e) {
    dti_view x = dti_emit_dense_in(e, 0), stats = dti_emit_dense_in(e, 1),
             dy = dti_emit_dense_in(e, 2);
    dti_args_norm a = dti_norm_args(e, &x);
    a.s_offset = (uint32_t)stats.offset;
    a.dy_offset = (uint32_t)dy.offset;
    a.b_offset = (uint32_t)(e->out.offset + e->out.stride[4]); /* they may lie apart */
    a.chunks = dti_norm_chunks(a.n / DTI_MAX(a.channels, 1u));
    dti_args_norm sums = a;
    uint32_t to = e->out.value;
    if (a.chunks > 1) { /* [stats|dw|db|w], for batch_dx, then the pairs */
        to = dti_emit_scratch(e, DT_F32, (5ull + 2ull * a.chunks) * a.channels);
        sums.y_offset = 2 * a.channels;
        sums.b_offset = 3 * a.channels;
        sums.p_offset = a.p_offset = 5 * a.channels;
    }
    const uint32_t fours = dti_norm_dw_by_fours(&a);
    const uint64_t items = (uint64_t)a.channels / (fours ? 4 : 1) * a.chunks;
    DTI_EMIT(e, DTI_K_NORM_DW, items, sums, x.value, stats.value, dy.value, to)->spec[2] = fours;
    if (a.chunks == 1)
        return;
    DTI_EMIT(e, DTI_K_NORM_FINISH, a.channels, a, to, stats.value, DTI_UNBOUND, e->out.value)
        ->spec[0] = DTI_NORM_FINISH_DW;
}

/* The launch that finishes dw also makes the values that batch_dx reads, if w is known by then. */
static bool dti_batch_dx_finished(dti_emit *e, const dti_view *dw, uint32_t *value) {
    const dti_view stats = dti_emit_in(e, 3), w = dti_norm_vector(e, 2);
    dti_listing *list = e->list;
    for (uint32_t i = list->launch_count; i-- > 0 && list->launch_count - i <= 16;) {
        dti_launch *l = &list->launches[i];
        if (l->kernel != DTI_K_NORM_FINISH || l->value[3] != dw->value)
            continue;
        if (l->args.norm.y_offset != (uint32_t)dw->offset || l->value[1] != stats.value ||
            l->args.norm.s_offset != (uint32_t)stats.offset ||
            dti_emit_written_since(list, i, w.value))
            return false;
        l->spec[1] = 1;
        l->args.norm.w_offset = (uint32_t)w.offset;
        l->value[2] = w.value;
        *value = l->value[0];
        return true;
    }
    return false;
}

static void dti_batch_dx_emit(dti_emit *e) {
    dti_view x = dti_emit_dense_in(e, 0), dy = dti_emit_dense_in(e, 1);
    dti_args_norm a = dti_norm_args(e, &x);
    const dti_view dw = dti_emit_in(e, 4);
    uint32_t coefficients;
    if (!dti_batch_dx_finished(e, &dw, &coefficients)) {
        const dti_view parts[3] = {dti_norm_vector(e, 3), dw, dti_norm_vector(e, 2)};
        coefficients = dti_emit_join(e, parts, 3);
    }
    a.dy_offset = (uint32_t)dy.offset;
    if (e->node->attr.i[DTI_NORM_SYNC])
        a.cols = 1; /* dw and db are means already */
    DTI_EMIT(e, DTI_K_BATCH_DX, a.n, a, x.value, dy.value, coefficients, e->out.value)->spec[0] =
        e->train;
}

/* The launch before moves the other statistic of the same pairs: it moves this one as well. */
static bool dti_running_joins(dti_emit *e, const dti_view *x, const dti_args_running *a,
                              uint32_t stats) {
    dti_launch *l = e->list->launch_count ? &e->list->launches[e->list->launch_count - 1] : NULL;
    dti_args_running *first = l ? &l->args.running : NULL;
    if (!l || l->kernel != DTI_K_RUNNING || first->n2 || l->value[1] != stats || first->n != a->n ||
        first->s_offset + 1 != a->s_offset || first->keep != a->keep)
        return false;
    const dti_view x1 = {.value = l->value[0], .offset = first->x_offset};
    const dti_view y1 = {.value = l->value[2], .offset = first->y_offset};
    uint32_t from, to;
    dti_args_running both = *first;
    if (!dti_emit_span(e, &x1, x, &from, &both.x_offset, &both.x2_offset) ||
        !dti_emit_span(e, &y1, &e->out, &to, &both.y_offset, &both.y2_offset))
        return false;
    both.n2 = a->n;
    both.take2 = a->take;
    *first = both;
    l->items = 2ull * a->n;
    l->value[0] = l->value[3] = from;
    l->value[2] = to;
    return true;
}

/* (running, stats): the result lies where the buffer's gradient would, over all micro-batches of a
 * step; the commit takes it from there. */
static void dti_running_emit(dti_emit *e) {
    dti_view x = dti_emit_dense_in(e, 0), stats = dti_emit_dense_in(e, 1);
    const int32_t *i = e->node->attr.i;
    double n = (double)e->batch * i[DTI_NORM_SPATIAL], momentum = (double)e->node->attr.f[0];
    double unbiased = i[DTI_NORM_WHICH] && n > 1.0 ? n / (n - 1.0) : 1.0;
    dti_args_running a = {.n = (uint32_t)i[DTI_NORM_CHANNELS],
                          .keep = (float)(1.0 - momentum),
                          .take = (float)(momentum * unbiased),
                          .x_offset = (uint32_t)x.offset,
                          .s_offset = (uint32_t)(stats.offset + i[DTI_NORM_WHICH]),
                          .y_offset = (uint32_t)e->out.offset};
    if (dti_running_joins(e, &x, &a, stats.value))
        return;
    DTI_EMIT(e, DTI_K_RUNNING, a.n, a, x.value, stats.value, e->out.value);
}
