/* Files. Only regular files are read. A path may name a FIFO without a writer, or a device without
 * an end. So it is opened without waiting, and then checked. The size is known before the first
 * byte is read, so a caller can check a header before it allocates. Bytes are read, never mapped: a
 * file that is truncated under a map kills the process.
 *
 * Writing goes to "path.tmp.PID.RANDOM". No link leads there, and no other process has that name.
 * The file is flushed to the disk and renamed, and then the folder is flushed. So neither a crash
 * nor a full disk leaves half a file under `path`. A file that was reported as written survives a
 * power cut. The name before ".tmp" has at most 64 bytes, so every name that the system accepts can
 * be written.
 *
 * It replaces the regular file that `path` leads to, in its own folder. Links stay, and a link to a
 * missing file creates it. A device, folder, FIFO or socket is an error, also through a link. The
 * new file has permissions, owner and group of the old one, as far as the system permits; without
 * an old one, the umask decides. The folder decides whether a file may be replaced, also a
 * read-only one. Of several hard links only the named one gets the new file.
 *
 * A file that may not grow (ulimit -f) is an error of the write. Linux sends SIGXFSZ to the thread
 * that writes, where it is blocked, without a handler. macOS sends it to the process, where another
 * thread may receive it. There, and where POSIX is hidden, the application handles the signal. */

/* ---- reading */

static dt_result dti_reader_open(dti_base *base, const char *path, dti_reader *r) {
    *r = (dti_reader){.base = base, .path = path};
    const char *why = dti_stream_open(path, &r->stream, &r->size);
    return why ? dti_fail(base, DT_ERROR_IO, "%s: cannot be opened: %s", path, why) : DT_OK;
}

static dt_result dti_reader_take(dti_reader *r, void *to, size_t bytes) {
    char *at = to;
    while (bytes) {
        uint64_t left = r->size - r->at;
        int64_t got = (int64_t)DTI_MIN(bytes, left);
        if (got)
            got = dti_stream_read(r->stream, at, (size_t)got);
        if (got < 0)
            return dti_fail(r->base, DT_ERROR_IO, "%s: cannot be read: %s", r->path,
                            strerror(errno));
        if (got == 0)
            return dti_fail(
                r->base, DT_ERROR_IO,
                "%s: it ends after %llu of %llu bytes: was it truncated while it was read?",
                r->path, (unsigned long long)r->at, (unsigned long long)r->size);
        at += got;
        r->at += (uint64_t)got;
        bytes -= (size_t)got;
    }
    return DT_OK;
}

static dt_result dti_reader_take_new(dti_reader *r, uint64_t bytes, char **out) {
    *out = bytes < SIZE_MAX ? dti_alloc(r->base, (size_t)bytes + 1) : NULL;
    if (!*out)
        return bytes < SIZE_MAX
                   ? DT_ERROR_MEMORY
                   : dti_fail(r->base, DT_ERROR_MEMORY, "%s: out of host memory for its %llu bytes",
                              r->path, (unsigned long long)bytes);
    dt_result result = dti_reader_take(r, *out, (size_t)bytes);
    if (!result)
        return DT_OK;
    dti_free(r->base, *out);
    *out = NULL;
    return result;
}

static dt_result dti_reader_seek(dti_reader *r, uint64_t at) {
    if (at > r->size || !dti_stream_seek(r->stream, at))
        return dti_fail(r->base, DT_ERROR_IO, "%s: cannot be read at byte %llu of %llu", r->path,
                        (unsigned long long)at, (unsigned long long)r->size);
    r->at = at;
    return DT_OK;
}

static void dti_reader_close(dti_reader *r) {
    dti_stream_close(r->stream);
}

/* ---- writing */

struct dti_writer {
    dti_base *base;
    FILE *file;
    bool failed;     /* the error is already recorded; nothing may be kept */
    uint32_t crc;    /* of the bytes added since the last query */
    uint64_t bytes;  /* that the whole will have; 0 = not known */
    char *temporary; /* the texts follow this struct, in the same block */
    char *path;      /* of the file itself, after all links */
    char *name;      /* for messages: as it was given, and where its links end */
};

static bool dti_is_no_space(int error) {
#ifdef EDQUOT
    if (error == EDQUOT)
        return true;
#endif
    return error == ENOSPC;
}

/* The system says that the disk is full, but not how much it would have taken. */
static dt_result dti_writer_fail(dti_writer *w, const char *what) {
    int error = errno;
    char need[96] = "";
    w->failed = true;
    if (w->bytes && dti_is_no_space(error))
        snprintf(need, sizeof need, "; the new file needs %llu bytes, in addition to the old one",
                 (unsigned long long)w->bytes);
    return dti_fail(w->base, DT_ERROR_IO, "%s: cannot be %s: %s%s", w->name, what, strerror(error),
                    need);
}

#define DTI_TEMPORARY_ROOM sizeof ".tmp.-9223372036854775808.0123456789abcdef"
#define DTI_TEMPORARY_KEPT 64 /* bytes of the name; checkpoints' are shorter, so they are found */

/* The process number shows whose files are left over. The random part is needed because containers
 * have equal process numbers, and a foreseeable name can be taken. A name is cut between characters
 * of UTF-8. */
static void dti_writer_name_temporary(char *to, size_t size, const char *path) {
    const char *name = dti_file_name(path);
    size_t kept = strlen(name);
    uint64_t chance;
    if (!dti_random_bytes(&chance, sizeof chance))
        chance = dti_now_ns() ^ (uint64_t)(uintptr_t)to;
    if (kept > DTI_TEMPORARY_KEPT)
        for (kept = DTI_TEMPORARY_KEPT; kept && (name[kept] & 0xC0) == 0x80;)
            kept--;
    snprintf(to, size, "%.*s.tmp.%ld.%016llx", (int)(name - path + (ptrdiff_t)kept), path,
             dti_process(), (unsigned long long)chance);
}

/* With its texts, and without a file. */
static dti_writer *dti_writer_make(dti_base *base, const char *path, const char *target) {
    static const char arrow[] = " -> ";
    const size_t given = strlen(path) + 1, size = strlen(target) + 1;
    const size_t room = size + DTI_TEMPORARY_ROOM, all = given + size + sizeof arrow;
    dti_writer *w = dti_alloc(base, sizeof *w + room + size + all);
    if (!w)
        return NULL;
    const bool same = !strcmp(path, target);
    w->base = base;
    w->temporary = (char *)(w + 1);
    w->path = w->temporary + room;
    w->name = w->path + size;
    memcpy(w->path, target, size);
    snprintf(w->name, all, "%s%s%s", path, same ? "" : arrow, same ? "" : target);
    return w;
}

/* mode: of a file that replaces no other, before the umask. */
static dt_result dti_writer_open_as(dti_base *base, const char *path, unsigned mode, uint64_t bytes,
                                    dti_writer **out) {
    char target[DTI_FILE_PATH];
    dti_file_rights rights = {.mode = mode};
    *out = NULL;
    const char *why = dti_file_target(path, target, &rights);
    if (why)
        return dti_fail(base, DT_ERROR_IO, "%s: cannot be %s: %s", path,
                        rights.replaces ? "replaced" : "written", why);
    dti_writer *w = dti_writer_make(base, path, target);
    DTI_HAVE(w);
    w->bytes = bytes;
    for (int i = 0; i < 8 && !w->file && (i == 0 || errno == EEXIST); i++) {
        dti_writer_name_temporary(w->temporary, (size_t)(w->path - w->temporary), w->path);
        w->file = dti_file_create(w->temporary, &rights);
    }
    if (!w->file) {
        dt_result result = dti_writer_fail(w, "written");
        dti_free(base, w);
        return result;
    }
    *out = w;
    return DT_OK;
}

static dt_result dti_writer_open(dti_base *base, const char *path, uint64_t bytes,
                                 dti_writer **out) {
    return dti_writer_open_as(base, path, 0666, bytes, out);
}

static dt_result dti_writer_add(dti_writer *w, const void *data, size_t bytes) {
    dti_write_guard guard;
    if (w->failed)
        return DT_ERROR_IO;
    dti_write_begin(&guard);
    bool ok = !bytes || fwrite(data, 1, bytes, w->file) == bytes;
    dti_write_end(&guard, ok);
    if (!ok)
        return dti_writer_fail(w, "written");
    w->crc = dti_crc32c(w->crc, data, bytes);
    return DT_OK;
}

static uint32_t dti_writer_take_crc(dti_writer *w) {
    uint32_t crc = w->crc;
    w->crc = 0;
    return crc;
}

/* The folder is opened first: where that fails, nothing has changed. */
static dt_result dti_writer_rename(dti_writer *w) {
    int folder = -1;
    if (!dti_folder_open(w->path, &folder))
        return dti_writer_fail(w, "replaced, since its folder cannot be opened");
    bool renamed = dti_file_rename(w->temporary, w->path);
    dt_result result = renamed ? DT_OK : dti_writer_fail(w, "replaced");
    bool flushed = dti_folder_sync(folder);
    if (renamed && !flushed)
        result = dti_writer_fail(w, "flushed to the disk, but is written");
    return result;
}

static dt_result dti_writer_close(dti_writer *w, bool keep) {
    dti_base *base = w->base;
    dt_result result = w->failed ? DT_ERROR_IO : DT_OK;
    dti_write_guard guard;
    dti_write_begin(&guard); /* the rest of the buffer */
    bool flushed = !keep || w->failed || dti_file_sync(w->file);
    int error = errno;
    bool closed = fclose(w->file) == 0;
    dti_write_end(&guard, flushed && closed);
    if (!flushed)
        errno = error;
    if (keep && !w->failed && !(flushed && closed))
        result = dti_writer_fail(w, "written");
    if (keep && !w->failed)
        result = dti_writer_rename(w);
    if (!keep || w->failed)
        remove(w->temporary);
    dti_free(base, w);
    return keep ? result : DT_OK;
}

static dt_result dti_file_write_as(dti_base *base, const char *path, unsigned mode,
                                   const void *data, size_t bytes) {
    dti_writer *w;
    DTI_TRY(dti_writer_open_as(base, path, mode, bytes, &w));
    dti_writer_add(w, data, bytes);
    return dti_writer_close(w, true);
}

static dt_result dti_file_write(dti_base *base, const char *path, const void *data, size_t bytes) {
    return dti_file_write_as(base, path, 0666, data, bytes);
}

static dt_result dti_text_write(dti_text *text, const char *path) {
    const dt_result result =
        text->ok ? dti_file_write(text->base, path, text->data, text->size) : DT_ERROR_MEMORY;
    dti_text_free(text);
    return result;
}

static dt_result dti_folder_probe(dti_base *base, const char *whose, const char *folder) {
    char path[1024];
    const int size = snprintf(path, sizeof path, "%s/.dtrain.%ld.probe", folder, dti_process());
    if (size < 0 || size >= (int)sizeof path)
        return dti_fail(base, DT_ERROR_INVALID,
                        "%s folder name has %zu bytes; it must have at most 900", whose,
                        strlen(folder));
    FILE *file = dti_file_create(path, &(dti_file_rights){.mode = 0600});
    if (!file && errno != EEXIST)
        return dti_fail(base, DT_ERROR_IO, "nothing can be written to %s folder %s: %s", whose,
                        folder, strerror(errno));
    if (file)
        fclose(file);
    remove(path);
    return DT_OK;
}

static dt_result dti_folders_check(dti_base *base, const char *path) {
    return DTI_FOLDERS ? DT_OK
                       : dti_fail(base, DT_ERROR_UNSUPPORTED,
                                  "%s: folders need POSIX, which this build hides: compile with "
                                  "-std=gnu11 or -D_POSIX_C_SOURCE=200809L",
                                  path);
}

static void dti_file_remove(const char *path) {
    char target[DTI_FILE_PATH];
    dti_file_rights rights = {0};
    if (!dti_file_target(path, target, &rights) && rights.replaces)
        remove(target);
}
