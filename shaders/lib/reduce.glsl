/* Sums and maxima over a workgroup, by a tree in shared memory. Every invocation calls with its
 * part and gets the result. The order depends only on `count` (how many invocations have a part)
 * and on the workgroup size, which is at least 8; with few parts the tree is short, which saves
 * barriers. Its last eight values are added by every invocation for itself. Results that follow
 * each other use the slots 0 and 1 in turn. So no barrier is needed before a tree. */

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

/* The tree of v's elements from `from` on, one of each invocation, down to eight. */
#define DTI_TREE(JOIN, v, from, part, count)                                                       \
    uint at = (from) + gl_LocalInvocationID.x;                                                     \
    v[at] = part;                                                                                  \
    barrier();                                                                                     \
    for (uint s = dti_tree_start(count); s > 4u; s >>= 1) {                                        \
        if (gl_LocalInvocationID.x < s)                                                            \
            v[at] = JOIN(v[at], v[at + s]);                                                        \
        barrier();                                                                                 \
    }
#define DTI_PLUS(a, b) ((a) + (b))
#define DTI_LAST_FOUR(v, i) ((v[i] + v[(i) + 4u]) + (v[(i) + 2u] + v[(i) + 6u]))
#define DTI_LAST_EIGHT(v, from) (DTI_LAST_FOUR(v, from) + DTI_LAST_FOUR(v, (from) + 1u))

float dti_group_sum(float part, uint count, uint slot)
{
    uint from = 256u * slot;
    DTI_TREE(DTI_PLUS, dti_shared, from, part, count)
    return DTI_LAST_EIGHT(dti_shared, from);
}

float dti_group_max(float part, uint count, uint slot)
{
    uint from = 256u * slot;
    DTI_TREE(dti_max, dti_shared, from, part, count)
    float most = dti_shared[from];
    for (uint k = 1u; k < 8u; k++)
        most = dti_max(most, dti_shared[from + k]);
    return most;
}

/* Once in a kernel. */
vec2 dti_group_sum2(vec2 part, uint count)
{
    DTI_TREE(DTI_PLUS, dti_shared2, 0u, part, count)
    return DTI_LAST_EIGHT(dti_shared2, 0u);
}

/* A barrier is needed before the next one. */
vec4 dti_group_sum4(vec4 part, uint count)
{
    DTI_TREE(DTI_PLUS, dti_shared4, 0u, part, count)
    return DTI_LAST_EIGHT(dti_shared4, 0u);
}
