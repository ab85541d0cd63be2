"""numpy_in: numpy's allocations in a block come from a kind."""

from __future__ import annotations

import asyncio
import gc
import threading
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest

import nearfar
from nearfar import Kind, numpy_in

np = pytest.importorskip("numpy")

if TYPE_CHECKING:
    from collections.abc import Callable


def _name(array: Any = None) -> str:
    """Return the name of the handler of an array, or of the current one."""
    core = "numpy._core" if np.__version__ >= "2" else "numpy.core"
    name = import_module(f"{core}.multiarray").get_handler_name
    return str(name() if array is None else name(array))


def test_arrays_made_in_a_block_are_of_its_kind(kind: Kind) -> None:
    with numpy_in(kind) as given:
        assert given is kind
        made = [
            np.zeros(1000),
            np.empty((300, 300)),
            np.arange(10) + 1,
            np.array([1, 2, 3]),
            np.ones(1 << 20).reshape(1024, 1024).copy("F"),
        ]
    for array in made:
        assert kind.owns(array.ctypes.data)
        assert _name(array) == f"nearfar {kind.words}"
    assert not kind.owns(np.zeros(1000).ctypes.data)
    assert kind.stats().allocated >= 8 << 20
    del made, array
    assert kind.stats().allocated == 0


def test_the_handler_before_is_back_after_a_block(kind: Kind) -> None:
    before = _name()
    with numpy_in(kind):
        assert _name() != before
    assert _name() == before


def test_the_handler_before_is_back_after_an_error(kind: Kind) -> None:
    before = _name()
    with pytest.raises(KeyError), numpy_in(kind):  # noqa: PT012
        np.ones(10_000)
        raise KeyError
    assert _name() == before


def test_blocks_nest(kind: Kind) -> None:
    before = _name()
    with Kind("default") as other:
        with numpy_in(kind):
            first = np.ones(100)
            with numpy_in(other):
                second = np.ones(100)
                with numpy_in(kind):
                    third = np.ones(100)
            fourth = np.ones(100)
        assert _name() == before
        assert [kind.owns(made.ctypes.data) for made in (first, second, third, fourth)] == [
            True,
            False,
            True,
            True,
        ]
        assert other.owns(second.ctypes.data)
        del second
    assert other.closed


def test_arrays_outlive_their_block_and_keep_their_kind() -> None:
    with numpy_in(Kind("default;limit=1g")) as kind:
        array = np.ones((1000, 100))
    with pytest.raises(BufferError):
        kind.close()
    figures = kind.stats
    del kind
    gc.collect()
    array += 1
    assert array.sum() == 200_000
    assert figures().allocated >= 800_000
    # The handler of the block made it, and also reallocates it.
    array.resize((2000, 1000), refcheck=False)
    assert array.ravel()[:100_000].sum() == 200_000
    assert array.sum() == 200_000
    assert figures().allocated >= 16_000_000
    del array
    assert figures().allocated == 0


def test_a_kind_ends_with_its_last_array() -> None:
    with numpy_in(Kind("default;limit=2g")) as kind:
        array = np.ones(100_000)
    words = kind.words
    del kind
    assert words in nearfar.stats()
    del array
    gc.collect()
    assert words not in nearfar.stats()


def test_a_kind_is_in_use_while_its_block_runs(kind: Kind) -> None:
    with numpy_in(kind), pytest.raises(BufferError, match="numpy_in"):
        kind.close()


def test_a_view_keeps_what_it_views(kind: Kind) -> None:
    with numpy_in(kind):
        view = np.arange(100_000.0)[10:20]
    assert view.sum() == 145
    del view


def test_no_room_is_no_memory_and_numpy_goes_on(limited: Callable[[str], Kind]) -> None:
    kind = limited("16m")
    with numpy_in(kind):
        with pytest.raises(MemoryError):
            np.ones(20 << 20)
        with pytest.raises(MemoryError):
            np.zeros(1 << 60, "i1")
        assert np.ones(10).sum() == 10
        small = np.ones(1000)
        with pytest.raises(MemoryError):
            small.resize(20 << 20, refcheck=False)
        assert small.sum() == 1000
    assert kind.stats().failed >= 2


def test_a_spill_is_used_inside_a_block(limited: Callable[[str], Kind]) -> None:
    kind = limited("16m;spill=default")
    with numpy_in(kind):
        assert np.ones(4 << 20).sum() == 4 << 20
    assert kind.stats().spilled >= 1


def test_a_block_is_of_its_thread_alone(kind: Kind) -> None:
    seen = []
    with numpy_in(kind):
        thread = threading.Thread(target=lambda: seen.append(_name()))
        thread.start()
        thread.join()
        assert kind.words in _name()
    assert kind.words not in seen[0]


def test_a_block_is_of_its_task_alone(kind: Kind) -> None:
    async def placed(turn: asyncio.Event, other: asyncio.Event) -> bool:
        with numpy_in(kind):
            turn.set()
            await other.wait()
            return kind.owns(np.ones(1000).ctypes.data)

    async def plain(turn: asyncio.Event, other: asyncio.Event) -> bool:
        await turn.wait()
        made = np.ones(1000)
        other.set()
        return kind.owns(made.ctypes.data)

    async def both() -> list[bool]:
        turn, other = asyncio.Event(), asyncio.Event()
        return list(await asyncio.gather(placed(turn, other), plain(turn, other)))

    assert asyncio.run(both()) == [True, False]


def test_it_may_wrap_a_function(kind: Kind) -> None:
    @numpy_in(kind)
    def work() -> Any:
        return np.ones(1000)

    for _ in range(2):
        assert kind.owns(work().ctypes.data)


def test_words_will_do_and_wrong_ones_change_nothing() -> None:
    before = _name()
    with numpy_in("default"):
        assert Kind.shared("default").owns(np.ones(1000).ctypes.data)
    with pytest.raises(ValueError, match="nowhere"), numpy_in("nowhere"):
        pass
    closed = Kind("default")
    closed.close()
    with pytest.raises(ValueError, match="closed"), numpy_in(closed):
        pass
    assert _name() == before


def test_a_name_may_be_long() -> None:
    words = "bind:" + ",".join([str(nearfar.nodes()[0].id)] * 200)
    with numpy_in(words):
        assert _name(np.ones(3)).startswith("nearfar bind:")


def test_it_holds_under_many_threads(kind: Kind) -> None:
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for turn in range(200):
                with numpy_in(kind):
                    array = np.full(1 + turn * 97, number)
                    array = np.concatenate([array, array])
                assert (array == number).all()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_what_is_not_a_handler_is_refused() -> None:
    from nearfar import _nearfar
    from nearfar._arrays import _api

    with pytest.raises(ValueError, match="PyCapsule"):
        _nearfar.numpy_use(_api(), _api())
    with pytest.raises(TypeError):
        _nearfar.numpy_use(_api(), 3)  # type: ignore[arg-type]
