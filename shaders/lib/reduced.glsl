/* The walks of the reductions: axes below args.kept give the base of output i, the others are gone
 * over by j. They are mostly one line, j * stride, which needs no division. */
uint dti_reduced_base(uint i)
{
    uint offset = args.x_offset;
    [[unroll]] for (int axis = DTI_AXES - 1; axis >= 0; axis--) {
        if (uint(axis) < args.kept && args.dim[axis] > 1u) {
            uint rest = i / args.dim[axis];
            offset += (i - rest * args.dim[axis]) * args.x_stride[axis];
            i = rest;
        }
    }
    return offset;
}

uint dti_reduced_offset(uint j)
{
    uint offset = 0u;
    [[unroll]] for (int axis = DTI_AXES - 1; axis >= 0; axis--) {
        if (uint(axis) >= args.kept && args.dim[axis] > 1u) {
            uint rest = j / args.dim[axis];
            offset += (j - rest * args.dim[axis]) * args.x_stride[axis];
            j = rest;
        }
    }
    return offset;
}

/* The stride of the innermost reduced axis that is longer than 1. */
uint dti_reduced_stride()
{
    uint stride = 0u;
    bool found = false;
    [[unroll]] for (int axis = DTI_AXES - 1; axis >= 0; axis--) {
        if (uint(axis) >= args.kept && args.dim[axis] > 1u && !found) {
            stride = args.x_stride[axis];
            found = true;
        }
    }
    return stride;
}

bool dti_reduced_is_line()
{
    uint expect = dti_reduced_stride();
    bool yes = true;
    [[unroll]] for (int axis = DTI_AXES - 1; axis >= 0; axis--) {
        if (uint(axis) >= args.kept && args.dim[axis] > 1u) {
            yes = yes && args.x_stride[axis] == expect;
            expect *= args.dim[axis];
        }
    }
    return yes;
}
