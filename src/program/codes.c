/* The codes of a store's programs, by description. It owns them. Programs of one description share
 * a code, since a code never changes. A code at other shapes (.shapes) is kept after its last
 * program ends, because lengths and sizes recur. Other codes are freed with their last program. */

#define DTI_CODES_KEPT 32 /* that no program uses: the oldest is freed first */

struct dti_kept_code {
    dti_kept_code *next; /* newest first */
    const dti_code *code;
    uint32_t programs; /* that have it */
    bool stays;        /* without a program too */
    size_t size;       /* of the description that follows, from which it was made */
    char key[];
};

/* ---- keys: the bytes of a description without its pointers, the data that those point to, and the
 * graph's number of changes. If a padding byte differs, a code is made again; nothing else
 * happens. */

static char *dti_code_key_text(char *at, const char *text) {
    const size_t size = text ? strlen(text) + 1 : 0;
    *at++ = text != NULL;
    if (text)
        memcpy(at, text, size);
    return at + size;
}

static size_t dti_code_key_room(const dt_program_desc *d) {
    size_t size = sizeof *d + sizeof *d->optim + sizeof(uint32_t) + 2 + DT_MAX_GROUPS;
    size += (d->label ? strlen(d->label) + 1 : 0) + (d->params ? strlen(d->params) + 1 : 0);
    for (int i = 0; d->optim && i < DT_MAX_GROUPS - 1; i++)
        size += d->optim->groups[i].params ? strlen(d->optim->groups[i].params) + 1 : 0;
    return size;
}

static char *dti_code_key_optim(char *at, const dt_optim_desc *optim) {
    dt_optim_desc o;
    memcpy(&o, optim, sizeof o);
    for (int i = 0; i < DT_MAX_GROUPS - 1; i++) {
        at = dti_code_key_text(at, o.groups[i].params);
        o.groups[i].params = NULL;
    }
    memcpy(at, &o, sizeof o);
    return at + sizeof o;
}

static size_t dti_code_key(char *key, const dt_graph *g, const dt_program_desc *desc) {
    dt_program_desc d;
    memcpy(&d, desc, sizeof d);
    d.label = d.params = NULL;
    d.in_flight = 0; /* the program's, not the code's */
    d.optim = NULL;
    memcpy(key, &d, sizeof d);
    char *at = key + sizeof d;
    memcpy(at, &g->changes, sizeof g->changes);
    at = dti_code_key_text(at + sizeof g->changes, desc->label);
    at = dti_code_key_text(at, desc->params);
    if (desc->optim)
        at = dti_code_key_optim(at, desc->optim);
    return (size_t)(at - key);
}

/* ---- the list */

static void dti_kept_free(dt_store *s, dti_kept_code **at) {
    dti_kept_code *k = *at;
    *at = k->next;
    dti_code_free(k->code);
    dti_free(s->base, k);
}

static void dti_codes_free(dt_store *s) {
    while (s->codes)
        dti_kept_free(s, &s->codes);
}

/* More than are kept: the oldest that no program has. */
static void dti_codes_trim(dt_store *s) {
    uint32_t idle = 0;
    for (dti_kept_code **at = &s->codes; *at;) {
        idle += !(*at)->programs;
        if (!(*at)->programs && idle > DTI_CODES_KEPT)
            dti_kept_free(s, at);
        else
            at = &(*at)->next;
    }
}

static void dti_code_release(dt_store *s, const dti_code *code) {
    for (dti_kept_code **at = &s->codes; *at && code; at = &(*at)->next) {
        if ((*at)->code != code)
            continue;
        (*at)->programs--;
        if (!(*at)->programs && !(*at)->stays)
            dti_kept_free(s, at);
        dti_codes_trim(s);
        return;
    }
}

static dti_limits dti_limits_of(const dti_device *device) {
    return (dti_limits){.storage_range_bytes = device->info.storage_range_bytes,
                        .workgroups = device->backend->workgroups,
                        .no_hard_halves = device->no_hard_halves,
                        .apart = device->info.kind != DT_DEVICE_SOFTWARE};
}

static dt_result dti_code_lower(const dt_store *s, const dt_program_desc *desc,
                                const dti_batch_slices *batch_slices, const dti_staged *staged,
                                const dti_code **out) {
    dti_code_desc d = {.graph = s->graph,
                       .program = desc,
                       .batch_slices = batch_slices,
                       .staged = staged,
                       .layout = &s->layout,
                       .limits = dti_limits_of(s->device)};
    dt_result result = dti_graph_replay(s->graph, desc, &d.work);
    return result ? result : dti_code_create(s->base, &d, out);
}

static dt_result dti_code_take(dt_store *s, const dt_program_desc *desc,
                               const dti_batch_slices *batch_slices, const dti_staged *staged,
                               const dti_code **out) {
    dti_kept_code *k = dti_alloc(s->base, sizeof *k + dti_code_key_room(desc));
    DTI_HAVE(k);
    k->size = batch_slices || staged || desc->averaged
                  ? 0
                  : dti_code_key(k->key, s->graph, desc); /* 0: like no other */
    for (dti_kept_code *old = s->codes; old && k->size; old = old->next) {
        if (old->size != k->size || memcmp(old->key, k->key, k->size) != 0)
            continue;
        dti_free(s->base, k);
        old->programs++;
        *out = old->code;
        return DT_OK;
    }
    dt_result result = dti_code_lower(s, desc, batch_slices, staged, &k->code);
    if (result) {
        dti_free(s->base, k);
        return result;
    }
    k->stays = desc->shapes[0].input.graph != NULL;
    k->programs = 1;
    k->next = s->codes;
    s->codes = k;
    *out = k->code;
    return DT_OK;
}
