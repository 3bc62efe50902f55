/* Resizing by a triangle filter, first along rows, then along columns. A new pixel is a weighted
 * mean of those that it covers, or of its neighbours where the picture grows. Weights have 22 bits,
 * so the sums are of integers: the same bytes everywhere. */

#define DTI_SIZE_BITS 22

/* The pixels that one of the new ones is made of: [first, first + count), around a middle. */
typedef struct dti_taps {
    int first, count;
    double middle, scale, sum;
} dti_taps;

static double dti_taps_raw(const dti_taps *t, int i) {
    const double x = (t->first + i - t->middle + 0.5) / t->scale, distance = x < 0.0 ? -x : x;
    return distance < 1.0 ? 1.0 - distance : 0.0;
}

static int64_t dti_taps_weight(const dti_taps *t, int i) {
    const double one = (double)(1 << DTI_SIZE_BITS);
    double scaled = dti_taps_raw(t, i) / t->sum * one;
    return (int64_t)(scaled + 0.5);
}

static dti_taps dti_taps_of(double from, double length, int size, int to_size, int at) {
    const double scale = length / to_size, wide = DTI_MAX(scale, 1.0);
    double offset = (at + 0.5) * scale;
    DTI_FENCE(offset);
    dti_taps t = {.middle = from + offset, .scale = wide};
    const int first = (int)(t.middle - wide + 0.5), last = (int)(t.middle + wide + 0.5);
    t.first = DTI_MAX(first, 0);
    t.count = DTI_MIN(last, size) - t.first;
    for (int i = 0; i < t.count; i++)
        t.sum += dti_taps_raw(&t, i);
    return t;
}

static uint8_t dti_size_rounded(int64_t sum) {
    const int64_t x = (sum + (1 << (DTI_SIZE_BITS - 1))) >> DTI_SIZE_BITS;
    return (uint8_t)(x < 0 ? 0 : x > 255 ? 255 : x);
}

/* Weights are made once for all rows, or columns, but for a picture that shrinks to less than a
 * hundredth. */
#define DTI_TAPS_KEPT 256
typedef struct dti_weights {
    dti_taps taps;
    int64_t kept[DTI_TAPS_KEPT];
} dti_weights;

static void dti_weights_make(dti_weights *w, dti_taps taps) {
    w->taps = taps;
    for (int i = 0; i < DTI_MIN(taps.count, DTI_TAPS_KEPT); i++)
        w->kept[i] = dti_taps_weight(&taps, i);
}

/* One new pixel of `channels` from pixels `step` bytes apart. */
static void dti_size_pixel(const uint8_t *from, size_t step, const dti_weights *weights,
                           int channels, uint8_t *to) {
    int64_t sum[4] = {0};
    for (int i = 0; i < weights->taps.count; i++) {
        const int64_t w = i < DTI_TAPS_KEPT ? weights->kept[i] : dti_taps_weight(&weights->taps, i);
        for (int c = 0; c < channels; c++)
            sum[c] += w * from[(size_t)i * step + (size_t)c];
    }
    for (int c = 0; c < channels; c++)
        to[c] = dti_size_rounded(sum[c]);
}

static void dti_picture_resize(const uint8_t *pixels, const dti_picture *p, int channels,
                               dti_picture_part part, int to_width, int to_height, uint8_t *room,
                               uint8_t *to) {
    const size_t c = (size_t)channels, row = (size_t)p->width * c, to_row = (size_t)to_width * c;
    dti_weights w;
    if ((uint32_t)to_width == p->width && (uint32_t)to_height == p->height) {
        memcpy(to, pixels, p->height * row);
        return;
    }
    for (int x = 0; x < to_width; x++) {
        dti_weights_make(&w, dti_taps_of(part.x, part.w, (int)p->width, to_width, x));
        for (size_t y = 0; y < p->height; y++)
            dti_size_pixel(pixels + y * row + (size_t)w.taps.first * c, c, &w, channels,
                           room + y * to_row + (size_t)x * c);
    }
    for (int y = 0; y < to_height; y++) {
        dti_weights_make(&w, dti_taps_of(part.y, part.h, (int)p->height, to_height, y));
        for (size_t x = 0; x < (size_t)to_width; x++)
            dti_size_pixel(room + (size_t)w.taps.first * to_row + x * c, to_row, &w, channels,
                           to + (size_t)y * to_row + x * c);
    }
}

static dti_picture_part dti_picture_middle(const dti_picture *p, int width, int height) {
    const double w = p->width, h = p->height;
    const bool wide = w * height > h * width;
    const double part_w = wide ? h * width / height : w, part_h = wide ? h : w * height / width;
    return (dti_picture_part){(w - part_w) / 2, (h - part_h) / 2, part_w, part_h};
}
