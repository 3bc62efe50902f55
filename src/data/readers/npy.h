/* NumPy's files: an array by itself (npy.c), or several in a ZIP archive (npz.c). */

#define DTI_NPY_HEADER_MAX 65536u

/* From a whole file's bytes in memory, [data, data + size); path is for messages. What fails may
 * leave memory at out->data. */
static dt_result dti_npy_parse(dti_base *base, const char *path, const unsigned char *data,
                               size_t size, dt_array *out);
