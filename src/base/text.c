/* Bounded text. A growing string for files that other programs read, so numbers ignore the host's
 * locale. Also the pattern matching of parameter groups, and the check for UTF-8. */

/* Capacity of a text that ran out of memory: later additions would leave a hole, so they are
 * dropped. */
#define DTI_TEXT_FAILED SIZE_MAX

/* Makes room for `more` bytes and a closing zero. */
static bool dti_text_reserve(dti_text *text, size_t more) {
    if (text->capacity == DTI_TEXT_FAILED)
        return false;
    text->ok = more < SIZE_MAX - text->size - 1 &&
               DTI_RESERVE(text->base, text->data, text->capacity, text->size + more + 1);
    if (!text->ok) {
        dti_text_free(text);
        text->capacity = DTI_TEXT_FAILED;
    }
    return text->ok;
}

static void dti_text_add(dti_text *text, const char *format, ...) {
    va_list list, again;
    va_start(list, format);
    va_copy(again, list);
    int size = vsnprintf(NULL, 0, format, list);
    va_end(list);
    if (size < 0)
        text->ok = false;
    else if (dti_text_reserve(text, (size_t)size)) {
        vsnprintf(text->data + text->size, (size_t)size + 1, format, again);
        text->size += (size_t)size;
    }
    va_end(again);
}

/* printf's decimal point is the locale's and may be several bytes. Everything else in a number is
 * ASCII, so the other bytes are the point. */
static void dti_text_plain_point(char *number) {
    char *to = number;
    bool in_point = false;
    for (const char *from = number; *from; from++) {
        bool plain = (*from >= '0' && *from <= '9') || strchr("+-eE", *from);
        if (plain)
            *to++ = *from;
        else if (!in_point)
            *to++ = '.';
        in_point = !plain;
    }
    *to = 0;
}

static void dti_text_add_number(dti_text *text, double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    if ((bits >> 52 & 0x7FF) == 0x7FF) { /* as all libraries' %g, and without a NaN's sign */
        const bool nan = bits << 12 != 0;
        dti_text_add(text, nan ? "nan" : bits >> 63 ? "-inf" : "inf");
        return;
    }
    char number[64];
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(number, sizeof number, "%.*g", digits, value);
        double back = strtod(number, NULL);
        if (!memcmp(&back, &value, sizeof back))
            break;
    }
    dti_text_plain_point(number);
    dti_text_add(text, "%s", number);
}

static void dti_text_add_bytes(dti_text *text, const void *data, size_t bytes) {
    if (!dti_text_reserve(text, bytes))
        return;
    if (bytes)
        memcpy(text->data + text->size, data, bytes);
    text->size += bytes;
    text->data[text->size] = 0;
}

static void dti_text_add_quoted(dti_text *text, const char *data, size_t size) {
    for (size_t i = 0; i < size; i++) {
        const unsigned char c = (unsigned char)data[i];
        if (c == '"' || c == '\\')
            dti_text_add(text, "\\%c", c);
        else if (c < 0x20)
            dti_text_add(text, "\\u%04x", c);
        else
            dti_text_add_bytes(text, &data[i], 1);
    }
}

static void dti_text_free(dti_text *text) {
    dti_free(text->base, text->data);
    *text = (dti_text){.base = text->base};
}

/* One pattern, [pattern, end), without commas. On a mismatch only the last '*' is tried again. That
 * is enough, and the cost is at most length times length. */
static bool dti_glob_one(const char *pattern, const char *end, const char *name) {
    const char *star = NULL, *star_name = NULL;
    while (*name) {
        if (pattern < end && *pattern == '*') {
            star = ++pattern;
            star_name = name;
        } else if (pattern < end && (*pattern == '?' || *pattern == *name)) {
            pattern++, name++;
        } else if (star) {
            pattern = star;
            name = ++star_name;
        } else {
            return false;
        }
    }
    while (pattern < end && *pattern == '*')
        pattern++;
    return pattern == end;
}

static bool dti_glob_next(const char **list, const char **pattern, const char **end) {
    const char *at = *list;
    if (!at)
        return false;
    while (*at == ' ' || *at == '\t')
        at++;
    *pattern = *end = at;
    for (; *at && *at != ','; at++)
        if (*at != ' ' && *at != '\t')
            *end = at + 1;
    *list = *at ? at + 1 : NULL;
    return true;
}

static bool dti_glob(const char *list, const char *name) {
    const char *pattern, *end;
    while (dti_glob_next(&list, &pattern, &end))
        if (end > pattern && dti_glob_one(pattern, end, name))
            return true;
    return false;
}

static dti_shown dti_show(const char *text) {
    dti_shown shown = {{0}};
    size_t size = 0;
    for (; *text && size < sizeof shown.text - 8; text++) {
        const unsigned byte = (unsigned char)*text;
        if (byte < 0x20 || byte == 0x7F)
            size += (size_t)snprintf(shown.text + size, 5, "\\x%02x", byte);
        else
            shown.text[size++] = *text;
    }
    if (*text)
        memcpy(shown.text + size, "...", 3);
    return shown;
}

/* ---- UTF-8 */

/* The length of the valid UTF-8 sequence at `at`, or 0. RFC 3629: no overlong forms, surrogates or
 * values above 10FFFF. */
static size_t dti_utf8_length(const unsigned char *at, size_t left) {
    unsigned char c = at[0];
    size_t size = c < 0x80 ? 1 : c < 0xC2 ? 0 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : c < 0xF5 ? 4 : 0;
    if (size == 0 || size > left)
        return 0;
    for (size_t i = 1; i < size; i++)
        if ((at[i] & 0xC0) != 0x80)
            return 0;
    bool bad = (c == 0xE0 && at[1] < 0xA0) || (c == 0xED && at[1] >= 0xA0) ||
               (c == 0xF0 && at[1] < 0x90) || (c == 0xF4 && at[1] >= 0x90);
    return bad ? 0 : size;
}

static bool dti_utf8_valid(const char *data, size_t size) {
    const unsigned char *at = (const unsigned char *)data;
    while (size) {
        size_t length = dti_utf8_length(at, size);
        if (!length)
            return false;
        at += length;
        size -= length;
    }
    return true;
}

static bool dti_name_fits(const char *name) {
    for (const unsigned char *at = (const unsigned char *)name; *at; at++) {
        if (*at < 0x20 || *at == 0x7F)
            return false;
    }
    return name[0] && dti_utf8_valid(name, strlen(name));
}

/* -1: not one. */
static int dti_hex_digit(char c) {
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* 2 * count digits and a zero. */
static void dti_hex_write(const void *bytes, size_t count, char *text) {
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < count; i++) {
        text[2 * i] = digits[((const uint8_t *)bytes)[i] >> 4];
        text[2 * i + 1] = digits[((const uint8_t *)bytes)[i] & 15];
    }
    text[2 * count] = 0;
}

/* False: not all of them are digits. */
static bool dti_hex_read(const char *text, size_t count, void *bytes) {
    for (size_t i = 0; i < count; i++) {
        int high = dti_hex_digit(text[2 * i]), low = high < 0 ? -1 : dti_hex_digit(text[2 * i + 1]);
        if (low < 0)
            return false;
        ((uint8_t *)bytes)[i] = (uint8_t)(high * 16 + low);
    }
    return true;
}
