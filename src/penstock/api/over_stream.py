"""A keyed stream with frames: what `KeyedStream.over` returns."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from penstock.api.arguments import Output, aggregates_of, masks_of
from penstock.columnar.frames import FRAME_FUNCTIONS
from penstock.errors import PipelineError
from penstock.graph.logical import Keeps, OperatorFactory
from penstock.ids import LATE
from penstock.model.aggregates import Aggregate, kept_for, outputs_of
from penstock.model.over import Frame, RangeFrame, RowsFrame
from penstock.model.windows import Late
from penstock.operators.over.by_time import OverLastRowsOperator, OverRangeOperator
from penstock.operators.over.frames import OverRowsOperator

if TYPE_CHECKING:
    from penstock.api.keyed_stream import KeyedStream
    from penstock.api.stream import Stream


class OverStream:
    """A keyed stream whose records each have a frame of records before them: say what is to be known of it.

    Example:

        last_two = orders.key_by("customer").over(rows=2)
        last_two.aggregate(total=("sum", "amount")).sink(output)
        run(pipeline)
        assert [row["total"] for row in output.rows() if row["customer"] == "ann"] == [10, 40]
    """

    def __init__(self, stream: KeyedStream, frame: Frame, on: str | None, late: Late) -> None:
        self.stream = stream
        self._frame = frame
        self._on = on
        self._late: Late = late

    def __repr__(self) -> str:
        return f"<OverStream with {self._frame} over {self.stream!r}>"

    def aggregate(self, *, name: str | None = None, parallelism: int | None = None, **outputs: Output) -> Stream:
        """Each record with aggregates over its frame, columnar: `aggregate(total=("sum", "amount"), orders="count")`.

        Functions are sum, count, min, max, mean (also called avg), first and last. The result has all columns of the
        record, then the outputs. Nulls are left out, as in SQL.

        Example:

            >>> last_two = orders.key_by("user").over(rows=2).aggregate(total=("sum", "amount"))
            >>> [row["total"] for row in collect(last_two) if row["user"] == "ada"]
            [3, 8]
        """
        aggregates = aggregates_of(self.stream.key, outputs)
        if masks_of(outputs):
            raise PipelineError(
                "over: an aggregate of a frame cannot be filtered: aggregate a column made by "
                "with_column that is null in the records to leave out"
            )
        for each in aggregates:
            if each.function not in FRAME_FUNCTIONS:
                known = ", ".join(FRAME_FUNCTIONS)
                raise PipelineError(f"over: {each.output} is {each.function!r}: functions over frames are {known}")
        frame = f"{self._frame.rows} rows" if isinstance(self._frame, RowsFrame) else f"{self._frame.range_ms} ms"
        frame += "" if self._on is None else f" of {self._on}"
        settings = (("frames", frame), ("aggregates", kept_for(aggregates)))
        label = f"{outputs_of(aggregates)} over {frame}"
        sides = (LATE,) if self._late == "stream" and self._on is not None else ()
        return self.stream._node(
            "over",
            self._made(aggregates),
            name,
            parallelism,
            label,
            keeps=Keeps.KEYS,
            definition=settings,
            side_outputs=sides,
        )

    def _made(self, aggregates: list[Aggregate]) -> OperatorFactory:
        frame, on = self._frame, self._on
        if isinstance(frame, RangeFrame):
            assert on is not None
            return functools.partial(OverRangeOperator, aggregates, frame, on, self._late)
        if on is not None:
            return functools.partial(OverLastRowsOperator, aggregates, frame, on, self._late)
        return functools.partial(OverRowsOperator, aggregates, frame.rows)
