/* Trials: the launches of a kernel that show whether one way to compute it is right, run on any
 * device. Bound memory, and memory between, is NaN except for the elements that the launch may
 * read. So a kernel that reads or writes outside its operands gives other bits. With whole numbers
 * from -4 to 4 every product and sum is exact. So every correct kernel gives the same bits, in any
 * order of additions. */
typedef struct dti_trials {
    dti_base *base;
    uint32_t count;
    dti_trial *list;
    dti_launch *launches; /* of the list, with values 4 i to 4 i + 3 bound */
    dti_place *places;
    uint64_t bytes; /* of the memory that holds all operands */
} dti_trials;

typedef enum dti_trial_data { DTI_TRIAL_WHOLE, DTI_TRIAL_FLOATS, DTI_TRIAL_DATA } dti_trial_data;

/* Lists the trials of `trial`, of a kernel's row, by number; NULL: none. */
static dt_result dti_trials_make(dti_base *base, bool (*trial)(uint32_t, dti_trial *),
                                 dti_trials *out);
static void dti_trials_destroy(dti_trials *trials);
/* The memory before they run, trials->bytes of it. */
static void dti_trials_fill(const dti_trials *trials, dti_trial_data data, uint32_t *memory);
/* Runs them on a device: the memory as it is then, trials->bytes of it. */
static dt_result dti_trials_run(const dti_trials *trials, dti_device *device, dti_trial_data data,
                                uint32_t *memory);
/* Which trial a word of the memory belongs to, for a message. */
static uint32_t dti_trials_find(const dti_trials *trials, uint64_t word);
