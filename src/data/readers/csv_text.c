/* Rows of a CSV file as texts. RFC 4180: values between delimiters, in quotes where they hold one,
 * a line's end or a quote, which is doubled. Lines end with LF or CRLF. A UTF-8 mark at the
 * beginning is skipped, and so is DOS's mark of the end, 0x1A. A file that is not UTF-8, or holds a
 * zero byte, is an error. */

enum { DTI_CSV_END = -1 };

static dt_result dti_csv_wrong(dti_csv_cursor *c, uint64_t line, const char *what) {
    return c->result = dti_fail(c->base, DT_ERROR_FORMAT, "%s:%llu: %s", c->reader.path,
                                (unsigned long long)line, what);
}

static void dti_csv_fill(dti_csv_cursor *c) {
    const uint64_t left = c->reader.size - c->reader.at;
    c->filled = (size_t)DTI_MIN(left, (uint64_t)DTI_CSV_WINDOW);
    c->at = 0;
    c->result = dti_reader_take(&c->reader, c->window, c->filled);
}

/* The next byte without taking it. After an error it is the end. */
static int dti_csv_peek(dti_csv_cursor *c) {
    if (c->at == c->filled && c->reader.at < c->reader.size && !c->result)
        dti_csv_fill(c);
    return c->at < c->filled && !c->result ? (unsigned char)c->window[c->at] : DTI_CSV_END;
}

static void dti_csv_take(dti_csv_cursor *c) {
    c->line += c->window[c->at] == '\n';
    c->at++;
}

/* Marks of other encodings, which would read as garbage. */
static void dti_csv_check_mark(dti_csv_cursor *c) {
    if (dti_csv_peek(c) == DTI_CSV_END)
        return;
    const unsigned char *at = (const unsigned char *)c->window;
    if (c->filled >= 3 && at[0] == 0xEF && at[1] == 0xBB && at[2] == 0xBF)
        c->at = 3;
    if (c->filled >= 2 && ((at[0] == 0xFF && at[1] == 0xFE) || (at[0] == 0xFE && at[1] == 0xFF)))
        dti_csv_wrong(c, 1, "this is UTF-16; convert it, e.g. by iconv -f UTF-16 -t UTF-8");
    if (c->filled >= 2 && at[0] == 0x1F && at[1] == 0x8B)
        dti_csv_wrong(c, 1, "a gzip file; unpack it with gzip -d");
}

/* DOS ends a file with 0x1A, which is not a value. */
static dt_result dti_csv_drop_end(dti_reader *r) {
    char last = 0;
    if (!r->size)
        return DT_OK;
    DTI_TRY(dti_reader_seek(r, r->size - 1));
    DTI_TRY(dti_reader_take(r, &last, 1));
    r->size -= last == 0x1A;
    return dti_reader_seek(r, 0);
}

static dt_result dti_csv_cursor_open(dti_base *base, const char *path, char delimiter,
                                     dti_csv_cursor *c) {
    *c = (dti_csv_cursor){.base = base, .delimiter = delimiter, .line = 1};
    c->row = dti_text_open(base);
    DTI_TRY(dti_reader_open(base, path, &c->reader));
    c->window = dti_alloc(base, DTI_CSV_WINDOW);
    c->result = c->window ? dti_csv_drop_end(&c->reader) : DT_ERROR_MEMORY;
    if (!c->result)
        dti_csv_check_mark(c);
    if (c->result)
        dti_csv_cursor_close(c);
    return c->result;
}

static void dti_csv_cursor_close(dti_csv_cursor *c) {
    dti_reader_close(&c->reader);
    DTI_FREE(c->base, c->window, c->fields);
    dti_text_free(&c->row);
    c->window = NULL;
    c->fields = NULL;
}

static dt_result dti_csv_cursor_seek(dti_csv_cursor *c, uint64_t at, uint64_t line) {
    c->at = c->filled = 0;
    c->line = line;
    return c->result = dti_reader_seek(&c->reader, at);
}

static uint64_t dti_csv_cursor_place(const dti_csv_cursor *c) {
    return c->reader.at - (c->filled - c->at);
}

/* ---- a row */

static dt_result dti_csv_field_begin(dti_csv_cursor *c) {
    if (c->count >= DTI_CSV_COLUMNS_MAX || (c->settled && c->count >= c->capacity))
        return dti_csv_wrong(c, c->row_line,
                             "more than 65536 values, or than when the file was opened");
    DTI_HAVE(DTI_RESERVE(c->base, c->fields, c->capacity, c->count + 1));
    c->fields[c->count++] = c->row.size;
    return DT_OK;
}

/* Adds a byte. There is room for it, and for the zero that dti_text keeps after it. */
static void dti_csv_add(dti_csv_cursor *c, int byte, const char *too_long) {
    const char one = (char)byte;
    if (c->settled && c->row.size + 2 > c->row.capacity)
        dti_csv_wrong(c, c->row_line, too_long);
    if (c->result)
        return;
    dti_text_add_bytes(&c->row, &one, 1);
    c->result = c->row.ok ? DT_OK : DT_ERROR_MEMORY;
}

/* Takes a byte of a value. */
static void dti_csv_put(dti_csv_cursor *c, int byte) {
    static const char too_long[] = "a row of more than 1 MiB: is there a quote that does not end?";
    dti_csv_take(c);
    if (!byte)
        dti_csv_wrong(c, c->line, "a zero byte");
    else if (c->row.size >= DTI_CSV_FIELD_MAX)
        dti_csv_wrong(c, c->row_line, too_long);
    else
        dti_csv_add(c, byte, too_long);
}

/* After the opening quote, up to and with the closing one. */
static void dti_csv_quoted(dti_csv_cursor *c) {
    for (int byte; (byte = dti_csv_peek(c)) != DTI_CSV_END; dti_csv_put(c, byte)) {
        if (byte != '"')
            continue;
        dti_csv_take(c);
        if (dti_csv_peek(c) != '"')
            return;
    }
    if (!c->result)
        dti_csv_wrong(c, c->row_line, "the quote that begins here does not end");
}

/* Whether a value ends before this byte. */
static bool dti_csv_ends(const dti_csv_cursor *c, int byte) {
    return byte < 0 || byte == '\n' || byte == '\r' || byte == (unsigned char)c->delimiter;
}

static void dti_csv_value(dti_csv_cursor *c) {
    const size_t begin = c->row.size;
    int byte;
    c->result = dti_csv_field_begin(c);
    if (dti_csv_peek(c) == '"') {
        dti_csv_take(c);
        dti_csv_quoted(c);
        if (!dti_csv_ends(c, dti_csv_peek(c)))
            dti_csv_wrong(c, c->line, "text after a closing quote");
    }
    while (!dti_csv_ends(c, byte = dti_csv_peek(c)))
        dti_csv_put(c, byte);
    if (!c->result && c->row.size > begin &&
        !dti_utf8_valid(c->row.data + begin, c->row.size - begin))
        dti_csv_wrong(c, c->row_line, "this is not UTF-8; convert it, e.g. by iconv");
    if (!c->result)
        dti_csv_add(c, 0, "the row is longer than when the file was opened");
}

/* A line's end: LF, CRLF or CR. */
static void dti_csv_line_end(dti_csv_cursor *c) {
    const bool cr = dti_csv_peek(c) == '\r';
    if (cr)
        dti_csv_take(c);
    if (dti_csv_peek(c) == '\n')
        dti_csv_take(c);
    else
        c->line += cr;
}

static void dti_csv_row(dti_csv_cursor *c) {
    c->row.size = c->count = 0;
    c->row_line = c->line;
    dti_csv_value(c);
    for (; dti_csv_peek(c) == (unsigned char)c->delimiter; dti_csv_value(c))
        dti_csv_take(c);
    if (!c->result)
        dti_csv_line_end(c);
}

static dt_result dti_csv_cursor_next(dti_csv_cursor *c, bool *more) {
    while ((*more = dti_csv_peek(c) != DTI_CSV_END)) {
        dti_csv_row(c);
        if (!c->result && (c->count > 1 || dti_csv_field(c, 0)[0]))
            break;
    }
    return c->result;
}

static const char *dti_csv_field(const dti_csv_cursor *c, size_t i) {
    return c->row.data + c->fields[i];
}

/* ---- values */

/* The text after the word, which is in lower case; NULL: the text is another. */
static const char *dti_csv_after(const char *text, const char *word) {
    while (*word && dti_lower(*text) == *word)
        text++, word++;
    return *word ? NULL : text;
}

/* pandas' words (its na_values), and "?". "none" is often a category: only Python's None counts. */
static bool dti_csv_is_missing(const char *text) {
    static const char *const words[] = {"",     "na",      "n/a",      "nan",      "null",
                                        "?",    "#n/a",    "#na",      "#n/a n/a", "<na>",
                                        "-nan", "-1.#ind", "-1.#qnan", "1.#ind",   "1.#qnan"};
    if (*text && !strchr("nN?#<-1", *text))
        return false;
    for (size_t i = 0; i < DTI_COUNT(words); i++) {
        const char *rest = dti_csv_after(text, words[i]);
        if (rest && !*rest)
            return true;
    }
    return !strcmp(text, "None");
}

static double dti_csv_power(int exponent) {
    double power = 1.0, base = 10.0;
    for (int n = exponent < 0 ? -exponent : exponent; n; n >>= 1, base *= base)
        power *= n & 1 ? base : 1.0;
    return power;
}

/* Digits with at most one point. More than 19 do not fit and only move the exponent. */
static const char *dti_csv_digits(const char *at, uint64_t *digits, int *exponent, int *count) {
    bool point = false;
    for (;; at++) {
        if (*at == '.' && !point) {
            point = true;
            continue;
        }
        if (*at < '0' || *at > '9')
            return at;
        ++*count;
        const bool fits = *digits < UINT64_MAX / 10 - 1;
        *digits = fits ? *digits * 10 + (uint64_t)(*at - '0') : *digits;
        *exponent += (fits ? 0 : 1) - (point ? 1 : 0);
    }
}

static bool dti_csv_exponent(const char **at, int *exponent) {
    int value = 0, count = 0;
    if (**at != 'e' && **at != 'E')
        return true;
    ++*at;
    const bool minus = **at == '-';
    *at += minus || **at == '+';
    for (; **at >= '0' && **at <= '9'; ++*at, count++)
        value = DTI_MIN(value * 10 + (**at - '0'), 100000);
    *exponent += minus ? -value : value;
    return count > 0;
}

static const char *dti_csv_blanks(const char *at) {
    while (*at == ' ' || *at == '\t')
        at++;
    return at;
}

/* *huge: it is written as a number, and is larger than any. */
static bool dti_csv_read_number(const char *text, double *value, bool *huge) {
    uint64_t digits = 0;
    int exponent = 0, count = 0;
    const char *at = dti_csv_blanks(text);
    *huge = false;
    const bool minus = *at == '-';
    at += minus || *at == '+';
    at = dti_csv_digits(at, &digits, &exponent, &count);
    if (!count || !dti_csv_exponent(&at, &exponent))
        return false;
    if (*dti_csv_blanks(at))
        return false;
    *huge = digits && exponent > 308;
    if (*huge)
        return false;
    exponent = digits ? exponent : 0;
    double x = (double)digits;
    if (exponent < -290) { /* in two, so that no power is 0 */
        x /= dti_csv_power(-290);
        exponent = DTI_MAX(exponent + 290, -290);
    }
    x = exponent < 0 ? x / dti_csv_power(exponent) : x * dti_csv_power(exponent);
    *value = minus ? -x : x;
    *huge = !dti_finite_f64(x);
    return !*huge;
}

/* Only digits, points and one comma, as in 1,5 and 1.234,5. */
static bool dti_csv_has_comma(const char *at) {
    int commas = 0, digits = 0;
    at = dti_csv_blanks(at);
    at += *at == '-' || *at == '+';
    for (; (*at >= '0' && *at <= '9') || *at == '.' || *at == ','; at++) {
        commas += *at == ',';
        digits += *at >= '0' && *at <= '9';
    }
    return commas == 1 && digits && !*dti_csv_blanks(at);
}

static const char *dti_csv_almost(const char *text) {
    const char *at = dti_csv_blanks(text);
    bool huge = false;
    double value;
    at += *at == '-' || *at == '+';
    const char *rest = dti_csv_after(at, "infinity");
    rest = rest ? rest : dti_csv_after(at, "inf");
    if (rest && !*dti_csv_blanks(rest))
        return "it is not finite";
    if (dti_csv_has_comma(text))
        return "it has a comma; write '.' before decimals, and no separator of thousands";
    return !dti_csv_read_number(text, &value, &huge) && huge ? "it is too large" : NULL;
}

static bool dti_csv_number(const char *text, double *value) {
    bool huge;
    return dti_csv_read_number(text, value, &huge);
}
