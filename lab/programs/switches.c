/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * switches: lets another process onto the first CPUs now and then, for a moment.
 *
 * A CPU keeps some thousand translations, so a program that uses more pages than that has them looked up again all the
 * time, and each look-up marks the page as used, which is what DAMON and reclaim go by. An emulated CPU keeps as many
 * as are asked for: pages in use look idle there. It drops them when another process gets the CPU, and that is what this
 * is for. Each turn costs a switch to a thread that does nothing but sleep again.
 */
#include "common.h"

#include <pthread.h>

static long every_ms;

static void *turns(void *cpu)
{
    struct sched_param soon = { .sched_priority = 1 };
    struct timespec at;

    pin((long)(intptr_t)cpu);
    /* So that a program that is busy gives way at once; without the right to that, it does so a little later. */
    (void)!sched_setscheduler(0, SCHED_FIFO, &soon);
    clock_gettime(CLOCK_MONOTONIC, &at);
    for (;;) {
        at.tv_nsec += every_ms * 1000000;
        while (at.tv_nsec >= 1000000000) {
            at.tv_nsec -= 1000000000;
            at.tv_sec++;
        }
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    long online = sysconf(_SC_NPROCESSORS_ONLN), cpus = option(argc, argv, "cpus", online), cpu;
    pthread_t thread;

    every_ms = option(argc, argv, "ms", 10);
    if (every_ms < 1 || every_ms > 1000) {
        fprintf(stderr, "ms=%ld: not from 1 to 1000\n", every_ms);
        return 2;
    }
    if (cpus < 1 || cpus > online) {
        fprintf(stderr, "cpus=%ld: not from 1 to %ld\n", cpus, online);
        return 2;
    }
    for (cpu = 1; cpu < cpus; cpu++)
        if ((errno = pthread_create(&thread, NULL, turns, (void *)(intptr_t)cpu)))
            die("starting a thread");
    turns((void *)0);
    return 0;
}
