/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * gups: random updates over a region of which a part is hot, and the hot part moves.
 *
 * The updates are those of HPCC's RandomAccess (giga-updates per second). That a hot set takes most of them and moves
 * now and then is how HeMem (SOSP 2021) and Colloid (SOSP 2024) tell how fast a tiering system finds and follows what is
 * hot. Memory is touched once in the order of addresses before the clock starts, so that near memory, as long as there
 * is some, goes to the region's beginning. The hot set starts at the region's end: in far memory, if near is too small.
 *
 * Independent updates can overlap, as many as the processor has misses under way; with dependent=1 each address depends
 * on the value found before it, so that latency is all there is. The same options give the same updates everywhere,
 * except where a time decides when the hot set moves; where it moves to is always the same.
 */
#include "workload.h"

static const char usage[] =
    "gups [NAME=NUMBER ...]: random updates, a share of them to a hot set that moves; JSON lines\n"
    "  mb=256           the region, in MiB\n"
    "  hot_mb=32        the hot set, in MiB\n"
    "  hot_share=90     per cent of the updates that go to the hot set; the others go anywhere\n"
    "  move_ms=0        the hot set moves every so many milliseconds\n"
    "  move_updates=0   the hot set moves every so many updates\n"
    "  dependent=0      1: each address depends on the value before\n"
    "  seconds=10       how long; 0: until `updates` are done\n"
    "  updates=0        how many, if not for a time\n"
    "  look=0           ask at each line where so many pages of the hot set are, by move_pages(2); not timed\n"
    "  huge=0           1: ask for huge pages\n"
    "  seed=1\n" METER_USAGE;
static const char *const names[] = { "mb",      "hot_mb",  "hot_share", "move_ms", "move_updates", "dependent", "seconds",
                                     "updates", "look",    "huge",      "seed",    METER_NAMES,    NULL };

struct region {
    uint64_t *words;
    uint64_t total, hot, hot_at; /* in words */
    uint64_t hot_below;          /* of 2^16 updates */
    int dependent;
    uint64_t state;
    long moves;
};

/* The hot set moves on by the golden section of the places it can have: the same moves in every run, however fast it was. */
static void move(struct region *region)
{
    uint64_t places = region->total / region->hot, at = region->hot_at / region->hot, step = places * 618 / 1000;

    if (places > 1)
        at = (at + (step ? step : 1)) % places;
    region->hot_at = at * region->hot;
    region->moves++;
}

/* A random number below `below`, from 32 random bits and without a division. */
static inline uint64_t within(uint64_t bits, uint64_t below)
{
    return (bits & 0xffffffff) * below >> 32;
}

static void update(struct region *region, long count)
{
    uint64_t state = region->state;
    long i;

    for (i = 0; i < count; i++) {
        uint64_t random = random_next(&state), at, value;

        at = (random >> 48) < region->hot_below ? region->hot_at + within(random, region->hot)
                                                : within(random, region->total);
        value = region->words[at] ^ random;
        region->words[at] = value;
        /* Zero would be the end of all randomness. */
        if (region->dependent && (state ^ value))
            state ^= value;
    }
    region->state = state;
}

/* Touches every page, in order, and lays out the region. */
static struct region prepare(int argc, char **argv)
{
    static const long sizes[] = { 1, 1 << 20 }, shares[] = { 0, 100 }, flags[] = { 0, 1 }, seeds[] = { 1, 1 << 30 };
    uint64_t mb = (uint64_t)bounded(argc, argv, "mb", 256, sizes), hot_mb;
    const long up_to_all[] = { 1, (long)mb };
    struct region region = { 0 };
    uint64_t i;

    hot_mb = (uint64_t)bounded(argc, argv, "hot_mb", mb < 32 ? (long)mb : 32, up_to_all);
    region.total = mb << 17;
    region.hot = hot_mb << 17;
    region.hot_at = (region.total / region.hot - 1) * region.hot;
    region.hot_below = (uint64_t)bounded(argc, argv, "hot_share", 90, shares) * 65536 / 100;
    region.dependent = bounded(argc, argv, "dependent", 0, flags) != 0;
    region.state = (uint64_t)bounded(argc, argv, "seed", 1, seeds) * 0x9e3779b97f4a7c15ull;
    region.words = (uint64_t *)(void *)plain_memory(mb << 20, bounded(argc, argv, "huge", 0, flags) != 0);
    for (i = 0; i < region.total; i += PAGE / 8)
        region.words[i] = i | 1;
    return region;
}

enum { LOOK_MAX = 1024, NODES_MAX = 64 };

/* Where a sample of the hot set is, evenly spread over it: pages by node, as a JSON field. The call finds pages without
 * using them, so it makes none look used. */
static void look(const struct region *region, long sample, char *text, size_t room)
{
    static void *pages[LOOK_MAX];
    static int status[LOOK_MAX];
    long counts[NODES_MAX] = { 0 }, i;
    const char *comma = "";
    int length;

    for (i = 0; i < sample; i++)
        pages[i] = &region->words[region->hot_at + region->hot / (uint64_t)sample * (uint64_t)i];
    if (syscall(SYS_move_pages, 0, (unsigned long)sample, pages, NULL, status, 0))
        die("asking where pages are");
    for (i = 0; i < sample; i++)
        if (status[i] >= 0 && status[i] < NODES_MAX)
            counts[status[i]]++;
    length = snprintf(text, room, ",\"hot_pages_by_node\":{");
    for (i = 0; i < NODES_MAX; i++)
        if (counts[i] && (size_t)length < room) {
            length += snprintf(text + length, room - (size_t)length, "%s\"%ld\":%ld", comma, i, counts[i]);
            comma = ",";
        }
    if ((size_t)length < room)
        snprintf(text + length, room - (size_t)length, "}");
}

/* What an interval has to say beyond the meter; the time it takes to find out does not count. */
static double tell(const struct region *region, long sample, struct meter *meter, double now)
{
    char more[2048], where[1536] = "";
    double found = now;

    if (sample) {
        look(region, sample, where, sizeof(where));
        found = meter_forget(meter, now);
    }
    snprintf(more, sizeof(more), ",\"hot_at_bytes\":%llu,\"moves\":%ld%s", (unsigned long long)region->hot_at * 8,
             region->moves, where);
    meter_print(meter, found, more);
    return found;
}

int main(int argc, char **argv)
{
    static const long spans[] = { 0, 1000000000 }, samples[] = { 0, LOOK_MAX };
    double run_for, move_every, moved, now;
    uint64_t updates, move_updates, since_move = 0;
    struct region region;
    struct meter meter;
    char more[128];
    long sample;

    options_check(argc, argv, usage, names);
    run_for = (double)bounded(argc, argv, "seconds", 10, spans);
    updates = (uint64_t)option(argc, argv, "updates", 0);
    move_every = (double)bounded(argc, argv, "move_ms", 0, spans) / 1e3;
    move_updates = (uint64_t)option(argc, argv, "move_updates", 0);
    sample = bounded(argc, argv, "look", 0, samples);
    region = prepare(argc, argv);
    printf("{\"program\":\"gups\",\"region_bytes\":%llu,\"hot_bytes\":%llu,\"region_at\":\"0x%llx\",\"pid\":%ld}\n",
           (unsigned long long)region.total * 8, (unsigned long long)region.hot * 8,
           (unsigned long long)(uintptr_t)region.words, (long)getpid());
    meter = meter_start("gups", argc, argv);
    moved = now = meter.began;
    while ((run_for == 0 || now - meter.began < run_for) && (updates == 0 || meter.total < updates) &&
           (run_for != 0 || updates != 0)) {
        update(&region, BATCH);
        now = seconds();
        since_move += BATCH;
        if (meter_add(&meter, BATCH, &now))
            now = tell(&region, sample, &meter, now);
        if ((move_every > 0 && now - moved >= move_every) || (move_updates && since_move >= move_updates)) {
            move(&region);
            moved = now;
            since_move = 0;
        }
    }
    snprintf(more, sizeof(more), ",\"moves\":%ld,\"state\":\"%016llx\"", region.moves, (unsigned long long)region.state);
    meter_done(&meter, now, more);
    return 0;
}
