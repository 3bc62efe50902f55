/* Calls in an order that nobody would write. From a seed, objects are created, used and destroyed
 * at random, and steps are begun and left. Tensors of one graph are given to another, and memory
 * runs out. Nothing may crash or leak, and whatever fails says so with a text and leaves every
 * store as it was; at the end each store that is left still trains as a new one, bit for bit. */
#include "wrong/wrong_args.h"

#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
#define SEEDS 60 /* each takes ten times as long */
#else
#define SEEDS 300
#endif
#define CALLS 120

enum { GRAPHS = 2, STORES = 3, PROGRAMS = 5, SPARE = 4 };

typedef struct lab_graph {
    dt_graph *graph;
    bool norm; /* with a batch norm, whose buffers a step moves */
    dt_tensor x, label, logits, loss, spare[SPARE];
} lab_graph;

typedef struct lab_store {
    dt_store *store;
    int graph;
    dt_trainer *trainer; /* whose it is, or NULL */
    uint64_t hash;       /* before the call */
} lab_store;

typedef struct lab_program {
    dt_program *program;
    int store;
} lab_program;

typedef struct lab {
    uint64_t random;
    dt_ctx *ctx;
    lab_graph graphs[GRAPHS];
    lab_store stores[STORES];
    lab_program programs[PROGRAMS];
    int failing; /* allocations until one fails; -1: none will */
    int errors, held;
    const char *call; /* the newest, for messages */
    unsigned long seed;
} lab;

static int lab_pick(lab *l, int count) {
    l->random = l->random * 6364136223846793005u + 1442695040888963407u;
    return (int)((l->random >> 33) % (uint64_t)count);
}

static void *lab_alloc(void *user, size_t bytes, size_t align) {
    lab *l = user;
    void *memory = NULL;
    if (l->failing >= 0 && l->failing-- == 0)
        return NULL;
    if (posix_memalign(&memory, align < sizeof(void *) ? sizeof(void *) : align, bytes))
        return NULL;
    l->held++;
    return memory;
}

static void lab_free(void *user, void *memory, size_t bytes) {
    (void)bytes;
    ((lab *)user)->held -= memory != NULL;
    free(memory);
}

static void lab_log(void *user, dt_log_level level, const char *message) {
    ((lab *)user)->errors += level == DT_LOG_ERROR && message[0];
}

static void lab_check(const lab *l, bool ok, const char *what) {
    test_check(ok, __FILE__, __LINE__, "seed %lu: %s: %s (%s)", l->seed, l->call, what,
               dt_ctx_error(l->ctx));
}

static uint64_t lab_hash(const lab_store *s) {
    uint64_t hash = 0;
    return s->store && dt_store_state_hash(s->store, &hash) == DT_OK ? hash : 0;
}

/* What failed has a text, and changed no store. */
static dt_result lab_said(lab *l, dt_result result) {
    if (!result)
        return result;
    l->failing = -1;
    lab_check(l, l->errors > 0 && dt_ctx_error(l->ctx)[0], "failed without a text");
    for (int i = 0; i < STORES; i++)
        lab_check(l, lab_hash(&l->stores[i]) == l->stores[i].hash, "failed, and changed a store");
    return result;
}

/* ---- The objects that end with each */

static void lab_forget_store(lab *l, int store) {
    for (int i = 0; i < PROGRAMS; i++)
        if (l->programs[i].program && l->programs[i].store == store)
            l->programs[i] = (lab_program){0};
    l->stores[store] = (lab_store){0};
}

static void lab_forget_graph(lab *l, int graph) {
    for (int i = 0; i < STORES; i++)
        if (l->stores[i].store && l->stores[i].graph == graph)
            lab_forget_store(l, i);
    l->graphs[graph] = (lab_graph){0};
}

/* ---- Graphs */

static void lab_build(lab_graph *g, bool norm) {
    dt_init half = {DT_INIT_CONSTANT, 0.5f, 0};
    g->norm = norm;
    g->x = dt_input(g->graph, "x", DT_F32, dt_dims(4));
    g->label = dt_input(g->graph, "label", DT_I32, dt_dims());
    dt_tensor w = dt_param(g->graph, "w", dt_dims(3, 4), half);
    dt_tensor b = dt_param(g->graph, "b", dt_dims(3), (dt_init){0});
    dt_tensor x = norm ? dt_nn_batch_norm(g->x, "bn", NULL) : g->x;
    g->logits = dt_linear(x, w, b);
    g->loss = dt_cross_entropy(g->logits, g->label, NULL);
}

static void lab_graph_create(lab *l) {
    int at = lab_pick(l, GRAPHS);
    if (l->graphs[at].graph)
        return;
    if (!lab_said(l, dt_graph_create(l->ctx, &l->graphs[at].graph)))
        lab_build(&l->graphs[at], lab_pick(l, 2));
}

static void lab_graph_destroy(lab *l) {
    int at = lab_pick(l, GRAPHS);
    if (lab_pick(l, 8))
        return;
    dt_graph_destroy(l->graphs[at].graph);
    lab_forget_graph(l, at);
}

static dt_tensor lab_tensor(lab *l) {
    const lab_graph *g = &l->graphs[lab_pick(l, GRAPHS)];
    const dt_tensor all[] = {g->x, g->label, g->logits, g->loss};
    int which = lab_pick(l, 4 + SPARE);
    return which < 4 ? all[which] : g->spare[which - 4];
}

/* Ops on whatever there is, right or wrong. */
static void lab_op(lab *l) {
    dt_tensor a = lab_tensor(l), b = lab_tensor(l), y = {0};
    switch (lab_pick(l, 9)) {
    case 0: y = dt_add(a, b); break;
    case 1: y = dt_tanh(a); break;
    case 2: y = dt_gradient(a, b); break;
    case 3: y = dt_nn_linear(a, "layer", 3); break;
    case 4: y = dt_reshape(a, dt_dims(2, 2)); break;
    case 5: y = dt_mean_loss(a); break;
    case 6: y = dt_dropout(a, 0.5f); break;
    case 7: y = dt_softmax(a, 0); break;
    default: y = dt_sum(dt_mul(a, b), dt_dims(), false); break;
    }
    for (int i = 0; i < GRAPHS; i++)
        if (y.graph && l->graphs[i].graph == y.graph)
            l->graphs[i].spare[lab_pick(l, SPARE)] = y;
}

static void lab_clear(lab *l) {
    dt_graph_clear_error(l->graphs[lab_pick(l, GRAPHS)].graph);
}

/* ---- Stores and trainers */

static void lab_store_create(lab *l) {
    int at = lab_pick(l, STORES), graph = lab_pick(l, GRAPHS);
    if (l->stores[at].store || !l->graphs[graph].graph)
        return;
    dt_store_desc desc = {.device = "cpu", .seed = 7};
    dt_store *store = NULL;
    if (!lab_said(l, dt_store_create(l->graphs[graph].graph, &desc, &store)))
        l->stores[at] = (lab_store){.store = store, .graph = graph};
    CHECK((l->stores[at].store != NULL) == (store != NULL));
}

static void lab_store_destroy(lab *l) {
    int at = lab_pick(l, STORES);
    if (lab_pick(l, 6))
        return;
    dt_store_destroy(l->stores[at].store); /* a trainer's stays */
    if (!l->stores[at].trainer)
        lab_forget_store(l, at);
}

static void lab_trainer_create(lab *l) {
    int at = lab_pick(l, STORES), graph = lab_pick(l, GRAPHS);
    const lab_graph *g = &l->graphs[graph];
    if (l->stores[at].store || !g->graph || lab_pick(l, 3))
        return;
    dt_trainer_desc desc = {.loss = g->loss, .params = "w,b", .batch = 4};
    desc.devices = lab_pick(l, 4) ? "cpu" : "cpu:2";
    desc.checkpoint.folder = lab_pick(l, 2) ? wrong_path("wrong-sequences") : NULL;
    dt_optim_desc optim = {.kind = DT_OPTIM_SGD, .lr = 0.1, .momentum = 0.9};
    desc.optim = &optim;
    desc.parallel.batch_slices = lab_pick(l, 3);
    desc.data = (dt_dataset){
        .rows = 8,
        .columns = {
            {.input = g->x, .data = wrong_x},
            {.input = g->label, .data = wrong_labels, .dtype = lab_pick(l, 9) ? DT_I32 : DT_U8}}};
    dt_trainer *trainer = NULL;
    if (!lab_said(l, dt_trainer_create(g->graph, &desc, &trainer)))
        l->stores[at] =
            (lab_store){.store = dt_trainer_store(trainer), .graph = graph, .trainer = trainer};
}

static void lab_trainer_destroy(lab *l) {
    int at = lab_pick(l, STORES);
    if (!l->stores[at].trainer || lab_pick(l, 3))
        return;
    dt_trainer_destroy(l->stores[at].trainer);
    lab_forget_store(l, at);
}

static void lab_trainer_use(lab *l) {
    dt_trainer *trainer = l->stores[lab_pick(l, STORES)].trainer;
    const char *path = wrong_path("wrong-sequences.checkpoint");
    if (!trainer)
        return;
    dt_dataset data = {.rows = 3,
                       .columns = {{.input = lab_tensor(l), .data = wrong_x},
                                   {.input = lab_tensor(l), .data = wrong_labels}}};
    data.columns[1].dtype = DT_I32;
    switch (lab_pick(l, 10)) {
    case 8: lab_said(l, dt_trainer_wait(trainer, NULL)); break;
    case 0: lab_said(l, dt_trainer_evaluate(trainer, &data, lab_pick(l, 3), NULL)); break;
    case 4: lab_said(l, dt_trainer_checkpoint(trainer)); break;
    case 5: lab_said(l, dt_trainer_resume(trainer, NULL)); break;
    case 6:
    case 7: lab_said(l, dt_trainer_step(trainer, NULL)); break;
    case 1: lab_said(l, dt_trainer_epoch(trainer, NULL)); break;
    case 2: lab_said(l, dt_trainer_save(trainer, path)); break;
    case 3: lab_said(l, dt_trainer_load(trainer, path)); break;
    default: lab_said(l, dt_trainer_set_lr(trainer, 0.1 * lab_pick(l, 3) - 0.1)); break;
    }
}

static void lab_store_use(lab *l) {
    dt_store *store = l->stores[lab_pick(l, STORES)].store;
    const char *path = wrong_path("wrong-sequences.safetensors");
    const char *state = wrong_path("wrong-sequences.state");
    float values[12] = {0};
    if (!store)
        return;
    dt_value_kind kind = (dt_value_kind)lab_pick(l, 4);
    dt_store *other = l->stores[lab_pick(l, STORES)].store;
    switch (lab_pick(l, 8)) {
    case 7: lab_said(l, dt_store_copy(store, other)); break;
    case 4: lab_said(l, dt_store_reset(store, (dt_reset_kind)lab_pick(l, 3))); break;
    case 5: lab_said(l, dt_store_save_state(store, state)); break;
    case 6: lab_said(l, dt_store_load_state(store, state)); break;
    case 0: lab_said(l, dt_store_read(store, lab_pick(l, 3), kind, values, 48)); break;
    case 1: lab_said(l, dt_store_write(store, lab_pick(l, 3), kind, values, 48)); break;
    case 2: lab_said(l, dt_store_save(store, path)); break;
    default: lab_said(l, dt_store_load(store, path)); break;
    }
}

/* ---- Programs */

static dt_result lab_train(dt_store *store, const lab_graph *g, dt_program **out) {
    dt_optim_desc optim = {.kind = DT_OPTIM_SGD, .lr = 0.1, .momentum = 0.9};
    dt_program_desc desc = {.loss = g->loss, .batch = 4, .params = "w,b", .optim = &optim};
    desc.accumulate = true;
    desc.in_flight = 2;
    return dt_program_create(store, &desc, out);
}

static void lab_program_create(lab *l) {
    int at = lab_pick(l, PROGRAMS), store = lab_pick(l, STORES);
    if (l->programs[at].program || !l->stores[store].store)
        return;
    const lab_store *s = &l->stores[store];
    const lab_graph *g = &l->graphs[s->graph];
    dt_program_desc desc = {.outputs = {lab_tensor(l)}, .batch = lab_pick(l, 5)};
    dt_program *program = NULL;
    dt_result result;
    if (lab_pick(l, 2)) {
        result = lab_train(s->store, g, &program);
    } else {
        if (lab_pick(l, 2))
            desc.outputs[0] = desc.host_gradients[0] = g->logits;
        desc.gradients = lab_pick(l, 2);
        desc.concurrent = lab_pick(l, 3) == 0;
        desc.in_flight = lab_pick(l, 3);
        desc.loss = lab_pick(l, 2) ? g->loss : (dt_tensor){0};
        result = dt_program_create(s->store, &desc, &program);
    }
    lab_said(l, result);
    l->programs[at] = (lab_program){program, store};
}

static void lab_program_destroy(lab *l) {
    int at = lab_pick(l, PROGRAMS);
    if (lab_pick(l, 4))
        return;
    dt_program_destroy(l->programs[at].program);
    l->programs[at] = (lab_program){0};
}

static void lab_program_write(lab *l) {
    const lab_program *p = &l->programs[lab_pick(l, PROGRAMS)];
    if (!p->program)
        return;
    const lab_graph *g = &l->graphs[lab_pick(l, 8) ? l->stores[p->store].graph : 0];
    dt_program_info info;
    dt_program_get_info(p->program, &info);
    size_t batch = (size_t)info.batch;
    lab_said(l, dt_program_write(p->program, g->x, wrong_x, 16 * batch));
    if (lab_pick(l, 8))
        lab_said(l, dt_program_write(p->program, g->label, wrong_labels, 4 * batch));
    if (!lab_pick(l, 4))
        lab_said(l, dt_program_write_gradient(p->program, g->logits, wrong_x, 12 * batch));
}

static void lab_program_use(lab *l) {
    const lab_program *p = &l->programs[lab_pick(l, PROGRAMS)];
    dt_step_desc step = {.micro_batch = (uint32_t)lab_pick(l, 2),
                         .micro_batches = (uint32_t)lab_pick(l, 3)};
    dt_step_state state;
    float values[12];
    double weights[DT_MAX_TERMS] = {0};
    if (!p->program)
        return;
    bool plain = lab_pick(l, 2);
    switch (lab_pick(l, 12)) {
    case 0:
    case 1: lab_said(l, dt_program_run(p->program, plain ? NULL : &step, NULL)); break;
    case 2:
    case 3: lab_said(l, dt_program_begin(p->program, plain ? NULL : &step)); break;
    case 4: lab_said(l, dt_program_advance_for(p->program, 1e-6, &state)); break;
    case 5: lab_said(l, dt_program_advance(p->program, &state)); break;
    case 6: lab_said(l, dt_program_end(p->program, NULL)); break;
    case 7: lab_said(l, dt_program_cancel(p->program, NULL)); break;
    case 8:
    case 9: lab_said(l, dt_program_start(p->program, plain ? NULL : &step)); break;
    case 10: lab_said(l, dt_program_wait(p->program, NULL)); break;
    default:
        lab_said(l, dt_program_add_loss_weights(p->program, weights));
        lab_said(l, dt_program_read(p->program, lab_tensor(l), values, 48));
        break;
    }
}

/* ---- The sequence */

static const struct {
    const char *name;
    void (*call)(lab *l);
    int weight;
} lab_calls[] = {{"graph_create", lab_graph_create, 3},
                 {"graph_destroy", lab_graph_destroy, 1},
                 {"op", lab_op, 2},
                 {"clear", lab_clear, 3},
                 {"store_create", lab_store_create, 4},
                 {"store_destroy", lab_store_destroy, 1},
                 {"store_use", lab_store_use, 4},
                 {"trainer_create", lab_trainer_create, 2},
                 {"trainer_destroy", lab_trainer_destroy, 1},
                 {"trainer_use", lab_trainer_use, 4},
                 {"program_create", lab_program_create, 8},
                 {"program_destroy", lab_program_destroy, 1},
                 {"program_write", lab_program_write, 16},
                 {"program_use", lab_program_use, 30}};

static void lab_call(lab *l) {
    int all = 0, at = 0;
    for (size_t i = 0; i < sizeof lab_calls / sizeof *lab_calls; i++)
        all += lab_calls[i].weight;
    int which = lab_pick(l, all);
    while ((which -= lab_calls[at].weight) >= 0)
        at++;
    for (int i = 0; i < STORES; i++)
        l->stores[i].hash = lab_hash(&l->stores[i]);
    l->errors = 0;
    l->call = lab_calls[at].name;
    l->failing = lab_pick(l, 6) ? -1 : lab_pick(l, 30);
    lab_calls[at].call(l);
    l->failing = -1;
}

/* One step from known values; 0: it could not be made. */
static uint64_t lab_probe(dt_store *store, const lab_graph *g) {
    static const float zeros[12];
    dt_param_info info;
    dt_program *program = NULL;
    uint64_t hash = 0;
    if (lab_train(store, g, &program))
        return 0;
    for (int i = 0; i < dt_store_param_count(store); i++) {
        CHECK(!dt_store_get_param(store, i, &info));
        CHECK(!dt_store_write(store, i, DT_VALUE_PARAM, zeros, 4 * info.elements));
        if (!info.buffer)
            CHECK(!dt_store_write(store, i, DT_VALUE_MOMENT1, zeros, 4 * info.elements));
    }
    CHECK(!dt_program_write(program, g->x, wrong_x, 64));
    CHECK(!dt_program_write(program, g->label, wrong_labels, 16));
    CHECK(!dt_program_run(program, NULL, NULL));
    CHECK(!dt_store_hash(store, &hash));
    dt_program_destroy(program);
    return hash;
}

static void lab_end(lab *l, const uint64_t expected[2]) {
    l->call = "the end";
    for (int i = 0; i < PROGRAMS; i++)
        if (l->programs[i].program && lab_pick(l, 2)) {
            dt_program_destroy(l->programs[i].program);
            l->programs[i] = (lab_program){0};
        }
    for (int i = 0; i < PROGRAMS; i++) {
        while (l->programs[i].program &&
               dt_program_wait(l->programs[i].program, NULL) != DT_ERROR_INVALID)
            continue;
        if (l->programs[i].program && dt_program_cancel(l->programs[i].program, NULL))
            dt_program_end(l->programs[i].program, NULL);
    }
    for (int i = 0; i < STORES; i++) {
        lab_store *s = &l->stores[i];
        const lab_graph *g = &l->graphs[s->graph];
        bool whole = s->store && dt_tensor_shape(g->loss).rank >= 0; /* memory may have run out */
        if (!whole || s->trainer || dt_store_param_count(s->store) != (g->norm ? 6 : 2))
            continue;
        dt_graph_clear_error(g->graph);
        lab_check(l, lab_probe(s->store, g) == expected[g->norm], "trains otherwise");
    }
}

static uint64_t lab_expected(lab *l, bool norm) {
    lab_graph g = {0};
    dt_store *store = NULL;
    uint64_t hash = 0;
    CHECK(!dt_graph_create(l->ctx, &g.graph));
    lab_build(&g, norm);
    if (!dt_store_create(g.graph, &(dt_store_desc){.device = "cpu"}, &store))
        hash = lab_probe(store, &g);
    dt_graph_destroy(g.graph);
    CHECK(hash != 0);
    return hash;
}

static void lab_run(unsigned long seed) {
    lab l = {.random = seed * 0x9E3779B97F4A7C15u, .seed = seed, .failing = -1, .call = "start"};
    dt_ctx_desc desc = {
        .no_vulkan = true, .allocator = {lab_alloc, lab_free, &l}, .logger = {lab_log, &l}};
    CHECK(dt_ctx_create(&desc, &l.ctx) == DT_OK);
    uint64_t expected[] = {lab_expected(&l, false), lab_expected(&l, true)};
    for (int i = 0; i < CALLS; i++)
        lab_call(&l);
    lab_end(&l, expected);
    dt_ctx_destroy(l.ctx);
    l.ctx = NULL;
    lab_check(&l, l.held == 0, "memory is left");
}

TEST(calls_in_any_order_fail_with_a_text_and_change_nothing) {
    const char *only = getenv("DTRAIN_SEQUENCE");
    if (only)
        lab_run(strtoul(only, NULL, 10));
    for (unsigned long seed = 1; seed <= SEEDS && !only; seed++)
        lab_run(seed);
    wrong_empty(wrong_path("wrong-sequences"));
}
