/* Random jobs of training. A seed gives a row of numbers: a model, an optimizer, a mesh of devices
 * and ranks, and how they train. Most fit together; a kind of its own does not, so that refusals
 * are drawn too. The job of a seed never changes with the machine. test_random_jobs.c compares each
 * job's results with the recorded ones. */
#ifndef DTRAIN_TESTS_RANDOM_JOBS_H
#define DTRAIN_TESTS_RANDOM_JOBS_H

#include "parallel/pipe_model.h"
#include "parallel/team_model.h"

enum { JOB_RANKS = 4, JOB_DEVICES = 8 };

/* ---- what is drawn */

#define JOB_LIST(X)                                                                                \
    X(ONE, "one device")                                                                           \
    X(REPLICAS, "replicas")                                                                        \
    X(ZERO, "ZeRO")                                                                                \
    X(STAGES, "pipeline")                                                                          \
    X(TENSOR, "tensor")                                                                            \
    X(GRID, "grid")                                                                                \
    X(LOCAL, "local steps")                                                                        \
    X(ODD, "odd")
#define KIND_ENUM(name, text) JOB_##name,
#define KIND_TEXT(name, text) text,
enum { JOB_LIST(KIND_ENUM) JOB_KINDS };
static const char *const job_kinds[] = {JOB_LIST(KIND_TEXT)};

#define BIT(kind) (1u << JOB_##kind)
enum {
    ALL = (1 << JOB_KINDS) - 1,
    CUT = BIT(STAGES) | BIT(GRID),
    SPLIT = BIT(TENSOR) | BIT(GRID),
    MANY = ALL & ~BIT(ONE) & ~BIT(ODD)
};

enum { OF_TRAIN, OF_TEAM, OF_HERE };
enum { HERE_ONE, HERE_TWO, HERE_MARKS, HERE_WIDE };

static const struct job_model {
    const char *name;
    int of, kind;
    unsigned kinds;         /* of jobs that have it */
    bool norm, sync, plain; /* batch norm; over all replicas; what a short batch can fill up */
} job_models[] = {
    {"mlp", OF_TRAIN, 0, ALL & ~SPLIT, .plain = true},
    {"conv with batch norm", OF_TRAIN, 1, ALL & ~SPLIT, .norm = true},
    {"sums of parameters", OF_TRAIN, TRAIN_SUMS, ALL & ~SPLIT, .plain = true},
    {"spectral norm", OF_TRAIN, TRAIN_SPECTRAL, ALL & ~SPLIT, .plain = true},
    {"batch norm over replicas", OF_TRAIN, TRAIN_SYNC, BIT(ONE) | BIT(REPLICAS) | BIT(ZERO),
     .norm = true, .sync = true},
    {"gated", OF_TRAIN, TRAIN_PARTS, ALL, .plain = true},
    {"tied layers", OF_TRAIN, PIPE_TIED, ALL & ~SPLIT, .plain = true},
    {"residuals", OF_TRAIN, PIPE_SKIP, ALL & ~SPLIT, .plain = true},
    {"one wide norm", OF_TRAIN, PIPE_NORM, BIT(STAGES), .plain = true},
    {"two losses of weighted classes", OF_TRAIN, PIPE_CLASSES, ALL & ~SPLIT, .plain = true},
    {"layers of any kind", OF_TRAIN, PIPE_RANDOM + 3, ALL & ~SPLIT, .plain = true},
    {"layers with dead ones", OF_TRAIN, PIPE_RANDOM + 8, BIT(STAGES) | BIT(REPLICAS),
     .plain = true},
    {"split mlp", OF_TEAM, TEAM_MLP, SPLIT | BIT(ZERO) | BIT(STAGES), .plain = true},
    {"split gated", OF_TEAM, TEAM_GATED, SPLIT, .plain = true},
    {"split attention", OF_TEAM, TEAM_ATTENTION, SPLIT | BIT(ONE) | BIT(REPLICAS), .plain = true},
    {"split blocks", OF_TEAM, TEAM_BLOCKS, SPLIT | BIT(STAGES), .plain = true},
    {"split with batch norm", OF_TEAM, TEAM_BATCH_NORM, SPLIT, .norm = true},
    {"split head", OF_TEAM, TEAM_HEAD, SPLIT | BIT(LOCAL), .plain = true},
    {"split tied table", OF_TEAM, TEAM_TIED, SPLIT | BIT(ZERO), .plain = true},
    {"split columns", OF_TEAM, TEAM_COLUMNS, SPLIT, .plain = true},
    {"one parameter", OF_HERE, HERE_ONE, ALL & ~SPLIT & ~CUT, .plain = false},
    {"two losses, three metrics", OF_HERE, HERE_TWO, ALL & ~SPLIT, .plain = false},
    {"wide layers", OF_HERE, HERE_WIDE, ALL, .plain = true},
    {"marked stages, one of them empty", OF_HERE, HERE_MARKS, BIT(STAGES), .plain = false},
};
enum { JOB_MODELS = sizeof job_models / sizeof *job_models };

static const struct job_optim {
    const char *name;
    bool whole; /* looks at whole parameters */
    dt_optim_desc desc;
} job_optims[] = {
    {"Adam, norm clipped", false, {.kind = DT_OPTIM_ADAM, .lr = 0.01, .clip_norm = 0.5}},
    {"SGD", false, {.kind = DT_OPTIM_SGD, .lr = 0.05}},
    {"SGD, Nesterov", false, {.kind = DT_OPTIM_SGD, .lr = 0.02, .momentum = 0.9, .nesterov = true}},
    {"AdamW", false, {.kind = DT_OPTIM_ADAMW, .lr = 0.01}},
    {"AdamW, values clipped, a schedule",
     false,
     {.kind = DT_OPTIM_ADAMW,
      .lr = 0.01,
      .clip_value = 0.02,
      .schedule = {{.kind = DT_SCHEDULE_LINEAR, .steps = 3}}}},
    {"centred RMSprop",
     false,
     {.kind = DT_OPTIM_RMSPROP, .lr = 0.003, .centered = true, .momentum = 0.5}},
    {"AMSGrad", false, {.kind = DT_OPTIM_AMSGRAD, .lr = 0.01}},
    {"Lion", false, {.kind = DT_OPTIM_LION, .lr = 0.002}},
    {"AdamW, sparse weights, fast biases",
     false,
     {.kind = DT_OPTIM_ADAMW,
      .lr = 0.01,
      .groups = {{.params = "*.weight", .sparse = true}, {.params = "*.bias", .lr_scale = 2}}}},
    {"LAMB", true, {.kind = DT_OPTIM_LAMB, .lr = 0.01}},
    {"Muon", true, {.kind = DT_OPTIM_MUON, .lr = 0.02}},
    {"Adafactor", true, {.kind = DT_OPTIM_ADAFACTOR, .lr = 0.01}},
};
enum { JOB_OPTIMS = sizeof job_optims / sizeof *job_optims };

static const char *const job_tails[] = {"keep", "drop", "pad"};
static const char *const job_schedules[] = {"1F1B", "fill-drain", "interleaved", "zero-bubble"};
static const char *const job_averages[] = {"none", "EMA", "SWA"};
static const char *const job_compress[] = {"none", "bf16", "int8", "top-k"};
static const char *const job_troubles[] = {"none",    "a NaN",      "an infinity",
                                           "a label", "no targets", "a row is away"};
static const char *const job_differs[] = {"nothing", "seed",  "batch",      "rate",   "ZeRO",
                                          "tail",    "model", "accumulate", "gossip", "pipeline"};
static const char *const job_modes[] = {"synchronous", "local", "server"};

/* X(field, its words, kinds of jobs that draw it, values of which one is drawn, its names): other
 * jobs have the first value. ODD jobs draw a few of all. */
#define FIELDS(X)                                                                                  \
    X(ROWS, "rows", ALL, "37 5 9 16 23 37 60 50", NULL)                                            \
    X(BATCH, "batch", ALL, "12 1 3 4 7 8 12 16 30 10", NULL)                                       \
    X(STEPS, "steps", ALL, "4 2 3 5 6", NULL)                                                      \
    X(SEED, "seed", ALL, "1 2 3 4 5 6 7 8 9", NULL)                                                \
    X(ACCUMULATE, "micro-batches", ALL, "1 1 1 2 2 3 4 12", NULL)                                  \
    X(SLICES, "batch slices", ALL & ~BIT(LOCAL), "0 0 1 2 3 4 5 8 12", NULL)                       \
    X(TAIL, "tail", ALL, "0 0 0 1 2", job_tails)                                                   \
    X(EMPTY, "empty steps are skipped", ALL, "0 0 0 1", NULL)                                      \
    X(ORDER, "in order", ALL, "0 0 1", NULL)                                                       \
    X(REPLICAS, "replicas", MANY, "1 2 2 3 4 7", NULL)                                             \
    X(GIVEN, "given", MANY, "0 0 1", NULL)                                                         \
    X(STAGES, "stages", CUT, "1 2 2 3 4", NULL)                                                    \
    X(SCHEDULE, "schedule", CUT, "0 0 1 2 3", job_schedules)                                       \
    X(CHUNKS, "chunks", CUT, "0 0 2 3", NULL)                                                      \
    X(TENSOR, "tensor ranks", SPLIT, "1 2 2 3 4", NULL)                                            \
    X(TENSOR_SLICES, "tensor slices", BIT(TENSOR), "0 0 0 1 2", NULL)                              \
    X(SEQUENCE, "sequence parallel", SPLIT, "0 0 1", NULL)                                         \
    X(ZERO, "ZeRO", BIT(ZERO) | CUT | BIT(TENSOR), "0 1 1 2 3", NULL)                              \
    X(OFFLOAD, "offload", BIT(ZERO), "0 0 0 1", NULL)                                              \
    X(RANKS, "ranks", MANY, "1 1 2 2 3 4", NULL)                                                   \
    X(BUCKET, "bytes of a bucket", ALL, "0 256 1024 1024 4096", NULL)                              \
    X(SERIAL, "no overlap", ALL, "0 0 0 0 1", NULL)                                                \
    X(MODE, "mode", 0, "0 1 1 2", job_modes)                                                       \
    X(ROUND, "steps of a round", BIT(LOCAL), "0 1 2 2 3", NULL)                                    \
    X(GOSSIP, "gossip", BIT(LOCAL), "0 0 2 3", NULL)                                               \
    X(OUTER, "plain outer step", BIT(LOCAL), "0 0 1", NULL)                                        \
    X(COMPRESS, "compress", BIT(LOCAL), "0 0 1 2 3", job_compress)                                 \
    X(BALANCE, "measured", 0, "0 1", NULL)                                                         \
    X(IN_FLIGHT, "in flight", ALL, "0 0 0 1 2", NULL)                                              \
    X(MEMORY, "bytes at most", ALL, "0 0 0 0 0 0 9000 25000", NULL)                                \
    X(THREADS, "threads", ALL, "0 0 0 2 3", NULL)                                                  \
    X(AVERAGE, "average", ALL & ~BIT(LOCAL), "0 0 0 1 2", job_averages)                            \
    X(AVERAGED, "evaluated by it", ALL, "0 1", NULL)                                               \
    X(WEIGHTS_ONLY, "only weights", ALL, "0 0 0 0 1", NULL)                                        \
    X(RATE, "another rate", ALL, "0 0 0 1", NULL)                                                  \
    X(EVALUATE, "evaluated", ALL, "0 1", NULL)                                                     \
    X(TROUBLE, "trouble", ALL, "0 0 0 0 0 0 1 2 3 4 5", job_troubles)                              \
    X(DIFFERS, "the last rank differs in", 0, "0 1 2 3 4 5 6 7 8 9", job_differs)

#define FIELD_ENUM(field, words, kinds, values, names) F_##field,
#define FIELD_ROW(field, words, kinds, values, names) {words, kinds, values, names},
enum { FIELDS(FIELD_ENUM) JOB_FIELDS };
static const struct job_field {
    const char *words;
    unsigned kinds;
    const char *values;
    const char *const *names;
} job_fields[] = {FIELDS(FIELD_ROW)};

typedef struct jobs_job {
    int number, kind, model, optim;
    int v[JOB_FIELDS];
    int shard_degree; /* no job of kinds has one */
    bool predicts;    /* also tensors at the end */
    dt_precision precision;
    dt_dtype parameters; /* what they and moments are kept in */
    dt_state_dtype moments;
} jobs_job;

/* splitmix64 */
static uint32_t jobs_random(uint64_t *state, uint32_t below) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ z >> 31) >> 32) % below;
}

static int jobs_value(const char *values, uint32_t index) {
    for (; index; index--)
        values = strchr(values, ' ') + 1;
    return atoi(values);
}

static int jobs_draw_value(const struct job_field *f, uint64_t *state) {
    uint32_t count = 1;
    for (const char *c = f->values; *c; c++)
        count += *c == ' ';
    return jobs_value(f->values, jobs_random(state, count));
}

static int jobs_clamp(int value, int low, int high) {
    return value < low ? low : value > high ? high : value;
}

/* ---- what fits together: docs/distributed/settings.md#combinations */

static void jobs_fit_mesh(jobs_job *j) {
    int *v = j->v;
    const struct job_model *m = &job_models[j->model];
    if (j->kind == JOB_REPLICAS || j->kind == JOB_ZERO)
        v[F_REPLICAS] = jobs_clamp(v[F_REPLICAS], 2, 7);
    if (j->kind == JOB_STAGES || j->kind == JOB_GRID)
        v[F_STAGES] = jobs_clamp(v[F_STAGES], 2, 4);
    if (j->kind == JOB_GRID)
        v[F_TENSOR] = 2;
    if (v[F_TENSOR] == 3 && m->of == OF_TEAM && m->kind == TEAM_COLUMNS)
        v[F_TENSOR] = 4;
    while (v[F_REPLICAS] > 1 && v[F_REPLICAS] * v[F_STAGES] * v[F_TENSOR] > JOB_DEVICES)
        v[F_REPLICAS]--;
    v[F_TENSOR_SLICES] *= v[F_TENSOR];
    if (v[F_TENSOR_SLICES] <= 1 && v[F_TENSOR] == 1)
        v[F_SEQUENCE] = 0;
    if (v[F_TENSOR_SLICES] > v[F_TENSOR])
        v[F_ZERO] = 0;
    if (j->kind == JOB_ZERO)
        v[F_ZERO] = jobs_clamp(v[F_ZERO], 1, 3);
    else
        v[F_ZERO] = jobs_clamp(v[F_ZERO], 0, 1);
    v[F_OFFLOAD] = v[F_OFFLOAD] && v[F_ZERO] > 1;
    v[F_CHUNKS] = v[F_SCHEDULE] == DT_PIPELINE_INTERLEAVED ? v[F_CHUNKS] : 0;
    v[F_RANKS] = jobs_clamp(v[F_RANKS], 1, v[F_REPLICAS] * v[F_STAGES] * v[F_TENSOR]);
}

static void jobs_fit(jobs_job *j) {
    int *v = j->v;
    const struct job_model *m = &job_models[j->model];
    jobs_fit_mesh(j);
    v[F_ROWS] = v[F_ROWS] < v[F_REPLICAS] ? v[F_REPLICAS] : v[F_ROWS];
    v[F_BATCH] = jobs_clamp(v[F_BATCH], v[F_REPLICAS], v[F_ROWS]);
    v[F_ACCUMULATE] = m->sync ? 1 : jobs_clamp(v[F_ACCUMULATE], 1, v[F_BATCH]);
    if (v[F_SLICES])
        v[F_SLICES] = jobs_clamp(v[F_SLICES], v[F_REPLICAS], v[F_BATCH]);
    if (v[F_TAIL] == DT_TAIL_PAD && !m->plain)
        v[F_TAIL] = DT_TAIL_KEEP;
    v[F_EMPTY] = v[F_EMPTY] && v[F_IN_FLIGHT] < 2;
    v[F_AVERAGED] = v[F_AVERAGED] && v[F_AVERAGE];
    if (m->of == OF_HERE && m->kind == HERE_ONE) { /* a name that no pattern matches */
        v[F_WEIGHTS_ONLY] = 0;
        j->optim = j->optim % 4;
    }
    if (job_optims[j->optim].whole && (v[F_TENSOR] > 1 || v[F_TENSOR_SLICES] > 1))
        j->optim = j->optim % 4;
    if (j->kind == JOB_LOCAL) {
        v[F_MODE] = DT_TRAIN_LOCAL;
        v[F_ROUND] = v[F_ROUND] ? v[F_ROUND] : 2;
        if (v[F_TROUBLE] == 3 || v[F_TROUBLE] == 5) /* only that rank would make its step again */
            v[F_TROUBLE] = v[F_RANKS] > 1 ? 1 : v[F_TROUBLE];
    }
}

/* Settings of an odd job: of another kind, with some drawn again from all values. */
static void jobs_disturb(jobs_job *j, uint64_t *state) {
    for (int i = 1 + (int)jobs_random(state, 3); i > 0; i--) {
        const int f = (int)jobs_random(state, JOB_FIELDS);
        const int value = jobs_draw_value(&job_fields[f], state);
        j->v[f] = jobs_random(state, 8) == 0 ? -value : value;
    }
    if (jobs_random(state, 3) == 0) {
        j->v[F_DIFFERS] = 1 + (int)jobs_random(state, 9);
        j->v[F_REPLICAS] = j->v[F_REPLICAS] < 2 ? 2 : j->v[F_REPLICAS];
        j->v[F_RANKS] = j->v[F_RANKS] < 2 ? 2 : j->v[F_RANKS];
    }
}

/* Every share of the numbers, as each eighth, has jobs of all kinds. */
static jobs_job jobs_draw(int number) {
    jobs_job j = {.number = number, .kind = (number + number / JOB_KINDS) % JOB_KINDS};
    uint64_t state = (uint64_t)number * 1000003u + 17;
    const bool odd = j.kind == JOB_ODD;
    if (odd)
        j.kind = (int)jobs_random(&state, JOB_ODD);
    do
        j.model = (int)jobs_random(&state, JOB_MODELS);
    while (!(job_models[j.model].kinds & 1u << j.kind));
    j.optim = (int)jobs_random(&state, JOB_OPTIMS);
    for (int f = 0; f < JOB_FIELDS; f++)
        j.v[f] = job_fields[f].kinds & 1u << j.kind ? jobs_draw_value(&job_fields[f], &state)
                                                    : jobs_value(job_fields[f].values, 0);
    jobs_fit(&j);
    if (odd)
        jobs_disturb(&j, &state);
    if (odd)
        j.kind = JOB_ODD;
    j.v[F_RANKS] = jobs_clamp(j.v[F_RANKS], 1, JOB_RANKS);
    return j;
}

/* The same in mixed precision. Of what may keep parameters and moments in fewer bits, half do. */
static jobs_job jobs_draw_mixed(int number, int drawn) {
    jobs_job j = jobs_draw(drawn);
    j.number = number;
    j.precision = DT_PRECISION_BF16;
    j.v[F_MEMORY] = 0; /* which was for f32 */
    if ((j.kind == JOB_ONE || j.kind == JOB_REPLICAS) && number % 2) {
        j.optim %= 4;
        j.v[F_AVERAGE] = j.v[F_AVERAGED] = 0;
        j.parameters = DT_BF16;
        j.moments = (dt_state_dtype)(number / 2 % 3);
    }
    return j;
}

/* Whether a field is only yes or no. */
static bool jobs_is_flag(const struct job_field *f) {
    return !f->names && !strpbrk(f->values, "23456789");
}

/* The job in words: all numbers that are not 0, or 1 of counts. */
static void jobs_words(const jobs_job *j, char *to, size_t room) {
    static const char *const moments[] = {"f32", "bf16", "8 bits"};
    int used = snprintf(to, room, "%s: %s, %s%s", job_kinds[j->kind], job_models[j->model].name,
                        job_optims[j->optim].name, j->precision ? ", mixed precision" : "");
    if (j->parameters)
        used += snprintf(to + used, room - (size_t)used, ", bf16 parameters, moments in %s",
                         moments[j->moments]);
    for (int f = 0; f < JOB_FIELDS; f++) {
        const int value = j->v[f];
        if (value == (job_fields[f].values[0] == '1'))
            continue;
        used += snprintf(to + used, room - (size_t)used, ", %s", job_fields[f].words);
        if (job_fields[f].names && value > 0)
            used += snprintf(to + used, room - (size_t)used, " %s", job_fields[f].names[value]);
        else if (!jobs_is_flag(&job_fields[f]) || value < 0)
            used += snprintf(to + used, room - (size_t)used, " %d", value);
    }
}

#endif
