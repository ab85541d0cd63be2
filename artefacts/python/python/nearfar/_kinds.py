"""Kinds and their buffers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from . import _nearfar

if TYPE_CHECKING:
    from types import TracebackType

_shared: dict[str, Kind] = {}


@dataclass(frozen=True, slots=True)
class Stats:
    """Figures of a kind since it was made, in bytes and counts; other threads go on meanwhile."""

    allocated: int
    """Bytes in use, objects as large as their size classes."""
    kept: int
    """Bytes in free objects that threads keep for themselves and each other."""
    set_aside: int
    """Bytes of address space set aside; what is not in use of it need not be resident."""
    limit: int | None
    """The most that may be set aside; None: there is no limit."""
    binds: int
    """Calls of mbind(2)."""
    spilled: int
    """Allocations that went to the kind's spill."""
    failed: int
    """Allocations that failed."""


class Kind(_nearfar.Kind):
    """A memory kind, made of words: where memory is to be, with options.

    "far" (bound to far nodes), "prefer:cxl", "interleave:all", "weighted:0=3,1=1", "default";
    behind it ";limit=4g", ";spill=near", ";huge=yes". Raises ValueError if they are not words for
    a kind, or name what this machine has not; MemoryError if there are too many kinds (1,022).

    A kind lives as long as anything of it does. It may be closed before, which `with` does at its
    end; that gives back at once what the kind has set aside.
    """

    __slots__ = ()

    @classmethod
    def shared(cls, kind: Kind | str) -> Kind:
        """Give the kind that stands for some words: one for all who use them. A kind is itself."""
        if isinstance(kind, Kind):
            return kind
        if not isinstance(kind, str):
            raise TypeError(f"{kind!r} is not a kind; give a Kind, or words like 'far'")
        known = _shared.get(kind)
        if known is None or known.closed:
            known = _shared[kind] = Kind(kind)
        return known

    def stats(self) -> Stats:
        """Give its figures."""
        return Stats(*self.figures())

    def residency(self) -> dict[int, int]:
        """Tell how many bytes of all that it has set aside are resident on which node.

        Asked page by page: some 0.1 ms a MiB. What it spilled is not in it.
        """
        (about,) = json.loads(self.report(True))["kinds"]
        return {int(node): count for node, count in about["resident"].items()}

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
            # An error on its way holds what the block had; the kind then ends with the last of it.
            if error is None:
                raise

    def __repr__(self) -> str:
        return f"Kind({self.words!r})"


class Buffer(_nearfar.Buffer):
    """Memory of a kind: `size` writable bytes at a multiple of `alignment`, a power of two.

    It has the buffer protocol, so `memoryview`, `bytes`, `readinto`, numpy and torch use it
    without copying. It starts out as zeroes unless `zeroed=False` asks for whatever is there. The
    memory goes back when the last reference to the buffer or to a view of it goes; until then its
    kind lives too. Raises MemoryError if the kind has no room.
    """

    __slots__ = ()

    def __new__(
        cls, kind: Kind | str, size: int, alignment: int = 64, *, zeroed: bool = True
    ) -> Self:
        """Allocate."""
        return super().__new__(cls, Kind.shared(kind), size, alignment, zeroed=zeroed)

    def residency(self) -> dict[int, int]:
        """Tell how many of its bytes are resident on which node: what has been touched, and is."""
        return _nearfar.residency(self.address, len(self))

    def __repr__(self) -> str:
        return f"Buffer({self.kind!r}, {len(self)})"
