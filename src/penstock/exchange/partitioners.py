"""Partitioners: which receiver of an edge gets which records.

A hash partitioner splits batches by row; all others hand over whole batches. Rules: the order of records that go
to one receiver is kept (I2); every row of a batch goes to exactly one receiver, except in a broadcast (I1); a
batch without rows goes nowhere. A partitioner belongs to one sending subtask and may count what it has sent.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias, assert_never

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.columnar.direct_table import DirectTable
from penstock.columnar.gather import take_rows
from penstock.columnar.hashing import key_groups, word_values
from penstock.errors import PipelineError
from penstock.graph.physical import reachable
from penstock.ids import KeyGroup
from penstock.protocol.key_groups import owner_of
from penstock.protocol.manifest import Partitioning

Split: TypeAlias = list[tuple[int, pa.RecordBatch]]
"""Receiver and its batch, in the order of the receivers."""

_SCANNED_RECEIVERS = 4  # up to this number, one scan per receiver is faster than sorting


def split_by_receiver(batch: pa.RecordBatch, receivers_of_rows: npt.NDArray[Any], n: int) -> Split:
    """Cut `batch` into one batch per receiver that gets any rows, each in the order of the original.

    `receivers_of_rows` holds an integer in 0 … n-1 per row. If one receiver gets all, it gets `batch` itself;
    otherwise the rows are copied once and the batches are slices of that copy.
    """
    assert len(receivers_of_rows) == batch.num_rows
    if batch.num_rows == 0:
        return []
    cut = _scan(receivers_of_rows, range(n)) if n <= _SCANNED_RECEIVERS else _sort(receivers_of_rows, n)
    assert len(cut.order) == batch.num_rows
    if len(cut.receivers) == 1:
        return [(cut.receivers[0], batch)]
    ordered, split, start = take_rows(batch, cut.order), [], 0
    for receiver, count in zip(cut.receivers, cut.counts, strict=True):
        split.append((receiver, ordered.slice(start, count)))
        start += count
    return split


class _Cut(NamedTuple):
    """The receivers that get rows, how many each gets, and the rows: those of the first, then of the next …"""

    receivers: list[int]
    counts: list[int]
    order: npt.NDArray[np.intp]


def _scan(receivers_of_rows: npt.NDArray[Any], receivers: Sequence[int]) -> _Cut:
    found = [(receiver, (receivers_of_rows == receiver).nonzero()[0]) for receiver in receivers]
    some = [(receiver, rows) for receiver, rows in found if len(rows)]
    order = np.concatenate([rows for _, rows in some])
    return _Cut([receiver for receiver, _ in some], [len(rows) for _, rows in some], order)


def _sort(receivers_of_rows: npt.NDArray[Any], n: int) -> _Cut:
    counts = np.bincount(receivers_of_rows, minlength=n)
    assert len(counts) == n
    receivers = counts.nonzero()[0]
    if len(receivers) <= _SCANNED_RECEIVERS:
        return _scan(receivers_of_rows, receivers.tolist())
    # numpy sorts integers of 16 bits and less by radix, in linear time.
    order = receivers_of_rows.astype(_narrow_dtype(n), copy=False).argsort(kind="stable")
    return _Cut(receivers.tolist(), counts[receivers].tolist(), order)


def _narrow_dtype(n: int) -> type[np.unsignedinteger[Any]]:
    return np.uint8 if n <= 1 << 8 else np.uint16 if n <= 1 << 16 else np.uint32


class Partitioner(ABC):
    """Chooses receivers for the batches of one sending subtask."""

    @abstractmethod
    def split(self, batch: pa.RecordBatch) -> Split:
        """Who gets what of `batch`. Called once per batch: a partitioner that takes turns moves on."""


class HashPartitioner(Partitioner):
    """By key group: equal keys go to the one subtask that owns their group at this parallelism (I9)."""

    def __init__(self, columns: Sequence[str], parallelism: int, max_parallelism: int) -> None:
        _check_parallelism(parallelism, max_parallelism)
        self.columns = tuple(columns)
        self.parallelism = parallelism
        self.max_parallelism = max_parallelism
        owners = [owner_of(KeyGroup(group), parallelism, max_parallelism) for group in range(max_parallelism)]
        self._owners = np.array(owners, dtype=_narrow_dtype(parallelism))
        self._direct = DirectTable()
        """Of keys that are one integer, the receivers of those that lie close together."""

    def receivers_of(self, batch: pa.RecordBatch) -> npt.NDArray[Any]:
        """The receiver of each row."""
        words = self._words_of(batch)
        if words is not None:
            known = self._direct.look_up(words, lambda rows: self._by_hash(take_rows(batch.select(self.columns), rows)))
            if known is not None:
                return known
        return self._by_hash(batch)

    def _by_hash(self, batch: pa.RecordBatch) -> npt.NDArray[Any]:
        return self._owners.take(key_groups(batch, self.columns, self.max_parallelism))

    def _words_of(self, batch: pa.RecordBatch) -> npt.NDArray[np.int64] | None:
        """The key as integers, if it is one column of them without a null."""
        position = batch.schema.get_field_index(self.columns[0]) if len(self.columns) == 1 else -1
        if position < 0 or not pa.types.is_integer(batch.schema.field(position).type):
            return None
        column = batch.column(position)
        return None if column.null_count else word_values(column)

    def split(self, batch: pa.RecordBatch) -> Split:
        if batch.num_rows == 0:
            return []
        if self.parallelism == 1:
            return [(0, batch)]
        return split_by_receiver(batch, self.receivers_of(batch), self.parallelism)


class Rebalance(Partitioner):
    """Whole batches to each receiver in turn. Senders should start at different ones."""

    def __init__(self, receivers: int, start: int = 0) -> None:
        _check_receivers(receivers)
        self.receivers = receivers
        self._next = start % receivers

    def split(self, batch: pa.RecordBatch) -> Split:
        if batch.num_rows == 0:
            return []
        receiver = self._next
        self._next = (receiver + 1) % self.receivers
        return [(receiver, batch)]


class Shuffle(Partitioner):
    """Whole batches to a random receiver. The generator is given, so that a run can be repeated."""

    def __init__(self, receivers: int, generator: random.Random) -> None:
        _check_receivers(receivers)
        self.receivers = receivers
        self._generator = generator

    def split(self, batch: pa.RecordBatch) -> Split:
        if batch.num_rows == 0:
            return []
        return [(self._generator.randrange(self.receivers), batch)]


class Broadcast(Partitioner):
    """The same batch, by reference, to every receiver."""

    def __init__(self, receivers: int) -> None:
        _check_receivers(receivers)
        self.receivers = receivers

    def split(self, batch: pa.RecordBatch) -> Split:
        if batch.num_rows == 0:
            return []
        return [(receiver, batch) for receiver in range(self.receivers)]


class Forward(Partitioner):
    """Everything to the one receiver `index`."""

    def __init__(self, index: int) -> None:
        self.index = index

    def split(self, batch: pa.RecordBatch) -> Split:
        return [(self.index, batch)] if batch.num_rows else []


class Global(Forward):
    """Everything to receiver 0."""

    def __init__(self) -> None:
        super().__init__(0)


class Rescale(Partitioner):
    """Pointwise: whole batches in turn to the few receivers that belong to this sender."""

    def __init__(self, sender: int, senders: int, receivers: int) -> None:
        self._group = rescale_receivers(sender, senders, receivers)
        self._turn = Rebalance(len(self._group))

    def split(self, batch: pa.RecordBatch) -> Split:
        return [(self._group[turn], rows) for turn, rows in self._turn.split(batch)]


def rescale_receivers(sender: int, senders: int, receivers: int) -> range:
    """The receivers of `sender` on a rescale edge; never empty, and every receiver belongs to some sender."""
    _check_receivers(receivers)
    return reachable(Partitioning.RESCALE, sender, senders, receivers)


def partitioner_for(
    partitioning: Partitioning,
    *,
    sender: int,
    senders: int,
    receivers: int,
    columns: Sequence[str] = (),
    max_parallelism: int = 0,
    seed: int = 0,
) -> Partitioner:
    """The partitioner of one sending subtask. `columns` and `max_parallelism` matter to HASH, `seed` to SHUFFLE."""
    match partitioning:
        case Partitioning.FORWARD:
            if senders != receivers:
                raise PipelineError(f"a forward edge joins equal parallelism, not {senders} to {receivers}")
            return Forward(sender)
        case Partitioning.RESCALE:
            return Rescale(sender, senders, receivers)
        case Partitioning.HASH:
            return HashPartitioner(columns, receivers, max_parallelism)
        case Partitioning.REBALANCE:
            return Rebalance(receivers, start=sender)
        case Partitioning.SHUFFLE:
            return Shuffle(receivers, random.Random(f"{seed}/{sender}"))
        case Partitioning.BROADCAST:
            return Broadcast(receivers)
        case Partitioning.GLOBAL:
            return Global()
        case _:
            assert_never(partitioning)


def _check_receivers(receivers: int) -> None:
    if receivers < 1:
        raise PipelineError(f"an edge needs at least one receiver, not {receivers}")


def _check_parallelism(parallelism: int, max_parallelism: int) -> None:
    _check_receivers(parallelism)
    if parallelism > max_parallelism:
        raise PipelineError(
            f"parallelism {parallelism} is more than the {max_parallelism} key groups; "
            "lower it, or start afresh with a larger max_parallelism"
        )
