/* hmalloc: memory from a pool that hmctl places; without the pool, from libc.
 *
 * The pool is on if HMALLOC_JEMALLOC is 1 as the program starts; hmctl sets it. Its nodes and policy come from HMALLOC_NODES (or
 * HMALLOC_NODEMASK) and HMALLOC_MPOL_MODE. If they are refused, allocations return NULL with errno ENODEV (no such node),
 * EINVAL (invalid value, or no such policy), ENOSYS (the kernel lacks the policy) or EPERM (not permitted to this process).
 *
 * All functions may be called from any thread and in a child of fork. Link with -lhmalloc.
 */

#ifndef HMALLOC_H
#define HMALLOC_H

#include <stddef.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Allocates `size` bytes; size 0 returns a unique address. NULL with errno ENOMEM if there is no memory. */
void *hmalloc(size_t size);

/* Frees memory of hmalloc, hcalloc, hrealloc, haligned_alloc or hposix_memalign. NULL is allowed; errno is preserved. */
void hfree(void *ptr);

/* Allocates zeroed memory for `nmemb` elements of `size` bytes. As hmalloc; a product that overflows is ENOMEM. */
void *hcalloc(size_t nmemb, size_t size);

/* Reallocates `ptr` to `size` bytes, preserving its content. On failure NULL is returned with errno and `ptr` stays valid. A
 * NULL `ptr` is like hmalloc; else size 0 frees `ptr` and returns NULL. */
void *hrealloc(void *ptr, size_t size);

/* Allocates memory at a multiple of `alignment`, a power of two (else EINVAL), which may exceed 1 GiB. `size` need not be a
 * multiple. NULL with errno. */
void *haligned_alloc(size_t alignment, size_t size);

/* As haligned_alloc, stored in `*memptr`, NULL there on failure. Returns 0, or EINVAL or ENOMEM; errno is preserved. */
int hposix_memalign(void **memptr, size_t alignment, size_t size);

/* As mmap(2), with pages that are placed as the pool's. MAP_FAILED with errno if mapping fails; NULL with errno, and nothing
 * mapped, if placing fails. Pages are placed whenever nodes are named, whether the pool is on or not. */
void *hmmap(void *addr, size_t length, int prot, int flags, int fd, off_t offset);

/* As munmap(2). */
int hmunmap(void *addr, size_t length);

/* The usable size of `ptr`, at least the requested size. 0 for NULL. */
size_t hmalloc_usable_size(void *ptr);

#ifdef __cplusplus
}
#endif

#endif
