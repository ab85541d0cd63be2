/* Prints the kernel's memory policies for the pool's memory and for libc's. */
#define _GNU_SOURCE
#include <hmalloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static void say(const char *what, void *memory, size_t size, char end) {
    unsigned long mask[32] = {0};
    int mode = -1;
    if (!memory || syscall(SYS_get_mempolicy, &mode, mask, 1025, memset(memory, 1, size), 2) != 0)
        exit(1);
    printf("%s %d %#lx%c", what, mode, mask[0], end);
}

int main(void) {
    size_t size = 1 << 20;
    say("pool", hmalloc(size), size, ',');
    say(" malloc", malloc(size), size, '\n');
    return 0;
}
