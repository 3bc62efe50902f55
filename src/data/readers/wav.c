/* WAV files (Microsoft and IBM, "Multimedia programming interface and data specifications 1.0",
 * 1991; WAVE_FORMAT_EXTENSIBLE): a RIFF file of chunks. "fmt " has the format of samples, and
 * "data" the samples. In RF64 and BW64 (EBU Tech 3306, ITU-R BS.2088) "ds64" has the bytes of
 * "data". Every length is compared with the file's before it is used. Compressed codings are an
 * error. */

enum { DTI_WAV_PCM = 1, DTI_WAV_FLOAT = 3, DTI_WAV_EXTENSIBLE = 0xFFFE };

typedef struct dti_wav {
    uint32_t format, channels, rate, bits;
    bool known;         /* its "fmt " was read */
    bool wide;          /* it is RF64 or BW64 */
    uint64_t data_size; /* by "ds64", where the chunk says 2^32 - 1; 0: it was not read */
} dti_wav;

static dt_result dti_wav_wrong(const dti_reader *r, uint64_t at, const char *why) {
    return dti_fail(r->base, DT_ERROR_FORMAT, "%s: byte %llu: %s", r->path, (unsigned long long)at,
                    why);
}

static dt_result dti_wav_format(dti_reader *r, uint64_t size, dti_wav *w) {
    uint8_t b[40] = {0};
    const uint64_t at = r->at;
    if (size < 16)
        return dti_wav_wrong(r, at, "the chunk 'fmt ' has less than 16 bytes");
    DTI_TRY(dti_reader_take(r, b, (size_t)DTI_MIN(size, (uint64_t)sizeof b)));
    w->format = dti_get16(b);
    w->channels = dti_get16(b + 2);
    w->rate = dti_get32(b + 4);
    w->bits = dti_get16(b + 14);
    w->known = true;
    if (w->format == DTI_WAV_EXTENSIBLE && size >= 40)
        w->format = dti_get16(b + 24);
    const bool pcm = w->format == DTI_WAV_PCM && w->bits >= 8 && w->bits <= 32 && w->bits % 8 == 0;
    const bool real = w->format == DTI_WAV_FLOAT && (w->bits == 32 || w->bits == 64);
    if (!pcm && !real)
        return dti_fail(
            r->base, DT_ERROR_FORMAT,
            "%s: byte %llu: format %u with %u bits a sample; PCM (1) of 8, 16, 24 or 32 "
            "bits and floats (3) of 32 or 64 are read; convert it",
            r->path, (unsigned long long)at, w->format, w->bits);
    if (!w->channels || !w->rate || w->rate > INT32_MAX ||
        dti_get16(b + 12) != w->channels * (w->bits / 8))
        return dti_wav_wrong(r, at,
                             "the chunk 'fmt ' contradicts itself: channels, rate or bytes of a "
                             "sample");
    return DT_OK;
}

/* false: not finite */
static bool dti_wav_value(const dti_wav *w, const uint8_t *b, float *out) {
    double wide = 0.0;
    float value;
    if (w->format == DTI_WAV_FLOAT) {
        const uint64_t bits = w->bits == 64 ? dti_get64(b) : 0;
        const uint32_t narrow = dti_get32(b);
        memcpy(&wide, &bits, sizeof wide);
        memcpy(&value, &narrow, sizeof value);
        wide = w->bits == 64 ? wide : (double)value;
    } else if (w->bits == 8) {
        wide = (b[0] - 128) / 128.0;
    } else {
        uint32_t bits = 0; /* the sample's bytes at the top, so its sign is the word's */
        for (uint32_t i = 0; i < w->bits / 8; i++)
            bits |= (uint32_t)b[i] << (32 - w->bits + 8 * i);
        wide = (double)(int32_t)bits / 2147483648.0;
    }
    *out = (float)wide;
    return dti_fits_f32(wide);
}

static dt_result dti_wav_samples(dti_reader *r, uint64_t size, const dti_wav *w, dt_array *out) {
    const size_t each = w->bits / 8, channels = w->channels;
    const uint64_t begin = r->at, count = size / (each * channels);
    if (!count)
        return dti_wav_wrong(r, begin, "there are no samples");
    if (size % (each * channels))
        return dti_wav_wrong(r, begin + size,
                             "the chunk 'data' ends within a sample of all channels; is it "
                             "truncated?");
    char *bytes = NULL;
    DTI_TRY(dti_reader_take_new(r, count * each * channels, &bytes));
    const int64_t dim[2] = {(int64_t)channels, (int64_t)count};
    dt_result result = dti_array_make(r->base, DT_F32, 2, dim, out);
    float *to = out->data;
    for (size_t i = 0; i < (size_t)count * channels && !result; i++) {
        float *place = to + i % channels * (size_t)count + i / channels;
        if (!dti_wav_value(w, (const uint8_t *)bytes + i * each, place))
            result = dti_wav_wrong(r, begin + i * each, "a sample is not finite as an f32");
    }
    dti_free(r->base, bytes);
    return result;
}

/* Sizes of 64 bits: of the file, of "data", of others. */
static dt_result dti_wav_sizes(dti_reader *r, uint64_t size, dti_wav *w) {
    uint8_t b[16];
    if (size < sizeof b)
        return dti_wav_wrong(r, r->at, "the chunk 'ds64' has less than 16 bytes");
    DTI_TRY(dti_reader_take(r, b, sizeof b));
    w->data_size = dti_get64(b + 8);
    return DT_OK;
}

/* The file's kind: "RIFF" or, with sizes of 64 bits, "RF64" or "BW64"; and "WAVE". */
static bool dti_wav_begins(const uint8_t b[12], dti_wav *w) {
    w->wide = !memcmp(b, "RF64", 4) || !memcmp(b, "BW64", 4);
    return (w->wide || !memcmp(b, "RIFF", 4)) && !memcmp(b + 8, "WAVE", 4);
}

/* A "data" chunk of a file without an end has the length 0xFFFFFFFF, or more than the file. Such a
 * file is truncated. */
static dt_result dti_wav_take(dti_reader *r, void *user, dt_array *out) {
    dti_wav *w = user;
    uint8_t b[12] = {0};
    if (r->size < 12)
        return dti_wav_wrong(r, 0, "not a WAV file: it is too short");
    DTI_TRY(dti_reader_take(r, b, 12));
    if (!dti_wav_begins(b, w))
        return dti_wav_wrong(r, 0, "not a WAV file: it does not begin with RIFF and WAVE");
    for (;;) {
        if (r->size - r->at < 8)
            return dti_wav_wrong(r, r->at,
                                 "the file ends without a chunk 'data'; is it truncated?");
        DTI_TRY(dti_reader_take(r, b, 8));
        uint64_t size = dti_get32(b + 4), at = r->at;
        if (w->wide && w->data_size && size == UINT32_MAX && !memcmp(b, "data", 4))
            size = w->data_size;
        if (size > r->size - at)
            return dti_wav_wrong(r, at - 8, "a chunk is longer than the file; is it truncated?");
        if (!memcmp(b, "data", 4))
            return w->known ? dti_wav_samples(r, size, w, out)
                            : dti_wav_wrong(r, at - 8, "the chunk 'data' comes before 'fmt '");
        if (!memcmp(b, "fmt ", 4))
            DTI_TRY(dti_wav_format(r, size, w));
        if (w->wide && !memcmp(b, "ds64", 4))
            DTI_TRY(dti_wav_sizes(r, size, w));
        DTI_TRY(dti_reader_seek(r, DTI_MIN(at + size + size % 2, r->size)));
    }
}

DTI_PUBLIC_OUT(dt_wav_load, (dt_ctx * ctx, const char *path, dt_array *out, int *rate), ctx,
               DTI_CTX, (ctx, path, out, rate)) {
    dti_wav w = {0};
    DTI_TRY(dti_array_load(ctx, path, dti_wav_take, &w, out));
    if (rate)
        *rate = (int)w.rate;
    return DT_OK;
}
