/* The nine functions, with valid and invalid arguments. Run with the pool and without: all checks hold for both. */
#define _GNU_SOURCE
#include "check.h"
#include <hmalloc.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define GIB ((size_t)1 << 30)

static int all(const unsigned char *memory, size_t size, unsigned char value) {
    for (size_t at = 0; at < size; at++)
        if (memory[at] != value)
            return 0;
    return 1;
}

static void sizes(void) {
    static const size_t sizes[] = {0,       1,        10,      5000,    10000,    700000, 800000,
                                   900000,  1000000,  4 * MIB, 5 * MIB, 80 * MIB, 32768,  32769};
    void *objects[sizeof sizes / sizeof *sizes];
    for (int round = 0; round < 3; round++) {
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            objects[i] = hmalloc(sizes[i]);
            CHECK(objects[i]);
            CHECK((uintptr_t)objects[i] % (sizes[i] < 16 ? 8 : 16) == 0);
            CHECK(hmalloc_usable_size(objects[i]) >= sizes[i]);
            CHECK(hmalloc_usable_size(objects[i]) > 0);
            memset(objects[i], (int)i + 1, sizes[i]);
            for (size_t before = 0; before < i; before++)
                CHECK(objects[before] != objects[i]);
        }
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            CHECK(all(objects[i], sizes[i], (unsigned char)(i + 1)));
            hfree(objects[i]);
        }
    }
    hfree(NULL);
    CHECK(hmalloc_usable_size(NULL) == 0);
}

static void errno_says_what_happened(void) {
    errno = ENOMEM;
    void *object = hmalloc(100);
    CHECK(object && "an errno from before is not taken for a failure");
    hfree(object);
    CHECK(errno == ENOMEM);
    errno = EINTR;
    hfree(hmalloc(80 * MIB));
    CHECK(errno == EINTR);

    errno = 0;
    CHECK(!hmalloc(SIZE_MAX) && errno == ENOMEM);
    errno = 0;
    CHECK(!hmalloc((size_t)1 << 60) && errno == ENOMEM);
}

static void zeroes(void) {
    /* Memory that was written before is zeroed again. */
    for (size_t size = 1; size <= 16 * MIB; size *= 4) {
        unsigned char *object = hmalloc(size);
        CHECK(object);
        memset(object, 0xff, size);
        hfree(object);
        object = hcalloc(size, 1);
        CHECK(object && all(object, size, 0));
        hfree(object);
    }
    void *none = hcalloc(0, 8);
    CHECK(none);
    hfree(none);
    errno = 0;
    CHECK(!hcalloc(SIZE_MAX / 2 + 1, 2) && errno == ENOMEM);
    errno = 0;
    CHECK(!hcalloc(SIZE_MAX, SIZE_MAX) && errno == ENOMEM);
    errno = 0;
    CHECK(!hcalloc((size_t)1 << 33, (size_t)1 << 33) && errno == ENOMEM);
}

static void changes_of_size(void) {
    unsigned char *object = hrealloc(NULL, 10);
    CHECK(object);
    memset(object, 7, 10);
    size_t before = 10;
    static const size_t steps[] = {100, 5000, 100 * KIB, 3 * MIB, 6 * MIB, 90 * MIB, 5 * MIB, 1 * MIB, 512 * KIB, 90, 10};
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        object = hrealloc(object, steps[i]);
        CHECK(object);
        CHECK(all(object, before < steps[i] ? before : steps[i], 7));
        CHECK(hmalloc_usable_size(object) >= steps[i]);
        memset(object, 7, steps[i]);
        before = steps[i];
    }
    errno = 0;
    CHECK(!hrealloc(object, (size_t)1 << 60) && errno == ENOMEM);
    CHECK(all(object, 10, 7) && "what could not grow is as it was");
    CHECK(hrealloc(object, 0) == NULL);

    object = hcalloc(MIB, 1);
    object = hrealloc(object, MIB / 2);
    CHECK(object && hmalloc_usable_size(object) < MIB);
    hfree(object);

    object = hrealloc(NULL, 0);
    CHECK(object && hmalloc_usable_size(object) > 0);
    hfree(object);
}

static void alignments(void) {
    static const size_t sizes[] = {0, 1, 100, 5000, 3 * MIB};
    for (size_t alignment = 1; alignment <= GIB; alignment *= 2) {
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            unsigned char *objects[4];
            for (int n = 0; n < 2; n++) {
                objects[n] = haligned_alloc(alignment, sizes[i]);
                CHECK(objects[n]);
                void *into = &errno;
                errno = EINTR;
                CHECK(hposix_memalign(&into, alignment, sizes[i]) == 0 && errno == EINTR);
                objects[n + 2] = into;
            }
            for (int n = 0; n < 4; n++) {
                CHECK((uintptr_t)objects[n] % alignment == 0);
                CHECK(hmalloc_usable_size(objects[n]) >= sizes[i]);
                memset(objects[n], n, sizes[i]);
            }
            for (int n = 0; n < 4; n++) {
                CHECK(all(objects[n], sizes[i], (unsigned char)n));
                hfree(objects[n]);
            }
        }
    }
    /* HMSDK's library returns misaligned memory for most of these. */
    void *kept[200];
    for (int n = 0; n < 200; n++) {
        kept[n] = haligned_alloc(64 * KIB, 100);
        CHECK(kept[n] && (uintptr_t)kept[n] % (64 * KIB) == 0);
    }
    for (int n = 0; n < 200; n++)
        hfree(kept[n]);
    static const size_t wrong[] = {0, 3, 24, 1025, SIZE_MAX};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        errno = 0;
        CHECK(!haligned_alloc(wrong[i], 100) && errno == EINVAL);
        void *into = &errno;
        errno = EINTR;
        CHECK(hposix_memalign(&into, wrong[i], 100) == EINVAL);
        CHECK(!into && errno == EINTR);
    }
    errno = 0;
    CHECK(!haligned_alloc(64, SIZE_MAX - 64) && errno == ENOMEM);
    void *into = &errno;
    errno = EINTR;
    CHECK(hposix_memalign(&into, 64, SIZE_MAX - 64) == ENOMEM);
    CHECK(!into && errno == EINTR);
}

static int resident(const unsigned char *memory, size_t pages) {
    unsigned char there[64];
    CHECK(pages <= sizeof there && mincore((void *)memory, pages * 4096, there) == 0);
    int found = 0;
    for (size_t page = 0; page < pages; page++)
        found += there[page] & 1;
    return found;
}

static void mappings(const char *file_name) {
    int both = PROT_READ | PROT_WRITE;
    unsigned char *memory = hmmap(NULL, MIB, both, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory && memory != MAP_FAILED);
    CHECK(all(memory, MIB, 0));
    memset(memory, 1, MIB);
    CHECK(hmunmap(memory, MIB) == 0);

    errno = 0;
    memory = hmmap(NULL, 16 * 4096, both, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    CHECK(memory && memory != MAP_FAILED && errno == 0);
    CHECK(resident(memory, 16) == 16);
    CHECK(hmunmap(memory, 16 * 4096) == 0);

    FILE *file = fopen(file_name, "w+");
    CHECK(file && fputs("held", file) >= 0 && fflush(file) == 0 && ftruncate(fileno(file), MIB) == 0);
    memory = hmmap(NULL, MIB, both, MAP_SHARED, fileno(file), 0);
    CHECK(memory && memory != MAP_FAILED && memcmp(memory, "held", 5) == 0);
    CHECK(hmunmap(memory, MIB) == 0);
    CHECK(fclose(file) == 0 && remove(file_name) == 0);

    errno = 0;
    CHECK(hmmap(NULL, 0, both, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED && errno == EINVAL);
    errno = 0;
    CHECK(hmmap(NULL, MIB, both, MAP_PRIVATE, 1000, 0) == MAP_FAILED && errno == EBADF);
    errno = 0;
    CHECK(hmunmap((void *)1, MIB) == -1 && errno == EINVAL);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    sizes();
    errno_says_what_happened();
    zeroes();
    changes_of_size();
    alignments();
    mappings(argv[1]);
    puts("right");
    return 0;
}
