"""Caches: bytes by key, over several tiers of memory and one on disk."""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self, TypeVar

from . import _nearfar

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import TracebackType

    from typing_extensions import Buffer as AnyBuffer

_open: weakref.WeakSet[Cache] = weakref.WeakSet()

TTL_MAX = 2**32 - 1

K = TypeVar("K", bound=bytes | str)


@dataclass(frozen=True, slots=True)
class Item:
    """An item at the time it was read."""

    value: bytes
    """Its value."""
    flags: int
    """The 32 bits that were stored with it."""
    ttl: int | None
    """Remaining time to live in seconds; None: no expiry."""
    cas: int
    """A number that changes with each change of the item, for `Cache.cas`."""


def _seconds(ttl: int | None) -> int:
    """Convert a time to live to the extension's form, in which 0 means no expiry."""
    if ttl is None:
        return 0
    if ttl < 1:
        raise ValueError(f"ttl={ttl}: give at least one second, or None for no end")
    return min(ttl, TTL_MAX)


class Cache(_nearfar.Cache):
    """Bytes by key, over one to four tiers of memory, and a file or block device below them.

        with nearfar.Cache(["near=64m", "far=256m"]) as cache:
            cache["user:1"] = b"Ada"
            cache.set("user:2", b"Grace", ttl=3600)
            cache.get("user:3")             # None

    `memory` lists the tiers, fastest first, each a kind of memory and a size, or only a size.
    Items that are read least are demoted to the next tier, and evicted from the last: an item may
    be evicted at any time. `movers` threads demote and evict in advance (0: the storing threads
    do), `eviction` is the policy: "s3-fifo", "sieve", "lru" or "w-tinylfu". `copy` is the copier
    between tiers: "cpu", "dsa" or "auto". `disk` is "PATH=SIZE"; its content persists until it is
    opened again. docs/cache-library.md describes all options.

    Keys are bytes, or text, which is encoded as UTF-8: 1 to 250 bytes. Values are bytes or any
    object with the buffer protocol, and are read as bytes. Nothing is pickled, because unpickling
    data from a cache runs code that others may have stored.

    Threads may use it concurrently. In a child of fork every call raises RuntimeError; a child
    opens its own cache. A closed cache or an invalid key or value raises ValueError; MemoryError
    means that no room could be made. A cache has no length, and its truth value is always true:
    `stats()` counts its items.
    """

    __slots__ = ()

    def __new__(  # noqa: PLR0913 # each is an option of its own
        cls,
        memory: str | Sequence[str] = "64m",
        *,
        eviction: Literal["s3-fifo", "sieve", "lru", "w-tinylfu"] = "s3-fifo",
        movers: int = 1,
        copy: Literal["cpu", "dsa", "auto"] = "cpu",
        items: int | None = None,
        item_max: int | str | None = None,
        disk: str | None = None,
        disk_small: int | str | None = None,
        disk_writes: int | str | None = None,
        disk_reads: int | None = None,
        disk_after_crash: Literal["discard", "keep"] = "discard",
        disk_format: bool = False,
    ) -> Self:
        """Open a cache. Sizes are bytes, or strings like "64m"; `disk_writes` is per 24 hours."""
        tiers = [memory] if isinstance(memory, str) else memory
        settings = [("memory", tier) for tier in tiers]
        others = {
            "eviction": eviction,
            "movers": movers,
            "copy": copy,
            "items": items,
            "item-max": item_max,
            "disk": disk,
            "disk-small": disk_small,
            "disk-writes": disk_writes,
            "disk-reads": disk_reads,
            "disk-after-crash": disk_after_crash,
            "disk-format": "yes" if disk_format else None,
        }
        settings += [(name, str(value)) for name, value in others.items() if value is not None]
        made = super().__new__(cls, settings)
        _open.add(made)
        return made

    def get(self, key: bytes | str, default: bytes | None = None) -> bytes | None:
        """Return a value, or the default if the key is missing."""
        found = self.load(key)
        return default if found is None else found

    def item(self, key: bytes | str) -> Item | None:
        """Return a value with its attributes; None if the key is missing."""
        found = self.load_item(key)
        if found is None:
            return None
        value, flags, ttl, cas = found
        return Item(value, flags, ttl or None, cas)

    def get_many(self, keys: Iterable[K]) -> dict[K, bytes]:
        """Return the values of the keys that exist, by key."""
        wanted = list(keys)
        found = zip(wanted, self.load_all(wanted), strict=True)
        return {key: value for key, value in found if value is not None}

    def set(
        self, key: bytes | str, value: AnyBuffer, *, ttl: int | None = None, flags: int = 0
    ) -> None:
        """Store a value unconditionally, for `ttl` seconds and with 32 bits of `flags`."""
        self.store(key, value, (flags, _seconds(ttl)))

    def set_many(
        self,
        items: Mapping[K, AnyBuffer] | Iterable[tuple[K, AnyBuffer]],
        *,
        ttl: int | None = None,
        flags: int = 0,
    ) -> None:
        """Store values from a mapping or pairs, in order. Values before an error stay stored."""
        pairs = items.items() if isinstance(items, Mapping) else items
        self.store_all(list(pairs), (flags, _seconds(ttl)))

    def add(
        self, key: bytes | str, value: AnyBuffer, *, ttl: int | None = None, flags: int = 0
    ) -> bool:
        """Store a value if the key is missing; return whether it was stored."""
        return self.store_new(key, value, (flags, _seconds(ttl)))

    def replace(
        self, key: bytes | str, value: AnyBuffer, *, ttl: int | None = None, flags: int = 0
    ) -> bool:
        """Store a value if the key exists; return whether it was stored."""
        return self.store_over(key, value, (flags, _seconds(ttl)))

    def cas(
        self,
        key: bytes | str,
        value: AnyBuffer,
        cas: int,
        *,
        ttl: int | None = None,
        flags: int = 0,
    ) -> bool:
        """Store a value if the item's `Item.cas` is still `cas`; return whether it was stored."""
        return self.store_same(key, value, (flags, _seconds(ttl), cas))

    def touch(self, key: bytes | str, ttl: int | None = None) -> bool:
        """Set the time to live of an item; return whether the key exists."""
        return self.set_ttl(key, _seconds(ttl))

    def stats(self) -> dict[str, int]:
        """Return all statistics, named as in memcached's `stats`; tiers' are "tier_0_items"."""
        return dict(self.figures())

    def __getitem__(self, key: bytes | str) -> bytes:
        found = self.load(key)
        if found is None:
            raise KeyError(key)
        return found

    def __setitem__(self, key: bytes | str, value: AnyBuffer) -> None:
        self.store(key, value, (0, 0))

    def __delitem__(self, key: bytes | str) -> None:
        if not self.delete(key):
            raise KeyError(key)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<nearfar.Cache, {'closed' if self.closed else 'open'}>"


@atexit.register
def _close_all() -> None:
    """Close all open caches at interpreter exit, so that their disks are closed cleanly."""
    for cache in list(_open):
        # A child of fork inherits its parent's caches and can't close them.
        with suppress(Exception):
            cache.close()
