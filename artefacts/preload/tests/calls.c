/* Every function that the preload library replaces, called by a program that is unaware of it. With "kind" all memory must belong
 * to a kind, with "plain" none; with a second argument small mappings must be placed, too. Prints "ok". */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what) do { if (!(what)) { fprintf(stderr, "line %d: %s (errno %d)\n", __LINE__, #what, errno); exit(1); } } while (0)

static uint32_t (*kind_of)(const void *);
static int expected, little_too;

static void *is(void *memory) {
  CHECK(memory != NULL);
  CHECK((kind_of(memory) != 0) == expected);
  return memory;
}

static int policy_of(void *memory) {
  int mode = -1;
  unsigned long mask[16] = {0};
  CHECK(syscall(SYS_get_mempolicy, &mode, mask, 1024UL, memory, 2UL) == 0);
  return mode;
}

static void mapping(void) {
  size_t large = 8 << 20, small = 64 << 10;
  int flags = MAP_PRIVATE | MAP_ANONYMOUS, both = PROT_READ | PROT_WRITE;
  char *memory = mmap(NULL, large, both, flags, -1, 0);
  CHECK(memory != MAP_FAILED && (policy_of(memory) != 0) == expected);
  memory[large - 1] = 1;
  /* Reserved address space is placed when it is mapped writable at its address. */
  char *aside = mmap(NULL, large, PROT_NONE, flags, -1, 0);
  CHECK(policy_of(aside) == 0);
  CHECK(mmap(aside, large, both, flags | MAP_FIXED, -1, 0) == aside && (policy_of(aside) != 0) == expected);
  char *little = mmap(NULL, small, both, flags, -1, 0);
  CHECK((policy_of(little) != 0) == little_too);
  CHECK(munmap(memory, large) == 0 && munmap(aside, large) == 0 && munmap(little, small) == 0);
  errno = 0;
  CHECK(mmap(NULL, 0, both, flags, -1, 0) == MAP_FAILED && errno == EINVAL);
}

static void *churn(void *unused) {
  (void)unused;
  void *kept[64] = {0};
  for (int i = 0; i < 20000; i++) {
    free(kept[i % 64]);
    kept[i % 64] = is(malloc(1 + i * 37 % 5000));
    memset(kept[i % 64], i, 1);
  }
  for (int i = 0; i < 64; i++) free(kept[i]);
  return NULL;
}

int main(int argc, char **argv) {
  expected = argc > 1 && strcmp(argv[1], "kind") == 0;
  little_too = argc > 2;
  kind_of = (uint32_t(*)(const void *))dlsym(RTLD_DEFAULT, "nf_kind_of");
  CHECK(kind_of != NULL);

  char *memory = is(malloc(100));
  memset(memory, 7, 100);
  memory = is(realloc(memory, 100000));
  CHECK(memory[99] == 7 && malloc_usable_size(memory) >= 100000);
  memory = is(realloc(memory, 10 << 20));
  CHECK(memory[99] == 7);
  memory = is(realloc(memory, 10));
  CHECK(memory[9] == 7);
  CHECK(realloc(memory, 0) == NULL);
  free(is(realloc(NULL, 5)));
  free(is(malloc(0)));
  free(NULL);
  CHECK(malloc_usable_size(NULL) == 0);

  volatile size_t huge = PTRDIFF_MAX, most = SIZE_MAX;
  memory = is(calloc(1000, 10));
  for (int i = 0; i < 10000; i++) CHECK(memory[i] == 0);
  memory = is(reallocarray(memory, 2000, 10));
  errno = 0;
  CHECK(reallocarray(memory, most, 2) == NULL && errno == ENOMEM);
  free(memory);
  errno = 0;
  CHECK(calloc(most, 2) == NULL && errno == ENOMEM);
  errno = 0;
  CHECK(malloc(huge) == NULL && errno == ENOMEM);

  for (size_t alignment = 8; alignment <= 1 << 24; alignment *= 2) {
    void *aligned = NULL;
    CHECK(posix_memalign(&aligned, alignment, 100) == 0 && (uintptr_t)is(aligned) % alignment == 0);
    free(aligned);
    CHECK((uintptr_t)(aligned = is(aligned_alloc(alignment, alignment * 2))) % alignment == 0);
    free(aligned);
    CHECK((uintptr_t)(aligned = is(memalign(alignment, 3))) % alignment == 0);
    free(aligned);
  }
  void *untouched = &untouched;
  errno = 5;
  CHECK(posix_memalign(&untouched, 3, 100) == EINVAL && posix_memalign(&untouched, 4, 100) == EINVAL);
  CHECK(untouched == &untouched && errno == 5);
  CHECK(posix_memalign(&untouched, 8, huge) == ENOMEM && errno == 5);
  CHECK(aligned_alloc(24, 48) == NULL && errno == EINVAL);
  CHECK((uintptr_t)(memory = is(valloc(5))) % 4096 == 0);
  free(memory);
  CHECK((uintptr_t)(memory = is(pvalloc(5))) % 4096 == 0 && malloc_usable_size(memory) >= 4096);
  free(memory);

  /* The C library's own. */
  free(is(strdup("text")));
  char *line = NULL;
  CHECK(asprintf(&line, "%d", 5) == 1);
  free(is(line));

  mapping();

  pthread_t threads[4];
  for (int i = 0; i < 4; i++) CHECK(pthread_create(&threads[i], NULL, churn, NULL) == 0);
  for (int i = 0; i < 20; i++) {
    pid_t child = fork();
    if (child == 0) {
      churn(NULL);
      exit(0);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
  }
  for (int i = 0; i < 4; i++) CHECK(pthread_join(threads[i], NULL) == 0);
  puts("ok");
  return 0;
}
