"""Memory by kind, as the package uses it: not for use by programs."""

from collections.abc import Sequence
from typing import Self

from typing_extensions import Buffer as AnyBuffer
from typing_extensions import CapsuleType

from ._kinds import Kind as OuterKind

__all__ = [
    "Buffer",
    "Cache",
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

class Cache:
    """A cache."""

    def __new__(cls, settings: list[tuple[str, str]]) -> Self: ...
    @property
    def closed(self) -> bool:
        """Whether it has been closed."""
    @property
    def item_max(self) -> int:
        """The most bytes that key and value may have together."""
    def close(self) -> None:
        """End the cache; once is enough, again does nothing."""
    def load(self, key: bytes | str) -> bytes | None:
        """Give a value; None if it is not there."""
    def load_item(self, key: bytes | str) -> tuple[bytes, int, int, int] | None:
        """Give value, flags, seconds that are left (0: no end) and CAS number."""
    def load_all(self, keys: Sequence[bytes | str]) -> list[bytes | None]:
        """Give values, in the order of keys."""
    def store(self, key: bytes | str, value: AnyBuffer, how: tuple[int, int]) -> None:
        """Store a value with flags, and seconds it lives (0: for ever)."""
    def store_all(
        self, pairs: Sequence[tuple[bytes | str, AnyBuffer]], how: tuple[int, int]
    ) -> None:
        """Store values, until one can't be."""
    def store_new(self, key: bytes | str, value: AnyBuffer, how: tuple[int, int]) -> bool:
        """Store a value if there is none."""
    def store_over(self, key: bytes | str, value: AnyBuffer, how: tuple[int, int]) -> bool:
        """Store a value if there is one."""
    def store_same(self, key: bytes | str, value: AnyBuffer, how: tuple[int, int, int]) -> bool:
        """Store a value if the item still has the CAS number that is third."""
    def append(self, key: bytes | str, value: AnyBuffer) -> bool:
        """Put bytes behind a value; tell whether there is one."""
    def prepend(self, key: bytes | str, value: AnyBuffer) -> bool:
        """Put bytes before a value; tell whether there is one."""
    def incr(self, key: bytes | str, by: int = 1) -> int | None:
        """Add to a value that is decimal digits; give the sum, None if it is not there."""
    def decr(self, key: bytes | str, by: int = 1) -> int | None:
        """Take from a value that is decimal digits, down to 0; None if it is not there."""
    def set_ttl(self, key: bytes | str, ttl: int) -> bool:
        """Give an item another time to live; 0 is for ever."""
    def delete(self, key: bytes | str) -> bool:
        """Remove an item; tell whether it was there."""
    def flush(self) -> None:
        """Remove all items."""
    def figures(self) -> list[tuple[str, int]]:
        """Give figures by name."""
    def __contains__(self, key: bytes | str, /) -> bool: ...

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
