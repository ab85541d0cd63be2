// Memory before main and after it, and C++'s new and delete: constructors and destructors of static objects, a map that persists.
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <vector>

struct Begun {
  std::vector<std::string> texts;
  Begun() { for (int i = 0; i < 1000; i++) texts.push_back(std::string(i, 'x')); }
  ~Begun() {
    texts.clear();
    std::vector<int> late(100000, 1);
    std::puts(late.size() == 100000 ? "ended" : "wrong");
  }
};
static Begun begun;
static std::map<int, std::string> lasting;

int main() {
  struct alignas(256) Aligned { char bytes[300]; };
  auto aligned = std::make_unique<Aligned[]>(10);
  if (reinterpret_cast<std::size_t>(aligned.get()) % 256 != 0) return 1;
  for (int i = 0; i < 10000; i++) lasting[i] = std::to_string(i);
  int *array = new int[1000]();
  delete[] array;
  try {
    std::size_t huge = static_cast<std::size_t>(-1) / 4;
    volatile char *none = new char[huge];
    std::printf("%p\n", static_cast<const volatile void *>(none));
    return 1;
  } catch (const std::bad_alloc &) {
    std::puts("refused");
  }
  if (new (std::nothrow) char[static_cast<std::size_t>(-1) / 4] != nullptr) return 1;
  std::printf("%zu %zu\n", begun.texts.size(), lasting.size());
  return 0;
}
