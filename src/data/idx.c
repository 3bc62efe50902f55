/* IDX files of unsigned bytes, the format of MNIST and its kin (Y. LeCun's page "The MNIST
 * database"): two zero bytes, the element type 0x08, the rank, the dimensions as big-endian 32-bit
 * numbers, then the bytes. The file must be exactly as long as its header says. It refuses other
 * element types, empty dimensions and packed files, and never trusts a size before the product of
 * all dimensions has been held against the file's own length. */

enum { DTI_IDX_UBYTE = 0x08, DTI_IDX_MAX_RANK = 8 };

static uint32_t dti_idx_be32(const char *at) {
    const unsigned char *b = (const unsigned char *)at;
    return (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
}

/* The four bytes of the magic number and the rank. */
static dt_result dti_idx_check_magic(dti_base *base, const char *path, dti_file file) {
    const unsigned char *b = (const unsigned char *)file.data;
    if (file.size >= 2 && b[0] == 0x1F && b[1] == 0x8B)
        return dti_fail(base, DT_ERROR_FORMAT, "%s: a gzip file; unpack it with gzip -d", path);
    if (file.size < 4 || b[0] || b[1])
        return dti_fail(base, DT_ERROR_FORMAT,
                        "%s: not an IDX file: it does not begin with two zero bytes", path);
    if (b[2] != DTI_IDX_UBYTE)
        return dti_fail(base, DT_ERROR_FORMAT,
                        "%s: IDX element type 0x%02X; only 0x08, unsigned bytes, is read", path,
                        b[2]);
    if (b[3] < 1 || b[3] > DTI_IDX_MAX_RANK)
        return dti_fail(base, DT_ERROR_FORMAT, "%s: IDX rank %d; it must be 1 to 8", path, b[3]);
    if (file.size < 4 + 4 * (size_t)b[3])
        return dti_fail(base, DT_ERROR_FORMAT,
                        "%s: truncated: %llu bytes do not hold the header of an IDX file of rank "
                        "%d",
                        path, (unsigned long long)file.size, b[3]);
    return DT_OK;
}

/* Fills rank, dim and bytes of *out. */
static dt_result dti_idx_parse(dti_base *base, const char *path, dti_file file, dt_array *out) {
    dt_result result = dti_idx_check_magic(base, path, file);
    if (result)
        return result;
    out->rank = file.data[3];
    out->bytes = 1;
    size_t have = file.size - 4 - 4 * (size_t)out->rank;
    for (int i = 0; i < out->rank; i++) {
        uint32_t dim = dti_idx_be32(file.data + 4 + 4 * i);
        if (dim == 0)
            return dti_fail(base, DT_ERROR_FORMAT, "%s: IDX dimension %d is 0", path, i);
        if (out->bytes > have / dim)
            return dti_fail(base, DT_ERROR_FORMAT,
                            "%s: truncated: IDX dimension %d is %u, but only %llu bytes of data "
                            "follow the header",
                            path, i, dim, (unsigned long long)have);
        out->dim[i] = dim;
        out->bytes *= dim;
    }
    if (out->bytes != have)
        return dti_fail(base, DT_ERROR_FORMAT,
                        "%s: the IDX header says %llu bytes of data, but %llu follow it", path,
                        (unsigned long long)out->bytes, (unsigned long long)have);
    return DT_OK;
}

dt_result dt_idx_load(dt_ctx *ctx, const char *path, dt_array *out) {
    if (!ctx || !path || !out)
        return DT_ERROR_INVALID;
    *out = (dt_array){.ctx = ctx, .element_bytes = 1};
    dti_base *base = dti_ctx_base(ctx);
    dti_file file;
    dt_result result = dti_file_read(base, path, INT64_MAX, &file);
    if (result)
        return result;
    result = dti_idx_parse(base, path, file, out);
    if (result) {
        dti_free(base, file.data);
        *out = (dt_array){0};
        return result;
    }
    /* The values move over the header, so that they begin where the block does. */
    memmove(file.data, file.data + 4 + 4 * (size_t)out->rank, out->bytes);
    out->data = file.data;
    return DT_OK;
}

void dt_array_free(dt_array *array) {
    if (!array || !array->ctx)
        return;
    dti_free(dti_ctx_base(array->ctx), array->data);
    *array = (dt_array){0};
}
