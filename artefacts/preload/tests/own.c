/* A program that exports a malloc of its own, as rustc does: memory from a pool that is never reused. Prints the number of
 * allocations that did not come from that pool, and whether its large mappings are placed. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static char pool[1 << 24];
static size_t used;
static long foreign;

static int own(const char *memory) { return memory >= pool && memory < pool + sizeof pool; }

void *malloc(size_t size) {
  size_t *head = (size_t *)(pool + used);
  used += ((size + 15) & ~(size_t)15) + 16;
  head[0] = size;
  return head + 2;
}

void free(void *memory) { foreign += memory != NULL && !own(memory); }

void *calloc(size_t count, size_t size) { return memset(malloc(count * size), 0, count * size); }

void *realloc(void *memory, size_t size) {
  void *new = malloc(size);
  if (memory != NULL && !own(memory)) foreign++;
  else if (memory != NULL) memcpy(new, memory, ((size_t *)memory)[-2] < size ? ((size_t *)memory)[-2] : size);
  return new;
}

static int placed(void *memory) {
  int mode = -1;
  unsigned long mask[16] = {0};
  syscall(SYS_get_mempolicy, &mode, mask, 1024UL, memory, 2UL);
  return mode != 0;
}

int main(void) {
  char *text = strdup("hello");
  setenv("A", "b", 1);
  text = realloc(text, 1000);
  FILE *file = fopen("/proc/self/status", "r");
  char *line = NULL;
  size_t room = 0;
  if (getline(&line, &room, file) < 0) return 1;
  fclose(file);
  free(line);
  free(text);
  void *mapped = mmap(NULL, 8 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  printf("%ld foreign, mappings %s\n", foreign, placed(mapped) ? "placed" : "plain");
  return 0;
}
