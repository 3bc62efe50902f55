/* Sums and maxima over a workgroup, by a tree in shared memory. Every invocation calls with its
 * part and gets the result. The order depends on `count` (how many invocations have a part) and on
 * the workgroup size alone; with few parts the tree is short, which saves barriers. Results that
 * follow each other use the slots 0 and 1 in turn, so that no barrier is needed before a tree. */

shared float dti_shared[512];
shared vec2 dti_shared2[256];
shared vec4 dti_shared4[256];

uint dti_tree_start(uint count)
{
    uint start = gl_WorkGroupSize.x >> 1;
    while (start >= count && start > 0u)
        start >>= 1;
    return start;
}

float dti_group_sum(float part, uint count, uint slot)
{
    uint at = gl_LocalInvocationID.x + 256u * slot;
    dti_shared[at] = part;
    barrier();
    for (uint s = dti_tree_start(count); s > 0u; s >>= 1) {
        if (gl_LocalInvocationID.x < s)
            dti_shared[at] += dti_shared[at + s];
        barrier();
    }
    return dti_shared[256u * slot];
}

float dti_group_max(float part, uint count, uint slot)
{
    uint at = gl_LocalInvocationID.x + 256u * slot;
    dti_shared[at] = part;
    barrier();
    for (uint s = dti_tree_start(count); s > 0u; s >>= 1) {
        if (gl_LocalInvocationID.x < s)
            dti_shared[at] = dti_max(dti_shared[at], dti_shared[at + s]);
        barrier();
    }
    return dti_shared[256u * slot];
}

/* Once in a kernel. */
vec2 dti_group_sum2(vec2 part, uint count)
{
    uint lane = gl_LocalInvocationID.x;
    dti_shared2[lane] = part;
    barrier();
    for (uint s = dti_tree_start(count); s > 0u; s >>= 1) {
        if (lane < s)
            dti_shared2[lane] += dti_shared2[lane + s];
        barrier();
    }
    return dti_shared2[0];
}

/* A barrier is needed before the next one. */
vec4 dti_group_sum4(vec4 part, uint count)
{
    uint lane = gl_LocalInvocationID.x;
    dti_shared4[lane] = part;
    barrier();
    for (uint s = dti_tree_start(count); s > 0u; s >>= 1) {
        if (lane < s)
            dti_shared4[lane] += dti_shared4[lane + s];
        barrier();
    }
    return dti_shared4[0];
}
