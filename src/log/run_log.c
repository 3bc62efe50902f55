/* Logs of a run, in files that grow. A failed write closes the log. A viewer can open the part
 * before it, and no step waits for the disk again. */

#define DTI_LOG_STEPS 10

/* ---- the text of a call: numbers of fields are those of TensorFlow's .proto files */

static void dti_run_log_begin(dt_run_log *log) {
    log->now = (double)(uint64_t)(dti_unix_seconds() * 1000.0) / 1000.0; /* few digits */
    for (int i = 0; i < DTI_LOG_FORMATS; i++)
        log->files[i].text.size = 0;
}

/* "group/name" in log->part, until that is used again; where it has no memory writing fails. */
static const char *dti_log_join(dt_run_log *log, const char *group, const char *name) {
    log->part.size = 0;
    dti_text_add(&log->part, "%s/%s", group, name);
    return log->part.ok ? log->part.data : group;
}

/* In CSV a name is in quotes if needed (RFC 4180). */
static void dti_log_csv_name(dti_text *to, const char *name) {
    if (!strpbrk(name, ",\"")) {
        dti_text_add(to, "%s", name);
        return;
    }
    dti_text_add(to, "\"");
    for (const char *at = name; *at; at++)
        dti_text_add(to, *at == '"' ? "\"\"" : "%c", *at);
    dti_text_add(to, "\"");
}

static void dti_log_csv(dt_run_log *log, const char *name, uint64_t step, double value) {
    dti_text *to = &log->files[DTI_LOG_CSV].text;
    dti_text_add_number(to, log->now);
    dti_text_add(to, ",%llu,", (unsigned long long)step);
    dti_log_csv_name(to, name);
    dti_text_add(to, ",");
    dti_text_add_number(to, value);
    dti_text_add(to, "\n");
}

static void dti_log_json_head(dt_run_log *log, const char *name, uint64_t step) {
    dti_text *to = &log->files[DTI_LOG_JSON].text;
    dti_text_add(to, "{\"seconds\":");
    dti_text_add_number(to, log->now);
    dti_text_add(to, ",\"step\":%llu,\"name\":\"", (unsigned long long)step);
    dti_text_add_quoted(to, name, strlen(name));
    dti_text_add(to, "\",");
}

/* JSON has no NaN or infinity: they are texts. */
static void dti_log_json(dt_run_log *log, const char *name, uint64_t step, double value) {
    dti_text *to = &log->files[DTI_LOG_JSON].text;
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    const char *quote = (bits >> 52 & 0x7FF) == 0x7FF ? "\"" : "";
    dti_log_json_head(log, name, step);
    dti_text_add(to, "\"value\":%s", quote);
    dti_text_add_number(to, value);
    dti_text_add(to, "%s}\n", quote);
}

static void dti_log_json_text(dt_run_log *log, const char *name, uint64_t step, const char *text) {
    dti_text *to = &log->files[DTI_LOG_JSON].text;
    dti_log_json_head(log, name, step);
    dti_text_add(to, "\"text\":\"");
    dti_text_add_quoted(to, text, strlen(text));
    dti_text_add(to, "\"}\n");
}

static void dti_log_event(dt_run_log *log, const char *name, uint64_t step, double value) {
    dti_text *to = &log->files[DTI_LOG_EVENTS].text;
    const dti_event e = dti_event_begin(to, log->now, step, name);
    dti_proto_f32(to, 2, (float)value); /* Summary.Value.simple_value */
    dti_event_end(to, e);
}

static void dti_log_event_text(dt_run_log *log, const char *name, uint64_t step, const char *text) {
    dti_text *to = &log->files[DTI_LOG_EVENTS].text;
    const dti_event e = dti_event_begin(to, log->now, step, name);
    dti_event_plugin(to, "text", NULL);
    const size_t tensor = dti_proto_open(to, 8); /* Summary.Value.tensor: TensorProto */
    dti_proto_whole(to, 1, 7);                   /* dtype: DT_STRING */
    const size_t shape = dti_proto_open(to, 2), dim = dti_proto_open(to, 2);
    dti_proto_whole(to, 1, 1);
    dti_proto_close(to, dim);
    dti_proto_close(to, shape);
    dti_proto_text(to, 8, text); /* string_val */
    dti_proto_close(to, tensor);
    dti_event_end(to, e);
}

static void dti_run_log_number(dt_run_log *log, const char *name, uint64_t step, double value) {
    if (log->files[DTI_LOG_CSV].wanted)
        dti_log_csv(log, name, step, value);
    if (log->files[DTI_LOG_JSON].wanted)
        dti_log_json(log, name, step, value);
    if (log->files[DTI_LOG_EVENTS].wanted)
        dti_log_event(log, name, step, value);
}

static void dti_run_log_restarts(dt_run_log *log, uint64_t step) {
    dti_text *to = &log->files[DTI_LOG_EVENTS].text;
    if (log->files[DTI_LOG_CSV].wanted)
        dti_log_csv(log, "restart", step, (double)step);
    if (log->files[DTI_LOG_JSON].wanted)
        dti_log_json(log, "restart", step, (double)step);
    if (log->files[DTI_LOG_EVENTS].wanted)
        dti_event_start(to, log->now, step + 1); /* and all from there on is forgotten */
}

/* ---- files */

static dt_result dti_log_open_file(dt_run_log *log, dti_log_format format) {
    dti_log_file *f = &log->files[format];
    dti_text *part = &log->part;
    dt_result result = dti_grow_open(log->base, f->path, format != DTI_LOG_EVENTS, &f->file);
    part->size = 0;
    if (!result && format == DTI_LOG_CSV && !f->file.size)
        dti_text_add(part, "seconds,step,name,value\n");
    if (!result && format == DTI_LOG_EVENTS)
        dti_event_version(part, log->now);
    if (!result && !part->ok)
        result = DT_ERROR_MEMORY;
    if (!result && part->size)
        result = dti_grow_add(log->base, f->path, &f->file, part->data, part->size);
    if (result) /* the next call begins it again */
        dti_grow_close(&f->file);
    return result;
}

static void dti_log_close_files(dt_run_log *log) {
    for (int i = 0; i < DTI_LOG_FORMATS; i++)
        dti_grow_close(&log->files[i].file);
}

static void dti_log_forget(dti_text *text, dti_base *base) {
    dti_text_free(text);
    *text = dti_text_open(base);
}

/* Appends to all files, or to none. */
static dt_result dti_log_append(dt_run_log *log) {
    dt_result result = DT_OK;
    int done = 0;
    for (; done < DTI_LOG_FORMATS && !result; done++) {
        dti_log_file *f = &log->files[done];
        if (!f->text.size)
            continue;
        if (!f->file.open)
            result = dti_log_open_file(log, (dti_log_format)done);
        if (!result)
            result = dti_grow_add(log->base, f->path, &f->file, f->text.data, f->text.size);
    }
    for (int i = 0; result && i + 1 < done; i++) {
        if (log->files[i].text.size)
            dti_grow_take_back(&log->files[i].file, log->files[i].text.size);
    }
    return result;
}

/* An entry for which memory was short is left out as a whole, and the log continues. */
static dt_result dti_run_log_write(dt_run_log *log) {
    dt_result result = log->closed;
    if (!result && !log->part.ok)
        result = DT_ERROR_MEMORY;
    for (int i = 0; i < DTI_LOG_FORMATS && !result; i++)
        result = log->files[i].text.ok ? DT_OK : DT_ERROR_MEMORY;
    if (!result)
        result = dti_log_append(log);
    for (int i = 0; i < DTI_LOG_FORMATS && result == DT_ERROR_MEMORY; i++)
        dti_log_forget(&log->files[i].text, log->base);
    if (result == DT_ERROR_MEMORY)
        dti_log_forget(&log->part, log->base);
    if (result == DT_ERROR_IO && !log->closed) {
        log->closed = result;
        dti_log_close_files(log);
    }
    return result;
}

/* ---- making one */

static dt_result dti_log_check_name(dt_run_log *log, const char *call, const char *name) {
    if (!name)
        return dti_fail_null(log->base, "name");
    if (!dti_name_fits(name))
        return dti_fail(log->base, DT_ERROR_INVALID,
                        "%s: a name must be UTF-8, not empty, without control characters", call);
    return log->closed;
}

static dt_result dti_log_folder(dti_base *base, const char *folder) {
    DTI_TRY(dti_folders_check(base, folder));
    if (dti_folder_make(folder) || errno == EEXIST)
        return DT_OK;
    return dti_fail(base, DT_ERROR_IO, "the log's folder %s cannot be made: %s", folder,
                    strerror(errno));
}

static char *dti_log_path(dti_base *base, const char *folder, dti_log_format format) {
    dti_text path = dti_text_open(base);
    if (format == DTI_LOG_EVENTS)
        dti_text_add(&path, "%s/events.out.tfevents.%llu.%ld", folder,
                     (unsigned long long)dti_unix_seconds(), dti_process());
    else
        dti_text_add(&path, "%s/scalars.%s", folder, format == DTI_LOG_CSV ? "csv" : "jsonl");
    if (path.ok && path.data)
        return path.data;
    dti_text_free(&path);
    return NULL;
}

static dt_result dti_log_make(dt_run_log *log, const dt_run_log_desc *desc) {
    const bool wanted[DTI_LOG_FORMATS] = {desc->csv, desc->json, desc->tensorboard};
    const bool all = !desc->csv && !desc->json && !desc->tensorboard;
    bool made = true;
    log->every = desc->every_steps ? (uint64_t)desc->every_steps : DTI_LOG_STEPS;
    log->part = dti_text_open(log->base);
    for (int i = 0; i < DTI_LOG_FORMATS; i++) {
        dti_log_file *f = &log->files[i];
        f->wanted = wanted[i] || all;
        f->text = dti_text_open(log->base);
        f->path = dti_log_path(log->base, desc->folder, (dti_log_format)i);
        made = made && f->path;
    }
    return made ? DT_OK : DT_ERROR_MEMORY;
}

static dt_result dti_log_check_desc(dti_base *base, const dt_run_log_desc *desc) {
    if (!desc->folder || !desc->folder[0])
        return dti_fail(base, DT_ERROR_INVALID, "dt_run_log_desc.folder is empty; give a folder");
    if (desc->every_steps < 0)
        return dti_fail(base, DT_ERROR_INVALID,
                        "dt_run_log_desc.every_steps is %d; it must be at least 0",
                        desc->every_steps);
    return DT_OK;
}

DTI_PUBLIC_NEW(dt_run_log_create, (dt_ctx * ctx, const dt_run_log_desc *desc, dt_run_log **out),
               ctx, DTI_CTX, (ctx, desc, out), dt_run_log_destroy) {
    dti_base *base = dti_ctx_base(ctx);
    DTI_NEED(base, desc);
    DTI_TRY(dti_log_check_desc(base, desc));
    DTI_TRY(dti_log_folder(base, desc->folder));
    DTI_TRY(dti_folder_probe(base, "the log's", desc->folder));
    dt_run_log *log = *out = dti_alloc(base, sizeof *log);
    DTI_HAVE(log);
    log->base = base;
    return dti_log_make(log, desc);
}

DTI_PUBLIC_VOID(dt_run_log_destroy, (dt_run_log * log), log, DTI_OF(dt_run_log) | DTI_UNUSED,
                (log)) {
    dti_log_close_files(log);
    for (int i = 0; i < DTI_LOG_FORMATS; i++) {
        dti_text_free(&log->files[i].text);
        dti_free(log->base, log->files[i].path);
    }
    dti_text_free(&log->part);
    dti_free(log->base, log);
}

/* ---- the kinds of entries */

DTI_PUBLIC(dt_run_log_scalar, (dt_run_log * log, const char *name, uint64_t step, double value),
           log, DTI_OF(dt_run_log), (log, name, step, value)) {
    DTI_TRY(dti_log_check_name(log, dti_function(), name));
    dti_run_log_begin(log);
    dti_run_log_number(log, name, step, value);
    return dti_run_log_write(log);
}

DTI_PUBLIC(dt_run_log_text, (dt_run_log * log, const char *name, uint64_t step, const char *text),
           log, DTI_OF(dt_run_log), (log, name, step, text)) {
    DTI_NEED(log->base, text);
    DTI_TRY(dti_log_check_name(log, dti_function(), name));
    if (!dti_utf8_valid(text, strlen(text)))
        return dti_fail(log->base, DT_ERROR_INVALID, "%s: '%s' is not UTF-8", dti_function(), name);
    dti_run_log_begin(log);
    if (log->files[DTI_LOG_JSON].wanted)
        dti_log_json_text(log, name, step, text);
    if (log->files[DTI_LOG_EVENTS].wanted)
        dti_log_event_text(log, name, step, text);
    return dti_run_log_write(log);
}

DTI_PUBLIC(dt_run_log_histogram,
           (dt_run_log * log, const char *name, uint64_t step, const float *values, size_t count),
           log, DTI_OF(dt_run_log), (log, name, step, values, count)) {
    if (!values && count)
        return dti_fail_null(log->base, "values");
    const dt_result result = dti_log_check_name(log, dti_function(), name);
    if (result || !log->files[DTI_LOG_EVENTS].wanted)
        return result;
    dti_text *to = &log->files[DTI_LOG_EVENTS].text;
    dti_run_log_begin(log);
    const dti_event e = dti_event_begin(to, log->now, step, name);
    dti_event_histogram(to, values, count);
    dti_event_end(to, e);
    return dti_run_log_write(log);
}

DTI_PUBLIC(dt_run_log_image,
           (dt_run_log * log, const char *name, uint64_t step, const uint8_t *pixels, int width,
            int height, int channels),
           log, DTI_OF(dt_run_log), (log, name, step, pixels, width, height, channels)) {
    DTI_NEED(log->base, pixels);
    DTI_TRY(dti_log_check_name(log, dti_function(), name));
    DTI_TRY(dti_png_check(log->base, name, width, height, channels));
    if (!log->files[DTI_LOG_EVENTS].wanted)
        return DT_OK;
    dti_text *to = &log->files[DTI_LOG_EVENTS].text;
    dti_run_log_begin(log);
    log->part.size = 0;
    dti_png_write(&log->part, pixels, (uint32_t)width, (uint32_t)height, (uint32_t)channels);
    const dti_event e = dti_event_begin(to, log->now, step, name);
    const size_t image = dti_proto_open(to, 4); /* Summary.Value.image */
    dti_proto_whole(to, 1, (uint64_t)height);
    dti_proto_whole(to, 2, (uint64_t)width);
    dti_proto_whole(to, 3, (uint64_t)channels); /* colorspace */
    dti_proto_bytes(to, 4, log->part.data, log->part.size);
    dti_proto_close(to, image);
    dti_event_end(to, e);
    return dti_run_log_write(log);
}

/* TensorBoard's table of runs: tensorboard/plugins/hparams/{plugin_data,api}.proto. An experiment
 * says which settings and metrics there are, a session which values this run has. */
static void dti_log_hparam_kind(dti_text *to, const dt_hparam *p) {
    const size_t info = dti_proto_open(to, 4); /* Experiment.hparam_infos */
    dti_proto_text(to, 1, p->name);
    dti_proto_whole(to, 4, p->text ? 1 : 3); /* DATA_TYPE_STRING, _FLOAT64 */
    dti_proto_close(to, info);
}

static void dti_log_hparam_value(dti_text *to, const dt_hparam *p) {
    const size_t entry = dti_proto_open(to, 1); /* SessionStartInfo.hparams */
    dti_proto_text(to, 1, p->name);
    const size_t value = dti_proto_open(to, 2); /* google.protobuf.Value */
    if (p->text)
        dti_proto_text(to, 3, p->text);
    else
        dti_proto_f64(to, 2, p->number);
    dti_proto_close(to, value);
    dti_proto_close(to, entry);
}

static void dti_log_hparam_event(dt_run_log *log, const char *tag) {
    dti_text *to = &log->files[DTI_LOG_EVENTS].text;
    const dti_event e = dti_event_begin(to, log->now, 0, tag);
    dti_event_plugin(to, "hparams", &log->part);
    dti_event_end(to, e);
}

static void dti_log_hparams(dt_run_log *log, const dt_hparam *params, int count,
                            const char *metric) {
    dti_text *part = &log->part;
    part->size = 0;
    size_t message = dti_proto_open(part, 2); /* HParamsPluginData.experiment */
    for (int i = 0; i < count; i++)
        dti_log_hparam_kind(part, &params[i]);
    if (metric) {
        const size_t info = dti_proto_open(part, 5), name = dti_proto_open(part, 1);
        dti_proto_text(part, 2, metric); /* MetricInfo.name.tag */
        dti_proto_close(part, name);
        dti_proto_close(part, info);
    }
    dti_proto_close(part, message);
    dti_log_hparam_event(log, "_hparams_/experiment");
    part->size = 0;
    message = dti_proto_open(part, 3); /* HParamsPluginData.session_start_info */
    for (int i = 0; i < count; i++)
        dti_log_hparam_value(part, &params[i]);
    dti_proto_f64(part, 5, log->now); /* start_time_secs */
    dti_proto_close(part, message);
    dti_log_hparam_event(log, "_hparams_/session_start_info");
}

static void dti_log_hparam_json(dt_run_log *log, const dt_hparam *p) {
    const char *name = dti_log_join(log, "hparams", p->name);
    if (p->text)
        dti_log_json_text(log, name, 0, p->text);
    else
        dti_log_json(log, name, 0, p->number);
}

DTI_PUBLIC(dt_run_log_hparams,
           (dt_run_log * log, const dt_hparam *params, int count, const char *metric), log,
           DTI_OF(dt_run_log), (log, params, count, metric)) {
    DTI_NEED(log->base, params);
    DTI_TRY(metric ? dti_log_check_name(log, dti_function(), metric) : log->closed);
    if (count < 0)
        return dti_fail(log->base, DT_ERROR_INVALID, "%s: count is %d; it must be at least 0",
                        dti_function(), count);
    for (int i = 0; i < count; i++) {
        const char *text = params[i].text;
        DTI_TRY(dti_log_check_name(log, dti_function(), params[i].name));
        if (text && !dti_utf8_valid(text, strlen(text)))
            return dti_fail(log->base, DT_ERROR_INVALID, "%s: '%s' is not UTF-8", dti_function(),
                            params[i].name);
    }
    dti_run_log_begin(log);
    for (int i = 0; i < count && log->files[DTI_LOG_JSON].wanted; i++)
        dti_log_hparam_json(log, &params[i]);
    if (log->files[DTI_LOG_EVENTS].wanted)
        dti_log_hparams(log, params, count, metric);
    return dti_run_log_write(log);
}

DTI_PUBLIC(dt_run_log_restart, (dt_run_log * log, uint64_t step), log, DTI_OF(dt_run_log),
           (log, step)) {
    dti_run_log_begin(log);
    dti_run_log_restarts(log, step);
    return dti_run_log_write(log);
}
