/* Prints whether the pool is on by the caller's variable, which a process with other rights must not read. */
#include <hmalloc.h>
#include <stdbool.h>
#include <stdio.h>

bool getenv_jemalloc(void);

int main(void) {
    puts(getenv_jemalloc() ? "by the variable" : "plain");
    return 0;
}
