/* Random jobs of training have the results that are recorded in tests/golden/random_jobs.txt. These
 * are the bits of weights, state, files and reports, every error's text, and no more bytes.
 *
 *     ./build.sh test random jobs                   makes all of them
 *     DTRAIN_RECORD=1 ./build.sh test random jobs   records them again, each made twice
 *     DTRAIN_RECORD=mixed ...                       the last 96: those in mixed precision
 *     DTRAIN_JOB=17 build/dtest random_jobs         only this one, and shows its line */
#include "random/random_jobs_run.h"

#include <signal.h>

enum {
    JOBS_F32 = 384,
    JOBS_MIXED = 96,
    JOBS = JOBS_F32 + JOBS_MIXED,
    LINE = 6000,
    JOB_SECONDS = 60
};

#define JOBS_FILE "tests/golden/random_jobs.txt"

/* Every fourth of those in f32, from another of four on each. */
static jobs_job jobs_of(int number) {
    const int k = number - JOBS_F32;
    return k < 0 ? jobs_draw(number) : jobs_draw_mixed(number, 4 * k + k / 4 % 4);
}

/* ---- a job as a line */

/* as: of the straight way. What an encoding has lost is in no checkpoint. */
static void jobs_mark(const jobs_job *j, char *to, const char *name, const jobs_end *as,
                      const jobs_end *end) {
    const size_t used = strlen(to);
    const bool same =
        as->weights == end->weights && (!as->state || !end->state || as->state == end->state);
    test_check(same || j->v[F_COMPRESS], __FILE__, __LINE__,
               "job %d, %s: weights %016llx, state %016llx; straight on %016llx, %016llx",
               j->number, name, (unsigned long long)end->weights, (unsigned long long)end->state,
               (unsigned long long)as->weights, (unsigned long long)as->state);
    if (same)
        snprintf(to + used, LINE - used, " %s same", name);
    else
        snprintf(to + used, LINE - used, " %s %016llx", name, (unsigned long long)end->weights);
}

static void jobs_line_bytes(char *to, size_t room, const jobs_end *e) {
    static const char *const names[] = {
#define BYTES_NAME(name, member) #name,
        BYTES(BYTES_NAME) "host"};
    size_t used = strlen(to);
    used += (size_t)snprintf(to + used, room - used, " |");
    for (int i = e->made ? B_host : 0; i < JOB_BYTES; i++)
        used += (size_t)snprintf(to + used, room - used, " %s %llu", names[i],
                                 (unsigned long long)e->bytes[i]);
}

static void jobs_line_end(char *to, size_t room, const jobs_end *e) {
    const size_t used = strlen(to);
    if (e->made)
        snprintf(to + used, room - used, " | refused %d reports %016llx", (int)e->made,
                 (unsigned long long)e->reports.of);
    else
        snprintf(to + used, room - used,
                 " | steps %d loss %.6g weights %016llx state %016llx saved %016llx last %016llx "
                 "reports %016llx figures %016llx",
                 e->steps, e->loss, (unsigned long long)e->weights, (unsigned long long)e->state,
                 (unsigned long long)e->saved, (unsigned long long)e->last,
                 (unsigned long long)e->reports.of, (unsigned long long)e->figures.of);
}

/* Whether it goes on with the same bits on one device: not if a round's replicas have their own. */
static bool jobs_is_made_alone(const jobs_job *j) {
    return j->kind != JOB_ONE && j->kind != JOB_ODD && j->kind != JOB_LOCAL &&
           j->number / JOB_KINDS % 2 == 0;
}

/* Ranks are as well processes, with the same results; for a share of the jobs. */
static bool jobs_is_made_by_processes(const jobs_job *j) {
    return j->v[F_RANKS] > 1 && j->number / 2 % 4 == 1;
}

static void jobs_processes(const jobs_job *j, jobs_rank *all, const jobs_end *threads) {
    static char was[LINE], is[LINE], texts[LINE / 2];
    jobs_end end;
    jobs_texts(all, j->v[F_RANKS], texts, sizeof texts);
    *was = *is = 0;
    jobs_line_end(was, LINE, threads);
    snprintf(was + strlen(was), LINE - strlen(was), ", %s", texts);
    jobs_run_processes(j, all);
    jobs_sum(all, j->v[F_RANKS], &end);
    jobs_texts(all, j->v[F_RANKS], texts, sizeof texts);
    jobs_line_end(is, LINE, &end);
    snprintf(is + strlen(is), LINE - strlen(is), ", %s", texts);
    test_check(!strcmp(was, is), __FILE__, __LINE__,
               "job %d, ranks are threads\n      %s\n    and "
               "processes\n      %s",
               j->number, was, is);
}

static void jobs_line(const jobs_job *j, char to[LINE]) {
    static jobs_rank all[JOB_RANKS];
    static char texts[LINE / 2];
    jobs_end straight, again;
    const int ranks = j->v[F_RANKS];
    snprintf(to, LINE, "%d | ", j->number);
    jobs_words(j, to + strlen(to), LINE - strlen(to));
    jobs_run(j, WAY_STRAIGHT, all);
    jobs_sum(all, ranks, &straight);
    jobs_texts(all, ranks, texts, sizeof texts);
    jobs_line_end(to, LINE, &straight);
    if (jobs_is_made_by_processes(j))
        jobs_processes(j, all, &straight);
    if (straight.saved) {
        jobs_run(j, WAY_RESUMED, all);
        jobs_sum(all, ranks, &again);
        jobs_mark(j, to, "resumed", &straight, &again);
    }
    if (straight.saved && jobs_is_made_alone(j)) {
        jobs_run(j, WAY_ALONE, all);
        jobs_mark(j, to, "alone", &straight, &all[0].end);
    }
    remove(all[0].half);
    remove(all[0].full);
    jobs_line_bytes(to, LINE, &straight);
    snprintf(to + strlen(to), LINE - strlen(to), " | %s", texts);
}

/* ---- a line as it is recorded */

typedef struct jobs_parts { /* number, words, results, bytes, texts */
    char text[LINE], *at[5];
} jobs_parts;

static bool jobs_take_apart(const char *line, jobs_parts *p) {
    int count = 1;
    snprintf(p->text, sizeof p->text, "%s", line);
    p->text[strcspn(p->text, "\r\n")] = 0;
    p->at[0] = p->text;
    for (char *c; count < 5 && (c = strstr(p->at[count - 1], " | ")); count++) {
        *c = 0;
        p->at[count] = c + 3;
    }
    return count == 5;
}

/* Of the host's bytes: a context has more members with more of the library's options. Without
 * optimising, padding of descriptions has any bytes, and codes are made again for it
 * (src/program/codes.c): then they are not compared. */
#ifdef __OPTIMIZE__
enum { HOST_SLACK = 4096 };
#else
enum { HOST_SLACK = 1 << 30 };
#endif

static bool jobs_has_grown(const char *name, const char *was, const char *is) {
    const unsigned long long slack = strcmp(name, "host") ? 0 : HOST_SLACK;
    return strtoull(is, NULL, 10) > strtoull(was, NULL, 10) + slack;
}

/* Pairs of a name and a value: those that differ, or, of bytes, have grown. */
static bool jobs_pairs_differ(char *was, char *is, bool bytes, char *to, size_t room) {
    char *rest[2], *name[2] = {strtok_r(was, " ", &rest[0]), strtok_r(is, " ", &rest[1])};
    bool differ = false;
    for (; name[0] && name[1];
         name[0] = strtok_r(NULL, " ", &rest[0]), name[1] = strtok_r(NULL, " ", &rest[1])) {
        const char *a = strtok_r(NULL, " ", &rest[0]), *b = strtok_r(NULL, " ", &rest[1]);
        const size_t used = strlen(to);
        if (!a || !b || strcmp(name[0], name[1]))
            break;
        if (bytes ? !jobs_has_grown(name[0], a, b) : !strcmp(a, b))
            continue;
        differ = true;
        snprintf(to + used, room - used, "\n      %s: was %s, is %s", name[0], a, b);
    }
    if (name[0] || name[1])
        snprintf(to + strlen(to), room - strlen(to), "\n      %s: one of both has none",
                 name[0] ? name[0] : name[1]);
    return differ || name[0] || name[1];
}

static void jobs_compare(int number, const char *was, const char *is) {
    static jobs_parts a, b;
    static char differ[LINE * 2];
    *differ = 0;
    if (!test_check(jobs_take_apart(was, &a) && jobs_take_apart(is, &b), __FILE__, __LINE__,
                    "job %d: no line of " JOBS_FILE ": %s", number, was) ||
        !test_check(!strcmp(a.at[1], b.at[1]), __FILE__, __LINE__,
                    "job %d is drawn as\n      %s\n    and was recorded as\n      %s\n    record "
                    "anew what the code before this change makes of it",
                    number, b.at[1], a.at[1]))
        return;
    bool same = !jobs_pairs_differ(a.at[2], b.at[2], false, differ, sizeof differ);
    same = !jobs_pairs_differ(a.at[3], b.at[3], true, differ, sizeof differ) && same;
    if (strcmp(a.at[4], b.at[4]))
        snprintf(differ + strlen(differ), sizeof differ - strlen(differ),
                 "\n      texts: was \"%s\",\n      is \"%s\"", a.at[4], b.at[4]);
    test_check(same && !strcmp(a.at[4], b.at[4]), __FILE__, __LINE__, "job %d, %s:%s", number,
               b.at[1], differ);
}

/* ---- a job that hangs ends the program, and says which it is */

static char jobs_now[LINE];

static void jobs_hung(int signal) {
    (void)signal;
    if (write(1, jobs_now, strlen(jobs_now)) < 0)
        _exit(2);
    _exit(1);
}

static void jobs_watch(const jobs_job *j) {
    snprintf(jobs_now, sizeof jobs_now, "FAILED  job %d hangs: ", j->number);
    jobs_words(j, jobs_now + strlen(jobs_now), sizeof jobs_now - strlen(jobs_now) - 2);
    strcat(jobs_now, "\n");
    alarm(test_takes(1, 1, 2) ? JOB_SECONDS : 10 * JOB_SECONDS);
}

static void jobs_line_watched(const jobs_job *j, char to[LINE]) {
    void (*before)(int) = signal(SIGALRM, jobs_hung);
    jobs_watch(j);
    jobs_line(j, to);
    alarm(0);
    signal(SIGALRM, before);
}

/* ---- all jobs */

static int jobs_env(const char *name, int otherwise) {
    const char *value = getenv(name);
    return value ? atoi(value) : otherwise;
}

/* The lines before the first that is made. */
static char *jobs_kept(int first) {
    static char line[LINE];
    FILE *f = first ? fopen(JOBS_FILE, "r") : NULL;
    char *kept = calloc((size_t)first + 1, LINE);
    for (int i = 0; f && kept && i < first && fgets(line, sizeof line, f); i++)
        strcat(kept, line);
    if (f)
        fclose(f);
    return kept;
}

/* Each is made twice: a job with two results is reported, and left out. */
static void jobs_record(int first) {
    static char line[LINE], again[LINE];
    char *kept = jobs_kept(first);
    REQUIRE(kept != NULL);
    FILE *f = fopen(JOBS_FILE, "w");
    REQUIRE(f != NULL);
    fprintf(f, "%s", kept);
    free(kept);
    for (int i = first; i < JOBS; i++) {
        const jobs_job j = jobs_of(i);
        jobs_line_watched(&j, line);
        jobs_line_watched(&j, again);
        if (test_check(!strcmp(line, again), __FILE__, __LINE__,
                       "job %d is left out, since two runs differ:\n    %s\n    %s", i, line,
                       again))
            fprintf(f, "%s\n", line);
        else
            fprintf(f, "%d left out\n", i);
    }
    CHECK(fclose(f) == 0);
}

static void jobs_one(int number) {
    static char line[LINE];
    const jobs_job j = jobs_of(number);
    jobs_line_watched(&j, line);
    printf("%s\n", line);
}

/* Those of this process: the `part`th of `parts`. */
static void jobs_replay(int part, int parts) {
    static char was[LINE], is[LINE];
    FILE *f = fopen(JOBS_FILE, "r");
    int i = 0;
    REQUIRE(f != NULL);
#if defined __i386__
    SKIP("arithmetic without FMA rounds otherwise");
#elif defined __x86_64__
    if (!__builtin_cpu_supports("fma"))
        SKIP("a processor without FMA rounds otherwise");
#endif
    for (; fgets(was, sizeof was, f); i++) {
        const jobs_job j = jobs_of(i);
        if (i % parts != part || !test_takes(i / parts, 4, 25) || strstr(was, "left out"))
            continue;
        jobs_line_watched(&j, is);
        jobs_compare(i, was, is);
    }
    CHECK(i == JOBS);
    fclose(f);
}

/* The promises hold, and what is refused is refused alike. */
static void jobs_mixed(int part, int parts) {
    static char was[LINE], is[LINE];
    FILE *f = fopen(JOBS_FILE, "r");
    REQUIRE(f != NULL);
    for (int i = 0; i < JOBS_F32 && fgets(was, sizeof was, f); i++) {
        jobs_job j = jobs_draw(i);
        j.precision = DT_PRECISION_BF16;
        if (i % parts != part || !test_takes(i / parts, 8, 50) || j.v[F_MEMORY])
            continue;
        jobs_line_watched(&j, is);
        test_check(!strstr(was, "| refused") == !strstr(is, "| refused"), __FILE__, __LINE__,
                   "job %d in f32:\n      %s\n    and in mixed precision\n      %s", i, was, is);
    }
    fclose(f);
}

TEST(random_jobs_in_mixed_precision_have_their_guarantees) {
    jobs_mixed(jobs_env("DTRAIN_PART", 0), jobs_env("DTRAIN_PARTS", 1));
}

TEST(random_jobs_have_their_recorded_results) {
    if (getenv("DTRAIN_RECORD"))
        jobs_record(strcmp(getenv("DTRAIN_RECORD"), "mixed") ? 0 : JOBS_F32);
    else if (getenv("DTRAIN_JOB"))
        jobs_one(jobs_env("DTRAIN_JOB", 0));
    else
        jobs_replay(jobs_env("DTRAIN_PART", 0), jobs_env("DTRAIN_PARTS", 1));
}
