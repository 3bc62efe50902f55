/* Traces: valid JSON whose launches are those of the program, within their step. A step without a
 * trace has the same bits; the reports of a fit. */
#include "train/train_model.h"

#include <unistd.h>

#define PROFILE_TRY(m, call)                                                                       \
    test_check((call) == DT_OK, __FILE__, __LINE__, "%s: %s", #call, dt_ctx_error((m)->ctx))

/* Looks at a file; `checks`: of the events e, by the thread of a device s. */
static void profile_check(const char *path, const char *checks) {
    char command[2000];
    snprintf(command, sizeof command,
             "python3 -c \"import json\n"
             "t = json.load(open('%s'))['traceEvents']\n"
             "e = [x for x in t if x['ph'] == 'X']\n"
             "assert all(x['dur'] >= 0 and x['ts'] >= 0 and x['pid'] == 3 for x in e)\n"
             "assert any(x['ph'] == 'M' and x['args']['name'] == 'rank 3' for x in t)\n"
             "s = [x for x in e if x['cat'] == 'step']\n"
             "w = [x for x in e if x['cat'] in ('forward', 'backward', 'commit', 'part')]\n"
             "%s\"",
             path, checks);
    CHECK(system(command) == 0);
    remove(path);
}

static dt_program *profile_program(train_model *m, const char *device, dt_store **store) {
    dt_program *p = NULL;
    dt_program_desc d = {.loss = m->loss, .batch = 8, .optim = &m->adam};
    if (dt_store_create(m->graph, &(dt_store_desc){.device = device, .seed = 5}, store))
        return NULL;
    PROFILE_TRY(m, dt_program_create(*store, &d, &p));
    PROFILE_TRY(m,
                dt_program_write(p, m->x, m->data.x, sizeof(float) * 8 * TRAIN_SIDE * TRAIN_SIDE));
    PROFILE_TRY(m, dt_program_write(p, m->t, m->data.t, sizeof(int32_t) * 8));
    return p;
}

static bool profile_of(const char *device) {
    train_model m;
    dt_profile *profile = NULL;
    dt_program_info info;
    dt_report report;
    dt_store *store[2];
    uint64_t hash[2];
    char checks[600];
    if (!train_model_make(&m, NULL, 0))
        return false;
    dt_program *p = profile_program(&m, device, &store[0]);
    if (!p) {
        dt_ctx_destroy(m.ctx);
        return false;
    }
    dt_program *plain = profile_program(&m, device, &store[1]);
    PROFILE_TRY(&m, dt_profile_create(m.ctx, &(dt_profile_desc){.rank = 3}, &profile));
    for (int i = 0; i < 2; i++) {
        PROFILE_TRY(&m, dt_profile_run(profile, p, NULL, &report));
        PROFILE_TRY(&m, dt_program_run(plain, NULL, NULL));
    }
    CHECK(report.step == 2 && report.loss > 0);
    for (int i = 0; i < 2; i++)
        CHECK(dt_store_state_hash(store[i], &hash[i]) == DT_OK);
    CHECK(hash[0] == hash[1]);
    PROFILE_TRY(&m, dt_profile_save(profile, "build/trace-step.json"));
    dt_program_get_info(p, &info);
    snprintf(
        checks, sizeof checks,
        "assert [x['args']['step'] for x in s] == [1, 2]\n"
        "n = {x['args'].get('launch') for x in w}\n"
        "assert n == {None} or n == set(range(min(n), max(n) + 1)), n\n"
        "assert n == {None} or abs(len(n) - %d) < 3, n\n"
        "for x in w:\n"
        "    k = s[x['ts'] >= s[1]['ts']]\n"
        "    assert x['ts'] >= k['ts'] and x['ts'] + x['dur'] <= k['ts'] + k['dur'] + 1000\n"
        "c = {x['cat'] for x in w}\n"
        "assert c == {'forward', 'backward', 'commit'} or c == {'part'}, c\n"
        "assert n == {None} or any(x['args']['bytes'] > 0 and x['args']['flops'] > 0 for x in w)",
        info.launches);
    profile_check("build/trace-step.json", checks);
    dt_profile_destroy(profile);
    dt_ctx_destroy(m.ctx);
    return true;
}

TEST(profile_of_a_step_has_each_launch_and_its_bits) {
    if (system("python3 -c pass") != 0)
        SKIP("there is no python3");
    CHECK(profile_of("cpu"));
    profile_of("vulkan"); /* where there is one */
}

TEST(profile_of_a_fit_has_its_first_steps) {
    train_model m;
    dt_profile *profile = NULL;
    dt_trainer *trainer = NULL;
    if (system("python3 -c pass") != 0)
        SKIP("there is no python3");
    REQUIRE(train_model_make(&m, &(dt_ctx_desc){.no_vulkan = true}, 0));
    dt_trainer_desc d = train_desc(&m);
    d.devices = "cpu:2";
    PROFILE_TRY(&m, dt_trainer_create(m.graph, &d, &trainer));
    const dt_profile_desc desc = {.rank = 3, .steps = 7};
    PROFILE_TRY(&m, dt_profile_create(m.ctx, &desc, &profile));
    const dt_fit_desc fit = {.epochs = 2, .callbacks = {{dt_profile_fit, profile}}};
    PROFILE_TRY(&m, dt_trainer_fit(trainer, &fit, NULL));
    PROFILE_TRY(&m, dt_profile_save(profile, "build/trace-fit.json"));
    profile_check("build/trace-fit.json",
                  "k = [x for x in e if x['name'] == 'step']\n"
                  "assert [x['args']['step'] for x in k] == list(range(1, 8))\n"
                  "assert all(x['args']['samples'] > 0 for x in k) and len(e) > 7\n"
                  "for n in ['forward', 'backward', 'commit']:\n"
                  "    assert sum(x['name'] == n for x in e) == 7, n");
    dt_profile_destroy(profile);
    dt_ctx_destroy(m.ctx);
}
