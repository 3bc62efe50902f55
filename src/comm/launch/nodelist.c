/* Host lists as Slurm writes them: "n1,n[01-03,7,010-012],rack[1-2]node[1,5]". A comma outside
 * brackets separates names; a bracket group is a list of numbers, ranges of numbers (a number is as
 * wide as the first of its range, by zeros), letters, ranges of letters or words; a name may have
 * several groups, and the last one turns fastest. This file counts the names and gives one of them.
 * Nothing is expanded, so a list of 2^60 names costs no more than one name. It refuses malformed
 * lists (empty names and groups, nested brackets, descending ranges) and lists of more than 2^63 -
 * 1 names. The input may be anything; each call reads it a fixed number of times. */

#define DTI_NODELIST_MAX INT64_MAX

typedef struct dti_nodelist_item { /* of a bracket group */
    const char *text;              /* as written, for a single one */
    size_t width;
    uint64_t first, count; /* count 1: `text` itself */
    bool letters;
} dti_nodelist_item;

/* Locale-free: <ctype.h> asks the host's locale. */
static bool dti_is_digit(char c) {
    return c >= '0' && c <= '9';
}

static bool dti_is_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static bool dti_is_host_char(char c) {
    return dti_is_digit(c) || dti_is_letter(c) || c == '-' || c == '_' || c == '.';
}

/* The whole number at *at, which moves to after its digits. False: not a number, or one above
 * `most`. */
static bool dti_digits(const char **at, uint64_t most, uint64_t *value) {
    const char *first = *at;
    for (*value = 0; dti_is_digit(**at); ++*at) {
        const uint64_t digit = (uint64_t)(**at - '0');
        if (digit > most || *value > (most - digit) / 10)
            return false;
        *value = *value * 10 + digit;
    }
    return *at > first;
}

/* The same of a whole text of at most `digits` digits. */
static bool dti_digits_of(const char *text, size_t size, size_t digits, uint64_t most,
                          uint64_t *value) {
    const char *end = text + size;
    return size <= digits && dti_digits(&text, most, value) && text == end;
}

/* Reads the item at *at and moves after it: to ',' or ']'. */
static bool dti_nodelist_item_read(const char **at, dti_nodelist_item *item) {
    const char *first = *at, *end = first;
    while (dti_is_digit(*end) || dti_is_letter(*end))
        end++;
    *item = (dti_nodelist_item){.text = first, .width = (size_t)(end - first), .count = 1};
    *at = end;
    if (item->width == 0 || *end != '-')
        return item->width > 0;
    const char *last = end + 1;
    for (end = last; dti_is_digit(*end) || dti_is_letter(*end);)
        end++;
    *at = end;
    uint64_t to;
    item->letters = item->width == 1 && end - last == 1 && dti_is_letter(*first);
    if (item->letters) {
        item->first = (unsigned char)*first;
        to = (unsigned char)*last;
        if (!dti_is_letter(*last) || (to ^ item->first) & 0x20) /* "Z-a" is not a range */
            return false;
    } else if (!dti_digits_of(first, item->width, 18, UINT64_MAX, &item->first) ||
               !dti_digits_of(last, (size_t)(end - last), 18, UINT64_MAX, &to)) {
        return false;
    }
    item->count = to - item->first + 1;
    return to >= item->first;
}

/* Counts the group at *at, which is at its '[', and moves after its ']'. With `out`, also gives the
 * item that has the index-th name, and makes *index the place in it. */
static bool dti_nodelist_group(const char **at, uint64_t *count, uint64_t *index,
                               dti_nodelist_item *out) {
    *count = 0;
    do {
        dti_nodelist_item item;
        (*at)++; /* '[' or ',' */
        if (!dti_nodelist_item_read(at, &item) || (**at != ',' && **at != ']'))
            return false;
        /* Below 2^60 each, so the sum cannot wrap before it is looked at. */
        if (out && *index >= *count && *index - *count < item.count) {
            *index -= *count;
            *out = item;
            out = NULL;
        }
        *count += item.count;
        if (*count > DTI_NODELIST_MAX)
            return false;
    } while (**at == ',');
    (*at)++;
    return true;
}

/* Counts the name at *at and moves after it: to ',' or the end. */
static bool dti_nodelist_name(const char **at, uint64_t *count) {
    const char *start = *at;
    *count = 1;
    while (**at && **at != ',') {
        uint64_t group;
        if (dti_is_host_char(**at)) {
            (*at)++;
            continue;
        }
        if (**at != '[' || !dti_nodelist_group(at, &group, NULL, NULL) ||
            *count > DTI_NODELIST_MAX / group)
            return false;
        *count *= group;
    }
    return *at > start && *start != '-';
}

/* The number of names; false: malformed. */
static bool dti_nodelist_count(const char *list, uint64_t *count) {
    *count = 0;
    for (;;) {
        uint64_t more;
        if (!dti_nodelist_name(&list, &more) || more > DTI_NODELIST_MAX - *count)
            return false;
        *count += more;
        if (!*list)
            return true;
        list++;
    }
}

static bool dti_nodelist_add(char *name, size_t room, size_t *size, const char *text,
                             size_t bytes) {
    if (bytes >= room - *size)
        return false;
    memcpy(name + *size, text, bytes);
    *size += bytes;
    name[*size] = 0;
    return true;
}

/* The `place`-th of the item's names. */
static bool dti_nodelist_add_item(char *name, size_t room, size_t *size,
                                  const dti_nodelist_item *item, uint64_t place) {
    char text[24];
    if (item->count == 1)
        return dti_nodelist_add(name, room, size, item->text, item->width);
    if (item->letters) {
        text[0] = (char)(item->first + place);
        return dti_nodelist_add(name, room, size, text, 1);
    }
    int bytes = snprintf(text, sizeof text, "%0*llu", (int)item->width,
                         (unsigned long long)(item->first + place));
    return bytes > 0 && dti_nodelist_add(name, room, size, text, (size_t)bytes);
}

/* Writes the index-th of the `count` names that the valid name at `at` stands for. */
static bool dti_nodelist_write(const char *at, uint64_t count, uint64_t index, char *name,
                               size_t room) {
    size_t size = 0;
    while (*at && *at != ',') {
        if (*at != '[') {
            if (!dti_nodelist_add(name, room, &size, at++, 1))
                return false;
            continue;
        }
        dti_nodelist_item item = {0};
        const char *ahead = at;
        uint64_t group;
        dti_nodelist_group(&ahead, &group, NULL, NULL);
        count /= group; /* names per place in this group */
        uint64_t place = index / count;
        index %= count;
        dti_nodelist_group(&at, &group, &place, &item);
        if (!dti_nodelist_add_item(name, room, &size, &item, place))
            return false;
    }
    return true;
}

/* The index-th name, with its zero. False and "": the list is malformed (anywhere), has fewer
 * names, or this one has no room. */
static bool dti_nodelist_at(const char *list, uint64_t index, char *name, size_t room) {
    uint64_t count;
    if (room)
        name[0] = 0;
    if (!room || !dti_nodelist_count(list, &count) || index >= count)
        return false;
    const char *start = list;
    while (dti_nodelist_name(&list, &count) && index >= count) {
        index -= count;
        start = ++list;
    }
    if (dti_nodelist_write(start, count, index, name, room))
        return true;
    name[0] = 0;
    return false;
}

static bool dti_nodelist_first(const char *list, char *name, size_t room) {
    return dti_nodelist_at(list, 0, name, room);
}
