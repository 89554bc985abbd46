"""One side of a join as keyed state: runs of rows, merged as they grow, dropped as time goes on.

Each batch becomes a run. Neighbours of like size are merged, so that there are few of them and no row is copied often:
small ones at once, larger ones in the background, since runs never change; the result is put in place on the mailbox.
No run is made larger than `_MERGED_ROWS_MAX`. A run is dropped whole when time has passed all its rows; rows of others
that are not needed any more stay out of checkpoints, and are left behind by the next merge.

In a checkpoint its first piece has no rows, and says which columns there are. A row is `key_group, key: struct,
value: struct`, with all its columns in `value`; followed by `matched` where rows come out without a partner, and by
`at_ms` where they are kept by the time of their arrival.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.columnar.fixed_width import fixed_width_values
from penstock.columnar.gather import take_rows
from penstock.columnar.hashing import Words, hash_rows, key_groups_of_hashes
from penstock.errors import RestoreError
from penstock.model.event_time import Ticks, event_time_type, event_times, ticks_of
from penstock.model.joins import JoinBounds
from penstock.state.contract import StateOwner
from penstock.state.joins.run import Mask, Merged, Rows, Run, RunView, Times, merged, sorted_run
from penstock.state.pieces import KEY, KEY_GROUP, VALUE, KeyedPiece, check_owned, cut, own_rows, struct_of

MATCHED = "matched"
AT_MS = "at_ms"

Groups: TypeAlias = npt.NDArray[np.int32]
Clock: TypeAlias = Literal["event", "processing", "none"]
"""The time of a row: that of its event-time column, of its arrival, or none at all."""

_INLINE_ROWS_MAX = 1 << 13
"""Rows that are merged at once; more of them in the background."""
_MERGED_ROWS_MAX = 1 << 20
_MERGED_BYTES_MAX = 1 << 28
_ENCODED_ROWS = 1 << 16
"""Runs are put together in a checkpoint until they have as many rows."""
_NO_MARKS: Mask = np.empty(0, dtype=np.bool_)
_INT64_MIN = int(np.iinfo(np.int64).min)


@dataclass(frozen=True, slots=True)
class JoinClockKind:
    """The bounds of a join as its clock by key group records them. A join has no windows with a state of their own."""

    bounds: JoinBounds

    def __str__(self) -> str:
        return str(self.bounds)

    @property
    def parameters(self) -> Mapping[str, int]:
        return self.bounds.parameters

    def on(self, ticks: Ticks) -> None:
        return None


@dataclass(frozen=True, slots=True)
class JoinSideDescriptor:
    """Rows of one side, partitioned by `key`. `on` is the column of the event time, for the clock "event"."""

    name: str
    key: tuple[str, ...]
    clock: Clock
    on: str | None
    keeps_matched: bool

    def create(self, owner: StateOwner) -> JoinSide:
        return JoinSide(self, owned=owner.key_groups, max_parallelism=owner.max_parallelism)


class JoinSide:
    """The rows of one side in one subtask."""

    def __init__(self, descriptor: JoinSideDescriptor, *, owned: range, max_parallelism: int) -> None:
        self.name = descriptor.name
        self.key = descriptor.key
        self.version = 0
        self.schema: pa.Schema | None = None
        """Of its rows, once one has come."""
        self._descriptor = descriptor
        self._owned = owned
        self._max_parallelism = max_parallelism
        self._runs: list[Run] = []
        self._limit = _INT64_MIN
        """Rows of earlier times are not needed any more."""
        self._is_expiring = False
        self._ready: list[Callable[[], None]] = []
        """Merges that are done, and wait until the rows that have expired are emitted."""

    @property
    def declared(self) -> str:
        descriptor = self._descriptor
        time = {"event": f"event time {descriptor.on}", "processing": "arrival", "none": "no time"}[descriptor.clock]
        matched = ", matched or not" if descriptor.keeps_matched else ""
        return f"joined rows by ({', '.join(self.key)}) and {time}{matched}"

    @property
    def state_bytes(self) -> int:
        return sum(run.run_bytes for run in self._runs)

    @property
    def row_count(self) -> int:
        """Rows in memory, some of which may not be needed any more."""
        return sum(len(run) for run in self._runs)

    @property
    def run_count(self) -> int:
        return len(self._runs)

    @property
    def ticks(self) -> Ticks:
        """The unit of its times: that of the event-time column, or milliseconds."""
        if self._descriptor.clock != "event" or self.schema is None:
            return Ticks(1000)
        assert self._descriptor.on is not None
        ticks = ticks_of(event_time_type(self.schema, self._descriptor.on))
        assert ticks is not None
        return ticks

    # --- records ---

    def learn(self, schema: pa.Schema) -> None:
        """Rows have these columns."""
        self.version += self.schema is None
        self.schema = schema

    def times_of(self, rows: pa.RecordBatch, now_ms: int) -> Times:
        """The time of each row, in the unit of its column. Raises `DataError`."""
        if self._descriptor.clock == "event":
            assert self._descriptor.on is not None
            return event_times(rows, self._descriptor.on)
        return np.full(rows.num_rows, now_ms if self._descriptor.clock == "processing" else 0, dtype=np.int64)

    def add(self, hashes: Words, times: Times, rows: pa.RecordBatch, matched: Mask | None) -> None:
        """Add rows in any order. `matched` is None unless the descriptor keeps it."""
        if len(hashes):
            self._runs.append(sorted_run(hashes, times, rows, matched))
            self.version += 1

    def runs_with(self, first: Times, last: Times) -> Iterator[Run]:
        """The runs that may have rows of these times."""
        return (run for run in self._runs if run.meets(first, last))

    def mark(self, run: Run, rows: Rows) -> None:
        """These rows of one of its runs have had a partner."""
        run.mark(rows)
        self.version += 1

    # --- time ---

    def has_expired(self, limit: int) -> bool:
        return any(run.first_time < limit for run in self._runs)

    def drop_before(self, limit: int) -> None:
        """Rows of earlier times are not needed any more."""
        if not self._runs:
            # Without a row nobody knows the unit of its times.
            return
        self._limit = max(self._limit, limit)
        self._keep([run for run in self._runs if run.last_time >= self._limit])

    def expire(self, limit: int | None, rows_max: int) -> Iterator[pa.RecordBatch]:
        """Drop the rows before `limit`, or all, and hand over those that have had no partner, some at a time.

        Rows that were handed over are not part of a snapshot any more (I1). Between two portions nothing is added.
        """
        if not self._runs:
            return
        self._is_expiring = True
        for run in list(self._runs):
            end = len(run) if limit is None else run.expired(limit)
            while run.emitted < end:
                rows = run.by_time[run.emitted : min(end, run.emitted + rows_max)]
                run.emitted += len(rows)
                self.version += 1
                assert run.matched is not None
                alone = np.sort(rows[~run.matched[rows]])
                if len(alone):
                    yield take_rows(run.rows, alone)
        self._is_expiring = False
        self._limit = self._limit if limit is None else max(self._limit, limit)
        self._keep([run for run in self._runs if run.emitted < len(run)])
        ready, self._ready = self._ready, []
        for install in ready:
            install()

    def clear(self) -> None:
        self._keep([])

    def _keep(self, runs: list[Run]) -> None:
        if len(runs) < len(self._runs):
            self._runs = runs
            self.version += 1

    # --- merges ---

    def merge_small(self) -> None:
        """Merge runs that are small enough to be merged at once."""
        while (runs := self._due(_INLINE_ROWS_MAX)) is not None:
            self.begin_merge(runs)()()

    def large_merge(self) -> Callable[[], Callable[[], None]] | None:
        """A merge that is due, if none is under way: to be called in the background, its result on the mailbox."""
        if self._is_expiring or any(run.is_merging for run in self._runs):
            return None
        runs = self._due(_MERGED_ROWS_MAX)
        return None if runs is None else self.begin_merge(runs)

    def _due(self, rows_max: int) -> list[Run] | None:
        if self._is_expiring:
            return None
        for end in range(len(self._runs), 1, -1):
            first, rows, size = end - 1, len(self._runs[end - 1]), self._runs[end - 1].rows_bytes
            while first > 0 and not (run := self._runs[first - 1]).is_merging and not run.cannot_merge:
                if len(run) > 2 * rows or rows + len(run) > rows_max or size + run.rows_bytes > _MERGED_BYTES_MAX:
                    break
                first, rows, size = first - 1, rows + len(run), size + run.rows_bytes
            last = self._runs[end - 1]
            if first < end - 1 and not last.is_merging and not last.cannot_merge:
                return self._runs[first:end]
        # Rows that are not needed any more are most of a run: it is written anew without them.
        for run in self._runs:
            if not run.is_merging and not run.cannot_merge and len(run) <= rows_max and self._is_mostly_gone(run):
                return [run]
        return None

    def _is_mostly_gone(self, run: Run) -> bool:
        return run.first_time < self._limit and self._limit > (run.first_time + run.last_time) // 2

    def begin_merge(self, runs: list[Run]) -> Callable[[], Callable[[], None]]:
        """The merge of neighbouring runs. It runs anywhere; the function that it returns on the mailbox."""
        views, limit = [run.view() for run in runs], self._limit
        for run in runs:
            run.is_merging = True

        def merge() -> Callable[[], None]:
            try:
                result = merged(views, limit)
            except pa.ArrowException:
                return lambda: self._cannot_merge(runs)
            return lambda: self._install(runs, result)

        return merge

    def _cannot_merge(self, runs: Sequence[Run]) -> None:
        for run in runs:
            run.is_merging, run.cannot_merge = False, True

    def _install(self, runs: list[Run], result: Merged) -> None:
        if self._is_expiring:
            self._ready.append(lambda: self._install(runs, result))
            return
        for run in runs:
            run.is_merging = False
        left = [number for number, run in enumerate(self._runs) if any(run is old for old in runs)]
        if not left:
            return
        new: list[Run] = []
        if len(result.hashes):
            marks = [run.matched for run in runs if run.matched is not None]
            whole = result.run(marks if self._descriptor.keeps_matched else None)
            # Rows that have expired meanwhile are those before the limit, whichever runs they were in.
            whole.emitted = whole.expired(self._limit) if self._descriptor.keeps_matched else 0
            new = [whole]
        self._runs[left[0] : left[-1] + 1] = new

    # --- checkpoints ---

    def snapshot(self) -> JoinSideSnapshot:
        """References only: the time depends on the number of runs."""
        return JoinSideSnapshot(self, self.version, [run.view() for run in self._runs], self._limit)

    def encode(self, views: Sequence[RunView], limit: int, target_bytes: int) -> list[KeyedPiece]:
        """Pieces of a snapshot. Runs in the background: touches nothing of the live state."""
        pieces = self._schema_piece()
        for some in _portions(views):
            pieces += self._encode(some, limit, target_bytes)
        return pieces

    def _encode(self, views: Sequence[RunView], limit: int, target_bytes: int) -> list[KeyedPiece]:
        try:
            whole = merged(views, limit)
        except pa.ArrowException:
            if len(views) == 1:
                raise
            return [piece for view in views for piece in self._encode([view], limit, target_bytes)]
        groups = key_groups_of_hashes(whole.hashes, self._max_parallelism)
        check_owned(self.name, groups, self._owned)
        marks = [view.matched for view in views if view.matched is not None]
        matched = np.concatenate(marks)[whole.order] if marks else _NO_MARKS
        return cut(self.name, pa.table(self._columns(groups, whole.rows, matched, whole.times)), target_bytes)

    def _columns(self, groups: Groups, rows: pa.RecordBatch, matched: Mask, times: Times) -> dict[str, pa.Array]:
        columns = {
            KEY_GROUP: pa.array(groups),
            KEY: struct_of([rows.column(name) for name in self.key], self.key),
            VALUE: rows.to_struct_array(),
        }
        if self._descriptor.keeps_matched:
            columns[MATCHED] = pa.array(matched)
        if self._descriptor.clock == "processing":
            columns[AT_MS] = pa.array(times)
        return columns

    def _schema_piece(self) -> list[KeyedPiece]:
        """A piece without rows: the columns of a side are known after a restore, though it has no row left."""
        if self.schema is None or not self._owned:
            return []
        empty = self.schema.empty_table().to_batches()
        rows = empty[0] if empty else pa.RecordBatch.from_pylist([], schema=self.schema)
        columns = self._columns(np.empty(0, np.int32), rows, _NO_MARKS, np.empty(0, np.int64))
        batch = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
        return [KeyedPiece(self.name, self._owned.start, self._owned.stop, batch, 0)]

    def restore(self, batches: Iterable[pa.RecordBatch]) -> int:
        """Add rows of a checkpoint, of our own key groups only (I9)."""
        restored = 0
        for batch in batches:
            self._check_layout(batch.schema)
            own = own_rows(self.name, batch, self._owned, self._max_parallelism, lambda kind: self.key)
            rows = pa.RecordBatch.from_struct_array(own.column(VALUE))
            if self.schema is None:
                self.schema = rows.schema
            if own.num_rows:
                keeps_time = self._descriptor.clock == "processing"
                times = fixed_width_values(own.column(AT_MS), np.int64) if keeps_time else self.times_of(rows, 0)
                matched = own.column(MATCHED).to_numpy(zero_copy_only=False) if self._descriptor.keeps_matched else None
                self.add(hash_rows(rows, self.key), times, rows, None if matched is None else matched.copy())
                restored += own.num_rows
        return restored

    def _check_layout(self, schema: pa.Schema) -> None:
        expected = [KEY_GROUP, KEY, VALUE]
        expected += [MATCHED] if self._descriptor.keeps_matched else []
        expected += [AT_MS] if self._descriptor.clock == "processing" else []
        if schema.names != expected:
            raise RestoreError(
                f"state '{self.name}' has rows of a join with the columns {', '.join(expected)}, and the checkpoint "
                f"has {', '.join(schema.names)} for it: give the operator another name to start without its state"
            )


class JoinSideSnapshot:
    """The rows of one moment."""

    def __init__(self, side: JoinSide, version: int, views: list[RunView], limit: int) -> None:
        self.version = version
        self._side = side
        self._views = views
        self._limit = limit

    def encode(self, target_bytes: int) -> list[KeyedPiece]:
        return self._side.encode(self._views, self._limit, target_bytes)


def _portions(views: Sequence[RunView]) -> Iterator[list[RunView]]:
    """Small runs together, large ones alone."""
    portion: list[RunView] = []
    rows = 0
    for view in views:
        if portion and rows + len(view.hashes) > _ENCODED_ROWS:
            yield portion
            portion, rows = [], 0
        portion.append(view)
        rows += len(view.hashes)
    if portion:
        yield portion
