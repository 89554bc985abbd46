"""Keyed streams in windows of event time: what `KeyedStream.window` returns."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from penstock.api.arguments import (
    Output,
    aggregates_of,
    masks_of,
    outputs_besides,
    require_columns,
    require_count,
    require_sequence,
)
from penstock.errors import PipelineError
from penstock.graph.logical import Keeps
from penstock.ids import LATE
from penstock.model.aggregates import columns_of, kept_for, outputs_of
from penstock.model.units import Duration, duration_ms
from penstock.model.windows import (
    ON_CLOSE,
    WINDOW_END,
    WINDOW_START,
    CountWindows,
    Emission,
    FixedWindows,
    Late,
    WindowKind,
)
from penstock.operators.windows.count_window import CountWindowOperator
from penstock.operators.windows.window import WindowOperator
from penstock.operators.windows.window_top import WindowTopOperator

if TYPE_CHECKING:
    from penstock.api.grouped_stream import GroupedStream
    from penstock.api.stream import Stream


class WindowedStream:
    """A keyed stream divided into event-time windows, to be aggregated."""

    def __init__(
        self, stream: GroupedStream, windows: WindowKind, on: str, late: Late, emission: Emission = ON_CLOSE
    ) -> None:
        self.stream = stream
        self.windows = windows
        self._on = on
        self._late: Late = late
        self._emission = emission

    def __repr__(self) -> str:
        return f"<WindowedStream of {self.windows} over {self.stream!r}>"

    def aggregate(
        self, *, sequence: str | None = None, name: str | None = None, parallelism: int | None = None, **outputs: Output
    ) -> Stream:
        """Aggregates by key and window, columnar: `aggregate(total=("sum", "amount"), orders="count")`.

        Functions are those of `KeyedStream.aggregate`. There is one row for each key that had records in a window:
        the key, `window_start` and `window_end` (which is not part of the window) in the type of the event time, and
        the outputs. It is emitted once, when the watermark reaches the end of the window, or the input ends.

        Early results, and late records that `allowed_lateness` admits, make a stream of updates, of which the last one
        for a key and window counts. `sequence="version"` adds an int64 column that says which one is newer: the number
        of records that the row is made of.

        `first` and `last` go by the order of arrival, in windows that overlap only within a pane: a stretch of the
        greatest length of which both `size` and `every` are multiples.

        Example:

            >>> windows = orders.with_watermark("at", "10 s").key_by("user").window("1 min")
            >>> collect(windows.aggregate(total=("sum", "amount"), orders="count"), by="window_start")[-1]
            {'user': 'ada', 'window_start': 60000, 'window_end': 120000, 'total': 5, 'orders': 1}
        """
        key = self.stream.key
        require_sequence("aggregate", sequence)
        if sequence is not None:
            outputs = {**outputs_besides(sequence, outputs), sequence: "count"}
        aggregates = aggregates_of((*key, WINDOW_START, WINDOW_END), outputs)
        masks = masks_of(outputs)
        made = functools.partial(WindowOperator, self.windows, self._on, aggregates, self._late, self._emission, masks)
        # What has the event time of a result is for its reader to say: see docs/internals/decisions/0020.
        has_late = self._late == "stream"
        settings = {
            "windows": str(self.windows).removeprefix("windows of "),
            "event-time column": self._on,
            "aggregates": kept_for(aggregates),
        }
        stream = self.stream._node(
            "window",
            made,
            name,
            parallelism,
            outputs_of(aggregates),
            keeps=Keeps.KEYS,
            definition=tuple(settings.items()),
            # A late record leaves with all its columns, and a condition may read any: all of them must come here.
            reads=None if has_late or masks else (self._on, *columns_of(aggregates)),
            side_outputs=(LATE,) if has_late else (),
        )
        return stream._timed(None)

    def count(
        self,
        output: str = "count",
        *,
        sequence: str | None = None,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """The number of records of each key in each window: see `aggregate`.

        Example:

            >>> len(collect(orders.with_watermark("at", "10 s").key_by("user").window("1 min").count()))
            3
        """
        outputs: dict[str, Output] = {output: "count"}
        return self.aggregate(sequence=sequence, name=name, parallelism=parallelism, **outputs)

    def sum(
        self,
        column: str,
        output: str | None = None,
        *,
        sequence: str | None = None,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """The sum of a column for each key and window: see `aggregate`.

        Example:

            >>> windows = orders.with_watermark("at", "10 s").key_by("user").window("2 min")
            >>> collect(windows.sum("amount", "total"), by="user")[0]
            {'user': 'ada', 'window_start': 0, 'window_end': 120000, 'total': 8}
        """
        outputs: dict[str, Output] = {output or column: ("sum", column)}
        return self.aggregate(sequence=sequence, name=name, parallelism=parallelism, **outputs)

    def top(
        self,
        count: int,
        *,
        by: str,
        descending: bool = True,
        rank: str | None = None,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """The first `count` records of each key and window by a column: the largest, unless `descending=False`.

        They are emitted once, when the window is complete, with all their columns, `window_start`, `window_end` and,
        with `rank="rank"`, their place from 1. Of equal values the record that came first is first; nulls come last.

        Example:

            >>> windows = orders.with_watermark("at", "10 s").key_by("user").window("2 min")
            >>> collect(windows.top(1, by="amount", rank="rank"), by="user")[0]["amount"]
            5
        """
        require_count("top: count", count)
        require_columns("top: by", (by,) if rank is None else (by, rank))
        if not isinstance(self.windows, FixedWindows):
            raise PipelineError(f"top needs windows of a fixed size, and these are {self.windows}")
        if self._emission != ON_CLOSE or self.windows.lateness_ms:
            raise PipelineError(
                "window(…).top emits a window once, when it is complete: leave out emit= and allowed_lateness="
            )
        made = functools.partial(
            WindowTopOperator,
            self.windows,
            self._on,
            self._late,
            count=count,
            by=by,
            descending=descending,
            rank=rank,
        )
        settings = {
            "windows": str(self.windows).removeprefix("windows of "),
            "event-time column": self._on,
            "top": f"{count} by {by} {'descending' if descending else 'ascending'}",
        }
        stream = self.stream._node(
            "window",
            made,
            name,
            parallelism,
            settings["top"],
            keeps=Keeps.KEYS,
            definition=tuple(settings.items()),
            side_outputs=(LATE,) if self._late == "stream" else (),
        )
        return stream._timed(None)


class CountWindowedStream:
    """A keyed stream divided into windows of a fixed number of records, to be aggregated."""

    def __init__(self, stream: GroupedStream, windows: CountWindows, state_ttl: Duration | None = None) -> None:
        self.stream = stream
        self.windows = windows
        self._ttl_ms = None if state_ttl is None else duration_ms("count_window: state_ttl", state_ttl, at_least_ms=1)

    def __repr__(self) -> str:
        return f"<CountWindowedStream of {self.windows} over {self.stream!r}>"

    def aggregate(self, *, name: str | None = None, parallelism: int | None = None, **outputs: Output) -> Stream:
        """Aggregates by key and window, with the functions of `KeyedStream.aggregate`: the key, and the outputs.

        Example:

            >>> windows = orders.key_by("user").count_window(1)
            >>> collect(windows.aggregate(largest=("max", "amount")), by="largest")[0]
            {'user': 'ben', 'largest': -1}
        """
        aggregates = aggregates_of(self.stream.key, outputs)
        masks = masks_of(outputs)
        on = None if self._ttl_ms is None else self.stream._event_time
        made = functools.partial(CountWindowOperator, self.windows, aggregates, masks, self._ttl_ms, on)
        settings = {"windows": str(self.windows).removeprefix("windows of "), "aggregates": kept_for(aggregates)}
        return self.stream._node(
            "count_window",
            made,
            name,
            parallelism,
            outputs_of(aggregates),
            keeps=Keeps.KEYS,
            definition=tuple(settings.items()),
            reads=None if masks else (*columns_of(aggregates), *(() if on is None else (on,))),
        )

    def sum(
        self, column: str, output: str | None = None, *, name: str | None = None, parallelism: int | None = None
    ) -> Stream:
        """The sum of a column for each key and window: see `aggregate`.

        Example:

            >>> collect(orders.key_by("user").count_window(2).sum("amount", "total"))
            [{'user': 'ada', 'total': 8}]
        """
        outputs: dict[str, Output] = {output or column: ("sum", column)}
        return self.aggregate(name=name, parallelism=parallelism, **outputs)
