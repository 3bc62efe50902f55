/* The walk of the CPU's map kernels. It cuts any range of the linear index over strided operands
 * into runs for a flat vector kernel. Long inner axes are run line by line. An operand whose inner
 * stride is 1 is used in place. Others (strided, repeated or short) are gathered to a buffer on the
 * stack. It divides only at the start of a range. It must not know formulas. */

#define DTI_WALK_RUN                                                                               \
    128 /* floats of a buffer; three of them are 1.5 KiB, for threads' small stacks */
#define DTI_WALK_LINE 32     /* shorter inner axes are gathered across lines */
#define DTI_WALK_HALVES 1024 /* elements in 16 bits that are widened at once, to the task's room */
_Static_assert(3 * DTI_WALK_HALVES <= DTI_ROOM, "an operand each");

typedef uint32_t __attribute__((may_alias)) dti_word;

/* n elements at y, a and b; a step of 0: the operand is one float (only where dti_map.steps),
 * else 1. */
typedef struct dti_run {
    float *y;
    const float *a, *b;
    int a_step, b_step;
    int64_t n, first; /* first: linear index of element 0 */
} dti_run;
typedef void dti_map_fn(const dti_cpu_task *task, const dti_run *run);

typedef struct dti_map {
    const dti_cpu_task *task;
    dti_map_fn *fn;
    const uint32_t *dim;
    const uint32_t *stride[3]; /* of y, a, b; NULL = no such operand */
    dti_word *base[3];
    bool steps;       /* fn takes operands of one float */
    uint8_t dtype[3]; /* of y, a, b: floats in 16 bits are widened to buf, and narrowed from it */
    bool half;        /* one of them is in 16 bits */
    bool moves;       /* fn only moves elements of one type */
    bool raw;         /* all are in 16 bits, and their bits are moved */
} dti_map;

typedef struct dti_cursor {
    uint32_t at[DTI_AXES];
} dti_cursor;

static void dti_cursor_seek(dti_cursor *c, const uint32_t *dim, int64_t index) {
    for (int axis = DTI_AXES - 1; axis >= 0; axis--) {
        c->at[axis] = (uint32_t)(index % dim[axis]);
        index /= dim[axis];
    }
}

/* Moves by n elements that do not pass the end of the inner axis. */
static void dti_cursor_advance(dti_cursor *c, const uint32_t *dim, uint32_t n) {
    c->at[DTI_AXES - 1] += n;
    for (int axis = DTI_AXES - 1; axis > 0 && c->at[axis] == dim[axis]; axis--) {
        c->at[axis] = 0;
        c->at[axis - 1]++;
    }
}

static int64_t dti_cursor_offset(const dti_cursor *c, const uint32_t *stride) {
    int64_t offset = 0;
    for (int axis = 0; axis < DTI_AXES; axis++)
        offset += (int64_t)c->at[axis] * stride[axis];
    return offset;
}

static void dti_words_gather(dti_word *to, const dti_word *from, int64_t stride, int64_t n) {
    if (stride == 0) {
        dti_word value = *from;
        for (int64_t i = 0; i < n; i++)
            to[i] = value;
        return;
    }
    for (int64_t i = 0; i < n; i++)
        to[i] = from[i * stride];
}

static void dti_words_scatter(dti_word *to, const dti_word *from, int64_t stride, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        to[i * stride] = from[i];
}

/* n elements in 16 bits to words: the bits, or the floats. Apart: at most DTI_WALK_RUN. */
static void dti_halves_gather(const dti_map *m, int operand, dti_word *to, const uint16_t *from,
                              int64_t stride, int64_t n) {
    uint16_t near[DTI_WALK_RUN];
    const uint16_t *halves = stride == 1 ? from : near;
    for (int64_t i = 0; stride != 1 && i < n; i++)
        near[i] = from[i * stride];
    if (!m->raw)
        m->task->k->widen[m->dtype[operand]]((float *)to, halves, n);
    for (int64_t i = 0; m->raw && i < n; i++)
        to[i] = halves[i];
}

static void dti_halves_scatter(const dti_map *m, uint16_t *to, const dti_word *from, int64_t stride,
                               int64_t n) {
    uint16_t near[DTI_WALK_RUN];
    uint16_t *halves = stride == 1 ? to : near;
    if (!m->raw)
        m->task->k->narrow[m->dtype[0]](halves, (const float *)from, n);
    for (int64_t i = 0; m->raw && i < n; i++)
        halves[i] = (uint16_t)from[i];
    for (int64_t i = 0; stride != 1 && i < n; i++)
        to[i * stride] = near[i];
}

/* n elements from the cursor on, across lines, to (or, scatter, from) buf. */
static void dti_map_short(const dti_map *m, int operand, dti_cursor at, dti_word *buf, int64_t n,
                          bool scatter) {
    const uint32_t *stride = m->stride[operand];
    const int64_t inner = stride[DTI_AXES - 1];
    for (int64_t done = 0; done < n;) {
        int64_t run = DTI_MIN((int64_t)m->dim[DTI_AXES - 1] - at.at[DTI_AXES - 1], n - done);
        dti_word *place = m->base[operand];
        uint16_t *halves = (uint16_t *)(void *)place + dti_cursor_offset(&at, stride);
        if (!dti_is_half(m->dtype[operand]))
            place += dti_cursor_offset(&at, stride);
        if (dti_is_half(m->dtype[operand]) && scatter)
            dti_halves_scatter(m, halves, buf + done, inner, run);
        else if (dti_is_half(m->dtype[operand]))
            dti_halves_gather(m, operand, buf + done, halves, inner, run);
        else if (scatter)
            dti_words_scatter(place, buf + done, inner, run);
        else
            dti_words_gather(buf + done, place, inner, run);
        dti_cursor_advance(&at, m->dim, (uint32_t)run);
        done += run;
    }
}

static void dti_map_across_lines(const dti_map *m, int64_t begin, int64_t end) {
    dti_word buf[3][DTI_WALK_RUN];
    dti_cursor at;
    dti_cursor_seek(&at, m->dim, begin);
    for (int64_t i = begin; i < end; i += DTI_WALK_RUN) {
        int64_t n = DTI_MIN(end - i, DTI_WALK_RUN);
        for (int t = 1; t < 3; t++) {
            if (m->stride[t])
                dti_map_short(m, t, at, buf[t], n, false);
        }
        m->fn(m->task, &(dti_run){(float *)buf[0], (float *)buf[1], (float *)buf[2], 1, 1, n, i});
        dti_map_short(m, 0, at, buf[0], n, true);
        for (int64_t left = n; left > 0;) {
            int64_t run = DTI_MIN((int64_t)m->dim[DTI_AXES - 1] - at.at[DTI_AXES - 1], left);
            dti_cursor_advance(&at, m->dim, (uint32_t)run);
            left -= run;
        }
    }
}

/* One line whose operands lie at p with inner strides s. */
static void dti_map_line(const dti_map *m, char *const lines[3], const int64_t s[3], int64_t n,
                         int64_t first) {
    dti_word *const p[3] = {(dti_word *)(void *)lines[0], (dti_word *)(void *)lines[1],
                            (dti_word *)(void *)lines[2]};
    dti_word buf[3][DTI_WALK_RUN];
    bool one[3] = {false, m->steps && s[1] == 0, m->steps && s[2] == 0};
    bool direct = s[0] == 1 && (s[1] == 1 || one[1]) && (s[2] == 1 || one[2]);
    bool lone = s[0] == 1 && !m->stride[2]; /* a alone may be gathered to where y lies */
    int64_t step = direct ? n : DTI_WALK_RUN;
    for (int64_t i = 0; i < n; i += step) {
        int64_t run = DTI_MIN(n - i, step);
        dti_word *use[3];
        for (int t = 0; t < 3; t++) {
            use[t] = s[t] == 1 ? p[t] + i : one[t] ? p[t] : lone ? p[0] + i : buf[t];
            if (t > 0 && s[t] != 1 && !one[t] && (i == 0 || s[t] != 0 || lone)) {
                dti_words_gather(use[t], p[t] + i * s[t], s[t], run);
            }
        }
        m->fn(m->task, &(dti_run){(float *)use[0], (float *)use[1], (float *)use[2], !one[1],
                                  !one[2], run, first + i});
        if (s[0] != 1)
            dti_words_scatter(p[0] + i * s[0], buf[0], s[0], run);
    }
}

/* ---- Operands in 16 bits: runs of a line are widened, computed and narrowed. */

/* n elements of operand t, `stride` apart, as floats: where they lie, or in buf. */
static const float *dti_halves_operand(const dti_map *m, int t, const char *from, int64_t stride,
                                       int64_t n, float *buf) {
    const bool half = dti_is_half(m->dtype[t]), one = stride == 0 && m->steps;
    if (!half && (stride == 1 || one))
        return (const float *)(const void *)from;
    const int64_t each = stride == 1 ? n : DTI_WALK_RUN, all = one ? 1 : n;
    for (int64_t i = 0; i < all; i += each) {
        const int64_t run = DTI_MIN(all - i, each);
        const void *at = from + i * stride * (half ? 2 : 4);
        if (half)
            dti_halves_gather(m, t, (dti_word *)buf + i, at, stride, run);
        else
            dti_words_gather((dti_word *)buf + i, at, stride, run);
    }
    return buf;
}

/* n floats to where y lies. */
static void dti_halves_result(const dti_map *m, char *to, int64_t stride, const float *from,
                              int64_t n) {
    const bool half = dti_is_half(m->dtype[0]);
    const int64_t each = stride == 1 ? n : DTI_WALK_RUN;
    for (int64_t i = 0; i < n; i += each) {
        const int64_t run = DTI_MIN(n - i, each);
        void *at = to + i * stride * (half ? 2 : 4);
        if (half)
            dti_halves_scatter(m, at, (const dti_word *)from + i, stride, run);
        else
            dti_words_scatter(at, (const dti_word *)from + i, stride, run);
    }
}

/* A line that is only moved, or whose cast is all: without a buffer. */
static bool dti_halves_moved(const dti_map *m, char *const p[3], const int64_t s[3], int64_t n) {
    const bool near = s[0] == 1 && s[1] == 1;
    if (m->raw) {
        uint16_t *to = (uint16_t *)(void *)p[0];
        const uint16_t *from = (const uint16_t *)(const void *)p[1];
        if (near)
            memmove(to, from, (size_t)n * sizeof *to);
        for (int64_t i = 0; i < n && !near; i++)
            to[i * s[0]] = from[i * s[1]];
        return true;
    }
    if (!near || !m->moves || dti_is_half(m->dtype[0]) == dti_is_half(m->dtype[1]))
        return false;
    if (dti_is_half(m->dtype[0]))
        m->task->k->narrow[m->dtype[0]](p[0], (const float *)(const void *)p[1], n);
    else
        m->task->k->widen[m->dtype[1]]((float *)(void *)p[0], p[1], n);
    return true;
}

static void dti_halves_line(const dti_map *m, char *const p[3], const int64_t s[3], int64_t n,
                            int64_t first) {
    float *room = m->task->room;
    const bool direct = !dti_is_half(m->dtype[0]) && s[0] == 1;
    if (dti_halves_moved(m, p, s, n))
        return;
    for (int64_t i = 0; i < n; i += DTI_WALK_HALVES) {
        const int64_t run = DTI_MIN(n - i, DTI_WALK_HALVES);
        char *y = p[0] + i * s[0] * (int64_t)dti_bytes(m->dtype[0], 1);
        float *to = direct ? (float *)(void *)y : room;
        dti_run r = {
            .y = to, .a = to, .b = to, .a_step = 1, .b_step = 1, .n = run, .first = first + i};
        if (m->stride[1]) {
            const char *a = p[1] + i * s[1] * (int64_t)dti_bytes(m->dtype[1], 1);
            r.a = dti_halves_operand(m, 1, a, s[1], run, room + DTI_WALK_HALVES);
            r.a_step = !(m->steps && s[1] == 0);
        }
        if (m->stride[2]) {
            const char *b = p[2] + i * s[2] * (int64_t)dti_bytes(m->dtype[2], 1);
            r.b = dti_halves_operand(m, 2, b, s[2], run, room + 2 * DTI_WALK_HALVES);
            r.b_step = !(m->steps && s[2] == 0);
        }
        m->fn(m->task, &r);
        if (!direct)
            dti_halves_result(m, y, s[0], to, run);
    }
}

static void dti_map_by_lines(const dti_map *m, int64_t begin, int64_t end) {
    const int64_t inner = m->dim[DTI_AXES - 1];
    int64_t s[3];
    for (int t = 0; t < 3; t++)
        s[t] = m->stride[t] ? m->stride[t][DTI_AXES - 1] : 1;
    dti_cursor at;
    dti_cursor_seek(&at, m->dim, begin);
    for (int64_t i = begin; i < end;) {
        int64_t run = DTI_MIN(inner - at.at[DTI_AXES - 1], end - i);
        char *p[3];
        for (int t = 0; t < 3; t++) {
            const int64_t from = m->stride[t] ? dti_cursor_offset(&at, m->stride[t]) : 0;
            p[t] = (char *)m->base[m->stride[t] ? t : 0] + dti_bytes(m->dtype[t], (uint64_t)from);
        }
        if (m->half)
            dti_halves_line(m, p, s, run, i);
        else
            dti_map_line(m, p, s, run, i);
        dti_cursor_advance(&at, m->dim, (uint32_t)run);
        i += run;
    }
}

static bool dti_map_is_flat(const dti_map *m) {
    for (int axis = 0; axis < DTI_AXES - 1; axis++) {
        if (m->dim[axis] != 1)
            return false;
    }
    for (int t = 0; t < 3; t++) {
        if (m->stride[t] && m->stride[t][DTI_AXES - 1] != 1)
            return false;
    }
    return true;
}

static void dti_map_run(const dti_map *m, int64_t begin, int64_t end) {
    if (begin >= end)
        return;
    if (!m->half && dti_map_is_flat(m)) {
        dti_word *p[3] = {m->base[0] + begin,
                          m->stride[1] ? m->base[1] + begin : m->base[0] + begin,
                          m->stride[2] ? m->base[2] + begin : m->base[0] + begin};
        m->fn(m->task,
              &(dti_run){(float *)p[0], (float *)p[1], (float *)p[2], 1, 1, end - begin, begin});
    } else if (m->dim[DTI_AXES - 1] < DTI_WALK_LINE) {
        dti_map_across_lines(m, begin, end);
    } else {
        dti_map_by_lines(m, begin, end);
    }
}

/* Binding b of the launch as operand t. */
static void dti_map_bind(dti_map *m, int t, int b, const dti_map_args *a) {
    m->dtype[t] = m->task->launch->dtype[b];
    m->half = m->half || dti_is_half(m->dtype[t]);
    m->stride[t] = a->stride[b];
    m->base[t] =
        (dti_word *)(void *)((char *)m->task->buf[b] + dti_bytes(m->dtype[t], a->offset[b]));
}

/* reads: operands; steps: fn takes those of one float; moves: fn only moves elements. */
static void dti_map_launch(const dti_cpu_task *task, dti_map_fn *fn, int reads, bool steps,
                           bool moves, int64_t begin, int64_t end) {
    const dti_map_args a = dti_map_args_of(task->launch);
    dti_map m = {.task = task, .fn = fn, .dim = a.dim, .steps = steps, .moves = moves};
    dti_map_bind(&m, 0, a.count - 1, &a);
    for (int t = 1; t <= reads; t++)
        dti_map_bind(&m, t, t - 1, &a);
    m.raw = moves && m.half && m.dtype[0] == m.dtype[1];
    dti_map_run(&m, begin, end);
}

static bool dti_nan_f32(float x) {
    return (dti_bits_from_f32(x) & 0x7fffffffu) > 0x7f800000u;
}

#define DTI_F32_NAN 0x7fc00000u
