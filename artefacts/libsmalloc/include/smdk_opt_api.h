/* libsmalloc over libnearfar: memory by type, normal or exmem, for programs written for Samsung SMDK's libsmalloc.
 *
 * Normal memory is on nodes with CPUs, exmem on nodes without (CXL memory). Memory of either type, however allocated, is given
 * back by any of the free functions. Where NULL is returned, errno says why: EINVAL, no such type, or wrongly written; ENODEV,
 * no node is of the type; ENOMEM. */
#ifndef SMDK_OPT_API_H_
#define SMDK_OPT_API_H_

#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
    SMDK_MEM_NORMAL = 0, /* nodes with CPUs */
    SMDK_MEM_EXMEM = 1   /* nodes without */
} smdk_memtype_t;

/* Memory of a type, on the nodes of that type that are nearest and have room. Of size 0 it has an address of its own. */
void *s_malloc(smdk_memtype_t type, size_t size);

/* Memory of zeroes for num elements of a size; a product that overflows is ENOMEM. */
void *s_calloc(smdk_memtype_t type, size_t num, size_t size);

/* Memory of a type with the content of ptr, in its place where that can be. After NULL ptr is as it was, but for size 0, which
 * frees it. ptr NULL: as s_malloc. Memory that is of the type already stays on its nodes. */
void *s_realloc(smdk_memtype_t type, void *ptr, size_t size);

/* Memory at a multiple of alignment, a power of two and a multiple of sizeof(void *). Returns 0, EINVAL or ENOMEM; *memptr is
 * written only with 0, errno never. */
int s_posix_memalign(smdk_memtype_t type, void **memptr, size_t alignment, size_t size);

/* Gives memory back. NULL is allowed; errno stays as it is. */
void s_free(void *ptr);

/* The same, whichever type is named; with what is no type, nothing is done. */
void s_free_type(smdk_memtype_t type, void *ptr);

/* Bytes of all nodes of a type; allocated here of it by this process and not given back; free on all nodes of it. */
size_t s_get_memsize_total(smdk_memtype_t type);
size_t s_get_memsize_used(smdk_memtype_t type);
size_t s_get_memsize_available(smdk_memtype_t type);

/* Bytes of a node, and those that are free. 0 and a line on stderr if it is not of the type. */
size_t s_get_memsize_node_total(smdk_memtype_t type, int node);
size_t s_get_memsize_node_available(smdk_memtype_t type, int node);

/* Prints a table by type, or by node, to stderr, in units of 2^30 ('g', 'G'), 2^20 ('m', 'M'), 2^10 ('k', 'K') bytes, or in bytes
 * (any other). */
void s_stats_print(char unit);
void s_stats_node_print(char unit);

/* The calling thread's memory goes to these nodes ("0,2-3", "all") in turn from now on: what it allocates here of a type that has
 * some of them, on those, and all it touches that has no place of its own. A wrong set changes nothing: a line on stderr. */
void s_enable_node_interleave(char *nodes);

/* Ends that for the calling thread; the kernel's default policy is its own then. */
void s_disable_node_interleave(void);

/* Memory on one node: a number, as strtol(node, ., 0) reads it. A set ("2-3") is memory on those of it that are of the type. */
void *s_malloc_node(smdk_memtype_t type, size_t size, char *node);

/* As s_free; type and size do not matter. */
void s_free_node(smdk_memtype_t type, void *mem, size_t size);

#ifdef __cplusplus
}
#endif

#endif /* SMDK_OPT_API_H_ */
