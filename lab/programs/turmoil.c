/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * turmoil: does time behave?
 *
 *     turmoil [threads=N] [ms=N]
 *
 * Threads sleep for random short times, spin, wait for each other and read the clock, for so many milliseconds of
 * guest time. What must hold: no thread ever sees an earlier time than another had seen before it looked, no sleep
 * ends early, and sleeps do end. Prints one line of JSON; exit status 1 if something did not hold.
 */
#include "common.h"
#include <pthread.h>
#include <stdatomic.h>

static _Atomic uint64_t latest_ns;
static _Atomic long backwards, early, sleeps, handovers;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t turn = PTHREAD_COND_INITIALIZER;
static long turns;
static uint64_t until_ns;
static _Atomic uint64_t latest_by_ns;

static uint64_t nanoseconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

/* Reads the clock, and checks it against what others have read. */
static uint64_t look(void)
{
    uint64_t before = atomic_load(&latest_ns), now = nanoseconds();

    if (now < before) {
        atomic_fetch_add(&backwards, 1);
        if (before - now > atomic_load(&latest_by_ns))
            atomic_store(&latest_by_ns, before - now);
    }
    while (now > before && !atomic_compare_exchange_weak(&latest_ns, &before, now))
        ;
    return now;
}

static void sleep_a_little(uint64_t *seed)
{
    uint64_t wanted = random_next(seed) % 3000000, began = look();
    struct timespec span = { 0, (long)wanted };

    nanosleep(&span, NULL);
    if (look() < began + wanted)
        atomic_fetch_add(&early, 1);
    atomic_fetch_add(&sleeps, 1);
}

static void spin_a_little(uint64_t *seed)
{
    uint64_t end = look() + random_next(seed) % 200000;

    while (look() < end)
        ;
}

static void hand_over(void)
{
    struct timespec deadline;

    pthread_mutex_lock(&lock);
    turns++;
    pthread_cond_broadcast(&turn);
    clock_gettime(CLOCK_REALTIME, &deadline);
    deadline.tv_nsec += 1000000;
    if (deadline.tv_nsec >= 1000000000) {
        deadline.tv_nsec -= 1000000000;
        deadline.tv_sec++;
    }
    pthread_cond_timedwait(&turn, &lock, &deadline);
    pthread_mutex_unlock(&lock);
    atomic_fetch_add(&handovers, 1);
}

static void *work(void *number)
{
    uint64_t seed = 88172645463325252ull + (uintptr_t)number * 7919;
    volatile uint64_t sum = 0;
    int i;

    while (look() < until_ns) {
        switch (random_next(&seed) % 4) {
        case 0:
            sleep_a_little(&seed);
            break;
        case 1:
            spin_a_little(&seed);
            break;
        case 2:
            hand_over();
            break;
        case 3:
            for (i = 0; i < 20000; i++)
                sum += random_next(&seed);
            break;
        }
    }
    return NULL;
}

int main(int argc, char **argv)
{
    long threads = option(argc, argv, "threads", 4), i;
    pthread_t thread[64];
    int bad;

    if (threads < 1 || threads > 64) {
        errno = 0;
        die("threads=%ld, not from 1 to 64", threads);
    }
    until_ns = nanoseconds() + (uint64_t)option(argc, argv, "ms", 300) * 1000000ull;
    for (i = 0; i < threads; i++)
        if (pthread_create(&thread[i], NULL, work, (void *)i))
            die("thread %ld", i);
    for (i = 0; i < threads; i++)
        pthread_join(thread[i], NULL);
    bad = atomic_load(&backwards) != 0 || atomic_load(&early) != 0;
    printf("{\"program\":\"turmoil\",\"threads\":%ld,\"sleeps\":%ld,\"handovers\":%ld,\"backwards\":%ld,"
           "\"backwards_by_ns\":%llu,\"early\":%ld}\n",
           threads, sleeps, handovers, backwards, (unsigned long long)latest_by_ns, early);
    return bad;
}
