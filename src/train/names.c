/* The names of a report's numbers, for the bar, logs, histories and .watch. Number 0 is the loss;
 * then come metrics, and the terms of a loss that has several. */

static dt_tensor dti_value_tensor(const dt_trainer *t, int value) {
    const dt_trainer_desc *d = &t->desc;
    return value <= DT_MAX_TERMS ? d->metrics[value - 1] : d->losses[value - DTI_VALUE_TERM].term;
}

/* "accuracy", and of a second one "accuracy 2". */
static const char *dti_value_op(const dt_trainer *t, int value, dti_value_room *room) {
    const uint32_t op = dti_node_of(dti_value_tensor(t, value))->op;
    int number = 1;
    for (int i = 1; i < value; i++)
        number += dti_node_of(dti_value_tensor(t, i))->op == op;
    snprintf(room->text, sizeof room->text, number > 1 ? "%s %d" : "%s", dti_op_info_of(op)->name,
             number);
    return room->text;
}

/* A term that is a metric too has its name there. */
static bool dti_value_shown(const dt_trainer *t, int value) {
    const dt_trainer_desc *d = &t->desc;
    const dt_tensor x = dti_value_tensor(t, value);
    bool shown = dti_is_set(x) && (value <= DT_MAX_TERMS || dti_is_set(d->losses[1].term));
    for (int i = 0; i < DT_MAX_TERMS && value > DT_MAX_TERMS; i++)
        shown = shown && d->metrics[i].id != x.id;
    return shown;
}

static const char *dti_value_name(const dt_trainer *t, int value, dti_value_room *room) {
    if (!value)
        return "loss";
    if (!dti_value_shown(t, value))
        return NULL;
    const char *label = dti_node_of(dti_value_tensor(t, value))->label;
    return label || value > DT_MAX_TERMS ? label : dti_value_op(t, value, room);
}

static double dti_value_of(const dt_train_report *r, int value) {
    const int term = value - DTI_VALUE_TERM;
    return !value     ? r->loss
           : term < 0 ? r->metric[value - 1]
                      : dti_term_value(r->loss_sum[term], r->loss_weight[term]);
}

static int dti_value_find(const dt_trainer *t, const char *name) {
    for (int i = 0; i < DTI_VALUES; i++) {
        dti_value_room room;
        const char *own = dti_value_name(t, i, &room);
        if (own && !strcmp(own, name ? name : "loss"))
            return i;
    }
    return -1;
}

/* INVALID: two numbers of one name, of which only one would be in a log. */
static dt_result dti_values_check(const dt_trainer *t) {
    static const char *const own[] = {"gradient_norm", "samples_per_second", "lr"};
    for (int i = 1; i < DTI_VALUES; i++) {
        dti_value_room room;
        const char *name = dti_value_name(t, i, &room);
        const int first = name ? dti_value_find(t, name) : i;
        bool theirs = !first;
        for (size_t k = 0; k < DTI_COUNT(own) && name; k++)
            theirs = theirs || !strcmp(name, own[k]);
        if (theirs || first != i)
            return dti_fail(
                t->base, DT_ERROR_INVALID,
                theirs ? "'%s' is a name that logs use themselves; give the metric or loss another "
                         "dt_label"
                       : "two metrics or losses are named '%s'; give one of them another dt_label",
                name);
    }
    return DT_OK;
}
