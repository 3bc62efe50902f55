/* The stack of subtrees: which sums a run of pieces leaves, and in which order they are made. */

/* The largest power of two below n: how many leaves are left of the root; n > 1. */
static uint32_t dti_tree_left(uint32_t n) {
    uint32_t left = 1;
    while (left < n - left)
        left *= 2;
    return left;
}

/* Whether a and b, which follow each other, are the two sides of one node of the tree. */
static bool dti_tree_siblings(dt_comm_span a, dt_comm_span b, uint32_t leaves) {
    uint32_t first = 0, count = leaves;
    while (count > a.count + b.count || first != a.first) {
        if (count <= 1)
            return false;
        uint32_t left = dti_tree_left(count);
        if (a.first < first + left) {
            count = left;
        } else {
            first += left;
            count -= left;
        }
    }
    return count == a.count + b.count && dti_tree_left(count) == a.count;
}

static uint32_t dti_subtrees_add(dti_subtrees *s, const dti_piece *piece) {
    if (piece->begins)
        s->at[s->count++] = (dt_comm_span){piece->leaf, 1};
    return s->count - 1;
}

static bool dti_subtrees_join(dti_subtrees *s, uint32_t leaves) {
    if (s->count < 2)
        return false;
    dt_comm_span *left = &s->at[s->count - 2], *right = &s->at[s->count - 1];
    if (!dti_tree_siblings(*left, *right, leaves))
        return false;
    left->count += right->count;
    s->count--;
    return true;
}

static dti_subtrees dti_subtrees_after(const dti_shards *shards) {
    dti_subtrees s = shards->before;
    for (uint32_t i = 0; i < shards->piece_count; i++) {
        dti_subtrees_add(&s, &shards->pieces[i]);
        while (shards->pieces[i].ends && dti_subtrees_join(&s, shards->leaves)) {
        }
    }
    return s;
}
