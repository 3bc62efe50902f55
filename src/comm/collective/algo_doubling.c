/* All-reduce by recursive doubling along fold.h's own tree. Both sides of a node sum among
 * themselves. Then left member i and right member i exchange their sums, and all have left + right.
 * If the right side is smaller (size m), its member j also serves the left members i with i mod m =
 * j. It receives from left member j only.
 *
 * ceil(log2 N) messages in a row, for every N; S bytes sent and received per message. If N is not a
 * power of two, a node sends up to ceil(p / m) S (N = 9: rank 8 serves 8). Memory: WORK of S for
 * each level, in the type of partial sums. For small arrays. (Thakur, Rabenseifner, Gropp 2005; the
 * order, and the way of other N, follow from the tree.)
 *
 * A pair of ranks is on different sides at one node only, so all streams have number 0.
 *
 * In place: only the last FOLD writes to OUT, chunk for chunk after this rank's IN has gone. All
 * others go into WORK, whose RECVs wait for nobody. Partial sums have their own memory at each
 * level. A FOLD writes over received data, never over data that is still being sent. */

/* A rank's partial sum so far. */
typedef struct dti_partial {
    dti_stretch at;
    uint32_t step; /* the FOLD that makes it; DTI_NO_STEP: it is IN */
    dt_comm_span span;
} dti_partial;

/* The nodes of the tree over `size` leaves that contain leaf `rank`. path[0] is the root; the last
 * is the one above the leaf. Returns their number. */
#define DTI_DOUBLING_LEVELS 33
static uint32_t dti_doubling_path(uint32_t size, uint32_t rank,
                                  dt_comm_span path[DTI_DOUBLING_LEVELS]) {
    uint32_t levels = 0;
    dt_comm_span node = {0, size};
    while (node.count > 1) {
        path[levels++] = node;
        uint32_t half = dti_tree_split(node.count);
        bool right = rank >= node.first + half;
        node.first += right ? half : 0;
        node.count = right ? node.count - half : half;
    }
    return levels;
}

static dti_partial dti_doubling_leaf(const dti_collective *c) {
    return (dti_partial){dti_stretch_all(c, DTI_REGION_IN), DTI_NO_STEP, {c->rank, 1}};
}

static uint32_t dti_doubling_send(dti_builder *b, uint32_t peer, const dti_partial *mine) {
    uint32_t send = dti_add_send(b, peer, 0, mine->at, false);
    dti_add_after(b, mine->step);
    return send;
}

/* Receives the sum of `span` from the peer and adds it to mine; the last time into OUT. */
static void dti_doubling_merge(dti_builder *b, uint32_t peer, dt_comm_span span,
                               dti_partial *mine) {
    const dti_collective *c = b->c;
    uint8_t dtype = span.count == 1 ? (uint8_t)c->op.dtype : b->s->sum_dtype;
    bool last = span.count + mine->span.count == c->size;
    bool left = mine->span.first < span.first;
    dti_stretch theirs = dti_add_work(b, dtype, c->op.count), to = theirs;
    if (last)
        to = dti_stretch_all(c, DTI_REGION_OUT);
    else if (dtype != b->s->sum_dtype)
        to = dti_add_work(b, b->s->sum_dtype, c->op.count);
    uint32_t recv = dti_add_recv(b, peer, 0, theirs, false);
    uint32_t fold = dti_add_fold(b, to, last);
    if (left)
        dti_add_source(b, mine->at, DTI_NO_STEP, mine->span);
    dti_add_source(b, theirs, recv, span);
    if (!left)
        dti_add_source(b, mine->at, DTI_NO_STEP, mine->span);
    dti_add_after(b, mine->step);
    *mine = (dti_partial){
        to, fold, {left ? mine->span.first : span.first, mine->span.count + span.count}};
}

static void dti_algo_all_reduce_doubling(dti_builder *b, const dti_collective *c) {
    dti_builder_partials(b);
    dt_comm_span path[DTI_DOUBLING_LEVELS];
    uint32_t levels = dti_doubling_path(c->size, c->rank, path);
    dti_partial mine = dti_doubling_leaf(c);
    for (uint32_t level = levels; level-- > 0;) {
        dt_comm_span node = path[level];
        uint32_t half = dti_tree_split(node.count), fewer = node.count - half;
        uint32_t middle = node.first + half;
        if (c->rank < middle) {
            uint32_t i = c->rank - node.first;
            if (i < fewer)
                dti_doubling_send(b, middle + i, &mine);
            dti_doubling_merge(b, middle + i % fewer, (dt_comm_span){middle, fewer}, &mine);
        } else {
            for (uint32_t i = c->rank - middle; i < half; i += fewer)
                dti_doubling_send(b, node.first + i, &mine);
            dti_doubling_merge(b, c->rank - half, (dt_comm_span){node.first, half}, &mine);
        }
    }
    if (dti_coll_overlap(c) != DTI_SAME)
        return;
    /* The last FOLD waits for those that read IN, which are the first steps. */
    for (uint32_t i = 0; i < b->s->step_count && b->s->steps[i].kind == DTI_SCHEDULE_SEND; i++)
        dti_add_after(b, i);
}
