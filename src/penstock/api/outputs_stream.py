"""The methods of a stream that read other outputs of its operator, and that make a table of a changelog."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Literal

from penstock.api.arguments import require_choice, require_columns
from penstock.api.function_stream import FunctionStream
from penstock.errors import PipelineError
from penstock.graph.edges import side_ports
from penstock.ids import DEAD_LETTERS, LATE, LATE_OF_SIDE
from penstock.operators.keyed.retract import UpsertOperator

if TYPE_CHECKING:
    from penstock.api.stream import Stream


class OutputsStream(FunctionStream):
    """Side outputs and changelogs."""

    def dead_letters(self) -> Stream:
        """The stream of records that the source or function of this stream could not process.

        A source has it with `on_error="dead_letter"`, a function with `on_error="stream"`. Its columns are `operator`,
        `path`, `line` (or row, from 1), `offset` (in bytes), `raw` and `reason`. Of a function, `path` and `line` are
        the line of code that raised, and `raw` is the record as JSON.

        Example:

            >>> source = FileSource("/data/in", format="jsonl", schema="n bigint", on_error="dead_letter")
            >>> read = Pipeline("readings").source(source, name="read")
            >>> read.dead_letters()
            <Stream of pipeline 'readings' behind 'read'>
        """
        cure = 'set on_error="dead_letter" there if it is a source, on_error="stream" if it calls a function'
        return self._stream(side_ports(self.pipeline._nodes, self._ports, DEAD_LETTERS, cure))

    def side_output(self, output: str) -> Stream:
        """The stream of a side output of this stream's function: `side_outputs={"name": schema}`.

        Example:

            >>> def split(row):
            ...     yield SideOutput("refunds", {"amount": row["amount"]}) if row["amount"] < 0 else row
            >>> split = orders.flat_map(split, format="rows", side_outputs={"refunds": "amount bigint"})
            >>> paid, refunds = CollectSink(), CollectSink()
            >>> _ = split.sink(paid), split.side_output("refunds").sink(refunds)
            >>> _ = run(split.pipeline)
            >>> len(paid.rows()), refunds.rows()
            (2, [{'amount': -1}])

        The schema must have all columns of the records. A side output that nobody reads is a `PipelineError`, and one
        that was not declared a `DataError` in the call that emits to it.
        """
        cure = f'declare it there: side_outputs={{"{output}": "…"}}'
        return self._stream(side_ports(self.pipeline._nodes, self._ports, output, cure))

    def late(self, side: Literal["left", "right"] | None = None) -> Stream:
        """The stream of records that arrived after their windows had been emitted: `window(…, late="stream")`.

        Of a join with `late="stream"`, `late("left")` and `late("right")` are the late records of its two sides.

        Example:

            >>> windows = orders.with_watermark("at", 0).key_by("user").window("1 min", late="stream")
            >>> windows.count(name="counts").late()
            <Stream of pipeline 'orders' behind 'counts'>
        """
        if side is not None:
            require_choice("late: side", side, *LATE_OF_SIDE)
        output = LATE if side is None else LATE_OF_SIDE[side]
        cure = 'set late="stream" in the call of window or over; of a join, read late("left") and late("right")'
        late = self._stream(side_ports(self.pipeline._nodes, self._ports, output, cure))
        return late._without_group() if any(port.beside for port in self._ports) else late

    def to_upsert(self, *key: str, name: str | None = None, parallelism: int | None = None) -> Stream:
        """One change for each key instead of deletes and inserts: what a table by `key` needs.

        Of the changes of a key in a batch there is one left, with `op` "insert", "update" (the row was there, and is
        another now) or "delete" (the last row of the key as it was). `key` names the columns that a row of the
        result is known by, such as the key and the rank of `top`. All changes of a key must come from one subtask, as
        they do right behind the operator that makes them.

        Example:

            >>> best = orders.key_by("user").top(1, by="amount", rank="rank").to_upsert("user", "rank")
            >>> collect(best.select("user", "amount", "op"), by="user")
            [{'user': 'ada', 'amount': 5, 'op': 'insert'}, {'user': 'ben', 'amount': -1, 'op': 'insert'}]
        """
        require_columns("to_upsert", key)
        if self._changelog != "retracting":
            raise PipelineError(
                "to_upsert: the stream is not a changelog of inserts and deletes: call it behind "
                'top, aggregate(emit="changelog") or DeltaSource(changes=True)'
            )
        stream = self._node("to_upsert", functools.partial(UpsertOperator, key), name, parallelism)
        return stream._as_changelog("upserting")
