/* Freed memory returns to the system: 250 MiB of one size, then of another, and little stays resident. */
#include "check.h"
#include <hmalloc.h>
#include <string.h>

static long resident_mib(void) {
    long all, resident;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file && fscanf(file, "%ld %ld", &all, &resident) == 2);
    fclose(file);
    return resident * 4 / 1024;
}

int main(void) {
    enum { MOST = 8000 };
    static void *objects[MOST];
    hfree(hmalloc(1));
    long start = resident_mib();
    for (int round = 0; round < 2; round++) {
        int count = round ? MOST : MOST / 2;
        size_t size = round ? 32 << 10 : 64 << 10;
        for (int i = 0; i < count; i++) {
            CHECK((objects[i] = hmalloc(size)));
            memset(objects[i], 1, size);
        }
        long full = resident_mib();
        CHECK(full - start >= 250 && full - start <= 300);
        for (int i = 0; i < count; i++)
            hfree(objects[i]);
        long left = resident_mib() - start;
        printf("%ld MiB left\n", left);
        CHECK(left <= 16);
    }
    return 0;
}
