/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * filler: cold data that is there first.
 *
 * Takes a chosen share of what a node has free, touches it once, says so, and sits there until it is told to end: so the
 * programs started after it find near memory as full as on a server that has been up for a while. HMSDK's evaluation of
 * tiering (Linux Foundation talk, 2024) does this to Redis: "allocating some of the cold data" first, in steps, so that
 * more and more of Redis lands in CXL memory.
 *
 * The pages are bound to the node only while they are taken; after that no policy holds them, and whoever tiers memory
 * may move them. None is all zeros, and no two are alike.
 */
#include "workload.h"
#include <signal.h>

#define MPOL_DEFAULT 0

static const char usage[] =
    "filler [NAME=NUMBER ...]: takes memory of a node and keeps it, untouched, until SIGTERM; a JSON line once it has it\n"
    "  node=0           whose memory\n"
    "  share=50         per cent of what the node has free\n"
    "  mb=0             or so many MiB\n"
    "  leave_mb=0       or all but so many MiB\n";
static const char *const names[] = { "node", "share", "mb", "leave_mb", NULL };

static long free_kb(long node)
{
    char path[96], line[256];
    long kb = -1;
    FILE *file;

    snprintf(path, sizeof(path), "/sys/devices/system/node/node%ld/meminfo", node);
    file = fopen(path, "r");
    if (!file)
        die("%s", path);
    while (kb < 0 && fgets(line, sizeof(line), file))
        if (sscanf(line, "Node %*d MemFree: %ld kB", &kb) != 1)
            kb = -1;
    fclose(file);
    if (kb < 0) {
        errno = 0;
        die("%s: no line with MemFree", path);
    }
    return kb;
}

static void bind_to(long node)
{
    unsigned long mask[16] = { 0 };

    mask[node / 64] = 1ul << (node % 64);
    if (syscall(SYS_set_mempolicy, node < 0 ? MPOL_DEFAULT : MPOL_BIND, node < 0 ? NULL : mask, node < 0 ? 0ul : 1024ul))
        die("binding to node %ld", node);
}

int main(int argc, char **argv)
{
    static const long nodes[] = { 0, 1023 }, shares[] = { 0, 100 }, sizes[] = { 0, 1 << 20 };
    long node, mb, leave, kb;
    sigset_t ends;
    size_t bytes, at;
    char *memory = NULL;
    int signal;

    options_check(argc, argv, usage, names);
    node = bounded(argc, argv, "node", 0, nodes);
    mb = bounded(argc, argv, "mb", 0, sizes);
    leave = bounded(argc, argv, "leave_mb", 0, sizes);
    kb = free_kb(node);
    if (mb)
        bytes = (size_t)mb << 20;
    else if (leave)
        bytes = kb > leave << 10 ? (size_t)(kb - (leave << 10)) << 10 : 0;
    else
        bytes = (size_t)kb * (size_t)bounded(argc, argv, "share", 50, shares) / 100 << 10;
    bytes &= ~(size_t)(PAGE - 1);
    if (bytes >> 10 > (size_t)kb) {
        errno = 0;
        die("%zu MiB of node %ld: it has only %ld MiB free", bytes >> 20, node, kb >> 10);
    }
    sigemptyset(&ends);
    sigaddset(&ends, SIGTERM);
    sigaddset(&ends, SIGINT);
    sigprocmask(SIG_BLOCK, &ends, NULL);
    if (bytes) {
        memory = plain_memory(bytes, 0);
        bind_to(node);
        for (at = 0; at < bytes; at += PAGE)
            *(uint64_t *)(void *)(memory + at) = at ^ 0x636f6c64ull << 32;
        bind_to(-1);
        check_placement(memory, bytes, node);
    }
    printf("{\"program\":\"filler\",\"node\":%ld,\"bytes\":%zu,\"left_kb\":%ld,\"pid\":%ld}\n", node, bytes,
           free_kb(node), (long)getpid());
    fflush(stdout);
    return sigwait(&ends, &signal) != 0;
}
