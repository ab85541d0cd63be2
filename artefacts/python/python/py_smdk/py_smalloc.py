"""Objects in near ("normal") or far ("exmem") memory, with the interface of SMDK's module.

Differences from the original:

- Any near or far node counts, on a stock kernel. `NEARFAR_SMDK_NORMAL` and `NEARFAR_SMDK_EXMEM`
  override the node sets of the two types ("0", "cxl").
- Objects are stored as bytes: bytes-like ones unchanged, others pickled. The original copies the
  header of an object and leaves the objects it refers to in place, without counting references.
- So `data` of a list, dict or other mutable object is unpickled once and then kept beside its
  bytes, so that changes persist; `resize` and a change of type write them back.
- Memory that is too small grows, and is not accessed after `free`, which may be called twice.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
import warnings
from typing import Any

import nearfar
from nearfar import Buffer, Kind

SMDK_MEM_NORMAL = 0
SMDK_MEM_EXMEM = 1

_NAMES = {SMDK_MEM_NORMAL: "NORMAL", SMDK_MEM_EXMEM: "EXMEM"}
_USUAL = {SMDK_MEM_NORMAL: "near", SMDK_MEM_EXMEM: "far"}
# Immutable types, whose values need not be kept for changes.
_FIXED = (bytes, str, int, float, complex, bool)

# The kinds, by type, set of nodes and requested interleaving.
_kinds: dict[tuple[int, str, tuple[int, ...]], Kind] = {}
_calling = threading.local()


def _words(mem_type: int) -> str:
    """Return the node set expression of a type."""
    if mem_type not in _NAMES:
        raise ValueError(
            f"{mem_type!r} is no memory type; there are SMDK_MEM_NORMAL (0) and SMDK_MEM_EXMEM (1)"
        )
    return os.environ.get(f"NEARFAR_SMDK_{_NAMES[mem_type]}", _USUAL[mem_type])


def _nodes(mem_type: int) -> list[int]:
    """List the nodes of a type; the list may be empty."""
    words = _words(mem_type)
    try:
        return nearfar.node_set(words)
    except ValueError:
        return []


def _kind(mem_type: int) -> Kind:
    """Return the kind for the calling thread's objects of a type."""
    words = _words(mem_type)
    interleaved: tuple[int, ...] = getattr(_calling, "interleaved", ())
    key = (mem_type, words, interleaved)
    if key not in _kinds:
        # The type takes precedence: interleaving only covers its own nodes.
        turns = set(interleaved).intersection(_nodes(mem_type))
        listed = ",".join(map(str, sorted(turns)))
        made = Kind(f"interleave:{listed}" if turns else f"bind:{words}")
        # Keep the kind of another thread that was first.
        _kinds.setdefault(key, made)
    return _kinds[key]


def _kind_of_node(mem_type: int, node: str) -> Kind:
    """Return the kind of a node, or several, that must be of a type."""
    wanted = nearfar.node_set(str(node))
    if others := set(wanted).difference(_nodes(mem_type)):
        raise ValueError(
            f"node(s) {sorted(others)} are not of type SMDK_MEM_{_NAMES[mem_type]}, "
            f"which is {_words(mem_type)!r}: {_nodes(mem_type)}"
        )
    key = (mem_type, f"node {node}", ())
    if key not in _kinds:
        _kinds.setdefault(key, Kind(f"bind:{node}"))
    return _kinds[key]


class _Held:
    """An object stored as bytes in a buffer, which is None once freed."""

    mem_type: int
    size: int
    buf: Buffer | None

    def _start(self, mem_type: int, data: Any, size: int | None) -> None:
        if data is None and size is None:
            raise ValueError("At least one argument of 'size' or 'data' must be passed.")
        self.mem_type = mem_type
        self.buf = None
        # The length of the data in bytes, if there is any, and its type.
        self._length: int | None = None
        self._type: type = type(None)
        # The data itself, if it is mutable and was read.
        self._live: Any = None
        self._keep("init", data, size or 0, mem_type)

    def _where(self, mem_type: int) -> Kind:
        raise NotImplementedError

    def _keep(self, what: str, data: Any, size: int, mem_type: int) -> None:
        """Store data, if any, in memory of at least `size` bytes; an error changes nothing."""
        try:
            if size < 0:
                raise ValueError(f"size {size} is negative")
            content = memoryview(b"") if data is None else _content(data)
            size = max(size, 0 if data is None else sys.getsizeof(data))
            room = max(size, content.nbytes)
            kind, buf = self._where(mem_type), self.buf
            if buf is None or buf.kind is not kind or len(buf) != room:
                buf = Buffer(kind, room, 16)
        except (ValueError, MemoryError) as error:
            raise ValueError(f"{type(self).__name__} {what} fail: {error}") from error
        if data is not None:
            memoryview(buf)[: content.nbytes] = content
            self._length, self._type, self._live = content.nbytes, type(data), None
        self.buf, self.size, self.mem_type = buf, size, mem_type

    def _set(self, data: Any, mem_type: int) -> None:
        self._alive("set")
        # None means no data and is ignored.
        if data is not None:
            self._keep("set", data, self.size, mem_type)

    def _resize(self, size: int, mem_type: int) -> None:
        self._alive("resize")
        held = None if self._length is None else self.data
        self._keep("resize", held, size, mem_type)
        # The object's header, which `_keep` counts, is not stored.
        self.size = size

    def _alive(self, what: str) -> None:
        if self.buf is None:
            name = type(self).__name__
            raise ValueError(f"{name} {what} fail: it is freed; make another {name}")

    @property
    def data(self) -> Any:
        """The object, as from `get`."""
        if self.buf is None or self._length is None:
            raise AttributeError(f"{type(self).__name__} has no data; set() some")
        if self._live is not None:
            return self._live
        view = memoryview(self.buf)[: self._length]
        if self._type is memoryview:
            return view
        raw = self._type in (bytes, bytearray)
        value = self._type(view) if raw else pickle.loads(view)
        if self._type not in _FIXED:
            self._live = value
        return value

    @data.setter
    def data(self, data: Any) -> None:
        self._set(data, self.mem_type)

    @data.deleter
    def data(self) -> None:
        self._length = self._live = None

    def get(self) -> Any:
        """Return the object, with the type that was set; equal unless it was changed."""
        return self.data

    def free(self) -> None:
        """Free the memory; do nothing if it is freed."""
        self.buf = self._length = self._live = None


def _content(data: Any) -> memoryview:
    """Convert an object to bytes."""
    if type(data) in (bytes, bytearray, memoryview):
        view = memoryview(data)
        return view.cast("B") if view.c_contiguous else memoryview(view.tobytes())
    try:
        return memoryview(pickle.dumps(data, pickle.HIGHEST_PROTOCOL))
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        name = type(data).__name__
        raise ValueError(f"a {name} can't be kept as bytes ({error}); set bytes instead") from error


class mem_obj(_Held):
    """An object in memory of a type: large enough for `data`, and at least `size` bytes."""

    def __init__(self, mem_type: int, data: Any = None, size: int | None = None) -> None:
        """Raise ValueError without data and size, for a wrong type, or if there is no memory."""
        self._start(mem_type, data, size)

    def _where(self, mem_type: int) -> Kind:
        return _kind(mem_type)

    def set(self, data: Any, mem_type: int | None = None) -> None:
        """Replace the data, in memory of another type if one is given."""
        self._set(data, self.mem_type if mem_type is None else mem_type)

    def resize(self, mem_type: int, size: int) -> None:
        """Move to memory of a type and size, or larger if the data needs it."""
        self._resize(size, mem_type)


class mem_obj_node(_Held):
    """An object in memory of one node, which must be of the type."""

    def __init__(self, mem_type: int, node: str, data: Any = None, size: int | None = None) -> None:
        """Raise ValueError as `mem_obj` does, and for a node that is not of the type."""
        self.node = node
        self._start(mem_type, data, size)

    def _where(self, mem_type: int) -> Kind:
        return _kind_of_node(mem_type, self.node)

    def set(self, data: Any) -> None:
        """Replace the data."""
        self._set(data, self.mem_type)

    def resize(self, size: int) -> None:
        """Move to memory of a size, or larger if the data needs it."""
        self._resize(size, self.mem_type)


def _warn(words: str, callers: int = 1) -> None:
    warnings.warn(words, RuntimeWarning, stacklevel=2 + callers)


def _sum(mem_type: int, what: str) -> int:
    if mem_type not in _NAMES:
        _warn(f"{mem_type!r} is no memory type", callers=2)
        return 0
    nodes = _nodes(mem_type)
    return sum(getattr(node, what) for node in nearfar.nodes() if node.id in nodes)


def get_memsize_total(mem_type: int) -> int:
    """Return the total memory of all nodes of a type, in bytes."""
    return _sum(mem_type, "size")


def get_memsize_used(mem_type: int) -> int:
    """Return the bytes in use by this process's objects of a type."""
    if mem_type not in _NAMES:
        _warn(f"{mem_type!r} is no memory type")
    return sum(kind.stats().allocated for (of, _, _), kind in _kinds.items() if of == mem_type)


def get_memsize_available(mem_type: int) -> int:
    """Return the free memory of all nodes of a type, in bytes, for any process."""
    return _sum(mem_type, "free")


def _of_node(mem_type: int, node: int, what: str) -> int:
    if mem_type not in _NAMES or node not in _nodes(mem_type):
        _warn(f"node {node!r} is not of memory type {mem_type!r}", callers=2)
        return 0
    return sum(getattr(about, what) for about in nearfar.nodes() if about.id == node)


def get_memsize_node_total(mem_type: int, node: int) -> int:
    """Return the memory of a node in bytes; 0, with a warning, if it is not of the type."""
    return _of_node(mem_type, node, "size")


def get_memsize_node_available(mem_type: int, node: int) -> int:
    """Return the free memory of a node in bytes; 0, with a warning, if it is not of the type."""
    return _of_node(mem_type, node, "free")


def _amount(count: int, unit: str) -> str:
    power = {"k": 10, "m": 20, "g": 30}.get(str(unit).lower(), 0)
    return f"{count >> power}{str(unit).upper() if power else ''}"


def s_stats_print(unit: str) -> None:
    """Print total, used and available bytes of each type to stderr, in g, m, k or bytes."""
    for mem_type, name in _NAMES.items():
        counts = {
            "total": get_memsize_total(mem_type),
            "used": get_memsize_used(mem_type),
            "available": get_memsize_available(mem_type),
        }
        said = ", ".join(f"{what} {_amount(count, unit)}" for what, count in counts.items())
        print(f"SMDK_MEM_{name}: {said}", file=sys.stderr)


def s_stats_node_print(unit: str) -> None:
    """Print total and available bytes of each node of each type to stderr."""
    about = {node.id: node for node in nearfar.nodes()}
    for mem_type, name in _NAMES.items():
        for node in _nodes(mem_type):
            total, free = about[node].size, about[node].free
            said = f"total {_amount(total, unit)}, available {_amount(free, unit)}"
            print(f"SMDK_MEM_{name} node {node}: {said}", file=sys.stderr)


def enable_node_interleave(nodes: str) -> None:
    """Interleave later `mem_obj` of the calling thread over nodes.

    An object only uses those of the nodes that are of its type. An invalid set, or one of nodes
    that do not exist, causes a warning and changes nothing.
    """
    try:
        _calling.interleaved = tuple(nearfar.node_set(nodes))
    except ValueError as error:
        _warn(f"enable_node_interleave: {error}")


def disable_node_interleave() -> None:
    """Undo `enable_node_interleave` for the calling thread."""
    _calling.interleaved = ()
