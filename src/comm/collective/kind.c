/* The kinds of operations: their names and properties. Also the schemes of a rendezvous. */

enum { DTI_PER_RANK = 2 }; /* as many blocks as there are ranks */

/* By dt_comm_kind. in, out: the number of blocks of `count` elements, first of a rank that is not
 * the root, then of the root. The root of send and recv is their peer. */
static const struct dti_kind {
    const char *name;
    uint8_t in[2], out[2];
    bool has_root, reduces;
} dti_kinds[] = {
    [DT_COMM_SEND] = {"send", .in = {1, 1}, .has_root = true},
    [DT_COMM_RECV] = {"recv", .out = {1, 1}, .has_root = true},
    [DT_COMM_BROADCAST] = {"broadcast", .in = {0, 1}, .out = {1, 0}, .has_root = true},
    [DT_COMM_REDUCE] = {"reduce", .in = {1, 1}, .out = {0, 1}, .has_root = true, .reduces = true},
    [DT_COMM_ALL_REDUCE] = {"all-reduce", .in = {1, 1}, .out = {1, 1}, .reduces = true},
    [DT_COMM_GATHER] = {"gather", .in = {1, 1}, .out = {0, DTI_PER_RANK}, .has_root = true},
    [DT_COMM_ALL_GATHER] = {"all-gather", .in = {1, 1}, .out = {DTI_PER_RANK, DTI_PER_RANK}},
    [DT_COMM_SCATTER] = {"scatter", .in = {0, DTI_PER_RANK}, .out = {1, 1}, .has_root = true},
    [DT_COMM_REDUCE_SCATTER] = {"reduce-scatter", .in = {DTI_PER_RANK, DTI_PER_RANK}, .out = {1, 1},
                                .reduces = true},
    [DT_COMM_ALL_TO_ALL] = {"all-to-all", .in = {DTI_PER_RANK, DTI_PER_RANK},
                            .out = {DTI_PER_RANK, DTI_PER_RANK}},
    [DT_COMM_BARRIER] = {.name = "barrier"},
    [DT_COMM_BARRIER + 1] = {.name = "an unknown operation"},
};

static const struct dti_kind *dti_kind_of(dt_comm_kind kind) {
    return &dti_kinds[DTI_MIN((unsigned)kind, DT_COMM_BARRIER + 1u)];
}

static const char *dti_kind_name(dt_comm_kind kind) {
    return dti_kind_of(kind)->name;
}

static bool dti_kind_reduces(dt_comm_kind kind) {
    return dti_kind_of(kind)->reduces;
}

static bool dti_kind_is_p2p(dt_comm_kind kind) {
    return kind == DT_COMM_SEND || kind == DT_COMM_RECV;
}

/* Whether some rank has a block for each rank. */
static bool dti_kind_has_blocks(dt_comm_kind kind) {
    return dti_kind_of(kind)->in[1] == DTI_PER_RANK || dti_kind_of(kind)->out[1] == DTI_PER_RANK;
}

/* The bytes of `in`, or `out`, of an operation at `rank` of `size`. */
static uint64_t dti_kind_blocks(const dt_comm_op *op, bool in, uint32_t rank, uint32_t size) {
    const struct dti_kind *kind = dti_kind_of(op->kind);
    const bool root = op->root == (int)rank;
    const uint8_t blocks = in ? kind->in[root] : kind->out[root];
    return blocks == DTI_PER_RANK ? size : blocks;
}

/* NULL: there is no such reduction. */
static const char *dti_reduction_name(dt_comm_reduction reduction) {
    static const char *const names[] = {
        [DT_COMM_SUM] = "sum", [DT_COMM_MEAN] = "mean",       [DT_COMM_MIN] = "min",
        [DT_COMM_MAX] = "max", [DT_COMM_PRODUCT] = "product",
    };
    _Static_assert(DTI_COUNT(names) == DT_COMM_PRODUCT + 1, "a name of each");
    return (unsigned)reduction < DTI_COUNT(names) ? names[reduction] : NULL;
}

/* NULL: there is no such algorithm. */
static const char *dti_algorithm_name(dt_comm_algorithm algorithm) {
    static const char *const names[] = {
        [DT_COMM_ALGORITHM_DEFAULT] = "default",
        [DT_COMM_ALGORITHM_DIRECT] = "direct",
        [DT_COMM_ALGORITHM_ONE_SHOT] = "one-shot",
        [DT_COMM_ALGORITHM_DOUBLING] = "doubling",
        [DT_COMM_ALGORITHM_HALVING] = "halving",
        [DT_COMM_ALGORITHM_RING] = "ring",
        [DT_COMM_ALGORITHM_HIERARCHICAL] = "hierarchical",
    };
    _Static_assert(DTI_COUNT(names) == DT_COMM_ALGORITHM_HIERARCHICAL + 1, "a name of each");
    return (unsigned)algorithm < DTI_COUNT(names) ? names[algorithm] : NULL;
}

/* Whether a rendezvous begins with a scheme that there is. */
static bool dti_rendezvous_is_known(const char *url) {
    static const char *const schemes[] = {"tcp://", "file:///", "tcpstore://", "pmix:", "pmi:"};
    for (size_t i = 0; i < DTI_COUNT(schemes); i++)
        if (!strncmp(url, schemes[i], strlen(schemes[i])))
            return true;
    return false;
}
