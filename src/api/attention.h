/* ---- Attention ----------------------------------------------------------------------------------
 *
 * softmax(scale q k^T) v of each head, in blocks: the scores, [H, T, S], are never in memory, nor
 * are their gradients (Dao et al., "FlashAttention: Fast and memory-efficient exact attention",
 * 2022). The bits hang on shapes alone: not on threads, the batch or how it is divided. */

/* {0}: every query attends to every key. What hides a key: .causal, .window, .bool_mask, .lengths, or a
 * score of -infinity (a mask of -INFINITY). A finite mask hides no key: if a row's masks are all
 * -1e9 or -FLT_MAX, the result is the mean of the values, as in PyTorch. A query whose keys are all
 * hidden gives 0, and its gradients are 0. PyTorch gives 0 or NaN, depending on its version. */
typedef struct dt_attention_desc {
    float scale;    /* 0 = 1 / sqrt(D) */
    bool causal;    /* query i sees keys 0 .. i only */
    int64_t window; /* query i sees keys j with |i - j| < window only; 0 = all */
    bool alibi;     /* adds -slope |i - j| to the scores, with the slopes of Press et al. 2021 */
    dt_tensor mask; /* f32, broadcast to [H, T, S]: added to the scores. {0} = none */
    bool bool_mask; /* mask is not added: 0 hides a key, all else lets it be seen (as a bool mask of
                       PyTorch's scaled_dot_product_attention; nn.MultiheadAttention's is the
                       opposite). No gradient flows to it */
    dt_tensor lengths; /* i32 [] of each sample: keys from there on are padding. {0} = none; not
                          together with a mask */
    float dropout;     /* of the weights, after the softmax: as dt_dropout */
} dt_attention_desc;

/* q: [H, T, D], k: [K, S, D], v: [K, S, E], f32; H is a multiple of K, and head h takes number h /
 * (H / K) of k and v (grouped and multi-query heads). Result [H, T, E], which lies as [T, H, E].
 * PyTorch's F.scaled_dot_product_attention. desc may be NULL. Second derivatives come from the
 * scores, and take their memory; so does the gradient of a mask. Errors (nil), naming shapes: other
 * ranks, sizes that do not fit, D or E of 0 or above 256, a mask that does not broadcast, a mask
 * beside lengths, dropout outside [0, 1], a scale that is not finite, a negative window. */
DT_API dt_tensor dt_attention(dt_tensor q, dt_tensor k, dt_tensor v, const dt_attention_desc *desc);

/* Keys and values that programs with .cached keep, so that a text is written on position by
 * position and no position is computed twice. The store has them, `samples` times `positions`, from
 * the first such program on, in memory of their own (dt_program_info.cache_bytes), which is in no
 * file and lost where the store is revived. A NaN that was kept, of weights that had one, stays and
 * spoils later runs until its position is written again. */
typedef struct dt_cache_desc {
    int64_t positions;  /* the most that are kept; at least those of a run */
    int samples;        /* the largest batch of a program with .cached; 0 = 1 */
    dt_tensor position; /* i32 [], for all or of each sample: how many are kept, so the position of
                          the first of this run. No more than `positions` fit. Programs without
                          .cached take none */
} dt_cache_desc;

/* dt_attention with .causal among a run's positions, and, in programs with .cached, with those that
 * earlier runs kept: positions [at, at + T) are kept too, and the ones before them are attended
 * to. So a prompt is one run (dt_program_desc.shapes gives its length) and what is written on one
 * run a position, of two programs of one store. desc: .causal, and .window, .scale. A run takes
 * the time of attention to all `positions`. Errors (nil): as dt_attention; no .causal, .alibi, a
 * mask or lengths; queries of other positions than the keys; `at` of another type. */
DT_API dt_tensor dt_attention_cached(dt_tensor q, dt_tensor k, dt_tensor v,
                                     const dt_cache_desc *cache, const dt_attention_desc *desc);
/* Positions for other parts of a network: `at` in programs with .cached, and 0 in others; and the
 * position of each row of x: [T, ...], i32 [T]. */
DT_API dt_tensor dt_cache_position(dt_tensor at);
DT_API dt_tensor dt_cache_positions(dt_tensor x, dt_tensor at);

/* {0}: PyTorch's and Llama's usual ones. */
typedef struct dt_rope_desc {
    double base;      /* 0 = 10000; above 1 */
    bool interleaved; /* pairs (2 i, 2 i + 1), as GPT-J; else (i, i + D / 2), as Llama and NeoX */
    dt_tensor offset; /* i32 [], for all or of each sample: the position of the first; {0} = 0 */
} dt_rope_desc;

/* Rotary positions: element pairs i of position t are turned by the angle t base^(-2 i / D), in
 * radians. x: [..., T, D], f32, of up to 4 dimensions, D even and at most 1024; result like x. desc
 * may be NULL. The angle is an f32 product: at position t it is off by some t * 1e-7. */
DT_API dt_tensor dt_rope(dt_tensor x, const dt_rope_desc *desc);
