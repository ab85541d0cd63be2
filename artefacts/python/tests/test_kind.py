"""Kinds: creation and destruction."""

from __future__ import annotations

import gc

import pytest

import nearfar
from nearfar import Buffer, Kind


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("", "``"),
        ("nowhere", "`nowhere`"),
        ("bind:1000", "1000"),
        ("near;limit=4q", "`4q`"),
        ("near;colour=red", "`colour=red`"),
        ("near;huge=maybe", "huge=maybe"),
        ("weighted:0=0", "`0=0`"),
        ("near;spill=nowhere", "`nowhere`"),
        ("near\0", "zero"),
    ],
)
def test_words_for_no_kind_are_named(words: str, named: str) -> None:
    with pytest.raises(ValueError, match=r"[a-z]") as caught:
        Kind(words)
    assert named in str(caught.value)


def test_a_set_without_nodes_here_is_an_error() -> None:
    absent = [words for words in ("hbm", "pmem") if not _has(words)]
    for words in absent:
        with pytest.raises(ValueError, match=words):
            Kind(words)


def _has(words: str) -> bool:
    try:
        return bool(nearfar.node_set(words))
    except ValueError:
        return False


def test_words_of_another_type_are_refused() -> None:
    with pytest.raises(TypeError):
        Kind(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="not a kind"):
        Buffer(3, 10)  # type: ignore[arg-type]


@pytest.mark.parametrize("words", ["default", "prefer:all", "interleave:all", "bind:all;huge=no"])
def test_all_sorts_of_kinds_give_memory(words: str) -> None:
    with Kind(words) as kind:
        buffer = Buffer(kind, 5 << 20)
        memoryview(buffer)[-1:] = b"x"
        assert kind.stats().allocated >= len(buffer)
        del buffer


def test_figures_follow_what_is_allocated(kind: Kind) -> None:
    assert kind.stats().allocated == 0
    buffer = Buffer(kind, 10 << 20)
    now = kind.stats()
    assert now.allocated == 10 << 20
    assert now.set_aside >= 10 << 20
    assert now.limit is None
    assert now.binds >= 1
    assert (now.spilled, now.failed) == (0, 0)
    del buffer
    assert kind.stats().allocated == 0


def test_a_kind_tells_where_its_memory_is(kind: Kind) -> None:
    node = nearfar.nodes()[0].id
    buffer = Buffer(kind, 8 << 20)
    assert sum(kind.residency().values()) < 1 << 20
    memoryview(buffer)[:] = bytes(8 << 20)
    assert set(kind.residency()) == {node}
    assert kind.residency()[node] >= 8 << 20


def test_closing_waits_for_nobody() -> None:
    kind = Kind("default")
    buffer = Buffer(kind, 100)
    view = memoryview(buffer)
    with pytest.raises(BufferError, match=r"1 user"):
        kind.close()
    assert not kind.closed
    del buffer
    with pytest.raises(BufferError):
        kind.close()
    view[:1] = b"x"
    del view
    kind.close()
    kind.close()
    assert kind.closed


def test_a_closed_kind_gives_nothing() -> None:
    kind = Kind("default")
    kind.close()
    for use in (lambda: Buffer(kind, 1), kind.stats, kind.residency):
        with pytest.raises(ValueError, match="closed"):
            use()
    assert repr(kind) == "Kind('default')"


def test_a_block_closes_its_kind() -> None:
    with Kind("default") as kind:
        assert isinstance(kind, Kind)
        assert not kind.closed
    assert kind.closed


def test_a_block_that_leaves_buffers_says_so() -> None:
    with pytest.raises(BufferError), Kind("default") as kind:
        buffer = Buffer(kind, 1)
    assert not kind.closed
    del buffer
    kind.close()


def test_an_error_in_a_block_is_not_hidden_by_buffers() -> None:
    with pytest.raises(KeyError), Kind("default") as kind:  # noqa: PT012
        buffer = Buffer(kind, 1)
        raise KeyError("mine")
    del buffer


def test_a_kind_lives_as_long_as_its_buffers() -> None:
    buffer = Buffer(Kind("default;limit=64m"), 1000)
    gc.collect()
    assert buffer.kind.stats().allocated >= 1000
    memoryview(buffer)[999:] = b"x"


def test_words_stand_for_one_kind() -> None:
    first, second = Buffer("default", 10), Buffer("default", 10)
    assert first.kind is second.kind is Kind.shared("default")
    assert Kind.shared(first.kind) is first.kind
    assert Kind("default") is not first.kind


def test_a_shared_kind_that_was_closed_is_made_anew() -> None:
    before = Kind.shared("default;limit=1g")
    before.close()
    assert not Kind.shared("default;limit=1g").closed


def test_there_is_an_end_to_kinds() -> None:
    kinds = []
    with pytest.raises(MemoryError, match="no more memory kinds"):  # noqa: PT012
        for _ in range(2000):
            kinds.append(Kind("default"))
    assert len(kinds) > 900
    del kinds[:]
    Kind("default").close()
