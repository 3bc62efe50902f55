/* The members of dt_augment_desc. augment.c checks those that depend on the column. */

#define DTI_AUGMENT_RANGES(X)                                                                      \
    X(CHANCE, .most = 1.0)                                                                         \
    X(MIX_CHANCE, .most = 1.0, .otherwise = 1.0)                                                   \
    X(DEGREES, .most = 180.0)                                                                      \
    X(FACTOR, .most = 1e6)                                                                         \
    X(NOISE, .most = 1e30)                                                                         \
    X(PIXELS, .most = 65536.0)                                                                     \
    X(ELEMENTS, .most = 1e9)                                                                       \
    X(FILL, .least = -(double)FLT_MAX, .most = (double)FLT_MAX)                                    \
    X(TARGET, .least = INT_MIN, .most = (double)INT_MAX, .otherwise = 1.0)
DTI_RANGES(dti_augment_ranges, DTI_AUGMENT_RANGES);

#define DTI_AUGMENT_FIELDS(X)                                                                      \
    X(dt_augment_desc, column, INT, ALL, ANY, 1)                                                   \
    X(dt_augment_desc, crop_padding, INT, ALL, PIXELS, 1)                                          \
    X(dt_augment_desc, shift, INT, ALL, ELEMENTS, 1)                                               \
    X(dt_augment_desc, fill, F64, ALL, FILL, 1)                                                    \
    X(dt_augment_desc, flip, F64, ALL, CHANCE, 1)                                                  \
    X(dt_augment_desc, flip_vertical, F64, ALL, CHANCE, 1)                                         \
    X(dt_augment_desc, rotate, F64, ALL, DEGREES, 1)                                               \
    X(dt_augment_desc, brightness, F64, ALL, FACTOR, 1)                                            \
    X(dt_augment_desc, contrast, F64, ALL, FACTOR, 1)                                              \
    X(dt_augment_desc, saturation, F64, ALL, FACTOR, 1)                                            \
    X(dt_augment_desc, noise, F64, ALL, NOISE, 1)                                                  \
    X(dt_augment_desc, mean, F32, ALL, ANY, DT_AUGMENT_CHANNELS)                                   \
    X(dt_augment_desc, std, F32, ALL, ANY, DT_AUGMENT_CHANNELS)                                    \
    X(dt_augment_desc, cutout, INT, ALL, ELEMENTS, 1)                                              \
    X(dt_augment_desc, mixup, F64, ALL, FACTOR, 1)                                                 \
    X(dt_augment_desc, cutmix, F64, ALL, FACTOR, 1)                                                \
    X(dt_augment_desc, mix_chance, F64, ALL, MIX_CHANCE, 1)                                        \
    X(dt_augment_desc, target, INT_ZERO, ALL, TARGET, 1)
DTI_FIELDS(dti_augment_fields, DTI_AUGMENT_FIELDS, dti_augment_ranges);
