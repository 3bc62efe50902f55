/* ---- Pictures: PNG and JPEG files, and folders of them
 *
 * PNG needs DT_WITH_PNG, JPEG DT_WITH_JPEG, else UNSUPPORTED.
 *
 * Conversion: 16 bits per channel become 8, and palettes become colours. The orientation that a
 * camera stored is ignored. Grey is Pillow's "L". An alpha channel that is not requested is
 * dropped. One that is missing is 255.
 *
 * Resizing: the bytes equal those of Pillow's BILINEAR. */

typedef struct dt_image_desc {
    int width, height; /* resize to this size: set both, to 1 to 65536; 0 = the file's own */
    int channels;      /* 1 grey, 2 grey and alpha, 3 RGB, 4 RGBA; 0 = the file's own */
    dt_dtype dtype;    /* DT_F32: value / 255; or DT_U8 */
} dt_image_desc;

/* Reads a picture.
 * out: [channels, height, width].
 * Errors: INVALID, IO, FORMAT (not a PNG or JPEG file; damaged; truncated; a size that its bytes
 * cannot hold), UNSUPPORTED (compiled without the format's define; CMYK; more than 2^28 pixels),
 * MEMORY. */
DT_API dt_result dt_image_load(dt_ctx *ctx, const char *path, const dt_image_desc *desc,
                               dt_array *out);

/* ---- A folder of classes: each folder in it is a class.
 *
 *     pets/cat/1.png, pets/cat/2.jpg, ..., pets/dog/1.png, ...
 *
 * Classes, and the pictures of each, are in the order of their names' bytes. Pictures are files
 * with names that end in .png, .jpg or .jpeg. Other files, and names that begin with a dot, are
 * ignored.
 *
 * dt_folder_open reads only the start of each file. Pictures are decoded on the threads that read
 * batches, so the set may be larger than memory. docs/data.md has an example. */

typedef struct dt_folder dt_folder;

/* What to do with a picture of another size. */
typedef enum dt_folder_sizes {
    DT_FOLDER_SAME,   /* the default: it is an error */
    DT_FOLDER_RESIZE, /* resize it; its proportions may change */
    DT_FOLDER_CROP,   /* resize the largest part in its middle that has the new proportions */
    DT_FOLDER_SKIP    /* leave it out and count it */
} dt_folder_sizes;

typedef struct dt_folder_desc {
    int width, height, channels; /* of a sample; 0 = those of the first picture */
    dt_folder_sizes sizes;       /* 0 = DT_FOLDER_SAME */
    /* Leave bad pictures out and count them; false: they are errors. Bad: not a file, one of
     * another kind, a damaged one (see .verify). */
    bool skip_bad;
    bool verify;          /* decode all pictures in dt_folder_open, to find damaged ones there */
    uint64_t cache_bytes; /* memory for decoded pictures, of the first rows; 0 = no cache */
    int threads;          /* threads that decode (dt_dataset.threads); at most 64; 0 = 1 */
    /* Take classes, size and channels from this folder, for a test set. A class that it lacks is an
     * error; one may be missing here. */
    const dt_folder *like;
} dt_folder_desc;

/* Opens a folder of classes. .like is not kept. libpng and libjpeg use malloc while they decode a
 * picture.
 * Ownership: yours. Close it after the trainer.
 * Errors, with the file in the text: INVALID, IO, FORMAT (no classes; a class without pictures; a
 * picture of another size; a damaged one), UNSUPPORTED (a format without its define; more than 2^28
 * pixels; a system without folders), MEMORY. */
DT_API dt_result dt_folder_open(dt_ctx *ctx, const char *path, const dt_folder_desc *desc,
                                dt_folder **out);
/* Closes a folder, before its context is destroyed. */
DT_API void dt_folder_close(dt_folder *folder);

typedef struct dt_folder_info {
    uint64_t rows, skipped;      /* pictures; pictures that were left out */
    uint64_t cached_rows;        /* pictures that .cache_bytes has room for */
    int classes;                 /* number of classes */
    int width, height, channels; /* of a sample */
} dt_folder_info;
/* Describes a folder. */
DT_API void dt_folder_get_info(const dt_folder *folder, dt_folder_info *info);
/* Returns the name of a class, or NULL. Valid until the folder is closed. */
DT_API const char *dt_folder_class_name(const dt_folder *folder, int index);
/* Returns the classes of all rows, [rows]. Valid until the folder is closed. */
DT_API const uint32_t *dt_folder_labels(const dt_folder *folder);

/* Makes a data set of the folder. Set further members in *out afterwards.
 * picture: input f32 [channels, height, width]; receives value / 255.
 * label: input i32 [], receives the class number; or f32 [classes], receives 1 for the class, else
 * 0 (for .mixup and .cutmix of dt_augment_desc). nil = off, for dt_trainer_predict.
 * Threads: the set's callback: any, at once.
 * Errors: INVALID (an input of another shape or type). */
DT_API dt_result dt_folder_dataset(dt_folder *folder, dt_tensor picture, dt_tensor label,
                                   dt_dataset *out);
