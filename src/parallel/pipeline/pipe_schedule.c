/* The schedules, each as the list that a device executes:
 *
 *   fill-drain    all forward parts, then all backward parts (GPipe, Huang et al., 2019); all
 *                 micro-batches are alive at once
 *   1F1B          a forward part for each backward part (PipeDream-flush, Narayanan et al., 2021):
 *                 the same bubble, (p - 1) / m, and at most p micro-batches alive
 *   interleaved   1F1B over v chunks a device: (p - 1) / (v m), for v times the messages
 *   zero bubble   ZB-H1 (Qi et al., 2024): gradients of parameters wait for time that is idle:
 *                 (p - 1) / (3 m)
 *   forward       only forward parts, for an evaluation: (p - 1) / m, in the order of fill-drain
 *                 or of interleaved
 *
 * Backward parts of a chunk come in ascending order of micro-batches, so sums have the order of one
 * device. An interleaved list needs a multiple of the number of devices. For other numbers of
 * micro-batches it is made for the next multiple, and its first ones are left out. Devices still
 * wait less than with 1F1B. */

typedef struct dti_pipe_play { /* of lists that are executed */
    dti_pipe_schedule *s;
    uint64_t *ended; /* by kind, chunk and micro-batch: when; 0 = not yet */
    uint64_t *free;  /* by device: when it has time again */
    uint32_t *at;    /* by device: actions of its list that are done */
} dti_pipe_play;

static uint64_t *dti_pipe_ended(const dti_pipe_play *p, uint32_t kind, uint32_t chunk,
                                uint32_t micro) {
    const dti_pipe_schedule *s = p->s;
    return &p->ended[((size_t)kind * s->chunks + chunk) * s->micros + micro];
}

static dt_result dti_pipe_play_open(dti_base *base, dti_pipe_schedule *s, dti_pipe_play *p) {
    *p = (dti_pipe_play){.s = s};
    p->ended = dti_alloc_array(base, (size_t)3 * s->chunks * s->micros, sizeof *p->ended);
    p->free = dti_alloc_array(base, s->devices, sizeof *p->free);
    p->at = dti_alloc_array(base, s->devices, sizeof *p->at);
    return p->ended && p->free && p->at ? DT_OK : DT_ERROR_MEMORY;
}

static void dti_pipe_play_close(dti_base *base, dti_pipe_play *p) {
    DTI_FREE(base, p->ended, p->free, p->at);
}

/* When an action's needs are met; UINT64_MAX: not all actions before are done. */
static uint64_t dti_pipe_ready(const dti_pipe_play *p, dti_pipe_action a) {
    const uint32_t last = p->s->chunks - 1;
    uint64_t needs[2] = {1, 1};
    if (a.kind == DTI_PIPE_FORWARD && a.chunk > 0)
        needs[0] = *dti_pipe_ended(p, DTI_PIPE_FORWARD, a.chunk - 1u, a.micro);
    if (a.kind == DTI_PIPE_BACKWARD)
        needs[0] = *dti_pipe_ended(p, DTI_PIPE_FORWARD, a.chunk, a.micro);
    if (a.kind == DTI_PIPE_BACKWARD && a.chunk < last)
        needs[1] = *dti_pipe_ended(p, DTI_PIPE_BACKWARD, a.chunk + 1u, a.micro);
    if (a.kind == DTI_PIPE_WEIGHT)
        needs[0] = *dti_pipe_ended(p, DTI_PIPE_BACKWARD, a.chunk, a.micro);
    return needs[0] && needs[1] ? DTI_MAX(needs[0], needs[1]) - 1 : UINT64_MAX;
}

/* The device does it as soon as it can. Times are kept as 1 more, so that 0 is "not yet". */
static void dti_pipe_do(dti_pipe_play *p, uint32_t device, dti_pipe_action a) {
    const uint64_t begin = DTI_MAX(dti_pipe_ready(p, a), p->free[device]);
    p->free[device] = begin + dti_pipe_cost(p->s, a.kind);
    *dti_pipe_ended(p, a.kind, a.chunk, a.micro) = p->free[device] + 1;
    p->at[device]++;
}

/* ---- the order of forward and of backward parts on a device */

/* Micro-batches that are too many: none goes through them. Only chunks in turn need groups. */
static uint32_t dti_pipe_extra(const dti_pipe_schedule *s) {
    const uint32_t over = s->chunks > s->devices ? s->micros % s->devices : 0;
    return over ? s->devices - over : 0;
}

/* Number i of the forward parts of a device. Groups of micro-batches, one for each device, go
 * through one chunk after the other. Backward parts go from the last chunk to the first. */
static void dti_pipe_list_part(const dti_pipe_schedule *s, uint32_t device, uint32_t kind,
                               uint32_t i, dti_pipe_action **to) {
    const uint32_t v = s->chunks / s->devices, group = v > 1 ? s->devices : 1;
    const uint32_t k = i / group % v, micro = i / (group * v) * group + i % group;
    const uint32_t chunk = device + s->devices * (kind == DTI_PIPE_FORWARD ? k : v - 1 - k);
    if (micro >= dti_pipe_extra(s))
        *(*to)++ = (dti_pipe_action){(uint8_t)kind, (uint16_t)chunk, micro - dti_pipe_extra(s)};
}

/* Forward parts before the first backward part. */
static uint32_t dti_pipe_warm(const dti_pipe_schedule *s, dt_pipeline_schedule kind,
                              uint32_t device) {
    const uint32_t v = s->chunks / s->devices, behind = s->devices - 1 - device;
    const uint32_t all = (s->micros + dti_pipe_extra(s)) * v;
    if (kind == DT_PIPELINE_FILL_DRAIN || s->forward)
        return all;
    return DTI_MIN(all, v == 1 ? behind + 1 : 2 * behind + (v - 1) * s->devices + 1);
}

/* Forward parts until it is warm, then a backward part for each forward part. In a split schedule
 * device d is d micro-batches late with the gradients of parameters. The last of these fill the
 * time in which earlier devices still compute backward parts. When a new sum begins, no gradient of
 * the sum before is late. Else a chunk could not send the gradient of a parameter. */
static void dti_pipe_list_of_kind(dti_pipe_schedule *s, uint32_t device, uint32_t warm,
                                  const uint8_t *begins) {
    const uint32_t all = (s->micros + dti_pipe_extra(s)) * (s->chunks / s->devices);
    uint32_t weights = s->split ? 0 : all; /* done */
    dti_pipe_action *to = s->actions + (size_t)device * s->each;
    for (uint32_t i = 0; i < warm; i++)
        dti_pipe_list_part(s, device, DTI_PIPE_FORWARD, i, &to);
    for (uint32_t i = 0; i < all && !s->forward; i++) {
        while (s->split && begins && begins[i] && weights < i)
            dti_pipe_list_part(s, device, DTI_PIPE_WEIGHT, weights++, &to);
        dti_pipe_list_part(s, device, DTI_PIPE_BACKWARD, i, &to);
        if (weights + device <= i)
            dti_pipe_list_part(s, device, DTI_PIPE_WEIGHT, weights++, &to);
        if (warm + i < all)
            dti_pipe_list_part(s, device, DTI_PIPE_FORWARD, warm + i, &to);
    }
    while (weights < all && s->split)
        dti_pipe_list_part(s, device, DTI_PIPE_WEIGHT, weights++, &to);
}

/* ---- the cost of a list */

/* Plays the lists in their order. False: they wait on each other for ever. */
static bool dti_pipe_worked_off(dti_pipe_play *p) {
    const dti_pipe_schedule *s = p->s;
    uint64_t left = (uint64_t)s->devices * s->each;
    for (bool moved = true; moved && left;) {
        moved = false;
        for (uint32_t d = 0; d < s->devices; d++) {
            while (p->at[d] < s->each &&
                   dti_pipe_ready(p, dti_pipe_list(s, d)[p->at[d]]) != UINT64_MAX) {
                dti_pipe_do(p, d, dti_pipe_list(s, d)[p->at[d]]);
                moved = true;
                left--;
            }
        }
    }
    return left == 0;
}

static void dti_pipe_bubble(const dti_pipe_play *p) {
    dti_pipe_schedule *s = p->s;
    const uint64_t work = (s->forward ? 1ull : 3ull) * s->micros * (s->chunks / s->devices);
    uint64_t end = 0;
    for (uint32_t d = 0; d < s->devices; d++)
        end = DTI_MAX(end, p->free[d]);
    s->bubble = (double)(end - work) / (double)work;
}

static uint32_t dti_pipe_most_alive(const dti_pipe_schedule *s, uint32_t device,
                                    dti_pipe_lives *lives, const void *of) {
    const uint32_t ends = s->split ? DTI_PIPE_WEIGHT : DTI_PIPE_BACKWARD;
    uint32_t alive = 0, most = 0;
    for (uint32_t i = 0; i < s->each; i++) {
        const dti_pipe_action *a = &dti_pipe_list(s, device)[i];
        const bool counts = lives(of, a);
        alive += counts && a->kind == DTI_PIPE_FORWARD;
        most = DTI_MAX(most, alive);
        alive -= counts && a->kind == ends;
    }
    return most;
}

static bool dti_pipe_lives_here(const void *of, const dti_pipe_action *a) {
    return true;
}

static bool dti_pipe_lives_in(const void *of, const dti_pipe_action *a) {
    return a->chunk == *(const uint32_t *)of;
}

static void dti_pipe_alive(dti_pipe_schedule *s) {
    for (uint32_t c = 0; c < s->chunks; c++)
        s->micro_slots[c] = dti_pipe_most_alive(s, c % s->devices, dti_pipe_lives_in, &c);
    for (uint32_t d = 0; d < s->devices; d++)
        s->alive = DTI_MAX(s->alive, dti_pipe_most_alive(s, d, dti_pipe_lives_here, NULL));
}

/* ---- making one */

static dt_result dti_pipe_schedule_fill(dti_base *base, dt_pipeline_schedule kind,
                                        const uint8_t *begins, dti_pipe_schedule *s) {
    dti_pipe_play p;
    dt_result result = dti_pipe_play_open(base, s, &p);
    for (uint32_t d = 0; d < s->devices && !result; d++)
        dti_pipe_list_of_kind(s, d, dti_pipe_warm(s, kind, d), begins);
    if (!result && !dti_pipe_worked_off(&p))
        result = dti_fail(base, DT_ERROR_INVALID, "the pipeline schedule has a deadlock");
    if (!result) {
        dti_pipe_bubble(&p);
        dti_pipe_alive(s);
    }
    dti_pipe_play_close(base, &p);
    return result;
}

static dt_result dti_pipe_schedule_make(dti_base *base, dt_pipeline_schedule kind, uint32_t devices,
                                        uint32_t per_device, uint32_t micros, const uint8_t *begins,
                                        dti_pipe_schedule *out) {
    const bool split = kind == DT_PIPELINE_ZERO_BUBBLE, forward = kind == DTI_PIPELINE_FORWARD;
    *out = (dti_pipe_schedule){.devices = devices,
                               .chunks = devices * per_device,
                               .micros = micros,
                               .split = split,
                               .forward = forward,
                               .each = micros * per_device *
                                       (forward ? 1
                                        : split ? 3
                                                : 2)};
    out->actions = dti_alloc_array(base, (size_t)devices * out->each, sizeof *out->actions);
    out->micro_slots = dti_alloc_array(base, out->chunks, sizeof *out->micro_slots);
    dt_result result = out->actions && out->micro_slots
                           ? dti_pipe_schedule_fill(base, kind, begins, out)
                           : DT_ERROR_MEMORY;
    if (result)
        dti_pipe_schedule_free(base, out);
    return result;
}

static void dti_pipe_schedule_free(dti_base *base, dti_pipe_schedule *s) {
    DTI_FREE(base, s->actions, s->micro_slots);
    *s = (dti_pipe_schedule){0};
}
