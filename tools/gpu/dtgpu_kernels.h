/* Part of dtgpu.c: kernels by the device's clock. Products are launched by themselves, in every
 * variant of the table; other operations through a graph, from which the launches of some kernels
 * are counted. */

enum { KERNEL_RUNS = 5 };

static double peak_gflops, peak_gbs; /* of the section before; 0: it has not run */

static void peaks_read(const char *folder) {
    char name[512];
    snprintf(name, sizeof name, "%s/parts/2-peaks.tsv", folder);
    FILE *f = fopen(name, "r");
    for (char line[512]; f && fgets(line, sizeof line, f);)
        sscanf(line, "peak\t%lf\t%lf", &peak_gflops, &peak_gbs);
    if (f)
        fclose(f);
}

static double share(double is, double peak) {
    return peak > 0 ? 100 * is / peak : 0;
}

/* ---- products */

typedef struct product {
    const char *what;
    uint32_t m, n, k, batch;
    char layout[3]; /* 'T': transposed */
} product;

static const product products[] = {
    {"mlp fc2, forward", 64, 10, 128, 1, "NT"},
    {"mlp fc1, forward", 64, 128, 784, 1, "NT"},
    {"mlp fc1, weight", 128, 784, 64, 1, "TN"},
    {"gpt attention", 128, 128, 64, 96, "NT"},
    {"cnn fc1, forward", 64, 128, 9216, 1, "NT"},
    {"square", 512, 512, 512, 1, "NN"},
    {"gpt weight", 384, 384, 2048, 1, "TN"},
    {"gpt fc, forward", 2048, 1536, 384, 1, "NT"},
    {"square", 1024, 1024, 1024, 1, "NN"},
    {"square", 1024, 1024, 1024, 1, "NT"},
    {"square", 1024, 1024, 1024, 1, "TN"},
    {"square", 1024, 1024, 1024, 1, "TT"},
    {"wide", 4096, 4096, 64, 1, "NN"},
    {"square", 4096, 4096, 4096, 1, "NN"},
};

static double product_flops(const product *p) {
    return 2.0 * p->m * p->n * p->k * p->batch;
}

static dti_launch product_launch(const product *p) {
    const bool ta = p->layout[0] == 'T', tb = p->layout[1] == 'T';
    dti_launch l = {.kernel = DTI_K_GEMM,
                    .args_bytes = sizeof(dti_args_gemm),
                    .items = (uint64_t)p->m * p->n * p->batch,
                    .value = {0, 1, 2, 0}};
    l.args.gemm = (dti_args_gemm){.m = p->m,
                                  .n = p->n,
                                  .k = p->k,
                                  .a_row = ta ? 1 : p->k,
                                  .a_col = ta ? p->m : 1,
                                  .b_row = tb ? 1 : p->n,
                                  .b_col = tb ? p->k : 1,
                                  .c_row = p->n,
                                  .batch0 = p->batch,
                                  .batch1 = 1,
                                  .a_batch0 = p->m * p->k,
                                  .b_batch0 = p->k * p->n,
                                  .c_batch0 = p->m * p->n};
    return l;
}

/* Milliseconds, the best of some runs; 0 where there was no time. */
static double product_ms(rig *r, const product *p, uint32_t variant) {
    const uint64_t words[3] = {(uint64_t)p->m * p->k, (uint64_t)p->k * p->n, (uint64_t)p->m * p->n};
    dti_place places[3];
    uint64_t at = 0;
    for (int i = 0; i < 3; i++) {
        places[i] = (dti_place){0, at, 4 * words[i] * p->batch};
        at += (places[i].bytes + 255) / 256 * 256;
    }
    rig_memory(r, at);
    const dti_launch launch = product_launch(p);
    r->device->forcing = (dti_vk_forcing){true, DTI_K_GEMM, variant};
    clock_start(r->device, CLOCK_LAUNCHES);
    dti_exec *exec = rig_exec(r, places, 3, &launch, 1);
    clock_stop();
    r->device->forcing.forced = false;
    double best = 0;
    for (int i = 0; i < 4 * KERNEL_RUNS && (i < 2 || has_time(4 * best)); i++) {
        const double host = rig_run(r, exec);
        if (clocks.has)
            clock_read();
        const double ms = clocks.has ? clocks.spans[0].ms : host;
        best = i ? DTI_MIN(best, ms) : ms;
        if (host > 500)
            break;
    }
    r->device->head.backend->exec_destroy(exec);
    clock_close();
    return best;
}

static void kernels_products(rig *r) {
    double rate[DTI_VK_VARIANTS_MAX] = {0}; /* GFLOP/s of the last size */
    int left_out = 0;
    say("table\tgemm\tMatrix products, fp32, in every variant of the kernel (the tile of a "
        "workgroup)\tm x n x k\twhat\tvariant\tlayout\tms\tGFLOP/s\tof FMA peak %%");
    for (size_t i = 0; i < DTI_COUNT(products); i++)
        for (uint32_t v = 0; v < DTI_VK_VARIANTS_MAX; v++) {
            const product *p = &products[i];
            const dti_vk_shader *s = dti_vk_shader_of(DTI_K_GEMM, v);
            if (!s || !dti_vk_fits(r->device, DTI_K_GEMM, v) || !has_time(0))
                continue;
            const double expected = rate[v] > 0 ? product_flops(p) / rate[v] * 1e-6 : 0;
            if (!has_time(3 * expected)) {
                left_out++;
                continue;
            }
            const double ms = product_ms(r, p, v);
            rate[v] = product_flops(p) / ms * 1e-6;
            say("row\tgemm\t%u x %u x %u, %u times\t%s\t%s\t%s\t%.4f\t%.1f\t%.1f", p->m, p->n, p->k,
                p->batch, p->what, variant_text(DTI_K_GEMM, v), p->layout, ms, rate[v],
                share(rate[v], peak_gflops));
        }
    if (left_out)
        say("note\t%d products were left out: they would have taken too long", left_out);
}

/* ---- other operations */

typedef struct operation {
    const char *name, *kernels; /* kernels: names that begin so are counted; several: with spaces */
    dt_tensor (*make)(dt_graph *g, struct operation *o);
    int64_t n;           /* elements, set before it is made */
    int batch;           /* 0: no samples */
    double flops, bytes; /* set when it is made */
    bool train;          /* the result is a loss */
} operation;

static dt_tensor op_values(dt_graph *g, const char *name, dt_shape shape) {
    return dt_param(g, name, shape, (dt_init){.kind = DT_INIT_UNIFORM, .a = -1, .b = 1});
}

static dt_tensor op_rows(dt_graph *g, operation *o, double passes) {
    o->bytes = 4.0 * passes * (double)o->n;
    return op_values(g, "x", dt_dims(o->n / 1024, 1024));
}

static dt_tensor op_gelu(dt_graph *g, operation *o) {
    return dt_gelu(op_rows(g, o, 2));
}

static dt_tensor op_add(dt_graph *g, operation *o) {
    dt_tensor x = op_rows(g, o, 3);
    return dt_add(x, op_values(g, "y", dt_dims(o->n / 1024, 1024)));
}

static dt_tensor op_transpose(dt_graph *g, operation *o) {
    return dt_neg(dt_permute(op_rows(g, o, 2), dt_dims(1, 0)));
}

static dt_tensor op_softmax(dt_graph *g, operation *o) {
    return dt_softmax(op_rows(g, o, 2), -1);
}

static dt_tensor op_norm(dt_graph *g, operation *o) {
    return dt_layer_norm(op_rows(g, o, 2), 1, op_values(g, "w", dt_dims(1024)),
                         op_values(g, "b", dt_dims(1024)), 1e-5f);
}

static dt_tensor op_sum_rows(dt_graph *g, operation *o) {
    return dt_sum(op_rows(g, o, 1), dt_dims(1), true);
}

static dt_tensor op_sum_columns(dt_graph *g, operation *o) {
    return dt_sum(op_rows(g, o, 1), dt_dims(0), true);
}

static dt_tensor op_gather(dt_graph *g, operation *o) {
    o->bytes = 8.0 * (double)o->n;
    dt_tensor table = op_values(g, "x", dt_dims(o->n / 64, 64));
    return dt_reshape(dt_embedding(table, dt_input(g, "i", DT_I32, dt_dims(o->n / 64 / o->batch))),
                      dt_dims(-1, 64));
}

/* The gradient of a table of which few rows are used: the table is written once. */
static dt_tensor op_scatter(dt_graph *g, operation *o) {
    o->bytes = 4.0 * (double)o->n;
    dt_tensor table = op_values(g, "x", dt_dims(o->n / 64, 64));
    dt_tensor index = dt_input(g, "i", DT_I32, dt_dims(o->n / 64 / 16 / o->batch));
    return dt_gradient(dt_embedding(table, index), table);
}

static dt_tensor op_adamw(dt_graph *g, operation *o) {
    o->bytes = 28.0 * (double)o->n;
    return dt_mean_loss(dt_square(op_values(g, "x", dt_dims(o->n))));
}

/* 64 to 64 channels, 3 x 3, 28 x 28. */
static dt_tensor op_conv(dt_graph *g, operation *o, dt_tensor *x, dt_tensor *w) {
    o->flops = 2.0 * o->batch * 28 * 28 * 9 * 64 * 64;
    *x = dt_input(g, "x", DT_F32, dt_dims(64, 28, 28));
    *w = op_values(g, "w", dt_dims(64, 64, 3, 3));
    return dt_conv2d(*x, *w, (dt_tensor){0}, &(dt_conv_desc){.padding = {1, 1}});
}

static dt_tensor op_conv_forward(dt_graph *g, operation *o) {
    dt_tensor x, w;
    return op_conv(g, o, &x, &w);
}

static dt_tensor op_conv_dx(dt_graph *g, operation *o) {
    dt_tensor x, w, y = op_conv(g, o, &x, &w);
    return dt_gradient(y, x);
}

static dt_tensor op_conv_dw(dt_graph *g, operation *o) {
    dt_tensor x, w, y = op_conv(g, o, &x, &w);
    return dt_gradient(y, w);
}

static operation operations[] = {
    {"conv 3x3, 64 to 64, 28x28, forward", "conv", op_conv_forward, .batch = 64},
    {"the same, gradient of its input", "conv_dx", op_conv_dx, .batch = 64},
    {"the same, gradient of its weight", "conv_dw reduce", op_conv_dw, .batch = 64},
    {"gelu", "map", op_gelu, .batch = 0},
    {"add", "map", op_add, .batch = 0},
    {"negate, transposed", "map", op_transpose, .batch = 0},
    {"softmax of rows of 1024", "softmax", op_softmax, .batch = 0},
    {"layer norm of rows of 1024", "norm", op_norm, .batch = 0},
    {"sum of rows of 1024", "reduce", op_sum_rows, .batch = 0},
    {"sum of columns", "reduce", op_sum_columns, .batch = 0},
    {"gather of rows of 64", "gather", op_gather, .batch = 16},
    {"gradient of a table, a row in 16", "scatter sort segments fill copy", op_scatter,
     .batch = 16},
    {"AdamW", "optim", op_adamw, .train = true},
};

/* Whether a kernel's name begins with one of the words. */
static bool op_counts(const char *words, const char *kernel) {
    for (const char *w = words; *w;) {
        const size_t size = strcspn(w, " ");
        if (!strncmp(w, kernel, size))
            return true;
        w += size + (w[size] != 0);
    }
    return false;
}

static dt_ctx *context_open(void) {
    dt_ctx *ctx;
    const dt_ctx_desc desc = {
        .logger = {hear, NULL}, .threads = DT_THREADS_ALL, .vulkan_loader = loader_file};
    check(NULL, dt_ctx_create(&desc, &ctx), "context");
    return ctx;
}

static void try(dt_ctx *ctx, dt_result result, const char *what) {
    if (result)
        fail(what, dt_ctx_error(ctx));
}

/* Its first element, so that not much is copied back. */
static dt_tensor op_corner(dt_tensor y) {
    const dt_shape shape = dt_tensor_shape(y);
    for (int i = 0; i < shape.rank; i++)
        y = dt_slice(y, i, 0, 1);
    return y;
}

static double op_sum_of(const operation *o, uint32_t *launches) {
    double ms = 0;
    *launches = 0;
    clock_read();
    for (uint32_t i = 0; i < clocks.count; i++) {
        const dti_vk_shader *s = clocks.spans[i].ran ? clock_shader(&clocks.spans[i]) : NULL;
        if (s && op_counts(o->kernels, dti_kernel_info_of(s->kernel)->name)) {
            ms += clocks.spans[i].ms;
            ++*launches;
        }
    }
    return ms;
}

static void op_measure(operation *o, const char *id) {
    dt_ctx *ctx = context_open();
    dt_graph *g;
    dt_store *store;
    dt_program *program;
    try(ctx, dt_graph_create(ctx, &g), o->name);
    const dt_tensor y = o->make(g, o);
    const dt_optim_desc optim = {.kind = DT_OPTIM_ADAMW, .lr = 1e-3};
    dt_program_desc desc = {.label = o->name, .batch = o->batch};
    if (o->train) {
        desc.loss = y;
        desc.optim = &optim;
    } else {
        desc.outputs[0] = op_corner(y);
    }
    try(ctx, dt_store_create(g, &(dt_store_desc){.device = id}, &store), o->name);
    clock_start((dti_vk_device *)store->device, CLOCK_LAUNCHES);
    try(ctx, dt_program_create(store, &desc, &program), o->name);
    clock_stop();
    for (uint32_t i = 0; i < g->count; i++) {
        const dti_node *n = &g->nodes[i];
        if (n->op != DTI_OP_INPUT || o->make == op_conv_dx) /* which does not read its input */
            continue;
        const size_t bytes = 4 * (size_t)(dti_shape_elements(n->shape) * o->batch);
        void *zero = calloc(1, bytes);
        try(ctx, dt_program_write(program, (dt_tensor){g, i}, zero, bytes), o->name);
        free(zero);
    }
    double best = 0;
    uint32_t launches = 0;
    for (int i = 0; i < KERNEL_RUNS && (!i || has_time(2 * best)); i++) {
        try(ctx, dt_program_run(program, NULL, NULL), o->name);
        const double ms = op_sum_of(o, &launches);
        best = i ? DTI_MIN(best, ms) : ms;
    }
    clock_close();
    const double rate = o->flops > 0 ? o->flops / best * 1e-6 : o->bytes / best * 1e-6;
    say("row\toperations\t%s\t%u\t%.4f\t%.1f %s\t%.1f", o->name, launches, best, rate,
        o->flops > 0 ? "GFLOP/s" : "GB/s", share(rate, o->flops > 0 ? peak_gflops : peak_gbs));
    dt_ctx_destroy(ctx);
}

static void section_kernels(const char *id, const char *folder) {
    rig r;
    rig_open(&r, id);
    const bool software = is_software(&r);
    peaks_read(folder);
    const double all = out.limit_ms;
    out.limit_ms = all / 2;
    kernels_products(&r);
    out.limit_ms = all;
    const bool timed = r.device->stamp_ms > 0;
    rig_close(&r);
    say("table\toperations\tOther operations: of the FMA peak where they compute, of the copy peak "
        "where they move\toperation\tlaunches\tms\trate\tof peak %%");
    for (size_t i = 0; timed && i < DTI_COUNT(operations) && has_time(0); i++) {
        operations[i].n = software ? 1 << 20 : 1 << 24;
        if (software && operations[i].batch)
            operations[i].batch = 8;
        op_measure(&operations[i], id);
    }
}
