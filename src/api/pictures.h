/* ---- Pictures: PNG and JPEG files, and folders of them ------------------------------------------
 *
 * They are decoded by libpng (define DT_WITH_PNG, link with -lpng) and libjpeg (DT_WITH_JPEG,
 * -ljpeg); without its define a file is UNSUPPORTED. 16 bits a channel become 8, palettes colours;
 * what a camera says of its orientation is not followed. Colours become grey by (19595 R + 38470 G
 * + 7471 B + 32768) / 65536; an alpha that is not asked for is left out, one that is not there is
 * 255. Resizing is bilinear, over all pixels that a new one covers (triangle filter; Pillow's
 * BILINEAR, to the same bytes). */

typedef struct dt_image_desc {
    int width, height; /* 0 = its own; else it is resized: both are given, 65536 and 2^28 pixels at
                          most */
    int channels;      /* 1 grey, 2 grey and alpha, 3 RGB, 4 RGBA; 0 = its own */
    dt_dtype dtype;    /* DT_F32: value / 255; DT_U8 */
} dt_image_desc;

/* Reads a picture: *out is [channels, height, width]. desc may be NULL. Ownership: as of
 * dt_idx_load. Errors, with *out empty: INVALID (NULL; a description without meaning), IO, FORMAT
 * (not a PNG or JPEG file, damaged, truncated, one that says it is larger than it can be),
 * UNSUPPORTED (compiled without the format's define; CMYK), MEMORY. */
DT_API dt_result dt_image_load(dt_ctx *ctx, const char *path, const dt_image_desc *desc,
                               dt_array *out);

/* ---- A folder of classes: each of its folders is a class, with the class's pictures in it.
 *
 *     pets/cat/1.png, pets/cat/2.jpg, ..., pets/dog/1.png, ...
 *
 * Classes, and the pictures of each, are in the order of their names' bytes. Pictures are files
 * whose names end in .png, .jpg or .jpeg; others, and names that begin with a dot, are passed over.
 * dt_folder_open looks at each picture's first bytes; the pictures are decoded when they are
 * needed, on the threads that read batches, so the set may be larger than memory.
 *
 *     dt_folder *pets;
 *     dt_folder_desc desc = {.width = 64, .height = 64, .channels = 3, .sizes = DT_FOLDER_CROP,
 *                            .threads = 4};
 *     dt_folder_open(ctx, "pets", &desc, &pets);
 *     dt_folder_dataset(pets, picture, label, &job.data); */

typedef struct dt_folder dt_folder;

/* What is done with a picture of another size. */
typedef enum dt_folder_sizes {
    DT_FOLDER_SAME,   /* the default: it is an error */
    DT_FOLDER_RESIZE, /* it is resized, whatever its proportions */
    DT_FOLDER_CROP,   /* its largest part in the middle that has the proportions is resized */
    DT_FOLDER_SKIP    /* it is left out and counted */
} dt_folder_sizes;

typedef struct dt_folder_desc {
    int width, height, channels; /* of what a sample gets; 0 = the first picture's */
    dt_folder_sizes sizes;
    /* Leave out and count what is no good picture, instead of an error: files of another kind,
     * damaged ones (see .verify), links to nothing, FIFOs, devices, folders. */
    bool skip_bad;
    bool verify; /* all are decoded when it is opened, so that none is found damaged later */
    uint64_t cache_bytes; /* memory that keeps decoded pictures, the first rows; 0 = none */
    int threads;          /* that decode at once: dt_dataset.threads; 0 = 1, at most 64 */
    /* A folder whose classes, size and channels are taken: a test set has the training set's
     * numbers. A class that it has not is an error, and one may be missing here. */
    const dt_folder *like;
} dt_folder_desc;

/* desc may be NULL, and is not kept, nor is .like. libpng and libjpeg take memory of their own by
 * malloc for each picture; all else is allocated here. Ownership: *out is yours; close it before
 * the context, behind the trainer. Errors, with *out NULL: INVALID (NULL; a description without
 * meaning), IO, FORMAT (no classes; a class without pictures; a picture of another size; a damaged
 * one: each with the file), UNSUPPORTED (a format without its define; a system without folders),
 * MEMORY. */
DT_API dt_result dt_folder_open(dt_ctx *ctx, const char *path, const dt_folder_desc *desc,
                                dt_folder **out);
/* NULL is allowed. */
DT_API void dt_folder_close(dt_folder *folder);

typedef struct dt_folder_info {
    uint64_t rows, skipped;
    uint64_t cached_rows; /* that .cache_bytes have room for */
    int classes, width, height, channels;
} dt_folder_info;
/* All 0 for NULL. */
DT_API void dt_folder_get_info(const dt_folder *folder, dt_folder_info *info);
/* The name of a class; NULL = there is none of that number. Valid until the folder is closed. */
DT_API const char *dt_folder_class(const dt_folder *folder, int index);
/* The classes of all rows, [rows]: for dt_data_split and dt_balanced_weights. NULL for NULL. */
DT_API const uint32_t *dt_folder_labels(const dt_folder *folder);

/* The set: `picture` is an f32 input [channels, height, width], and gets value / 255; `label` an
 * i32 input [] (the class's number) or an f32 one [classes] (1 at its place, for dt_augment_desc's
 * mixing); nil = none, for dt_trainer_predict. Set .indices, .augment and others in *out afterwards.
 * Errors, with *out empty: INVALID. Threads: the set's callback may run on any number at once. */
DT_API dt_result dt_folder_dataset(dt_folder *folder, dt_tensor picture, dt_tensor label,
                                   dt_dataset *out);
