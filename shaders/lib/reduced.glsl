/* The walks of the reductions. Axes that are kept give the base of output i, the others are gone
 * over by j. Bits of spec2 say which of them are longer than 1; those that are reduced are mostly
 * one line, which needs no division. */
#include "divide.glsl"
#include "sums.glsl"
layout(constant_id = 3) const uint spec2 = 0u;
const uint KEPT = spec2 >> DTI_REDUCE_KEPT & 63u, GONE = spec2 >> DTI_REDUCE_GONE & 63u;

/* Over the axes whose bits are set; the first one takes what is left. */
uint dti_reduced_walk(uint i, const uint axes)
{
    uint offset = 0u;
    [[unroll]] for (uint n = 0u; n < DTI_AXES; n++) {
        uint axis = DTI_AXES - 1u - n;
        if ((axes & (1u << axis) - 1u) != 0u && (axes >> axis & 1u) != 0u) {
            uint rest = dti_divided(i, args.dim[axis], args.by[axis]);
            offset += (i - rest * args.dim[axis]) * args.x_stride[axis];
            i = rest;
        } else if ((axes >> axis & 1u) != 0u) {
            offset += i * args.x_stride[axis];
        }
    }
    return offset;
}

DTI_FOLDS_OF(dti_folds, float, dti_fold, dti_fold_identity())

/* Runs, which lib/sums.glsl's levels follow: a sum of columns has few invocations for each. */
float run;
uint folded;
dti_folds runs;

void dti_reduced_next(uint count)
{
    folded += count;
    if (folded % DTI_RUN != 0u)
        return;
    dti_add(runs, run);
    run = dti_fold_identity();
}

/* Of output i: every step'th j from `first` on. Eight of a line are on their way from memory at
 * once. */
float dti_reduced(uint i, uint first, uint step)
{
    uint base = args.x_offset + dti_reduced_walk(i, KEPT), j = first;
    run = dti_fold_identity();
    runs = dti_folds(run, run, run, 0u);
    folded = 0u;
    if ((spec2 & DTI_REDUCE_LINE) != 0u) { /* from the last axis on */
        uint apart = step * args.x_stride[DTI_AXES - 1], at = base + j * args.x_stride[DTI_AXES - 1];
        for (; j + 7u * step < args.r; j += 8u * step, at += 8u * apart) {
            vec4 a, b;
            [[unroll]] for (uint k = 0u; k < 4u; k++) a[k] = x_get(at + k * apart);
            [[unroll]] for (uint k = 0u; k < 4u; k++) b[k] = x_get(at + (4u + k) * apart);
            [[unroll]] for (uint k = 0u; k < 4u; k++) run = dti_fold(run, a[k]);
            [[unroll]] for (uint k = 0u; k < 4u; k++) run = dti_fold(run, b[k]);
            dti_reduced_next(8u);
        }
        for (; j < args.r; j += step, at += apart) run = dti_fold(run, x_get(at));
    } else {
        for (; j < args.r; j += step) {
            run = dti_fold(run, x_get(base + dti_reduced_walk(j, GONE)));
            dti_reduced_next(1u);
        }
    }
    return dti_fold(dti_sum(runs), run);
}
