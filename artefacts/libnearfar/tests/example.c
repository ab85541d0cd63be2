/* Far memory, if there is any, else near: allocated, written, moved and freed. */
#include <nearfar.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv) {
    nf_kind_t kind = nf_kind_create(argc > 1 ? argv[1] : "near");
    if (kind == NF_NONE) {
        fprintf(stderr, "%s\n", nf_error());
        return 1;
    }
    char *text = nf_malloc(kind, 100);
    strcpy(text, "kept");
    text = nf_realloc(NF_DEFAULT, text, 100000);
    nf_stats_t stats;
    if (nf_stats(kind, &stats) != 0 || stats.failed != 0)
        return 1;
    printf("%s %d %d\n", text, nf_kind_of(text) == NF_DEFAULT, (int)stats.allocated);
    nf_free(text);
    return nf_kind_destroy(kind);
}
