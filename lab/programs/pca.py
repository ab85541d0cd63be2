# SPDX-License-Identifier: Apache-2.0 OR MIT
"""pca: covariances of a matrix by NumPy, each thread some rows of the result, all of them reading the whole matrix.

The memory behaviour of PCA as the traffic studies ran it: one thread has made the matrix, every thread multiplies all of it with
rows of its own, so most pages are used from everywhere. A covariance matrix of observations is worked out row by row, over and
over. Multiplying is the library's (BLAS, one thread a call, without Python's lock), over memory that no policy binds.

Options as the C programs beside this have them (workload.h), and the same lines of JSON.
"""

import json
import mmap
import os
import sys
import threading
import time

os.environ.update({name: "1" for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")})
import numpy  # noqa: E402  (how many threads it starts is read when it is loaded)

USAGE = """pca.py [NAME=NUMBER ...]: covariances of a matrix, each thread some rows of them; JSON lines
  mb=16            the matrix, in MiB
  threads=0        one on each of the first CPUs; 0: as many as there are
  parallel=0       1: each thread makes its part of the matrix, and so has it on its node
  seconds=10       how long; 0: until `rounds` are done
  rounds=0         how many rounds, if not for a time
  huge=0           1: ask for huge pages
  interval_ms=500  between two lines
"""
BOUNDS = {
    "mb": (16, 1, 1 << 20),
    "threads": (0, 0, 64),
    "parallel": (0, 0, 1),
    "seconds": (10, 0, 10**9),
    "rounds": (0, 0, 10**9),
    "huge": (0, 0, 1),
    "interval_ms": (500, 1, 10**6),
}
FEATURES = 512


def refuse(why):
    sys.stderr.write(why + "\n" + USAGE)
    sys.exit(2)


def options(arguments):
    found = {name: otherwise for name, (otherwise, _, _) in BOUNDS.items()}
    for argument in arguments:
        if argument in ("--help", "-h"):
            sys.stdout.write(USAGE)
            sys.exit(0)
        name, _, value = argument.partition("=")
        if name not in BOUNDS or not value.isdecimal():
            refuse(f"{argument}: no option of the form NAME=NUMBER that is known here")
        _, least, most = BOUNDS[name]
        if not least <= int(value) <= most:
            refuse(f"{argument}: not from {least} to {most}")
        found[name] = int(value)
    return found


def say(**fields):
    print(json.dumps({"program": "pca", **fields}), flush=True)


class Team:
    def __init__(self, asked):
        self.asked = asked
        self.threads = asked["threads"] or os.cpu_count()
        size = asked["mb"] << 20
        self.memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        try:
            self.memory.madvise(mmap.MADV_HUGEPAGE if asked["huge"] else mmap.MADV_NOHUGEPAGE)
        except OSError:
            pass  # A kernel without huge pages refuses this; then there are none anyway.
        self.matrix = numpy.frombuffer(self.memory, dtype=numpy.float64).reshape(-1, FEATURES)
        self.rows = len(self.matrix)
        self.products = [numpy.zeros(self.rows) for _ in range(self.threads)]
        self.barrier = threading.Barrier(self.threads)
        self.round = 0
        self.done = asked["seconds"] == 0 and asked["rounds"] == 0
        self.sum = 0.0

    def part(self, thread):
        return slice(self.rows * thread // self.threads, self.rows * (thread + 1) // self.threads)

    def make(self, part):
        """Whole numbers, so that sums do not depend on their order; each column centred but for rounding."""
        for row in range(part.start, part.stop):
            at = numpy.arange(row * FEATURES, (row + 1) * FEATURES, dtype=numpy.uint64)
            self.matrix[row] = (at * numpy.uint64(0x9E3779B97F4A7C15) >> numpy.uint64(60)).astype(numpy.float64) - 7.5

    def work(self, thread):
        cpus = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cpus[thread % len(cpus)]})
        if self.asked["parallel"]:
            self.make(self.part(thread))
        elif thread == 0:
            self.make(slice(0, self.rows))
        self.barrier.wait()
        if thread == 0:
            self.began = self.last = time.monotonic()
            self.told = 0
            say(began_s=round(self.began, 6))
        self.barrier.wait()
        while not self.done:
            part = self.part(thread)
            row = part.start + self.round % (part.stop - part.start)
            numpy.dot(self.matrix, self.matrix[row], out=self.products[thread])
            self.barrier.wait()
            if thread == 0:
                self.count()
            self.barrier.wait()

    def operations(self, rounds):
        return rounds * self.threads * self.rows

    def count(self):
        self.round += 1
        self.sum += float(self.products[0][0]) + float(self.products[-1][-1])
        now = time.monotonic()
        if now - self.last >= self.asked["interval_ms"] / 1e3:
            self.tell(now)
        seconds = self.asked["seconds"]
        self.done = now - self.began >= seconds if seconds else self.round >= self.asked["rounds"]

    def tell(self, now):
        done, busy = self.operations(self.round - self.told), now - self.last
        say(end_s=now - self.began, busy_s=busy, operations=done, operations_per_s=round(done / busy, 1))
        self.last, self.told = now, self.round

    def run(self):
        others = [threading.Thread(target=self.work, args=(thread,)) for thread in range(1, self.threads)]
        for other in others:
            other.start()
        self.work(0)
        for other in others:
            other.join()
        spent, done = max(time.monotonic() - self.began, 1e-9), self.operations(self.round)
        say(done=True, seconds=spent, busy_s=spent, operations=done, operations_per_s=round(done / spent, 1), sum=self.sum)


if __name__ == "__main__":
    Team(options(sys.argv[1:])).run()
