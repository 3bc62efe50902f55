/* Any lines of "NAME=value" as an environment. The result is a possible place in a group, or a text
 * that names the fault. A line "pmix" is a PMIx library that serves rank 1 of 4, "FD=text" what
 * inherited descriptors hold. The target has the implementation in it, since it calls what is
 * internal. */
#ifndef FUZZ_REPLAY
#define DT_COMM_ONLY
#define DT_STATIC
#define DT_IMPLEMENTATION
#endif
#include "fuzz/fuzz.h"

#define FUZZ_ENV_LINES 64

typedef struct fuzz_environment {
    char *text;
    char *lines[FUZZ_ENV_LINES];
    int count;
} fuzz_environment;

static const char *fuzz_env_get(void *user, const char *name) {
    const fuzz_environment *e = user;
    size_t size = strlen(name);
    for (int i = 0; i < e->count; i++)
        if (!strncmp(e->lines[i], name, size) && e->lines[i][size] == '=')
            return e->lines[i] + size + 1;
    return NULL;
}

static bool fuzz_env_pmix_loads(void *user) {
    const fuzz_environment *e = user;
    for (int i = 0; i < e->count; i++)
        if (!strcmp(e->lines[i], "pmix"))
            return true;
    return false;
}

static bool fuzz_env_pmix_job(void *user, uint32_t *rank, uint32_t *size) {
    (void)user;
    *rank = 1;
    *size = 4;
    return true;
}

static int fuzz_env_descriptor(void *user, int descriptor, char *to, size_t room) {
    const char *text = fuzz_env_get(user, "FD");
    size_t size = text ? strlen(text) : 0;
    (void)descriptor;
    if (size > room)
        size = room;
    if (size)
        memcpy(to, text, size);
    return text ? (int)size : -1;
}

static bool fuzz_env_ends(const char *text, size_t room) {
    return memchr(text, 0, room) != NULL;
}

static void fuzz_env_check(const dt_comm_desc *d) {
    FUZZ_CHECK(fuzz_env_ends(d->rendezvous, sizeof d->rendezvous));
    FUZZ_CHECK(fuzz_env_ends(d->job, sizeof d->job) && fuzz_env_ends(d->key, sizeof d->key));
    FUZZ_CHECK(fuzz_env_ends(d->key_file, sizeof d->key_file));
    FUZZ_CHECK(fuzz_env_ends(d->interfaces, sizeof d->interfaces));
    FUZZ_CHECK(fuzz_env_ends(d->launcher, sizeof d->launcher));
    FUZZ_CHECK(!d->warning[0] || fuzz_text_is_plain(d->warning));
    if (d->error[0]) {
        FUZZ_CHECK(fuzz_text_is_plain(d->error) && strlen(d->error) < sizeof d->error);
        return;
    }
    FUZZ_CHECK(d->rank >= 0 && d->rank < d->world_size && d->local_rank >= 0);
    FUZZ_CHECK(d->local_size >= 0 && d->local_size <= d->world_size);
    FUZZ_CHECK(d->world_size == 1 || (d->launcher[0] && strchr(d->rendezvous, ':')));
    FUZZ_CHECK(d->port_low >= 0 && d->port_low <= d->port_high && d->port_high <= 65535);
    FUZZ_CHECK(d->join_timeout_ms >= 0 && d->silence_ms >= 0);
    FUZZ_CHECK(!d->insecure || (!d->key[0] && !d->key_file[0]));
}

static dt_result fuzz_env(const uint8_t *data, size_t size) {
    fuzz_environment e = {.text = malloc(size + 1)};
    if (!e.text)
        return DT_ERROR_MEMORY;
    memcpy(e.text, data, size);
    e.text[size] = 0;
    for (char *line = strtok(e.text, "\n"); line && e.count < FUZZ_ENV_LINES;
         line = strtok(NULL, "\n"))
        e.lines[e.count++] = line;
    dti_env env = {fuzz_env_get, fuzz_env_pmix_loads, fuzz_env_pmix_job, fuzz_env_descriptor, &e};
    dt_comm_desc desc = dti_env_read(&env);
    fuzz_env_check(&desc);
    free(e.text);
    return desc.error[0] ? DT_ERROR_INVALID : DT_OK;
}

#ifndef FUZZ_REPLAY
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_env(data, size);
    return 0;
}
#endif
