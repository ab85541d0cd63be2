/* libsmalloc over libnearfar: memory by type, normal or exmem, for programs written for Samsung SMDK's libsmalloc.
 *
 * Normal memory is on nodes with CPUs, exmem on nodes without (CXL memory). Any of the free functions frees memory of either
 * type, however allocated. On failure functions return NULL with errno: EINVAL, no such type, or an invalid string; ENODEV, no
 * node is of the type; ENOMEM. */
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

/* Allocates memory of a type, on the nearest nodes of that type that have room. Size 0 returns a unique address. */
void *s_malloc(smdk_memtype_t type, size_t size);

/* Allocates zeroed memory for num elements of a size; a product that overflows is ENOMEM. */
void *s_calloc(smdk_memtype_t type, size_t num, size_t size);

/* Reallocates ptr in memory of a type, in place if possible. On failure (NULL) ptr stays valid; size 0 frees it and returns
 * NULL. ptr NULL: as s_malloc. Memory that is already of the type stays on its nodes. */
void *s_realloc(smdk_memtype_t type, void *ptr, size_t size);

/* Allocates memory at a multiple of alignment, a power of two and a multiple of sizeof(void *). Returns 0, EINVAL or ENOMEM;
 * *memptr is only written on success, errno never. */
int s_posix_memalign(smdk_memtype_t type, void **memptr, size_t alignment, size_t size);

/* Frees memory. NULL is allowed; errno is preserved. */
void s_free(void *ptr);

/* As s_free, for any valid type, whether or not the memory is of it; an invalid type frees nothing. */
void s_free_type(smdk_memtype_t type, void *ptr);

/* In bytes: memory of all nodes of a type; memory of it that this process has allocated here and not freed; free memory of all
 * its nodes. */
size_t s_get_memsize_total(smdk_memtype_t type);
size_t s_get_memsize_used(smdk_memtype_t type);
size_t s_get_memsize_available(smdk_memtype_t type);

/* Total and free memory of a node in bytes. 0 and a message on stderr if it is not of the type. */
size_t s_get_memsize_node_total(smdk_memtype_t type, int node);
size_t s_get_memsize_node_available(smdk_memtype_t type, int node);

/* Prints a table by type, or by node, to stderr, in units of 2^30 ('g', 'G'), 2^20 ('m', 'M'), 2^10 ('k', 'K') bytes, or in bytes
 * (any other). */
void s_stats_print(char unit);
void s_stats_node_print(char unit);

/* Interleaves the calling thread's later memory over these nodes ("0,2-3", "all"): its allocations here of a type that has some
 * of them, over those, and other memory it touches first, unless that has a policy. An invalid set is reported on stderr and
 * changes nothing. */
void s_enable_node_interleave(char *nodes);

/* Undoes that for the calling thread, whose policy becomes the kernel's default. */
void s_disable_node_interleave(void);

/* Allocates memory on one node: a number, as strtol(node, ., 0) reads it. A set ("2-3") means those of it that are of the type. */
void *s_malloc_node(smdk_memtype_t type, size_t size, char *node);

/* As s_free; type and size are ignored. */
void s_free_node(smdk_memtype_t type, void *mem, size_t size);

#ifdef __cplusplus
}
#endif

#endif /* SMDK_OPT_API_H_ */
