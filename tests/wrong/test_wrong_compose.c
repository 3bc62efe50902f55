/* Rows of wrong_args.h: functions made of ops. */
#include "wrong/wrong_args.h"

#include <math.h>

#define SIGNAL ONLY_F32(here.signal)

ROW(GRAPH, dt_where, ) {
    return NIL(dt_where(F32(here.x), F32(here.x), F32(here.x)));
}

ROW(GRAPH, dt_masked_fill, ) {
    return NIL(dt_masked_fill(F32(here.x), F32(here.x), -1.0f));
}

ROW(GRAPH, dt_tril, ) {
    return NIL(dt_tril(SIGNAL, 1));
}

ROW(GRAPH, dt_triu, ) {
    return NIL(dt_triu(SIGNAL, -1));
}

ROW(GRAPH, dt_roll, ) {
    return NIL(dt_roll(ONLY_ANY(here.signal), AXIS(1, 2), 3));
}

ROW(GRAPH, dt_flip, ) {
    return NIL(dt_flip(ONLY_ANY(here.signal), AXIS(1, 2)));
}

ROW(GRAPH, dt_pad_reflect, ) {
    return NIL(dt_pad_reflect(ONLY_ANY(here.signal), AXIS(1, 2), INTEGER(2, -1, 8, INT64_MAX),
                              INTEGER(3, -1, 8, INT64_MIN)));
}

ROW(GRAPH, dt_pad_replicate, ) {
    return NIL(dt_pad_replicate(ONLY_ANY(here.signal), AXIS(1, 2), INTEGER(2, -1, INT64_MAX),
                                INTEGER(3, -1, INT64_MIN)));
}

ROW(GRAPH, dt_pad_circular, ) {
    return NIL(dt_pad_circular(ONLY_ANY(here.signal), AXIS(1, 2), INTEGER(2, -1, 9, INT64_MAX),
                               INTEGER(3, -1, 9, INT64_MIN)));
}

ROW(GRAPH, dt_var, ) {
    return NIL(dt_var(SIGNAL, SHAPE(dt_dims(1)), true, false));
}

ROW(GRAPH, dt_std, ) {
    return NIL(dt_std(SIGNAL, SHAPE(dt_dims(1)), true, false));
}

ROW(GRAPH, dt_logsumexp, ) {
    return NIL(dt_logsumexp(SIGNAL, SHAPE(dt_dims(1)), false));
}

ROW(GRAPH, dt_vector_norm, ) {
    dt_tensor x = SIGNAL;
    return NIL(dt_vector_norm(x, wrong_turn("p of 3", 1) ? 3 : 2, SHAPE(dt_dims(1)), false));
}

ROW(GRAPH, dt_prod, ) {
    return NIL(dt_prod(SIGNAL, AXIS(1, 2), false));
}

ROW(GRAPH, dt_cumsum, ) {
    return NIL(dt_cumsum(SIGNAL, AXIS(1, 2)));
}

ROW(GRAPH, dt_argmax, ) {
    return NIL(dt_argmax(SIGNAL, AXIS(1, 2)));
}

ROW(GRAPH, dt_argmin, ) {
    return NIL(dt_argmin(SIGNAL, AXIS(1, 2)));
}

ROW(GRAPH, dt_gather, ) {
    dt_tensor x = F32(here.signal);
    return NIL(dt_gather(
        x, AXIS(1, 2), wrong_turn("an f32 index", 1) ? here.signal : dt_cast(here.signal, DT_I32)));
}

ROW(GRAPH, dt_index_select, ) {
    dt_tensor x = F32(here.signal), index = dt_reshape(dt_slice(here.index, 0, 0, 1), dt_dims(1));
    return NIL(dt_index_select(x, AXIS(1, 2), I32(index)));
}

ROW(GRAPH, dt_scatter_add, ) {
    dt_tensor x = F32(here.signal);
    return NIL(dt_scatter_add(x, AXIS(1, 2), dt_cast(here.signal, DT_I32),
                              INTEGER(3, -1, INT64_MIN, INT64_MAX)));
}

ROW(GRAPH, dt_topk, ) {
    return NIL(dt_topk(SIGNAL, AXIS(1, 2), INTEGER(2, -1, 9, INT64_MIN, INT64_MAX), true, NULL));
}

ROW(GRAPH, dt_sort, ) {
    return NIL(dt_sort(SIGNAL, AXIS(1, 2), false, NULL));
}

ROW(GRAPH, dt_outer, ) {
    return NIL(dt_outer(F32(here.x), F32(here.x)));
}

ROW(GRAPH, dt_einsum, ) {
    const dt_tensor all[6] = {F32(here.w), F32(here.w)};
    const dt_tensor *x = POINTER(all);
    int count = INT(2, 0, -1, 1, 3, 6);
    wrong.silent = wrong.silent || !x || count < 1; /* there is no graph to report to */
    return NIL(
        dt_einsum(TEXT("ij,kj->ik", NULL, "", "ij,kj->il", "ij,j", "i..,kj", "ij,kj,"), x, count));
}

ROW(GRAPH, dt_cross, ) {
    dt_tensor three = dt_slice(here.signal, 1, 0, 3);
    return NIL(dt_cross(F32(three), F32(three)));
}

ROW(GRAPH, dt_glu, ) {
    return NIL(dt_glu(SIGNAL, AXIS(1, 2)));
}

ROW(GRAPH, dt_asin, ) {
    return NIL(dt_asin(ONLY_F32(here.x)));
}

ROW(GRAPH, dt_acos, ) {
    return NIL(dt_acos(ONLY_F32(here.x)));
}

ROW(GRAPH, dt_atan2, ) {
    return NIL(dt_atan2(F32(here.x), F32(here.x)));
}

ROW(GRAPH, dt_fmod, ) {
    return NIL(dt_fmod(F32(here.x), F32(here.x)));
}

ROW(GRAPH, dt_remainder, ) {
    return NIL(dt_remainder(F32(here.x), F32(here.x)));
}

ROW(GRAPH, dt_ctc_loss, ) {
    const dt_shape two = dt_dims(2);
    dt_tensor labels = dt_expand(dt_reshape(here.label, dt_dims(1)), two);
    return NIL(dt_ctc_loss(F32(here.signal), I32(labels),
                           &(dt_ctc_desc){.steps = MAYBE(here.label, WRONG_F32 | WRONG_TERM),
                                          .labels = MAYBE(here.label, WRONG_F32 | WRONG_TERM),
                                          .blank = (int)INTEGER(7, -1, 8, INT32_MIN, INT32_MAX)}));
}

ROW(GRAPH, dt_celu, ) {
    return NIL(dt_celu(SIGNAL, (float)NUMBER(1.0, 0.0, -1.0, (double)NAN, (double)INFINITY)));
}

ROW(GRAPH, dt_prelu, ) {
    dt_tensor x = F32(here.x);
    return NIL(dt_prelu(x, F32(here.x)));
}

ROW(GRAPH, dt_straight_through, ) {
    return NIL(dt_straight_through(F32(here.x), F32(here.x)));
}

ROW(GRAPH, dt_instance_norm, ) {
    return NIL(dt_instance_norm(ONLY_F32(here.image), (dt_tensor){0}, (dt_tensor){0},
                                (float)AT_LEAST_0(1e-5)));
}

ROW(GRAPH, dt_weight_norm, ) {
    dt_tensor g = dt_slice(dt_flatten(here.signal), 0, 0, 2);
    return NIL(dt_weight_norm(F32(here.signal), F32(g)));
}

#define SHARE NUMBER(0.5, -0.1, 1.25, (double)NAN)
ROW(GRAPH, dt_dropout_channels, ) {
    return NIL(dt_dropout_channels(SIGNAL, (float)SHARE));
}

ROW(GRAPH, dt_drop_path, ) {
    return NIL(dt_drop_path(SIGNAL, (float)SHARE));
}

ROW(GRAPH, dt_alpha_dropout, ) {
    return NIL(dt_alpha_dropout(SIGNAL, (float)SHARE));
}

ROW(GRAPH, dt_unfold, ) {
    return NIL(dt_unfold(ONLY_F32(here.image), SIZE(2), SIZE(3), NULL));
}

ROW(GRAPH, dt_fold, ) {
    dt_tensor columns = dt_unfold(here.image, 2, 3, NULL);
    return NIL(dt_fold(ONLY_F32(columns), SIZE(6), SIZE(6), SIZE(2), SIZE(3), NULL));
}

ROW(GRAPH, dt_pixel_shuffle, ) {
    return NIL(dt_pixel_shuffle(ONLY_ANY(here.image), INTEGER(1, 0, -1, 7, INT64_MAX)));
}

ROW(GRAPH, dt_pixel_unshuffle, ) {
    return NIL(dt_pixel_unshuffle(ONLY_ANY(here.image), INTEGER(1, 0, -1, 7, INT64_MAX)));
}

ROW(GRAPH, dt_embedding_bag, ) {
    return NIL(dt_embedding_bag(F32(here.table), I32(here.index), true));
}

ROW(GRAPH, dt_embedding_bag_padded, ) {
    return NIL(dt_embedding_bag_padded(F32(here.table), I32(here.index), true,
                                       INTEGER(1, 1000, -1000, INT64_MIN, INT64_MAX)));
}
