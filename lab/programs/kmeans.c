/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * kmeans: clusters points, each thread its own, by centres that all share.
 *
 * The memory behaviour of k-means as packages have it (one thread reads the data in, a team of threads assigns points to
 * centres): points are used by one thread each, so they gain by being near it; the centres are few, and stay in caches. Points
 * are words of bits, distance is in how many bits two differ, and a centre's new bits are those that most of a sample of its
 * points have: k-modes, in small batches.
 */
#include "team.h"

static const char usage[] =
    "kmeans [NAME=NUMBER ...]: clusters points, each thread its own; JSON lines\n"
    "  mb=32            the points, in MiB\n" TEAM_USAGE;
static const char *const names[] = { "mb", TEAM_NAMES, NULL };

/* Clusters; and one point in so many has a say in where they are. */
enum { CLUSTERS = 2, SAMPLED = 64, BITS = 64 };

/* What a thread has found out about a cluster: how many points of the sample, and how many of them have a bit. */
struct votes {
    uint32_t points, bits[BITS];
};

struct work {
    struct team team;
    size_t lines;
    struct line *points;
    uint64_t centres[CLUSTERS], cost;
    uint64_t costs[THREADS_MAX][WORDS];
    struct votes votes[THREADS_MAX][CLUSTERS] __attribute__((aligned(LINE)));
};

static void make(void *of, long thread, int all)
{
    struct work *work = of;
    size_t from = 0, to = work->lines, at;

    if (!all)
        team_part(&work->team, work->lines, thread, &from, &to);
    for (at = from; at < to; at++)
        work->points[at].word[0] = word_of(at);
}

static void vote(struct votes *votes, uint64_t point)
{
    int bit;

    votes->points++;
    for (bit = 0; bit < BITS; bit++)
        votes->bits[bit] += point >> bit & 1;
}

/* Assigns points; of those of the sample it is kept with the point. */
static uint64_t assign(void *of, long thread)
{
    struct work *work = of;
    struct votes *votes = work->votes[thread];
    uint64_t one = work->centres[0], other = work->centres[1], cost = 0;
    size_t from, to, at;

    team_part(&work->team, work->lines, thread, &from, &to);
    memset(votes, 0, sizeof(work->votes[thread]));
    for (at = from; at < to; at++) {
        uint64_t point = work->points[at].word[0], near = apart(point, one), far = apart(point, other);
        size_t nearest = far < near;

        cost += nearest ? far : near;
        if (at % SAMPLED == 0) {
            vote(&votes[nearest], point);
            work->points[at].word[1] = nearest;
        }
    }
    work->costs[thread][0] = cost;
    return to - from;
}

static void centre(void *of)
{
    struct work *work = of;
    long thread, cluster, bit;

    work->cost = 0;
    for (thread = 0; thread < work->team.threads; thread++)
        work->cost += work->costs[thread][0];
    for (cluster = 0; cluster < CLUSTERS; cluster++) {
        uint64_t bits = 0;

        for (bit = 0; bit < BITS; bit++) {
            uint64_t have = 0, points = 0;

            for (thread = 0; thread < work->team.threads; thread++) {
                have += work->votes[thread][cluster].bits[bit];
                points += work->votes[thread][cluster].points;
            }
            bits |= (uint64_t)(2 * have > points) << bit;
        }
        work->centres[cluster] = bits;
    }
}

static struct work work = { .team = { .work = &work, .make = make, .round = assign, .between = centre } };

int main(int argc, char **argv)
{
    team_options(&work.team, argc, argv, usage, names);
    work.lines = team_lines(argc, argv, 32);
    work.points = team_memory(&work.team, work.lines);
    work.centres[0] = word_of(0);
    work.centres[1] = ~word_of(0);
    team_run(&work.team, "kmeans");
    team_done(&work.team, work.cost ^ work.centres[0] ^ work.centres[1] << 1);
    return 0;
}
