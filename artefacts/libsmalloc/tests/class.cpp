// The C++ class, as programs use it, with the functions they get through its header (string, memset, assert).
#include <smdk_opt_api.hpp>

#include <cerrno>
#include <cstdint>
#include <thread>
#include <type_traits>
#include <vector>

static_assert(!std::is_copy_constructible<SmdkAllocator>::value, "there is one");
static_assert(!std::is_copy_assignable<SmdkAllocator>::value, "there is one");
static_assert(!std::is_default_constructible<SmdkAllocator>::value, "there is one");

static int wrong = 0;
#define CHECK(that) ((that) ? (void)0 : (void)(wrong = __LINE__))

static void allocates(SmdkAllocator &allocator) {
    const smdk_memtype_t type = SMDK_MEM_NORMAL;
    char *text = static_cast<char *>(allocator.malloc(type, 100));
    CHECK(text && allocator.get_memsize_used(type) >= 100);
    strcpy(text, "kept");
    text = static_cast<char *>(allocator.realloc(type, text, 100000));
    CHECK(text && strcmp(text, "kept") == 0);
    allocator.free(text);
    char *zeroes = static_cast<char *>(allocator.calloc(type, 10, 10));
    CHECK(zeroes && zeroes[99] == 0);
    allocator.free(type, zeroes);
    void *aligned = nullptr;
    CHECK(allocator.posix_memalign(type, &aligned, 4096, 10) == 0);
    CHECK(reinterpret_cast<uintptr_t>(aligned) % 4096 == 0);
    allocator.free(aligned);
    CHECK(allocator.posix_memalign(type, &aligned, 3, 10) == EINVAL);
    string all = "all";
    void *on_node = allocator.malloc_node(type, 100, all);
    CHECK(on_node && allocator.malloc_node(type, 100, "") == nullptr);
    allocator.free_node(type, on_node, 100);
    CHECK(allocator.get_memsize_used(type) == 0);
}

static void asks(SmdkAllocator &allocator) {
    const smdk_memtype_t type = SMDK_MEM_NORMAL;
    CHECK(allocator.get_memsize_total(type) > allocator.get_memsize_available(type));
    const bool exmem = allocator.get_memsize_total(SMDK_MEM_EXMEM) > 0;
    void *far = allocator.malloc(SMDK_MEM_EXMEM, 100);
    CHECK((far != nullptr) == exmem);
    allocator.free(SMDK_MEM_EXMEM, far);
    allocator.enable_node_interleave("all");
    allocator.enable_node_interleave("");
    allocator.disable_node_interleave();
    allocator.stats_print('m');
    allocator.stats_node_print('G');
}

int main() {
    SmdkAllocator &allocator = SmdkAllocator::get_instance();
    CHECK(&allocator == &SmdkAllocator::get_instance());
    allocates(allocator);
    asks(allocator);
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; i++)
        threads.emplace_back([] {
            for (size_t size = 1; size < 100000; size += 97)
                SmdkAllocator::get_instance().free(SmdkAllocator::get_instance().malloc(SMDK_MEM_NORMAL, size));
        });
    for (std::thread &thread : threads)
        thread.join();
    return wrong == 0 ? 0 : (assert(wrong < 256), wrong);
}
