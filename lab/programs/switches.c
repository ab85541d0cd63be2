/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * switches: lets another process onto the CPUs, or onto one of them, now and then, for a moment.
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
    long online = sysconf(_SC_NPROCESSORS_ONLN), one = option(argc, argv, "cpu", -1), cpu;
    pthread_t thread;

    every_ms = option(argc, argv, "ms", 10);
    if (every_ms < 1 || every_ms > 1000) {
        fprintf(stderr, "ms=%ld: not from 1 to 1000\n", every_ms);
        return 2;
    }
    if (one < -1 || one >= online) {
        fprintf(stderr, "cpu=%ld: not from 0 to %ld\n", one, online - 1);
        return 2;
    }
    if (one >= 0)
        turns((void *)(intptr_t)one);
    for (cpu = 1; cpu < online; cpu++)
        if ((errno = pthread_create(&thread, NULL, turns, (void *)(intptr_t)cpu)))
            die("starting a thread");
    turns((void *)0);
    return 0;
}
