/* Cells of recurrent nets, unit by unit; see src/op/families/recurrence.c for their formulas. */

/* Memory that the next cell meets: `unit` bytes for each unit. Its runs are short and far apart:
 * the CPU does not foresee them, so LSTM and GRU fetch them unit by unit. */
typedef struct dti_cell_run {
    const char *at;
    int64_t unit;
} dti_cell_run;

/* One step of one sample's n units. x, w: what comes of the input and of the state, a run of n for
 * each gate; b: GRU's bias of the state's part of the candidate; kept: gates, and LSTM's cell, for
 * the gradient; c: LSTM's cell, and h: the state before and behind the step. */
typedef struct dti_cell {
    const float *x, *w, *b;
    float *kept, *h, *c;
    int64_t n;
    dti_cell_run ahead[2];
} dti_cell;
typedef void dti_cell_fn(const dti_cell *cell);

/* Back through it. kept, and h_now: the state behind the step; before: the cell before it (LSTM),
 * or the state (GRU); dh: gradient of the state behind it, which becomes what goes by the product;
 * dc: of the cell behind it, becomes that before it; d: of what the product gave, a run for each
 * gate; dx: likewise of what came of the input, where that differs (GRU's candidate). */
typedef struct dti_cell_back {
    const float *kept, *h_now, *before;
    float *dh, *dc, *d, *dx;
    int64_t n;
    dti_cell_run ahead[2];
} dti_cell_back;
typedef void dti_cell_back_fn(const dti_cell_back *cell);
