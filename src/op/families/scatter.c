/* scatter_add: row v of a table is the sum of the rows of dy whose index is v. A row's entries are
 * added in the order of the indices, `chunk` of them at a time; then the chunks are added. A
 * chunk's length depends only on the number of indices. So the bits are the same on both paths, and
 * for any number of threads or workgroups.
 *
 * Few indices: each element of the table walks over them. Else they are sorted first (SORT, stable,
 * in passes), and the places of a row's entries are then neighbours (SEGMENTS). Invocations of
 * their own add the chunks of long rows (SCATTER_PARTS). In `chunk` sorted entries begins at most
 * one chunk of a long row, and the first of another row. Then SCATTER_ROWS writes all rows, also
 * those without entries.
 *
 * With words of the result's blocks (dti_sparse), rows that are 0 are not written again.
 * SCATTER_CLEAR sets rows to 0 that have no entries any more. Then it records the rows that may be
 * other than 0 from now on. It works block by block, so the words are right wherever a step
 * ends. */

#define DTI_SCATTER_WALK 256           /* indices that an element may walk over */
#define DTI_SCATTER_WALKS (1ull << 24) /* of all elements */
#define DTI_SCATTER_CHUNK 256          /* the shortest */
#define DTI_SCATTER_COLUMNS 128        /* that the CPU sums at a time */
#define DTI_SCATTER_WAYS 16            /* sorted runs that a pass merges */
#define DTI_SCATTER_SORTED 256         /* entries of a run that the first pass sorts */
#define DTI_SCATTER_SORTED_CPU 65536   /* likewise: a thread sorts by the keys' bytes */
#define DTI_SCATTER_SPARSE (1u << 16)  /* elements of a table that is worth two launches more */

static bool dti_scatter_add_labels(const dt_graph *g, const dti_node *n, dti_labels *out) {
    *out = (dti_labels){.input = 1, .classes = (int32_t)n->shape.dim[0]};
    return true;
}

/* attr = the table's shape. */
static bool dti_scatter_add_shape(dti_build *b) {
    if (b->in[1]->dtype != DT_I32)
        return dti_build_fail(b, "the index must be i32");
    b->out.shape = dti_attr_shape(&b->out.attr);
    b->out.samples = false;
    return true;
}

static void dti_scatter_add_grad(dti_grad *g) {
    if (g->wanted[0])
        g->dx[0] = dt_embedding(g->dy, g->in[1]);
}

/* ---- Launches */

static uint32_t dti_scatter_chunk(uint64_t n) {
    uint64_t chunk = DTI_SCATTER_CHUNK;
    while (chunk * chunk < n)
        chunk *= 2;
    return (uint32_t)chunk;
}

/* The sorted entries. */
static uint32_t dti_scatter_sort(dti_emit *e, const dti_view *index, uint32_t n, uint32_t keys) {
    uint32_t from = index->value;
    uint64_t run = 1, made = e->workgroups ? DTI_SCATTER_SORTED : DTI_SCATTER_SORTED_CPU;
    for (bool first = true; first || run < n; first = false) {
        const uint32_t to = dti_emit_scratch(e, DT_I32, 2ull * n);
        const dti_args_sort a = {.n = n,
                                 .keys = keys,
                                 .run = (uint32_t)run,
                                 .made = (uint32_t)DTI_MIN(made, n),
                                 .index_offset = (uint32_t)index->offset};
        DTI_EMIT(e, DTI_K_SORT, n, a, from, to)->spec[0] = first;
        from = to;
        run = made;
        made *= DTI_SCATTER_WAYS;
    }
    return from;
}

static void dti_scatter_launch(dti_emit *e, dti_kernel_id kernel, uint64_t items,
                               const dti_args_scatter *a, const uint32_t v[4]) {
    const bool fours = ((a->cols | a->y_offset | a->table_offset) & 3) == 0;
    dti_launch *l = dti_emit_launch(e, kernel, items, a, sizeof *a, v);
    if (kernel != DTI_K_SEGMENTS && kernel != DTI_K_SCATTER_CLEAR && fours) {
        l->spec[0] = 1;
        l->items /= 4;
    }
    l->spec[1] = kernel == DTI_K_SCATTER_ROWS && e->sparse.taken;
}

static void dti_scatter_clear(dti_emit *e, const dti_args_scatter *a, uint32_t inverse) {
    dti_args_scatter args = *a;
    args.y_offset = e->sparse.first;
    dti_scatter_launch(e, DTI_K_SCATTER_CLEAR,
                       dti_ceil_div((uint64_t)a->table_rows * a->cols, DTI_BLOCK), &args,
                       (uint32_t[4]){inverse, e->out.value, e->sparse.words});
}

static void dti_scatter_sorted(dti_emit *e, const dti_args_scatter *a, uint32_t dy,
                               const dti_view *index) {
    const uint64_t slots = 2 * dti_ceil_div(a->n, a->chunk), table = e->out.value;
    const uint32_t entries = dti_scatter_sort(e, index, a->n, a->table_rows);
    const uint32_t inverse = dti_emit_scratch(e, DT_I32, (uint64_t)a->n + a->table_rows + 1);
    uint32_t parts = DTI_UNBOUND;
    dti_scatter_launch(e, DTI_K_SEGMENTS, DTI_MAX(a->n, a->table_rows + 1ull), a,
                       (uint32_t[4]){entries, inverse});
    if (a->n > a->chunk) {
        parts = dti_emit_scratch(e, DT_F32, slots * a->cols);
        dti_scatter_launch(e, DTI_K_SCATTER_PARTS, slots * a->cols, a,
                           (uint32_t[4]){dy, inverse, entries, parts});
    }
    if (e->sparse.taken)
        dti_scatter_clear(e, a, inverse);
    dti_scatter_launch(e, DTI_K_SCATTER_ROWS, (uint64_t)a->table_rows * a->cols, a,
                       (uint32_t[4]){dy, inverse, parts, (uint32_t)table});
}

static void dti_scatter_add_emit(dti_emit *e) {
    const dti_view dy = dti_emit_dense_in(e, 0), index = dti_emit_dense_in(e, 1);
    const uint64_t n = (uint64_t)dti_view_elements(&index),
                   elements = (uint64_t)dti_view_elements(&e->out),
                   rows = (uint64_t)e->node->shape.dim[0];
    const bool walks = n <= DTI_SCATTER_WALK && n * elements <= DTI_SCATTER_WALKS;
    e->sparse.taken = e->sparse.words && 2 * n <= rows && elements >= DTI_SCATTER_SPARSE;
    if (!elements || (walks && !e->sparse.taken)) {
        dti_gather_launch(e, DTI_K_SCATTER_ADD, e->node->shape, &dy, &index);
        return;
    }
    const dti_args_scatter a = {.n = (uint32_t)n,
                                .table_rows = (uint32_t)rows,
                                .cols = (uint32_t)(elements / rows),
                                .chunk = dti_scatter_chunk(n),
                                .table_offset = (uint32_t)e->out.offset,
                                .y_offset = (uint32_t)dy.offset};
    dti_scatter_sorted(e, &a, dy.value, &index);
}

/* ---- CPU */

/* to[j] = the sum of rows places[i] of x (NULL: of its rows i), j < cols, i < n: runs of
 * DTI_SUM_CHAIN rows, which are added in double. */
static void dti_scatter_total(const dti_cpu_task *task, float *to, const float *x, int64_t cols,
                              int64_t ld, const dti_word *places, int64_t n) {
    double sums[DTI_SCATTER_COLUMNS];
    for (int64_t j = 0, some; j < cols; j += some) {
        some = DTI_MIN(cols - j, DTI_SCATTER_COLUMNS);
        memset(to + j, 0, (size_t)some * sizeof *to);
        memset(sums, 0, sizeof sums);
        for (int64_t i = 0; i < n; i++) {
            const float *row = x + (places ? (int64_t)places[i] : i) * ld + j;
            task->k->binary[DTI_B_ADD](to + j, to + j, 1, row, 1, some);
            if (n <= DTI_SUM_CHAIN || (i % DTI_SUM_CHAIN < DTI_SUM_CHAIN - 1 && i + 1 < n))
                continue;
            for (int64_t c = 0; c < some; c++) {
                sums[c] += (double)to[j + c];
                to[j + c] = i + 1 < n ? 0.0f : (float)sums[c];
            }
        }
    }
}

/* The owner of a range of the table goes over the rows' entries, which are few. */
static void dti_cpu_scatter_add(const dti_cpu_task *task, int64_t begin, int64_t end,
                                void *scratch) {
    const dti_args_gather *a = &task->launch->args.gather;
    const float *dy = dti_cpu_in(task, 0, a->y_offset);
    const dti_word *index = (const dti_word *)task->buf[1] + a->index_offset;
    float *table = dti_cpu_out(task, 2, a->table_offset);
    const int64_t cols = a->cols, first_row = begin / cols, last_row = (end - 1) / cols;
    bool done[DTI_SCATTER_WALK] = {false};
    memset(table + begin, 0, (size_t)(end - begin) * sizeof *table);
    for (int64_t i = 0; i < a->n; i++) {
        const int64_t row = index[i];
        dti_word places[DTI_SCATTER_WALK];
        int64_t count = 0;
        if (done[i] || row < first_row || row > last_row)
            continue;
        for (int64_t k = i; k < a->n; k++)
            if (index[k] == index[i])
                done[k] = true, places[count++] = (dti_word)k;
        const int64_t from = DTI_MAX(begin, row * cols), to = DTI_MIN(end, (row + 1) * cols);
        dti_scatter_total(task, table + from, dy + (from - row * cols), to - from, cols, places,
                          count);
    }
}

/* Each piece goes over all indices: a piece for each thread. */
static int64_t dti_cpu_grain_scatter_add(const dti_cpu_task *task) {
    int64_t items = (int64_t)task->launch->items;
    return DTI_MAX((items + task->threads - 1) / task->threads, 4096);
}

/* Pairs (key, place) by one byte of their keys. */
static void dti_cpu_sort_byte(const dti_word *x, dti_word *y, size_t n, unsigned shift) {
    size_t at[256] = {0}, sum = 0;
    for (size_t i = 0; i < n; i++)
        at[x[2 * i] >> shift & 255]++;
    for (size_t b = 0; b < 256; b++) {
        const size_t count = at[b];
        at[b] = sum;
        sum += count;
    }
    for (size_t i = 0; i < n; i++) {
        const size_t to = at[x[2 * i] >> shift & 255]++;
        y[2 * to] = x[2 * i];
        y[2 * to + 1] = x[2 * i + 1];
    }
}

/* The first pass: entries [begin, end), by the scratch. */
static void dti_cpu_sort_keys(const dti_cpu_task *task, size_t begin, size_t end, dti_word *pairs) {
    const dti_args_sort *a = &task->launch->args.sort;
    const dti_word *x = (const dti_word *)task->buf[0] + a->index_offset;
    const size_t n = end - begin;
    dti_word *to = (dti_word *)task->buf[1], *more = pairs + 2 * n;
    for (size_t i = 0; i < n; i++) {
        pairs[2 * i] = DTI_MIN(x[begin + i], a->keys);
        pairs[2 * i + 1] = (dti_word)(begin + i);
    }
    for (unsigned shift = 0; shift < 32 && a->keys >> shift; shift += 8) {
        dti_word *sorted = more;
        dti_cpu_sort_byte(pairs, sorted, n, shift);
        more = pairs;
        pairs = sorted;
    }
    for (size_t i = 0; i < n; i++) {
        to[begin + i] = pairs[2 * i];
        to[a->n + begin + i] = pairs[2 * i + 1];
    }
}

/* Another pass: of equal keys the one of the first run comes first. */
static void dti_cpu_sort_merge(const dti_cpu_task *task, size_t begin, size_t end) {
    const dti_args_sort *a = &task->launch->args.sort;
    const dti_word *x = (const dti_word *)task->buf[0];
    dti_word *y = (dti_word *)task->buf[1];
    size_t head[DTI_SCATTER_WAYS], runs = 0;
    for (size_t at = begin; at < end; at += a->run)
        head[runs++] = at;
    for (size_t i = begin; i < end; i++) {
        size_t least = 0;
        uint64_t key = UINT64_MAX;
        for (size_t r = 0; r < runs; r++) {
            if (head[r] == DTI_MIN(begin + (r + 1) * a->run, end) || x[head[r]] >= key)
                continue;
            least = r;
            key = x[head[r]];
        }
        y[i] = (dti_word)key;
        y[a->n + i] = x[a->n + head[least]++];
    }
}

static void dti_cpu_sort(const dti_cpu_task *task, int64_t begin, int64_t end, void *scratch) {
    const dti_args_sort *a = &task->launch->args.sort;
    for (int64_t i = begin; i < end; i++) {
        const size_t from = (size_t)i * a->made, to = DTI_MIN(from + a->made, a->n);
        if (task->launch->spec[0])
            dti_cpu_sort_keys(task, from, to, scratch);
        else
            dti_cpu_sort_merge(task, from, to);
    }
}

static int64_t dti_cpu_outer_sort(const dti_cpu_task *task) {
    const dti_args_sort *a = &task->launch->args.sort;
    return (int64_t)dti_ceil_div(a->n, a->made);
}

static size_t dti_cpu_scratch_sort(const dti_launch *l, int threads) {
    return l->spec[0] ? (size_t)4 * l->args.sort.made * sizeof(dti_word) : 0;
}

/* How many of `n` sorted values, each with `step` times its number, are below `limit`. */
static int64_t dti_scatter_below(const dti_word *x, int64_t n, int64_t step, int64_t limit) {
    int64_t from = 0;
    while (from < n) {
        const int64_t middle = (from + n) / 2;
        if (step * middle + (int64_t)x[middle] < limit)
            from = middle + 1;
        else
            n = middle;
    }
    return from;
}

static void dti_cpu_segments(const dti_cpu_task *task, int64_t begin, int64_t end, void *scratch) {
    const dti_args_scatter *a = &task->launch->args.scatter;
    const dti_word *keys = (const dti_word *)task->buf[0];
    dti_word *places = (dti_word *)task->buf[1], *starts = places + a->n;
    const int64_t n = a->n;
    int64_t at = dti_scatter_below(keys, n, 0, begin);
    for (int64_t i = begin; i < DTI_MIN(end, n); i++)
        places[i] = keys[n + i];
    for (int64_t i = begin; i < DTI_MIN(end, a->table_rows + 1ll); i++) {
        while (at < n && keys[at] < i)
            at++;
        starts[i] = (dti_word)at;
    }
}

/* sum = the rows of dy at entries [begin, end), in order. */
static void dti_cpu_scatter_sum(const dti_cpu_task *task, float *sum, int64_t begin, int64_t end) {
    const dti_args_scatter *a = &task->launch->args.scatter;
    const float *dy = dti_cpu_in(task, 0, a->y_offset);
    const dti_word *places = (const dti_word *)task->buf[1];
    dti_scatter_total(task, sum, dy, a->cols, a->cols, places + begin, end - begin);
}

/* Slot 2w: the chunk that begins in window w, of the row of its first entry. Slot 2w + 1: of the
 * row of its last entry, if that row begins after the first. */
static void dti_cpu_scatter_parts(const dti_cpu_task *task, int64_t begin, int64_t end,
                                  void *scratch) {
    const dti_args_scatter *a = &task->launch->args.scatter;
    const dti_word *starts = (const dti_word *)task->buf[1] + a->n,
                   *keys = (const dti_word *)task->buf[2];
    const int64_t chunk = a->chunk;
    for (int64_t slot = begin; slot < end; slot++) {
        const int64_t window = slot / 2 * chunk, last = DTI_MIN(window + chunk, a->n) - 1;
        const int64_t key = keys[slot % 2 ? last : window];
        int64_t from = 0, to = 0;
        if (key < a->table_rows && starts[key + 1] - (int64_t)starts[key] > chunk) {
            from = starts[key];
            to = starts[key + 1];
            if (slot % 2 == 0)
                from += (window - from + chunk - 1) / chunk * chunk;
            to = slot % 2 && from <= window ? from : DTI_MIN(from + chunk, to);
        }
        dti_cpu_scatter_sum(task, dti_cpu_out(task, 3, 0) + slot * a->cols, from, to);
    }
}

static int64_t dti_cpu_outer_scatter_parts(const dti_cpu_task *task) {
    const dti_args_scatter *a = &task->launch->args.scatter;
    return 2 * (int64_t)dti_ceil_div(a->n, a->chunk);
}

static void dti_cpu_scatter_row(const dti_cpu_task *task, float *row, int64_t begin, int64_t end) {
    const dti_args_scatter *a = &task->launch->args.scatter;
    const float *parts = dti_cpu_in(task, 2, 0);
    const int64_t chunk = a->chunk;
    if (end - begin <= chunk) {
        dti_cpu_scatter_sum(task, row, begin, end);
        return;
    }
    const int64_t window = begin / chunk, more = (end - begin - 1) / chunk, cols = a->cols;
    dti_scatter_total(task, row, parts + 2 * (window + 1) * cols, cols, 2 * cols, NULL, more);
    parts += (2 * window + (begin % chunk != 0)) * cols;
    task->k->binary[DTI_B_ADD](row, row, 1, parts, 1, cols);
}

/* Of a block's rows, in the table from `row` on: those that are 0 from now on become so. Which may
 * be other, as their bits. */
static uint32_t dti_cpu_scatter_clear_rows(const dti_cpu_task *task, uint32_t old, int64_t at,
                                           int64_t end) {
    const dti_args_scatter *a = &task->launch->args.scatter;
    const dti_word *starts = (const dti_word *)task->buf[0] + a->n;
    float *table = dti_cpu_out(task, 1, a->table_offset);
    const int64_t cols = a->cols, first = at / cols;
    uint32_t now = 0;
    for (int64_t row = first; row * cols < end; row++) {
        const int64_t from = DTI_MAX(row * cols, at), to = DTI_MIN((row + 1) * cols, end);
        const uint32_t bit = DTI_ROW_BIT((uint32_t)(row - first));
        if (starts[row] != starts[row + 1])
            now |= bit;
        else if (old & bit)
            memset(table + from, 0, (size_t)(to - from) * sizeof *table);
    }
    return now;
}

static void dti_cpu_scatter_clear(const dti_cpu_task *task, int64_t begin, int64_t end,
                                  void *scratch) {
    const dti_args_scatter *a = &task->launch->args.scatter;
    const dti_word *starts = (const dti_word *)task->buf[0] + a->n;
    uint32_t *words = (uint32_t *)task->buf[2] + a->y_offset;
    const int64_t cols = a->cols, elements = a->table_rows * cols;
    const bool whole = task->step[DTI_STEP_FLAGS] & DTI_FLAG_WHOLE;
    for (int64_t block = begin; block < end; block++) {
        const int64_t at = block * DTI_BLOCK, to = DTI_MIN(at + DTI_BLOCK, elements);
        const uint32_t old = whole ? UINT32_MAX : words[block];
        if (old || starts[at / cols] != starts[(to - 1) / cols + 1])
            words[block] = dti_cpu_scatter_clear_rows(task, old, at, to);
    }
}

/* Items are rows and entries, each row after its entries, so that threads share the work. */
static void dti_cpu_scatter_rows(const dti_cpu_task *task, int64_t begin, int64_t end,
                                 void *scratch) {
    const dti_args_scatter *a = &task->launch->args.scatter;
    const dti_word *starts = (const dti_word *)task->buf[1] + a->n;
    float *table = dti_cpu_out(task, 3, a->table_offset);
    const int64_t cols = a->cols, last = dti_scatter_below(starts, a->table_rows, 1, end);
    int64_t row = dti_scatter_below(starts, a->table_rows, 1, begin);
    while (row < last) {
        const int64_t from = row;
        while (row < last && starts[row] == starts[row + 1])
            row++;
        if (!task->launch->spec[1])
            memset(table + from * cols, 0, (size_t)((row - from) * cols) * sizeof *table);
        if (row == last)
            return;
        dti_cpu_scatter_row(task, table + row * cols, starts[row], starts[row + 1]);
        row++;
    }
}

static int64_t dti_cpu_outer_scatter_rows(const dti_cpu_task *task) {
    const dti_args_scatter *a = &task->launch->args.scatter;
    return (int64_t)a->table_rows + a->n;
}

/* ---- Rows of the tables */

static uint64_t dti_scatter_bisection(uint64_t n) {
    uint64_t steps = 1;
    while (n >> steps)
        steps++;
    return steps;
}

static dti_effort dti_scatter_add_effort(const dti_launch *l, uint32_t variant, uint32_t local) {
    const dti_args_gather *a = &l->args.gather;
    return (dti_effort){a->n, (uint64_t)a->n * a->table_rows * a->cols};
}

static dti_effort dti_sort_effort(const dti_launch *l, uint32_t variant, uint32_t local) {
    const dti_args_sort *a = &l->args.sort;
    const uint64_t runs = dti_ceil_div(DTI_MIN(a->made, a->n), a->run);
    const uint64_t steps = runs * (l->spec[0] ? 1 : dti_scatter_bisection(a->run));
    return (dti_effort){steps, steps * a->n};
}

static dti_effort dti_segments_effort(const dti_launch *l, uint32_t variant, uint32_t local) {
    const uint64_t steps = dti_scatter_bisection(l->args.scatter.n);
    return (dti_effort){steps, steps * l->items};
}

/* For PARTS and ROWS, as if all entries were of one row. */
static dti_effort dti_scatter_effort(const dti_launch *l, uint32_t variant, uint32_t local) {
    const dti_args_scatter *a = &l->args.scatter;
    const bool rows = l->kernel == DTI_K_SCATTER_ROWS;
    return (dti_effort){DTI_MIN(a->n, a->chunk) + (rows ? a->n / a->chunk : 0),
                        (uint64_t)a->n * a->cols + l->items};
}

static dti_effort dti_scatter_clear_effort(const dti_launch *l, uint32_t variant, uint32_t local) {
    return (dti_effort){dti_effort_rows(1, DTI_BLOCK, 1, local).steps, l->items * DTI_BLOCK};
}

static uint64_t dti_scatter_add_rounds(const dti_launch *l, uint32_t local) {
    return l->args.gather.n + DTI_ROUNDS_FEW;
}

/* Of each other run a bisection. */
static uint64_t dti_sort_rounds(const dti_launch *l, uint32_t local) {
    const dti_args_sort *a = &l->args.sort;
    return dti_ceil_div(DTI_MIN(a->made, a->n), a->run) * (l->spec[0] ? 1 : 34) + DTI_ROUNDS_FEW;
}

/* Of PARTS and ROWS: a chunk, four at a time, and of ROWS the chunks. */
static uint64_t dti_scatter_rounds(const dti_launch *l, uint32_t local) {
    const dti_args_scatter *a = &l->args.scatter;
    return DTI_MIN(a->n, a->chunk) / 4 + a->n / a->chunk + DTI_ROUNDS_FEW;
}

static uint64_t dti_scatter_clear_rounds(const dti_launch *l, uint32_t local) {
    return dti_rounds_of(DTI_BLOCK, 1, local);
}

/* (dy, index, dtable) item = element of dtable */
DTI_KERNEL(SCATTER_ADD, scatter_add, "rrw", ITEM, .run = dti_cpu_scatter_add,
           .grain_of = dti_cpu_grain_scatter_add, .rounds = dti_scatter_add_rounds,
           .effort = dti_scatter_add_effort);

/* (index, or entries; entries) item = entry */
DTI_KERNEL(SORT, sort, "rw", ITEM, .run = dti_cpu_sort, .outer = dti_cpu_outer_sort,
           .scratch_bytes = dti_cpu_scratch_sort, .moves = dti_launch_only_moves,
           .rounds = dti_sort_rounds, .effort = dti_sort_effort);

/* (entries, inverse index) item = entry, and row */
DTI_KERNEL(SEGMENTS, segments, "rw", ITEM, .run = dti_cpu_segments, .grain = DTI_GRAIN_FLAT,
           .moves = dti_launch_only_moves, .rounds = dti_rounds_few, .effort = dti_segments_effort);

/* (dy, inverse index, entries, parts) item = element of parts, or four */
DTI_KERNEL(SCATTER_PARTS, scatter_parts, "rrrw", ITEM, .run = dti_cpu_scatter_parts,
           .outer = dti_cpu_outer_scatter_parts, .rounds = dti_scatter_rounds,
           .effort = dti_scatter_effort);

/* (inverse index, dtable, words) a block of dtable */
DTI_KERNEL(SCATTER_CLEAR, scatter_clear, "ruu", GROUP, .run = dti_cpu_scatter_clear, .grain = 256,
           .moves = dti_launch_only_moves, .lanes = DTI_BLOCK / 4,
           .rounds = dti_scatter_clear_rounds, .effort = dti_scatter_clear_effort);

/* (dy, inverse index, parts, dtable) item = element of dtable, or four */
DTI_KERNEL(SCATTER_ROWS, scatter_rows, "rrrw", ITEM, .run = dti_cpu_scatter_rows,
           .outer = dti_cpu_outer_scatter_rows, .grain = 16384, .each = DTI_WORD(scatter, cols),
           .rounds = dti_scatter_rounds, .effort = dti_scatter_effort);

DTI_FAMILY(scatter_add, .shape = dti_scatter_add_shape, .grad = dti_scatter_add_grad,
           .labels = dti_scatter_add_labels);
