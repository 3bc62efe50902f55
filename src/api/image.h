/* ---- Images and signals: convolution, pooling, resizing
 *
 * An image is [channels, height, width] per sample (PyTorch's NCHW), a signal [channels, length].
 *
 * Errors (nil), with op and shapes: i32 or a wrong rank; channels that do not match; a kernel
 * larger than the padded image; a stride, dilation or size below 1; groups that do not divide the
 * channels. */

/* {0}: PyTorch's defaults. Element 0 is for the height (a signal's length), 1 for the width. */
typedef struct dt_conv_desc {
    int32_t stride[2];   /* {0, 0} = {1, 1} */
    int32_t padding[2];  /* zeros on both sides */
    int32_t dilation[2]; /* {0, 0} = {1, 1} */
    int32_t groups;      /* 0 = 1; the number of channels = depthwise */
    /* dt_conv_transpose* only: rows added at the end; less than the stride or the dilation. */
    int32_t output_padding[2];
} dt_conv_desc;

/* Compute a convolution (cross-correlation, without a flip): F.conv2d, F.conv1d.
 * x: [C, H, W]; of dt_conv1d [C, L].
 * w: [O, C / groups, kh, kw]; of dt_conv1d [O, C / groups, k].
 * b: [O], or {0} for none.
 * result: [O, oh, ow], oh = floor((H + 2 padding - dilation (kh - 1) - 1) / stride) + 1. */
DT_API dt_tensor dt_conv2d(dt_tensor x, dt_tensor w, dt_tensor b, const dt_conv_desc *desc);
DT_API dt_tensor dt_conv1d(dt_tensor x, dt_tensor w, dt_tensor b, const dt_conv_desc *desc);
/* Compute a transposed convolution: F.conv_transpose2d, F.conv_transpose1d.
 * x: [C, H, W]; of dt_conv_transpose1d [C, L].
 * w: [C, O / groups, kh, kw]; of dt_conv_transpose1d [C, O / groups, k].
 * result: [O, oh, ow], oh = (H - 1) stride - 2 padding + dilation (kh - 1) + output_padding + 1. */
DT_API dt_tensor dt_conv_transpose2d(dt_tensor x, dt_tensor w, dt_tensor b,
                                     const dt_conv_desc *desc);
DT_API dt_tensor dt_conv_transpose1d(dt_tensor x, dt_tensor w, dt_tensor b,
                                     const dt_conv_desc *desc);

/* Element 0 is for the height, 1 for the width. */
typedef struct dt_pool_desc {
    int32_t kernel[2];  /* required */
    int32_t stride[2];  /* {0, 0} = the kernel */
    int32_t padding[2]; /* on both sides, at most half of the kernel; never the maximum */
    bool ceil_mode;     /* the last window may start before the end and reach beyond it */
    bool exclude_pad;   /* dt_avg_pool2d: do not count padding in the mean */
} dt_pool_desc;

/* Takes the maximum of each window: F.max_pool2d. A NaN is larger than all. The gradient goes to
 * the first of equal maxima, and of NaNs to the last.
 * x: [C, H, W]. */
DT_API dt_tensor dt_max_pool2d(dt_tensor x, const dt_pool_desc *desc);
/* Takes the mean of each window. Padding counts as zeros. PyTorch: F.avg_pool2d.
 * x: [C, H, W]. */
DT_API dt_tensor dt_avg_pool2d(dt_tensor x, const dt_pool_desc *desc);
/* Divides the image into height x width windows and takes their means.
 * PyTorch: F.adaptive_avg_pool2d.
 * x: [C, H, W]. */
DT_API dt_tensor dt_adaptive_avg_pool2d(dt_tensor x, int64_t height, int64_t width);

/* Pool a signal: F.max_pool1d, F.avg_pool1d, F.adaptive_avg_pool1d.
 * x: [C, L].
 * desc: only element 0 is used. */
DT_API dt_tensor dt_max_pool1d(dt_tensor x, const dt_pool_desc *desc);
DT_API dt_tensor dt_avg_pool1d(dt_tensor x, const dt_pool_desc *desc);
DT_API dt_tensor dt_adaptive_avg_pool1d(dt_tensor x, int64_t length);

/* ---- Volumes, [channels, depth, height, width].
 *
 * Elements 0, 1 and 2 are for depth, height and width. Each is at most 32767. A convolution holds
 * its input once for each slice of the kernel. */

typedef struct dt_conv3d_desc {
    /* As in dt_conv_desc. */
    int32_t stride[3];
    int32_t padding[3];
    int32_t dilation[3];
    int32_t groups;
} dt_conv3d_desc;

/* Computes a convolution of a volume: F.conv3d.
 * x: [C, D, H, W].
 * w: [O, C / groups, kd, kh, kw]; kd is at most 64.
 * b: [O], or {0} for none. */
DT_API dt_tensor dt_conv3d(dt_tensor x, dt_tensor w, dt_tensor b, const dt_conv3d_desc *desc);

typedef struct dt_pool3d_desc {
    /* As in dt_pool_desc. */
    int32_t kernel[3];
    int32_t stride[3];
    int32_t padding[3];
    bool ceil_mode;
    bool exclude_pad;
} dt_pool3d_desc;

/* Pool a volume. Of equal maxima the first in depth, then height, then width gets the gradient.
 * PyTorch: F.max_pool3d, F.avg_pool3d, F.adaptive_avg_pool3d.
 * x: [C, D, H, W]. */
DT_API dt_tensor dt_max_pool3d(dt_tensor x, const dt_pool3d_desc *desc);
DT_API dt_tensor dt_avg_pool3d(dt_tensor x, const dt_pool3d_desc *desc);
DT_API dt_tensor dt_adaptive_avg_pool3d(dt_tensor x, int64_t depth, int64_t height, int64_t width);

typedef enum dt_resize_mode {
    DT_RESIZE_NEAREST, /* the pixel at floor(position), as PyTorch's 'nearest' */
    DT_RESIZE_BILINEAR /* a mean of four pixels, weighted by their distance */
} dt_resize_mode;
/* Resamples an image to height x width: F.interpolate(size=...), modes 'nearest' and 'bilinear'
 * (align_corners=False, no antialiasing).
 * x: [C, H, W]. */
DT_API dt_tensor dt_resize(dt_tensor x, int64_t height, int64_t width, dt_resize_mode mode);
/* Pads one axis (negative: from the end) of an x of any type and rank with zeros: F.pad. */
DT_API dt_tensor dt_pad(dt_tensor x, int axis, int64_t before, int64_t after);
