"""Arrays created in a kind, one by one."""

from __future__ import annotations

import gc
import pickle
from typing import TYPE_CHECKING, Any

import pytest

import nearfar
from nearfar import Buffer, Kind

np = pytest.importorskip("numpy")

if TYPE_CHECKING:
    from collections.abc import Callable

DTYPES = [
    "f4",
    "f8",
    "c16",
    "?",
    "i1",
    "u8",
    ">i4",
    "M8[ns]",
    "S7",
    "S",
    "U5",
    "(2,)i4",
    [("a", "i4"), ("b", "f8", (3,))],
    None,
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), 0, 5, (3, 4), [2, 0, 3], (2, 3, 4)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_they_are_as_numpys_own(kind: Kind, dtype: Any, shape: Any, order: Any) -> None:
    ours, theirs = nearfar.zeros(shape, dtype, order, kind=kind), np.zeros(shape, dtype, order)
    assert ours.dtype == theirs.dtype
    assert ours.shape == theirs.shape
    if ours.size:
        assert ours.strides == theirs.strides
    assert ours.flags.writeable
    assert ours.flags.aligned
    assert np.array_equal(ours, theirs)
    assert nearfar.empty(shape, dtype, order, kind=kind).strides == ours.strides


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        (-1, "f8"),
        ((2, -1), "f8"),
        (1.5, "f8"),
        ("ab", "f8"),
        (None, "f8"),
        (2**70, "f8"),
        ((1,) * 100, "f8"),
        (3, "nonsense"),
        (3, "f3"),
        (3, [("a",)]),
    ],
)
@pytest.mark.parametrize("make", [nearfar.empty, nearfar.zeros, nearfar.ones])
def test_what_numpy_refuses_is_refused_in_its_words(
    make: Callable[..., Any], shape: Any, dtype: Any
) -> None:
    with pytest.raises(Exception, match=r".") as theirs:
        np.empty(shape, dtype)
    with pytest.raises(theirs.type) as ours:
        make(shape, dtype, kind="default")
    assert str(ours.value) == str(theirs.value)


def test_an_order_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match="order"):
        nearfar.empty(3, "f8", "X", kind="default")  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [object, [("a", "i4"), ("b", "O")]])
def test_objects_do_not_lie_in_arrays(dtype: Any) -> None:
    with pytest.raises(ValueError, match="Python objects"):
        nearfar.empty(3, dtype, kind="default")


def test_too_large_is_an_error_and_never_a_crash(kind: Kind) -> None:
    with pytest.raises(MemoryError):
        nearfar.empty(2**55, kind=kind)
    for shape in (2**60, (2**40, 2**40)):
        with pytest.raises(ValueError, match="array is too big"):
            nearfar.empty(shape, kind=kind)


def test_a_limit_is_no_memory(limited: Callable[[str], Kind]) -> None:
    with pytest.raises(MemoryError, match="limit=16m"):
        nearfar.zeros(3 << 20, "f8", kind=limited("16m"))


def test_a_kind_must_be_given() -> None:
    with pytest.raises(TypeError, match="kind"):
        nearfar.empty(3)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="nowhere"):
        nearfar.empty(3, kind="nowhere")


def test_the_array_keeps_its_buffer_and_a_view_keeps_the_array(kind: Kind) -> None:
    array = nearfar.ones((1000, 1000), kind=kind)
    assert isinstance(array.base, Buffer)
    assert array.base.kind is kind
    assert array.ctypes.data == array.base.address
    view = array[10:20].T
    del array
    gc.collect()
    assert kind.stats().allocated >= 8_000_000
    assert view.sum() == 10_000
    del view
    assert kind.stats().allocated == 0


def test_values_are_as_numpys_own(kind: Kind) -> None:
    assert np.array_equal(nearfar.ones((2, 3), kind=kind), np.ones((2, 3)))
    assert nearfar.ones(3, None, kind=kind).dtype == np.ones(3, None).dtype
    for fill, dtype in ((7, None), (2.5, "i4"), ([1, 2, 3], None), ("ab", "U5")):
        ours = nearfar.full((4, 3), fill, dtype, kind=kind)
        theirs = np.full((4, 3), fill, dtype)
        assert ours.dtype == theirs.dtype
        assert np.array_equal(ours, theirs)
    with pytest.raises(ValueError, match="broadcast"):
        nearfar.full((4, 3), [1, 2], kind=kind)


@pytest.mark.parametrize(
    "values",
    [
        3,
        [],
        [[1, 2], [3, 4]],
        ["a", "bcd"],
        np.arange(12).reshape(3, 4),
        np.asfortranarray(np.arange(12).reshape(3, 4)),
        np.arange(24)[::-2],
        np.array(["2026-01-01"], "M8[D]"),
        np.arange(6, dtype=">f8"),
    ],
    ids=str,
)
def test_copies_are_as_numpys_own(kind: Kind, values: Any) -> None:
    ours, theirs = nearfar.array(values, kind=kind), np.array(values)
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
    assert ours.flags.c_contiguous == theirs.flags.c_contiguous
    assert ours.flags.f_contiguous == theirs.flags.f_contiguous
    assert np.array_equal(ours, theirs)
    assert isinstance(ours.base, Buffer)
    assert nearfar.array(values, order="F", kind=kind).flags.f_contiguous


def test_copies_convert(kind: Kind) -> None:
    assert nearfar.array([1, 2], "S", kind=kind).dtype == np.array([1, 2], "S").dtype
    assert nearfar.array([1.5], "i4", kind=kind).tolist() == [1]
    with pytest.raises(ValueError, match="could not convert"):
        nearfar.array(["x"], float, kind=kind)


def test_what_is_there_already_is_not_copied(kind: Kind) -> None:
    array = nearfar.zeros((10, 10), kind=kind)
    assert nearfar.asarray(array, kind=kind) is array
    assert nearfar.asarray(array.T, kind=kind).base is not None
    assert np.shares_memory(nearfar.asarray(array[2:], kind=kind), array)
    assert not np.shares_memory(nearfar.asarray(array, "f4", kind=kind), array)
    assert not np.shares_memory(nearfar.asarray(array, kind="default"), array)
    assert not np.shares_memory(nearfar.asarray(np.zeros(3), kind=kind), array)
    assert nearfar.asarray([1, 2], kind=kind).tolist() == [1, 2]
    with nearfar.numpy_in(kind):
        hooked = np.zeros(10_000)
    assert nearfar.asarray(hooked, kind=kind) is hooked


def test_a_pickled_array_is_its_values(kind: Kind) -> None:
    array = nearfar.array(np.arange(10_000.0), kind=kind)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        copy = pickle.loads(pickle.dumps(array, protocol))
        assert np.array_equal(copy, array)
        assert copy.flags.writeable
    parts: list[pickle.PickleBuffer] = []
    whole = pickle.dumps(array, 5, buffer_callback=parts.append)
    assert len(whole) < 1000
    assert np.shares_memory(pickle.loads(whole, buffers=parts), array)
    parts.clear()


def test_residency_of_arrays(kind: Kind) -> None:
    node = nearfar.nodes()[0].id
    array = nearfar.zeros((1 << 20, 8), kind=kind)
    assert nearfar.residency(array) == {}
    array[: 1 << 17] = 1
    assert nearfar.residency(array[: 1 << 17]) == {node: 8 << 20}
    full = nearfar.ones((100, 1000), kind=kind)
    assert nearfar.residency(full) == {node: 800_000}
    assert nearfar.residency(full[::-1]) == {node: 800_000}
    assert nearfar.residency(full.T) == {node: 800_000}
    assert nearfar.residency(full[:, 0]) == {node: 99 * 8000 + 8}
    assert nearfar.residency(full[0, 0:0]) == {}
    assert nearfar.residency(np.ones(())) == {node: 8}
    assert nearfar.residency(np.zeros(3, "M8[s]")) == {node: 24}


def test_arrays_work_with_what_numpy_does(kind: Kind) -> None:
    left, right = nearfar.ones((50, 60), kind=kind), nearfar.ones((60, 70), "f8", "F", kind=kind)
    assert np.array_equal(left @ right, np.full((50, 70), 60.0))
    np.add(left, 1, out=left)
    assert left.sum() == 6000
    with pytest.raises(ValueError, match="own"):
        left.resize((1, 1))
