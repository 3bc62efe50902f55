/* The name that a find did not have, and the nearest one (dti_sought). */

static int dti_sought_none(dti_base *base, const char *find, const char *name) {
    dti_sought *s = &base->sought;
    char one[sizeof(dti_shown) + 4];
    if (!name)
        return -1;
    snprintf(one, sizeof one, "'%s'", dti_show(name).text);
    size_t used = s->find && !strcmp(s->find, find) ? strlen(s->names) : 0;
    s->find = find;
    snprintf(s->last, sizeof s->last, "%s", name);
    if (!used || !strstr(s->names, one)) {
        if (used + strlen(one) + 3 > sizeof s->names)
            used = 0;
        snprintf(s->names + used, sizeof s->names - used, used ? ", %s" : "%s", one);
    }
    return -1;
}

/* Levenshtein's distance of the first 63 bytes. */
static uint32_t dti_name_distance(const char *a, const char *b) {
    uint32_t row[64];
    const uint32_t size = (uint32_t)DTI_MIN(strlen(b), 63u);
    for (uint32_t k = 0; k <= size; k++)
        row[k] = k;
    for (uint32_t i = 0; i < 63 && a[i]; i++) {
        uint32_t corner = row[0];
        row[0] = i + 1;
        for (uint32_t k = 1; k <= size; k++) {
            const uint32_t changed = corner + (a[i] != b[k - 1]);
            corner = row[k];
            row[k] = DTI_MIN(changed, DTI_MIN(row[k], row[k - 1]) + 1);
        }
    }
    return row[size];
}

static void dti_hint_add(dti_hint *hint, const char *format, const char *text) {
    const size_t used = strlen(hint->text);
    snprintf(hint->text + used, sizeof hint->text - used, format, text);
}

/* The nearest of those that are near, and all names while there is room. */
static void dti_hint_names(dti_hint *hint, const char *last, const void *object, uint32_t count,
                           dti_name_fn *name) {
    uint32_t least = 2 + (uint32_t)strlen(last) / 3;
    const char *nearest = NULL, *begin = "; there are '%s'";
    for (uint32_t i = 0; i < count; i++) {
        if (!name(object, i))
            continue;
        const uint32_t distance = dti_name_distance(last, name(object, i));
        nearest = distance < least ? name(object, i) : nearest;
        least = DTI_MIN(least, distance);
    }
    if (nearest)
        dti_hint_add(hint, "; did you mean '%s'?", dti_show(nearest).text);
    for (uint32_t i = 0; i < count; i++) {
        const bool room = strlen(hint->text) + sizeof(dti_shown) + 8 < sizeof hint->text;
        if (!name(object, i))
            continue;
        dti_hint_add(hint, room ? begin : ", ...", dti_show(name(object, i)).text);
        if (!room)
            return;
        begin = ", '%s'";
    }
}

static dti_hint dti_glob_missed(const char *list, const char *what, const void *object,
                                uint32_t count, dti_name_fn *name) {
    dti_hint hint = {""};
    const char *pattern = "", *end = pattern;
    bool matches = !list;
    while ((matches || end == pattern) && dti_glob_next(&list, &pattern, &end)) {
        if (end == pattern)
            continue;
        matches = false;
        for (uint32_t i = 0; i < count && !matches; i++)
            matches = name(object, i) && dti_glob_one(pattern, end, name(object, i));
    }
    if (!matches) {
        char one[64];
        snprintf(one, sizeof one, "%.*s", (int)DTI_MIN(end - pattern, 63), pattern);
        dti_hint_add(&hint, "\"%s\" matches the name of no ", one);
        dti_hint_add(&hint, "%s", what);
        dti_hint_names(&hint, one, object, count, name);
    }
    return hint;
}

static dti_hint dti_sought_hint(dti_base *base, const char *find, int index, const void *object,
                                uint32_t count, dti_name_fn *name) {
    dti_sought *s = &base->sought;
    dti_hint hint = {""};
    if (index == -1 && s->find && !strcmp(s->find, find)) {
        dti_hint_add(&hint, "; %s did not find ", find);
        dti_hint_add(&hint, "%s", s->names);
        dti_hint_names(&hint, s->last, object, count, name);
    }
    return hint;
}
