/* A program of many checks: the first argument selects one, and the first failure ends it with status 1. */
#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(that)                                                                                    \
    do {                                                                                               \
        if (!(that)) {                                                                                 \
            fprintf(stderr, "%s:%d: not so: %s (errno %d)\n", __FILE__, __LINE__, #that, errno);        \
            exit(1);                                                                                   \
        }                                                                                              \
    } while (0)

/* A call that must fail: NULL, and this errno. */
#define FAILS(error, call)                                                                             \
    do {                                                                                               \
        errno = 0;                                                                                     \
        CHECK((call) == NULL);                                                                         \
        CHECK(errno == (error));                                                                       \
    } while (0)

struct check {
    const char *name;
    void (*run)(void);
};

static inline int run_check(const struct check *checks, size_t count, int argc, char **argv) {
    for (size_t i = 0; argc == 2 && i < count; i++) {
        if (strcmp(checks[i].name, argv[1]) == 0) {
            checks[i].run();
            printf("%s: done\n", argv[1]);
            return 0;
        }
    }
    fprintf(stderr, "name one check that there is\n");
    return 2;
}

#endif
