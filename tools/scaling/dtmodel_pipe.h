/* The pipeline half of dtmodel: data x pipeline x tensor grids. A device's list of forward,
 * backward and weight parts is the library's own (src/parallel/pipeline/pipe_schedule.c, all four
 * schedules); here it runs on a clock, with the times of the layers that each chunk has. The
 * tensors that go from chunk to chunk are on the way:
 *
 *   a part             its layers' time for one micro-batch, / tensor; the tensor group's sums of
 *                      each layer's result, two forward and two backward (Shoeybi et al., 2019)
 *   from chunk to      o + n G, alpha + n beta on a link that has one message at a time in each
 *   chunk              direction, o + n G; or, of one process, the taker's own time, n copy
 *   replicas           each chunk's gradients are summed over `data` in equal buckets. That is
 *                      while its last part runs and after it, one chunk of a device after the
 *                      other; by --per-host in two levels
 *   the commit         the barrier, and the optimizer's share of the device
 *
 * Not modelled, beyond what dtmodel_sim.h leaves out: small micro-batches compute less efficiently,
 * and weights may be tied to another chunk's. Tensor groups are compared with nothing measured. */

#include "src/parallel/pipeline/pipe_schedule.h"

#include "src/parallel/pipeline/pipe_schedule.c"

#define CHUNKS_MAX 1024
#define STATE_BYTES 16 /* a parameter: value, gradient, two moments */

typedef struct pipe_grid {
    uint32_t data, pipeline, tensor, chunks, micros; /* chunks: of a device */
    dt_pipeline_schedule schedule;
    network near;       /* in a host: tensor groups, and the first level of replicas' sums */
    uint32_t per_host;  /* devices of a host; 1: there is one level */
    double part_s;      /* of a part, whatever it computes */
    double copy_s;      /* a byte of what goes from chunk to chunk, where it costs the taker */
    double split_share; /* what of a backward part are gradients that leave */
    uint64_t bucket_bytes;
} pipe_grid;

typedef struct pipe_piece { /* a chunk; times of one micro-batch */
    double forward_s, backward_s, weight_s;
    double parameters, kept_bytes, out_bytes; /* out: what goes to the next chunk */
} pipe_piece;

typedef struct pipe_times {
    double step_s, pipe_s; /* pipe: without sums over replicas and the commit */
    double work_s;         /* the mean of the devices' own work in pipe_s */
    double idle;           /* pipe_s / work_s - 1: the bubble with what goes between devices */
    double bubble;         /* the schedule's, by unit times */
    double exposed_s;      /* of the sums over replicas */
    double bytes;          /* of the device that takes most: state and kept values */
    double efficiency;     /* of all devices, against one that has all layers to itself */
    uint32_t alive;
} pipe_times;

/* ---- the cut: as even as can be, by the layers' times */

static double layer_work(const layer *l) {
    return l->forward_s + l->backward_s;
}

/* Whether that number of chunks of at most `limit` take all layers; to: one after each
 * chunk's last. */
static bool pipe_cut_fits(const model *m, uint32_t chunks, double limit, uint32_t *to) {
    uint32_t at = 0;
    for (uint32_t c = 0; c < chunks; c++) {
        const uint32_t least = at + 1, left = chunks - 1 - c;
        double work = 0;
        while (at + left < m->count && (at < least || work + layer_work(&m->layers[at]) <= limit))
            work += layer_work(&m->layers[at++]);
        to[c] = at;
        if (work > limit)
            return false;
    }
    return at == m->count;
}

static void pipe_cut(const model *m, uint32_t chunks, uint32_t *to) {
    double low = 0, high = 0;
    if (chunks > m->count)
        sim_fail(m->name, "has fewer layers than the pipeline has chunks");
    for (uint32_t i = 0; i < m->count; i++)
        high += layer_work(&m->layers[i]);
    const double all = high;
    for (int turn = 0; turn < 60; turn++) {
        const double middle = 0.5 * (low + high);
        *(pipe_cut_fits(m, chunks, middle, to) ? &high : &low) = middle;
    }
    if (!pipe_cut_fits(m, chunks, high, to))
        pipe_cut_fits(m, chunks, all, to);
}

/* Sums over a tensor group: of each layer's result, two times in each direction. */
static double pipe_tensor_s(const pipe_grid *g, double bytes) {
    static double last_bytes, last_s;
    static uint32_t last_size;
    if (g->tensor < 2 || bytes < 4)
        return 0;
    if (last_size != g->tensor || last_bytes != bytes) {
        last_size = g->tensor;
        last_bytes = bytes;
        last_s = sum_seconds(&g->near, g->tensor, DT_COMM_ALGORITHM_DIRECT, (uint64_t)bytes / 4);
    }
    return 2 * last_s;
}

static void pipe_pieces(const model *m, const pipe_grid *g, uint32_t chunks, pipe_piece *pieces) {
    static uint32_t to[CHUNKS_MAX];
    const bool split = g->schedule == DT_PIPELINE_ZERO_BUBBLE;
    pipe_cut(m, chunks, to);
    for (uint32_t c = 0, i = 0; c < chunks; c++) {
        pipe_piece *p = &pieces[c];
        *p = (pipe_piece){0};
        for (; i < to[c]; i++) {
            const layer *l = &m->layers[i];
            const double each = 1.0 / g->micros, share = each / g->tensor;
            const double sums = pipe_tensor_s(g, l->out_bytes * each);
            const double backward = l->backward_s * share;
            p->forward_s += l->forward_s * share + sums;
            p->backward_s += sums + backward * (split ? g->split_share : 1);
            p->weight_s += split ? backward * (1 - g->split_share) : 0;
            p->parameters += l->parameters / g->tensor;
            p->kept_bytes += l->kept_bytes * share;
            p->out_bytes = l->out_bytes * each;
        }
    }
}

/* ---- the lists, executed on a clock */

typedef struct pipe_clock {
    const dti_pipe_schedule *s;
    const pipe_piece *pieces;
    const network *net;
    double part_s, copy_s;
    double
        *there; /* by kind, chunk, micro-batch: when the next one's part may use it; < 0: not yet */
    double *free, *work, *link; /* by device; link: forward, then backward */
    double *gradients;          /* by chunk: when the last of its own are made */
    uint32_t *at;
} pipe_clock;

static double *pipe_there(const pipe_clock *p, uint32_t kind, uint32_t chunk, uint32_t micro) {
    return &p->there[((size_t)kind * p->s->chunks + chunk) * p->s->micros + micro];
}

/* When its input is there; < 0: not yet. What a device has itself is there at once. */
static double pipe_ready(const pipe_clock *p, dti_pipe_action a) {
    if (a.kind == DTI_PIPE_FORWARD)
        return a.chunk ? *pipe_there(p, a.kind, a.chunk - 1u, a.micro) : 0;
    if (a.kind == DTI_PIPE_WEIGHT || a.chunk + 1u == p->s->chunks)
        return 0; /* its own parts come before it in the list */
    return *pipe_there(p, DTI_PIPE_BACKWARD, a.chunk + 1u, a.micro);
}

/* When what a part has made is where it is wanted. */
static double pipe_send(pipe_clock *p, uint32_t device, dti_pipe_action a, double made) {
    const uint32_t last = p->s->chunks - 1;
    const bool forward = a.kind == DTI_PIPE_FORWARD;
    const double bytes = forward       ? p->pieces[a.chunk].out_bytes
                         : a.chunk > 0 ? p->pieces[a.chunk - 1u].out_bytes
                                       : 0;
    if (a.kind == DTI_PIPE_WEIGHT || p->s->devices == 1 || (forward ? a.chunk == last : !a.chunk))
        return made;
    double *link = &p->link[2 * device + !forward];
    const double processor = p->net->message_cost + bytes * p->net->byte_cost;
    *link = DTI_MAX(*link, made + processor) + bytes * p->net->beta;
    return *link + p->net->alpha + processor;
}

/* Bytes that a part takes itself from where they lie. */
static double pipe_copied(const pipe_clock *p, dti_pipe_action a) {
    if (p->s->devices == 1 || a.kind == DTI_PIPE_WEIGHT)
        return 0;
    if (a.kind == DTI_PIPE_FORWARD)
        return a.chunk ? p->pieces[a.chunk - 1u].out_bytes : 0;
    return a.chunk ? p->pieces[a.chunk - 1u].out_bytes : 0; /* which it brings back */
}

static void pipe_do(pipe_clock *p, uint32_t device, dti_pipe_action a) {
    const pipe_piece *piece = &p->pieces[a.chunk];
    const double takes = a.kind == DTI_PIPE_FORWARD    ? piece->forward_s
                         : a.kind == DTI_PIPE_BACKWARD ? piece->backward_s
                                                       : piece->weight_s;
    const double all = takes + p->part_s + pipe_copied(p, a) * p->copy_s;
    p->free[device] = DTI_MAX(p->free[device], pipe_ready(p, a)) + all;
    p->work[device] += takes;
    p->gradients[a.chunk] = p->free[device];
    *pipe_there(p, a.kind, a.chunk, a.micro) = pipe_send(p, device, a, p->free[device]);
    p->at[device]++;
}

static void pipe_work_off(pipe_clock *p) {
    const dti_pipe_schedule *s = p->s;
    uint64_t left = (uint64_t)s->devices * s->each;
    for (bool moved = true; moved && left;) {
        moved = false;
        for (uint32_t d = 0; d < s->devices; d++)
            while (p->at[d] < s->each && pipe_ready(p, dti_pipe_list(s, d)[p->at[d]]) >= 0) {
                pipe_do(p, d, dti_pipe_list(s, d)[p->at[d]]);
                moved = true;
                left--;
            }
    }
    if (left)
        sim_fail("pipeline", "a schedule that waits for itself");
}

static pipe_clock pipe_clock_open(const dti_pipe_schedule *s, const pipe_piece *pieces,
                                  const network *net, const pipe_grid *g) {
    const size_t parts = (size_t)3 * s->chunks * s->micros;
    pipe_clock p = {.s = s, .pieces = pieces, .net = net, .part_s = g->part_s, .copy_s = g->copy_s};
    p.there = sim_alloc(parts, sizeof *p.there);
    for (size_t i = 0; i < parts; i++)
        p.there[i] = -1;
    p.free = sim_alloc(4 * (size_t)s->devices, sizeof *p.free);
    p.work = p.free + s->devices;
    p.link = p.work + s->devices;
    p.gradients = sim_alloc(s->chunks, sizeof *p.gradients);
    p.at = sim_alloc(s->devices, sizeof *p.at);
    return p;
}

static void pipe_clock_close(pipe_clock *p) {
    free(p->there);
    free(p->free);
    free(p->gradients);
    free(p->at);
}

/* ---- replicas */

/* A chunk's gradients over all replicas. In two levels. In each host there is a sum that each of
 * its devices has a part of. Then all parts go between the hosts over the host's one link, and all
 * to all in the host. The first and the last are an all-reduce's two halves. */
static double pipe_sum_s(const network *net, const pipe_grid *g, dt_comm_algorithm algorithm,
                         double parameters) {
    const uint32_t beside =
        DTI_MAX(g->per_host / g->tensor, 1u); /* replicas of a chunk in a host */
    const uint32_t inside = DTI_MIN(beside, g->data), hosts = (g->data + inside - 1) / inside;
    const uint64_t elements = (uint64_t)DTI_MAX(parameters, 1);
    double seconds = 0;
    if (inside > 1)
        seconds += sum_seconds(&g->near, inside, DT_COMM_ALGORITHM_DIRECT, elements);
    if (hosts > 1)
        seconds += sum_seconds(net, hosts, algorithm, elements);
    return seconds;
}

/* When a chunk's sum that takes so much time ends. Its buckets arrive one by one while the last
 * part runs, and a device has one link. */
static double pipe_sum_end(const pipe_clock *p, const pipe_grid *g, uint32_t c, double at,
                           double sum) {
    const pipe_piece *piece = &p->pieces[c];
    const double part = p->s->split ? piece->weight_s : piece->backward_s;
    const double share = 1 / DTI_MAX(floor(4 * piece->parameters / (double)g->bucket_bytes), 1);
    const double first = p->gradients[c] - part * (1 - share);
    return DTI_MAX(DTI_MAX(at, first) + sum, p->gradients[c] + sum * share);
}

/* When the last of all sums has ended, or the last part. */
static double pipe_replicas_end(const pipe_clock *p, const network *net, const pipe_grid *g,
                                dt_comm_algorithm algorithm) {
    const dti_pipe_schedule *s = p->s;
    double end = 0, last_parameters = -1, sum = 0;
    for (uint32_t d = 0; d < s->devices; d++) {
        double at = 0;
        for (uint32_t k = s->chunks / s->devices; k-- > 0;) { /* the last one's are made first */
            const uint32_t c = d + k * s->devices;
            if (p->pieces[c].parameters != last_parameters)
                sum = pipe_sum_s(net, g, algorithm, p->pieces[c].parameters);
            last_parameters = p->pieces[c].parameters;
            at = pipe_sum_end(p, g, c, at, sum);
        }
        end = DTI_MAX(end, DTI_MAX(at, p->free[d]));
    }
    return end;
}

/* ---- a step */

/* Of the device that has most: its state, and what its micro-batches keep at once. */
static void pipe_most(const dti_pipe_schedule *s, const pipe_piece *pieces, pipe_times *t,
                      double *parameters) {
    for (uint32_t d = 0; d < s->devices; d++) {
        double own = 0, kept = 0;
        for (uint32_t c = d; c < s->chunks; c += s->devices) {
            own += pieces[c].parameters;
            kept += s->micro_slots[c] * pieces[c].kept_bytes;
        }
        t->bytes = DTI_MAX(t->bytes, STATE_BYTES * own + kept);
        *parameters = DTI_MAX(*parameters, own);
    }
}

static void pipe_finish(const pipe_clock *p, const network *net, const model *m, const pipe_grid *g,
                        dt_comm_algorithm algorithm, pipe_times *t) {
    const uint32_t all = g->data * g->pipeline * g->tensor;
    double parameters = 0;
    for (uint32_t d = 0; d < p->s->devices; d++) {
        t->pipe_s = DTI_MAX(t->pipe_s, p->free[d]);
        t->work_s += p->work[d] / p->s->devices;
    }
    t->idle = t->pipe_s / t->work_s - 1;
    t->bubble = p->s->bubble;
    t->alive = p->s->alive;
    pipe_most(p->s, p->pieces, t, &parameters);
    double end = t->pipe_s;
    if (g->data > 1)
        end = pipe_replicas_end(p, net, g, algorithm);
    t->exposed_s = end - t->pipe_s;
    t->step_s = end + m->optimizer_s * parameters / DTI_MAX(model_parameters(m), 1);
    if (all > 1)
        t->step_s += barrier_seconds(net, DTI_MIN(all, 1024u)); /* some log2 of it */
    t->efficiency = (m->forward_s + m->backward_s + m->optimizer_s) /
                    ((double)g->pipeline * g->tensor * t->step_s);
}

static pipe_times pipe_step_of(const network *net, const model *m, const pipe_grid *g,
                               dt_comm_algorithm algorithm) {
    static pipe_piece pieces[CHUNKS_MAX];
    dti_base base;
    dti_pipe_schedule s;
    pipe_times t = {0};
    const bool interleaved = g->schedule == DT_PIPELINE_INTERLEAVED;
    const uint32_t chunks = interleaved ? g->chunks : 1;
    dti_base_init(&base, NULL, NULL);
    if (g->pipeline * chunks > CHUNKS_MAX)
        sim_fail("pipeline", "has more than 1024 chunks");
    if (dti_pipe_schedule_make(&base, g->schedule, g->pipeline, chunks, g->micros, NULL, &s))
        sim_fail("schedule", "no memory for it");
    pipe_pieces(m, g, s.chunks, pieces);
    pipe_clock clock = pipe_clock_open(&s, pieces, net, g);
    pipe_work_off(&clock);
    pipe_finish(&clock, net, m, g, algorithm, &t);
    pipe_clock_close(&clock);
    dti_pipe_schedule_free(&base, &s);
    return t;
}
