/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * membound: a fixed amount of work that lives in memory, for what an instrumented emulator costs.
 *
 *     membound [mb=N] [rounds=N]
 *
 * Each round sums an array, changes it in place, copies half of it over the other half and follows a chain through it.
 * The work, and the answer, are the same wherever it runs; how long it took is for the caller to see, outside. Prints
 * one line of JSON.
 */
#include "common.h"

int main(int argc, char **argv)
{
    size_t bytes = (size_t)option(argc, argv, "mb", 32) << 20, words = bytes / 8, i;
    long rounds = option(argc, argv, "rounds", 8), round;
    uint64_t *array = malloc(bytes), sum = 0, at = 0;

    if (!array)
        die("%zu bytes", bytes);
    for (i = 0; i < words; i++)
        array[i] = i * 0x9e3779b97f4a7c15ull;
    for (round = 0; round < rounds; round++) {
        for (i = 0; i < words; i++)
            sum += array[i];
        for (i = 0; i < words; i += 2)
            array[i] += sum | 1;
        memcpy(array, array + words / 2, bytes / 2);
        for (i = 0; i < words / 16; i++)
            at = (array[at] + i) % words;
        sum ^= at;
    }
    printf("{\"program\":\"membound\",\"bytes\":%zu,\"rounds\":%ld,\"sum\":\"%016llx\"}\n",
           bytes, rounds, (unsigned long long)sum);
    free(array);
    return 0;
}
