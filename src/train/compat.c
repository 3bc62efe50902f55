/* The tables of compat.h, and the checks that use them. */

typedef struct dti_feature_row {
    uint16_t offset;
    uint8_t least, most;
} dti_feature_row;

#define DTI_X(ID, member, least, most, name)                                                       \
    {(uint16_t)offsetof(dt_trainer_desc, member), least, most},
static const dti_feature_row dti_feature_rows[] = {DTI_FEATURES(DTI_X)};
#undef DTI_X
#define DTI_X(ID, member, least, most, name) name "\0"
static const char dti_feature_names[] = DTI_FEATURES(DTI_X);
#undef DTI_X
_Static_assert(DTI_FEATURE_COUNT <= 62, "a bit each");

#define DTI_BITS_NEEDS DTI_RULE_NEEDS
#define DTI_BITS_WITHOUT 0
#define DTI_BITS_U DTI_RULE_U
#define DTI_BITS_I 0
#define DTI_X(way, result, features, others, why)                                                  \
    {DTI_BITS_##way | DTI_BITS_##result | features, others},
static const dti_rule dti_rules[] = {DTI_RULES(DTI_X)};
#undef DTI_X
#define DTI_X(way, result, features, others, why) why "\0"
static const char dti_rule_reasons[] = DTI_RULES(DTI_X);
#undef DTI_X

/* The n-th of consecutive texts. */
static const char *dti_nth(const char *texts, size_t n) {
    while (n--)
        texts += strlen(texts) + 1;
    return texts;
}

/* ---- requested features */

static bool dti_features_sync(const dt_graph *g) {
    bool sync = false;
    for (uint32_t id = 1; id < g->count && !sync; id++)
        sync = dti_op_info_of(g->nodes[id].op)->family->meet != NULL;
    return sync;
}

static uint64_t dti_features_asked(const dt_graph *graph, const dt_trainer_desc *d) {
    uint64_t asked = 0;
    for (int i = 0; i < DTI_FEATURE_COUNT; i++) {
        const dti_feature_row *f = &dti_feature_rows[i];
        const dti_field *row = dti_fields_find(&dti_trainer_fields, f->offset).row;
        const double x = dti_field_number(row->type, (const char *)d + f->offset);
        const bool some = row->type == DTI_FIELD_F64
                              ? x != 0.0
                              : x >= f->least && (x <= f->most || f->most == DTI_FEATURE_OPEN);
        asked |= (uint64_t)some << i;
    }
    if (d->parallel.tensor_slices > DTI_MAX(d->parallel.tensor, 1))
        asked |= DTI_ASKS(SLICES);
    const dt_optim_kind kind = d->optim && d->optim->kind ? d->optim->kind : DTI_OPTIM_STANDARD;
    if (d->optim && d->optim->average.kind)
        asked |= DTI_ASKS(AVERAGE);
    if (d->optim && d->optim->state_dtype)
        asked |= DTI_ASKS(STATE) | (d->optim->state_dtype == DT_STATE_8BIT ? DTI_ASKS(STATE8) : 0);
    if (dti_optim_is_whole(dti_optim_row_of(kind)))
        asked |= DTI_ASKS(WHOLE);
    if (d->data.stream)
        asked |= DTI_ASKS(STREAM);
    if (dti_features_sync(graph))
        asked |= DTI_ASKS(SYNC);
    return asked;
}

/* ---- refusals */

static const dti_rule *dti_rule_of(uint64_t asked) {
    for (size_t i = 0; i < DTI_COUNT(dti_rules); i++) {
        const dti_rule *r = &dti_rules[i];
        const bool needs = r->features & DTI_RULE_NEEDS, other = asked & r->others;
        if (asked & r->features && needs != other)
            return r;
    }
    return NULL;
}

/* ".parallel.pipeline = 4", ".mode = DT_TRAIN_LOCAL", ".comm"; of several the first. */
typedef struct dti_feature_text {
    char text[96];
} dti_feature_text;

static dti_feature_text dti_feature_print(const dt_trainer_desc *d, uint64_t features, bool value) {
    dti_feature_text p;
    int i = 0;
    while (!(features >> i & 1))
        i++;
    const size_t offset = dti_feature_rows[i].offset;
    const dti_field_at at = dti_fields_find(&dti_trainer_fields, offset);
    const char *name = dti_nth(dti_feature_names, (size_t)i);
    const uint32_t type = at.row->type;
    const double x = dti_field_number(type, (const char *)d + offset);
    const bool number = type <= DTI_FIELD_ENUM || type == DTI_FIELD_F64;
    if (*name && type != DTI_FIELD_ENUM) {
        snprintf(p.text, sizeof p.text, "%s", name);
        return p;
    }
    if (value && type == DTI_FIELD_ENUM)
        name = dti_field_enumerator(&dti_trainer_fields.ranges[at.row->range], x);
    if (*name || !value || !number)
        snprintf(p.text, sizeof p.text, "%s%s%s", at.name, *name ? " = " : "", name);
    else
        snprintf(p.text, sizeof p.text, "%s = %.10g", at.name, x);
    return p;
}

static dt_result dti_compat_here(dti_base *base, const dt_trainer_desc *d, uint64_t asked) {
#define DTI_X(feature, bits)                                                                       \
    if (!DTI_HAS_##feature && asked & (bits))                                                      \
        return dti_fail_off(base, dti_feature_print(d, asked & (bits), true).text,                 \
                            DTI_OFF(feature));
    DTI_FEATURES_OPTIONAL(DTI_X)
#undef DTI_X
    return dti_optim_here(base, d->optim);
}

static dt_result dti_compat_check(dti_base *base, const dt_trainer_desc *d, uint64_t asked) {
    DTI_TRY(dti_compat_here(base, d, asked));
    const dti_rule *r = dti_rule_of(asked);
    if (!r)
        return DT_OK;
    const bool needs = r->features & DTI_RULE_NEEDS;
    return dti_fail(base, r->features & DTI_RULE_U ? DT_ERROR_UNSUPPORTED : DT_ERROR_INVALID,
                    "%s %s %s: %s", dti_feature_print(d, asked & r->features, true).text,
                    needs ? "needs" : "cannot be combined with",
                    dti_feature_print(d, needs ? r->others : r->others & asked, !needs).text,
                    dti_nth(dti_rule_reasons, (size_t)(r - dti_rules)));
}
