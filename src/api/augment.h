/* ---- Augmentation: samples changed by chance, on the loader's threads --------------------------
 *
 * dt_dataset.augment names a description; the loader changes each sample by it after columns were
 * copied and dt_dataset.sample was called. Random numbers are of (seed, epoch, row of the data)
 * alone, or with dt_dataset.weights, which draw a row several times in an epoch, of (seed, step,
 * position in the batch), so threads, replicas, ranks and a resumed job make the same samples. All
 * zero is none.
 *
 *     dt_augment_desc more = {.crop_padding = 4, .flip = 0.5, .mean = {0.5f},
 *                             .std = {0.25f}, .cutout = 8};
 *     job.data.augment = &more;
 *
 * Steps, in this order: shift and crop, flips, rotation, brightness, contrast, saturation, noise,
 * normalising, cutout, mixup or cutmix. A validation set has a description of its own with the
 * normalising alone. The values before normalising are as columns and .sample give them; for
 * brightness, contrast and saturation they lie in [0, 1]. */

#define DT_AUGMENT_CHANNELS 4

typedef struct dt_augment_desc {
    int column;       /* that is changed: f32, [C, H, W], [C, L] or [L] of each sample */
    int crop_padding; /* moved by up to so many pixels in both directions; what comes in is .fill */
    int shift;        /* moved along the last dimension (time) by up to so many, likewise */
    double fill;
    double flip, flip_vertical; /* chance of a mirror image: left-right, upside down */
    double rotate;              /* by up to so many degrees either way; bilinear */
    /* Factors from [1 - x, 1 + x] (not below 0): of the values; of their distance from the mean
     * grey; of their distance from the pixel's grey (3 channels). Then cut to [0, 1]. */
    double brightness, contrast, saturation;
    double noise; /* deviation of normal noise that is added */
    /* (value - mean) / deviation, by channel; a deviation of 0 = 1. The first of each is that of
     * all channels where the others are 0. */
    float mean[DT_AUGMENT_CHANNELS], std[DT_AUGMENT_CHANNELS];
    int cutout; /* a square of this side becomes 0 (DeVries and Taylor, 2017); its middle is a pixel
                   of the picture, so a part of it may lie outside */
    /* Another row of the set, by chance, is read too and mixed in: all of it (Zhang et al., 2017)
     * or a box of it (Yun et al., 2019), and the targets as much. The share comes from
     * Beta(alpha, alpha); 0 = none, with both given each has half of the cases. */
    double mixup, cutmix;
    double mix_chance; /* of a sample to be mixed; 0 = 1 */
    /* The column of the targets, f32: probabilities of classes (dt_column.one_hot, a folder's), for
     * dt_soft_cross_entropy; 0 = 1. With mixup and cutmix alone. */
    int target;
} dt_augment_desc;
