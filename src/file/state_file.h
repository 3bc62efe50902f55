/* All state of a store that training changes, as tensors of a checkpoint. Each parameter and buffer
 * has its name; each moment "dtrain.moment1." and 2, and a fit's best value "dtrain.watch.best.".
 * The step is "dtrain.t". Then come words that the caller defines, and "dtrain.model", the lines of
 * model_text.h. The file's order of parameters may differ from the one here. */

typedef struct dti_state_extra { /* a tensor of the caller's, of one dimension */
    char name[40];
    const char *dtype; /* as a file names it */
    int64_t size;
    const void *data;
    uint64_t bytes;
} dti_state_extra;

typedef struct dti_state_file {
    dt_store *store;
    dti_base *base;
    dti_text model;                /* of this process: filled by the caller */
    uint64_t *words;               /* the caller's: to be written, or read */
    const dti_state_extra *extras; /* the caller's, to be written after all others */
    uint32_t extra_count;
    dti_safetensors_item *items;
    char **names; /* of the first `tensors` items */
    int count, tensors;
    int64_t *raw; /* by item: the size of an item of bytes */
    uint32_t *t;  /* room for counts, and for a chunk: writing into the store must not run out of
                   * memory */
    char *chunk;
    int64_t sizes[3];
    const uint32_t *counts;  /* of steps, by parameter; NULL: the store has them */
    const uint32_t *rank_of; /* [count]: in a sharded checkpoint, the rank that writes each */
    const int *own;          /* [count]: the items of this rank. NULL: rank 0 writes all */
    /* A fit's best weights are an array of tensors after the moments. They are in the arena's
     * order, or NULL: then they are pushed. */
    bool best;
    const float *best_values;
    bool copies; /* the writer warns of a NaN or infinity later */
    bool told;   /* a NaN or infinity was warned of */
} dti_state_file;

/* Lists the tensors; `moments` of them. INVALID: a parameter has a name of the format's own. */
static dt_result dti_state_open(dti_state_file *f, uint32_t moments, const char *words_name,
                                uint32_t words);
static void dti_state_close(dti_state_file *f);
static uint32_t dti_state_moments(const dt_store *s); /* that the store keeps now */
#define DTI_STATE_BEST_NAME DTI_STATE_OWN "watch.best."
/* The store's array that one of the first tensors belongs to. The best weights are values. */
static uint32_t dti_state_array(const dti_state_file *f, uint32_t item);
/* A dti_checkpoint_read_fn of a dti_state_file. */
static dt_result dti_state_read(void *user, int item, uint64_t offset, void *to, size_t bytes);
/* The same without a warning of NaN and infinities; and the number of first tensors for which there
 * is one. */
static dt_result dti_state_copy(void *user, int item, uint64_t offset, void *to, size_t bytes);
static int dti_state_warned(const dti_state_file *f);
/* Elements [at, at + n) of one of the first tensors, which is of floats, to a file. Writes over
 * `values`. */
static dt_result dti_state_push(dti_state_file *f, dti_checkpoint_file *file, int item, uint64_t at,
                                uint64_t n, float *values);
/* Whether the file has that number of words, which come to f->words. FORMAT. */
static dt_result dti_state_words_read(dti_state_file *f, const char *path, const dti_checkpoint *c,
                                      const char *name, uint32_t words);
/* Whether the text has the same parameters: INVALID. `first`: it is of version 1. Other differences
 * are a warning. */
static dt_result dti_state_contract(dti_state_file *f, const char *path, const dti_checkpoint *c,
                                    bool first);
/* Whether each tensor exists, with its shape and type: FORMAT. */
static dt_result dti_state_match(const dti_state_file *f, const char *path,
                                 const dti_checkpoint *c);
/* The number of a parameter in the file. The first tensors are the parameters, and counts are in
 * their order. */
static int dti_state_number(const dti_state_file *f, const dti_checkpoint *c, int item);
/* Counts in the order of the store. */
static dt_result dti_state_counts(const dti_state_file *f, const dti_checkpoint *c,
                                  uint32_t *counts);
/* Writes the matched tensors into the store, whose state arena has room for them. */
static dt_result dti_state_put(const dti_state_file *f, const dti_checkpoint *c);
/* A dti_checkpoint_check_fn. FORMAT: a tensor of floats, or of moments of 8 bits, has a NaN or an
 * infinity (names it). */
static dt_result dti_state_finite(const dti_checkpoint *c, const char *path, const char *desc);
