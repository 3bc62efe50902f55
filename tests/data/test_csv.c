/* CSV files: against the values that were written, by rows in any order; numbers against strtod;
 * what is wrong, with its line; a test set that is read as the training set was. */
#include "temp.h"
#include "train/train_model.h"

#include <locale.h>
#include <math.h>

typedef struct csv_job {
    dt_ctx *ctx;
    dt_csv *csv;
    int logged[3]; /* of each dt_log_level */
    char log[1024];
} csv_job;

static void csv_log(void *user, dt_log_level level, const char *text) {
    csv_job *j = user;
    j->logged[level]++;
    snprintf(j->log, sizeof j->log, "%s", text);
}

static dt_result csv_open(csv_job *j, const char *text, const dt_csv_desc *desc) {
    *j = (csv_job){0};
    const char *path = temp_write("some.csv", text, strlen(text));
    if (dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true, .logger = {csv_log, j}}, &j->ctx))
        return DT_ERROR_MEMORY;
    return dt_csv_open(j->ctx, path, desc, &j->csv);
}

/* It must be taken. */
static bool csv_opens(csv_job *j, const char *text, const dt_csv_desc *desc) {
    const dt_result result = csv_open(j, text, desc);
    return CHECK_TEXT(result == DT_OK, "%s", dt_ctx_error(j->ctx));
}

static void csv_close(csv_job *j) {
    dt_csv_close(j->csv);
    dt_ctx_destroy(j->ctx);
}

/* The text names the line, and what is wrong. */
static void csv_refused(const char *text, const dt_csv_desc *desc, const char *line,
                        const char *what) {
    csv_job j;
    const dt_result result = csv_open(&j, text, desc);
    CHECK_TEXT(result != DT_OK && !j.csv, "taken: %s", text);
    CHECK_CONTAINS(dt_ctx_error(j.ctx), line);
    CHECK_CONTAINS(dt_ctx_error(j.ctx), what);
    csv_close(&j);
}

TEST(csv_gives_numbers_and_categories) {
    csv_job j;
    dt_csv_info info;
    dt_csv_column c;
    float x[6];
    int32_t t[3];
    const char *text = "\xEF\xBB\xBF"
                       "size,\"kind, of\",price\r\n"
                       "1.5,red,10\r\n"
                       "-2,\"a \"\"b\"\"\",20\r\n"
                       "\r\n"
                       "4,red,60";
    if (!csv_opens(&j, text, NULL))
        return;
    dt_csv_get_info(j.csv, &info);
    CHECK(info.rows == 3 && info.columns == 3 && info.skipped == 0);
    CHECK(dt_csv_get_column(j.csv, 1, &c) == DT_OK && c.kind == DT_CSV_CATEGORY);
    CHECK(c.categories == 2 && !strcmp(c.category[0], "a \"b\"") && !strcmp(c.category[1], "red"));
    CHECK(!strcmp(c.name, "kind, of") && dt_csv_find(j.csv, "price") == 2);
    CHECK(dt_csv_get_column(j.csv, 2, &c) == DT_OK && c.kind == DT_CSV_NUMBER && c.mean == 30.0);
    CHECK(c.min == 10.0 && c.max == 60.0 && fabs(c.std - sqrt(1400.0 / 3.0)) < 1e-12);
    CHECK(dt_csv_read(j.csv, (int[]){2, 0}, 2, 0, 3, DT_F32, x) == DT_OK);
    CHECK(x[0] == 10.0f && x[1] == 1.5f && x[2] == 20.0f && x[3] == -2.0f && x[5] == 4.0f);
    CHECK(dt_csv_read(j.csv, (int[]){1}, 1, 0, 3, DT_I32, t) == DT_OK);
    CHECK(t[0] == 1 && t[1] == 0 && t[2] == 1);
    CHECK(dt_csv_read(j.csv, (int[]){0}, 1, 0, 1, DT_I32, t) == DT_ERROR_INVALID); /* 1.5 */
    csv_close(&j);
}

/* Rows of random widths, read in any order, are those that were written. */
TEST(csv_gives_rows_in_any_order) {
    enum { ROWS = 500 };
    csv_job j;
    char *text = malloc(1 << 20), *at = text;
    uint32_t state = 5;
    float x[3];
    at += sprintf(at, "a,b,c\n");
    for (int i = 0; i < ROWS; i++) {
        at += sprintf(at, "%d,\"text", i);
        for (int k = (int)(train_random(&state) % 100); k > 0; k--)
            at += sprintf(at, "%s",
                          (const char *[]){"x", "\"\"", "\n", ","}[train_random(&state) % 4]);
        at += sprintf(at, "\",%d.25\n", -i);
    }
    if (!csv_opens(&j, text, NULL))
        return;
    for (int i = 0; i < 2000; i++) {
        const uint64_t row = i % 3 ? train_random(&state) % ROWS : (uint64_t)(i % ROWS);
        CHECK(dt_csv_read(j.csv, (int[]){0, 2}, 2, row, 1, DT_F32, x) == DT_OK);
        CHECK_TEXT(x[0] == (float)row && x[1] == (row ? -(float)row - 0.25f : 0.25f),
                   "row %d: %g %g", (int)row, (double)x[0], (double)x[1]);
    }
    csv_close(&j);
    free(text);
}

TEST(csv_numbers_are_those_of_the_c_library) {
    csv_job j;
    static float x[3000];
    static double want[3000];
    char *text = malloc(1 << 20), *at = text;
    uint32_t state = 11;
    at += sprintf(at, "x\n");
    for (int i = 0; i < 3000; i++) {
        const int digits = 1 + (int)(train_random(&state) % 17);
        const double value = ((double)train_random(&state) - 8e6) *
                             pow(10.0, (double)(train_random(&state) % 70) - 40.0);
        char number[64];
        snprintf(number, sizeof number, i % 2 ? "%.*e" : "%.*g", digits, value);
        want[i] = strtod(number, NULL);
        at += sprintf(at, "%s\n", number);
    }
    const char *had = setlocale(LC_NUMERIC, "de_DE.UTF-8"); /* a decimal comma, where it is */
    if (csv_opens(&j, text, NULL))
        CHECK(dt_csv_read(j.csv, (int[]){0}, 1, 0, 3000, DT_F32, x) == DT_OK);
    for (int i = 0; i < 3000; i++)
        CHECK_TEXT(x[i] == (float)want[i] || fabs((double)x[i] - want[i]) <= 6e-8 * fabs(want[i]),
                   "%.17g for %.17g", (double)x[i], want[i]);
    if (had)
        setlocale(LC_NUMERIC, "C");
    csv_close(&j);
    free(text);
}

TEST(csv_reads_missing_values_by_its_rules) {
    csv_job j;
    dt_csv_info info;
    float x[8];
    const char *text = "a,b,c\n1,x,5\n,y,6\n3,?,7\n8,x,NA\n";
    dt_csv_desc d = {
        .rules = {{.columns = "a", .missing = DT_CSV_MISSING_MEAN, .standardize = true},
                  {.columns = "b", .missing = DT_CSV_MISSING_MEAN},
                  {.columns = "*", .missing = DT_CSV_MISSING_DROP}}};
    if (!csv_opens(&j, text, &d))
        return;
    dt_csv_get_info(j.csv, &info);
    CHECK(info.rows == 3 && info.skipped == 1);
    CHECK(dt_csv_read(j.csv, (int[]){0, 1}, 2, 0, 3, DT_F32, x) == DT_OK);
    CHECK_TEXT(x[0] == -1.0f && x[2] == 0.0f && x[4] == 1.0f, "%g %g %g", (double)x[0],
               (double)x[2], (double)x[4]);              /* mean 2, deviation 1 */
    CHECK(x[1] == 1.0f && x[3] == 2.0f && x[5] == 0.0f); /* "" before x and y */
    csv_close(&j);
    d = (dt_csv_desc){.rules = {{.columns = "*", .missing = DT_CSV_MISSING_VALUE, .value = 9.0}}};
    if (csv_opens(&j, "a\n1\n?\n", &d)) {
        CHECK(dt_csv_read(j.csv, (int[]){0}, 1, 0, 2, DT_F32, x) == DT_OK && x[1] == 9.0f);
    }
    csv_close(&j);
}

TEST(csv_reads_a_test_set_as_the_training_set_was) {
    csv_job j, k;
    float x[4];
    const dt_csv_desc train = {.rules = {{.columns = "n", .standardize = true}}};
    const char *path = temp_write("test.csv", "more,kind,n\n5,b,4\n6,a,0\n", 23);
    if (!csv_opens(&j, "n,kind\n1,a\n3,b\n2,c\n", &train))
        return;
    const dt_csv_desc like = {.like = j.csv};
    CHECK_TEXT(dt_csv_open(j.ctx, path, &like, &k.csv) == DT_OK, "%s", dt_ctx_error(j.ctx));
    const int columns[2] = {dt_csv_find(k.csv, "kind"), dt_csv_find(k.csv, "n")};
    CHECK(dt_csv_read(k.csv, columns, 2, 0, 2, DT_F32, x) == DT_OK);
    CHECK(x[0] == 1.0f && x[2] == 0.0f);
    CHECK_TEXT(fabs((double)x[1] - 2.0 / sqrt(2.0 / 3.0)) < 1e-6, "%g", (double)x[1]);
    CHECK(dt_csv_read(k.csv, (int[]){0}, 1, 0, 1, DT_F32, x) == DT_ERROR_INVALID); /* "more" */
    dt_csv_close(k.csv);
    path = temp_write("test.csv", "kind,n\nb,4\nd,0\n", 15);
    CHECK(dt_csv_open(j.ctx, path, &like, &k.csv) == DT_ERROR_FORMAT && !k.csv);
    CHECK_CONTAINS(dt_ctx_error(j.ctx), ":3: 'd' is not one of the 3 categories of 'kind'");
    path = temp_write("test.csv", "kind\nb\n", 7);
    CHECK(dt_csv_open(j.ctx, path, &like, &k.csv) == DT_ERROR_FORMAT && !k.csv);
    CHECK_CONTAINS(dt_ctx_error(j.ctx), "the column 'n' of ");
    CHECK_CONTAINS(dt_ctx_error(j.ctx), "if it is a target, give it a rule with DT_CSV_SKIP when ");
    const dt_csv_desc skips = {.like = j.csv, .skip_bad = true};
    dt_csv_info info;
    path = temp_write("test.csv", "kind,n\nb,4\nd,0\n", 15);
    CHECK(dt_csv_open(j.ctx, path, &skips, &k.csv) == DT_OK);
    dt_csv_get_info(k.csv, &info);
    CHECK(info.rows == 1 && info.skipped == 1);
    dt_csv_close(k.csv);
    csv_close(&j);
}

TEST(csv_names_the_line_and_the_fault) {
    const dt_csv_desc numbers = {.rules = {{.columns = "*", .kind = DT_CSV_NUMBER}}};
    const dt_csv_desc few = {.max_categories = 2};
    csv_refused("a,b\n1,2\n\n3\n", NULL, ":4:", "1 values for 2 columns");
    csv_refused("a\n1\nx\n", &numbers, ":3:", "'x' of 'a' is not a number");
    csv_refused("a,b\n1,2\n\"\n\n\",\n", NULL, ":3:", "'b' is missing");
    csv_refused("a\n1\n\"x\ny\n", NULL, ":3:", "does not end");
    csv_refused("a\nx\ny\nz\n", &few, "some.csv", "more than 2 different texts");
    csv_refused("a\n\xC3\x28\n", NULL, ":2:", "UTF-8");
    csv_refused("\xFF\xFE"
                "a",
                NULL, ":1:", "UTF-16");
    csv_refused("a,b,a\n1,2,3\n", NULL, ":1:", "two columns are named 'a'");
    csv_refused("", NULL, "some.csv", "empty");
    csv_refused("a\n", NULL, "some.csv", "no row");
    csv_job j;
    dt_csv_info info;
    const dt_csv_desc skips = {.skip_bad = true,
                               .rules = {{.columns = "*", .kind = DT_CSV_NUMBER}}};
    if (csv_opens(&j, "a,b\n1,2\n3\nx,4\n5,6\n", &skips)) {
        dt_csv_get_info(j.csv, &info);
        CHECK(info.rows == 2 && info.skipped == 2);
    }
    csv_close(&j);
}

/* A value of a column that otherwise has numbers, and its result. It is an error, or a warning with
 * the value and its line. Where the text is NULL, it is a value that is missing. */
TEST(csv_odd_value_in_a_column_of_numbers_is_always_reported) {
    static const struct {
        const char *cell, *text;
        bool error;
    } odd[] = {
        {"\"1,5\"", "'1,5' of 'a' is not a number: it has a comma", true},
        {"inf", "'inf' of 'a' is not a number: it is not finite", true},
        {" -Infinity ", "not finite", true},
        {"1e400", "'1e400' of 'a' is not a number: it is too large", true},
        {"12 %", "'12 %' is not a number, so 'a' has categories; 2 of its 3 values are", false},
        {"none", "'none' is not a number", false},
        {"None", NULL, false},
        {"<NA>", NULL, false},
        {"#N/A", NULL, false},
        {"-1.#IND", NULL, false},
        {"?", NULL, false}};
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        const dt_csv_desc mean = {.rules = {{.columns = "*", .missing = DT_CSV_MISSING_MEAN}}};
        csv_job j;
        dt_csv_column c = {0};
        char text[64];
        snprintf(text, sizeof text, "a,b\n1,1\n\n%s,1\n3,1\n", odd[i].cell);
        const dt_result result = csv_open(&j, text, &mean);
        CHECK_TEXT(result == (odd[i].error ? DT_ERROR_FORMAT : DT_OK), "%s: %s", odd[i].cell,
                   dt_ctx_error(j.ctx));
        CHECK(j.logged[DT_LOG_ERROR] + j.logged[DT_LOG_WARNING] == (odd[i].text ? 1 : 0));
        CHECK_CONTAINS(j.log, odd[i].text ? odd[i].text : "");
        CHECK_CONTAINS(j.log, odd[i].text ? ":4: " : "");
        CHECK_CONTAINS(j.log, odd[i].text ? "DT_CSV_CATEGORY" : "");
        if (!result && dt_csv_get_column(j.csv, 0, &c) == DT_OK)
            CHECK(c.kind == (odd[i].text ? DT_CSV_CATEGORY : DT_CSV_NUMBER) &&
                  c.missing == (odd[i].text ? 0 : 1));
        csv_close(&j);
    }
}

TEST(csv_rule_decides_the_meaning_of_an_odd_value) {
    const char *text = "a\n1\ninf\n1e400\n\"2,5\"\n3\n";
    csv_job j;
    dt_csv_info info;
    dt_csv_column c = {0};
    dt_csv_desc d = {.skip_bad = true, .rules = {{.columns = "a", .kind = DT_CSV_NUMBER}}};
    if (csv_opens(&j, text, &d)) {
        dt_csv_get_info(j.csv, &info);
        CHECK(info.rows == 2 && info.skipped == 3);
        CHECK(dt_csv_get_column(j.csv, 0, &c) == DT_OK && c.mean == 2.0);
    }
    csv_close(&j);
    d = (dt_csv_desc){.rules = {{.columns = "a", .kind = DT_CSV_CATEGORY}}};
    if (csv_opens(&j, text, &d))
        CHECK(dt_csv_get_column(j.csv, 0, &c) == DT_OK && c.categories == 5);
    CHECK(!j.logged[DT_LOG_WARNING] && !j.logged[DT_LOG_INFO]);
    csv_close(&j);
    d = (dt_csv_desc){.rules = {{.columns = "a", .kind = DT_CSV_NUMBER}}};
    csv_refused(text, &d, ":3:", "'inf' of 'a' is not a number: it is not finite");
    if (csv_opens(&j, "b,c\n1,x\n2,y\n",
                  NULL)) /* a plain one is reported too, but is not a warning */
        CHECK(j.logged[DT_LOG_INFO] == 1 && !j.logged[DT_LOG_WARNING]);
    CHECK_CONTAINS(j.log, ":2: 'x' is not a number, so 'c' has categories");
    csv_close(&j);
}

TEST(csv_rule_that_decides_on_no_column_is_an_error) {
    const dt_csv_desc none = {.rules = {{.columns = "prize", .kind = DT_CSV_SKIP}}};
    const dt_csv_desc late = {.rules = {{.columns = "a*"}, {.columns = "a", .kind = DT_CSV_SKIP}}};
    const dt_csv_desc numbers = {.no_header = true, .rules = {{.columns = "a"}}};
    const dt_csv_desc empty = {.rules = {{.columns = "1", .kind = DT_CSV_SKIP}, {.columns = "*"}}};
    csv_refused("a,price\n1,2\n", &none,
                ".rules[0].columns = \"prize\": ", "matches the name of no column");
    csv_refused("a,price\n1,2\n", &late,
                ".rules[1].columns = \"a\": ", "earlier rules match all its columns");
    csv_refused("a,price\n1,2\n", &numbers,
                ".rules[0].columns = \"a\": ", "matches the name of no column");
    csv_refused("a;prize\n1;2\n", &none, "matches the name of no column",
                "the first line has ';': is it the .delimiter?");
    csv_job j;
    if (csv_opens(&j, "a,,b,\n1,x,3,4\n", &empty)) /* a column without a name has its number */
        CHECK(dt_csv_find(j.csv, "1") == 1 && dt_csv_find(j.csv, "3") == 3);
    csv_close(&j);
    const dt_csv_desc part = {.rules = {{.columns = "a, prize"}}};
    csv_refused("a,price\n1,2\n", &part,
                ".rules[0].columns = \"a, prize\": ", ": \"prize\" matches the name of no column");
    csv_refused("a,b,a\n1,2,3\n", NULL, ":1:", "numbers 0 and 2; rename one");
    csv_refused("1,\n1,2\n", NULL, ":1:", "two columns are named '1'");
}

/* Blanks in a list of patterns are its writer's, not the columns'. */
TEST(csv_rule_of_a_list_with_blanks_decides_all_of_its_columns) {
    const dt_csv_desc d = {.rules = {{.columns = "w, n ,\tm", .kind = DT_CSV_CATEGORY}}};
    csv_job j;
    dt_csv_column c = {0};
    for (int i = 0; csv_opens(&j, "w,n,m\n1,2,3\n", &d) && i < 3; i++) {
        CHECK(dt_csv_get_column(j.csv, i, &c) == DT_OK && c.kind == DT_CSV_CATEGORY);
        csv_close(&j);
    }
    csv_close(&j);
}

TEST(csv_rule_without_columns_is_an_error) {
    const dt_csv_desc d[] = {
        {.rules = {{.kind = DT_CSV_SKIP}}},
        {.rules = {{.columns = "a"}, {.missing = DT_CSV_MISSING_DROP}}},
        {.rules = {{.columns = "a"}, {.value = NAN}}},
        {.rules = {{.standardize = true}}},
        {.rules = {[1] = {.columns = "a"}}},
        {.rules = {{.columns = "a"}, [DT_MAX_CSV_RULES - 1] = {.value = 1.0}}}};
    static const char *const which[] = {".rules[0] ", ".rules[1] ", ".rules[1] ",
                                        ".rules[0] ", ".rules[0] ", ".rules[1] "};
    for (size_t i = 0; i < sizeof d / sizeof *d; i++)
        csv_refused("a\n1\n", &d[i], which[i], "has no .columns");
}

/* One warning for a file: how many rows, and why the first. Rows that .missing drops are meant. */
TEST(csv_reports_rows_that_skip_bad_left_out) {
    const dt_csv_desc d = {.skip_bad = true,
                           .rules = {{.columns = "a", .kind = DT_CSV_NUMBER},
                                     {.columns = "b", .missing = DT_CSV_MISSING_DROP}}};
    csv_job j;
    if (csv_opens(&j, "a,b\n1,2\n1,\n\nx,4\n5,6\n7\n", &d))
        CHECK(j.logged[DT_LOG_WARNING] == 1);
    CHECK_CONTAINS(j.log, "some.csv: 2 of its 5 rows are bad and left out; the first is in line 5: "
                          "'x' of 'a' is not a number");
    csv_close(&j);
    if (csv_opens(&j, "a,b\n1,2\n1,\n5,6\n", &d))
        CHECK(j.logged[DT_LOG_WARNING] == 0);
    csv_close(&j);
}

TEST(csv_error_says_what_to_do_about_a_row) {
    const dt_csv_desc numbers = {.rules = {{.columns = "*", .kind = DT_CSV_NUMBER}}};
    const char *const many = "1 of its 2 values are numbers. Give the column a rule with .kind "
                             "DT_CSV_NUMBER";
    csv_refused("a,c\n1,2\n1,None\n", &numbers, ":3:",
                "the value of 'c' is missing ('None' counts as missing); set .missing of a rule, "
                "or .skip_bad");
    csv_refused("a,c\n1,2\n1,\n", NULL,
                ":3:", "the value of 'c' is missing; set .missing of a rule, or .skip_bad");
    csv_refused("a;b\n1,5;2\n", NULL,
                ":2:", "2 values for 1 columns; the row has ';': is it the .delimiter?");
    csv_refused("a,b\n1\t2\n", NULL, ":2:", "the row has '\\t': is it the .delimiter?");
    csv_refused("a\n\x1A"
                "1\x7F\n",
                &numbers, ":2:", "'\\x1a1\\x7f' of 'a' is not a number");
    csv_refused("a\n1\ninf\n", NULL, ":3:", many);
    csv_refused("a\ninf\n", NULL, ":2:",
                "0 of its 1 values are numbers. Give the column a rule with .kind DT_CSV_CATEGORY");
    csv_job j;
    if (csv_opens(&j, "a\n1\n\x02x\n", NULL))
        CHECK_CONTAINS(j.log,
                       ":3: '\\x02x' is not a number, so 'a' has categories; 1 of its 2 values");
    csv_close(&j);
    if (csv_opens(&j, "a\nx\n", NULL)) {
        CHECK_CONTAINS(j.log, "0 of its 1 values are numbers. To confirm it, and to silence this "
                              "line, add a rule with .kind = DT_CSV_CATEGORY");
        CHECK(!strstr(j.log, "DT_CSV_NUMBER"));
    }
    csv_close(&j);
}

TEST(csv_ends_before_a_dos_end_of_file_mark) {
    static const char *const texts[] = {"a,b\r\n1,2\r\n3,4\r\n\x1A", "a,b\n1,2\n3,4\x1A",
                                        "a,b\r1,2\r3,4\r\x1A"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        csv_job j;
        float x[4];
        if (csv_opens(&j, texts[i], NULL))
            CHECK(dt_csv_read(j.csv, (int[]){0, 1}, 2, 0, 2, DT_F32, x) == DT_OK && x[3] == 4.0f);
        csv_close(&j);
    }
    csv_refused("\x1A", NULL, "some.csv", "empty");
    csv_refused("a,b\r1,2\r\x1A\r", NULL, ":3:", "1 values"); /* in the middle it is a value */
}

/* A line of what tools/golden/record_golden_csv.py wrote. */
static void csv_as_pandas(char *line) {
    char text[512] = "i,x\n", *cells[12], kind = *line;
    int missing = 0, odd = 0, count = 0;
    double mean = 0.0;
    for (char *at = line; (at = strchr(at, '\t')); count++) {
        *at++ = 0;
        cells[count] = at;
    }
    if (!CHECK_TEXT(count > 4 && sscanf(cells[0], "%d", &missing) == 1 &&
                        sscanf(cells[1], "%lf", &mean) == 1 && sscanf(cells[2], "%d", &odd) == 1,
                    "%s", line))
        return;
    for (int i = 3; i < count; i++)
        sprintf(text + strlen(text), "%d,%s\n", i, cells[i]);
    const dt_csv_desc d = {.rules = {{.columns = "*", .missing = DT_CSV_MISSING_MEAN}}};
    csv_job j;
    dt_csv_column c = {0};
    char place[16];
    const bool refused = kind == 'i' || kind == 'c', all = missing == count - 3;
    const dt_result result = csv_open(&j, text, &d);
    CHECK_TEXT(result == (refused ? DT_ERROR_FORMAT : DT_OK), "%s: %s", text, dt_ctx_error(j.ctx));
    snprintf(place, sizeof place, ":%d: '", odd);
    if (odd)
        CHECK_CONTAINS(j.log, place);
    if (!result) {
        CHECK(dt_csv_get_column(j.csv, 1, &c) == DT_OK);
        const bool number = kind == 'n' && !all; /* of nothing pandas makes floats */
        CHECK_TEXT(c.kind == (number ? DT_CSV_NUMBER : DT_CSV_CATEGORY), "%s", text);
        CHECK_TEXT(c.missing == (uint64_t)missing, "%s: %d", text, (int)c.missing);
        CHECK_TEXT(!number || fabs(c.mean - mean) <= 1e-14 * fabs(mean), "%s: %.17g", text, c.mean);
        CHECK(!j.logged[DT_LOG_WARNING] || kind == 't');
    }
    csv_close(&j);
}

TEST(csv_columns_are_numbers_where_pandas_finds_numbers) {
    FILE *file = fopen("tests/golden/csv_pandas.txt", "r");
    char line[512];
    int lines = 0;
    REQUIRE(file);
    for (; fgets(line, sizeof line, file); lines++) {
        line[strcspn(line, "\n")] = 0;
        csv_as_pandas(line);
    }
    fclose(file);
    CHECK(lines == 368);
}

/* A file that changes while it is open is an error, not other rows, and takes no memory. */
TEST(csv_that_has_changed_is_an_error) {
    static const char *const others[] = {"a\nx\ny\n", "a\n1,",        "a\n\n\n\n",
                                         "a\n\"1\n",  "a\n\xFF\n1\n", "a\n1111111111111111"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        csv_job j;
        float x[8];
        dt_ctx_info before, after;
        if (!csv_opens(&j, "a\n1\n2\n3\n4\n5\n6\n7\n8\n", NULL))
            return;
        FILE *file = fopen(temp_path("some.csv"), "r+b"); /* the same file, in place */
        fputs(others[i], file);
        fclose(file);
        dt_ctx_get_info(j.ctx, &before);
        const dt_result result = dt_csv_read(j.csv, (int[]){0}, 1, 0, 8, DT_F32, x);
        dt_ctx_get_info(j.ctx, &after);
        CHECK_TEXT(result == DT_ERROR_IO, "%zu: %d", i, (int)result);
        CHECK_CONTAINS(dt_ctx_error(j.ctx), "changed");
        CHECK(after.host_alloc_calls == before.host_alloc_calls);
        csv_close(&j);
    }
}

TEST(csv_numbers_that_no_float_holds_are_errors) {
    csv_job j;
    float x[3];
    const dt_csv_desc scaled = {.rules = {{.columns = "*", .standardize = true}}};
    if (csv_opens(&j, "a\n1e300\n0e999\n", NULL)) {
        CHECK(dt_csv_read(j.csv, (int[]){0}, 1, 0, 1, DT_F32, x) == DT_ERROR_INVALID);
        CHECK_CONTAINS(dt_ctx_error(j.ctx), ":2: the value of 'a' is too large");
        CHECK(dt_csv_read(j.csv, (int[]){0}, 1, 1, 1, DT_F32, x) == DT_OK && x[0] == 0.0f);
    }
    csv_close(&j);
    csv_refused("a\n1e300\n-1e300\n", &scaled, "some.csv", "too large to be standardized");
}

/* ---- training from a file, row by row and from memory */

typedef struct csv_rows {
    dt_csv *csv;
    int columns[2], label;
} csv_rows;

static dt_result csv_sample(void *user, const dt_sample *sample, void *const *values) {
    csv_rows *r = user;
    dt_result result = dt_csv_read(r->csv, r->columns, 2, sample->row, 1, DT_F32, values[0]);
    return result ? result : dt_csv_read(r->csv, &r->label, 1, sample->row, 1, DT_I32, values[1]);
}

static uint64_t csv_train(dt_csv *csv, dt_ctx *ctx, bool streams) {
    static float x[200 * 2];
    static int32_t t[200];
    dt_graph *g;
    dt_trainer *trainer;
    uint64_t hash = 0;
    csv_rows r = {.csv = csv, .columns = {0, 1}, .label = 2};
    CHECK(dt_graph_create(ctx, &g) == DT_OK);
    dt_tensor in = dt_input(g, "x", DT_F32, dt_dims(2)),
              label = dt_input(g, "t", DT_I32, dt_dims());
    dt_tensor h = dt_tanh(dt_nn_linear(in, "fc0", 8));
    dt_tensor loss = dt_cross_entropy(dt_nn_linear(h, "fc1", 2), label, NULL);
    CHECK(dt_csv_read(csv, r.columns, 2, 0, 200, DT_F32, x) == DT_OK);
    CHECK(dt_csv_read(csv, &r.label, 1, 0, 200, DT_I32, t) == DT_OK);
    dt_trainer_desc d = {.loss = loss, .batch = 20, .devices = "cpu"};
    d.data =
        (dt_dataset){.rows = 200,
                     .columns = {{.input = in, .data = streams ? NULL : x},
                                 {.input = label, .data = streams ? NULL : t, .dtype = DT_I32}}};
    d.data.sample = streams ? csv_sample : NULL;
    d.data.user = &r;
    CHECK_TEXT(dt_trainer_create(g, &d, &trainer) == DT_OK, "%s", dt_ctx_error(ctx));
    for (int i = 0; i < 3; i++)
        CHECK_TEXT(dt_trainer_epoch(trainer, NULL) == DT_OK, "%s", dt_ctx_error(ctx));
    CHECK(dt_store_hash(dt_trainer_store(trainer), &hash) == DT_OK);
    dt_trainer_destroy(trainer);
    return hash;
}

TEST(csv_trains_row_by_row_as_from_memory) {
    csv_job j;
    char *text = malloc(1 << 16), *at = text;
    uint32_t state = 3;
    at += sprintf(at, "a,b,class\n");
    for (int i = 0; i < 200; i++) {
        const int a = (int)(train_random(&state) % 100), b = (int)(train_random(&state) % 100);
        at += sprintf(at, "0.%02d,0.%02d,%s\n", a, b, a > b ? "above" : "below");
    }
    if (!csv_opens(&j, text, NULL))
        return;
    const uint64_t hash = csv_train(j.csv, j.ctx, false);
    CHECK(hash && hash == csv_train(j.csv, j.ctx, true));
    csv_close(&j);
    free(text);
}
