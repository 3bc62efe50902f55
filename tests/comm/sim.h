/* Ranks of one thread on a simulated network, from a seed. Each rank is a dti_core; the network
 * gives it short reads, delays, full buffers, and what a test asks for: resets, one-way partitions,
 * kills, pauses, flipped bits. Time is simulated, so a run of minutes takes milliseconds, and the
 * same seed gives the same run. */

#define SIM_RANKS_MAX 8
#define SIM_CONNS_MAX 512
#define SIM_BUFFER (1 << 16)

typedef struct sim_rng {
    uint64_t key, count;
} sim_rng;

static uint32_t sim_random(sim_rng *r, uint32_t below) {
    dti_u32x4 x = dti_philox(r->key, r->count++, 77);
    return below ? x.v[0] % below : 0;
}

static bool sim_chance(sim_rng *r, double p) {
    return sim_random(r, 1u << 30) < p * (1u << 30);
}

/* One direction of a connection: bytes with the time at which they arrive. */
typedef struct sim_pipe {
    uint8_t *data;              /* [SIM_BUFFER], a ring */
    uint64_t from, to, arrived; /* read, written, and may be read */
    uint64_t next_at;           /* when some more arrive */
    uint64_t flip_at;           /* where a bit was turned; UINT64_MAX = nowhere */
    bool fin;                   /* nothing follows */
} sim_pipe;

typedef struct sim_conn {
    bool used;
    int rank[2]; /* 0 dialled, 1 accepts */
    dti_link *link[2];
    sim_pipe pipe[2]; /* [0]: from rank[0] */
    bool reset;
    bool lost[2]; /* this side has an end, and the other one hears of it when it writes */
    bool silent;
    bool accepted, told; /* the dialler knows that it is connected */
    bool closed[2];
    uint64_t open_at;
    bool flipped[2]; /* in a frame that is not whole yet */
} sim_conn;

typedef struct sim_rank {
    dti_base base;
    dti_core core;
    bool made, dead, paused, leaving, gone;
    uint64_t paused_until, app_at;
    int step;    /* of the application's script */
    int fail_at; /* the allocation that fails; -1 = none */
    int allocs;
    int64_t held;
} sim_rank;

typedef struct sim_faults {
    double flip;                            /* chance that a written piece has a bit flipped */
    double refuse;                          /* that a dial fails */
    double broken;                          /* that a connection breaks in a step */
    uint64_t delay_max;                     /* ns */
    uint32_t piece_max;                     /* bytes moved at once */
    bool cut[SIM_RANKS_MAX][SIM_RANKS_MAX]; /* from, to: nothing arrives */
    /* One bit of byte `turn_at` that `turn_from` says to `turn_to`: on the first connection that
     * has that number of bytes; or on each one. Mask 0: none. */
    int turn_from, turn_to;
    uint64_t turn_at;
    uint8_t turn_mask;
    bool turn_each;
} sim_faults;

typedef struct sim_net {
    sim_rng rng;
    uint64_t now;
    int size;
    sim_rank ranks[SIM_RANKS_MAX];
    sim_conn conns[SIM_CONNS_MAX];
    int conn_top; /* entries that were ever used */
    sim_faults faults;
    uint64_t breaks;     /* connections that broke */
    uint64_t flips_read; /* turned bits that an open rank has read, and is still open */
    uint64_t turned;     /* by faults.turn_at */
} sim_net;

/* ---- memory: counted, and failing on demand */

static void *sim_alloc(void *user, size_t bytes, size_t align) {
    sim_rank *r = user;
    if (r->fail_at >= 0 && r->allocs++ == r->fail_at)
        return NULL;
    void *p = NULL;
    if (posix_memalign(&p, align, bytes))
        return NULL;
    r->held++;
    return p;
}

static void sim_free(void *user, void *memory, size_t bytes) {
    (void)bytes;
    ((sim_rank *)user)->held--;
    free(memory);
}

/* ---- what a core asks for */

static int sim_rank_of(const sim_net *n, const dti_core *core) {
    for (int r = 0; r < n->size; r++)
        if (&n->ranks[r].core == core)
            return r;
    return -1;
}

static void sim_dial(void *user, dti_link *link) {
    sim_net *n = user;
    int from = sim_rank_of(n, link->core);
    for (int i = 0; i < SIM_CONNS_MAX; i++) {
        sim_conn *c = &n->conns[i];
        if (c->used)
            continue;
        uint8_t *data[2] = {c->pipe[0].data, c->pipe[1].data};
        *c = (sim_conn){.used = true, .rank = {from, (int)link->peer}, .link = {link, NULL}};
        for (int d = 0; d < 2; d++) {
            c->pipe[d].data = data[d] ? data[d] : malloc(SIM_BUFFER);
            c->pipe[d].flip_at = UINT64_MAX;
        }
        c->open_at = n->now + 1000 + sim_random(&n->rng, (uint32_t)n->faults.delay_max);
        link->conn = c;
        n->conn_top = DTI_MAX(n->conn_top, i + 1);
        return;
    }
    fprintf(stderr, "sim: too many connections\n");
    abort();
}

static int sim_side(const sim_conn *c, const dti_link *link) {
    return c->link[0] == link ? 0 : 1;
}

static void sim_shut(void *user, dti_link *link) {
    (void)user;
    sim_conn *c = link->conn;
    c->pipe[sim_side(c, link)].fin = true;
}

/* As a closed socket: the other end reads the bytes that were sent, then the end; but when bytes
 * that had come were not read, it is reset. */
static void sim_close_side(sim_conn *c, int side) {
    c->closed[side] = true;
    c->link[side] = NULL;
    c->pipe[side].fin = true;
    if (c->pipe[!side].arrived > c->pipe[!side].from && !c->silent)
        c->reset = true;
    if (c->closed[0] && (c->closed[1] || !c->accepted))
        c->used = false;
}

static void sim_close(void *user, dti_link *link) {
    (void)user;
    sim_conn *c = link->conn;
    if (!c)
        return;
    link->conn = NULL;
    sim_close_side(c, sim_side(c, link));
}

static bool sim_bytes(void *user, void *to, size_t bytes) {
    sim_net *n = user;
    for (size_t i = 0; i < bytes; i++)
        ((uint8_t *)to)[i] = (uint8_t)sim_random(&n->rng, 256);
    return true;
}

static void sim_describe(void *user, const uint8_t *address, uint32_t bytes, char text[64]) {
    (void)user;
    snprintf(text, 64, "sim:%.*s", (int)bytes, (const char *)address);
}

static const dti_io sim_io = {sim_dial, sim_shut, sim_close, sim_bytes, sim_describe, NULL};

/* ---- the network */

static void sim_connect(sim_net *n, sim_conn *c) {
    sim_rank *to = &n->ranks[c->rank[1]], *from = &n->ranks[c->rank[0]];
    if (c->told || n->now < c->open_at || n->faults.cut[c->rank[0]][c->rank[1]])
        return;
    c->told = true;
    dti_link *dialler = c->link[0];
    dti_link *link = NULL;
    to->core.now = from->core.now = n->now;
    if (!to->dead && to->made && !to->gone && !sim_chance(&n->rng, n->faults.refuse))
        link = dti_core_accepted(&to->core, (const uint8_t[DTI_SOURCE_BYTES]){0});
    if (!link) {
        if (dialler)
            dialler->nobody = to->dead || to->gone;
        if (dialler)
            dti_core_closed(&from->core, dialler, "connection refused");
        c->used = false;
        return;
    }
    c->accepted = true;
    c->link[1] = link;
    link->conn = c;
    if (dialler)
        dti_core_connected(&from->core, dialler);
    else
        c->closed[0] = true;
}

static void sim_arrive(sim_net *n, sim_conn *c, int d) {
    sim_pipe *p = &c->pipe[d];
    if (n->faults.cut[c->rank[d]][c->rank[!d]] || p->arrived == p->to || n->now < p->next_at)
        return;
    uint32_t most = (uint32_t)(p->to - p->arrived);
    p->arrived += 1 + sim_random(&n->rng, DTI_MIN(most, n->faults.piece_max));
    p->next_at = n->now + sim_random(&n->rng, (uint32_t)n->faults.delay_max);
}

static void sim_write(sim_net *n, sim_conn *c, int d, const uint8_t *data, size_t bytes) {
    sim_pipe *p = &c->pipe[d];
    for (size_t i = 0; i < bytes; i++)
        p->data[(p->to + i) % SIM_BUFFER] = data[i];
    if (bytes && sim_chance(&n->rng, n->faults.flip)) {
        p->flip_at = p->to + sim_random(&n->rng, (uint32_t)bytes);
        p->data[p->flip_at % SIM_BUFFER] ^= (uint8_t)(1u << sim_random(&n->rng, 8));
    }
    const sim_faults *f = &n->faults;
    if (f->turn_mask && (f->turn_each || !n->turned) && c->rank[d] == f->turn_from &&
        c->rank[!d] == f->turn_to && f->turn_at >= p->to && f->turn_at - p->to < bytes) {
        p->data[f->turn_at % SIM_BUFFER] ^= f->turn_mask;
        n->turned++;
    }
    if (p->arrived == p->to)
        p->next_at = n->now + sim_random(&n->rng, (uint32_t)n->faults.delay_max);
    p->to += bytes;
}

/* True when something went. */
static bool sim_output(sim_net *n, sim_rank *r, sim_conn *c, int d) {
    sim_pipe *p = &c->pipe[d];
    bool some_went = false;
    for (int round = 0; round < 4 && c->link[d] && !p->fin; round++) {
        dti_socket_part out[2];
        int count = dti_link_output(&r->core, c->link[d], out);
        size_t sent = 0;
        for (int i = 0; i < count; i++) {
            size_t room = SIM_BUFFER - (size_t)(p->to - p->from);
            size_t most = DTI_MIN(out[i].bytes, room);
            size_t some =
                most ? 1 + sim_random(&n->rng, (uint32_t)DTI_MIN(most, n->faults.piece_max)) : 0;
            some = DTI_MIN(some, most);
            sim_write(n, c, d, out[i].data, some);
            sent += some;
            if (some < out[i].bytes)
                break;
        }
        if (!sent)
            break;
        some_went = true;
        c->reset = c->reset || c->silent;
        dti_link_sent(&r->core, c->link[d], sent);
    }
    return some_went;
}

/* A flipped bit counts when its frame is complete and the rank continues. A rank that has begun to
 * leave before that has its bytes, and need not look. */
static void sim_count_flip(sim_net *n, const sim_rank *r, sim_conn *c, int d) {
    const dti_link *link = c->link[d];
    if (!c->flipped[d] || !link || link->in_body || link->rx_from != link->rx_to)
        return;
    c->flipped[d] = false;
    n->flips_read += r->core.state == DTI_CORE_OPEN;
}

static void sim_input(sim_net *n, sim_rank *r, sim_conn *c, int d) {
    sim_pipe *p = &c->pipe[!d];
    for (int round = 0; round < 4 && c->link[d]; round++) {
        if (p->from == p->arrived) {
            const bool end =
                p->fin && p->from == p->to && !c->silent && !n->faults.cut[c->rank[!d]][c->rank[d]];
            /* As from a socket: what has been read is answered before the end is. */
            for (bool some = end && !round; some && c->link[d];)
                some = sim_output(n, r, c, d);
            if (end && !round && c->link[d])
                dti_core_closed(&r->core, c->link[d], NULL);
            return;
        }
        dti_socket_part in[2];
        int count = dti_link_input(&r->core, c->link[d], in);
        size_t got = 0;
        for (int i = 0; i < count; i++) {
            size_t have = (size_t)(p->arrived - p->from);
            size_t some = DTI_MIN(in[i].bytes, have);
            some = some ? 1 + sim_random(&n->rng, (uint32_t)some) : 0;
            some = DTI_MIN(some, DTI_MIN(in[i].bytes, have));
            for (size_t k = 0; k < some; k++)
                ((uint8_t *)in[i].data)[k] = p->data[(p->from + k) % SIM_BUFFER];
            if (p->flip_at >= p->from && p->flip_at < p->from + some &&
                r->core.state == DTI_CORE_OPEN && c->link[d]->state == DTI_LINK_OPEN)
                c->flipped[d] = true;
            p->from += some;
            got += some;
            if (some < in[i].bytes)
                break;
        }
        if (!got)
            return;
        dti_link_received(&r->core, c->link[d], got);
        sim_count_flip(n, r, c, d);
    }
}

static void sim_side_run(sim_net *n, sim_conn *c, int d) {
    sim_rank *r = &n->ranks[c->rank[d]];
    if (!c->link[d] || r->dead || r->paused || !c->told)
        return;
    r->core.now = n->now;
    /* What the system sends again and again to who does not know the connection is answered so. */
    c->reset = c->reset || (c->silent && c->pipe[d].to > c->pipe[d].from);
    if (c->reset || c->lost[d]) {
        c->silent = c->silent || c->lost[d];
        dti_core_closed(&r->core, c->link[d], "connection reset by peer");
        return;
    }
    sim_input(n, r, c, d);
    if (c->used && c->link[d])
        sim_output(n, r, c, d);
}

/* The process is gone: the system closes its connections. */
static void sim_kill(sim_net *n, int rank) {
    n->ranks[rank].dead = true;
    for (int i = 0; i < n->conn_top; i++) {
        sim_conn *c = &n->conns[i];
        for (int d = 0; d < 2 && c->used; d++)
            if (c->rank[d] == rank && c->link[d])
                sim_close_side(c, d);
    }
}

/* Some connection breaks, and the bytes on their way are lost. Both sides get the error; or they
 * read an end; or one side gets it, and the other one when it writes. */
static void sim_break_one(sim_net *n) {
    int start = (int)sim_random(&n->rng, (uint32_t)n->conn_top), way = (int)sim_random(&n->rng, 4);
    for (int i = 0; i < n->conn_top; i++) {
        sim_conn *c = &n->conns[(start + i) % n->conn_top];
        if (!c->used || !c->accepted || c->reset || c->silent)
            continue;
        n->breaks++;
        c->reset = way == 0;
        for (int d = 0; d < 2 && way == 1; d++) {
            c->pipe[d].to = c->pipe[d].arrived;
            c->pipe[d].fin = true;
        }
        if (way > 1)
            c->lost[way - 2] = true;
        return;
    }
}

/* A rank's turn: time, then the application (test_sim.c), unless it stands still. */
static void sim_app(sim_net *n, int rank);

static void sim_rank_run(sim_net *n, int rank) {
    sim_rank *r = &n->ranks[rank];
    if (r->paused && n->now >= r->paused_until)
        r->paused = false;
    if (r->dead || r->paused || !r->made || r->gone)
        return;
    dti_core_tick(&r->core, n->now);
    if (!r->leaving)
        sim_app(n, rank);
    else if (dti_core_is_gone(&r->core)) {
        r->gone = true;
        dti_core_destroy(&r->core);
    }
}

static void sim_step(sim_net *n, uint64_t dt) {
    n->now += dt;
    if (n->conn_top && sim_chance(&n->rng, n->faults.broken))
        sim_break_one(n);
    for (int i = 0; i < n->conn_top; i++) {
        sim_conn *c = &n->conns[i];
        if (!c->used)
            continue;
        sim_connect(n, c);
        for (int k = 0; k < 2 && c->used && c->told; k++)
            sim_arrive(n, c, k);
        int first = (int)sim_random(&n->rng, 2);
        for (int k = 0; k < 2 && c->used && c->told; k++)
            sim_side_run(n, c, k ^ first);
    }
    int first = (int)sim_random(&n->rng, (uint32_t)n->size);
    for (int k = 0; k < n->size; k++)
        sim_rank_run(n, (k + first) % n->size);
}

static bool sim_start(sim_net *n, int rank, const dti_settings *set) {
    sim_rank *r = &n->ranks[rank];
    char address[16];
    snprintf(address, sizeof address, "%d", rank);
    r->fail_at = -1;
    dti_base_init(&r->base, &(dt_allocator){sim_alloc, sim_free, r}, NULL);
    r->made = dti_core_create(&r->core, &r->base, set, &sim_io, n, (const uint8_t *)address,
                              (uint32_t)strlen(address), n->now);
    return r->made;
}

static void sim_end(sim_net *n) {
    for (int r = 0; r < n->size; r++)
        if (n->ranks[r].made && !n->ranks[r].gone)
            dti_core_destroy(&n->ranks[r].core);
    for (int i = 0; i < SIM_CONNS_MAX; i++)
        for (int d = 0; d < 2; d++)
            free(n->conns[i].pipe[d].data);
}
