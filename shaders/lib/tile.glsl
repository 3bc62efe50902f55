/* Which of `tiles` tiles is this invocation's, of which there are `each` for a tile, at least. The
 * workgroups split tiles evenly, in whole vectors of 8. A driver gives each of its threads a
 * contiguous part of the workgroups. Otherwise some of them would have no work. How many workgroups
 * there are is not asked of the dispatch, which may be one of several that share them. */
const uint DTI_NO_TILE = 0xffffffffu;

uint dti_tile(uint tiles, uint each)
{
    uint groups = (tiles * each + gl_WorkGroupSize.x - 1u) / gl_WorkGroupSize.x;
    uint share = min(((tiles + groups - 1u) / groups + 7u) & ~7u, gl_WorkGroupSize.x);
    uint tile = dti_group() * share + gl_LocalInvocationID.x;
    return gl_LocalInvocationID.x < share && tile < tiles ? tile : DTI_NO_TILE;
}
