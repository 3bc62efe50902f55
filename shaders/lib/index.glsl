/* Strided walks over the 6 axes of args.h, innermost last. Axes of dim 1 cost nothing: the test is
 * the same for every invocation. */
uint dti_walk(uint i, uint dim[DTI_AXES], uint stride[DTI_AXES])
{
    uint offset = 0u;
    [[unroll]] for (int axis = DTI_AXES - 1; axis >= 0; axis--) {
        if (dim[axis] > 1u) {
            uint rest = i / dim[axis];
            offset += (i - rest * dim[axis]) * stride[axis];
            i = rest;
        }
    }
    return offset;
}

/* True where element i lies at i: the axes are those of a contiguous tensor. */
bool dti_contiguous(uint dim[DTI_AXES], uint stride[DTI_AXES])
{
    uint expect = 1u;
    bool yes = true;
    [[unroll]] for (int axis = DTI_AXES - 1; axis >= 0; axis--) {
        yes = yes && (dim[axis] == 1u || stride[axis] == expect);
        expect *= dim[axis];
    }
    return yes;
}

uint dti_offset(uint i, uint dim[DTI_AXES], uint stride[DTI_AXES])
{
    return dti_contiguous(dim, stride) ? i : dti_walk(i, dim, stride);
}
