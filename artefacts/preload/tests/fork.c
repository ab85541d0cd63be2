/* Forks while another thread allocates the first object that needs jemalloc; parent and child allocate such objects as well. An
 * alarm ends a child that waits for a lock of a thread it does not have, and a parent that waits for that child. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void *allocate(void *unused) {
  (void)unused;
  void *memory = malloc(200000);
  if (memory == NULL) exit(1);
  memset(memory, 1, 200000);
  free(memory);
  return NULL;
}

int main(void) {
  pthread_t thread;
  alarm(60);
  free(malloc(10));
  if (pthread_create(&thread, NULL, allocate, NULL) != 0) return 1;
  pid_t child = fork();
  if (child == 0) {
    alarm(30);
    allocate(NULL);
    _exit(0);
  }
  int status = -1;
  allocate(NULL);
  if (waitpid(child, &status, 0) != child || status != 0) return 1;
  return pthread_join(thread, NULL);
}
