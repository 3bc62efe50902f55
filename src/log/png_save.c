/* A picture in a file of its own. */

DTI_PUBLIC(dt_png_save,
           (dt_ctx * ctx, const char *path, const uint8_t *pixels, int width, int height,
            int channels),
           ctx, DTI_CTX, (ctx, path, pixels, width, height, channels)) {
    dti_base *base = dti_ctx_base(ctx);
    DTI_NEED(base, path);
    DTI_NEED(base, pixels);
    if (width < 1 || height < 1 || width > DTI_LOG_SIDE || height > DTI_LOG_SIDE ||
        (channels != 1 && channels != 3 && channels != 4))
        return dti_fail(base, DT_ERROR_INVALID,
                        "dt_png_save: %d x %d pixels of %d channels; 1 to %d pixels a side, and 1, "
                        "3 or 4 channels",
                        width, height, channels, DTI_LOG_SIDE);
    dti_text text = dti_text_open(base);
    dti_png_write(&text, pixels, (uint32_t)width, (uint32_t)height, (uint32_t)channels);
    dt_result result = text.ok ? DT_OK : DT_ERROR_MEMORY;
    if (!result)
        result = dti_file_write(base, path, text.data, text.size);
    dti_text_free(&text);
    return result;
}
