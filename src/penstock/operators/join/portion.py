"""Some rows of one side while they are looked up among those of the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from penstock.columnar.hashing import Words
from penstock.state.joins.run import Mask, Rows, Run, Times

Found: TypeAlias = tuple[Run, Rows, Rows]
"""A run, the first of its rows that each row may match, and how many follow with it."""

PAIRS_MAX = 1 << 15
"""Pairs that a portion of rows makes; more if a single row has more. And pairs of one batch of output."""


@dataclass(frozen=True, slots=True)
class Portion:
    """Some rows of one side, in the order in which they are looked up."""

    side: int
    rows: pa.RecordBatch
    times: Times
    hashes: Words
    is_without_key: Mask | None

    def first(self, rows: int) -> Portion:
        """The first of its rows."""
        missing = self.is_without_key
        return Portion(
            self.side,
            self.rows.slice(0, rows),
            self.times[:rows],
            self.hashes[:rows],
            None if missing is None else missing[:rows],
        )


def rows_within(asking: Rows, found: Sequence[Found], rows: int) -> int:
    """How many of the rows, from the first one on, make no more than `PAIRS_MAX` pairs; at least one."""
    if sum(int(counts.sum()) for _, _, counts in found) <= PAIRS_MAX:
        return rows
    by_row = np.zeros(rows, dtype=np.int64)
    for _, _, counts in found:
        by_row[asking] += counts
    return max(1, int(np.searchsorted(np.cumsum(by_row), PAIRS_MAX, side="right")))
