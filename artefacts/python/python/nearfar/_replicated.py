"""Regions with a copy on each node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from . import _nearfar

if TYPE_CHECKING:
    from types import TracebackType


@dataclass(frozen=True, slots=True)
class ReplicatedStats:
    """Figures of a region since it was made, counted by granules."""

    writes: int
    """Granules written, one for each that a write touches."""
    collapses: int
    """Times that copies of a granule went out of use as it was written."""
    copies: int
    """Copies made."""
    settled: int
    """Granules that have collapsed so often that they are read at home for good."""


class Replicated(_nearfar.Replicated):
    """Bytes with a copy on each of some nodes, for what is read far more often than written.

    `words` are nodes with options behind them: "" is all nodes with CPUs, "0-3;home=2;quiet=1s"
    others. Threads `read`, `readinto` and `write` it at once as they like: each granule (4 KiB,
    or `granule=SIZE`) is read whole, and never older than a thread has seen it. What is written
    is read at home until nobody has written it for a while (`quiet=100ms`), or until `sync`.

    It has the buffer protocol, read-only and without copying: `memoryview(region)`, or
    `numpy.frombuffer(region, "f4")`, is the copy of the node that the asking thread runs on. All
    that was written is in it, and while a view is there `write` and `close` raise BufferError.

    Raises ValueError if the words are none for a region or name nodes that are not here,
    MemoryError if a node has less memory, IndexError for bytes beyond the region's end. A child
    of fork has the same memory, not a copy.
    """

    __slots__ = ()

    def stats(self) -> ReplicatedStats:
        """Give its figures."""
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
            # An error on its way holds what the block had; the region then ends with that.
            if error is None:
                raise

    def __repr__(self) -> str:
        return f"Replicated({len(self)}, {self.words!r})"
