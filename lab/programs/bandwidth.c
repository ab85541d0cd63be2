/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * bandwidth: how much pinned threads move to and from one node.
 *
 *     bandwidth [node=N] [cpu=N] [threads=N] [mb=N] [rounds=N] [huge=0|1] [mix=1:0|2:1|1:1]
 *
 * Reads alone sum an array; 1:1 changes each line of an array in place (one line read, one written back); 2:1 does
 * that to one array while it reads another. Each thread has its own arrays, `mb` each, well beyond the caches. In each
 * round all threads start together and pass over theirs once; what counts is the time from the first start to the last
 * end. Prints one line of JSON: the median of the rounds, the least and the most, in bytes that crossed to and from
 * memory.
 */
#include "common.h"
#include <pthread.h>

enum mix { READS, TWO_TO_ONE, ONE_TO_ONE };

struct worker {
    pthread_t thread;
    long cpu, node, rounds;
    size_t bytes;
    int huge;
    enum mix mix;
    double began[ROUNDS_MAX], ended[ROUNDS_MAX];
    uint64_t sum, moved;
    long huge_kb;
};

static pthread_barrier_t everyone;

static uint64_t read_all(const char *array, size_t bytes)
{
    uint64_t sum = 0;
    size_t at;

    for (at = 0; at < bytes; at += 4 * LINE) {
        sum += *(const volatile uint64_t *)(array + at);
        sum += *(const volatile uint64_t *)(array + at + LINE);
        sum += *(const volatile uint64_t *)(array + at + 2 * LINE);
        sum += *(const volatile uint64_t *)(array + at + 3 * LINE);
    }
    return sum;
}

static void change_all(char *array, size_t bytes)
{
    size_t at;

    for (at = 0; at < bytes; at += 2 * LINE) {
        *(volatile uint64_t *)(array + at) += 1;
        *(volatile uint64_t *)(array + at + LINE) += 1;
    }
}

static uint64_t read_one_change_other(const char *one, char *other, size_t bytes)
{
    uint64_t sum = 0;
    size_t at;

    for (at = 0; at < bytes; at += LINE) {
        sum += *(const volatile uint64_t *)(one + at);
        *(volatile uint64_t *)(other + at) += 1;
    }
    return sum;
}

/* Passes over the arrays once. */
static void pass(struct worker *worker, char *one, char *other)
{
    switch (worker->mix) {
    case READS:
        worker->sum += read_all(one, worker->bytes);
        worker->moved = worker->bytes;
        break;
    case TWO_TO_ONE:
        worker->sum += read_one_change_other(other, one, worker->bytes);
        worker->moved = 3 * worker->bytes;
        break;
    case ONE_TO_ONE:
        change_all(one, worker->bytes);
        worker->moved = 2 * worker->bytes;
        break;
    }
}

static void *work(void *argument)
{
    struct worker *worker = argument;
    char *one, *other = NULL;
    long i;

    pin(worker->cpu);
    one = memory(worker->bytes, worker->node, worker->huge);
    check_placement(one, worker->bytes, worker->node);
    if (worker->mix == TWO_TO_ONE) {
        other = memory(worker->bytes, worker->node, worker->huge);
        check_placement(other, worker->bytes, worker->node);
    }
    worker->huge_kb = huge_kb(one);
    /* Caches full of this, and as dirty as they will stay. */
    pass(worker, one, other);
    for (i = 0; i < worker->rounds; i++) {
        pthread_barrier_wait(&everyone);
        worker->began[i] = seconds();
        pass(worker, one, other);
        worker->ended[i] = seconds();
    }
    return NULL;
}

static enum mix mix_option(int argc, char **argv, const char **name)
{
    static const char *const names[] = { "1:0", "2:1", "1:1" };
    int i, mix;

    *name = names[0];
    for (i = 1; i < argc; i++)
        for (mix = 0; mix < 3; mix++)
            if (!strncmp(argv[i], "mix=", 4) && !strcmp(argv[i] + 4, names[mix])) {
                *name = names[mix];
                return (enum mix)mix;
            }
    return READS;
}

/* Bytes per second of all workers together in one round. */
static double rate(const struct worker *workers, long threads, long round)
{
    double began = workers[0].began[round], ended = workers[0].ended[round];
    uint64_t moved = 0;
    long i;

    for (i = 0; i < threads; i++) {
        began = workers[i].began[round] < began ? workers[i].began[round] : began;
        ended = workers[i].ended[round] > ended ? workers[i].ended[round] : ended;
        moved += workers[i].moved;
    }
    return (double)moved / (ended - began);
}

int main(int argc, char **argv)
{
    long threads = option(argc, argv, "threads", 1), cpu = option(argc, argv, "cpu", 0), i;
    static struct worker workers[64];
    const char *mix_name;
    enum mix mix = mix_option(argc, argv, &mix_name);
    long rounds = rounds_option(argc, argv), huge = 0;
    double gbps[ROUNDS_MAX];

    if (threads < 1 || threads > 64) {
        errno = 0;
        die("threads=%ld, not from 1 to 64", threads);
    }
    pthread_barrier_init(&everyone, NULL, (unsigned)threads);
    for (i = 0; i < threads; i++) {
        workers[i].cpu = cpu + i;
        workers[i].node = option(argc, argv, "node", 0);
        workers[i].rounds = rounds;
        workers[i].bytes = (size_t)option(argc, argv, "mb", 32) << 20;
        workers[i].huge = option(argc, argv, "huge", 0) != 0;
        workers[i].mix = mix;
        if (pthread_create(&workers[i].thread, NULL, work, &workers[i]))
            die("thread %ld", i);
    }
    for (i = 0; i < threads; i++) {
        pthread_join(workers[i].thread, NULL);
        huge += workers[i].huge_kb;
    }
    for (i = 0; i < rounds; i++)
        gbps[i] = rate(workers, threads, i) / 1e9;
    sort(gbps, rounds);
    printf("{\"program\":\"bandwidth\",\"cpu\":%ld,\"node\":%ld,\"threads\":%ld,\"mix\":\"%s\",\"bytes\":%zu,"
           "\"huge_kb\":%ld,\"gbps\":%.3f,\"least_gbps\":%.3f,\"most_gbps\":%.3f}\n",
           cpu, workers[0].node, threads, mix_name, workers[0].bytes, huge, gbps[rounds / 2], gbps[0],
           gbps[rounds - 1]);
    return 0;
}
