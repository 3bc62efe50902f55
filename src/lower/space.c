/* Finds the offsets of an arena that are free over a span of launches. It is an index, by time, of
 * the blocks placed so far. A segment tree covers runs of launches. Each node keeps two sets of
 * offsets. One is of blocks that live through all of its launches, the other of those that live in
 * some. A set merges ranges that touch, so a pile of a thousand blocks is one range. Where a life
 * begins or ends in the middle of a run, the run keeps the block itself. The answer is that of
 * asking every block, and a search asks the logarithm of their number. */

#define DTI_SPACE_RUN 16 /* launches a leaf: the tree stays small, and a leaf has few blocks */
#define DTI_SPACE_SETS_MAX (6 * 32) /* on each level: 2 ancestors, and both sets of 2 nodes */

/* The first range that ends at or after `at`. */
static uint32_t dti_space_set_find(const dti_space_set *set, uint64_t at) {
    uint32_t from = 0, to = set->count;
    while (from < to) {
        const uint32_t middle = from + (to - from) / 2;
        if (set->ranges[middle].end < at)
            from = middle + 1;
        else
            to = middle;
    }
    return from;
}

static bool dti_space_set_add(dti_base *base, dti_space_set *set, uint64_t begin, uint64_t end) {
    const uint32_t from = dti_space_set_find(set, begin);
    uint32_t next = from;
    for (; next < set->count && set->ranges[next].begin <= end; next++) {
        begin = DTI_MIN(begin, set->ranges[next].begin);
        end = DTI_MAX(end, set->ranges[next].end);
    }
    if (!DTI_RESERVE(base, set->ranges, set->capacity, (size_t)set->count + 1))
        return false;
    memmove(set->ranges + from + 1, set->ranges + next, (set->count - next) * sizeof *set->ranges);
    set->ranges[from] = (dti_space_range){begin, end};
    set->count = set->count - (next - from) + 1;
    return true;
}

/* The lowest offset from `at` on where `bytes` overlap nothing of the set. */
static uint64_t dti_space_set_fit(dti_space *s, const dti_space_set *set, uint64_t at,
                                  uint64_t bytes) {
    uint32_t from = dti_space_set_find(set, at + 1);
    for (; from < set->count && set->ranges[from].begin < at + bytes; from++, s->steps++)
        at = set->ranges[from].end;
    s->steps++;
    return at;
}

static bool dti_space_open(dti_space *s, dti_base *base, uint32_t launches, uint32_t blocks) {
    *s = (dti_space){.base = base, .leaves = 1};
    while ((uint64_t)s->leaves * DTI_SPACE_RUN < launches)
        s->leaves *= 2;
    s->through = dti_alloc_array(base, 2 * (size_t)s->leaves, sizeof *s->through);
    s->within = dti_alloc_array(base, 2 * (size_t)s->leaves, sizeof *s->within);
    s->head = dti_alloc_array(base, s->leaves, sizeof *s->head);
    s->next = dti_alloc_array(base, 2 * (size_t)blocks + 2, sizeof *s->next);
    s->blocks = dti_alloc_array(base, blocks + 1u, sizeof *s->blocks);
    return s->through && s->within && s->head && s->next && s->blocks;
}

static void dti_space_close(dti_space *s) {
    for (uint32_t i = 0; s->through && s->within && i < 2 * s->leaves; i++) {
        DTI_FREE(s->base, s->through[i].ranges, s->within[i].ranges);
    }
    DTI_FREE(s->base, s->through, s->within, s->head, s->next, s->blocks);
}

/* ---- taking */

static bool dti_space_touch(dti_space *s, uint32_t leaf, const dti_space_block *b) {
    bool good = true;
    for (uint32_t node = s->leaves + leaf; node && good; node /= 2)
        good = dti_space_set_add(s->base, &s->within[node], b->offset, b->offset + b->bytes);
    return good;
}

/* `link`: 1 + the index in `next` where the leaf's chain continues. A block has one where it begins
 * and one where it ends. */
static void dti_space_link(dti_space *s, uint32_t leaf, uint32_t link) {
    s->next[link] = s->head[leaf];
    s->head[leaf] = link;
}

static bool dti_space_take(dti_space *s, const dti_space_block *b) {
    const uint32_t number = ++s->count, first = b->first / DTI_SPACE_RUN;
    const uint32_t last = b->last / DTI_SPACE_RUN;
    s->blocks[number] = *b;
    dti_space_link(s, first, 2 * number);
    bool good = dti_space_touch(s, first, b);
    if (first == last)
        return good;
    dti_space_link(s, last, 2 * number + 1);
    good = good && dti_space_touch(s, last, b);
    /* the fewest nodes that make up all leaves between the two */
    uint32_t left = s->leaves + first + 1, right = s->leaves + last;
    for (; left < right && good; left /= 2, right /= 2) {
        if (left & 1)
            good = dti_space_set_add(s->base, &s->through[left++], b->offset, b->offset + b->bytes);
        if (right & 1)
            good = good && dti_space_set_add(s->base, &s->through[--right], b->offset,
                                             b->offset + b->bytes);
    }
    return good;
}

/* ---- searching */

typedef struct dti_space_search {
    const dti_space_set *sets[DTI_SPACE_SETS_MAX];
    uint32_t count;
} dti_space_search;

static void dti_space_ask(dti_space_search *search, const dti_space_set *set) {
    if (set->count)
        search->sets[search->count++] = set;
}

static void dti_space_sets(const dti_space *s, uint32_t first, uint32_t last,
                           dti_space_search *search) {
    uint32_t left = s->leaves + first, right = s->leaves + last;
    for (uint32_t a = left, b = right; a; a /= 2, b /= 2) {
        dti_space_ask(search, &s->through[a]);
        if (a != b)
            dti_space_ask(search, &s->through[b]);
    }
    for (left++; left < right; left /= 2, right /= 2) {
        if (left & 1) {
            dti_space_ask(search, &s->through[left]);
            dti_space_ask(search, &s->within[left++]);
        }
        if (right & 1) {
            dti_space_ask(search, &s->through[--right]);
            dti_space_ask(search, &s->within[right]);
        }
    }
}

/* Blocks that live in part of a leaf are compared one by one. */
static uint64_t dti_space_leaf_fit(dti_space *s, uint32_t leaf, const dti_space_block *item,
                                   uint64_t at) {
    for (uint32_t link = s->head[leaf]; link; link = s->next[link], s->steps++) {
        const dti_space_block *b = &s->blocks[link / 2];
        bool together = b->first <= item->last && item->first <= b->last;
        if (together && b->offset < at + item->bytes && at < b->offset + b->bytes)
            at = b->offset + b->bytes;
    }
    return at;
}

static uint64_t dti_space_fit(dti_space *s, const dti_space_block *item) {
    const uint32_t first = item->first / DTI_SPACE_RUN, last = item->last / DTI_SPACE_RUN;
    dti_space_search search = {.count = 0};
    dti_space_sets(s, first, last, &search);
    uint64_t at = 0;
    for (uint64_t before = 1; at != before;) {
        before = at;
        for (uint32_t i = 0; i < search.count; i++)
            at = dti_space_set_fit(s, search.sets[i], at, item->bytes);
        at = dti_space_leaf_fit(s, first, item, at);
        if (first != last)
            at = dti_space_leaf_fit(s, last, item, at);
    }
    return at;
}
