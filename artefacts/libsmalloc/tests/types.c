/* Both types of memory, on the machine that pretend.c simulates: nodes 0 and 2 are normal memory, 1 and 4 exmem. */
#include "check.h"
#include <nearfar.h>
#include <pthread.h>
#include <smdk_opt_api.h>

#define NORMAL SMDK_MEM_NORMAL
#define EXMEM SMDK_MEM_EXMEM

static size_t used(smdk_memtype_t type) { return s_get_memsize_used(type); }

static void both(void) {
    void *normal = s_malloc(NORMAL, 64 << 10), *exmem = s_malloc(EXMEM, 128 << 10);
    CHECK(normal && exmem && nf_kind_of(normal) != nf_kind_of(exmem));
    CHECK(used(NORMAL) == 64 << 10 && used(EXMEM) == 128 << 10);
    void *aligned = NULL, *zeroed = s_calloc(EXMEM, 2, 64 << 10);
    CHECK(s_posix_memalign(EXMEM, &aligned, 4096, 64 << 10) == 0);
    CHECK(nf_kind_of(aligned) == nf_kind_of(exmem) && nf_kind_of(zeroed) == nf_kind_of(exmem));
    CHECK(used(NORMAL) == 64 << 10 && used(EXMEM) == (128 + 128 + 64) << 10);
    s_free_type(NORMAL, exmem); /* the named type is ignored */
    s_free_type(EXMEM, normal);
    s_free(aligned);
    s_free_node(NORMAL, zeroed, 0);
    CHECK(used(NORMAL) == 0 && used(EXMEM) == 0);
}

static void changes(void) {
    size_t sizes[] = {100, 40000, 300000, 6 << 20, 70 << 20};
    for (int i = 0; i < 5; i++) {
        size_t size = sizes[i];
        char *at = s_malloc(NORMAL, size);
        CHECK(at);
        memset(at, 'x', size);
        nf_kind_t before = nf_kind_of(at);
        char *moved = s_realloc(EXMEM, at, size + 5000);
        CHECK(moved && moved != at && nf_kind_of(moved) != before && used(NORMAL) == 0);
        CHECK(moved[0] == 'x' && moved[size - 1] == 'x');
        char *again = s_malloc(NORMAL, size);
        CHECK(again && nf_kind_of(again) == before);
        s_free(again);
        char *back = s_realloc(NORMAL, moved, size / 2);
        CHECK(back && nf_kind_of(back) == before && used(EXMEM) == 0);
        CHECK(back[0] == 'x' && back[size / 2 - 1] == 'x');
        CHECK(s_realloc(EXMEM, back, 0) == NULL && used(NORMAL) == 0); /* freed, of whichever type */
        FAILS(ENOMEM, s_realloc(EXMEM, (at = s_malloc(NORMAL, size)), (size_t)-1 / 2));
        memset(at, 'y', size);
        s_free(at);
    }
}

/* Prints the kinds of memory on nodes: pretend.c prints each as it is created. */
static void on_nodes(void) {
    void *first = s_malloc_node(EXMEM, 100, "4"), *second = s_malloc_node(EXMEM, 100, "0x4");
    CHECK(first && second && nf_kind_of(first) == nf_kind_of(second));
    void *other = s_malloc_node(EXMEM, 100, "1");
    CHECK(other && nf_kind_of(other) != nf_kind_of(first));
    void *grown = s_realloc(EXMEM, first, 100000);
    CHECK(grown && nf_kind_of(grown) == nf_kind_of(second)); /* already of the type: it stays on its node */
    void *all = s_realloc(NORMAL, grown, 100000);
    CHECK(all && nf_kind_of(all) == nf_kind_of(s_malloc(NORMAL, 1)));
    /* A set means those of it that are of the type. */
    CHECK(s_malloc_node(NORMAL, 100, "0-4") && s_malloc_node(EXMEM, 100, "0-2") && s_malloc_node(EXMEM, 100, "1,2"));
    CHECK(nf_kind_of(s_malloc_node(EXMEM, 100, "0-4")) == nf_kind_of(s_malloc(EXMEM, 100)));
    FAILS(ENODEV, s_malloc_node(NORMAL, 100, "4"));
    FAILS(ENODEV, s_malloc_node(EXMEM, 100, "2"));
    FAILS(ENODEV, s_malloc_node(EXMEM, 100, "0,2"));
    FAILS(ENODEV, s_malloc_node(NORMAL, 100, "3")); /* no memory */
    FAILS(ENODEV, s_malloc_node(EXMEM, 100, "3"));
    FAILS(ENODEV, s_malloc_node(EXMEM, 100, "5"));
    FAILS(EINVAL, s_malloc_node(EXMEM, 100, "x"));
}

static void interleaves(void) {
    nf_kind_t normal = nf_kind_of(s_malloc(NORMAL, 1)), exmem = nf_kind_of(s_malloc(EXMEM, 1));
    s_enable_node_interleave("1,4");
    CHECK(nf_kind_of(s_malloc(NORMAL, 1)) == normal); /* none of the nodes is of the type */
    nf_kind_t in_turn = nf_kind_of(s_malloc(EXMEM, 1));
    CHECK(in_turn != exmem);
    void *at = s_realloc(EXMEM, s_malloc_node(EXMEM, 1, "1"), 100000);
    CHECK(nf_kind_of(at) != in_turn && nf_kind_of(at) != exmem);
    at = s_realloc(EXMEM, s_malloc(NORMAL, 1), 100000);
    CHECK(nf_kind_of(at) == in_turn);
    s_enable_node_interleave("0-2"); /* other nodes: 0 and 2 of one type, 1 of the other */
    CHECK(nf_kind_of(s_malloc(NORMAL, 1)) != normal && nf_kind_of(s_malloc(EXMEM, 1)) != in_turn);
    s_enable_node_interleave("1,4"); /* known already */
    CHECK(nf_kind_of(s_malloc(NORMAL, 1)) == normal && nf_kind_of(s_malloc(EXMEM, 1)) == in_turn);
    s_disable_node_interleave();
    CHECK(nf_kind_of(s_malloc(NORMAL, 1)) == normal && nf_kind_of(s_malloc(EXMEM, 1)) == exmem);
}

enum { THREADS = 16 };
static pthread_barrier_t together;

static void *begin(void *kinds) {
    nf_kind_t *kind = kinds;
    pthread_barrier_wait(&together);
    kind[0] = nf_kind_of(s_malloc(NORMAL, 1));
    kind[1] = nf_kind_of(s_malloc_node(EXMEM, 1, "4"));
    s_enable_node_interleave("0-2");
    kind[2] = nf_kind_of(s_malloc(NORMAL, 1));
    return NULL;
}

/* A kind that many threads request at once is created by one of them, and the others use the same. */
static void at_once(void) {
    pthread_t threads[THREADS];
    nf_kind_t kinds[THREADS][3];
    CHECK(pthread_barrier_init(&together, NULL, THREADS) == 0);
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, begin, kinds[i]) == 0);
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    for (int i = 0; i < THREADS; i++)
        CHECK(memcmp(kinds[i], kinds[0], sizeof kinds[0]) == 0);
    CHECK(kinds[0][0] != kinds[0][1] && kinds[0][0] != kinds[0][2] && kinds[0][1] != kinds[0][2]);
}

static void sizes(void) {
    const size_t gib = 1 << 30;
    CHECK(s_get_memsize_total(NORMAL) == 4 * gib && s_get_memsize_available(NORMAL) == 2 * gib);
    CHECK(s_get_memsize_total(EXMEM) == 7 * gib && s_get_memsize_available(EXMEM) == 7 * gib / 2);
    CHECK(s_get_memsize_node_total(EXMEM, 4) == 5 * gib && s_get_memsize_node_available(NORMAL, 2) == 3 * gib / 2);
    CHECK(s_malloc(NORMAL, 64 << 20) && s_malloc(EXMEM, 512 << 20));
    s_stats_print('g');
    s_stats_node_print('M');
    CHECK(s_get_memsize_node_total(NORMAL, 4) == 0 && s_get_memsize_node_available(EXMEM, 3) == 0);
}

static void no_kinds(void) {
    void *result = &result;
    FAILS(ENOMEM, s_malloc(NORMAL, 100));
    FAILS(ENOMEM, s_calloc(EXMEM, 1, 100));
    FAILS(ENOMEM, s_malloc_node(EXMEM, 100, "1"));
    CHECK(s_posix_memalign(NORMAL, &result, 64, 100) == ENOMEM && result == &result);
    s_enable_node_interleave("all");
    CHECK(used(NORMAL) == 0);
}

static void no_nodes(void) {
    FAILS(ENOSYS, s_malloc(NORMAL, 100));
    FAILS(ENOSYS, s_realloc(EXMEM, NULL, 100));
    FAILS(ENOSYS, s_malloc_node(EXMEM, 100, "1"));
    CHECK(s_get_memsize_total(NORMAL) == 0 && s_get_memsize_node_total(NORMAL, 0) == 0);
    s_stats_node_print('g');
}

int main(int argc, char **argv) {
    static const struct check checks[] = {
        {"both", both},
        {"changes", changes},
        {"on-nodes", on_nodes},
        {"interleaves", interleaves},
        {"at-once", at_once},
        {"sizes", sizes},
        {"no-kinds", no_kinds},
        {"no-nodes", no_nodes},
    };
    return run_check(checks, sizeof checks / sizeof *checks, argc, argv);
}
