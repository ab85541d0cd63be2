/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * chase: how long a dependent load takes.
 *
 *     chase [node=N] [cpu=N] [mb=N] [steps=N] [rounds=N] [huge=0|1] [busy=N]
 *
 * One cyclic chain through all lines of an array, in random order, so that each load's address comes from the load
 * before and none can be foreseen. `busy=N` has N more threads, on the CPUs after `cpu`, count in registers meanwhile.
 * Prints one line of JSON: the median of the rounds, the least and the most.
 */
#include "common.h"
#include <pthread.h>

static volatile int stop;

static void *keep_busy(void *cpu)
{
    volatile unsigned long rounds = 0;

    pin((long)cpu);
    while (!stop) {
        unsigned long i, sum = 0;

        for (i = 0; i < 10000; i++)
            __asm__ volatile("add $1, %0" : "+r"(sum));
        rounds += sum;
    }
    return NULL;
}

/* Links all lines of the array into one cycle, in random order (Sattolo's shuffle). */
static void **link_lines(char *array, size_t lines)
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
    free(order);
    return (void **)array;
}

int main(int argc, char **argv)
{
    long node = option(argc, argv, "node", 0), cpu = option(argc, argv, "cpu", 0);
    long steps = option(argc, argv, "steps", 40000), huge = option(argc, argv, "huge", 0);
    long busy = option(argc, argv, "busy", 0), rounds = rounds_option(argc, argv), round, i;
    size_t bytes = (size_t)option(argc, argv, "mb", 64) << 20;
    pthread_t threads[64];
    void **at;
    char *array;
    double latency[ROUNDS_MAX];

    pin(cpu);
    array = memory(bytes, node, huge != 0);
    at = link_lines(array, bytes / LINE);
    check_placement(array, bytes, node);
    for (i = 0; i < busy && i < 64; i++)
        if (pthread_create(&threads[i], NULL, keep_busy, (void *)(cpu + 1 + i)))
            die("thread %ld", i);
    for (i = 0; i < 1000; i++)
        at = *at;
    for (round = 0; round < rounds; round++) {
        double began = seconds();

        for (i = 0; i < steps; i++)
            at = *at;
        latency[round] = (seconds() - began) * 1e9 / (double)steps;
    }
    sort(latency, rounds);
    stop = 1;
    for (i = 0; i < busy && i < 64; i++)
        pthread_join(threads[i], NULL);
    printf("{\"program\":\"chase\",\"cpu\":%ld,\"node\":%ld,\"bytes\":%zu,\"huge_kb\":%ld,\"steps\":%ld,"
           "\"latency_ns\":%.2f,\"least_ns\":%.2f,\"most_ns\":%.2f,\"end\":%d}\n",
           cpu, node, bytes, huge_kb(array), steps, latency[rounds / 2], latency[0], latency[rounds - 1],
           (int)((uintptr_t)at & 63));
    return 0;
}
