"""Samsung SMDK's Python interface over nearfar: the same names, on stock kernels.

As in SMDK, `from py_smdk import py_smalloc` works, and this module has the names as well.
"""

from .py_smalloc import (
    SMDK_MEM_EXMEM,
    SMDK_MEM_NORMAL,
    disable_node_interleave,
    enable_node_interleave,
    get_memsize_available,
    get_memsize_node_available,
    get_memsize_node_total,
    get_memsize_total,
    get_memsize_used,
    mem_obj,
    mem_obj_node,
    s_stats_node_print,
    s_stats_print,
)

__all__ = [
    "SMDK_MEM_EXMEM",
    "SMDK_MEM_NORMAL",
    "disable_node_interleave",
    "enable_node_interleave",
    "get_memsize_available",
    "get_memsize_node_available",
    "get_memsize_node_total",
    "get_memsize_total",
    "get_memsize_used",
    "mem_obj",
    "mem_obj_node",
    "s_stats_node_print",
    "s_stats_print",
]
