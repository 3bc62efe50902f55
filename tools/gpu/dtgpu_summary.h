/* Part of dtgpu.c: the head of a report, from the lines of its sections. It says whether all was
 * right, with the few most important numbers. */

typedef struct summary {
    int wrong, begun, ended;
    char device[128], driver[128], kind[64], tests[128], product[160], steps[512], left_out[256];
    double best; /* product: of the FMA peak, % */
} summary;

/* One line of a section. */
static void summary_line(summary *s, char *const field[], int count) {
    const char *kind = field[0];
    s->begun += !strcmp(kind, "section");
    s->ended += !strcmp(kind, "end");
    s->wrong += !strcmp(kind, "bad");
    if (!strcmp(kind, "fact") && count > 2) {
        if (!strcmp(field[1], "name"))
            snprintf(s->device, sizeof s->device, "%s", field[2]);
        if (!strcmp(field[1], "driver"))
            snprintf(s->driver, sizeof s->driver, "%s", field[2]);
        if (!strcmp(field[1], "kind"))
            snprintf(s->kind, sizeof s->kind, "%s", field[2]);
        if (!strncmp(field[1], "tests", 5))
            snprintf(s->tests, sizeof s->tests, "%s", field[2]);
    }
    if (strcmp(kind, "row"))
        return;
    if (!strcmp(field[1], "gemm") && count > 8 && atof(field[8]) > s->best) {
        s->best = atof(field[8]);
        snprintf(s->product, sizeof s->product,
                 "%s GFLOP/s, %s %% of what the device can do, for %s", field[7], field[8],
                 field[2]);
    }
    if (!strcmp(field[1], "steps") && count > 4) {
        const size_t at = strlen(s->steps);
        snprintf(s->steps + at, sizeof s->steps - at, "%s%s %s ms", at ? ", " : "", field[2],
                 field[4]);
    }
}

static void summary_end(summary *s, const char *name) {
    const size_t at = strlen(s->left_out);
    if (s->begun == s->ended)
        return;
    s->ended = s->begun;
    snprintf(s->left_out + at, sizeof s->left_out - at, "%s%s", at ? ", " : "", name);
}

/* Calls write(to, name, value) for each line of the head. */
static void summary_write(const summary *s, void (*write)(FILE *, const char *, const char *),
                          FILE *to) {
    char text[160];
    if (s->device[0])
        write(to, "device", s->device);
    if (s->driver[0])
        write(to, "driver", s->driver);
    if (!strncmp(s->kind, "software", 8))
        write(to, "kind", "software, no GPU: the command works, and times are a processor's");
    if (s->wrong)
        snprintf(text, sizeof text, "NO: %d findings, in bold below", s->wrong);
    write(to, "all right", s->wrong ? text : "yes, no check failed");
    if (s->left_out[0])
        write(to, "cut off", s->left_out);
    if (s->tests[0])
        write(to, "tests", s->tests);
    if (s->product[0])
        write(to, "fastest matrix product", s->product);
    if (s->steps[0])
        write(to, "training steps", s->steps);
}
