/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * loaded: how long a dependent load takes beside traffic of a given rate and mix.
 *
 *     loaded [node=N] [cpu=N] [threads=N] [mb=N] [mbps=N] [changed=N] [warm=USEC] [time=USEC]
 *
 * `threads` threads, on the CPUs after `cpu`, each pass over an array of `mb` MiB of their own, and wait between lines
 * as long as `mbps` megabytes a second of all of them together ask for. Of 1000 lines they change `changed` in place
 * (one line read, one written back) and read the others, so the share of reads is 1000 / (1000 + changed). Meanwhile
 * the first thread follows a random chain through 16 MiB. After `warm` microseconds it measures for `time`. Prints one
 * line of JSON: bandwidth, in bytes that crossed to and from memory, the share of reads in it, both with the chain's loads,
 * and the latency of these loads.
 */
#include "common.h"
#include <pthread.h>
#include <stdatomic.h>

struct worker {
    pthread_t thread;
    long cpu, node;
    size_t bytes;
    double line_s;
    long changed;
    /* Lines that crossed so far; read by the first thread. */
    _Alignas(LINE) _Atomic uint64_t lines;
    _Atomic uint64_t writes;
};

static atomic_int stop, ready;

/* Lines between two waits. */
enum { BATCH = 8 };

/* Counts in a register. */
static void spin(long turns)
{
    while (turns-- > 0)
        __asm__ volatile("" : "+r"(turns));
}

/* Passes over a batch of lines from `*at` on, changes `changed` of 1000, and returns how many crossed. */
static uint64_t batch(char *array, size_t bytes, size_t *at, long *turn, long changed)
{
    uint64_t crossed = 0;
    int line;

    for (line = 0; line < BATCH; line++) {
        volatile uint64_t *word = (volatile uint64_t *)(array + *at);

        /* 617 and 1000 have no common factor: changed lines are spread. */
        *turn = *turn + 617 < 1000 ? *turn + 617 : *turn - 383;
        if (*turn < changed) {
            *word += 1;
            crossed += 2;
        } else {
            (void)*word;
            crossed += 1;
        }
        *at = *at + LINE < bytes ? *at + LINE : 0;
    }
    return crossed;
}

/*
 * Traffic is paced by counting, not by the clock: one that several CPUs share may move in steps longer than a batch takes.
 * How long a turn of the count and a batch in the cache take is measured first.
 */
static void *work(void *argument)
{
    struct worker *worker = argument;
    const long turns = 2000000, batches = 16000;
    char *array;
    size_t at = 0;
    long turn = 0, i;
    double began, turn_s, batch_s;

    pin(worker->cpu);
    array = memory(worker->bytes, worker->node, 1);
    check_placement(array, worker->bytes, worker->node);
    began = seconds();
    spin(turns);
    turn_s = (seconds() - began) / (double)turns;
    began = seconds();
    for (i = 0; i < batches; i++)
        batch(array, BATCH * LINE, &at, &turn, worker->changed);
    batch_s = (seconds() - began) / (double)batches;
    ready++;
    at = 0;
    while (!stop) {
        uint64_t crossed = batch(array, worker->bytes, &at, &turn, worker->changed);

        worker->lines += crossed;
        worker->writes += crossed - BATCH;
        spin((long)((worker->line_s * (double)crossed - batch_s) / turn_s));
    }
    return NULL;
}

struct traffic {
    uint64_t lines, writes;
};

/* What all threads have moved so far. */
static struct traffic moved(const struct worker *workers, long threads)
{
    struct traffic all = { 0, 0 };
    long i;

    for (i = 0; i < threads; i++) {
        all.lines += workers[i].lines;
        all.writes += workers[i].writes;
    }
    return all;
}

int main(int argc, char **argv)
{
    long threads = option(argc, argv, "threads", 1), cpu = option(argc, argv, "cpu", 0), i;
    long node = option(argc, argv, "node", 0), changed = option(argc, argv, "changed", 0);
    double warm = (double)option(argc, argv, "warm", 3000) / 1e6;
    double time = (double)option(argc, argv, "time", 4000) / 1e6;
    double rate = (double)option(argc, argv, "mbps", 1000) * 1e6, began, ended;
    const size_t chain = 16ul << 20;
    static struct worker workers[64];
    struct traffic from, to;
    uint64_t loads = 0, lines;
    char *array;
    void **at;

    if (threads < 1 || threads > 64 || changed < 0 || changed > 1000 || rate <= 0) {
        errno = 0;
        die("threads=%ld of 1 to 64, changed=%ld of 0 to 1000, mbps above 0", threads, changed);
    }
    pin(cpu);
    array = memory(chain, node, 1);
    check_placement(array, chain, node);
    free(link_lines(array, chain / LINE));
    /* Any line is in the cycle. */
    at = (void **)array;
    for (i = 0; i < threads; i++) {
        workers[i].cpu = cpu + 1 + i;
        workers[i].node = node;
        workers[i].bytes = (size_t)option(argc, argv, "mb", 8) << 20;
        workers[i].line_s = LINE * (double)threads / rate;
        workers[i].changed = changed;
        if (pthread_create(&workers[i].thread, NULL, work, &workers[i]))
            die("thread %ld", i);
    }
    while (ready < threads)
        usleep(100);
    began = seconds();
    while (seconds() < began + warm)
        at = *at;
    from = moved(workers, threads);
    began = seconds();
    do {
        for (i = 0; i < 100; i++)
            at = *at;
        loads += 100;
        ended = seconds();
    } while (ended < began + time);
    to = moved(workers, threads);
    lines = to.lines - from.lines + loads;
    stop = 1;
    for (i = 0; i < threads; i++)
        pthread_join(workers[i].thread, NULL);
    printf("{\"program\":\"loaded\",\"node\":%ld,\"threads\":%ld,\"gbps\":%.3f,\"read_share\":%.4f,\"latency_ns\":%.2f,"
           "\"end\":%d}\n",
           node, threads, (double)lines * LINE / (ended - began) / 1e9,
           1.0 - (double)(to.writes - from.writes) / (double)lines, (ended - began) * 1e9 / (double)loads,
           (int)((uintptr_t)at & 63));
    return 0;
}
