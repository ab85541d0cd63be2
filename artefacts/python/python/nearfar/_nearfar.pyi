"""The extension module of the package. Internal: programs use the package."""

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
        """The specification it was made from."""
    @property
    def closed(self) -> bool:
        """Whether it has been closed."""
    def close(self) -> None:
        """Destroy the kind and return all its address space."""
    def figures(self) -> tuple[int, int, int, int | None, int, int, int]:
        """Return its statistics, in the order of nf_stats_t."""
    def report(self, json: bool) -> str:
        """Return its statistics and its residency, as text or as JSON."""
    def owns(self, address: int) -> bool:
        """Return whether memory belongs to this kind itself; false for memory of its spill."""

class Buffer:
    """Memory of a kind."""

    def __new__(
        cls, kind: Kind, size: int, alignment: int = 64, *, zeroed: bool = True
    ) -> Self: ...
    @property
    def kind(self) -> OuterKind:
        """The kind it belongs to."""
    @property
    def address(self) -> int:
        """Its start address."""
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
        """The maximum number of bytes of a key and its value together."""
    def close(self) -> None:
        """Close the cache; do nothing if it is closed."""
    def load(self, key: bytes | str) -> bytes | None:
        """Return a value; None if the key is missing."""
    def load_item(self, key: bytes | str) -> tuple[bytes, int, int, int] | None:
        """Return value, flags, remaining seconds (0: no expiry) and CAS number."""
    def load_all(self, keys: Sequence[bytes | str]) -> list[bytes | None]:
        """Return values, in the order of keys."""
    def store(self, key: bytes | str, value: AnyBuffer, how: tuple[int, int]) -> None:
        """Store a value with flags and a time to live in seconds (0: no expiry)."""
    def store_all(
        self, pairs: Sequence[tuple[bytes | str, AnyBuffer]], how: tuple[int, int]
    ) -> None:
        """Store values in order, until one fails."""
    def store_new(self, key: bytes | str, value: AnyBuffer, how: tuple[int, int]) -> bool:
        """Store a value if the key is missing; return whether it was stored."""
    def store_over(self, key: bytes | str, value: AnyBuffer, how: tuple[int, int]) -> bool:
        """Store a value if the key exists; return whether it was stored."""
    def store_same(self, key: bytes | str, value: AnyBuffer, how: tuple[int, int, int]) -> bool:
        """Store a value if the item's CAS number still equals the third element of `how`."""
    def append(self, key: bytes | str, value: AnyBuffer) -> bool:
        """Append bytes to a value; return whether the key exists."""
    def prepend(self, key: bytes | str, value: AnyBuffer) -> bool:
        """Prepend bytes to a value; return whether the key exists."""
    def incr(self, key: bytes | str, by: int = 1) -> int | None:
        """Add to a value of decimal digits; return the sum, None if the key is missing."""
    def decr(self, key: bytes | str, by: int = 1) -> int | None:
        """Subtract from a value of decimal digits, saturating at 0; None if the key is missing."""
    def set_ttl(self, key: bytes | str, ttl: int) -> bool:
        """Set the time to live of an item in seconds; 0 is no expiry."""
    def delete(self, key: bytes | str) -> bool:
        """Remove an item; return whether the key existed."""
    def flush(self) -> None:
        """Remove all items."""
    def figures(self) -> list[tuple[str, int]]:
        """Return statistics by name."""
    def __contains__(self, key: bytes | str, /) -> bool: ...

class Replicated:
    """A replicated region."""

    def __new__(cls, size: int, words: str = "") -> Self: ...
    @property
    def words(self) -> str:
        """The specification it was made from."""
    @property
    def closed(self) -> bool:
        """Whether it has been closed."""
    @property
    def nodes(self) -> list[int]:
        """The nodes of the copies, home first."""
    def close(self) -> None:
        """Destroy the region."""
    def read(self, offset: int = 0, size: int | None = None) -> bytes:
        """Return bytes from an offset on; without a size, up to the end."""
    def readinto(self, into: AnyBuffer, offset: int = 0) -> int:
        """Read into a buffer, as many bytes as it has."""
    def write(self, data: AnyBuffer, offset: int = 0) -> None:
        """Write bytes from an offset on."""
    def sync(self) -> None:
        """Wait until every copy contains all earlier writes."""
    def figures(self) -> tuple[int, int, int, int]:
        """Return its statistics, in the order of nf_replicated_stats_t."""
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __release_buffer__(self, buffer: memoryview, /) -> None: ...

def numpy_handler(kind: Kind, name: str) -> CapsuleType:
    """Create a handler for numpy, as a capsule, that allocates from a kind."""

def numpy_use(api: CapsuleType, handler: CapsuleType) -> CapsuleType:
    """Install a handler in the calling context; return the previous one."""

def stats(json: bool) -> str:
    """Return statistics and residency of all kinds, as text or as JSON."""

def nodes() -> list[tuple[int, str, int | None, int, int, int]]:
    """List the machine's nodes with memory."""

def node_set(words: str) -> list[int]:
    """List the nodes of a node set expression."""

def residency(address: int, length: int) -> dict[int, int]:
    """Sum the resident bytes of a range of addresses, by node."""

def layout(thing: AnyBuffer) -> tuple[int, int, list[int], list[int]]:
    """Return address, item size, shape and strides of an object with the buffer protocol."""
