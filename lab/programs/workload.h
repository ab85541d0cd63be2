/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Shared by the workloads for tiering: options that are refused if unknown, memory that no policy binds, and one way to
 * say how things go. Each interval is one line of JSON with at least `program`, `end_s` (since the timed part began),
 * `busy_s` (without rests), `operations` (in this interval) and `operations_per_s` (of the time at work); the last line has
 * `"done":true` and the whole run.
 */
#ifndef NEARFAR_LAB_WORKLOAD_H
#define NEARFAR_LAB_WORKLOAD_H

#include "common.h"

#include <signal.h>

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

/* Names of the options that meter_start reads; every workload has them. */
#define METER_NAMES "interval_ms", "busy_percent", "wait"
#define METER_USAGE                                                                           \
    "  interval_ms=500  between two lines\n"                                                  \
    "  busy_percent=100 work so much of every 10 ms and sleep for the rest; rates are of the time at work\n" \
    "  wait=0           1: once all memory is there, stop (SIGSTOP) until continued; only then time begins\n"

/* Work and rest alternate in slices of so many seconds. */
#define SLICE 0.010

/* What is counted over time. */
struct meter {
    const char *program;
    double began, interval_began, interval;
    uint64_t in_interval, total;
    double busy, slice_began;       /* the share of a slice that is work, and when this one began */
    double idle_in_interval, idle;  /* seconds that do not count: rest, and looks at where pages are */
};

/* To be called when all memory is there. */
static inline struct meter meter_start(const char *program, int argc, char **argv)
{
    static const long intervals[] = { 1, 1000000 }, shares[] = { 1, 100 }, flags[] = { 0, 1 };
    struct meter meter = { .program = program };

    meter.interval = (double)bounded(argc, argv, "interval_ms", 500, intervals) / 1e3;
    meter.busy = (double)bounded(argc, argv, "busy_percent", 100, shares) / 100;
    fflush(stdout);
    if (bounded(argc, argv, "wait", 0, flags))
        raise(SIGSTOP);
    meter.began = meter.interval_began = meter.slice_began = seconds();
    return meter;
}

/* Does not count the time since `from`; returns what time it is. */
static inline double meter_forget(struct meter *meter, double from)
{
    double now = seconds();

    meter->idle_in_interval += now - from;
    meter->idle += now - from;
    meter->slice_began += now - from;
    return now;
}

static inline double meter_rest(struct meter *meter, double now)
{
    double until = meter->slice_began + SLICE;
    struct timespec at;

    if (now - meter->slice_began < meter->busy * SLICE)
        return now;
    at.tv_sec = (time_t)until;
    at.tv_nsec = (long)((until - (double)at.tv_sec) * 1e9);
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) == EINTR)
        ;
    now = meter_forget(meter, now);
    meter->slice_began = now;
    return now;
}

/* Counts, rests if it is time to, and tells what time it is then; returns whether an interval has ended. If so the caller
 * prints it, with what else it has to say. */
static inline int meter_add(struct meter *meter, uint64_t operations, double *now)
{
    meter->in_interval += operations;
    meter->total += operations;
    if (meter->busy < 1)
        *now = meter_rest(meter, *now);
    return *now - meter->interval_began >= meter->interval;
}

/* Prints an interval, `more` (JSON fields, each with a comma before it) within it, and begins the next. */
static inline void meter_print(struct meter *meter, double now, const char *more)
{
    double busy = now - meter->interval_began - meter->idle_in_interval;

    printf("{\"program\":\"%s\",\"end_s\":%.6f,\"busy_s\":%.6f,\"operations\":%llu,\"operations_per_s\":%.1f%s}\n",
           meter->program, now - meter->began, busy, (unsigned long long)meter->in_interval,
           (double)meter->in_interval / busy, more);
    fflush(stdout);
    meter->interval_began = now;
    meter->in_interval = 0;
    meter->idle_in_interval = 0;
}

/* Prints the whole run. */
static inline void meter_done(const struct meter *meter, double now, const char *more)
{
    double busy = now - meter->began - meter->idle;

    printf("{\"program\":\"%s\",\"done\":true,\"seconds\":%.6f,\"busy_s\":%.6f,\"operations\":%llu,"
           "\"operations_per_s\":%.1f%s}\n",
           meter->program, now - meter->began, busy, (unsigned long long)meter->total, (double)meter->total / busy,
           more);
}

#endif
