/* Recurrent nets in float64, unit by unit. */

/* Where a sample's operands begin. */
typedef struct ref_recurrence_at {
    dti_recurrence s;
    const double *x, *w, *more, *state; /* x: or the results; more: input 3 */
    const double *dy, *dh, *dc;
    double *y;
    int64_t length;
} ref_recurrence_at;

static ref_recurrence_at ref_recurrence_open(const ref_call *r, int64_t sample) {
    const ref_tensor *w = &r->in[1];
    ref_recurrence_at a = {
        .s = dti_recurrence_sizes(&r->node->attr, (dt_shape){2, {w->dim[4], w->dim[5]}}),
        .x = ref_sample(&r->in[0], sample),
        .w = w->data,
        .more = r->node->count > 3 ? r->in[3].data : NULL,
        .state = ref_sample(&r->in[2], sample),
        .y = r->out.data + sample * (r->out.elements / r->out.dim[0])};
    const ref_tensor *x = &r->in[0];
    a.s.steps = x->dim[4];
    if (r->node->op == DTI_OP_RECURRENCE_GRAD) {
        a.s.steps = (x->dim[5] - a.s.size - a.s.cell) / (a.s.size + dti_recurrence_kept(&a.s));
        a.dy = a.state;
        a.state += a.s.steps * a.s.size;
        if (a.s.flags & DTI_RECURRENCE_DH)
            a.dh = a.state, a.state += a.s.size;
        if (a.s.flags & DTI_RECURRENCE_DC)
            a.dc = a.state, a.state += a.s.cell;
    }
    a.length = a.s.steps;
    if (a.s.flags & DTI_RECURRENCE_LENGTHS)
        a.length = (int64_t)fmax(0, fmin((double)a.s.steps, a.state[a.s.size + a.s.cell]));
    return a;
}

static double ref_recurrence_sigmoid(double x) {
    return 1 / (1 + exp(-x));
}

/* Unit u of a step: gates, cell and result, from sums s of what comes of input and state. */
static double ref_recurrence_cell(const ref_recurrence_at *a, int64_t u, const double *x,
                                  const double *s, const double *h, double *c, double *kept) {
    const int64_t n = a->s.hidden;
    if (a->s.kind >= DTI_RECURRENCE_TANH) {
        const double sum = x[u] + s[u];
        return a->s.kind == DTI_RECURRENCE_TANH ? tanh(sum) : fmax(sum, 0);
    }
    const double first = ref_recurrence_sigmoid(x[u] + s[u]);
    const double second = ref_recurrence_sigmoid(x[n + u] + s[n + u]);
    kept[u] = first, kept[n + u] = second;
    if (a->s.kind == DTI_RECURRENCE_GRU) {
        const double q = s[2 * n + u] + a->more[u], m = tanh(x[2 * n + u] + first * q);
        kept[2 * n + u] = m, kept[3 * n + u] = q;
        return (1 - second) * m + second * h[u];
    }
    const double g = tanh(x[2 * n + u] + s[2 * n + u]);
    const double o = ref_recurrence_sigmoid(x[3 * n + u] + s[3 * n + u]);
    c[u] = second * c[u] + first * g;
    kept[2 * n + u] = g, kept[3 * n + u] = o, kept[4 * n + u] = c[u];
    return o * tanh(c[u]);
}

/* One step: h and c become those after it. room: [gates + 1][hidden]. */
static void ref_recurrence_step(const ref_recurrence_at *a, int64_t t, double *h, double *c,
                                double *room) {
    const dti_recurrence *s = &a->s;
    const int64_t all = s->gates * s->hidden, wide = dti_recurrence_kept(s);
    double *kept = a->y + s->steps * s->size + s->size + s->cell + t * wide, *unit = room + all;
    for (int64_t j = 0; j < all; j++) {
        room[j] = 0;
        for (int64_t k = 0; k < s->size; k++)
            room[j] += a->w[j * s->size + k] * h[k];
    }
    memcpy(kept + wide - s->size, h, (size_t)s->size * sizeof *h);
    for (int64_t u = 0; u < s->hidden; u++)
        unit[u] = ref_recurrence_cell(a, u, a->x + t * all, room, h, c, kept);
    if (s->flags & DTI_RECURRENCE_PROJECTED)
        memcpy(kept + s->units, unit, (size_t)s->hidden * sizeof *h);
    for (int64_t p = 0; p < s->size; p++) {
        h[p] = s->flags & DTI_RECURRENCE_PROJECTED ? 0 : unit[p];
        for (int64_t u = 0; u < s->hidden && s->flags & DTI_RECURRENCE_PROJECTED; u++)
            h[p] += a->more[p * s->hidden + u] * unit[u];
        a->y[t * s->size + p] = h[p];
    }
}

static void ref_recurrence(const ref_call *r) {
    for (int64_t sample = 0; sample < r->out.dim[0]; sample++) {
        const ref_recurrence_at a = ref_recurrence_open(r, sample);
        const dti_recurrence *s = &a.s;
        double *last = a.y + s->steps * s->size;
        double *room = malloc((size_t)((s->gates + 1) * s->hidden) * sizeof *room);
        memset(a.y, 0, (size_t)(r->out.elements / r->out.dim[0]) * sizeof *a.y);
        memcpy(last, a.state, (size_t)(s->size + s->cell) * sizeof *last);
        for (int64_t i = 0; i < s->steps && room; i++) {
            const int64_t t = dti_recurrence_step(s, i);
            if (t < a.length)
                ref_recurrence_step(&a, t, last, last + s->size, room);
        }
        free(room);
    }
}

/* d: of the sums of unit u, from du of what the cell gave; dc becomes that of the cell before;
 * returns what flows to the state of this unit beside the product. */
static double ref_recurrence_cell_back(const ref_recurrence_at *a, int64_t u, double du, double *dc,
                                       double c, const double *kept, double now, double *d) {
    const int64_t n = a->s.hidden;
    const double *k = kept + u;
    if (a->s.kind == DTI_RECURRENCE_TANH)
        d[u] = du * (1 - now * now);
    else if (a->s.kind == DTI_RECURRENCE_RELU)
        d[u] = now > 0 ? du : 0;
    if (a->s.kind >= DTI_RECURRENCE_TANH)
        return 0;
    if (a->s.kind == DTI_RECURRENCE_GRU) {
        const double before = kept[4 * n + u];
        d[2 * n + u] = du * (1 - k[n]) * (1 - k[2 * n] * k[2 * n]);
        d[u] = d[2 * n + u] * k[3 * n] * k[0] * (1 - k[0]);
        d[n + u] = du * (before - k[2 * n]) * k[n] * (1 - k[n]);
        d[3 * n + u] = d[2 * n + u] * k[0];
        return du * k[n];
    }
    const double t = tanh(k[4 * n]), dcell = *dc + du * k[3 * n] * (1 - t * t);
    d[u] = dcell * k[2 * n] * k[0] * (1 - k[0]);
    d[n + u] = dcell * c * k[n] * (1 - k[n]);
    d[2 * n + u] = dcell * k[0] * (1 - k[2 * n] * k[2 * n]);
    d[3 * n + u] = du * t * k[3 * n] * (1 - k[3 * n]);
    *dc = dcell * k[n];
    return 0;
}

/* What flows to unit u of the step's cell, from dh of the state. */
static double ref_recurrence_unit(const ref_recurrence_at *a, const double *dh, int64_t u) {
    double sum = 0;
    if (!(a->s.flags & DTI_RECURRENCE_PROJECTED))
        return dh[u];
    for (int64_t p = 0; p < a->s.size; p++)
        sum += dh[p] * a->more[p * a->s.hidden + u];
    return sum;
}

/* dh, dc: of the state after step t, become those before it. room: [hidden]. */
static void ref_recurrence_back(const ref_recurrence_at *a, int64_t t, double *dh, double *dc,
                                double *room) {
    const dti_recurrence *s = &a->s;
    const bool reverse = (s->flags & DTI_RECURRENCE_REVERSE) != 0;
    const bool first = reverse ? t == a->length - 1 : t == 0;
    const int64_t wide = dti_recurrence_kept(s), h = s->hidden;
    const double *kept = a->x + s->steps * s->size + s->size + s->cell + t * wide;
    const double *c = first ? a->state + s->size : kept + (reverse ? wide : -wide) + 4 * h;
    double *d = a->y + t * s->slopes, *dht = a->y + s->steps * s->slopes + t * s->size;
    for (int64_t p = 0; p < s->size; p++) {
        dh[p] += a->dy[t * s->size + p];
        if (s->flags & DTI_RECURRENCE_PROJECTED)
            dht[p] = dh[p];
    }
    for (int64_t u = 0; u < h; u++)
        room[u] = ref_recurrence_cell_back(a, u, ref_recurrence_unit(a, dh, u), dc + u,
                                           s->cell ? c[u] : 0, kept,
                                           u < s->size ? a->x[t * s->size + u] : 0, d);
    for (int64_t p = 0; p < s->size; p++) {
        dh[p] = s->flags & DTI_RECURRENCE_PROJECTED ? 0 : room[p];
        for (int64_t j = 0; j < s->gates * h; j++) /* of GRU's last gate it is the fourth */
            dh[p] +=
                d[j + (s->slopes > s->gates * h && j >= 2 * h ? h : 0)] * a->w[j * s->size + p];
    }
}

static void ref_recurrence_grad(const ref_call *r) {
    for (int64_t sample = 0; sample < r->out.dim[0]; sample++) {
        const ref_recurrence_at a = ref_recurrence_open(r, sample);
        const dti_recurrence *s = &a.s;
        double *room = calloc((size_t)(s->size + 2 * s->hidden), sizeof *room);
        double *dc = room + s->size, *to = a.y + dti_recurrence_grad_all(s) - s->state;
        memset(a.y, 0, (size_t)(r->out.elements / r->out.dim[0]) * sizeof *a.y);
        for (int64_t i = 0; i < s->size && a.dh; i++)
            room[i] = a.dh[i];
        for (int64_t i = 0; i < s->cell && a.dc; i++)
            dc[i] = a.dc[i];
        for (int64_t i = s->steps - 1; i >= 0; i--) {
            const int64_t t = dti_recurrence_step(s, i);
            if (t < a.length)
                ref_recurrence_back(&a, t, room, dc, dc + s->hidden);
        }
        if (s->flags & DTI_RECURRENCE_STATE) {
            memcpy(to, room, (size_t)s->size * sizeof *to);
            memcpy(to + s->size, dc, (size_t)s->cell * sizeof *to);
        }
        free(room);
    }
}
