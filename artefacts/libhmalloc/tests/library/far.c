/* Allocates 64 MiB from the pool in pieces; prints the MiB on nodes 0 and 1, page by page as move_pages(2) reports. */
#define _GNU_SOURCE
#include <hmalloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PIECES = 64, PAGES = 256, PAGE = 4096 };

int main(void) {
    long on[2] = {0, 0};
    for (int piece = 0; piece < PIECES; piece++) {
        char *memory = haligned_alloc(PAGE, PAGES * PAGE);
        void *pages[PAGES];
        int nodes[PAGES];
        if (!memory)
            return 1;
        memset(memory, 1, PAGES * PAGE);
        for (int page = 0; page < PAGES; page++)
            pages[page] = memory + page * PAGE;
        if (syscall(SYS_move_pages, 0, (long)PAGES, pages, NULL, nodes, 0) != 0)
            return 1;
        for (int page = 0; page < PAGES; page++)
            if (nodes[page] == 0 || nodes[page] == 1)
                on[nodes[page]]++;
    }
    printf("%ld %ld\n", on[0] * PAGE >> 20, on[1] * PAGE >> 20);
    return 0;
}
