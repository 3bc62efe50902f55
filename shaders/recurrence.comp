/* A recurrence over all steps: of each step the gates' sums, W h, and the cell; see
 * recurrence.c. Results of a sample: h of all steps, the last h and c, and what is kept. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/functions.glsl"

DTI_PUSH(DTI_ARGS_RECURRENCE)
#include "lib/recurrence.glsl"

vec4 acc[GATES];

uint x_of(uint i)
{
    return args.x_offset + (first_sample + i) * args.x_sample;
}
uint s_of(uint i)
{
    return args.s_offset + (first_sample + i) * args.s_sample;
}
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
        for (; k + 4u <= count; k += 4u, at += 4u * args.w_row) { /* so many on their way at once */
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

/* What unit u gives: h, or what is projected; behind the sample's end all is 0. */
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

/* The state behind the sample's last step. */
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

void main()
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
