/* Rows of wrong_args.h: parameter servers, and workers that find none. */
#include "wrong/wrong_args.h"

static const dt_comm_desc nobody = {.insecure = true};

static dt_server_desc wrong_server(void) {
    dt_server_desc desc = {.trainer = wrong_trainer(), .security = &nobody, .max_workers = 2};
    desc.trainer.parallel.batch_slices = 2;
    return desc;
}

static dt_server *wrong_serving(void) {
    dt_server *server = NULL;
    const dt_server_desc desc = wrong_server();
    dt_server_create(here.graph, &desc, &server);
    return server;
}

ROW(TRAINER, dt_server_create, ) {
    dt_server *server = NULL;
    dt_server_desc desc = wrong_server();
    dt_result result = dt_server_create(OBJECT(here.graph), POINTER(&desc), POINTER(&server));
    dt_server_destroy(server);
    return RESULT(result);
}

ROW(TRAINER, dt_server_create, numbers) {
    dt_server *server = NULL;
    dt_server_desc desc = wrong_server();
    desc.staleness = INT(1, -1, 63, INT_MAX);
    desc.max_workers = INT(2, -1, 65536, INT_MAX);
    desc.reassign_ms = INT(-1, -2, INT_MIN);
    desc.index = INT(0, -1, 1, INT_MAX);
    desc.servers = INT(1, -1, 65, INT_MAX);
    desc.trainer.parallel.batch_slices = INT(2, -1, 5, INT_MAX);
    desc.trainer.mode = ENUM(DT_TRAIN_SYNCHRONOUS, DT_TRAIN_SERVER + 1);
    desc.trainer.parallel.zero_stage = INT(0, 1, -1);
    desc.trainer.parallel.pipeline = INT(0, 2, -1);
    dt_result result = dt_server_create(here.graph, &desc, &server);
    dt_server_destroy(server);
    return RESULT(result);
}

ROW(TRAINER, dt_server_create, addresses) {
    dt_server *server = NULL;
    dt_server_desc desc = wrong_server();
    desc.listen = TEXT("127.0.0.1:0", "", "127.0.0.1", "127.0.0.1:", ":0", "127.0.0.1:65536",
                       "nowhere.invalid:0", "192.0.2.1:0");
    desc.trainer.devices = TEXT("cpu", "cpu:2", "vulkan", "none such");
    desc.security = wrong_turn("no key", 1) ? NULL : &nobody;
    dt_result result = dt_server_create(here.graph, &desc, &server);
    dt_server_destroy(server);
    return RESULT(result);
}

ROW(TRAINER, dt_server_destroy, ) {
    dt_server *server = wrong_serving();
    if (wrong_turn("NULL", 1)) {
        dt_server_destroy(server);
        return DOES(dt_server_destroy(NULL));
    }
    return DOES(dt_server_destroy(server));
}

ROW(TRAINER, dt_server_trainer, ) {
    dt_server *server = wrong_serving();
    const bool gives = dt_server_trainer(OBJECT(server)) != NULL;
    dt_server_destroy(server);
    return GIVES(gives);
}

ROW(TRAINER, dt_server_run, ) {
    dt_server *server = wrong_serving();
    const dt_result result = dt_server_run(OBJECT(server), INT(0, -2, INT_MIN));
    dt_server_destroy(server);
    return RESULT(result);
}

ROW(TRAINER, dt_server_stop, ) {
    dt_server *server = wrong_serving();
    dt_server_stop(OBJECT(server));
    dt_server_destroy(server);
    return DOES((void)0);
}

ROW(TRAINER, dt_server_get_info, ) {
    dt_server_info info = {.port = 1}, *given;
    dt_server *server = wrong_serving();
    dt_server_get_info(OBJECT(server), given = POINTER(&info));
    dt_server_destroy(server);
    return GIVES(given && info.port != 0); /* all 0 for NULL */
}
