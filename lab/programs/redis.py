# SPDX-License-Identifier: Apache-2.0 OR MIT
"""redis: a Redis server on each of several CPUs, each read by a client beside it; their data was written on the first CPU.

What happens to servers that are started together and then moved apart, by a scheduler or a container manager: all that each
uses it alone uses, and has it on another's node. Servers are filled one after the other, on the first CPU, and each then goes
to its own; with `parallel=1` it was there from the start. Clients read records (YCSB's workload C, nearfar-load).

    redis.py LOAD [NAME=NUMBER ...], where LOAD is nearfar-load; options and lines of JSON as the programs beside this have them
"""

import json
import os
import queue
import shutil
import socket
import subprocess
import sys
import threading
import time

USAGE = """redis.py LOAD [NAME=NUMBER ...]: a server a CPU and a client beside each, by nearfar-load (LOAD); JSON lines
  mb=64            the data of all servers, in MiB
  threads=0        servers, one on each of the first CPUs; 0: as many as there are
  parallel=0       1: each server is filled on its own CPU, not on the first
  seconds=10       how long
  interval_ms=500  between two lines
"""
BOUNDS = {
    "mb": (64, 1, 1 << 20),
    "threads": (0, 0, 64),
    "parallel": (0, 0, 1),
    "seconds": (10, 1, 10**9),
    "interval_ms": (500, 1, 10**6),
}
# What a hash of 10 fields of 100 bytes takes in Redis 7.0, all told.
RECORD = 2050


def refuse(why):
    sys.stderr.write(why + "\n" + USAGE)
    sys.exit(2)


def options(arguments):
    found = {name: otherwise for name, (otherwise, _, _) in BOUNDS.items()}
    for argument in arguments:
        name, _, value = argument.partition("=")
        if name not in BOUNDS or not value.isdecimal():
            refuse(f"{argument}: no option of the form NAME=NUMBER that is known here")
        _, least, most = BOUNDS[name]
        if not least <= int(value) <= most:
            refuse(f"{argument}: not from {least} to {most}")
        found[name] = int(value)
    return found


def say(**fields):
    print(json.dumps({"program": "redis", **fields}), flush=True)


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def pinned(command, cpu, **how):
    # No process outlives this one.
    tether = ["setpriv", "--pdeathsig", "KILL", "--"] if shutil.which("setpriv") else []
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cpu})
    try:
        return subprocess.Popen(tether + command, stdin=subprocess.DEVNULL, **how)
    finally:
        os.sched_setaffinity(0, before)


class Server:
    def __init__(self, load, records, filled_on):
        self.load, self.records, self.port = load, str(records), free_port()
        self.target = ["--redis", f"127.0.0.1:{self.port}", "--records", self.records]
        command = ["redis-server", "--bind", "127.0.0.1", "--port", str(self.port), "--save", "", "--appendonly", "no"]
        self.process = pinned(command, filled_on, stdout=subprocess.DEVNULL)
        self.await_up()
        filling = pinned([load, "load", *self.target, "--pipeline", "64"], filled_on, stdout=subprocess.DEVNULL,
                         stderr=subprocess.DEVNULL)
        if filling.wait() != 0:
            raise RuntimeError(f"filling the server at port {self.port} failed")

    def await_up(self):
        for _ in range(3000):
            if self.process.poll() is not None:
                raise RuntimeError(f"redis-server ended with status {self.process.returncode}")
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
                return
            except OSError:
                time.sleep(0.02)
        raise RuntimeError(f"redis-server does not listen on port {self.port}")

    def move_to(self, cpu):
        for thread in os.listdir(f"/proc/{self.process.pid}/task"):
            os.sched_setaffinity(int(thread), {cpu})

    def client(self, cpu, asked):
        times = ["--seconds", str(asked["seconds"]), "--window-ms", str(asked["interval_ms"]), "--lines"]
        return pinned([self.load, "run", *self.target, "--pipeline", "64", "--workload", "c", *times], cpu,
                      stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def follow(clients, began):
    """One line for the nth windows of all clients."""
    said = [queue.Queue() for _ in clients]

    def read(client, to):
        for line in client.stdout:
            to.put(json.loads(line))
        to.put(None)

    for client, to in zip(clients, said):
        threading.Thread(target=read, args=(client, to), daemon=True).start()
    total = 0
    while True:
        windows = [to.get() for to in said]
        if any(window is None or window.get("done") for window in windows):
            break
        done = sum(window["operations"] for window in windows)
        end = max(window["end_s"] for window in windows)
        rate = sum(window["operations_per_s"] for window in windows)
        say(end_s=end, busy_s=done / rate if rate else 0.0, operations=done, operations_per_s=round(rate, 1))
        total += done
    if any(client.wait() != 0 for client in clients):
        raise RuntimeError("a client failed")
    seconds = time.monotonic() - began
    say(done=True, seconds=seconds, busy_s=seconds, operations=total, operations_per_s=round(total / seconds, 1))


def main(arguments):
    if not arguments or arguments[0] in ("--help", "-h"):
        sys.stdout.write(USAGE)
        sys.exit(0 if arguments else 2)
    asked = options(arguments[1:])
    cpus = sorted(os.sched_getaffinity(0))
    count = asked["threads"] or len(cpus)
    records = max(1, (asked["mb"] << 20) // count // RECORD)
    own = [cpus[at % len(cpus)] for at in range(count)]
    servers = []
    try:
        for cpu in own:
            servers.append(Server(arguments[0], records, cpu if asked["parallel"] else cpus[0]))
        for cpu, server in zip(own, servers):
            server.move_to(cpu)
        began = time.monotonic()
        say(began_s=round(began, 6))
        follow([server.client(cpu, asked) for cpu, server in zip(own, servers)], began)
    finally:
        for server in servers:
            server.process.kill()
            server.process.wait()


if __name__ == "__main__":
    main(sys.argv[1:])
