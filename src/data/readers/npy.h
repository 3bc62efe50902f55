/* NumPy's files: an array by itself (npy.c), or several in a ZIP archive (npz.c). */

#define DTI_NPY_HEADER_MAX 65536u

/* From a whole file's bytes in memory, [data, data + size); path is for messages. */
static dt_result dti_npy_take(dt_ctx *ctx, const char *path, const unsigned char *data, size_t size,
                              dt_array *out);
