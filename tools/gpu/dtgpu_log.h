/* Part of dtgpu.c: findings are written as lines of fields between tabs, each flushed, to a file of
 * its section. For eyes they go to standard output. dtgpu_report.h makes the report of them.
 *
 *     section  ID HEADING TEXT          what it shows, for a reader who never saw dtrain
 *     fact     NAME VALUE
 *     table    ID HEADING COLUMN...     "name %": a bar of 100; "name ~": of the largest
 *     row      ID VALUE...
 *     note     TEXT                     bad TEXT: the driver or dtrain does wrong
 *     end      SECONDS                  without it the section was cut off */

typedef struct gpu_log {
    FILE *file;
    double begin_ms, limit_ms;
} gpu_log;

static gpu_log out;

static double now_ms(void) {
    return (double)dti_now_ns() * 1e-6;
}

/* Whether there is time for something that takes so long. */
static bool has_time(double ms) {
    return now_ms() + ms < out.begin_ms + out.limit_ms;
}

/* Fields are divided by tabs in the format. */
static void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void say(const char *format, ...) {
    char line[2048];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    for (char *c = line; *c; c++)
        if (*c == '\n' || *c == '\r')
            *c = ' ';
    if (out.file) {
        fprintf(out.file, "%s\n", line);
        fflush(out.file);
    }
    for (char *c = line; *c; c++)
        if (*c == '\t')
            *c = ' ';
    printf("%s\n", line);
    fflush(stdout);
}

static _Noreturn void fail(const char *what, const char *why) {
    say("bad\t%s: %s", what, why);
    exit(1);
}

/* What the library has to say of this device is part of the report. */
static void hear(void *user, dt_log_level level, const char *message) {
    (void)user;
    if (level != DT_LOG_INFO)
        say("bad\t%s", message);
}
