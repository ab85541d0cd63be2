"""Near and far memory for Linux: buffers, arrays and tensors by memory kind, and caches.

A *kind* is a set of memory nodes with a policy, given as a specification string: "far", "cxl",
"0,2-3", "prefer:near", "interleave:all", "weighted:0=3,1=1", with options as in
"far;limit=4g;spill=near". Every function that takes a kind also takes a specification: equal
specifications share one kind.

    import nearfar

    weights = nearfar.zeros((4096, 4096), "f4", kind="far")
    with nearfar.numpy_in("near"):
        y = x @ weights
    nearfar.residency(weights)          # {1: 67108864}

`Replicated` keeps a copy of rarely written data on each node. `Cache` stores bytes by key over
several tiers of memory and a disk.

Nodes and kinds need only Python; arrays need numpy, `nearfar.torch` needs torch.
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
