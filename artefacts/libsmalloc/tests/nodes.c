/* nodes NEAR FAR: 32 MiB of each type in pieces, by each allocation function, and their nodes as move_pages(2) reports.
 *
 * NEAR is a node with CPUs, FAR one without, and the only ones of their types that have room. Status 0 only if every page is on
 * the nodes it should be on. */
#define _GNU_SOURCE
#include <errno.h>
#include <smdk_opt_api.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { NODES = 1024, PIECES = 10000 };
static const size_t TOTAL = 32 << 20, PAGE = 4096;

static int near_node, far_node;
static char near_word[16], far_word[16], both_words[32];
static bool all_right = true;

struct piece {
    unsigned char *at;
    size_t size;
};

static struct piece pieces[PIECES];
static size_t count;

static void stop(const char *format, ...) {
    va_list words;
    va_start(words, format);
    vfprintf(stderr, format, words);
    va_end(words);
    fputc('\n', stderr);
    exit(1);
}

/* Adds up the pages of a range by node. */
static void look(unsigned char *at, size_t size, size_t *bytes) {
    for (unsigned char *page = at; page < at + size; page += PAGE) {
        void *address = page;
        int node = -1;
        if (syscall(SYS_move_pages, 0, 1ul, &address, NULL, &node, 0) != 0 || node < 0 || node >= NODES)
            stop("page %p: move_pages gave %d (errno %d)", address, node, errno);
        bytes[node] += PAGE;
    }
}

/* Prints the pages by node, and whether that is correct: all on `only`, or half on each of the two if that is -1. */
static void judge(const char *name, int only) {
    static size_t bytes[NODES];
    memset(bytes, 0, sizeof bytes);
    size_t whole = 0;
    for (size_t i = 0; i < count; i++) {
        look(pieces[i].at, pieces[i].size, bytes);
        whole += pieces[i].size;
    }
    size_t near = bytes[near_node], far = bytes[far_node], apart = near > far ? near - far : far - near;
    bool right = only < 0 ? near + far == whole && apart <= whole / 16 : bytes[only] == whole;
    printf("%-24s", name);
    for (int node = 0; node < NODES; node++)
        if (bytes[node])
            printf(" node %d: %zu", node, bytes[node]);
    printf(" of %zu bytes: %s\n", whole, right ? "right" : "WRONG");
    all_right = all_right && right && whole >= TOTAL;
}

static void keep(void *at, size_t size) {
    if (!at || count == PIECES)
        stop("piece %zu of %zu bytes: errno %d", count, size, errno);
    memset(at, 1, size);
    pieces[count++] = (struct piece){at, size};
}

static void give_back(void) {
    while (count > 0)
        s_free(pieces[--count].at);
}

enum way { MALLOC, CALLOC, REALLOC, MEMALIGN, NODE };

static void *one(enum way way, smdk_memtype_t type, size_t size, char *node) {
    void *at = NULL;
    switch (way) {
    case MALLOC:
        return s_malloc(type, size);
    case CALLOC:
        return s_calloc(type, size / 16, 16);
    case REALLOC: /* from the other type, whose nodes have its pages */
        if ((at = s_malloc((smdk_memtype_t)!type, size / 2)))
            memset(at, 2, size / 2);
        return s_realloc(type, at, size);
    case MEMALIGN:
        return s_posix_memalign(type, &at, 2 * PAGE, size) == 0 ? at : NULL;
    case NODE:
        return s_malloc_node(type, size, node);
    }
    return NULL;
}

/* Whole pages only, so that no page is counted twice. */
static void fill(enum way way, smdk_memtype_t type, char *node) {
    static const size_t sizes[] = {4096, 16384, 65536, 1 << 20, 5 << 20};
    size_t sum = 0;
    for (size_t i = 0; sum < TOTAL; i++) {
        size_t size = sizes[i % 5];
        keep(one(way, type, size, node), size);
        sum += size;
    }
}

static void ways(smdk_memtype_t type, int only, char *node) {
    static const char *names[] = {"s_malloc", "s_calloc", "s_realloc", "s_posix_memalign", "s_malloc_node"};
    char name[40];
    for (int way = MALLOC; way <= NODE; way++) {
        fill((enum way)way, type, node);
        snprintf(name, sizeof name, "%s %s", names[way], type == SMDK_MEM_NORMAL ? "NORMAL" : "EXMEM");
        judge(name, only);
        size_t used = s_get_memsize_used(type), other = s_get_memsize_used((smdk_memtype_t)!type);
        if (used < TOTAL || other != 0) {
            printf("%s: used %zu of the type, %zu of the other: WRONG\n", name, used, other);
            all_right = false;
        }
        give_back();
    }
}

static void interleaves(void) {
    s_enable_node_interleave(both_words);
    ways(SMDK_MEM_NORMAL, near_node, near_word);
    ways(SMDK_MEM_EXMEM, far_node, far_word);
    unsigned char *own = mmap(NULL, TOTAL, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (own == MAP_FAILED)
        stop("mmap: errno %d", errno);
    madvise(own, TOTAL, MADV_NOHUGEPAGE);
    keep(own, TOTAL);
    judge("mmap, interleaved", -1);
    count = 0;
    munmap(own, TOTAL);
    s_disable_node_interleave();
}

static void refuses(void) {
    if (s_malloc_node(SMDK_MEM_NORMAL, 100, far_word) || s_malloc_node(SMDK_MEM_EXMEM, 100, near_word))
        stop("memory on a node that is not of the type");
    if (s_get_memsize_node_total(SMDK_MEM_EXMEM, far_node) == 0 || s_get_memsize_node_total(SMDK_MEM_EXMEM, near_node) != 0)
        stop("sizes of nodes that are not of the type");
}

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "nodes NEAR FAR: the numbers of a node with CPUs and of one without\n");
        return 2;
    }
    near_node = atoi(argv[1]);
    far_node = atoi(argv[2]);
    if (near_node < 0 || far_node < 0 || near_node >= NODES || far_node >= NODES || near_node == far_node)
        stop("nodes %s and %s: write two numbers below %d", argv[1], argv[2], NODES);
    snprintf(near_word, sizeof near_word, "%d", near_node);
    snprintf(far_word, sizeof far_word, "0x%x", (unsigned)far_node);
    snprintf(both_words, sizeof both_words, "%d,%d", near_node, far_node);
    ways(SMDK_MEM_NORMAL, near_node, near_word);
    ways(SMDK_MEM_EXMEM, far_node, far_word);
    interleaves();
    refuses();
    s_stats_print('m');
    s_stats_node_print('m');
    return all_right ? 0 : 1;
}
