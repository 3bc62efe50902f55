/* What this process may do here. It is tried, and a test that skips says what failed and why. */
#ifndef DTRAIN_TESTS_CAN_H
#define DTRAIN_TESTS_CAN_H

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static char lacks[256];

/* False: lacks[] has the command and its first line of complaint. */
static bool can_run(const char *format, ...) {
    char command[512], said[128] = "no reason given", all[640];
    va_list list;
    va_start(list, format);
    vsnprintf(command, sizeof command, format, list);
    va_end(list);
    snprintf(all, sizeof all, "(%s) 2>&1", command);
    FILE *output = popen(all, "r");
    if (output && fgets(said, sizeof said, output))
        said[strcspn(said, "\n")] = 0;
    for (char rest[128]; output && fgets(rest, sizeof rest, output);) {
    }
    const bool ran = output && pclose(output) == 0;
    if (!ran)
        snprintf(lacks, sizeof lacks, "\"%.100s\" failed: %s", command, said);
    return ran;
}

/* The same of a function that a child process calls: it gives 0, or errno. */
static bool can_call(const char *what, int (*call)(const char *arg), const char *arg) {
    int status = 0;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0)
        _exit(call(arg));
    if (child > 0 && waitpid(child, &status, 0) == child && !status)
        return true;
    snprintf(lacks, sizeof lacks, "%s: %s", what,
             WIFEXITED(status) ? strerror(WEXITSTATUS(status)) : "its process ended");
    return false;
}

#endif
