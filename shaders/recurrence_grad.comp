/* Back through a recurrence, step by step: the gates' slopes, and by W what flows to the state
 * before. That of the step which comes next waits in its row, before the slopes are written there:
 * of h from element 0 on, of c from 3 hidden on; behind the last step, in the state's own place. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/functions.glsl"

DTI_PUSH(DTI_ARGS_RECURRENCE)
#include "lib/recurrence.glsl"

const uint SLOPES = LSTM || GRU ? 4u : 1u;

uint x_of(uint i)
{
    return args.x_offset + (first_sample + i) * args.x_sample;
}
uint s_of(uint i)
{
    return args.s_offset + (first_sample + i) * args.s_sample;
}
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

/* Where what flows to h and c before the step number n lies; n = steps: behind all of them. */
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

/* The same, or behind the sample's end no slopes, and what flows to c goes on. */
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

void main()
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
