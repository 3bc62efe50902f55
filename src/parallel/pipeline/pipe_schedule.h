/* Pipeline schedules as data: for each device the list of what it does, in its order. A model is
 * cut into chunks, chunk c on device c mod devices; a batch is cut into micro-batches. It knows no
 * device, so tests simulate all schedules. */

typedef enum dti_pipe_kind {
    DTI_PIPE_FORWARD,
    DTI_PIPE_BACKWARD, /* of a split schedule: the gradients that leave the chunk */
    DTI_PIPE_WEIGHT    /* of a split schedule only: the gradients of the chunk's parameters */
} dti_pipe_kind;

typedef struct dti_pipe_action {
    uint8_t kind;   /* dti_pipe_kind */
    uint16_t chunk; /* of all devices */
    uint32_t micro;
} dti_pipe_action;

typedef struct dti_pipe_schedule {
    uint32_t devices, chunks, micros; /* chunks: of all devices */
    bool split;                       /* backward parts are two actions */
    bool forward;                     /* no such parts */
    dti_pipe_action *actions;         /* device by device, `each` long */
    uint32_t each;
    uint32_t *micro_slots; /* by chunk: the most micro-batches that are alive in it at once */
    uint32_t alive;        /* the most of a device, over its chunks */
    double bubble;         /* idle time as a share of the time at work, by unit times */
} dti_pipe_schedule;

#define DTI_PIPE_MICROS_MAX 4096
#define DTI_PIPELINE_FORWARD ((dt_pipeline_schedule)(DT_PIPELINE_ZERO_BUBBLE + 1))

/* per_device: chunks of each device; above 1 only for INTERLEAVED. begins: by micro-batch, whether
 * a new sum of gradients begins with it; NULL: only with the first. MEMORY. */
static dt_result dti_pipe_schedule_make(dti_base *base, dt_pipeline_schedule kind, uint32_t devices,
                                        uint32_t per_device, uint32_t micros, const uint8_t *begins,
                                        dti_pipe_schedule *out);
static void dti_pipe_schedule_free(dti_base *base, dti_pipe_schedule *s);

/* A micro-batch is alive in a chunk from its forward part to its last backward part. The most that
 * are at once on a device, of those whose actions count. */
typedef bool dti_pipe_lives(const void *of, const dti_pipe_action *a);
static uint32_t dti_pipe_most_alive(const dti_pipe_schedule *s, uint32_t device,
                                    dti_pipe_lives *lives, const void *of);

static inline const dti_pipe_action *dti_pipe_list(const dti_pipe_schedule *s, uint32_t device) {
    return s->actions + (size_t)device * s->each;
}
/* An action's time in units of a forward part; a backward part takes two. */
static inline uint32_t dti_pipe_cost(const dti_pipe_schedule *s, uint32_t kind) {
    return kind == DTI_PIPE_BACKWARD && !s->split ? 2 : 1;
}
