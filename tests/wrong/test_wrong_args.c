/* The machine of wrong_args.h: its objects to call with, and the bad values of each type. And the
 * loop over rows, slots and values. A crash is caught and is a failed check like any other. */
#include "wrong/wrong_args.h"

#include "temp.h"

#include <dirent.h>
#include <setjmp.h>
#include <signal.h>

world here, there;
attack wrong;
void (*wrong_hook)(const char *callback);
dt_job_system wrong_jobs;
float wrong_x[64] = {1, 2, 3, 4, 5, 6, 7, 8, 1, 3, 5, 7, 2, 4, 6, 8};
int32_t wrong_labels[8] = {0, 1, 2, 0, 1, 2, 0, 1};
static row *rows, **rows_end = &rows;

void wrong_register(row *r) {
    *rows_end = r;
    rows_end = &r->next;
}

const row *wrong_rows(void) {
    return rows;
}

const char *wrong_path(const char *name) {
    return temp_path(name);
}

const char *wrong_saved(void) {
    return temp_path("wrong-args-start.safetensors");
}

void wrong_empty(const char *folder) {
    char path[1024];
    DIR *list = opendir(folder);
    for (struct dirent *entry; list && (entry = readdir(list));) {
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        if (entry->d_name[0] != '.')
            remove(path);
    }
    if (list)
        closedir(list);
}

/* ---- What there is to call with */

static void *world_alloc(void *user, size_t bytes, size_t align) {
    world *w = user;
    void *memory = NULL;
    if (wrong_hook)
        wrong_hook("allocator");
    w->starved = w->starved || w->until == 0;
    if (w->until == 0)
        return NULL;
    w->until -= w->until > 0;
    if (posix_memalign(&memory, align < sizeof(void *) ? sizeof(void *) : align, bytes))
        return NULL;
    w->held++;
    return memory;
}

static void world_free(void *user, void *memory, size_t bytes) {
    (void)bytes;
    ((world *)user)->held -= memory != NULL;
    free(memory);
}

static void world_log(void *user, dt_log_level level, const char *message) {
    world *w = user;
    if (level != DT_LOG_ERROR)
        return;
    w->errors++;
    snprintf(w->text, sizeof w->text, "%s", message);
    if (wrong_hook)
        wrong_hook("logger");
}

dt_allocator wrong_allocator(world *w) {
    return (dt_allocator){world_alloc, world_free, w};
}

dt_logger wrong_logger(world *w) {
    return (dt_logger){world_log, w};
}

static void world_context(world *w) {
    dt_ctx_desc desc = {.no_vulkan = true, .jobs = wrong_jobs};
    desc.allocator = wrong_allocator(w);
    desc.logger = wrong_logger(w);
    CHECK(dt_ctx_create(&desc, &w->ctx) == DT_OK);
}

static void world_graph(world *w) {
    dt_graph_destroy(w->graph);
    CHECK(dt_graph_create(w->ctx, &w->graph) == DT_OK);
    dt_graph *g = w->graph;
    dt_init ones = {DT_INIT_CONSTANT, 1, 0};
    w->x = dt_input(g, "x", DT_F32, dt_dims(4));
    w->z = dt_input(g, "z", DT_F32, dt_dims(4));
    w->label = dt_input(g, "label", DT_I32, dt_dims());
    w->index = dt_input(g, "index", DT_I32, dt_dims(4));
    w->image = dt_input(g, "image", DT_F32, dt_dims(2, 6, 6));
    w->signal = dt_input(g, "signal", DT_F32, dt_dims(2, 8));
    w->w = dt_param(g, "w", dt_dims(3, 4), ones);
    w->b = dt_param(g, "b", dt_dims(3), ones);
    w->table = dt_param(g, "table", dt_dims(5, 3), ones);
    w->left = dt_param(g, "left", dt_dims(2, 3), ones);
    w->right = dt_param(g, "right", dt_dims(3, 4), ones);
    w->kernel = dt_param(g, "kernel", dt_dims(4, 2, 3, 3), ones);
    w->kernel1 = dt_param(g, "kernel1", dt_dims(4, 2, 3), ones);
    w->volume = dt_input(g, "volume", DT_F32, dt_dims(2, 3, 5, 4));
    w->deep = dt_param(g, "deep", dt_dims(4, 2, 2, 3, 2), ones);
    w->back = dt_param(g, "back", dt_dims(2, 4, 3, 3), ones);
    w->back1 = dt_param(g, "back1", dt_dims(2, 4, 3), ones);
    w->bias = dt_param(g, "bias", dt_dims(4), ones);
    w->scale = dt_param(g, "scale", dt_dims(2), ones);
    w->mean = dt_buffer(g, "mean", dt_dims(2), (dt_init){0});
    w->variance = dt_buffer(g, "variance", dt_dims(2), ones);
    w->logits = dt_linear(w->x, w->w, w->b);
    w->loss = dt_cross_entropy(w->logits, w->label, NULL);
    w->weights = dt_input_shared(g, "weights", DT_F32, dt_dims(3));
    w->weighted = dt_cross_entropy(w->logits, w->label,
                                   &(dt_cross_entropy_desc){.class_weights = w->weights});
    w->term = dt_mse(w->x, w->z);
    CHECK(!dt_graph_error(g));
}

static dt_program_desc world_training(const world *w) {
    static const dt_optim_desc sgd = {.kind = DT_OPTIM_SGD, .lr = 0.1, .momentum = 0.9};
    return (dt_program_desc){.loss = w->loss, .batch = 4, .optim = &sgd, .params = "w,b"};
}

static void world_store(world *w) {
    dt_program_desc train = world_training(w);
    dt_program_desc predict = {.outputs = {w->logits}, .batch = 4};
    CHECK(dt_store_create(w->graph, &(dt_store_desc){.device = "cpu"}, &w->store) == DT_OK);
    CHECK(dt_program_create(w->store, &train, &w->train) == DT_OK);
    CHECK(dt_program_create(w->store, &predict, &w->predict) == DT_OK);
    CHECK(dt_program_write(w->train, w->x, wrong_x, 64) == DT_OK);
    CHECK(dt_program_write(w->train, w->label, wrong_labels, 16) == DT_OK);
}

dt_dataset wrong_dataset(void) {
    return (dt_dataset){.rows = 8,
                        .columns = {{.input = here.x, .data = wrong_x},
                                    {.input = here.label, .data = wrong_labels, .dtype = DT_I32}}};
}

dt_trainer_desc wrong_trainer(void) {
    static const dt_optim_desc sgd = {.kind = DT_OPTIM_SGD,
                                      .lr = 0.1,
                                      .momentum = 0.9,
                                      .schedule = {{.kind = DT_SCHEDULE_PLATEAU}}};
    return (dt_trainer_desc){.loss = here.weighted,
                             .optim = &sgd,
                             .params = "w,b",
                             .batch = 4,
                             .devices = "cpu",
                             .data = wrong_dataset()};
}

static void world_trainer(world *w) {
    dt_trainer_desc desc = wrong_trainer();
    desc.checkpoint.folder = wrong_path("wrong-args-folder");
    CHECK(dt_trainer_create(w->graph, &desc, &w->trainer) == DT_OK);
    CHECK(dt_trainer_set_input(w->trainer, w->weights, wrong_x, 12) == DT_OK);
}

static void world_comms(world *w) {
    dt_comm_desc desc = {.allocator = wrong_allocator(w), .logger = wrong_logger(w)};
    CHECK(dt_comm_create(&desc, &w->comm) == DT_OK);
    CHECK(dt_comm_create_threads(&desc, 2, w->pair) == DT_OK);
}

void wrong_open(world *w, wrong_level level) {
    *w = (world){.until = -1};
    world_context(w);
    world_graph(w);
    if (level == STORE)
        world_store(w);
    if (level == TRAINER)
        world_trainer(w);
    if (level == COMM)
        world_comms(w);
}

/* All that it made, and nothing is left of it. */
void wrong_close(world *w) {
    dt_comm_destroy(w->comm);
    dt_comm_destroy(w->pair[0]);
    dt_comm_destroy(w->pair[1]);
    dt_ctx_destroy(w->ctx);
    CHECK(w->held == 0);
}

/* What `here` does as it should: a step and the weights after it, or a sum. Equal, whatever was
 * tried before. */
uint64_t wrong_works(wrong_level level) {
    uint64_t hash = 0;
    float two[2] = {1, 2};
    if (level == STORE &&
        (dt_program_run(here.train, NULL, NULL) || dt_store_state_hash(here.store, &hash)))
        return 0;
    if (level == TRAINER && (dt_trainer_step(here.trainer, NULL) ||
                             dt_store_state_hash(dt_trainer_store(here.trainer), &hash)))
        return 0;
    if (level == COMM && dt_comm_all_reduce(here.comm, two, two, 2, DT_F32, DT_COMM_SUM))
        return 0;
    return hash ? hash : level == GRAPH || level == COMM;
}

/* ---- Slots */

bool wrong_turn(const char *name, int variants) {
    if (wrong.seen++ != wrong.slot)
        return false;
    wrong.variants = variants;
    snprintf(wrong.what, sizeof wrong.what, "%.100s", name);
    return true;
}

static void wrong_value(const char *format, double value) {
    size_t at = strlen(wrong.what);
    snprintf(wrong.what + at, sizeof wrong.what - at, format, value);
}

void *wrong_pointer(const char *name, void *valid, bool object) {
    if (!wrong_turn(name, 1))
        return valid;
    wrong_value(" = NULL", 0);
    wrong.null = true;
    wrong.silent = object;
    return NULL;
}

const char *wrong_text(const char *name, const char *valid, const char *const *bad, int count) {
    if (!wrong_turn(name, count))
        return valid;
    const char *text = bad[wrong.variant];
    snprintf(wrong.what, sizeof wrong.what, "%.60s = %.60s", name, text ? text : "NULL");
    return text;
}

int64_t wrong_integer(const char *name, int64_t valid, const int64_t *bad, int count) {
    if (!wrong_turn(name, count))
        return valid;
    wrong_value(" = %.20g", (double)bad[wrong.variant]);
    return bad[wrong.variant];
}

double wrong_number(const char *name, double valid, const double *bad, int count) {
    if (!wrong_turn(name, count))
        return valid;
    wrong_value(" = %g", bad[wrong.variant]);
    return bad[wrong.variant];
}

size_t wrong_bytes(const char *name, size_t valid) {
    const size_t bad[] = {0, 1, valid - 1, valid + 1, valid + 4, valid * 2, SIZE_MAX};
    if (!wrong_turn(name, sizeof bad / sizeof *bad))
        return valid;
    wrong_value(" = %.20g", (double)bad[wrong.variant]);
    return bad[wrong.variant];
}

dt_shape wrong_shape(const char *name, dt_shape valid, bool axes) {
    static const int32_t rank[] = {-1, DT_MAX_DIMS + 1, INT32_MAX, INT32_MIN};
    static const int64_t dim[] = {-9, INT64_MIN, INT64_MAX, (int64_t)1 << 31};
    if (!wrong_turn(name, valid.rank || axes ? 8 : 4))
        return valid;
    if (wrong.variant < 4) {
        valid.rank = rank[wrong.variant];
        wrong_value(" with rank %.20g", valid.rank);
    } else {
        valid.rank = valid.rank ? valid.rank : 1;
        valid.dim[0] = dim[wrong.variant - 4];
        wrong_value(" with %.20g in it", (double)valid.dim[0]);
    }
    return valid;
}

dt_comm_work wrong_work(const char *name, dt_comm_work valid) {
    static const uint64_t bad[] = {0, 12345, UINT64_MAX};
    if (!wrong_turn(name, 3))
        return valid;
    wrong_value(" = %.20g", (double)bad[wrong.variant]);
    return (dt_comm_work){bad[wrong.variant]};
}

dt_tensor wrong_tensor(const char *name, dt_tensor valid, int kinds) {
    dt_tensor bad[8] = {{here.graph, 0}, {here.graph, UINT32_MAX}, {here.graph, 100000}};
    static const char *const text[] = {"nil", "no tensor", "no tensor", "i32",
                                       "f32", "a term",    "foreign",   "nil"};
    const dt_tensor more[] = {here.index, here.x, here.term, there.x, {0}};
    static const int kind[] = {WRONG_I32, WRONG_F32, WRONG_TERM, WRONG_FOREIGN, WRONG_NIL};
    int which[8] = {0, 1, 2}, count = 3;
    for (int i = 0; i < 5; i++) {
        if (!(kinds & kind[i]))
            continue;
        which[count] = i + 3;
        bad[count++] = more[i];
    }
    if (!wrong_turn(name, count))
        return valid;
    int at = which[wrong.variant];
    snprintf(wrong.what, sizeof wrong.what, "%.80s is %s", name, text[at]);
    wrong.silent = at < 3 || at == 7;
    return bad[wrong.variant];
}

/* ---- The loop */

static sigjmp_buf crash_back;
static volatile sig_atomic_t crash_expected;

/* Elsewhere than in a row's call it happens again, and ends the program. */
static void crash_caught(int number) {
    if (crash_expected)
        siglongjmp(crash_back, number);
    signal(number, SIG_DFL);
}

dt_result wrong_newest;

answer wrong_result(dt_result result) {
    wrong_newest = result;
    return result == DT_OK ? TAKEN : REFUSED;
}

answer wrong_nil(dt_tensor made) {
    return dt_tensor_shape(made).rank < 0 ? REFUSED : TAKEN;
}

static bool row_has_text(int errors) {
    const char *graph[] = {dt_graph_error(here.graph), dt_graph_error(there.graph)};
    if (wrong.silent)
        return dt_ctx_error(NULL)[0] && dt_comm_error(NULL)[0];
    if (here.errors + there.errors > errors)
        return here.text[0] || there.text[0];
    return (graph[0] && *graph[0]) || (graph[1] && *graph[1]);
}

static void row_judge(const row *r, answer got, int errors) {
    const char *name = r->function, *aspect = r->aspect;
    if (!wrong.variants) {
        test_check(got == TAKEN || got == NOTHING, __FILE__, __LINE__,
                   "%s %s refuses a valid call: %s %s", name, aspect, here.text,
                   dt_graph_error(here.graph) ? dt_graph_error(here.graph) : "");
        return;
    }
    test_check(got != TAKEN, __FILE__, __LINE__, "%s %s takes %s", name, aspect, wrong.what);
    test_check(got != REFUSED || row_has_text(errors), __FILE__, __LINE__,
               "%s %s refuses %s without a text", name, aspect, wrong.what);
    bool told = !wrong.null || got != REFUSED || !here.text[0] || strstr(here.text, "NULL");
    test_check(told, __FILE__, __LINE__, "%s %s: %s, and the text is '%s'", name, aspect,
               wrong.what, here.text);
}

/* One call, with the value wrong.variant in slot wrong.slot. */
static void row_call(const row *r) {
    volatile int errors = here.errors + there.errors;
    wrong = (attack){.slot = wrong.slot, .variant = wrong.variant};
    here.text[0] = there.text[0] = 0;
    if (r->level == GRAPH)
        world_graph(&here);
    int number = sigsetjmp(crash_back, 1);
    crash_expected = !number;
    if (number)
        test_check(false, __FILE__, __LINE__, "%s %s: signal %d for %s", r->function, r->aspect,
                   number, wrong.variants ? wrong.what : "a valid call");
    else
        row_judge(r, r->call(), errors);
    crash_expected = false;
    if (dt_graph_error(there.graph))
        world_graph(&there);
}

/* Each value in each slot, and then none. How many slots there are shows in the first call. */
static void row_run(const row *r, uint64_t works) {
    wrong_open(&here, r->level);
    wrong = (attack){0};
    do {
        row_call(r);
        wrong.variant++;
        if (wrong.variant >= wrong.variants) {
            wrong.slot++;
            wrong.variant = 0;
        }
    } while (wrong.slot < wrong.seen);
    if (r->level == GRAPH)
        world_graph(&here);
    test_check(wrong_works(r->level) == works, __FILE__, __LINE__,
               "%s %s: something is not as it was", r->function, r->aspect);
    wrong.slot = -1;
    row_call(r);
    wrong_close(&here);
}

static uint64_t row_state(const row *r) {
    uint64_t hash = 0;
    dt_store *store = r->level == STORE ? here.store : dt_trainer_store(here.trainer);
    return store && dt_store_state_hash(store, &hash) == DT_OK ? hash : 0;
}

/* The call as it should be, with memory for `until` allocations; false: they were enough. */
static bool row_starve(const row *r, int until) {
    if (r->level == GRAPH)
        world_graph(&here);
    int errors = here.errors;
    uint64_t state = row_state(r);
    wrong = (attack){.slot = -1};
    here.text[0] = 0;
    here.until = until;
    answer got = r->call();
    bool starved = here.starved;
    here.until = -1;
    here.starved = false;
    if (got == REFUSED) {
        test_check(row_has_text(errors), __FILE__, __LINE__,
                   "%s %s: no text without memory after %d allocations", r->function, r->aspect,
                   until);
        test_check(row_state(r) == state, __FILE__, __LINE__,
                   "%s %s: no memory after %d allocations, and a store changed", r->function,
                   r->aspect, until);
    }
    return starved;
}

static void row_starve_all(const row *r, uint64_t works) {
    (void)works;
    wrong_open(&here, r->level);
    wrong_works(r->level); /* a state that differs from that at the start */
    for (int until = 0; row_starve(r, until);)
        until++;
    wrong_close(&here);
}

static void rows_run(wrong_level level, void (*run)(const row *r, uint64_t works)) {
    const int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGABRT, SIGILL};
    struct sigaction before[5], caught = {.sa_handler = crash_caught};
    for (int i = 0; i < 5; i++)
        sigaction(signals[i], &caught, &before[i]);
    wrong_open(&there, GRAPH);
    wrong_open(&here, level);
    if (level == STORE)
        CHECK(dt_store_save_state(here.store, wrong_saved()) == DT_OK);
    if (level == TRAINER)
        CHECK(dt_trainer_save(here.trainer, wrong_saved()) == DT_OK);
    uint64_t works = wrong_works(level);
    CHECK(works != 0);
    wrong_close(&here);
    for (const row *r = rows; r; r = r->next) {
        test_now.off = false; /* a function that was left out excuses no other row */
        if (r->level == level)
            run(r, works);
    }
    wrong_close(&there);
    for (int i = 0; i < 5; i++)
        sigaction(signals[i], &before[i], NULL);
}

TEST(ops_refuse_all_wrong_arguments) {
    rows_run(GRAPH, row_run);
}

TEST(stores_programs_and_files_refuse_all_wrong_arguments) {
    rows_run(STORE, row_run);
}

TEST(trainers_refuse_all_wrong_settings) {
    rows_run(TRAINER, row_run);
    wrong_empty(wrong_path("wrong-args-folder"));
}

TEST(comms_refuse_all_wrong_arguments) {
    rows_run(COMM, row_run);
}

TEST(ops_without_memory_report_it) {
    rows_run(GRAPH, row_starve_all);
}

TEST(stores_programs_and_files_without_memory_report_it_and_change_nothing) {
    rows_run(STORE, row_starve_all);
}

TEST(comms_without_memory_report_it) {
    rows_run(COMM, row_starve_all);
}

TEST(trainers_without_memory_report_it_and_change_nothing) {
    rows_run(TRAINER, row_starve_all);
    wrong_empty(wrong_path("wrong-args-folder"));
}
