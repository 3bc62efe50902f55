/* Connectionist temporal classification.
 *
 * ctc, of a sample: one workgroup makes the logarithms of the probability of its target's
 * beginnings after each step. The next one makes those of all ends, which are beginnings of the
 * reversed target. Cells: the labels with blanks around each of them; those of a step are the
 * invocations' in turn. What is kept is in args.h; see src/op/families/ctc.c.
 *
 * ctc_grad: the gradient in a step's log-probabilities. For each class it is -dy times the share of
 * the target's paths that go through it then. It uses the values that ctc kept, with a workgroup
 * for each step of a sample. A label that comes again is the first one's to add up, in order. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/functions.glsl"
#include "lib/reduce.glsl"

DTI_PUSH(DTI_ARGS_CTC)
layout(binding = 0) readonly buffer buffer_x { float x[]; };
layout(binding = 1) readonly buffer buffer_t { int t[]; };
layout(binding = 1) readonly buffer buffer_kept { float kept[]; };
layout(binding = 2) readonly buffer buffer_n { int n[]; };
layout(binding = 2) readonly buffer buffer_dy { float dy[]; };
layout(binding = 3) coherent buffer buffer_y { float y[]; };

const uint LANES = 128u;
const float NONE = -DTI_CTC_NONE;
uint lane, from, labels_at, to, width, steps, count, cells;
bool back, wrong; /* wrong: a label is out of range, or the blank */

void open_sample(uint sample_index)
{
    from = args.x_offset + sample_index * args.x_sample;
    labels_at = args.t_offset + sample_index * args.t_sample;
    to = args.y_offset + sample_index * args.y_sample;
    width = 2u * args.labels + 1u;
    steps = args.steps;
    count = args.labels;
    if ((args.flags & DTI_CTC_LENGTHS) != 0u) {
        uint at = args.n_offset + sample_index * args.n_sample;
        steps = uint(clamp(n[at], 0, int(args.steps)));
        count = uint(clamp(n[at + 1u], 0, int(args.labels)));
    }
    wrong = false;
    for (uint k = 0u; k < count; k++) {
        int label = t[labels_at + k];
        if (label < 0)
            count = k;
        else if (uint(label) >= args.classes || uint(label) == args.blank)
            wrong = true;
    }
    cells = 2u * count + 1u;
}

/* Of the walk's cell s; odd cells are labels. */
uint label_of(uint s)
{
    uint k = s >> 1;
    uint label = uint(t[labels_at + (back ? count - 1u - k : k)]);
    return min(label, args.classes - 1u);
}

/* Whether cell s may follow the one before the last. */
bool skips(uint s)
{
    return (s & 1u) == 1u && (s == 1u || label_of(s) != label_of(s - 2u));
}

uint row_of(uint i)
{
    uint rows = to + DTI_CTC_HEAD + args.labels;
    return rows + (back ? args.steps + steps - 1u - i : i) * width;
}

uint place_of(uint s)
{
    return back ? cells - 1u - s : s;
}

/* Cell s before the walk's step i. Before the first step all is before cell 0. */
float before(uint i, int s)
{
    if (i == 0u)
        return s == -1 ? 0.0 : NONE;
    return s < 0 ? NONE : y[row_of(i - 1u) + place_of(uint(s))];
}

/* The larger of both into a, the other into b; a NaN goes into a. */
void order(inout float a, inout float b)
{
    float more = dti_max(a, b);
    b = a > b ? b : a;
    a = more;
}

float cell(uint i, uint s)
{
    uint class_index = (s & 1u) == 0u ? args.blank : label_of(s);
    float own = x[from + (back ? steps - 1u - i : i) * args.classes + class_index];
    float a = before(i, int(s)), b = before(i, int(s) - 1);
    float c = skips(s) ? before(i, int(s) - 2) : NONE;
    order(a, b);
    order(a, c); /* e^(a - a) is 1 */
    float sum = 1.0 + dti_m_exp(b - a) + dti_m_exp(c - a);
    return (a + dti_m_log(sum)) + dti_max(own, NONE);
}

float all_paths()
{
    if (steps == 0u)
        return count == 0u ? 0.0 : NONE;
    float a = y[row_of(steps - 1u) + cells - 1u];
    float b = count == 0u ? NONE : y[row_of(steps - 1u) + cells - 2u];
    order(a, b);
    return a + dti_m_log(1.0 + dti_m_exp(b - a));
}

void finish()
{
    float all = wrong ? DTI_NAN : all_paths();
    bool impossible = all < -DTI_CTC_IMPOSSIBLE;
    float none = (args.flags & DTI_CTC_ZERO) != 0u ? 0.0 : DTI_INFINITY;
    y[to + DTI_CTC_LOSS] = impossible ? none : 0.0 - all;
    y[to + DTI_CTC_COUNT] = float(count);
    y[to + DTI_CTC_ALL] = all;
    y[to + DTI_CTC_STEPS] = float(steps);
}

void walk(uint group)
{
    if (group >= 2u * args.samples)
        return;
    back = (group & 1u) == 1u;
    open_sample(group >> 1);
    for (uint k = lane; k < args.labels && !back; k += LANES)
        y[to + DTI_CTC_HEAD + k] = k < count ? float(t[labels_at + k]) : 0.0;
    for (uint i = 0u; i < args.steps; i++) {
        bool on = i < steps;
        uint row = on ? row_of(i) : to + DTI_CTC_HEAD + args.labels + (back ? args.steps + i : i) * width;
        for (uint s = lane; s < width; s += LANES) {
            bool used = on && s < cells;
            y[row + (used ? place_of(s) : s)] = used ? cell(i, s) : 0.0;
        }
        memoryBarrierBuffer();
        barrier();
    }
    if (!back && lane == 0u)
        finish();
}

/* ---- ctc_grad */

uint base, a_row, b_row;
float all;

float share(uint s, uint class_index)
{
    float own = dti_max(x[from + class_index], -DTI_CTC_NONE);
    return dti_m_exp((kept[a_row + s] - all) + (kept[b_row + s] - own));
}

float kept_label(uint k)
{
    return kept[base + DTI_CTC_HEAD + k];
}

uint class_of(uint k)
{
    return min(uint(kept_label(k)), args.classes - 1u);
}

/* Of all cells with label k's class; 0 where an earlier one has it too. */
float shares_of(uint k, uint count, uint class_index, out bool first)
{
    float label = kept_label(k), sum = 0.0;
    first = true;
    for (uint j = 0u; j < k; j++)
        first = first && kept_label(j) != label;
    for (uint j = k; j < count && first; j++)
        sum += kept_label(j) == label ? share(2u * j + 1u, class_index) : 0.0;
    return sum;
}

void grad_row(uint row)
{
    uint index = row / args.steps, step_index = row - index * args.steps;
    if (index >= args.samples)
        return;
    from = args.x_offset + index * args.x_sample + step_index * args.classes;
    base = args.t_offset + index * args.t_sample;
    uint width = 2u * args.labels + 1u, count = uint(kept[base + DTI_CTC_COUNT]);
    a_row = base + DTI_CTC_HEAD + args.labels + step_index * width;
    b_row = a_row + args.steps * width;
    all = kept[base + DTI_CTC_ALL];
    uint to = args.y_offset + index * args.y_sample + step_index * args.classes;
    float d = -dy[args.n_offset + index * args.n_sample];
    bool impossible = all < -DTI_CTC_IMPOSSIBLE, on = step_index < uint(kept[base + DTI_CTC_STEPS]);
    if (impossible && (args.flags & DTI_CTC_ZERO) != 0u)
        on = false;
    if (impossible)
        d = DTI_NAN;
    float blanks = 0.0, named = 0.0;
    for (uint k = lane; k <= count && on; k += LANES) {
        blanks += share(2u * k, args.blank);
        if (k < count)
            named += share(2u * k + 1u, class_of(k));
    }
    blanks = dti_group_sum(blanks, count + 1u, 0u);
    d /= blanks + dti_group_sum(named, count + 1u, 1u); /* which is 1 except for what all cells are
                                                         * off */
    for (uint c = lane; c < args.classes; c += LANES)
        y[to + c] = on && c == args.blank ? d * blanks : 0.0;
    memoryBarrierBuffer();
    barrier();
    for (uint k = lane; k < count && on; k += LANES) {
        bool first;
        uint class_index = class_of(k);
        float sum = shares_of(k, count, class_index, first);
        if (first)
            y[to + class_index] = d * sum;
    }
}

void main()
{
    lane = gl_LocalInvocationID.x;
    if (SIDE == DTI_SIDE_CTC)
        walk(dti_group());
    else
        grad_row(dti_group());
}
