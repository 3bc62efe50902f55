/* The tables of a trainer's description: what can be combined, and what each member may be. The
 * page, the checks and the errors are compared with them. test_parallel.c has the model. */

typedef struct compat_job {
    train_model model[2]; /* without and with sync points */
    dt_comm *comm;
    dt_optim_desc optim;
    dt_trainer_desc desc;
    bool sync, serves;
} compat_job;

static const dt_comm_desc compat_security = {.insecure = true};

static bool compat_open(compat_job *j) {
    const dt_ctx_desc ctx = {.no_vulkan = true, .threads = 1};
    return train_model_make(&j->model[0], &ctx, 0) &&
           train_model_make(&j->model[1], &ctx, TRAIN_SYNC) && !dt_comm_create(NULL, &j->comm);
}

static void compat_close(compat_job *j) {
    dt_ctx_destroy(j->model[0].ctx);
    dt_ctx_destroy(j->model[1].ctx);
    dt_comm_destroy(j->comm);
}

static void compat_begin(compat_job *j) {
    j->desc = train_desc(&j->model[0]);
    j->optim = j->model[0].adam;
    j->desc.optim = &j->optim;
    j->desc.devices = "cpu:2";
    j->sync = j->serves = false;
}

static void compat_ask_pointer(compat_job *j, dti_feature feature) {
    dt_trainer_desc *d = &j->desc;
    d->comm = feature == DTI_FEATURE_COMM ? j->comm : d->comm;
    d->load = feature == DTI_FEATURE_LOAD ? "build/compat.no" : d->load;
    d->checkpoint.folder = feature == DTI_FEATURE_FOLDER ? "build/compat" : d->checkpoint.folder;
    d->server.addresses = feature == DTI_FEATURE_ADDRESSES ? "127.0.0.1:1" : d->server.addresses;
    d->server.security = feature == DTI_FEATURE_SECURITY ? &compat_security : d->server.security;
}

static dt_result compat_next(void *user, dt_stream_sample *s) {
    (void)user;
    s->end = true;
    return DT_OK;
}
static const dt_stream_desc compat_stream = {.next = compat_next};

/* Features that code looks at. */
static void compat_ask_code(compat_job *j, dti_feature feature) {
    j->sync = j->sync || feature == DTI_FEATURE_SYNC;
    j->serves = j->serves || feature == DTI_FEATURE_SERVES;
    if (feature == DTI_FEATURE_SLICES)
        j->desc.parallel.tensor_slices = 2 * DTI_MAX(j->desc.parallel.tensor, 1);
    if (feature == DTI_FEATURE_AVERAGE)
        j->optim.average.kind = DT_AVERAGE_EMA;
    if (feature == DTI_FEATURE_STATE)
        j->optim.state_dtype = DT_STATE_BF16;
    if (feature == DTI_FEATURE_STATE8)
        j->optim.state_dtype = DT_STATE_8BIT;
    if (feature == DTI_FEATURE_STREAM) {
        j->desc.data.stream = &compat_stream;
        j->desc.data.columns[0].data = j->desc.data.columns[1].data = NULL;
    }
    if (feature == DTI_FEATURE_WHOLE)
        j->optim.kind = DT_OPTIM_LAMB;
}

static void compat_ask(compat_job *j, dti_feature feature) {
    const dti_feature_row *f = &dti_feature_rows[feature];
    void *at = (char *)&j->desc + f->offset;
    switch (dti_fields_find(&dti_trainer_fields, f->offset).row->type) {
    case DTI_FIELD_INT:
    case DTI_FIELD_ENUM: *(int *)at = f->least < DTI_FEATURE_CODE ? f->least : *(int *)at; break;
    case DTI_FIELD_BOOL: *(bool *)at = true; break;
    case DTI_FIELD_F64: *(double *)at = 0.5; break;
    case DTI_FIELD_TEXT:
    case DTI_FIELD_POINTER: compat_ask_pointer(j, feature); break;
    default: break;
    }
    compat_ask_code(j, feature);
}

static uint64_t compat_asked(const compat_job *j) {
    return dti_features_asked(j->model[j->sync].graph, &j->desc) | (uint64_t)j->serves
                                                                       << DTI_FEATURE_SERVES;
}

static bool compat_is_set(const compat_job *j, dti_feature feature) {
    const size_t at = dti_feature_rows[feature].offset;
    const uint32_t type = dti_fields_find(&dti_trainer_fields, at).row->type;
    return dti_field_number(type, (const char *)&j->desc + at) != 0.0;
}

/* What the rules of NEEDS want, so that no other is the reason. */
static void compat_complete(compat_job *j) {
    for (size_t i = 0; i < DTI_COUNT(dti_rules); i++) {
        const dti_rule *r = &dti_rules[i];
        int other = 0;
        while (!(r->others >> other & 1))
            other++;
        if (r->features & DTI_RULE_NEEDS && compat_asked(j) & r->features &&
            !(compat_asked(j) & r->others) && !compat_is_set(j, (dti_feature)other))
            compat_ask(j, (dti_feature)other);
    }
    if (j->desc.mode == DT_TRAIN_SERVER)
        j->desc.server.wait_ms = 20;
}

/* ---- the page */

#define COMPAT_COLUMNS(X)                                                                          \
    X(PIPELINE, "pipeline")                                                                        \
    X(TENSOR, "tensor")                                                                            \
    X(SLICES, "slices")                                                                            \
    X(ZERO1, "ZeRO 1")                                                                             \
    X(ZERO23, "ZeRO 2, 3")                                                                         \
    X(LOCAL, "local")                                                                              \
    X(WORKER, "worker")                                                                            \
    X(MEASURED, "measured")

static const struct {
    dti_feature feature;
    const char *name;
} compat_columns[] = {
#define COMPAT_COLUMN(ID, name) {DTI_FEATURE_##ID, name},
    COMPAT_COLUMNS(COMPAT_COLUMN)};

/* A feature by the setting that asks for it. */
static void compat_setting(dti_text *page, dti_feature feature) {
    const dt_trainer_desc none = {0};
    const dti_feature_row *f = &dti_feature_rows[feature];
    const dti_feature_text name = dti_feature_print(&none, UINT64_C(1) << feature, false);
    const bool words = !strncmp(name.text, "a", 1);
    dti_text_add(page, words ? "%s" : "`%s`", name.text);
    if (f->least == 2 && f->most == DTI_FEATURE_OPEN)
        dti_text_add(page, feature == DTI_FEATURE_ZERO23 ? " 2 or 3" : " above 1");
    if (feature == DTI_FEATURE_ZERO1)
        dti_text_add(page, " 1");
    if (feature == DTI_FEATURE_SLICES)
        dti_text_add(page, " above `.parallel.tensor`");
}

static void compat_settings(dti_text *page, uint64_t features) {
    bool first = true;
    for (int i = 0; i < DTI_FEATURE_COUNT; i++) {
        if (!(features >> i & 1))
            continue;
        dti_text_add(page, first ? "" : ", ");
        compat_setting(page, (dti_feature)i);
        first = false;
    }
}

static const char *compat_result(const dti_rule *r) {
    return !r ? "yes" : r->features & DTI_RULE_U ? "U" : "I";
}

static const char *compat_cell(compat_job *j, dti_feature a, dti_feature b) {
    const size_t at = dti_feature_rows[a].offset;
    if (a == b || (at == dti_feature_rows[b].offset && at))
        return "";
    compat_begin(j);
    compat_ask(j, a);
    compat_ask(j, b);
    compat_complete(j);
    return compat_result(dti_rule_of(compat_asked(j)));
}

static void compat_grid(compat_job *j, dti_text *page) {
    dti_text_add(page, "| |");
    for (size_t k = 0; k < DTI_COUNT(compat_columns); k++)
        dti_text_add(page, " %s |", compat_columns[k].name);
    dti_text_add(page, "\n| ---");
    for (size_t k = 0; k < DTI_COUNT(compat_columns); k++)
        dti_text_add(page, " | ---");
    dti_text_add(page, " |\n");
    for (int i = 0; i <= DTI_FEATURE_FOLDER; i++) {
        dti_text_add(page, "| ");
        for (size_t k = 0; k < DTI_COUNT(compat_columns); k++)
            dti_text_add(page, "%s%s",
                         (int)compat_columns[k].feature == i ? compat_columns[k].name : "",
                         (int)compat_columns[k].feature == i ? ": " : "");
        compat_setting(page, (dti_feature)i);
        dti_text_add(page, " |");
        for (size_t k = 0; k < DTI_COUNT(compat_columns); k++) {
            const char *cell = compat_cell(j, (dti_feature)i, compat_columns[k].feature);
            dti_text_add(page, "%s%s |", *cell ? " " : "", cell);
        }
        dti_text_add(page, "\n");
    }
}

static void compat_rules(dti_text *page, bool needs) {
    dti_text_add(page, "\n| setting | %s | else | reason |\n| --- | --- | --- | --- |\n",
                 needs ? "requires" : "cannot be combined with");
    for (size_t i = 0; i < DTI_COUNT(dti_rules); i++) {
        const dti_rule *r = &dti_rules[i];
        if (needs != !!(r->features & DTI_RULE_NEEDS))
            continue;
        dti_text_add(page, "| ");
        compat_settings(page, r->features & ~(DTI_RULE_NEEDS | DTI_RULE_U));
        dti_text_add(page, " | ");
        compat_settings(page, r->others);
        dti_text_add(page, " | %s | %s |\n", compat_result(r), dti_nth(dti_rule_reasons, i));
    }
}

static bool compat_page_has(const char *path, const char *text) {
    FILE *file = fopen(path, "r");
    static char page[1 << 18];
    const size_t size = file ? fread(page, 1, sizeof page - 1, file) : 0;
    page[size] = 0;
    if (file)
        fclose(file);
    return strstr(page, text) != NULL;
}

TEST(the_page_of_combinations_equals_the_tables_of_refusals) {
    compat_job j = {0};
    REQUIRE(compat_open(&j));
    dti_text page = dti_text_open(j.model[0].graph->base);
    compat_grid(&j, &page);
    compat_rules(&page, true);
    compat_rules(&page, false);
    REQUIRE(page.ok);
    if (!test_check(compat_page_has("docs/distributed/settings.md", page.data), __FILE__, __LINE__,
                    "docs/distributed/settings.md lacks the tables of build/combinations.md")) {
        FILE *file = fopen("build/combinations.md", "w");
        if (file) {
            fputs(page.data, file);
            fclose(file);
        }
    }
    dti_text_free(&page);
    compat_close(&j);
}

/* ---- what ranks compare */

/* Another value than 0 for a member, by its type. */
static void compat_differ(char *at, uint32_t type, const void *pointer) {
    static const uint8_t bytes[] = {
        [DTI_FIELD_INT] = 1,  [DTI_FIELD_INT_ZERO] = 1, [DTI_FIELD_ENUM] = 1, [DTI_FIELD_U32] = 1,
        [DTI_FIELD_U64] = 1,  [DTI_FIELD_BOOL] = 1,     [DTI_FIELD_F32] = 0,  [DTI_FIELD_F64] = 0,
        [DTI_FIELD_TEXT] = 0, [DTI_FIELD_POINTER] = 0,  [DTI_FIELD_OTHER] = 0};
    const int whole = 3;
    const float single = 0.5f;
    const double number = 0.25;
    if (bytes[type])
        memcpy(at, &whole, type == DTI_FIELD_BOOL ? 1 : sizeof whole);
    if (type == DTI_FIELD_BOOL)
        *at = 1;
    if (type == DTI_FIELD_F32)
        memcpy(at, &single, sizeof single);
    if (type == DTI_FIELD_F64)
        memcpy(at, &number, sizeof number);
    if (type == DTI_FIELD_TEXT || type == DTI_FIELD_POINTER)
        memcpy(at, &pointer, sizeof pointer);
}

static void compat_lines(dti_base *base, const dti_fields *fields, bool servers) {
    static const char zero[sizeof(dt_trainer_desc) + sizeof(dt_optim_desc)] = {0};
    static char other[sizeof zero];
    dti_text none = dti_text_open(base);
    dti_fields_describe(&none, ".x->", fields, zero, servers);
    for (dti_field_at at = dti_fields_first(fields); at.row < fields->rows + fields->count;
         dti_fields_next(fields, &at)) {
        const bool shared = at.row->scope <= (servers ? DTI_SCOPE_ALL : DTI_SCOPE_JOB);
        size_t line = 0;
        char want[80];
        memset(other, 0, sizeof other);
        compat_differ(other + at.row->offset, at.row->type, "text");
        dti_text some = dti_text_open(base);
        dti_fields_describe(&some, ".x->", fields, other, servers);
        const bool differ =
            dti_model_texts_differ(none.data, none.size, some.data, some.size, &line);
        CHECK_TEXT(differ == shared, "%s: %d", at.name, differ);
        snprintf(want, sizeof want, ".x->%s ", at.name + 1);
        if (differ)
            CHECK_TEXT(!strncmp(some.data + line, want, strlen(want)), "%s: %.60s", want,
                       some.data + line);
        dti_text_free(&some);
    }
    dti_text_free(&none);
}

TEST(each_setting_that_ranks_must_share_has_one_line_with_its_name) {
    const dti_fields *const tables[] = {&dti_trainer_fields,  &dti_optim_fields,
                                        &dti_group_fields,    &dti_average_fields,
                                        &dti_schedule_fields, &dti_augment_fields};
    dt_ctx *ctx;
    REQUIRE(!dt_ctx_create(NULL, &ctx));
    for (size_t i = 0; i < DTI_COUNT(tables); i++) {
        compat_lines(dti_ctx_base(ctx), tables[i], false);
        compat_lines(dti_ctx_base(ctx), tables[i], true);
    }
    dt_ctx_destroy(ctx);
}

/* ---- errors */

static dt_result compat_create(compat_job *j, const char **text) {
    dt_graph *g = j->model[j->sync].graph;
    dt_trainer *trainer = NULL;
    dt_server *server = NULL;
    const dt_server_desc desc = {.trainer = j->desc, .security = &compat_security};
    if (j->sync) { /* the other model's tensors */
        const dt_trainer_desc d = train_desc(&j->model[1]);
        j->desc.loss = d.loss;
        j->desc.metrics[0] = d.metrics[0];
        j->desc.data = d.data;
    }
    const dt_result result =
        j->serves ? dt_server_create(g, &desc, &server) : dt_trainer_create(g, &j->desc, &trainer);
    *text = dt_ctx_error(j->model[j->sync].ctx);
    dt_server_destroy(server);
    dt_trainer_destroy(trainer);
    return result;
}

static void compat_pair(compat_job *j, dti_feature a, dti_feature b) {
    const dt_trainer_desc none = {0};
    const char *text;
    const uint64_t asked = compat_asked(j), both = UINT64_C(1) << a | UINT64_C(1) << b;
    const dti_rule *r = dti_rule_of(asked);
    if ((asked & both) != both) {
        CHECK_TEXT(dti_feature_rows[a].offset == dti_feature_rows[b].offset, "%d and %d", a, b);
        return;
    }
    const dt_result result = compat_create(j, &text);
    if (r) {
        CHECK_TEXT(result == (r->features & DTI_RULE_U ? DT_ERROR_UNSUPPORTED : DT_ERROR_INVALID),
                   "%d and %d: result %d, %s", a, b, result, text);
        CHECK_CONTAINS(text, dti_nth(dti_rule_reasons, (size_t)(r - dti_rules)));
        CHECK_CONTAINS(text, dti_feature_print(&none, asked & r->features, false).text);
        return;
    }
    for (size_t i = 0; i < DTI_COUNT(dti_rules) && result; i++)
        CHECK_TEXT(!strstr(text, dti_nth(dti_rule_reasons, i)), "%d and %d: %s", a, b, text);
}

TEST(each_pair_of_trainer_features_is_created_or_refused_by_the_table) {
    compat_job j = {0};
    REQUIRE(compat_open(&j));
    for (int a = 0; a < DTI_FEATURE_COUNT; a++) {
        for (int b = a; b < DTI_FEATURE_COUNT; b++) {
            for (int complete = 0; complete < 2; complete++) {
                compat_begin(&j);
                compat_ask(&j, (dti_feature)a);
                compat_ask(&j, (dti_feature)b);
                if (complete || j.desc.mode == DT_TRAIN_SERVER)
                    compat_complete(&j);
                compat_pair(&j, (dti_feature)a, (dti_feature)b);
            }
        }
    }
    compat_close(&j);
}

static void compat_put(const dti_field *f, dt_trainer_desc *d, double value) {
    void *at = (char *)d + f->offset;
    if (f->type == DTI_FIELD_F64)
        *(double *)at = value;
    else
        *(int *)at = (int)value;
}

/* The first member that is out of its range. */
static dti_field_at compat_wrong(const dt_trainer_desc *d) {
    dti_field_at at = dti_fields_first(&dti_trainer_fields);
    do {
        const dti_field_range *r = &dti_trainer_ranges[at.row->range];
        double x = dti_field_number(at.row->type, (const char *)d + at.row->offset);
        x = r->single ? (double)(float)x : x;
        const bool low = r->above ? !(x > r->least) : !(x >= r->least);
        const bool high = r->below ? !(x < r->most) : !(x <= r->most);
        const bool gap = !low && !high && r->names && !r->names[(int)x];
        if (at.row->range && (low || high || gap))
            return at;
    } while (dti_fields_next(&dti_trainer_fields, &at));
    return (dti_field_at){NULL, NULL};
}

/* Values next to a range's ends, and far from it. */
static double compat_value(const dti_field *f, uint32_t draw) {
    const dti_field_range *r = &dti_trainer_ranges[f->range];
    const double step = f->type == DTI_FIELD_F64 ? 0.001 : 1.0;
    const double values[] = {r->least - step,
                             r->least,
                             r->least + step,
                             r->most - step,
                             r->most,
                             r->most + step,
                             f->type == DTI_FIELD_F64 ? (double)NAN : -7.0};
    const double x = values[draw % DTI_COUNT(values)];
    return f->type == DTI_FIELD_F64 ? x : DTI_MIN(x, (double)INT_MAX);
}

TEST(random_values_out_of_their_ranges_are_named_with_the_allowed_range) {
    compat_job j = {0};
    uint32_t state = 33, refused = 0;
    REQUIRE(compat_open(&j));
    for (int round = 0; round < 3000; round++) {
        compat_begin(&j);
        for (uint32_t k = train_random(&state) % 4; k < 4; k++) {
            const dti_field *f =
                &dti_trainer_fields_rows[train_random(&state) % DTI_COUNT(dti_trainer_fields_rows)];
            if (f->range)
                compat_put(f, &j.desc, compat_value(f, train_random(&state)));
        }
        dt_trainer_desc resolved = j.desc;
        const char *text;
        dti_fields_resolve(&dti_trainer_fields, &resolved);
        const dti_field_at wrong = compat_wrong(&resolved);
        if (!wrong.row)
            continue;
        char want[64];
        snprintf(want, sizeof want, "%s is ", wrong.name);
        CHECK(compat_create(&j, &text) == DT_ERROR_INVALID);
        CHECK_TEXT(!strncmp(text, want, strlen(want)) && strstr(text, "; it must be "), "%s: %s",
                   want, text);
        refused++;
    }
    CHECK(refused > 1000);
    compat_close(&j);
}
