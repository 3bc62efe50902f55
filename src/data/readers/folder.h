/* A folder of classes. Opening it finds its contents (folder_scan.c); pictures are decoded on
 * request (folder.c). */

/* The buffers of one decoding; if all are in use, a decoding waits. */
typedef struct dti_folder_worker {
    dti_base base; /* holds its errors */
    char *path;
    uint8_t *file, *pixels, *rows, *sized;
    bool taken;
} dti_folder_worker;

struct dt_folder {
    dti_base *base;
    dt_folder_desc desc; /* .like is not followed any more */
    char *path;
    char **classes;
    size_t class_count, class_capacity;
    dti_text names;   /* of pictures, each followed by a zero */
    uint64_t *places; /* by row, in the names: "class/file" */
    size_t rows, place_capacity;
    uint32_t *labels;
    size_t label_capacity;
    uint64_t skipped;
    int width, height, channels;             /* of a sample's picture */
    size_t file_max, pixels_max, height_max; /* of the files */
    size_t picture_bytes, name_max;
    float table[256];

    dti_folder_worker *workers;
    int worker_count;
    dti_mutex lock;
    dti_cond free;
    uint8_t *cache; /* of the first cache_rows */
    _Atomic uint8_t *cached;
    size_t cache_rows;
};

/* Fills in its contents: classes, places, labels, sizes. */
static dt_result dti_folder_scan(dt_folder *folder, const dt_folder_desc *desc);
