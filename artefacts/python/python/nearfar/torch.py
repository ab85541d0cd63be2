"""torch tensors on the CPU, in memory of a kind.

torch itself is imported when a function here is called.
"""

from __future__ import annotations

import math
import operator
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from ._kinds import Buffer, Kind

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    import torch

    Placeable = TypeVar("Placeable", torch.Tensor, torch.nn.Module)

__all__ = ["empty", "to_kind"]


def _torch() -> ModuleType:
    try:
        return import_module("torch")
    except ImportError as error:
        raise ImportError("tensors need torch: pip install 'nearfar[torch]'") from error


def _flat(count: int, dtype: torch.dtype, kind: Kind | str) -> torch.Tensor:
    """Create a one-dimensional tensor over a buffer, which it keeps alive."""
    torch_ = _torch()
    # torch refuses an empty buffer, and an empty tensor needs no placement.
    if count == 0:
        none: torch.Tensor = torch_.empty(0, dtype=dtype)
        return none
    buffer = Buffer(kind, count * dtype.itemsize, zeroed=False)
    made: torch.Tensor = torch_.frombuffer(buffer, dtype=dtype, count=count)
    return made


def empty(
    shape: int | Sequence[int], dtype: torch.dtype | None = None, *, kind: Kind | str
) -> torch.Tensor:
    """Create a CPU tensor in memory of a kind without setting its values.

    `dtype` defaults to torch's default. Raises MemoryError if the kind has no room.
    """
    whole = tuple(map(operator.index, (shape,) if isinstance(shape, int) else shape))
    if any(count < 0 for count in whole):
        raise ValueError(f"shape {whole} has a negative dimension")
    dtype = dtype or _torch().get_default_dtype()
    return _flat(math.prod(whole), dtype, kind).view(whole)


def to_kind(thing: Placeable, kind: Kind | str) -> Placeable:
    """Move a tensor or a module into a kind.

    A tensor is copied, with its strides if it has no gaps. A parameter, and all parameters and
    buffers of a module, keep their identity and get new memory; tensors that share memory still
    share it. A tensor derived before from a parameter (`detach()`, a view) keeps the old memory.
    Gradients are not moved. All tensors must be on the CPU (else ValueError). If the kind has no
    room (MemoryError) a module is left partly moved, and works.
    """
    placed: Placeable = _moved(thing, Kind.shared(kind))
    return placed


def _moved(thing: Any, kind: Kind) -> Any:
    torch_ = _torch()
    if isinstance(thing, torch_.nn.Module):
        _place([*thing.parameters(), *thing.buffers()], kind)
        return thing
    if not isinstance(thing, torch_.Tensor):
        raise TypeError(f"{type(thing).__name__} is neither a tensor nor a module of torch's")
    if isinstance(thing, torch_.nn.Parameter):
        _place([thing], kind)
        return thing
    _refuse(thing)
    source = thing.detach()
    # The strides that torch itself gives a copy with preserved format.
    strides = torch_.empty_like(source, device="meta").stride()
    made = _flat(source.numel(), source.dtype, kind)
    made = made.as_strided(source.shape, strides) if source.numel() else made.view(source.shape)
    made.copy_(source)
    return made.requires_grad_(thing.requires_grad)


def _refuse(tensor: torch.Tensor) -> None:
    """Refuse tensors that are not dense or not on the CPU."""
    if tensor.device.type != "cpu":
        raise ValueError(f"a tensor on {tensor.device} can't be placed; move it to the CPU first")
    if tensor.layout != _torch().strided:
        raise ValueError(f"a {tensor.layout} tensor can't be placed; only dense ones can")


def _place(tensors: list[Any], kind: Kind) -> None:
    """Move tensors to new memory with the same content, storage by storage."""
    torch_ = _torch()
    for tensor in tensors:
        _refuse(tensor)
    placed: dict[int, Any] = {}
    with torch_.no_grad():
        for tensor in tensors:
            old = tensor.untyped_storage()
            if old.nbytes() == 0:
                continue
            if old.data_ptr() not in placed:
                new = _flat(old.nbytes(), torch_.uint8, kind)
                new.copy_(torch_.empty(0, dtype=torch_.uint8).set_(old))
                placed[old.data_ptr()] = new.untyped_storage()
            view = torch_.empty(0, dtype=tensor.dtype)
            storage = placed[old.data_ptr()]
            view.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())
            tensor.data = view
