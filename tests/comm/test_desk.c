/* A desk and its clients in one thread, over TCP on this host: messages of all sizes in each kind
 * of integrity, and who is turned away. */

enum { DESK_CLIENTS = 3, DESK_LARGE = 300000 };

typedef struct desk_side {
    dti_base base;
    dti_desk *desk;
    bool serves;
    int opened, closed, refused;
    dti_message sent[DESK_CLIENTS], came[DESK_CLIENTS];
    int count;
    char why[256];
    uint8_t room[DESK_CLIENTS][DESK_LARGE];
} desk_side;

static uint8_t desk_byte(const dti_message *m, uint64_t at) {
    return (uint8_t)(m->number * 7 + at * 5 + (at >> 11));
}

static void desk_opened(void *user, uint32_t who, const uint8_t instance[16]) {
    desk_side *s = user;
    CHECK(who < DESK_CLIENTS && instance);
    s->opened++;
}

static void *desk_room(void *user, uint32_t who, const dti_message *m) {
    desk_side *s = user;
    return m->bytes <= DESK_LARGE ? s->room[who] : NULL;
}

/* A server says what it heard back. */
static void desk_came(void *user, uint32_t who, const dti_message *m, const void *body) {
    desk_side *s = user;
    const uint8_t *at = body ? body : s->room[who];
    for (uint64_t i = 0; i < m->bytes; i++)
        if (at[i] != desk_byte(m, i)) {
            CHECK(!"the bytes that were sent");
            break;
        }
    s->came[who] = s->sent[who] = *m;
    s->count++;
    if (s->serves)
        dti_desk_send(s->desk, who, m);
}

static bool desk_read(void *user, uint32_t who, const dti_message *m, uint64_t at, void *to,
                      uint32_t bytes) {
    (void)user, (void)who;
    for (uint32_t i = 0; i < bytes; i++)
        ((uint8_t *)to)[i] = desk_byte(m, at + i);
    return true;
}

static void desk_closed(void *user, uint32_t who, bool was_open, bool refused, const char *why) {
    desk_side *s = user;
    (void)who, (void)was_open;
    s->closed++;
    s->refused += refused;
    snprintf(s->why, sizeof s->why, "%s", why);
}

static bool desk_make(desk_side *s, bool serves, char key, dt_comm_integrity integrity) {
    dt_comm_desc by = {.integrity = integrity, .job = "desks"};
    memset(by.key, key, 64);
    dti_base_init(&s->base, NULL, NULL);
    s->serves = serves;
    const dti_desk_desc d = {
        .by = &by,
        .connections = DESK_CLIENTS,
        .place = 1,
        .listen = serves ? "127.0.0.1:0" : NULL,
        .events = {s, desk_opened, desk_room, desk_came, desk_read, desk_closed}};
    return dti_desk_create(&s->base, &d, &s->desk) == DT_OK;
}

static void desk_free(desk_side *s) {
    if (s)
        dti_desk_destroy(s->desk);
    free(s);
}

static void desk_pass(desk_side *a, desk_side *b, const int *counter, int wanted) {
    for (int i = 0; i < 5000 && *counter < wanted; i++) {
        dti_desk_step(a->desk, 0);
        dti_desk_step(b->desk, 1);
    }
    CHECK(*counter >= wanted);
}

static void desk_talks(dt_comm_integrity integrity) {
    static const uint64_t sizes[] = {0,     1,     DTI_MESSAGE_SMALL, DTI_MESSAGE_SMALL + 1,
                                     65536, 65537, DESK_LARGE};
    desk_side *server = calloc(1, sizeof *server), *client = calloc(1, sizeof *client);
    char address[32];
    if (server && client &&
        test_check(desk_make(server, true, 'a', integrity) &&
                       desk_make(client, false, 'a', integrity),
                   __FILE__, __LINE__, "%s", server->base.error)) {
        snprintf(address, sizeof address, "127.0.0.1:%d", dti_desk_port(server->desk));
        for (uint32_t who = 0; who < DESK_CLIENTS; who++)
            CHECK(dti_desk_dial(client->desk, who, address, 1));
        desk_pass(server, client, &client->opened, DESK_CLIENTS);
        for (size_t i = 0; i < DTI_COUNT(sizes); i++) {
            const int before = client->count;
            for (uint32_t who = 0; who < DESK_CLIENTS; who++) {
                const dti_message m = {7, who, 100 * i + who, sizes[i]};
                dti_desk_send(client->desk, who, &m);
            }
            desk_pass(server, client, &client->count, before + DESK_CLIENTS);
        }
        dti_desk_close(client->desk, 1, "enough");
        desk_pass(server, client, &server->closed, 1);
        CHECK(server->opened == DESK_CLIENTS && client->closed == 0);
    }
    desk_free(client);
    desk_free(server);
}

TEST(desks_bring_messages_of_all_sizes_in_each_integrity) {
    desk_talks(DT_COMM_CRC);
    desk_talks(DT_COMM_NONE);
#ifdef DT_WITH_OPENSSL
    desk_talks(DT_COMM_MAC);
    desk_talks(DT_COMM_TLS);
#endif
}

static void desk_turns_away(char key, dt_comm_integrity own, dt_comm_integrity integrity,
                            uint32_t place, const char *word) {
    desk_side *server = calloc(1, sizeof *server), *client = calloc(1, sizeof *client);
    char address[32];
    if (server && client && desk_make(server, true, 'a', own) &&
        desk_make(client, false, key, integrity)) {
        snprintf(address, sizeof address, "127.0.0.1:%d", dti_desk_port(server->desk));
        CHECK(dti_desk_dial(client->desk, 0, address, place));
        desk_pass(server, client, &client->closed, 1);
        test_check(!client->opened && !server->opened && strstr(client->why, word), __FILE__,
                   __LINE__, "'%s' does not say '%s'", client->why, word);
    } else
        CHECK(!"two desks");
    desk_free(client);
    desk_free(server);
}

TEST(desks_turn_away_other_keys_settings_and_places) {
    desk_turns_away('b', DT_COMM_CRC, DT_COMM_CRC, 1, "the keys differ");
    desk_turns_away('a', DT_COMM_CRC, DT_COMM_NONE, 1, "settings differ");
    desk_turns_away('a', DT_COMM_CRC, DT_COMM_CRC, 0, "another rank answers");
#ifdef DT_WITH_OPENSSL
    desk_turns_away('b', DT_COMM_TLS, DT_COMM_TLS, 1, "TLS");
    desk_turns_away('a', DT_COMM_TLS, DT_COMM_CRC, 1, "handshake");
#endif
}

/* A server's and a client's desk, with one key; the test's to free. */
static bool desk_two(desk_side **server, desk_side **client) {
    *server = calloc(1, sizeof **server);
    *client = calloc(1, sizeof **client);
    return *server && *client && desk_make(*server, true, 'a', DT_COMM_CRC) &&
           desk_make(*client, false, 'a', DT_COMM_CRC);
}

/* More than there is room for wait for their turn behind those that have proved nothing. */
TEST(desks_give_up_the_oldest_stranger_for_the_next) {
    desk_side *server, *client;
    int strangers[2 * DESK_CLIENTS];
    struct sockaddr_in to = {.sin_family = AF_INET};
    char address[32];
    REQUIRE(desk_two(&server, &client));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons((uint16_t)dti_desk_port(server->desk));
    for (int i = 0; i < 2 * DESK_CLIENTS; i++) {
        strangers[i] = dti_socket_new(AF_INET, SOCK_STREAM);
        dti_socket_connect(strangers[i], &to, sizeof to);
        dti_desk_step(server->desk, 10);
    }
    snprintf(address, sizeof address, "127.0.0.1:%d", dti_desk_port(server->desk));
    CHECK(dti_desk_dial(client->desk, 0, address, 1));
    desk_pass(server, client, &client->opened, 1);
    for (int i = 0; i < 2 * DESK_CLIENTS; i++)
        dti_socket_close(strangers[i]);
    desk_free(client);
    desk_free(server);
}

/* Far away: each of its steps is one of many that somebody near makes meanwhile. */
TEST(desks_let_no_address_that_opens_many_keep_out_another) {
    desk_side *server, *client;
    enum { ROUNDS = 60, EACH = 2 * DESK_CLIENTS };
    struct sockaddr_in to = {.sin_family = AF_INET}, own = {.sin_family = AF_INET};
    int strangers[ROUNDS * EACH], made = 0;
    char address[32];
    REQUIRE(desk_two(&server, &client));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons((uint16_t)dti_desk_port(server->desk));
    own.sin_addr.s_addr = htonl(0x7f000002);
    snprintf(address, sizeof address, "127.0.0.1:%d", dti_desk_port(server->desk));
    CHECK(dti_desk_dial(client->desk, 0, address, 1));
    for (int i = 0; i < ROUNDS && !client->opened; i++) {
        dti_desk_step(client->desk, 1);
        for (int k = 0; k < EACH; k++) {
            const int s = strangers[made++] = dti_socket_new(AF_INET, SOCK_STREAM);
            CHECK(bind(s, (struct sockaddr *)&own, sizeof own) == 0);
            dti_socket_connect(s, &to, sizeof to);
            dti_desk_step(server->desk, 1);
        }
    }
    CHECK(client->opened == 1 && server->opened == 1);
    const uint64_t ended = dti_desk_strangers(server->desk);
    test_check(ended == (uint64_t)(made - DESK_CLIENTS + 1), __FILE__, __LINE__,
               "%d of %d strangers were sent away", (int)ended, made);
    for (int i = 0; i < made; i++)
        dti_socket_close(strangers[i]);
    desk_free(client);
    desk_free(server);
}

static void desk_log(void *user, dt_log_level level, const char *text) {
    snprintf(user, 256, "%s", level == DT_LOG_WARNING ? text : "");
}

TEST(desks_without_a_descriptor_say_so_and_go_on) {
    desk_side *server, *client;
    char address[32], said[256] = "";
    struct rlimit all;
    REQUIRE(desk_two(&server, &client));
    server->base.logger = (dt_logger){.log = desk_log, .user = said};
    snprintf(address, sizeof address, "127.0.0.1:%d", dti_desk_port(server->desk));
    CHECK(dti_desk_dial(client->desk, 0, address, 1));
    dti_desk_step(client->desk, 1);
    const int next = dup(0);
    CHECK(next >= 0 && close(next) == 0 && getrlimit(RLIMIT_NOFILE, &all) == 0);
    CHECK(setrlimit(RLIMIT_NOFILE, &(struct rlimit){(rlim_t)next, all.rlim_max}) == 0);
    for (int i = 0; i < 1000 && !said[0]; i++)
        dti_desk_step(server->desk, 1);
    CHECK(setrlimit(RLIMIT_NOFILE, &all) == 0);
    CHECK_CONTAINS(said, "no descriptor is left for a new connection (Too many open files)");
    desk_pass(server, client, &client->closed, 1);
    CHECK(dti_desk_dial(client->desk, 1, address, 1));
    desk_pass(server, client, &client->opened, 1);
    desk_free(client);
    desk_free(server);
}
