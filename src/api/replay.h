/* ---- A replay buffer for reinforcement learning -------------------------------------------------
 *
 * It keeps the newest `capacity` items. An item is `item_bytes` bytes that the application lays
 * out. Items are drawn uniformly, or in proportion to priority^alpha (prioritised experience
 * replay: Schaul et al., 2016). A draw by priority takes log2(capacity) steps. Draws depend only on
 * the seed and the number of earlier draws, so a run can be repeated.
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
 * per item.
 * Ownership: *out is yours. Destroy it before the context.
 * Errors, with *out NULL: INVALID (NULL, a member out of range), MEMORY. */
DT_API dt_result dt_replay_create(dt_ctx *ctx, const dt_replay_desc *desc, dt_replay **out);
/* Frees the buffer. NULL is allowed. */
DT_API void dt_replay_destroy(dt_replay *replay);
/* Copies an item into the buffer. If the buffer is full, it replaces the oldest item. Its priority
 * is the largest so far (1 at first), so that it is drawn soon.
 * Errors: INVALID (NULL). */
DT_API dt_result dt_replay_add(dt_replay *replay, const void *item);
/* Returns the number of items. NULL gives 0. */
DT_API uint64_t dt_replay_count(const dt_replay *replay);
/* Draws `count` items with replacement. Allocates nothing.
 * By priority: the sum of priorities is divided into `count` equal ranges, and one item is drawn
 * from each.
 * beta: exponent of the weights, 0 to 4.
 * items: [count], receives copies of the items. May be NULL.
 * indices: [count], receives where the items are, for dt_replay_update.
 * weights: [count], receives (number of items * probability)^-beta, divided by the largest of
 * these. Uniform draws give 1. May be NULL.
 * Errors: INVALID (NULL, count below 1, an empty buffer, beta outside 0 to 4). */
DT_API dt_result dt_replay_sample(dt_replay *replay, int count, double beta, void *items,
                                  uint64_t *indices, float *weights);
/* Sets new priorities of items.
 * indices: [count], as dt_replay_sample gave them.
 * errors: [count], prediction errors. The priority is |error| + epsilon.
 * Errors, with nothing changed: INVALID (NULL, count below 1, an index without an item, an error
 * that is not finite, uniform draws). */
DT_API dt_result dt_replay_update(dt_replay *replay, const uint64_t *indices, const float *errors,
                                  int count);

/* Write and read a file of the items, their priorities and the number of draws. With the same .seed
 * a run then continues with the same draws.
 * dt_replay_save: the file appears completely or not at all.
 * dt_replay_load: replaces the contents of a buffer with the same capacity, item_bytes and alpha.
 * The file is read twice, first to check its checksum. Items and numbers are in the machine's
 * layout and byte order. Another machine must have the same.
 * Errors, with the buffer unchanged: INVALID (NULL; a file of another capacity, item_bytes or
 * alpha), IO, FORMAT (another kind of file; damaged), MEMORY. If the second reading fails, the
 * buffer is empty. */
DT_API dt_result dt_replay_save(const dt_replay *replay, const char *path);
DT_API dt_result dt_replay_load(dt_replay *replay, const char *path);
