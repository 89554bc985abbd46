"""What a function with state gets from its operator: states, the current key, timers, side outputs."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from penstock.columnar.gather import take_rows
from penstock.columnar.grouping import Groups, group, key_columns, key_tuples
from penstock.columnar.schemas.schema_guard import SchemaLike, as_schema
from penstock.errors import DataError, PipelineError
from penstock.metrics.group import MetricGroup
from penstock.model.event_time import MIN_WATERMARK, timestamp_ms
from penstock.model.units import Duration, duration_ms
from penstock.operators.contract import BatchState, Key, OperatorContext
from penstock.operators.formats import Records
from penstock.operators.keyed.handles import ListState, MapState, ValueState
from penstock.operators.keyed.ttl import ExpiringListState, ExpiringMapState, ExpiringValueState, with_expiry
from penstock.state.keyed import KeyedState
from penstock.state.rows.rows import RowsState

if TYPE_CHECKING:
    from penstock.operators.keyed.process import StatefulOperator

Whole: TypeAlias = Callable[[pa.RecordBatch], Records]
Cut: TypeAlias = Callable[[Records, int, int], Records]
Shown: TypeAlias = Callable[[pa.RecordBatch], Sequence[Key]]
"""A batch in the format of a function; some of its rows; and its keys as the function sees them."""

_PORTION_ROWS = 1 << 12
"""Rows that become what a function sees at once, if single calls do not get more."""


class CallSize(Protocol):
    """Says how many rows a call may get; it may say something else after each call."""

    @property
    def call_rows_max(self) -> int: ...


@dataclass(frozen=True, slots=True)
class _AllAtOnce:
    call_rows_max: int


class StateAccess:
    """Implements `KeyedContext` and `TwoInputContext` on the context of an operator."""

    def __init__(self, operator: StatefulOperator) -> None:
        self._operator = operator
        self._context: OperatorContext = operator.context
        self.key: Key = ()
        self.key_group = -1
        self.side = 0
        self.timer_ms = MIN_WATERMARK
        """The latest event-time timer that was called."""
        self.is_open = False
        """Whether the function was opened: from then on it gets the states that it has asked for, and no others."""
        self._asked: set[str] = set()
        self._deleted: set[str] = set()
        self._metrics: MetricGroup | None = None
        self._declared: pa.Schema | None = None
        self._given: Groups | None = None
        """The records that a function of two inputs has got, if they have a key."""

    @property
    def operator(self) -> str:
        return self._context.operator

    @property
    def subtask(self) -> int:
        return self._context.subtask

    @property
    def parallelism(self) -> int:
        return self._context.parallelism

    @property
    def watermark(self) -> int | None:
        # At the end of the input timers are called that the watermark never reached.
        reached = max(self._context.watermark, self.timer_ms)
        return None if reached == MIN_WATERMARK else reached

    @property
    def metrics(self) -> MetricGroup:
        if self._metrics is None:
            self._metrics = MetricGroup(self._context.metrics, f"operator '{self.operator}'")
        return self._metrics

    def now_ms(self) -> int:
        return self._context.now_ms()

    # --- state ---

    def _ask(self, name: str) -> None:
        """A state is asked for. One that `open` did not ask for would be lost after the first failure (I8)."""
        if self.is_open and name not in self._asked:
            raise DataError(
                f"operator '{self.operator}': the function asks for state '{name}' while it processes "
                "records: ask for every state in open() or init(), where it is restored after a "
                "failure"
            )
        if name in self._deleted:
            # A restore would bring back what it has deleted, or a failure would delete what it has kept since.
            raise DataError(
                f"operator '{self.operator}': the function deletes state '{name}' and asks for it again. open(), or "
                f"init(), is called after every failure: give the new state another name, and delete the old one"
            )
        self._asked.add(name)

    def _ttl_ms(self, name: str, ttl: Duration | None) -> int | None:
        if ttl is None:
            return None
        self._operator.check_ttl(name)
        return duration_ms(f"operator '{self.operator}': the ttl of state '{name}'", ttl, at_least_ms=1)

    def value(self, name: str, schema: SchemaLike, *, ttl: Duration | None = None) -> ValueState:
        self._ask(name)
        ttl_ms = self._ttl_ms(name, ttl)
        kind = as_schema(schema)
        if ttl_ms is None:
            plain: ValueState = self._keyed.value(name, kind)
            return plain
        return ExpiringValueState(self._keyed.value(name, with_expiry(kind)), ttl_ms, self._context)

    def list(self, name: str, schema: SchemaLike, *, ttl: Duration | None = None) -> ListState:
        self._ask(name)
        ttl_ms = self._ttl_ms(name, ttl)
        kind = as_schema(schema)
        if ttl_ms is None:
            plain: ListState = self._keyed.list(name, kind)
            return plain
        return ExpiringListState(self._keyed.list(name, with_expiry(kind)), ttl_ms, self._context)

    def map(
        self, name: str, key_schema: SchemaLike, value_schema: SchemaLike, *, ttl: Duration | None = None
    ) -> MapState:
        self._ask(name)
        ttl_ms = self._ttl_ms(name, ttl)
        key, kind = as_schema(key_schema), as_schema(value_schema)
        if ttl_ms is None:
            plain: MapState = self._keyed.map(name, key, kind)
            return plain
        return ExpiringMapState(self._keyed.map(name, key, with_expiry(kind)), ttl_ms, self._context)

    def delete_state(self, name: str) -> None:
        if self.is_open:
            raise DataError(
                f"operator '{self.operator}': the function deletes state '{name}' while it processes "
                "records: delete states in open() or init(), and use clear() to remove the value of "
                "a key"
            )
        self._deleted.add(name)
        self._keyed.remove(name)

    def rows(self, name: str, side: str = "left") -> RowsState:
        self._ask(name)
        return self._keyed.rows(name, self._operator.keys[("left", "right").index(side)])

    def broadcast_state(self, name: str) -> BatchState:
        self._ask(name)
        return self._context.broadcast_state(name)

    @property
    def _keyed(self) -> KeyedState:
        return self._context.keyed

    # --- the current key ---

    def each_key(self, batch: pa.RecordBatch) -> Iterator[tuple[Key, pa.RecordBatch]]:
        format = self._operator.format
        if self._given is not None and self._given.batch is batch:
            # It was sorted with everything that waited.
            return self._each(self._given, format.of, format.cut)
        return self.each(batch, format.of, format.cut)

    def given(self, part: Groups | pa.RecordBatch) -> pa.RecordBatch:
        """The records that a function is about to get: `each_key` knows how they are grouped."""
        self._given = None if isinstance(part, pa.RecordBatch) else part
        return part if isinstance(part, pa.RecordBatch) else part.batch

    def own_rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows whose keys belong to this subtask (I9)."""
        columns = key_columns(batch, self._operator.keys[0], self.operator)
        keys = pa.RecordBatch.from_arrays(columns, names=list(self._context.key))
        groups = np.array(self._keyed.groups_of(keys), dtype=np.int64)
        owned = self._context.key_groups
        return take_rows(batch, np.flatnonzero((groups >= owned.start) & (groups < owned.stop)))

    @property
    def key_schema(self) -> pa.Schema:
        """The columns of the key, which a record or a checkpoint has declared."""
        return self._keyed.key_schema

    def each(
        self, batch: pa.RecordBatch, of: Whole, cut: Cut, shown: Shown | None = None
    ) -> Iterator[tuple[Key, Records]]:
        """Keys and their records, while all states are at the key. `shown` makes the keys that the function sees."""
        if batch.num_rows:
            yield from self._each(self.grouped(batch), of, cut, shown)

    def _each(self, groups: Groups, of: Whole, cut: Cut, shown: Shown | None = None) -> Iterator[tuple[Key, Records]]:
        for key, rows, _ in self.calls(groups, of, cut, shown, _AllAtOnce(groups.batch.num_rows)):
            yield key, rows

    def grouped(self, batch: pa.RecordBatch) -> Groups:
        """The batch sorted by key; the state knows the types of the key from now on."""
        key = self._operator.keys[self.side]
        if not key:
            raise PipelineError(f"operator '{self.operator}': this side has no key: call key_by on it")
        groups = group(batch, key, self.operator)
        # Both sides of a connection have one key; it goes by the names of the operator's first keyed input.
        self._declare(groups.keys.rename_columns(list(self._context.key)).schema)
        return groups

    def calls(
        self, groups: Groups, of: Whole, cut: Cut, shown: Shown | None, steps: CallSize
    ) -> Iterator[tuple[Key, Records, int]]:
        """For each call of a function: the key, its records, and the number of sorted rows up to the last of them.

        While a key is in hand all states are at it. A key with more than `call_rows_max` records has several calls.
        Rows and keys become what the function and the state see in portions, so that no conversion takes long, and
        the move to a key is four assignments.
        """
        names, cursor, first, row = list(self._context.key), self._keyed.cursor, 0, 0
        while row < groups.batch.num_rows:
            # A whole number of calls, for a key with many records.
            portion_rows = steps.call_rows_max * max(1, _PORTION_ROWS // steps.call_rows_max)
            end = max(bisect.bisect_right(groups.ends, row + portion_rows, first), first + 1)
            # One key alone may have more records than a portion: then it goes on with the next one.
            stop = min(groups.ends[end - 1], row + portion_rows)
            keys = groups.keys.slice(first, end - first)
            whole, tuples = of(groups.batch.slice(row, stop - row)), key_tuples(keys)
            numbers = cursor.owned_only(self._keyed.groups_of(keys.rename_columns(names)))
            stored = cursor.stored(tuples, keys.schema.types)
            seen = tuples if shown is None else shown(keys)
            starts, ends = [row, *groups.starts[first + 1 : end]], [*groups.ends[first : end - 1], stop]
            for number, key, found_by, key_seen, start, last in zip(
                numbers, tuples, stored, seen, starts, ends, strict=True
            ):
                done = start
                while done < last:
                    since = done
                    done = last if last - since <= steps.call_rows_max else since + steps.call_rows_max
                    # Timers and errors between two calls may have left the states elsewhere.
                    cursor.key_group = self.key_group = number
                    cursor.key, self.key = found_by, key
                    yield key_seen, cut(whole, since - row, done - row), done
            first, row = end if stop == groups.ends[end - 1] else first, stop

    def _declare(self, schema: pa.Schema) -> None:
        if self._declared is not None and schema.equals(self._declared):
            return
        self._declared = schema
        try:
            self._keyed.declare_key(schema)
        except PipelineError as error:
            raise DataError(f"operator '{self.operator}': {error}. Cast one of them") from error

    # --- side outputs ---

    def emit(self, output: str, records: object) -> None:
        if not self.is_open:
            raise DataError(
                f"operator '{self.operator}': the function emits to '{output}' in open(), where there is no record: "
                f"emit where records or timers are handled"
            )
        self._operator.side_outputs.hold(output, records)

    # --- timers ---

    def set_timer(self, at: int | datetime) -> None:
        if self.key_group < 0:
            raise DataError(
                f"operator '{self.operator}': a timer is set in open() or init(), where there is no "
                "key: set it while a record of the key is processed"
            )
        self._operator.timers.set(timestamp_ms(at), self.key_group, self.key)

    def delete_timer(self, at: int | datetime) -> None:
        self._operator.timers.delete(timestamp_ms(at))

    def timers(self) -> Sequence[int]:
        return self._operator.timers.times()
