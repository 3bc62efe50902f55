/* Connectionist temporal classification (Graves et al., 2006). A net names a class or a blank at
 * each step. The row computes the probability of the target, with any number of steps for each
 * label. Cells are the target's labels with blanks around each of them: n labels have 2 n + 1. The
 * row walks over a sample's steps from both ends at once. For each step and cell it keeps the
 * log-probability of all ways to there (a), and from there on (b). Both include the step's own. So
 * each step's gradient needs only its own values: for a class, -e^(a + b - x - all), summed over
 * its cells. Logarithms of 0 are finite (DTI_CTC_NONE), so no sum becomes NaN. There is no second
 * derivative. attr.i: below. What is kept of a sample: shaders/args.h. */

#undef DTI_OPTIONAL
#define DTI_OPTIONAL(X) X(CTC)

enum { DTI_CTC_BLANK = 0, DTI_CTC_FLAGS = 1 };

/* Sizes of a sample. */
typedef struct dti_ctc {
    int64_t steps, classes, labels, cells;
} dti_ctc;

static dti_ctc dti_ctc_sizes(dt_shape x, int64_t labels) {
    return (dti_ctc){x.dim[0], x.dim[1], labels, 2 * labels + 1};
}
static int64_t dti_ctc_rows_at(const dti_ctc *a) {
    return (int64_t)DTI_CTC_HEAD + a->labels;
}
static int64_t dti_ctc_all(const dti_ctc *a) {
    return dti_ctc_rows_at(a) + 2 * a->steps * a->cells;
}
/* How many labels there were, from how much is kept of them. */
static int64_t dti_ctc_labels_of(int64_t steps, int64_t kept) {
    return (kept - (int64_t)DTI_CTC_HEAD - 2 * steps) / (1 + 4 * steps);
}

/* ---- Shapes */

static bool dti_ctc_shape(dti_build *b) {
    const dti_node *x = b->in[0], *t = b->in[1];
    const int64_t blank = b->out.attr.i[DTI_CTC_BLANK];
    if (x->dtype != DT_F32 || x->shape.rank != 2 || x->shape.dim[0] < 1 || x->shape.dim[1] < 1)
        return dti_build_fail(b, "log-probabilities must be f32 [steps, classes] of each sample");
    if (t->dtype != DT_I32 || t->shape.rank != 1)
        return dti_build_fail(b, "targets must be i32 [labels] of each sample, padded at the end");
    if (x->shape.dim[0] > 1 << 24 || x->shape.dim[1] > 1 << 24 || t->shape.dim[0] > 1 << 24)
        return dti_build_fail(b,
                              "there are more than %d steps, classes or labels, which are kept "
                              "as f32",
                              1 << 24);
    if (blank < 0 || blank >= x->shape.dim[1])
        return dti_build_fail(b, "blank is %lld; it must be one of the %lld classes",
                              (long long)blank, (long long)x->shape.dim[1]);
    if (b->count > 3)
        return dti_build_fail(b, "takes three inputs");
    if (b->count == 3) {
        const dti_node *n = dti_node_of(b->inputs[2]);
        if (n->dtype != DT_I32 || !dti_shape_equal(n->shape, (dt_shape){1, {2}}))
            return dti_build_fail(b, "lengths must be i32 [2]: of steps and labels");
    }
    const dti_ctc a = dti_ctc_sizes(x->shape, t->shape.dim[0]);
    b->out.shape = (dt_shape){1, {dti_ctc_all(&a)}};
    return true;
}

/* The loss, and how many labels are in use. */
static void dti_ctc_outputs(const dt_graph *g, const dti_node *n, dti_outputs *out) {
    *out = (dti_outputs){2, {{0}, {0}}};
}

static bool dti_ctc_labels(const dt_graph *g, const dti_node *n, dti_labels *out) {
    const dt_shape x = g->nodes[dti_input_id(g, n, 0)].shape;
    *out =
        (dti_labels){.input = 1, .classes = (int32_t)x.dim[1], .ignore_index = -1, .ignores = true};
    return true;
}

static bool dti_ctc_grad_shape(dti_build *b) {
    if (!dti_build_f32(b))
        return false;
    b->out.shape = b->in[1]->shape;
    return true;
}

/* ---- Gradient */

static void dti_ctc_grad_rule(dti_grad *g) {
    if (!g->wanted[0] || dti_is_nil(g->dys[0]))
        return;
    dt_tensor in[3] = {g->y, g->in[0], g->dys[0]};
    dt_tensor dx = dti_append(g->graph, DTI_OP_CTC_GRAD, in, 3, &g->node.attr);
    if (!dti_is_nil(dx))
        g->dx[0] = dti_sum_to(dx, g->in[0]);
}

static void dti_ctc_grad_twice(dti_grad *g) {
    dti_graph_fail(g->graph, "ctc_grad: there are no second derivatives of ctc_loss; dt_detach the "
                             "gradient");
}

/* ---- Launches. Two items a sample, from each end; of the gradient one a step. */

static dti_args_ctc dti_ctc_args(const dti_emit *e, const dti_ctc *s, const dti_view *x,
                                 const dti_view *t) {
    return (dti_args_ctc){.samples = (uint32_t)e->out.dim[0],
                          .steps = (uint32_t)s->steps,
                          .classes = (uint32_t)s->classes,
                          .labels = (uint32_t)s->labels,
                          .blank = (uint32_t)e->node->attr.i[DTI_CTC_BLANK],
                          .flags = (uint32_t)e->node->attr.i[DTI_CTC_FLAGS],
                          .x_offset = (uint32_t)x->offset,
                          .x_sample = (uint32_t)x->stride[0],
                          .t_offset = (uint32_t)t->offset,
                          .t_sample = (uint32_t)t->stride[0],
                          .y_offset = (uint32_t)e->out.offset,
                          .y_sample = (uint32_t)e->out.stride[0]};
}

static void dti_ctc_emit(dti_emit *e) {
    dti_view x = dti_emit_dense_in(e, 0), t = dti_emit_dense_in(e, 1), n = t;
    const dt_graph *g = e->graph;
    const dti_ctc s = dti_ctc_sizes(g->nodes[dti_input_id(g, e->node, 0)].shape, t.dim[5]);
    dti_args_ctc a = dti_ctc_args(e, &s, &x, &t);
    if (e->node->count > 2) {
        n = dti_emit_dense_in(e, 2);
        a.flags |= DTI_CTC_LENGTHS;
        a.n_offset = (uint32_t)n.offset;
        a.n_sample = (uint32_t)n.stride[0];
    }
    DTI_EMIT(e, DTI_K_CTC, 2 * (uint64_t)a.samples, a, x.value, s.labels ? t.value : x.value,
             e->node->count > 2 ? n.value : DTI_UNBOUND, e->out.value);
}

static void dti_ctc_grad_emit(dti_emit *e) {
    const dti_view kept = dti_emit_dense_in(e, 0), x = dti_emit_dense_in(e, 1);
    const dti_view dy = dti_emit_dense_in(e, 2);
    const dt_graph *g = e->graph;
    const dt_shape shape = g->nodes[dti_input_id(g, e->node, 1)].shape;
    const dti_ctc s = dti_ctc_sizes(shape, dti_ctc_labels_of(shape.dim[0], kept.dim[5]));
    dti_args_ctc a = dti_ctc_args(e, &s, &x, &kept);
    a.n_offset = (uint32_t)dy.offset;
    a.n_sample = (uint32_t)dy.stride[0];
    DTI_EMIT(e, DTI_K_CTC_GRAD, (uint64_t)a.samples * a.steps, a, x.value, kept.value, dy.value,
             e->out.value);
}

/* ---- For callers */

/* A sample's steps or labels as i32 [1]; {0} becomes the largest number. False after an error. */
static bool dti_ctc_length(dt_graph *g, dt_tensor x, const char *what, dt_tensor *line) {
    const dt_shape one = {1, {1}};
    if (!x.graph) {
        *line = dt_cast(dt_fill(g, one, 2147483520.0f), DT_I32);
        return !dti_is_nil(*line);
    }
    if (x.graph != g)
        return dti_graph_refuse(g, "ctc_loss: %s is a tensor of another graph, %s", what,
                                dti_tensor_elsewhere(g, x).text);
    if (dti_is_nil(x))
        return dti_graph_refuse(g, "ctc_loss: %s is nil; it must be {0} or a tensor", what);
    const dti_node *n = dti_node_of(x);
    if (n->dtype != DT_I32 || n->term || n->shape.rank > 1 || dti_shape_elements(n->shape) != 1)
        return dti_graph_refuse(g, "ctc_loss: %s %s must be i32 [], one a sample", what,
                                dti_shape_print(n->shape, n->samples).text);
    *line = dt_reshape(x, one);
    return !dti_is_nil(*line);
}

DT_API dt_tensor dt_ctc_loss(dt_tensor log_p, dt_tensor targets, const dt_ctc_desc *desc) {
    const dt_ctc_desc d = desc ? *desc : (dt_ctc_desc){0};
    const dti_attr attr = {.i = {d.blank, d.zero_infinity ? (int32_t)DTI_CTC_ZERO : 0}};
    dt_tensor in[3] = {log_p, targets}, part[2], packed, out[DTI_OUTPUTS_MAX];
    const bool lengths = d.steps.graph || d.labels.graph;
    dt_graph *g = log_p.graph;
    if (!DTI_HERE)
        return dti_graph_off(g, "dt_ctc_loss", DTI_HERE_OFF);
    DTI_NEED_TENSOR(log_p, "ctc_loss");
    if (lengths && (!dti_ctc_length(g, d.steps, "steps", &part[0]) ||
                    !dti_ctc_length(g, d.labels, "labels", &part[1])))
        return dti_nil(g);
    if (lengths)
        in[2] = dt_concat(part, 2, 0);
    if (!dti_append_outputs(g, DTI_OP_CTC, in, lengths ? 3 : 2, &attr, &packed, out))
        return dti_nil(g);
    if (!d.by_length)
        return out[0];
    dt_tensor one = dt_fill(g, dt_dims(), 1.0f);
    return dt_div(out[0], dt_maximum(out[1], one));
}

/* ---- CPU */

/* A sample as a worker walks over it. */
typedef struct dti_ctc_work {
    const dti_args_ctc *a;
    const dti_isa_kernels *k;
    const float *x;
    float *y, *rows; /* rows: of the walk's direction */
    int64_t steps, count, cells, width;
    bool back, wrong; /* wrong: a label is not a class, or is the blank */
    int32_t *label;   /* in the walk's order */
    float *skip, *own, *before, *after;
} dti_ctc_work;

static size_t dti_ctc_lay(dti_ctc_work *w, const dti_args_ctc *a, float *memory) {
    const size_t room = (2 * (size_t)a->labels + 1 + 2 + 15) / 16 * 16 + 16;
    *w = (dti_ctc_work){.a = a, .width = 2 * (int64_t)a->labels + 1};
    if (memory) {
        w->skip = memory;
        w->own = memory + room;
        w->before = memory + 2 * room + 2;
        w->after = memory + 3 * room + 2;
        w->label = (void *)(memory + 4 * room);
    }
    return 5 * room;
}

static size_t dti_cpu_scratch_ctc(const dti_launch *l, int threads) {
    dti_ctc_work w;
    const size_t walk = dti_ctc_lay(&w, &l->args.ctc, NULL);
    const size_t grad = 2 * ((size_t)w.width + l->args.ctc.classes); /* a double a class */
    return DTI_MAX(walk, l->kernel == DTI_K_CTC_GRAD ? grad : 0) * sizeof(float);
}

static int64_t dti_ctc_clamped(const dti_cpu_task *task, int64_t at, uint32_t most) {
    const int32_t n = ((const int32_t *)task->buf[2])[at];
    return n < 0 ? 0 : DTI_MIN((int64_t)n, (int64_t)most);
}

static void dti_ctc_open(dti_ctc_work *w, const dti_cpu_task *task, int64_t sample, bool back) {
    const dti_args_ctc *a = w->a;
    const int32_t *t = (const int32_t *)task->buf[1] + a->t_offset + sample * a->t_sample;
    const int64_t n = (int64_t)a->n_offset + sample * a->n_sample;
    const bool lengths = (a->flags & DTI_CTC_LENGTHS) != 0;
    w->k = task->k;
    w->back = back;
    w->x = dti_cpu_in(task, 0, a->x_offset) + sample * a->x_sample;
    w->y = dti_cpu_out(task, 3, a->y_offset) + sample * a->y_sample;
    w->rows = w->y + DTI_CTC_HEAD + a->labels + (back ? a->steps * w->width : 0);
    w->steps = lengths ? dti_ctc_clamped(task, n, a->steps) : a->steps;
    const int64_t labels = lengths ? dti_ctc_clamped(task, n + 1, a->labels) : a->labels;
    w->wrong = false;
    for (w->count = 0; w->count < labels && t[w->count] >= 0; w->count++)
        w->wrong =
            w->wrong || (uint32_t)t[w->count] >= a->classes || (uint32_t)t[w->count] == a->blank;
    w->cells = 2 * w->count + 1;
    for (int64_t k = 0; k < w->count; k++)
        w->label[k] = DTI_MIN(t[back ? w->count - 1 - k : k], (int32_t)a->classes - 1);
}

/* Before the first step all probability is before cell 0; a path that skips a blank never comes to
 * one. */
static void dti_ctc_begin(const dti_ctc_work *w) {
    for (int64_t s = -2; s < w->cells; s++) {
        w->before[s] = s == -1 ? 0.0f : (float)-DTI_CTC_NONE;
        w->after[s] = (float)-DTI_CTC_NONE;
    }
    for (int64_t s = 0; s < w->cells; s++) {
        const bool skips = s % 2 == 1 && (s == 1 || w->label[s / 2] != w->label[s / 2 - 1]);
        w->skip[s] = skips ? 0.0f : (float)-DTI_CTC_NONE;
    }
}

static float dti_ctc_own(float x) {
    return x < (float)-DTI_CTC_NONE ? (float)-DTI_CTC_NONE : x;
}

static void dti_ctc_walk(dti_ctc_work *w) {
    for (int64_t i = 0; i < w->steps; i++) {
        const int64_t t = w->back ? w->steps - 1 - i : i;
        const float *x = w->x + t * w->a->classes, blank = dti_ctc_own(x[w->a->blank]);
        float *row = w->rows + t * w->width, *next = w->after;
        for (int64_t s = 0; s < w->cells; s++)
            w->own[s] = s % 2 ? dti_ctc_own(x[w->label[s / 2]]) : blank;
        w->k->ctc_step(next, w->before, w->skip, w->own, w->cells);
        for (int64_t s = 0; s < w->cells; s++)
            row[w->back ? w->cells - 1 - s : s] = next[s];
        memset(row + w->cells, 0, (size_t)(w->width - w->cells) * sizeof *row);
        if (i == 0)
            w->before[-1] = (float)-DTI_CTC_NONE;
        w->after = w->before;
        w->before = next;
    }
    memset(w->rows + w->steps * w->width, 0,
           (size_t)((w->a->steps - w->steps) * w->width) * sizeof *w->rows);
}

/* log of all paths, which end in the last cell or the one before it. */
static float dti_ctc_paths(const dti_ctc_work *w) {
    if (w->wrong)
        return dti_f32_from_bits(DTI_F32_NAN);
    if (w->steps == 0)
        return w->count == 0 ? 0.0f : (float)-DTI_CTC_NONE;
    const float end[2] = {w->before[w->cells - 1], w->before[w->cells - 2]};
    return w->k->log_sum_exp(end, w->count ? 2 : 1);
}

static void dti_ctc_finish(const dti_ctc_work *w, const int32_t *t) {
    const float all = dti_ctc_paths(w);
    const bool impossible = all < (float)-DTI_CTC_IMPOSSIBLE;
    const float none = w->a->flags & DTI_CTC_ZERO ? 0.0f : INFINITY;
    w->y[DTI_CTC_LOSS] = impossible ? none : 0.0f - all;
    w->y[DTI_CTC_COUNT] = (float)w->count;
    w->y[DTI_CTC_ALL] = all;
    w->y[DTI_CTC_STEPS] = (float)w->steps;
    for (int64_t k = 0; k < (int64_t)w->a->labels; k++)
        w->y[DTI_CTC_HEAD + k] = k < w->count ? (float)t[k] : 0.0f;
}

static void dti_cpu_ctc(const dti_cpu_task *task, int64_t begin, int64_t end, void *scratch) {
    for (int64_t item = begin; item < end; item++) {
        dti_ctc_work w;
        dti_ctc_lay(&w, &task->launch->args.ctc, scratch);
        dti_ctc_open(&w, task, item / 2, item % 2 != 0);
        dti_ctc_begin(&w);
        dti_ctc_walk(&w);
        if (!w.back)
            dti_ctc_finish(&w, (const int32_t *)task->buf[1] + w.a->t_offset +
                                   item / 2 * (int64_t)w.a->t_sample);
    }
}

/* The gradient of step t: dx. kept: the values that were kept of the sample. */
static void dti_ctc_step_grad(const dti_cpu_task *task, const float *kept, int64_t t,
                              const float *x, float dy, float *dx, float *room) {
    const dti_args_ctc *a = &task->launch->args.ctc;
    const int64_t cells = 2 * (int64_t)kept[DTI_CTC_COUNT] + 1;
    const int64_t width = 2 * (int64_t)a->labels + 1;
    const float *label = kept + DTI_CTC_HEAD, *row = label + a->labels + t * width;
    const bool impossible = kept[DTI_CTC_ALL] < (float)-DTI_CTC_IMPOSSIBLE;
    const float d = impossible ? dti_f32_from_bits(DTI_F32_NAN) : -dy;
    uint32_t *at = (void *)(room + width);
    memset(dx, 0, a->classes * sizeof *dx);
    if (t >= (int64_t)kept[DTI_CTC_STEPS] || (impossible && a->flags & DTI_CTC_ZERO))
        return;
    for (int64_t s = 0; s < cells; s++) {
        at[s] = s % 2 ? DTI_MIN((uint32_t)label[s / 2], a->classes - 1) : a->blank;
        room[s] = dti_ctc_own(x[at[s]]);
    }
    task->k->ctc_share(room, row, row + a->steps * width, room, kept[DTI_CTC_ALL], cells);
    /* the sum is 1, except for an error that all cells share in long walks */
    const float scale = d / task->k->row_sum(room, cells);
    double *sums = (void *)(at + width); /* of classes: one may have all cells */
    for (int64_t s = 0; s < cells; s++)
        sums[at[s]] = 0;
    for (int64_t s = 0; s < cells; s++)
        sums[at[s]] += (double)(scale * room[s]);
    for (int64_t s = 0; s < cells; s++)
        dx[at[s]] = (float)sums[at[s]];
}

static void dti_cpu_ctc_grad(const dti_cpu_task *task, int64_t begin, int64_t end, void *scratch) {
    const dti_args_ctc *a = &task->launch->args.ctc;
    for (int64_t item = begin; item < end; item++) {
        const int64_t sample = item / a->steps, t = item % a->steps;
        const float *x = dti_cpu_in(task, 0, a->x_offset) + sample * a->x_sample + t * a->classes;
        const float *kept = dti_cpu_in(task, 1, a->t_offset) + sample * a->t_sample;
        const float dy = dti_cpu_in(task, 2, a->n_offset)[sample * a->n_sample];
        float *dx = dti_cpu_out(task, 3, a->y_offset) + sample * a->y_sample + t * a->classes;
        dti_ctc_step_grad(task, kept, t, x, dy, dx, scratch);
    }
}

/* ---- Rows of the tables */

/* Steps of an invocation: for each the cells that are its own. */
static dti_effort dti_ctc_effort(const dti_launch *l, uint32_t variant, uint32_t local) {
    const dti_args_ctc *a = &l->args.ctc;
    const uint64_t cells = 2 * (uint64_t)a->labels + 1;
    return (dti_effort){a->steps * dti_ceil_div(cells, local), l->items * a->steps * cells * 20};
}

static dti_effort dti_ctc_grad_effort(const dti_launch *l, uint32_t variant, uint32_t local) {
    const dti_args_ctc *a = &l->args.ctc;
    return dti_effort_rows(l->items, a->classes + 2 * (uint64_t)a->labels, 2, local);
}

/* Labels, then of each step the cells. */
static uint64_t dti_ctc_rounds(const dti_launch *l, uint32_t local) {
    const dti_args_ctc *a = &l->args.ctc;
    const uint64_t cells = dti_ceil_div(2 * (uint64_t)a->labels + 1, local);
    return 2 * (uint64_t)a->labels + a->steps * (cells + 2) + DTI_ROUNDS_FEW;
}

/* Of each label all labels. */
static uint64_t dti_ctc_grad_rounds(const dti_launch *l, uint32_t local) {
    const dti_args_ctc *a = &l->args.ctc;
    const uint64_t own = dti_ceil_div((uint64_t)a->labels + 1, local);
    return own * ((uint64_t)a->labels + 6) + dti_rounds_of(a->classes, 1, local);
}

static int64_t dti_cpu_grain_ctc_grad(const dti_cpu_task *task) {
    const dti_args_ctc *a = &task->launch->args.ctc;
    return 1 + 16384 / (1 + (int64_t)a->classes + 40 * (int64_t)a->labels);
}

/* (log-probabilities, labels, lengths, results): item = a sample from one end */
DTI_KERNEL(CTC, ctc, "rrrw", GROUP, .run = dti_cpu_ctc, .scratch_bytes = dti_cpu_scratch_ctc,
           .local = {128}, .rounds = dti_ctc_rounds, .effort = dti_ctc_effort);

/* (log-probabilities, results, dy, gradient): item = a step of a sample */
DTI_KERNEL(CTC_GRAD, ctc_grad, "rrrw", GROUP, .run = dti_cpu_ctc_grad,
           .scratch_bytes = dti_cpu_scratch_ctc, .grain_of = dti_cpu_grain_ctc_grad, .local = {128},
           .rounds = dti_ctc_grad_rounds, .effort = dti_ctc_grad_effort);

DTI_FAMILY(ctc, .shape = dti_ctc_shape, .outputs = dti_ctc_outputs, .grad = dti_ctc_grad_rule,
           .labels = dti_ctc_labels);

DTI_FAMILY(ctc_grad, .shape = dti_ctc_grad_shape, .grad = dti_ctc_grad_twice);

#undef DTI_OPTIONAL
#define DTI_OPTIONAL(X) X(ALWAYS)
