"""Regions with a copy on each node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from . import _nearfar

if TYPE_CHECKING:
    from types import TracebackType


@dataclass(frozen=True, slots=True)
class ReplicatedStats:
    """Statistics of a region since its creation, counted in granules."""

    writes: int
    """Granules written, counting each granule that a write touches."""
    collapses: int
    """Times that a write invalidated the copies of a granule."""
    copies: int
    """Copies made."""
    settled: int
    """Granules that reached the maximum of collapses and are always read at home."""


class Replicated(_nearfar.Replicated):
    """Bytes with a copy on each of several nodes, for data that is rarely written.

    `words` are nodes followed by options: "" is all nodes with CPUs, "0-3;home=2;quiet=1s" an
    example. Threads may `read`, `readinto` and `write` concurrently: each granule (4 KiB, or
    `granule=SIZE`) is read whole, and never older than the thread has seen it before. A written
    granule is read at home until it has not been written for a while (`quiet=100ms`), or `sync`.

    It has the buffer protocol, read-only and without copying: `memoryview(region)`, or
    `numpy.frombuffer(region, "f4")`, is the copy of the calling thread's node. It contains all
    earlier writes, and while a view exists `write` and `close` raise BufferError.

    Raises ValueError if `words` are invalid or name nodes that do not exist, MemoryError if a
    node has less memory, IndexError for bytes beyond the region's end. A child of fork shares
    the memory.
    """

    __slots__ = ()

    def stats(self) -> ReplicatedStats:
        """Return its statistics."""
        return ReplicatedStats(*self.figures())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except BufferError:
            # A propagating error refers to the block's views; the region ends with the last one.
            if error is None:
                raise

    def __repr__(self) -> str:
        return f"Replicated({len(self)}, {self.words!r})"
