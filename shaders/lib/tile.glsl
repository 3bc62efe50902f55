/* Which of `tiles` tiles is this invocation's. The workgroups share them out evenly, in whole
 * vectors of 8, however many more invocations are launched: a driver that gives each of its threads
 * a contiguous part of the workgroups would leave some of them without work. */
const uint DTI_NO_TILE = 0xffffffffu;

uint dti_tile(uint tiles)
{
    uint groups = gl_NumWorkGroups.x * gl_NumWorkGroups.y;
    uint share = min(((tiles + groups - 1u) / groups + 7u) & ~7u, gl_WorkGroupSize.x);
    uint tile = dti_group() * share + gl_LocalInvocationID.x;
    return gl_LocalInvocationID.x < share && tile < tiles ? tile : DTI_NO_TILE;
}
