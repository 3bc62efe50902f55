/* Files of tokens. A sample's place follows from its number, so a window is read on request. Bytes
 * are read and not mapped, as in base/file.c. One stream serves all threads under a lock: a read of
 * some kilobytes is short compared with a step. */

struct dt_tokens {
    dti_base *base;
    char *path;
    dt_tokens_desc desc;
    dti_reader reader;
    dti_base reading; /* holds its errors */
    bool open;
    uint64_t rows, count; /* samples, tokens */
    size_t each;          /* bytes of a token */
    uint8_t *bytes;       /* of a window and the token after it */
    dti_mutex lock;       /* around the stream and `bytes` */
};

/* The window of a row, under the lock. */
static dt_result dti_tokens_read(dt_tokens *t, uint64_t row, bool more, int32_t *ids,
                                 int32_t *targets) {
    const uint64_t at = t->desc.skip_bytes + row * (uint64_t)t->desc.stride * t->each;
    const int count = t->desc.window + more;
    DTI_TRY(dti_reader_seek(&t->reader, at));
    DTI_TRY(dti_reader_take(&t->reader, t->bytes, (size_t)count * t->each));
    for (int i = 0; i < count; i++) {
        const uint8_t *b = t->bytes + (size_t)i * t->each;
        const uint32_t token = t->each == 2 ? dti_get16(b) : dti_get32(b);
        if (token >= (t->desc.vocabulary ? t->desc.vocabulary : (uint32_t)INT32_MAX))
            return dti_fail(&t->reading, DT_ERROR_FORMAT,
                            "%s: byte %llu: the token is %u, but the vocabulary has %u (are its "
                            "tokens of %d bits?)",
                            t->path, (unsigned long long)(at + (uint64_t)i * t->each), token,
                            t->desc.vocabulary ? t->desc.vocabulary : (uint32_t)INT32_MAX,
                            t->desc.bits == 16 ? 32 : 16);
        if (i < t->desc.window)
            ids[i] = (int32_t)token;
        if (i)
            targets[i - 1] = (int32_t)token;
    }
    return DT_OK;
}

static dt_result dti_tokens_locked(dt_tokens *t, const dt_sample *s, int32_t *ids,
                                   int32_t *targets) {
    if (s->row >= t->rows) {
        snprintf(s->error, s->error_bytes,
                 "row %llu is out of range: the file has %llu samples (see .indices)",
                 (unsigned long long)s->row, (unsigned long long)t->rows);
        return DT_ERROR_INVALID;
    }
    dti_mutex_lock(&t->lock);
    const dt_result result = dti_tokens_read(t, s->row, targets != NULL, ids, targets);
    if (result)
        snprintf(s->error, s->error_bytes, "%s", t->reading.error);
    dti_mutex_unlock(&t->lock);
    return result;
}

static dt_result dti_tokens_ids(void *user, const dt_sample *s, void *const *values) {
    return dti_tokens_locked(user, s, values[0], NULL);
}

static dt_result dti_tokens_pairs(void *user, const dt_sample *s, void *const *values) {
    return dti_tokens_locked(user, s, values[0], values[1]);
}

static bool dti_tokens_fits(const dt_tokens *t, dt_tensor x) {
    const dt_shape shape = dti_tensor_shape(x);
    return !dti_is_nil(x) && dti_tensor_dtype(x) == DT_I32 && shape.rank == 1 &&
           shape.dim[0] == t->desc.window;
}

DTI_PUBLIC_OUT(dt_tokens_dataset,
               (dt_tokens * tokens, dt_tensor ids, dt_tensor targets, dt_dataset *out), tokens,
               DTI_OF(dt_tokens), (tokens, ids, targets, out)) {
    const bool pairs = !dti_is_nil(targets);
    if (!dti_tokens_fits(tokens, ids) || (pairs && !dti_tokens_fits(tokens, targets)))
        return dti_fail(tokens->base, DT_ERROR_INVALID,
                        "dt_tokens_dataset: ids and targets must be i32 inputs [%d]",
                        tokens->desc.window);
    if (tokens->rows > UINT32_MAX)
        return dti_fail(tokens->base, DT_ERROR_UNSUPPORTED,
                        "%s: %llu samples; at most 2^32 - 1 are supported: give a larger .stride",
                        tokens->path, (unsigned long long)tokens->rows);
    *out = (dt_dataset){.rows = tokens->rows, .user = tokens, .threads = tokens->desc.threads};
    out->sample = pairs ? dti_tokens_pairs : dti_tokens_ids;
    out->columns[0] = (dt_column){.input = ids, .dtype = DT_I32};
    if (pairs)
        out->columns[1] = (dt_column){.input = targets, .dtype = DT_I32};
    return DT_OK;
}

/* ---- opening */

static dt_result dti_tokens_check(dti_base *base, dt_tokens_desc *d) {
    d->bits = d->bits ? d->bits : 16;
    d->stride = d->stride ? d->stride : d->window;
    if ((d->bits != 16 && d->bits != 32) || d->window < 1 || d->window > 1 << 24 || d->stride < 1 ||
        d->threads < 0 || d->threads > DTI_LOADER_THREADS_MAX)
        return dti_fail(base, DT_ERROR_INVALID,
                        "dt_tokens_open: .bits is %d (allowed: 16 or 32), .window %d (1 to 2^24), "
                        ".stride %d (1 or more), .threads %d (0 to %d)",
                        d->bits, d->window, d->stride, d->threads, DTI_LOADER_THREADS_MAX);
    return DT_OK;
}

static dt_result dti_tokens_count(dt_tokens *t) {
    const dt_tokens_desc *d = &t->desc;
    const uint64_t size = t->reader.size;
    if (d->skip_bytes > size || (size - d->skip_bytes) % t->each)
        return dti_fail(t->base, DT_ERROR_FORMAT,
                        "%s: %llu bytes after a header of %llu are not a whole number of tokens of "
                        "%d bits; is it truncated?",
                        t->path, (unsigned long long)size, (unsigned long long)d->skip_bytes,
                        d->bits);
    t->count = (size - d->skip_bytes) / t->each;
    if (t->count <= (uint64_t)d->window)
        return dti_fail(t->base, DT_ERROR_FORMAT,
                        "%s: it has %llu tokens; a window of %d and the next token need %d",
                        t->path, (unsigned long long)t->count, d->window, d->window + 1);
    t->rows = (t->count - (uint64_t)d->window - 1) / (uint64_t)d->stride + 1;
    return DT_OK;
}

DTI_PUBLIC_NEW(dt_tokens_open,
               (dt_ctx * ctx, const char *path, const dt_tokens_desc *desc, dt_tokens **out), ctx,
               DTI_CTX, (ctx, path, desc, out), dt_tokens_close) {
    dti_base *base = dti_ctx_base(ctx);
    DTI_NEED(base, path);
    DTI_NEED(base, desc);
    dt_tokens_desc d = *desc;
    DTI_TRY(dti_tokens_check(base, &d));
    dt_tokens *t = *out = dti_alloc(base, sizeof *t);
    DTI_HAVE(t);
    t->base = base;
    t->desc = d;
    t->each = (size_t)d.bits / 8;
    dti_mutex_init(&t->lock);
    t->path = dti_alloc_text(base, path);
    t->bytes = dti_alloc_array(base, (size_t)d.window + 1, t->each);
    DTI_HAVE(t->path && t->bytes);
    DTI_TRY(dti_reader_open(base, t->path, &t->reader));
    t->open = true;
    DTI_TRY(dti_tokens_count(t));
    dti_base_init(&t->reading, NULL, NULL); /* from now on threads read */
    t->reader.base = &t->reading;
    return DT_OK;
}

DTI_PUBLIC_VOID(dt_tokens_close, (dt_tokens * t), t, DTI_OF(dt_tokens) | DTI_UNUSED, (t)) {
    if (t->open)
        dti_reader_close(&t->reader);
    dti_mutex_destroy(&t->lock);
    DTI_FREE(t->base, t->bytes, t->path, t);
}

DT_API uint64_t dt_tokens_rows(const dt_tokens *t) {
    return t ? t->rows : 0;
}
