/* Units (FSDP): buckets whose parameters are gathered, and whose gradients are reduced, while a
 * step runs. The code's store has only its own part of them (layout.h, ZeRO stages 2 and 3;
 * Rajbhandari et al. 2020). Launches are the same as without. A segment of forward and backward
 * launches is cut into shorter ones. Each reads parameters of as few units as its launches allow.
 * Values of parameters and gradients get places in arenas that begin with the store's own part.
 * After that, two units may share a place. Parameters may if no segment reads both; gradients may
 * if one is reduced before the other begins. So an arena has room for the values of one time, which
 * is known before anything runs. The code that drives the step gathers and reduces them
 * (parallel/zero/unit_step.c).
 *
 * A loss weight that depends on trained parameters is an error, because those are not gathered
 * before the step. */

typedef struct dti_unit_range { /* elements of the plain arenas */
    uint64_t begin;
    uint32_t slot;
} dti_unit_range;

typedef struct dti_unit_work {
    dti_lowering *w;
    dti_code *code;
    uint64_t *values;              /* by value: the unit that it lies in */
    uint64_t *segments[2];         /* by segment: units of parameters, of gradients */
    uint64_t apart[DTI_UNITS_MAX]; /* by unit: those that it may share no place with */
} dti_unit_work;

/* ---- which unit a value is of */

static dti_unit_range dti_unit_range_of(const dti_code *code, const dti_value *v) {
    const uint64_t at = v->offset / dti_arena_bytes(1), all = code->layout->elements;
    return (dti_unit_range){at % all, (uint32_t)(at / all)};
}

/* The parameter to whose blocks an element belongs: they descend. */
static uint32_t dti_unit_param(const dti_layout *l, uint64_t element) {
    uint32_t from = 0, to = l->param_count;
    while (from < to) { /* the first that begins at it or before */
        const uint32_t middle = from + (to - from) / 2;
        if (l->params[middle].offset > element)
            from = middle + 1;
        else
            to = middle;
    }
    return from;
}

static bool dti_unit_moves(const dti_value *v) {
    return v->kind == DTI_VALUE_PARAM || v->kind == DTI_VALUE_GRADIENT;
}

/* DTI_UNITS_MAX: a parameter that no program trains; it stays. */
static uint32_t dti_unit_of(const dti_code *code, uint32_t param) {
    return code->layout->params[param].rest == DTI_NO_REST ? dti_bucket_of(code, param)
                                                           : DTI_UNITS_MAX;
}

/* 0: no unit. */
static uint64_t dti_unit_mask(const dti_code *code, const dti_value *v) {
    const uint64_t at = dti_unit_range_of(code, v).begin;
    const uint32_t u =
        dti_unit_moves(v) ? dti_unit_of(code, dti_unit_param(code->layout, at)) : DTI_UNITS_MAX;
    return u < DTI_UNITS_MAX ? dti_unit_bit(u) : 0;
}

/* Cuts between neighbours that do not stay neighbours: no value may span such a cut. */
static dt_result dti_pass_borders(dti_lowering *w) {
    const dti_code *code = w->code;
    const dti_layout *l = code->layout;
    uint32_t count = 0, before = UINT32_MAX;
    if (!dti_code_has_units(code))
        return DT_OK;
    w->borders = dti_alloc_array(code->base, l->param_count + 1u, sizeof *w->borders);
    DTI_HAVE(w->borders);
    for (uint32_t i = l->param_count; i-- > 0;) {
        const uint32_t unit = dti_unit_of(code, i);
        if (unit != before)
            w->borders[count++] = dti_arena_bytes(l->params[i].offset);
        before = unit;
    }
    w->code->list.borders = w->borders;
    w->code->list.border_count = count;
    return DT_OK;
}

static void dti_units_find(dti_unit_work *k) {
    dti_listing *list = &k->code->list;
    list->borders = NULL; /* the lowering's */
    list->border_count = 0;
    for (uint32_t v = 0; v < list->value_count; v++)
        k->values[v] = dti_unit_mask(k->code, &list->values[v]);
}

static uint64_t dti_unit_launch(const dti_unit_work *k, uint32_t launch, uint8_t kind) {
    const dti_launch *l = &k->code->list.launches[launch];
    uint64_t mask = 0;
    for (int b = 0; b < DTI_BINDINGS_MAX; b++) {
        if (k->code->list.values[l->value[b]].kind == kind)
            mask |= k->values[l->value[b]];
    }
    return mask;
}

static dt_result dti_units_weigh(const dti_unit_work *k) {
    for (uint32_t i = 0; i < k->w->weigh_launches; i++) {
        if (dti_unit_launch(k, i, DTI_VALUE_PARAM))
            return dti_code_fail(k->code, DT_ERROR_UNSUPPORTED,
                                 "the weight of a loss depends on a trained parameter, which "
                                 ".parallel.zero_stage shards; give at most %d",
                                 DT_SHARD_OPTIMIZER);
    }
    return DT_OK;
}

/* ---- segments */

/* The launches of a segment, from `first` on, that need no more units than the first of them. */
static uint32_t dti_unit_run(const dti_unit_work *k, uint32_t first, uint32_t end) {
    uint64_t has = 0;
    uint32_t at = first;
    for (; at < end; at++) {
        const uint64_t reads = dti_unit_launch(k, at, DTI_VALUE_PARAM);
        if (has && reads & ~has)
            break;
        has |= reads;
    }
    return at - first;
}

typedef struct dti_unit_cut { /* the new segments; NULL: they are only counted */
    dti_segment *segments;
    uint32_t *buckets;
    uint32_t count;
} dti_unit_cut;

/* Buckets are finished with the last part. */
static void dti_unit_cut_segment(const dti_unit_work *k, uint32_t segment, dti_unit_cut *to) {
    const dti_code *code = k->code;
    const dti_segment *s = &code->segments[segment];
    const bool cuts = code->layout->level >= DT_SHARD_PARAMETERS;
    uint32_t at = s->first, done = to->buckets && to->count ? to->buckets[to->count - 1] : 0;
    const uint32_t end = at + s->count;
    do {
        const uint32_t count = cuts ? dti_unit_run(k, at, end) : s->count;
        if (to->segments) {
            to->segments[to->count] = *s;
            to->segments[to->count].first = at;
            to->segments[to->count].count = count;
            to->buckets[to->count] = at + count == end ? code->segment_buckets[segment] : done;
        }
        at += count;
        to->count++;
    } while (at < end);
}

static void dti_unit_cut_all(dti_unit_work *k, dti_unit_cut *to) {
    dti_code *code = k->code;
    uint32_t met = 0, forward = 0, leaving = 0;
    for (uint32_t s = 0; s < code->segment_count; s++) {
        dti_unit_cut_segment(k, s, to);
        for (; met < code->sync_point_count && code->sync_points[met].segment == s; met++)
            code->sync_points[met].segment = to->count - 1;
        forward = s + 1 == code->forward_segments ? to->count : forward;
        leaving = s + 1 == code->leaving_segments ? to->count : leaving;
    }
    code->forward_segments = forward;
    code->leaving_segments = leaving;
}

/* `more`: of the commit, and of weigh. */
static dt_result dti_units_cut(dti_unit_work *k) {
    enum { more = 8 };
    dti_code *code = k->code;
    dti_unit_cut to = {0};
    for (uint32_t s = 0; s < code->segment_count; s++)
        dti_unit_cut_segment(k, s, &to);
    const size_t most = to.count + (size_t)more;
    to = (dti_unit_cut){dti_alloc_array(code->base, most, sizeof *to.segments),
                        dti_alloc_array(code->base, most, sizeof *to.buckets), 0};
    const bool made = to.segments && to.buckets;
    if (made) {
        const dti_range inputs = code->segments[0].upload, gradients = code->segments[1].upload;
        dti_unit_cut_all(k, &to);
        to.segments[0].upload = inputs;
        to.segments[1].upload = gradients; /* the host's: see bindings.c */
        DTI_SWAP(dti_segment *, code->segments, to.segments);
        DTI_SWAP(uint32_t *, code->segment_buckets, to.buckets);
        code->segment_count = to.count;
    }
    DTI_FREE(code->base, to.segments, to.buckets);
    return made ? DT_OK : DT_ERROR_MEMORY;
}

static dt_result dti_units_uses(dti_unit_work *k) {
    dti_code *code = k->code;
    for (int kind = 0; kind < 2; kind++) {
        k->segments[kind] =
            dti_alloc_array(code->base, code->segment_count + 1u, sizeof *k->segments[kind]);
        DTI_HAVE(k->segments[kind]);
        for (uint32_t s = 0; s < code->segment_count; s++) {
            const dti_segment *of = &code->segments[s];
            for (uint32_t i = of->first; i < of->first + of->count; i++)
                k->segments[kind][s] |=
                    dti_unit_launch(k, i, kind ? DTI_VALUE_GRADIENT : DTI_VALUE_PARAM);
        }
    }
    return DT_OK;
}

/* ---- places */

/* Units in memory at the same time may not share a place. */
static void dti_units_meet(dti_unit_work *k, uint64_t there) {
    for (uint32_t u = 0; u < k->code->slices.bucket_count; u++) {
        if (there & dti_unit_bit(u))
            k->apart[u] |= there;
    }
}

static uint64_t dti_unit_elements(const dti_unit_work *k, uint32_t u) {
    return dti_bucket_elements(k->code->slices.buckets[u]);
}

/* The lowest place from `from` on where it conflicts with none of `placed`. */
static uint64_t dti_unit_fit(const dti_unit_work *k, uint32_t u, uint64_t placed, uint64_t from,
                             const uint64_t *at) {
    const uint64_t n = dti_unit_elements(k, u);
    uint64_t to = from;
    for (uint64_t before = UINT64_MAX; before != to;) {
        before = to;
        for (uint32_t other = 0; other < k->code->slices.bucket_count; other++) {
            const uint64_t end = at[other] + dti_unit_elements(k, other);
            if (placed & k->apart[u] & dti_unit_bit(other) && to < end && at[other] < to + n)
                to = end;
        }
    }
    return to;
}

/* Largest first; returns where the last one ends. */
static uint64_t dti_units_place(const dti_unit_work *k, uint64_t from, uint64_t *at) {
    uint64_t placed = 0, end = from;
    for (;;) {
        uint32_t next = DTI_UNITS_MAX;
        for (uint32_t u = 0; u < k->code->slices.bucket_count; u++) {
            if (!(placed & dti_unit_bit(u)) &&
                (next == DTI_UNITS_MAX || dti_unit_elements(k, u) > dti_unit_elements(k, next)))
                next = u;
        }
        if (next == DTI_UNITS_MAX)
            break;
        at[next] = dti_unit_fit(k, next, placed, from, at);
        placed |= dti_unit_bit(next);
        end = DTI_MAX(end, at[next] + dti_unit_elements(k, next));
    }
    return end;
}

/* One after the other, as all are in memory at the same time. */
static uint64_t dti_units_in_order(const dti_unit_work *k, uint64_t from, uint64_t *at) {
    for (uint32_t u = 0; u < k->code->slices.bucket_count; from += dti_unit_elements(k, u++))
        at[u] = from;
    return from;
}

static uint64_t dti_units_from(const dti_code *code) {
    return code->layout->fixed - dti_layout_away(code->layout);
}

static void dti_units_place_params(dti_unit_work *k) {
    dti_code *code = k->code;
    const bool all = code->layout->level < DT_SHARD_PARAMETERS;
    for (uint32_t s = 0; s < code->segment_count; s++)
        dti_units_meet(k, k->segments[0][s]);
    code->unit_params =
        (all ? dti_units_in_order : dti_units_place)(k, dti_units_from(code), code->unit_param);
    for (uint32_t u = 0; u < code->slices.bucket_count; u++) {
        const uint64_t begin = code->unit_param[u], end = begin + dti_unit_elements(k, u);
        for (uint32_t other = 0; other < code->slices.bucket_count; other++) {
            const uint64_t from = code->unit_param[other], n = dti_unit_elements(k, other);
            if (other != u && from < end && begin < from + n)
                code->unit_evicts[u] |= dti_unit_bit(other);
        }
    }
}

/* From the first segment that writes it to DTI_UNITS_AHEAD after the one that finishes it. */
static void dti_units_gradients_live(dti_unit_work *k) {
    const dti_code *code = k->code;
    uint64_t begun = 0, over = 0;
    uint32_t gone = 0;
    for (uint32_t s = 0; s < code->segment_count; s++) {
        begun |= k->segments[1][s];
        while (s > DTI_UNITS_AHEAD && gone < code->segment_buckets[s - 1 - DTI_UNITS_AHEAD])
            over |= dti_unit_bit(gone++);
        dti_units_meet(k, begun & ~over);
    }
}

/* Values that several runs add up stay until the last one. */
static void dti_units_place_gradients(dti_unit_work *k) {
    dti_code *code = k->code;
    const bool alone = code->slices.last && code->slices.one_run;
    const uint32_t after = dti_subtrees_after(&code->slices).count;
    const uint32_t slots = code->slices.any_part ? 1 : DTI_MAX(code->slices.before.count, after);
    const uint64_t from = dti_units_from(code);
    code->unit_gradients = from;
    if (!code->has_gradients)
        return;
    code->units_leave = alone;
    memset(k->apart, 0, sizeof k->apart);
    dti_units_gradients_live(k);
    const uint64_t end =
        (alone ? dti_units_place : dti_units_in_order)(k, from, code->unit_gradient);
    code->unit_stride = end - from;
    code->unit_gradients = from + slots * code->unit_stride;
}

/* ---- values */

static void dti_unit_value(const dti_code *code, dti_value *v) {
    const dti_unit_range r = dti_unit_range_of(code, v);
    const uint32_t param = dti_unit_param(code->layout, r.begin);
    const dti_param *p = &code->layout->params[param];
    const uint32_t u = dti_unit_of(code, param);
    uint64_t at = p->rest - dti_layout_away(code->layout) + (r.begin - p->offset);
    if (u < DTI_UNITS_MAX && v->kind == DTI_VALUE_PARAM)
        at = code->unit_param[u] + (r.begin - code->slices.buckets[u].begin);
    else if (u < DTI_UNITS_MAX)
        at = code->unit_gradient[u] + r.slot * code->unit_stride +
             (r.begin - code->slices.buckets[u].begin);
    v->offset = dti_arena_bytes(at);
}

static void dti_units_values(const dti_unit_work *k) {
    dti_listing *list = &k->code->list;
    for (uint32_t v = 0; v < list->value_count; v++) {
        if (dti_unit_moves(&list->values[v]))
            dti_unit_value(k->code, &list->values[v]);
    }
}

static dt_result dti_units_run(dti_unit_work *k) {
    dti_units_find(k);
    DTI_TRY(dti_units_weigh(k));
    DTI_TRY(dti_units_cut(k));
    DTI_TRY(dti_units_uses(k));
    dti_units_place_params(k);
    dti_units_place_gradients(k);
    dti_units_values(k);
    k->code->unit_reads = k->segments[0];
    k->segments[0] = NULL;
    return DT_OK;
}

static dt_result dti_pass_units(dti_lowering *w) {
    dti_code *code = w->code;
    dti_unit_work k = {.w = w, .code = code};
    if (!DTI_HAS_ZERO || !dti_code_has_units(code))
        return DT_OK;
    k.values = dti_alloc_array(code->base, code->list.value_count + 1u, sizeof *k.values);
    dt_result result = k.values ? dti_units_run(&k) : DT_ERROR_MEMORY;
    DTI_FREE(code->base, k.values, k.segments[0], k.segments[1]);
    return result;
}
