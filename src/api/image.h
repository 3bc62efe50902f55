/* ---- Images and signals: convolution, pooling, resizing -----------------------------------------
 *
 * An image is [channels, height, width] per sample (PyTorch's NCHW), a signal [channels, length].
 * Errors (nil), naming op and shapes: i32 or a wrong rank, channels that do not match, a kernel
 * larger than the padded image, a stride, dilation or size below 1, groups that do not divide the
 * channels. */

/* {0}: PyTorch's defaults. Element 0 is for the height (a signal's length), 1 for the width. */
typedef struct dt_conv_desc {
    int32_t stride[2];         /* {0, 0} = {1, 1} */
    int32_t padding[2];        /* zeros on both sides */
    int32_t dilation[2];       /* {0, 0} = {1, 1} */
    int32_t groups;            /* 0 = 1; as many as channels = depthwise */
    int32_t output_padding[2]; /* dt_conv_transpose* only: rows added at the end; less than the
                                  stride or the dilation */
} dt_conv_desc;

/* Cross-correlation (no flip). x: [C, H, W]; w: [O, C / groups, kh, kw]; b: [O] or {0} for none;
 * result [O, oh, ow], oh = floor((H + 2 padding - dilation (kh - 1) - 1) / stride) + 1. desc may be
 * NULL. PyTorch's F.conv2d; dt_conv1d is F.conv1d, x: [C, L], w: [O, C / groups, k]. */
DT_API dt_tensor dt_conv2d(dt_tensor x, dt_tensor w, dt_tensor b, const dt_conv_desc *desc);
DT_API dt_tensor dt_conv1d(dt_tensor x, dt_tensor w, dt_tensor b, const dt_conv_desc *desc);
/* The adjoint of the convolution. x: [C, H, W]; w: [C, O / groups, kh, kw]; b: [O] or {0}; result
 * [O, oh, ow], oh = (H - 1) stride - 2 padding + dilation (kh - 1) + output_padding + 1. desc may
 * be NULL. PyTorch's F.conv_transpose2d and F.conv_transpose1d. */
DT_API dt_tensor dt_conv_transpose2d(dt_tensor x, dt_tensor w, dt_tensor b,
                                     const dt_conv_desc *desc);
DT_API dt_tensor dt_conv_transpose1d(dt_tensor x, dt_tensor w, dt_tensor b,
                                     const dt_conv_desc *desc);

typedef struct dt_pool_desc {
    int32_t kernel[2];  /* height and width; needed */
    int32_t stride[2];  /* {0, 0} = the kernel */
    int32_t padding[2]; /* on both sides, at most half of the kernel; ignored by the maximum */
    bool ceil_mode;     /* the last window may extend beyond the end if it starts before it */
    bool exclude_pad;   /* dt_avg_pool2d: do not count padding in the mean */
} dt_pool_desc;

/* The maximum of each window; NaN wins. The gradient goes to the first of equal maxima (to the last
 * NaN). x: [C, H, W]; for a signal use [C, 1, L]. PyTorch's F.max_pool2d. */
DT_API dt_tensor dt_max_pool2d(dt_tensor x, const dt_pool_desc *desc);
/* The mean of each window; padding counts as zeros. PyTorch's F.avg_pool2d. */
DT_API dt_tensor dt_avg_pool2d(dt_tensor x, const dt_pool_desc *desc);
/* Divides the image into height x width windows and takes their means. PyTorch's
 * F.adaptive_avg_pool2d. */
DT_API dt_tensor dt_adaptive_avg_pool2d(dt_tensor x, int64_t height, int64_t width);

/* Signals, [C, L]: element 0 of the desc alone. PyTorch's F.max_pool1d, F.avg_pool1d and
 * F.adaptive_avg_pool1d. */
DT_API dt_tensor dt_max_pool1d(dt_tensor x, const dt_pool_desc *desc);
DT_API dt_tensor dt_avg_pool1d(dt_tensor x, const dt_pool_desc *desc);
DT_API dt_tensor dt_adaptive_avg_pool1d(dt_tensor x, int64_t length);

/* ---- Volumes, [channels, depth, height, width]. Elements 0, 1, 2: depth, height, width; each at
 * most 32767. Made of the rows for images: a convolution holds its input once for each slice of the
 * kernel. */

typedef struct dt_conv3d_desc {
    int32_t stride[3];   /* 0 = 1 */
    int32_t padding[3];  /* zeros on both sides */
    int32_t dilation[3]; /* 0 = 1 */
    int32_t groups;      /* 0 = 1 */
} dt_conv3d_desc;

/* x: [C, D, H, W]; w: [O, C / groups, kd, kh, kw], kd at most 64; b: [O] or {0}. desc may be NULL.
 * PyTorch's F.conv3d. */
DT_API dt_tensor dt_conv3d(dt_tensor x, dt_tensor w, dt_tensor b, const dt_conv3d_desc *desc);

typedef struct dt_pool3d_desc {
    int32_t kernel[3];  /* needed */
    int32_t stride[3];  /* 0 = the kernel's */
    int32_t padding[3]; /* as dt_pool_desc has it, and so the rest */
    bool ceil_mode;
    bool exclude_pad;
} dt_pool3d_desc;

/* As for images; of equal maxima the first in depth, then height, then width, has the gradient.
 * PyTorch's F.max_pool3d, F.avg_pool3d and F.adaptive_avg_pool3d. */
DT_API dt_tensor dt_max_pool3d(dt_tensor x, const dt_pool3d_desc *desc);
DT_API dt_tensor dt_avg_pool3d(dt_tensor x, const dt_pool3d_desc *desc);
DT_API dt_tensor dt_adaptive_avg_pool3d(dt_tensor x, int64_t depth, int64_t height, int64_t width);

typedef enum dt_resize_mode { DT_RESIZE_NEAREST, DT_RESIZE_BILINEAR } dt_resize_mode;
/* Resamples to height x width. x: [C, H, W]. PyTorch's F.interpolate(size=...), modes 'nearest' and
 * 'bilinear' (align_corners=False, no antialiasing). */
DT_API dt_tensor dt_resize(dt_tensor x, int64_t height, int64_t width, dt_resize_mode mode);
/* Adds `before` and `after` zeros along `axis` (negative: from the end). x: any type and rank.
 * PyTorch's F.pad. */
DT_API dt_tensor dt_pad(dt_tensor x, int axis, int64_t before, int64_t after);
