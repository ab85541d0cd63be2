/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * scan: streams over everything, again and again.
 *
 * The adversary for tiering: every page is used as often as every other, so there is nothing to gain from moving any,
 * and whatever is promoted will be out of use until the scan comes round. A tiering system should leave it alone; one
 * that ranks pages by how recently they were used moves them all. The loop is the sum kernel of STREAM-like suites
 * (J. McCalpin's STREAM measures the like); scans against caching policies are as old as LRU.
 */
#include "workload.h"

static const char usage[] =
    "scan [NAME=NUMBER ...]: reads a region from its start to its end, over and over; JSON lines\n"
    "  mb=256           the region, in MiB\n"
    "  stride=64        reads a word every so many bytes: 64 is every line, 4096 one line of every page\n"
    "  write=0          1: changes each of them as well\n"
    "  seconds=10       how long; 0: until `passes` are done\n"
    "  passes=0         how many passes, if not for a time\n"
    "  huge=0           1: ask for huge pages\n" METER_USAGE;
static const char *const names[] = { "mb", "stride", "write", "seconds", "passes", "huge", METER_NAMES, NULL };

/* Reads between two looks at the clock: 256 KiB of lines, or a mebibyte of pages. */
enum { STRETCH = 4096, STRETCH_OF_PAGES = 256 };

/* Reads `count` words, `apart` words from each other. */
static uint64_t pass(volatile uint64_t *from, size_t count, size_t apart, int write)
{
    uint64_t sum = 0;
    size_t i;

    for (i = 0; i < count; i++) {
        uint64_t value = from[i * apart];

        sum += value;
        if (write)
            from[i * apart] = value + 1;
    }
    return sum;
}

int main(int argc, char **argv)
{
    static const long sizes[] = { 1, 1 << 20 }, spans[] = { 0, 1000000000 }, flags[] = { 0, 1 };
    static const long strides[] = { LINE, PAGE };
    size_t bytes, words_all, apart, stretch, at = 0, i;
    uint64_t *words, sum = 0, passes = 0, passes_max;
    struct meter meter;
    double run_for, now;
    char more[96];
    int write;

    options_check(argc, argv, usage, names);
    bytes = (size_t)bounded(argc, argv, "mb", 256, sizes) << 20;
    write = bounded(argc, argv, "write", 0, flags) != 0;
    run_for = (double)bounded(argc, argv, "seconds", 10, spans);
    passes_max = (uint64_t)bounded(argc, argv, "passes", 0, spans);
    apart = (size_t)bounded(argc, argv, "stride", LINE, strides) / 8;
    stretch = apart < PAGE / 8 ? STRETCH : STRETCH_OF_PAGES;
    words_all = bytes / 8;
    words = (uint64_t *)(void *)plain_memory(bytes, bounded(argc, argv, "huge", 0, flags) != 0);
    for (i = 0; i < bytes / 8; i += PAGE / 8)
        words[i] = i | 1;
    printf("{\"program\":\"scan\",\"region_bytes\":%zu,\"region_at\":\"0x%llx\",\"pid\":%ld}\n", bytes,
           (unsigned long long)(uintptr_t)words, (long)getpid());
    meter = meter_start("scan", argc, argv);
    now = meter.began;
    while ((run_for == 0 || now - meter.began < run_for) && (passes_max == 0 || passes < passes_max) &&
           (run_for != 0 || passes_max != 0)) {
        sum += pass(words + at, stretch, apart, write);
        at += stretch * apart;
        if (at + stretch * apart > words_all) {
            at = 0;
            passes++;
        }
        now = seconds();
        if (meter_add(&meter, stretch, &now)) {
            snprintf(more, sizeof(more), ",\"passes\":%llu", (unsigned long long)passes);
            meter_print(&meter, now, more);
        }
    }
    snprintf(more, sizeof(more), ",\"passes\":%llu,\"sum\":\"%016llx\"", (unsigned long long)passes,
             (unsigned long long)sum);
    meter_done(&meter, now, more);
    return 0;
}
