/* Allocation and freeing: the contract of each function, upstream's defects, and errors of programs. */
#define _GNU_SOURCE
#include "check.h"
#include <pthread.h>
#include <smdk_opt_api.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define NORMAL SMDK_MEM_NORMAL
#define EXMEM SMDK_MEM_EXMEM
#define MIB ((size_t)1 << 20)

/* Numbers that are not types; a C program may pass any. */
static const int NO_TYPES[] = {-1, 2, 3, 999, INT32_MIN, INT32_MAX};
#define EACH_NO_TYPE(type) for (size_t t_ = 0, type = 0; t_ < 6 && (type = (size_t)NO_TYPES[t_], 1); t_++)

static bool has(smdk_memtype_t type) { return s_get_memsize_total(type) > 0; }

/* With volatile sizes the compiler does not warn about intentional errors. */
static volatile size_t HUGE_SIZE = SIZE_MAX / 2;

static size_t resident(void) {
    unsigned long all = 0, here = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file && fscanf(file, "%lu %lu", &all, &here) == 2);
    fclose(file);
    return here * (size_t)sysconf(_SC_PAGESIZE);
}

static void fill(unsigned char *at, size_t size, unsigned seed) {
    for (size_t i = 0; i < size; i++)
        at[i] = (unsigned char)(i * 7 + seed);
}

static bool filled(const unsigned char *at, size_t size, unsigned seed) {
    for (size_t i = 0; i < size; i++)
        if (at[i] != (unsigned char)(i * 7 + seed))
            return false;
    return true;
}

static void types(void) {
    void *normal = s_malloc(NORMAL, 100);
    CHECK(normal);
    memset(normal, 1, 100);
    s_free(normal);
    void *first = s_malloc(NORMAL, 0), *second = s_malloc(NORMAL, 0);
    CHECK(first && second && first != second);
    s_free(first);
    s_free(second);
    if (has(EXMEM)) {
        void *exmem = s_malloc(EXMEM, 100);
        CHECK(exmem);
        memset(exmem, 1, 100);
        s_free(exmem);
    } else {
        void *result = &result;
        FAILS(ENODEV, s_malloc(EXMEM, 100));
        FAILS(ENODEV, s_malloc(EXMEM, 0));
        FAILS(ENODEV, s_calloc(EXMEM, 1, 100));
        FAILS(ENODEV, s_realloc(EXMEM, NULL, 100));
        CHECK(s_posix_memalign(EXMEM, &result, 64, 100) == ENOMEM && result == &result);
    }
    EACH_NO_TYPE(type) {
        void *result = &result;
        FAILS(EINVAL, s_malloc((smdk_memtype_t)type, 100));
        FAILS(EINVAL, s_calloc((smdk_memtype_t)type, 1, 100));
        FAILS(EINVAL, s_realloc((smdk_memtype_t)type, NULL, 100));
        FAILS(EINVAL, s_malloc_node((smdk_memtype_t)type, 100, "0"));
        CHECK(s_posix_memalign((smdk_memtype_t)type, &result, 64, 100) == EINVAL && result == &result);
    }
    FAILS(ENOMEM, s_malloc(NORMAL, HUGE_SIZE));
    FAILS(ENOMEM, s_malloc(NORMAL, SIZE_MAX));
}

static void zeroes(void) {
    for (size_t size = 1; size < 5 * MIB; size = size * 3 + 1) {
        unsigned char *dirty = s_malloc(NORMAL, size);
        CHECK(dirty);
        memset(dirty, 0xff, size);
        s_free(dirty);
        unsigned char *clean = s_calloc(NORMAL, size, 1);
        CHECK(clean);
        for (size_t i = 0; i < size; i++)
            CHECK(clean[i] == 0);
        s_free(clean);
    }
    void *none = s_calloc(NORMAL, 0, 8);
    CHECK(none);
    s_free(none);
    /* Products that are small once they have overflowed. */
    FAILS(ENOMEM, s_calloc(NORMAL, HUGE_SIZE, 3));
    FAILS(ENOMEM, s_calloc(NORMAL, SIZE_MAX / 4 + 2, 4));
    FAILS(ENOMEM, s_calloc(NORMAL, HUGE_SIZE, 1));
}

static void realloc_keeps(void) {
    unsigned char *at = s_realloc(NORMAL, NULL, 1000);
    CHECK(at);
    fill(at, 1000, 3);
    size_t sizes[] = {1001, 5000, 100000, 3 * MIB, 9 * MIB, 70 * MIB, 20 * MIB, 5 * MIB, 200000, 3000, 1000};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        at = s_realloc(NORMAL, at, sizes[i]);
        CHECK(at && filled(at, 1000, 3));
        at[sizes[i] - 1] = at[sizes[i] - 1];
    }
    CHECK(s_realloc(NORMAL, at, 0) == NULL);
    CHECK(s_get_memsize_used(NORMAL) == 0);
    void *one = s_realloc(NORMAL, NULL, 0);
    CHECK(one);
    s_free(one);
}

static void realloc_fails(void) {
    size_t sizes[] = {24, 40000, 6 * MIB};
    for (size_t i = 0; i < 3; i++) {
        size_t size = sizes[i];
        unsigned char *at = s_malloc(NORMAL, size);
        CHECK(at);
        fill(at, size, 5);
        size_t used = s_get_memsize_used(NORMAL);
        FAILS(ENOMEM, s_realloc(NORMAL, at, HUGE_SIZE));
        if (!has(EXMEM)) {
            FAILS(ENODEV, s_realloc(EXMEM, at, size));
            FAILS(ENODEV, s_realloc(EXMEM, at, 2 * size));
        }
        EACH_NO_TYPE(type) {
            FAILS(EINVAL, s_realloc((smdk_memtype_t)type, at, 2 * size));
            FAILS(EINVAL, s_realloc((smdk_memtype_t)type, at, 0));
        }
        CHECK(filled(at, size, 5) && s_get_memsize_used(NORMAL) == used);
        s_free(at);
    }
    CHECK(s_get_memsize_used(NORMAL) == 0);
}

static void realloc_in_place(void) {
    char *small = s_malloc(NORMAL, 100);
    CHECK(small && s_realloc(NORMAL, small, 104) == small && s_realloc(NORMAL, small, 97) == small);
    s_free(small);
    char *large = s_malloc(NORMAL, 8 * MIB);
    CHECK(large);
    large[0] = 'x';
    CHECK(s_realloc(NORMAL, large, 24 * MIB) == large && large[0] == 'x');
    CHECK(s_realloc(NORMAL, large, 8 * MIB) == large && large[0] == 'x');
    s_free(large);
}

static void memalign(void) {
    for (size_t alignment = sizeof(void *); alignment <= (size_t)1 << 30; alignment *= 2) {
        for (size_t size = 0; size <= 3 * MIB; size = size * 5 + 1) {
            void *at = NULL;
            errno = 77;
            CHECK(s_posix_memalign(NORMAL, &at, alignment, size) == 0 && errno == 77);
            CHECK(at && (uintptr_t)at % alignment == 0);
            memset(at, 1, size);
            s_free(at);
        }
    }
    size_t wrong[] = {0, 1, 2, 4, 3, 12, 24, 48, 100, 4095, SIZE_MAX};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        void *at = &at;
        errno = 77;
        CHECK(s_posix_memalign(NORMAL, &at, wrong[i], 100) == EINVAL && at == &at && errno == 77);
    }
    void *at = &at;
    CHECK(s_posix_memalign(NORMAL, &at, 64, HUGE_SIZE) == ENOMEM && at == &at && errno == 77);
    CHECK(s_posix_memalign(NORMAL, NULL, 64, 100) == EINVAL);
    CHECK(s_get_memsize_used(NORMAL) == 0);
}

static void frees(void) {
    errno = 77;
    s_free(NULL);
    s_free_type(NORMAL, NULL);
    s_free_node(EXMEM, NULL, 1);
    void *objects[6];
    for (size_t i = 0; i < 6; i++)
        CHECK((objects[i] = s_malloc(NORMAL, 64 << 10)));
    size_t used = s_get_memsize_used(NORMAL);
    CHECK(used == 6 * 64 << 10);
    errno = 77;
    s_free(objects[0]);
    s_free_type(NORMAL, objects[1]);
    s_free_type(EXMEM, objects[2]); /* the named type is ignored */
    s_free_node(NORMAL, objects[3], 1);
    s_free_node((smdk_memtype_t)9, objects[4], 64 << 10);
    CHECK(errno == 77 && s_get_memsize_used(NORMAL) == 64 << 10);
    EACH_NO_TYPE(type) s_free_type((smdk_memtype_t)type, objects[5]);
    CHECK(s_get_memsize_used(NORMAL) == 64 << 10);
    s_free_type(NORMAL, objects[5]);
    CHECK(s_get_memsize_used(NORMAL) == 0);
}

static void lazy(void) {
    s_free(s_malloc(NORMAL, 100));
    size_t before = resident();
    char *at = s_malloc(NORMAL, 512 * MIB), *zeroed = s_calloc(NORMAL, 64, 8 * MIB);
    CHECK(at && zeroed && resident() < before + 8 * MIB);
    at[300 * MIB] = 1;
    CHECK(zeroed[300 * MIB] == 0 && resident() < before + 8 * MIB);
    memset(at, 1, 64 * MIB);
    CHECK(resident() > before + 60 * MIB);
    s_free(at);
    s_free(zeroed);
    CHECK(resident() < before + 8 * MIB);
}

/* Frees many objects of one size, and allocates twice as many of half that size in their place. */
static void reused(void) {
    enum { COUNT = 2000 };
    static void *objects[2 * COUNT];
    size_t before = resident();
    for (int round = 0; round < 4; round++) {
        int count = round % 2 ? 2 * COUNT : COUNT;
        size_t size = round % 2 ? 32 << 10 : 64 << 10;
        for (int i = 0; i < count; i++) {
            CHECK((objects[i] = s_malloc(NORMAL, size)));
            memset(objects[i], 1, size);
        }
        CHECK(resident() < before + 160 * MIB);
        for (int i = 0; i < count; i++)
            s_free(objects[i]);
    }
    CHECK(s_get_memsize_used(NORMAL) == 0);
    CHECK(resident() < before + 16 * MIB);
}

static void no_room(void) {
    s_free(s_malloc(NORMAL, 100));
    struct rlimit little = {256 * MIB, 256 * MIB};
    CHECK(setrlimit(RLIMIT_DATA, &little) == 0);
    unsigned char *at = s_malloc(NORMAL, 100);
    CHECK(at);
    fill(at, 100, 9);
    int given = 0;
    /* Allocations beyond the limit fail in any function, and do not end the program. */
    for (int i = 0; i < 100; i++) {
        void *more = malloc(16 * MIB);
        void *ours = s_malloc(NORMAL, 100 + (size_t)i * 5000);
        given += ours != NULL;
        s_realloc(NORMAL, NULL, (size_t)i * 10000 + 1);
        (void)more;
    }
    CHECK(given > 0 && filled(at, 100, 9));
}

enum { THREADS = 8, STEPS = 20000, SHARED = 512 };
static pthread_barrier_t together;
static void *first_of[THREADS];
static void *shared[SHARED];

/* The first use by all threads at once; then objects that one allocates, another resizes and a third frees. */
static void *worker(void *number) {
    unsigned seed = (unsigned)(uintptr_t)number + 1;
    pthread_barrier_wait(&together);
    first_of[seed - 1] = s_malloc(NORMAL, 64 << 10);
    CHECK(first_of[seed - 1]);
    for (int i = 0; i < STEPS; i++) {
        seed = seed * 1103515245 + 12345;
        void **place = &shared[seed >> 8 & (SHARED - 1)];
        unsigned char *object = __atomic_exchange_n(place, NULL, __ATOMIC_ACQ_REL);
        size_t size = 16 + (seed >> 16) % 20000;
        if (object) {
            size_t before;
            memcpy(&before, object, sizeof before);
            CHECK(filled(object + 8, before - 8, (unsigned)before));
            if (seed & 1) {
                s_free_type(seed & 2 ? NORMAL : EXMEM, object);
                continue;
            }
            object = s_realloc(NORMAL, object, size);
        } else {
            object = seed & 1 ? s_malloc(NORMAL, size) : s_calloc(NORMAL, 1, size);
        }
        CHECK(object);
        memcpy(object, &size, sizeof size);
        fill(object + 8, size - 8, (unsigned)size);
        s_free(__atomic_exchange_n(place, (void *)object, __ATOMIC_ACQ_REL));
    }
    return NULL;
}

static void threads(void) {
    pthread_t all[THREADS];
    CHECK(pthread_barrier_init(&together, NULL, THREADS) == 0);
    for (uintptr_t i = 0; i < THREADS; i++)
        CHECK(pthread_create(&all[i], NULL, worker, (void *)i) == 0);
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_join(all[i], NULL) == 0);
    for (int i = 0; i < SHARED; i++)
        s_free(shared[i]);
    CHECK(s_get_memsize_used(NORMAL) == THREADS * 64 << 10);
    for (int i = 0; i < THREADS; i++)
        s_free(first_of[i]);
    CHECK(s_get_memsize_used(NORMAL) == 0);
}

static volatile bool stop;

static void *churn(void *unused) {
    for (size_t size = 1; !stop; size = size * 13 % 100003) {
        char *at = s_malloc(NORMAL, size);
        CHECK(at);
        at[0] = 1;
        s_free(at);
        s_free(s_malloc_node(NORMAL, size, "all"));
        s_get_memsize_total(NORMAL);
    }
    return unused;
}

static void child(unsigned char *kept, int number) {
    alarm(300); /* a child that waits for a thread it does not have would wait for ever */
    CHECK(filled(kept, 5000, 4));
    kept = s_realloc(NORMAL, kept, 50000);
    CHECK(kept && filled(kept, 5000, 4));
    s_free(kept);
    CHECK(s_malloc(NORMAL, 100) && s_malloc_node(NORMAL, 5 * MIB, "all") && s_get_memsize_total(NORMAL));
    if (number % 10 == 0)
        s_stats_print('m');
    s_enable_node_interleave("all");
    CHECK(s_malloc(NORMAL, 100));
    s_disable_node_interleave();
    _exit(0);
}

static void forks(void) {
    unsigned char *kept = s_malloc(NORMAL, 5000);
    CHECK(kept);
    fill(kept, 5000, 4);
    pthread_t busy[3];
    for (int i = 0; i < 3; i++)
        CHECK(pthread_create(&busy[i], NULL, churn, NULL) == 0);
    for (int i = 0; i < 50; i++) {
        int status = 0;
        pid_t one = fork();
        if (one == 0)
            child(kept, i);
        CHECK(one > 0 && waitpid(one, &status, 0) == one);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    stop = true;
    for (int i = 0; i < 3; i++)
        CHECK(pthread_join(busy[i], NULL) == 0);
    CHECK(filled(kept, 5000, 4));
    s_free(kept);
}

int main(int argc, char **argv) {
    static const struct check checks[] = {
        {"types", types},
        {"zeroes", zeroes},
        {"realloc-keeps", realloc_keeps},
        {"realloc-fails", realloc_fails},
        {"realloc-in-place", realloc_in_place},
        {"memalign", memalign},
        {"frees", frees},
        {"lazy", lazy},
        {"reused", reused},
        {"no-room", no_room},
        {"threads", threads},
        {"forks", forks},
    };
    return run_check(checks, sizeof checks / sizeof *checks, argc, argv);
}
