/* Rows of wrong_args.h: trainers, and the collectives of one process and of two threads. */
#include "wrong/wrong_args.h"

/* ---- Trainers */

static dt_result made(dt_graph *graph, const dt_trainer_desc *desc) {
    dt_trainer *trainer = NULL;
    dt_result result = dt_trainer_create(graph, desc, &trainer);
    dt_trainer_destroy(trainer);
    return result;
}

ROW(TRAINER, dt_trainer_create, ) {
    dt_trainer *trainer = NULL;
    dt_trainer_desc desc = wrong_trainer();
    dt_result result = dt_trainer_create(OBJECT(here.graph), POINTER(&desc), POINTER(&trainer));
    dt_trainer_destroy(trainer);
    return RESULT(result);
}

ROW(TRAINER, dt_trainer_create, numbers) {
    dt_trainer_desc desc = wrong_trainer();
    desc.batch = COUNT_OR_0(4);
    desc.accumulate = COUNT_OR_0(1);
    desc.limits.in_flight = COUNT_OR_0(1);
    desc.parallel.batch_slices = COUNT_OR_0(1);
    desc.threads = INT(1, -2, 1025, INT_MAX, INT_MIN);
    desc.tail = ENUM(DT_TAIL_KEEP, DT_TAIL_PAD + 1);
    desc.parallel.balance = ENUM(DT_BALANCE_EQUAL, DT_BALANCE_MEASURED + 1);
    desc.checkpoint.folder = wrong_path("wrong-args-folder");
    desc.checkpoint.every_steps = INT(1000, -1);
    desc.checkpoint.keep = INT(2, -1);
    desc.server.addresses = TEXT(NULL, "127.0.0.1:1");
    desc.server.wait_ms = INT(0, 1, -1);
    return RESULT(made(here.graph, &desc));
}

/* One linear layer, so nothing that could be cut. */
ROW(TRAINER, dt_trainer_create, stages) {
    dt_trainer_desc desc = wrong_trainer();
    desc.devices = "cpu:2";
    desc.parallel.pipeline = INT(0, -1, 2, 3, 65, INT_MAX);
    desc.parallel.replicas = INT(0, -1, 1, 3, INT_MAX, INT_MIN);
    desc.parallel.schedule = (dt_pipeline_schedule)INT(
        DT_PIPELINE_1F1B, -1, DT_PIPELINE_ZERO_BUBBLE, DT_PIPELINE_ZERO_BUBBLE + 1, INT_MAX);
    desc.parallel.chunks = INT(0, -1, 2, INT_MAX);
    desc.parallel.zero_stage = INT(1, -1, 4, INT_MAX);
    return RESULT(made(here.graph, &desc));
}

ROW(TRAINER, dt_trainer_create, local) {
    dt_trainer_desc desc = wrong_trainer();
    desc.devices = "cpu:2";
    desc.mode = ENUM(DT_TRAIN_LOCAL, DT_TRAIN_SERVER + 1);
    desc.local.steps = INT(2, -1, INT_MIN);
    desc.local.gossip = INT(2, -1, INT_MIN);
    desc.local.outer.lr = AT_LEAST_0(0.5);
    desc.local.outer.momentum = NUMBER(0.5, 1.0, -0.5, (double)INFINITY);
    desc.parallel.compress = ENUM(DT_COMPRESS_TOPK, DT_COMPRESS_TOPK + 1);
    desc.parallel.compress_ratio = NUMBER(0.5, -0.5, 1.5, (double)INFINITY);
    desc.parallel.batch_slices = INT(0, 2, -1);
    desc.parallel.balance = ENUM(DT_BALANCE_EQUAL, DT_BALANCE_MEASURED);
    return RESULT(made(here.graph, &desc));
}

ROW(TRAINER, dt_trainer_create, replicas) {
    dt_trainer_desc desc = wrong_trainer();
    desc.devices = TEXT("cpu:2", "cpu:5", "cpu:2,cpu:3");
    desc.parallel.batch_slices = INT(2, 1, 5);
    desc.load = wrong_saved();
    return RESULT(made(here.graph, &desc));
}

ROW(TRAINER, dt_trainer_create, model) {
    dt_trainer_desc desc = wrong_trainer();
    dt_optim_desc optim = {.kind = DT_OPTIM_SGD, .lr = AT_LEAST_0(0.1)};
    desc.optim = &optim;
    desc.loss = TENSOR(here.loss);
    desc.params = TEXT("w,b", "", "none", "table");
    desc.devices =
        TEXT("cpu", "none such", "vulkan", "cpu:0", "cpu:-1", "cpu:99999999", ",", "cpu,");
    desc.load = TEXT(NULL, "/nowhere/at/all", "/");
    return RESULT(made(here.graph, &desc));
}

/* A comm that could not be made, and one whose parent has gone. */
ROW(TRAINER, dt_trainer_create, comm) {
    dt_trainer_desc desc = wrong_trainer();
    dt_comm_desc none = {.rank = 3};
    dt_comm *parent = NULL, *failed = NULL, *group = NULL;
    CHECK(dt_comm_create(NULL, &parent) == DT_OK && dt_comm_create(&none, &failed) != DT_OK);
    CHECK(dt_comm_group_create(parent, (int[]){0}, 1, &group) == DT_OK);
    desc.comm = wrong_turn("a comm that failed", 1) ? failed : group;
    if (wrong_turn("a group without its parent", 1)) {
        dt_comm_destroy(parent);
        parent = NULL;
    }
    dt_result result = made(here.graph, &desc);
    dt_comm_destroy(group);
    dt_comm_destroy(failed);
    dt_comm_destroy(parent);
    return RESULT(result);
}

ROW(TRAINER, dt_trainer_create, data) {
    dt_trainer_desc desc = wrong_trainer();
    desc.data.rows = (uint64_t)INTEGER(8, 0, INT64_MAX, -1);
    desc.data.columns[0].input = F32(here.x);
    desc.data.columns[0].data = POINTER(wrong_x);
    desc.data.columns[0].dtype = ENUM(DT_F32, DT_U8 + 1);
    desc.data.columns[1].input = I32(here.label);
    desc.data.columns[1].dtype = INT(DT_I32, DT_F32, DT_F64, DT_I64);
    return RESULT(made(here.graph, &desc));
}

ROW(TRAINER, dt_trainer_create, bytes) {
    static uint8_t bytes[32];
    dt_trainer_desc desc = wrong_trainer();
    desc.data.columns[0] = (dt_column){.input = here.x,
                                       .data = bytes,
                                       .dtype = DT_U8,
                                       .scale = (float)FINITE(1),
                                       .offset = (float)FINITE(0)};
    return RESULT(made(here.graph, &desc));
}

ROW(TRAINER, dt_trainer_destroy, ) {
    return DOES(dt_trainer_destroy(wrong_turn("NULL", 1) ? NULL
                                   : wrong.slot < 0      ? here.trainer
                                                         : NULL));
}

ROW(TRAINER, dt_trainer_store, ) {
    return GIVES(dt_trainer_store(OBJECT(here.trainer)) != NULL);
}

ROW(TRAINER, dt_trainer_step, ) {
    return RESULT(dt_trainer_step(OBJECT(here.trainer), NULL));
}

ROW(TRAINER, dt_trainer_epoch, ) {
    return RESULT(dt_trainer_epoch(OBJECT(here.trainer), NULL));
}

ROW(TRAINER, dt_trainer_wait, ) {
    return RESULT(dt_trainer_wait(OBJECT(here.trainer), NULL));
}

ROW(TRAINER, dt_trainer_evaluate, ) {
    dt_dataset data = wrong_dataset();
    data.rows = (uint64_t)INTEGER(8, 0, INT64_MAX, -1);
    data.columns[0].input = F32(here.x);
    data.columns[0].data = POINTER(wrong_x);
    data.columns[0].dtype = ENUM(DT_F32, DT_U8 + 1);
    return RESULT(dt_trainer_evaluate(OBJECT(here.trainer), POINTER(&data), INT(0, -1), NULL));
}

ROW(TRAINER, dt_trainer_fit, ) {
    dt_fit_desc desc = {.epochs = 1}; /* which are made by the first call that is right */
    desc.watch.metric = TEXT("loss", "", "metric 1", "\xFF");
    desc.watch.patience = INT(1, -1);
    desc.watch.min_delta = AT_LEAST_0(0);
    desc.validation_batch = INT(0, -1, 1);
    desc.epochs = wrong_turn("no end", 1) ? 0 : 1;
    return RESULT(dt_trainer_fit(OBJECT(here.trainer), POINTER(&desc), NULL));
}

ROW(TRAINER, dt_history_destroy, ) {
    dt_history history = {0};
    return DOES(dt_history_destroy(POINTER(&history)));
}

ROW(TRAINER, dt_trainer_predict, ) {
    static float out[64];
    dt_dataset data = wrong_dataset();
    const size_t bytes = 8 * sizeof(float) * (size_t)dt_tensor_shape(here.logits).dim[0];
    data.columns[0].input = F32(here.x);
    data.columns[0].data = POINTER(wrong_x);
    return RESULT(dt_trainer_predict(OBJECT(here.trainer), POINTER(&data), F32(here.logits),
                                     INT(0, -1), POINTER(out), BYTES(bytes)));
}

ROW(TRAINER, dt_progress_show, ) {
    dt_progress bar = {.columns = -1};
    dt_fit_state state = {.event = DT_FIT_STEP, .trainer = here.trainer};
    return RESULT(dt_progress_show(OBJECT(&bar), OBJECT(&state)));
}

ROW(TRAINER, dt_summary, ) {
    char text[4096];
    return RESULT(dt_summary(ONLY_TENSOR(here.logits), (dt_summary_format)ENUM(DT_SUMMARY_TEXT, 2),
                             POINTER(text), sizeof text, NULL));
}

ROW(TRAINER, dt_trainer_set_input, ) {
    dt_tensor input = wrong_turn("an input of samples", 1) ? here.x : TENSOR(here.weights);
    return RESULT(dt_trainer_set_input(OBJECT(here.trainer), input, POINTER(wrong_x), BYTES(12)));
}

ROW(TRAINER, dt_trainer_report_metric, ) {
    return RESULT(dt_trainer_report_metric(OBJECT(here.trainer), 0.1));
}

ROW(TRAINER, dt_trainer_set_lr, ) {
    return RESULT(dt_trainer_set_lr(OBJECT(here.trainer), AT_LEAST_0(0.1)));
}

ROW(TRAINER, dt_trainer_set_coefficient, ) {
    return RESULT(dt_trainer_set_coefficient(OBJECT(here.trainer), INDEX(0, 1), FINITE(1)));
}

ROW(TRAINER, dt_trainer_save, ) {
    return RESULT(
        dt_trainer_save(OBJECT(here.trainer), PATH(wrong_path("wrong-args-saved.checkpoint"))));
}

ROW(TRAINER, dt_trainer_load, ) {
    return RESULT(dt_trainer_load(OBJECT(here.trainer), PATH(wrong_saved())));
}

ROW(TRAINER, dt_trainer_checkpoint, ) {
    dt_trainer *trainer = OBJECT(here.trainer), *without = NULL;
    if (wrong_turn(".checkpoint.folder is not set", 1)) {
        dt_trainer_desc desc = wrong_trainer();
        dt_trainer_create(here.graph, &desc, &without);
        trainer = without;
    }
    dt_result result = dt_trainer_checkpoint(trainer);
    dt_trainer_destroy(without);
    return RESULT(result);
}

ROW(TRAINER, dt_trainer_resume, ) {
    dt_trainer *trainer = OBJECT(here.trainer), *without = NULL;
    if (wrong_turn(".checkpoint.folder is not set", 1)) {
        dt_trainer_desc desc = wrong_trainer();
        dt_trainer_create(here.graph, &desc, &without);
        trainer = without;
    }
    dt_result result = dt_trainer_resume(trainer, NULL);
    dt_trainer_destroy(without);
    return RESULT(result);
}

ROW(TRAINER, dt_trainer_request_checkpoint, ) {
    return DOES(dt_trainer_request_checkpoint(OBJECT(here.trainer)));
}

ROW(TRAINER, dt_trainer_get_info, ) {
    dt_trainer_info info = {.batch = 1}, *given;
    dt_trainer_get_info(OBJECT(here.trainer), given = POINTER(&info));
    return GIVES(given && info.batch != 0); /* all 0 for NULL */
}

/* ---- Comms: how they are made */

ROW(COMM, dt_comm_desc_from_env, ) {
    return GIVES(dt_comm_desc_from_env().world_size >= 0);
}

static dt_result joined(const dt_comm_desc *desc) {
    dt_comm *comm = NULL;
    dt_result result = dt_comm_create(desc, &comm);
    CHECK(!result || dt_comm_error(comm)[0]);
    dt_comm_destroy(comm);
    return result;
}

ROW(COMM, dt_comm_create, ) {
    dt_comm *comm = NULL;
    dt_comm_desc desc = {.allocator = wrong_allocator(&here), .logger = wrong_logger(&here)};
    dt_result result = dt_comm_create(&desc, POINTER(&comm));
    dt_comm_destroy(comm);
    return RESULT(result);
}

ROW(COMM, dt_comm_create, numbers) {
    dt_comm_desc desc = {.rank = INDEX(0, 1),
                         .world_size = INT(1, -1, 2, INT_MAX),
                         .local_rank = INT(0, -1, INT_MAX),
                         .local_size = INT(1, -1, INT_MAX),
                         .transport = ENUM(DT_COMM_TCP, DT_COMM_MPI + 1),
                         .integrity = ENUM(DT_COMM_CRC, DT_COMM_UNCHECKED + 1),
                         .shared_memory = ENUM(DT_COMM_SHARED_DEFAULT, DT_COMM_SHARED_REQUIRED + 1),
                         .port_low = INT(0, -1, 65536, INT_MAX),
                         .port_high = INT(0, -1, 65536, INT_MAX),
                         .sockets = INT(1, -1, 17, INT_MAX),
                         .chunk_bytes = INT(4096, -1, 1, INT_MAX),
                         .window = INT(1, -1, 65, INT_MAX),
                         .link = {.latency_ns = (uint64_t)INTEGER(1, 0, -1, INT64_MAX),
                                  .message_ns = (uint64_t)INTEGER(0, -1, INT64_MAX),
                                  .bytes_per_s = (uint64_t)INTEGER(1000, 0, 1, -1)},
                         .join_timeout_ms = INT(0, -1),
                         .silence_ms = INT(0, -1),
                         .op_timeout_ms = INT(0, -1)};
    desc.allocator = wrong_allocator(&here);
    desc.logger = wrong_logger(&here);
    return RESULT(joined(&desc));
}

/* Where two ranks would meet, and what they would prove; at last there is one rank. */
ROW(COMM, dt_comm_create, rendezvous_and_key) {
    static const char key[] = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    dt_comm_desc desc = {.world_size = 2, .rank = 1, .join_timeout_ms = 20, .silence_ms = 20};
    desc.allocator = wrong_allocator(&here);
    desc.logger = wrong_logger(&here);
    const char *where = TEXT("tcp://127.0.0.1:1", "", "tcp://", "tcp://127.0.0.1", "tcp://:1",
                             "tcp://127.0.0.1:", "tcp://127.0.0.1:0", "tcp://127.0.0.1:65536",
                             "tcp://127.0.0.1:-1", "http://127.0.0.1:1", "file://", "file:///",
                             "file:///nowhere/at/all", "tcp://[::1:1", "127.0.0.1:1");
    const char *secret = TEXT(key, "", "0123", "not hexadecimal at all, and not of 64 digits");
    const char *file = TEXT("", "/", "/nowhere/at/all", "/dev/null");
    if (wrong.slot < 0)
        desc.world_size = 1, desc.rank = 0;
    snprintf(desc.rendezvous, sizeof desc.rendezvous, "%s", where);
    if (!file[0])
        snprintf(desc.key, sizeof desc.key, "%s", secret);
    snprintf(desc.key_file, sizeof desc.key_file, "%s", file);
    return RESULT(joined(&desc));
}

#define UNENDED(field)                                                                             \
    ROW(COMM, dt_comm_create, field) {                                                             \
        dt_comm_desc desc = {.logger = wrong_logger(&here)};                                       \
        if (wrong_turn("a text without an end", 1))                                                \
            memset(desc.field, 'a', sizeof desc.field);                                            \
        return RESULT(joined(&desc));                                                              \
    }
UNENDED(rendezvous)
UNENDED(job)
UNENDED(key)
UNENDED(key_file)
UNENDED(tls_ca)
UNENDED(tls_certificate)
UNENDED(tls_private_key)
UNENDED(tls_name)
UNENDED(interfaces)
UNENDED(congestion)
UNENDED(launcher)
UNENDED(warning)
UNENDED(error)

ROW(COMM, dt_comm_create_threads, ) {
    dt_comm *comms[2] = {0};
    dt_comm_desc desc = {.logger = wrong_logger(&here), .op_timeout_ms = INT(0, -1)};
    desc.allocator = wrong_allocator(&here);
    if (wrong_turn("alloc without free", 1))
        desc.allocator.free = NULL;
    dt_result result = dt_comm_create_threads(&desc, INT(2, 0, -1, 1025, INT_MAX), POINTER(comms));
    dt_comm_destroy(comms[0]);
    dt_comm_destroy(comms[1]);
    return RESULT(result);
}

ROW(COMM, dt_comm_destroy, ) {
    dt_comm *comm = NULL, *given;
    dt_comm_create(NULL, &comm);
    dt_comm_destroy(given = OBJECT(comm));
    if (!given)
        dt_comm_destroy(comm);
    return NOTHING;
}

ROW(COMM, dt_comm_error, ) {
    return GIVES(dt_comm_error(OBJECT(here.comm))[0] == 0);
}

ROW(COMM, dt_comm_rank, ) {
    return GIVES(dt_comm_rank(OBJECT(here.pair[1])) == 1);
}

ROW(COMM, dt_comm_size, ) {
    return GIVES(dt_comm_size(OBJECT(here.comm)) == 1);
}

ROW(COMM, dt_comm_get_info, ) {
    dt_comm_info info = {.host_bytes = 1}, *given;
    dt_comm_get_info(OBJECT(here.comm), given = POINTER(&info));
    return GIVES(given && info.host_bytes != 0); /* all 0 for NULL */
}

ROW(COMM, dt_comm_group_create, ) {
    dt_comm *group = NULL;
    int ranks[1] = {INDEX(0, 1)};
    dt_result result =
        dt_comm_group_create(OBJECT(here.comm), POINTER(ranks), INT(1, 0, -1, 2), POINTER(&group));
    dt_comm_destroy(group);
    return RESULT(result);
}

ROW(COMM, dt_comm_set_leaves, ) {
    return RESULT(dt_comm_set_leaves(OBJECT(here.comm), (uint32_t)INTEGER(0, 1, UINT32_MAX),
                                     (uint32_t)INTEGER(4, 0, 3, UINT32_MAX),
                                     (uint32_t)INTEGER(4, 0, 5, UINT32_MAX), NULL, NULL));
}

/* ---- Operations */

static float sent[8], received[8];

#define TOO_MANY (INT64_MAX / 2)
#define FLOATS (uint64_t) INTEGER(4, TOO_MANY, -1)
#define DTYPE ENUM(DT_F32, DT_U8 + 1)
#define REDUCTION ENUM(DT_COMM_SUM, DT_COMM_PRODUCT + 1)

static dt_comm_op wrong_op(void) {
    return (dt_comm_op){.kind = ENUM(DT_COMM_REDUCE, DT_COMM_BARRIER + 1),
                        .in = POINTER(sent),
                        .out = POINTER(received),
                        .count = FLOATS,
                        .dtype = DTYPE,
                        .reduction = REDUCTION,
                        .root = INDEX(0, 1),
                        .algorithm = ENUM(DT_COMM_ALGORITHM_DEFAULT, 7),
                        .tree = wrong_turn("a tree without leaves", 1)};
}

ROW(COMM, dt_comm_run, ) {
    dt_comm_op op = wrong_op();
    return RESULT(dt_comm_run(OBJECT(here.comm), POINTER(&op)));
}

ROW(COMM, dt_comm_begin, ) {
    dt_comm_work work = {0};
    dt_comm_op op = wrong_op();
    dt_result result = dt_comm_begin(OBJECT(here.comm), POINTER(&op), POINTER(&work));
    return result ? RESULT(result) : RESULT(dt_comm_wait(here.comm, work, -1));
}

static dt_comm_work begun(void) {
    dt_comm_work work = {0};
    dt_comm_op op = {.kind = DT_COMM_BARRIER};
    dt_comm_begin(here.comm, &op, &work);
    return work;
}

ROW(COMM, dt_comm_test, ) {
    bool finished;
    dt_comm_work work = begun();
    dt_result result = dt_comm_test(OBJECT(here.comm), WORK(work), POINTER(&finished));
    dt_comm_wait(here.comm, work, -1);
    return RESULT(result);
}

ROW(COMM, dt_comm_wait, ) {
    dt_comm_work work = begun();
    dt_result result = dt_comm_wait(OBJECT(here.comm), WORK(work), INT(-1, -2));
    dt_comm_wait(here.comm, work, -1);
    return RESULT(result);
}

ROW(COMM, dt_comm_wait, again) {
    dt_comm_work work = begun();
    if (wrong_turn("a handle that has ended", 1))
        dt_comm_wait(here.comm, work, -1);
    return RESULT(dt_comm_wait(here.comm, work, -1));
}

ROW(COMM, dt_comm_cancel, ) {
    dt_comm_work work = begun();
    dt_result result = dt_comm_cancel(OBJECT(here.comm), WORK(work));
    dt_comm_wait(here.comm, work, -1);
    return RESULT(result);
}

/* Of two ranks on one thread: the other one posts its part when nothing is wrong. */
#define PAIR(name, peer_kind, buffer)                                                              \
    ROW(COMM, dt_comm_##name, ) {                                                                  \
        dt_comm *comm = OBJECT(here.pair[0]);                                                      \
        void *data = POINTER(buffer);                                                              \
        uint64_t count = FLOATS;                                                                   \
        dt_dtype dtype = DTYPE;                                                                    \
        int rank = INT(1, -1, 0, 2, INT_MAX);                                                      \
        dt_comm_work work = {0};                                                                   \
        dt_comm_op op = {.kind = peer_kind, .in = sent, .out = received, .count = 4};              \
        bool right = !wrong.variants;                                                              \
        if (right && dt_comm_begin(here.pair[1], &op, &work))                                      \
            return REFUSED;                                                                        \
        dt_result result = dt_comm_##name(comm, data, count, dtype, rank);                         \
        if (right)                                                                                 \
            result ? dt_comm_cancel(here.pair[1], work) : dt_comm_wait(here.pair[1], work, -1);    \
        return RESULT(result);                                                                     \
    }
PAIR(send, DT_COMM_RECV, sent)
PAIR(recv, DT_COMM_SEND, received)

ROW(COMM, dt_comm_broadcast, ) {
    int root = INDEX(0, 1);
    return RESULT(dt_comm_broadcast(OBJECT(here.comm), POINTER(sent), FLOATS, DTYPE, root));
}

ROW(COMM, dt_comm_reduce, ) {
    return RESULT(dt_comm_reduce(OBJECT(here.comm), POINTER(sent), POINTER(received), FLOATS, DTYPE,
                                 REDUCTION, INDEX(0, 1)));
}

ROW(COMM, dt_comm_all_reduce, ) {
    return RESULT(dt_comm_all_reduce(OBJECT(here.comm), POINTER(sent), POINTER(received), FLOATS,
                                     DTYPE, REDUCTION));
}

ROW(COMM, dt_comm_gather, ) {
    return RESULT(dt_comm_gather(OBJECT(here.comm), POINTER(sent), POINTER(received), FLOATS, DTYPE,
                                 INDEX(0, 1)));
}

ROW(COMM, dt_comm_all_gather, ) {
    return RESULT(
        dt_comm_all_gather(OBJECT(here.comm), POINTER(sent), POINTER(received), FLOATS, DTYPE));
}

ROW(COMM, dt_comm_scatter, ) {
    return RESULT(dt_comm_scatter(OBJECT(here.comm), POINTER(sent), POINTER(received), FLOATS,
                                  DTYPE, INDEX(0, 1)));
}

ROW(COMM, dt_comm_reduce_scatter, ) {
    return RESULT(dt_comm_reduce_scatter(OBJECT(here.comm), POINTER(sent), POINTER(received),
                                         FLOATS, DTYPE, REDUCTION));
}

ROW(COMM, dt_comm_all_to_all, ) {
    return RESULT(
        dt_comm_all_to_all(OBJECT(here.comm), POINTER(sent), POINTER(received), FLOATS, DTYPE));
}

ROW(COMM, dt_comm_barrier, ) {
    return RESULT(dt_comm_barrier(OBJECT(here.comm)));
}
