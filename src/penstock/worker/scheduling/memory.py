"""How this process treats memory: what numpy gives back, and cycles of Python objects.

A temporary array of more than 128 KiB, which is a batch of 16 Ki rows, is by default mapped afresh each time and
returned at once, and the page faults cost several times the arithmetic: hashing 16 Ki strings took 68 ns a row
with them and 14 ns without.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

import numpy as np

_RETAINED_BYTES = 31 << 20  # glibc learns from freed blocks of up to 32 MiB

_NEW_OBJECTS = 20_000
"""Objects that are made and not freed before the garbage collector looks at the young ones. Python's default is 700."""


@contextlib.contextmanager
def rare_collections() -> Iterator[None]:
    """While a worker runs, collect cycles more rarely than Python would.

    State and rows of users live on without being cycles: the collector would look through them again and again, between
    records, and find nothing. Modules and whatever else is there already is left out altogether.
    """
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS, *before[1:])
    try:
        yield
    finally:
        # Spark may give the process to somebody else's task.
        gc.set_threshold(*before)
        gc.unfreeze()


def retain_freed_memory() -> None:
    """Let the C library keep freed blocks for the next batch. To be called once when a worker starts.

    glibc raises its threshold for mapping to the size of the largest mapped block that was ever freed, and its
    threshold for trimming to twice that; so one block is taken and freed. With another C library it does nothing.
    """
    block = np.empty(_RETAINED_BYTES, dtype=np.uint8)
    block[0] = 0
    del block
