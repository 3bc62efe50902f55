/* ---- A replay buffer: what an agent has met, for reinforcement learning. The newest `capacity`
 * items are kept, each of `bytes` bytes that the application lays out; items are drawn uniformly,
 * or in proportion to priority^alpha (prioritised experience replay: Schaul et al., 2016) by a tree
 * of sums, in log2(capacity) steps. Draws are random numbers of the seed and of how many came
 * before, so a run can be made again. Threads: one at a time. */

typedef struct dt_replay dt_replay;

typedef struct dt_replay_desc {
    uint64_t capacity; /* items; 1 to 2^31 */
    size_t bytes;      /* of an item; 1 or more */
    double alpha;      /* 0 = uniform; 0.6 is usual */
    double epsilon;    /* is added to each priority, so that none is never drawn; 0 = 1e-6 */
    uint64_t seed;
} dt_replay_desc;

/* Memory: capacity * bytes, and with alpha 8 to 32 more for each item. Ownership: *out is yours;
 * destroy it before the context. Errors, with *out NULL: INVALID, MEMORY. */
DT_API dt_result dt_replay_create(dt_ctx *ctx, const dt_replay_desc *desc, dt_replay **out);
/* NULL is allowed. */
DT_API void dt_replay_destroy(dt_replay *replay);
/* Copies an item in, at the place of the oldest one where all are taken. Its priority is the
 * largest that there has been (1 at first), so that each is drawn soon. Errors: INVALID (NULL). */
DT_API dt_result dt_replay_add(dt_replay *replay, const void *item);
/* Items that are kept; 0 for NULL. */
DT_API uint64_t dt_replay_count(const dt_replay *replay);
/* Draws `count` items, with replacement; with priorities one of each of `count` equal parts of
 * their sum. items: [count] items are copied there, NULL = none. places: [count], where they lie,
 * for dt_replay_update. weights: NULL, or [count]: (items * chance)^-beta, divided by the largest
 * of these draws; 1 where draws are uniform. Errors: INVALID (NULL; count below 1; nothing was
 * added; beta below 0 or not finite). Nothing is allocated. */
DT_API dt_result dt_replay_sample(dt_replay *replay, int count, double beta, void *items,
                                  uint64_t *places, float *weights);
/* New priorities of items: errors of their prediction, whose signs do not matter. Errors, with
 * nothing changed: INVALID (NULL; count below 1; a place where nothing is; a priority that is not
 * finite; drawn uniformly). */
DT_API dt_result dt_replay_update(dt_replay *replay, const uint64_t *places, const float *errors,
                                  int count);

/* Writes a file of the items, their priorities and how many draws there were, so that a run goes on
 * with the same draws; it appears complete or not at all. dt_replay_load reads it into a buffer of
 * the same capacity, bytes and alpha, in place of what is there; items are bytes, so both machines
 * have the same layout and order of them. The file is read twice, and taken if its checksum is
 * right. Errors, with the buffer as it was: INVALID (NULL; a file of another capacity, bytes or
 * alpha), IO, FORMAT (another kind of file, damaged), MEMORY; the buffer is empty where the second
 * reading fails. */
DT_API dt_result dt_replay_save(const dt_replay *replay, const char *path);
DT_API dt_result dt_replay_load(dt_replay *replay, const char *path);
