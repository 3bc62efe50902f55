/* Recurrences over all steps; see recurrence.c. A workgroup walks over the steps of up to four
 * samples. It has a vector for each unit, which is an invocation's for all of them. Values that
 * others wrote are read after a barrier.
 *
 * recurrence: of each step the gates' sums, W h, and the cell. Results of a sample: h of all steps,
 * the last h and c, and what is kept.
 *
 * recurrence_grad: back, step by step: the gates' slopes, and by W what flows to the state before.
 * That of the next step waits in its row, before the slopes are written there. It is of h from
 * element 0 on, of c from 3 hidden on; after the last step, in the state's own place. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/functions.glsl"

DTI_PUSH(DTI_ARGS_RECURRENCE)
layout(binding = 0) readonly buffer buffer_x { float x[]; };
layout(binding = 1) readonly buffer buffer_w { float w[]; };
layout(binding = 2) readonly buffer buffer_s { float s[]; };
layout(binding = 3) coherent buffer buffer_y { float y[]; };

const bool LSTM = spec0 == DTI_RECURRENCE_LSTM, GRU = spec0 == DTI_RECURRENCE_GRU;
const bool RELU = spec0 == DTI_RECURRENCE_RELU;
const uint GATES = LSTM ? 4u : GRU ? 3u : 1u, LANES = 128u;

shared vec4 side[LANES];
uint lane, first_sample, here; /* samples of this workgroup */
uvec4 lengths;

bool has(uint flag)
{
    return (args.flags & flag) != 0u;
}

uint cells()
{
    return LSTM ? args.hidden : 0u;
}

/* Gates and cell of a step. */
uint units()
{
    return LSTM ? 5u * args.hidden : GRU ? 4u * args.hidden : 0u;
}

/* What is kept of a step. */
uint kept_size()
{
    return units() + (has(DTI_RECURRENCE_PROJECTED) ? args.hidden : 0u) + args.size;
}

/* Where a sample's kept values of step t begin, after its y and last states. */
uint kept_at(uint t)
{
    return args.steps * args.size + args.size + cells() + t * kept_size();
}

uint step_of(uint i)
{
    return has(DTI_RECURRENCE_REVERSE) ? args.steps - 1u - i : i;
}

/* Whether t is where the sample's walk begins; else `before` is the step that it comes from. */
bool begins(uint i, uint t, out uint before)
{
    before = has(DTI_RECURRENCE_REVERSE) ? t + 1u : t - 1u;
    return has(DTI_RECURRENCE_REVERSE) ? t + 1u == lengths[i] : t == 0u;
}

/* state: where the sample's state before lies; false: there is nothing to do for this workgroup. */
bool open_samples(uint state)
{
    lane = gl_LocalInvocationID.x;
    first_sample = dti_group() * args.block;
    here = first_sample < args.samples ? min(args.block, args.samples - first_sample) : 0u;
    for (uint i = 0u; i < 4u; i++) {
        lengths[i] = i < here ? args.steps : 0u;
        if (i < here && has(DTI_RECURRENCE_LENGTHS)) {
            float n = s[args.s_offset + (first_sample + i) * args.s_sample + state + args.size + cells()];
            lengths[i] = uint(clamp(n, 0.0, float(args.steps)));
        }
    }
    return here > 0u;
}

/* Of four rows. */
vec4 weights(uint at)
{
    uint row = args.w_row;
    return vec4(w[at], w[at + row], w[at + 2u * row], w[at + 3u * row]);
}

/* All that was written so far is seen by the workgroup. */
void meet()
{
    memoryBarrierBuffer();
    barrier();
}

uint x_of(uint i)
{
    return args.x_offset + (first_sample + i) * args.x_sample;
}
uint s_of(uint i)
{
    return args.s_offset + (first_sample + i) * args.s_sample;
}

/* ---- recurrence */

vec4 acc[GATES];

uint y_of(uint i)
{
    return args.y_offset + (first_sample + i) * args.y_sample;
}

/* Element k of h before step t; it is kept too. */
float state_before(uint i, uint t, uint k, bool keeps)
{
    uint before;
    float h = 0.0;
    if (t < lengths[i])
        h = begins(i, t, before) ? s[s_of(i) + k] : y[y_of(i) + before * args.size + k];
    if (keeps && i < here)
        y[y_of(i) + kept_at(t) + kept_size() - args.size + k] = h;
    return h;
}

/* acc = the sums of unit u from the state. */
void multiply(uint t, uint u, bool keeps)
{
    for (uint g = 0u; g < GATES; g++) acc[g] = vec4(0.0);
    for (uint from = 0u; from < args.size; from += LANES) {
        barrier();
        if (from + lane < args.size) {
            vec4 h; /* stored whole */
            for (uint i = 0u; i < 4u; i++) h[i] = state_before(i, t, from + lane, keeps);
            side[lane] = h;
        }
        barrier();
        uint count = u < args.hidden ? min(LANES, args.size - from) : 0u;
        uint at = args.w_offset + from * args.w_row + u;
        uint k = 0u;
        for (; k + 4u <= count; k += 4u, at += 4u * args.w_row) { /* that number on their way at
                                                                   * once */
            vec4 h[4] = vec4[4](side[k], side[k + 1u], side[k + 2u], side[k + 3u]);
            [[unroll]] for (uint g = 0u; g < GATES; g++) {
                vec4 v = weights(at + g * args.hidden), sum = acc[g];
                [[unroll]] for (uint i = 0u; i < 4u; i++) sum = fma(vec4(v[i]), h[i], sum);
                acc[g] = sum;
            }
        }
        for (; k < count; k++, at += args.w_row) {
            [[unroll]] for (uint g = 0u; g < GATES; g++) acc[g] =
                fma(vec4(w[at + g * args.hidden]), side[k], acc[g]);
        }
    }
}

/* Unit u of sample i: keeps its gates and returns what it gives. */
float cell(uint i, uint t, uint u)
{
    uint n = args.hidden, at = x_of(i) + t * GATES * n + u, to = y_of(i) + kept_at(t) + u, before;
    bool first = begins(i, t, before);
    float sum[4];
    [[unroll]] for (uint g = 0u; g < GATES; g++) sum[g] = acc[g][i];
    if (!LSTM && !GRU) {
        float h = x[at] + sum[0];
        return RELU ? (h < 0.0 ? 0.0 : h) : dti_m_tanh(h);
    }
    float a = dti_m_sigmoid(x[at] + sum[0]), b = dti_m_sigmoid(x[at + n] + sum[1]);
    y[to] = a;
    y[to + n] = b;
    if (GRU) {
        float q = sum[2] + w[args.e_offset + u], m = dti_m_tanh(fma(a, q, x[at + 2u * n]));
        float h = first ? s[s_of(i) + u] : y[y_of(i) + before * args.size + u];
        y[to + 2u * n] = m;
        y[to + 3u * n] = q;
        return fma(b, h - m, m);
    }
    float g = dti_m_tanh(x[at + 2u * n] + sum[2]), o = dti_m_sigmoid(x[at + 3u * n] + sum[3]);
    float c = first ? s[s_of(i) + args.size + u] : y[y_of(i) + kept_at(before) + 4u * n + u];
    c = fma(b, c, a * g);
    y[to + 2u * n] = g;
    y[to + 3u * n] = o;
    y[to + 4u * n] = c;
    return o * dti_m_tanh(c);
}

/* What unit u gives: h, or what is projected; after the sample's end all is 0. */
void put(uint i, uint t, uint u)
{
    bool on = t < lengths[i], projected = has(DTI_RECURRENCE_PROJECTED);
    float h = 0.0;
    if (on)
        h = cell(i, t, u);
    for (uint at = u; !on && at < units(); at += args.hidden) y[y_of(i) + kept_at(t) + at] = 0.0;
    y[y_of(i) + (projected ? kept_at(t) + units() : t * args.size) + u] = h;
}

/* h of step t: what cells gave, projected. */
void project(uint t)
{
    meet();
    for (uint from = 0u; from < args.size; from += LANES) {
        uint p = from + lane;
        vec4 sum = vec4(0.0);
        for (uint chunk = 0u; chunk < args.hidden; chunk += LANES) {
            uint u = chunk + lane, count = min(LANES, args.hidden - chunk);
            barrier();
            vec4 v;
            for (uint i = 0u; i < 4u; i++)
                v[i] = u < args.hidden && i < here ? y[y_of(i) + kept_at(t) + units() + u] : 0.0;
            side[lane] = v;
            barrier();
            for (uint k = 0u; k < count && p < args.size; k++)
                sum = fma(vec4(w[args.e_offset + (chunk + k) * args.size + p]), side[k], sum);
        }
        for (uint i = 0u; i < here && p < args.size; i++) y[y_of(i) + t * args.size + p] = sum[i];
    }
}

/* The state after the sample's last step. */
void finish(uint i)
{
    uint last = has(DTI_RECURRENCE_REVERSE) ? 0u : lengths[i] - 1u;
    uint to = y_of(i) + args.steps * args.size;
    for (uint p = lane; p < args.size; p += LANES)
        y[to + p] = lengths[i] == 0u ? s[s_of(i) + p] : y[y_of(i) + last * args.size + p];
    for (uint u = lane; u < cells(); u += LANES)
        y[to + args.size + u] = lengths[i] == 0u ? s[s_of(i) + args.size + u]
                                                 : y[y_of(i) + kept_at(last) + 4u * args.hidden + u];
}

void walk()
{
    if (!open_samples(0u))
        return;
    for (uint n = 0u; n < args.steps; n++) {
        uint t = step_of(n);
        for (uint from = 0u; from < args.hidden; from += LANES) {
            multiply(t, from + lane, from == 0u);
            for (uint i = 0u; i < here && from + lane < args.hidden; i++) put(i, t, from + lane);
        }
        if (has(DTI_RECURRENCE_PROJECTED))
            project(t);
        meet();
    }
    for (uint i = 0u; i < here; i++) finish(i);
}

/* ---- recurrence_grad */

const uint SLOPES = LSTM || GRU ? 4u : 1u;

uint row_of(uint i, uint t)
{
    return args.y_offset + (first_sample + i) * args.y_sample + t * SLOPES * args.hidden;
}
/* Of what flows to h of all steps, which the projection's gradient takes. */
uint flow_of(uint i, uint t)
{
    return row_of(i, args.steps) + t * args.size;
}
/* In what flows: the last h, the last c, the state before. */
uint last_h()
{
    return args.steps * args.size;
}
uint last_c()
{
    return last_h() + (has(DTI_RECURRENCE_DH) ? args.size : 0u);
}
uint state_at()
{
    return last_c() + (has(DTI_RECURRENCE_DC) ? args.hidden : 0u);
}

/* Where what flows to h and c before the step number n lies; n = steps: after all of them. */
uint h_at(uint i, uint n)
{
    if (n < args.steps)
        return row_of(i, step_of(args.steps - 1u - n));
    return row_of(i, args.steps) + (has(DTI_RECURRENCE_PROJECTED) ? args.steps * args.size : 0u);
}
uint c_at(uint i, uint n)
{
    return h_at(i, n) + (n < args.steps ? 3u * args.hidden : args.size);
}
bool goes_on(uint n)
{
    return n + 1u < args.steps || has(DTI_RECURRENCE_STATE);
}

float flow_to_h(uint i, uint n, uint p)
{
    if (n > 0u)
        return y[h_at(i, n) + p];
    return has(DTI_RECURRENCE_DH) ? s[s_of(i) + last_h() + p] : 0.0;
}
float flow_to_c(uint i, uint n, uint u)
{
    if (n > 0u)
        return y[c_at(i, n) + u];
    return has(DTI_RECURRENCE_DC) ? s[s_of(i) + last_c() + u] : 0.0;
}

float slope(float d, float v)
{
    return d * v * (1.0 - v);
}
float tanh_slope(float d, float v)
{
    return d * (1.0 - v * v);
}

/* Unit u of sample i, d: what flows to what it gives. Writes its slopes and returns what flows to
 * its own state beside the product. */
float cell_back(uint i, uint n, uint t, uint u, float d)
{
    uint h = args.hidden, kept = x_of(i) + kept_at(t) + u, to = row_of(i, t) + u, before;
    bool first = begins(i, t, before);
    if (!LSTM && !GRU) {
        float now = x[x_of(i) + t * args.size + u];
        y[to] = RELU ? (now > 0.0 ? d : 0.0) : tanh_slope(d, now);
        return 0.0;
    }
    float a = x[kept], b = x[kept + h], c = x[kept + 2u * h], e = x[kept + 3u * h];
    if (GRU) {
        float state = x[kept + 4u * h];
        float dm = tanh_slope(d * (1.0 - b), c);
        y[to] = slope(dm * e, a);
        y[to + h] = slope(d * (state - c), b);
        y[to + 2u * h] = dm;
        y[to + 3u * h] = dm * a;
        return d * b;
    }
    float v = dti_m_tanh(x[kept + 4u * h]);
    float dc = flow_to_c(i, n, u) + tanh_slope(d * e, v);
    float was = first ? s[s_of(i) + state_at() + args.size + u]
                      : x[x_of(i) + kept_at(before) + 4u * h + u];
    if (goes_on(n))
        y[c_at(i, n + 1u) + u] = dc * b;
    y[to] = slope(dc * c, a);
    y[to + h] = slope(dc * was, b);
    y[to + 2u * h] = tanh_slope(dc * a, c);
    y[to + 3u * h] = slope(d * v, e);
    return 0.0;
}

/* The same, or after the sample's end no slopes, and what flows to c goes on. */
float unit_back(uint i, uint n, uint t, uint u, float d)
{
    if (t < lengths[i])
        return cell_back(i, n, t, u, d);
    if (LSTM && goes_on(n))
        y[c_at(i, n + 1u) + u] = flow_to_c(i, n, u);
    for (uint g = 0u; g < SLOPES; g++) y[row_of(i, t) + g * args.hidden + u] = 0.0;
    return 0.0;
}

/* Units of a state that is not projected. */
void cells_back(uint n, uint t)
{
    for (uint u = lane; u < args.hidden; u += LANES) {
        for (uint i = 0u; i < here; i++) {
            bool on = t < lengths[i];
            float d = flow_to_h(i, n, u), more = d;
            if (on)
                d += s[s_of(i) + t * args.size + u];
            float kept = unit_back(i, n, t, u, d);
            if (goes_on(n))
                y[h_at(i, n + 1u) + u] = on ? kept : more;
        }
    }
}

/* Those of one that is: what flows to h is kept, and goes through the projection. */
void projected_back(uint n, uint t)
{
    for (uint p = lane; p < args.size; p += LANES) {
        for (uint i = 0u; i < here; i++) {
            bool on = t < lengths[i];
            float d = flow_to_h(i, n, p);
            y[flow_of(i, t) + p] = on ? d + s[s_of(i) + t * args.size + p] : 0.0;
            if (goes_on(n))
                y[h_at(i, n + 1u) + p] = on ? 0.0 : d;
        }
    }
    meet();
    for (uint from = 0u; from < args.hidden; from += LANES) {
        uint u = from + lane;
        vec4 sum = vec4(0.0);
        for (uint chunk = 0u; chunk < args.size; chunk += LANES) {
            uint count = min(LANES, args.size - chunk);
            barrier();
            vec4 v;
            for (uint i = 0u; i < 4u; i++)
                v[i] = lane < count && i < here ? y[flow_of(i, t) + chunk + lane] : 0.0;
            side[lane] = v;
            barrier();
            for (uint k = 0u; k < count && u < args.hidden; k++)
                sum = fma(vec4(w[args.e_offset + (chunk + k) * args.hidden + u]), side[k], sum);
        }
        for (uint i = 0u; i < here && u < args.hidden; i++) unit_back(i, n, t, u, sum[i]);
    }
}

/* To h before: slopes times W; of GRU's last gate, as the reset gate lets it through. */
void multiply_back(uint n, uint t)
{
    for (uint from = 0u; from < args.size; from += LANES) {
        uint p = from + lane, all = GATES * args.hidden;
        vec4 sum = vec4(0.0);
        for (uint chunk = 0u; chunk < all; chunk += LANES) {
            uint j = chunk + lane, count = min(LANES, all - chunk);
            uint at = GRU && j >= 2u * args.hidden ? j + args.hidden : j;
            barrier();
            vec4 v;
            for (uint i = 0u; i < 4u; i++)
                v[i] = j < all && i < here ? y[row_of(i, t) + at] : 0.0;
            side[lane] = v;
            barrier();
            uint k = 0u, end = p < args.size ? count : 0u, from = args.w_offset + chunk * args.w_row + p;
            for (; k + 8u <= end; k += 8u, from += 8u * args.w_row) { /* on their way at once */
                vec4 v = weights(from), v2 = weights(from + 4u * args.w_row);
                [[unroll]] for (uint i = 0u; i < 4u; i++) sum = fma(vec4(v[i]), side[k + i], sum);
                [[unroll]] for (uint i = 0u; i < 4u; i++) sum = fma(vec4(v2[i]), side[k + 4u + i], sum);
            }
            for (; k < end; k++, from += args.w_row)
                sum = fma(vec4(w[from]), side[k], sum);
        }
        for (uint i = 0u; i < here && p < args.size; i++) y[h_at(i, n + 1u) + p] += sum[i];
    }
}

void walk_back()
{
    if (!open_samples(state_at()))
        return;
    for (uint n = 0u; n < args.steps; n++) {
        uint t = step_of(args.steps - 1u - n);
        if (has(DTI_RECURRENCE_PROJECTED))
            projected_back(n, t);
        else
            cells_back(n, t);
        meet();
        if (goes_on(n))
            multiply_back(n, t);
    }
    if (has(DTI_RECURRENCE_STATE) && has(DTI_RECURRENCE_LENGTHS) && lane == 0u) {
        for (uint i = 0u; i < here; i++) y[c_at(i, args.steps) + cells()] = 0.0;
    }
}

void main()
{
    if (SIDE == DTI_SIDE_RECURRENCE)
        walk();
    else
        walk_back();
}
