/* Gradient of CTC in a step's log-probabilities: of each class -dy times the share of the target's
 * paths that go through it then, from what CTC kept: a workgroup for each step of a sample. A label
 * that comes again is the first one's to add up, in order. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/functions.glsl"
#include "lib/reduce.glsl"

DTI_PUSH(DTI_ARGS_CTC)
layout(binding = 0) readonly buffer buffer_x { float x[]; };
layout(binding = 1) readonly buffer buffer_t { float kept[]; };
layout(binding = 2) readonly buffer buffer_n { float dy[]; };
layout(binding = 3) coherent buffer buffer_y { float y[]; };

const uint LANES = 128u;
uint lane, from, base, a_row, b_row;
float all;

float share(uint s, uint class_index)
{
    float own = dti_max(x[from + class_index], -DTI_CTC_NONE);
    return dti_m_exp((kept[a_row + s] - all) + (kept[b_row + s] - own));
}

float label_of(uint k)
{
    return kept[base + DTI_CTC_HEAD + k];
}

uint class_of(uint k)
{
    return min(uint(label_of(k)), args.classes - 1u);
}

/* Of all cells with label k's class; 0 where an earlier one has it too. */
float shares_of(uint k, uint count, uint class_index, out bool first)
{
    float label = label_of(k), sum = 0.0;
    first = true;
    for (uint j = 0u; j < k; j++)
        first = first && label_of(j) != label;
    for (uint j = k; j < count && first; j++)
        sum += label_of(j) == label ? share(2u * j + 1u, class_index) : 0.0;
    return sum;
}

void main()
{
    uint row = dti_group(), index = row / args.steps, step_index = row - index * args.steps;
    if (index >= args.samples)
        return;
    lane = gl_LocalInvocationID.x;
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
    d /= blanks + dti_group_sum(named, count + 1u, 1u); /* which is 1 but for what all cells are off */
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
