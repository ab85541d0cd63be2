#!/usr/bin/env python3
"""hosts: access records of a simulated fleet, as `nearfar record --all` writes them.

    hosts.py DIR [SECONDS]        # DIR/HOST.nfr for each host; 120 seconds by default

No memory was accessed: the accesses of four workloads are drawn from a seeded generator, and the regions are adapted to
them as Linux' DAMON adapts them (merged when neighbours have similar counts, split at random addresses). The records say
that they are emulated. Format: crates/record/src/format.rs. Needs Python 3.9 and no packages.
"""

import random
import sys
from dataclasses import dataclass
from pathlib import Path

GIB = 1 << 30
PAGE = 4096
SAMPLE_US, AGGREGATION_US = 5_000, 100_000  # the defaults of nearfar record
SAMPLES = AGGREGATION_US // SAMPLE_US
REGIONS_MIN, REGIONS_MAX = 10, 1000
START_NS = 1_767_607_200 * 10**9  # 2026-01-05 10:00 UTC
NEAR, FAR = 4 * GIB, 64 * GIB  # addresses of 16 GiB of DRAM and of 32 GiB of CXL memory
NODES = [(0, "dram", 1, NEAR, 16 * GIB), (1, "cxl", 0, FAR, 32 * GIB)]


SLICE = 64 << 20


@dataclass
class Area:
    """Memory in use: the mean chance that a page is accessed within a sampling interval. It varies from slice to slice."""

    start: int
    gib: float
    chance: float


# The memory in use of each workload; the rest of each node is free.
WORKLOADS = {
    # A key-value store, well placed: hot near, cold far.
    "store": [Area(NEAR, 6, 0.8), Area(NEAR + 6 * GIB, 6, 0.05), Area(FAR, 20, 0.001)],
    # A search index, badly placed: most of its hot pages are in far memory.
    "search": [Area(NEAR, 10, 0.004), Area(NEAR + 10 * GIB, 3, 0.5), Area(FAR, 5, 0.7), Area(FAR + 5 * GIB, 9, 0.01)],
    # Web servers that use little of what they hold.
    "web": [Area(NEAR, 1.5, 0.6), Area(NEAR + 2 * GIB, 12, 0.0), Area(FAR, 2, 0.0)],
    # Batch jobs with even, moderate access.
    "batch": [Area(NEAR, 14, 0.2), Area(FAR, 16, 0.15)],
}
HOSTS = {f"{workload}-{number}": workload for workload in WORKLOADS for number in (1, 2)}


class Damon:
    """Regions of [start, end, accesses, age], adapted as mm/damon/core.c does."""

    def __init__(self, areas: list[Area], rng: random.Random) -> None:
        self.rng = rng
        self.regions: list[list[int]] = []
        slices = {}
        for area in areas:
            for at in range(area.start, area.start + int(area.gib * GIB), SLICE):
                slices[at // SLICE] = min(area.chance * rng.uniform(0.5, 1.5), 1.0)
        self.sums = [0.0]
        for at in range((FAR + NODES[1][4]) // SLICE):
            self.sums.append(self.sums[-1] + slices.get(at, 0.0))
        for _, _, _, start, size in NODES:
            step = size // (REGIONS_MIN // 2)
            self.regions += [[at, at + step, 0, 0] for at in range(start, start + size - step + 1, step)]

    def chance(self, start: int, end: int) -> float:
        """The mean over the pages of a region."""

        def below(address: int) -> float:
            whole, rest = divmod(address, SLICE)
            part = (self.sums[whole + 1] - self.sums[whole]) * rest / SLICE if rest else 0.0
            return self.sums[whole] + part

        return min(max((below(end) - below(start)) * SLICE / (end - start), 0.0), 1.0)

    def aggregation(self) -> list[list[int]]:
        """One aggregation interval: counts accesses, merges; returns a snapshot, and splits for the next interval."""
        rng, limit = self.rng, SAMPLES // 10
        for region in self.regions:
            chance = self.chance(region[0], region[1])
            spread = (SAMPLES * chance * (1 - chance)) ** 0.5
            count = min(max(round(rng.gauss(SAMPLES * chance, spread)), 0), SAMPLES) if chance > 1e-9 else 0
            region[3] = region[3] + 1 if abs(count - region[2]) <= limit else 0
            region[2] = count
        merged: list[list[int]] = []
        size_max = sum(end - start for start, end, _, _ in self.regions) // REGIONS_MIN
        for start, end, count, age in self.regions:
            last = merged[-1] if merged else None
            fits = last and last[1] == start and abs(last[2] - count) <= limit and end - last[0] <= size_max
            if last and fits:
                one, other = last[1] - last[0], end - start
                last[2] = (last[2] * one + count * other) // (one + other)
                last[3] = (last[3] * one + age * other) // (one + other)
                last[1] = end
            else:
                merged.append([start, end, count, age])
        self.regions = []
        pieces = 1 if len(merged) > REGIONS_MAX // 2 else 2
        for start, end, count, age in merged:
            pages = (end - start) // PAGE
            cut = start + rng.randint(max(pages // 10, 1), max(pages * 9 // 10, 1)) * PAGE
            split = pieces == 2 and start < cut < end
            self.regions += [[start, cut, count, age], [cut, end, count, age]] if split else [[start, end, count, age]]
        return merged


def crc_table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


CRC = crc_table()


def crc32c(data: bytes) -> int:
    value = 0xFFFFFFFF
    for byte in data:
        value = value >> 8 ^ CRC[(value ^ byte) & 255]
    return value ^ 0xFFFFFFFF


def number(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def numbers(*values: int) -> bytes:
    return b"".join(map(number, values))


def text(value: str) -> bytes:
    return number(len(value.encode())) + value.encode()


def frame(kind: int, payload: bytes) -> bytes:
    head = bytes([kind]) + len(payload).to_bytes(4, "little")
    return head + crc32c(head + payload).to_bytes(4, "little") + payload


def header() -> bytes:
    texts = b"".join(map(text, ["examples/fleet/hosts.py", "simulated host", "", ""]))
    nodes = [numbers(node) + text(kind) + numbers(near, 1, start, size) for node, kind, near, start, size in NODES]
    fixed = numbers(1, START_NS, 0, 2, SAMPLE_US, AGGREGATION_US, len(nodes))
    return frame(1, texts + fixed + b"".join(nodes))


def access(at_ns: int, regions: list[list[int]]) -> bytes:
    out, last = [numbers(at_ns, SAMPLE_US, AGGREGATION_US, 1, 0, 12, len(regions))], 0
    for start, end, count, age in regions:
        out.append(numbers(start - last >> 12, end - start >> 12, count, age))
        last = end
    return frame(2, b"".join(out))


def residency(at_ns: int, areas: list[Area]) -> bytes:
    in_use = [sum(int(area.gib * GIB) for area in areas if (area.start < FAR) == bool(near)) for _, _, near, _, _ in NODES]
    return frame(3, numbers(at_ns, len(NODES)) + b"".join(numbers(node[0], used) for node, used in zip(NODES, in_use)))


def main() -> None:
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    into, seconds = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) == 3 else 120
    into.mkdir(parents=True, exist_ok=True)
    for host, workload in HOSTS.items():
        areas = WORKLOADS[workload]
        damon = Damon(areas, random.Random(host))
        with open(into / f"{host}.nfr", "wb") as file:
            file.write(b"\x89NFREC\n\x01" + header())
            for second in range(1, seconds + 1):
                for _ in range(1_000_000 // AGGREGATION_US):
                    regions = damon.aggregation()
                file.write(access(second * 10**9, regions) + residency(second * 10**9, areas))
            file.write(frame(6, numbers(seconds * 10**9, 0, 0)))


if __name__ == "__main__":
    main()
