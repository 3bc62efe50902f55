/* Floats of 16 bits on Vulkan, two in a word, on every device against the CPU. Included by
 * main.c. */
#ifndef DT_NO_VULKAN

enum { HALVES_WORDS = 700 };

/* Bits of floats of every kind, by turns. They are of any exponent, near numbers that 16 bits
 * distinguish, denormals of each type, infinities, NaN. `type` says how they are stored. */
static uint32_t halves_word(uint32_t i, dt_dtype type, uint32_t seed) {
    static const uint32_t odd[] = {0,          0x80000000, 0x7f800000, 0xff800000, 0x7fc00000,
                                   0xffc12345, 0x7f800001, 0x7f7fffff, 0x477fefff, 0x477ff000,
                                   0x38800000, 0x387fffff, 0x33000000, 0x33000001, 0x00000001,
                                   0x807fffff, 0x3f808000, 0x3f818000};
    const uint32_t random = (i + seed) * 2654435761u ^ (i + seed) << 7;
    if (type != DT_F32)
        return random; /* two of them */
    if (i % 3 == 0)
        return odd[i / 3 % DTI_COUNT(odd)];
    return i % 3 == 1 ? random : (random & 0x87ffffffu) | 0x30000000u;
}

/* Words of a binding, for a launch on both: alike to begin with. */
static void halves_fill(vulkan_call calls[2], const dti_launch *l, int bindings) {
    for (int k = 0; k < 2; k++)
        for (int b = 0; b < bindings; b++) {
            calls[k].launch = *l;
            calls[k].count[b] = HALVES_WORDS;
            calls[k].data[b] = malloc(4 * HALVES_WORDS);
            uint32_t *words = (uint32_t *)(void *)calls[k].data[b];
            for (uint32_t i = 0; i < HALVES_WORDS; i++)
                words[i] = halves_word(i, (dt_dtype)l->dtype[b], 977u * (uint32_t)b);
        }
}

static double halves_value(const float *data, uint32_t i, dt_dtype type) {
    uint16_t half;
    memcpy(&half, (const char *)data + 2 * (size_t)i, sizeof half);
    return type == DT_BF16  ? (double)dti_f32_from_bf16(half)
           : type == DT_F16 ? (double)dti_f32_from_f16(half)
                            : (double)data[i];
}

/* How many elements differ: in a bit, or by more than `ulps` roundings of their type. */
static int halves_differ(const vulkan_call calls[2], int b, double ulps) {
    const dt_dtype type = (dt_dtype)calls[0].launch.dtype[b];
    const double step = type == DT_BF16 ? 0x1p-7 : type == DT_F16 ? 0x1p-10 : 0x1p-22;
    const uint32_t n = (uint32_t)(4 * HALVES_WORDS / dti_dtype_bytes(type));
    if (ulps == 0)
        return memcmp(calls[0].data[b], calls[1].data[b], 4 * HALVES_WORDS) != 0;
    int bad = 0;
    for (uint32_t i = 0; i < n; i++) {
        const double x = halves_value(calls[0].data[b], i, type);
        const double y = halves_value(calls[1].data[b], i, type);
        const bool same = x == y || (isnan(x) && isnan(y));
        bad += !same && !(fabs(x - y) <= ulps * (step * fabs(x) + 0x1p-24));
    }
    return bad;
}

/* The launch on the CPU and on the device: what it writes, and all beside it, is the same. */
static void halves_job_compare(vulkan_rig *rig, const dti_launch *l, double ulps) {
    const dti_kernel_info *info = dti_kernel_info_of(l->kernel);
    vulkan_rig cpu = {.in = rig->in};
    vulkan_call calls[2] = {{.exec = NULL}};
    REQUIRE(!dti_cpu_open(&rig->base, 99, &cpu.device));
    halves_fill(calls, l, info->bindings);
    const bool good = vulkan_call_run(&cpu, &calls[0]) && vulkan_call_run(rig, &calls[1]);
    for (int b = 0; b < info->bindings && good; b++) {
        const int bad = halves_differ(calls, b, info->access[b] == 'r' ? 0 : ulps);
        test_check(!bad, __FILE__, __LINE__,
                   "%s {%u %u} of %s, %s, %s: binding %d has %d others than the CPU's", info->name,
                   l->spec[0], l->spec[1], dti_dtype_name((dt_dtype)l->dtype[0]),
                   dti_dtype_name((dt_dtype)l->dtype[1]), dti_dtype_name((dt_dtype)l->dtype[2]), b,
                   bad);
    }
    for (int i = 0; i < 2 * VULKAN_CALL_MAX; i++)
        free(calls[i / VULKAN_CALL_MAX].data[i % VULKAN_CALL_MAX]);
    cpu.device->backend->close(cpu.device);
}

static const dt_dtype halves_types[3] = {DT_F32, DT_BF16, DT_F16};

/* Shape, strides and offsets of a walk: flat ones, whole fours or not, from odd places; columns of
 * a matrix; a matrix turned round; one element repeated. */
static const dti_args_map1 halves_walks[] = {
    {64, {1, 1, 1, 1, 1, 64}, {0, 0, 0, 0, 0, 1}, {0, 0, 0, 0, 0, 1}, 0, 0, 3.14159f, 0, {0}},
    {61, {1, 1, 1, 1, 1, 61}, {0, 0, 0, 0, 0, 1}, {0, 0, 0, 0, 0, 1}, 4, 8, -0.1f, 0, {0}},
    {61, {1, 1, 1, 1, 1, 61}, {0, 0, 0, 0, 0, 1}, {0, 0, 0, 0, 0, 1}, 3, 5, 1e30f, 0, {0}},
    {60, {1, 1, 1, 1, 12, 5}, {0, 0, 0, 0, 7, 1}, {0, 0, 0, 0, 9, 1}, 1, 2, 1e-41f, 0, {0}},
    {60, {1, 1, 1, 1, 12, 5}, {0, 0, 0, 0, 1, 12}, {0, 0, 0, 0, 5, 1}, 0, 1, 2.0f, 0, {0}},
    {60, {1, 1, 1, 1, 12, 5}, {0, 0, 0, 0, 1, 12}, {0, 0, 0, 0, 1, 12}, 5, 3, 2.0f, 0, {0}},
    {48, {1, 1, 1, 1, 6, 8}, {0, 0, 0, 0, 4, 0}, {0, 0, 0, 0, 8, 1}, 4, 4, 7.0f, 0, {0}},
};

static dti_launch halves_walk(size_t i, uint32_t kernel, uint32_t selector) {
    dti_launch l = {.kernel = (uint16_t)kernel, .args_bytes = sizeof halves_walks[i]};
    l.args.map1 = halves_walks[i];
    l.items = halves_walks[i].n;
    l.spec[0] = selector;
    l.spec[3] = halves_walks[i].dim[4] > 1 ? 2 : 1;
    return l;
}

/* Bit for bit, denormals too: no shader makes floats of them. */
static void halves_try_copies(vulkan_rig *rig) {
    static const uint32_t modes[] = {DTI_COPY_WORD, DTI_COPY_FILL_F32, DTI_COPY_IOTA_F32};
    for (size_t i = 0; i < DTI_COUNT(halves_walks) && !rig->in->options.no_unified; i++)
        for (uint32_t t = 1; t < 9; t++)
            for (size_t m = 0; m < DTI_COUNT(modes); m++) {
                dti_launch l = halves_walk(i, DTI_K_COPY, modes[m]);
                l.dtype[0] = (uint8_t)halves_types[t % 3];
                l.dtype[1] = (uint8_t)halves_types[t / 3];
                if (l.spec[0] == DTI_COPY_WORD || (i + t + m) % 4 == 0)
                    halves_job_compare(rig, &l, 0);
            }
}

TEST(vulkan_copies_round_to_16_bits_and_back_as_the_cpu_does_bit_for_bit) {
    ON_EACH(halves_try_copies);
}

/* Of walks with two operands the second lies as the first does, two elements on. */
static dti_launch halves_walk2(size_t i, uint32_t kernel, uint32_t selector) {
    const dti_args_map1 *x = &halves_walks[i];
    dti_launch l = halves_walk(i, kernel, selector);
    dti_args_map2 a = {
        .n = x->n, .a_offset = x->x_offset, .b_offset = x->x_offset + 2, .y_offset = x->y_offset};
    memcpy(a.dim, x->dim, sizeof a.dim);
    memcpy(a.a_stride, x->x_stride, sizeof a.a_stride);
    memcpy(a.b_stride, x->x_stride, sizeof a.b_stride);
    memcpy(a.y_stride, x->y_stride, sizeof a.y_stride);
    l.args_bytes = sizeof a;
    l.args.map2 = a;
    return l;
}

static void halves_try_maps(vulkan_rig *rig) {
    for (size_t i = 0; i < DTI_COUNT(halves_walks) && !rig->in->options.no_unified; i++)
        for (uint32_t t = 1; t < 27; t += 1 + (uint32_t)i % 3) {
            dti_launch all[3] = {halves_walk(i, DTI_K_MAP1, t % 2 ? DTI_U_TANH : DTI_U_RELU),
                                 halves_walk2(i, DTI_K_MAP2, t % 2 ? DTI_B_ADD : DTI_B_MAXIMUM),
                                 halves_walk2(i, DTI_K_MAP1_GRAD, DTI_U_SQUARE)};
            for (uint32_t k = t % 4 ? t % 3 : 0; k < (t % 4 ? t % 3 + 1 : 3); k++) {
                all[k].dtype[0] = (uint8_t)halves_types[t % 3];
                all[k].dtype[1] = (uint8_t)halves_types[t / 3 % 3];
                all[k].dtype[2] = (uint8_t)halves_types[t / 9];
                halves_job_compare(rig, &all[k], 1);
            }
        }
}

TEST(vulkan_elementwise_ops_of_16_bits_equal_the_cpus_within_a_rounding) {
    ON_EACH(halves_try_maps);
}

/* ---- kernels that the CPU has only in f32: by f32 of the same numbers, rounded then */

enum { HALVES_ROW_FLOATS = 2048 };

/* Numbers that bf16 and f16 have. */
static float halves_number(uint32_t i) {
    return (float)((int)(i * 2654435761u >> 9) % 129 - 64) / 16.0f;
}

/* Of binding b n floats, or the same in its type, with 0 after them. */
static float *halves_data(const dti_launch *l, int b, const float *from, uint32_t n) {
    const dt_dtype type = (dt_dtype)l->dtype[b];
    float *data = vulkan_zeros(n);
    for (uint32_t i = 0; i < n; i++) {
        const uint16_t half = type == DT_BF16 ? dti_bf16_from_f32(from[i]) : f16_from_f32(from[i]);
        if (dti_is_half(type))
            memcpy((char *)data + 2 * (size_t)i, &half, sizeof half);
        else
            data[i] = from[i];
    }
    return data;
}

/* What the call wrote is `f32` in its types, and it wrote nothing else. */
static void halves_check(const vulkan_call *call, float *const f32[]) {
    const dti_launch *l = &call->launch;
    const dti_kernel_info *info = dti_kernel_info_of(l->kernel);
    for (int b = 0; b < info->bindings && call->count[b]; b++) {
        float *rounded = halves_data(l, b, f32[b], call->count[b]);
        const dt_dtype type = (dt_dtype)l->dtype[b];
        const uint32_t n = (uint32_t)(4ull * call->count[b] / dti_dtype_bytes(type));
        int bad = 0;
        for (uint32_t i = 0; i < n; i++) {
            const double x = halves_value(rounded, i, type),
                         y = halves_value(call->data[b], i, type);
            bad += memcmp(&x, &y, sizeof x) && !(isnan(x) && isnan(y));
        }
        test_check(!bad, __FILE__, __LINE__,
                   "%s {%u %u}, %llu items: %d of binding %d, %s, are not f32's rounded",
                   info->name, l->spec[0], l->spec[1], (unsigned long long)l->items, bad, b,
                   dti_dtype_name(type));
        free(rounded);
    }
}

/* Not what programs do not ask for there. */
static bool halves_compares(const vulkan_rig *rig, const dti_launch *l) {
    const dti_kernel_info *info = dti_kernel_info_of(l->kernel);
    return info->grid_halves && !(info->hard_halves && rig->device->no_hard_halves) &&
           (vulkan_is_quick(rig) || test_takes((long)l->items, 16, 16));
}

static void vulkan_compare_halves(vulkan_rig *rig, const dti_launch *l, const uint32_t *count,
                                  float *const before[], float *const after[]) {
    const dti_kernel_info *info = dti_kernel_info_of(l->kernel);
    vulkan_call call = {.launch = *l};
    if (!halves_compares(rig, l))
        return;
    for (int b = 0; b < info->bindings; b++) {
        if (dti_launch_takes_half(l, b, true))
            call.launch.dtype[b] = l->items % 2 ? DT_BF16 : DT_F16;
        call.count[b] = count[b];
        call.data[b] = count[b] ? halves_data(&call.launch, b, before[b], count[b]) : NULL;
    }
    if (vulkan_call_run(rig, &call))
        halves_check(&call, after);
    for (int b = 0; b < VULKAN_CALL_MAX; b++)
        free(call.data[b]);
}

/* The launch with all of 32 bits, and as it is. */
static void halves_compare_f32(vulkan_rig *rig, const dti_launch *l, const float *const own[4]) {
    const dti_kernel_info *info = dti_kernel_info_of(l->kernel);
    vulkan_call calls[2] = {{.launch = *l}, {.launch = *l}};
    float numbers[HALVES_ROW_FLOATS];
    memset(calls[0].launch.dtype, DT_F32, sizeof calls[0].launch.dtype);
    for (uint32_t i = 0; i < HALVES_ROW_FLOATS; i++)
        numbers[i] = halves_number(i);
    for (int k = 0; k < 2; k++)
        for (int b = 0; b < info->bindings; b++) {
            calls[k].count[b] = HALVES_ROW_FLOATS;
            calls[k].data[b] =
                halves_data(&calls[k].launch, b, own[b] ? own[b] : numbers, HALVES_ROW_FLOATS);
        }
    if (vulkan_call_run(rig, &calls[0]) && vulkan_call_run(rig, &calls[1]))
        halves_check(&calls[1], calls[0].data);
    for (int i = 0; i < 2 * VULKAN_CALL_MAX; i++)
        free(calls[i / VULKAN_CALL_MAX].data[i % VULKAN_CALL_MAX]);
}

/* Rows in fours, ragged ones, and ones from odd places. */
static void halves_try_rows(vulkan_rig *rig, uint32_t kernel, dt_dtype in, dt_dtype out) {
    static const uint32_t shapes[][3] = {{5, 32, 0}, {7, 37, 0}, {3, 12, 3}, {2, 600, 4}};
    for (size_t i = 0; i < DTI_COUNT(shapes); i++) {
        dti_launch l = {
            .kernel = (uint16_t)kernel, .items = shapes[i][0], .spec = {(uint32_t)i % 2}};
        l.args_bytes = sizeof l.args.rows;
        l.args.rows =
            (dti_args_rows){shapes[i][0], shapes[i][1], shapes[i][2], shapes[i][2], shapes[i][2]};
        l.dtype[0] = (uint8_t)in;
        l.dtype[1] = (uint8_t)(kernel == DTI_K_SOFTMAX ? out : in);
        l.dtype[2] = (uint8_t)out;
        halves_compare_f32(rig, &l, (const float *const[4]){NULL});
    }
}

/* Targets, one of them ignored; what the loss kept of a row is its maximum, a sum, the target. */
static void halves_try_xent(vulkan_rig *rig, uint32_t kernel, dt_dtype in, dt_dtype out) {
    static const uint32_t shapes[][3] = {{5, 32, 0}, {7, 37, 0}, {3, 12, 3}};
    for (size_t i = 0; i < DTI_COUNT(shapes); i++) {
        const uint32_t rows = shapes[i][0], classes = shapes[i][1];
        float targets[HALVES_ROW_FLOATS] = {0};
        for (uint32_t row = 0; row < rows; row++) {
            const int32_t target = row == 1 ? -1 : (int32_t)(row * 5 % classes);
            float *at = kernel == DTI_K_XENT_DX ? &targets[DTI_XENT_KEPT * row] : &targets[row];
            if (kernel == DTI_K_XENT_DX) {
                *at++ = 4.0f;
                *at++ = 20.0f;
            }
            memcpy(at, &target, sizeof target);
        }
        dti_launch l = {.kernel = (uint16_t)kernel, .items = rows};
        if (kernel == DTI_K_XENT_DX)
            l.items *= classes;
        l.args_bytes = sizeof l.args.xent;
        l.args.xent = (dti_args_xent){.rows = rows,
                                      .classes = classes,
                                      .ignore_index = -1,
                                      .smoothing = i % 2 ? 0.1f : 0.0f,
                                      .x_offset = shapes[i][2],
                                      .y_offset = shapes[i][2]};
        l.dtype[0] = (uint8_t)in;
        l.dtype[3] = (uint8_t)(kernel == DTI_K_XENT ? DT_F32 : out);
        halves_compare_f32(rig, &l, (const float *const[4]){NULL, targets});
    }
}

/* Rows of fours, and ragged ones; one index lies outside. */
static void halves_try_gather(vulkan_rig *rig, dt_dtype out) {
    static const int32_t index[6] = {3, 0, 9, -1, 4, 4};
    float indices[HALVES_ROW_FLOATS] = {0};
    memcpy(indices, index, sizeof index);
    for (uint32_t cols = 12; cols < 14; cols++) {
        dti_launch l = {.kernel = DTI_K_GATHER, .items = 6 * cols, .dtype = {0, 0, (uint8_t)out}};
        l.args_bytes = sizeof l.args.gather;
        l.args.gather = (dti_args_gather){6, 5, cols, 4, 0, 8, 0};
        halves_compare_f32(rig, &l, (const float *const[4]){NULL, indices});
    }
}

/* Two heads of queries and one of keys, by fours or not, causal; results, and gradients. */
static void halves_try_attention(vulkan_rig *rig, uint32_t kernel, uint32_t mode, dt_dtype type) {
    for (uint32_t d = 7; d < 9; d++) {
        const uint32_t t = 37, kv = kernel == DTI_K_ATTENTION ? 0 : 2 * t * d;
        dti_launch l = {.kernel = (uint16_t)kernel, .args_bytes = sizeof l.args.attention};
        dti_args_attention *a = &l.args.attention;
        *a = (dti_args_attention){.samples = 1, .heads = 2, .kv_heads = 1, .tq = t, .tk = t};
        a->d = a->dv = a->q_row = a->k_row = a->v_row = d;
        a->q_head = a->k_head = a->v_head = t * d;
        a->scale = 0.125f;
        a->k_offset = kv;
        a->v_offset = kv + t * d;
        l.items = (mode & (DTI_ATTENTION_DK | DTI_ATTENTION_DV) ? 1 : 2) * 2;
        l.spec[0] = DTI_ATTENTION_CAUSAL;
        l.spec[1] = l.spec[2] = 1;
        l.spec[3] = mode;
        l.dtype[0] = l.dtype[1] = (uint8_t)type;
        l.dtype[3] = (uint8_t)(mode ? type : DT_F32);
        halves_compare_f32(rig, &l, (const float *const[4]){NULL});
    }
}

static void halves_try_reduce(vulkan_rig *rig, uint32_t kernel, dt_dtype in, dt_dtype out) {
    const bool column = kernel == DTI_K_REDUCE_COLUMN;
    for (uint32_t n = 16; n < 18; n++) {
        dti_launch l = {.kernel = (uint16_t)kernel, .items = n};
        l.args_bytes = sizeof l.args.reduce;
        l.args.reduce = (dti_args_reduce){.n = n,
                                          .r = 43,
                                          .kept = 5,
                                          .dim = {1, 1, 1, 1, n, 43},
                                          .x_stride = {0, 0, 0, 0, column ? 1 : 43, column ? n : 1},
                                          .x_offset = 3,
                                          .y_offset = 5,
                                          .scale = 0.3f};
        l.dtype[0] = (uint8_t)in;
        l.dtype[1] = (uint8_t)out;
        halves_compare_f32(rig, &l, (const float *const[4]){NULL});
    }
}

static void halves_try_all_rows(vulkan_rig *rig) {
    if (rig->in->options.no_unified || !vulkan_is_quick(rig))
        return;
    halves_try_rows(rig, DTI_K_SOFTMAX, DT_BF16, DT_BF16);
    halves_try_rows(rig, DTI_K_SOFTMAX, DT_F32, DT_F16);
    halves_try_rows(rig, DTI_K_SOFTMAX_GRAD, DT_F16, DT_F16);
    halves_try_rows(rig, DTI_K_SOFTMAX_GRAD, DT_BF16, DT_F32);
    halves_try_xent(rig, DTI_K_XENT, DT_BF16, DT_F32);
    halves_try_xent(rig, DTI_K_XENT_GRAD, DT_F16, DT_BF16);
    halves_try_xent(rig, DTI_K_XENT_DX, DT_BF16, DT_BF16);
    halves_try_gather(rig, DT_BF16);
    halves_try_attention(rig, DTI_K_ATTENTION, 0, DT_BF16);
    halves_try_attention(rig, DTI_K_ATTENTION_GRAD, DTI_ATTENTION_DQ, DT_BF16);
    halves_try_attention(rig, DTI_K_ATTENTION_GRAD, DTI_ATTENTION_DK | DTI_ATTENTION_DV, DT_F16);
    halves_try_reduce(rig, DTI_K_REDUCE, DT_BF16, DT_F16);
    halves_try_reduce(rig, DTI_K_REDUCE_ROW, DT_F16, DT_F32);
    halves_try_reduce(rig, DTI_K_REDUCE_COLUMN, DT_BF16, DT_BF16);
}

TEST(vulkan_rows_of_16_bits_have_the_bits_of_f32_rounded_once) {
    ON_EACH(halves_try_all_rows);
}

/* ---- programs */

enum { HALVES_ROWS = 3, HALVES_COLS = 7, HALVES_SIZE = HALVES_ROWS * HALVES_COLS, HALVES_OUT = 6 };

typedef struct halves_job {
    dt_graph *graph;
    dt_store *store;
    dt_program *program;
    dt_tensor x, y, outputs[HALVES_OUT];
} halves_job;

/* Odd sizes and odd places: what a program reads is cast, sliced, joined and padded. */
static bool halves_open(dt_ctx *ctx, const char *device, dt_dtype type, halves_job *j) {
    *j = (halves_job){0};
    if (dt_graph_create(ctx, &j->graph))
        return false;
    j->x = dt_input(j->graph, "x", type, dt_dims(HALVES_COLS));
    j->y = dt_input(j->graph, "y", DT_F32, dt_dims(HALVES_COLS));
    const dt_tensor low = dt_cast(j->y, type), part = dt_slice(j->x, 0, 3, 3);
    const dt_tensor both[2] = {part, dt_slice(low, 0, 1, 4)};
    const dt_tensor outputs[HALVES_OUT] = {dt_cast(j->x, DT_F32), low,
                                           dt_cast(low, DT_F32),  dt_concat(both, 2, 0),
                                           dt_pad(part, 0, 1, 2), dt_cast(part, DT_F32)};
    dt_program_desc desc = {.batch = HALVES_ROWS};
    for (int i = 0; i < HALVES_OUT; i++)
        j->outputs[i] = desc.outputs[i] = outputs[i];
    return !dt_store_create(j->graph, &(dt_store_desc){.device = device}, &j->store) &&
           !dt_program_create(j->store, &desc, &j->program);
}

/* out: the bytes of its outputs. */
static bool halves_job_run(halves_job *j, unsigned char out[HALVES_OUT][4 * 64]) {
    uint16_t x[HALVES_SIZE];
    uint32_t y[HALVES_SIZE];
    for (uint32_t i = 0; i < HALVES_SIZE; i++) {
        x[i] = (uint16_t)(halves_word(i, DT_BF16, 5) >> 8 & 0xbbff); /* finite in both types */
        y[i] = halves_word(3 * i + 2, DT_F32, 9);
    }
    bool good = !dt_program_write(j->program, j->x, x, sizeof x) &&
                !dt_program_write(j->program, j->y, y, sizeof y) &&
                dt_program_run(j->program, NULL, NULL) == DT_OK;
    for (int i = 0; i < HALVES_OUT && good; i++) {
        const size_t cols = (size_t)dt_tensor_shape(j->outputs[i]).dim[0];
        const size_t size = dti_dtype_bytes(dt_tensor_dtype(j->outputs[i]));
        good = !dt_program_read(j->program, j->outputs[i], out[i], size * HALVES_ROWS * cols);
    }
    return good;
}

TEST(vulkan_programs_read_cast_cut_and_write_16_bits_as_the_cpu_does) {
    static unsigned char cpu[HALVES_OUT][4 * 64], other[HALVES_OUT][4 * 64];
    dt_ctx *ctx = NULL;
    REQUIRE(!dt_ctx_create(NULL, &ctx));
    for (int type = 1; type < 3; type++)
        for (int i = -1; i < dt_ctx_device_count(ctx); i++) {
            const dt_device_info *info = i < 0 ? NULL : dt_ctx_device(ctx, i);
            halves_job j;
            if (info && !info->usable)
                continue;
            const bool good = halves_open(ctx, info ? info->id : "cpu", halves_types[type], &j) &&
                              halves_job_run(&j, info ? other : cpu);
            test_check(good, __FILE__, __LINE__, "%s", dt_ctx_error(ctx));
            for (int k = 0; k < HALVES_OUT && info; k++)
                test_check(!memcmp(cpu[k], other[k], sizeof cpu[k]), __FILE__, __LINE__,
                           "output %d of %s on %s", k, dti_dtype_name(halves_types[type]),
                           info->id);
            dt_graph_destroy(j.graph);
        }
    dt_ctx_destroy(ctx);
}

/* ---- kernels without 16 bits: bilinear resampling, to twice the width */

enum { HALVES_NARROW = 6, HALVES_TWICE = 2 * HALVES_NARROW, HALVES_WIDE = 2 * HALVES_TWICE };

static float halves_rounded(float x, bool rounds) {
    return rounds ? dti_f32_from_bf16(dti_bf16_from_f32(x)) : x;
}

static void halves_double(const float *x, int n, bool rounds, float *y) {
    for (int i = 0; i < 2 * n; i++) {
        const int at = i / 2, other = i % 2 ? at + 1 : at - 1;
        const float next = x[other < 0 ? 0 : other >= n ? n - 1 : other];
        y[i] = halves_rounded(0.75f * x[at] + 0.25f * next, rounds);
    }
}

static bool halves_resize_twice(dt_ctx *ctx, const char *device, const float *x, float *y) {
    dt_graph *graph;
    dt_store *store;
    dt_program *program;
    if (dt_graph_create(ctx, &graph))
        return false;
    const dt_tensor in = dt_input(graph, "x", DT_F32, dt_dims(1, 1, HALVES_NARROW));
    const dt_tensor once = dt_resize(dt_cast(in, DT_BF16), 1, HALVES_TWICE, DT_RESIZE_BILINEAR);
    const dt_tensor twice = dt_resize(once, 1, HALVES_WIDE, DT_RESIZE_BILINEAR);
    const dt_program_desc desc = {.outputs = {dt_cast(twice, DT_F32)}};
    const bool good = !dt_store_create(graph, &(dt_store_desc){.device = device}, &store) &&
                      !dt_program_create(store, &desc, &program) &&
                      !dt_program_write(program, in, x, HALVES_NARROW * sizeof *x) &&
                      !dt_program_run(program, NULL, NULL) &&
                      !dt_program_read(program, desc.outputs[0], y, HALVES_WIDE * sizeof *y);
    dt_graph_destroy(graph);
    return good;
}

/* What the second one reads is the first one's rounded result. */
TEST(vulkan_kernels_without_16_bits_read_rounded_values) {
    const float x[HALVES_NARROW] = {1, 1.0078125f, 1.0234375f, -1.0078125f, 1.9921875f, 1};
    float once[HALVES_TWICE], exact[HALVES_WIDE], want[HALVES_WIDE], y[HALVES_WIDE];
    dt_ctx *ctx = NULL;
    halves_double(x, HALVES_NARROW, false, once);
    halves_double(once, HALVES_TWICE, true, exact);
    halves_double(x, HALVES_NARROW, true, once);
    halves_double(once, HALVES_TWICE, true, want);
    CHECK(memcmp(exact, want, sizeof want) != 0); /* else this test cannot fail */
    REQUIRE(!dt_ctx_create(NULL, &ctx));
    for (int i = -1; i < dt_ctx_device_count(ctx); i++) {
        const dt_device_info *info = i < 0 ? NULL : dt_ctx_device(ctx, i);
        if (info && !info->usable)
            continue;
        const char *device = info ? info->id : "cpu";
        const bool good = halves_resize_twice(ctx, device, x, y);
        test_check(good && !memcmp(y, want, sizeof y), __FILE__, __LINE__, "%s: %s", device,
                   good ? "other values" : dt_ctx_error(ctx));
    }
    dt_ctx_destroy(ctx);
}

/* What a cast has made infinite is the cast's fault. */
static void halves_try_fault(vulkan_rig *rig) {
    const dti_backend *b = rig->device->backend;
    vulkan_call call = {.launch = halves_walk(1, DTI_K_COPY, DTI_COPY_WORD)};
    uint32_t fault = 99;
    for (int i = 0; i < 2; i++) {
        call.count[i] = HALVES_WORDS;
        call.data[i] = vulkan_zeros(HALVES_WORDS);
    }
    call.launch.dtype[1] = DT_BF16;
    call.data[0][4 + 60] = 3.4e38f; /* below f32's largest, beyond that of bf16 */
    if (vulkan_call_create(rig, &call) && !b->exec_start(call.exec, 0, 1)) {
        CHECK(b->exec_find_fault(call.exec, 0, 1, &fault) == DT_OK);
        CHECK(fault == 0);
    }
    vulkan_call_destroy(rig, &call);
    free(call.data[0]);
    free(call.data[1]);
}

TEST(vulkan_fault_search_finds_infinities_among_16_bits) {
    ON_EACH(halves_try_fault);
}

#endif
