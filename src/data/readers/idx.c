/* IDX files of unsigned bytes, the format of MNIST and similar sets (Y. LeCun's page "The MNIST
 * database"). A file has two zero bytes, the element type 0x08, the rank, and the dimensions as
 * big-endian 32-bit numbers. Then come the bytes. The file must be exactly as long as its header
 * says. The header is read and checked first, so memory is allocated only for bytes that exist. It
 * rejects other element types, empty dimensions and packed files. It compares the product of all
 * dimensions with the file's length before it uses a size. */

/* Makes an array of a file, for all readers of one. `take` fills it in; if it fails, it may leave
 * memory at ->data. */
static dt_result dti_array_load(dt_ctx *ctx, const char *path,
                                dt_result (*take)(dti_reader *r, void *user, dt_array *out),
                                void *user, dt_array *out) {
    dti_reader reader;
    dt_array array = {.ctx = ctx};
    dti_base *base = dti_ctx_base(ctx);
    DTI_NEED(base, path);
    DTI_TRY(dti_reader_open(base, path, &reader));
    const dt_result result = take(&reader, user, &array);
    dti_reader_close(&reader);
    if (result)
        dti_free(base, array.data);
    else
        *out = array;
    return result;
}

/* Room for an array: of DT_U8, or of elements of four bytes. `dim` may be out's. */
static dt_result dti_array_make(dti_base *base, dt_dtype dtype, int rank, const int64_t *dim,
                                dt_array *out) {
    uint64_t count = 1;
    for (int i = 0; i < rank; i++)
        count *= (uint64_t)(out->dim[i] = dim[i]);
    out->rank = rank;
    out->dtype = dtype;
    out->element_bytes = dtype == DT_U8 ? 1 : 4;
    out->bytes = (size_t)count * (size_t)out->element_bytes;
    out->data = dti_alloc_array(base, (size_t)DTI_MIN(count, (uint64_t)SIZE_MAX),
                                (size_t)out->element_bytes);
    return out->data ? DT_OK : DT_ERROR_MEMORY;
}

/* A whole file in memory; path: for messages. */
typedef struct dti_file_bytes {
    dti_base *base;
    const char *path;
    const uint8_t *data;
    size_t size;
} dti_file_bytes;

enum { DTI_IDX_UBYTE = 0x08, DTI_IDX_MAX_RANK = 8 };

/* b: the magic number's four bytes, of which the last is the rank. */
static dt_result dti_idx_check_magic(const dti_reader *r, const uint8_t *b) {
    if (r->size >= 2 && b[0] == 0x1F && b[1] == 0x8B)
        return dti_fail(r->base, DT_ERROR_FORMAT, "%s: a gzip file; unpack it with gzip -d",
                        r->path);
    if (r->size < 4 || b[0] || b[1])
        return dti_fail(r->base, DT_ERROR_FORMAT,
                        "%s: not an IDX file: it does not begin with two zero bytes", r->path);
    if (b[2] != DTI_IDX_UBYTE)
        return dti_fail(r->base, DT_ERROR_FORMAT,
                        "%s: IDX element type 0x%02X; only 0x08, unsigned bytes, is read", r->path,
                        b[2]);
    if (b[3] < 1 || b[3] > DTI_IDX_MAX_RANK)
        return dti_fail(r->base, DT_ERROR_FORMAT, "%s: IDX rank %d; it must be 1 to 8", r->path,
                        b[3]);
    if (r->size < 4 + 4 * (uint64_t)b[3])
        return dti_fail(r->base, DT_ERROR_FORMAT,
                        "%s: truncated: %llu bytes do not hold the header of an IDX file of rank "
                        "%d",
                        r->path, (unsigned long long)r->size, b[3]);
    return DT_OK;
}

/* After the header, whose dimensions are at b. */
static dt_result dti_idx_dims(const dti_reader *r, const uint8_t *b, int rank, int64_t *dim) {
    const uint64_t have = r->size - r->at;
    uint64_t bytes = 1;
    for (int i = 0; i < rank; i++) {
        dim[i] = dti_get32_be(b + 4 * i);
        if (dim[i] == 0)
            return dti_fail(r->base, DT_ERROR_FORMAT, "%s: IDX dimension %d is 0", r->path, i);
        if (bytes > have / (uint64_t)dim[i])
            return dti_fail(r->base, DT_ERROR_FORMAT,
                            "%s: truncated: IDX dimension %d is %lld, but only %llu bytes of data "
                            "follow the header",
                            r->path, i, (long long)dim[i], (unsigned long long)have);
        bytes *= (uint64_t)dim[i];
    }
    if (bytes != have)
        return dti_fail(r->base, DT_ERROR_FORMAT,
                        "%s: the IDX header says %llu bytes of data, but %llu follow it", r->path,
                        (unsigned long long)bytes, (unsigned long long)have);
    return DT_OK;
}

static dt_result dti_idx_take(dti_reader *r, void *user, dt_array *out) {
    uint8_t b[4 + 4 * DTI_IDX_MAX_RANK] = {0};
    DTI_TRY(dti_reader_take(r, b, (size_t)DTI_MIN(r->size, 4u)));
    DTI_TRY(dti_idx_check_magic(r, b));
    DTI_TRY(dti_reader_take(r, b + 4, 4 * (size_t)b[3]));
    DTI_TRY(dti_idx_dims(r, b + 4, b[3], out->dim));
    DTI_TRY(dti_array_make(r->base, DT_U8, b[3], out->dim, out));
    return dti_reader_take(r, out->data, out->bytes);
}

DTI_PUBLIC_OUT(dt_idx_load, (dt_ctx * ctx, const char *path, dt_array *out), ctx, DTI_CTX,
               (ctx, path, out)) {
    return dti_array_load(ctx, path, dti_idx_take, NULL, out);
}

void dt_array_destroy(dt_array *array) {
    if (array && array->ctx && dti_free_public(array->ctx, array->data, __func__))
        *array = (dt_array){0};
}
