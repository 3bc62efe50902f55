/* Cases of connectionist temporal classification for ops_cases.h. */
#ifndef DTRAIN_TESTS_OPS_CASES_CTC_H
#define DTRAIN_TESTS_OPS_CASES_CTC_H

typedef struct ops_ctc {
    int64_t steps, classes, labels;
    int named;    /* labels are classes below it; the blank is class `named` */
    bool samples; /* of x */
    bool targets; /* of each sample, or one for all */
    bool lengths; /* then impossible targets are 0 */
    bool zero;    /* likewise */
} ops_ctc;

/* The first seven are small. Workgroups have 128 cells. */
static const ops_ctc ops_ctcs[] = {
    {5, 4, 2, 3, true, true, false, false},  {6, 3, 4, 2, true, true, true, true},
    {4, 5, 2, 3, true, false, true, true},   {1, 3, 1, 2, true, true, false, false},
    {3, 2, 0, 1, true, true, false, false},  {5, 3, 2, 2, false, true, false, false},
    {2, 3, 3, 2, true, true, false, true},   {40, 30, 12, 29, true, true, true, true},
    {150, 5, 70, 3, true, true, true, true}, {9, 300, 3, 260, false, false, false, false},
};

static void ops_case_ctc(ops_model *m) {
    for (size_t i = 0; i < DTI_COUNT(ops_ctcs) && !(m->small && i > 6); i++) {
        const ops_ctc *c = &ops_ctcs[i];
        const dt_shape shape = dt_dims(c->steps, c->classes);
        dt_tensor x = c->samples ? ops_rows(m, shape, OPS_ANY) : ops_shared(m, shape, OPS_ANY);
        dt_tensor in[3] = {x, ops_whole(m, c->targets, dt_dims(c->labels), c->named)}, packed,
                  out[DTI_OUTPUTS_MAX];
        const dti_attr attr = {.i = {c->named, c->zero ? (int32_t)DTI_CTC_ZERO : 0}};
        if (c->lengths) {
            dt_tensor n[2] = {ops_whole(m, true, dt_dims(1), (int)c->steps + 1),
                              ops_whole(m, true, dt_dims(1), (int)c->labels + 1)};
            in[2] = dt_concat(n, 2, 0);
        }
        if (!dti_append_outputs(m->graph, DTI_OP_CTC, in, c->lengths ? 3 : 2, &attr, &packed, out))
            return;
        if (m->op == DTI_OP_CTC_GRAD) { /* by itself: it has none */
            dt_tensor dy = i % 2 ? ops_rows(m, dt_dims(), OPS_ANY) : ops_like(m, out[0], OPS_ANY);
            dt_tensor row[3] = {dt_detach(packed), dt_detach(x), dt_detach(dy)};
            ops_result(m, dti_append(m->graph, DTI_OP_CTC_GRAD, row, 3, &attr));
            continue;
        }
        ops_result(m, out[0]);
    }
}

#endif
