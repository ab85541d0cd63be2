/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Shared by the workloads for traffic management: a team of threads, one on each CPU, that work in rounds over memory which no
 * policy binds.
 *
 * The first thread is on the first CPU and makes the data, unless `parallel=1`: then each makes its part. That is all the
 * difference between a program that wrote its set-up as one would, and one written for several nodes. Threads wait for each
 * other after each round, as programs of this kind do, and the first tells how things go (workload.h).
 *
 * When the timed part begins it says so, with the time since the machine was switched on (`began_s`), for whoever compares it
 * with counts of the machine's.
 *
 * Data are lines of 64 bytes, of which programs use a word: a line is what memory serves, and each further load of it costs
 * emulation and changes nothing for memory. What is done with a word is real, in whole numbers.
 */
#ifndef NEARFAR_LAB_TEAM_H
#define NEARFAR_LAB_TEAM_H

#include "workload.h"

#include <pthread.h>

enum { WORDS = LINE / 8, THREADS_MAX = 64, LINES_A_PAGE = PAGE / LINE };

/* A line; what is used of it is `word[0]`. */
struct line {
    uint64_t word[WORDS];
};

/* What all of a team share. */
struct team {
    long threads;
    int parallel, huge, argc;
    char **argv;
    const char *program;
    double run_for;
    uint64_t rounds_max;
    struct meter meter;
    pthread_barrier_t barrier;
    int done;
    void *work;                                                /* the program's own */
    void (*make)(void *work, long thread, int all);            /* makes the thread's part, or all */
    uint64_t (*round)(void *work, long thread);                /* does the thread's part; returns operations */
    void (*between)(void *work);                               /* by the first thread alone, after each round */
    uint64_t operations[THREADS_MAX][WORDS];                   /* of this round, a line for each thread */
};

struct member {
    struct team *team;
    long thread;
};

#define TEAM_NAMES "threads", "parallel", "seconds", "rounds", "huge", METER_NAMES
#define TEAM_USAGE                                                                            \
    "  threads=0        one on each of the first CPUs; 0: as many as there are\n"            \
    "  parallel=0       1: each thread makes its part of the data, and so has it on its node\n" \
    "  seconds=10       how long; 0: until `rounds` are done\n"                               \
    "  rounds=0         how many rounds, if not for a time\n"                                 \
    "  huge=0           1: ask for huge pages\n" METER_USAGE

/* The lines that are a thread's: whole pages, as even as can be. */
static inline void team_part(const struct team *team, size_t lines, long thread, size_t *from, size_t *to)
{
    size_t pages = lines / LINES_A_PAGE, threads = (size_t)team->threads, at = (size_t)thread;

    *from = pages * at / threads * LINES_A_PAGE;
    *to = pages * (at + 1) / threads * LINES_A_PAGE;
}

/* Options of all such programs; `names` and `usage` have those of the program itself as well. */
static inline void team_options(struct team *team, int argc, char **argv, const char *usage, const char *const *names)
{
    static const long counts[] = { 0, THREADS_MAX }, spans[] = { 0, 1000000000 }, flags[] = { 0, 1 };

    options_check(argc, argv, usage, names);
    team->argc = argc;
    team->argv = argv;
    team->threads = bounded(argc, argv, "threads", 0, counts);
    if (team->threads == 0)
        team->threads = sysconf(_SC_NPROCESSORS_ONLN);
    if (team->threads < 1 || team->threads > THREADS_MAX)
        team->threads = THREADS_MAX;
    team->parallel = bounded(argc, argv, "parallel", 0, flags) != 0;
    team->huge = bounded(argc, argv, "huge", 0, flags) != 0;
    team->run_for = (double)bounded(argc, argv, "seconds", 10, spans);
    team->rounds_max = (uint64_t)bounded(argc, argv, "rounds", 0, spans);
    if (team->run_for == 0 && team->rounds_max == 0)
        team->done = 1;
}

/* The mebibytes of an option, as lines. */
static inline size_t team_lines(int argc, char **argv, long otherwise)
{
    static const long sizes[] = { 1, 1 << 20 };

    return ((size_t)bounded(argc, argv, "mb", otherwise, sizes) << 20) / LINE;
}

static inline struct line *team_memory(const struct team *team, size_t lines)
{
    return (struct line *)(void *)plain_memory(lines * LINE, team->huge);
}

static inline void team_wait(struct team *team)
{
    int error = pthread_barrier_wait(&team->barrier);

    if (error && error != PTHREAD_BARRIER_SERIAL_THREAD) {
        errno = error;
        die("waiting for the other threads");
    }
}

/* What the first thread does after each round, while the others wait. */
static inline void team_count(struct team *team, uint64_t *rounds)
{
    double now = seconds();
    uint64_t operations = 0;
    long thread;

    for (thread = 0; thread < team->threads; thread++)
        operations += team->operations[thread][0];
    if (team->between)
        team->between(team->work);
    *rounds += 1;
    if (meter_add(&team->meter, operations, &now))
        meter_print(&team->meter, now, "");
    team->done = team->run_for != 0 ? now - team->meter.began >= team->run_for : *rounds >= team->rounds_max;
}

static inline void *team_member(void *of)
{
    const struct member *member = of;
    struct team *team = member->team;
    uint64_t rounds = 0;

    pin(member->thread % sysconf(_SC_NPROCESSORS_CONF));
    if (member->thread == 0 || team->parallel)
        team->make(team->work, member->thread, !team->parallel);
    team_wait(team);
    if (member->thread == 0) {
        team->meter = meter_start(team->program, team->argc, team->argv);
        printf("{\"program\":\"%s\",\"began_s\":%.6f}\n", team->program, team->meter.began);
        fflush(stdout);
    }
    team_wait(team);
    while (!team->done) {
        team->operations[member->thread][0] = team->round(team->work, member->thread);
        team_wait(team);
        if (member->thread == 0)
            team_count(team, &rounds);
        team_wait(team);
    }
    return NULL;
}

/* Runs the team; returns when it is done. The caller says what came out (team_done). */
static inline void team_run(struct team *team, const char *program)
{
    struct member members[THREADS_MAX];
    pthread_t handles[THREADS_MAX];
    long thread;

    if (pthread_barrier_init(&team->barrier, NULL, (unsigned)team->threads))
        die("a barrier for %ld threads", team->threads);
    team->program = program;
    for (thread = 0; thread < team->threads; thread++) {
        members[thread] = (struct member){ .team = team, .thread = thread };
        if (thread > 0 && pthread_create(&handles[thread], NULL, team_member, &members[thread]))
            die("starting thread %ld", thread);
    }
    team_member(&members[0]);
    for (thread = 1; thread < team->threads; thread++)
        pthread_join(handles[thread], NULL);
}

/* Prints the whole run with a number that depends on all that was computed. */
static inline void team_done(const struct team *team, uint64_t sum)
{
    char more[48];

    snprintf(more, sizeof(more), ",\"sum\":\"%016llx\"", (unsigned long long)sum);
    meter_done(&team->meter, seconds(), more);
}

/* In how many bits two words differ. */
static inline uint64_t apart(uint64_t one, uint64_t other)
{
    uint64_t bits = one ^ other;

    bits -= bits >> 1 & 0x5555555555555555ull;
    bits = (bits & 0x3333333333333333ull) + (bits >> 2 & 0x3333333333333333ull);
    bits = (bits + (bits >> 4)) & 0x0f0f0f0f0f0f0f0full;
    return bits * 0x0101010101010101ull >> 56;
}

/* A word for a line, the same whoever makes it. */
static inline uint64_t word_of(uint64_t line)
{
    uint64_t word = (line + 1) * 0x9e3779b97f4a7c15ull;

    word ^= word >> 29;
    word *= 0xbf58476d1ce4e5b9ull;
    return word ^ word >> 32;
}

#endif
