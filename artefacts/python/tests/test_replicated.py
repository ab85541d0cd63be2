"""Replicated regions: content, exclusion of writers and views, refused arguments."""

from __future__ import annotations

import array
import gc
import json
import os
import threading
import weakref
from typing import TYPE_CHECKING

import pytest

import nearfar
from nearfar import Replicated

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def node() -> int:
    return nearfar.nodes()[0].id


def test_what_is_written_is_read(node: int) -> None:
    with Replicated(10_000) as region:
        assert (len(region), region.words, region.closed) == (10_000, "", False)
        assert node in region.nodes
        assert region.read() == bytes(10_000)
        region.write(b"across granules", 4090)
        assert region.read(4090, 15) == b"across granules"
        assert region.read(9990) == bytes(10)
        into = bytearray(6)
        assert region.readinto(into, offset=4090) == 6
        assert into == b"across"
        assert region.stats().writes == 2
    assert region.closed


def test_any_memory_in_one_piece_is_written_and_read_into() -> None:
    region = Replicated(800, "0")
    numbers = array.array("d", range(100))
    region.write(numbers)
    again = array.array("d", bytes(800))
    assert region.readinto(again) == 800
    assert again == numbers
    region.write(b"")
    assert region.readinto(bytearray()) == 0
    for wrong in (memoryview(b"abcdef")[::2], memoryview(bytearray(8))[::-1]):
        with pytest.raises(BufferError, match="one piece"):
            region.write(wrong)
    with pytest.raises(BufferError, match="one piece"):
        region.readinto(b"constant")
    with pytest.raises(TypeError):
        region.write("text")  # type: ignore[arg-type]


def test_a_view_shows_all_that_was_written_and_keeps_writers_out(node: int) -> None:
    region = Replicated(1 << 20, f"{node}")
    region.write(b"written", 5000)
    view = memoryview(region)
    assert (view.readonly, view.nbytes, view.format) == (True, 1 << 20, "B")
    assert bytes(view[5000:5007]) == b"written"
    with pytest.raises(TypeError):
        view[0] = 1
    with pytest.raises(BufferError, match=r"1 view\(s\)"):
        region.write(b"x")
    with pytest.raises(BufferError, match=r"1 view\(s\)"):
        region.close()
    assert region.read(5000, 7) == b"written"
    assert nearfar.residency(view[5000:5007]) == {node: 7}
    view.release()
    region.write(b"x")
    assert memoryview(region)[0] == ord("x")
    region.close()
    region.close()


def test_numpy_looks_at_it_without_copying() -> None:
    numpy = pytest.importorskip("numpy")
    region = Replicated(4000)
    region.write(numpy.arange(1000, dtype="i4"))
    seen = numpy.frombuffer(region, "i4")
    assert seen.sum() == 499_500
    assert not seen.flags.writeable
    del seen
    gc.collect()
    region.write(numpy.zeros(1000, "i4"))
    assert numpy.frombuffer(region, "i4").sum() == 0


def test_a_region_lives_as_long_as_a_view_of_it() -> None:
    region = Replicated(100)
    region.write(b"kept")
    gone = weakref.ref(region)
    view = memoryview(region)[:4]
    del region
    gc.collect()
    assert gone() is not None
    assert bytes(view) == b"kept"
    del view
    gc.collect()
    assert gone() is None


def test_what_is_closed_is_refused() -> None:
    region = Replicated(10)
    region.close()
    calls: list[Callable[[], object]] = [
        region.read,
        region.sync,
        region.stats,
        lambda: region.write(b""),
        lambda: region.readinto(bytearray(1)),
        lambda: region.nodes,
    ]
    for call in calls:
        with pytest.raises(ValueError, match="closed"):
            call()
    with pytest.raises(ValueError, match="closed"):
        memoryview(region)


@pytest.mark.parametrize(
    ("size", "words", "named"),
    [
        (0, "", "0 bytes"),
        (-1, "", "-1 is negative"),
        (1, "nowhere", "nowhere"),
        (1, "1000", "1000"),
        (1, ";granule=5k", "granule=5k"),
        (1, ";home=1000", "home=1000"),
    ],
)
def test_what_can_not_be_made_says_why(size: int, words: str, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Replicated(size, words)


def test_more_than_there_is_is_no_memory() -> None:
    for size in (1 << 50, 2**63 - 1):
        with pytest.raises(MemoryError, match=str(size)):
            Replicated(size)
    with pytest.raises(OverflowError):
        Replicated(2**70)


def test_beyond_the_end_is_an_index_error() -> None:
    region = Replicated(100)
    calls: list[Callable[[], object]] = [
        lambda: region.read(90, 11),
        lambda: region.read(101),
        lambda: region.read(0, 2**62),
        lambda: region.write(b"12", 99),
        lambda: region.readinto(bytearray(101)),
    ]
    for call in calls:
        with pytest.raises(IndexError, match="the region ends at 100"):
            call()
    assert region.read(100) == b""
    with pytest.raises(OverflowError):
        region.read(-1)


def test_threads_read_while_one_writes() -> None:
    size = 4096
    region = Replicated(4 * size, ";quiet=0ms;collapses=any")
    broken: list[bytes] = []

    def read() -> None:
        for turn in range(2000):
            found = region.read(turn % 4 * size, size)
            if found != found[:1] * size:
                broken.append(found)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for turn in range(1000):
        region.write(bytes([turn % 256]) * size, turn % 4 * size)
    for reader in readers:
        reader.join()
    assert not broken
    assert region.stats().writes == 1000


def test_a_child_of_fork_has_the_same_memory() -> None:
    region = Replicated(100)
    child = os.fork()
    if child == 0:
        region.write(b"child")
        os._exit(0)
    assert os.waitpid(child, 0) == (child, 0)
    assert region.read(0, 5) == b"child"


def test_it_is_told_of_beside_kinds(node: int) -> None:
    region = Replicated(1 << 20, f"{node};granule=64k")
    region.write(bytes(1 << 20))
    (about,) = [
        about
        for about in json.loads(nearfar.stats(json=True))["regions"]
        if about["region"] == region.words
    ]
    assert (about["size"], about["writes"], about["nodes"]) == (1 << 20, 16, [node])
    assert repr(region) == f"Replicated(1048576, '{node};granule=64k')"
