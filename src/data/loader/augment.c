/* Augmentation of pictures and signals, [C, H, W] with H 1 for a signal. Every random number is a
 * function of its purpose and of (seed, epoch, row), or, with weights, of (seed, step, position).
 * So one augmentation's numbers do not change when another is added. Sums of products are made in
 * double, where the product of two floats is exact. So the bits are the same, whatever a compiler
 * fuses. */

#define DTI_AUGMENT_STREAM 0x6175676D656E7400u /* "augment"; plus the epoch, as of batch.c */
#define DTI_AUGMENT_STEP 0x9E3779B97F4A7C15u   /* so that seeds of steps are far apart */

/* The purpose of a number: its place among those of a sample. Noise has all from NOISE on. */
enum {
    DTI_DRAW_X,
    DTI_DRAW_Y,
    DTI_DRAW_SHIFT,
    DTI_DRAW_FLIP,
    DTI_DRAW_FLIP_VERTICAL,
    DTI_DRAW_ROTATE,
    DTI_DRAW_BRIGHTNESS,
    DTI_DRAW_CONTRAST,
    DTI_DRAW_SATURATION,
    DTI_DRAW_CUTOUT_X,
    DTI_DRAW_CUTOUT_Y,
    DTI_DRAW_MIX,
    DTI_DRAW_PARTNER,
    DTI_DRAW_KIND,
    DTI_DRAW_BOX_X,
    DTI_DRAW_BOX_Y,
    DTI_DRAW_BETA, /* two gammas of DTI_DRAW_TRIES numbers, and one more, each */
    DTI_DRAW_NOISE = 1024
};
#define DTI_DRAW_TRIES 100

/* A row that is drawn twice in an epoch is identified by step and position. */
static dti_draw dti_draw_of(const dti_augment *a, const dt_sample *s, bool partner) {
    const uint64_t number = a->drawn ? s->position : s->row;
    return (dti_draw){.key = a->drawn ? s->seed + s->step * DTI_AUGMENT_STEP : s->seed,
                      .stream = DTI_AUGMENT_STREAM + s->epoch,
                      .counter = number << 32 | (uint64_t)partner << 31};
}

static double dti_draw01(const dti_draw *d, int place) {
    return dti_uniform01(d->key, d->counter + (uint64_t)place, d->stream);
}

/* One of 0 .. count - 1. */
static int dti_draw_below(const dti_draw *d, int place, int count) {
    const int n = (int)(dti_draw01(d, place) * count);
    return DTI_MIN(n, count - 1);
}

/* ---- moving */

/* Moves by (-dx, -dy) pixels. */
static void dti_augment_move(const dti_augment *a, float *x, const float *from, int dx, int dy) {
    const int w = a->width, h = a->height;
    const float fill = (float)a->desc.fill;
    for (int c = 0; c < a->channels; c++) {
        for (int y = 0; y < h; y++) {
            float *to = x + ((size_t)c * (size_t)h + (size_t)y) * (size_t)w;
            const bool inside = y + dy >= 0 && y + dy < h;
            const int first = inside ? DTI_MAX(0, -dx) : w, last = inside ? DTI_MIN(w, w - dx) : w;
            for (int i = 0; i < w; i++) {
                if (i < first || i >= last)
                    to[i] = fill;
            }
            if (first < last)
                memcpy(to + first, from + (c * (ptrdiff_t)h + y + dy) * (ptrdiff_t)w + (first + dx),
                       (size_t)(last - first) * sizeof *to);
        }
    }
}

static void dti_augment_crop(const dti_augment *a, const dti_draw *d, float *x, float *room) {
    const int p = a->desc.crop_padding, s = a->desc.shift;
    if (!p && !s)
        return;
    int dx = p ? dti_draw_below(d, DTI_DRAW_X, 2 * p + 1) - p : 0;
    const int dy = p && a->height > 1 ? dti_draw_below(d, DTI_DRAW_Y, 2 * p + 1) - p : 0;
    dx += s ? dti_draw_below(d, DTI_DRAW_SHIFT, 2 * s + 1) - s : 0;
    dx = DTI_MAX(DTI_MIN(dx, a->width), -a->width);
    memcpy(room, x, a->elements * sizeof *x);
    dti_augment_move(a, x, room, dx, dy);
}

static void dti_augment_flip(const dti_augment *a, const dti_draw *d, float *x) {
    const size_t w = (size_t)a->width, h = (size_t)a->height, rows = (size_t)a->channels * h;
    if (a->desc.flip > 0.0 && dti_draw01(d, DTI_DRAW_FLIP) < a->desc.flip) {
        for (size_t r = 0; r < rows; r++)
            for (size_t i = 0; i < w / 2; i++)
                DTI_SWAP(float, x[r * w + i], x[r * w + w - 1 - i]);
    }
    if (a->desc.flip_vertical > 0.0 &&
        dti_draw01(d, DTI_DRAW_FLIP_VERTICAL) < a->desc.flip_vertical) {
        for (size_t r = 0; r < rows; r++)
            for (size_t i = 0; i < w && r % h < h / 2; i++)
                DTI_SWAP(float, x[r * w + i], x[(r - r % h + h - 1 - r % h) * w + i]);
    }
}

/* sin of |x| <= pi by Taylor's series, to a few units of 1e-16. */
static double dti_augment_sin(double x) {
    const double xx = x * x;
    double sum = 1.0;
    for (int k = 14; k > 0; k--)
        sum = fma(sum, -xx / (2 * k * (2 * k + 1)), 1.0);
    return x * sum;
}

static double dti_augment_at(const dti_augment *a, const float *plane, int x, int y) {
    const bool inside = x >= 0 && y >= 0 && x < a->width && y < a->height;
    return inside ? (double)plane[(size_t)y * (size_t)a->width + (size_t)x] : a->desc.fill;
}

/* Bilinear, at a place that may be outside. */
static float dti_augment_between(const dti_augment *a, const float *plane, double x, double y) {
    const double left = floor(x), top = floor(y), u = x - left, v = y - top;
    const int i = (int)left, j = (int)top;
    const double above = fma(u, dti_augment_at(a, plane, i + 1, j) - dti_augment_at(a, plane, i, j),
                             dti_augment_at(a, plane, i, j));
    const double below =
        fma(u, dti_augment_at(a, plane, i + 1, j + 1) - dti_augment_at(a, plane, i, j + 1),
            dti_augment_at(a, plane, i, j + 1));
    return (float)fma(v, below - above, above);
}

static void dti_augment_rotate(const dti_augment *a, const dti_draw *d, float *x, float *room) {
    if (a->desc.rotate == 0.0)
        return;
    const double pi = 3.14159265358979323846, turn = 2.0 * dti_draw01(d, DTI_DRAW_ROTATE) - 1.0;
    const double angle = turn * (a->desc.rotate * (pi / 180.0)), half = dti_augment_sin(angle / 2);
    const double s = dti_augment_sin(angle), c = fma(-2.0 * half, half, 1.0);
    const double cx = (a->width - 1) / 2.0, cy = (a->height - 1) / 2.0;
    const size_t plane = (size_t)a->width * (size_t)a->height;
    memcpy(room, x, a->elements * sizeof *x);
    for (int i = 0; i < a->height; i++) {
        for (int j = 0; j < a->width; j++) {
            const double px = fma(c, j - cx, fma(s, i - cy, cx));
            const double py = fma(c, i - cy, fma(-s, j - cx, cy));
            float *to = x + (size_t)i * (size_t)a->width + (size_t)j;
            for (size_t k = 0; k < (size_t)a->channels; k++)
                to[k * plane] = dti_augment_between(a, room + k * plane, px, py);
        }
    }
}

/* ---- colours */

static float dti_augment_clamp(double x) {
    return (float)(x < 0.0 ? 0.0 : x > 1.0 ? 1.0 : x);
}

/* Luma as in ITU-R BT.601; of other pictures than RGB the first channel. */
static double dti_augment_grey(const dti_augment *a, const float *x, size_t i, size_t plane) {
    if (a->channels < 3)
        return (double)x[i];
    return fma(0.299, (double)x[i],
               fma(0.587, (double)x[i + plane], 0.114 * (double)x[i + 2 * plane]));
}

static double dti_augment_factor(const dti_draw *d, int place, double by) {
    const double f = fma(by, 2.0 * dti_draw01(d, place) - 1.0, 1.0);
    return f < 0.0 ? 0.0 : f;
}

/* x = f x + (1 - f) other, for all elements; other: one value, or each pixel's grey. */
static void dti_augment_blend(const dti_augment *a, float *x, double f, const double *what) {
    const size_t plane = (size_t)a->width * (size_t)a->height;
    for (size_t i = 0; i < plane; i++) {
        const double to = (1.0 - f) * (what ? *what : dti_augment_grey(a, x, i, plane));
        for (size_t k = 0; k < (size_t)a->channels; k++)
            x[i + k * plane] = dti_augment_clamp(fma(f, (double)x[i + k * plane], to));
    }
}

static void dti_augment_color(const dti_augment *a, const dti_draw *d, float *x) {
    const size_t plane = (size_t)a->width * (size_t)a->height;
    double mean = 0.0;
    if (a->desc.brightness > 0.0)
        dti_augment_blend(a, x, dti_augment_factor(d, DTI_DRAW_BRIGHTNESS, a->desc.brightness),
                          &mean);
    for (size_t i = 0; i < plane && a->desc.contrast > 0.0; i++)
        mean += dti_augment_grey(a, x, i, plane);
    mean /= (double)plane;
    if (a->desc.contrast > 0.0)
        dti_augment_blend(a, x, dti_augment_factor(d, DTI_DRAW_CONTRAST, a->desc.contrast), &mean);
    if (a->desc.saturation > 0.0)
        dti_augment_blend(a, x, dti_augment_factor(d, DTI_DRAW_SATURATION, a->desc.saturation),
                          NULL);
}

/* Two normals of each counter's words. */
static void dti_augment_noise(const dti_augment *a, const dti_draw *d, float *x) {
    for (size_t i = 0; i < a->elements && a->desc.noise > 0.0; i += 2) {
        const dti_u32x4 r = dti_philox(d->key, d->counter + DTI_DRAW_NOISE + i / 2, d->stream);
        for (size_t k = 0; k < 2 && i + k < a->elements; k++) {
            const double normal = dti_normal_quantile(dti_normal_p_of(dti_bits53(r.v + 2 * k)));
            x[i + k] = (float)fma(a->desc.noise, normal, (double)x[i + k]);
        }
    }
}

static void dti_augment_normalise(const dti_augment *a, float *x) {
    const size_t plane = (size_t)a->width * (size_t)a->height;
    for (int c = 0; c < a->channels && a->normalises; c++)
        for (size_t i = 0; i < plane; i++, x++)
            *x = (*x - a->mean[DTI_MIN(c, DT_AUGMENT_CHANNELS - 1)]) /
                 a->deviation[DTI_MIN(c, DT_AUGMENT_CHANNELS - 1)];
}

/* ---- boxes */

typedef struct dti_box {
    int left, top, right, bottom; /* past the last */
} dti_box;

/* Its centre is a random pixel; the part outside is cut off. */
static dti_box dti_augment_box(const dti_augment *a, const dti_draw *d, int place, int w, int h) {
    const int x = dti_draw_below(d, place, a->width) - w / 2;
    const int y = dti_draw_below(d, place + 1, a->height) - h / 2;
    return (dti_box){.left = DTI_MAX(x, 0),
                     .top = DTI_MAX(y, 0),
                     .right = DTI_MIN(x + w, a->width),
                     .bottom = DTI_MIN(y + h, a->height)};
}

/* from: NULL = zeros */
static void dti_augment_fill(const dti_augment *a, dti_box b, float *x, const float *from) {
    const size_t w = (size_t)a->width, h = (size_t)a->height;
    for (size_t c = 0; c < (size_t)a->channels && b.left < b.right; c++) {
        for (int y = b.top; y < b.bottom; y++) {
            const size_t at = (c * h + (size_t)y) * w + (size_t)b.left;
            const size_t bytes = (size_t)(b.right - b.left) * sizeof *x;
            if (from)
                memcpy(x + at, from + at, bytes);
            else
                memset(x + at, 0, bytes);
        }
    }
}

static void dti_augment_run(const dti_augment *a, const dti_draw *d, float *x, float *room) {
    const int side = a->desc.cutout;
    dti_augment_crop(a, d, x, room);
    dti_augment_flip(a, d, x);
    dti_augment_rotate(a, d, x, room);
    dti_augment_color(a, d, x);
    dti_augment_noise(a, d, x);
    dti_augment_normalise(a, x);
    if (side)
        dti_augment_fill(a, dti_augment_box(a, d, DTI_DRAW_CUTOUT_X, side, side), x, NULL);
}

/* ---- mixing */

static bool dti_augment_mixes(const dti_augment *a) {
    return a->desc.mixup > 0.0 || a->desc.cutmix > 0.0;
}

static bool dti_augment_partner(const dti_augment *a, const dti_draw *d, uint64_t rows,
                                uint64_t *partner) {
    const uint64_t n = (uint64_t)(dti_draw01(d, DTI_DRAW_PARTNER) * (double)rows);
    *partner = DTI_MIN(n, rows - 1);
    return dti_draw01(d, DTI_DRAW_MIX) < a->desc.mix_chance;
}

/* Gamma(shape), shape >= 1: G. Marsaglia and W. Tsang, "A simple method for generating gamma
 * variables", ACM TOMS 26 (2000). A try fails with less than 5 %: all 50 never do. */
static double dti_draw_gamma_1(const dti_draw *d, int place, double shape) {
    const double m = shape - 1.0 / 3.0, c = 1.0 / sqrt(9.0 * m);
    for (int k = 0; k < DTI_DRAW_TRIES; k += 2) {
        const double x = dti_normal(d->key, d->counter + (uint64_t)(place + k), d->stream);
        const double root = fma(c, x, 1.0);
        double v = root * root * root;
        DTI_FENCE(v);
        const double u = 1.0 - dti_draw01(d, place + k + 1);
        if (root > 0.0 && dti_ln(u) < fma(0.5 * x, x, fma(m, dti_ln(v), m * (1.0 - v))))
            return m * v;
    }
    return m;
}

/* The logarithm of Gamma(shape): where shape is small, the value may be 0. */
static double dti_draw_ln_gamma(const dti_draw *d, int place, double shape) {
    if (shape >= 1.0)
        return dti_ln(dti_draw_gamma_1(d, place, shape));
    const double u = 1.0 - dti_draw01(d, place + DTI_DRAW_TRIES);
    return dti_ln(dti_draw_gamma_1(d, place, shape + 1.0)) + dti_ln(u) / shape;
}

/* Beta(alpha, alpha). */
static double dti_draw_beta(const dti_draw *d, double alpha) {
    const double a = dti_draw_ln_gamma(d, DTI_DRAW_BETA, alpha);
    const double b = dti_draw_ln_gamma(d, DTI_DRAW_BETA + DTI_DRAW_TRIES + 1, alpha);
    return a > b ? 1.0 / (1.0 + dti_exp(b - a)) : 1.0 - 1.0 / (1.0 + dti_exp(a - b));
}

static void dti_augment_average(float *x, const float *other, size_t count, double share) {
    for (size_t i = 0; i < count; i++)
        x[i] = (float)fma(share, (double)x[i] - (double)other[i], (double)other[i]);
}

static void dti_augment_mix(const dti_augment *a, const dti_draw *d, float *x, const float *other,
                            float *target, const float *other_target) {
    const bool either = a->desc.mixup > 0.0 && a->desc.cutmix > 0.0;
    const bool cut = either ? dti_draw01(d, DTI_DRAW_KIND) < 0.5 : a->desc.cutmix > 0.0;
    double share = dti_draw_beta(d, cut ? a->desc.cutmix : a->desc.mixup);
    if (cut) {
        const double side = sqrt(1.0 - share);
        const int h = a->height > 1 ? (int)(side * a->height) : 1;
        const int w = (int)((a->height > 1 ? side : 1.0 - share) * a->width);
        const dti_box b = dti_augment_box(a, d, DTI_DRAW_BOX_X, w, h);
        const double inside = (double)(b.right - b.left) * (b.bottom - b.top);
        dti_augment_fill(a, b, x, other);
        share = 1.0 - inside / ((double)a->width * a->height);
    } else {
        dti_augment_average(x, other, a->elements, share);
    }
    dti_augment_average(target, other_target, a->targets, share);
}

/* ---- opening */

/* A column whose values in a sample are f32; NULL = none. */
static const dt_column *dti_augment_column(const dt_dataset *data, int column) {
    if (column < 0 || column >= dti_dataset_columns(data) ||
        dti_tensor_dtype(data->columns[column].input) != DT_F32)
        return NULL;
    return &data->columns[column];
}

static dt_result dti_augment_channels(dti_base *base, dti_augment *a) {
    const dt_augment_desc *d = &a->desc;
    bool one_mean = true, one_deviation = true;
    for (int i = 1; i < DT_AUGMENT_CHANNELS; i++) {
        one_mean = one_mean && d->mean[i] == 0.0f;
        one_deviation = one_deviation && d->std[i] == 0.0f;
    }
    for (int i = 0; i < DT_AUGMENT_CHANNELS; i++) {
        a->mean[i] = d->mean[one_mean ? 0 : i];
        const float x = d->std[one_deviation ? 0 : i];
        a->deviation[i] = x == 0.0f ? 1.0f : x;
        a->normalises = a->normalises || a->mean[i] != 0.0f || a->deviation[i] != 1.0f;
        if (!dti_fits_f32((double)a->mean[i]) || !dti_fits_f32((double)a->deviation[i]) ||
            !(a->deviation[i] > 0.0f))
            return dti_fail(base, DT_ERROR_INVALID,
                            "dt_augment_desc: .mean[%d] is %g and .std %g; both must be finite, "
                            "and .std above 0",
                            i, (double)a->mean[i], (double)a->deviation[i]);
    }
    if (a->channels > DT_AUGMENT_CHANNELS && !(one_mean && one_deviation))
        return dti_fail(base, DT_ERROR_INVALID,
                        "dt_augment_desc: column %d has %d channels; .mean and .std take at most "
                        "%d, or one value for all",
                        d->column, a->channels, DT_AUGMENT_CHANNELS);
    if (d->saturation > 0.0 && a->channels != 3)
        return dti_fail(base, DT_ERROR_INVALID,
                        "dt_augment_desc.saturation needs 3 channels; column %d has %d", d->column,
                        a->channels);
    return DT_OK;
}

static dt_result dti_augment_open(dti_base *base, const dt_dataset *data, dti_augment *a) {
    *a = (dti_augment){.desc = *data->augment};
    dti_fields_resolve(&dti_augment_fields, &a->desc);
    const dt_augment_desc *d = &a->desc;
    const dt_column *x = dti_augment_column(data, d->column);
    const dt_shape shape = x ? dti_tensor_shape(x->input) : (dt_shape){0};
    if (shape.rank < 1 || shape.rank > 3 || (double)dti_shape_elements(shape) > 0x1p30)
        return dti_fail(base, DT_ERROR_INVALID,
                        "dt_augment_desc.column is %d; it must be an f32 column of [C, H, W], [C, "
                        "L] or [L] with at most 2^30 elements",
                        d->column);
    a->channels = shape.rank > 1 ? (int)shape.dim[0] : 1;
    a->height = shape.rank > 2 ? (int)shape.dim[1] : 1;
    a->width = (int)shape.dim[shape.rank - 1];
    a->elements = (size_t)dti_shape_elements(shape);
    if (!a->elements)
        return dti_fail(base, DT_ERROR_INVALID, "dt_augment_desc.column %d has no elements",
                        d->column);
    DTI_TRY(dti_fields_check(base, "dt_augment_desc", &dti_augment_fields, d));
    DTI_TRY(dti_augment_channels(base, a));
    if (!dti_augment_mixes(a))
        return DT_OK;
    a->target = d->target;
    const dt_column *t = dti_augment_column(data, a->target);
    if (!t || a->target == d->column)
        return dti_fail(base, DT_ERROR_INVALID,
                        "dt_augment_desc.target is %d; mixup and cutmix need an f32 column of "
                        "probabilities there (dt_column.one_hot, dt_soft_cross_entropy)",
                        a->target);
    a->targets = (size_t)dti_shape_elements(dti_tensor_shape(t->input));
    return DT_OK;
}
