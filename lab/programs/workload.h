/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Shared by the workloads for tiering: options that are refused if unknown, memory that no policy binds, and one way to
 * say how things go. Each interval is one line of JSON with at least `program`, `end_s` (since the timed part began),
 * `operations` (in this interval) and `operations_per_s`; the last line has `"done":true` and the whole run.
 */
#ifndef NEARFAR_LAB_WORKLOAD_H
#define NEARFAR_LAB_WORKLOAD_H

#include "common.h"

/* Between two looks at the clock. */
enum { BATCH = 1024 };

/* Checks that every argument is NAME=NUMBER with a NAME of the list, which ends with NULL; prints the usage if asked. */
static inline void options_check(int count, char **arguments, const char *usage, const char *const *names)
{
    int i;

    for (i = 1; i < count; i++) {
        const char *equals = strchr(arguments[i], '=');
        const char *const *name = names;
        char *end = NULL;

        if (!strcmp(arguments[i], "--help") || !strcmp(arguments[i], "-h")) {
            fputs(usage, stdout);
            exit(0);
        }
        while (equals && *name &&
               (strlen(*name) != (size_t)(equals - arguments[i]) ||
                strncmp(*name, arguments[i], (size_t)(equals - arguments[i]))))
            name++;
        if (equals)
            strtol(equals + 1, &end, 0);
        if (!equals || !*name || end == equals + 1 || *end) {
            fprintf(stderr, "%s: no option of the form NAME=NUMBER that is known here\n%s", arguments[i], usage);
            exit(2);
        }
    }
}

/* The value of an option, which must lie within bounds. */
static inline long bounded(int count, char **arguments, const char *name, long otherwise, const long bounds[2])
{
    long value = option(count, arguments, name, otherwise);

    if (value < bounds[0] || value > bounds[1]) {
        fprintf(stderr, "%s=%ld: not from %ld to %ld\n", name, value, bounds[0], bounds[1]);
        exit(2);
    }
    return value;
}

/* `bytes` of memory placed by the policy the program was started under, in small pages unless `huge`, not yet touched. */
static inline char *plain_memory(size_t bytes, int huge)
{
    char *start = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (start == MAP_FAILED)
        die("%zu bytes", bytes);
    /* A kernel without huge pages refuses this; then there are none anyway. */
    madvise(start, bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    return start;
}

/* What is counted over time. */
struct meter {
    const char *program;
    double began, interval_began, interval;
    uint64_t in_interval, total;
};

static inline struct meter meter_start(const char *program, long interval_ms)
{
    double now = seconds();
    struct meter meter = { program, now, now, (double)interval_ms / 1e3, 0, 0 };

    return meter;
}

/* Counts; returns whether an interval has ended. If so the caller prints it, with what else it has to say. */
static inline int meter_add(struct meter *meter, uint64_t operations, double now)
{
    meter->in_interval += operations;
    meter->total += operations;
    return now - meter->interval_began >= meter->interval;
}

/* Prints an interval, `more` (JSON fields, each with a comma before it) within it, and begins the next. */
static inline void meter_print(struct meter *meter, double now, const char *more)
{
    printf("{\"program\":\"%s\",\"end_s\":%.6f,\"operations\":%llu,\"operations_per_s\":%.1f%s}\n", meter->program,
           now - meter->began, (unsigned long long)meter->in_interval,
           (double)meter->in_interval / (now - meter->interval_began), more);
    fflush(stdout);
    meter->interval_began = now;
    meter->in_interval = 0;
}

/* Prints the whole run. */
static inline void meter_done(const struct meter *meter, double now, const char *more)
{
    printf("{\"program\":\"%s\",\"done\":true,\"seconds\":%.6f,\"operations\":%llu,\"operations_per_s\":%.1f%s}\n",
           meter->program, now - meter->began, (unsigned long long)meter->total,
           (double)meter->total / (now - meter->began), more);
}

#endif
