/* hmalloc: memory from a pool that hmctl places, and that is libc's without it.
 *
 * The pool is on if HMALLOC_JEMALLOC is 1 as the program starts; hmctl sets it. Its nodes and policy come from HMALLOC_NODES (or
 * HMALLOC_NODEMASK) and HMALLOC_MPOL_MODE. If they can't be had, what allocates returns NULL with errno ENODEV (no such node
 * here), EINVAL (not written as it must be, or no such policy), ENOSYS (the kernel lacks it) or EPERM (not for this process).
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

/* Memory of `size` bytes; of size 0 it has an address of its own. NULL with errno ENOMEM if there is none. */
void *hmalloc(size_t size);

/* Gives back what hmalloc, hcalloc, hrealloc, haligned_alloc or hposix_memalign returned. NULL is allowed; errno stays as it
 * is. */
void hfree(void *ptr);

/* Memory of zeroes for `nmemb` elements of `size` bytes. As hmalloc; a product that overflows is ENOMEM. */
void *hcalloc(size_t nmemb, size_t size);

/* Memory of `size` bytes with the content of `ptr`, which is gone unless NULL is returned with errno. A NULL `ptr` is like
 * hmalloc; else size 0 gives `ptr` back and returns NULL. */
void *hrealloc(void *ptr, size_t size);

/* Memory at a multiple of `alignment`, a power of two (else EINVAL) of up to 1 GiB and more. `size` need not be a multiple. NULL
 * with errno. */
void *haligned_alloc(size_t alignment, size_t size);

/* The same into `*memptr`, NULL there on failure. Returns 0, or EINVAL or ENOMEM; errno stays as it is. */
int hposix_memalign(void **memptr, size_t alignment, size_t size);

/* As mmap(2), with pages that are placed as the pool's are. MAP_FAILED with errno if it can't be mapped; NULL with errno, and
 * nothing is mapped, if it can't be placed. Pages are placed whenever nodes are named, whether the pool is on or not. */
void *hmmap(void *addr, size_t length, int prot, int flags, int fd, off_t offset);

/* As munmap(2). */
int hmunmap(void *addr, size_t length);

/* Bytes that may be used at `ptr`: as many as were asked for, or some more. 0 for NULL. */
size_t hmalloc_usable_size(void *ptr);

#ifdef __cplusplus
}
#endif

#endif
