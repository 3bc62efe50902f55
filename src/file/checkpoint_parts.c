/* A checkpoint that several ranks write: a folder with one file of each rank, its part, and an
 * index. Rank 0 writes the index when all parts exist. It owns the order: a temporary folder,
 * parts, index, rename. The index identifies each part by its bytes and the checksum of its
 * checksums. So a part of another saving is found. Ranks synchronise only by the disk: rank 0 polls
 * until it sees each part whole. */

#define DTI_PARTS_ROOM sizeof((dti_checkpoint_parts *)0)->temporary
#define DTI_PARTS_MOST_NS UINT64_C(3600000000000) /* the limit for a part that never comes */

/* A name that no other saving has. */
static void dti_checkpoint_parts_name(uint64_t name[2]) {
    name[0] = (uint64_t)dti_process();
    if (!dti_random_bytes(&name[1], sizeof name[1]))
        name[1] = dti_now_ns() ^ (uint64_t)(uintptr_t)name;
}

static void dti_checkpoint_parts_temporary(const dti_checkpoint_parts *p, const uint64_t name[2],
                                           char to[DTI_PARTS_ROOM]) {
    snprintf(to, DTI_PARTS_ROOM, "%s.tmp.%llu.%016llx", p->path, (unsigned long long)name[0],
             (unsigned long long)name[1]);
}

static dt_result dti_checkpoint_parts_open(dti_base *base, dti_checkpoint_parts *p,
                                           const char *path, const uint64_t name[2], uint32_t rank,
                                           uint32_t ranks) {
    size_t size = strlen(path);
    while (size > 1 && (path[size - 1] == '/' || path[size - 1] == '\\'))
        size--;
    if (!size || size >= DTI_CHECKPOINT_PATH)
        return dti_fail(base, DT_ERROR_INVALID,
                        "the checkpoint's name has %zu bytes; it must have 1 to %d", size,
                        DTI_CHECKPOINT_PATH - 1);
    if (ranks > DTI_INDEX_FILES_MOST)
        return dti_fail(base, DT_ERROR_UNSUPPORTED,
                        ".checkpoint.sharded with %u ranks: an index has at most %d files; use "
                        "fewer ranks, or one file",
                        ranks, DTI_INDEX_FILES_MOST);
    DTI_TRY(dti_folders_check(base, path));
    *p = (dti_checkpoint_parts){.rank = rank, .ranks = ranks, .begun = dti_now_ns()};
    snprintf(p->path, sizeof p->path, "%.*s", (int)size, path);
    dti_checkpoint_parts_temporary(p, name, p->temporary);
    return DT_OK;
}

static void dti_checkpoint_parts_close(dti_base *base, dti_checkpoint_parts *p) {
    dti_text_free(&p->index);
    dti_free(base, p->counts);
    p->counts = NULL;
}

/* The replaced folder must be a checkpoint: a folder of the user's may have the same name. */
static dt_result dti_checkpoint_parts_check(dti_base *base, const char *path) {
    dti_folder_names list;
    dti_shown other = {""};
    uint32_t number, files;
    if (!dti_folder_names_open(&list, path))
        return DT_OK;
    for (const char *name; (name = dti_folder_names_next(&list)) != NULL;)
        if (strcmp(name, ".") != 0 && strcmp(name, "..") != 0 &&
            strcmp(name, DTI_INDEX_NAME) != 0 && strcmp(name, DTI_INDEX_ONE) != 0 &&
            !dti_index_is_file_name(name, &number, &files))
            other = dti_show(name);
    dti_folder_names_close(&list);
    return !other.text[0]
               ? DT_OK
               : dti_fail(
                     base, DT_ERROR_INVALID,
                     "%s: the folder has other files, such as %s; give the name of a new folder",
                     path, other.text);
}

static dt_result dti_checkpoint_parts_make(dti_base *base, dti_checkpoint_parts *p,
                                           const dti_safetensors_item *items, int count,
                                           const uint32_t *part_of) {
    p->index = dti_text_open(base);
    DTI_TRY(dti_checkpoint_parts_check(base, p->path));
    p->counts = dti_alloc_array(base, p->ranks, sizeof *p->counts);
    DTI_HAVE(p->counts);
    for (int i = 0; i < count; i++)
        p->counts[part_of[i]]++;
    dti_index_begin(&p->index, items, count, part_of, p->ranks, &p->map_sum);
    DTI_HAVE(p->index.ok);
    return dti_folder_make(p->temporary)
               ? DT_OK
               : dti_fail(base, DT_ERROR_IO, "%s: the folder cannot be made: %s", p->temporary,
                          strerror(errno));
}

static void dti_checkpoint_part_path(const dti_checkpoint_parts *p, const char *folder,
                                     uint32_t part, char path[DTI_CHECKPOINT_PART_PATH]) {
    char name[DTI_INDEX_FILE_ROOM];
    dti_index_file_name(name, part, p->ranks);
    snprintf(path, DTI_CHECKPOINT_PART_PATH, "%s/%s", folder, name);
}

static dt_result dti_checkpoint_part_begin(dti_base *base, const dti_checkpoint_parts *p,
                                           const dti_safetensors_item *items, int count,
                                           dti_checkpoint_file **out) {
    char path[DTI_CHECKPOINT_PART_PATH];
    dti_checkpoint_part_path(p, p->temporary, p->rank, path);
    base->io_how = DTI_CHECKPOINT_SEEN;
    const dt_result result = dti_checkpoint_begin(base, path, items, count, out);
    base->io_how = NULL;
    if (!result)
        (*out)->how = DTI_CHECKPOINT_SEEN;
    return result;
}

/* ---- Rank 0's end */

/* A part's bytes, and the checksum of its checksums, which are the file's last bytes. False: it
 * does not exist yet. */
static bool dti_checkpoint_part_seen(const dti_checkpoint_parts *p, uint32_t part,
                                     dti_weights_file *seen) {
    char path[DTI_CHECKPOINT_PART_PATH], some[4096];
    uint64_t left = 4 * ((uint64_t)p->counts[part] + 1);
    int stream;
    dti_checkpoint_part_path(p, p->temporary, part, path);
    if (dti_stream_open(path, &stream, &seen->bytes))
        return false;
    bool good = seen->bytes >= left && dti_stream_seek(stream, seen->bytes - left);
    seen->sum = 0;
    while (good && left) {
        const int64_t got = dti_stream_read(stream, some, (size_t)DTI_MIN(left, sizeof some));
        good = got > 0;
        if (good)
            seen->sum = dti_crc32c(seen->sum, some, (size_t)got);
        left -= good ? (uint64_t)got : 0;
    }
    dti_stream_close(stream);
    return good;
}

/* Waits until all parts exist. */
static dt_result dti_checkpoint_parts_wait(dti_base *base, dti_checkpoint_parts *p,
                                           dti_weights_file *seen) {
    const uint64_t own = dti_now_ns(), most = own + DTI_PARTS_MOST_NS,
                   least = own + (own - p->begun); /* others' disks may be slower */
    uint64_t pause = 100000;
    for (uint32_t i = 0; i < p->ranks;) {
        const uint64_t until = atomic_load(&p->until), now = dti_now_ns();
        if (dti_checkpoint_part_seen(p, i, &seen[i])) {
            i++;
            continue;
        }
        p->unseen = now >= most || (until && now >= (until > 1 ? DTI_MAX(until, least) : until));
        if (p->unseen)
            return dti_fail(base, DT_ERROR_IO,
                            "%s: rank 0 does not see the part of rank %u: " DTI_CHECKPOINT_SEEN,
                            p->path, i);
        dti_thread_sleep(pause);
        pause = DTI_MIN(2 * pause, UINT64_C(20000000));
    }
    return DT_OK;
}

static bool dti_checkpoint_parts_remove(const char *folder) {
    char path[DTI_CHECKPOINT_PART_PATH + 256];
    dti_folder_names list;
    if (!dti_folder_names_open(&list, folder))
        return false;
    for (const char *name; (name = dti_folder_names_next(&list)) != NULL;)
        if (!strncmp(name, "model", 5) && strlen(name) < 256) {
            snprintf(path, sizeof path, "%s/%s", folder, name);
            remove(path);
        }
    dti_folder_names_close(&list);
    return dti_folder_remove(folder);
}

/* A folder cannot replace another in one step, but two can be exchanged. Where that is not
 * supported, the old folder is first renamed. *old: its new path; "": there was no old one. */
static dt_result dti_checkpoint_parts_place(dti_base *base, dti_checkpoint_parts *p,
                                            char old[DTI_PARTS_ROOM]) {
    uint64_t name[2];
    memcpy(old, p->temporary, DTI_PARTS_ROOM);
    if (dti_file_exchange(p->temporary, p->path))
        return DT_OK;
    dti_checkpoint_parts_name(name);
    dti_checkpoint_parts_temporary(p, name, old);
    const bool replaces = dti_file_rename(p->path, old);
    if (!replaces && errno != ENOENT)
        return dti_fail(base, DT_ERROR_IO, "%s: cannot be replaced: %s", p->path, strerror(errno));
    if (dti_file_rename(p->temporary, p->path)) {
        *old = replaces ? *old : 0;
        return DT_OK;
    }
    const int error = errno;
    if (replaces)
        dti_file_rename(old, p->path);
    return dti_fail(base, DT_ERROR_IO, "%s: cannot be renamed: %s", p->temporary, strerror(error));
}

static dt_result dti_checkpoint_parts_rename(dti_base *base, dti_checkpoint_parts *p) {
    char old[DTI_PARTS_ROOM];
    int above;
    DTI_TRY(dti_checkpoint_parts_place(base, p, old));
    if (!dti_folder_open(p->path, &above) || !dti_folder_sync(above))
        return dti_fail(base, DT_ERROR_IO, "%s: cannot be flushed to the disk, but is written: %s",
                        p->path, strerror(errno));
    if (*old && remove(old) != 0)
        dti_checkpoint_parts_remove(old);
    return DT_OK;
}

static dt_result dti_checkpoint_parts_commit(dti_base *base, dti_checkpoint_parts *p,
                                             dti_weights_file *seen) {
    char path[DTI_CHECKPOINT_PART_PATH];
    DTI_HAVE(seen);
    DTI_TRY(dti_checkpoint_parts_wait(base, p, seen));
    dti_index_end(&p->index, seen, p->ranks, p->map_sum);
    snprintf(path, sizeof path, "%s/%s", p->temporary, DTI_INDEX_NAME);
    DTI_TRY(dti_text_write(&p->index, path));
    DTI_TRY(dti_checkpoint_parts_rename(base, p));
    return p->step.folder[0] ? dti_checkpoint_folder_end(base, &p->step) : DT_OK;
}

static dt_result dti_checkpoint_parts_end(dti_base *base, dti_checkpoint_parts *p, dt_result own) {
    dti_weights_file *seen = own ? NULL : dti_alloc_array(base, p->ranks, sizeof *seen);
    const dt_result result = own ? own : dti_checkpoint_parts_commit(base, p, seen);
    if (result)
        dti_checkpoint_parts_remove(p->temporary);
    dti_free(base, seen);
    dti_checkpoint_parts_close(base, p);
    return result;
}
