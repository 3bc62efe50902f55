/* NumPy's files: an array by itself (npy.c), or several in a ZIP archive (npz.c). */

#define DTI_NPY_HEADER_MAX 65536u

/* A failure may leave memory at out->data. */
static dt_result dti_npy_parse(const dti_file_bytes *f, dt_array *out);
