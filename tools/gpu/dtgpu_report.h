/* Part of dtgpu.c: the report, from the files of the sections that there are. They are report.md to
 * paste, report.json to compute with, report.html to look at. Written again after each section, so
 * a run that is cut off leaves what it had. */

enum { REPORT_FIELDS = 16, REPORT_LINE = 2048 };

typedef struct report_line {
    char text[REPORT_LINE];
    char *field[REPORT_FIELDS];
    int count;
} report_line;

static bool report_read(FILE *f, report_line *l) {
    if (!fgets(l->text, sizeof l->text, f))
        return false;
    l->text[strcspn(l->text, "\n")] = 0;
    l->count = 0;
    for (char *at = l->text; at && l->count < REPORT_FIELDS;) {
        l->field[l->count++] = at;
        at = strchr(at, '\t');
        if (at)
            *at++ = 0;
    }
    return true;
}

static FILE *report_part(const char *folder, const char *part) {
    char name[600];
    snprintf(name, sizeof name, "%s/parts/%s.tsv", folder, part);
    return fopen(name, "r");
}

/* A table's columns hold for the rows that follow. */
typedef struct report_table {
    char column[REPORT_FIELDS][128];
    char mark[REPORT_FIELDS]; /* '%', '~' or 0: how its bar is drawn */
    double most[REPORT_FIELDS];
    int count;
} report_table;

static void table_begin(report_table *t, const report_line *l) {
    *t = (report_table){0};
    for (int i = 3; i < l->count; i++) {
        char *c = t->column[t->count];
        snprintf(c, sizeof t->column[0], "%s", l->field[i]);
        const size_t size = strlen(c);
        if (size > 2 && c[size - 2] == ' ' && (c[size - 1] == '%' || c[size - 1] == '~')) {
            t->mark[t->count] = c[size - 1];
            c[size - (c[size - 1] == '~' ? 2 : 0)] = 0;
        }
        t->count++;
    }
}

/* The largest of each column, which bars of '~' are drawn against. */
static void table_measure(report_table *t, const char *folder, const char *part, const char *id) {
    FILE *f = report_part(folder, part);
    report_line l;
    while (f && report_read(f, &l))
        for (int i = 2; !strcmp(l.field[0], "row") && i < l.count; i++)
            if (!strcmp(l.field[1], id))
                t->most[i - 2] = DTI_MAX(t->most[i - 2], atof(l.field[i]));
    if (f)
        fclose(f);
}

/* ---- report.md */

static void md_row(FILE *to, const report_line *l, int from) {
    for (int i = from; i < l->count; i++)
        fprintf(to, "| %s ", l->field[i]);
    fprintf(to, "|\n");
}

/* A table's rows may stand between others': they are looked for in all of the part. */
static void md_table(FILE *to, const report_line *table, const char *folder, const char *part) {
    report_table t;
    report_line l;
    table_begin(&t, table);
    fprintf(to, "\n%s:\n\n", table->field[2]);
    for (int i = 0; i < t.count; i++)
        fprintf(to, "| %s ", t.column[i]);
    fprintf(to, "|\n");
    for (int i = 0; i < t.count; i++)
        fprintf(to, "|---");
    fprintf(to, "|\n");
    FILE *f = report_part(folder, part);
    while (f && report_read(f, &l))
        if (!strcmp(l.field[0], "row") && l.count > 2 && !strcmp(l.field[1], table->field[1]))
            md_row(to, &l, 2);
    if (f)
        fclose(f);
    fprintf(to, "\n");
}

static void md_fact(FILE *to, const char *name, const char *value) {
    fprintf(to, "- %s: %s\n", name, value);
}

static void md_line(FILE *to, const report_line *l, const char *folder, const char *part) {
    const char *kind = l->field[0];
    if (!strcmp(kind, "section") && l->count > 3)
        fprintf(to, "\n## %s\n\n%s\n\n", l->field[2], l->field[3]);
    else if (!strcmp(kind, "fact") && l->count > 2)
        md_fact(to, l->field[1], l->field[2]);
    else if (!strcmp(kind, "note") && l->count > 1)
        fprintf(to, "- %s\n", l->field[1]);
    else if (!strcmp(kind, "bad") && l->count > 1)
        fprintf(to, "- **%s**\n", l->field[1]);
    else if (!strcmp(kind, "table") && l->count > 3)
        md_table(to, l, folder, part);
}

/* ---- report.html */

static void html_text(FILE *to, const char *text) {
    for (; *text; text++)
        switch (*text) {
        case '<': fputs("&lt;", to); break;
        case '>': fputs("&gt;", to); break;
        case '&': fputs("&amp;", to); break;
        case '"': fputs("&quot;", to); break;
        default: fputc(*text, to);
        }
}

static void html_wrap(FILE *to, const char *before, const char *text, const char *behind) {
    fputs(before, to);
    html_text(to, text);
    fputs(behind, to);
}

static void html_fact(FILE *to, const char *name, const char *value) {
    html_wrap(to, "<p class=fact><b>", name, "</b> ");
    html_wrap(to, "", value, "</p>\n");
}

static void html_row(FILE *to, const report_table *t, const report_line *l) {
    fputs("<tr>", to);
    for (int i = 2; i < l->count && i - 2 < t->count; i++) {
        const int c = i - 2;
        const double most = t->mark[c] == '%' ? 100 : t->most[c], value = atof(l->field[i]);
        if (t->mark[c] && most > 0 && *l->field[i])
            fprintf(to, "<td class=bar style=\"--w:%.1f%%\">",
                    DTI_MAX(0, DTI_MIN(100, 100 * value / most)));
        else
            fputs("<td>", to);
        html_wrap(to, "", l->field[i], "</td>");
    }
    fputs("</tr>\n", to);
}

static void html_table(FILE *to, const report_line *table, const char *folder, const char *part) {
    report_table t;
    report_line l;
    table_begin(&t, table);
    table_measure(&t, folder, part, table->field[1]);
    html_wrap(to, "<h3>", table->field[2], "</h3>\n<table><tr>");
    for (int i = 0; i < t.count; i++)
        html_wrap(to, "<th>", t.column[i], "</th>");
    fputs("</tr>\n", to);
    FILE *f = report_part(folder, part);
    while (f && report_read(f, &l))
        if (!strcmp(l.field[0], "row") && l.count > 2 && !strcmp(l.field[1], table->field[1]))
            html_row(to, &t, &l);
    if (f)
        fclose(f);
    fputs("</table>\n", to);
}

static void html_line(FILE *to, const report_line *l, const char *folder, const char *part) {
    const char *kind = l->field[0];
    if (!strcmp(kind, "section") && l->count > 3) {
        html_wrap(to, "<h2>", l->field[2], "</h2>\n");
        html_wrap(to, "<p>", l->field[3], "</p>\n");
    } else if (!strcmp(kind, "fact") && l->count > 2) {
        html_fact(to, l->field[1], l->field[2]);
    } else if (!strcmp(kind, "note") && l->count > 1) {
        html_wrap(to, "<p class=fact>", l->field[1], "</p>\n");
    } else if (!strcmp(kind, "bad") && l->count > 1) {
        html_wrap(to, "<p class=bad>", l->field[1], "</p>\n");
    } else if (!strcmp(kind, "table") && l->count > 3) {
        html_table(to, l, folder, part);
    }
}

static const char html_head[] =
    "<!doctype html><meta charset=utf-8><title>dtrain on a GPU</title>\n<style>"
    "body{font:15px/1.45 system-ui,sans-serif;max-width:1000px;margin:2em auto;padding:0 1em;"
    "color:#222;background:#fff}h1{font-size:1.5em}h2{margin-top:1.8em;border-bottom:1px solid "
    "#ccc}"
    "h3{font-size:1em;margin:1.2em 0 .3em}table{border-collapse:collapse;font-size:13px;width:100%}"
    "td,th{text-align:left;padding:2px 8px;border-bottom:1px solid #eee;"
    "font-variant-numeric:tabular-nums}th{color:#666;font-weight:600}"
    ".bar{background:linear-gradient(90deg,#9cc4e8 var(--w),transparent var(--w))}"
    ".fact{margin:.1em 0}.bad{color:#a00;font-weight:600;margin:.2em 0}</style>\n";

/* ---- report.json */

static void json_text(FILE *to, const char *text) {
    fputc('"', to);
    for (; *text; text++)
        if (*text == '"' || *text == '\\')
            fprintf(to, "\\%c", *text);
        else if ((unsigned char)*text >= 32)
            fputc(*text, to);
    fputc('"', to);
}

/* A line as it is: its kind, then its fields. */
static void json_line(FILE *to, const report_line *l, bool *first) {
    fputs(*first ? "\n  [" : ",\n  [", to);
    *first = false;
    for (int i = 0; i < l->count; i++) {
        fputs(i ? ", " : "", to);
        json_text(to, l->field[i]);
    }
    fputs("]", to);
}

/* ---- all three */

static void report_head(FILE *md, FILE *html, const char *folder) {
    static summary s;
    s = (summary){0};
    for (size_t i = 0; i < DTI_COUNT(sections); i++) {
        FILE *f = report_part(folder, sections[i].part);
        report_line l;
        while (f && report_read(f, &l))
            summary_line(&s, l.field, l.count);
        if (f)
            fclose(f);
        summary_end(&s, sections[i].name);
    }
    fprintf(md, "\n## In short\n\n");
    fprintf(html, "<h2>In short</h2>\n");
    summary_write(&s, md_fact, md);
    summary_write(&s, html_fact, html);
}

typedef struct report_files {
    FILE *md, *html, *json;
    bool first;
} report_files;

static FILE *report_open(const char *folder, const char *name) {
    char path[600];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "w");
    if (!f)
        fail(path, "cannot be written");
    return f;
}

static void report_section(report_files *r, const char *folder, const char *part) {
    FILE *f = report_part(folder, part);
    report_line l;
    bool ended = false;
    while (f && report_read(f, &l)) {
        ended = !strcmp(l.field[0], "end");
        md_line(r->md, &l, folder, part);
        html_line(r->html, &l, folder, part);
        json_line(r->json, &l, &r->first);
    }
    if (f && !ended) {
        snprintf(l.text, sizeof l.text, "%s",
                 "This section was cut off: it ran out of its time, or the "
                 "program or the driver crashed.");
        l.field[0] = (char[]){"bad"};
        l.field[1] = l.text;
        l.count = 2;
        md_line(r->md, &l, folder, part);
        html_line(r->html, &l, folder, part);
        json_line(r->json, &l, &r->first);
    }
    if (f)
        fclose(f);
}

static void report(const char *folder) {
    report_files r = {report_open(folder, "report.md"), report_open(folder, "report.html"),
                      report_open(folder, "report.json"), true};
    static const char title[] = "dtrain " DT_VERSION " on a GPU";
    static const char about[] =
        "dtrain is a C library that trains neural networks through Vulkan. This page was written "
        "by "
        "`./build.sh gpu`: what the device is, whether dtrain's kernels compute right on it, how "
        "fast "
        "they are beside what the device can do at most, and what training steps take.";
    fprintf(r.md, "# %s\n\n%s\n", title, about);
    fprintf(r.html, "%s<h1>%s</h1>\n", html_head, title);
    html_wrap(r.html, "<p>", about, "</p>\n");
    report_head(r.md, r.html, folder);
    fprintf(r.json, "{\"dtrain\": \"%s\", \"lines\": [", DT_VERSION);
    for (size_t i = 0; i < DTI_COUNT(sections); i++)
        report_section(&r, folder, sections[i].part);
    fprintf(r.json, "\n]}\n");
    fclose(r.md);
    fclose(r.html);
    fclose(r.json);
}
