/* dL/dlogits as xent_grad (xent.comp) has it, from the values that the loss kept of each row
 * (maximum, sum of exp(x - maximum), target). It needs one read of the logits, and no sum. An
 * invocation has 4 elements, in one row where rows are a multiple of 4. May run in place. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/storage.glsl"
#include "lib/functions.glsl"

layout(constant_id = 4) const uint spec3 = 0u;
DTI_PUSH(DTI_ARGS_XENT)
DTI_READS(0u, x)
layout(binding = 1) readonly buffer buffer_kept { float kept[]; };
layout(binding = 1) readonly buffer buffer_t { int targets[]; };
layout(binding = 2) readonly buffer buffer_s { float s[]; };
DTI_WRITES(3u, writeonly, y)

struct kept_row {
    float high, share, own; /* share: of a power in their sum; own: the seed of the target's class */
    int target;
};

kept_row row_at(uint row)
{
    uint at = args.t_offset + DTI_XENT_KEPT * row;
    int target = targets[at + 2u];
    float own = 0.0;
    if (target != args.ignore_index)
        own = target < 0 || uint(target) >= args.classes
                  ? DTI_NAN
                  : (1.0 - args.smoothing) * s[args.s_offset + uint(target) * args.s_stride];
    return kept_row(kept[at], 1.0 / kept[at + 1u], own, target);
}

float grad_of(kept_row r, uint c, float value)
{
    if (r.target == args.ignore_index || dti_is_nan(r.own))
        return r.own;
    float p = dti_m_exp(value - r.high) * r.share;
    precise float grad = r.own * (p - (c == uint(r.target) ? 1.0 : 0.0));
    if (args.smoothing != 0.0) {
        float seed = s[args.s_offset], seeds = seed * float(args.classes);
        precise float even = args.smoothing / float(args.classes) * (p * seeds - seed);
        grad += even;
    }
    return grad;
}

void main()
{
    uint e = 4u * dti_item(), n = args.rows * args.classes;
    if (e >= n)
        return;
    uint row = e / args.classes, c = e - row * args.classes;
    kept_row r = row_at(row);
    if ((spec3 & DTI_ROW_FOURS) != 0u) {
        vec4 v = x_get4((args.x_offset + e) / 4u);
        v = vec4(grad_of(r, c, v.x), grad_of(r, c + 1u, v.y), grad_of(r, c + 2u, v.z),
                 grad_of(r, c + 3u, v.w));
        y_put4((args.y_offset + e) / 4u, v);
        return;
    }
    for (uint i = e; i < min(e + 4u, n); i++) {
        y_put(args.y_offset + i, grad_of(r, c, x_get(args.x_offset + i)));
        if (++c == args.classes && i + 1u < n) {
            c = 0u;
            r = row_at(++row);
        }
    }
}
