/* A launch: one kernel over one index space, the only unit of work that a backend gets. Rows of the
 * op table emit launches that name values; the plan gives values their place; the CPU calls a C
 * function per launch, Vulkan records a dispatch per launch. */

#define DTI_U32 uint32_t
#define DTI_I32 int32_t
#define DTI_F32 float
#define DTI_U16S(low, high) uint16_t low, high;
#include "../../../shaders/args.h"
#include "kernel_list.h"

typedef enum dti_kernel_id {
#define DTI_X(ID) DTI_K_##ID,
    DTI_KERNEL_LIST(DTI_X)
#undef DTI_X
        DTI_K_COUNT
} dti_kernel_id;

#define DTI_X(name, fields)                                                                        \
    typedef struct dti_args_##name {                                                               \
        fields                                                                                     \
    } dti_args_##name;
DTI_ARGS_LIST(DTI_X)
#undef DTI_X

typedef union dti_args {
#define DTI_X(name, fields) dti_args_##name name;
    DTI_ARGS_LIST(DTI_X)
#undef DTI_X
} dti_args;
#define DTI_ARGS_MOST 124 /* of 128 bytes that every device takes: the last word is Vulkan's */
_Static_assert(sizeof(dti_args) <= DTI_ARGS_MOST, "push constants of the portable core");

#define DTI_BINDINGS_MAX 4
#define DTI_VARIANTS_MAX 10

typedef struct dti_launch {
    uint16_t kernel; /* dti_kernel_id */
    uint8_t args_bytes;
    uint8_t rounds;   /* by binding, a bit: its floats are rounded to bf16 as they are read
                     * (dti_value.rounded) */
    uint32_t node;    /* of the work graph: names faults and profiles */
    uint64_t items;   /* of the outer index space, unless the row has its own; 0 = nothing to do */
    uint32_t spec[4]; /* selectors */
    uint32_t value[DTI_BINDINGS_MAX]; /* the bound values; unused bindings repeat binding 0 */
    uint8_t dtype[DTI_BINDINGS_MAX];  /* of their elements; DT_F32 until the listing is complete */
    dti_args args;
} dti_launch;

/* The work of a launch on a device that runs workgroups. The steps of its busiest invocation, each
 * a pass of an inner loop, and the floating-point operations of all invocations. */
typedef struct dti_effort {
    uint64_t steps, flops;
} dti_effort;

/* An operand of a trial: `rows` of `cols` elements, `pitch` apart, with `front` other elements
 * before and after. No rows: it is not used. */
typedef struct dti_trial_operand {
    uint32_t front, rows, cols, pitch;
} dti_trial_operand;

/* A launch that shows whether a kernel is right; its values are the runner's to fill in. */
typedef struct dti_trial {
    dti_launch launch;
    dti_trial_operand operand[DTI_BINDINGS_MAX];
} dti_trial;

/* Elements of a value: of each period those in [from, to). Period 0: any. */
typedef struct dti_stripe {
    uint64_t period, from, to;
} dti_stripe;

/* ITEM: one invocation for each item of a launch; GROUP: one workgroup for each. */
typedef enum dti_span { DTI_SPAN_ITEM, DTI_SPAN_GROUP } dti_span;

/* Item i of a launch has elements [first + i * each, first + (i + 1) * each) of a binding. */
typedef struct dti_stage {
    int64_t each;
    uint32_t first;
} dti_stage;
#define DTI_STAGE_OWN 0              /* of `each`: the kernel itself takes 16 bits there */
#define DTI_STAGE_NONE ((int64_t)-1) /* the binding is f32 */

typedef struct dti_cpu_task dti_cpu_task;
typedef struct dti_view dti_view;
typedef struct dti_emit dti_emit;

/* Properties of a device with workgroups on which a kernel's variant depends. */
typedef struct dti_grid_device {
    uint32_t invocations_max; /* of a workgroup */
    uint32_t shared_bytes;    /* likewise */
    uint32_t subgroup;        /* invocations that run as one; 0: not known */
    uint32_t sums; /* floats that an invocation adds up in registers; 0: all that are asked for */
    bool portable; /* only variant 0 */
    bool software; /* a processor: invocations are elements of vectors, and shared memory is
                    * ordinary memory, so tiles only add copies */
} dti_grid_device;

static inline bool dti_grid_has_sums(const dti_grid_device *device, uint32_t sums) {
    return !device->sums || sums <= device->sums;
}

#define DTI_DIVISORS_MAX 6
/* The number of a word in a kernel's arguments. */
#define DTI_WORD(args, field) (offsetof(dti_args_##args, field) / 4)

/* All that the layers above know of a kernel. Its row is a DTI_KERNEL next to the op that emits it;
 * ./build.sh header finds the rows and lists them. Bindings are storage buffers; the step block is
 * one more, the uniform buffer number 4. Selector words spec[0..3] are specialisation constants 1
 * to 4 (0 is the workgroup size). In the maps and COPY spec3 is the number of axes. */
typedef struct dti_kernel_info {
    const char *name;   /* of the shader: its file, or a side of one (SIDES in generate/shaders) */
    const char *access; /* of each binding: 'r', 'w' or 'u' (read and written) */
    uint8_t bindings;
    uint8_t span; /* dti_span */
    bool walks;   /* arguments begin with n and dim[6]; spec3: how many axes are used */
    bool far;     /* it walks; its arguments are MAP1's, with room for more axes */
    /* On Vulkan: `count` words of the arguments, from word `at` on, get the factors of the kernel's
     * other divisors. */
    struct {
        uint8_t count, at, word[DTI_DIVISORS_MAX];
    } divides;
    /* Whether a binding is walked exactly like the output, so that it may share its memory. For
     * kernels whose output is the last binding, and that read element i only to write element i.
     * NULL: other kernels. */
    bool (*in_step)(const dti_launch *launch, int binding);
    /* The elements of its last binding that it may write. NULL: all. */
    dti_stripe (*stripe)(const dti_launch *launch);
    /* True if the kernel only moves words and computes no floats. NULL: it computes. */
    bool (*moves)(const dti_launch *launch);
    /* Whether an epilogue (DTI_EPILOGUE_*) can change the launch's result before it is written;
     * operand: NULL for RELU. NULL: it cannot. */
    bool (*takes)(const dti_launch *launch, uint32_t epilogue, const dti_view *operand);
    /* The start of the epilogue's operand, binding 3: `shift` elements after the result's start.
     * NULL: the launch reads it already. */
    void (*put_operand)(dti_launch *launch, uint32_t shift);
    /* Binds launch number `launch`'s bias elsewhere, so that binding 3 is free; the same bits.
     * False: not possible. NULL: no other place. */
    bool (*free_bias)(dti_emit *e, uint32_t launch);
    /* For devices with workgroups. local: invocations of one, by variant; 0 = the device's choice,
     * at most `lanes` (0: no limit). variant: the shader; NULL = 0, the portable one. tile:
     * selectors that the device chooses. invocations: how many work; NULL = by the span. */
    uint16_t local[DTI_VARIANTS_MAX], lanes;
    /* By variant: other variants that may make its launches, as bits; the portable one always may.
     * The fastest is measured on the device. */
    uint16_t rivals[DTI_VARIANTS_MAX];
    uint32_t (*variant)(const dti_launch *launch, const dti_grid_device *device);
    void (*tile)(const dti_launch *launch, uint32_t variant, uint32_t spec[4]);
    /* The selector, 2 or 3, with the rows of 8 sums that an invocation of the portable variant
     * makes. The device's registers limit it. 0: no such selector. */
    uint8_t sums_by;
    uint64_t (*invocations)(const dti_launch *launch, uint32_t variant, const uint32_t spec[4]);
    /* The number of a workgroup's invocations that have a share of a row or block. Short rows have
     * small workgroups; if `local` is given too, it is the least. NULL: many. */
    uint64_t (*width)(const dti_launch *launch);
    /* local: invocations of a workgroup. NULL: a step and an operation for each item. */
    dti_effort (*effort)(const dti_launch *launch, uint32_t variant, uint32_t local);
    /* The most rounds of all loops of an invocation, by shapes: a driver may end them
     * (vulkan/run/work.c). ./build.sh shaders rejects a kernel with loops that does not declare
     * them. NULL: no loops. */
    uint64_t (*rounds)(const dti_launch *launch, uint32_t local);
    /* Whether a device has the invocations, registers and shared memory of a variant. NULL:
     * always. */
    bool (*fits)(uint32_t variant, const dti_grid_device *device);
    /* Launches that compare its variants with the portable one (trial.h), by number: small, ragged,
     * every layout; false: no more. Without trials a variant is not used. */
    bool (*trial)(uint32_t number, dti_trial *trial);
    /* A launch of sample->launch.kernel that takes the variant, large enough to time it on a full
     * device; false: no launch takes it. */
    bool (*sample)(uint32_t variant, dti_trial *sample);
    /* On the CPU: computes items [begin, end) of the outer index space. scratch: of this worker,
     * 64-byte aligned, scratch_bytes() long. */
    void (*run)(const dti_cpu_task *task, int64_t begin, int64_t end, void *scratch);
    /* Operands that may be 16-bit floats: on the CPU; on a device that runs workgroups
     * (dti_launch_takes_half), where NULL is not allowed. hard: those for which a device's compiler
     * may fail (dti_limits.no_hard_halves). */
    bool halves, hard_halves;
    bool (*grid_halves)(const dti_launch *launch, int binding);
    /* The elements of binding b for each item. For a kernel that gets floats in place of 16 bits
     * (stage.c). NULL: it takes 16 bits itself, in every binding. */
    dti_stage (*stage)(const dti_launch *launch, int b);
    /* Least items that are worth a thread, about 16k flops; 0: one. each: the argument word with an
     * item's length, which divides the grain; 0: all items are alike. grain_of: replaces both. */
    uint8_t each, passes; /* passes: over an item, for dti_row_effort and dti_row_rounds */
    uint32_t grain;
    int64_t (*grain_of)(const dti_cpu_task *task);
    int64_t (*outer)(const dti_cpu_task *task);                     /* NULL: launch->items */
    size_t (*scratch_bytes)(const dti_launch *launch, int threads); /* NULL: none */
} dti_kernel_info;

/* how: the access; over: ITEM or GROUP; then .run and other members. */
#define DTI_KERNEL(ID, file, how, over, ...)                                                       \
    _Static_assert(sizeof how - 1 <= DTI_BINDINGS_MAX, "more than every device can bind");         \
    static const dti_kernel_info dti_kernel_##ID = {                                               \
        .name = #file,                                                                             \
        .access = how,                                                                             \
        .bindings = sizeof how - 1,                                                                \
        .span = DTI_SPAN_##over,                                                                   \
        DTI_CAT(DTI_KERNEL_ROW_, DTI_HERE)(__VA_ARGS__)}
#define DTI_KERNEL_ROW_1(...) __VA_ARGS__
#define DTI_KERNEL_ROW_0(...)
#define DTI_X(ID) static const dti_kernel_info dti_kernel_##ID;
DTI_KERNEL_LIST(DTI_X)
#undef DTI_X

/* Of maps and copies: FUNCTION is exp, tanh, erf; COPY has memory's speed: 256 KiB a thread. */
#define DTI_GRAIN_FLAT 16384
#define DTI_GRAIN_FUNCTION 4096
#define DTI_GRAIN_COPY 65536

static const dti_kernel_info *dti_kernel_info_of(uint32_t kernel);
static dti_effort dti_launch_effort(const dti_launch *launch, uint32_t variant, uint32_t local);
/* For workgroups that go over one row each, `passes` times; invocations share its elements. */
static inline dti_effort dti_effort_rows(uint64_t rows, uint64_t cols, uint32_t passes,
                                         uint32_t local) {
    return (dti_effort){passes * ((cols + local - 1) / local), passes * rows * cols};
}
/* .effort and .rounds of kernels whose items are rows; `each` is the word with a row's length. And
 * .width, in fours if a launch's rows lie so (DTI_ROW_FOURS). */
static dti_effort dti_row_effort(const dti_launch *launch, uint32_t variant, uint32_t local);
static uint64_t dti_row_rounds(const dti_launch *launch, uint32_t local);
static uint64_t dti_row_length(const dti_launch *launch);
static uint64_t dti_row_width(const dti_launch *launch);
/* Rounds of loops that constants bound, and of a workgroup's trees. */
#define DTI_ROUNDS_FEW 64
static inline uint64_t dti_rounds_few(const dti_launch *launch, uint32_t local) {
    return DTI_ROUNDS_FEW;
}
/* Rounds of a workgroup that goes over `cols` elements `passes` times, shared by its invocations.
 * */
static inline uint64_t dti_rounds_of(uint64_t cols, uint32_t passes, uint32_t local) {
    return passes * ((cols + local - 1) / local + 1) + DTI_ROUNDS_FEW;
}
/* Whether an operand is a 16-bit float. */
static inline bool dti_launch_is_half(const dti_launch *launch) {
    bool half = false;
    for (int b = 0; b < DTI_BINDINGS_MAX; b++)
        half = half || dti_is_half(launch->dtype[b]);
    return half;
}
/* .grid_halves of kernels that take them everywhere. */
static inline bool dti_launch_any_half(const dti_launch *launch, int binding) {
    return true;
}
/* Whether a launch can have 16-bit floats in a binding, on a device that runs workgroups or not. It
 * computes on f32 and rounds once. */
static inline bool dti_launch_takes_half(const dti_launch *launch, int binding, bool workgroups) {
    const dti_kernel_info *kernel = dti_kernel_info_of(launch->kernel);
    if (!workgroups)
        return kernel->halves && (!kernel->stage || kernel->stage(launch, binding).each >= 0);
    return kernel->grid_halves && kernel->grid_halves(launch, binding);
}
/* .grid_halves of kernels that take them where the CPU's do. */
static inline bool dti_launch_halves_as_cpu(const dti_launch *launch, int binding) {
    return dti_launch_takes_half(launch, binding, false);
}
/* .moves of kernels that only move words. */
static inline bool dti_launch_only_moves(const dti_launch *launch) {
    return true;
}
/* Whether a launch writes floats that it computes. A scan for NaN must skip whole numbers, which
 * look like NaN, and a plain copy makes no new value. */
static bool dti_launch_makes_floats(const dti_launch *launch);
