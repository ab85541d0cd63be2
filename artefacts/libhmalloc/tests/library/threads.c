/* Threads that allocate, exchange objects, free and change settings, while children of fork do the same. */
#include "check.h"
#include <hmalloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

void update_env(void);

enum { THREADS = 4, TURNS = 20000, PLACES = 64 };

static _Atomic(unsigned char *) shared[PLACES];

/* Each object holds its size, and the size's lowest byte at its end. */
static void put(unsigned place, size_t size) {
    unsigned char *object = hmalloc(size);
    CHECK(object);
    memcpy(object, &size, sizeof size);
    object[size - 1] = (unsigned char)(size - 1);
    unsigned char *old = atomic_exchange(&shared[place], object);
    if (old) {
        memcpy(&size, old, sizeof size);
        CHECK(old[size - 1] == (unsigned char)(size - 1));
        CHECK(hmalloc_usable_size(old) >= size);
        hfree(old);
    }
}

static void work(uint64_t random, int turns) {
    for (int turn = 0; turn < turns; turn++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        size_t size = 9 + (size_t)(random >> 40) % (turn % 512 ? 20000 : 5000000);
        put((unsigned)(random >> 33) % PLACES, size);
        if (turn % 1024 == 0)
            update_env();
    }
}

static void *thread(void *seed) {
    work((uint64_t)(uintptr_t)seed, TURNS);
    return NULL;
}

int main(void) {
    pthread_t threads[THREADS];
    for (uintptr_t n = 0; n < THREADS; n++)
        CHECK(!pthread_create(&threads[n], NULL, thread, (void *)(n + 1)));
    for (int child = 0; child < 20; child++) {
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (pid == 0) {
            alarm(300);
            work(1000 + (uint64_t)child, 500);
            _exit(0);
        }
        int status;
        CHECK(waitpid(pid, &status, 0) == pid);
        CHECK(status == 0);
    }
    for (int n = 0; n < THREADS; n++)
        CHECK(!pthread_join(threads[n], NULL));
    for (int place = 0; place < PLACES; place++)
        hfree(shared[place]);
    puts("right");
    return 0;
}
