/* A parameter server that gets any bytes from a peer with the key. And a worker whose server sends
 * any bytes; without sockets: what their message servers would bring is made here. The server
 * lives, its values stay finite, and tickets hold together; then an honest worker trains with it.
 * Where no push of the others counted, the weights are those that it makes by itself. The worker
 * comes to an end, with an error that can be shown. The target has the implementation in it, since
 * it calls what is internal. */
#ifndef FUZZ_REPLAY
#define DT_IMPLEMENTATION /* for other targets too, which are linked with this one */
#endif
#include "fuzz/fuzz.h"

#include <pthread.h>

enum {
    SERVED_CONNS = 5,
    SERVED_PROCESSES = 5,
    SERVED_ROWS = 20,
    SERVED_BATCH = 8,
    SERVED_PLAIN = 4, /* setups without clipping over servers */
    SERVED_SETUPS = 6
};

typedef struct served_setup {
    int classes, batch_slices, staleness, place, servers;
    double clip_norm;
} served_setup;

/* Pushes that are small messages, and large ones; batches that overlap; a part of the values. */
static const served_setup served_setups[SERVED_SETUPS] = {
    {2, 2, 0, 0, 1, 0},   {300, 3, 0, 0, 1, 0},   {300, 2, 2, 0, 1, 0},
    {300, 2, 1, 1, 2, 0}, {300, 2, 1, 0, 2, 0.1}, {300, 2, 1, 1, 2, 0.1}};

typedef struct served_model {
    dt_ctx *ctx;
    dt_graph *graph;
    float x[2 * SERVED_ROWS];
    int32_t t[SERVED_ROWS];
    dt_optim_desc sgd;
    dt_trainer_desc desc;
} served_model;

typedef struct served_conn {
    bool open, coming, dropped, sending;
    dti_message in, out;
    uint8_t *body, *room; /* of what comes; where the server takes it */
    uint64_t at;
    uint8_t *answer; /* of the accepted pushes */
    uint32_t process;
} served_conn;

typedef struct served_world {
    const served_setup *setup;
    served_model model;
    dt_server *server;
    float *start; /* values that each input begins with */
    uint64_t wanted;
    served_conn conns[SERVED_CONNS];
} served_world;

typedef struct served_input {
    const uint8_t *data;
    size_t size, at;
} served_input;

static served_world served_worlds[SERVED_SETUPS];
static served_world *served_now;
static served_input served_in;
static dti_message served_given[SERVED_PROCESSES]; /* the newest ticket of each */

static uint32_t served_u8(void) {
    return served_in.at < served_in.size ? served_in.data[served_in.at++] : 0;
}

static uint64_t served_u64(void) {
    uint64_t x = 0;
    for (int i = 0; i < 8; i++)
        x = x << 8 | served_u8();
    return x;
}

/* ---- a message server without connections */

static int served_port(const dti_message_server *server) {
    (void)server;
    return 0;
}

/* A push counts from the worker that has its ticket, of the ticket's values, and if it is
 * finite. */
static void served_counts(const served_conn *c) {
    const dt_server *s = served_now->server;
    const dti_message *given = &served_given[c->process];
    dti_push_head head;
    memcpy(&head, c->body, sizeof head);
    FUZZ_CHECK(c->in.bytes == s->shape.bytes && !c->dropped);
    FUZZ_CHECK(s->welcome.place || (given->number == c->in.number && given->part == c->in.part));
    FUZZ_CHECK(head.version < s->tickets.base);
    FUZZ_CHECK(head.version + s->tickets.window >= c->in.number);
    for (uint64_t at = sizeof head; at < c->in.bytes; at += sizeof(float)) {
        float value;
        memcpy(&value, c->body + at, sizeof value);
        FUZZ_CHECK(dti_finite_f32(value));
    }
}

static void served_send(dti_message_server *server, uint32_t who, const dti_message *m) {
    served_conn *c = &served_now->conns[who];
    (void)server;
    FUZZ_CHECK(c->open);
    if (!c->open)
        return;
    if (m->kind == DTI_SAY_TICKET)
        served_given[c->process] = *m;
    if (m->kind == DTI_SAY_PUSHED && m->part == DTI_PUSH_TAKEN && c->in.kind == DTI_SAY_PUSH)
        served_counts(c);
    if (c->sending)
        return; /* as a connection does: who asks waits for the answer */
    c->sending = true;
    c->out = *m;
}

static void served_forget(served_conn *c) {
    free(c->body);
    free(c->answer);
    *c = (served_conn){0};
}

static void served_close(dti_message_server *server, uint32_t who, const char *why) {
    (void)server, (void)why;
    served_forget(&served_now->conns[who]);
}

static void served_drop(dti_message_server *server, uint32_t who) {
    (void)server;
    served_now->conns[who].room = NULL;
    served_now->conns[who].dropped = true;
}

static void served_step(dti_message_server *server, int timeout_ms) {
    (void)server, (void)timeout_ms;
}

static uint64_t served_moved(const dti_message_server *server, uint32_t who) {
    (void)server, (void)who;
    return 0;
}

static void served_destroy(dti_message_server *server) {
    (void)server;
}

static const dti_message_server_calls served_calls = {.destroy = served_destroy,
                                                      .port = served_port,
                                                      .send = served_send,
                                                      .close = served_close,
                                                      .drop = served_drop,
                                                      .step = served_step,
                                                      .moved = served_moved};

/* ---- a server */

static void served_model_make(served_model *m, const served_setup *setup) {
    m->sgd = (dt_optim_desc){.kind = DT_OPTIM_SGD, .lr = 0.1, .clip_norm = setup->clip_norm};
    const dt_ctx_desc ctx = {
        .no_vulkan = true, .threads = 1, .allocator = {fuzz_alloc, fuzz_free, NULL}};
    FUZZ_CHECK(!dt_ctx_create(&ctx, &m->ctx) && !dt_graph_create(m->ctx, &m->graph));
    for (int i = 0; i < SERVED_ROWS; i++) {
        m->t[i] = i % 2;
        m->x[2 * i] = (float)(i % 7);
        m->x[2 * i + 1] = (float)(i % 2);
    }
    dt_tensor x = dt_input(m->graph, "x", DT_F32, dt_dims(2));
    dt_tensor t = dt_input(m->graph, "t", DT_I32, dt_dims());
    const dt_init init = {.kind = DT_INIT_UNIFORM, .a = -0.1f, .b = 0.1f};
    dt_tensor w = dt_param(m->graph, "w", dt_dims(setup->classes, 2), init);
    m->desc = (dt_trainer_desc){.loss = dt_cross_entropy(dt_linear(x, w, (dt_tensor){0}), t, NULL),
                                .batch = SERVED_BATCH,
                                .optim = &m->sgd,
                                .data = {.rows = SERVED_ROWS,
                                         .columns = {{.input = x, .data = m->x, .dtype = DT_F32},
                                                     {.input = t, .data = m->t, .dtype = DT_I32}}},
                                .devices = "cpu"};
}

static dt_store *served_store(const served_world *w) {
    return w->server->trainer->par.replicas[0].store;
}

static void served_values(const served_world *w, float *values, bool write) {
    dt_store *s = served_store(w);
    dti_memory *memory = s->memories[DTI_ARENA_PARAM];
    const uint64_t bytes = dti_arena_bytes(w->server->welcome.elements);
    dt_result result = write ? s->device->backend->memory_write(memory, 0, values, bytes)
                             : s->device->backend->memory_read(memory, 0, values, bytes);
    FUZZ_CHECK(!result);
}

static void served_server_make(served_world *w) {
    const dt_comm_desc by = {.insecure = true};
    served_model_make(&w->model, w->setup);
    dt_server_desc d = {.trainer = w->model.desc,
                        .security = &by,
                        .staleness = w->setup->staleness,
                        .max_workers = SERVED_CONNS - 2,
                        .index = w->setup->place,
                        .servers = w->setup->servers};
    d.trainer.parallel.batch_slices = w->setup->batch_slices;
    FUZZ_CHECK(!dt_server_create(w->model.graph, &d, &w->server));
    w->start = malloc((size_t)dti_arena_bytes(w->server->welcome.elements));
    served_values(w, w->start, false);
}

static void served_unplug(dt_server *s) {
    s->calls->destroy(s->message_server);
    s->message_server = NULL;
    s->calls = &served_calls;
}

/* As with the others, which there are not. */
static void served_agree(dt_server *s) {
    s->held = 0;
    s->generation = s->welcome.servers > 1;
}

/* As it was created. */
static void served_reset(served_world *w) {
    dt_server *s = w->server;
    served_values(w, w->start, true);
    dti_store_unbound(served_store(w));
    served_store(w)->steps = 0;
    s->trainer->epoch = s->trainer->index = 0;
    memset(s->seats, 0, s->count * sizeof *s->seats);
    memset(served_given, 0, sizeof served_given);
    s->tickets.base = 0;
    s->tickets.again = s->tickets.twice = s->tickets.late = 0;
    s->tickets.limit_ns = 0;
    s->info = (dt_server_info){0};
    s->result = DT_OK;
    FUZZ_CHECK(!dti_server_position(s));
    served_agree(s);
    s->writes = dti_server_writes(s);
}

/* ---- what comes and goes over one connection */

static void served_end(uint32_t who) {
    served_forget(&served_now->conns[who]);
    dti_server_closed(served_now->server, who, true, false, "the test");
}

static void served_begin(uint32_t who, uint32_t process) {
    uint8_t bytes[16];
    served_conn *c = &served_now->conns[who];
    if (c->open)
        return;
    memset(bytes, (int)process + 1, sizeof bytes);
    *c = (served_conn){.open = true, .process = process};
    dti_server_opened(served_now->server, who, bytes);
}

/* What the server answered, piece by piece. */
static void served_take(uint32_t who) {
    served_conn *c = &served_now->conns[who];
    if (!c->open || !c->sending)
        return;
    free(c->answer);
    c->answer = malloc(c->out.bytes ? (size_t)c->out.bytes : 1);
    bool fine = true;
    for (uint64_t at = 0; at < c->out.bytes && fine; at += 700) {
        const uint64_t n = DTI_MIN(c->out.bytes - at, (uint64_t)700);
        fine = dti_server_read(served_now->server, who, &c->out, at, c->answer + at, (uint32_t)n);
    }
    c->sending = false;
    if (!fine)
        served_end(who);
}

/* Some more of a large message. */
static void served_drip(uint32_t who, uint64_t bytes) {
    served_conn *c = &served_now->conns[who];
    if (!c->open || !c->coming)
        return;
    bytes = DTI_MIN(bytes, c->in.bytes - c->at);
    if (c->room)
        memcpy(c->room + c->at, c->body + c->at, (size_t)bytes);
    c->at += bytes;
    if (c->at < c->in.bytes)
        return;
    c->coming = false;
    dti_server_came(served_now->server, who, &c->in, NULL);
}

/* The body is the connection's then. */
static void served_say(uint32_t who, const dti_message *m, uint8_t *body) {
    served_conn *c = &served_now->conns[who];
    if (!c->open || c->coming) {
        free(body);
        return;
    }
    free(c->body);
    c->body = body;
    c->in = *m;
    c->at = 0;
    c->dropped = false;
    if (m->bytes <= DTI_MESSAGE_SMALL) {
        dti_server_came(served_now->server, who, m, body);
        return;
    }
    c->coming = true;
    c->room = dti_server_room(served_now->server, who, m);
}

/* Of the second server's part. */
static uint64_t served_squares_bytes(void) {
    const dt_server *s = served_now->server;
    return s->welcome.servers < 2
               ? 0
               : sizeof(float) * dti_push_blocks(dti_server_begin(s, 1), dti_server_begin(s, 2));
}

/* ---- anything */

static uint64_t served_right_bytes(uint32_t kind) {
    switch (kind) {
    case DTI_SAY_ASK: return sizeof(dti_request);
    case DTI_SAY_PULL:
    case DTI_SAY_MEASURE: return sizeof(dti_resolved);
    case DTI_SAY_BROUGHT: return served_squares_bytes();
    case DTI_SAY_PUSH: return served_now->server->shape.bytes;
    case DTI_SAY_AGREE: return sizeof(uint64_t);
    default: return 0;
    }
}

static uint64_t served_draw_bytes(uint32_t kind) {
    static const uint64_t sizes[] = {0, 1, 15, 17, DTI_MESSAGE_SMALL, DTI_MESSAGE_SMALL + 1, 70000};
    const uint32_t how = served_u8();
    const uint64_t right = served_right_bytes(kind);
    return how < 160   ? right
           : how < 176 ? right + 1
           : how < 192 ? right - (right > 0)
                       : sizes[how % DTI_COUNT(sizes)];
}

static uint64_t served_near(uint64_t x) {
    const uint32_t how = served_u8();
    return how < 192 ? x + how % 6 - DTI_MIN(x, (uint64_t)2) : served_u64();
}

static float served_float(void) {
    static const float values[] = {0.0f,  1e-3f,  -2.0f, 3e38f,           -3e38f,
                                   1e30f, 1e-40f, 1e19f, (float)INFINITY, (float)NAN};
    return values[served_u8() % DTI_COUNT(values)];
}

static void served_fill_push(uint8_t *body, uint64_t bytes) {
    const uint64_t version = served_near(served_now->server->tickets.base - 1);
    const float value = served_float(), other = served_float();
    for (uint64_t at = 0; at + sizeof value <= bytes; at += sizeof value)
        memcpy(body + at, at % 28 ? &value : &other, sizeof value);
    if (served_u8() % 2)
        memset(body, 0, (size_t)DTI_MIN(bytes, (uint64_t)sizeof(dti_push_head)));
    memcpy(body, &version, (size_t)DTI_MIN(bytes, (uint64_t)sizeof version));
}

static void served_fill_squares(uint8_t *body, uint64_t bytes) {
    const float value = served_float();
    for (uint64_t at = 0; at + sizeof value <= bytes; at += sizeof value)
        memcpy(body + at, &value, sizeof value);
}

static uint8_t *served_draw_body(uint32_t kind, uint64_t bytes) {
    uint8_t *body = calloc(1, bytes ? (size_t)bytes : 1);
    const dt_server *s = served_now->server;
    const dti_request ask = {served_near(s->trainer->epoch), dti_worker_mark(s->trainer), 0};
    const dti_resolved told = {.version = served_near(s->tickets.base - 1),
                               .skipped = served_u8() % 4 ? 0 : served_u64(),
                               .clips = {1.0f}};
    const uint64_t agreed = kind == DTI_SAY_AGREE ? served_near(s->generation) : 0;
    if (kind == DTI_SAY_ASK && bytes == sizeof ask && served_u8() % 8)
        memcpy(body, &ask, sizeof ask);
    else if ((kind == DTI_SAY_PULL || kind == DTI_SAY_MEASURE) && bytes == sizeof told)
        memcpy(body, &told, sizeof told);
    else if (kind == DTI_SAY_PUSH)
        served_fill_push(body, bytes);
    else if (kind == DTI_SAY_BROUGHT)
        served_fill_squares(body, bytes);
    else if (kind == DTI_SAY_AGREE && bytes == sizeof agreed)
        memcpy(body, &agreed, sizeof agreed);
    else
        for (uint64_t i = 0; i < bytes && i < 64; i++)
            body[i] = (uint8_t)served_u8();
    return body;
}

static void served_anything(uint32_t who, uint32_t kind) {
    const dt_server *s = served_now->server;
    const dti_server_seat *seat = &s->seats[who];
    dti_message m = {.kind = (uint16_t)kind, .part = served_u8() % 4};
    m.number = served_near(s->tickets.base);
    if (served_u8() % 2) { /* what it was given */
        m.part = seat->given_batch_slice;
        m.number = seat->given;
    }
    m.bytes = served_draw_bytes(kind);
    served_say(who, &m, served_draw_body(kind, m.bytes));
}

/* 0: any. Of servers that clip together also what those say. */
static uint32_t served_kind(uint32_t kind) {
    if (kind == DTI_SAY_SETTINGS && served_now->setup->clip_norm > 0.0)
        return served_now->setup->place ? DTI_SAY_MEASURE : DTI_SAY_BROUGHT;
    return kind ? kind : served_u8() % 22;
}

static void served_event(void) {
    static const uint8_t kinds[] = {DTI_SAY_HELLO, DTI_SAY_SETTINGS, DTI_SAY_ASK,
                                    DTI_SAY_PULL,  DTI_SAY_PUSH,     DTI_SAY_PUSH,
                                    DTI_SAY_ASK,   DTI_SAY_FAULT,    0};
    const uint32_t who = served_u8() % SERVED_CONNS, what = served_u8() % 16;
    switch (what) {
    case 0:
    case 1: served_begin(who, served_u8() % 4); break;
    case 2:
        if (served_now->conns[who].open && served_u8() % 4 == 0)
            served_end(who);
        break;
    case 3: served_take(who); break;
    case 4: served_drip(who, UINT64_MAX); break;
    case 5: served_drip(who, 1 + 37 * served_u8()); break;
    case 6: served_now->server->tickets.limit_ns = served_u8() % 4 == 0; break;
    default: served_anything(who, served_kind(kinds[what - 7]));
    }
    dti_server_go_on(served_now->server);
}

/* ---- what holds */

static void served_tickets_hold(const dti_tickets *t) {
    for (uint64_t q = t->base; q - t->base < t->window; q++) {
        const dti_batch_open *batch = dti_tickets_batch(t, q);
        uint32_t done = 0;
        for (uint32_t i = 0; i < t->batch_slices; i++)
            done += dti_tickets_at(t, q, i)->state == DTI_TICKET_DONE;
        FUZZ_CHECK(done == batch->done);
        FUZZ_CHECK(batch->oldest == UINT64_MAX || batch->oldest + t->window >= q);
    }
}

static void served_holds(void) {
    dt_server *s = served_now->server;
    int workers = 0;
    FUZZ_CHECK(!s->result || s->result == DT_ERROR_NUMERIC ||
               (s->result == DT_ERROR_INVALID && s->welcome.servers > 1)); /* it is apart */
    s->result = DT_OK;
    served_tickets_hold(&s->tickets);
    for (uint32_t i = 0; i < s->count; i++) {
        const dti_server_seat *seat = &s->seats[i];
        FUZZ_CHECK(seat->open == served_now->conns[i].open);
        workers += seat->open && !seat->surplus;
        for (uint32_t k = 0; k < i && seat->place; k++)
            FUZZ_CHECK(s->seats[k].place != seat->place);
    }
    FUZZ_CHECK(workers == s->info.workers && workers <= SERVED_CONNS - 2);
    FUZZ_CHECK(s->info.max_staleness <= (uint64_t)served_now->setup->staleness);
}

static void served_values_hold(void) {
    const uint64_t n = served_now->server->welcome.elements;
    float *values = malloc((size_t)dti_arena_bytes(n));
    served_values(served_now, values, false);
    for (uint64_t i = 0; i < n; i++)
        FUZZ_CHECK(dti_finite_f32(values[i]));
    free(values);
}

/* ---- an honest worker */

static const dti_message *served_ask(uint32_t kind, uint32_t part, uint64_t number,
                                     const void *body, uint64_t bytes) {
    served_conn *c = &served_now->conns[0];
    uint8_t *copy = malloc(bytes ? (size_t)bytes : 1);
    if (bytes)
        memcpy(copy, body, (size_t)bytes);
    c->sending = false;
    served_say(0, &(dti_message){(uint16_t)kind, part, number, bytes}, copy);
    served_drip(0, UINT64_MAX);
    dti_server_go_on(served_now->server);
    FUZZ_CHECK(c->open && c->sending);
    served_take(0);
    return &c->out;
}

/* Its gradient depends only on its ticket. */
static void served_push(const dti_message *ticket, uint64_t version) {
    const dti_push_shape *shape = &served_now->server->shape;
    const float value = 0.01f * (float)((ticket->number + ticket->part) % 5) - 0.02f;
    const dti_message m = *ticket;
    char *body = calloc(1, (size_t)shape->bytes);
    ((dti_push_head *)(void *)body)->version = version;
    for (uint64_t at = sizeof(dti_push_head); at < shape->bytes; at += sizeof value)
        memcpy(body + at, &value, sizeof value);
    const dti_message *answer = served_ask(DTI_SAY_PUSH, m.part, m.number, body, shape->bytes);
    FUZZ_CHECK(answer->kind == DTI_SAY_PUSHED && answer->part == DTI_PUSH_TAKEN);
    free(body);
}

static void served_bring(uint64_t serial) {
    const float squares[8] = {0.25f, 0.5f};
    const uint64_t bytes = served_squares_bytes();
    FUZZ_CHECK(served_now->setup->clip_norm > 0.0 && bytes && bytes <= sizeof squares);
    const dti_message *answer = served_ask(DTI_SAY_BROUGHT, 1, serial, squares, bytes);
    FUZZ_CHECK(answer->kind == DTI_SAY_PUSHED && answer->part == DTI_PUSH_TAKEN);
}

static void served_honest(void) {
    dt_server *s = served_now->server;
    const uint64_t until = s->trainer->epoch + 1;
    dti_request ask = {s->trainer->epoch, dti_worker_mark(s->trainer), 0};
    served_begin(0, SERVED_PROCESSES - 1);
    FUZZ_CHECK(served_ask(DTI_SAY_HELLO, 0, 0, NULL, 0)->kind == DTI_SAY_WELCOME);
    for (int i = 0; i < 100 && ask.epoch < until; i++) {
        const dti_message answer = *served_ask(DTI_SAY_ASK, 100, 0, &ask, sizeof ask);
        dti_told told;
        if (answer.kind == DTI_SAY_BRING) {
            served_bring(answer.number);
            continue;
        }
        FUZZ_CHECK(answer.kind == DTI_SAY_TICKET || answer.kind == DTI_SAY_ENDED);
        memcpy(&told, served_now->conns[0].answer, sizeof told);
        const dti_message *values =
            served_ask(DTI_SAY_PULL, answer.kind == DTI_SAY_ENDED, told.resolved.version,
                       &told.resolved, sizeof told.resolved);
        FUZZ_CHECK(values->kind == DTI_SAY_VALUES);
        FUZZ_CHECK(values->number == told.resolved.version);
        ask.epoch = told.epoch;
        if (answer.kind == DTI_SAY_TICKET)
            served_push(&answer, told.resolved.version);
    }
    FUZZ_CHECK(ask.epoch == until);
}

static uint64_t served_hash(void) {
    uint64_t hash = 0;
    FUZZ_CHECK(!dt_store_hash(served_store(served_now), &hash));
    return hash;
}

static served_world *served_open(uint32_t index) {
    served_world *w = served_now = &served_worlds[index];
    if (w->server)
        return w;
    w->setup = &served_setups[index];
    served_server_make(w);
    served_unplug(w->server);
    served_reset(w);
    if (!w->setup->place) {
        served_honest();
        w->wanted = served_hash();
        served_end(0);
    }
    return w;
}

static dt_result served_fuzz_server(uint32_t index) {
    served_world *w = served_open(index);
    const dt_server *s = w->server;
    served_reset(w);
    while (served_in.at < served_in.size) {
        served_event();
        served_holds();
    }
    for (uint32_t i = 0; i < SERVED_CONNS; i++)
        if (w->conns[i].open)
            served_end(i);
    served_agree(w->server);
    bool counted = s->info.pushes || s->info.skipped || s->tickets.base != 1;
    for (uint32_t i = 0; i < s->tickets.window; i++)
        counted = counted || s->tickets.open[i].faulty;
    if (!w->setup->place) {
        served_honest();
        FUZZ_CHECK(counted || served_hash() == w->wanted);
        served_end(0);
    }
    served_values_hold();
    return counted ? DT_ERROR_CORRUPT : DT_OK;
}

/* ---- a worker whose server says anything */

static struct {
    served_world world; /* the server that it was made with */
    served_model model;
    dt_trainer *trainer;
    dti_welcome welcome;
    dti_message asked;
    uint64_t version; /* that the server says */
} served_at;

static bool served_dial(dti_message_server *server, uint32_t who, const char *address,
                        uint32_t place) {
    dti_client *c = &dti_served_of(served_at.trainer)->client;
    static const uint8_t instance[16];
    (void)server, (void)address, (void)place;
    if (served_in.at < served_in.size)
        dti_client_opened(c, who, instance);
    else
        dti_client_closed(c, who, false, true, "the data is over");
    return true;
}

static void served_hear(dti_message_server *server, uint32_t who, const dti_message *m) {
    uint8_t body[512];
    uint64_t at = 0;
    (void)server;
    for (uint64_t n; at < m->bytes; at += n) { /* what is asked can be read, to its end */
        n = DTI_MIN(m->bytes - at, (uint64_t)sizeof body);
        FUZZ_CHECK(dti_client_read(&dti_served_of(served_at.trainer)->client, who, m, at, body,
                                   (uint32_t)n));
    }
    served_at.asked = *m;
}

static void served_hung_up(dti_message_server *server, uint32_t who, const char *why) {
    (void)server, (void)who, (void)why;
}

/* What an honest one would say. */
static dti_message served_right(uint8_t small[DTI_MESSAGE_SMALL]) {
    const dti_message *m = &served_at.asked;
    dti_told told = {.resolved.version = served_at.version, .step = 1};
    memset(small, 0, DTI_MESSAGE_SMALL);
    switch (m->kind) {
    case DTI_SAY_HELLO:
        memcpy(small, &served_at.welcome, sizeof served_at.welcome);
        return (dti_message){.kind = DTI_SAY_WELCOME, .bytes = sizeof served_at.welcome};
    case DTI_SAY_ASK:
        served_at.version = served_at.version % 3; /* three batches an epoch */
        told.resolved.version = told.index = served_at.version;
        memcpy(small, &told, sizeof told);
        return (dti_message){DTI_SAY_TICKET, 0, served_at.version + 1, sizeof told};
    case DTI_SAY_PULL:
        return (dti_message){DTI_SAY_VALUES, m->part, served_at.version,
                             dti_arena_bytes(served_at.welcome.end - served_at.welcome.begin)};
    default:
        served_at.version += m->kind == DTI_SAY_PUSH;
        return (dti_message){.kind = DTI_SAY_PUSHED};
    }
}

static void served_change(dti_message *m, uint8_t small[DTI_MESSAGE_SMALL]) {
    static const uint64_t sizes[] = {0, 1, 47, 49, DTI_MESSAGE_SMALL, DTI_MESSAGE_SMALL + 1, 99999};
    const uint32_t what = served_u8();
    if (what & 1)
        m->kind = (uint16_t)(served_u8() % 20);
    if (what & 2)
        m->part = what & 64 ? (uint32_t)served_u64() : served_u8() % 4;
    if (what & 4)
        m->number = what & 64 ? served_u64() : served_u8() % 8;
    if (what & 8)
        m->bytes = sizes[served_u8() % DTI_COUNT(sizes)];
    for (int i = 0; i < 4 && what & 16; i++)
        small[served_u8() % 96] ^= (uint8_t)served_u8();
    if (what & 32)
        for (int i = 0; i < 96; i++)
            small[i] = (uint8_t)served_u8();
}

static void served_answer(uint32_t who) {
    dti_client *c = &dti_served_of(served_at.trainer)->client;
    uint8_t small[DTI_MESSAGE_SMALL];
    dti_message m = served_right(small);
    if (served_u8() % 2)
        served_change(&m, small);
    if (m.bytes <= DTI_MESSAGE_SMALL) {
        dti_client_came(c, who, &m, small);
        return;
    }
    uint8_t *room = dti_client_room(c, who, &m);
    const float value = served_float();
    for (uint64_t at = 0; room && at < m.bytes; at++)
        room[at] = ((const uint8_t *)&value)[at % sizeof value];
    dti_client_came(c, who, &m, NULL);
}

static void served_speak(dti_message_server *server, int timeout_ms) {
    dti_client *c = &dti_served_of(served_at.trainer)->client;
    (void)server, (void)timeout_ms;
    if (!c->servers[0].open)
        return;
    if (served_in.at >= served_in.size || served_u8() % 16 == 0)
        dti_client_closed(c, 0, true, false, "the server ends");
    else
        served_answer(0);
}

static const dti_message_server_calls served_client_calls = {.destroy = served_destroy,
                                                             .port = served_port,
                                                             .dial = served_dial,
                                                             .send = served_hear,
                                                             .close = served_hung_up,
                                                             .drop = served_drop,
                                                             .step = served_speak,
                                                             .moved = served_moved};

static void *served_run(void *arg) {
    FUZZ_CHECK(!dt_server_run(arg, -1));
    return NULL;
}

/* With a server that there is: then that one goes. */
static void served_worker_make(void) {
    static const dt_comm_desc by = {.insecure = true};
    served_world *w = served_now = &served_at.world;
    char address[32];
    dt_server_info info;
    pthread_t thread;
    w->setup = &served_setups[1];
    served_server_make(w);
    served_model_make(&served_at.model, w->setup);
    dt_server_get_info(w->server, &info);
    snprintf(address, sizeof address, "127.0.0.1:%d", info.port);
    dt_trainer_desc d = served_at.model.desc;
    d.mode = DT_TRAIN_SERVER;
    d.server.addresses = address;
    d.server.security = &by;
    FUZZ_CHECK(!pthread_create(&thread, NULL, served_run, w->server));
    FUZZ_CHECK(!dt_trainer_create(served_at.model.graph, &d, &served_at.trainer));
    dt_server_stop(w->server);
    pthread_join(thread, NULL);
    dti_client *c = &dti_served_of(served_at.trainer)->client;
    served_at.welcome = c->servers[0].welcome;
    c->calls->destroy(c->message_server);
    c->message_server = NULL;
    c->calls = &served_client_calls;
}

static void served_worker_reset(void) {
    dti_served *w = served_at.trainer->worker;
    dti_client_server *s = &w->client.servers[0];
    s->open = s->greeted = s->refused = s->told = s->back = s->silent = false;
    s->broken = s->full = 0;
    s->welcome = served_at.welcome;
    w->servers[0].have = 0;
    w->told = (dti_told){0};
    served_at.trainer->epoch = served_at.version = 0;
}

static dt_result served_fuzz_worker(void) {
    dt_result result = DT_OK;
    dt_train_report report;
    if (!served_at.trainer)
        served_worker_make();
    served_worker_reset();
    while (served_in.at < served_in.size) {
        result = dt_trainer_step(served_at.trainer, &report);
        FUZZ_CHECK(result >= DT_OK && result <= DT_ERROR_LATE);
        FUZZ_CHECK(!result || fuzz_text_is_plain(dt_ctx_error(served_at.model.ctx)));
        const dti_served *w = served_at.trainer->worker;
        if (!result && report.steps) /* three batches of three batch slices an epoch */
            FUZZ_CHECK(w->serial == 3 * w->told.epoch + w->told.index + 1 && w->told.index < 3 &&
                       w->batch_slice < 3);
    }
    return result;
}

/* ---- one input */

static dt_result fuzz_server(const uint8_t *data, size_t size) {
    served_in = (served_input){data, size, 0};
    const uint32_t how = served_u8();
    return how < 176   ? served_fuzz_server(how % SERVED_PLAIN)
           : how < 192 ? served_fuzz_server(SERVED_PLAIN + how % (SERVED_SETUPS - SERVED_PLAIN))
                       : served_fuzz_worker();
}

#ifndef FUZZ_REPLAY
/* Weak: another target has an entry of its own. */
__attribute__((weak)) int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_server(data, size);
    return 0;
}
#endif
