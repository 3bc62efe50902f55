/* Where the parameters of a graph lie in the arenas of a store. A code knows nothing else of a
 * store. Their order is the reverse of their creation (gradients are complete in about that order).
 * They have equal offsets in the parameter, gradient and moment arenas, each padded to blocks of
 * 256 elements. Padding is zero and stays zero. */

typedef enum dti_arena { /* memories of a program's exec; the numbers of dti_value_kind */
                         DTI_ARENA_TRANSIENT = DTI_VALUE_TRANSIENT,
                         DTI_ARENA_PARAM = DTI_VALUE_PARAM,
                         DTI_ARENA_GRADIENT = DTI_VALUE_GRADIENT,
                         DTI_ARENA_STATE = DTI_VALUE_STATE,
                         DTI_ARENA_ROUNDING = DTI_VALUE_ROUNDING,
                         DTI_ARENA_CACHE = DTI_VALUE_CACHE,
                         DTI_ARENA_TABLE = DTI_VALUE_TABLE,
                         DTI_ARENA_IN = DTI_VALUE_IN,
                         DTI_ARENA_OUT = DTI_VALUE_OUT,
                         DTI_ARENAS = DTI_VALUE_KINDS
} dti_arena;

/* After them come the application's buffers, as dt_program_desc.external lists them. */
#define DTI_MEMORIES (DTI_ARENAS + DT_MAX_OUTPUTS)

typedef struct dti_param {
    uint32_t node;
    uint64_t offset; /* in elements, a multiple of DTI_BLOCK */
    uint64_t elements;
    uint8_t dtype;   /* of its values: BF16, or F32. Gradients are F32 */
    uint8_t average; /* 1 + the array of the state that holds its average; 0: no average */
    uint64_t rest;   /* its place in the arenas of units; DTI_NO_REST: its unit is gathered and
                     * freed */
    uint64_t state;  /* for dti_layout_state_at; modulo 2^64, as a moment's offset */
} dti_param;

#define DTI_NO_REST UINT64_MAX

typedef struct dti_layout {
    dti_param *params; /* in order of creation */
    uint32_t param_count;
    uint64_t elements; /* of an arena, padding included */
    /* Of the parameter arena: F32, or BF16. With BF16, buffers are F32 in twice the room, so places
     * are still a multiple of the element's number. */
    dt_dtype dtype;
    dt_state_dtype state; /* of moments; known with the first optimizer */
    uint64_t state_words; /* of an array of them, if they are not F32 */
    /* Whole blocks. The store has only moments and averages of elements [own_begin, own_end), and
     * an update writes only those. All of them, except with ZeRO (parallel/zero/): then
     * `parted`. */
    uint64_t own_begin, own_end;
    bool parted;
    /* With ZeRO-2 and 3 a replica's programs have arenas of their own for gradients and parameters.
     * First [own_begin, own_end), then `fixed` untrained elements, which each replica has; then
     * places of units (units.c). */
    uint8_t level;  /* dt_zero_stage */
    uint32_t parts; /* micro-batches of a trainer's step; 0: not known */
    uint64_t fixed;
    bool offload; /* only the host has the own part: a device's arenas begin after it */
} dti_layout;

/* Elements that the arenas of units have on the host, and not on the device. */
static inline uint64_t dti_layout_away(const dti_layout *l) {
    return l->offload ? l->own_end - l->own_begin : 0;
}

/* For a graph's parameters; free it by dti_free(base, layout->params). MEMORY. */
static dt_result dti_layout_make(dti_base *base, const dt_graph *graph, dt_dtype dtype,
                                 dti_layout *layout);
/* Called before there are any moments, and after the own part is known. */
static void dti_layout_set_state(dti_layout *layout, dt_state_dtype state);
/* Bytes of elements of the gradient arena, and of others that are F32. */
static inline uint64_t dti_arena_bytes(uint64_t elements) {
    return dti_bytes(DT_F32, elements);
}
/* Bytes of elements of the parameter arena. */
static inline uint64_t dti_layout_bytes(const dti_layout *l, uint64_t elements) {
    return dti_bytes(l->dtype, elements);
}
/* Whether any values have fewer bits. */
static inline bool dti_layout_is_stored(const dti_layout *l) {
    return l->dtype != DT_F32 || l->state != DT_STATE_F32;
}
static inline dt_state_dtype dti_layout_state(const dti_layout *l, const dti_param *p) {
    return l->state == DT_STATE_8BIT && p->elements < DTI_STORED_LEAST ? DT_STATE_F32 : l->state;
}
/* Where its moments begin in an array, in words. */
static inline uint64_t dti_layout_state_at(const dti_layout *l, const dti_param *p) {
    return l->state ? p->state : p->offset;
}

static bool dti_layout_averages(const dti_layout *layout); /* whether any parameter has an
                                                            * average */

static inline uint64_t dti_full_blocks(uint64_t elements) {
    return dti_ceil_div(elements, DTI_BLOCK) * DTI_BLOCK;
}

/* Word offsets in the state arena. First control. Then a share of each parameter and two sums of
 * each block, for an optimizer that reads whole parameters. Then t of each parameter, and the
 * moments. The words before t are scratch of a step, not state. Programs of other optimizers keep
 * words of rows (sparse.c) in place of those sums: they describe the gradient arena. A moment's
 * offset is that of element 0, even if the store lacks that element. It is modulo 2^64, and in
 * kernels 2^32, so offset + element is right for each element that exists. */
#define DTI_STATE_SHARES DTI_CONTROL_WORDS
static inline uint64_t dti_state_pair_offset(const dti_layout *layout) {
    return DTI_STATE_SHARES + dti_full_blocks(layout->param_count);
}
static inline uint64_t dti_state_t_offset(const dti_layout *layout) {
    return dti_state_pair_offset(layout) + dti_full_blocks(2 * layout->elements / DTI_BLOCK);
}
static inline uint64_t dti_state_array_words(const dti_layout *layout) {
    return layout->state ? layout->state_words : layout->own_end - layout->own_begin;
}
static inline uint64_t dti_state_size(const dti_layout *layout, uint32_t moments) {
    const uint64_t t = dti_full_blocks(layout->param_count);
    return dti_state_t_offset(layout) + t + moments * dti_state_array_words(layout);
}
static inline uint64_t dti_state_moment_offset(const dti_layout *layout, uint32_t moment) {
    return dti_state_size(layout, moment) - (layout->state ? 0 : layout->own_begin);
}
static inline uint64_t dti_state_bytes(const dti_layout *layout, uint32_t moments) {
    return DTI_WORD_BYTES * dti_state_size(layout, moments);
}
