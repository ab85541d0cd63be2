"""numpy arrays in memory of a kind: created one by one, or all that a block creates."""

from __future__ import annotations

import math
import sys
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from . import _nearfar
from ._kinds import Buffer, Kind

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import ModuleType
    from typing import SupportsIndex

    from numpy.typing import ArrayLike, DTypeLike, NDArray

    Shape = SupportsIndex | Sequence[SupportsIndex]

Order = Literal["C", "F"]


def _numpy() -> ModuleType:
    try:
        return import_module("numpy")
    except ImportError as error:
        raise ImportError("arrays need numpy: pip install 'nearfar[numpy]'") from error


def _make(
    shape: Shape, dtype: DTypeLike | None, order: Order, kind: Kind | str, zeroed: bool
) -> NDArray[Any]:
    np = _numpy()
    # numpy itself reports an invalid dtype or shape, with arrays that take no memory.
    sample = np.empty(0, dtype)
    whole = np.empty(shape, np.dtype([]), order).shape + sample.shape[1:]
    if sample.dtype.hasobject:
        raise ValueError(
            f"{sample.dtype!r} has references to Python objects, which do not lie in the array; "
            "give a dtype of plain values"
        )
    size = math.prod(whole) * sample.dtype.itemsize
    if size > sys.maxsize:
        raise ValueError(f"array is too big; {size} bytes are more than there can be addresses")
    buffer = Buffer(kind, size, zeroed=zeroed)
    made: NDArray[Any] = np.ndarray(whole, sample.dtype, buffer, order=order)
    return made


def empty(
    shape: Shape, dtype: DTypeLike | None = float, order: Order = "C", *, kind: Kind | str
) -> NDArray[Any]:
    """Create an array in memory of a kind without setting its values.

    As numpy.empty, errors included. The array's `base` is its `Buffer`, which it keeps alive.
    Refuses dtypes with objects. Raises MemoryError if the kind has no room.
    """
    return _make(shape, dtype, order, kind, zeroed=False)


def zeros(
    shape: Shape, dtype: DTypeLike | None = float, order: Order = "C", *, kind: Kind | str
) -> NDArray[Any]:
    """Create a zeroed array in memory of a kind; pages of a large one are allocated on access."""
    return _make(shape, dtype, order, kind, zeroed=True)


def ones(
    shape: Shape, dtype: DTypeLike | None = float, order: Order = "C", *, kind: Kind | str
) -> NDArray[Any]:
    """Create an array of ones in memory of a kind."""
    made = _make(shape, dtype, order, kind, zeroed=False)
    _numpy().copyto(made, 1, casting="unsafe")
    return made


def full(
    shape: Shape,
    fill_value: ArrayLike,
    dtype: DTypeLike | None = None,
    order: Order = "C",
    *,
    kind: Kind | str,
) -> NDArray[Any]:
    """Create an array in memory of a kind, filled with a value that is broadcast to its shape."""
    np = _numpy()
    values = np.asarray(fill_value)
    made = _make(shape, values.dtype if dtype is None else dtype, order, kind, zeroed=False)
    np.copyto(made, values, casting="unsafe")
    return made


def array(
    values: ArrayLike,
    dtype: DTypeLike | None = None,
    order: Order | None = None,
    *,
    kind: Kind | str,
) -> NDArray[Any]:
    """Copy values into a new array in memory of a kind; without `order`, in their present one."""
    np = _numpy()
    source = np.asarray(values, dtype)
    if order is None:
        order = "F" if source.flags.fnc else "C"
    made = _make(source.shape, source.dtype, order, kind, zeroed=False)
    np.copyto(made, source)
    return made


def asarray(
    values: ArrayLike,
    dtype: DTypeLike | None = None,
    order: Order | None = None,
    *,
    kind: Kind | str,
) -> NDArray[Any]:
    """Return values as an array in memory of a kind, copying them unless they are one."""
    np = _numpy()
    kind = Kind.shared(kind)
    if isinstance(values, np.ndarray) and _is_in(values, kind):
        same: NDArray[Any] = np.asarray(values, dtype, order)
        if np.may_share_memory(same, values):
            return same
    return array(values, dtype, order, kind=kind)


def _is_in(values: NDArray[Any], kind: Kind) -> bool:
    base: Any = values
    while base is not None:
        if isinstance(base, Buffer):
            # True even for spilled memory: a copy would be spilled again.
            return base.kind is kind
        base = getattr(base, "base", None)
    return kind.owns(values.__array_interface__["data"][0])


def _api() -> Any:
    """Find numpy's table of C functions."""
    _numpy()
    try:
        core = import_module("numpy._core._multiarray_umath")
    except ImportError:
        # The module's name before numpy 2.
        core = import_module("numpy.core._multiarray_umath")
    return core._ARRAY_API


@contextmanager
def numpy_in(kind: Kind | str) -> Iterator[Kind]:
    """Make numpy allocate the data of arrays made in the block, also temporaries, from a kind.

        with nearfar.numpy_in("near"):
            y = x @ weights

    Only in the thread, or the asyncio task, that runs the block; blocks may be nested. Arrays made
    inside may outlive it: each is freed by the handler that made it, and keeps the kind alive. If
    the kind has no room numpy raises MemoryError.
    """
    kind = Kind.shared(kind)
    api = _api()
    handler = _nearfar.numpy_handler(kind, f"nearfar {kind.words}")
    before = _nearfar.numpy_use(api, handler)
    # From here on numpy and each array hold references.
    del handler
    try:
        yield kind
    finally:
        _nearfar.numpy_use(api, before)
