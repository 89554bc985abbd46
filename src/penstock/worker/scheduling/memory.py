"""How this process treats the memory that numpy gives back.

A temporary array of more than 128 KiB, which is a batch of 16 Ki rows, is by default mapped afresh each time and
returned at once, and the page faults cost several times the arithmetic: hashing 16 Ki strings took 68 ns a row
with them and 14 ns without.
"""

from __future__ import annotations

import numpy as np

_RETAINED_BYTES = 31 << 20  # glibc learns from freed blocks of up to 32 MiB


def retain_freed_memory() -> None:
    """Let the C library keep freed blocks for the next batch. To be called once when a worker starts.

    glibc raises its threshold for mapping to the size of the largest mapped block that was ever freed, and its
    threshold for trimming to twice that; so one block is taken and freed. With another C library it does nothing.
    """
    block = np.empty(_RETAINED_BYTES, dtype=np.uint8)
    block[0] = 0
    del block
