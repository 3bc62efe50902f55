/* The kinds of operations: their names, and what they have; and the schemes of a rendezvous. */

static const char *dti_kind_name(dt_comm_kind kind) {
    static const char *const names[] = {
        [DT_COMM_SEND] = "send",
        [DT_COMM_RECV] = "recv",
        [DT_COMM_BROADCAST] = "broadcast",
        [DT_COMM_REDUCE] = "reduce",
        [DT_COMM_ALL_REDUCE] = "all-reduce",
        [DT_COMM_GATHER] = "gather",
        [DT_COMM_ALL_GATHER] = "all-gather",
        [DT_COMM_SCATTER] = "scatter",
        [DT_COMM_REDUCE_SCATTER] = "reduce-scatter",
        [DT_COMM_ALL_TO_ALL] = "all-to-all",
        [DT_COMM_BARRIER] = "barrier",
    };
    _Static_assert(DTI_COUNT(names) == DT_COMM_BARRIER + 1, "a name of each");
    return (unsigned)kind < DTI_COUNT(names) ? names[kind] : "an unknown operation";
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

static bool dti_kind_is_p2p(dt_comm_kind kind) {
    return kind == DT_COMM_SEND || kind == DT_COMM_RECV;
}

static bool dti_kind_reduces(dt_comm_kind kind) {
    return kind == DT_COMM_REDUCE || kind == DT_COMM_ALL_REDUCE || kind == DT_COMM_REDUCE_SCATTER;
}

static bool dti_kind_has_root(dt_comm_kind kind) {
    return kind == DT_COMM_SEND || kind == DT_COMM_RECV || kind == DT_COMM_BROADCAST ||
           kind == DT_COMM_REDUCE || kind == DT_COMM_GATHER || kind == DT_COMM_SCATTER;
}

/* Whether a rendezvous begins with a scheme that there is. */
static bool dti_rendezvous_is_known(const char *url) {
    static const char *const schemes[] = {"tcp://", "file:///", "tcpstore://", "pmix:", "pmi:"};
    for (size_t i = 0; i < DTI_COUNT(schemes); i++)
        if (!strncmp(url, schemes[i], strlen(schemes[i])))
            return true;
    return false;
}
