/* The tree in which sums are made, so that they do not depend on who adds what. n leaves are split
 * at the largest power of two below n. Each side is a tree by itself; the result is left + right. A
 * span of leaves that is whole at some split is a subtree. */

/* How many leaves are left of the root; n > 1. */
static uint32_t dti_tree_split(uint32_t n) {
    uint32_t half = 1;
    while (half < n - half) /* half * 2 < n, without overflow */
        half *= 2;
    return half;
}

/* The maximal subtrees, ascending, of the tree over `total` leaves that make up the leaves first ..
 * first + count - 1. Returns their number, or 0 if those leaves are not all among the total. From
 * each leaf it takes the largest subtree that begins there and stays inside. That is at most one
 * per level up and one per level down, fewer than 64 for 32 levels. */
#define DTI_TREE_SPANS 64u
static uint32_t dti_tree_spans(uint32_t first, uint32_t count, uint32_t total,
                               dt_comm_span spans[DTI_TREE_SPANS]) {
    if (count > total || first > total - count)
        return 0;
    uint32_t found = 0, end = first + count;
    while (first < end && found < DTI_TREE_SPANS) {
        dt_comm_span node = {0, total};
        while (node.first != first || node.count > end - first) {
            uint32_t half = dti_tree_split(node.count);
            bool right = first >= node.first + half;
            node.first += right ? half : 0;
            node.count = right ? node.count - half : half;
        }
        spans[found++] = node;
        first += node.count;
    }
    return found;
}

/* Whether a and b, which follow each other, are the two sides of one node of the tree. */
static bool dti_tree_siblings(dt_comm_span a, dt_comm_span b, uint32_t leaves) {
    dt_comm_span node[DTI_TREE_SPANS];
    return dti_tree_spans(a.first, a.count + b.count, leaves, node) == 1 &&
           dti_tree_split(node[0].count) == a.count;
}
