/* Prints the kernel's policies for memory and mappings: "heap MODE MASK, map MODE MASK, extent MODE MASK". */
#define _GNU_SOURCE
#include "check.h"
#include <hmalloc.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

void *extent_alloc(void *, void *, size_t, size_t, bool *, bool *, unsigned);

static void say(const char *what, void *at) {
    unsigned long mask[32] = {0};
    int mode = -1;
    CHECK(syscall(SYS_get_mempolicy, &mode, mask, 1025, at, 2) == 0);
    for (int word = 1; word < 32; word++)
        CHECK(mask[word] == 0);
    printf("%s %d %#lx\n", what, mode, mask[0]);
}

static void *written(void *memory, size_t size) {
    CHECK(memory && memory != MAP_FAILED);
    return memset(memory, 1, size);
}

int main(void) {
    size_t size = (8 << 20) + 1;
    say("small", written(hmalloc(100), 100));
    say("large", written(hmalloc(size), size));
    say("aligned", written(haligned_alloc(1 << 21, 100), 100));
    int both = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS;
    say("map", written(hmmap(NULL, size, both, flags, -1, 0), size));
    say("populated", written(hmmap(NULL, size, both, flags | MAP_POPULATE, -1, 0), size));
    bool zero = false, commit = false;
    void *extent = extent_alloc(NULL, NULL, size, 1 << 24, &zero, &commit, 0);
    say("extent", written(extent, size));
    CHECK((uintptr_t)extent % (1 << 24) == 0 && zero && commit);
    CHECK(munmap(extent, size) == 0);
    CHECK(extent_alloc(NULL, extent, size, 4096, NULL, NULL, 0) == extent);
    errno = 0;
    CHECK(!extent_alloc(NULL, extent, size, 4096, NULL, NULL, 0) && errno == EEXIST);
    return 0;
}
