/* Executes a device's list. An asynchronous device gets actions ahead of time, up to the next one
 * that must wait for an earlier one. */

/* ---- waiting */

/* Until a counter has got there; false: another device failed. */
static bool dti_await(dti_parallel *par, uint32_t index, _Atomic uint32_t *counter,
                      uint32_t there) {
    const dti_action_calls *calls = par->strategy->calls;
    while (atomic_load(counter) < there) {
        if (calls->failed(par))
            return false;
        calls->help(par, index, NULL);
        if (atomic_load(counter) < there)
            dti_thread_yield();
    }
    return true;
}

static dt_result dti_meet_all(dti_parallel *par, const dti_device_meet *m, bool *given_up) {
    const bool all = m->makes || !m->make;
    atomic_fetch_add(m->arrived, m->brings);
    *given_up = all ? !dti_await(par, m->index, m->arrived, (m->met + 1) * m->here)
                    : !dti_await(par, m->index, m->made, m->met + 1);
    if (*given_up || !m->makes || !m->make)
        return DT_OK;
    const dt_result result = m->make(par, m->of, given_up);
    atomic_fetch_add(m->made, result || *given_up ? 0 : 1);
    return result;
}

static bool dti_list_may(const dti_parallel *par, const dti_list *list, const dti_action *a) {
    bool may = true;
    for (uint32_t i = a->need; i < a->need + a->need_count && may; i++)
        may = atomic_load(&par->counters[list->needs[i].counter]) >= list->needs[i].value;
    return may;
}

/* Until its needs are met; false: another device failed. */
static bool dti_list_await(dti_parallel *par, uint32_t index, dti_list_walk *walk,
                           const dti_action *a) {
    const dti_action_calls *calls = par->strategy->calls;
    bool may = dti_list_may(par, walk->list, a);
    if (may)
        return true;
    const uint64_t start = dti_now_ns();
    while (!may && !calls->failed(par)) {
        calls->help(par, index, a);
        may = dti_list_may(par, walk->list, a);
        if (!may)
            dti_thread_yield();
    }
    const uint64_t waited = dti_now_ns() - start;
    walk->waited += waited;
    walk->since += waited;
    return may;
}

/* ---- an action */

/* Times of the first device here. */
static void dti_list_clock(dti_parallel *par, uint32_t index, dti_list_walk *walk,
                           const dti_action *a) {
    if (index || !a->ends)
        return;
    const uint64_t now = dti_now_ns();
    *(a->ends == DTI_ENDS_FORWARD ? &par->now->times.forward : &par->now->times.backward) +=
        now - walk->since;
    walk->since = now;
}

/* So that tests can make any action fail. */
#ifndef DTI_ACTION_FAULT
#define DTI_ACTION_FAULT(par, index, at) DT_OK
#endif

/* Whether devices get actions ahead of time. */
static bool dti_list_is_ahead(const dti_parallel *par) {
    return par->strategy->calls->reach && !par->searches;
}

static dt_result dti_list_act(dti_parallel *par, uint32_t index, dti_list_walk *walk,
                              const dti_action *a) {
    const dti_action_calls *calls = par->strategy->calls;
    dt_result result = DTI_ACTION_FAULT(par, index, walk->at);
    if (!result)
        result = (par->searches ? dti_search_act : calls->act)(par, index, a);
    dti_list_clock(par, index, walk, a);
    if (result || walk->given_up)
        return result;
    if (a->raises)
        atomic_fetch_add(&par->counters[a->raises - 1], 1);
    if (a->raises || (!dti_list_is_ahead(par) && a->ends))
        calls->help(par, index, NULL); /* its outputs, or the slots that it freed, may go to other
                                          ranks now */
    return DT_OK;
}

static dt_result dti_list_run(dti_parallel *par, uint32_t index, uint32_t end) {
    const dti_action_calls *calls = par->strategy->calls;
    dti_list_walk *walk = calls->walk(par, index);
    const dti_list *list = walk->list;
    const bool ahead = dti_list_is_ahead(par);
    dt_result result = DT_OK;
    walk->since = dti_now_ns();
    for (; walk->at < end && !result && !walk->given_up; walk->at++) {
        const dti_action *a = &list->actions[walk->at];
        if (a->after && ahead)
            result = calls->reach(par, index, a->after);
        walk->given_up =
            !result && ((!ahead && calls->failed(par)) || !dti_list_await(par, index, walk, a));
        if (!result && !walk->given_up)
            result = dti_list_act(par, index, walk, a);
    }
    if (result || walk->given_up || end < list->count || !ahead)
        return result;
    return calls->reach(par, index, end);
}
