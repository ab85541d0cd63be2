"""py_smdk: the behaviour of SMDK's module, without its defects."""

from __future__ import annotations

import gc
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

import nearfar
import py_smdk
from py_smdk import py_smalloc as smdk

if TYPE_CHECKING:
    from collections.abc import Iterator

NORMAL, EXMEM = smdk.SMDK_MEM_NORMAL, smdk.SMDK_MEM_EXMEM
OBJECTS = [
    1,
    3.45,
    True,
    1 + 2j,
    "hello",
    "",
    b"123456789",
    b"",
    bytearray(b"abc"),
    [1, 2, 3, 4],
    (1, [2], "3"),
    {"key": "value", "other": [1, 2]},
    {1, 2, 3},
    frozenset({1}),
    range(10),
    "x" * 1_000_000,
    list(range(10_000)),
]


@pytest.fixture(autouse=True)
def both_types(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Provide far memory on a machine with one node, by naming that node for both types."""
    monkeypatch.setenv("NEARFAR_SMDK_EXMEM", str(nearfar.nodes()[-1].id))
    yield
    smdk.disable_node_interleave()
    gc.collect()
    assert smdk.get_memsize_used(NORMAL) == smdk.get_memsize_used(EXMEM) == 0


def _node() -> str:
    return str(nearfar.nodes()[-1].id)


def test_the_names_are_there_three_times() -> None:
    import _py_smdk

    assert (NORMAL, EXMEM) == (0, 1)
    for name in py_smdk.__all__:
        assert getattr(py_smdk, name) is getattr(smdk, name) is getattr(_py_smdk, name)


@pytest.mark.parametrize("data", OBJECTS, ids=lambda data: type(data).__name__)
def test_what_is_set_is_what_comes_back(data: Any) -> None:
    for held in (
        smdk.mem_obj(EXMEM, data),
        smdk.mem_obj(NORMAL, data, 10),
        smdk.mem_obj_node(EXMEM, _node(), data),
    ):
        assert type(held.data) is type(data)
        assert held.get() == data
        assert held.size >= sys.getsizeof(data) or held.size == 10
        held.free()


@pytest.mark.parametrize("data", OBJECTS, ids=lambda data: type(data).__name__)
def test_data_outlives_resizing_and_moving(data: Any) -> None:
    held = smdk.mem_obj(EXMEM, size=64)
    held.set(data)
    held.resize(NORMAL, 3 << 20)
    assert held.buf is not None
    assert (held.mem_type, held.size, len(held.buf)) == (NORMAL, 3 << 20, 3 << 20)
    assert held.get() == data
    held.set(data, EXMEM)
    assert held.mem_type == EXMEM
    # A size below that of the data is raised to it.
    held.resize(EXMEM, 0)
    assert held.get() == data
    node = smdk.mem_obj_node(EXMEM, _node(), data)
    for size in (1 << 20, 0, 5 << 20):
        node.resize(size)
        assert node.get() == data


def test_data_lies_in_memory_of_the_type() -> None:
    held = smdk.mem_obj(EXMEM, b"far away" * 1_000_000)
    assert held.buf is not None
    assert set(held.buf.residency()) == {nearfar.nodes()[-1].id}
    assert bytes(memoryview(held.buf)[:8]) == b"far away"
    assert smdk.get_memsize_used(EXMEM) >= 8_000_000
    assert smdk.get_memsize_used(NORMAL) == 0


def test_changes_to_what_came_back_last() -> None:
    held = smdk.mem_obj(EXMEM, [1, 2, 3, 4])
    for place in range(4):
        held.data[place] = place
    assert held.data.pop() == 3
    held.data.sort(reverse=True)
    assert held.get() == [2, 1, 0]
    held.resize(NORMAL, 1 << 20)
    assert held.get() == [2, 1, 0]
    pairs = smdk.mem_obj(EXMEM, {"a": 1})
    pairs.data["a"] = 2
    assert pairs.data == {"a": 2}
    pairs.data = pairs.data | {"b": 3}
    assert pairs.get() == {"a": 2, "b": 3}


def test_the_object_that_was_set_is_left_alone() -> None:
    mine = [1, [2]]
    count = sys.getrefcount(mine)
    held = smdk.mem_obj(EXMEM, mine)
    held.data[1].append(3)
    assert mine == [1, [2]]
    assert sys.getrefcount(mine) == count
    held.free()
    assert mine == [1, [2]]


def test_a_view_is_of_the_memory_itself() -> None:
    held = smdk.mem_obj(EXMEM, memoryview(b"abcdef")[::2])
    view = held.data
    view[0] = ord("x")
    assert bytes(held.get()) == b"xce"
    held.free()
    assert bytes(view) == b"xce"


@pytest.mark.parametrize("mem_type", [3, -1, None, "far"])
def test_a_type_that_there_is_not_is_refused(mem_type: Any) -> None:
    with pytest.raises(ValueError, match="memory type"):
        smdk.mem_obj(mem_type, size=10)
    with pytest.raises(ValueError, match="memory type"):
        smdk.mem_obj_node(mem_type, _node(), size=10)
    held = smdk.mem_obj(NORMAL, "kept")
    with pytest.raises(ValueError, match="memory type"):
        held.resize(mem_type, 10)
    if mem_type is not None:
        with pytest.raises(ValueError, match="memory type"):
            held.set("other", mem_type)
    assert (held.get(), held.mem_type) == ("kept", NORMAL)


def test_neither_data_nor_size_is_refused() -> None:
    with pytest.raises(ValueError, match="At least one"):
        smdk.mem_obj(NORMAL)
    with pytest.raises(ValueError, match="At least one"):
        smdk.mem_obj_node(NORMAL, _node())


def test_sizes_that_are_none_are_refused_and_leave_all_as_it_was() -> None:
    for size in (-1, 1 << 62):
        for data in (None, "data"):
            with pytest.raises(ValueError, match="init fail"):
                smdk.mem_obj(NORMAL, data, size)
        held = smdk.mem_obj(NORMAL, "kept")
        with pytest.raises(ValueError, match="resize fail"):
            held.resize(EXMEM, size)
        assert (held.get(), held.mem_type) == ("kept", NORMAL)


def test_what_can_not_be_bytes_is_refused_and_leaves_all_as_it_was() -> None:
    held = smdk.mem_obj(NORMAL, "kept")
    with pytest.raises(ValueError, match=r"set fail.*can't be kept as bytes"):
        held.set(lambda: 0)
    assert held.get() == "kept"
    with pytest.raises(ValueError, match="init fail"):
        smdk.mem_obj(NORMAL, (part for part in "abc"))


def test_no_data_is_no_attribute() -> None:
    held = smdk.mem_obj(NORMAL, size=10)
    assert not hasattr(held, "data")
    with pytest.raises(AttributeError, match="no data"):
        held.get()
    held.set(None)
    assert not hasattr(held, "data")
    held.set(5)
    del held.data
    assert not hasattr(held, "data")


def test_freed_is_freed_and_may_be_freed_again() -> None:
    for held in (smdk.mem_obj(NORMAL, "data"), smdk.mem_obj_node(EXMEM, _node(), "data")):
        held.free()
        held.free()
        assert not hasattr(held, "data")
        with pytest.raises(ValueError, match="freed"):
            held.set("more")
    with pytest.raises(ValueError, match="freed"):
        held.resize(10)  # type: ignore[call-arg]


def test_many_small_ones_are_counted_and_given_back() -> None:
    held = [smdk.mem_obj(EXMEM, size=4096) for _ in range(5000)]
    assert smdk.get_memsize_used(EXMEM) >= 5000 * 4096
    for each in held:
        each.free()
    assert smdk.get_memsize_used(EXMEM) == 0


def test_a_node_must_be_there_and_of_the_type(monkeypatch: pytest.MonkeyPatch) -> None:
    for node in ("99", "", "x", "5000"):
        with pytest.raises(ValueError, match="init fail"):
            smdk.mem_obj_node(EXMEM, node, size=10)
    monkeypatch.setenv("NEARFAR_SMDK_EXMEM", "pmem")
    with pytest.raises(ValueError, match=r"not of type SMDK_MEM_EXMEM.*pmem"):
        smdk.mem_obj_node(EXMEM, _node(), size=10)
    with pytest.raises(ValueError, match="init fail"):
        smdk.mem_obj(EXMEM, size=10)
    assert smdk.get_memsize_total(EXMEM) == smdk.get_memsize_available(EXMEM) == 0


def test_sizes_are_those_of_the_nodes() -> None:
    last = nearfar.nodes()[-1]
    assert smdk.get_memsize_total(EXMEM) == last.size
    assert smdk.get_memsize_available(EXMEM) > 0
    assert smdk.get_memsize_node_total(EXMEM, last.id) == last.size
    assert smdk.get_memsize_node_available(EXMEM, last.id) > 0
    for ask in (smdk.get_memsize_node_total, smdk.get_memsize_node_available):
        with pytest.warns(RuntimeWarning, match="node 99"):
            assert ask(EXMEM, 99) == 0
    for ask_type in (smdk.get_memsize_total, smdk.get_memsize_used, smdk.get_memsize_available):
        with pytest.warns(RuntimeWarning, match="memory type"):
            assert ask_type(5) == 0


@pytest.mark.parametrize("unit", ["g", "G", "m", "K", "b", "", 0])
def test_figures_go_to_stderr(capsys: pytest.CaptureFixture[str], unit: Any) -> None:
    held = smdk.mem_obj(EXMEM, size=3 << 20)
    smdk.s_stats_print(unit)
    said = capsys.readouterr()
    assert said.out == ""
    lines = said.err.splitlines()
    assert [line.split(":")[0] for line in lines] == ["SMDK_MEM_NORMAL", "SMDK_MEM_EXMEM"]
    used = {"g": "0G", "G": "0G", "m": "3M", "K": "3072K"}.get(unit, str(3 << 20))
    assert f"used {used}," in lines[1]
    smdk.s_stats_node_print(unit)
    assert f"SMDK_MEM_EXMEM node {_node()}:" in capsys.readouterr().err
    held.free()


def test_interleaving_is_not_over_nodes_of_another_type(monkeypatch: pytest.MonkeyPatch) -> None:
    smdk.enable_node_interleave("all")
    # No machine has all of them; missing nodes leave nothing to interleave over.
    monkeypatch.setenv("NEARFAR_SMDK_EXMEM", "pmem")
    with pytest.raises(ValueError, match="pmem"):
        smdk.mem_obj(EXMEM, "data")


def test_interleaving_is_of_the_thread_and_stays_in_the_type() -> None:
    smdk.enable_node_interleave("all")
    held = smdk.mem_obj(EXMEM, "data")
    assert held.buf is not None
    assert held.buf.kind.words == f"interleave:{_node()}"
    for wrong in ("99", "x", ""):
        with pytest.warns(RuntimeWarning, match="enable_node_interleave"):
            smdk.enable_node_interleave(wrong)
    assert smdk.mem_obj(EXMEM, "data").buf.kind is held.buf.kind  # type: ignore[union-attr]
    smdk.disable_node_interleave()
    assert smdk.mem_obj(EXMEM, "data").buf.kind.words == f"bind:{_node()}"  # type: ignore[union-attr]
    held.set("other")
    assert held.get() == "other"


def test_far_memory_is_what_is_far(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NEARFAR_SMDK_EXMEM")
    program = "from py_smdk import py_smalloc as s; print(s.get_memsize_total(s.SMDK_MEM_EXMEM))"
    said = subprocess.check_output([sys.executable, "-c", program], text=True)
    try:
        far = nearfar.node_set("far")
    except ValueError:
        far = []
    assert int(said) == sum(node.size for node in nearfar.nodes() if node.id in far)
