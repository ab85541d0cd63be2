/* update_env: earlier allocations stay valid, equal settings share a kind, and the heap is libnearfar's. */
#define _GNU_SOURCE
#include "check.h"
#include <hmalloc.h>
#include <nearfar.h>
#include <stdbool.h>
#include <string.h>

void update_env(void);
void hmalloc_init(void);
bool getenv_jemalloc(void);
unsigned long getenv_nodemask(void);
int getenv_mpol_mode(void);

static void set(const char *pool, const char *mode, const char *mask) {
    setenv("HMALLOC_JEMALLOC", pool, 1);
    setenv("HMALLOC_MPOL_MODE", mode, 1);
    setenv("HMALLOC_NODEMASK", mask, 1);
    update_env();
}

static char *text(void) {
    char *memory = hmalloc(100);
    CHECK(memory);
    return strcpy(memory, "kept");
}

static nf_kind_t kind_now(void) {
    char *memory = text();
    nf_kind_t kind = nf_kind_of(memory);
    hfree(memory);
    return kind;
}

static void pointers_stay_good(void) {
    set("0", "0", "0");
    char *libcs[3] = {text(), text(), text()};
    CHECK(nf_kind_of(libcs[0]) == NF_DEFAULT);
    set("1", "0", "0");
    char *pools[3] = {text(), text(), text()};
    CHECK(nf_kind_of(pools[0]) != NF_DEFAULT);
    CHECK(hmalloc_usable_size(libcs[0]) >= 100 && hmalloc_usable_size(pools[0]) >= 100);
    libcs[0] = hrealloc(libcs[0], 1 << 20);
    CHECK(libcs[0] && !strcmp(libcs[0], "kept") && nf_kind_of(libcs[0]) == NF_DEFAULT);
    hfree(libcs[0]);
    CHECK(!hrealloc(libcs[1], 0));
    set("0", "0", "0");
    CHECK(hmalloc_usable_size(pools[0]) >= 100);
    nf_kind_t kind = nf_kind_of(pools[0]);
    pools[0] = hrealloc(pools[0], 1 << 20);
    CHECK(pools[0] && !strcmp(pools[0], "kept") && nf_kind_of(pools[0]) == kind);
    hfree(pools[0]);
    CHECK(!hrealloc(pools[1], 0));
    /* libc's own, as without the library. */
    free(libcs[2]);
    /* One heap: libnearfar knows the pool's memory, and the pool libnearfar's. */
    nf_free(pools[2]);
    hfree(nf_malloc(kind, 100));
    pools[0] = nf_malloc(kind, 100);
    CHECK(hmalloc_usable_size(pools[0]) >= 100 && !hrealloc(pools[0], 0));
}

static void the_pool_moves_what_changes_size(void) {
    set("1", "2", "1");
    char *memory = text();
    nf_kind_t bound = nf_kind_of(memory);
    set("1", "1", "1");
    memory = hrealloc(memory, 50);
    CHECK(memory && !strcmp(memory, "kept"));
    CHECK(nf_kind_of(memory) == kind_now() && nf_kind_of(memory) != bound);
    /* Memory that can't be placed any more does not grow, and stays valid. */
    setenv("HMALLOC_NODES", "1000", 1);
    update_env();
    errno = 0;
    CHECK(!hrealloc(memory, 1 << 20) && errno == ENODEV && !strcmp(memory, "kept"));
    CHECK(!hmalloc(1) && errno == ENODEV);
    unsetenv("HMALLOC_NODES");
    update_env();
    memory = hrealloc(memory, 1 << 20);
    CHECK(memory && !strcmp(memory, "kept"));
    hfree(memory);
}

static void kinds_are_used_again(void) {
    set("1", "0", "0");
    nf_kind_t plain = kind_now();
    set("1", "2", "1");
    nf_kind_t bound = kind_now();
    CHECK(plain != bound && plain != NF_DEFAULT && bound != NF_DEFAULT);
    /* There are at most 1,022 kinds: a new one for each iteration would be too many. */
    for (int turn = 0; turn < 1500; turn++) {
        set("1", "2", turn % 2 ? "0x1" : "1");
        CHECK(kind_now() == bound);
        if (turn % 3 == 0)
            hmalloc_init();
        set("1", "9", "0");
        CHECK(kind_now() == plain);
        set("0", "2", "1");
        CHECK(kind_now() == NF_DEFAULT);
    }
}

static void variables_are_read_as_they_are(void) {
    set("1", "5", "9223372036854775809");
    CHECK(getenv_jemalloc() && getenv_mpol_mode() == 5 && getenv_nodemask() == (1UL << 63 | 1));
    set("true", "x", "-1");
    CHECK(!getenv_jemalloc() && getenv_mpol_mode() == 0 && getenv_nodemask() == 0);
    unsetenv("HMALLOC_JEMALLOC");
    unsetenv("HMALLOC_MPOL_MODE");
    unsetenv("HMALLOC_NODEMASK");
    CHECK(!getenv_jemalloc() && getenv_mpol_mode() == 0 && getenv_nodemask() == 0);
}

static void what_the_program_sets_waits_for_update_env(void) {
    update_env();
    setenv("HMALLOC_JEMALLOC", "1", 1);
    CHECK(kind_now() == NF_DEFAULT);
    hmalloc_init();
    CHECK(kind_now() != NF_DEFAULT);
}

int main(void) {
    pointers_stay_good();
    the_pool_moves_what_changes_size();
    kinds_are_used_again();
    variables_are_read_as_they_are();
    what_the_program_sets_waits_for_update_env();
    puts("right");
    return 0;
}
