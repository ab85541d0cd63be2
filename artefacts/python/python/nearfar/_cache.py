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
    """An item as it was read."""

    value: bytes
    """Its value."""
    flags: int
    """The 32 bits it was stored with."""
    ttl: int | None
    """Seconds that are left to it; None: it has no end."""
    cas: int
    """Another number with each change of the item, for `Cache.cas`."""


def _seconds(ttl: int | None) -> int:
    """Give a time to live as the extension has it, where 0 has no end."""
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

    `memory` names the tiers, fastest first, each a kind of memory and a size, or a size alone.
    What is read least goes down a tier, and from the last one away: an item may be gone at any
    time. `movers` threads make room ahead of need (0: whoever stores makes it), `eviction` says
    what goes first: "s3-fifo", "sieve", "lru" or "w-tinylfu". `disk` is "PATH=SIZE"; what it
    holds is found again when it is opened the next time. All is said in docs/cache-library.md.

    Keys are bytes, or text, which becomes UTF-8: 1 to 250 bytes. Values are bytes or anything else
    with the buffer protocol, and bytes when they are read. Nothing is pickled: what unpickles what
    it finds in a cache runs what others have put there.

    Threads use it at once as they like. A child of fork may not: RuntimeError; it makes its own.
    A cache that is closed, or a key or value that can't be, is a ValueError; MemoryError says that
    no room could be made. A cache has no length, and is always true: `stats()` counts its items.
    """

    __slots__ = ()

    def __new__(  # noqa: PLR0913 # each is an option of its own
        cls,
        memory: str | Sequence[str] = "64m",
        *,
        eviction: Literal["s3-fifo", "sieve", "lru", "w-tinylfu"] = "s3-fifo",
        movers: int = 1,
        items: int | None = None,
        item_max: int | str | None = None,
        disk: str | None = None,
        disk_small: int | str | None = None,
        disk_writes: int | str | None = None,
        disk_reads: int | None = None,
        disk_after_crash: Literal["written", "nothing"] = "written",
    ) -> Self:
        """Open a cache. Sizes are bytes, or words as "64m"; `disk_writes` is for 24 hours."""
        tiers = [memory] if isinstance(memory, str) else memory
        settings = [("memory", tier) for tier in tiers]
        others = {
            "eviction": eviction,
            "movers": movers,
            "items": items,
            "item-max": item_max,
            "disk": disk,
            "disk-small": disk_small,
            "disk-writes": disk_writes,
            "disk-reads": disk_reads,
            "disk-after-crash": disk_after_crash,
        }
        settings += [(name, str(value)) for name, value in others.items() if value is not None]
        made = super().__new__(cls, settings)
        _open.add(made)
        return made

    def get(self, key: bytes | str, default: bytes | None = None) -> bytes | None:
        """Give a value, or something else if it is not there."""
        found = self.load(key)
        return default if found is None else found

    def item(self, key: bytes | str) -> Item | None:
        """Give a value with all that is known of it; None if it is not there."""
        found = self.load_item(key)
        if found is None:
            return None
        value, flags, ttl, cas = found
        return Item(value, flags, ttl or None, cas)

    def get_many(self, keys: Iterable[K]) -> dict[K, bytes]:
        """Give those of some values that are there, by the keys as they were given."""
        wanted = list(keys)
        found = zip(wanted, self.load_all(wanted), strict=True)
        return {key: value for key, value in found if value is not None}

    def set(
        self, key: bytes | str, value: AnyBuffer, *, ttl: int | None = None, flags: int = 0
    ) -> None:
        """Store a value, whatever was there, for `ttl` seconds and with 32 bits of your own."""
        self.store(key, value, (flags, _seconds(ttl)))

    def set_many(
        self,
        items: Mapping[K, AnyBuffer] | Iterable[tuple[K, AnyBuffer]],
        *,
        ttl: int | None = None,
        flags: int = 0,
    ) -> None:
        """Store values, given as a mapping or as pairs. An error leaves those before it stored."""
        pairs = items.items() if isinstance(items, Mapping) else items
        self.store_all(list(pairs), (flags, _seconds(ttl)))

    def add(
        self, key: bytes | str, value: AnyBuffer, *, ttl: int | None = None, flags: int = 0
    ) -> bool:
        """Store a value if there is none; tell whether it was stored."""
        return self.store_new(key, value, (flags, _seconds(ttl)))

    def replace(
        self, key: bytes | str, value: AnyBuffer, *, ttl: int | None = None, flags: int = 0
    ) -> bool:
        """Store a value if there is one; tell whether it was stored."""
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
        """Store a value if the item still has this number (`Item.cas`); tell whether it was."""
        return self.store_same(key, value, (flags, _seconds(ttl), cas))

    def touch(self, key: bytes | str, ttl: int | None = None) -> bool:
        """Give an item another time to live; tell whether it is there."""
        return self.set_ttl(key, _seconds(ttl))

    def stats(self) -> dict[str, int]:
        """Give all figures, by the names of memcached's `stats` and of tiers ("tier_0_items")."""
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
    """Close what is open as the interpreter ends, so that its disk is left in good order."""
    for cache in list(_open):
        # A child of fork has its parent's caches, which are not its own to close.
        with suppress(Exception):
            cache.close()
