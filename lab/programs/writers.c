/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * writers: how long an atomic increment takes while others increment the same cache line.
 *
 *     writers [cpus=A,B,...] [apart=0|1] [steps=N] [rounds=N]
 *
 * A thread on each CPU increments a counter; with `apart=1` each has a line of its own. Prints one line of JSON: the
 * time of an increment of one thread, the median of the rounds, the least and the most.
 */
#include "common.h"
#include <pthread.h>

#define WRITERS_MAX 16

static struct {
    volatile unsigned long count;
    char rest[4096 - sizeof(unsigned long)];
} counters[WRITERS_MAX] __attribute__((aligned(4096)));
static pthread_barrier_t barrier;
static long cpus[WRITERS_MAX], writers, apart, steps, rounds;
static double taken[WRITERS_MAX][ROUNDS_MAX];

static void *increment(void *number)
{
    long own = (long)number, round, step;
    volatile unsigned long *count = &counters[apart ? own : 0].count;

    pin(cpus[own]);
    for (round = 0; round < rounds; round++) {
        double began;

        pthread_barrier_wait(&barrier);
        began = seconds();
        for (step = 0; step < steps; step++)
            __asm__ volatile("lock; incq %0" : "+m"(*count));
        taken[own][round] = (seconds() - began) * 1e9 / (double)steps;
    }
    return NULL;
}

static void read_cpus(int argc, char **argv)
{
    int at;

    for (at = 1; at < argc; at++) {
        char *text = argv[at];

        if (strncmp(text, "cpus=", 5))
            continue;
        for (text += 5; *text && writers < WRITERS_MAX; text += *text == ',')
            cpus[writers++] = strtol(text, &text, 10);
    }
    if (!writers)
        cpus[writers++] = 0;
}

int main(int argc, char **argv)
{
    pthread_t threads[WRITERS_MAX];
    unsigned long sum = 0;
    long one;

    read_cpus(argc, argv);
    apart = option(argc, argv, "apart", 0);
    steps = option(argc, argv, "steps", 20000);
    rounds = rounds_option(argc, argv);
    pthread_barrier_init(&barrier, NULL, (unsigned)writers);
    for (one = 0; one < writers; one++)
        if (pthread_create(&threads[one], NULL, increment, (void *)one))
            die("thread %ld", one);
    for (one = 0; one < writers; one++)
        pthread_join(threads[one], NULL);
    for (one = 0; one < writers; one++)
        sum += counters[one].count;
    if (sum != (unsigned long)(writers * steps * rounds))
        die("%lu increments of %ld", sum, writers * steps * rounds);
    sort(taken[0], rounds);
    printf("{\"program\":\"writers\",\"writers\":%ld,\"apart\":%ld,\"steps\":%ld,\"increment_ns\":%.2f,"
           "\"least_ns\":%.2f,\"most_ns\":%.2f}\n",
           writers, apart, steps, taken[0][rounds / 2], taken[0][0], taken[0][rounds - 1]);
    return 0;
}
