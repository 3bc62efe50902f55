/* ---- A replay buffer for reinforcement learning
 *
 * It keeps the newest `capacity` items. Items are drawn uniformly, or in proportion to
 * priority^alpha (Schaul et al., 2016), in log2(capacity) steps. Draws depend only on the seed and
 * the number of earlier draws.
 *
 * Threads: one at a time. */

typedef struct dt_replay dt_replay;

typedef struct dt_replay_desc {
    uint64_t capacity; /* items; 1 to 2^31 */
    size_t item_bytes; /* bytes per item; 1 or more */
    double alpha;      /* exponent of priorities, 0 to 4; 0 = uniform draws; 0.6 is usual */
    double epsilon;    /* added to each priority, so that every item can be drawn; 0 = 1e-6 */
    uint64_t seed;     /* of the draws */
} dt_replay_desc;

/* Creates a buffer. It needs capacity * item_bytes of memory, and with .alpha 16 to 32 bytes more
 * per item. Errors: INVALID, MEMORY. */
DT_API dt_result dt_replay_create(dt_ctx *ctx, const dt_replay_desc *desc, dt_replay **out);
/* Frees the buffer, before its context is destroyed. */
DT_API void dt_replay_destroy(dt_replay *replay);
/* Copies an item into the buffer. If the buffer is full, it replaces the oldest item. Its priority
 * is the largest so far (1 at first). */
DT_API dt_result dt_replay_add(dt_replay *replay, const void *item);
/* Returns the number of items. */
DT_API uint64_t dt_replay_count(const dt_replay *replay);
/* Draws `count` items with replacement. Allocates nothing.
 * By priority: one item is drawn from each of `count` equal ranges of the sum of priorities.
 * beta: exponent of the weights, 0 to 4.
 * items: [count], receives copies of the items. May be NULL.
 * indices: [count], receives where the items are, for dt_replay_update.
 * weights: [count], receives (number of items * probability)^-beta, divided by the largest of
 * these. Uniform draws give 1. May be NULL.
 * Errors: INVALID (also an empty buffer). */
DT_API dt_result dt_replay_sample(dt_replay *replay, int count, double beta, void *items,
                                  uint64_t *indices, float *weights);
/* Sets new priorities of items.
 * indices: [count], as dt_replay_sample gave them.
 * errors: [count], prediction errors. The priority is |error| + epsilon.
 * Errors, with nothing changed: INVALID (an index without an item, an error that is not finite,
 * uniform draws). */
DT_API dt_result dt_replay_update(dt_replay *replay, const uint64_t *indices, const float *errors,
                                  int count);

/* Write and read a file of the items, their priorities and the number of draws. With the same .seed
 * a run then continues with the same draws. The byte order is the machine's.
 * Errors: INVALID (a file of another capacity, item_bytes or alpha), IO, FORMAT (another kind of
 * file; damaged), MEMORY. The buffer is unchanged, but empty if the file's second reading fails. */
DT_API dt_result dt_replay_save(const dt_replay *replay, const char *path);
DT_API dt_result dt_replay_load(dt_replay *replay, const char *path);
