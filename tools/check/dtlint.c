/* Finds launches that would leave a GPU idle, in the steps of networks. It uses only their plans,
 * and asks no device. A launch's cost is in its kernel's row. Known ones are in a file, one line
 * for a kernel of a network. They may only become fewer and better:
 *
 *   dtlint FILE    compares; 1 where a launch differs from its line (if better, drop it)
 *   dtlint --list  prints the file's lines, for what there is now
 *   dtlint NAME    every launch of a network
 */
#define DT_IMPLEMENTATION
#include "dtrain.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "launches.h"

/* An invocation that makes more steps has company, of that number of workgroups; and so has much
 * work. */
#define STEPS_MAX 512
#define STEPS_GROUPS 256
#define WORK_MAX 1000000
#define WORK_GROUPS 64

typedef struct line { /* of a kernel in a network: its launches that leave a GPU idle */
    char net[16], kernel[32];
    unsigned launches;
    unsigned long long steps, groups; /* the most steps, the fewest workgroups */
} line;

typedef struct total {
    const char *net;
    bool print;
    unsigned launches, barriers;
    unsigned long long bytes;
    unsigned line_count;
    line lines[DTI_K_COUNT];
} total;

static bool is_idle(const launches_fact *f) {
    return (f->effort.steps > STEPS_MAX && f->groups < STEPS_GROUPS) ||
           (f->effort.flops > WORK_MAX && f->groups < WORK_GROUPS);
}

static void add_idle(total *t, const launches_fact *f) {
    line *l = t->lines;
    while (l < t->lines + t->line_count && strcmp(l->kernel, f->kernel) != 0)
        l++;
    if (l == t->lines + t->line_count) {
        *l = (line){.groups = ~0ull};
        snprintf(l->net, sizeof l->net, "%s", t->net);
        snprintf(l->kernel, sizeof l->kernel, "%s", f->kernel);
        t->line_count++;
    }
    l->launches++;
    l->steps = DTI_MAX(l->steps, f->effort.steps);
    l->groups = DTI_MIN(l->groups, f->groups);
}

static void add(void *user, const launches_fact *f) {
    total *t = user;
    t->launches++;
    t->barriers += f->barrier;
    t->bytes += f->bytes;
    if (is_idle(f))
        add_idle(t, f);
    if (t->print)
        printf("%s %-14s workgroups %7llu of %3u  steps %6llu  kflop %9llu  kB %8llu%s\n",
               f->barrier ? "|" : " ", f->kernel, (unsigned long long)f->groups, f->local,
               (unsigned long long)f->effort.steps, (unsigned long long)f->effort.flops / 1000,
               (unsigned long long)f->bytes / 1000, is_idle(f) ? "  idle" : "");
}

static void count(const launches_net *net, total *t) {
    launches_step step;
    const bool print = t->print;
    *t = (total){.net = net->name, .print = print};
    if (launches_open(&step, net)) {
        fprintf(stderr, "dtlint: %s: %s\n", net->name, step.ctx ? dt_ctx_error(step.ctx) : "?");
        exit(1);
    }
    launches_walk(step.code, add, t);
    launches_close(&step);
}

/* ---- the known ones */

static void print_line(const line *l) {
    printf("%s %s: %u launches, %llu steps, %llu workgroups\n", l->net, l->kernel, l->launches,
           l->steps, l->groups);
}

static bool read_line(FILE *file, line *l) {
    char text[256];
    while (fgets(text, sizeof text, file)) {
        if (text[0] == '#')
            continue;
        if (sscanf(text, "%15s %31[^:]: %u launches, %llu steps, %llu workgroups", l->net,
                   l->kernel, &l->launches, &l->steps, &l->groups) == 5)
            return true;
        fprintf(stderr, "dtlint: no line of the list: %s", text);
        exit(1);
    }
    return false;
}

/* The line of this kernel in a list, or none of its launches. */
static line find(const line *lines, unsigned count, const line *wanted) {
    for (unsigned i = 0; i < count; i++) {
        if (!strcmp(lines[i].net, wanted->net) && !strcmp(lines[i].kernel, wanted->kernel))
            return lines[i];
    }
    return (line){.groups = ~0ull};
}

static bool same(const line *a, const line *b) {
    return a->launches == b->launches && a->steps == b->steps && a->groups == b->groups;
}

static int compare(const line *known, unsigned known_count, const line *now, unsigned now_count) {
    int bad = 0;
    for (unsigned i = 0; i < now_count; i++) {
        const line k = find(known, known_count, &now[i]);
        if (same(&k, &now[i]))
            continue;
        const bool worse =
            now[i].launches > k.launches || now[i].steps > k.steps || now[i].groups < k.groups;
        printf(worse ? "leaves a GPU idle: " : "better than its line, which is now: ");
        print_line(&now[i]);
        bad = 1;
    }
    for (unsigned i = 0; i < known_count; i++) {
        const line n = find(now, now_count, &known[i]);
        if (n.launches)
            continue;
        printf("fixed, so remove its line: ");
        print_line(&known[i]);
        bad = 1;
    }
    return bad;
}

enum { LINES_MAX = 256 };

static int check(const char *name) {
    static line known[LINES_MAX], now[LINES_MAX];
    unsigned known_count = 0, now_count = 0;
    FILE *file = name ? fopen(name, "r") : NULL;
    if (name && !file) {
        fprintf(stderr, "dtlint: cannot read %s\n", name);
        return 1;
    }
    while (file && known_count < LINES_MAX && read_line(file, &known[known_count]))
        known_count++;
    for (size_t i = 0; i < DTI_COUNT(launches_nets); i++) {
        static total t;
        count(&launches_nets[i], &t);
        if (name)
            printf("   %-8s %3u launches, %3u barriers, %.1f MB\n", t.net, t.launches, t.barriers,
                   (double)t.bytes * 1e-6);
        for (unsigned k = 0; k < t.line_count && now_count < LINES_MAX; k++)
            now[now_count++] = t.lines[k];
    }
    if (file)
        fclose(file);
    for (unsigned i = 0; !name && i < now_count; i++)
        print_line(&now[i]);
    return name ? compare(known, known_count, now, now_count) : 0;
}

int main(int argc, char **argv) {
    static total t = {.print = true};
    for (size_t i = 0; argc == 2 && i < DTI_COUNT(launches_nets); i++) {
        if (strcmp(argv[1], launches_nets[i].name) != 0)
            continue;
        count(&launches_nets[i], &t);
        printf("%u launches, %u barriers, %.1f MB\n", t.launches, t.barriers,
               (double)t.bytes * 1e-6);
        return 0;
    }
    if (argc == 2)
        return check(strcmp(argv[1], "--list") == 0 ? NULL : argv[1]);
    fprintf(stderr, "usage: dtlint FILE | --list | NAME of a network\n");
    return 1;
}
