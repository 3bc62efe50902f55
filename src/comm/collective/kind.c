/* The kinds of operations: their names, and what they have. */

static const char *dti_kind_name(dt_comm_kind kind) {
    static const char *const names[] = {
#define DTI_X(id, text) [DT_COMM_##id] = text,
        DT_COMM_KIND_LIST(DTI_X)
#undef DTI_X
    };
    return (unsigned)kind < DTI_COUNT(names) ? names[kind] : "an unknown operation";
}

/* NULL: there is no such reduction. */
static const char *dti_reduction_name(dt_comm_reduction reduction) {
    static const char *const names[] = {
#define DTI_X(id, text) [DT_COMM_##id] = text,
        DT_COMM_REDUCTION_LIST(DTI_X)
#undef DTI_X
    };
    return (unsigned)reduction < DTI_COUNT(names) ? names[reduction] : NULL;
}

/* NULL: there is no such algorithm. */
static const char *dti_algorithm_name(dt_comm_algorithm algorithm) {
    static const char *const names[] = {
#define DTI_X(id, text) [DT_COMM_ALGORITHM_##id] = text,
        DT_COMM_ALGORITHM_LIST(DTI_X)
#undef DTI_X
    };
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
