/* Every function of nearfar.h for caches, with valid and invalid arguments, in two threads and in a child of fork; also run
   under sanitizers (scripts/sanitize). Its argument is a file for a cache on disk, which it creates. Prints "done". */
#define _GNU_SOURCE
#include <errno.h>
#include <nearfar.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define check(what) \
    do { \
        if (!(what)) { \
            fprintf(stderr, "cache.c:%d: %s: errno %d, %s\n", __LINE__, #what, errno, nf_error()); \
            exit(1); \
        } \
    } while (0)
/* A call that fails with an errno. */
#define fails(call, with) check((errno = 0, (call) == -1) && errno == (with))

static nf_cache_t *made(const char *const *settings) {
    nf_cache_config_t *config = nf_cache_config_create();
    for (; *settings; settings += 2)
        check(nf_cache_config_set(config, settings[0], settings[1]) == 0);
    nf_cache_t *cache = nf_cache_create(config);
    check(cache);
    nf_cache_config_destroy(config);
    return cache;
}

static int set(nf_cache_t *cache, const char *key, const char *value, uint32_t flags, uint32_t ttl) {
    return nf_cache_set(cache, key, strlen(key), value, strlen(value), flags, ttl);
}

static int is(nf_cache_t *cache, const char *key, const char *value) {
    nf_cache_item_t about;
    char *found = nf_cache_get_copy(cache, key, strlen(key), &about);
    check(found && about.length == strlen(found) && about.cas != 0);
    int same = strcmp(found, value) == 0;
    nf_free(found);
    return same;
}

static void refuses_settings(void) {
    nf_cache_config_t *config = nf_cache_config_create();
    const char *wrong[][3] = {{"colour", "red", "there are memory, eviction"}, {"memory", "1q", "1q"},
        {"eviction", "random", "sieve"}, {"movers", "65", "0 to 64"}, {"item-max", "1g", "16m"}, {"disk", "nowhere", "PATH=SIZE"}};
    for (size_t at = 0; at < sizeof wrong / sizeof *wrong; at++) {
        fails(nf_cache_config_set(config, wrong[at][0], wrong[at][1]), EINVAL);
        check(strstr(nf_error(), wrong[at][2]));
    }
    fails(nf_cache_config_set(NULL, "memory", "1m"), EINVAL);
    fails(nf_cache_config_set(config, NULL, "1m"), EINVAL);
    fails(nf_cache_config_set(config, "memory", NULL), EINVAL);
    check(nf_cache_config_set(config, "memory", "1000=64m") == 0);
    check(!nf_cache_create(config) && errno == ENODEV && strstr(nf_error(), "1000"));
    nf_cache_config_destroy(config);
    nf_cache_config_destroy(NULL);

    config = nf_cache_config_create();
    check(nf_cache_config_set(config, "memory", "1k") == 0);
    check(!nf_cache_create(config) && errno == EINVAL && strstr(nf_error(), "1 KiB"));
    nf_cache_config_destroy(config);
    config = nf_cache_config_create();
    check(nf_cache_config_set(config, "memory", "near=900t") == 0);
    check(!nf_cache_create(config) && errno == ENOMEM && strstr(nf_error(), "free"));
    nf_cache_config_destroy(config);
    config = nf_cache_config_create();
    check(nf_cache_config_set(config, "disk", "/proc/nowhere/file=1g") == 0);
    check(!nf_cache_create(config) && errno == ENOENT && strstr(nf_error(), "/proc/nowhere/file"));
    nf_cache_config_destroy(config);
}

static void stores(nf_cache_t *cache) {
    nf_cache_item_t about;
    char room[8];
    uint64_t sum = 0;
    check(set(cache, "a", "one", 5, 100) == 0 && is(cache, "a", "one"));
    check(nf_cache_get(cache, "a", 1, room, sizeof room, &about) == 0 && memcmp(room, "one", 3) == 0);
    check(about.length == 3 && about.flags == 5 && about.ttl > 90 && about.ttl <= 100);
    uint64_t cas = about.cas;
    memset(&about, 0, sizeof about);
    fails(nf_cache_get(cache, "a", 1, room, 2, &about), ERANGE);
    check(about.length == 3);
    fails(nf_cache_get(cache, "a", 1, NULL, 0, NULL), ERANGE);
    fails(nf_cache_get(cache, "b", 1, room, sizeof room, &about), ENOENT);
    check(!nf_cache_get_copy(cache, "b", 1, NULL) && errno == ENOENT);

    fails(nf_cache_add(cache, "a", 1, "x", 1, 0, 0), EEXIST);
    fails(nf_cache_replace(cache, "b", 1, "x", 1, 0, 0), ENOENT);
    fails(nf_cache_append(cache, "b", 1, "x", 1), ENOENT);
    fails(nf_cache_prepend(cache, "b", 1, "x", 1), ENOENT);
    check(nf_cache_append(cache, "a", 1, "!", 1) == 0 && nf_cache_prepend(cache, "a", 1, ">", 1) == 0);
    check(is(cache, "a", ">one!"));
    fails(nf_cache_cas(cache, "a", 1, "two", 3, 0, 0, cas), EEXIST);
    fails(nf_cache_cas(cache, "b", 1, "two", 3, 0, 0, cas), ENOENT);
    check(nf_cache_get(cache, "a", 1, room, sizeof room, &about) == 0 && about.flags == 5);
    check(nf_cache_cas(cache, "a", 1, "two", 3, 0, 0, about.cas) == 0 && is(cache, "a", "two"));
    check(nf_cache_replace(cache, "a", 1, NULL, 0, 0, 0) == 0);
    check(nf_cache_get(cache, "a", 1, NULL, 0, &about) == 0 && about.length == 0 && about.ttl == 0);
    check(nf_cache_add(cache, "n", 1, "40", 2, 0, 0) == 0);
    check(nf_cache_incr(cache, "n", 1, 2, &sum) == 0 && sum == 42 && is(cache, "n", "42"));
    check(nf_cache_decr(cache, "n", 1, 50, &sum) == 0 && sum == 0 && nf_cache_incr(cache, "n", 1, 1, NULL) == 0);
    fails(nf_cache_incr(cache, "m", 1, 1, &sum), ENOENT);
    check(set(cache, "m", "text", 0, 0) == 0);
    fails(nf_cache_decr(cache, "m", 1, 1, &sum), EDOM);
    check(strstr(nf_error(), "not a number"));

    check(nf_cache_touch(cache, "m", 1, 50) == 0);
    check(nf_cache_get(cache, "m", 1, room, sizeof room, &about) == 0 && about.ttl > 40);
    fails(nf_cache_touch(cache, "b", 1, 50), ENOENT);
    check(nf_cache_delete(cache, "m", 1) == 0);
    fails(nf_cache_delete(cache, "m", 1), ENOENT);
    check(set(cache, "short", "lived", 0, 1) == 0);
    for (int turn = 0; turn < 100 && nf_cache_get(cache, "short", 5, room, sizeof room, NULL) == 0; turn++)
        usleep(50000);
    fails(nf_cache_get(cache, "short", 5, room, sizeof room, NULL), ENOENT);
}

static void refuses(nf_cache_t *cache) {
    char key[251], *large;
    size_t most = nf_cache_item_max(cache);
    uint64_t sum;
    memset(key, 'k', sizeof key);
    check(set(cache, "large", "x", 0, 0) == 0 && most > 1000 && (large = calloc(1, most)));
    fails(nf_cache_append(cache, "large", 5, large, most), EMSGSIZE);
    check(is(cache, "large", "x"));
    fails(nf_cache_set(cache, "large", 5, large, most, 0, 0), EMSGSIZE);
    check(strstr(nf_error(), "at most"));
    fails(nf_cache_delete(cache, "large", 5), ENOENT);
    check(nf_cache_set(cache, "large", 5, large, most - 5, 0, 0) == 0);
    nf_cache_item_t about;
    char *copy = nf_cache_get_copy(cache, "large", 5, &about);
    check(copy && about.length == most - 5 && memcmp(copy, large, most - 5) == 0 && copy[most - 5] == 0);
    nf_free(copy);
    free(large);
    fails(nf_cache_set(cache, key, 251, "x", 1, 0, 0), EINVAL);
    check(strstr(nf_error(), "251"));
    check(nf_cache_set(cache, key, 250, "x", 1, 0, 0) == 0);
    fails(nf_cache_set(cache, "", 0, "x", 1, 0, 0), EINVAL);
    fails(nf_cache_set(cache, NULL, 1, "x", 1, 0, 0), EINVAL);
    fails(nf_cache_set(cache, "a", 1, NULL, 1, 0, 0), EINVAL);
    fails(nf_cache_set(cache, "a", 1, "x", (size_t)-1, 0, 0), EINVAL);
    fails(nf_cache_set(NULL, "a", 1, "x", 1, 0, 0), EINVAL);
    fails(nf_cache_add(NULL, "a", 1, "x", 1, 0, 0), EINVAL);
    fails(nf_cache_replace(NULL, "a", 1, "x", 1, 0, 0), EINVAL);
    fails(nf_cache_cas(NULL, "a", 1, "x", 1, 0, 0, 1), EINVAL);
    fails(nf_cache_append(NULL, "a", 1, "x", 1), EINVAL);
    fails(nf_cache_prepend(NULL, "a", 1, "x", 1), EINVAL);
    fails(nf_cache_incr(NULL, "a", 1, 1, &sum), EINVAL);
    fails(nf_cache_decr(NULL, "a", 1, 1, &sum), EINVAL);
    fails(nf_cache_touch(NULL, "a", 1, 1), EINVAL);
    fails(nf_cache_delete(NULL, "a", 1), EINVAL);
    fails(nf_cache_get(NULL, "a", 1, NULL, 0, NULL), EINVAL);
    check(!nf_cache_get_copy(NULL, "a", 1, NULL) && errno == EINVAL);
    fails(nf_cache_flush(NULL), EINVAL);
    fails(nf_cache_stats(NULL, NULL, NULL), EINVAL);
    fails(nf_cache_stats(cache, NULL, NULL), EINVAL);
    fails(nf_cache_destroy(NULL), EINVAL);
    check(nf_cache_item_max(NULL) == 0);
}

struct figures {
    nf_cache_t *cache;
    uint64_t hits, items, tiers;
};

static void figure(void *with, const char *name, uint64_t value) {
    struct figures *figures = with;
    if (strcmp(name, "get_hits") == 0)
        figures->hits = value;
    if (strcmp(name, "curr_items") == 0)
        figures->items = value;
    figures->tiers += strncmp(name, "tier_", 5) == 0 && strstr(name, "_limit_bytes") != NULL;
    /* It may use the cache. */
    check(set(figures->cache, "told", name, 0, 0) == 0);
}

/* Two threads store, read and count; each value identifies its key. */
static void *works(void *with) {
    nf_cache_t *cache = with;
    char key[32], value[2000], found[2000];
    unsigned seed = (unsigned)(size_t)&key;
    for (int turn = 0; turn < 4000; turn++) {
        seed = seed * 1103515245 + 12345;
        int number = seed >> 16 & 1023;
        int length = snprintf(key, sizeof key, "key-%d", number);
        nf_cache_item_t about;
        if (turn % 3) {
            int kept = nf_cache_get(cache, key, length, found, sizeof found, &about);
            check(kept == 0 || errno == ENOENT);
            for (size_t at = 0; kept == 0 && at < about.length; at++)
                check(found[at] == (char)number);
        } else {
            memset(value, (char)number, sizeof value);
            check(nf_cache_set(cache, key, length, value, seed >> 8 & 1023, 0, 0) == 0);
        }
        check(nf_cache_incr(cache, "turns", 5, 1, NULL) == 0);
    }
    return NULL;
}

static void threads(nf_cache_t *cache) {
    pthread_t others[2];
    check(set(cache, "turns", "0", 0, 0) == 0);
    for (int at = 0; at < 2; at++)
        check(pthread_create(&others[at], NULL, works, cache) == 0);
    for (int at = 0; at < 2; at++)
        check(pthread_join(others[at], NULL) == 0);
    check(is(cache, "turns", "8000"));
}

static void forks(nf_cache_t *cache) {
    check(set(cache, "kept", "here", 0, 0) == 0);
    pid_t child = fork();
    check(child >= 0);
    if (child == 0) {
        char room[8];
        fails(nf_cache_get(cache, "kept", 4, room, sizeof room, NULL), EPERM);
        check(strstr(nf_error(), "child of fork"));
        fails(nf_cache_set(cache, "kept", 4, "x", 1, 0, 0), EPERM);
        fails(nf_cache_flush(cache), EPERM);
        fails(nf_cache_destroy(cache), EPERM);
        nf_cache_t *own = nf_cache_create(NULL);
        check(own && set(own, "a", "own", 0, 0) == 0 && is(own, "a", "own") && nf_cache_destroy(own) == 0);
        /* Not exit: the child has lost the memory that the parent's movers hold, and a leak check must not search for it. */
        execl("/bin/true", "true", (char *)NULL);
        _exit(1);
    }
    int status;
    check(waitpid(child, &status, 0) == child && status == 0);
    check(is(cache, "kept", "here"));
}

static void disk(const char *path) {
    char words[4096], key[16], value[3000];
    snprintf(words, sizeof words, "%s=256m", path);
    const char *settings[] = {"memory", "2m", "disk", words, "disk-small", "16m", NULL};
    memset(value, 'v', sizeof value);
    nf_cache_t *cache = made(settings);
    for (int at = 0; at < 2000; at++)
        check(nf_cache_set(cache, key, snprintf(key, sizeof key, "%d", at), value, sizeof value, 7, 0) == 0);
    nf_cache_config_t *config = nf_cache_config_create();
    check(nf_cache_config_set(config, "disk", words) == 0 && !nf_cache_create(config));
    nf_cache_config_destroy(config);
    check(nf_cache_destroy(cache) == 0);

    cache = made(settings);
    int found = 0;
    for (int at = 0; at < 2000; at++) {
        nf_cache_item_t about;
        char *copy = nf_cache_get_copy(cache, key, snprintf(key, sizeof key, "%d", at), &about);
        check(copy ? about.length == sizeof value && about.flags == 7 && memcmp(copy, value, sizeof value) == 0 : errno == ENOENT);
        found += copy != NULL;
        nf_free(copy);
    }
    /* Items stored faster than the disk writes are evicted. */
    check(found > 50);
    check(nf_cache_destroy(cache) == 0);
}

int main(int argc, char **argv) {
    const char *settings[] = {"memory", "near=8m", "memory", "8m", "eviction", "sieve", "items", "100000", "item-max", "64k", NULL};
    const char *inline_ones[] = {"memory", "4m", "movers", "0", "eviction", "lru", NULL};
    struct figures figures = {0};
    refuses_settings();
    nf_cache_t *cache = made(settings);
    stores(cache);
    refuses(cache);
    threads(cache);
    figures.cache = cache;
    check(nf_cache_stats(cache, figure, &figures) == 0);
    check(figures.hits > 0 && figures.items > 0 && figures.tiers == 2);
    forks(cache);
    check(nf_cache_flush(cache) == 0);
    fails(nf_cache_delete(cache, "kept", 4), ENOENT);
    check(nf_cache_destroy(cache) == 0);
    cache = made(inline_ones);
    threads(cache);
    check(nf_cache_destroy(cache) == 0);
    if (argc > 1)
        disk(argv[1]);
    puts("done");
    return 0;
}
