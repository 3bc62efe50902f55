/* The table of optimizers. For a description: its defaults, its errors, a parameter's group, the
 * number of moments, and its words of the step block. */

static void dti_emit_grad_norm(const dti_optim_site *s, uint32_t blocks, uint32_t pairs) {
    const dti_args_commit a = {.blocks = blocks, .pair_offset = s->args.pair_offset};
    const uint32_t words = s->sparse ? s->state : DTI_UNBOUND;
    DTI_EMIT(s->e, DTI_K_GRAD_NORM, blocks, a, s->grads, s->table, words, pairs)->spec[0] =
        s->sparse;
}

static void dti_emit_clip_finish(dti_emit *e, const dti_args_commit *args, uint32_t pairs,
                                 uint32_t status, uint32_t state) {
    DTI_EMIT(e, DTI_K_CLIP_FINISH, 1, *args, pairs, status, state);
}

static void dti_emit_optim_tick(dti_emit *e, uint32_t items, const dti_args_commit *args,
                                uint32_t state, uint32_t table, uint32_t status) {
    DTI_EMIT(e, DTI_K_OPTIM_TICK, items, *args, state, table, status);
}

static void dti_emit_average(dti_emit *e, const dti_args_commit *args, uint32_t params,
                             uint32_t state, uint32_t table) {
    DTI_EMIT(e, DTI_K_AVERAGE, args->blocks, *args, params, state, table);
}

static void dti_optim_emit_blocks(const dti_optim_site *s) {
    dti_launch *l = DTI_EMIT(s->e, DTI_K_OPTIM, s->args.blocks, s->args, s->params, s->grads,
                             s->state, s->table);
    l->spec[0] = (uint32_t)s->optim->kind;
    for (int i = 0; i < DT_MAX_GROUPS - 1; i++)
        l->spec[1] |= s->optim->groups[i].sparse ? DTI_OPTIM_ROW_SPARSE : 0u;
    l->spec[1] |= s->sparse ? DTI_OPTIM_SPARSE : 0u;
    l->spec[2] = s->stored;
    l->spec[3] = s->stored ? s->entries : 0;
}

/* For 0 a value as good as minus infinity: 1 - e^x is 1, also for many steps' x. */
static double dti_ln_beta(double beta) {
    return beta > 0.0 ? dti_ln(beta) : -1000.0;
}

#define DTI_OPTIM_PART 4
#include "../../shaders/lib/optim_body.h"
#undef DTI_OPTIM_PART

#define DTI_X(number, ID, name, least, most)                                                       \
    _Static_assert(DT_OPTIM_##ID == number && most <= DTI_MOMENTS_MAX,                             \
                   "the kind selects the formula");
DTI_OPTIM_LIST(DTI_X)
#undef DTI_X
#define DTI_X(number, ID, name, least, most)                                                       \
    [number] = DTI_HAS_OPTIM(number) ? &dti_optim_##name : NULL,
static const dti_optim_row *const dti_optim_rows[] = {DTI_OPTIM_LIST(DTI_X)};
#undef DTI_X
_Static_assert(DTI_COUNT(dti_optim_rows) == DTI_OPTIM_KINDS, "a row of each kind");

static const dti_optim_row *dti_optim_row_of(dt_optim_kind kind) {
    if (!DTI_HAS_OPTIM(kind))
        (void)DTI_OFF(OPTIMIZERS);
    return (unsigned)kind < DTI_OPTIM_KINDS ? dti_optim_rows[kind] : NULL;
}

static dt_result dti_optim_here(dti_base *base, const dt_optim_desc *d) {
    if (!d || DTI_HAS_OPTIM(d->kind) || (unsigned)d->kind >= DTI_OPTIM_KINDS)
        return DT_OK;
    return dti_fail(base, DT_ERROR_UNSUPPORTED,
                    "dt_optim_desc.kind is %d; it must be SGD, Adam or AdamW: %s", (int)d->kind,
                    DTI_OFF(OPTIMIZERS));
}

/* ---- the description */

static void dti_optim_problem(dti_text *problems, const char *what, double value,
                              const char *remedy) {
    dti_text_add(problems, "\n- optimizer: %s is ", what);
    dti_text_add_number(problems, value);
    dti_text_add(problems, "; %s", remedy);
}

static dt_optim_desc dti_optim_resolved(const dt_optim_desc *desc) {
    dt_optim_desc d = *desc;
    if (d.kind == DT_OPTIM_DEFAULT)
        d.kind = DTI_OPTIM_STANDARD;
    const dti_optim_row *row = dti_optim_row_of(d.kind);
    d.lr = dti_or(d.lr, row ? row->lr : 0.0);
    d.weight_decay = dti_or(d.weight_decay, row ? row->weight_decay : 0.0);
    d.momentum = dti_or(d.momentum, row ? row->momentum : 0.0);
    d.beta2 = dti_or(d.beta2, row && row->beta2 > 0.0 ? row->beta2 : 0.999);
    d.eps = dti_or(d.eps, row && row->eps > 0.0 ? row->eps : 1e-8);
    dti_fields_resolve(&dti_optim_fields, &d);
    for (int i = 0; i < DT_MAX_GROUPS - 1; i++) {
        d.groups[i].weight_decay = dti_or(d.groups[i].weight_decay, d.weight_decay);
        dti_fields_resolve(&dti_group_fields, &d.groups[i]);
    }
    for (int i = 0; i < DT_MAX_PHASES; i++)
        dti_rate_resolve(&d.schedule[i]);
    dti_fields_resolve(&dti_average_fields, &d.average);
    return d;
}

/* The largest rate that is still an f32 in every group. */
static double dti_optim_lr_max(const dt_optim_desc *resolved) {
    double scale = 1.0;
    for (int i = 0; i < DT_MAX_GROUPS - 1; i++)
        scale = DTI_MAX(scale, resolved->groups[i].lr_scale);
    return (double)FLT_MAX / scale;
}

static bool dti_optim_lr_fits(const dt_optim_desc *resolved, double lr) {
    return dti_fits_f32(lr) && lr >= 0.0 && lr <= dti_optim_lr_max(resolved);
}

static void dti_optim_check_ways(dti_text *problems, dt_optim_kind kind, const dt_optim_group *g,
                                 int number) {
    const dti_optim_row *row = dti_optim_row_of(kind);
    const bool whole = dti_optim_is_whole(row);
    if (row && g->sparse && whole)
        dti_text_add(problems,
                     "\n- optimizer: .groups[%d].sparse cannot be combined with %s, which needs "
                     "whole parameters; leave it out, or train them in another program",
                     number, row->name);
    if (row && g->elementwise && !whole)
        dti_text_add(
            problems,
            "\n- optimizer: .groups[%d].elementwise: %s is elementwise already; leave it out",
            number, row->name);
}

static void dti_optim_check(const dt_optim_desc *d, dti_text *problems) {
    const size_t before = problems->size;
    dti_optim_problems(problems, "", -1, &dti_optim_fields, d);
    if (d->kind != DT_OPTIM_ADAFACTOR && d->beta2 >= 1.0) /* Adafactor's is a power */
        dti_optim_problem(problems, ".beta2", d->beta2, "it must be below 1");
    if (d->kind == DT_OPTIM_MUON && d->momentum >= 1.0)
        dti_optim_problem(problems, ".momentum of Muon", d->momentum, "it must be below 1");
    if (d->nesterov && (d->momentum == 0.0 || d->dampening != 0.0))
        dti_text_add(problems,
                     "\n- optimizer: .nesterov needs .momentum above 0 and .dampening = 0");
    for (int i = 0; i < DT_MAX_GROUPS - 1; i++) {
        dti_optim_problems(problems, ".groups", i, &dti_group_fields, &d->groups[i]);
        dti_optim_check_ways(problems, d->kind, &d->groups[i], i);
    }
    if (problems->size == before && !dti_optim_lr_fits(d, d->lr))
        dti_optim_problem(problems, ".lr", d->lr,
                          "the learning rate times a group's .lr_scale is not finite as an f32");
    dti_rate_check(d, problems);
    dti_optim_problems(problems, ".average", -1, &dti_average_fields, &d->average);
}

static void dti_optim_check_unused(const dt_optim_desc *d, dti_text *problems) {
#define DTI_X(member, kinds) {offsetof(dt_optim_desc, member), kinds},
    static const struct {
        uint16_t offset;
        uint32_t kinds;
    } members[] = {DTI_OPTIM_MEMBERS(DTI_X)};
#undef DTI_X
    const unsigned kind = d->kind ? (unsigned)d->kind : DTI_OPTIM_STANDARD;
    const dti_optim_row *row = dti_optim_row_of((dt_optim_kind)kind);
    for (size_t i = 0; row && i < DTI_COUNT(members); i++) {
        const dti_field_at at = dti_fields_find(&dti_optim_fields, members[i].offset);
        const double x = dti_field_number(at.row->type, (const char *)d + members[i].offset);
        if (!(members[i].kinds >> kind & 1u) && dti_or(x, 0.0) != 0.0)
            dti_text_add(problems, "\n- optimizer: %s does not use %s; leave it out", row->name,
                         at.name);
    }
}

static uint32_t dti_optim_group_of(const dt_optim_desc *d, const char *name) {
    for (uint32_t g = 1; g < DT_MAX_GROUPS; g++) {
        if (d->groups[g - 1].params && dti_glob(d->groups[g - 1].params, name))
            return g;
    }
    return 0;
}

static uint32_t dti_optim_moments(const dt_optim_desc *d) {
    const dti_optim_row *row = dti_optim_row_of(d->kind);
    return row ? row->moments(d) : 0;
}

static uint32_t dti_optim_arrays(const dt_optim_desc *d) {
    return dti_optim_moments(d) + (d->average.kind != DT_AVERAGE_NONE);
}

static void dti_optim_words(const dti_optim_rates *r, uint32_t words[DTI_GROUP_WORDS]) {
    float w[DTI_GROUP_WORDS] = {[DTI_GROUP_LR] = (float)r->lr, [DTI_GROUP_DECAY] = (float)r->decay};
    dti_optim_row_of(r->optim->kind)->words(r->optim, w);
    memcpy(words, w, sizeof w);
}
