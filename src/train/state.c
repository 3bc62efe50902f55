/* The state of a training job in a file: parameters, buffers, moments, step counts, and where it is
 * in the data. Nothing in it depends on devices or ranks. Rank 0 reads and writes; the others learn
 * how it went. */

/* X(name): words of the tensor "dtrain.state", u64 each, in this order. */
#define DTI_STATE_LIST(X)                                                                          \
    X(VERSION)                                                                                     \
    X(STEP)                                                                                        \
    X(EPOCH)                                                                                       \
    X(INDEX)                                                                                       \
    X(SEED)                                                                                        \
    X(ROWS)                                                                                        \
    X(BATCH)                                                                                       \
    X(PARTS)                                                                                       \
    X(SHARDS)                                                                                      \
    X(TAIL)                                                                                        \
    X(OPTIM)                                                                                       \
    X(MOMENTS)                                                                                     \
    X(SHUFFLED)

enum {
#define DTI_X(id) DTI_STATE_##id,
    DTI_STATE_LIST(DTI_X)
#undef DTI_X
        DTI_STATE_WORDS
};

#define DTI_STATE_NOW 1 /* the version that is written */

typedef struct dti_state_file {
    dt_trainer *t;
    dti_text model;
    uint64_t words[DTI_STATE_WORDS];
    dti_safetensors_item *items;
    char **names; /* of the first `named` items */
    int count, named;
    int64_t sizes[3];
} dti_state_file;

static uint32_t dti_state_moments(const dt_trainer *t) {
    const dt_store *s = t->par.replicas[0].store;
    return s->memories[DTI_ARENA_STATE] ? s->moments : 0;
}

static void dti_state_words(const dt_trainer *t, uint64_t *w) {
    const dti_parallel *par = &t->par;
    w[DTI_STATE_VERSION] = DTI_STATE_NOW;
    w[DTI_STATE_STEP] = par->replicas[0].store->steps;
    w[DTI_STATE_EPOCH] = t->epoch;
    w[DTI_STATE_INDEX] = t->index;
    w[DTI_STATE_SEED] = t->desc.seed;
    w[DTI_STATE_ROWS] = t->desc.data.rows;
    w[DTI_STATE_BATCH] = par->desc.batch;
    w[DTI_STATE_PARTS] = par->desc.parts;
    w[DTI_STATE_SHARDS] = par->job.shards;
    w[DTI_STATE_TAIL] = (uint64_t)t->desc.tail;
    w[DTI_STATE_OPTIM] = (uint64_t)par->desc.optim.kind;
    w[DTI_STATE_MOMENTS] = dti_state_moments(t);
    w[DTI_STATE_SHUFFLED] = !t->desc.no_shuffle;
}

/* ---- the list of tensors: parameters, moment 1 of each, moment 2, then counts, words, model */

static dt_result dti_state_items(dti_state_file *f) {
    dt_trainer *t = f->t;
    const dt_store *s = t->par.replicas[0].store;
    const uint32_t n = s->param_count, kinds = 1 + dti_state_moments(t);
    f->items = dti_alloc_array(t->base, (size_t)n * kinds + 3, sizeof *f->items);
    f->names = dti_alloc_array(t->base, (size_t)n * kinds, sizeof *f->names);
    if (!f->items || !f->names)
        return DT_ERROR_MEMORY;
    for (uint32_t k = 0; k < kinds; k++) {
        for (uint32_t i = 0; i < n; i++, f->named = ++f->count) {
            const dti_node *node = &s->graph->nodes[s->params[i].node];
            const size_t size = strlen(node->label) + 32;
            char *name = f->names[f->count] = dti_alloc(t->base, size);
            if (!name)
                return DT_ERROR_MEMORY;
            if (k)
                snprintf(name, size, "dtrain.moment%u.%s", k, node->label);
            else
                snprintf(name, size, "%s", node->label);
            f->items[f->count] = (dti_safetensors_item){name, "F32", node->shape.rank,
                                                        node->shape.dim, 4 * s->params[i].elements};
        }
    }
    f->sizes[0] = n;
    f->sizes[1] = DTI_STATE_WORDS;
    f->sizes[2] = (int64_t)f->model.size;
    f->items[f->count++] = (dti_safetensors_item){"dtrain.t", "U32", 1, &f->sizes[0], 4ull * n};
    f->items[f->count++] =
        (dti_safetensors_item){"dtrain.state", "U64", 1, &f->sizes[1], 8ull * DTI_STATE_WORDS};
    f->items[f->count++] =
        (dti_safetensors_item){"dtrain.model", "U8", 1, &f->sizes[2], f->model.size};
    return DT_OK;
}

static void dti_state_close(dti_state_file *f) {
    for (int i = 0; f->names && i < f->named; i++)
        dti_free(f->t->base, f->names[i]);
    dti_free(f->t->base, f->names);
    dti_free(f->t->base, f->items);
    dti_text_free(&f->model);
}

/* Where tensor `item` lies in the store's memories; false: it is not there. */
static bool dti_state_place(const dt_store *s, uint32_t item, dti_arena *arena, uint64_t *offset) {
    const uint32_t kind = item / DTI_MAX(s->param_count, 1u);
    *arena = kind ? DTI_ARENA_STATE : DTI_ARENA_PARAM;
    const uint64_t param = s->params[item % DTI_MAX(s->param_count, 1u)].offset;
    *offset = 4 * (kind ? dti_state_moment_offset(s, kind - 1) + param : param);
    return s->memories[*arena] != NULL;
}

static dt_result dti_state_read(void *user, int item, uint64_t offset, void *to, size_t bytes) {
    dti_state_file *f = user;
    const dt_store *s = f->t->par.replicas[0].store;
    const dti_backend *b = s->device->backend;
    const int tensors = f->count - 3;
    if (item < tensors) {
        dti_arena arena;
        uint64_t at;
        dti_state_place(s, (uint32_t)item, &arena, &at);
        return b->memory_read(s->memories[arena], at + offset, to, bytes);
    }
    if (item == tensors)
        return b->memory_read(s->memories[DTI_ARENA_STATE], 4 * dti_state_t_offset() + offset, to,
                              bytes);
    const char *from = item == tensors + 1 ? (const char *)f->words : f->model.data;
    memcpy(to, from + offset, bytes);
    return DT_OK;
}

/* ---- saving */

static dt_result dti_state_write(dt_trainer *t, const char *path, bool folder) {
    dti_state_file f = {.t = t, .model = dti_text_open(t->base)};
    dti_state_words(t, f.words);
    dti_describe_model(t, &f.model);
    dt_result result = f.model.ok ? dti_state_items(&f) : DT_ERROR_MEMORY;
    if (!result && folder)
        result = dti_checkpoint_folder_write(t->base, path, f.words[DTI_STATE_STEP],
                                             t->desc.checkpoint_keep, f.items, f.count,
                                             dti_state_read, &f);
    else if (!result)
        result = dti_checkpoint_write(t->base, path, f.items, f.count, dti_state_read, &f);
    dti_state_close(&f);
    return result;
}

/* A lost job has no others to tell. */
static dt_result dti_trainer_write(dt_trainer *t, const char *path, bool folder) {
    const bool writes = t->par.rank == 0 || t->par.lost;
    dt_result result = DT_OK;
    if (writes)
        result = path ? dti_state_write(t, path, folder)
                      : dti_fail(t->base, DT_ERROR_INVALID, "no path to save to");
    return dti_agree_result(&t->par, result);
}

DT_API dt_result dt_trainer_save(dt_trainer *t, const char *path) {
    return dti_trainer_write(t, path, false);
}

DT_API dt_result dt_trainer_checkpoint(dt_trainer *t) {
    if (!t->desc.checkpoint)
        return dti_fail(t->base, DT_ERROR_INVALID, "no folder for checkpoints: give .checkpoint");
    dt_result result = dti_trainer_write(t, t->desc.checkpoint, true);
    if (!result)
        t->saved = t->par.replicas[0].store->steps;
    return result;
}

/* ---- loading */

static dt_result dti_state_wrong(dt_trainer *t, const char *path, const char *what,
                                 unsigned long long file, unsigned long long here) {
    return dti_fail(t->base, DT_ERROR_INVALID,
                    "%s: a checkpoint of another job? Its %s is %llu, and here %llu", path, what,
                    file, here);
}

static dt_result dti_state_check_words(dt_trainer *t, const char *path, const uint64_t *w) {
    uint64_t here[DTI_STATE_WORDS];
    static const struct {
        uint8_t word;
        const char *name;
    } same[] = {{DTI_STATE_VERSION, "version"},        {DTI_STATE_SEED, "seed"},
                {DTI_STATE_ROWS, "number of samples"}, {DTI_STATE_BATCH, "batch"},
                {DTI_STATE_PARTS, "accumulate"},       {DTI_STATE_TAIL, "tail"},
                {DTI_STATE_OPTIM, "optimizer"},        {DTI_STATE_MOMENTS, "number of moments"},
                {DTI_STATE_SHUFFLED, "shuffling"}};
    dti_state_words(t, here);
    for (size_t i = 0; i < DTI_COUNT(same); i++) {
        if (w[same[i].word] != here[same[i].word])
            return dti_state_wrong(t, path, same[i].name, w[same[i].word], here[same[i].word]);
    }
    if (t->desc.shards && w[DTI_STATE_SHARDS] != (uint64_t)t->desc.shards)
        return dti_state_wrong(t, path, "number of shards", w[DTI_STATE_SHARDS],
                               (unsigned long long)t->desc.shards);
    if (w[DTI_STATE_SHARDS] < t->par.job.replicas || w[DTI_STATE_SHARDS] > UINT32_MAX)
        return dti_fail(t->base, DT_ERROR_INVALID,
                        "%s: it has %llu shards, and here are %u replicas; use fewer", path,
                        (unsigned long long)w[DTI_STATE_SHARDS], t->par.job.replicas);
    return DT_OK;
}

static dt_result dti_state_check_model(dt_trainer *t, const char *path, const dti_checkpoint *c) {
    const dt_weight_info *theirs = dti_checkpoint_find(c, "dtrain.model");
    dti_text mine = dti_text_open(t->base);
    dti_describe_model(t, &mine);
    dt_result result = mine.ok ? DT_OK : DT_ERROR_MEMORY;
    size_t at = 0, line = 0;
    const char *text = theirs ? theirs->data : NULL;
    const size_t size = theirs ? (size_t)theirs->bytes : 0;
    while (!result && at < mine.size && at < size && mine.data[at] == text[at]) {
        line = text[at] == '\n' ? at + 1 : line;
        at++;
    }
    if (!result && (at < mine.size || at < size))
        result =
            dti_fail(t->base, DT_ERROR_INVALID,
                     "%s: a checkpoint of another model: it has '%.*s', and here is '%.*s'", path,
                     (int)DTI_MIN(dti_line_length(text + line, size - line), 160u), text + line,
                     (int)DTI_MIN(dti_line_length(mine.data + line, mine.size - line), 160u),
                     mine.data + line);
    dti_text_free(&mine);
    return result;
}

/* Everything must fit before anything is written. */
static dt_result dti_state_check(dt_trainer *t, const char *path, const dti_checkpoint *c,
                                 dti_state_file *f) {
    const dt_weight_info *words = dti_checkpoint_find(c, "dtrain.state");
    if (!words || words->bytes != sizeof f->words)
        return dti_fail(t->base, DT_ERROR_FORMAT,
                        "%s: no checkpoint of a trainer, or of another version", path);
    memcpy(f->words, words->data, sizeof f->words);
    dt_result result = dti_state_check_model(t, path, c);
    if (!result)
        result = dti_state_check_words(t, path, f->words);
    if (!result)
        result = dti_state_items(f);
    for (int i = 0; i < f->count - 2 && !result; i++) {
        const dt_weight_info *x = dti_checkpoint_find(c, f->items[i].name);
        if (!x || x->bytes != f->items[i].bytes || strcmp(x->dtype, f->items[i].dtype))
            result = dti_fail(t->base, DT_ERROR_FORMAT, "%s: '%s' is missing or has another size",
                              path, f->items[i].name);
    }
    return result;
}

static dt_result dti_state_put(dt_trainer *t, const dti_checkpoint *c, const dti_state_file *f) {
    const dt_store *s = t->par.replicas[0].store;
    const dti_backend *b = s->device->backend;
    dt_result result = DT_OK;
    for (int i = 0; i < f->count - 2 && !result; i++) {
        const dt_weight_info *x = dti_checkpoint_find(c, f->items[i].name);
        dti_arena arena = DTI_ARENA_STATE;
        uint64_t at = 4 * dti_state_t_offset();
        if (i < f->count - 3)
            dti_state_place(s, (uint32_t)i, &arena, &at);
        result = b->memory_write(s->memories[arena], at, x->data, x->bytes);
    }
    return result;
}

/* Rank 0 has checked; all learn where to go on, make the programs for its shards, and get the
 * values. */
static dt_result dti_state_spread(dt_trainer *t, const dti_checkpoint *c, dti_state_file *f) {
    dti_parallel *par = &t->par;
    dt_result result = DT_OK;
    if (par->desc.comm)
        result = dti_comm_failed(
            par, dt_comm_broadcast(par->desc.comm, f->words, DTI_STATE_WORDS, DT_I64, 0));
    if (f->words[DTI_STATE_SHARDS] != par->job.replicas)
        t->bounded = false; /* measured shares are of one shard a replica */
    if (!result && f->words[DTI_STATE_SHARDS] != par->job.shards)
        result = dti_trainer_build(t, (uint32_t)f->words[DTI_STATE_SHARDS]);
    if (result)
        return result;
    par->replicas[0].store->steps = f->words[DTI_STATE_STEP];
    result = dti_agree_result(par, par->rank == 0 ? dti_state_put(t, c, f) : DT_OK);
    if (!result)
        result = dti_agree_state(par);
    t->epoch = f->words[DTI_STATE_EPOCH];
    t->index = f->words[DTI_STATE_INDEX];
    t->saved = f->words[DTI_STATE_STEP];
    return result ? result : dti_agree_result(par, dti_trainer_seek(t));
}

static dt_result dti_state_load(dt_trainer *t, const char *path) {
    dti_checkpoint *c = NULL;
    dti_state_file f = {.t = t, .model = dti_text_open(t->base)};
    dt_result result = DT_OK;
    if (t->par.rank == 0) {
        result = path ? dti_checkpoint_open(t->base, path, &c)
                      : dti_fail(t->base, DT_ERROR_INVALID, "no path to load from");
        if (!result)
            result = dti_state_check(t, path, c, &f);
    }
    result = dti_agree_result(&t->par, result);
    if (!result)
        result = dti_state_spread(t, c, &f);
    dti_checkpoint_close(c);
    dti_state_close(&f);
    return result;
}

DT_API dt_result dt_trainer_load(dt_trainer *t, const char *path) {
    return t->par.lost ? dti_trainer_lost(t) : dti_state_load(t, path);
}

/* Says which other file is good, where there is one. */
static dt_result dti_resume_offer(dt_trainer *t, dt_result result, const char *bad) {
    char good[DTI_CHECKPOINT_PATH], text[sizeof t->base->error];
    if (result != DT_ERROR_FORMAT || t->par.rank != 0)
        return result;
    memcpy(text, t->base->error, sizeof text);
    if (dti_checkpoint_folder_good(t->base, t->desc.checkpoint, bad, good))
        return dti_fail(t->base, result, "%s; the newest good one is %s: dt_trainer_load it", text,
                        good);
    return dti_fail(t->base, result, "%s; no other one there is good", text);
}

DT_API dt_result dt_trainer_resume(dt_trainer *t, bool *found) {
    char path[DTI_CHECKPOINT_PATH] = "";
    bool there = false;
    dt_result result = DT_OK;
    if (found)
        *found = false;
    if (!t->desc.checkpoint)
        return dti_fail(t->base, DT_ERROR_INVALID, "no folder for checkpoints: give .checkpoint");
    if (t->par.lost)
        return dti_trainer_lost(t);
    if (t->par.rank == 0)
        result = dti_checkpoint_folder_newest(t->base, t->desc.checkpoint, path, &there);
    result = dti_agree_result(&t->par, result);
    int64_t any = there;
    if (!result && t->par.desc.comm)
        result = dti_comm_failed(&t->par, dt_comm_broadcast(t->par.desc.comm, &any, 1, DT_I64, 0));
    if (result || !any)
        return result;
    if (found)
        *found = true;
    result = dti_state_load(t, path);
    return result ? dti_resume_offer(t, result, path) : DT_OK;
}
