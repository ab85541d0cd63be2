/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * graph: breadth-first searches over a Kronecker graph.
 *
 * The graph and the kernel are those of Graph500 (and of the GAP benchmark suite, Beamer et al. 2015): 2^scale vertices,
 * 16 times as many undirected edges drawn with A, B, C = 0.57, 0.19, 0.19, vertices renumbered so that a vertex' number
 * says nothing of its degree; then searches from vertices chosen at random. What is counted is edges looked at, and a
 * second of it is what Graph500 calls TEPS. The search is top-down with a queue, in one thread.
 *
 * What tiering can do here: the distances and the offsets of a few vertices are used all the time, most of the edges
 * once a search. Edges are drawn twice from the same seed instead of being kept, so that nothing but the graph itself
 * ever takes memory. The same options give the same graph, the same searches and the same sum everywhere.
 */
#include "workload.h"

static const char usage[] =
    "graph [NAME=NUMBER ...]: breadth-first searches over a Kronecker graph; JSON lines\n"
    "  scale=18         2^scale vertices; the graph takes about 2^scale * (8 * degree + 16) bytes\n"
    "  degree=16        edges a vertex, on average\n"
    "  seconds=10       how long; 0: until `searches` are done\n"
    "  searches=0       how many, if not for a time\n"
    "  huge=0           1: ask for huge pages\n"
    "  seed=1\n" METER_USAGE;
static const char *const names[] = { "scale", "degree", "seconds", "searches", "huge", "seed", METER_NAMES, NULL };

#define FAR_AWAY UINT32_MAX

struct graph {
    unsigned scale;
    uint64_t vertices, edges, seed;
    uint64_t *offsets;                       /* vertices + 1 */
    uint32_t *targets, *distances, *waiting; /* 2 * edges, vertices, vertices */
};

/* Renumbers within 2^scale: multiplications by odd numbers and shifts, each of which can be undone. */
static uint32_t renumber(uint32_t vertex, unsigned scale)
{
    uint32_t mask = (uint32_t)((1ull << scale) - 1);

    vertex = vertex * 0x9e3779b1u & mask;
    vertex ^= vertex >> (scale + 1) / 2;
    vertex = vertex * 0x85ebca6bu & mask;
    return vertex ^ vertex >> (scale + 1) / 2;
}

/* The next edge of the sequence: at each level one quadrant of the adjacency matrix, 16 random bits deciding. */
static void draw(const struct graph *graph, uint64_t *state, uint32_t edge[2])
{
    enum { A = 37356, AB = 49807, ABC = 62259 }; /* 0.57, 0.76, 0.95 of 2^16 */
    uint32_t from = 0, to = 0;
    uint64_t bits = 0;
    unsigned level;

    for (level = 0; level < graph->scale; level++) {
        uint32_t quadrant;

        if (level % 4 == 0)
            bits = random_next(state);
        quadrant = bits & 0xffff;
        bits >>= 16;
        from = from << 1 | (quadrant >= AB);
        to = to << 1 | ((quadrant >= A && quadrant < AB) || quadrant >= ABC);
    }
    edge[0] = renumber(from, graph->scale);
    edge[1] = renumber(to, graph->scale);
}

/* Counts degrees, turns them into offsets, then puts each edge in both its vertices' lists. */
static void build(struct graph *graph, int huge)
{
    uint64_t state = graph->seed, i, sum = 0;
    uint64_t *offsets;
    uint32_t edge[2];

    offsets = (uint64_t *)(void *)plain_memory((graph->vertices + 1) * sizeof(*offsets), huge);
    graph->offsets = offsets;
    graph->targets = (uint32_t *)(void *)plain_memory(2 * graph->edges * sizeof(uint32_t), huge);
    for (i = 0; i < graph->edges; i++) {
        draw(graph, &state, edge);
        offsets[edge[0]]++;
        offsets[edge[1]]++;
    }
    for (i = 0; i <= graph->vertices; i++) {
        sum += offsets[i];
        offsets[i] = sum;
    }
    /* Filled from each list's end, which leaves every offset at its list's beginning. */
    state = graph->seed;
    for (i = 0; i < graph->edges; i++) {
        draw(graph, &state, edge);
        graph->targets[--offsets[edge[0]]] = edge[1];
        graph->targets[--offsets[edge[1]]] = edge[0];
    }
    graph->distances = (uint32_t *)(void *)plain_memory(graph->vertices * sizeof(uint32_t), huge);
    graph->waiting = (uint32_t *)(void *)plain_memory(graph->vertices * sizeof(uint32_t), huge);
}

/* One search, counted into the meter; returns the sum of all distances, which does not depend on the order of edges. */
static uint64_t search(const struct graph *graph, uint32_t root, struct meter *meter, long searches)
{
    uint64_t head = 0, tail = 0, sum = 0, looked_at = 0;
    char more[48];

    memset(graph->distances, 0xff, graph->vertices * sizeof(uint32_t));
    graph->distances[root] = 0;
    graph->waiting[tail++] = root;
    while (head < tail) {
        uint32_t vertex = graph->waiting[head++], distance = graph->distances[vertex] + 1;
        uint64_t edge = graph->offsets[vertex], end = graph->offsets[vertex + 1];

        sum += distance - 1;
        looked_at += end - edge;
        for (; edge < end; edge++) {
            uint32_t target = graph->targets[edge];

            if (graph->distances[target] == FAR_AWAY) {
                graph->distances[target] = distance;
                graph->waiting[tail++] = target;
            }
        }
        if (looked_at >= BATCH || head == tail) {
            double now = seconds();

            if (meter_add(meter, looked_at, &now)) {
                snprintf(more, sizeof(more), ",\"searches\":%ld", searches);
                meter_print(meter, now, more);
            }
            looked_at = 0;
        }
    }
    return sum;
}

int main(int argc, char **argv)
{
    static const long scales[] = { 4, 30 }, degrees[] = { 1, 1024 }, spans[] = { 0, 1000000000 }, flags[] = { 0, 1 };
    static const long seeds[] = { 1, 1 << 30 };
    struct graph graph = { 0 };
    uint64_t sum = 0, state, bytes;
    long searches = 0, searches_max;
    struct meter meter;
    double run_for;
    char more[96];

    options_check(argc, argv, usage, names);
    graph.scale = (unsigned)bounded(argc, argv, "scale", 18, scales);
    graph.vertices = 1ull << graph.scale;
    graph.edges = graph.vertices * (uint64_t)bounded(argc, argv, "degree", 16, degrees);
    graph.seed = (uint64_t)bounded(argc, argv, "seed", 1, seeds) * 0x9e3779b97f4a7c15ull;
    run_for = (double)bounded(argc, argv, "seconds", 10, spans);
    searches_max = bounded(argc, argv, "searches", 0, spans);
    build(&graph, bounded(argc, argv, "huge", 0, flags) != 0);
    bytes = graph.vertices * 16 + graph.edges * 8;
    printf("{\"program\":\"graph\",\"vertices\":%llu,\"edges\":%llu,\"region_bytes\":%llu,\"pid\":%ld}\n",
           (unsigned long long)graph.vertices, (unsigned long long)graph.edges, (unsigned long long)bytes,
           (long)getpid());
    state = graph.seed;
    meter = meter_start("graph", argc, argv);
    while ((run_for == 0 || seconds() - meter.began < run_for) && (searches_max == 0 || searches < searches_max) &&
           (run_for != 0 || searches_max != 0)) {
        uint32_t root = (uint32_t)(random_next(&state) >> 11 & (graph.vertices - 1));

        /* A vertex without edges leads nowhere. */
        if (graph.offsets[root] != graph.offsets[root + 1])
            sum += search(&graph, root, &meter, ++searches);
    }
    snprintf(more, sizeof(more), ",\"searches\":%ld,\"sum\":\"%016llx\"", searches, (unsigned long long)sum);
    meter_done(&meter, seconds(), more);
    return 0;
}
