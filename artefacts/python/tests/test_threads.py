"""Threads, children of fork, and the end of the interpreter."""

from __future__ import annotations

import multiprocessing
import random
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from nearfar import Buffer, Kind

if TYPE_CHECKING:
    from multiprocessing.queues import Queue


def _churn(kind: Kind, seed: int) -> None:
    """Allocate and free, keep some buffers for a while, and check that no other thread wrote."""
    chance = random.Random(seed)
    held: list[tuple[Buffer, int]] = []
    for turn in range(400):
        size = chance.choice([1, 100, 5_000, 40_000, 300_000, 5 << 20])
        buffer = Buffer(kind, size, zeroed=turn % 2 == 0)
        mark = chance.randrange(256)
        view = memoryview(buffer)
        view[0] = view[size - 1] = mark
        held.append((buffer, mark))
        if len(held) > 20:
            old, mark = held.pop(chance.randrange(len(held)))
            assert memoryview(old)[0] == mark
            assert memoryview(old)[len(old) - 1] == mark


def test_threads_share_a_kind(kind: Kind) -> None:
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(_churn, kind, seed) for seed in range(4)]:
            done.result()


def test_a_buffer_may_end_in_another_thread(kind: Kind) -> None:
    handed = [Buffer(kind, size) for size in (10, 100_000, 5 << 20, 70 << 20) for _ in range(4)]
    thread = threading.Thread(target=handed.clear)
    thread.start()
    thread.join()
    assert kind.stats().allocated == 0


def test_kinds_are_made_and_closed_by_threads() -> None:
    def work(_: int) -> None:
        for _ in range(20):
            with Kind("default") as kind:
                buffer = Buffer(kind, 10_000)
                memoryview(buffer)[:] = b"x" * 10_000
                del buffer

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))


def _child(kind: Kind, inherited: Buffer, answers: Queue[tuple[bytes, int]]) -> None:
    memoryview(inherited)[:4] = b"mine"
    own = [Buffer(kind, size) for size in (100, 100_000, 6 << 20)]
    for buffer in own:
        memoryview(buffer)[:] = b"y" * len(buffer)
    before = kind.stats().allocated
    del own, buffer
    with Kind("default") as another:
        assert len(Buffer(another, 10)) == 10
    answers.put((bytes(inherited)[:4], before - kind.stats().allocated))


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_child_of_fork_goes_on_with_memory_of_its_own(kind: Kind) -> None:
    inherited = Buffer(kind, 5 << 20)
    memoryview(inherited)[:4] = b"ours"
    context = multiprocessing.get_context("fork")
    answers: Queue[tuple[bytes, int]] = context.Queue()
    child = context.Process(target=_child, args=(kind, inherited, answers))
    child.start()
    seen, freed = answers.get(timeout=60)
    child.join(60)
    assert child.exitcode == 0
    assert seen == b"mine"
    assert freed >= 6 << 20
    assert bytes(inherited)[:4] == b"ours"


def test_the_interpreter_may_end_with_everything_alive() -> None:
    program = """
import nearfar, threading, time
held = [nearfar.Buffer("default", size) for size in (10, 100_000, 5 << 20, 70 << 20)]
held.append(held)
view = memoryview(held[0])
def work():
    while True:
        nearfar.Buffer("default", 10)
threading.Thread(target=work, daemon=True).start()
try:
    import numpy as np
except ImportError:
    pass
else:
    block = nearfar.numpy_in("default")
    block.__enter__()
    array = np.ones(1000)
print("done")
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_it_is_usable_without_numpy_and_torch() -> None:
    program = """
import sys
sys.modules["numpy"] = sys.modules["torch"] = None
import nearfar, py_smdk
assert len(nearfar.Buffer("default", 100)) == 100
assert sum(nearfar.residency(bytearray(10)).values()) == 10
for use, name in (
    (lambda: nearfar.empty(3, kind="default"), "numpy"),
    (lambda: nearfar.numpy_in("default").__enter__(), "numpy"),
    (lambda: nearfar.torch.empty(3, kind="default"), "torch"),
):
    try:
        use()
    except ImportError as error:
        assert f"nearfar[{name}]" in str(error), error
    else:
        raise SystemExit("no error")
"""
    subprocess.run([sys.executable, "-c", program], check=True)
