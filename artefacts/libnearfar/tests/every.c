/* Every function of nearfar.h, with valid and (where defined) invalid arguments, with threads that free each other's memory and
   children of fork that continue; also run under sanitizers (scripts/sanitize). Prints "done", and "ended" after main. */
#define _GNU_SOURCE
#include <errno.h>
#include <nearfar.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
#define check(what) \
    do { \
        if (!(what)) { \
            fprintf(stderr, "every.c:%d: %s: errno %d, %s\n", __LINE__, #what, errno, nf_error()); \
            exit(1); \
        } \
    } while (0)

static const size_t sizes[] = {0, 1, 8, 100, 1024, 1025, 5000, 32768, 32769, 100000, 3 * MIB, 5 * MIB, 70 * MIB};
#define SIZES (sizeof sizes / sizeof *sizes)

static nf_kind_t made(const char *words) {
    nf_kind_t kind = nf_kind_create(words);
    check(kind != NF_NONE);
    return kind;
}

/* Writes both ends, and all bytes of small objects. */
static void fill(char *memory, size_t length, char value) {
    size_t end = length < 4096 ? length : 4096;
    memset(memory, value, end);
    memset(memory + length - end, value, end);
}

static int holds(const char *memory, size_t length, char value) {
    for (size_t at = 0; at < length && at < 4096; at++)
        if (memory[at] != value)
            return 0;
    return 1;
}

static void allocates(nf_kind_t kind) {
    for (size_t at = 0; at < SIZES; at++) {
        char *plain = nf_malloc(kind, sizes[at]), *zeroed = nf_calloc(kind, 1, sizes[at]);
        check(plain && zeroed && nf_usable_size(plain) >= sizes[at]);
        check(nf_kind_of(plain) == kind && nf_kind_of(zeroed) == kind);
        check(holds(zeroed, sizes[at], 0));
        fill(plain, nf_usable_size(plain), 1);
        fill(zeroed, nf_usable_size(zeroed), 2);
        for (size_t shift = 0; shift <= 24; shift += 6) {
            char *aligned = nf_aligned_alloc(kind, (size_t)1 << shift, sizes[at]);
            check(aligned && ((size_t)aligned & (((size_t)1 << shift) - 1)) == 0);
            fill(aligned, nf_usable_size(aligned), 3);
            nf_free(aligned);
        }
        for (size_t to = 0; to < SIZES; to++) {
            plain = nf_realloc(to % 3 ? kind : NF_DEFAULT, plain, sizes[to]);
            check(plain && holds(plain, sizes[to] < sizes[at] ? sizes[to] : sizes[at], 1));
            fill(plain, nf_usable_size(plain), 1);
            plain = nf_realloc(kind, plain, sizes[at]);
            check(plain);
            fill(plain, nf_usable_size(plain), 1);
        }
        nf_free(plain);
        nf_free(zeroed);
    }
}

static void refuses(nf_kind_t kind) {
    check(nf_kind_create(NULL) == NF_NONE && errno == EINVAL);
    check(nf_kind_create("nowhere") == NF_NONE && errno == EINVAL && strstr(nf_error(), "nowhere"));
    check(nf_kind_create("bind:1000") == NF_NONE && errno == ENODEV);
    check(!nf_malloc(kind, (size_t)-1) && errno == ENOMEM);
    check(!nf_calloc(kind, (size_t)-1 / 2, 3) && errno == ENOMEM);
    check(!nf_aligned_alloc(kind, 24, 100) && errno == EINVAL);
    check(!nf_malloc(NF_NONE, 1) && errno == EINVAL);
    check(!nf_malloc_placed("nowhere", 1) && !nf_malloc_placed(NULL, 1) && errno == EINVAL);
    check(nf_stats(NF_NONE, NULL) == -1 && nf_node(1000, NULL) == -1 && nf_nodes(NULL, NULL, 0) == -1);
    check(nf_kind_destroy(NF_NONE) == -1 && nf_kind_destroy(NF_DEFAULT) == -1);
    nf_free(NULL);
    check(nf_usable_size(NULL) == 0 && nf_kind_of(NULL) == NF_DEFAULT && nf_abi_version() == 0);
}

static void tells(nf_kind_t kind) {
    nf_stats_t stats;
    nf_node_t node;
    uint32_t nodes[4];
    uint64_t bytes[4] = {0};
    char text[200], *all;
    check(nf_stats(kind, &stats) == 0 && stats.limit == UINT64_MAX);
    check(nf_node(0, &node) == 0 && node.size > 0 && nf_nodes("all", nodes, 4) >= 1 && nodes[0] == 0);
    size_t length = nf_stats_text(NF_NONE, NF_JSON, NULL, 0);
    check(length > 0 && (all = malloc(length + 1000)));
    check(nf_stats_text(NF_NONE, NF_JSON, all, length + 1000) > 0 && strstr(all, "nearfar.alloc/1"));
    free(all);
    check(nf_stats_text(kind, NF_TEXT, text, sizeof text) > 0 && nf_stats_text(kind, 7, text, sizeof text) == 0);
    char *mapped = nf_mmap(kind, NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check(mapped != MAP_FAILED);
    fill(mapped, MIB, 1);
    check(nf_bind(kind, mapped, MIB) == 0 && nf_bind(kind, mapped + 1, MIB) == -1);
    check(nf_residency(mapped, MIB, bytes, 4) == 0 && bytes[0] + bytes[1] + bytes[2] + bytes[3] >= 8192);
    munmap(mapped, MIB);
    char *placed = nf_malloc_placed("weighted:0=1", 5 * MIB);
    check(placed);
    fill(placed, 5 * MIB, 1);
    placed = nf_realloc(kind, placed, 6 * MIB);
    check(placed && holds(placed, 4096, 1));
    nf_free(placed);
}

static void replicates(void) {
    static char first[3 * 4096], found[sizeof first];
    nf_replicated_stats_t stats;
    uint32_t nodes[2];
    check(!nf_replicated_create(NULL, 0) && errno == EINVAL && strstr(nf_error(), "0 bytes"));
    check(!nf_replicated_create("nowhere", 1) && errno == EINVAL && strstr(nf_error(), "nowhere"));
    check(!nf_replicated_create("1000", 1) && errno == ENODEV);
    check(!nf_replicated_create(NULL, (size_t)1 << 50) && errno == ENOMEM);
    check(nf_replicated_destroy(NULL) == -1 && nf_replicated_sync(NULL) == -1 && !nf_replicated_view(NULL));
    nf_replicated_t *region = nf_replicated_create("0;granule=1k;quiet=0ms", sizeof first);
    check(region && nf_replicated_size(region) == sizeof first && nf_replicated_nodes(region, nodes, 2) == 1);
    check(nf_replicated_read(region, 0, found, sizeof found) == 0 && holds(found, 4096, 0));
    for (size_t at = 0; at < sizeof first; at++)
        first[at] = (char)(at * 7);
    check(nf_replicated_write(region, 0, first, sizeof first) == 0);
    for (size_t at = 0; at < sizeof first; at += 501) {
        size_t length = (at * 3) % (sizeof first - at) + 1;
        check(nf_replicated_read(region, at, found, length) == 0 && memcmp(found, first + at, length) == 0);
    }
    check(nf_replicated_write(region, 1, first, sizeof first) == -1 && errno == EINVAL);
    check(nf_replicated_sync(region) == 0 && memcmp(nf_replicated_view(region), first, sizeof first) == 0);
    check(nf_replicated_stats(region, &stats) == 0 && stats.writes == 12 && stats.settled == 0);
    pid_t child = fork();
    check(child >= 0);
    if (child == 0)
        _exit(nf_replicated_write(region, 5, "child", 5) != 0 || nf_replicated_destroy(region) != 0);
    int status;
    check(waitpid(child, &status, 0) == child && status == 0);
    check(nf_replicated_read(region, 5, found, 5) == 0 && memcmp(found, "child", 5) == 0);
    check(nf_replicated_destroy(region) == 0);
}

/* The objects that each thread leaves for the next to free. */
static _Atomic(char *) left[64];
static nf_kind_t shared;

static void *works(void *own) {
    unsigned seed = *(unsigned *)own;
    for (int turn = 0; turn < 3000; turn++) {
        seed = seed * 1103515245 + 12345;
        size_t size = 1 + (seed >> 8) % (turn % 50 ? 3000 : 200000);
        char *memory = turn % 5 ? nf_malloc(shared, size) : nf_calloc(shared, 1, size);
        check(memory);
        fill(memory, size, (char)seed);
        char *other = __atomic_exchange_n((char **)&left[(seed >> 16) % 64], memory, __ATOMIC_ACQ_REL);
        if (other && turn % 7 == 0) {
            other = nf_realloc(shared, other, size / 2 + 1);
            check(other);
        }
        nf_free(other);
    }
    return NULL;
}

static void forks(void) {
    for (int turn = 0; turn < 5; turn++) {
        pid_t child = fork();
        check(child >= 0);
        if (child == 0) {
            unsigned seed = 9;
            works(&seed);
            nf_kind_t own = nf_kind_create("bind:0");
            check(own != NF_NONE && nf_malloc(own, 100) && nf_kind_destroy(own) == 0);
            _exit(0);
        }
        int status;
        check(waitpid(child, &status, 0) == child && status == 0);
    }
}

/* Before main and after it, and in threads that end after the library's thread-exit handler. */
static nf_kind_t early;
static char *held;

__attribute__((constructor)) static void begins(void) {
    early = made("bind:0");
    held = nf_malloc(early, 100);
    fill(held, 100, 5);
}

__attribute__((destructor)) static void ends(void) {
    check(holds(held, 100, 5));
    held = nf_realloc(early, held, 5 * MIB);
    check(held && holds(held, 100, 5));
    nf_free(held);
    check(nf_kind_destroy(early) == 0);
    puts("ended");
}

static pthread_key_t key;
static int again = 3;

static void thread_ends(void *memory) {
    nf_free(memory);
    char *more = nf_malloc(early, 200);
    fill(more, 200, 6);
    if (again-- > 0)
        pthread_setspecific(key, more);
    else
        nf_free(more);
}

static void *ends_late(void *unused) {
    pthread_setspecific(key, nf_malloc(early, 200));
    return unused;
}

int main(void) {
    pthread_t late;
    check(pthread_key_create(&key, thread_ends) == 0);
    check(pthread_create(&late, NULL, ends_late, NULL) == 0 && pthread_join(late, NULL) == 0 && again < 0);
    nf_kind_t kind = made("bind:0");
    allocates(NF_DEFAULT);
    allocates(kind);
    refuses(kind);
    tells(kind);
    replicates();
    nf_kind_t strict = made("bind:0;limit=8m"), spills = made("bind:0;limit=8m;spill=default");
    check(!nf_malloc(strict, 9 * MIB) && errno == ENOMEM);
    char *spilled = nf_malloc(spills, 9 * MIB);
    check(spilled && nf_kind_of(spilled) == NF_DEFAULT);
    nf_free(spilled);
    for (int turn = 0; turn < 300; turn++) {
        nf_kind_t one = made("interleave:0");
        char *memory = nf_malloc(one, 1000);
        fill(memory, 1000, 1);
        check(nf_kind_destroy(one) == 0);
    }
    shared = made("near");
    pthread_t threads[3];
    unsigned seeds[3] = {1, 2, 3};
    for (int at = 0; at < 3; at++)
        check(pthread_create(&threads[at], NULL, works, &seeds[at]) == 0);
    forks();
    for (int at = 0; at < 3; at++)
        check(pthread_join(threads[at], NULL) == 0);
    for (int at = 0; at < 64; at++)
        nf_free(left[at]);
    nf_stats_t stats;
    check(nf_stats(shared, &stats) == 0 && stats.allocated == 0);
    check(nf_kind_destroy(shared) == 0 && nf_kind_destroy(kind) == 0);
    check(nf_kind_destroy(strict) == 0 && nf_kind_destroy(spills) == 0);
    puts("done");
    return 0;
}
