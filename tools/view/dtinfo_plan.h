/* Part of dtinfo.c: dtinfo plan. Makes a trainer of a small MLP with the settings that it is given.
 * It shows the lists of actions that its devices execute in a step (dtinfo_chart.h). Nothing is
 * trained. Needs dtrain.h with its implementation. */
#include "dtinfo_chart.h"
#include <stddef.h>

static const char chart_help[] =
    "usage: dtinfo plan [OPTION VALUE]...   the actions of each device in a training step\n"
    "  --devices LIST      default cpu:2\n"
    "  --batch N           samples of a step, default 64\n"
    "  --accumulate N      micro-batches of each batch slice, default 1\n"
    "  --batch-slices N    default: one for each replica\n"
    "  --replicas N        default: as many as the devices are\n"
    "  --pipeline N        stages, default none\n"
    "  --schedule NAME     1f1b, fill-drain, interleaved or zero-bubble, default 1f1b\n"
    "  --chunks N          of each device, with interleaved\n"
    "  --tensor N          tensor ranks, default none\n"
    "  --tensor-slices N   of the model; default: tensor ranks\n"
    "  --zero N            0 to 3\n"
    "  --shard-degree N    replicas that share the state with --zero, default all\n"
    "  --bucket-bytes N    gradients that are summed at a time\n"
    "  --layers N          of the model, an MLP; default 8\n"
    "  --width N           of its layers, default 64\n"
    "  --sync-norm 1       batch norm with statistics of all devices after each layer\n"
    "  --svg FILE          also draw it\n"
    "Times are in forward parts of a micro-batch; a backward part is two, or one and the "
    "gradients\n"
    "of weights. number: of a segment, a collective, a bucket or a unit. buckets: that have "
    "arrived "
    "after it.\n";

typedef struct chart_options {
    const char *devices, *schedule, *svg;
    int batch, accumulate, batch_slices, replicas, pipeline, chunks, tensor, tensor_slices, zero,
        shard_degree, bucket_bytes;
    int layers, width, sync_norm;
} chart_options;

static const struct {
    const char *name;
    size_t at;
    int least; /* -1: a text */
} chart_option_rows[] = {
    {"--devices", offsetof(chart_options, devices), -1},
    {"--schedule", offsetof(chart_options, schedule), -1},
    {"--svg", offsetof(chart_options, svg), -1},
    {"--batch", offsetof(chart_options, batch), 1},
    {"--accumulate", offsetof(chart_options, accumulate), 1},
    {"--batch-slices", offsetof(chart_options, batch_slices), 0},
    {"--replicas", offsetof(chart_options, replicas), 0},
    {"--pipeline", offsetof(chart_options, pipeline), 0},
    {"--chunks", offsetof(chart_options, chunks), 0},
    {"--tensor", offsetof(chart_options, tensor), 0},
    {"--tensor-slices", offsetof(chart_options, tensor_slices), 0},
    {"--zero", offsetof(chart_options, zero), 0},
    {"--shard-degree", offsetof(chart_options, shard_degree), 0},
    {"--bucket-bytes", offsetof(chart_options, bucket_bytes), 0},
    {"--layers", offsetof(chart_options, layers), 1},
    {"--width", offsetof(chart_options, width), 1},
    {"--sync-norm", offsetof(chart_options, sync_norm), 0},
};

static const char *const chart_schedules[] = {"1f1b", "fill-drain", "interleaved", "zero-bubble"};

/* ---- options */

static bool chart_option_set(chart_options *o, size_t row, const char *value) {
    char *at = (char *)o + chart_option_rows[row].at;
    if (chart_option_rows[row].least < 0) {
        memcpy(at, &value, sizeof value);
        return true;
    }
    char *end;
    const long n = strtol(value, &end, 10);
    if (end == value || *end || n < chart_option_rows[row].least || n > 1 << 24)
        return false;
    const int number = (int)n;
    memcpy(at, &number, sizeof number);
    return true;
}

static bool chart_option(chart_options *o, const char *name, const char *value, FILE *errors) {
    const size_t rows = sizeof chart_option_rows / sizeof *chart_option_rows;
    size_t row = 0;
    while (row < rows && strcmp(chart_option_rows[row].name, name) != 0)
        row++;
    if (row == rows)
        fprintf(errors, "dtinfo plan: there is no option '%s'; --help has them\n", name);
    else if (!value)
        fprintf(errors, "dtinfo plan: %s has no value\n", name);
    else if (!chart_option_set(o, row, value))
        fprintf(errors, "dtinfo plan: %s is '%s'; give a whole number from %d to %d\n", name, value,
                chart_option_rows[row].least, 1 << 24);
    else
        return true;
    return false;
}

static bool chart_parse(int argc, char **argv, chart_options *o, FILE *errors) {
    *o = (chart_options){.devices = "cpu:2",
                         .schedule = chart_schedules[0],
                         .batch = 64,
                         .accumulate = 1,
                         .layers = 8,
                         .width = 64};
    for (int i = 0; i < argc; i += 2)
        if (!chart_option(o, argv[i], i + 1 < argc ? argv[i + 1] : NULL, errors))
            return false;
    for (size_t i = 0; i < DTI_COUNT(chart_schedules); i++)
        if (!strcmp(o->schedule, chart_schedules[i]))
            return true;
    fprintf(errors,
            "dtinfo plan: --schedule is '%s'; give 1f1b, fill-drain, interleaved or zero-bubble\n",
            o->schedule);
    return false;
}

/* ---- the model and its trainer */

typedef struct chart_job {
    dt_ctx *ctx;
    dt_graph *graph;
    dt_trainer *trainer;
    void *data;
} chart_job;

static dt_tensor chart_model(dt_graph *g, const chart_options *o, dt_tensor *x) {
    const dt_batch_norm_desc norm = {.sync = true};
    dt_tensor h = *x = dt_input(g, "x", DT_F32, dt_dims(o->width));
    for (int i = 0; i < o->layers; i++) {
        char name[2][32];
        snprintf(name[0], sizeof name[0], "fc%d", i + 1);
        snprintf(name[1], sizeof name[1], "norm%d", i + 1);
        const dt_tensor_style split = i % 2 ? DT_TENSOR_ROW : DT_TENSOR_COLUMN;
        const dt_linear_desc part = {.tensor = o->tensor > 1 ? split : DT_TENSOR_REPLICATED};
        h = dt_nn_linear_with(h, name[0], o->width, &part);
        if (i + 1 < o->layers)
            h = dt_relu(o->sync_norm ? dt_nn_batch_norm(h, name[1], &norm) : h);
    }
    return h;
}

static dt_trainer_desc chart_trainer_desc(const chart_options *o) {
    int schedule = 0;
    while (strcmp(o->schedule, chart_schedules[schedule]) != 0)
        schedule++;
    return (dt_trainer_desc){.batch = o->batch,
                             .accumulate = o->accumulate,
                             .devices = o->devices,
                             .data.rows = (uint64_t)o->batch,
                             .parallel = {.replicas = o->replicas,
                                          .batch_slices = o->batch_slices,
                                          .bucket_bytes = (size_t)o->bucket_bytes,
                                          .pipeline = o->pipeline,
                                          .schedule = (dt_pipeline_schedule)schedule,
                                          .chunks = o->chunks,
                                          .tensor = o->tensor,
                                          .tensor_slices = o->tensor_slices,
                                          .zero_stage = o->zero,
                                          .shard_degree = o->shard_degree}};
}

static dt_result chart_job_open(const chart_options *o, chart_job *job) {
    *job = (chart_job){0};
    const dt_ctx_desc ctx = {.no_vulkan = !strstr(o->devices, "vulkan")};
    dt_result result = dt_ctx_create(&ctx, &job->ctx);
    if (!result)
        result = dt_graph_create(job->ctx, &job->graph);
    job->data = calloc((size_t)o->batch * (size_t)(o->width + 1), sizeof(float));
    if (result || !job->data)
        return result ? result : DT_ERROR_MEMORY;
    dt_trainer_desc d = chart_trainer_desc(o);
    dt_tensor x, y = chart_model(job->graph, o, &x),
                 t = dt_input(job->graph, "t", DT_I32, dt_dims());
    d.loss = dt_cross_entropy(y, t, NULL);
    d.data.columns[0] = (dt_column){.input = x, .data = job->data, .dtype = DT_F32};
    d.data.columns[1] = (dt_column){.input = t, .data = job->data, .dtype = DT_I32};
    return dt_trainer_create(job->graph, &d, &job->trainer);
}

static void chart_job_close(chart_job *job) {
    dt_trainer_destroy(job->trainer);
    dt_ctx_destroy(job->ctx);
    free(job->data);
}

/* ---- boxes of a list of actions */

static const uint8_t chart_kind_of[DTI_ACTION_KINDS] = {
    [DTI_ACTION_WRITE] = CHART_WRITE,
    [DTI_ACTION_OPEN] = CHART_OPEN,
    [DTI_ACTION_RECEIVE] = CHART_RECEIVE,
    [DTI_ACTION_FORWARD] = CHART_FORWARD,
    [DTI_ACTION_WEIGHTS] = CHART_WEIGHTS,
    [DTI_ACTION_BACKWARD] = CHART_BACKWARD,
    [DTI_ACTION_COLLECTIVE] = CHART_COLLECTIVE,
    [DTI_ACTION_SEND] = CHART_SEND,
    [DTI_ACTION_CLOSE] = CHART_CLOSE,
    [DTI_ACTION_SUM] = CHART_ADD,
    [DTI_ACTION_ZEROS] = CHART_ZEROS,
    [DTI_ACTION_GATHER] = CHART_GATHER,
    [DTI_ACTION_PASS] = CHART_PASS,
};

typedef struct chart_list { /* a device's, and what it shares with others */
    uint32_t lane;
    const dti_list *list;
    const dti_runs *runs;   /* of a replica; NULL: a grid's */
    const dti_pipe *pipe;   /* of a grid */
    uint32_t most;          /* rows of a run of a replica at most */
    uint32_t split;         /* backward parts are two */
    uint32_t meet, devices; /* a counter of devices that have come to sync points; how many do */
    uint32_t left, each;    /* one of devices that have left them, and by how much it goes up;
                             * CHART_NONE */
    uint32_t buckets;       /* one of a replica's buckets */
} chart_list;

/* Of a split backward part what is left when gradients have gone to the stage before. */
static chart_kind chart_kind_in(const chart_list *of, const dti_action *a) {
    if (!of->pipe || a->kind != DTI_ACTION_BACKWARD || !of->split)
        return (chart_kind)chart_kind_of[a->kind];
    const dt_program *p = of->pipe->chunks[a->part].runs[0][a->micro].program;
    return a->from < dti_program_leaving(p) ? CHART_BACKWARD : CHART_WEIGHT_GRADIENT;
}

/* A micro-batch's forward part takes 1, its backward part 2 or twice 1, shared by its actions. */
static double chart_cost(const chart_list *of, const dti_action *a) {
    const chart_kind kind = chart_kind_in(of, a);
    uint32_t alike = 0;
    if (a->kind != DTI_ACTION_FORWARD && a->kind != DTI_ACTION_BACKWARD)
        return 0;
    for (uint32_t i = 0; i < of->list->count; i++) {
        const dti_action *b = &of->list->actions[i];
        alike += b->part == a->part && b->micro == a->micro && chart_kind_in(of, b) == kind;
    }
    const double rows = of->runs ? (double)of->runs->runs[a->micro].rows / of->most : 1;
    return rows * (kind == CHART_BACKWARD && !of->split ? 2 : 1) / alike;
}

/* What it is of the model: a replica, or a chunk of a pipeline. */
static void chart_part(chart *v, const chart_list *of, const dti_action *a, chart_box *b) {
    b->part = of->pipe ? a->part % of->pipe->chunk_count : of->lane;
    b->shade = of->pipe && b->part >= of->pipe->mesh->stages;
    v->chunks = of->pipe && of->pipe->chunk_count > of->pipe->mesh->stages;
}

static void chart_box_meets(chart *v, const chart_list *of, chart_box *b, uint32_t *met) {
    b->brings = of->meet;
    b->raises = of->left;
    b->times = of->each;
    chart_need_add(v, b, of->meet, ++*met * of->devices);
}

static void chart_add_action(chart *v, const chart_list *of, const dti_action *a, uint32_t *met) {
    chart_box *b = chart_box_add(v, of->lane, chart_kind_in(of, a));
    chart_part(v, of, a, b);
    b->waits = a->after && a->after == (uint32_t)(a - of->list->actions);
    b->micro = a->micro;
    b->cost = chart_cost(of, a);
    b->from = b->cost > 0 ? a->from : a->what;
    const bool numbered = a->kind == DTI_ACTION_COLLECTIVE || a->kind >= DTI_ACTION_GATHER;
    b->what = b->cost > 0 || numbered ? a->what : CHART_NONE;
    for (uint32_t i = a->need; i < a->need + a->need_count; i++)
        chart_need_add(v, b, of->list->needs[i].counter, of->list->needs[i].value);
    if (a->raises)
        b->raises = a->raises - 1, b->times = 1;
    if (a->kind == DTI_ACTION_COLLECTIVE)
        chart_box_meets(v, of, b, met);
}

static void chart_add_list(chart *v, const chart_list *of) {
    uint32_t met = 0, arrived = 0;
    for (uint32_t i = 0; i < of->list->count; i++) {
        const dti_action *a = &of->list->actions[i];
        chart_add_action(v, of, a, &met);
        chart_box *b = &v->lanes[of->lane].boxes[i];
        b->buckets = a->buckets;
        if (a->buckets > arrived)
            b->raises = of->buckets, b->times = a->buckets - arrived;
        arrived = DTI_MAX(arrived, a->buckets);
    }
}

/* ---- replicas */

/* Where each bucket's sum can be made: all devices have given it. */
static void chart_add_sums(chart *v, uint32_t buckets, uint32_t devices, uint32_t counters) {
    const uint32_t lane = chart_lane_add(v);
    snprintf(v->lanes[lane].name, sizeof v->lanes[lane].name,
             "sums: a bucket of gradients each, which all devices have given");
    for (uint32_t i = 0; i < buckets; i++) {
        chart_box *b = chart_box_add(v, lane, CHART_SUM);
        b->what = b->from = i;
        b->raises = DTI_UNITS_SUMMED, b->times = 1;
        for (uint32_t d = 0; d < devices; d++)
            chart_need_add(v, b, counters + d, i + 1);
    }
}

static void chart_of_replicas(chart *v, const dti_parallel *par) {
    chart_counters(v, DTI_UNITS_COUNTERS); /* as the lists have them */
    const uint32_t devices = par->job.local, buckets = chart_counters(v, devices);
    chart_list of = {
        .meet = chart_counters(v, 1), .devices = devices, .left = CHART_NONE, .most = 1};
    for (uint32_t i = 0; i < devices; i++)
        for (uint32_t k = 0; k < par->replicas[i].full.count; k++)
            of.most = DTI_MAX(of.most, par->replicas[i].full.runs[k].rows);
    for (uint32_t i = 0; i < devices; i++) {
        of.runs = &par->replicas[i].full;
        of.list = &of.runs->list;
        of.lane = chart_lane_add(v);
        of.buckets = buckets + i;
        snprintf(v->lanes[of.lane].name, sizeof v->lanes[of.lane].name,
                 "device %u: a replica on %s", i, par->replicas[i].store->device->info.id);
        chart_add_list(v, &of);
    }
    if (devices > 1)
        chart_add_sums(v, par->bucket_count, devices, buckets);
}

/* ---- grids of stages and tensor ranks */

static void chart_name_device(chart_lane *lane, const dti_pipe *pipe, uint32_t d) {
    const dti_mesh *mesh = pipe->mesh;
    const dti_pipeline *pipeline = &pipe->pipelines[pipe->devices[d].pipeline];
    char of[3][40] = {"", "", ""};
    if (mesh->tensor > 1)
        snprintf(of[0], sizeof of[0], ", tensor rank %u", pipeline->tp_rank);
    if (pipe->each > 1)
        snprintf(of[1], sizeof of[1], " and %u more", pipe->each - 1);
    if (mesh->data > 1)
        snprintf(of[2], sizeof of[2], " of replica %u", pipeline->replica);
    snprintf(lane->name, sizeof lane->name, "device %u: stage %u%s%s%s", d, pipe->devices[d].place,
             of[0], of[1], of[2]);
}

static void chart_of_grid(chart *v, const dti_parallel *par) {
    const dti_pipe *pipe = par->pipe;
    chart_counters(v, pipe->plan->counter_count); /* as the lists have them */
    const uint32_t meet = chart_counters(v, pipe->tp_count + 1);
    for (uint32_t d = 0; d < pipe->device_count; d++) {
        const dti_tp_place *place = pipe->devices[d].tp;
        chart_list of = {.lane = chart_lane_add(v),
                         .list = &pipe->devices[d].lists[0],
                         .pipe = pipe,
                         .split = par->desc.parallel.schedule == DT_PIPELINE_ZERO_BUBBLE,
                         .each = pipe->each,
                         .left = CHART_NONE};
        if (place) {
            of.meet = meet + (uint32_t)(place - pipe->tp_groups);
            of.devices = place->count / pipe->each;
            of.left = place->counters + DTI_TP_LEFT;
        }
        chart_name_device(&v->lanes[of.lane], pipe, d);
        chart_add_list(v, &of);
    }
}

/* ---- all of it */

static void chart_name(chart *v, const chart_options *o, const dti_parallel *par) {
    const int n = snprintf(
        v->title, sizeof v->title, "A step of %d layers of %d on %s: batch %d, %d micro-batch%s",
        o->layers, o->width, o->devices, o->batch, o->accumulate, o->accumulate > 1 ? "es" : "");
    if (par->mesh.stages > 1 && n > 0 && (size_t)n < sizeof v->title)
        snprintf(v->title + n, sizeof v->title - (size_t)n, ", %s",
                 dti_pipe_names[par->desc.parallel.schedule]);
}

static bool chart_of(chart *v, const chart_options *o, const dti_parallel *par, FILE *errors) {
    *v = (chart){0};
    chart_name(v, o, par);
    if (par->pipe)
        chart_of_grid(v, par);
    else
        chart_of_replicas(v, par);
    if (chart_play(v))
        return true;
    fputs("dtinfo plan: the devices wait for each other for ever:\n", errors);
    chart_print(v, errors);
    return false;
}

static bool chart_draw_to(const chart *v, const char *name, FILE *errors) {
    FILE *to = fopen(name, "w");
    if (to)
        chart_draw(v, to);
    const bool bad = !to || ferror(to);
    if ((to && fclose(to)) || bad) {
        fprintf(errors, "dtinfo plan: --svg is '%s', which cannot be written\n", name);
        return false;
    }
    return true;
}

static int chart_main(int argc, char **argv, FILE *to, FILE *errors) {
    chart_options o;
    chart_job job;
    chart view = {0};
    if (argc && (!strcmp(argv[0], "-h") || !strcmp(argv[0], "--help")))
        return fputs(chart_help, to) < 0;
    if (!chart_parse(argc, argv, &o, errors))
        return 2;
    const dt_result result = chart_job_open(&o, &job);
    if (result)
        fprintf(errors, "dtinfo plan: %s\n",
                job.ctx ? dt_ctx_error(job.ctx) : dt_result_text(result));
    bool good = !result && chart_of(&view, &o, &job.trainer->par, errors);
    if (good)
        chart_print(&view, to);
    good = good && (!o.svg || chart_draw_to(&view, o.svg, errors));
    chart_close(&view);
    chart_job_close(&job);
    return !good;
}
