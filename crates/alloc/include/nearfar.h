/* nearfar: memory by kind, and caches over it. Made from crates/alloc/src/ffi.rs and artefacts/libnearfar/src/cache.rs.
 *
 * A kind is a set of memory nodes with a policy: far memory, CXL only, all nodes by weights. Memory of any
 * kind is given back by nf_free. All functions may be called from any thread, before main, and in a child
 * of fork; but a cache belongs to the process that made it, and a child has none of its parent's. Link with
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
 What the memory of a node is.
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
 How a cache is to be: settings by name, each with a value in words. For one thread at a time.
 */
typedef struct nf_cache_config_t nf_cache_config_t;

/*
 A cache: items by key, over several tiers of memory and one on disk, behind one index (docs/cache-library.md). All threads of
 the process may use it at once. A child of fork may not: all functions fail there with EPERM, and it makes its own.

 A key is 1 to 250 bytes, a value any bytes; key and value together are limited by `nf_cache_item_max`. Items leave when room is
 needed, so what was stored may be gone at any time, but what is read is whole and what was stored last.
 */
typedef struct nf_cache_t nf_cache_t;

/*
 A replicated region: bytes that each of some nodes has a copy of, for what is read far more often than written. Threads read
 and write it at once as they like. It is cut into granules, 4 KiB unless said otherwise: each is read and written whole, and
 no thread sees an older one than it has seen. What goes over several is read and written granule by granule.

 A granule that is written is read at home, on the node that is written first, until nobody has written it for a quiet time;
 then the first reader of a node has it copied there. `nf_replicated_sync` has all copied at once.

 In a child of fork it is the same memory, not a copy, and each of the two destroys it for itself. A process that is killed
 while it writes leaves the granule written in part, and whoever shares it waiting.
 */
typedef struct nf_replicated_t nf_replicated_t;

/*
 A memory kind: what `nf_kind_create` gave, or `NF_DEFAULT`.
 */
typedef uint32_t nf_kind_t;

/*
 Figures of a kind, in bytes and counts since it was made. Other threads go on meanwhile.
 */
typedef struct nf_stats_t {
  /*
   Bytes in use, objects as large as their size classes.
   */
  uint64_t allocated;
  /*
   Bytes in free objects that threads keep for themselves and each other.
   */
  uint64_t kept;
  /*
   Bytes of address space set aside; what is not in use of it need not be resident.
   */
  uint64_t set_aside;
  /*
   The most that may be set aside; `UINT64_MAX`: no limit.
   */
  uint64_t limit;
  /*
   Calls of mbind(2).
   */
  uint64_t binds;
  /*
   Allocations that went to the kind's spill.
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
   What its memory is: `NF_MEMORY_DRAM` and so on.
   */
  uint32_t memory;
  /*
   Its tier; 0 is the fastest, `UINT32_MAX` unknown.
   */
  uint32_t tier;
  /*
   How many CPUs it has.
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
   Bytes of it that are free.
   */
  uint64_t free;
} nf_node_t;

/*
 Figures of a region since it was made, counted by granules.
 */
typedef struct nf_replicated_stats_t {
  /*
   Granules written, one for each that a write touches.
   */
  uint64_t writes;
  /*
   Times that copies of a granule went out of use as it was written.
   */
  uint64_t collapses;
  /*
   Copies made.
   */
  uint64_t copies;
  /*
   Granules that have collapsed so often that they are read at home for good.
   */
  uint64_t settled;
} nf_replicated_stats_t;

/*
 What is told of an item besides its value.
 */
typedef struct nf_cache_item_t {
  /*
   Bytes of its value.
   */
  size_t length;
  /*
   Another number with each change of the item, never 0: for `nf_cache_cas`.
   */
  uint64_t cas;
  /*
   What it was stored with.
   */
  uint32_t flags;
  /*
   Seconds until it is gone; 0: it has no end.
   */
  uint32_t ttl;
} nf_cache_item_t;

/*
 Plain memory, placed as the process's policy says.
 */
#define NF_DEFAULT 0

/*
 What `nf_kind_create` gives if it fails, and a kind nothing can be allocated from.
 */
#define NF_NONE 4294967295

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 Makes a memory kind: "far", "bind:0,2-3", "prefer:cxl", "interleave:all", "weighted:0=3,1=1", "capacity", "latency" or
 "bandwidth", with options like ";limit=4g;spill=near;huge=yes".

 Returns `NF_NONE` on failure, with errno EINVAL (not written as kinds are), ENODEV (such nodes are not here), EPERM (the
 process's cpuset does not allow all of them), ENOSYS (the kernel lacks what it takes, or does not show its nodes) or ENOMEM
 (no more kinds), and `nf_error` in words.

 The caller sees to it that:
 `text` is a string.
 */
nf_kind_t nf_kind_create(const char *text);

/*
 Ends a kind with all that was allocated from it. Returns 0, or -1 with errno EINVAL if there is no such kind. Its number may
 soon be in use again: only a checked build tells allocations from a kind that has ended from those of the next.

 The caller sees to it that:
 No thread uses the kind, or memory of it, any more.
 */
int nf_kind_destroy(nf_kind_t kind);

/*
 Memory of a kind, of `size` bytes; of size 0 it has an address of its own. NULL with errno ENOMEM if there is none (the
 kind's limit is reached and it has no spill), EINVAL if there is no such kind.
 */
void *nf_malloc(nf_kind_t kind,
                size_t size);

/*
 Memory of zeroes for `count` elements of `size` bytes. As `nf_malloc`; a product that overflows is ENOMEM.
 */
void *nf_calloc(nf_kind_t kind,
                size_t count,
                size_t size);

/*
 Memory at a multiple of `alignment`, a power of two (else EINVAL) of up to 1 GiB and more. `size` need not be a multiple.
 */
void *nf_aligned_alloc(nf_kind_t kind,
                       size_t alignment,
                       size_t size);

/*
 Memory of a kind with the content of `memory`, which may be of another kind and is given back. NULL leaves `memory` as it
 is, with errno as `nf_malloc`. A NULL `memory` is like `nf_malloc`; size 0 is like size 1.

 The caller sees to it that:
 `memory` is NULL or was allocated here and is not used any more if another address is returned.
 */
void *nf_realloc(nf_kind_t kind,
                 void *memory,
                 size_t size);

/*
 Gives memory back, of any kind. NULL is allowed; errno stays as it is. Memory that was given back before, that lies in an
 object, or that is not from here is undefined behaviour; a checked build (feature `checked`) says so on stderr and leaves it
 as it is, or ends the program if `NEARFAR_CONF` has `wrong=abort`.

 The caller sees to it that:
 `memory` is NULL or was allocated here and is not used any more.
 */
void nf_free(void *memory);

/*
 Bytes that may be used at `memory`: as many as were asked for, or some more. 0 for NULL.

 The caller sees to it that:
 `memory` is NULL or was allocated here and not given back.
 */
size_t nf_usable_size(const void *memory);

/*
 The kind that memory is of; `NF_DEFAULT` for memory that is of none. The pointer is only compared.
 */
nf_kind_t nf_kind_of(const void *memory);

/*
 Figures of a kind. Returns 0, or -1 with errno EINVAL if there is no such kind; the default has none.

 The caller sees to it that:
 `into` has room for them.
 */
int nf_stats(nf_kind_t kind,
             struct nf_stats_t *into);

/*
 Figures of a kind, or of all if it is `NF_NONE`, as text or JSON, with what is resident on each node; that is asked page by
 page, some 0.1 ms a MiB. Writes as much as there is room for, ended by a zero, and returns the length of all without it, like
 snprintf. 0 with errno EINVAL if there is no such kind or format.

 The caller sees to it that:
 `into` has `room` bytes; it may be NULL if that is 0.
 */
size_t nf_stats_text(nf_kind_t kind,
                     int format,
                     char *into,
                     size_t room);

/*
 What a node is like. Returns 0, or -1 with errno ENODEV if there is no such node.

 The caller sees to it that:
 `into` has room for it.
 */
int nf_node(uint32_t node, struct nf_node_t *into);

/*
 The nodes of a set ("far", "cxl", "0,2-3", "all"): how many, the first `room` of them written in order. -1 with errno EINVAL
 (not written as sets are) or ENODEV (such nodes are not here), and `nf_error` in words.

 The caller sees to it that:
 `set` is a string; `into` has room for `room` numbers and may be NULL if that is 0.
 */
int nf_nodes(const char *set,
             uint32_t *into,
             size_t room);

/*
 Adds to `bytes[n]` what is resident on node n of the `length` bytes at `memory`, which may be any of the program's; what is on
 nodes beyond `nodes` is left out. Asked page by page, some 0.1 ms a MiB. Returns 0, or -1 with errno.

 The caller sees to it that:
 `bytes` has room for `nodes` numbers.
 */
int nf_residency(const void *memory,
                 size_t length,
                 uint64_t *bytes,
                 size_t nodes);

/*
 Has pages of the program's own mappings go where the kind's are, as they are touched for the first time. `memory` is on a page
 boundary. Returns 0, or -1 with errno EINVAL (no such kind, or no page boundary), EFAULT (not mapped) or what mbind(2) says.
 */
int nf_bind(nf_kind_t kind,
            void *memory,
            size_t length);

/*
 As mmap(2), with pages that go where the kind's are. `MAP_FAILED` with errno as mmap(2) and `nf_bind`; nothing is mapped then.
 The mapping is the program's: munmap(2) ends it, and it is not in the kind's figures.

 The caller sees to it that:
 As mmap(2): with MAP_FIXED, what is at the address is not needed.
 */
void *nf_mmap(nf_kind_t kind,
              void *address,
              size_t length,
              int protection,
              int flags,
              int file,
              int64_t offset);

/*
 One object in a place of its own, written as a kind's is, without options: "weighted:0=3,1=1". It has segments of its own
 (64 MiB of addresses each), so it is for large objects; weights hold over it alone. Given back by `nf_free`; `nf_realloc` makes
 it smaller in its place, or moves it to another kind. NULL with errno as `nf_kind_create` and `nf_malloc`.

 The caller sees to it that:
 `place` is a string.
 */
void *nf_malloc_placed(const char *place,
                       size_t size);

/*
 The number of the binary interface; it is that in the library's soname.
 */
uint32_t nf_abi_version(void);

/*
 What went wrong in the calling thread's last call that has words for it; "" if none. The text stays until the next such.
 */
const char *nf_error(void);

/*
 Makes a region of `size` zeroes. `words` are nodes, with options behind: "0-3;home=2;granule=64k;quiet=1s;collapses=any".
 NULL, or no nodes, are all nodes that have CPUs; of others it has copies if they are named. Nothing is resident before it is
 written or read.

 `home=NODE` is written first (the first of the nodes); `granule=SIZE` is a power of two of 256 to 2m; `quiet=TIME` how long
 nobody must have written a granule before it is copied again (100ms); after `collapses=N` times that copies went out of use a
 granule is never copied again (16; "any": there is no such end).

 Returns NULL on failure, with errno EINVAL (not written so, or no bytes), ENODEV (such nodes are not here, or have no memory),
 EPERM (the process's cpuset does not allow all of them), ENOMEM (a node has less memory, or there are no addresses), ENOSYS
 (the system does not show its nodes), EFBIG (RLIMIT_FSIZE) or what memfd_create(2) says, and `nf_error` in words.

 The caller sees to it that:
 `words` is a string or NULL.
 */
struct nf_replicated_t *nf_replicated_create(const char *words,
                                             size_t size);

/*
 Ends a region; what views of it pointed to is gone. Returns 0, or -1 with errno EINVAL if `region` is NULL.

 The caller sees to it that:
 `region` is NULL or was made here and not ended; no thread reads or writes it, or looks at a view of it, any more.
 */
int nf_replicated_destroy(struct nf_replicated_t *region);

/*
 Reads `length` bytes from `offset` on, from the copy of the calling thread's node. Returns 0, or -1 with errno EINVAL if they
 are not all within the region, or `region` is NULL. Not from a signal handler.

 The caller sees to it that:
 `region` is NULL or a region; `into` has room, and is not of the region.
 */
int nf_replicated_read(const struct nf_replicated_t *region,
                       size_t offset,
                       void *into,
                       size_t length);

/*
 Writes `length` bytes from `offset` on. From then on no thread that comes to know of it reads what was there before. Returns
 0, or -1 with errno as `nf_replicated_read`, and nothing is written. Not from a signal handler.

 The caller sees to it that:
 `region` is NULL or a region; `from` has as many bytes, and is not of the region.
 */
int nf_replicated_write(struct nf_replicated_t *region,
                        size_t offset,
                        const void *from,
                        size_t length);

/*
 Waits until every copy is what was written before the call. Returns 0, or -1 with errno EINVAL if `region` is NULL.

 The caller sees to it that:
 `region` is NULL or a region.
 */
int nf_replicated_sync(struct nf_replicated_t *region);

/*
 Where the copy of the calling thread's node is, to be looked at without copying: it can't be written there. It shows what was
 written before the last `nf_replicated_sync` that has returned; of what was written since, any part or none, until the next.
 So: write, sync, and then let threads look while nobody writes. It stays until the region ends, whichever node a thread runs
 on: only its distance changes. NULL with errno EINVAL if `region` is NULL.

 The caller sees to it that:
 `region` is NULL or a region.
 */
const void *nf_replicated_view(const struct nf_replicated_t *region);

/*
 Bytes of a region, as it was made; 0 for NULL.

 The caller sees to it that:
 `region` is NULL or a region.
 */
size_t nf_replicated_size(const struct nf_replicated_t *region);

/*
 The nodes that have a copy, home first: how many, the first `room` of them written. -1 with errno EINVAL if `region` is NULL.

 The caller sees to it that:
 `region` is NULL or a region; `into` has room for `room` numbers and may be NULL if that is 0.
 */
int nf_replicated_nodes(const struct nf_replicated_t *region,
                        uint32_t *into,
                        size_t room);

/*
 Figures of a region; `nf_stats_text` of `NF_NONE` has those of all, with what is resident. Returns 0, or -1 with errno EINVAL
 if either is NULL.

 The caller sees to it that:
 `region` is NULL or a region; `into` is NULL or has room for them.
 */
int nf_replicated_stats(const struct nf_replicated_t *region,
                        struct nf_replicated_stats_t *into);

/*
 Settings as they are where nothing is set: 64 MiB of memory of any kind.
 */
struct nf_cache_config_t *nf_cache_config_create(void);

/*
 Sets one, by the names and in the words of the options of `nearfar cache serve`:

 "memory", "near=4g": a tier of a kind of memory, or "64m" of any; once for each tier, the fastest first.

 "eviction", "s3-fifo": what leaves a full tier first; or "sieve", "lru", "w-tinylfu".

 "movers", "1": threads that make room ahead of need, up to 64; "0": whoever stores makes it.

 "items", "1000000": items the index has room for; else one for each 100 bytes of memory.

 "item-max", "1m": bytes of the largest item, 1k to 16m; else a quarter of the smallest tier, up to 16m.

 "disk", "/var/cache/below=200g": a file, made if there is none, or a block device below memory, and its size.

 "disk-small", "1g": what of it is for objects of at most 1 KiB; else a sixteenth.

 "disk-writes", "500g": no more than that is written to it in 24 hours; "0": there is no limit.

 "disk-reads", "1": what goes there must have been read so often, 0 to 3; else 0, or 1 with "disk-writes".

 "disk-after-crash", "written": what is taken over after a crash; or "nothing".

 Returns 0, or -1 with errno EINVAL and `nf_error` in words, and nothing is set.

 The caller sees to it that:
 `config` is NULL or settings; `name` and `value` are NULL or strings.
 */
int nf_cache_config_set(struct nf_cache_config_t *config,
                        const char *name,
                        const char *value);

/*
 Gives settings back; caches made from them stay. NULL is allowed.

 The caller sees to it that:
 `config` is NULL or settings that were not given back.
 */
void nf_cache_config_destroy(struct nf_cache_config_t *config);

/*
 Makes a cache from settings, which stay; NULL is as `nf_cache_config_create` gives them. Memory is taken as items come. What a
 cache has left on disk is found again.

 Returns NULL on failure, with `nf_error` in words and errno EINVAL (sizes that do not go together, or a disk that was made with
 others), ENODEV (such nodes are not here), ENOMEM (nodes have less memory), ENOSYS (the system does not show its nodes), EBUSY
 (the disk is another process's), EEXIST (the disk has something else on it), ENOSPC, EAGAIN (no more threads) or what the
 system says.

 The caller sees to it that:
 `config` is NULL or settings.
 */
struct nf_cache_t *nf_cache_create(const struct nf_cache_config_t *config);

/*
 Ends a cache: its movers stop, what waits for the disk is written, and its memory goes back. Returns 0, or -1 with errno: EINVAL
 if `cache` is NULL, EIO or another if not all could be written, EPERM in a child of fork, which gives nothing back. In each
 case there is no such cache any more.

 The caller sees to it that:
 `cache` is NULL or was made here and not ended; no thread uses it any more.
 */
int nf_cache_destroy(struct nf_cache_t *cache);

/*
 The most bytes that key and value of an item may have together; 0 for NULL.

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
 Tells `each` all figures, by the names that `stats` of memcached's protocol has ("get_hits", "curr_items", "bytes") and of
 tiers ("tier_0_items"); `with` is handed on. `each` may use the cache, and returns as usual: it neither throws nor jumps out.
 Returns 0, or -1 with errno EINVAL if `cache` or `each` is NULL.

 The caller sees to it that:
 `cache` is NULL or a cache; `each` is NULL or such a function, and `with` what it wants.
 */
int nf_cache_stats(const struct nf_cache_t *cache,
                   void (*each)(void *with, const char *name, uint64_t value),
                   void *with);

/*
 Copies a value that was found to where there is room for it, and counts it as read. Returns 0, or -1 with errno ENOENT (there is
 no such item), ERANGE (there is not enough room; nothing is copied, and `about` says how long the value is) or EINVAL.

 The caller sees to it that:
 `cache` is NULL or a cache; `key` has `key_length` bytes; `into` has `room` bytes, or is NULL if that is 0; `about` is NULL or has
 room for what is told of the item.
 */
int nf_cache_get(struct nf_cache_t *cache,
                 const void *key,
                 size_t key_length,
                 void *into,
                 size_t room,
                 struct nf_cache_item_t *about);

/*
 A value that was found, in memory of its own with a zero behind it, and counts it as read; `nf_free` gives it back. NULL with errno
 ENOENT (there is no such item), ENOMEM or EINVAL.

 The caller sees to it that:
 `cache` is NULL or a cache; `key` has `key_length` bytes; `about` is NULL or has room for what is told of the item.
 */
void *nf_cache_get_copy(struct nf_cache_t *cache,
                        const void *key,
                        size_t key_length,
                        struct nf_cache_item_t *about);

/*
 Stores an item, whatever was there before, with 32 bits of the caller's and a time to live in seconds, 0 for ever.

 Returns 0, or -1 with errno EMSGSIZE (it is too large), ENOMEM (no room could be made) or EINVAL (no such key). After EMSGSIZE and
 ENOMEM there is no item under this key: what was there is outdated.

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
 As `nf_cache_set`, if there is no item under this key; else -1 with errno EEXIST.

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
 As `nf_cache_set`, if there is an item under this key, which stays if it can not be replaced; else -1 with errno ENOENT.

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
 As `nf_cache_set`, if the item under this key still has the number `cas`, as it was told by `nf_cache_get`; else -1 with errno
 EEXIST, or ENOENT if there is none. If it can not be stored, what was there stays.

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
 Puts bytes behind the value of an item; its flags and its time to live stay. Returns 0, or -1 with errno ENOENT (there is none), or as
 `nf_cache_set`; an item that would be too large stays as it is.

 The caller sees to it that:
 As `nf_cache_set`.
 */
int nf_cache_append(struct nf_cache_t *cache,
                    const void *key,
                    size_t key_length,
                    const void *value,
                    size_t length);

/*
 As `nf_cache_append`, before the value.

 The caller sees to it that:
 As `nf_cache_set`.
 */
int nf_cache_prepend(struct nf_cache_t *cache,
                     const void *key,
                     size_t key_length,
                     const void *value,
                     size_t length);

/*
 Adds to an item whose value is a number in decimal digits, and stores the sum so; after the largest of 64 bits it begins again at
 0. `sum` is told it. Returns 0, or -1 with errno ENOENT (there is none), EDOM (it is no number) or as `nf_cache_set`.

 The caller sees to it that:
 `cache` is NULL or a cache; `key` has `key_length` bytes; `sum` is NULL or has room for a number.
 */
int nf_cache_incr(struct nf_cache_t *cache,
                  const void *key,
                  size_t key_length,
                  uint64_t by,
                  uint64_t *sum);

/*
 As `nf_cache_incr`, downwards; it ends at 0.

 The caller sees to it that:
 As `nf_cache_incr`.
 */
int nf_cache_decr(struct nf_cache_t *cache,
                  const void *key,
                  size_t key_length,
                  uint64_t by,
                  uint64_t *sum);

/*
 Gives an item another time to live, 0 for ever. Returns 0, or -1 with errno ENOENT (there is none) or as `nf_cache_set`.

 The caller sees to it that:
 `cache` is NULL or a cache; `key` has `key_length` bytes.
 */
int nf_cache_touch(struct nf_cache_t *cache,
                   const void *key,
                   size_t key_length,
                   uint32_t ttl);

/*
 Removes an item. Returns 0, or -1 with errno ENOENT (there is none) or EINVAL.

 The caller sees to it that:
 `cache` is NULL or a cache; `key` has `key_length` bytes.
 */
int nf_cache_delete(struct nf_cache_t *cache, const void *key, size_t key_length);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* NEARFAR_H */
