"""Buffers: content, lifetime, refused arguments."""

from __future__ import annotations

import gc
import io
import mmap
import weakref
from typing import TYPE_CHECKING

import pytest

import nearfar
from nearfar import Buffer, Kind

if TYPE_CHECKING:
    from collections.abc import Callable


def test_it_is_writable_memory_without_copies(kind: Kind) -> None:
    buffer = Buffer(kind, 1000)
    view = memoryview(buffer)
    assert (len(buffer), view.nbytes, view.readonly, view.format) == (1000, 1000, False, "B")
    view[10:13] = b"abc"
    assert bytes(buffer)[9:14] == b"\0abc\0"
    assert memoryview(buffer)[10] == ord("a")
    assert io.BytesIO(b"xyz").readinto(buffer) == 3
    assert bytes(view[:3]) == b"xyz"


@pytest.mark.parametrize("size", [0, 1, 100, 1 << 16, 3 << 20, 4 << 20, 33 << 20])
def test_it_starts_out_as_zeroes_also_where_memory_was_used(kind: Kind, size: int) -> None:
    used = Buffer(kind, size)
    memoryview(used)[:] = b"\xff" * size
    del used
    assert bytes(Buffer(kind, size)) == bytes(size)


@pytest.mark.parametrize("alignment", [1, 2, 64, 4096, 1 << 16, 2 << 20, 8 << 20])
@pytest.mark.parametrize("size", [0, 1, 5000, 5 << 20])
@pytest.mark.parametrize("zeroed", [True, False])
def test_it_is_aligned(kind: Kind, alignment: int, size: int, zeroed: bool) -> None:
    buffer = Buffer(kind, size, alignment, zeroed=zeroed)
    assert buffer.address % alignment == 0
    assert len(buffer) == size


@pytest.mark.parametrize("size", [1, 100, 100_000, 5 << 20, 80 << 20])
def test_memory_goes_back_with_the_last_reference(kind: Kind, size: int) -> None:
    buffer = Buffer(kind, size)
    gone = weakref.ref(buffer)
    view = memoryview(buffer)[:1]
    del buffer
    gc.collect()
    assert gone() is not None
    assert kind.stats().allocated >= size
    view[0] = 7
    del view
    gc.collect()
    assert gone() is None
    assert kind.stats().allocated == 0


@pytest.mark.parametrize("size", [-1, -(2**40)])
def test_a_negative_size_is_refused(kind: Kind, size: int) -> None:
    with pytest.raises(ValueError, match=rf"size {size} is negative"):
        Buffer(kind, size)


@pytest.mark.parametrize("alignment", [0, -1, 3, 48])
def test_an_alignment_that_is_no_power_of_two_is_refused(kind: Kind, alignment: int) -> None:
    with pytest.raises(ValueError, match=rf"alignment {alignment} is not a power of two"):
        Buffer(kind, 10, alignment)


@pytest.mark.parametrize("size", [1 << 50, 2**62, 2**63 - 1])
@pytest.mark.parametrize("zeroed", [True, False])
def test_more_than_there_can_be_is_no_memory(kind: Kind, size: int, zeroed: bool) -> None:
    with pytest.raises(MemoryError, match=f"{size} bytes: the process may have no more"):
        Buffer(kind, size, zeroed=zeroed)


def test_an_alignment_beyond_all_memory_is_no_memory(kind: Kind) -> None:
    with pytest.raises(MemoryError):
        Buffer(kind, 10, 1 << 62)


def test_sizes_that_are_no_sizes_are_refused(kind: Kind) -> None:
    with pytest.raises(OverflowError):
        Buffer(kind, 2**70)
    for size in (1.5, "1", None):
        with pytest.raises(TypeError):
            Buffer(kind, size)  # type: ignore[arg-type]


def test_a_limit_without_spill_is_no_memory(limited: Callable[[str], Kind]) -> None:
    kind = limited("16m")
    buffer = Buffer(kind, 12 << 20)
    with pytest.raises(MemoryError, match=r"limit=16m.*5242880.*spill"):
        Buffer(kind, 5 << 20)
    assert kind.stats().failed == 1
    del buffer
    Buffer(kind, 5 << 20)


def test_a_limit_with_spill_is_another_kind(limited: Callable[[str], Kind]) -> None:
    kind = limited("16m;spill=default")
    held = [Buffer(kind, 12 << 20), Buffer(kind, 12 << 20)]
    assert kind.stats().spilled == 1
    assert kind.stats().allocated == 12 << 20
    memoryview(held[1])[-1:] = b"x"


def test_residency_counts_what_was_touched(kind: Kind) -> None:
    node = nearfar.nodes()[0].id
    buffer = Buffer(kind, 40 << 20)
    assert sum(buffer.residency().values()) == 0
    memoryview(buffer)[: 10 << 20] = b"x" * (10 << 20)
    assert set(buffer.residency()) == {node}
    # Pages may be huge.
    assert 10 << 20 <= buffer.residency()[node] <= 12 << 20
    assert nearfar.residency(buffer) == buffer.residency()
    assert nearfar.residency(memoryview(buffer)[: 1 << 20]) == {node: 1 << 20}
    assert nearfar.residency(memoryview(buffer)[30 << 20 :]) == {}


def test_residency_is_of_any_memory() -> None:
    for thing in (bytearray(b"x" * 10_000), b"x" * 10_000):
        assert sum(nearfar.residency(thing).values()) == 10_000
    with mmap.mmap(-1, 1 << 20) as fresh:
        assert nearfar.residency(fresh) == {}
    # Every other byte: all from the first to the last.
    assert sum(nearfar.residency(memoryview(bytearray(1001))[::-2]).values()) == 1001
    assert nearfar.residency(b"") == {}


@pytest.mark.parametrize("thing", [3, "text", None, [1, 2], object()])
def test_what_is_no_memory_has_no_residency(thing: object) -> None:
    with pytest.raises(TypeError, match=type(thing).__name__):
        nearfar.residency(thing)


def test_it_says_what_it_is(kind: Kind) -> None:
    assert repr(Buffer(kind, 12)) == f"Buffer({kind!r}, 12)"


def test_it_can_not_be_changed_or_copied_unawares(kind: Kind) -> None:
    import copy

    buffer = Buffer(kind, 10)
    with pytest.raises(AttributeError):
        buffer.address = 0  # type: ignore[misc]
    with pytest.raises(TypeError):
        copy.copy(buffer)
