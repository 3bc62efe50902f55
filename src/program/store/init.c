/* Initial values of a store's parameters, drawn in double from the counter-based generator: key =
 * seed, stream = the parameter's index, counter = the element. Most are made piece by piece; a few
 * kinds need a whole parameter. */

static void dti_init_fans(dt_shape s, double *fan_in, double *fan_out) {
    double rest = 1.0;
    for (int i = 2; i < s.rank; i++)
        rest *= (double)s.dim[i];
    *fan_out = s.rank > 0 ? (double)s.dim[0] * rest : 1.0;
    *fan_in = s.rank > 1 ? (double)s.dim[1] * rest : *fan_out;
}

/* The distribution of a kind as a + b * draw, draw uniform in [0, 1) or normal. */
static bool dti_init_range(const dti_node *n, double *a, double *b) {
    double fan_in, fan_out, x = (double)n->attr.f[0], y = (double)n->attr.f[1];
    dti_init_fans(n->shape, &fan_in, &fan_out);
    double gain = dti_or(x, 1.0), bound = 0.0;
    *a = 0.0;
    switch ((dt_init_kind)n->attr.i[1]) {
    case DT_INIT_CONSTANT:
        *a = x;
        *b = 0.0;
        return false;
    case DT_INIT_UNIFORM:
        *a = x;
        *b = y - x;
        return false;
    case DT_INIT_NORMAL:
        *a = x;
        *b = y;
        return true;
    case DT_INIT_TRUNCATED_NORMAL:
        *a = x;
        *b = dti_or(y, 1.0);
        return true;
    case DT_INIT_ORTHOGONAL: *b = 1.0; return true;
    case DT_INIT_SPARSE: *b = dti_or(y, 0.01); return true;
    case DT_INIT_KAIMING_NORMAL: *b = sqrt(2.0 / ((1.0 + x * x) * fan_in)); return true;
    case DT_INIT_XAVIER_NORMAL: *b = gain * sqrt(2.0 / (fan_in + fan_out)); return true;
    case DT_INIT_KAIMING_UNIFORM: bound = sqrt(6.0 / ((1.0 + x * x) * fan_in)); break;
    case DT_INIT_XAVIER_UNIFORM: bound = gain * sqrt(6.0 / (fan_in + fan_out)); break;
    default: *b = 0.0; return false;
    }
    *a = -bound;
    *b = 2.0 * bound;
    return false;
}

/* Values of one parameter that are made at a time: all threads have a share, and they stay near. */
#define DTI_FILL_PIECE (1 << 20)
#define DTI_FILL_TAIL 0.022750131948179195 /* of a normal below -2 */
#define DTI_FILL_DRAWS 128 /* at a time, on a thread's stack, with four random words each */

/* Draws of elements [at, at + DTI_FILL_DRAWS): dti_normal, or dti_uniform01. */
static void dti_fill_draws(const dti_fill *f, uint64_t at, bool normal, double *draws) {
    uint32_t words[4 * DTI_FILL_DRAWS];
    f->kernels->philox(words, DTI_COUNT(words), f->seed, 4 * at, f->stream, 0);
    for (int i = 0; i < DTI_FILL_DRAWS; i++) {
        const uint64_t bits = dti_bits53(words + 4 * i);
        draws[i] = normal ? dti_normal_p_of(bits) : dti_uniform_of(bits);
        if (f->param->attr.i[1] == DT_INIT_TRUNCATED_NORMAL)
            draws[i] = fma(draws[i], 1 - 2 * DTI_FILL_TAIL, DTI_FILL_TAIL);
    }
    if (normal)
        f->kernels->normal_quantile(draws, draws, DTI_FILL_DRAWS);
}

static void dti_fill_range(void *arg, int64_t begin, int64_t end, int worker) {
    const dti_fill *f = arg;
    double draws[DTI_FILL_DRAWS] = {0}, a, b;
    const bool normal = dti_init_range(f->param, &a, &b);
    for (int64_t i = begin; i < end; i += DTI_FILL_DRAWS) {
        if (b != 0.0)
            dti_fill_draws(f, f->at + (uint64_t)i, normal, draws);
        for (int64_t k = i; k < DTI_MIN(i + DTI_FILL_DRAWS, end); k++) {
            double product = b * draws[k - i];
            DTI_FENCE(product);
            f->out[k] = (float)(a + product);
        }
    }
}

/* ---- kinds that are closed forms of the element, or of a whole parameter */

/* gain where the output is the input of the same number, at the middle of a kernel; else 0. */
static void dti_fill_identity(void *arg, int64_t begin, int64_t end, int worker) {
    const dti_fill *f = arg;
    const dt_shape s = f->param->shape;
    const float gain = f->param->attr.f[0] != 0.0f ? f->param->attr.f[0] : 1.0f;
    int64_t inner = 1, middle = 0;
    for (int i = s.rank - 1; i > 1; i--) {
        middle += s.dim[i] / 2 * inner;
        inner *= s.dim[i];
    }
    for (int64_t k = begin; k < end; k++) {
        const int64_t at = (int64_t)f->at + k, line = at / inner;
        const bool same = line / s.dim[1] == line % s.dim[1];
        f->out[k] = same && at % inner == middle ? gain : 0.0f;
    }
}

typedef struct dti_basis { /* `count` vectors of `size`, one after the other */
    double *q;
    int64_t size, count, done;
} dti_basis;

static double dti_basis_dot(const double *x, const double *y, int64_t n) {
    double sum[4] = {0};
    for (int64_t i = 0; i < n; i++) {
        double product = x[i] * y[i];
        DTI_FENCE(product);
        sum[i % 4] += product;
    }
    return sum[0] + sum[1] + (sum[2] + sum[3]);
}

/* Makes later vectors orthogonal to the last finished one. */
static void dti_basis_subtract(void *arg, int64_t begin, int64_t end, int worker) {
    const dti_basis *b = arg;
    const double *x = b->q + (b->done - 1) * b->size;
    for (int64_t k = begin; k < end; k++) {
        double *y = b->q + (b->done + k) * b->size;
        const double part = dti_basis_dot(x, y, b->size);
        for (int64_t i = 0; i < b->size; i++) {
            double product = part * x[i];
            DTI_FENCE(product);
            y[i] -= product;
        }
    }
}

/* Gram and Schmidt's way, with positive lengths: uniform over all bases (Mezzadri, "How to generate
 * random matrices from the classical compact groups", 2007). */
static void dti_basis_finish(dti_pool *pool, dti_basis *b) {
    for (b->done = 1; b->done <= b->count; b->done++) {
        double *x = b->q + (b->done - 1) * b->size;
        const double length = sqrt(dti_basis_dot(x, x, b->size));
        for (int64_t i = 0; i < b->size; i++)
            x[i] = length > 0 ? x[i] / length : 0.0;
        dti_parallel_for(pool, b->count - b->done, 1 + 65536 / b->size, dti_basis_subtract, b);
    }
}

/* Orthogonal rows of length `gain`, or columns if there are fewer, made of normals. */
static dt_result dti_fill_orthogonal(dti_base *base, const dti_fill *f) {
    const int64_t rows = f->param->shape.dim[0];
    const int64_t all = dti_shape_elements(f->param->shape), cols = rows ? all / rows : 0;
    const bool tall = rows > cols;
    dti_basis b = {.size = tall ? rows : cols, .count = tall ? cols : rows};
    b.q = dti_alloc_array(base, (size_t)all + 1, sizeof *b.q);
    DTI_HAVE(b.q);
    const double gain = dti_or((double)f->param->attr.f[0], 1.0);
    for (int64_t i = 0; i < all; i++)
        b.q[tall ? i % cols * rows + i / cols : i] = (double)f->out[i];
    dti_basis_finish(base->pool, &b);
    for (int64_t i = 0; i < all; i++)
        f->out[i] = (float)(gain * b.q[tall ? i % cols * rows + i / cols : i]);
    dti_free(base, b.q);
    return DT_OK;
}

typedef struct dti_drawn_row {
    uint64_t draw;
    int64_t row;
} dti_drawn_row;

static int dti_drawn_order(const void *a, const void *b) {
    const dti_drawn_row *x = a, *y = b;
    if (x->draw != y->draw)
        return x->draw < y->draw ? -1 : 1;
    return x->row < y->row ? -1 : 1;
}

/* The number of rows in a share, rounded up. A share with up to 7 decimals counts as its decimal
 * number. As a float 0.3 is 0.30000001, so 10 rows would give 4. */
static int64_t dti_fill_share(float share, int64_t rows) {
    const double written = floor((double)share * 1e7 + 0.5) / 1e7;
    return (int64_t)ceil(((float)written == share ? written : (double)share) * (double)rows);
}

/* A share of each column, rounded up, becomes 0: other draws of the same stream say which. */
static dt_result dti_fill_sparse(dti_base *base, const dti_fill *f) {
    const int64_t rows = f->param->shape.dim[0], cols = f->param->shape.dim[1];
    const int64_t zeros = dti_fill_share(f->param->attr.f[0], rows);
    dti_drawn_row *order = dti_alloc_array(base, (size_t)rows + 1, sizeof *order);
    DTI_HAVE(order);
    for (int64_t col = 0; col < cols; col++) {
        for (int64_t row = 0; row < rows; row++) {
            const uint64_t counter = (uint64_t)((rows + row) * cols + col);
            order[row] = (dti_drawn_row){dti_philox_53(f->seed, counter, f->stream), row};
        }
        qsort(order, (size_t)rows, sizeof *order, dti_drawn_order);
        for (int64_t k = 0; k < zeros; k++)
            f->out[order[k].row * cols + col] = 0.0f;
    }
    dti_free(base, order);
    return DT_OK;
}

/* ---- a store's */

/* Of a table, the row that padding looks up: attr.dim[0] - 1. */
static void dti_fill_padding(const dti_fill *f, uint64_t size) {
    const uint64_t row = (uint64_t)f->param->attr.dim[0];
    if (row == 0)
        return;
    const uint64_t cols = (uint64_t)f->param->shape.dim[1];
    const uint64_t begin = DTI_MAX((row - 1) * cols, f->at);
    const uint64_t end = DTI_MIN(row * cols, f->at + size);
    for (uint64_t i = begin; i < end; i++)
        f->out[i - f->at] = 0.0f;
}

static bool dti_fill_is_whole(const dt_store *s, const dti_node *n) {
    return s->init || n->attr.i[1] == DT_INIT_ORTHOGONAL || n->attr.i[1] == DT_INIT_SPARSE;
}

/* Elements of a parameter that are made at a time. */
static uint64_t dti_fill_most(const dt_store *s, const dti_param *p) {
    return dti_fill_is_whole(s, &s->graph->nodes[p->node]) ? p->elements
                                                           : DTI_MIN(p->elements, DTI_FILL_PIECE);
}

static dt_result dti_fill_open(const dt_store *s, dti_fill *f) {
    uint64_t largest = 1;
    *f = (dti_fill){.kernels = dti_isa_kernels_select(DTI_ISA_AVX512), .store = s};
    f->seed = s->seed;
    for (uint32_t i = 0; i < s->layout.param_count; i++)
        largest = DTI_MAX(largest, dti_fill_most(s, &s->layout.params[i]));
    f->out = dti_alloc_array(s->base, largest, sizeof *f->out);
    return f->out ? DT_OK : DT_ERROR_MEMORY;
}

static void dti_fill_close(const dt_store *s, dti_fill *f) {
    dti_free(s->base, f->out);
}

/* Elements [at, at + size) to out. */
static dt_result dti_fill_make(dti_fill *f, uint64_t size) {
    const dt_store *s = f->store;
    const int32_t kind = f->param->attr.i[1];
    dt_result result = DT_OK;
    dti_parallel_for(s->base->pool, (int64_t)size, 16 * DTI_FILL_DRAWS,
                     kind == DT_INIT_IDENTITY ? dti_fill_identity : dti_fill_range, f);
    if (kind == DT_INIT_ORTHOGONAL)
        result = dti_fill_orthogonal(s->base, f);
    if (kind == DT_INIT_SPARSE)
        result = dti_fill_sparse(s->base, f);
    dti_fill_padding(f, size);
    if (!result && s->init) {
        dti_visit visit;
        dti_visit_host(&visit, s->base, DTI_IN_VALUES);
        s->init(s->init_user, f->param->label, f->param->shape, f->out);
        dti_visit_returned(&visit);
    }
    return result;
}

static dt_result dti_fill_read(dti_fill *f, uint32_t param, uint64_t at, const float **values,
                               uint64_t *n) {
    const dti_param *p = &f->store->layout.params[param];
    const uint64_t most = dti_fill_most(f->store, p);
    const bool there = f->made && f->stream == param && at >= f->at && at < f->at + f->made;
    if (!there) {
        f->param = &f->store->graph->nodes[p->node];
        f->stream = param;
        f->at = at / most * most;
        f->made = 0;
        DTI_TRY(dti_fill_make(f, DTI_MIN(p->elements - f->at, most)));
        f->made = DTI_MIN(p->elements - f->at, most);
    }
    *values = f->out + (at - f->at);
    *n = f->at + f->made - at;
    return DT_OK;
}

static dt_result dti_store_fill(dt_store *s) {
    dti_fill f;
    dt_result result = dti_fill_open(s, &f);
    for (uint32_t i = 0; i < s->layout.param_count; i++) {
        const dti_param *p = &s->layout.params[i];
        const float *values;
        uint64_t n = 0;
        for (uint64_t at = 0; at < p->elements && !result; at += n) {
            result = dti_fill_read(&f, i, at, &values, &n);
            if (!result)
                result = dti_store_array_write(s, 0, p->offset + at, n, values);
        }
    }
    dti_fill_close(s, &f);
    return result;
}
