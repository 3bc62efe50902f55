/* Sums in double: see wide.h. */

static void dti_wide_add(dti_wide w, bool first) {
    for (int64_t i = 0; i < w.rows; i++)
        for (int64_t j = 0; j < w.cols; j++, w.sums++) {
            const double x = (double)w.x[i * w.row + j * w.col];
            *w.sums = first ? x : *w.sums + x;
        }
}

static void dti_wide_take(dti_wide w) {
    for (int64_t i = 0; i < w.rows; i++)
        for (int64_t j = 0; j < w.cols; j++)
            w.x[i * w.row + j * w.col] = (float)*w.sums++;
}
