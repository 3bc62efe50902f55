/* A client of PMI-1, by which Hydra (MPICH, Intel MPI, MVAPICH) and `srun --mpi=pmi2` let their
 * processes exchange texts. They are lines of "name=value" words on an inherited socket. It has
 * just enough for rank 0 to send its address and key to all others. The launcher's channel is as
 * private as the launcher. PMI-2 is not needed: Slurm's plugin of that name speaks PMI-1 too
 * (tested with 22.05). Messages by Balaji et al., "PMI: A Scalable Parallel Process-Management
 * Interface" (EuroMPI 2010), and as MPICH 4.0 and Slurm 22.05 answer them.
 *
 * A process can do this once. It must send "finalize", or Hydra regards the program as failed; then
 * both close the socket. A program that calls MPI itself needs PMI for that, and another way for
 * its ranks to meet. */

#define DTI_PMI_LINE 2048
/* Launchers allow different characters in values; all allow hex digits. */
#define DTI_PMI_TEXT_MAX 480

#if DTI_POSIX_2008

typedef struct dti_pmi {
    dti_base *base;
    int descriptor;
    uint64_t deadline_ns;
    char line[DTI_PMI_LINE]; /* an answer */
    size_t size;
} dti_pmi;

static dt_result dti_pmi_fail(dti_pmi *pmi, dt_result result, const char *what, const char *why) {
    return dti_fail(pmi->base, result,
                    "PMI: %s: %s. A process can use PMI once; otherwise set DTRAIN_RDZV to "
                    "tcp://host:port or file:///shared/path",
                    what, why);
}

/* The result of the socket's calls. */
static dt_result dti_pmi_moved(dti_pmi *pmi, int error, const char *what) {
    if (error == DTI_SOCKET_LATE)
        return dti_pmi_fail(pmi, DT_ERROR_TIMEOUT, what, "no answer within .join_timeout_ms");
    return error ? dti_pmi_fail(pmi, DT_ERROR_IO, what, strerror(error)) : DT_OK;
}

/* One line, without its end. Each question has one answer, so nothing may follow it. */
static dt_result dti_pmi_receive(dti_pmi *pmi, const char *what) {
    pmi->size = 0;
    while (pmi->size == 0 || pmi->line[pmi->size - 1] != '\n') {
        int error = dti_socket_await(pmi->descriptor, POLLIN, pmi->deadline_ns);
        DTI_TRY(dti_pmi_moved(pmi, error, what));
        if (pmi->size == sizeof pmi->line)
            return dti_pmi_fail(pmi, DT_ERROR_FORMAT, what, "a line of the answer is too long");
        const dti_socket_part part = {pmi->line + pmi->size, sizeof pmi->line - pmi->size};
        const int64_t got = dti_socket_receive(pmi->descriptor, &part, 1);
        if (got == 0)
            return dti_pmi_fail(pmi, DT_ERROR_IO, what, "the launcher closed the connection");
        if (got < 0 && !dti_socket_would_block(errno))
            return dti_pmi_fail(pmi, DT_ERROR_IO, what, strerror(errno));
        pmi->size += (size_t)DTI_MAX(got, 0);
    }
    pmi->line[--pmi->size] = 0;
    if (memchr(pmi->line, 0, pmi->size) || memchr(pmi->line, '\n', pmi->size))
        return dti_pmi_fail(pmi, DT_ERROR_FORMAT, what, "the answer is not one line of text");
    return DT_OK;
}

/* The value of " name=" in the answer; NULL = it has none. Values end at a space. */
static const char *dti_pmi_word(const dti_pmi *pmi, const char *name, size_t *size) {
    size_t name_size = strlen(name);
    for (const char *at = pmi->line; *at;) {
        size_t word = strcspn(at, " ");
        if (word > name_size && at[name_size] == '=' && !memcmp(at, name, name_size)) {
            *size = word - name_size - 1;
            return at + name_size + 1;
        }
        at += word;
        at += strspn(at, " ");
    }
    return NULL;
}

static bool dti_pmi_word_is(const dti_pmi *pmi, const char *name, const char *value) {
    size_t size;
    const char *text = dti_pmi_word(pmi, name, &size);
    return text && size == strlen(value) && !memcmp(text, value, size);
}

/* Sends a command and checks that the answer is `answer` and has no rc but 0. */
DTI_PRINTF(4, 5)
static dt_result dti_pmi_ask(dti_pmi *pmi, const char *what, const char *answer, const char *format,
                             ...) {
    char text[DTI_PMI_LINE];
    va_list list;
    va_start(list, format);
    int size = vsnprintf(text, sizeof text, format, list);
    va_end(list);
    if (size < 0 || (size_t)size >= sizeof text)
        return dti_pmi_fail(pmi, DT_ERROR_INVALID, what, "the text is too long");
    int error = dti_socket_send_all(pmi->descriptor, text, (size_t)size, pmi->deadline_ns);
    dt_result result = dti_pmi_moved(pmi, error, "send");
    dti_wipe(text, sizeof text);
    if (!result)
        result = dti_pmi_receive(pmi, what);
    if (result)
        return result;
    size_t rc;
    bool refused = dti_pmi_word(pmi, "rc", &rc) && !dti_pmi_word_is(pmi, "rc", "0");
    if (!dti_pmi_word_is(pmi, "cmd", answer) || refused)
        return dti_pmi_fail(pmi, DT_ERROR_IO, what, "the launcher refused it");
    return DT_OK;
}

static dt_result dti_pmi_open(dti_pmi *pmi, char space[256]) {
    size_t size = 0;
    DTI_TRY(
        dti_pmi_ask(pmi, "init", "response_to_init", "cmd=init pmi_version=1 pmi_subversion=1\n"));
    DTI_TRY(dti_pmi_ask(pmi, "get_my_kvsname", "my_kvsname", "cmd=get_my_kvsname\n"));
    const char *name = dti_pmi_word(pmi, "kvsname", &size);
    if (!name || size == 0 || size >= 256)
        return dti_pmi_fail(pmi, DT_ERROR_FORMAT, "get_my_kvsname", "the answer has no name");
    memcpy(space, name, size);
    space[size] = 0;
    return DT_OK;
}

static bool dti_pmi_unhex(const char *hex, size_t size, char *text, size_t room) {
    if (size % 2 || size / 2 >= room || !dti_hex_read(hex, size / 2, text))
        return false;
    text[size / 2] = 0;
    return strlen(text) == size / 2;
}

static dt_result dti_pmi_converse(dti_pmi *pmi, uint32_t rank, const char *mine, char *of_rank0,
                                  size_t room) {
    char space[256], hex[2 * DTI_PMI_TEXT_MAX + 1];
    size_t size = 0;
    DTI_TRY(dti_pmi_open(pmi, space));
    if (rank == 0) {
        dti_hex_write(mine, strlen(mine), hex);
        const dt_result result = dti_pmi_ask(
            pmi, "put", "put_result", "cmd=put kvsname=%s key=dtrain value=%s\n", space, hex);
        dti_wipe(hex, sizeof hex);
        DTI_TRY(result);
    }
    DTI_TRY(dti_pmi_ask(pmi, "barrier_in", "barrier_out", "cmd=barrier_in\n"));
    DTI_TRY(dti_pmi_ask(pmi, "get", "get_result", "cmd=get kvsname=%s key=dtrain\n", space));
    const char *value = dti_pmi_word(pmi, "value", &size);
    if (!value || !dti_pmi_unhex(value, size, of_rank0, room))
        return dti_pmi_fail(pmi, DT_ERROR_FORMAT, "get", "the value of rank 0 is malformed");
    return dti_pmi_ask(pmi, "finalize", "finalize_ack", "cmd=finalize\n");
}

/* All ranks call it; each gets rank 0's text. `descriptor` is PMI_FD, and stays open: its number
 * must not become another file's while the environment names it. */
static dt_result dti_pmi_exchange(dti_base *base, int descriptor, uint32_t rank, int timeout_ms,
                                  const char *mine, char *of_rank0, size_t room) {
    dti_pmi pmi = {.base = base, .descriptor = descriptor};
    pmi.deadline_ns = dti_now_ns() + (uint64_t)timeout_ms * 1000000;
    if (strlen(mine) > DTI_PMI_TEXT_MAX)
        return dti_pmi_fail(&pmi, DT_ERROR_INVALID, "put", "the text is too long");
    dt_result result = dti_pmi_converse(&pmi, rank, mine, of_rank0, room);
    dti_wipe(pmi.line, sizeof pmi.line);
    return result;
}

#else

DTI_ABSENT(dt_result, dti_pmi_exchange,
           (dti_base * base, int descriptor, uint32_t rank, int timeout_ms, const char *mine,
            char *of_rank0, size_t room),
           dti_fail(base, DT_ERROR_UNSUPPORTED,
                    "PMI requires POSIX (-std=gnu11); set DTRAIN_RDZV instead"));

#endif
