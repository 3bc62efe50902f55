/* Attention in float64, pair by pair. */

/* The operand's element at (sample, head, row, column). */
static double *ref_attention_at(const ref_tensor *x, int64_t s, int64_t h, int64_t i, int64_t j) {
    const int64_t at[DTI_AXES] = {s, 0, 0, h, i, j};
    return x->data + ref_element(x, at);
}

/* The score of a pair, or -INFINITY where the query does not see the key. */
static double ref_attention_score(const ref_call *r, const ref_tensor *mask, int64_t s, int64_t h,
                                  int64_t i, int64_t j) {
    const ref_tensor *q = &r->in[0], *k = &r->in[1];
    const uint32_t flags = dti_attention_flags(r->node);
    const int64_t window = r->node->attr.i[DTI_ATTENTION_WINDOW], apart = i > j ? i - j : j - i;
    const double m = mask ? *ref_attention_at(mask, s, h, i, j) : 0;
    const double *u = ref_attention_at(q, s, h, i, 0);
    const double *v = ref_attention_at(k, s, h / (q->dim[3] / k->dim[3]), j, 0);
    double sum = 0;
    if ((flags & DTI_ATTENTION_CAUSAL && j > i) || (window && apart >= window) ||
        (flags & DTI_ATTENTION_KEEP && m == 0))
        return -INFINITY;
    for (int64_t c = 0; c < q->dim[5]; c++)
        sum += u[c] * v[c];
    sum *= (double)r->node->attr.f[0];
    if (flags & DTI_ATTENTION_ALIBI)
        sum -= dti_alibi_slope(q->dim[3], h) * (double)apart;
    return flags & DTI_ATTENTION_ADD ? sum + m : sum;
}

/* 1 / (1 - p) where the weight is kept, else 0. */
static double ref_attention_kept(const ref_call *r, int64_t s, int64_t h, int64_t i, int64_t j) {
    const double keep = 1 - (double)r->node->attr.f[1];
    const uint64_t heads = (uint64_t)r->in[0].dim[3], tq = (uint64_t)r->in[0].dim[4];
    const uint64_t tk = (uint64_t)r->in[1].dim[4], row = r->node->samples ? r->step->first_row : 0;
    if (!r->train || !(dti_attention_flags(r->node) & DTI_ATTENTION_DROPOUT))
        return 1;
    const uint64_t n =
        (((row + (uint64_t)s) * heads + (uint64_t)h) * tq + (uint64_t)i) * tk + (uint64_t)j;
    const uint64_t stream = (uint64_t)(uint32_t)r->node->attr.i[DTI_ATTENTION_STREAM] << 32;
    uint32_t word = dti_philox(r->step->seed, n / 4, stream | (uint32_t)r->step->step).v[n % 4];
    return word < fmin(floor(keep * 0x1p32), 0xffffffffp0) ? 1 / keep : 0;
}

/* Results so far are brought to each score that is the largest yet. */
static void ref_attention_row(const ref_call *r, int64_t s, int64_t h, int64_t i) {
    const ref_tensor *v = &r->in[2], *mask = r->node->count > 3 ? &r->in[3] : NULL;
    const int64_t heads = r->in[0].dim[3], tq = r->in[0].dim[4], dv = v->dim[5];
    double *row = r->out.data + (s * tq + i) * heads * (dv + 2), most = -INFINITY, sum = 0;
    double *y = row + h * dv;
    for (int64_t c = 0; c < dv; c++)
        y[c] = 0;
    for (int64_t j = 0; j < v->dim[4]; j++) {
        const double score = ref_attention_score(r, mask, s, h, i, j);
        if (score == -INFINITY)
            continue;
        const double before = exp(most - fmax(most, score));
        most = fmax(most, score);
        const double e = exp(score - most), kept = e * ref_attention_kept(r, s, h, i, j);
        const double *value = ref_attention_at(v, s, h / (heads / v->dim[3]), j, 0);
        sum = sum * before + e;
        for (int64_t c = 0; c < dv; c++)
            y[c] = y[c] * before + kept * value[c];
    }
    for (int64_t c = 0; c < dv && sum > 0; c++)
        y[c] /= sum;
    row[heads * dv + h] = sum > 0 ? most : 0;
    row[heads * (dv + 1) + h] = sum > 0 ? log(sum) : (double)(float)DTI_ATTENTION_NONE;
}

static void ref_attention(const ref_call *r) {
    const int64_t heads = r->in[0].dim[3], tq = r->in[0].dim[4];
    for (int64_t at = 0; at < r->out.dim[0] * heads * tq; at++)
        ref_attention_row(r, at / tq / heads, at / tq % heads, at % tq);
}

/* Where dq, dk or dv (which) of a place lies in the sample's results. */
static int64_t ref_attention_place(const dti_attention *a, int which, int64_t h, int64_t i) {
    const int64_t rows[3] = {a->tq, a->tk, a->tk};
    const int64_t width[3] = {a->heads * a->d, a->kv_heads * a->d, a->kv_heads * a->dv};
    int64_t before = 0, step = width[which];
    for (int p = 0; p < which; p++)
        before += width[p] * (a->tq == a->tk ? 1 : rows[p]);
    if (a->tq == a->tk)
        step = width[0] + width[1] + width[2];
    return before + i * step + h * (which < 2 ? a->d : a->dv);
}

/* What one pair adds. x: the sample's row of query i. */
static void ref_attention_pair(const ref_call *r, const dti_attention *a, double *out, int64_t s,
                               int64_t h, int64_t i, int64_t j) {
    const ref_tensor *mask = r->node->count > 5 ? &r->in[5] : NULL;
    const int64_t kv = h / (a->heads / a->kv_heads);
    const double score = ref_attention_score(r, mask, s, h, i, j);
    const double most = *ref_attention_at(&r->in[4], s, 0, i, h);
    const double log_sum = *ref_attention_at(&r->in[4], s, 0, i, a->heads + h);
    const double p = score > -INFINITY ? exp(score - most - log_sum) : 0;
    const double scale = (double)r->node->attr.f[0];
    const double kept = ref_attention_kept(r, s, h, i, j);
    const double *q = ref_attention_at(&r->in[0], s, h, i, 0);
    const double *k = ref_attention_at(&r->in[1], s, kv, j, 0);
    const double *v = ref_attention_at(&r->in[2], s, kv, j, 0);
    const double *dy = ref_attention_at(&r->in[3], s, 0, i, h * a->dv);
    double *dq = out + ref_attention_place(a, 0, h, i);
    double *dk = out + ref_attention_place(a, 1, kv, j);
    double *dv = out + ref_attention_place(a, 2, kv, j), dp = 0;
    for (int64_t c = 0; c < a->dv; c++) {
        dp += dy[c] * v[c];
        dv[c] += p * kept * dy[c];
    }
    const double sums = *ref_attention_at(&r->in[4], s, 0, i, 2 * a->heads + h);
    const double ds = p * (dp * kept - sums) * scale;
    for (int64_t c = 0; c < a->d; c++) {
        dq[c] += ds * k[c];
        dk[c] += ds * q[c];
    }
}

static void ref_attention_grad(const ref_call *r) {
    const ref_tensor *q = &r->in[0], *k = &r->in[1], *v = &r->in[2];
    const dti_attention a = {q->dim[3], k->dim[3], q->dim[4], k->dim[4], q->dim[5], v->dim[5]};
    const int64_t each = r->out.elements / DTI_MAX(r->out.dim[0], 1);
    memset(r->out.data, 0, (size_t)r->out.elements * sizeof *r->out.data);
    for (int64_t at = 0; at < r->out.dim[0] * a.heads * a.tq * a.tk; at++) {
        const int64_t j = at % a.tk, i = at / a.tk % a.tq, h = at / a.tk / a.tq % a.heads;
        const int64_t s = at / a.tk / a.tq / a.heads;
        ref_attention_pair(r, &a, r->out.data + s * each, s, h, i, j);
    }
}
