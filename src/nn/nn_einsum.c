/* Sums of products by letters (Einstein's convention), written in ops. It takes diagonals, and sums
 * letters of only one operand. Then a pair of operands is one product of batches of matrices, or of
 * elements if nothing is summed. Anything else in the text is an error. */

#define DTI_EINSUM_DOTS DT_MAX_DIMS /* letters 1 to 5 are dimensions of "...": the last is 5 */

typedef struct dti_letters {
    int count;
    int8_t of[DT_MAX_DIMS];
} dti_letters;

typedef struct dti_labelled {
    dt_tensor x;
    dti_letters is;
} dti_labelled;

typedef struct dti_einsum {
    dt_graph *g;
    const char *equation, *at;
    int count, dots; /* dots: dimensions of the widest "..." */
    dti_labelled in[DTI_CALL_INPUTS];
    dti_letters out;
    int64_t size[128]; /* by letter; -1: no operand has it */
} dti_einsum;

#define DTI_EINSUM_FAIL(e, text, ...)                                                              \
    (dti_graph_fail((e)->g, "einsum(\"%.60s\"): " text, (e)->equation, __VA_ARGS__), false)

static bool dti_letters_have(const dti_letters *s, int8_t letter) {
    for (int i = 0; i < s->count; i++) {
        if (s->of[i] == letter)
            return true;
    }
    return false;
}

/* ---- the text */

typedef struct dti_spelling { /* letters up to a ',', a '-' or the end */
    dti_letters is;
    int dots; /* the letter before which "..." is; -1: nowhere */
} dti_spelling;

static bool dti_einsum_word(dti_einsum *e, dti_spelling *w) {
    *w = (dti_spelling){.dots = -1};
    for (;; e->at++) {
        const char c = *e->at;
        const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        if (c == ' ')
            continue;
        if (c == 0 || c == ',' || c == '-')
            return true;
        if (c == '.' && e->at[1] == '.' && e->at[2] == '.' && w->dots < 0) {
            w->dots = w->is.count;
            e->at += 2;
        } else if (!letter) {
            return DTI_EINSUM_FAIL(
                e,
                "'%c' at character %d: dimensions are letters; ',' separates operands; '->' comes "
                "before the result; each has at most one \"...\"",
                c, (int)(e->at - e->equation) + 1);
        } else if (w->is.count == DT_MAX_DIMS) {
            return DTI_EINSUM_FAIL(e, "more than %d letters without a ','", DT_MAX_DIMS);
        } else {
            w->is.of[w->is.count++] = (int8_t)c;
        }
    }
}

/* The letters of a word whose "..." is `dots` dimensions; false: too many. */
static bool dti_einsum_spell(const dti_spelling *w, int dots, dti_letters *out) {
    *out = (dti_letters){0};
    if (w->is.count + (w->dots < 0 ? 0 : dots) > DT_MAX_DIMS)
        return false;
    for (int i = 0; i <= w->is.count; i++) {
        for (int k = 0; k < dots && i == w->dots; k++)
            out->of[out->count++] = (int8_t)(DTI_EINSUM_DOTS - dots + 1 + k);
        if (i < w->is.count)
            out->of[out->count++] = w->is.of[i];
    }
    return true;
}

typedef struct dti_letter_text {
    char text[4];
} dti_letter_text;

static dti_letter_text dti_letter_name(int8_t letter) {
    if (letter <= DTI_EINSUM_DOTS)
        return (dti_letter_text){"..."};
    return (dti_letter_text){{(char)letter, 0}};
}

static bool dti_einsum_sizes(dti_einsum *e, const dti_labelled *o) {
    const dt_shape s = dti_tensor_shape(o->x);
    for (int i = 0; i < o->is.count; i++) {
        const int8_t c = o->is.of[i];
        int64_t *size = &e->size[c];
        for (int k = 0; k < i; k++) {
            if (o->is.of[k] == c && s.dim[k] != s.dim[i])
                return DTI_EINSUM_FAIL(e, "'%c' is both %lld and %lld in one operand", c,
                                       (long long)s.dim[k], (long long)s.dim[i]);
        }
        if (*size >= 0 && *size != s.dim[i] && *size != 1 && s.dim[i] != 1)
            return DTI_EINSUM_FAIL(e, "'%s' is both %lld and %lld", dti_letter_name(c).text,
                                   (long long)*size, (long long)s.dim[i]);
        if (*size < 0 || *size == 1)
            *size = s.dim[i];
    }
    return true;
}

static bool dti_einsum_operand(dti_einsum *e, int number) {
    dti_labelled *o = &e->in[number];
    const int rank = dti_tensor_shape(o->x).rank;
    dti_spelling w;
    if (!dti_einsum_word(e, &w))
        return false;
    const int dots = rank - w.is.count;
    if (dots < 0 || (dots > 0 && w.dots < 0))
        return DTI_EINSUM_FAIL(e,
                               "operand %d is %s, but has %d letters: the dimensions of one sample "
                               "are to be named",
                               number + 1, dti_tensor_print(o->x).text, w.is.count);
    dti_einsum_spell(&w, dots, &o->is);
    if (w.dots >= 0)
        e->dots = DTI_MAX(e->dots, dots);
    return dti_einsum_sizes(e, o);
}

/* The letters after "->". Without it: "..." and the letters that appear once, in alphabetical
 * order, capitals first. */
static bool dti_einsum_result(dti_einsum *e) {
    int times[128] = {0};
    dti_spelling w = {.dots = 0};
    for (int i = 0; i < e->count; i++) {
        for (int k = 0; k < e->in[i].is.count; k++)
            times[e->in[i].is.of[k]]++;
    }
    bool fits = true;
    if (*e->at == '-') {
        if (e->at[1] != '>')
            return DTI_EINSUM_FAIL(e, "'-' without '>' at character %d",
                                   (int)(e->at - e->equation) + 1);
        e->at += 2;
        if (!dti_einsum_word(e, &w))
            return false;
        if (*e->at)
            return DTI_EINSUM_FAIL(e, "'%c' after the result", *e->at);
    } else {
        for (int c = DTI_EINSUM_DOTS + 1; c < 128 && fits; c++) {
            fits = times[c] != 1 || w.is.count < DT_MAX_DIMS;
            if (times[c] == 1 && fits)
                w.is.of[w.is.count++] = (int8_t)c;
        }
    }
    if (!fits || !dti_einsum_spell(&w, e->dots, &e->out))
        return DTI_EINSUM_FAIL(e, "its result has more than %d dimensions", DT_MAX_DIMS);
    for (int i = 0; i < w.is.count; i++) {
        const dti_letters before = {i, {w.is.of[0], w.is.of[1], w.is.of[2], w.is.of[3]}};
        if (!times[w.is.of[i]] || dti_letters_have(&before, w.is.of[i]))
            return DTI_EINSUM_FAIL(e, "'%c' in the result %s", w.is.of[i],
                                   times[w.is.of[i]] ? "appears twice" : "appears in no operand");
    }
    return true;
}

static bool dti_einsum_read(dti_einsum *e) {
    int words = 1;
    memset(e->size, 0xff, sizeof e->size);
    for (const char *c = e->equation; *c; c++)
        words += *c == ',';
    if (words != e->count)
        return DTI_EINSUM_FAIL(e, "it names %d operands, but %d are given", words, e->count);
    for (int i = 0; i < e->count; i++) {
        if (i > 0 && *e->at != ',')
            return DTI_EINSUM_FAIL(e, "operand %d is after '->'", i + 1);
        e->at += i > 0;
        if (!dti_einsum_operand(e, i))
            return false;
    }
    return dti_einsum_result(e);
}

/* ---- one operand */

/* The same letters in another order. */
static void dti_einsum_order(dti_labelled *o, const dti_letters *to) {
    dt_shape axes = {.rank = to->count};
    bool same = true;
    for (int i = 0; i < to->count; i++) {
        while (o->is.of[axes.dim[i]] != to->of[i])
            axes.dim[i]++;
        same = same && axes.dim[i] == i;
    }
    if (!same)
        o->x = dt_permute(o->x, axes);
    o->is = *to;
}

/* Joins a letter's two dimensions. n rows of n elements, each extended by one, are n rows of n + 1,
 * whose first elements are the diagonal. */
static bool dti_einsum_diagonal(dti_labelled *o) {
    const int count = o->is.count;
    const dt_shape s = dti_tensor_shape(o->x);
    for (int b = 1; b < count; b++) {
        for (int a = 0; a < b; a++) {
            if (o->is.of[a] != o->is.of[b])
                continue;
            dt_shape axes = {.rank = count}, flat = {.rank = count - 1};
            dti_letters rest = {.count = count - 1};
            for (int i = 0, k = 0; i < count; i++) {
                if (i != a && i != b) {
                    rest.of[k] = o->is.of[i], flat.dim[k] = s.dim[i];
                    axes.dim[k++] = i;
                }
            }
            const int last = count - 2;
            const int64_t n = s.dim[a];
            axes.dim[last] = a, axes.dim[last + 1] = b;
            rest.of[last] = o->is.of[a], flat.dim[last] = n * n;
            dt_shape wide = flat;
            wide.dim[last] = n, wide.dim[wide.rank++] = n + 1;
            dt_tensor x = dt_pad(dt_reshape(dt_permute(o->x, axes), flat), last, 0, n);
            x = dt_slice(dt_reshape(x, wide), last + 1, 0, 1);
            flat.dim[last] = n;
            *o = (dti_labelled){dt_reshape(x, flat), rest};
            return true;
        }
    }
    return false;
}

/* Sums letters that nothing needs; a letter of size 1 whose size is another operand's is
 * removed. */
static void dti_einsum_reduce(const dti_einsum *e, dti_labelled *o, const bool *needed) {
    const dt_shape s = dti_tensor_shape(o->x);
    dt_shape axes = {0}, kept = {0};
    dti_letters rest = {0};
    for (int i = 0; i < o->is.count; i++) {
        const int8_t c = o->is.of[i];
        if (needed[c] && s.dim[i] == e->size[c])
            rest.of[rest.count++] = c, kept.dim[kept.rank++] = s.dim[i];
        else
            axes.dim[axes.rank++] = i;
    }
    if (!axes.rank)
        return;
    bool ones = true;
    for (int i = 0; i < axes.rank; i++)
        ones = ones && s.dim[axes.dim[i]] == 1;
    *o = (dti_labelled){ones ? dt_reshape(o->x, kept) : dt_sum(o->x, axes, false), rest};
}

/* ---- two operands */

typedef struct dti_pairing { /* letters of both that stay, of both that are summed, of one */
    dti_letters both, summed, alone[2];
} dti_pairing;

static void dti_letters_join(dti_letters *to, const dti_letters *more) {
    for (int i = 0; i < more->count; i++)
        to->of[to->count++] = more->of[i];
}

static void dti_einsum_pair_of(const dti_labelled *a, const dti_labelled *b, const bool *needed,
                               dti_pairing *p) {
    *p = (dti_pairing){0};
    for (int i = 0; i < a->is.count; i++) {
        const int8_t c = a->is.of[i];
        dti_letters *to = !dti_letters_have(&b->is, c) ? &p->alone[0]
                          : needed[c]                  ? &p->both
                                                       : &p->summed;
        to->of[to->count++] = c;
    }
    for (int i = 0; i < b->is.count; i++) {
        if (!dti_letters_have(&a->is, b->is.of[i]))
            p->alone[1].of[p->alone[1].count++] = b->is.of[i];
    }
}

static int64_t dti_einsum_size(const dti_einsum *e, const dti_letters *s) {
    int64_t size = 1;
    for (int i = 0; i < s->count; i++)
        size *= e->size[s->of[i]];
    return size;
}

static dt_shape dti_einsum_shape(const dti_einsum *e, const dti_letters *s) {
    dt_shape shape = {.rank = s->count};
    for (int i = 0; i < s->count; i++)
        shape.dim[i] = e->size[s->of[i]];
    return shape;
}

/* Its dimensions as [both, own, summed], as the product of matrices takes them. */
static dt_tensor dti_einsum_matrix(const dti_einsum *e, const dti_pairing *p, dti_labelled *o,
                                   int which) {
    dti_letters order = p->both;
    dt_shape s = {0};
    dti_letters_join(&order, &p->alone[which]);
    dti_letters_join(&order, &p->summed);
    dti_einsum_order(o, &order);
    if (p->both.count)
        s.dim[s.rank++] = dti_einsum_size(e, &p->both);
    s.dim[s.rank++] = dti_einsum_size(e, &p->alone[which]);
    s.dim[s.rank++] = dti_einsum_size(e, &p->summed);
    return dt_reshape(o->x, s);
}

/* [both, only the first's, only the second's], with size 1 for the other's letters. */
static dt_tensor dti_einsum_elements(const dti_einsum *e, const dti_pairing *p, dti_labelled *o,
                                     int which) {
    dti_letters order = p->both;
    dti_letters_join(&order, &p->alone[which]);
    dti_einsum_order(o, &order);
    dt_shape s = dti_einsum_shape(e, &p->both);
    for (int side = 0; side < 2; side++) {
        const dt_shape own = dti_einsum_shape(e, &p->alone[side]);
        for (int i = 0; i < own.rank; i++)
            s.dim[s.rank++] = side == which ? own.dim[i] : 1;
    }
    return dt_reshape(o->x, s);
}

/* A product of matrices. It is a linear layer if one matrix is the same for all samples, and no
 * shared letter stays. A linear layer's gradient is summed over samples at once. */
static dt_tensor dti_einsum_matmul(const dti_einsum *e, dti_pairing *p, dti_labelled *a,
                                   dti_labelled *b) {
    const bool turned = dti_tensor_has_samples(b->x) && !dti_tensor_has_samples(a->x);
    const bool linear = !p->both.count && !(dti_tensor_has_samples(b->x) && !turned);
    const dt_tensor x = dti_einsum_matrix(e, p, a, 0), w = dti_einsum_matrix(e, p, b, 1);
    if (!linear)
        return dt_matmul_transposed(x, w, false, true);
    if (!turned)
        return dt_linear(x, w, (dt_tensor){0});
    const dti_letters first = p->alone[0];
    p->alone[0] = p->alone[1], p->alone[1] = first;
    return dt_linear(w, x, (dt_tensor){0});
}

/* Operand b joins a; `needed` has the letters of the result and of later operands. */
static bool dti_einsum_pair(const dti_einsum *e, dti_labelled *a, dti_labelled *b,
                            const bool *needed) {
    dti_pairing p;
    dti_einsum_pair_of(a, b, needed, &p);
    const int count = p.both.count + p.alone[0].count + p.alone[1].count;
    if (count > DT_MAX_DIMS)
        return DTI_EINSUM_FAIL(e,
                               "two operands, from the left, have a product of %d dimensions, more "
                               "than %d: give them in another order",
                               count, DT_MAX_DIMS);
    dt_tensor y;
    if (p.summed.count) {
        y = dti_einsum_matmul(e, &p, a, b);
    } else {
        const dt_tensor left = dti_einsum_elements(e, &p, a, 0);
        y = dt_mul(left, dti_einsum_elements(e, &p, b, 1));
    }
    dti_letters is = p.both;
    dti_letters_join(&is, &p.alone[0]);
    dti_letters_join(&is, &p.alone[1]);
    if (p.summed.count)
        y = dt_reshape(y, dti_einsum_shape(e, &is));
    *a = (dti_labelled){y, is};
    return !dti_is_nil(y);
}

/* ---- the whole */

static void dti_einsum_need(bool *needed, const dti_letters *s) {
    for (int i = 0; i < s->count; i++)
        needed[s->of[i]] = true;
}

static dt_tensor dti_einsum_products(dti_einsum *e) {
    bool all[128];
    memset(all, true, sizeof all);
    for (int i = 0; i < e->count; i++) {
        while (dti_einsum_diagonal(&e->in[i]))
            continue;
        dti_einsum_reduce(e, &e->in[i], all);
    }
    dti_labelled *y = &e->in[0];
    for (int i = 1; i < e->count; i++) {
        bool needed[128] = {false}, left[128], right[128];
        dti_einsum_need(needed, &e->out);
        for (int k = i + 1; k < e->count; k++)
            dti_einsum_need(needed, &e->in[k].is);
        memcpy(left, needed, sizeof left);
        memcpy(right, needed, sizeof right);
        dti_einsum_need(left, &e->in[i].is);
        dti_einsum_reduce(e, y, left);
        dti_einsum_need(right, &y->is);
        dti_einsum_reduce(e, &e->in[i], right);
        if (!dti_einsum_pair(e, y, &e->in[i], needed))
            return dti_nil(e->g);
    }
    if (dti_is_nil(y->x))
        return dti_nil(e->g); /* its sizes are not known */
    memset(all, false, sizeof all);
    dti_einsum_need(all, &e->out);
    dti_einsum_reduce(e, y, all);
    dti_einsum_order(y, &e->out);
    return dt_reshape(y->x, dti_einsum_shape(e, &e->out));
}

/* By its equation as its name. i: operands */
static dt_tensor dti_einsum_make(dt_graph *g, const dti_call *c) {
    dti_einsum e = {.g = g, .equation = c->name, .at = c->name, .count = c->attr.i[0]};
    for (int i = 0; i < e.count; i++)
        e.in[i].x = dti_call_in(g, c, (uint32_t)i);
    return dti_einsum_read(&e) ? dti_einsum_products(&e) : dti_nil(g);
}

DT_API dt_tensor dt_einsum(const char *equation, const dt_tensor *operands, int count) {
    if (!operands || count < 1)
        return (dt_tensor){0};
    dt_graph *g = operands[0].graph;
    if (!DTI_HERE)
        return dti_graph_off(g, "dt_einsum", DTI_HERE_OFF);
    dti_call call = {.attr = {.i = {count}}, .make = dti_einsum_make};
    for (int i = 0; i < DTI_MIN(count, DTI_CALL_INPUTS); i++) {
        if (dti_is_nil(operands[i]) && (operands[i].graph || !g))
            return dti_nil_of(operands[i], "einsum");
        if (operands[i].graph != g)
            return dti_graph_fail(g, "einsum: operand %d is {0}, or of another graph", i + 1);
        call.in[i] = operands[i].id;
    }
    if (!equation || count > DTI_CALL_INPUTS)
        return dti_graph_fail(g, "einsum: %s %d operands; it takes a text and 1 to %d",
                              equation ? equation : "NULL, with", count, DTI_CALL_INPUTS);
    call.name = dti_graph_string(g, equation);
    return call.name ? dti_call_make(g, &call) : dti_nil(g);
}
