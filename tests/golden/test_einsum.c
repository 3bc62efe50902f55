/* Sums of products by letters: random equations against plain loops in double, PyTorch's recorded
 * values (tools/golden/record_golden_einsum.py), their parts, and texts that are refused. */
#include "golden/golden_op.h"

#include <stdlib.h>

enum { BATCH = 2, OPERANDS = 3, LETTERS = 6, DIMS = LETTERS, ELEMENTS = 3 * 3 * 3 * 3 * 3 * BATCH };

typedef struct term_of { /* an operand, or the result */
    int rank, letter[DIMS], size[DIMS];
    bool samples;
    float value[ELEMENTS];
    double wanted[ELEMENTS], room[ELEMENTS]; /* gradient, or the result's value; sizes of addends */
} term_of;

typedef struct sum_case {
    uint32_t state;
    int count, dots; /* dots: that number of last letters are "..." */
    int size[LETTERS];
    char text[64];
    term_of in[OPERANDS], out;
} sum_case;

static int draw(sum_case *c, int below) {
    c->state = c->state * 1664525u + 1013904223u;
    return (int)((c->state >> 10) % (uint32_t)below);
}

static int term_elements(const term_of *t) {
    int n = t->samples ? BATCH : 1;
    for (int i = 0; i < t->rank; i++)
        n *= t->size[i];
    return n;
}

static void term_fill(sum_case *c, term_of *t) {
    for (int i = 0; i < ELEMENTS; i++) {
        t->value[i] = (float)(draw(c, 2001) - 1000) / 1000.0f;
        t->wanted[i] = t->room[i] = 0;
    }
}

static void case_add(sum_case *c, const term_of *t) {
    static const char names[] = "cbaBxy";
    char *at = c->text + strlen(c->text);
    bool dots = false;
    for (int i = 0; i < t->rank; i++) {
        const bool hidden = t->letter[i] >= LETTERS - c->dots;
        if (!hidden)
            *at++ = names[t->letter[i]];
        else if (!dots)
            memcpy(at, "...", 3), at += 3;
        dots = dots || hidden;
        if (draw(c, 8) == 0)
            *at++ = ' ';
    }
    *at = 0;
}

/* Letters in any order, twice too; those of "..." as a tail of them, without gaps */
static void case_operand(sum_case *c, term_of *t) {
    const int rank = draw(c, 4), dots = draw(c, c->dots + 1), place = draw(c, rank + 1);
    t->rank = 0;
    for (int i = 0; i <= rank; i++) {
        for (int k = 0; k < dots && i == place; k++)
            t->letter[t->rank++] = LETTERS - dots + k;
        if (i < rank)
            t->letter[t->rank++] = draw(c, LETTERS - c->dots);
    }
    for (int i = 0; i < t->rank; i++) {
        t->size[i] = draw(c, 6) ? c->size[t->letter[i]] : 1;
        for (int k = 0; k < i; k++)
            t->size[i] = t->letter[k] == t->letter[i] ? t->size[k] : t->size[i];
    }
    t->samples = draw(c, 3) > 0;
    term_fill(c, t);
}

static void case_out(sum_case *c, const int *times, const int *size, int most) {
    static const int alphabet[LETTERS] = {3, 2, 1, 0, 4, 5}; /* capitals, a, b, c, x, y */
    const bool implied = draw(c, 3) == 0;
    int order[LETTERS];
    c->out.rank = 0;
    for (int i = 0; i < LETTERS; i++)
        order[i] = i;
    for (int i = 0; i < LETTERS - c->dots && !implied; i++) {
        const int k = draw(c, LETTERS - c->dots), was = order[i];
        order[i] = order[k], order[k] = was;
    }
    const bool dots = implied || draw(c, 4) > 0;
    for (int i = 0; i < LETTERS; i++) {
        const int named = i - c->dots; /* "..." comes before an alphabet */
        const int l = !implied ? order[i] : named < 0 ? LETTERS + named : alphabet[named];
        const bool hidden = l >= LETTERS - c->dots;
        if (hidden ? dots && l >= LETTERS - most
                   : times[l] > 0 && (implied ? times[l] == 1 : draw(c, 2) && c->out.rank < 3))
            c->out.letter[c->out.rank] = l, c->out.size[c->out.rank++] = size[l];
    }
    if (!implied) {
        strcat(c->text, draw(c, 2) ? " -> " : "->");
        case_add(c, &c->out);
    }
}

/* False: the drawn one has too many dimensions for an implied result. */
static bool case_make(sum_case *c, uint32_t seed) {
    int times[LETTERS] = {0}, size[LETTERS], most = 0, single = 0;
    c->state = seed * 2654435761u + 17;
    c->text[0] = 0;
    c->count = 1 + draw(c, OPERANDS);
    c->dots = draw(c, 3);
    c->out.samples = false;
    for (int l = 0; l < LETTERS; l++)
        c->size[l] = 1 + draw(c, 3), size[l] = 1;
    for (int i = 0; i < c->count; i++) {
        term_of *t = &c->in[i];
        case_operand(c, t);
        c->out.samples = c->out.samples || t->samples;
        strcat(c->text, i ? "," : "");
        case_add(c, t);
        for (int k = 0; k < t->rank; k++) {
            times[t->letter[k]]++;
            most = t->letter[k] >= LETTERS - c->dots && LETTERS - t->letter[k] > most
                       ? LETTERS - t->letter[k]
                       : most;
            size[t->letter[k]] = t->size[k] > 1 ? t->size[k] : size[t->letter[k]];
        }
    }
    memcpy(c->size, size, sizeof size);
    for (int l = 0; l < LETTERS - c->dots; l++)
        single += times[l] == 1;
    case_out(c, times, size, most);
    term_fill(c, &c->out);
    return single <= 3;
}

static int term_place(const term_of *t, const int *at, int sample) {
    int place = t->samples ? sample : 0;
    for (int i = 0; i < t->rank; i++)
        place = place * t->size[i] + (t->size[i] > 1 ? at[t->letter[i]] : 0);
    return place;
}

/* One choice of all letters: an addend of the result, and of each gradient. */
static void case_addend(sum_case *c, const int *at, int sample) {
    const int o = term_place(&c->out, at, sample);
    for (int k = -1; k < c->count; k++) {
        double product = k < 0 ? 1 : (double)c->out.value[o];
        for (int i = 0; i < c->count; i++)
            product *= i == k ? 1 : (double)c->in[i].value[term_place(&c->in[i], at, sample)];
        term_of *to = k < 0 ? &c->out : &c->in[k];
        const int place = k < 0 ? o : term_place(&c->in[k], at, sample);
        to->wanted[place] += product;
        to->room[place] += fabs(product);
    }
}

static void case_loops(sum_case *c) {
    int at[LETTERS] = {0};
    for (int sample = 0; sample < (c->out.samples ? BATCH : 1); sample++)
        for (bool more = true; more;) {
            case_addend(c, at, sample);
            int l = 0;
            while (l < LETTERS && ++at[l] == c->size[l])
                at[l++] = 0;
            more = l < LETTERS;
        }
}

static void case_compare(golden *g, const sum_case *c, dt_program *p, dt_tensor x,
                         const term_of *t) {
    float got[ELEMENTS];
    const int n = term_elements(t);
    if (!OK(g, dt_program_read(p, x, got, (size_t)n * 4)))
        return;
    for (int i = 0; i < n; i++)
        test_check(fabs((double)got[i] - t->wanted[i]) <= 2e-6 * t->room[i] + 1e-9, __FILE__,
                   __LINE__, "\"%s\" [%d] is %.9g, not %.9g", c->text, i, (double)got[i],
                   t->wanted[i]);
}

static dt_tensor case_input(golden *g, const term_of *t, const char *name) {
    dt_shape s = {.rank = t->rank};
    for (int i = 0; i < t->rank; i++)
        s.dim[i] = t->size[i];
    return t->samples ? dt_input(g->graph, name, DT_F32, s)
                      : dt_input_shared(g->graph, name, DT_F32, s);
}

static void case_check(golden *g, sum_case *c) {
    static const char *const names[] = {"a", "b", "c"};
    dt_tensor in[OPERANDS];
    op_graph(g);
    for (int i = 0; i < c->count; i++)
        in[i] = case_input(g, &c->in[i], names[i]);
    dt_tensor dy = case_input(g, &c->out, "dy"), y = dt_einsum(c->text, in, c->count);
    dt_program_desc desc = {.batch = BATCH, .outputs = {y}};
    dt_tensor sum = dt_sum(dt_mul(y, dy), dt_dims(), false);
    for (int i = 0; i < c->count; i++)
        desc.outputs[i + 1] = dt_gradient(sum, in[i]);
    const char *error = dt_graph_error(g->graph);
    const dt_store_desc on = {.device = g->device};
    dt_program *p = NULL;
    if (test_check(!error && dt_tensor_shape(y).rank == c->out.rank, __FILE__, __LINE__, "%s: %s",
                   c->text, error ? error : "another rank") &&
        OK(g, dt_store_create(g->graph, &on, &g->store)))
        p = golden_program(g, desc);
    bool ok = p && OK(g, dt_program_write(p, dy, c->out.value, (size_t)term_elements(&c->out) * 4));
    for (int i = 0; i < c->count && ok; i++)
        ok =
            OK(g, dt_program_write(p, in[i], c->in[i].value, (size_t)term_elements(&c->in[i]) * 4));
    if (ok && OK(g, dt_program_run(p, NULL, NULL))) {
        case_compare(g, c, p, y, &c->out);
        for (int i = 0; i < c->count; i++)
            case_compare(g, c, p, desc.outputs[i + 1], &c->in[i]);
    }
    op_end(g);
}

GOLDEN(random_equations_and_their_gradients_are_their_sums, NULL) {
    static sum_case c;
    const bool cpu = strcmp(g->device, "cpu") == 0;
    const int all = getenv("DTRAIN_TEST_LONG") ? 20000 : cpu ? 400 : 25;
    int made = 0;
    for (int seed = 1; seed <= all; seed++) {
        if (!case_make(&c, (uint32_t)seed))
            continue;
        case_loops(&c);
        case_check(g, &c);
        made++;
    }
    CHECK(made > all / 2);
}

GOLDEN(equations_and_their_gradients_are_pytorchs, "einsum") {
    static const struct {
        const char *name, *equation;
        dt_shape x, w;
    } cases[] = {
        {"transposed", "ij->ji", {2, {3, 4}}, {-1, {0}}},
        {"trace", "ii", {2, {3, 3}}, {-1, {0}}},
        {"diagonal", "iji->ji", {3, {3, 2, 3}}, {-1, {0}}},
        {"linear", "te,oe->to", {2, {3, 4}}, {2, {2, 4}}},
        {"heads", " t h d , h d e -> t e ", {3, {3, 2, 2}}, {3, {2, 2, 3}}},
        {"beside", "bi,bj->bij", {2, {2, 3}}, {2, {2, 2}}},
        {"dots", "...ij,jk", {3, {2, 3, 4}}, {2, {4, 2}}},
        {"capitals", "bA,A->Ab", {2, {2, 3}}, {1, {3}}},
        {"whole", "ij,ij->", {2, {3, 4}}, {2, {3, 4}}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        dt_graph *graph = op_graph(g);
        const bool two = cases[i].w.rank >= 0;
        leaf leaves[2] = {{"x", dt_input(graph, "x", DT_F32, cases[i].x)}};
        if (two)
            leaves[1] = (leaf){"w", dt_input_shared(graph, "w", DT_F32, cases[i].w)};
        dt_tensor y =
            dt_einsum(cases[i].equation, (dt_tensor[]){leaves[0].x, leaves[1].x}, 1 + two);
        const char *error = dt_graph_error(graph);
        if (test_check(!error, __FILE__, __LINE__, "%s", error ? error : ""))
            op_check(g, cases[i].name, 2, y, leaves, 1 + two);
    }
}

TEST(einsum_refuses_an_equation_that_does_not_fit) {
    static const struct {
        const char *equation;
        int count;
        const char *says;
    } cases[] = {
        {"ij,jk->ik", 1, "it names 2 operands, but 1 are given"},
        {"ij", 2, "it names 1 operands, but 2 are given"},
        {"ij,jk,kl,lm,mn,no", 6, "6 operands; it takes a text and 1 to 5"},
        {NULL, 1, "NULL"},
        {"i j1->i", 1, "'1' at character 4"},
        {"ij>i", 1, "'>' at character 3"},
        {"ij-i", 1, "'-' without '>' at character 3"},
        {"ij->ij->i", 1, "'-' after the result"},
        {"ij->i,j", 2, "operand 2 is after '->'"},
        {"i..j", 1, "'.' at character 2"},
        {"...ij...", 1, "'.' at character 6"},
        {"ijk->i", 1, "has 3 letters"},
        {"i", 1, "has 1 letters"},
        {"", 1, "has 0 letters"},
        {"ijkabcd", 1, "more than 5 letters"},
        {"ij->k", 1, "'k' in the result appears in no operand"},
        {"ij->jij", 1, "'j' in the result appears twice"},
        {"ii", 1, "'i' is both 2 and 3 in one operand"},
        {"ij,ij", 2, "'i' is both 2 and 3"},
        {"i...,i...", 2, "'i' is both 2 and 3"},
        {"...i,...i", 2, "'...' is both 2 and 3"},
        {"ij,kl,mn", 3, "its result has more than 5 dimensions"},
        {"ij,kl,mn->n", 3, NULL},
        {"ij,kl,mn,jlk->imn", 4, "a product of 6 dimensions"},
    };
    golden g = {.device = "cpu"};
    OK(&g, dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &g.ctx));
    OK(&g, dt_graph_create(g.ctx, &g.graph));
    dt_tensor a = dt_input(g.graph, "a", DT_F32, dt_dims(2, 3));
    dt_tensor b = dt_input(g.graph, "b", DT_F32, dt_dims(3, 2));
    dt_tensor far = dt_input(g.graph, "far", DT_F32, dt_dims(3, 2, 3));
    const dt_tensor in[] = {a, b, a, far, a, a};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        dt_graph_clear_error(g.graph);
        const dt_tensor y = dt_einsum(cases[i].equation, in, cases[i].count);
        const char *error = dt_graph_error(g.graph), *says = cases[i].says;
        test_check(says ? !y.id && error && strstr(error, says) : y.id != 0, __FILE__, __LINE__,
                   "%s: %s", cases[i].equation ? cases[i].equation : "NULL",
                   error ? error : "no error");
    }
    golden_close(&g);
}

/* Nothing has sizes then, the letters of a diagonal neither. */
TEST(einsum_after_another_error_is_nil) {
    golden g = {.device = "cpu"};
    OK(&g, dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &g.ctx));
    OK(&g, dt_graph_create(g.ctx, &g.graph));
    dt_tensor x = dt_input(g.graph, "x", DT_F32, dt_dims(3, 3));
    CHECK(!dt_reshape(x, dt_dims(2)).id);
    CHECK(!dt_einsum("ii->i", &x, 1).id && !dt_einsum("ij->ji", &x, 1).id);
    CHECK_CONTAINS(dt_graph_error(g.graph), "reshape");
    golden_close(&g);
}

static int sum_launches(golden *g, dt_tensor y) {
    dt_program_info info = {0};
    dt_program *p = NULL;
    if (OK(g, dt_store_create(g->graph, &(dt_store_desc){.device = g->device}, &g->store)))
        p = golden_program(g, (dt_program_desc){.outputs = {y}, .batch = 2});
    if (p)
        dt_program_get_info(p, &info);
    op_end(g);
    return info.launches;
}

/* One product, where letters are summed, and none of elements; a weight's is a linear layer's. */
GOLDEN(a_contraction_is_one_product, NULL) {
    dt_tensor q = dt_input(g->graph, "q", DT_F32, dt_dims(2, 4, 3));
    dt_tensor k = dt_input(g->graph, "k", DT_F32, dt_dims(2, 5, 3));
    dt_tensor w = dt_param(g->graph, "w", dt_dims(5, 4, 3), (dt_init){0});
    CHECK(sum_launches(g, dt_einsum("hqd,hkd->hqk", (dt_tensor[]){q, k}, 2)) == 1);
    CHECK(sum_launches(g, dt_einsum("hqd,oqd->ho", (dt_tensor[]){q, w}, 2)) == 1);
    CHECK(sum_launches(g, dt_einsum("oqd,hqd->oh", (dt_tensor[]){w, q}, 2)) == 2); /* turned */
}

/* The sizes of t are new to each program; tensors computed from them are made again. */
TEST(einsum_is_rebuilt_at_other_shapes) {
    golden g = {.device = "cpu"};
    OK(&g, dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &g.ctx));
    OK(&g, dt_graph_create(g.ctx, &g.graph));
    dt_tensor x = dt_input(g.graph, "x", DT_F32, dt_dims(4, 3));
    dt_tensor y = dt_einsum("ti,si->st", (dt_tensor[]){x, x}, 2);
    const float rows[6] = {1, 2, 3, 4, 5, 6};
    float got[4];
    dt_program *p = NULL;
    if (OK(&g, dt_store_create(g.graph, NULL, &g.store)))
        p = golden_program(&g, (dt_program_desc){.outputs = {y}, .shapes = {{x, dt_dims(2, 3)}}});
    if (p && OK(&g, dt_program_write(p, x, rows, sizeof rows)) &&
        OK(&g, dt_program_run(p, NULL, NULL)) && OK(&g, dt_program_read(p, y, got, sizeof got)))
        CHECK(got[0] == 14 && got[1] == 32 && got[2] == 32 && got[3] == 77);
    golden_close(&g);
}
