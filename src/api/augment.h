/* ---- Augmentation: random changes of samples, on the loader's threads
 *
 * The loader applies dt_dataset.augment to each sample after it copied the columns and called
 * dt_dataset.sample. {0} changes nothing.
 *
 * Order: shift and crop, flips, rotation, brightness, contrast, saturation, noise, normalisation,
 * cutout, mixup or cutmix.
 *
 * Brightness, contrast and saturation need values in [0, 1].
 *
 * Validation sets: give them a description of their own, with the normalisation only.
 *
 * Random numbers depend only on seed, epoch and row of the data; with dt_dataset.weights on seed,
 * step and position in the batch. */

#define DT_AUGMENT_CHANNELS 4

typedef struct dt_augment_desc {
    int column;       /* the column to change: f32, [C, H, W], [C, L] or [L] of each sample */
    int crop_padding; /* random crop: shift by up to this many pixels on both axes */
    int shift;        /* shift by up to this many elements along the last axis (time) */
    double fill;      /* the value that crops, shifts and rotations fill in */
    /* Probability of a mirror image, left-right or upside down; 0 to 1. */
    double flip, flip_vertical;
    double rotate; /* rotate by up to this many degrees either way; bilinear; 0 to 180 */
    /* Random factors from [1 - x, 1 + x], at least 0. They scale values, distances to the mean
     * grey, and to the pixel's grey (3 channels). Results are clamped to [0, 1]. */
    double brightness, contrast, saturation;
    double noise; /* standard deviation of added normal noise */
    /* Normalisation by channel: (value - mean) / std. A std of 0 = 1. If only the first is set, it
     * is used for all channels. */
    float mean[DT_AUGMENT_CHANNELS], std[DT_AUGMENT_CHANNELS];
    /* Set a square of this side around a random pixel to 0 (DeVries and Taylor, 2017). */
    int cutout;
    /* Mix in another random row: all of it (Zhang et al., 2017), or a box of it (Yun et al., 2019).
     * Targets are mixed in the same share, from Beta(alpha, alpha). 0 = off; both set: half
     * each. */
    double mixup, cutmix;
    double mix_chance; /* probability that a sample is mixed; 0 = 1 */
    /* mixup and cutmix: column of the targets, f32 probabilities (dt_column.one_hot, or a
     * folder's), for dt_soft_cross_entropy. 0 = 1, DT_ZERO = 0. */
    int target;
} dt_augment_desc;
