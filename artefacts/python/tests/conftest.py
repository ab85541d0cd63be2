"""Fixtures: kinds that exist on any machine, and statistics that must return to zero."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest

import nearfar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def kind() -> Iterator[nearfar.Kind]:
    """Return a kind bound to the first node, all of whose memory must be freed at the end."""
    node = nearfar.nodes()[0].id
    made = nearfar.Kind(f"bind:{node}")
    yield made
    gc.collect()
    assert made.stats().allocated == 0, "the test has left memory behind"
    made.close()


@pytest.fixture
def limited() -> Callable[[str], nearfar.Kind]:
    """Create kinds with a limit."""

    def make(limit: str) -> nearfar.Kind:
        return nearfar.Kind(f"bind:{nearfar.nodes()[0].id};limit={limit}")

    return make
