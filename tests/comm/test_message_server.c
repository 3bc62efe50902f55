/* A message server and its clients in one thread, over TCP on this host. Messages of all sizes in
 * each kind of integrity, and refused clients. */

enum { MESSAGE_SERVER_CLIENTS = 3, MESSAGE_SERVER_LARGE = 300000 };

typedef struct message_server_side {
    dti_base base;
    dti_message_server *message_server;
    bool serves;
    int opened, closed, refused;
    dti_message sent[MESSAGE_SERVER_CLIENTS], came[MESSAGE_SERVER_CLIENTS];
    int count;
    char why[256];
    uint8_t room[MESSAGE_SERVER_CLIENTS][MESSAGE_SERVER_LARGE];
} message_server_side;

static uint8_t message_server_byte(const dti_message *m, uint64_t at) {
    return (uint8_t)(m->number * 7 + at * 5 + (at >> 11));
}

static void message_server_opened(void *user, uint32_t who, const uint8_t instance[16]) {
    message_server_side *s = user;
    CHECK(who < MESSAGE_SERVER_CLIENTS && instance);
    s->opened++;
}

static void *message_server_room(void *user, uint32_t who, const dti_message *m) {
    message_server_side *s = user;
    return m->bytes <= MESSAGE_SERVER_LARGE ? s->room[who] : NULL;
}

/* A server says what it heard back. */
static void message_server_came(void *user, uint32_t who, const dti_message *m, const void *body) {
    message_server_side *s = user;
    const uint8_t *at = body ? body : s->room[who];
    for (uint64_t i = 0; i < m->bytes; i++)
        if (at[i] != message_server_byte(m, i)) {
            CHECK(!"the bytes that were sent");
            break;
        }
    s->came[who] = s->sent[who] = *m;
    s->count++;
    if (s->serves)
        dti_message_server_send(s->message_server, who, m);
}

static bool message_server_read(void *user, uint32_t who, const dti_message *m, uint64_t at,
                                void *to, uint32_t bytes) {
    (void)user, (void)who;
    for (uint32_t i = 0; i < bytes; i++)
        ((uint8_t *)to)[i] = message_server_byte(m, at + i);
    return true;
}

static void message_server_closed(void *user, uint32_t who, bool was_open, bool refused,
                                  const char *why) {
    message_server_side *s = user;
    (void)who, (void)was_open;
    s->closed++;
    s->refused += refused;
    snprintf(s->why, sizeof s->why, "%s", why);
}

static bool message_server_make(message_server_side *s, bool serves, char key,
                                dt_comm_integrity integrity) {
    dt_comm_desc by = {.integrity = integrity, .job = "message servers"};
    memset(by.key, key, 64);
    dti_base_init(&s->base, NULL, NULL);
    s->serves = serves;
    const dti_message_server_desc d = {.by = &by,
                                       .connections = MESSAGE_SERVER_CLIENTS,
                                       .place = 1,
                                       .listen = serves ? "127.0.0.1:0" : NULL,
                                       .events = {s, message_server_opened, message_server_room,
                                                  message_server_came, message_server_read,
                                                  message_server_closed}};
    return dti_message_server_create(&s->base, &d, &s->message_server) == DT_OK;
}

static void message_server_free(message_server_side *s) {
    if (s)
        dti_message_server_destroy(s->message_server);
    free(s);
}

static void message_server_pass(message_server_side *a, message_server_side *b, const int *counter,
                                int wanted) {
    for (int i = 0; i < 5000 && *counter < wanted; i++) {
        dti_message_server_step(a->message_server, 0);
        dti_message_server_step(b->message_server, 1);
    }
    CHECK(*counter >= wanted);
}

static void message_server_exchanges(dt_comm_integrity integrity) {
    static const uint64_t sizes[] = {0,     1,     DTI_MESSAGE_SMALL,   DTI_MESSAGE_SMALL + 1,
                                     65536, 65537, MESSAGE_SERVER_LARGE};
    message_server_side *server = calloc(1, sizeof *server), *client = calloc(1, sizeof *client);
    char address[32];
    if (server && client &&
        test_check(message_server_make(server, true, 'a', integrity) &&
                       message_server_make(client, false, 'a', integrity),
                   __FILE__, __LINE__, "%s", server->base.error)) {
        snprintf(address, sizeof address, "127.0.0.1:%d",
                 dti_message_server_port(server->message_server));
        for (uint32_t who = 0; who < MESSAGE_SERVER_CLIENTS; who++)
            CHECK(dti_message_server_dial(client->message_server, who, address, 1));
        message_server_pass(server, client, &client->opened, MESSAGE_SERVER_CLIENTS);
        for (size_t i = 0; i < DTI_COUNT(sizes); i++) {
            const int before = client->count;
            for (uint32_t who = 0; who < MESSAGE_SERVER_CLIENTS; who++) {
                const dti_message m = {7, who, 100 * i + who, sizes[i]};
                dti_message_server_send(client->message_server, who, &m);
            }
            message_server_pass(server, client, &client->count, before + MESSAGE_SERVER_CLIENTS);
        }
        dti_message_server_close(client->message_server, 1, "enough");
        message_server_pass(server, client, &server->closed, 1);
        CHECK(server->opened == MESSAGE_SERVER_CLIENTS && client->closed == 0);
    }
    message_server_free(client);
    message_server_free(server);
}

TEST(message_servers_bring_messages_of_all_sizes_in_each_integrity) {
    message_server_exchanges(DT_COMM_CRC);
    message_server_exchanges(DT_COMM_UNCHECKED);
#ifdef DT_WITH_OPENSSL
    message_server_exchanges(DT_COMM_MAC);
    message_server_exchanges(DT_COMM_TLS);
#endif
}

static void message_server_turns_away(char key, dt_comm_integrity own, dt_comm_integrity integrity,
                                      uint32_t place, const char *word) {
    message_server_side *server = calloc(1, sizeof *server), *client = calloc(1, sizeof *client);
    char address[32];
    if (server && client && message_server_make(server, true, 'a', own) &&
        message_server_make(client, false, key, integrity)) {
        snprintf(address, sizeof address, "127.0.0.1:%d",
                 dti_message_server_port(server->message_server));
        CHECK(dti_message_server_dial(client->message_server, 0, address, place));
        message_server_pass(server, client, &client->closed, 1);
        test_check(!client->opened && !server->opened && strstr(client->why, word), __FILE__,
                   __LINE__, "'%s' does not say '%s'", client->why, word);
    } else
        CHECK(!"two message servers");
    message_server_free(client);
    message_server_free(server);
}

TEST(message_servers_refuse_other_keys_settings_and_indices) {
    message_server_turns_away('b', DT_COMM_CRC, DT_COMM_CRC, 1, "the keys differ");
    message_server_turns_away('a', DT_COMM_CRC, DT_COMM_UNCHECKED, 1, "settings differ");
    message_server_turns_away('a', DT_COMM_CRC, DT_COMM_CRC, 0, "another rank answers");
#ifdef DT_WITH_OPENSSL
    message_server_turns_away('b', DT_COMM_TLS, DT_COMM_TLS, 1, "TLS");
    message_server_turns_away('a', DT_COMM_TLS, DT_COMM_CRC, 1, "handshake");
#endif
}

/* A server's and a client's message server, with one key; the test's to free. */
static bool message_server_two(message_server_side **server, message_server_side **client) {
    *server = calloc(1, sizeof **server);
    *client = calloc(1, sizeof **client);
    return *server && *client && message_server_make(*server, true, 'a', DT_COMM_CRC) &&
           message_server_make(*client, false, 'a', DT_COMM_CRC);
}

/* More than there is room for wait for their turn after those that have proved nothing. */
TEST(message_servers_close_the_oldest_unknown_connection_for_a_new_one) {
    message_server_side *server, *client;
    int strangers[2 * MESSAGE_SERVER_CLIENTS];
    struct sockaddr_in to = {.sin_family = AF_INET};
    char address[32];
    REQUIRE(message_server_two(&server, &client));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons((uint16_t)dti_message_server_port(server->message_server));
    for (int i = 0; i < 2 * MESSAGE_SERVER_CLIENTS; i++) {
        strangers[i] = dti_socket_new(AF_INET, SOCK_STREAM);
        dti_socket_connect(strangers[i], &to, sizeof to);
        dti_message_server_step(server->message_server, 10);
    }
    snprintf(address, sizeof address, "127.0.0.1:%d",
             dti_message_server_port(server->message_server));
    CHECK(dti_message_server_dial(client->message_server, 0, address, 1));
    message_server_pass(server, client, &client->opened, 1);
    for (int i = 0; i < 2 * MESSAGE_SERVER_CLIENTS; i++)
        dti_socket_close(strangers[i]);
    message_server_free(client);
    message_server_free(server);
}

/* Far away: each of its steps is one of many that somebody near makes meanwhile. */
TEST(message_servers_limit_the_connections_of_one_address) {
    message_server_side *server, *client;
    enum { ROUNDS = 60, EACH = 2 * MESSAGE_SERVER_CLIENTS };
    struct sockaddr_in to = {.sin_family = AF_INET}, own = {.sin_family = AF_INET};
    int strangers[ROUNDS * EACH], made = 0;
    char address[32];
    REQUIRE(message_server_two(&server, &client));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons((uint16_t)dti_message_server_port(server->message_server));
    own.sin_addr.s_addr = htonl(0x7f000002);
    snprintf(address, sizeof address, "127.0.0.1:%d",
             dti_message_server_port(server->message_server));
    CHECK(dti_message_server_dial(client->message_server, 0, address, 1));
    for (int i = 0; i < ROUNDS && !client->opened; i++) {
        dti_message_server_step(client->message_server, 1);
        for (int k = 0; k < EACH; k++) {
            const int s = strangers[made++] = dti_socket_new(AF_INET, SOCK_STREAM);
            CHECK(bind(s, (struct sockaddr *)&own, sizeof own) == 0);
            dti_socket_connect(s, &to, sizeof to);
            dti_message_server_step(server->message_server, 1);
        }
    }
    CHECK(client->opened == 1 && server->opened == 1);
    const uint64_t ended = dti_message_server_strangers(server->message_server);
    test_check(ended == (uint64_t)(made - MESSAGE_SERVER_CLIENTS + 1), __FILE__, __LINE__,
               "%d of %d strangers were sent away", (int)ended, made);
    for (int i = 0; i < made; i++)
        dti_socket_close(strangers[i]);
    message_server_free(client);
    message_server_free(server);
}

static void message_server_log(void *user, dt_log_level level, const char *text) {
    snprintf(user, 256, "%s", level == DT_LOG_WARNING ? text : "");
}

TEST(message_servers_without_a_descriptor_report_it_and_continue) {
    message_server_side *server, *client;
    char address[32], said[256] = "";
    struct rlimit all;
    REQUIRE(message_server_two(&server, &client));
    server->base.logger = (dt_logger){.log = message_server_log, .user = said};
    snprintf(address, sizeof address, "127.0.0.1:%d",
             dti_message_server_port(server->message_server));
    CHECK(dti_message_server_dial(client->message_server, 0, address, 1));
    dti_message_server_step(client->message_server, 1);
    const int next = dup(0);
    CHECK(next >= 0 && close(next) == 0 && getrlimit(RLIMIT_NOFILE, &all) == 0);
    CHECK(setrlimit(RLIMIT_NOFILE, &(struct rlimit){(rlim_t)next, all.rlim_max}) == 0);
    for (int i = 0; i < 1000 && !said[0]; i++)
        dti_message_server_step(server->message_server, 1);
    CHECK(setrlimit(RLIMIT_NOFILE, &all) == 0);
    CHECK_CONTAINS(said, "no descriptor is left for a new connection (Too many open files)");
    message_server_pass(server, client, &client->closed, 1);
    CHECK(dti_message_server_dial(client->message_server, 1, address, 1));
    message_server_pass(server, client, &client->opened, 1);
    message_server_free(client);
    message_server_free(server);
}
