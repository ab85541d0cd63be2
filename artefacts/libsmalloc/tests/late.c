/* Loads the library named as first argument by dlopen, and uses it from a thread that existed before. */
#include "check.h"
#include <dlfcn.h>
#include <pthread.h>
#include <semaphore.h>

static sem_t loaded;
static void *(*s_malloc)(int, size_t);
static void (*s_free)(void *);
static void (*s_enable_node_interleave)(char *);

static void *use(void *done) {
    CHECK(sem_wait(&loaded) == 0);
    for (size_t size = 1; size < 100000; size += 99) {
        if (size > 50000)
            s_enable_node_interleave("all");
        char *memory = s_malloc(0, size);
        CHECK(memory);
        memory[size - 1] = 1;
        s_free(memory);
    }
    return done;
}

/* A function by its name; a pointer to data can't be cast to one to a function. */
static void find(void *library, const char *name, void *function) {
    void *found = dlsym(library, name);
    CHECK(found);
    memcpy(function, &found, sizeof found);
}

int main(int argc, char **argv) {
    pthread_t thread;
    CHECK(argc == 2 && sem_init(&loaded, 0, 0) == 0);
    CHECK(pthread_create(&thread, NULL, use, NULL) == 0);
    void *library = dlopen(argv[1], RTLD_NOW);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    find(library, "s_malloc", &s_malloc);
    find(library, "s_free", &s_free);
    find(library, "s_enable_node_interleave", &s_enable_node_interleave);
    CHECK(sem_post(&loaded) == 0 && pthread_join(thread, NULL) == 0);
    return 0;
}
