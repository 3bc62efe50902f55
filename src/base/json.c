/* A reader of JSON (RFC 8259) over bytes that may be hostile. It allocates and copies nothing,
 * never reads past `end`, and nests to a fixed depth. Once bad it stays bad. Strings keep their
 * escapes, which are checked but not decoded. It does not check for UTF-8. */

#define DTI_JSON_DEPTH 32

static bool dti_json_fail(dti_json *j) {
    j->bad = true;
    return false;
}

/* The next byte that is not white space, not consumed; 0 at the end or when bad. */
static char dti_json_peek(dti_json *j) {
    while (!j->bad && j->at < j->end) {
        char c = *j->at;
        if (c != ' ' && c != '\n' && c != '\r' && c != '\t')
            return c;
        j->at++;
    }
    return 0;
}

static bool dti_json_take(dti_json *j, char c) {
    if (dti_json_peek(j) != c)
        return dti_json_fail(j);
    j->at++;
    return true;
}

static bool dti_json_enter(dti_json *j, char bracket) {
    if (j->depth >= DTI_JSON_DEPTH || !dti_json_take(j, bracket))
        return dti_json_fail(j);
    j->depth++;
    j->fresh = true;
    return true;
}

/* Before a key or an item: false at `bracket`, which is consumed. */
static bool dti_json_next(dti_json *j, char bracket) {
    if (dti_json_peek(j) == bracket && j->depth > 0) {
        j->at++;
        j->depth--;
        j->fresh = false;
        return false;
    }
    if (j->depth <= 0 || (!j->fresh && !dti_json_take(j, ',')))
        return dti_json_fail(j);
    j->fresh = false;
    return !j->bad;
}

static bool dti_json_object(dti_json *j) {
    return dti_json_enter(j, '{');
}

static bool dti_json_array(dti_json *j) {
    return dti_json_enter(j, '[');
}

static bool dti_json_next_key(dti_json *j, dti_slice *key) {
    return dti_json_next(j, '}') && dti_json_string(j, key) && dti_json_take(j, ':');
}

static bool dti_json_next_item(dti_json *j) {
    return dti_json_next(j, ']');
}

static bool dti_json_is_digit(const dti_json *j) {
    return j->at < j->end && *j->at >= '0' && *j->at <= '9';
}

static bool dti_json_u64(dti_json *j, uint64_t *value) {
    dti_json_peek(j);
    if (j->bad || !dti_json_is_digit(j))
        return dti_json_fail(j);
    bool zero = *j->at == '0';
    uint64_t sum = 0;
    for (; dti_json_is_digit(j); j->at++) {
        unsigned digit = (unsigned)(*j->at - '0');
        if (sum > (UINT64_MAX - digit) / 10 || (zero && sum + digit > 0))
            return dti_json_fail(j);
        sum = sum * 10 + digit;
    }
    if (j->at < j->end && strchr(".eE", *j->at) && *j->at)
        return dti_json_fail(j);
    *value = sum;
    return true;
}

/* After a backslash. */
static bool dti_json_escape(dti_json *j) {
    if (j->at >= j->end || !*j->at || !strchr("\"\\/bfnrtu", *j->at))
        return dti_json_fail(j);
    if (*j->at++ != 'u')
        return true;
    for (int i = 0; i < 4; i++, j->at++)
        if (j->at >= j->end || !*j->at || !strchr("0123456789abcdefABCDEF", *j->at))
            return dti_json_fail(j);
    return true;
}

static bool dti_json_string(dti_json *j, dti_slice *value) {
    if (!dti_json_take(j, '"'))
        return false;
    const char *start = j->at;
    while (j->at < j->end) {
        unsigned char c = (unsigned char)*j->at++;
        if (c == '"') {
            *value = (dti_slice){start, (size_t)(j->at - 1 - start)};
            return true;
        }
        if (c < 0x20 || (c == '\\' && !dti_json_escape(j)))
            break;
    }
    return dti_json_fail(j);
}

/* At least one digit. */
static bool dti_json_digits(dti_json *j) {
    if (!dti_json_is_digit(j))
        return dti_json_fail(j);
    while (dti_json_is_digit(j))
        j->at++;
    return true;
}

static bool dti_json_skip_number(dti_json *j) {
    if (*j->at == '-')
        j->at++;
    if (j->at < j->end && *j->at == '0')
        j->at++;
    else if (!dti_json_digits(j))
        return false;
    if (j->at < j->end && *j->at == '.') {
        j->at++;
        if (!dti_json_digits(j))
            return false;
    }
    if (j->at < j->end && (*j->at == 'e' || *j->at == 'E')) {
        j->at++;
        if (j->at < j->end && (*j->at == '+' || *j->at == '-'))
            j->at++;
        return dti_json_digits(j);
    }
    return true;
}

static bool dti_json_skip_word(dti_json *j, const char *word) {
    size_t size = strlen(word);
    if ((size_t)(j->end - j->at) < size || memcmp(j->at, word, size) != 0)
        return dti_json_fail(j);
    j->at += size;
    return true;
}

static bool dti_json_skip(dti_json *j) {
    dti_slice text;
    switch (dti_json_peek(j)) {
    case '{':
        if (dti_json_object(j))
            while (dti_json_next_key(j, &text) && dti_json_skip(j))
                continue;
        return !j->bad;
    case '[':
        if (dti_json_array(j))
            while (dti_json_next_item(j) && dti_json_skip(j))
                continue;
        return !j->bad;
    case '"': return dti_json_string(j, &text);
    case 't': return dti_json_skip_word(j, "true");
    case 'f': return dti_json_skip_word(j, "false");
    case 'n': return dti_json_skip_word(j, "null");
    case 0: return dti_json_fail(j);
    default: return dti_json_skip_number(j);
    }
}

static bool dti_json_done(dti_json *j) {
    dti_json_peek(j);
    return !j->bad && j->depth == 0 && j->at == j->end;
}
