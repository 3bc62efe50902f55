/* Sums of many floats. Spans are added in float and kept in double, so that the error does not grow
 * with their number. sums: [rows, cols], dense; element (i, j) is x[i * row + j * col]. */

typedef struct dti_wide {
    double *sums;
    float *x;
    int64_t rows, cols, row, col;
} dti_wide;

/* sums += x; with `first` sums = x. */
static void dti_wide_add(dti_wide w, bool first);
/* x = sums, rounded. */
static void dti_wide_take(dti_wide w);
