/* ---- Attention
 *
 * softmax(scale q k^T) v of each head, in blocks, without the scores [H, T, S] in memory (Dao et
 * al., "FlashAttention", 2022). Results depend only on shapes, bit for bit. */

/* {0}: every query attends to every key.
 *
 * .causal, .window, .bool_mask, .lengths and a mask of -INFINITY hide a key. A finite mask hides no
 * key: -1e9 for all keys gives the mean of the values. If all keys are hidden, the query's result
 * and gradients are 0. */
typedef struct dt_attention_desc {
    float scale;    /* 0 = 1 / sqrt(D) */
    bool causal;    /* query i sees keys 0 .. i only */
    int64_t window; /* query i sees keys j with |i - j| < window only; 0 = all */
    bool alibi;     /* adds -slope |i - j| to the scores, with the slopes of Press et al. 2021 */
    dt_tensor mask; /* f32, broadcast to [H, T, S]: added to the scores; {0} = off */
    /* The mask is boolean: 0 hides a key. It has no gradient. scaled_dot_product_attention's bool
     * mask; nn.MultiheadAttention's is the opposite. */
    bool bool_mask;
    /* i32 [] of each sample: number of keys before the padding. Not with a mask. {0} = all. */
    dt_tensor lengths;
    float dropout; /* of the weights after the softmax, as dt_dropout; in [0, 1] */
} dt_attention_desc;

/* Computes attention: F.scaled_dot_product_attention.
 * q: [H, T, D], f32.
 * k, v: [K, S, D] and [K, S, E], f32. H is a multiple of K. Head h uses head h / (H / K) of k and v
 * (grouped and multi-query attention).
 * D, E: 1 to 256.
 * result: [H, T, E]. In memory it is [T, H, E].
 *
 * Second derivatives, and the gradient of a mask, need memory for the scores.
 *
 * Errors (nil): a shape that does not fit; a mask and lengths; .bool_mask without a mask. */
DT_API dt_tensor dt_attention(dt_tensor q, dt_tensor k, dt_tensor v, const dt_attention_desc *desc);

/* A cache of keys and values, for programs with .cached that generate a sequence position by
 * position.
 *
 * Memory: the store has room for `samples` times `positions` from the first such program on
 * (dt_program_info.cache_bytes). It is not saved to files, and dt_store_restore loses it.
 *
 * NaN: if weights had one, a cached NaN spoils later runs until its position is written again. */
typedef struct dt_cache_desc {
    int64_t positions; /* capacity, 1 to 2^24; at least the positions of one run */
    int samples;       /* the largest batch of a program with .cached; 0 = 1 */
    /* i32 [], for all samples or for each: number of positions cached so far. The run's first row
     * has this position. Programs without .cached do not read it. */
    dt_tensor position;
} dt_cache_desc;

/* Computes causal attention over the positions of this run and, in programs with .cached, over
 * those of earlier runs. Positions [position, position + T) are written to the cache. So a prompt
 * is one run of T positions (dt_program_desc.shapes). Each new position is one run of another
 * program of the store.
 * desc: .causal is required; .window and .scale are allowed.
 * With .cached a run takes the time of attention to all `positions` of the cache.
 * Errors (nil): as dt_attention; queries and keys of different positions; more positions than the
 * cache has; a cache of 2^31 elements or more. */
DT_API dt_tensor dt_attention_cached(dt_tensor q, dt_tensor k, dt_tensor v,
                                     const dt_cache_desc *cache, const dt_attention_desc *desc);
/* dt_cache_position returns `position` in programs with .cached, else 0. dt_cache_positions returns
 * the position of each row of x.
 * position: dt_cache_desc.position.
 * x: [T, ...]; result: i32, [] and [T]. */
DT_API dt_tensor dt_cache_position(dt_tensor position);
DT_API dt_tensor dt_cache_positions(dt_tensor x, dt_tensor position);

/* {0}: the defaults of PyTorch and Llama. */
typedef struct dt_rope_desc {
    double base;      /* above 1; 0 = 10000 */
    bool interleaved; /* pairs (2 i, 2 i + 1), as GPT-J; false: (i, i + D / 2), as Llama and NeoX */
    dt_tensor offset; /* i32 [], for all samples or for each: position of the first; {0} = 0 */
} dt_rope_desc;

/* Applies rotary position embeddings: pair i at position t is rotated by t base^(-2 i / D) radians.
 * x: [..., T, D], f32, 2 to 4 dimensions; D even, at most 1024.
 * The angle is an f32 product. Its error at position t is about t * 1e-7. */
DT_API dt_tensor dt_rope(dt_tensor x, const dt_rope_desc *desc);
