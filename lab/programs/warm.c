/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * warm: cold memory first, then hot memory that is used until the kernel has had time to tier.
 *
 *     warm [cold=MIB] [hot=MIB] [near=MIB] [seconds=N]
 *
 * Writes `cold` MiB once, so that near memory is full of it, then writes every page of `hot` MiB again and again, until
 * `near` MiB of them are on node 0, or for `seconds`. A kernel that tiers demotes the first and promotes the pages of the
 * second that are far. Prints one line of JSON: MiB of the hot memory on each of the first four nodes, at the start and at
 * the end.
 */
#include "common.h"

static void where(const char *memory, size_t bytes, long mib[4])
{
    size_t at;

    memset(mib, 0, 4 * sizeof(*mib));
    for (at = 0; at < bytes; at += PAGE) {
        void *page = (void *)(memory + at);
        int node = -1;

        if (!syscall(SYS_move_pages, 0, 1ul, &page, NULL, &node, 0) && node >= 0 && node < 4)
            mib[node]++;
    }
    for (at = 0; at < 4; at++)
        mib[at] = mib[at] * (long)PAGE >> 20;
}

static char *fresh(size_t bytes)
{
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (memory == MAP_FAILED)
        die("%zu bytes", bytes);
    return memory;
}

static void use_all(char *memory, size_t bytes)
{
    size_t at;

    for (at = 0; at < bytes; at += PAGE)
        memory[at]++;
}

int main(int argc, char **argv)
{
    size_t cold = (size_t)option(argc, argv, "cold", 64) << 20, hot = (size_t)option(argc, argv, "hot", 32) << 20;
    long near = (long)option(argc, argv, "near", 1 << 20);
    double until = (double)option(argc, argv, "seconds", 20), next;
    char *cold_memory = fresh(cold), *hot_memory = fresh(hot);
    long before[4], after[4];

    use_all(cold_memory, cold);
    use_all(hot_memory, hot);
    where(hot_memory, hot, before);
    until += seconds();
    do {
        for (next = seconds() + 1; seconds() < next;)
            use_all(hot_memory, hot);
        where(hot_memory, hot, after);
    } while (after[0] < near && seconds() < until);
    printf("{\"program\":\"warm\",\"hot_mib\":%zu,\"before_mib\":[%ld,%ld,%ld,%ld],\"after_mib\":[%ld,%ld,%ld,%ld]}\n",
           hot >> 20, before[0], before[1], before[2], before[3], after[0], after[1], after[2], after[3]);
    return 0;
}
