"""Pieces of a file, with good and bad records, and the search for the bad ones.

A piece that parses as a whole is one Arrow call. Only one that does not is halved until the bad records are alone. The
verdict on a record must not depend on its neighbours: after a restart the pieces are cut elsewhere (I1).
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.connectors.dead_letters import DeadLetter

BAD = (pa.ArrowException, ValueError)
"""What is raised for records that are not what the format or the schema says."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Some records of a file, in its order: good ones in `batch`, the others in `letters`."""

    name: Any
    """The place of its first record: a position names it."""
    batch: pa.RecordBatch
    bad: Sequence[int] = ()
    """The numbers of the bad records, counted over all records of the piece, from 0."""
    letters: Sequence[DeadLetter] = ()
    """One for each of `bad`."""
    line: int | None = None
    """The number of lines in front of it, in a file of lines."""

    @property
    def records(self) -> int:
        return int(self.batch.num_rows) + len(self.bad)

    @property
    def lines_before(self) -> dict[str, int]:
        """For its position."""
        return {} if self.line is None else {"line": self.line}

    def part(self, first: int, end: int) -> tuple[pa.RecordBatch, Sequence[DeadLetter]]:
        """Good and bad ones among the records from `first` to `end`."""
        if not self.bad:
            return self.batch.slice(first, end - first), ()
        bad_first, bad_end = bisect.bisect_left(self.bad, first), bisect.bisect_left(self.bad, end)
        good = self.batch.slice(first - bad_first, (end - bad_end) - (first - bad_first))
        return good, self.letters[bad_first:bad_end]


def sorted_out(
    count: int, parse: Callable[[int, int], pa.RecordBatch]
) -> tuple[list[pa.RecordBatch], list[tuple[int, Exception]]]:
    """The good ones of `count` records, and the numbers of the bad ones with the reasons.

    `parse(first, end)` makes a batch of some of them, or raises one of `BAD` if there is a bad one among these.
    """
    good: list[pa.RecordBatch] = []
    bad: list[tuple[int, Exception]] = []
    waiting = [(0, count)] if count else []
    while waiting:
        first, end = waiting.pop()
        try:
            good.append(parse(first, end))
        except BAD as error:
            if end - first == 1:
                bad.append((first, error))
            else:
                middle = (first + end) // 2
                waiting += [(middle, end), (first, middle)]
    return good, bad
