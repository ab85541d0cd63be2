/* Allocates before the constructor of any library has run. */
#include "check.h"
#include <hmalloc.h>
#include <string.h>

static char *early;

static void allocate(void) {
    early = hmalloc(100);
    CHECK(early);
    strcpy(early, "kept");
}

__attribute__((section(".preinit_array"), used)) static void (*const first)(void) = allocate;

int main(void) {
    CHECK(early && !strcmp(early, "kept"));
    early = hrealloc(early, 100000);
    CHECK(early && !strcmp(early, "kept"));
    hfree(early);
    puts("right");
    return 0;
}
