"""Near and far memory for Linux: buffers, arrays and tensors by memory kind, and caches.

A *kind* is a set of memory nodes with a policy, written in words: "far", "cxl", "0,2-3",
"prefer:near", "interleave:all", "weighted:0=3,1=1", with options as in
"far;limit=4g;spill=near". Wherever a kind is asked for, its words will do: they stand for one
kind that all who use the same words share.

    import nearfar

    weights = nearfar.zeros((4096, 4096), "f4", kind="far")
    with nearfar.numpy_in("near"):
        y = x @ weights
    nearfar.residency(weights)          # {1: 67108864}

What is read far more often than written may have a copy on each node: `Replicated`. Bytes by key
over several tiers of memory and a disk: `Cache`.

Nodes and kinds need nothing but Python; arrays need numpy, `nearfar.torch` needs torch.
"""

from . import torch
from ._arrays import array, asarray, empty, full, numpy_in, ones, zeros
from ._cache import Cache, Item
from ._kinds import Buffer, Kind, Stats
from ._machine import Node, node_set, nodes, residency, stats
from ._replicated import Replicated, ReplicatedStats

__all__ = [
    "Buffer",
    "Cache",
    "Item",
    "Kind",
    "Node",
    "Replicated",
    "ReplicatedStats",
    "Stats",
    "array",
    "asarray",
    "empty",
    "full",
    "node_set",
    "nodes",
    "numpy_in",
    "ones",
    "residency",
    "stats",
    "torch",
    "zeros",
]
