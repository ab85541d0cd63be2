/* Preloaded: simulates a machine for libsmalloc.so, by replacing functions of libnearfar.so. Nodes 0 and 2 have CPUs, 1 and 4 have
 * none, 3 has CPUs but no memory; node n has n + 1 GiB, half of it free. Kinds are real, but on node 0. They are printed to stdout
 * as they are created, and so are threads' policies, which are not passed to the kernel. PRETEND=no-kinds: none can be created;
 * PRETEND=no-nodes: nodes can't be read. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <nearfar.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>

static int pretends(const char *what) {
    const char *set = getenv("PRETEND");
    return set && strcmp(set, what) == 0;
}

long syscall(long number, ...) {
    long (*real)(long, ...) = NULL, with[6];
    void *found = dlsym(RTLD_NEXT, "syscall");
    memcpy(&real, &found, sizeof real);
    va_list arguments;
    va_start(arguments, number);
    for (int i = 0; i < 6; i++)
        with[i] = va_arg(arguments, long);
    va_end(arguments);
    if (number != SYS_set_mempolicy)
        return real(number, with[0], with[1], with[2], with[3], with[4], with[5]);
    printf("policy %d of nodes %#lx\n", (int)with[0], *(unsigned long *)with[1]);
    return 0;
}

nf_kind_t nf_kind_create(const char *text) {
    nf_kind_t (*real)(const char *) = NULL;
    void *found = dlsym(RTLD_NEXT, "nf_kind_create");
    memcpy(&real, &found, sizeof real);
    if (pretends("no-kinds")) {
        errno = ENOMEM;
        return NF_NONE;
    }
    printf("%s\n", text);
    return real(strncmp(text, "bind:", 5) == 0 ? "bind:0" : "interleave:0");
}

int nf_node(uint32_t node, nf_node_t *into) {
    if (node > 4) {
        errno = ENODEV;
        return -1;
    }
    uint64_t size = node == 3 ? 0 : (node + 1ull) << 30;
    *into = (nf_node_t){.cpus = node == 1 || node == 4 ? 0 : 8, .size = size, .free = size / 2};
    return 0;
}

/* Only the node sets of the tests: all, one digit, or two with a comma or a hyphen between. */
int nf_nodes(const char *set, uint32_t *nodes, size_t room) {
    if (pretends("no-nodes")) {
        errno = ENOSYS;
        return -1;
    }
    if (strcmp(set, "all") == 0)
        set = "0-4";
    uint32_t first = (uint32_t)set[0] - '0', last = set[0] && set[1] ? (uint32_t)set[2] - '0' : first;
    if (first > 4 || last > 4 || (set[1] && set[1] != ',' && set[1] != '-')) {
        errno = first <= 9 ? ENODEV : EINVAL;
        return -1;
    }
    int count = 0;
    for (uint32_t node = first; node <= last; node++)
        if (node == first || node == last || set[1] == '-') {
            if ((size_t)count < room)
                nodes[count] = node;
            count++;
        }
    return count;
}
