/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Shared by the measuring programs of the lab. They check the emulated machine from inside, and on purpose have
 * nothing in common with nearfar's own probe: raw system calls, plain C, `cc -O2 -static -pthread`.
 */
#ifndef NEARFAR_LAB_COMMON_H
#define NEARFAR_LAB_COMMON_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <sched.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define LINE 64ul
#define PAGE 4096ul
#define HUGE_PAGE (2ul << 20)
#define MPOL_BIND 2
#define MPOL_MF_STRICT 1

/* Says what went wrong and ends the program. */
static inline void die(const char *format, ...)
{
    va_list arguments;
    int error = errno;

    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fprintf(stderr, error ? ": %s\n" : "\n", strerror(error));
    exit(1);
}

static inline double seconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* The value of option NAME=NUMBER among the arguments, else `otherwise`. */
static inline long option(int count, char **arguments, const char *name, long otherwise)
{
    size_t length = strlen(name);
    int i;

    for (i = 1; i < count; i++)
        if (!strncmp(arguments[i], name, length) && arguments[i][length] == '=')
            return strtol(arguments[i] + length + 1, NULL, 0);
    return otherwise;
}

/* How often to measure: option `rounds`, 5 unless told. */
enum { ROUNDS_MAX = 101 };

static inline long rounds_option(int count, char **arguments)
{
    long rounds = option(count, arguments, "rounds", 5);

    if (rounds < 1 || rounds > ROUNDS_MAX) {
        errno = 0;
        die("rounds=%ld, not from 1 to %d", rounds, ROUNDS_MAX);
    }
    return rounds;
}

static inline int compare(const void *one, const void *other)
{
    double a = *(const double *)one, b = *(const double *)other;

    return (a > b) - (a < b);
}

static inline void sort(double *figures, long count)
{
    qsort(figures, (size_t)count, sizeof(*figures), compare);
}

/* Pins the calling thread. */
static inline void pin(long cpu)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    CPU_SET((size_t)cpu, &set);
    if (sched_setaffinity(0, sizeof(set), &set))
        die("pinning to CPU %ld", cpu);
}

/* `bytes` of memory bound to `node`, in huge pages if asked, present and zero. */
static inline char *memory(size_t bytes, long node, int huge)
{
    unsigned long mask[16] = { 0 };
    size_t space = bytes + HUGE_PAGE;
    char *start = mmap(NULL, space, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (start == MAP_FAILED)
        die("%zu bytes", space);
    start = (char *)(((uintptr_t)start + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1));
    mask[node / 64] = 1ul << (node % 64);
    if (syscall(SYS_mbind, start, bytes, MPOL_BIND, mask, 1024ul, MPOL_MF_STRICT))
        die("binding to node %ld", node);
    /* A kernel without huge pages refuses this; then there are none anyway. */
    madvise(start, bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    memset(start, 0, bytes);
    return start;
}

/* Checks with the kernel that every page is on `node`. */
static inline void check_placement(char *start, size_t bytes, long node)
{
    enum { BATCH = 512 };
    void *pages[BATCH];
    int status[BATCH];
    size_t done = 0, total = bytes / PAGE;

    while (done < total) {
        size_t count = total - done < BATCH ? total - done : BATCH, i;

        for (i = 0; i < count; i++)
            pages[i] = start + (done + i) * PAGE;
        if (syscall(SYS_move_pages, 0, count, pages, NULL, status, 0))
            die("asking where pages are");
        for (i = 0; i < count; i++)
            if (status[i] != node) {
                errno = 0;
                die("page %zu is on node %d, not %ld", done + i, status[i], node);
            }
        done += count;
    }
}

/* Whether the mapping that holds `start` has huge pages, in kB, by /proc/self/smaps. */
static inline long huge_kb(const char *start)
{
    FILE *file = fopen("/proc/self/smaps", "r");
    char line[512];
    unsigned long from, to;
    int inside = 0;
    long kb = 0;

    if (!file)
        return -1;
    while (fgets(line, sizeof(line), file)) {
        if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
            inside = from <= (uintptr_t)start && (uintptr_t)start < to;
        else if (inside && sscanf(line, "AnonHugePages: %ld", &kb) == 1)
            break;
    }
    fclose(file);
    return kb;
}

static inline uint64_t random_next(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* Links all lines of the array into one cycle, in random order (Sattolo's shuffle). Returns their order, to be freed. */
static inline uint32_t *link_lines(char *array, size_t lines)
{
    uint32_t *order = malloc(lines * sizeof(*order));
    uint64_t seed = 0x9e3779b97f4a7c15ull;
    size_t i;

    if (!order)
        die("order of %zu lines", lines);
    for (i = 0; i < lines; i++)
        order[i] = (uint32_t)i;
    for (i = lines - 1; i > 0; i--) {
        size_t other = random_next(&seed) % i;
        uint32_t kept = order[i];

        order[i] = order[other];
        order[other] = kept;
    }
    for (i = 0; i < lines; i++)
        *(void **)(array + order[i] * LINE) = array + order[(i + 1) % lines] * LINE;
    return order;
}

#endif
