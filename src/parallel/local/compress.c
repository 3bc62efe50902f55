/* Compressed differences of a round (DT_TRAIN_LOCAL). Each process adds its replicas' differences
 * and the residual of earlier rounds (error feedback, Seide et al. 2014). It sends an approximation
 * to all by an all-gather, and keeps the rest as the new residual. Each adds all approximations in
 * the order of ranks, so all have the same bits. The bits depend on how replicas are spread over
 * processes. Bytes of an element: BF16 2; INT8 1, and 4 of a block of 256 for its scale; TOPK 8 of
 * those kept. Memory: the bytes that a process sends, times the number of ranks. Parameters are
 * padded to blocks, so no block has elements of two parameters. Buffers and losses are not
 * compressed. */

static bool dti_compress_is_on(const dti_parallel *par) {
    return DTI_HAS_LOCAL && par->desc.round.compress != DT_COMPRESS_NONE && par->desc.comm &&
           par->mesh.world > 1;
}

static uint64_t dti_compress_kept(const dti_round_desc *d, uint64_t elements) {
    const uint64_t kept = (uint64_t)(d->keep * (double)elements);
    return DTI_MIN(DTI_MAX(kept, (uint64_t)1), elements);
}

static uint64_t dti_compress_bytes(const dti_round_desc *d, uint64_t elements) {
    switch (d->compress) {
    case DT_COMPRESS_BF16: return 2 * elements;
    case DT_COMPRESS_INT8: return elements / DTI_BLOCK * (DTI_BLOCK + sizeof(float));
    case DT_COMPRESS_TOPK:
        return dti_compress_kept(d, elements) * (sizeof(uint32_t) + sizeof(float));
    default: return 0;
    }
}

/* The offset of a bucket in the sent bytes. */
static uint64_t dti_compress_at(const dti_parallel *par, uint32_t bucket) {
    uint64_t at = 0;
    for (uint32_t i = 0; i < bucket; i++)
        at += dti_compress_bytes(&par->desc.round, dti_bucket_elements(par->buckets[i]));
    return at;
}

static dt_result dti_compress_make(dti_parallel *par) {
    dti_compress *c = &par->round.compress;
    if (!dti_compress_is_on(par))
        return DT_OK;
    const uint64_t sent = dti_compress_at(par, par->bucket_count);
    c->residual = dti_alloc_array(par->base, (size_t)par->elements + 1, sizeof *c->residual);
    c->sent = dti_alloc(par->base, (size_t)sent + 1);
    c->said = dti_alloc_array(par->base, (size_t)sent + 1, par->mesh.world);
    par->staging_bytes += dti_arena_bytes(par->elements) + sent * (1 + par->mesh.world);
    return c->residual && c->sent && c->said ? DT_OK : DT_ERROR_MEMORY;
}

static void dti_compress_free(dti_parallel *par) {
    dti_compress *c = &par->round.compress;
    DTI_FREE(par->base, c->residual, c->sent, c->said);
    *c = (dti_compress){0};
}

static void dti_round_forget(dti_parallel *par) {
    if (par->round.compress.residual)
        memset(par->round.compress.residual, 0,
               (size_t)par->elements * sizeof *par->round.compress.residual);
}

/* ---- one bucket to bytes; `rest` gets the error */

static void dti_bf16_encode(const float *x, uint64_t n, char *to, float *rest) {
    for (uint64_t i = 0; i < n; i++) {
        const uint16_t half = dti_bf16_from_f32(x[i]);
        memcpy(to + 2 * i, &half, sizeof half);
        rest[i] = x[i] - dti_f32_from_bf16(half);
    }
}

/* The scale marks a value that is not finite. */
static void dti_int8_encode_block(const float *x, char *to, float *rest) {
    float most = 0.0f;
    for (uint32_t i = 0; i < DTI_BLOCK; i++)
        most = most != most || fabsf(x[i]) <= most ? most : fabsf(x[i]); /* a NaN stays */
    const bool finite = dti_fits_f32((double)most);
    const float scale = !finite ? most : most < 1e-30f ? 0.0f : most / 127.0f;
    memcpy(to, &scale, sizeof scale);
    for (uint32_t i = 0; i < DTI_BLOCK; i++) {
        const float y = finite && scale > 0.0f ? x[i] / scale : !finite;
        const int8_t q = (int8_t)DTI_MIN(DTI_MAX(y + (y < 0.0f ? -0.5f : 0.5f), -127.0f), 127.0f);
        memcpy(to + sizeof scale + i, &q, 1);
        rest[i] = (float)((double)x[i] - (double)scale * (double)q);
    }
}

static uint32_t dti_topk_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits & 0x7fffffffu;
}

/* The bits of the k-th largest magnitude, digit by digit; *ties: how many of those equal to it are
 * among the k. */
static uint32_t dti_topk_least(const float *x, uint64_t n, uint64_t k, uint64_t *ties) {
    static const struct { uint32_t shift, width; } digits[] = {{20, 11}, {9, 11}, {0, 9}};
    uint32_t count[2048], least = 0;
    for (int d = 0; d < 3; d++) {
        const uint32_t shift = digits[d].shift, values = 1u << digits[d].width;
        memset(count, 0, sizeof count);
        for (uint64_t i = 0; i < n; i++) {
            const uint32_t bits = dti_topk_bits(x[i]) >> shift;
            count[bits & (values - 1)] += bits >> digits[d].width == least;
        }
        uint32_t digit = values - 1;
        for (; digit && count[digit] < k; digit--)
            k -= count[digit];
        least = least << digits[d].width | digit;
    }
    *ties = k;
    return least;
}

static void dti_topk_encode(const float *x, uint64_t n, uint64_t k, char *to, float *rest) {
    uint64_t ties;
    const uint32_t least = dti_topk_least(x, n, k, &ties);
    for (uint64_t i = 0; i < n; i++) {
        const uint32_t bits = dti_topk_bits(x[i]), index = (uint32_t)i;
        rest[i] = x[i];
        if (bits < least || (bits == least && !ties))
            continue;
        ties -= bits == least;
        memcpy(to, &index, sizeof index);
        memcpy(to + sizeof index, &x[i], sizeof *x);
        to += sizeof index + sizeof *x;
        rest[i] = 0.0f;
    }
}

static void dti_compress_encode(const dti_round_desc *d, const float *x, uint64_t n, char *to,
                                float *rest) {
    if (d->compress == DT_COMPRESS_BF16)
        dti_bf16_encode(x, n, to, rest);
    if (d->compress == DT_COMPRESS_TOPK)
        dti_topk_encode(x, n, dti_compress_kept(d, n), to, rest);
    for (uint64_t i = 0; i < n && d->compress == DT_COMPRESS_INT8; i += DTI_BLOCK)
        dti_int8_encode_block(x + i, to + i / DTI_BLOCK * (DTI_BLOCK + sizeof(float)), rest + i);
}

/* ---- and back: adds the values of all ranks, in their order. In double the product with a scale
 * is exact, so no compiler's contraction changes a bit. */

static void dti_bf16_decode(const char *from, uint64_t stride, uint32_t ranks, uint64_t n,
                            float *to) {
    for (uint64_t i = 0; i < n; i++) {
        double sum = 0.0;
        for (uint32_t r = 0; r < ranks; r++) {
            uint16_t half;
            memcpy(&half, from + r * stride + 2 * i, sizeof half);
            sum += (double)dti_f32_from_bf16(half);
        }
        to[i] = (float)sum;
    }
}

static void dti_int8_decode_block(const char *from, uint64_t stride, uint32_t ranks, float *to) {
    double sum[DTI_BLOCK] = {0};
    for (uint32_t r = 0; r < ranks; r++, from += stride) {
        float scale;
        memcpy(&scale, from, sizeof scale);
        for (uint32_t i = 0; i < DTI_BLOCK; i++) {
            int8_t q;
            memcpy(&q, from + sizeof scale + i, 1);
            sum[i] += (double)scale * (double)q;
        }
    }
    for (uint32_t i = 0; i < DTI_BLOCK; i++)
        to[i] = (float)sum[i];
}

/* Another rank's word for a place is looked at. */
static void dti_topk_decode(const char *from, uint64_t stride, uint32_t ranks, uint64_t n,
                            float *to) {
    memset(to, 0, (size_t)n * sizeof *to);
    for (uint32_t r = 0; r < ranks; r++, from += stride) {
        for (uint64_t at = 0; at < stride; at += sizeof(uint32_t) + sizeof(float)) {
            uint32_t index;
            float value;
            memcpy(&index, from + at, sizeof index);
            memcpy(&value, from + at + sizeof index, sizeof value);
            if (index < n)
                to[index] += value;
        }
    }
}

static void dti_compress_decode(const dti_round_desc *d, const char *from, uint32_t ranks,
                                uint64_t n, float *to) {
    const uint64_t stride = dti_compress_bytes(d, n);
    if (d->compress == DT_COMPRESS_BF16)
        dti_bf16_decode(from, stride, ranks, n, to);
    if (d->compress == DT_COMPRESS_TOPK)
        dti_topk_decode(from, stride, ranks, n, to);
    for (uint64_t i = 0; i < n && d->compress == DT_COMPRESS_INT8; i += DTI_BLOCK)
        dti_int8_decode_block(from + i / DTI_BLOCK * (DTI_BLOCK + sizeof(float)), stride, ranks,
                              to + i);
}

/* ---- the exchange. Threads take buckets in turn. */

static void dti_compress_say(void *arg, uint32_t index) {
    dti_parallel *par = arg;
    dti_compress *c = &par->round.compress;
    for (uint32_t b = index; b < par->bucket_count; b += par->job.local) {
        const dti_bucket *bucket = &par->buckets[b];
        float *sum = par->replicas[0].gradients;
        for (uint64_t k = bucket->begin; k < bucket->end; k++) {
            for (uint32_t r = 1; r < par->job.local; r++)
                sum[k] += par->replicas[r].gradients[k];
            sum[k] += c->residual[k];
        }
        dti_compress_encode(&par->desc.round, sum + bucket->begin, dti_bucket_elements(*bucket),
                            c->sent + dti_compress_at(par, b), c->residual + bucket->begin);
    }
    dti_exchange_arrive(par, 0, par->bucket_count);
}

static void dti_compress_hear(void *arg, uint32_t index) {
    dti_parallel *par = arg;
    for (uint32_t b = index; b < par->bucket_count; b += par->job.local) {
        const dti_bucket *bucket = &par->buckets[b];
        dti_compress_decode(&par->desc.round,
                            par->round.compress.said + dti_compress_at(par, b) * par->mesh.world,
                            par->mesh.world, dti_bucket_elements(*bucket),
                            par->replicas[0].gradients + bucket->begin);
    }
}

static dt_result dti_compress_post(dti_parallel *par, uint32_t b) {
    dti_compress *c = &par->round.compress;
    const uint64_t at = dti_compress_at(par, b);
    const dt_comm_op op = {
        .kind = DT_COMM_ALL_GATHER,
        .in = c->sent + at,
        .out = c->said + at * par->mesh.world,
        .count = dti_compress_bytes(&par->desc.round, dti_bucket_elements(par->buckets[b])),
        .dtype = DT_U8};
    return dti_works_post(par->desc.comm, &par->sums.list[b].works, &op);
}

static const dti_sum_kind dti_compress_kind = {.post = dti_compress_post};

static const dti_sum_kind *dti_round_sums(const dti_parallel *par) {
    return dti_compress_is_on(par) ? &dti_compress_kind : NULL;
}

/* Puts the values of all ranks into the first replica's array. */
static dt_result dti_compress_exchange(dti_parallel *par) {
    dti_device_team_run(par->device_team, dti_compress_say, par);
    const dt_result result = dti_exchange_finish(par);
    if (!result)
        dti_device_team_run(par->device_team, dti_compress_hear, par);
    return result;
}
