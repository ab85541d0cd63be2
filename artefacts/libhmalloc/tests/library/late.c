/* Loads the library named as argument by dlopen: it finds libnearfar in its own directory. */
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv) {
    void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW) : NULL;
    if (!library) {
        fprintf(stderr, "%s\n", argc > 1 ? dlerror() : "name the library");
        return 1;
    }
    void *(*allocate)(size_t);
    void (*give_back)(void *);
    *(void **)&allocate = dlsym(library, "hmalloc");
    *(void **)&give_back = dlsym(library, "hfree");
    void *memory = allocate(100);
    if (!memory)
        return 1;
    give_back(memory);
    puts("right");
    return 0;
}
