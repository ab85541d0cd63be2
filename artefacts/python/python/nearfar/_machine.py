"""The machine's nodes, and the residency of memory by node."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _nearfar

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


@dataclass(frozen=True, slots=True)
class Node:
    """A node with memory."""

    id: int
    """Its number."""
    kind: str
    """Its kind of memory: "dram", "cxl", "hbm", "pmem" or "unknown"."""
    tier: int | None
    """Its tier; 0 is the fastest. None: unknown."""
    cpus: int
    """Number of its CPUs."""
    size: int
    """Its memory in bytes."""
    free: int
    """Its free memory in bytes."""


def nodes() -> list[Node]:
    """List the machine's nodes with memory, by number."""
    return [Node(*about) for about in _nearfar.nodes()]


def node_set(words: str) -> list[int]:
    """List the nodes of a set: "near", "far", "cxl", "tier:1", "0,2-3", "all".

    Near and far are relative to the CPUs that the calling thread may use. Raises ValueError if
    the expression is invalid or names nodes that do not exist.
    """
    return _nearfar.node_set(words)


def stats(json: bool = False) -> str:
    """Report statistics and residency of all kinds: a line each, or JSON ("nearfar.alloc/1")."""
    return _nearfar.stats(json)


class _Layout(NamedTuple):
    """The layout of memory: address, item size in bytes, shape, and strides in bytes."""

    address: int
    itemsize: int
    shape: Sequence[int]
    strides: Sequence[int]

    def extent(self) -> tuple[int, int]:
        """Return the first byte's address and the number of bytes up to the last."""
        if 0 in self.shape:
            return self.address, 0
        pairs = zip(self.shape, self.strides, strict=True)
        steps = [(count - 1) * stride for count, stride in pairs]
        first = self.address + sum(step for step in steps if step < 0)
        last = self.address + sum(step for step in steps if step > 0)
        return first, last + self.itemsize - first


def _of_array(interface: dict[str, Any], itemsize: int) -> _Layout:
    shape, strides = interface["shape"], interface["strides"]
    if strides is None:
        strides, step = [], itemsize
        for count in reversed(shape):
            strides.insert(0, step)
            step *= count
    return _Layout(interface["data"][0], itemsize, shape, strides)


def _of_tensor(tensor: Any) -> _Layout:
    if tensor.device.type != "cpu":
        raise ValueError(f"a tensor on {tensor.device} is on no memory node; ask after .cpu()")
    item = tensor.element_size()
    strides = [step * item for step in tensor.stride()]
    return _Layout(tensor.data_ptr(), item, tensor.shape, strides)


def _of_buffer(thing: Any) -> _Layout:
    try:
        view = memoryview(thing)
    except TypeError:
        raise TypeError(
            f"{type(thing).__name__} is not memory; give an object with the buffer protocol, "
            "a numpy array, a torch tensor or a torch module"
        ) from None
    # A zero-dimensional view has no shape.
    return _Layout(*_nearfar.layout(view if view.ndim else view.cast("B")))


def _layouts(thing: Any) -> Iterable[_Layout]:
    if hasattr(thing, "parameters") and hasattr(thing, "buffers"):
        tensors = {tensor.data_ptr(): tensor for tensor in (*thing.parameters(), *thing.buffers())}
        return [_of_tensor(tensor) for tensor in tensors.values()]
    if hasattr(thing, "data_ptr") and hasattr(thing, "stride"):
        return [_of_tensor(thing)]
    if hasattr(thing, "__array_interface__"):
        return [_of_array(thing.__array_interface__, thing.itemsize)]
    return [_of_buffer(thing)]


def residency(thing: Any) -> dict[int, int]:
    """Return the resident bytes of some memory, by node.

    `thing` is an object with the buffer protocol, a numpy array, a torch tensor on the CPU, or a
    torch module (its parameters and buffers together). Pages that were never touched are on no
    node. A view with gaps counts from its first byte to its last. Takes some 0.1 ms per MiB.
    """
    sum_: Counter[int] = Counter()
    for layout in _layouts(thing):
        address, length = layout.extent()
        if length:
            sum_.update(_nearfar.residency(address, length))
    return dict(sorted(sum_.items()))
