/* JPEG by libjpeg (libjpeg-turbo's interface). Errors leave by longjmp, as libpng's do. A warning
 * of libjpeg mostly means a picture that ends too early, whose rest it invents. Here it is an
 * error. Only extra bytes between two parts, which cameras write, are allowed. */

#ifdef DT_WITH_JPEG
#include <setjmp.h>
#include <jpeglib.h>
#include <jerror.h>

typedef struct dti_jpeg_reading {
    struct jpeg_error_mgr errors; /* first: libjpeg gets only this */
    struct jpeg_decompress_struct jpeg;
    const dti_file_bytes *file;
    const dti_picture *picture;
    bool memory;
    jmp_buf leave;
    char why[JMSG_LENGTH_MAX];
} dti_jpeg_reading;

static void dti_jpeg_error(j_common_ptr jpeg) {
    dti_jpeg_reading *r = (dti_jpeg_reading *)(void *)jpeg->err;
    r->memory = jpeg->err->msg_code == JERR_OUT_OF_MEMORY;
    jpeg->err->format_message(jpeg, r->why);
    longjmp(r->leave, 1);
}

static void dti_jpeg_message(j_common_ptr jpeg, int level) {
    if (level < 0 && jpeg->err->msg_code != JWRN_EXTRANEOUS_DATA)
        dti_jpeg_error(jpeg);
}

static void dti_jpeg_rows(dti_jpeg_reading *r, uint8_t *pixels) {
    const dti_picture *p = r->picture;
    jpeg_create_decompress(&r->jpeg);
    jpeg_mem_src(&r->jpeg, r->file->data, (unsigned long)r->file->size);
    jpeg_read_header(&r->jpeg, TRUE);
    r->jpeg.out_color_space = p->channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
    r->jpeg.dct_method = JDCT_ISLOW;
    jpeg_start_decompress(&r->jpeg);
    if (r->jpeg.output_width != p->width || r->jpeg.output_height != p->height ||
        r->jpeg.output_components != p->channels) {
        snprintf(r->why, sizeof r->why, "it has changed while it was read");
        longjmp(r->leave, 1);
    }
    while (r->jpeg.output_scanline < p->height) {
        JSAMPROW row = pixels + (size_t)r->jpeg.output_scanline * p->width * (size_t)p->channels;
        jpeg_read_scanlines(&r->jpeg, &row, 1);
    }
    jpeg_finish_decompress(&r->jpeg);
}

static bool dti_jpeg_read(dti_jpeg_reading *r, uint8_t *pixels) {
    if (setjmp(r->leave))
        return false;
    dti_jpeg_rows(r, pixels);
    return true;
}

static dt_result dti_picture_jpeg(const dti_file_bytes *f, const dti_picture *p, uint8_t *pixels) {
    dti_jpeg_reading r = {.file = f, .picture = p};
    r.jpeg.err = jpeg_std_error(&r.errors);
    r.errors.error_exit = dti_jpeg_error;
    r.errors.emit_message = dti_jpeg_message;
    const bool ok = dti_jpeg_read(&r, pixels);
    jpeg_destroy_decompress(&r.jpeg);
    if (!ok && r.memory)
        return dti_fail(f->base, DT_ERROR_MEMORY, "%s: libjpeg has no memory", f->path);
    return ok ? DT_OK : dti_picture_wrong(f, r.why);
}
#else
DTI_ABSENT(dt_result, dti_picture_jpeg,
           (const dti_file_bytes *f, const dti_picture *p, uint8_t *pixels), DT_ERROR_UNSUPPORTED);
#endif
