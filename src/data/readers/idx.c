/* IDX files of unsigned bytes, the format of MNIST and its kin (Y. LeCun's page "The MNIST
 * database"): two zero bytes, the element type 0x08, the rank, the dimensions as big-endian 32-bit
 * numbers, then the bytes. The file must be exactly as long as its header says, which is read and
 * checked first: nothing is taken for what is not there. It refuses other element types, empty
 * dimensions and packed files, and never trusts a size before the product of all dimensions has
 * been held against the file's own length. */

/* Makes an array of a file, for all readers of one: `take` fills it in, and may leave memory at
 * ->data when it fails. */
static dt_result dti_array_load(dt_ctx *ctx, const char *path,
                                dt_result (*take)(dti_reader *r, void *user, dt_array *out),
                                void *user, dt_array *out) {
    dti_reader reader;
    dt_array array = {.ctx = ctx};
    dti_base *base = dti_ctx_base(ctx);
    DTI_NEED(base, path);
    DTI_NEED(base, out);
    DTI_TRY(dti_reader_open(base, path, &reader));
    const dt_result result = take(&reader, user, &array);
    dti_reader_close(&reader);
    if (result)
        dti_free(base, array.data);
    else
        *out = array;
    return result;
}

enum { DTI_IDX_UBYTE = 0x08, DTI_IDX_MAX_RANK = 8 };

typedef struct dti_idx_header {
    unsigned char magic[4];
    unsigned char dims[4 * DTI_IDX_MAX_RANK];
} dti_idx_header;

/* The four bytes of the magic number and the rank; `size`: the file's. */
static dt_result dti_idx_check_magic(dti_base *base, const char *path, const unsigned char *b,
                                     uint64_t size) {
    if (size >= 2 && b[0] == 0x1F && b[1] == 0x8B)
        return dti_fail(base, DT_ERROR_FORMAT, "%s: a gzip file; unpack it with gzip -d", path);
    if (size < 4 || b[0] || b[1])
        return dti_fail(base, DT_ERROR_FORMAT,
                        "%s: not an IDX file: it does not begin with two zero bytes", path);
    if (b[2] != DTI_IDX_UBYTE)
        return dti_fail(base, DT_ERROR_FORMAT,
                        "%s: IDX element type 0x%02X; only 0x08, unsigned bytes, is read", path,
                        b[2]);
    if (b[3] < 1 || b[3] > DTI_IDX_MAX_RANK)
        return dti_fail(base, DT_ERROR_FORMAT, "%s: IDX rank %d; it must be 1 to 8", path, b[3]);
    if (size < 4 + 4 * (uint64_t)b[3])
        return dti_fail(base, DT_ERROR_FORMAT,
                        "%s: truncated: %llu bytes do not hold the header of an IDX file of rank "
                        "%d",
                        path, (unsigned long long)size, b[3]);
    return DT_OK;
}

/* Fills rank, dim and bytes of *out; `have` bytes follow the header. */
static dt_result dti_idx_check_dims(dti_base *base, const char *path, const dti_idx_header *header,
                                    uint64_t have, dt_array *out) {
    uint64_t bytes = 1;
    out->rank = header->magic[3];
    for (int i = 0; i < out->rank; i++) {
        uint32_t dim = dti_get32_be(header->dims + 4 * i);
        if (dim == 0)
            return dti_fail(base, DT_ERROR_FORMAT, "%s: IDX dimension %d is 0", path, i);
        if (bytes > have / dim)
            return dti_fail(base, DT_ERROR_FORMAT,
                            "%s: truncated: IDX dimension %d is %u, but only %llu bytes of data "
                            "follow the header",
                            path, i, dim, (unsigned long long)have);
        out->dim[i] = dim;
        bytes *= dim;
    }
    out->bytes = (size_t)bytes;
    if (bytes != have)
        return dti_fail(base, DT_ERROR_FORMAT,
                        "%s: the IDX header says %llu bytes of data, but %llu follow it", path,
                        (unsigned long long)bytes, (unsigned long long)have);
    return DT_OK;
}

static dt_result dti_idx_take(dti_reader *r, void *user, dt_array *out) {
    dti_idx_header header = {{0}, {0}};
    char *data = NULL;
    DTI_TRY(dti_reader_take(r, header.magic, (size_t)DTI_MIN(r->size, 4u)));
    DTI_TRY(dti_idx_check_magic(r->base, r->path, header.magic, r->size));
    DTI_TRY(dti_reader_take(r, header.dims, 4 * (size_t)header.magic[3]));
    DTI_TRY(dti_idx_check_dims(r->base, r->path, &header, r->size - r->at, out));
    DTI_TRY(dti_reader_take_new(r, r->size - r->at, &data));
    out->data = data;
    out->element_bytes = 1;
    out->dtype = DT_U8;
    return DT_OK;
}

DTI_PUBLIC_OUT(dt_idx_load, (dt_ctx * ctx, const char *path, dt_array *out), ctx, DTI_CTX,
               (ctx, path, out)) {
    return dti_array_load(ctx, path, dti_idx_take, NULL, out);
}

void dt_array_destroy(dt_array *array) {
    if (array && array->ctx && dti_free_public(array->ctx, array->data, __func__))
        *array = (dt_array){0};
}
