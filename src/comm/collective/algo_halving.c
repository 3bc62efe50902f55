/* All-reduce by halving, then doubling. Ranks at distance 1, 2, 4, ... exchange halves of their
 * range until each has one segment of the sum. The way back then collects the segments.
 *
 * 2 log2 N messages in a row; 2 (N-1)/N S bytes sent and received per rank. Memory: about S of WORK
 * in the type of partial sums. For many ranks and middling arrays: the mesh's 2 (N-1) small
 * messages per rank are more than 2 log2 N. (Rabenseifner: Optimization of Collective Reduction
 * Operations, ICCS 2004; with distances that grow instead of shrink, so that the order of summing
 * is fold.h's tree.)
 *
 * If N is not a power of two, the first ranks pair up (0 with 1, 2 with 3, ...) until a power of
 * two is left. The odd one of a pair sends its array to the even one and receives the result. That
 * is 2 messages and 2 S more. The order of summing is then fixed, but not the tree's.
 *
 * A level works on halves of the range before it, so its steps wait for the whole of that.
 *
 * In place: a sum that is received into OUT contains the data of that range that this rank sent or
 * folded. Each level waits for the whole level before, and this rank's last FOLD comes after its
 * first. So no byte of IN is still needed. */

typedef struct dti_halving {
    uint32_t count;   /* ranks that take part: a power of two */
    uint32_t pairs;   /* of ranks where only the even one takes part */
    uint32_t me;      /* among those that take part */
    dti_part range;   /* the range that this rank still sums */
    dti_partial mine; /* its sum so far; span: each that takes part is drawn as one leaf */
} dti_halving;

static uint32_t dti_halving_rank(const dti_halving *h, uint32_t place) {
    return place < h->pairs ? 2 * place : place + h->pairs;
}

static dti_halving dti_halving_begin(const dti_collective *c) {
    dti_halving h = {.count = 1, .range = {0, c->op.count}};
    while (h.count <= c->size - h.count)
        h.count *= 2;
    h.pairs = c->size - h.count;
    h.me = c->rank < 2 * h.pairs ? c->rank / 2 : c->rank - h.pairs;
    h.mine = (dti_partial){
        dti_stretch_at(DTI_REGION_IN, dti_in_dtype(c), 0, c->op.count), DTI_NO_STEP, {h.me, 1}};
    return h;
}

/* The even one of a pair adds the odd one's array to its own. */
static void dti_halving_pair(dti_builder *b, dti_halving *h) {
    dti_stretch in = h->mine.at, theirs = dti_add_work(b, in.dtype, in.count), to = theirs;
    if (in.dtype != b->s->sum_dtype)
        to = dti_add_work(b, b->s->sum_dtype, in.count);
    uint32_t recv = dti_add_recv(b, b->c->rank + 1, 0, theirs, false);
    h->mine.step = dti_add_fold(b, to, false);
    dti_add_source(b, in, DTI_NO_STEP, (dt_comm_span){0, 1});
    dti_add_source(b, theirs, recv, (dt_comm_span){1, 1});
    h->mine.at = to;
}

/* Sends the other half of the range, and adds the received data to this half; at last into OUT. */
static void dti_halving_exchange(dti_builder *b, dti_halving *h, uint32_t distance) {
    dti_partial mine = h->mine;
    uint32_t place = h->me ^ distance;
    bool upper = (h->me & distance) != 0, last = distance * 2 == h->count;
    bool leaf = distance == 1 && place >= h->pairs; /* the received data is the peer's IN */
    uint8_t dtype = leaf ? dti_in_dtype(b->c) : b->s->sum_dtype;
    dti_part keep = dti_part_of(h->range.count, upper, 2);
    dti_part give = dti_part_of(h->range.count, !upper, 2);
    dti_stretch own = dti_stretch_part(mine.at, keep.first, keep.count);
    dti_stretch theirs = dti_add_work(b, dtype, keep.count), to = theirs;
    dt_comm_span span = {place & ~(distance - 1), distance};
    h->range = (dti_part){h->range.first + keep.first, keep.count};
    if (last)
        to = dti_stretch_of(b->c, DTI_REGION_OUT, h->range.first, keep.count);
    else if (dtype != b->s->sum_dtype)
        to = dti_add_work(b, b->s->sum_dtype, keep.count);
    dti_add_send(b, dti_halving_rank(h, place), 0,
                 dti_stretch_part(mine.at, give.first, give.count), false);
    dti_add_after_whole(b, mine.step);
    uint32_t recv = dti_add_recv(b, dti_halving_rank(h, place), 0, theirs, false);
    h->mine.at = to;
    h->mine.step = dti_add_fold(b, to, last);
    if (!upper)
        dti_add_source(b, own, DTI_NO_STEP, mine.span);
    dti_add_source(b, theirs, recv, span);
    if (upper)
        dti_add_source(b, own, DTI_NO_STEP, mine.span);
    dti_add_after_whole(b, mine.step);
    h->mine.span = (dt_comm_span){h->me & ~(2 * distance - 1), 2 * distance};
}

/* The way back: the complete range doubles. ranges[level]: this rank's range before the exchange at
 * distance 2^level. done: the last FOLD, then RECVs. */
static void dti_halving_collect(dti_builder *b, const dti_halving *h, const dti_part *ranges,
                                uint32_t levels) {
    uint32_t done[DTI_DOUBLING_LEVELS], done_count = 1;
    dti_part have = h->range;
    done[0] = h->mine.step;
    for (uint32_t level = levels; level-- > 0;) {
        uint32_t place = h->me ^ (1u << level), peer = dti_halving_rank(h, place);
        bool upper = (h->me >> level & 1) != 0;
        dti_part miss = dti_part_of(ranges[level].count, !upper, 2);
        dti_add_send(b, peer, 1, dti_stretch_of(b->c, DTI_REGION_OUT, have.first, have.count),
                     false);
        for (uint32_t i = 0; i < done_count; i++)
            dti_add_after_whole(b, done[i]);
        done[done_count++] = dti_add_recv(
            b, peer, 1,
            dti_stretch_of(b->c, DTI_REGION_OUT, ranges[level].first + miss.first, miss.count),
            false);
        have = ranges[level];
    }
    if (h->me >= h->pairs)
        return;
    dti_add_send(b, b->c->rank + 1, 0, dti_stretch_all(b->c, DTI_REGION_OUT), false);
    for (uint32_t i = 0; i < done_count; i++)
        dti_add_after_whole(b, done[i]);
}

static void dti_algo_all_reduce_halving(dti_builder *b, const dti_collective *c) {
    dti_builder_partials(b);
    dti_halving h = dti_halving_begin(c);
    if (c->rank < 2 * h.pairs && c->rank % 2) {
        dti_add_send(b, c->rank - 1, 0, h.mine.at, false);
        dti_add_recv(b, c->rank - 1, 0, dti_stretch_all(c, DTI_REGION_OUT), false);
        return;
    }
    if (h.me < h.pairs)
        dti_halving_pair(b, &h);
    dti_part ranges[DTI_DOUBLING_LEVELS];
    uint32_t levels = 0;
    for (; 1u << levels < h.count; levels++) {
        ranges[levels] = h.range;
        dti_halving_exchange(b, &h, 1u << levels);
    }
    dti_halving_collect(b, &h, ranges, levels);
}
