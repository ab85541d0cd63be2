/* Two interfaces to one heap: the functions of nearfar.h accept memory of smdk_opt_api.h, and the other way round. */
#include "check.h"
#include <nearfar.h>
#include <smdk_opt_api.h>

int main(void) {
    char *theirs = s_malloc(SMDK_MEM_NORMAL, 100);
    CHECK(theirs && nf_kind_of(theirs) != NF_DEFAULT && nf_usable_size(theirs) >= 100);
    strcpy(theirs, "kept");
    theirs = nf_realloc(NF_DEFAULT, theirs, 100000);
    CHECK(theirs && nf_kind_of(theirs) == NF_DEFAULT && s_get_memsize_used(SMDK_MEM_NORMAL) == 0);
    theirs = s_realloc(SMDK_MEM_NORMAL, theirs, 200000);
    CHECK(theirs && nf_kind_of(theirs) != NF_DEFAULT && s_get_memsize_used(SMDK_MEM_NORMAL) >= 200000);
    CHECK(strcmp(theirs, "kept") == 0);
    nf_free(theirs);
    s_free(nf_malloc(NF_DEFAULT, 100));
    nf_kind_t own = nf_kind_create("all");
    CHECK(own != NF_NONE);
    s_free(nf_malloc(own, 100));
    nf_stats_t stats;
    CHECK(nf_stats(own, &stats) == 0 && stats.allocated == 0);
    CHECK(s_get_memsize_used(SMDK_MEM_NORMAL) == 0);
    return nf_kind_destroy(own);
}
