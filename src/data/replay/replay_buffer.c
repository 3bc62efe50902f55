/* A replay buffer: a ring of items, and a tree over them. Its leaves are priorities^alpha, and its
 * nodes the sums of their two children. A draw goes down from the root, and a change goes up to it.
 * A change adds the two children again, so rounding errors do not grow with time. */

#define DTI_REPLAY_STREAM 0x7265706C61790000u /* "replay" */
#define DTI_REPLAY_MOST ((uint64_t)1 << 31)
#define DTI_REPLAY_EPSILON 1e-6

struct dt_replay {
    dti_base *base;
    dt_replay_desc desc;
    uint64_t count, next, drawn; /* items; the place of the next one; draws so far */
    uint8_t *items;
    double *tree; /* [2 * leaves]; node i has the children 2 i and 2 i + 1, and 1 is the root */
    uint64_t leaves;
    double largest; /* priority^alpha so far */
};

/* x^power of x > 0, the same bits on every machine. */
static double dti_replay_power(double x, double power) {
    return dti_exp(power * dti_ln(x));
}

static void dti_replay_set(dt_replay *r, uint64_t place, double value) {
    uint64_t i = r->leaves + place;
    r->tree[i] = value;
    for (i /= 2; i; i /= 2)
        r->tree[i] = r->tree[2 * i] + r->tree[2 * i + 1];
}

/* The item in whose part of the sum `at` lies. Rounding never leads to an empty part. */
static uint64_t dti_replay_find(const dt_replay *r, double at) {
    uint64_t i = 1;
    DTI_FENCE(at); /* a product, which is not to become one with the difference below */
    while (i < r->leaves) {
        i *= 2;
        if (at >= r->tree[i] && r->tree[i + 1] > 0.0) {
            at -= r->tree[i];
            i++;
        }
    }
    return DTI_MIN(i - r->leaves, r->count - 1);
}

static dt_result dti_replay_check(dti_base *base, const dt_replay_desc *d) {
    if (!d->capacity || d->capacity > DTI_REPLAY_MOST || !d->item_bytes)
        return dti_fail(
            base, DT_ERROR_INVALID,
            "dt_replay_create: .capacity is %llu (allowed: 1 to 2^31), .item_bytes %zu (1 or more)",
            (unsigned long long)d->capacity, d->item_bytes);
    const double epsilon = d->epsilon == 0.0 ? DTI_REPLAY_EPSILON : d->epsilon;
    if (!(d->alpha >= 0.0 && d->alpha <= 4.0) || !(epsilon >= 1e-30 && epsilon <= 1e30))
        return dti_fail(
            base, DT_ERROR_INVALID,
            "dt_replay_create: .alpha is %g (allowed: 0 to 4), .epsilon %g (0, or 1e-30 to 1e30)",
            d->alpha, d->epsilon);
    return DT_OK;
}

DTI_PUBLIC_NEW(dt_replay_create, (dt_ctx * ctx, const dt_replay_desc *desc, dt_replay **out), ctx,
               DTI_CTX, (ctx, desc, out), dt_replay_destroy) {
    dti_base *base = dti_ctx_base(ctx);
    DTI_NEED(base, desc);
    DTI_TRY(dti_replay_check(base, desc));
    dt_replay *r = *out = dti_alloc(base, sizeof *r);
    DTI_HAVE(r);
    r->base = base;
    r->desc = *desc;
    r->desc.epsilon = desc->epsilon > 0.0 ? desc->epsilon : DTI_REPLAY_EPSILON;
    r->largest = 1.0;
    r->leaves = 1;
    while (r->leaves < desc->capacity)
        r->leaves *= 2;
    r->items = dti_alloc_array(base, (size_t)desc->capacity, desc->item_bytes);
    if (r->items && desc->alpha > 0.0)
        r->tree = dti_alloc_array(base, (size_t)r->leaves * 2, sizeof *r->tree);
    return r->items && (r->tree || desc->alpha == 0.0) ? DT_OK : DT_ERROR_MEMORY;
}

DTI_PUBLIC_VOID(dt_replay_destroy, (dt_replay * r), r, DTI_OF(dt_replay) | DTI_UNUSED, (r)) {
    DTI_FREE(r->base, r->tree, r->items, r);
}

DTI_PUBLIC_GET(uint64_t, dt_replay_count, (const dt_replay *r), r, DTI_OF(dt_replay), (r)) {
    return r ? r->count : 0;
}

DTI_PUBLIC(dt_replay_add, (dt_replay * r, const void *item), r, DTI_OF(dt_replay), (r, item)) {
    DTI_NEED(r->base, item);
    memcpy(r->items + r->next * r->desc.item_bytes, item, r->desc.item_bytes);
    if (r->tree)
        dti_replay_set(r, r->next, r->largest);
    r->next = (r->next + 1) % r->desc.capacity;
    r->count = DTI_MIN(r->count + 1, r->desc.capacity);
    return DT_OK;
}

/* weights: the largest is 1 */
static void dti_replay_weigh(const dt_replay *r, int count, double beta, const uint64_t *indices,
                             float *weights) {
    double largest = 0.0;
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < count; i++) {
            const double chance =
                r->tree ? r->tree[r->leaves + indices[i]] / r->tree[1] : 1.0 / (double)r->count;
            const double w = dti_replay_power((double)r->count * chance, -beta);
            largest = pass ? largest : DTI_MAX(largest, w);
            weights[i] = (float)(w / (largest > 0.0 ? largest : 1.0));
        }
    }
}

DTI_PUBLIC(dt_replay_sample,
           (dt_replay * r, int count, double beta, void *items, uint64_t *indices, float *weights),
           r, DTI_OF(dt_replay), (r, count, beta, items, indices, weights)) {
    DTI_NEED(r->base, indices);
    if (count < 1 || !(beta >= 0.0 && beta <= 4.0))
        return dti_fail(r->base, DT_ERROR_INVALID,
                        "dt_replay_sample: count is %d (allowed: 1 or more), beta %g (0 to 4)",
                        count, beta);
    if (!r->count)
        return dti_fail(r->base, DT_ERROR_INVALID,
                        "dt_replay_sample: the buffer is empty; call dt_replay_add first");
    for (int i = 0; i < count; i++) {
        const double u = dti_uniform01(r->desc.seed, r->drawn++, DTI_REPLAY_STREAM);
        const uint64_t even = (uint64_t)(u * (double)r->count);
        indices[i] = r->tree ? dti_replay_find(r, (i + u) / count * r->tree[1])
                             : DTI_MIN(even, r->count - 1);
        if (items)
            memcpy((uint8_t *)items + (size_t)i * r->desc.item_bytes,
                   r->items + indices[i] * r->desc.item_bytes, r->desc.item_bytes);
    }
    if (weights)
        dti_replay_weigh(r, count, beta, indices, weights);
    return DT_OK;
}

DTI_PUBLIC(dt_replay_update,
           (dt_replay * r, const uint64_t *indices, const float *errors, int count), r,
           DTI_OF(dt_replay), (r, indices, errors, count)) {
    DTI_NEED(r->base, indices);
    DTI_NEED(r->base, errors);
    if (!r->tree || count < 1)
        return dti_fail(r->base, DT_ERROR_INVALID, "dt_replay_update: count is %d%s", count,
                        r->tree ? "; it must be at least 1"
                                : ", but a buffer with .alpha = 0 has no priorities");
    for (int i = 0; i < count; i++) {
        if (indices[i] >= r->count || !dti_fits_f32((double)errors[i]))
            return dti_fail(r->base, DT_ERROR_INVALID,
                            "dt_replay_update: errors[%d] is %g for index %llu of %llu items; it "
                            "must be finite, and the index below the number of items",
                            i, (double)errors[i], (unsigned long long)indices[i],
                            (unsigned long long)r->count);
    }
    for (int i = 0; i < count; i++) {
        const double priority = fabs((double)errors[i]) + r->desc.epsilon;
        const double value = dti_replay_power(priority, r->desc.alpha);
        r->largest = DTI_MAX(r->largest, value);
        dti_replay_set(r, indices[i], value);
    }
    return DT_OK;
}
