"""Side outputs of users' functions: declared, emitted to, read, and part of checkpoints."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from penstock import BatchFunction, KeyedFunction, Pipeline, SideOutput, Stream, TwoInputFunction
from penstock.errors import DataError, PipelineError
from penstock.testing import ABORT, CHECKPOINT, CollectSink, ListSource, run

ROWS = [{"k": n % 3, "n": n} for n in range(30)]
ODD = {"odd": "n bigint"}


def source(pipeline: Pipeline | None = None, name: str | None = None) -> Stream:
    items = [*ROWS[:12], CHECKPOINT, *ROWS[12:20], ABORT(), *ROWS[20:]]
    return (pipeline or Pipeline("sides")).source(ListSource(items), name=name)


def both(stream: Stream) -> tuple[list[int], list[int]]:
    main, odd = CollectSink(), CollectSink()
    stream.sink(main)
    stream.side_output("odd").sink(odd)
    assert run(stream.pipeline).restarts == 1
    return sorted(row["n"] for row in main.rows()), sorted(row["n"] for row in odd.rows())


class Split(KeyedFunction):
    side_outputs = ODD

    def process(self, key: Any, rows: Any, context: Any) -> Any:
        for n in rows["n"].to_pylist():
            if n % 2:
                context.emit("odd", {"n": n})
            else:
                yield pa.record_batch({"n": [n]})


class SplitOnTimer(KeyedFunction):
    def open(self, context: Any) -> None:
        self.seen = context.list("seen", "n bigint")

    def process(self, key: Any, rows: Any, context: Any) -> None:
        self.seen.append_list([(n,) for n in rows["n"].to_pylist()])
        context.set_timer(4_000_000_000_000)

    def on_timer(self, key: Any, at: int, context: Any) -> Any:
        seen = [n for (n,) in self.seen.get()]
        context.emit("odd", [{"n": n} for n in seen if n % 2])
        return pa.record_batch({"n": [n for n in seen if n % 2 == 0]})


class SplitBatch(BatchFunction):
    def process_batch(self, batch: pa.RecordBatch, context: Any) -> Any:
        odd = pa.array([n % 2 == 1 for n in batch["n"].to_pylist()])
        context.emit("odd", batch.select(["n"]).filter(odd))
        return batch.select(["n"]).filter(pa.compute.invert(odd))


class SplitTwo(TwoInputFunction):
    def process_left(self, batch: pa.RecordBatch, context: Any) -> Any:
        return SplitBatch.process_batch(self, batch, context)  # type: ignore[arg-type]

    def process_right(self, batch: pa.RecordBatch, context: Any) -> Any:
        return None


def split_rows(row: dict[str, int]) -> Any:
    return SideOutput("odd", {"n": row["n"]}) if row["n"] % 2 else [{"n": row["n"]}]


def split_batches(batch: pa.RecordBatch) -> Any:
    odd = pa.array([n % 2 == 1 for n in batch["n"].to_pylist()])
    yield SideOutput("odd", batch.select(["n"]).filter(odd))
    yield batch.select(["n"]).filter(pa.compute.invert(odd))


def connected() -> Stream:
    stream = source()
    none = stream.filter(lambda row: False, format="rows", name="none").key_by("k")
    return stream.key_by("k").connect(none).process(SplitTwo(), side_outputs=ODD)


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(lambda: source().key_by("k").process(Split()), id="KeyedFunction, by its class"),
        pytest.param(lambda: source().key_by("k").process(SplitOnTimer(), side_outputs=ODD), id="on_timer"),
        pytest.param(lambda: source().key_by("k").process(SplitBatch(), side_outputs=ODD), id="BatchFunction"),
        pytest.param(connected, id="TwoInputFunction"),
        pytest.param(lambda: source().flat_map(split_rows, format="rows", side_outputs=ODD), id="flat_map of rows"),
        pytest.param(lambda: source().flat_map(split_batches, side_outputs=ODD), id="flat_map of batches"),
    ],
)
def test_each_record_is_in_one_of_the_outputs_once_through_a_crash(made: Any) -> None:
    assert both(made()) == (list(range(0, 30, 2)), list(range(1, 30, 2)))


def test_a_failed_call_emits_to_no_side_output() -> None:
    class Failing(KeyedFunction):
        side_outputs = ODD

        def process(self, key: Any, rows: Any, context: Any) -> Any:
            for n in rows["n"].to_pylist():
                context.emit("odd", {"n": n})
                if n == 5:
                    raise ValueError("five")

    stream = source().key_by("k").process(Failing(), schema="n bigint", on_error="drop")
    assert both(stream) == ([], [n for n in range(30) if n != 5])


def test_a_name_that_was_not_declared_is_told_with_those_that_were() -> None:
    stream = source().flat_map(lambda row: SideOutput("even", row), format="rows", side_outputs=ODD)
    stream.sink(CollectSink())
    stream.side_output("odd").sink(CollectSink())
    with pytest.raises(
        DataError, match=r"side output 'even' is not declared; the declared ones are: 'odd'. Declare it with its schema"
    ):
        run(stream.pipeline)


def test_records_of_another_schema_are_refused() -> None:
    stream = source().flat_map(lambda row: SideOutput("odd", {"m": 1}), format="rows", side_outputs=ODD)
    stream.sink(CollectSink())
    stream.side_output("odd").sink(CollectSink())
    with pytest.raises(DataError, match=r"side output 'odd' of operator 'flat_map.*fields m"):
        run(stream.pipeline)


def test_a_side_output_is_read_where_it_is_declared_and_must_be_read() -> None:
    stream = source().flat_map(split_rows, format="rows", side_outputs=ODD, name="split")
    with pytest.raises(PipelineError, match=r'side_output\("even"\): \'split\' has no such output.*side_outputs='):
        stream.side_output("even")
    stream.sink(CollectSink())
    with pytest.raises(PipelineError, match=r'the output \'odd\' of \'split\' is not read.*\.side_output\("odd"\)'):
        run(stream.pipeline)


@pytest.mark.parametrize("name", ["main", "dead_letters", "late", "", 3])
def test_names_that_mean_something_else_are_refused(name: Any) -> None:
    with pytest.raises(PipelineError, match="a side output is named"):
        source().flat_map(split_rows, format="rows", side_outputs={name: "n bigint"})
