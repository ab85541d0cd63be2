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
    """Statistics of a kind since its creation, in bytes and counts; not an atomic snapshot."""

    allocated: int
    """Bytes in use, with objects rounded up to their size classes."""
    kept: int
    """Bytes in free objects that threads have cached."""
    set_aside: int
    """Bytes of reserved address space; unused parts need not be resident."""
    limit: int | None
    """The maximum of `set_aside`; None: no limit."""
    binds: int
    """Calls of mbind(2)."""
    spilled: int
    """Allocations that the kind's spill served."""
    failed: int
    """Allocations that failed."""


class Kind(_nearfar.Kind):
    """A memory kind, made from a specification: the placement of memory, with options.

    "far" (bound to far nodes), "prefer:cxl", "interleave:all", "weighted:0=3,1=1", "default";
    followed by ";limit=4g", ";spill=near", ";huge=yes". Raises ValueError if the specification is
    invalid or names nodes that this machine lacks; MemoryError beyond 1,022 kinds.

    A kind lives as long as any of its memory. `close`, or the end of a `with` block, ends it
    earlier and returns its address space at once.
    """

    __slots__ = ()

    @classmethod
    def shared(cls, kind: Kind | str) -> Kind:
        """Return the one kind that all users of a specification share, or the given kind."""
        if isinstance(kind, Kind):
            return kind
        if not isinstance(kind, str):
            raise TypeError(f"{kind!r} is not a kind; give a Kind, or words like 'far'")
        known = _shared.get(kind)
        if known is None or known.closed:
            known = _shared[kind] = Kind(kind)
        return known

    def stats(self) -> Stats:
        """Return its statistics."""
        return Stats(*self.figures())

    def residency(self) -> dict[int, int]:
        """Return the resident bytes of its reserved address space, by node.

        Queries the kernel page by page: some 0.1 ms per MiB. Excludes spilled memory.
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
            # A propagating error refers to the block's objects; the kind ends with the last one.
            if error is None:
                raise

    def __repr__(self) -> str:
        return f"Kind({self.words!r})"


class Buffer(_nearfar.Buffer):
    """Memory of a kind: `size` writable bytes at a multiple of `alignment`, a power of two.

    It has the buffer protocol, so `memoryview`, `bytes`, `readinto`, numpy and torch use it
    without copying. It is zeroed unless `zeroed=False` allows arbitrary content. The memory is
    freed with the last reference to the buffer or to a view of it; until then its kind lives
    too. Raises MemoryError if the kind has no room.
    """

    __slots__ = ()

    def __new__(
        cls, kind: Kind | str, size: int, alignment: int = 64, *, zeroed: bool = True
    ) -> Self:
        """Allocate."""
        return super().__new__(cls, Kind.shared(kind), size, alignment, zeroed=zeroed)

    def residency(self) -> dict[int, int]:
        """Return its resident bytes by node; pages that were never touched are not resident."""
        return _nearfar.residency(self.address, len(self))

    def __repr__(self) -> str:
        return f"Buffer({self.kind!r}, {len(self)})"
