/* Indices of the reference loops: dense arrays of six axes, and nothing else. They are told apart
 * from the views and walks of the other backends on purpose: a mistake there must not be made here
 * as well. */
#ifdef DT_REFERENCE

/* The place on each axis of element `element` of x. */
static inline void dti_ref_place(const dti_ref_tensor *x, int64_t element, int64_t at[DTI_AXES]) {
    for (int axis = DTI_AXES - 1; axis >= 0; axis--) {
        at[axis] = element % x->dim[axis];
        element /= x->dim[axis];
    }
}

/* The element of x at a place of a tensor that x is broadcast to. */
static inline int64_t dti_ref_element(const dti_ref_tensor *x, const int64_t at[DTI_AXES]) {
    int64_t element = 0;
    for (int axis = 0; axis < DTI_AXES; axis++) {
        element = element * x->dim[axis] + (x->dim[axis] == 1 ? 0 : at[axis]);
    }
    return element;
}

/* Rows of the last axis: how many, and how long. */
static inline int64_t dti_ref_cols(const dti_ref_tensor *x) {
    return x->dim[DTI_AXES - 1];
}
static inline int64_t dti_ref_rows(const dti_ref_tensor *x) {
    return dti_ref_cols(x) ? x->elements / dti_ref_cols(x) : 0;
}

static inline void dti_ref_zero(const dti_ref *r) {
    for (int64_t i = 0; i < r->out.elements; i++)
        r->out.data[i] = 0;
}

/* Of one sample, which all of them share where x has none. */
static inline const double *dti_ref_sample(const dti_ref_tensor *x, int64_t sample) {
    return x->data + (x->dim[0] > 1 ? sample * (x->elements / x->dim[0]) : 0);
}

static void dti_copy_ref(const dti_ref *r) {
    memcpy(r->out.data, r->in[0].data, (size_t)r->out.elements * sizeof *r->out.data);
}

#endif
