/* A refused placement makes every allocation fail with this errno, and the program continues. With "map", only mappings. */
#include "check.h"
#include <hmalloc.h>
#include <string.h>
#include <sys/mman.h>

int main(int argc, char **argv) {
    CHECK(argc >= 2);
    int expected = atoi(argv[1]);
    void *into = &errno;
    if (argc == 2) {
        errno = 0;
        CHECK(!hmalloc(1) && errno == expected);
        errno = 0;
        CHECK(!hcalloc(1, 1) && errno == expected);
        errno = 0;
        CHECK(!hrealloc(NULL, 1) && errno == expected);
        errno = 0;
        CHECK(!haligned_alloc(64, 1) && errno == expected);
        errno = EINTR;
        CHECK(hposix_memalign(&into, 64, 1) == expected && !into && errno == EINTR);
        hfree(NULL);
        CHECK(hmalloc_usable_size(NULL) == 0);
    } else {
        into = hmalloc(1);
        CHECK(into);
        hfree(into);
    }
    for (int populate = 0; populate < 2; populate++) {
        int flags = MAP_PRIVATE | MAP_ANONYMOUS | (populate ? MAP_POPULATE : 0);
        errno = 0;
        CHECK(!hmmap(NULL, 4096, PROT_READ, flags, -1, 0) && errno == expected);
    }
    /* Nothing is mapped, not even at the fixed address; failures of mapping and of placing are distinguished. */
    char *there = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(!hmmap(there, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
    unsigned char resident;
    CHECK(mincore(there, 4096, &resident) == -1 && errno == ENOMEM);
    errno = 0;
    CHECK(hmmap(NULL, 0, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED && errno == EINVAL);
    puts("refused");
    return 0;
}
