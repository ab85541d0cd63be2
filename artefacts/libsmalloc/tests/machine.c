/* Nodes, sizes, tables and interleaving, on any machine. */
#define _GNU_SOURCE
#include "check.h"
#include <pthread.h>
#include <smdk_opt_api.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NORMAL SMDK_MEM_NORMAL
#define EXMEM SMDK_MEM_EXMEM
#define MIB ((size_t)1 << 20)
#define MPOL_DEFAULT 0
#define MPOL_BIND 2
#define MPOL_INTERLEAVE 3
#define MPOL_F_ADDR 2

struct policy {
    int mode;
    unsigned long nodes[16];
};

/* The policy at an address, or the calling thread's for NULL. */
static struct policy policy_of(void *address) {
    struct policy found = {-1, {0}};
    CHECK(syscall(SYS_get_mempolicy, &found.mode, found.nodes, 1024ul, address, address ? MPOL_F_ADDR : 0) == 0);
    return found;
}

/* A node as the kernel reports it: its memory in bytes, and whether it has CPUs. */
static size_t size_shown(int node) {
    char path[80];
    unsigned long kib = 0;
    snprintf(path, sizeof path, "/sys/devices/system/node/node%d/meminfo", node);
    FILE *file = fopen(path, "r");
    if (!file)
        return 0;
    CHECK(fscanf(file, "Node %*d MemTotal: %lu kB", &kib) == 1);
    fclose(file);
    return (size_t)kib << 10;
}

static bool cpus_shown(int node) {
    char path[80], list[8] = "";
    snprintf(path, sizeof path, "/sys/devices/system/node/node%d/cpulist", node);
    FILE *file = fopen(path, "r");
    CHECK(file);
    bool any = fgets(list, sizeof list, file) && list[0] != '\n';
    fclose(file);
    return any;
}

static int first_normal(void) {
    for (int node = 0; node < 1024; node++)
        if (size_shown(node) && cpus_shown(node))
            return node;
    CHECK(!"a node with memory and CPUs");
    return -1;
}

static char *words(int node, const char *form) {
    static char text[40];
    snprintf(text, sizeof text, form, node);
    return text;
}

/* Whether all sizes are those the kernel reports; the memory of a virtual machine may change in between. */
static bool sizes_fit(void) {
    size_t total[2] = {0, 0};
    bool fit = true;
    for (int node = 0; node < 64; node++) {
        size_t size = size_shown(node);
        smdk_memtype_t type = size && cpus_shown(node) ? NORMAL : EXMEM;
        size_t free_now = s_get_memsize_node_available(type, node);
        fit = fit && s_get_memsize_node_total(type, node) == size && free_now <= size && (free_now > 0) == (size > 0);
        total[type] += size;
    }
    CHECK(total[NORMAL] > 0);
    return fit && s_get_memsize_total(NORMAL) == total[NORMAL] && s_get_memsize_total(EXMEM) == total[EXMEM];
}

static void sizes(void) {
    CHECK(sizes_fit() || sizes_fit() || sizes_fit());
    int node = first_normal();
    CHECK(s_get_memsize_node_total(EXMEM, node) == 0 && s_get_memsize_node_available(EXMEM, node) == 0);
    CHECK(s_get_memsize_available(NORMAL) > 0 && s_get_memsize_available(NORMAL) < s_get_memsize_total(NORMAL));
    CHECK((s_get_memsize_available(EXMEM) > 0) == (s_get_memsize_total(EXMEM) > 0));
    int no_types[] = {-1, 2, 77}, no_nodes[] = {-1, 1000, 5000, INT32_MAX, INT32_MIN};
    for (int i = 0; i < 3; i++) {
        smdk_memtype_t type = (smdk_memtype_t)no_types[i];
        CHECK(!s_get_memsize_total(type) && !s_get_memsize_used(type) && !s_get_memsize_available(type));
        CHECK(!s_get_memsize_node_total(type, 0) && !s_get_memsize_node_available(type, 0));
    }
    for (int i = 0; i < 5; i++)
        CHECK(!s_get_memsize_node_total(NORMAL, no_nodes[i]) && !s_get_memsize_node_available(EXMEM, no_nodes[i]));
}

/* The free memory of all nodes with CPUs, as the kernel reports it. */
static size_t free_shown(void) {
    size_t all = 0;
    for (int node = 0; node < 64; node++) {
        char path[80], line[80];
        snprintf(path, sizeof path, "/sys/devices/system/node/node%d/meminfo", node);
        FILE *file = fopen(path, "r");
        if (!file)
            continue;
        unsigned long kib = 0;
        while (cpus_shown(node) && fgets(line, sizeof line, file))
            if (sscanf(line, "Node %*d MemFree: %lu kB", &kib) == 1)
                all += (size_t)kib << 10;
        fclose(file);
    }
    return all;
}

/* Free memory is current and not that of the first call: it lies between the kernel's reports just before and after. CPUs cache
   up to gigabytes of free pages that do not count as free, so the effect of an allocation can't be predicted. */
static bool available_fits(void) {
    size_t before = free_shown(), now = s_get_memsize_available(NORMAL), after = free_shown();
    size_t least = before < after ? before : after, most = before < after ? after : before;
    return now + 8 * MIB >= least && now <= most + 8 * MIB;
}

static void available_changes(void) {
    size_t first = s_get_memsize_available(NORMAL), other = first;
    for (int i = 0; i < 20 || (i < 60 && first == other); i++) {
        char *at = s_malloc(NORMAL, 256 * MIB);
        CHECK(at);
        memset(at, 1, 256 * MIB);
        CHECK(available_fits() || available_fits() || available_fits());
        other = s_get_memsize_available(NORMAL);
        s_free(at);
        CHECK(available_fits() || available_fits() || available_fits());
    }
    CHECK(first != other);
}

static void used(void) {
    enum { COUNT = 1000 };
    void *objects[COUNT];
    CHECK(s_get_memsize_used(NORMAL) == 0 && s_get_memsize_used(EXMEM) == 0);
    for (int i = 0; i < COUNT; i++)
        CHECK((objects[i] = s_malloc(NORMAL, 64 << 10)));
    CHECK(s_get_memsize_used(NORMAL) == COUNT * 64 << 10 && s_get_memsize_used(EXMEM) == 0);
    void *on_node = s_malloc_node(NORMAL, 128 << 10, words(first_normal(), "%d"));
    s_enable_node_interleave("all");
    void *in_turn = s_malloc(NORMAL, 256 << 10);
    s_disable_node_interleave();
    CHECK(on_node && in_turn && s_get_memsize_used(NORMAL) == (COUNT * 64 + 128 + 256) << 10);
    for (int i = 0; i < COUNT; i++)
        s_free(objects[i]);
    s_free(on_node);
    s_free(in_turn);
    CHECK(s_get_memsize_used(NORMAL) == 0 && s_get_memsize_used(EXMEM) == 0);
}

static void on_node(void) {
    int node = first_normal();
    const char *forms[] = {"%d", "0x%x", "0%o", " %d", "%d\n", "+%d", "%d-0", "%d,0"};
    for (size_t i = 0; i < 8; i++) {
        if (i >= 6 && node != 0)
            continue;
        char *at = s_malloc_node(NORMAL, 5 * MIB, words(node, forms[i]));
        CHECK(at);
        struct policy policy = policy_of(at);
        CHECK(policy.mode == MPOL_BIND && policy.nodes[node / 64] == 1ul << node % 64);
        memset(at, 1, 5 * MIB);
        char *more = s_realloc(NORMAL, at, 70 * MIB);
        policy = policy_of(more);
        CHECK(more && more[5 * MIB - 1] == 1 && policy.mode == MPOL_BIND && policy.nodes[node / 64] == 1ul << node % 64);
        s_free_node(NORMAL, more, 70 * MIB);
    }
    /* Not of the type, or not there. */
    FAILS(ENODEV, s_malloc_node(EXMEM, 100, words(node, "%d")));
    const char *absent[] = {"1000", "99", "-1", "99999999999999999999", "-99999999999999999999", "0xffffffff", "900-901", "4096"};
    for (size_t i = 0; i < 8; i++) {
        errno = 0;
        CHECK(s_malloc_node(NORMAL, 100, (char *)absent[i]) == NULL && errno != 0);
    }
    const char *wrong[] = {"", " ", "x", "0x", "1e3", "0-", "-", "0;limit=1", "0 1", "node0", "\xff\xfe", "1 2"};
    for (size_t i = 0; i < 12; i++) {
        errno = 0;
        CHECK(s_malloc_node(NORMAL, 100, (char *)wrong[i]) == NULL && errno != 0);
    }
    FAILS(EINVAL, s_malloc_node(NORMAL, 100, NULL));
    char *longest = malloc(MIB);
    memset(longest, '1', MIB);
    longest[MIB - 1] = 0;
    errno = 0;
    CHECK(s_malloc_node(NORMAL, 100, longest) == NULL && errno != 0);
    memset(longest, 'z', MIB - 1);
    s_enable_node_interleave(longest);
    CHECK(policy_of(NULL).mode == MPOL_DEFAULT);
    free(longest);
}

static void plain(void) {
    char *at = s_malloc(NORMAL, 5 * MIB);
    CHECK(at);
    struct policy policy = policy_of(at);
    CHECK(policy.mode == MPOL_BIND);
    for (int node = 0; node < 1024; node++) {
        bool normal = size_shown(node) && cpus_shown(node);
        CHECK(((policy.nodes[node / 64] >> node % 64 & 1) == 1) == normal);
    }
    s_free(at);
}

static void *other_thread(void *unused) {
    char *at = s_malloc(NORMAL, 5 * MIB);
    CHECK(at && policy_of(at).mode == MPOL_BIND);
    s_free(at);
    return unused;
}

static void interleaves(void) {
    char *before = s_malloc(NORMAL, 5 * MIB);
    s_enable_node_interleave("all");
    CHECK(policy_of(NULL).mode == MPOL_INTERLEAVE);
    char *during = s_malloc(NORMAL, 5 * MIB), *zeroed = s_calloc(NORMAL, 5, MIB);
    void *aligned = NULL;
    CHECK(during && zeroed && s_posix_memalign(NORMAL, &aligned, 4096, 5 * MIB) == 0);
    CHECK(policy_of(during).mode == MPOL_INTERLEAVE && policy_of(zeroed).mode == MPOL_INTERLEAVE);
    CHECK(policy_of(aligned).mode == MPOL_INTERLEAVE && policy_of(before).mode == MPOL_BIND);
    /* Memory on one node stays there, and so does earlier memory. */
    char *node = s_malloc_node(NORMAL, 5 * MIB, words(first_normal(), "%d"));
    CHECK(node && policy_of(node).mode == MPOL_BIND);
    before = s_realloc(NORMAL, before, 70 * MIB);
    CHECK(before && policy_of(before).mode == MPOL_BIND);
    pthread_t other;
    CHECK(pthread_create(&other, NULL, other_thread, NULL) == 0 && pthread_join(other, NULL) == 0);
    s_disable_node_interleave();
    CHECK(policy_of(NULL).mode == MPOL_DEFAULT);
    char *after = s_malloc(NORMAL, 5 * MIB);
    CHECK(after && policy_of(after).mode == MPOL_BIND);
    void *all[] = {before, during, zeroed, aligned, node, after};
    for (size_t i = 0; i < 6; i++)
        s_free(all[i]);
}

/* The caller checks stderr: each of these calls is invalid and changes nothing. */
static void interleaves_nowhere(void) {
    s_enable_node_interleave("all");
    const char *wrong[] = {"", "nowhere", "900", "0-900", "1,,2", "-1", "0x0"};
    for (size_t i = 0; i < 7; i++) {
        s_enable_node_interleave((char *)wrong[i]);
        CHECK(policy_of(NULL).mode == MPOL_INTERLEAVE);
        char *at = s_malloc(NORMAL, 5 * MIB);
        CHECK(at && policy_of(at).mode == MPOL_INTERLEAVE);
        s_free(at);
    }
    s_enable_node_interleave(NULL);
    CHECK(policy_of(NULL).mode == MPOL_INTERLEAVE);
    s_disable_node_interleave();
    s_disable_node_interleave();
    CHECK(policy_of(NULL).mode == MPOL_DEFAULT);
}

/* The caller checks stderr: a table for each unit, then nodes that are not of the type. */
static void tables(void) {
    char *at = s_malloc(NORMAL, 64 * MIB);
    CHECK(at);
    const char units[] = {'g', 'G', 'm', 'M', 'k', 'K', 'b', 0, '?', (char)200};
    errno = 77;
    for (size_t i = 0; i < sizeof units; i++) {
        s_stats_print(units[i]);
        s_stats_node_print(units[i]);
    }
    s_free(at);
}

static void warnings(void) {
    int node = first_normal();
    CHECK(s_get_memsize_node_total(EXMEM, node) == 0 && s_get_memsize_node_available(NORMAL, 999) == 0);
}

/* For SMALLOC_CONF: no value prevents the program from working. */
static void goes_on(void) {
    void *at = s_malloc(NORMAL, 100);
    CHECK(at && s_get_memsize_total(NORMAL));
    s_free(at);
}

int main(int argc, char **argv) {
    static const struct check checks[] = {
        {"sizes", sizes},
        {"available-changes", available_changes},
        {"used", used},
        {"on-node", on_node},
        {"plain", plain},
        {"interleaves", interleaves},
        {"interleaves-nowhere", interleaves_nowhere},
        {"tables", tables},
        {"warnings", warnings},
        {"goes-on", goes_on},
    };
    return run_check(checks, sizeof checks / sizeof *checks, argc, argv);
}
