"""Streams by key: the key, and the windows that they can be cut into."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, Unpack

from penstock.api.arguments import (
    emission_of,
    require_choice,
    require_count,
    sessions_of,
    windows_of,
)
from penstock.api.builder import NodeTraits
from penstock.api.stream import Stream
from penstock.api.windowed_stream import CountWindowedStream, WindowedStream
from penstock.errors import PipelineError
from penstock.graph.logical import OperatorFactory
from penstock.model.units import Duration
from penstock.model.windows import ON_CLOSE, CountWindows, Emission, Late, WindowKind
from penstock.operators.columns import ONE_GROUP


class GroupedStream(Stream):
    """A stream that has a key. Users see it as `KeyedStream`."""

    @property
    def key(self) -> tuple[str, ...]:
        """The columns of the key."""
        return self._ports[0].key

    @property
    def _is_one_group(self) -> bool:
        return self.key == (ONE_GROUP,)

    def _node(
        self,
        kind: str,
        made: OperatorFactory,
        name: str | None,
        parallelism: int | None,
        label: str = "",
        **traits: Unpack[NodeTraits],
    ) -> Stream:
        if not self._is_one_group:
            return super()._node(kind, made, name, parallelism, label, **traits)
        if parallelism not in (None, 1):
            raise PipelineError(
                f"{kind}: key_by() without columns makes one group, which one subtask processes: "
                "leave parallelism out, or name columns in key_by"
            )
        stream = super()._node(kind, made, name, 1, label, **traits)
        (port,) = stream._without_group()._ports
        return self._stream((replace(port, beside=stream._ports[0].operator),))

    def window(
        self,
        size: Duration,
        *,
        every: Duration | None = None,
        offset: Duration = 0,
        on: str | None = None,
        late: Late = "drop",
        allowed_lateness: Duration = 0,
        emit: Literal["on_close", "on_update"] | Duration = "on_close",
    ) -> WindowedStream:
        """Windows of event time: `window("1 min")`, or overlapping ones: `window("1 hour", every="1 min")`.

        They are aligned to 1970 in UTC, shifted by `offset`. `on` is the column of the event time, if it is not that of
        `with_watermark`. A record all of whose windows have been emitted is late: with `late="drop"` it is left out
        and counted, in `Status.rows_late`; with `late="error"` it is a `DataError`; with `late="stream"` it goes to the
        stream `late()` of the result, with all its columns.

        With `allowed_lateness="1 min"` the state of a window is kept for that much event time after it was emitted.
        A record that comes meanwhile is not late: the result of its window is emitted again, with the batch that
        changed it. `emit` says when results are emitted for the first time: `"on_close"`, complete; `"on_update"`,
        whenever a batch has changed them; or early at an interval, such as `"5 s"` of the worker's clock, if they have
        changed. For both, `aggregate(…, sequence="version")` says which row of a window is newer.

        Example:

            >>> keyed = orders.with_watermark("at", "10 s").key_by("user")
            >>> collect(keyed.window("1 min").sum("amount"), by="window_start")[-1]
            {'user': 'ada', 'window_start': 60000, 'window_end': 120000, 'amount': 5}
        """
        windows = windows_of(size, every, offset, allowed_lateness)
        return self._windowed("window", windows, on, late, emission_of(emit))

    def session(self, gap: Duration, *, on: str | None = None, late: Late = "drop") -> WindowedStream:
        """Sessions: the records of a key with no pause between them that is longer than `gap`.

        Records exactly `gap` apart are in one session. Its `window_start` is the time of its first record, its
        `window_end` that of its last one plus `gap`; it is emitted once, when the watermark has passed its end. A
        record that comes between two open sessions makes one of them. `on` and `late` are those of `window`: a record
        is late if a session of this record alone would have been emitted.

        `first` and `last` go by the order of arrival within a pane, which is as long as the gap.

        Example:

            >>> keyed = orders.with_watermark("at", "10 s").key_by("user")
            >>> collect(keyed.session("30 s").count(), by="window_start")[-1]
            {'user': 'ada', 'window_start': 61000, 'window_end': 91000, 'count': 1}
        """
        return self._windowed("session", sessions_of(gap), on, late)

    def count_window(self, rows: int, *, state_ttl: Duration | None = None) -> CountWindowedStream:
        """Windows of `rows` records of a key, in the order in which they come; event time is not asked for.

        A window is emitted with its last record. One that is not full stays in the state, also at the end of a bounded
        input: a later run on the same checkpoints goes on with it. Without `state_ttl` each key is kept for good.

        With `state_ttl="1 day"`, a key without a record for one to two days is forgotten, together with its window that
        is not full (`num_windows_expired` in the metrics): by event time behind `with_watermark`, else by the clock.
        The trap: after a record of the far future none is forgotten before that time. `with_watermark` warns of it.

        Example:

            >>> collect(orders.key_by("user").count_window(2).aggregate(total=("sum", "amount")))
            [{'user': 'ada', 'total': 8}]
        """
        self._require_appends("count_window", "a record that was counted cannot be taken back; put it in front")
        require_count("count_window: rows", rows)
        return CountWindowedStream(self, CountWindows(rows), state_ttl)

    def _windowed(
        self, call: str, windows: WindowKind, on: str | None, late: Late, emission: Emission = ON_CLOSE
    ) -> WindowedStream:
        self._require_appends(call, f"use aggregate with sum, count or mean, or put the {call} in front")
        require_choice(f"{call}: late", late, "drop", "error", "stream")
        column = on or self._event_time
        if column is None:
            raise PipelineError(
                f'{call} needs event time: call with_watermark("…", "10 s") behind the source, or name its '
                f'column with on="…" if the source makes its own watermarks'
            )
        return WindowedStream(self, windows, column, late, emission)

    def _require_columns(self, call: str) -> None:
        """Refuse a call that makes no sense for one group of all records."""
        if self._is_one_group:
            raise PipelineError(f'{call} needs the columns of a key, and key_by() names none: use key_by("id")')
