/* Folders of checkpoint files. It owns the order in which files appear and disappear: the step's
 * file, then LATEST, then old files are removed. So at every instant LATEST names a whole file. */

/* ---- Names in a folder */

#define DTI_CHECKPOINT_LATEST "LATEST"
#define DTI_CHECKPOINT_LOCK ".dtrain.lock"
#define DTI_CHECKPOINT_FOLDER_HOW                                                                  \
    "set .checkpoint.folder to a writable folder, or to a new one in an existing folder"
#define DTI_CHECKPOINT_NAME 48 /* room for the longest, with 20 digits */

/* parts: of a folder of them. */
static void dti_checkpoint_name(char to[DTI_CHECKPOINT_NAME], uint64_t step, bool parts) {
    snprintf(to, DTI_CHECKPOINT_NAME, "step-%012llu%s", (unsigned long long)step,
             parts ? "" : ".safetensors");
}

/* False: not a name of that form. */
static bool dti_checkpoint_step_of(const char *name, uint64_t *step) {
    char again[DTI_CHECKPOINT_NAME];
    if (strncmp(name, "step-", 5) != 0)
        return false;
    *step = strtoull(name + 5, NULL, 10);
    dti_checkpoint_name(again, *step, !strchr(name, '.'));
    return !strcmp(name, again); /* so it has no sign, the same number of digits, and nothing after
                                  * them */
}

/* The part after a temporary file's ".tmp.": PID.RANDOM; an earlier version wrote only PID. */
static bool dti_checkpoint_process_of(const char *text, long *process) {
    char again[32];
    char *end;
    *process = strtol(text, &end, 10);
    int size = snprintf(again, sizeof again, "%ld", *process);
    if (*process <= 0 || *process > INT_MAX || size != end - text ||
        strncmp(text, again, (size_t)size))
        return false;
    return !*end || (*end == '.' && strspn(end + 1, "0123456789abcdef") == 16 && !end[17]);
}

/* A temporary file of this folder that no process is writing. In containers each run may have the
 * same process number. So a file of this process's number is of an earlier process: this one is not
 * writing now. */
static bool dti_checkpoint_is_stale(const char *name) {
    char of[DTI_CHECKPOINT_NAME];
    const char *end = strstr(name, ".tmp.");
    if (!end || (size_t)(end - name) >= sizeof of)
        return false;
    memcpy(of, name, (size_t)(end - name));
    of[end - name] = 0;
    uint64_t step;
    long process;
    if ((strcmp(of, DTI_CHECKPOINT_LATEST) != 0 && !dti_checkpoint_step_of(of, &step)) ||
        !dti_checkpoint_process_of(end + 5, &process))
        return false;
    return process == dti_process() || !dti_process_lives(process);
}

static dt_result dti_checkpoint_path(dti_base *base, const char *folder, const char *name,
                                     char path[DTI_CHECKPOINT_PATH]) {
    int size = snprintf(path, DTI_CHECKPOINT_PATH, "%s/%s", folder, name);
    if (DTI_FOLDERS && *folder && size > 0 && size < DTI_CHECKPOINT_PATH)
        return DT_OK;
    *path = 0;
    DTI_TRY(dti_folders_check(base, folder));
    return dti_fail(base, DT_ERROR_INVALID,
                    "the checkpoint folder's name has %llu bytes; it must have 1 to %d",
                    (unsigned long long)strlen(folder), DTI_CHECKPOINT_PATH - DTI_CHECKPOINT_NAME);
}

/* ---- Looking through a folder */

/* The highest step up to `most` that has a file. 1: found, 0: none, -1: see errno. Called again for
 * each next lower one, so it needs no memory that could run out. */
static int dti_checkpoint_highest(const char *folder, uint64_t most, uint64_t *step) {
    dti_folder_names list;
    if (!dti_folder_names_open(&list, folder))
        return -1;
    int found = 0;
    for (const char *name; (name = dti_folder_names_next(&list)) != NULL;) {
        uint64_t s;
        if (!dti_checkpoint_step_of(name, &s) || s > most || (found && s <= *step))
            continue;
        *step = s;
        found = 1;
    }
    int error = errno;
    dti_folder_names_close(&list);
    return error ? -1 : found;
}

static void dti_checkpoint_remove(dti_base *base, const char *folder, const char *name) {
    char path[DTI_CHECKPOINT_PATH];
    if (dti_checkpoint_path(base, folder, name, path))
        return;
    if (remove(path) == 0 || errno == ENOENT)
        return;
    const int error = errno;
    if (!dti_checkpoint_parts_remove(path))
        dti_log(base, DT_LOG_WARNING, "%s: cannot be removed: %s", path, strerror(error));
}

static bool dti_checkpoint_is_folder(const char *path) {
    dti_folder_names list;
    const bool is = dti_folder_names_open(&list, path);
    if (is)
        dti_folder_names_close(&list);
    return is;
}

/* A folder first gets a temporary name, which readers ignore. */
static void dti_checkpoint_remove_step(dti_base *base, const char *folder, uint64_t step,
                                       bool parts) {
    char name[DTI_CHECKPOINT_NAME], path[2][DTI_CHECKPOINT_PATH], last[2 * DTI_CHECKPOINT_NAME];
    dti_checkpoint_name(name, step, parts);
    snprintf(last, sizeof last, "%s.tmp.%ld", name, dti_process());
    if (!parts)
        dti_checkpoint_remove(base, folder, name);
    else if (!dti_checkpoint_path(base, folder, name, path[0]) &&
             !dti_checkpoint_path(base, folder, last, path[1]) &&
             dti_checkpoint_is_folder(path[0]) && dti_file_rename(path[0], path[1]))
        dti_checkpoint_remove(base, folder, last);
}

/* Before the writing, because these files may fill the disk. */
static void dti_checkpoint_remove_stale(dti_base *base, const char *folder) {
    dti_folder_names list;
    if (!dti_folder_names_open(&list, folder))
        return; /* the writing will say why */
    for (const char *name; (name = dti_folder_names_next(&list)) != NULL;)
        if (dti_checkpoint_is_stale(name))
            dti_checkpoint_remove(base, folder, name);
    dti_folder_names_close(&list);
}

/* Of the steps up to this one, the newest `keep` stay. */
static void dti_checkpoint_remove_old(dti_base *base, const char *folder, uint64_t step, int keep) {
    int found = 1;
    for (int kept = 1; step > 0; kept++) {
        found = dti_checkpoint_highest(folder, step - 1, &step);
        if (found != 1)
            break;
        for (int parts = 0; parts < 2 && kept >= keep; parts++)
            dti_checkpoint_remove_step(base, folder, step, parts);
    }
    if (found < 0)
        dti_log(base, DT_LOG_WARNING, "%s: old checkpoints cannot be listed, so they stay: %s",
                folder, strerror(errno));
}

/* The step that LATEST names, if that has a file. If LATEST is wrong, the files decide. */
static bool dti_checkpoint_latest(const char *path, const char *folder, uint64_t *step) {
    char text[DTI_CHECKPOINT_NAME + 2] = {0};
    int file;
    uint64_t file_bytes;
    if (dti_stream_open(path, &file, &file_bytes))
        return false;
    int64_t size = dti_stream_read(file, text, sizeof text - 1);
    dti_stream_close(file);
    if (size > 0 && text[size - 1] == '\n')
        text[size - 1] = 0;
    uint64_t found;
    return dti_checkpoint_step_of(text, step) &&
           dti_checkpoint_highest(folder, *step, &found) == 1 && found == *step;
}

/* ---- The folder */

static dt_result dti_checkpoint_folder_newest(dti_base *base, const char *folder,
                                              char path[DTI_CHECKPOINT_PATH], bool *found) {
    uint64_t step = 0;
    *found = false;
    DTI_TRY(dti_checkpoint_path(base, folder, DTI_CHECKPOINT_LATEST, path));
    *found = dti_checkpoint_latest(path, folder, &step);
    int listed = *found ? 1 : dti_checkpoint_highest(folder, UINT64_MAX, &step);
    *path = 0;
    if (listed < 0 && errno != ENOENT)
        return dti_fail(base, DT_ERROR_IO,
                        "%s: checkpoints cannot be listed: %s; " DTI_CHECKPOINT_FOLDER_HOW, folder,
                        strerror(errno));
    if (listed != 1)
        return DT_OK;
    const dt_result result = dti_checkpoint_folder_file(base, folder, step, path);
    *found = !result;
    return result;
}

static bool dti_checkpoint_is_good(dti_base *base, const char *path,
                                   dti_checkpoint_check_fn *check) {
    dti_checkpoint *c;
    if (dti_checkpoint_open(base, path, &c))
        return false;
    const bool good = !check || !check(c, path, "dt_trainer_desc");
    dt_safetensors_close(c);
    return good;
}

static bool dti_checkpoint_find_good(dti_base *base, const char *folder, const char *bad,
                                     bool older, dti_checkpoint_check_fn *check,
                                     char path[DTI_CHECKPOINT_PATH]) {
    uint64_t step = 0, most = UINT64_MAX;
    if (older && (!dti_checkpoint_step_of(strrchr(bad, '/') + 1, &most) || !most--))
        return false;
    int found = dti_checkpoint_highest(folder, most, &step);
    while (found == 1) {
        if (dti_checkpoint_folder_file(base, folder, step, path))
            return false;
        if ((!bad || strcmp(path, bad) != 0) && dti_checkpoint_is_good(base, path, check))
            return true;
        found = step ? dti_checkpoint_highest(folder, step - 1, &step) : 0;
    }
    *path = 0;
    return false;
}

static bool dti_checkpoint_folder_good(dti_base *base, const char *folder, const char *bad,
                                       bool older, dti_checkpoint_check_fn *check,
                                       char path[DTI_CHECKPOINT_PATH]) {
    dt_logger logger = base->logger;
    dt_result result = base->result;
    char error[sizeof base->error];
    memcpy(error, base->error, sizeof error);
    base->logger = (dt_logger){0};
    *path = 0;
    bool good = dti_checkpoint_find_good(base, folder, bad, older, check, path);
    base->logger = logger;
    base->result = result;
    memcpy(base->error, error, sizeof error);
    return good;
}

static int dti_checkpoint_folder_steps(const char *folder, uint64_t most, uint64_t *steps,
                                       int room) {
    int count = 0;
    while (count < room && dti_checkpoint_highest(folder, most, &steps[count]) == 1) {
        most = steps[count++] - 1;
        if (most == UINT64_MAX)
            break;
    }
    return count;
}

static dt_result dti_checkpoint_folder_file(dti_base *base, const char *folder, uint64_t step,
                                            char path[DTI_CHECKPOINT_PATH]) {
    char name[DTI_CHECKPOINT_NAME];
    dti_checkpoint_name(name, step, true);
    DTI_TRY(dti_checkpoint_path(base, folder, name, path));
    if (dti_checkpoint_is_folder(path))
        return DT_OK;
    dti_checkpoint_name(name, step, false);
    return dti_checkpoint_path(base, folder, name, path);
}

static dt_result dti_checkpoint_folder_cut(dti_base *base, const char *folder, uint64_t step) {
    char path[DTI_CHECKPOINT_PATH + 8];
    uint64_t found = UINT64_MAX;
    int synced;
    while (dti_checkpoint_highest(folder, found, &found) == 1 && found > step) {
        DTI_TRY(dti_checkpoint_folder_file(base, folder, found--, path));
        if (remove(path) != 0 && errno != ENOENT && !dti_checkpoint_parts_remove(path))
            return dti_fail(base, DT_ERROR_IO, "%s: cannot be removed: %s", path, strerror(errno));
    }
    snprintf(path, sizeof path, "%s/.", folder);
    if (dti_folder_open(path, &synced))
        dti_folder_sync(synced);
    return DT_OK;
}

/* A new folder is on the disk when the one that it is in is. */
static dt_result dti_checkpoint_folder_make(dti_base *base, const char *folder) {
    char above[DTI_CHECKPOINT_PATH + 8];
    int parent;
    if (!dti_folder_make(folder))
        return errno == EEXIST ? DT_OK
                               : dti_fail(base, DT_ERROR_IO, "%s: the folder cannot be made: %s",
                                          folder, strerror(errno));
    snprintf(above, sizeof above, "%s/../", folder);
    if (!dti_folder_open(above, &parent) || !dti_folder_sync(parent))
        return dti_fail(base, DT_ERROR_IO, "%s: the folder cannot be flushed to the disk: %s",
                        folder, strerror(errno));
    return DT_OK;
}

/* NFS and others without locks let every job write. */
static dt_result dti_checkpoint_folder_lock(dti_base *base, const char *folder, int *lock) {
    char path[DTI_CHECKPOINT_PATH], who[DTI_LOCK_WHO], host[48];
    DTI_TRY(dti_checkpoint_path(base, folder, DTI_CHECKPOINT_LOCK, path));
    base->io_how = DTI_CHECKPOINT_FOLDER_HOW;
    const dt_result made = dti_checkpoint_folder_make(base, folder);
    base->io_how = NULL;
    DTI_TRY(made);
    dti_host_name(host, sizeof host);
    snprintf(who, sizeof who, "process %ld on host %s", dti_process(), host);
    *lock = -1;
    const int held = dti_file_lock(path, who, lock);
    if (held == 0)
        return dti_fail(base, DT_ERROR_IO,
                        "%s: another job writes to this .checkpoint.folder: %s; end it, or give "
                        "each job a folder of its own",
                        folder, *who ? dti_show(who).text : "an unknown process");
    if (held < 0)
        *lock = -1;
    return DT_OK;
}

static dt_result dti_checkpoint_folder_ready(dti_base *base, const char *folder) {
    char path[DTI_CHECKPOINT_PATH];
    dt_result result = dti_checkpoint_path(base, folder, DTI_CHECKPOINT_LATEST, path);
    base->io_how = DTI_CHECKPOINT_FOLDER_HOW;
    if (!result)
        result = dti_checkpoint_folder_make(base, folder);
    if (!result)
        result = dti_folder_probe(base, ".checkpoint.folder's", folder);
    base->io_how = NULL;
    return result;
}

static dt_result dti_checkpoint_write_latest(dti_base *base, const char *folder, const char *name) {
    char path[DTI_CHECKPOINT_PATH], line[DTI_CHECKPOINT_NAME + 1];
    snprintf(line, sizeof line, "%s\n", name);
    dt_result result = dti_checkpoint_path(base, folder, DTI_CHECKPOINT_LATEST, path);
    if (!result)
        result = dti_file_write(base, path, line, strlen(line));
    return result ? dti_fail(base, result, "%s; %s is written, but not marked as the newest",
                             base->error, name)
                  : DT_OK;
}

static dt_result dti_checkpoint_folder_start(dti_base *base, const char *folder) {
    char path[DTI_CHECKPOINT_PATH];
    DTI_TRY(dti_checkpoint_path(base, folder, DTI_CHECKPOINT_LATEST, path));
    base->io_how = DTI_CHECKPOINT_FOLDER_HOW;
    const dt_result result = dti_checkpoint_folder_make(base, folder);
    base->io_how = NULL;
    if (!result)
        dti_checkpoint_remove_stale(base, folder);
    return result;
}

static dt_result dti_checkpoint_folder_begin(dti_base *base, const char *folder, uint64_t step,
                                             int keep, const dti_safetensors_item *items, int count,
                                             dti_checkpoint_file **out) {
    char path[DTI_CHECKPOINT_PATH], name[DTI_CHECKPOINT_NAME];
    *out = NULL;
    dti_checkpoint_name(name, step, false);
    dt_result result = dti_checkpoint_folder_start(base, folder);
    if (!result)
        result = dti_checkpoint_path(base, folder, name, path);
    base->io_how = DTI_CHECKPOINT_FOLDER_HOW;
    if (!result)
        result = dti_checkpoint_begin(base, path, items, count, out);
    base->io_how = NULL;
    if (!result) {
        (*out)->step = (dti_checkpoint_folder_step){.step = step, .keep = keep};
        (*out)->how = DTI_CHECKPOINT_FOLDER_HOW;
        memcpy((*out)->step.folder, folder, strlen(folder) + 1);
    }
    return result;
}

static dt_result dti_checkpoint_folder_parts(dti_base *base, dti_checkpoint_parts *p,
                                             const dti_checkpoint_folder_step *step,
                                             const uint64_t name[2], uint32_t rank,
                                             uint32_t ranks) {
    char path[DTI_CHECKPOINT_PATH], of[DTI_CHECKPOINT_NAME];
    dti_checkpoint_name(of, step->step, true);
    DTI_TRY(dti_checkpoint_path(base, step->folder, of, path));
    DTI_TRY(dti_checkpoint_parts_open(base, p, path, name, rank, ranks));
    p->step = *step;
    return DT_OK;
}

static dt_result dti_checkpoint_folder_end(dti_base *base, const dti_checkpoint_folder_step *s) {
    char name[DTI_CHECKPOINT_NAME];
    dti_checkpoint_name(name, s->step, s->parts);
    const dt_result result = dti_checkpoint_write_latest(base, s->folder, name);
    if (!result) { /* also one of this step of the other kind */
        dti_checkpoint_remove_step(base, s->folder, s->step, !s->parts);
        dti_checkpoint_remove_old(base, s->folder, s->step, s->keep);
    }
    return result;
}

static dt_result dti_checkpoint_folder_write(dti_base *base, const char *folder, uint64_t step,
                                             int keep, const dti_safetensors_item *items, int count,
                                             dti_checkpoint_read_fn *read, void *user) {
    dti_checkpoint_file *f;
    DTI_TRY(dti_checkpoint_folder_begin(base, folder, step, keep, items, count, &f));
    return dti_checkpoint_end(f, dti_checkpoint_fill(f, read, user));
}
