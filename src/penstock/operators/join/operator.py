"""The operator behind `KeyedStream.join`: rows of two keyed streams that meet by key and time.

A batch of one side is looked up among the rows of the other side that are kept, and then kept itself: so each pair is
made once, when the later of the two has come. The number of pairs is known before any is made. A batch is worked off
in portions of rows, and the mailbox may have its turn between two of them; the rows that are left go back to their
channels when a checkpoint comes (`operators/steps.py`).

An outer row without a partner is emitted when the watermark says that none can come any more. The watermark itself is
passed on late: behind the times of all rows that may still be emitted (decision 47). A regular join knows no such
moment: it emits the row alone at once, and takes that back (`op` is `"delete"`) when a partner comes.

The columns of a row without a partner are known when the other side has shown a record; until then such rows wait.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from penstock.columnar.gather import joined, take_rows
from penstock.columnar.grouping import key_columns
from penstock.columnar.hashing import hash_rows, key_groups_of_hashes
from penstock.columnar.schemas.schema_guard import SchemaGuard
from penstock.errors import DataError
from penstock.ids import LATE_OF_SIDE
from penstock.metrics import standard as metrics
from penstock.metrics.metric import Over, gauge
from penstock.model.event_time import MAX_WATERMARK, MIN_WATERMARK
from penstock.model.joins import (
    SIDES,
    RegularBounds,
    first_tick_at,
    is_outer,
    partner_ticks,
)
from penstock.operators.contract import Emit
from penstock.operators.join.keys import either, equal_keys, hash_is_key, without_key
from penstock.operators.join.merges import merge_runs
from penstock.operators.join.portion import PAIRS_MAX, Found, Portion, rows_within
from penstock.operators.join.results import JoinResults
from penstock.operators.join.spec import JoinSpec
from penstock.operators.named import NamedOperator
from penstock.operators.steps import Steps
from penstock.state.joins.run import Mask, Rows, Run, Times, pairs_of
from penstock.state.joins.side import JoinClockKind, JoinSide, JoinSideDescriptor
from penstock.state.windows.clock import ClockDescriptor

_PORTION_ROWS_MAX = 1 << 13
_ALONE_ROWS_MAX = 1 << 13
_STATE_ROWS = gauge(
    "join_state_rows", "rows", "rows of both sides that a join holds in memory; sum over subtasks", Over.SUM
)


class JoinOperator(NamedOperator):
    """Joins its two inputs."""

    emits_later = True
    works_in_steps = True

    def __init__(self, spec: JoinSpec) -> None:
        self.spec = spec

    def setup(self) -> None:
        spec, keyed = self.spec, self.context.keyed
        self._is_outer = tuple(is_outer(spec.how, side) for side in range(2))
        self._clock = (
            keyed.register(ClockDescriptor("clock", JoinClockKind(spec.bounds))) if spec.clock == "event" else None
        )
        self._sides = tuple(
            keyed.register(
                JoinSideDescriptor(SIDES[side], spec.keys[side], spec.clock, spec.on[side], self._is_outer[side])
            )
            for side in range(2)
        )
        self._results = JoinResults(spec, self._sides, self.context)
        self._late_rows = self.context.metrics.counter(metrics.LATE)
        self.context.metrics.observe(_STATE_ROWS, lambda: sum(side.row_count for side in self._sides))
        self._held: int | None = None
        """The watermark that waits until the rows that it makes certain are emitted."""
        self._is_expiring = False
        self._passed_on = MIN_WATERMARK
        self._has_ended = False

    def on_restored(self, emit: Emit) -> None:
        self._passed_on = self.context.watermark
        for side in range(2):
            schema = self._results.restored_schema(side)
            if schema is not None:
                # Records must have the columns of the rows that are kept.
                self._inputs[side] = SchemaGuard(f"operator '{self.context.operator}', {SIDES[side]} side")
                self._inputs[side].schema = schema
                self._results.learn(side, schema, emit)
        if self.spec.clock == "processing":
            self._drop_later()

    @property
    def is_idle(self) -> bool:  # type: ignore[override]
        return not self._is_expiring

    # --- records ---

    def work(self, batch: pa.RecordBatch, input_index: int, emit: Emit) -> Steps:
        key_columns(batch, self.spec.keys[input_index], self.context.operator)
        with self._naming():
            if self._results.learn(input_index, batch.schema.remove_metadata(), emit):
                self._pass_on()
        order = np.arange(batch.num_rows, dtype=np.int64)
        return Steps(order, lambda steps: self._portions(batch, input_index, steps, emit))

    def _portions(self, batch: pa.RecordBatch, side: int, steps: Steps, emit: Emit) -> Iterator[None]:
        is_over, row = self.context.begin_slice(), 0
        while row < batch.num_rows:
            rows = batch.slice(row, min(steps.call_rows_max, _PORTION_ROWS_MAX))
            with self._naming():
                row += self._join(rows, side, emit)
            steps.calls += 1
            if is_over() and row < batch.num_rows:
                # I1: these rows are in the state, and all of their pairs were emitted.
                steps.rows_done = row
                yield
                is_over = self.context.begin_slice()

    def _join(self, rows: pa.RecordBatch, side: int, emit: Emit) -> int:
        """Work on the first of `rows`, as many as do not make too many pairs, and return how many that were."""
        now_ms = self._now_ms()
        state, other = self._sides[side], self._sides[1 - side]
        times = state.times_of(rows, now_ms)
        portion = Portion(
            side, rows, times, hash_rows(rows, state.key), without_key([rows.column(name) for name in state.key])
        )
        is_late = self._is_late(portion)
        asking = np.lexsort((portion.times, portion.hashes))
        barred = either(is_late, portion.is_without_key)
        if barred is not None:
            asking = asking[~barred[asking]]
        found = self._found(portion, asking, other, now_ms)
        done = rows_within(asking, found, rows.num_rows)
        if done < rows.num_rows:
            portion = portion.first(done)
            chosen = asking < done
            found = [(run, starts[chosen], counts[chosen]) for run, starts, counts in found]
            asking = asking[chosen]
            is_late = None if is_late is None else is_late[:done]
        has_partner = self._emit_pairs(portion, asking, found, emit)
        self._keep(portion, asking, has_partner, now_ms)
        if self._is_outer[side]:
            self._emit_unmatched(portion, is_late, has_partner, now_ms, emit)
        self._on_late(portion, is_late)
        return done

    def _now_ms(self) -> int:
        if self._clock is not None:
            return self._clock.slowest_ms
        return self.context.now_ms() if self.spec.clock == "processing" else MIN_WATERMARK

    def _is_late(self, portion: Portion) -> Mask | None:
        """The rows whose partners may be gone; None if there are none."""
        if self._clock is None or len(portion.times) == 0:
            return None
        ticks = self._sides[portion.side].ticks

        def open_from(watermark_ms: int) -> int:
            return first_tick_at(ticks, self.spec.bounds.late_before_ms(watermark_ms))

        if int(portion.times.min()) >= open_from(self._clock.fastest_ms):
            return None
        limits: Times | int = open_from(self._clock.slowest_ms)
        if not self._clock.is_even:
            groups = key_groups_of_hashes(portion.hashes, self.context.max_parallelism)
            limits = self._clock.of(groups, open_from)
        is_late = portion.times < limits
        return is_late if is_late.any() else None

    def _found(self, portion: Portion, asking: Rows, other: JoinSide, now_ms: int) -> list[Found]:
        """For each run of the other side, the first row that each row may match, and how many follow with it."""
        if len(asking) == 0 or other.run_count == 0:
            return []
        own = self._sides[portion.side].ticks
        times, hashes = portion.times[asking], portion.hashes[asking]
        first, last = partner_ticks(self.spec.bounds, portion.side, times, own, other.ticks, now_ms)
        found = [(run, *run.find(hashes, first, last)) for run in other.runs_with(first, last)]
        return [each for each in found if each[2].any()]

    def _emit_pairs(self, portion: Portion, asking: Rows, found: list[Found], emit: Emit) -> Mask:
        """Emit the pairs, and return which rows of the portion have a partner."""
        has_partner = np.zeros(portion.rows.num_rows, dtype=np.bool_)
        outputs: list[pa.RecordBatch] = []
        for run, starts, counts in found:
            for places, theirs in pairs_of(starts, counts, PAIRS_MAX):
                outputs += self._pairs(portion, run, asking[places], theirs, has_partner)
                if sum(batch.num_rows for batch in outputs) >= PAIRS_MAX:
                    _emit_all(outputs, emit)
                    outputs = []
        _emit_all(outputs, emit)
        return has_partner

    def _pairs(
        self, portion: Portion, run: Run, ours: Rows, theirs: Rows, has_partner: Mask
    ) -> Iterator[pa.RecordBatch]:
        side, spec = portion.side, self.spec
        rows, partners = take_rows(portion.rows, ours), take_rows(run.rows, theirs)
        if not hash_is_key(self._results.key_kinds):
            chosen = np.flatnonzero(self._is_same_key(side, rows, partners))
            if len(chosen) < len(ours):
                rows, partners = take_rows(rows, chosen), take_rows(partners, chosen)
                ours, theirs = ours[chosen], theirs[chosen]
        if len(ours) == 0:
            return
        has_partner[ours] = True
        if run.matched is not None:
            fresh = np.unique(theirs[~run.matched[theirs]])
            if len(fresh):
                if spec.is_changelog:
                    yield self._results.row_alone(1 - side, take_rows(run.rows, fresh), "delete")
                self._sides[1 - side].mark(run, fresh)
        yield self._results.pairs(side, rows, partners)

    def _is_same_key(self, side: int, rows: pa.RecordBatch, partners: pa.RecordBatch) -> Mask:
        """Whether the keys of each pair are equal: their hashes are."""
        ours, theirs = self.spec.keys[side], self.spec.keys[1 - side]
        return equal_keys(
            [rows.column(name) for name in ours],
            [partners.column(name) for name in theirs],
            self._results.key_kinds,
        )

    def _keep(self, portion: Portion, asking: Rows, has_partner: Mask, now_ms: int) -> None:
        """Keep the rows that a later one may meet."""
        state = self._sides[portion.side]
        # In the order in which they were looked up, which is that of a run.
        kept = asking[portion.times[asking] >= self._needed_from(portion.side, now_ms)]
        matched = has_partner[kept] if self._is_outer[portion.side] else None
        state.add(portion.hashes[kept], portion.times[kept], take_rows(portion.rows, kept), matched)
        merge_runs(state, self.context)

    def _needed_from(self, side: int, now_ms: int) -> int:
        """Rows of earlier ticks cannot meet a row that is still to come."""
        return first_tick_at(self._sides[side].ticks, self.spec.bounds.needed_from_ms(side, now_ms))

    def _emit_unmatched(
        self, portion: Portion, is_late: Mask | None, has_partner: Mask, now_ms: int, emit: Emit
    ) -> None:
        """Emit the rows that are certain to have no partner; of a changelog all that have none so far."""
        is_alone = ~has_partner if is_late is None else ~(has_partner | is_late)
        if not self.spec.is_changelog:
            is_certain = portion.times < self._needed_from(portion.side, now_ms)
            missing = portion.is_without_key
            is_alone &= is_certain if missing is None else is_certain | missing
        alone = np.flatnonzero(is_alone)
        if len(alone):
            self._results.emit_alone(portion.side, take_rows(portion.rows, alone), emit)

    def _on_late(self, portion: Portion, is_late: Mask | None) -> None:
        if is_late is None:
            return
        count = int(np.count_nonzero(is_late))
        if count and self.spec.late == "error":
            raise DataError(
                f"{count} rows of the {SIDES[portion.side]} side were late: rows that they could have "
                "joined had been dropped already. Allow a longer delay in with_watermark, or set "
                'late="drop" to count them and go on'
            )
        if self.spec.late == "stream" and count:
            side = SIDES[portion.side]
            self.context.emit_to(LATE_OF_SIDE[side], take_rows(portion.rows, np.flatnonzero(is_late)))
        else:
            self._late_rows.add(count)

    # --- time ---

    def on_watermark(self, watermark: int, emit: Emit) -> bool | None:
        if self._clock is None:
            return None
        if watermark < MAX_WATERMARK:
            self._clock.advance(watermark)
            self._held = watermark
            if not self._is_expiring:
                self._expire(watermark, emit)
        # The end is no time: what is left is emitted by `on_end`.
        return True

    def _expire(self, watermark: int, emit: Emit) -> None:
        bounds = self.spec.bounds
        emits = False
        for side, state in enumerate(self._sides):
            limit = self._needed_from(side, watermark)
            if bounds.closes and self._is_outer[side]:
                emits |= state.has_expired(limit)
            else:
                state.drop_before(limit)
        if emits:
            self._is_expiring = True
            self.context.work_off(self._expiry(emit))
        else:
            self._pass_on()

    def _expiry(self, emit: Emit) -> Iterator[None]:
        """Emit the rows that are certain to have no partner, in steps."""
        reached = None
        is_over = self.context.begin_slice()
        while reached != self._held:
            reached = self._held
            assert reached is not None
            for side, state in enumerate(self._sides):
                if not self._is_outer[side]:
                    continue
                for rows in state.expire(self._needed_from(side, reached), _ALONE_ROWS_MAX):
                    self._results.emit_alone(side, rows, emit)
                    if is_over():
                        yield
                        is_over = self.context.begin_slice()
                merge_runs(state, self.context)
        self._is_expiring = False
        self._pass_on()

    def _pass_on(self) -> None:
        """Pass on the watermark, unless rows wait that it would make late."""
        if self._held is None or self._is_expiring or self._results.has_waiting:
            return
        watermark = self.spec.bounds.passes_on_ms(self._held)
        if watermark > self._passed_on:
            self._passed_on = watermark
            self.context.release_watermark(watermark)

    def _drop_later(self) -> None:
        """Rows leave memory though no record comes."""
        bounds = self.spec.bounds
        assert isinstance(bounds, RegularBounds) and bounds.ttl_ms is not None
        every_ms = max(1, bounds.ttl_ms // 8)

        def drop() -> None:
            if not self._has_ended:
                now_ms = self.context.now_ms()
                for side, state in enumerate(self._sides):
                    state.drop_before(bounds.needed_from_ms(side, now_ms))
                self._drop_later()

        self.context.call_at(self.context.now_ms() + every_ms, drop)

    def on_end(self, emit: Emit) -> Iterator[None]:
        self._has_ended = True
        for side, state in enumerate(self._sides):
            if self.spec.bounds.closes and self._is_outer[side]:
                for rows in state.expire(None, _ALONE_ROWS_MAX):
                    self._results.emit_alone(side, rows, emit)
                    yield
        if self.spec.bounds.closes:
            for state in self._sides:
                state.clear()
        self._results.end(emit)

    @contextlib.contextmanager
    def _naming(self) -> Iterator[None]:
        try:
            yield
        except DataError as error:
            where = f"operator '{self.context.operator}', subtask {self.context.subtask} of {self.context.parallelism}"
            raise DataError(f"{where}: {error}") from error


def _emit_all(outputs: Sequence[pa.RecordBatch], emit: Emit) -> None:
    for batch in joined(outputs):
        emit(batch)
