/* libsmalloc for C++: the functions of smdk_opt_api.h as methods of one object.
 *
 * Of upstream's class the method process, which hands work to near-memory processors, is not here: it is their library's. */
#ifndef SMDK_OPT_API_HPP_
#define SMDK_OPT_API_HPP_

#include "smdk_opt_api.h"

/* Programs written for upstream's header take these from it. */
#include <assert.h>
#include <string.h>
#include <string>
using std::string;

class SmdkAllocator {
public:
    SmdkAllocator(const SmdkAllocator &) = delete;
    SmdkAllocator &operator=(const SmdkAllocator &) = delete;

    /* The one there is. It holds nothing: any thread may use it at any time. */
    static SmdkAllocator &get_instance() {
        static SmdkAllocator one;
        return one;
    }

    void *malloc(smdk_memtype_t type, size_t size) { return s_malloc(type, size); }
    void *calloc(smdk_memtype_t type, size_t num, size_t size) { return s_calloc(type, num, size); }
    void *realloc(smdk_memtype_t type, void *ptr, size_t size) { return s_realloc(type, ptr, size); }
    int posix_memalign(smdk_memtype_t type, void **memptr, size_t alignment, size_t size) {
        return s_posix_memalign(type, memptr, alignment, size);
    }
    void free(void *ptr) { s_free(ptr); }
    void free(smdk_memtype_t type, void *ptr) { s_free_type(type, ptr); }

    void *malloc_node(smdk_memtype_t type, size_t size, std::string node) { return s_malloc_node(type, size, &node[0]); }
    void free_node(smdk_memtype_t type, void *mem, size_t size) { s_free_node(type, mem, size); }

    size_t get_memsize_total(smdk_memtype_t type) { return s_get_memsize_total(type); }
    size_t get_memsize_used(smdk_memtype_t type) { return s_get_memsize_used(type); }
    size_t get_memsize_available(smdk_memtype_t type) { return s_get_memsize_available(type); }
    void stats_print(char unit) { s_stats_print(unit); }
    void stats_node_print(char unit) { s_stats_node_print(unit); }

    void enable_node_interleave(std::string nodes) { s_enable_node_interleave(&nodes[0]); }
    void disable_node_interleave() { s_disable_node_interleave(); }

private:
    SmdkAllocator() = default;
    ~SmdkAllocator() = default;
};

#endif /* SMDK_OPT_API_HPP_ */
