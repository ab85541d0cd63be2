"""Memory by kind, as the package uses it: not for use by programs."""

from typing import Self

from typing_extensions import Buffer as AnyBuffer
from typing_extensions import CapsuleType

from ._kinds import Kind as OuterKind

__all__ = [
    "Buffer",
    "Kind",
    "Replicated",
    "layout",
    "node_set",
    "nodes",
    "numpy_handler",
    "numpy_use",
    "residency",
    "stats",
]

class Kind:
    """A memory kind."""

    def __new__(cls, words: str) -> Self: ...
    @property
    def words(self) -> str:
        """What it was made of."""
    @property
    def closed(self) -> bool:
        """Whether it has been closed."""
    def close(self) -> None:
        """End the kind and give back all that it has set aside."""
    def figures(self) -> tuple[int, int, int, int | None, int, int, int]:
        """Give its figures, in the order of nf_stats_t."""
    def report(self, json: bool) -> str:
        """Give its figures and its residency, as text or as JSON."""
    def owns(self, address: int) -> bool:
        """Tell whether memory is of this kind itself; what it spilled is not."""

class Buffer:
    """Memory of a kind."""

    def __new__(
        cls, kind: Kind, size: int, alignment: int = 64, *, zeroed: bool = True
    ) -> Self: ...
    @property
    def kind(self) -> OuterKind:
        """The kind it is of."""
    @property
    def address(self) -> int:
        """Where it starts."""
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

class Replicated:
    """A replicated region."""

    def __new__(cls, size: int, words: str = "") -> Self: ...
    @property
    def words(self) -> str:
        """What it was made of."""
    @property
    def closed(self) -> bool:
        """Whether it has been closed."""
    @property
    def nodes(self) -> list[int]:
        """Whose the copies are, home first."""
    def close(self) -> None:
        """End the region."""
    def read(self, offset: int = 0, size: int | None = None) -> bytes:
        """Give bytes from an offset on; up to the end if it is not said how many."""
    def readinto(self, into: AnyBuffer, offset: int = 0) -> int:
        """Read into memory, as much as that has room for."""
    def write(self, data: AnyBuffer, offset: int = 0) -> None:
        """Write bytes from an offset on."""
    def sync(self) -> None:
        """Wait until every copy is what was written before."""
    def figures(self) -> tuple[int, int, int, int]:
        """Give its figures, in the order of nf_replicated_stats_t."""
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __release_buffer__(self, buffer: memoryview, /) -> None: ...

def numpy_handler(kind: Kind, name: str) -> CapsuleType:
    """Make a handler for numpy that allocates from a kind, as a capsule."""

def numpy_use(api: CapsuleType, handler: CapsuleType) -> CapsuleType:
    """Put a handler in force in the calling context; the one that was."""

def stats(json: bool) -> str:
    """Give figures and residency of all kinds, as text or as JSON."""

def nodes() -> list[tuple[int, str, int | None, int, int, int]]:
    """List the machine's nodes with memory."""

def node_set(words: str) -> list[int]:
    """List the nodes of a set in words."""

def residency(address: int, length: int) -> dict[int, int]:
    """Add up resident bytes of a range of addresses, by node."""

def layout(thing: AnyBuffer) -> tuple[int, int, list[int], list[int]]:
    """Tell where and how an object with the buffer protocol lies."""
