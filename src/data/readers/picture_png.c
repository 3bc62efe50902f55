/* PNG by libpng. Its errors leave by longjmp. They leave only one function, and its memory is all
 * in the struct. */

#ifdef DT_WITH_PNG
#include <png.h>

typedef struct dti_png_reading {
    const dti_file_bytes *file;
    const dti_picture *picture;
    png_structp png;
    png_infop info;
    size_t at;
    char why[128];
} dti_png_reading;

static void dti_png_error(png_structp png, png_const_charp text) {
    dti_png_reading *r = png_get_error_ptr(png);
    snprintf(r->why, sizeof r->why, "%s", text);
    png_longjmp(png, 1);
}

static void dti_png_warning(png_structp png, png_const_charp text) {
}

static void dti_png_bytes(png_structp png, png_bytep to, size_t bytes) {
    dti_png_reading *r = png_get_io_ptr(png);
    if (bytes > r->file->size - r->at)
        png_error(png, "it ends too early");
    memcpy(to, r->file->data + r->at, bytes);
    r->at += bytes;
}

/* Grey or RGB of 8 bits a channel, with an alpha where it is asked for. */
static void dti_png_transform(dti_png_reading *r, bool alpha) {
    png_set_expand(r->png); /* palettes, fewer bits than 8, a colour that is transparent */
    png_set_scale_16(r->png);
    if (!alpha)
        png_set_strip_alpha(r->png);
    else if (!(png_get_color_type(r->png, r->info) & PNG_COLOR_MASK_ALPHA) &&
             !png_get_valid(r->png, r->info, PNG_INFO_tRNS))
        png_set_add_alpha(r->png, 255, PNG_FILLER_AFTER);
}

static void dti_png_rows(dti_png_reading *r, bool alpha, uint8_t *pixels) {
    const dti_picture *p = r->picture;
    png_set_user_limits(r->png, p->width, p->height);
    png_read_info(r->png, r->info);
    const int passes = png_set_interlace_handling(r->png);
    dti_png_transform(r, alpha);
    png_read_update_info(r->png, r->info);
    const size_t row = (size_t)p->width * (size_t)((p->channels >= 3 ? 3 : 1) + alpha);
    if (png_get_image_width(r->png, r->info) != p->width ||
        png_get_image_height(r->png, r->info) != p->height ||
        png_get_rowbytes(r->png, r->info) != row)
        png_error(r->png, "it has changed while it was read");
    for (int pass = 0; pass < passes; pass++)
        for (uint32_t y = 0; y < p->height; y++)
            png_read_row(r->png, pixels + y * row, NULL);
    png_read_end(r->png, NULL);
}

static bool dti_png_read(dti_png_reading *r, bool alpha, uint8_t *pixels) {
    if (setjmp(png_jmpbuf(r->png)))
        return false;
    dti_png_rows(r, alpha, pixels);
    return true;
}

static dt_result dti_picture_png(const dti_file_bytes *f, const dti_picture *p, bool alpha,
                                 uint8_t *pixels) {
    dti_png_reading r = {.file = f, .picture = p};
    r.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &r, dti_png_error, dti_png_warning);
    r.info = r.png ? png_create_info_struct(r.png) : NULL;
    dt_result result = DT_OK;
    if (!r.info) {
        result = dti_fail(f->base, DT_ERROR_MEMORY,
                          "%s: libpng %s has no memory, or is another "
                          "version than its header's",
                          f->path, png_get_libpng_ver(NULL));
    } else {
        png_set_read_fn(r.png, &r, dti_png_bytes);
        if (!dti_png_read(&r, alpha, pixels))
            result = dti_picture_wrong(f, r.why);
    }
    png_destroy_read_struct(&r.png, &r.info, NULL);
    return result;
}
#else
DTI_ABSENT(dt_result, dti_picture_png,
           (const dti_file_bytes *f, const dti_picture *p, bool alpha, uint8_t *pixels),
           DT_ERROR_UNSUPPORTED);
#endif
