/* Rows of the op table that only tests have, for what no row of the library needs yet. They are
 * tested as all rows are: against a reference, by finite differences, in parts of a batch. Included
 * by main.c twice: the rows before the library, their families behind it. */
#ifndef OWN_ROWS_FAMILIES

#define DTI_OP_LIST_TESTS(X)                                                                       \
    X(TEST_MIX, test_mix, "7", ROWWISE, F32, test_mix, 0, "a b c d e f g, element by element")

#else

static bool own_row(int op) {
    return op == DTI_OP_TEST_MIX;
}

/* Each gradient is the product of the others and dy. */
static void dti_test_mix_grad(dti_grad *g) {
    for (uint32_t i = 0; i < g->node.count; i++) {
        dt_tensor y = g->dy;
        for (uint32_t k = 0; g->wanted[i] && k < g->node.count; k++)
            y = k == i ? y : dt_mul(y, g->in[k]);
        if (g->wanted[i])
            g->dx[i] = y;
    }
}

static void dti_test_mix_emit(dti_emit *e) {
    dti_view y = dti_emit_in(e, 0);
    for (uint32_t k = 1; k < e->node->count; k++) {
        dti_view x = dti_emit_in(e, k);
        dti_emit_map2_views(e, DTI_K_MAP2, DTI_B_MUL, &y, &x, &e->out, (const float[2]){0, 0});
        y = e->out;
    }
}

static void dti_test_mix_ref(const dti_ref *r) {
    for (int64_t i = 0; i < r->out.elements; i++) {
        r->out.data[i] = 1;
        for (uint32_t k = 0; k < r->node->count; k++)
            r->out.data[i] *= r->in[k].data[i];
    }
}

DTI_FAMILY(test_mix, .shape = dti_shape_same, .grad = dti_test_mix_grad);

#endif
