/* One folder for the files of a test run, made at first use and removed at exit; and the Python
 * that interoperability is tested with. For the test files that main.c includes. */
#ifndef DTRAIN_TESTS_TEMP_H
#define DTRAIN_TESTS_TEMP_H

#include <dirent.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#ifdef _WIN32
#include <direct.h>
#define mkdir(path, mode) _mkdir(path)
#else
#include <sys/stat.h>
#endif

#define TEMP_FILES_MAX 64

static char temp_folder[256];
static char *temp_files[TEMP_FILES_MAX];

static void temp_remove(void) {
    for (int i = 0; i < TEMP_FILES_MAX && temp_files[i]; i++) {
        remove(temp_files[i]);
        free(temp_files[i]);
        temp_files[i] = NULL;
    }
    rmdir(temp_folder);
}

/* mkdtemp is not everywhere. */
static bool temp_make(const char *parent) {
    const unsigned long long start = (unsigned long long)time(NULL) << 24;
    for (unsigned i = 0; i < 1000; i++) {
        snprintf(temp_folder, sizeof temp_folder, "%s/dtrain-test-%llx", parent,
                 (start ^ (uintptr_t)&start >> 4) + i);
        if (mkdir(temp_folder, 0700) == 0)
            return true;
    }
    return false;
}

/* The path of a file in the folder; it lives until exit. */
static const char *temp_path(const char *name) {
    if (!*temp_folder) {
        const char *parent = getenv("TMPDIR");
        if (!temp_make(parent ? parent : "/tmp"))
            *temp_folder = 0;
        atexit(temp_remove);
    }
    char path[512];
    snprintf(path, sizeof path, "%s/%s", temp_folder, name);
    int i = 0;
    for (; i < TEMP_FILES_MAX - 1 && temp_files[i]; i++)
        if (!strcmp(temp_files[i], path))
            return temp_files[i];
    return temp_files[i] = strdup(path);
}

/* Writes a file in the folder and gives its path. */
__attribute__((__unused__)) static const char *temp_write(const char *name, const void *data,
                                                          size_t bytes) {
    const char *path = temp_path(name);
    FILE *file = fopen(path, "wb");
    if (file) {
        fwrite(data, 1, bytes, file);
        fclose(file);
    }
    return path;
}

/* How many files lie beside `path` that a writer of it is at, or left. */
__attribute__((__unused__)) static int temp_unfinished(const char *path) {
    char folder[512], start[256];
    const char *slash = strrchr(path, '/');
    int count = 0, size = snprintf(start, sizeof start, "%s.tmp.", slash ? slash + 1 : path);
    snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - path) : 1, slash ? path : ".");
    DIR *list = opendir(folder);
    for (struct dirent *entry; list && (entry = readdir(list));)
        count += !strncmp(entry->d_name, start, (size_t)size);
    if (list)
        closedir(list);
    return list ? count : -1;
}

/* Removes a folder and the files in it. */
__attribute__((__unused__)) static void temp_remove_folder(const char *folder) {
    char path[600];
    DIR *list = opendir(folder);
    for (struct dirent *entry; list && (entry = readdir(list));) {
        snprintf(path, sizeof path, "%.340s/%.255s", folder, entry->d_name);
        if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, ".."))
            remove(path);
    }
    if (list)
        closedir(list);
    rmdir(folder);
}

#ifndef __wasi__ /* which has no system() */
/* Runs a Python program, given as text without double quotes, dollars and backslashes; true when
 * it ended well. */
__attribute__((__unused__)) static bool temp_python(const char *program, bool quiet) {
    static const char venv[] = "build/venv/bin/python3";
    const char *python = getenv("DTRAIN_PYTHON");
    char command[4096];
    if (!python)
        python = access(venv, X_OK) == 0 ? venv : "python3";
    int size = snprintf(command, sizeof command, "%s -c \"%s\"%s", python, program,
                        quiet ? " >/dev/null 2>&1" : "");
    return size < (int)sizeof command && system(command) == 0;
}
#endif

#endif
