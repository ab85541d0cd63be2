/* Loads the library named as first argument by dlopen, uses it from a thread, and closes it before another thread ends. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>

static void *(*nf_malloc)(uint32_t, size_t);
static void (*nf_free)(void *);
static uint32_t kind;

static pthread_barrier_t loaded, gone;

static void *stays(void *unused) {
    nf_free(nf_malloc(kind, 100));
    pthread_barrier_wait(&loaded);
    pthread_barrier_wait(&gone);
    return unused;
}

static void *use(void *unused) {
    for (size_t size = 1; size < 100000; size += 99) {
        char *memory = nf_malloc(kind, size);
        if (!memory)
            return unused;
        memory[size - 1] = 1;
        nf_free(memory);
    }
    return &kind;
}

int main(int argc, char **argv) {
    void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW) : NULL;
    if (!library) {
        fprintf(stderr, "%s\n", argc > 1 ? dlerror() : "name the library");
        return 1;
    }
    uint32_t (*nf_kind_create)(const char *) = (uint32_t (*)(const char *))dlsym(library, "nf_kind_create");
    nf_malloc = (void *(*)(uint32_t, size_t))dlsym(library, "nf_malloc");
    nf_free = (void (*)(void *))dlsym(library, "nf_free");
    kind = nf_kind_create("near");
    pthread_t thread;
    void *done = NULL;
    if (pthread_create(&thread, NULL, use, NULL) || pthread_join(thread, &done))
        return 1;
    if (!done || !use(NULL))
        return 1;
    pthread_barrier_init(&loaded, NULL, 2);
    pthread_barrier_init(&gone, NULL, 2);
    if (pthread_create(&thread, NULL, stays, NULL))
        return 1;
    pthread_barrier_wait(&loaded);
    dlclose(library);
    pthread_barrier_wait(&gone);
    return pthread_join(thread, NULL);
}
