/* Elementwise kernels that take four elements at a time, on every device against plain loops.
 * Operands are aligned or not, some repeat, and some counts are not multiples of four. Included by
 * main.c. */
#ifndef DT_NO_VULKAN

enum { MAPS_MOST = 64 };

/* y = a + b, [rows, cols], of a = x[:, skip:] with x [rows, cols + skip]; b may be repeated. */
typedef struct maps_case {
    int rows, cols, skip;
    int b_rows, b_cols; /* 1: repeated */
    uint32_t fours;     /* what spec2 is to be */
} maps_case;

static const maps_case maps_cases[] = {
    {1, 1, 0, 1, 1, 0}, /* one element has no stride of 1 */
    {3, 5, 0, 3, 5, DTI_FOURS | DTI_FOURS_AND_REST},
    {3, 8, 0, 3, 8, DTI_FOURS},
    {3, 7, 0, 1, 7, 0},
    {3, 8, 0, 1, 8, DTI_FOURS},
    {3, 8, 0, 3, 1, DTI_FOURS | DTI_FOURS_OF_ONE_B},
    {3, 8, 0, 1, 1, DTI_FOURS | DTI_FOURS_OF_ONE_B},
    {3, 8, 4, 3, 8, DTI_FOURS},
    {3, 8, 3, 3, 8, 0},
    {1, 9, 4, 1, 1, 0},
};

static float maps_x(int i) {
    return (float)(i * 7 % 23 - 11);
}

static void maps_write(dt_program *p, dt_tensor x, int n) {
    float values[MAPS_MOST];
    for (int i = 0; i < n; i++)
        values[i] = maps_x(i);
    CHECK(!dt_program_write(p, x, values, (size_t)n * sizeof *values));
}

/* spec2 of the launches of a kernel; all are the same. */
static uint32_t maps_fours(const dt_program *p, uint32_t kernel) {
    uint32_t fours = UINT32_MAX;
    for (uint32_t i = 0; i < p->code->list.launch_count; i++) {
        const dti_launch *l = &p->code->list.launches[i];
        uint32_t spec[4];
        dti_vk_spec_of(l, 0, &(dti_grid_device){0}, spec);
        if (l->kernel == kernel) {
            CHECK(fours == UINT32_MAX || fours == spec[2]);
            fours = spec[2];
        }
    }
    return fours;
}

static void maps_try(dt_ctx *ctx, const char *device, const maps_case *c) {
    dt_graph *g = NULL;
    dt_store *store = NULL;
    dt_program *p = NULL;
    const int wide = c->cols + c->skip;
    float y[MAPS_MOST], z[MAPS_MOST];
    REQUIRE(!dt_graph_create(ctx, &g));
    dt_tensor x = dt_input(g, "x", DT_F32, dt_dims(c->rows, wide));
    dt_tensor b = dt_input(g, "b", DT_F32, dt_dims(c->b_rows, c->b_cols));
    dt_tensor a = c->skip ? dt_slice(x, 1, c->skip, c->cols) : x;
    dt_tensor sum = dt_add(a, b), square = dt_square(a);
    const dt_program_desc desc = {.batch = 1, .outputs = {sum, square}};
    REQUIRE(!dt_store_create(g, &(dt_store_desc){.device = device}, &store));
    REQUIRE(!dt_program_create(store, &desc, &p));
    maps_write(p, x, c->rows * wide);
    maps_write(p, b, c->b_rows * c->b_cols);
    CHECK(!dt_program_run(p, NULL, NULL));
    const size_t bytes = (size_t)(c->rows * c->cols) * sizeof *y;
    CHECK(!dt_program_read(p, sum, y, bytes) && !dt_program_read(p, square, z, bytes));
    for (int i = 0; i < c->rows * c->cols; i++) {
        const int row = i / c->cols, col = i % c->cols;
        const float u = maps_x(row * wide + c->skip + col);
        const int at = (c->b_rows > 1 ? row : 0) * c->b_cols + (c->b_cols > 1 ? col : 0);
        CHECK(y[i] == u + maps_x(at) && z[i] == u * u);
    }
    CHECK(maps_fours(p, DTI_K_MAP2) == c->fours);
    dt_graph_destroy(g);
}

TEST(elementwise_kernels_work_by_fours_on_aligned_operands_and_one_by_one_on_others) {
    dt_ctx *ctx = NULL;
    REQUIRE(!dt_ctx_create(NULL, &ctx));
    for (int i = 0; i < dt_ctx_device_count(ctx); i++) {
        const dt_device_info *info = dt_ctx_device(ctx, i);
        for (size_t k = 0; info->usable && k < DTI_COUNT(maps_cases); k++)
            maps_try(ctx, info->id, &maps_cases[k]);
    }
    dt_ctx_destroy(ctx);
}

/* A copy and a square over `used` axes, of x turned round: no two axes are one. */
static void maps_try_walk(vulkan_rig *rig, const uint32_t dim[DTI_AXES], uint32_t used) {
    dti_args_map1 a = {.n = 1, .x_offset = 3, .y_offset = 5};
    uint32_t step = 1;
    for (int axis = DTI_AXES - 1; axis >= 0; axis--) {
        a.dim[axis] = axis < (int)(DTI_AXES - used) ? 1 : dim[axis];
        a.y_stride[axis] = a.n;
        a.n *= a.dim[axis];
    }
    for (int axis = (int)(DTI_AXES - used); axis < DTI_AXES; axis++) {
        a.x_stride[axis] = step;
        step *= dim[axis];
    }
    dti_launch l = {.kernel = DTI_K_COPY, .args_bytes = sizeof a, .items = a.n};
    l.spec[3] = used;
    l.args.map1 = a;
    vulkan_compare(rig, &l, (uint32_t[4]){a.n + 3, a.n + 5}, 0);
    l.kernel = DTI_K_MAP1;
    l.spec[0] = DTI_U_SQUARE;
    vulkan_compare(rig, &l, (uint32_t[4]){a.n + 3, a.n + 5}, 0);
}

static void maps_try_walks(vulkan_rig *rig) {
    static const uint32_t dims[][DTI_AXES] = {
        {2, 3, 5, 7, 4, 3}, {5, 2, 2, 3, 2, 33}, {1, 9, 1, 16, 1, 13}, {3, 2, 17, 2, 3, 8}};
    for (size_t i = 0; i < DTI_COUNT(dims) && !rig->in->options.no_unified; i++)
        for (uint32_t used = i ? 5 : 2; used <= DTI_AXES; used++)
            maps_try_walk(rig, dims[i], used);
}

TEST(vulkan_elementwise_ops_over_any_axes_equal_the_cpus) {
    ON_EACH(maps_try_walks);
}

#endif
