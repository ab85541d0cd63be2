/* Linked with the preload library and run with privileges other than its caller's: prints whether memory belongs to a kind. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

uint32_t nf_kind_of(const void *);

int main(void) {
  void *memory = malloc(100);
  puts(nf_kind_of(memory) == 0 ? "plain" : "of a kind");
  free(memory);
  return 0;
}
