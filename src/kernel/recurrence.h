/* Cells of recurrent nets, unit by unit; see src/op/families/recurrence.c for their formulas. */

/* Memory of the next cell: `unit` bytes for each unit. Its runs are short and far apart, and the
 * CPU does not prefetch them. So LSTM and GRU prefetch them unit by unit. */
typedef struct dti_cell_run {
    const char *at;
    int64_t unit;
} dti_cell_run;

/* One step of one sample's n units. x, w: the input's and the state's part, a run of n for each
 * gate. b: GRU's bias of the state's part of the candidate. kept: gates, and LSTM's cell, for the
 * gradient. c: LSTM's cell. h: the state before and after the step. */
typedef struct dti_cell {
    const float *x, *w, *b;
    float *kept, *h, *c;
    int64_t n;
    dti_cell_run ahead[2];
} dti_cell;
typedef void dti_cell_fn(const dti_cell *cell);

/* Its gradient. kept; h_now: the state after the step. before: the cell before it (LSTM), or the
 * state (GRU). dh: gradient of the state after it, which becomes the product's. dc: of the cell
 * after it, becomes that before it. d: of the product's result, a run for each gate. dx: of the
 * input's part, where that differs (GRU's candidate). */
typedef struct dti_cell_back {
    const float *kept, *h_now, *before;
    float *dh, *dc, *d, *dx;
    int64_t n;
    dti_cell_run ahead[2];
} dti_cell_back;
typedef void dti_cell_back_fn(const dti_cell_back *cell);
