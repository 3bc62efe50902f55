/* Pictures as bytes: a file's kind (picture.c), its pixels by libpng (picture_png.c) or libjpeg
 * (picture_jpeg.c), and at another size (picture_size.c). Only those two libraries allocate, so all
 * may run on any thread with a base of its own. Pixels are [height, width, channels]. */

typedef enum dti_picture_kind { DTI_PICTURE_PNG, DTI_PICTURE_JPEG } dti_picture_kind;

typedef struct dti_picture {
    dti_picture_kind kind;
    uint32_t width, height;
    int channels; /* its own */
} dti_picture;

/* Finds the kind of a file, and reads only what that takes. FORMAT, UNSUPPORTED, IO. */
static dt_result dti_picture_look(dti_reader *r, dti_picture *out);
/* Its pixels in `channels` channels; room: [width * height * 4] bytes. FORMAT: also if the file has
 * changed since dti_picture_look. */
static dt_result dti_picture_decode(const dti_file_bytes *f, const dti_picture *p, int channels,
                                    uint8_t *room);
/* [height, width, channels] of `count` pixels to [channels, height, width]: value / 255, by a
 * table. */
static void dti_picture_table(float table[256]);
static void dti_picture_floats(const uint8_t *pixels, size_t count, size_t channels,
                               const float table[256], float *to);
/* Whether a size and channels are allowed; 0 is the picture's own. INVALID. */
static dt_result dti_picture_asked(dti_base *base, const char *who, int width, int height,
                                   int channels);
static dt_result dti_picture_wrong(const dti_file_bytes *f, const char *why);
/* Pixels as the format has them: 1 or 3 channels, and one more for the alpha where `alpha`. */
static dt_result dti_picture_png(const dti_file_bytes *f, const dti_picture *p, bool alpha,
                                 uint8_t *pixels);
static dt_result dti_picture_jpeg(const dti_file_bytes *f, const dti_picture *p, uint8_t *pixels);

/* ---- picture_size.c: the part [x, x + w) x [y, y + h) of a picture at another size. */
typedef struct dti_picture_part {
    double x, y, w, h;
} dti_picture_part;
/* room: [height of the picture * to_width * channels]. To its own size it is copied, whole. */
static void dti_picture_resize(const uint8_t *pixels, const dti_picture *p, int channels,
                               dti_picture_part part, int to_width, int to_height, uint8_t *room,
                               uint8_t *to);
/* The largest part in the middle with the proportions of width x height. */
static dti_picture_part dti_picture_middle(const dti_picture *p, int width, int height);
