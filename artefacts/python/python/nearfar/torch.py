"""Tensors of torch's on the CPU, in memory of a kind.

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
    """Make a tensor of one dimension over a buffer, which it keeps."""
    torch_ = _torch()
    # A buffer without bytes is refused by torch, and there would be nothing to place.
    if count == 0:
        none: torch.Tensor = torch_.empty(0, dtype=dtype)
        return none
    buffer = Buffer(kind, count * dtype.itemsize, zeroed=False)
    made: torch.Tensor = torch_.frombuffer(buffer, dtype=dtype, count=count)
    return made


def empty(
    shape: int | Sequence[int], dtype: torch.dtype | None = None, *, kind: Kind | str
) -> torch.Tensor:
    """Make a CPU tensor in memory of a kind without setting its values.

    Without `dtype` it is torch's default. Raises MemoryError if the kind has no room.
    """
    whole = tuple(map(operator.index, (shape,) if isinstance(shape, int) else shape))
    if any(count < 0 for count in whole):
        raise ValueError(f"shape {whole} has a negative dimension")
    dtype = dtype or _torch().get_default_dtype()
    return _flat(math.prod(whole), dtype, kind).view(whole)


def to_kind(thing: Placeable, kind: Kind | str) -> Placeable:
    """Move a tensor or a module into a kind.

    A tensor is copied, with its strides if it lies without gaps. A parameter, and all parameters
    and buffers of a module, stay the objects they are and get other memory; what shares memory
    goes on sharing it. A tensor made before from a parameter (`detach()`, a view) keeps the memory
    that it had. Gradients stay where they are. Everything must be on the CPU (else ValueError).
    If the kind has no room (MemoryError) a module is left partly moved, and works.
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
    # What torch itself would give a copy that keeps its form.
    strides = torch_.empty_like(source, device="meta").stride()
    made = _flat(source.numel(), source.dtype, kind)
    made = made.as_strided(source.shape, strides) if source.numel() else made.view(source.shape)
    made.copy_(source)
    return made.requires_grad_(thing.requires_grad)


def _refuse(tensor: torch.Tensor) -> None:
    """Refuse what has no memory of the usual sort."""
    if tensor.device.type != "cpu":
        raise ValueError(f"a tensor on {tensor.device} can't be placed; move it to the CPU first")
    if tensor.layout != _torch().strided:
        raise ValueError(f"a {tensor.layout} tensor can't be placed; only dense ones can")


def _place(tensors: list[Any], kind: Kind) -> None:
    """Give tensors the same content in other memory, storage by storage."""
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
