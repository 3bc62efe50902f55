/* A store's whole state to and from a file: the state that dt_store_save keeps, and the optimizer's
 * part. So training continues as without a break. A file that does not fit is an error before the
 * first value is written. */

/* Words of the tensor "dtrain.store", u64 each. Bits 8 to 15 of MOMENTS are the dt_state_dtype.
 * Then one word for each parameter has the kind of optimizer. With an average, bits 8 to 15 are 1 +
 * its moment. Bits from 16 on are the step from which it counts. */
enum {
    DTI_STORE_VERSION,
    DTI_STORE_STEP,
    DTI_STORE_MOMENTS,
    DTI_STORE_KINDS,
    DTI_STORE_NOW = 1 /* the version that is written */
};

#define DTI_STORE_WORDS "dtrain.store"

static dt_result dti_store_state_begin(dti_state_file *f, dt_store *s) {
    *f = (dti_state_file){.store = s, .base = s->base, .model = dti_text_open(s->base)};
    dti_model_text_params(s->graph, &f->model);
    f->words = dti_alloc_array(s->base, DTI_STORE_KINDS + (size_t)s->layout.param_count, 8);
    DTI_HAVE(f->words && f->model.ok);
    return dti_store_idle(s);
}

static void dti_store_state_end(dti_state_file *f) {
    dti_free(f->base, f->words);
    dti_state_close(f);
}

static uint64_t dti_store_state_word(const dt_store *s, uint32_t i) {
    const dti_kept *k = &s->kept[i];
    const uint64_t average = k->averaged ? s->layout.params[i].average : 0;
    return k->optim | average << 8 | (average ? k->from << 16 : 0);
}

DTI_PUBLIC(dt_store_save_state, (dt_store * s, const char *path), s, DTI_OF(dt_store), (s, path)) {
    if (dti_store_whole(s))
        return DT_ERROR_INVALID;
    DTI_NEED(s->base, path);
    dti_state_file f;
    DTI_TRY(dti_check_forked(s->base));
    dt_result result = dti_store_state_begin(&f, s);
    if (!result)
        result = dti_state_open(&f, dti_state_moments(s), DTI_STORE_WORDS,
                                DTI_STORE_KINDS + s->layout.param_count);
    if (!result) {
        f.words[DTI_STORE_VERSION] = DTI_STORE_NOW;
        f.words[DTI_STORE_STEP] = s->steps;
        f.words[DTI_STORE_MOMENTS] = dti_state_moments(s) | (uint64_t)s->layout.state << 8;
        for (uint32_t i = 0; i < s->layout.param_count; i++)
            f.words[DTI_STORE_KINDS + i] = dti_store_state_word(s, i);
        result = dti_checkpoint_write(s->base, path, f.items, f.count, dti_state_read, &f);
    }
    dti_store_state_end(&f);
    return result;
}

/* ---- loading */

/* A parameter's word in the file. */
typedef struct dti_param_state {
    uint64_t optim, average, from; /* optim, average: 0: none yet */
} dti_param_state;

static dti_param_state dti_store_state_of(const dti_state_file *f, const dti_checkpoint *c,
                                          uint32_t i) {
    const uint64_t word = f->words[DTI_STORE_KINDS + dti_state_number(f, c, (int)i)];
    return (dti_param_state){word & 0xff, word >> 8 & 0xff, word >> 16};
}

/* Optimizers and averages of the file fit those of a program here. */
static dt_result dti_store_state_fits(const dti_state_file *f, const char *path,
                                      const dti_checkpoint *c, uint32_t i) {
    const dt_store *s = f->store;
    const dti_param_state theirs = dti_store_state_of(f, c, i);
    const uint64_t optim = dti_store_optim(s, i);
    const uint8_t average = s->layout.params[i].average;
    const char *name = s->graph->nodes[s->layout.params[i].node].label;
    if (theirs.optim >= DTI_OPTIM_KINDS)
        return dti_fail(s->base, DT_ERROR_FORMAT, "%s: '%s' has an unknown optimizer, %llu", path,
                        name, (unsigned long long)theirs.optim);
    if (theirs.optim && optim && theirs.optim != optim)
        return dti_fail(s->base, DT_ERROR_INVALID,
                        "%s: '%s' has the state of optimizer %d, but a program here trains it with "
                        "%d (dt_optim_kind); dt_program_destroy that program first",
                        path, name, (int)theirs.optim, (int)optim);
    if (theirs.average > f->words[DTI_STORE_MOMENTS])
        return dti_fail(s->base, DT_ERROR_FORMAT, "%s: '%s' has its average as moment %llu of %llu",
                        path, name, (unsigned long long)theirs.average,
                        (unsigned long long)f->words[DTI_STORE_MOMENTS]);
    if (theirs.average && average && theirs.average != average)
        return dti_fail(s->base, DT_ERROR_INVALID,
                        "%s: '%s' has its average after %llu moments, but a program here after %u; "
                        "dt_program_destroy that program first",
                        path, name, (unsigned long long)theirs.average - 1, average - 1u);
    if (theirs.average && !average && theirs.average <= s->kept[i].moments)
        return dti_fail(s->base, DT_ERROR_INVALID,
                        "%s: '%s' has its average after %llu moments, but an optimizer here "
                        "keeps %u: load it into another store",
                        path, name, (unsigned long long)theirs.average - 1, s->kept[i].moments);
    return DT_OK;
}

static dt_result dti_store_state_words(dti_state_file *f, const char *path,
                                       const dti_checkpoint *c) {
    const uint32_t words = DTI_STORE_KINDS + f->store->layout.param_count;
    DTI_TRY(dti_state_words_read(f, path, c, DTI_STORE_WORDS, words));
    if (f->words[DTI_STORE_VERSION] != DTI_STORE_NOW)
        return dti_fail(f->base, DT_ERROR_INVALID,
                        "%s: its version is %llu; this dtrain reads version %d", path,
                        (unsigned long long)f->words[DTI_STORE_VERSION], DTI_STORE_NOW);
    const uint64_t state = f->words[DTI_STORE_MOMENTS] >> 8;
    f->words[DTI_STORE_MOMENTS] &= 0xff;
    if (state > DT_STATE_8BIT || f->words[DTI_STORE_MOMENTS] > DTI_MOMENTS_MAX + 1)
        return dti_fail(f->base, DT_ERROR_FORMAT,
                        "%s: it has %llu moments of type %llu; at most %d, of types 0 to %d, are "
                        "possible",
                        path, (unsigned long long)f->words[DTI_STORE_MOMENTS],
                        (unsigned long long)state, DTI_MOMENTS_MAX + 1, DT_STATE_8BIT);
    DTI_TRY(dti_store_set_state(f->store, (dt_state_dtype)state, path));
    return dti_state_open(f, (uint32_t)f->words[DTI_STORE_MOMENTS], DTI_STORE_WORDS, words);
}

/* Everything fits, or it is refused here. */
static dt_result dti_store_state_check(dti_state_file *f, const char *path,
                                       const dti_checkpoint *c) {
    DTI_TRY(dti_state_contract(f, path, c, false));
    DTI_TRY(dti_store_state_words(f, path, c));
    DTI_TRY(dti_state_match(f, path, c));
    for (uint32_t i = 0; i < f->store->layout.param_count; i++)
        DTI_TRY(dti_store_state_fits(f, path, c, i));
    return f->store->allow_nonfinite ? DT_OK : dti_state_finite(c, path, "dt_store_desc");
}

/* The arena is made where no program with an optimizer has come yet. */
static dt_result dti_store_state_room(dt_store *s, uint32_t moments) {
    const uint32_t now = dti_state_moments(s), most = DTI_MAX(now, moments);
    if (s->memories[DTI_ARENA_STATE] && most == now)
        return DT_OK;
    if (dti_state_size(&s->layout, most) > UINT32_MAX)
        return dti_fail(s->base, DT_ERROR_UNSUPPORTED, "%u moments have more than 2^32 values",
                        most);
    const uint64_t keep = s->memories[DTI_ARENA_STATE] ? dti_state_bytes(&s->layout, now) : 0;
    DTI_TRY(dti_arena_grow(s, DTI_ARENA_STATE, dti_state_bytes(&s->layout, most), keep));
    s->moments = most;
    return DT_OK;
}

static dt_result dti_store_state_put(dti_state_file *f, const dti_checkpoint *c) {
    dt_store *s = f->store;
    char *zeros = dti_alloc(s->base, DTI_STORE_PIECE);
    dt_result result =
        zeros ? dti_store_state_room(s, (uint32_t)f->words[DTI_STORE_MOMENTS]) : DT_ERROR_MEMORY;
    if (!result)
        result = dti_store_forget(s, zeros); /* moments that the file has not */
    if (!result)
        result = dti_state_put(f, c);
    dti_free(s->base, zeros);
    if (result)
        return result;
    s->steps = f->words[DTI_STORE_STEP];
    for (uint32_t i = 0; i < s->layout.param_count; i++) {
        const dti_param_state theirs = dti_store_state_of(f, c, i);
        s->kept[i].optim = theirs.optim ? (uint8_t)theirs.optim : s->kept[i].optim;
        if (!theirs.average)
            continue;
        s->layout.params[i].average = (uint8_t)theirs.average;
        dti_store_averaged(s, i, theirs.from);
    }
    return DT_OK;
}

DTI_PUBLIC(dt_store_load_state, (dt_store * s, const char *path), s, DTI_OF(dt_store), (s, path)) {
    DTI_NEED(s->base, path);
    dti_state_file f;
    dti_checkpoint *c = NULL;
    const dt_state_dtype before = s->layout.state;
    DTI_TRY(dti_check_forked(s->base));
    DTI_TRY(dti_store_alone(s, "dt_trainer_load a file of dt_trainer_save"));
    dt_result result = dti_store_state_begin(&f, s);
    if (!result)
        result = dti_checkpoint_open(s->base, path, &c);
    if (!result)
        result = dti_store_state_check(&f, path, c);
    if (!result)
        result = dti_store_state_put(&f, c);
    if (result && !s->memories[DTI_ARENA_STATE] && before != s->layout.state)
        dti_layout_set_state(&s->layout, before);
    dt_safetensors_close(c);
    dti_store_state_end(&f);
    return result;
}
