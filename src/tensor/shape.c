/* Shapes: products, comparison and their text. A shape has at most DT_MAX_DIMS dimensions; one
 * sample of a tensor has fewer than 2^31 elements, so that kernels can index with 32 bits. */

DT_API dt_shape dt_dims_of(int rank, const int64_t *counted) {
    dt_shape s = {.rank = counted || rank <= 0 ? rank : -1};
    if (!counted)
        return s;
    for (int i = 0; i < rank && i < DT_MAX_DIMS; i++)
        s.dim[i] = counted[i + 1];
    return s;
}

/* The values after a shape's rank may be anything; they are 0 when it is stored, hashed and
 * compared. */
static void dti_shape_store(int64_t to[DT_MAX_DIMS], dt_shape s) {
    for (int i = 0; i < DT_MAX_DIMS; i++)
        to[i] = i < s.rank ? s.dim[i] : 0;
}

static int64_t dti_shape_elements(dt_shape s) {
    int64_t n = 1;
    for (int i = 0; i < s.rank; i++)
        n *= s.dim[i];
    return n;
}

static bool dti_shape_equal(dt_shape a, dt_shape b) {
    if (a.rank != b.rank)
        return false;
    for (int i = 0; i < a.rank; i++) {
        if (a.dim[i] != b.dim[i])
            return false;
    }
    return true;
}

/* A size of 0 counts as 1, as in NumPy. So the product of any of the dimensions, such as a stride
 * of an empty tensor, is below 2^31. */
static bool dti_shape_valid(dt_shape s) {
    if (s.rank < 0 || s.rank > DT_MAX_DIMS)
        return false;
    int64_t n = 1;
    for (int i = 0; i < s.rank; i++) {
        if (s.dim[i] < 0 || s.dim[i] > INT32_MAX)
            return false;
        n *= s.dim[i] ? s.dim[i] : 1;
        if (n > INT32_MAX)
            return false;
    }
    return true;
}

static dti_shape_text dti_shape_print(dt_shape s, bool samples) {
    dti_shape_text t;
    size_t at = (size_t)snprintf(t.text, sizeof t.text, samples ? "[B" : "[");
    for (int i = 0; i < s.rank && i <= DT_MAX_DIMS; i++) {
        const size_t room = sizeof t.text - at - 2;
        const char *comma = at > 1 ? ", " : "";
        const int n = i < DT_MAX_DIMS
                          ? snprintf(t.text + at, room, "%s%lld", comma, (long long)s.dim[i])
                          : snprintf(t.text + at, room, ", ... (rank %d)", (int)s.rank);
        if (n > 0 && (size_t)n < room)
            at += (size_t)n;
    }
    t.text[at++] = ']';
    t.text[at] = 0;
    return t;
}
