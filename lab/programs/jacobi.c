/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * jacobi: relaxes a grid, each thread its own rows and the rows beside them.
 *
 * The memory behaviour of the stencils among the NAS benchmarks (MG, SP) and of PARSEC's facesim: nearly all that a thread uses
 * it alone uses, so everything is gained by having it near; but one thread has made the grid, and there it is. A cell is a line
 * (codes of this kind keep several fields of a cell together), of which one word is relaxed: the mean of its four neighbours,
 * in fixed point, from one grid into the other.
 */
#include "team.h"

static const char usage[] =
    "jacobi [NAME=NUMBER ...]: relaxes a grid, each thread its own rows; JSON lines\n"
    "  mb=32            two grids together, in MiB\n" TEAM_USAGE;
static const char *const names[] = { "mb", TEAM_NAMES, NULL };

/* Cells in a row: three rows read and one written fit into a first-level cache. */
enum { ROW = 128 };

struct work {
    struct team team;
    size_t rows;
    struct line *grids[2];
    uint64_t round;
};

/* The rows that a thread relaxes: of its part, all but the first and last of the grid. */
static void part(const struct work *work, long thread, size_t *from, size_t *to)
{
    size_t lines[2];

    team_part(&work->team, work->rows * ROW, thread, &lines[0], &lines[1]);
    *from = lines[0] / ROW;
    *to = lines[1] / ROW;
}

static void make(void *of, long thread, int all)
{
    struct work *work = of;
    size_t from = 0, to = work->rows, at;

    if (!all)
        part(work, thread, &from, &to);
    for (at = from * ROW; at < to * ROW; at++) {
        work->grids[0][at].word[0] = word_of(at) >> 32;
        work->grids[1][at].word[0] = word_of(at) >> 32;
    }
}

static uint64_t relax(void *of, long thread)
{
    struct work *work = of;
    const struct line *now = work->grids[work->round & 1];
    struct line *next = work->grids[~work->round & 1];
    size_t from, to, row, at;

    part(work, thread, &from, &to);
    from = from > 0 ? from : 1;
    to = to < work->rows ? to : work->rows - 1;
    for (row = from; row < to; row++)
        for (at = row * ROW + 1; at < row * ROW + ROW - 1; at++)
            next[at].word[0] = (now[at - 1].word[0] + now[at + 1].word[0] + now[at - ROW].word[0] +
                                now[at + ROW].word[0]) / 4;
    return to > from ? (to - from) * ROW : 0;
}

static void swap(void *of)
{
    struct work *work = of;

    work->round++;
}

static struct work work = { .team = { .work = &work, .make = make, .round = relax, .between = swap } };

int main(int argc, char **argv)
{
    uint64_t sum = 0;
    size_t at;

    team_options(&work.team, argc, argv, usage, names);
    work.rows = team_lines(argc, argv, 32) / 2 / ROW;
    work.grids[0] = team_memory(&work.team, work.rows * ROW);
    work.grids[1] = team_memory(&work.team, work.rows * ROW);
    team_run(&work.team, "jacobi");
    for (at = 0; at < work.rows * ROW; at += ROW / 2 + 1)
        sum = sum * 31 + work.grids[work.round & 1][at].word[0];
    team_done(&work.team, sum);
    return 0;
}
