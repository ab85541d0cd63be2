/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * chase: how long a dependent load takes.
 *
 *     chase [node=N] [cpu=N] [mb=N] [steps=N] [rounds=N] [huge=0|1] [busy=N] [chains=1|2|4|8|16]
 *
 * One cyclic chain through all lines of an array, in random order, so that each load's address comes from the load
 * before and none can be foreseen. `busy=N` has N more threads, on the CPUs after `cpu`, count in registers meanwhile.
 * `chains=N` follows the chain from N places at once: the CPU may overlap their loads. The time is that of one load.
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

/* Starts of chains are at equal distances in the first half of the cycle: lines of its end may still be cached. */
static void find_starts(char *array, size_t lines, void **starts[], size_t chains)
{
    uint32_t *order = link_lines(array, lines);
    size_t i;

    for (i = 0; i < chains; i++)
        starts[i] = (void **)(array + order[lines / 2 / chains * i] * LINE);
    free(order);
}

/* Follows `count` chains for `steps` steps in total. */
#define FOLLOW(count)                                             \
    static void follow_##count(void **chains[], long steps)       \
    {                                                             \
        void **at[count];                                         \
        long step;                                                \
        int one;                                                  \
                                                                  \
        memcpy(at, chains, sizeof(at));                           \
        for (step = 0; step < steps; step += count) {             \
            _Pragma("GCC unroll 16") for (one = 0; one < count; one++) \
                at[one] = *at[one];                               \
        }                                                         \
        memcpy(chains, at, sizeof(at));                           \
    }
FOLLOW(1)
FOLLOW(2)
FOLLOW(4)
FOLLOW(8)
FOLLOW(16)

static void follow(void **chains[], long count, long steps)
{
    switch (count) {
    case 1:
        return follow_1(chains, steps);
    case 2:
        return follow_2(chains, steps);
    case 4:
        return follow_4(chains, steps);
    case 8:
        return follow_8(chains, steps);
    default:
        return follow_16(chains, steps);
    }
}

int main(int argc, char **argv)
{
    long node = option(argc, argv, "node", 0), cpu = option(argc, argv, "cpu", 0);
    long steps = option(argc, argv, "steps", 40000), huge = option(argc, argv, "huge", 0);
    long busy = option(argc, argv, "busy", 0), rounds = rounds_option(argc, argv), round, i;
    size_t bytes = (size_t)option(argc, argv, "mb", 64) << 20;
    long chains = option(argc, argv, "chains", 1);
    pthread_t threads[64];
    void **at[16];
    char *array;
    double latency[ROUNDS_MAX];

    if (chains < 1 || chains > 16 || (chains & (chains - 1)))
        die("chains=%ld is not 1, 2, 4, 8 or 16", chains);
    pin(cpu);
    array = memory(bytes, node, huge != 0);
    find_starts(array, bytes / LINE, at, (size_t)chains);
    check_placement(array, bytes, node);
    for (i = 0; i < busy && i < 64; i++)
        if (pthread_create(&threads[i], NULL, keep_busy, (void *)(cpu + 1 + i)))
            die("thread %ld", i);
    follow(at, chains, 1000);
    for (round = 0; round < rounds; round++) {
        double began = seconds();

        follow(at, chains, steps);
        latency[round] = (seconds() - began) * 1e9 / (double)steps;
    }
    sort(latency, rounds);
    stop = 1;
    for (i = 0; i < busy && i < 64; i++)
        pthread_join(threads[i], NULL);
    printf("{\"program\":\"chase\",\"cpu\":%ld,\"node\":%ld,\"bytes\":%zu,\"huge_kb\":%ld,\"steps\":%ld,\"chains\":%ld,"
           "\"latency_ns\":%.2f,\"least_ns\":%.2f,\"most_ns\":%.2f,\"end\":%d}\n",
           cpu, node, bytes, huge_kb(array), steps, chains, latency[rounds / 2], latency[0], latency[rounds - 1],
           (int)((uintptr_t)at[0] & 63));
    return 0;
}
