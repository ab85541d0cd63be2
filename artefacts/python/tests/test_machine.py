"""Nodes, node sets, and statistics of all kinds."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import nearfar


def test_nodes_are_those_of_the_machine() -> None:
    nodes = nearfar.nodes()
    assert nodes, "a machine has a node"
    for node in nodes:
        folder = Path(f"/sys/devices/system/node/node{node.id}")
        total = re.search(r"MemTotal: *(\d+) kB", (folder / "meminfo").read_text())
        assert total is not None
        assert node.size == int(total[1]) * 1024
        assert node.free > 0
        assert node.cpus == len(list(folder.glob("cpu[0-9]*")))
        assert node.kind in {"dram", "cxl", "hbm", "pmem", "unknown"}
    assert [node.id for node in nodes] == sorted(node.id for node in nodes)


def test_a_node_can_not_be_changed() -> None:
    with pytest.raises(AttributeError):
        nearfar.nodes()[0].size = 1  # type: ignore[misc]


def test_a_set_of_nodes_has_its_numbers() -> None:
    everything = [node.id for node in nearfar.nodes()]
    assert nearfar.node_set("all") == everything
    assert nearfar.node_set(str(everything[0])) == everything[:1]
    assert set(nearfar.node_set("near")) <= set(everything)


@pytest.mark.parametrize("words", ["", "nowhere", "0,", "1000", "5000", "9-2", "0\0"])
def test_what_is_no_set_of_nodes_is_named(words: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        nearfar.node_set(words)
    assert len(str(caught.value)) > 10, "an error has words"


def test_a_set_that_is_not_words_is_refused() -> None:
    with pytest.raises(TypeError):
        nearfar.node_set(0)  # type: ignore[arg-type]


def test_figures_of_all_kinds_are_text_or_json(kind: nearfar.Kind) -> None:
    buffer = nearfar.Buffer(kind, 1 << 20)
    assert kind.words in nearfar.stats()
    report = json.loads(nearfar.stats(json=True))
    assert report["schema"] == "nearfar.alloc/1"
    (about,) = [about for about in report["kinds"] if about["place"] == kind.words]
    assert about["allocated"] >= len(buffer)
