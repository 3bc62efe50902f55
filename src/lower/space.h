/* Which offsets of an arena are free over a span of launches; see space.c. */

typedef struct dti_space_range {
    uint64_t begin, end;
} dti_space_range;

typedef struct dti_space_set { /* of offsets, in order, with gaps between them */
    dti_space_range *ranges;
    size_t capacity;
    uint32_t count;
} dti_space_set;

typedef struct dti_space_block { /* bytes at an offset that live from one launch to another */
    uint32_t first, last;
    uint64_t offset, bytes;
} dti_space_block;

typedef struct dti_space {
    dti_base *base;
    uint32_t leaves;        /* a power of two; node i has the nodes 2i and 2i + 1 below it */
    dti_space_set *through; /* by node: blocks that live through all of it, but not of its parent */
    dti_space_set *within;  /* by node: blocks that begin or end in it */
    uint32_t *head, *next;  /* by leaf, by link: chains of the blocks that begin or end there */
    dti_space_block *blocks; /* [0] is not used */
    uint32_t count;
    uint64_t steps; /* of all searches: tests count them */
} dti_space;

/* For at most `blocks` of them. False: out of memory; close it nevertheless. */
static bool dti_space_open(dti_space *s, dti_base *base, uint32_t launches, uint32_t blocks);
/* The lowest offset where a block of item's bytes and life meets no other block. */
static uint64_t dti_space_fit(dti_space *s, const dti_space_block *item);
static bool dti_space_take(dti_space *s, const dti_space_block *block);
static void dti_space_close(dti_space *s);
