/* nearfar: memory by kind, and caches over it. Generated from crates/alloc/src/ffi.rs and artefacts/libnearfar/src/cache.rs.
 *
 * A kind is a set of memory nodes with a policy: far memory, CXL only, all nodes by weights. nf_free frees
 * memory of any kind. All functions may be called from any thread, before main, and in a child of fork;
 * but a cache belongs to the process that created it, and a child can't use its parent's. Link with
 * -lnearfar.
 */

#ifndef NEARFAR_H
#define NEARFAR_H

#include <stddef.h>
#include <stdint.h>

/*
 For `nf_stats_text`: a line for each kind.
 */
#define NF_TEXT 0

/*
 For `nf_stats_text`: JSON, `"schema": "nearfar.alloc/1"`.
 */
#define NF_JSON 1

/*
 The kind of a node's memory.
 */
#define NF_MEMORY_UNKNOWN 0

/*
 Memory on the processor's own channels.
 */
#define NF_MEMORY_DRAM 1

/*
 Memory behind a CXL link.
 */
#define NF_MEMORY_CXL 2

/*
 High-bandwidth memory on the package.
 */
#define NF_MEMORY_HBM 3

/*
 Persistent memory.
 */
#define NF_MEMORY_PMEM 4

/*
 Memory of a GPU, which no set but `gpu` names.
 */
#define NF_MEMORY_GPU 5

/*
 The settings of a cache: values by name, both as text. Not for concurrent use.
 */
typedef struct nf_cache_config_t nf_cache_config_t;

/*
 A cache: items by key, over several tiers of memory and one on disk, behind one index (docs/cache-library.md). All
 threads of the process may use it concurrently. In a child of fork all functions fail with EPERM; a child makes a
 cache of its own.

 A key is 1 to 250 bytes, a value any bytes; key and value together are limited by `nf_cache_item_max`. Items are
 evicted when room is needed, so an item may be missing at any time, but a value that is read is complete and the
 last one stored.
 */
typedef struct nf_cache_t nf_cache_t;

/*
 A replicated region: memory with a copy on each of several nodes, for data that is read far more often than written.
 Threads may read and write it concurrently. It consists of granules, 4 KiB by default: each is read and written
 atomically, and no thread reads an older version than it has read before. An access to several granules is split by
 granule.

 A written granule is read at home, the node that is written first, until it has not been written for a quiet time;
 then the first reader on a node has it copied there. `nf_replicated_sync` copies everything at once.

 A child of fork shares the memory, and parent and child each destroy the region for themselves. A process that is
 killed during a write leaves the granule partly written, and other users of the region wait for it for ever.
 */
typedef struct nf_replicated_t nf_replicated_t;

/*
 A memory kind: returned by `nf_kind_create`, or `NF_DEFAULT`.
 */
typedef uint32_t nf_kind_t;

/*
 Statistics of a kind since its creation, in bytes and counts; not an atomic snapshot while other threads allocate.
 */
typedef struct nf_stats_t {
  /*
   Bytes in use, with objects rounded up to their size classes.
   */
  uint64_t allocated;
  /*
   Bytes in free objects that are cached for later allocations.
   */
  uint64_t kept;
  /*
   Bytes of reserved address space; unused parts need not be resident.
   */
  uint64_t set_aside;
  /*
   The maximum of `set_aside`; `UINT64_MAX`: no limit.
   */
  uint64_t limit;
  /*
   Calls of mbind(2).
   */
  uint64_t binds;
  /*
   Allocations that the kind's spill served.
   */
  uint64_t spilled;
  /*
   Allocations that failed.
   */
  uint64_t failed;
} nf_stats_t;

/*
 A memory node.
 */
typedef struct nf_node_t {
  /*
   The kind of its memory: `NF_MEMORY_DRAM` and so on.
   */
  uint32_t memory;
  /*
   Its tier; 0 is the fastest, `UINT32_MAX` unknown.
   */
  uint32_t tier;
  /*
   Number of its CPUs.
   */
  uint32_t cpus;
  /*
   Always 0.
   */
  uint32_t reserved;
  /*
   Its memory in bytes.
   */
  uint64_t size;
  /*
   Its free memory in bytes.
   */
  uint64_t free;
} nf_node_t;

/*
 Statistics of a region since its creation, counted in granules.
 */
typedef struct nf_replicated_stats_t {
  /*
   Granules written, counting each granule that a write touches.
   */
  uint64_t writes;
  /*
   Times that a write invalidated the copies of a granule.
   */
  uint64_t collapses;
  /*
   Copies made.
   */
  uint64_t copies;
  /*
   Granules that reached the maximum of collapses and are always read at home.
   */
  uint64_t settled;
} nf_replicated_stats_t;

/*
 Attributes of an item.
 */
typedef struct nf_cache_item_t {
  /*
   Length of its value in bytes.
   */
  size_t length;
  /*
   A number that changes with each change of the item, never 0: for `nf_cache_cas`.
   */
  uint64_t cas;
  /*
   The flags that were stored with it.
   */
  uint32_t flags;
  /*
   Remaining time to live in seconds; 0: no expiry.
   */
  uint32_t ttl;
} nf_cache_item_t;

/*
 Plain memory, placed by the process's memory policy.
 */
#define NF_DEFAULT 0

/*
 The invalid kind: `nf_kind_create` returns it on failure, and allocations from it fail.
 */
#define NF_NONE 4294967295

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 Creates a memory kind: "far", "bind:0,2-3", "prefer:cxl", "interleave:all", "weighted:0=3,1=1", "capacity",
 "latency" or "bandwidth", with options like ";limit=4g;spill=near;huge=yes".

 Returns `NF_NONE` on failure, with errno EINVAL (invalid specification), ENODEV (such nodes do not exist), EPERM
 (the process's cpuset does not allow all of them), ENOSYS (the kernel lacks the policy, or does not show its nodes)
 or ENOMEM (no more kinds), and a message in `nf_error`.

 The caller sees to it that:
 `text` is a string.
 */
nf_kind_t nf_kind_create(const char *text);

/*
 Destroys a kind with all that was allocated from it. Returns 0, or -1 with errno EINVAL if there is no such kind.
 Its number may be reused soon: only a checked build distinguishes allocations of a destroyed kind from those of the
 next. Threads that used the kind may be ending, and others may be in `nf_stats_text`, for which this waits.

 The caller sees to it that:
 No thread uses the kind, or memory of it, any more.
 */
int nf_kind_destroy(nf_kind_t kind);

/*
 Allocates `size` bytes of a kind; size 0 returns a unique address. NULL with errno ENOMEM if there is no memory (the
 kind's limit is reached and it has no spill), EINVAL if there is no such kind.
 */
void *nf_malloc(nf_kind_t kind,
                size_t size);

/*
 Allocates zeroed memory for `count` elements of `size` bytes. As `nf_malloc`; a product that overflows is ENOMEM.
 */
void *nf_calloc(nf_kind_t kind,
                size_t count,
                size_t size);

/*
 Allocates memory at a multiple of `alignment`, a power of two (else EINVAL), which may exceed 1 GiB. `size` need not
 be a multiple.
 */
void *nf_aligned_alloc(nf_kind_t kind,
                       size_t alignment,
                       size_t size);

/*
 Reallocates `memory`, which may be of another kind, in a kind, preserving its content. On failure `memory` stays
 valid, with NULL returned and errno as `nf_malloc`. A NULL `memory` is like `nf_malloc`; size 0 is like size 1.

 The caller sees to it that:
 `memory` is NULL or was allocated here, and is not used any more if another address is returned.
 */
void *nf_realloc(nf_kind_t kind,
                 void *memory,
                 size_t size);

/*
 Frees memory of any kind. NULL is allowed; errno is preserved. Double frees, interior pointers and foreign memory
 are undefined behaviour; a checked build (feature `checked`) reports them on stderr and ignores them, or ends the
 program if `NEARFAR_CONF` has `wrong=abort`.

 The caller sees to it that:
 `memory` is NULL or was allocated here, and is not used any more.
 */
void nf_free(void *memory);

/*
 The usable size of `memory`, at least the requested size. 0 for NULL.

 The caller sees to it that:
 `memory` is NULL or was allocated here and not freed.
 */
size_t nf_usable_size(const void *memory);

/*
 The kind that memory belongs to; `NF_DEFAULT` for other memory. The pointer is not dereferenced.
 */
nf_kind_t nf_kind_of(const void *memory);

/*
 Reads the statistics of a kind. Returns 0, or -1 with errno EINVAL if there is no such kind; the default has none.

 The caller sees to it that:
 `into` has room for them.
 */
int nf_stats(nf_kind_t kind,
             struct nf_stats_t *into);

/*
 Formats the statistics of a kind, or of all for `NF_NONE`, as text or JSON, with the resident bytes on each node.
 Residency is queried page by page, some 0.1 ms per MiB. Writes as much as fits, terminated by a zero, and returns
 the full length without the zero, like snprintf. 0 with errno EINVAL if there is no such kind or format.

 The caller sees to it that:
 `into` has `room` bytes; it may be NULL if that is 0.
 */
size_t nf_stats_text(nf_kind_t kind,
                     int format,
                     char *into,
                     size_t room);

/*
 Describes a node. Returns 0, or -1 with errno ENODEV if there is no such node.

 The caller sees to it that:
 `into` has room for it.
 */
int nf_node(uint32_t node, struct nf_node_t *into);

/*
 Resolves a node set ("far", "cxl", "0,2-3", "all"): returns the number of nodes and writes the first `room` of them
 in order. -1 with errno EINVAL (invalid expression) or ENODEV (such nodes do not exist), and a message in
 `nf_error`.

 The caller sees to it that:
 `set` is a string; `into` has room for `room` numbers and may be NULL if that is 0.
 */
int nf_nodes(const char *set,
             uint32_t *into,
             size_t room);

/*
 Adds to `bytes[n]` the resident bytes on node n of the `length` bytes at `memory`, which may be any of the program's
 memory; nodes from `nodes` on are omitted. Queried page by page, some 0.1 ms per MiB. Returns 0, or -1 with errno.

 The caller sees to it that:
 `bytes` has room for `nodes` numbers.
 */
int nf_residency(const void *memory,
                 size_t length,
                 uint64_t *bytes,
                 size_t nodes);

/*
 Places the pages of the program's own mappings as the kind's, when they are touched for the first time. `memory` is
 on a page boundary. Returns 0, or -1 with errno EINVAL (no such kind, or no page boundary), EFAULT (not mapped) or
 an errno of mbind(2).
 */
int nf_bind(nf_kind_t kind,
            void *memory,
            size_t length);

/*
 As mmap(2), with pages that are placed as the kind's. `MAP_FAILED` with errno as mmap(2) and `nf_bind`; nothing is
 mapped then. The mapping is the program's: it is unmapped by munmap(2), and is not in the kind's statistics.

 The caller sees to it that:
 As mmap(2): with MAP_FIXED, existing content at the address is not needed.
 */
void *nf_mmap(nf_kind_t kind,
              void *address,
              size_t length,
              int protection,
              int flags,
              int file,
              int64_t offset);

/*
 Allocates one object with a placement of its own, a specification of a kind without options: "weighted:0=3,1=1". It
 has segments of its own (64 MiB of addresses each), so it is for large objects; weights apply to it alone. `nf_free`
 frees it; `nf_realloc` shrinks it in place, or moves it to another kind. NULL with errno as `nf_kind_create` and
 `nf_malloc`.

 The caller sees to it that:
 `place` is a string.
 */
void *nf_malloc_placed(const char *place,
                       size_t size);

/*
 The number of the binary interface, which is part of the library's soname.
 */
uint32_t nf_abi_version(void);

/*
 The message of the calling thread's last error that had one; "" if none. It stays valid until the next such error.
 */
const char *nf_error(void);

/*
 Creates a zeroed region of `size` bytes. `words` are nodes followed by options:
 "0-3;home=2;granule=64k;quiet=1s;collapses=any". NULL, or no nodes, means all nodes that have CPUs; nodes without
 CPUs only have copies if they are named. Nothing is resident before it is written or read.

 `home=NODE` is the node written first (default: the first node); `granule=SIZE` is a power of two of 256 to 2m;
 `quiet=TIME` is the time without a write after which a granule is copied again (100ms); after `collapses=N`
 invalidations a granule is never copied again (16; "any": no maximum).

 Returns NULL on failure, with errno EINVAL (invalid specification, or no bytes), ENODEV (such nodes do not exist, or
 have no memory), EPERM (the process's cpuset does not allow all of them), ENOMEM (a node has less memory, or no
 address space), ENOSYS (the system does not show its nodes), EFBIG (RLIMIT_FSIZE) or an errno of memfd_create(2),
 and a message in `nf_error`.

 The caller sees to it that:
 `words` is a string or NULL.
 */
struct nf_replicated_t *nf_replicated_create(const char *words,
                                             size_t size);

/*
 Destroys a region, with all views of it. Returns 0, or -1 with errno EINVAL if `region` is NULL.

 The caller sees to it that:
 `region` is NULL or was created here and not destroyed; no thread accesses it, or a view of it, any more.
 */
int nf_replicated_destroy(struct nf_replicated_t *region);

/*
 Reads `length` bytes from `offset` on, from the copy of the calling thread's node. Returns 0, or -1 with errno
 EINVAL if they are not all within the region, or `region` is NULL. Not from a signal handler.

 The caller sees to it that:
 `region` is NULL or a region; `into` has room, and does not overlap the region.
 */
int nf_replicated_read(const struct nf_replicated_t *region,
                       size_t offset,
                       void *into,
                       size_t length);

/*
 Writes `length` bytes from `offset` on. Afterwards no thread that is synchronised with the caller reads the previous
 content. Returns 0, or -1 with errno as `nf_replicated_read`, and nothing is written. Not from a signal handler.

 The caller sees to it that:
 `region` is NULL or a region; `from` has that many bytes, and does not overlap the region.
 */
int nf_replicated_write(struct nf_replicated_t *region,
                        size_t offset,
                        const void *from,
                        size_t length);

/*
 Waits until every copy contains all writes before the call. Returns 0, or -1 with errno EINVAL if `region` is NULL.

 The caller sees to it that:
 `region` is NULL or a region.
 */
int nf_replicated_sync(struct nf_replicated_t *region);

/*
 The address of the copy of the calling thread's node, for reading without copying: it is read-only. It shows all
 writes before the last `nf_replicated_sync` that has returned, and any part or none of later writes until the next.
 So write, sync, and let threads read the view while there are no writes. It stays valid until the region is
 destroyed, on whichever node a thread runs: only its distance changes. NULL with errno EINVAL if `region` is NULL.

 The caller sees to it that:
 `region` is NULL or a region.
 */
const void *nf_replicated_view(const struct nf_replicated_t *region);

/*
 The size of a region in bytes, as passed at its creation; 0 for NULL.

 The caller sees to it that:
 `region` is NULL or a region.
 */
size_t nf_replicated_size(const struct nf_replicated_t *region);

/*
 The nodes of the copies, home first: returns their number and writes the first `room` of them. -1 with errno EINVAL
 if `region` is NULL.

 The caller sees to it that:
 `region` is NULL or a region; `into` has room for `room` numbers and may be NULL if that is 0.
 */
int nf_replicated_nodes(const struct nf_replicated_t *region,
                        uint32_t *into,
                        size_t room);

/*
 Reads the statistics of a region; `nf_stats_text` for `NF_NONE` includes those of all, with residency. Returns 0, or
 -1 with errno EINVAL if either is NULL.

 The caller sees to it that:
 `region` is NULL or a region; `into` is NULL or has room for them.
 */
int nf_replicated_stats(const struct nf_replicated_t *region,
                        struct nf_replicated_stats_t *into);

/*
 Returns default settings: 64 MiB of memory of any kind.
 */
struct nf_cache_config_t *nf_cache_config_create(void);

/*
 Sets one setting, with the names and values of the options of `nearfar cache serve`:

 "memory", "near=4g": a tier of a kind of memory, or "64m" of any; once for each tier, the fastest first.

 "eviction", "s3-fifo": the eviction policy of a full tier; or "sieve", "lru", "w-tinylfu".

 "movers", "1": threads that make room in advance, up to 64; "0": the storing threads make it.

 "copy", "cpu": the copier of items between memory tiers; or "dsa": Intel's Data Streaming Accelerator, with ENODEV from
 `nf_cache_create` where no work queue can be used; or "auto": DSA where one can, otherwise the CPU.

 "items", "1000000": the number of items that the index has room for; else one for each 100 bytes of memory.

 "item-max", "1m": bytes of the largest item, 1k to 16m; else a quarter of the smallest tier, up to 16m.

 "disk", "/var/cache/below=200g": a file, created if it does not exist, or a block device below memory, and its size.

 "disk-small", "1g": the part of it for objects of at most 1 KiB; else a sixteenth.

 "disk-writes", "500g": the maximum written to it in 24 hours; "0": there is no limit.

 "disk-reads", "1": the number of reads, 0 to 3, after which an item may be written to it; else 0, or 1 with
 "disk-writes".

 "disk-format", "yes": a file or device with content may be overwritten if that is neither a cache nor data of
 others.

 "disk-after-crash", "discard": drop the objects on a disk that was not closed cleanly; or "keep": use them, but
 values that were deleted or overwritten in the last moments may reappear.

 Returns 0, or -1 with errno EINVAL and a message in `nf_error`; nothing is set then.

 The caller sees to it that:
 `config` is NULL or settings; `name` and `value` are NULL or strings.
 */
int nf_cache_config_set(struct nf_cache_config_t *config,
                        const char *name,
                        const char *value);

/*
 Frees settings; caches made from them stay. NULL is allowed.

 The caller sees to it that:
 `config` is NULL or settings that were not freed.
 */
void nf_cache_config_destroy(struct nf_cache_config_t *config);

/*
 Creates a cache from settings, which stay valid; NULL means the defaults of `nf_cache_config_create`. Memory is
 allocated as items are stored. Items that an earlier cache has left on the disk are found again.

 Returns NULL on failure, with a message in `nf_error` and errno EINVAL (contradictory sizes, or a disk that was
 created with others), ENODEV (such nodes do not exist), ENOMEM (nodes have less memory), ENOSYS (the system does not
 show its nodes), EBUSY (the disk is in use), EEXIST (the disk has other content), EPERM (other users may write to
 it), ELOOP (it is a symbolic link), ENOSPC, EAGAIN (no more threads) or another of the system's errors.

 The caller sees to it that:
 `config` is NULL or settings.
 */
struct nf_cache_t *nf_cache_create(const struct nf_cache_config_t *config);

/*
 Destroys a cache: stops its movers, writes pending items to the disk, and frees its memory. Returns 0, or -1 with
 errno: EINVAL if `cache` is NULL, EIO or another if not all could be written, EPERM in a child of fork, which frees
 nothing. The cache is invalid afterwards in each case.

 The caller sees to it that:
 `cache` is NULL or was made here and not destroyed; no thread uses it any more.
 */
int nf_cache_destroy(struct nf_cache_t *cache);

/*
 The maximum number of bytes of an item's key and value together; 0 for NULL.

 The caller sees to it that:
 `cache` is NULL or a cache.
 */
size_t nf_cache_item_max(const struct nf_cache_t *cache);

/*
 Removes all items. Returns 0, or -1 with errno EINVAL if `cache` is NULL.

 The caller sees to it that:
 `cache` is NULL or a cache.
 */
int nf_cache_flush(struct nf_cache_t *cache);

/*
 Calls `each` with the name and value of every statistic, by the names of memcached's `stats` ("get_hits",
 "curr_items", "bytes") and of tiers ("tier_0_items"); `with` is passed on. `each` may use the cache, and must return
 normally: it neither throws nor jumps out. Returns 0, or -1 with errno EINVAL if `cache` or `each` is NULL.

 The caller sees to it that:
 `cache` is NULL or a cache; `each` is NULL or such a function, and `with` is valid for it.
 */
int nf_cache_stats(const struct nf_cache_t *cache,
                   void (*each)(void *with, const char *name, uint64_t value),
                   void *with);

/*
 Copies a value to a buffer, and counts the item as read. Returns 0, or -1 with errno ENOENT (the key is missing),
 ERANGE (the buffer is too small; nothing is copied, and `about` has the value's length) or EINVAL.

 The caller sees to it that:
 `cache` is NULL or a cache; `key` has `key_length` bytes; `into` has `room` bytes, or is NULL if that is 0; `about`
 is NULL or has room for the item's attributes.
 */
int nf_cache_get(struct nf_cache_t *cache,
                 const void *key,
                 size_t key_length,
                 void *into,
                 size_t room,
                 struct nf_cache_item_t *about);

/*
 Returns a copy of a value in newly allocated memory, followed by a zero byte, and counts the item as read; free it
 with `nf_free`. NULL with errno ENOENT (the key is missing), ENOMEM or EINVAL.

 The caller sees to it that:
 `cache` is NULL or a cache; `key` has `key_length` bytes; `about` is NULL or has room for the item's attributes.
 */
void *nf_cache_get_copy(struct nf_cache_t *cache,
                        const void *key,
                        size_t key_length,
                        struct nf_cache_item_t *about);

/*
 Stores an item unconditionally, with 32 bits of flags and a time to live in seconds; 0 is no expiry.

 Returns 0, or -1 with errno EMSGSIZE (it is too large), ENOMEM (no room could be made) or EINVAL (invalid key).
 After EMSGSIZE and ENOMEM the key is missing, since a previous value would be outdated.

 The caller sees to it that:
 `cache` is NULL or a cache; `key` has `key_length` bytes and `value` `length` bytes.
 */
int nf_cache_set(struct nf_cache_t *cache,
                 const void *key,
                 size_t key_length,
                 const void *value,
                 size_t length,
                 uint32_t flags,
                 uint32_t ttl);

/*
 As `nf_cache_set`, if the key is missing; else -1 with errno EEXIST.

 The caller sees to it that:
 As `nf_cache_set`.
 */
int nf_cache_add(struct nf_cache_t *cache,
                 const void *key,
                 size_t key_length,
                 const void *value,
                 size_t length,
                 uint32_t flags,
                 uint32_t ttl);

/*
 As `nf_cache_set`, if the key exists; else -1 with errno ENOENT. On other errors the previous item stays.

 The caller sees to it that:
 As `nf_cache_set`.
 */
int nf_cache_replace(struct nf_cache_t *cache,
                     const void *key,
                     size_t key_length,
                     const void *value,
                     size_t length,
                     uint32_t flags,
                     uint32_t ttl);

/*
 As `nf_cache_set`, if the item's number, as `nf_cache_get` returned it, is still `cas`; else -1 with errno EEXIST,
 or ENOENT if the key is missing. On errors the previous item stays.

 The caller sees to it that:
 As `nf_cache_set`.
 */
int nf_cache_cas(struct nf_cache_t *cache,
                 const void *key,
                 size_t key_length,
                 const void *value,
                 size_t length,
                 uint32_t flags,
                 uint32_t ttl,
                 uint64_t cas);

/*
 Appends bytes to the value of an item, which keeps its flags and its time to live. Returns 0, or -1 with errno
 ENOENT (the key is missing) or as `nf_cache_set`; an item that would become too large stays unchanged.

 The caller sees to it that:
 As `nf_cache_set`.
 */
int nf_cache_append(struct nf_cache_t *cache,
                    const void *key,
                    size_t key_length,
                    const void *value,
                    size_t length);

/*
 As `nf_cache_append`, but prepends.

 The caller sees to it that:
 As `nf_cache_set`.
 */
int nf_cache_prepend(struct nf_cache_t *cache,
                     const void *key,
                     size_t key_length,
                     const void *value,
                     size_t length);

/*
 Adds to an item whose value is a number in decimal digits, and stores the sum in decimal; it wraps to 0 after the
 largest number of 64 bits. `sum` receives it. Returns 0, or -1 with errno ENOENT (the key is missing), EDOM (the
 value is not a number) or as `nf_cache_set`.

 The caller sees to it that:
 `cache` is NULL or a cache; `key` has `key_length` bytes; `sum` is NULL or has room for a number.
 */
int nf_cache_incr(struct nf_cache_t *cache,
                  const void *key,
                  size_t key_length,
                  uint64_t by,
                  uint64_t *sum);

/*
 As `nf_cache_incr`, but subtracts, saturating at 0.

 The caller sees to it that:
 As `nf_cache_incr`.
 */
int nf_cache_decr(struct nf_cache_t *cache,
                  const void *key,
                  size_t key_length,
                  uint64_t by,
                  uint64_t *sum);

/*
 Sets the time to live of an item in seconds; 0 is no expiry. Returns 0, or -1 with errno ENOENT (the key is missing)
 or as `nf_cache_set`.

 The caller sees to it that:
 `cache` is NULL or a cache; `key` has `key_length` bytes.
 */
int nf_cache_touch(struct nf_cache_t *cache,
                   const void *key,
                   size_t key_length,
                   uint32_t ttl);

/*
 Removes an item. Returns 0, or -1 with errno ENOENT (the key is missing) or EINVAL.

 The caller sees to it that:
 `cache` is NULL or a cache; `key` has `key_length` bytes.
 */
int nf_cache_delete(struct nf_cache_t *cache, const void *key, size_t key_length);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* NEARFAR_H */
