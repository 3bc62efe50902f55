/* The job's key: 32 random bytes that every rank has before it connects. It comes from the desc,
 * from a file, or over the launcher's own channel. Ranks of one host without a key share one
 * through a file. It refuses files that others can read or change, and several hosts without a key.
 * It also refuses passphrases, which could be guessed from a recorded handshake. No error text
 * shows any of it.
 *
 * The file of one host. Rank 0 writes a key to a new file (O_EXCL, 0600) in a folder that only its
 * user can enter. It locks that file, and renames it to a name made of job, attempt and rendezvous.
 * The lock shows that its writer lives. The others take the first file of that name whose lock they
 * cannot get. A crashed run's file is not locked, as locks end with their process. So nobody reads
 * a stale key, and rank 0's rename replaces it. When all have joined, rank 0 removes the file:
 * dti_key_forget(). Rank 0 does this after it has its listening socket or rendezvous file. So two
 * jobs of one name never both write. Folders: /run/user/UID, which is $XDG_RUNTIME_DIR wherever
 * that is set, and else /tmp/dtrain-UID. The variable itself is not read, as ranks from different
 * sessions may have it or not. The others look in both. If the second name is not this user's
 * folder with mode 700, folders named /tmp/dtrain-UID-* take its place; rank 0 makes one of a
 * random name. */

#define DTI_KEY_BYTES 32
#define DTI_KEY_HOW "Make one with: openssl rand -hex 32"

/* Rank 0's file, from dti_key_load() until all have joined; {0} = none. */
typedef struct dti_key_share {
    int folder, file; /* descriptors + 1 */
    char name[48];
} dti_key_share;

static bool dti_key_from_hex(const char *text, size_t size, uint8_t key[DTI_KEY_BYTES]) {
    return size == 2 * DTI_KEY_BYTES && dti_hex_read(text, DTI_KEY_BYTES, key);
}

/* A new key, for a launcher's channel or the file of one host. */
static dt_result dti_key_make(dti_base *base, uint8_t key[DTI_KEY_BYTES]) {
    if (dti_random_bytes(key, DTI_KEY_BYTES))
        return DT_OK;
    return dti_fail(
        base, DT_ERROR_UNSUPPORTED,
        "this system gives no random bytes for a key: set DTRAIN_SECRET_FILE. " DTI_KEY_HOW);
}

/* A file's content: 64 hex digits and perhaps a line's end, or 32 bytes, which as text would be a
 * passphrase. */
static bool dti_key_parse(const char *text, size_t size, uint8_t key[DTI_KEY_BYTES]) {
    bool is_text = true;
    if (size != DTI_KEY_BYTES) {
        size -= size > 0 && text[size - 1] == '\n';
        size -= size > 0 && text[size - 1] == '\r';
        return dti_key_from_hex(text, size, key);
    }
    for (size_t i = 0; i < size; i++)
        is_text = is_text &&
                  ((text[i] >= 0x20 && text[i] < 0x7F) || (text[i] && strchr("\t\r\n", text[i])));
    if (!is_text)
        memcpy(key, text, DTI_KEY_BYTES);
    return !is_text;
}

#if DTI_POSIX_2008

/* ---- a file that the user names */

static ssize_t dti_key_read_all(int descriptor, char *to, size_t room) {
    size_t size = 0;
    int64_t got = 1;
    for (; got > 0 && size < room; size += (size_t)DTI_MAX(got, 0))
        got = dti_stream_read(descriptor, to + size, room - size);
    return got < 0 ? -1 : (ssize_t)size;
}

/* It checks the opened file, so nothing can replace it in between. Links are followed and a group
 * may read, because Kubernetes mounts secrets so, root's and 0440. */
static dt_result dti_key_check_file(dti_base *base, const char *path, const struct stat *file) {
    unsigned mode = (unsigned)file->st_mode;
    if (!S_ISREG(file->st_mode))
        return dti_fail(base, DT_ERROR_INVALID, "the key file %s is not a regular file", path);
    if (mode & (S_IRWXO | S_IWGRP))
        return dti_fail(base, DT_ERROR_INVALID,
                        "the key file %s has mode %03o, so others can read or change it; run chmod "
                        "600 on it, and make a new key if others may have read it",
                        path, mode & 0777);
    if (file->st_uid != geteuid() && file->st_uid != 0)
        return dti_fail(
            base, DT_ERROR_INVALID,
            "the key file %s belongs to user %lu; it must belong to this user (%lu) or root", path,
            (unsigned long)file->st_uid, (unsigned long)geteuid());
    return DT_OK;
}

static dt_result dti_key_read_file(dti_base *base, const char *path, uint8_t key[DTI_KEY_BYTES]) {
    char text[80];
    struct stat file;
    int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not block */
    if (descriptor < 0)
        return dti_fail(base, DT_ERROR_IO, "the key file %s cannot be opened: %s", path,
                        strerror(errno));
    dt_result result = DT_OK;
    ssize_t size = 0;
    if (fstat(descriptor, &file) != 0)
        result = dti_fail(base, DT_ERROR_IO, "the key file %s: %s", path, strerror(errno));
    if (!result)
        result = dti_key_check_file(base, path, &file);
    if (!result && (size = dti_key_read_all(descriptor, text, sizeof text)) < 0)
        result = dti_fail(base, DT_ERROR_IO, "the key file %s cannot be read: %s", path,
                          strerror(errno));
    close(descriptor);
    if (!result && !dti_key_parse(text, (size_t)size, key))
        result = dti_fail(base, DT_ERROR_INVALID,
                          "the key file %s holds neither 64 hex digits nor 32 random bytes: a "
                          "passphrase can be guessed. " DTI_KEY_HOW " > %s",
                          path, path);
    dti_wipe(text, sizeof text);
    return result;
}

/* ---- the file of one host */

/* The folder's descriptor; -1 = no folder that only this user can enter (ENOENT: no folder). */
static int dti_key_folder(const char *path, bool make) {
    struct stat folder;
    if (make && mkdir(path, 0700) != 0 && errno != EEXIST)
        return -1;
    int descriptor = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (descriptor < 0)
        return -1;
    if (fstat(descriptor, &folder) == 0 && S_ISDIR(folder.st_mode) && folder.st_uid == geteuid() &&
        !(folder.st_mode & (S_IRWXG | S_IRWXO)))
        return descriptor;
    close(descriptor);
    errno = EPERM;
    return -1;
}

typedef struct dti_key_folders {
    char path[2][64];
} dti_key_folders;

static dti_key_folders dti_key_default_folders(void) {
    dti_key_folders folders;
    unsigned long user = (unsigned long)geteuid();
    snprintf(folders.path[0], sizeof folders.path[0], "/run/user/%lu", user);
    snprintf(folders.path[1], sizeof folders.path[1], "/tmp/dtrain-%lu", user);
    return folders;
}

/* Something else has the name than this user's folder with mode 700. Else errno stays: why the
 * folder could not be made or used. */
static bool dti_key_name_is_taken(const char *path) {
    const int why = errno, folder = dti_key_folder(path, false);
    const bool taken = folder < 0 && errno != ENOENT;
    if (folder >= 0)
        close(folder);
    if (!taken)
        errno = why;
    return taken;
}

/* Ranks of one job have one name; nothing of it can be read from it. */
static void dti_key_name(const dt_comm_desc *desc, char name[48]) {
    dti_sha256 s;
    uint8_t digest[32], attempt[12];
    dti_put64(attempt, desc->attempt);
    dti_put32(attempt + 8, (uint32_t)desc->world_size);
    dti_sha256_init(&s);
    dti_sha256_add(&s, desc->job, strlen(desc->job) + 1);
    dti_sha256_add(&s, desc->rendezvous, strlen(desc->rendezvous) + 1);
    dti_sha256_add(&s, attempt, sizeof attempt);
    dti_sha256_end(&s, digest);
    memcpy(name, "key-", 4);
    dti_hex_write(digest, 16, name + 4);
}

/* Rank 0 has no more use for its file: all have joined, or it gives up. {0} is fine. */
static void dti_key_forget(dti_key_share *share) {
    if (share->folder && share->file)
        unlinkat(share->folder - 1, share->name, 0);
    if (share->file)
        close(share->file - 1);
    if (share->folder)
        close(share->folder - 1);
    *share = (dti_key_share){0};
}

static bool dti_key_write_file(int descriptor, const uint8_t key[DTI_KEY_BYTES]) {
    return fchmod(descriptor, 0600) == 0 && flock(descriptor, LOCK_EX | LOCK_NB) == 0 &&
           dti_write_all(descriptor, key, DTI_KEY_BYTES);
}

static bool dti_key_publish_in(const char *folder, bool make, const uint8_t key[DTI_KEY_BYTES],
                               dti_key_share *share) {
    char fresh[56];
    int directory = dti_key_folder(folder, make);
    if (directory < 0)
        return false;
    snprintf(fresh, sizeof fresh, "%s.new", share->name);
    unlinkat(directory, fresh, 0);
    int file = openat(directory, fresh, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (file >= 0 && dti_key_write_file(file, key) &&
        renameat(directory, fresh, directory, share->name) == 0) {
        share->folder = directory + 1;
        share->file = file + 1;
        return true;
    }
    int error = errno;
    if (file >= 0) {
        unlinkat(directory, fresh, 0);
        close(file);
    }
    close(directory);
    errno = error;
    return false;
}

/* Whether the key of a living rank 0 exists. */
static bool dti_key_take_from(const char *folder, const char *name, uint8_t key[DTI_KEY_BYTES]) {
    struct stat file;
    char bytes[DTI_KEY_BYTES + 1];
    bool ok = false;
    int directory = dti_key_folder(folder, false);
    if (directory < 0)
        return false;
    int descriptor = openat(directory, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    close(directory);
    if (descriptor < 0)
        return false;
    if (fstat(descriptor, &file) == 0 && S_ISREG(file.st_mode) && file.st_uid == geteuid() &&
        flock(descriptor, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        ok = dti_key_read_all(descriptor, bytes, sizeof bytes) == DTI_KEY_BYTES;
    close(descriptor);
    if (ok)
        memcpy(key, bytes, DTI_KEY_BYTES);
    dti_wipe(bytes, sizeof bytes);
    return ok;
}

/* Puts the key into the folder, or with share NULL takes it from there. */
static bool dti_key_use(const char *folder, bool make, const char *name, uint8_t key[DTI_KEY_BYTES],
                        dti_key_share *share) {
    return share ? dti_key_publish_in(folder, make, key, share)
                 : dti_key_take_from(folder, name, key);
}

/* The same with the folders whose names begin with a taken one. */
static bool dti_key_use_others(const char *taken, const char *name, uint8_t key[DTI_KEY_BYTES],
                               dti_key_share *share) {
    const int parent = (int)(strrchr(taken, '/') + 1 - taken);
    const size_t bytes = strlen(taken) - (size_t)parent;
    char path[64 + NAME_MAX];
    dti_folder_names names;
    bool used = false;
    snprintf(path, sizeof path, "%.*s", parent, taken);
    if (!dti_folder_names_open(&names, path))
        return false;
    for (const char *next; !used && (next = dti_folder_names_next(&names)) != NULL;)
        if (!strncmp(next, taken + parent, bytes) && next[bytes] == '-') {
            snprintf(path, sizeof path, "%.*s%s", parent, taken, next);
            used = dti_key_use(path, false, name, key, share);
        }
    dti_folder_names_close(&names);
    return used;
}

static bool dti_key_use_any(const dti_key_folders *folders, const char *name,
                            uint8_t key[DTI_KEY_BYTES], dti_key_share *share) {
    const char *const own = folders->path[1];
    char fresh[80];
    if (dti_key_use(folders->path[0], false, name, key, share) ||
        dti_key_use(own, share != NULL, name, key, share))
        return true;
    if (!dti_key_name_is_taken(own))
        return false;
    snprintf(fresh, sizeof fresh, "%s-XXXXXX", own);
    return dti_key_use_others(own, name, key, share) ||
           (share && mkdtemp(fresh) && dti_key_use(fresh, false, name, key, share));
}

static dt_result dti_key_publish(dti_base *base, const dti_key_folders *folders,
                                 uint8_t key[DTI_KEY_BYTES], dti_key_share *share) {
    dt_result result = dti_key_make(base, key);
    if (result || dti_key_use_any(folders, share->name, key, share))
        return result;
    return dti_fail(
        base, DT_ERROR_IO,
        "no place for the key of this host's ranks (%s: %s): set DTRAIN_SECRET_FILE, or "
        "make that folder this user's with mode 700. " DTI_KEY_HOW,
        folders->path[1], strerror(errno));
}

/* No thread or signal could report the file, so it looks every 10 ms. It is once a job. */
static dt_result dti_key_await(dti_base *base, const dti_key_folders *folders, const char *name,
                               int timeout_ms, uint8_t key[DTI_KEY_BYTES]) {
    uint64_t start = dti_now_ns(), limit = (uint64_t)timeout_ms * 1000000;
    for (;;) {
        if (dti_key_use_any(folders, name, key, NULL))
            return DT_OK;
        if (dti_now_ns() - start >= limit)
            return dti_fail(base, DT_ERROR_TIMEOUT,
                            "no key from rank 0 within %d ms (%s or %s, %s): rank 0 is missing, "
                            "another user's, or has another job, attempt, world size or "
                            "rendezvous; fix that, or give all ranks a key by DTRAIN_SECRET_FILE",
                            timeout_ms, folders->path[0], folders->path[1], name);
        dti_thread_sleep(10000000);
    }
}

static dt_result dti_key_share_in(dti_base *base, const dt_comm_desc *desc,
                                  const dti_key_folders *folders, uint8_t key[DTI_KEY_BYTES],
                                  dti_key_share *share) {
    *share = (dti_key_share){0};
    dti_key_name(desc, share->name);
    if (desc->rank == 0)
        return dti_key_publish(base, folders, key, share);
    int timeout_ms = desc->join_timeout_ms > 0 ? desc->join_timeout_ms : 300000;
    return dti_key_await(base, folders, share->name, timeout_ms, key);
}

static dt_result dti_key_share_host(dti_base *base, const dt_comm_desc *desc,
                                    uint8_t key[DTI_KEY_BYTES], dti_key_share *share) {
    dti_key_folders folders = dti_key_default_folders();
    return dti_key_share_in(base, desc, &folders, key, share);
}

/* Whether a name or address is this host's: then, and only then, can a socket be bound to it. */
static bool dti_key_is_here(const char *host) {
    struct addrinfo hints = {.ai_socktype = SOCK_DGRAM}, *list = NULL;
    bool here = false;
    if (getaddrinfo(host, NULL, &hints, &list) != 0)
        return false;
    for (const struct addrinfo *a = list; a && !here; a = a->ai_next) {
        int s = socket(a->ai_family, SOCK_DGRAM, 0);
        here = s >= 0 && bind(s, a->ai_addr, a->ai_addrlen) == 0;
        if (s >= 0)
            close(s);
    }
    freeaddrinfo(list);
    return here;
}

#else

static dt_result dti_key_read_file(dti_base *base, const char *path, uint8_t key[DTI_KEY_BYTES]) {
    return dti_fail(base, DT_ERROR_UNSUPPORTED,
                    "the key file %s cannot be read, as this dtrain was compiled without POSIX "
                    "(-std=gnu11); set DTRAIN_SECRET or desc.key",
                    path);
}

static void dti_key_forget(dti_key_share *share) {
    *share = (dti_key_share){0};
}

static dt_result dti_key_share_host(dti_base *base, const dt_comm_desc *desc,
                                    uint8_t key[DTI_KEY_BYTES], dti_key_share *share) {
    dti_key_forget(share);
    return dti_fail(base, DT_ERROR_UNSUPPORTED,
                    "ranks of one host can share a key only with POSIX (-std=gnu11); set desc.key");
}

DTI_ABSENT(bool, dti_key_is_here, (const char *host), true);

#endif

/* ---- which key */

/* Insecure ranks use zeros for a key. *have: it is not that. */
static dt_result dti_key_check(dti_base *base, const uint8_t key[DTI_KEY_BYTES], bool *have) {
    static const uint8_t zeros[DTI_KEY_BYTES];
    *have = !dti_equal_secret(key, zeros, DTI_KEY_BYTES);
    return *have ? DT_OK
                 : dti_fail(base, DT_ERROR_INVALID,
                            "the key is all zeros, which can be guessed. " DTI_KEY_HOW);
}

/* The key that the desc names, or that it wants none (DT_OK and *have false: also when it says
 * nothing). For a rendezvous over the launcher's channel, by which rank 0 can send one. */
static dt_result dti_key_given(dti_base *base, const dt_comm_desc *desc, uint8_t key[DTI_KEY_BYTES],
                               bool *have) {
    *have = false;
    if (desc->insecure && (desc->key[0] || desc->key_file[0]))
        return dti_fail(base, DT_ERROR_INVALID, ".key and .insecure are both set; set one of them");
    if (desc->key[0] && desc->key_file[0])
        return dti_fail(base, DT_ERROR_INVALID, ".key and .key_file are both set; set one of them");
    if (!desc->key[0] && !desc->key_file[0])
        return DT_OK;
    const char *end = memchr(desc->key, 0, sizeof desc->key);
    dt_result result = desc->key_file[0] ? dti_key_read_file(base, desc->key_file, key) : DT_OK;
    if (desc->key[0] && (!end || !dti_key_from_hex(desc->key, (size_t)(end - desc->key), key)))
        result =
            dti_fail(base, DT_ERROR_INVALID,
                     "the key is not 64 hex digits: a passphrase can be guessed. " DTI_KEY_HOW);
    return result ? result : dti_key_check(base, key, have);
}

/* The launcher knows better than addresses do: 127.0.0.1 is each host's own. */
static bool dti_key_one_host(const dt_comm_desc *desc, const char *rendezvous_host) {
    if (desc->local_size > 0)
        return desc->local_size == desc->world_size;
    return rendezvous_host && *rendezvous_host && dti_key_is_here(rendezvous_host);
}

/* The key of this job; *have false: none is needed (insecure, or a single process).
 * rendezvous_host: of a tcp:// rendezvous, else NULL. desc is resolved. May wait for rank 0, up to
 * the join's limit. */
static dt_result dti_key_load(dti_base *base, const dt_comm_desc *desc, const char *rendezvous_host,
                              uint8_t key[DTI_KEY_BYTES], bool *have, dti_key_share *share) {
    *share = (dti_key_share){0};
    dt_result result = dti_key_given(base, desc, key, have);
    if (result || *have || desc->insecure || desc->world_size <= 1)
        return result;
    if (!dti_key_one_host(desc, rendezvous_host))
        return dti_fail(
            base, DT_ERROR_INVALID,
            "ranks on several hosts need a key: run \"openssl rand -hex 32 > key; chmod 600 "
            "key\"; copy the file to all hosts, and name it in DTRAIN_SECRET_FILE or "
            "desc.key_file; or, on a network that nobody else can reach, set DTRAIN_INSECURE=1 or "
            "desc.insecure");
    result = dti_key_share_host(base, desc, key, share);
    *have = !result;
    return result;
}
