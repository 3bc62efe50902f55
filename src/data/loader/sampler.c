/* The order of an epoch: a shuffle, draws by weight, or batches of like lengths. It depends on the
 * set's description, the seed and the epoch only. */

#define DTI_WEIGHTS_STREAM 0x7765696768747300u /* "weights"; plus the epoch, as of batch.c */
#define DTI_LENGTHS_STREAM 0x6C656E6774687300u /* "lengths" */
#define DTI_LENGTHS_BATCHES 32u                /* of a piece that is sorted */

static dt_result dti_sampler_check(dti_base *base, const dt_dataset *data, bool shuffle) {
    double sum = 0.0;
    if (data->weights && data->lengths)
        return dti_fail(base, DT_ERROR_INVALID,
                        "dt_dataset.weights and .lengths are both set; give one");
    if (!shuffle || !data->weights)
        return DT_OK;
    for (uint64_t i = 0; i < data->rows; i++) {
        const double w = (double)data->weights[i];
        if (!(w >= 0.0) || !dti_fits_f32(w))
            return dti_fail(base, DT_ERROR_INVALID,
                            "dt_dataset.weights[%llu] is %g: weights are 0 or more, and finite",
                            (unsigned long long)i, w);
        sum += w;
    }
    return sum > 0.0 ? DT_OK
                     : dti_fail(base, DT_ERROR_INVALID,
                                "dt_dataset.weights are all 0; one must be above 0");
}

static dt_result dti_sampler_alloc(dti_base *base, dti_sampler *o) {
    const size_t rows = (size_t)o->data->rows;
    o->rows = dti_alloc_array(base, rows, sizeof *o->rows);
    if (o->rows && o->data->weights)
        o->sums = dti_alloc_array(base, rows, sizeof *o->sums);
    if (o->rows && o->data->lengths)
        o->keys = dti_alloc_array(
            base, (size_t)DTI_MIN(o->data->rows, (uint64_t)o->batch * DTI_LENGTHS_BATCHES),
            sizeof *o->keys);
    if (!o->rows || (o->data->weights && !o->sums) || (o->data->lengths && !o->keys))
        return DT_ERROR_MEMORY;
    double sum = 0.0;
    for (size_t i = 0; o->sums && i < rows; i++)
        o->sums[i] = sum += (double)o->data->weights[i];
    return DT_OK;
}

static void dti_sampler_free(dti_base *base, dti_sampler *o) {
    DTI_FREE(base, o->rows, o->sums, o->keys);
    o->rows = NULL;
}

/* The first row whose sum is above a share of all. It never goes past the last row with a
 * weight. */
static uint32_t dti_sampler_drawn(const dti_sampler *o, uint32_t rows, double share) {
    const double at = share * o->sums[rows - 1];
    uint32_t low = 0, high = rows - 1;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (o->sums[middle] > at)
            high = middle;
        else
            low = middle + 1;
    }
    while (low && o->data->weights[low] == 0.0f)
        low--; /* rounding has led past the last weight */
    return low;
}

static int dti_sampler_before(const void *a, const void *b) {
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Rows of a piece by length; those of one length stay as chance has put them. */
static void dti_sampler_sort(dti_sampler *o, uint32_t *rows, uint32_t count) {
    for (uint32_t i = 0; i < count; i++)
        o->keys[i] = (uint64_t)o->data->lengths[rows[i]] << 32 | i;
    qsort(o->keys, count, sizeof *o->keys, dti_sampler_before);
    for (uint32_t i = 0; i < count; i++) /* the low half makes room for the row */
        o->keys[i] = rows[(uint32_t)o->keys[i]];
    for (uint32_t i = 0; i < count; i++)
        rows[i] = (uint32_t)o->keys[i];
}

/* A short last batch stays where it is. */
static void dti_sampler_by_length(dti_sampler *o, uint32_t rows, uint64_t epoch) {
    const uint64_t piece = (uint64_t)o->batch * DTI_LENGTHS_BATCHES;
    for (uint64_t at = 0; at < rows; at += piece)
        dti_sampler_sort(o, o->rows + at, (uint32_t)DTI_MIN(piece, rows - at));
    for (uint32_t i = rows / o->batch; i > 1; i--) {
        const uint32_t j = dti_shuffle_below(i, o->seed, DTI_LENGTHS_STREAM + epoch, i);
        uint32_t *a = o->rows + (uint64_t)(i - 1) * o->batch, *b = o->rows + (uint64_t)j * o->batch;
        for (uint32_t k = 0; k < o->batch; k++)
            DTI_SWAP(uint32_t, a[k], b[k]);
    }
}

static void dti_sampler_make(dti_sampler *o, uint64_t epoch) {
    const uint32_t rows = (uint32_t)o->data->rows;
    if (!o->rows || (o->made && o->epoch == epoch))
        return;
    if (o->sums) {
        for (uint32_t i = 0; i < rows; i++)
            o->rows[i] =
                dti_sampler_drawn(o, rows, dti_uniform01(o->seed, i, DTI_WEIGHTS_STREAM + epoch));
    } else {
        dt_shuffle(o->rows, rows, o->seed, epoch);
        if (o->data->lengths)
            dti_sampler_by_length(o, rows, epoch);
    }
    o->epoch = epoch;
    o->made = true;
}
