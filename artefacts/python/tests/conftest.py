"""What tests share: kinds that this machine has, and figures that must come back to zero."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest

import nearfar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def kind() -> Iterator[nearfar.Kind]:
    """Give a kind bound to the first node, of which nothing may be left at the end."""
    node = nearfar.nodes()[0].id
    made = nearfar.Kind(f"bind:{node}")
    yield made
    gc.collect()
    assert made.stats().allocated == 0, "the test has left memory behind"
    made.close()


@pytest.fixture
def limited() -> Callable[[str], nearfar.Kind]:
    """Make kinds that have room for so much."""

    def make(limit: str) -> nearfar.Kind:
        return nearfar.Kind(f"bind:{nearfar.nodes()[0].id};limit={limit}")

    return make
