/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * streamcluster: all threads read all points again and again, each for a centre of its own.
 *
 * The memory behaviour of PARSEC's streamcluster as the traffic studies describe it (Dashti et al., ASPLOS 2013): one thread
 * has made the points, so one node's memory serves all; who reads a page is everyone, so nothing gains by being near anybody,
 * and all of it by being spread. Points are words of bits, and what each thread asks in a round is whether a candidate would
 * be a better centre than the present one: the sum of what each point would gain.
 */
#include "team.h"

static const char usage[] =
    "streamcluster [NAME=NUMBER ...]: all threads read all points, each to judge a candidate for a centre; JSON lines\n"
    "  mb=16            the points, in MiB\n" TEAM_USAGE;
static const char *const names[] = { "mb", TEAM_NAMES, NULL };

struct work {
    struct team team;
    size_t lines;
    struct line *points;
    uint64_t centre, round;
    uint64_t gains[THREADS_MAX][WORDS];
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

static uint64_t candidate(const struct work *work, long thread)
{
    return word_of(work->round * THREADS_MAX + (uint64_t)thread) ^ work->centre >> 1;
}

static uint64_t gain(const struct line *from, const struct line *to, uint64_t centre, uint64_t other)
{
    uint64_t sum = 0;

    for (; from < to; from++) {
        uint64_t point = from->word[0], now = apart(point, centre), then = apart(point, other);

        sum += then < now ? now - then : 0;
    }
    return sum;
}

/* Each begins elsewhere, and not on the same node should pages take turns over nodes. */
static uint64_t read_all(void *of, long thread)
{
    struct work *work = of;
    uint64_t other = candidate(work, thread);
    size_t from, to;

    team_part(&work->team, work->lines, thread, &from, &to);
    from += (size_t)thread * LINES_A_PAGE % work->lines;
    from = from < work->lines ? from : 0;
    work->gains[thread][0] = gain(work->points + from, work->points + work->lines, work->centre, other) +
                             gain(work->points, work->points + from, work->centre, other);
    return work->lines;
}

static void choose(void *of)
{
    struct work *work = of;
    uint64_t best = 0;
    long thread, of_best = 0;

    for (thread = 0; thread < work->team.threads; thread++)
        if (work->gains[thread][0] > best) {
            best = work->gains[thread][0];
            of_best = thread;
        }
    work->centre = candidate(work, of_best);
    work->round++;
}

static struct work work = { .team = { .work = &work, .make = make, .round = read_all, .between = choose } };

int main(int argc, char **argv)
{
    team_options(&work.team, argc, argv, usage, names);
    work.lines = team_lines(argc, argv, 16);
    work.points = team_memory(&work.team, work.lines);
    work.centre = word_of(0);
    team_run(&work.team, "streamcluster");
    team_done(&work.team, work.centre);
    return 0;
}
