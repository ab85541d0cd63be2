/* A table that all threads read from the memory of their own node, while one of them writes a row now and then. */
#include <nearfar.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

/* A row is written and read whole, as no row lies in two granules of 4 KiB. */
typedef struct row {
    unsigned long turn[8];
} row_t;

#define ROWS 100
#define TURNS 2000

static nf_replicated_t *table;

static int is_whole(const row_t *row) {
    for (int at = 1; at < 8; at++)
        if (row->turn[at] != row->turn[0])
            return 0;
    return 1;
}

static void *reads(void *broken) {
    unsigned long last[ROWS] = {0};
    for (int turn = 0; turn < 50000; turn++) {
        row_t row;
        int at = turn % ROWS;
        if (nf_replicated_read(table, at * sizeof row, &row, sizeof row) != 0 || !is_whole(&row) || row.turn[0] < last[at])
            *(int *)broken = 1;
        last[at] = row.turn[0];
    }
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t threads[3];
    int broken[3] = {0};
    /* On all nodes with CPUs, unless others are named. */
    table = nf_replicated_create(argc > 1 ? argv[1] : NULL, ROWS * sizeof(row_t));
    if (!table) {
        fprintf(stderr, "%s\n", nf_error());
        return 1;
    }
    for (int at = 0; at < 3; at++)
        if (pthread_create(&threads[at], NULL, reads, &broken[at]) != 0)
            return 1;
    for (unsigned long turn = 1; turn <= TURNS; turn++) {
        row_t row;
        for (int at = 0; at < 8; at++)
            row.turn[at] = turn;
        if (nf_replicated_write(table, turn % ROWS * sizeof row, &row, sizeof row) != 0)
            return 1;
    }
    for (int at = 0; at < 3; at++)
        if (pthread_join(threads[at], NULL) != 0 || broken[at])
            return 1;
    /* There are no more writes: after a sync, rows may be read through the view without copying. */
    nf_replicated_sync(table);
    const row_t *rows = nf_replicated_view(table);
    unsigned long most = 0;
    for (int at = 0; at < ROWS; at++) {
        if (!is_whole(&rows[at]))
            return 1;
        most = rows[at].turn[0] > most ? rows[at].turn[0] : most;
    }
    printf("%d rows, each whole, the last of turn %lu\n", ROWS, most);
    return nf_replicated_destroy(table);
}
