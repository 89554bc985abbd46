"""A pipeline is compared with its checkpoint whole before anything starts: each change, on the real engine.

Every test takes a checkpoint with one version of a pipeline, kills it, and starts another version on the same store.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.connectors.collect import CollectSink
from penstock.connectors.files import FileSource
from penstock.connectors.files.filesystem import address_of
from penstock.connectors.generator import GeneratorSource
from penstock.connectors.memory import PAUSE, ListSource
from penstock.errors import IncompatibleCheckpoint
from penstock.operators.keyed.functions import KeyedFunction, TwoInputFunction
from penstock.pipeline import Pipeline
from penstock.protocol.manifest import Manifest, committables_of
from penstock.storage import MemoryStore
from tests.unit.driver.changed_pipelines import (
    UnmarkedStore,
    again,
    killed_when,
    newest,
    refusal,
    rows_in_flight,
)


def numbers(start: int, count: int) -> pa.RecordBatch:
    values = list(range(start, start + count))
    return pa.record_batch({"a": values, "b": [value * 7919 % 1000 for value in values]})


ENDLESS = GeneratorSource(numbers, splits=2)


def slow(batch: Any, _: Any = None) -> Any:
    time.sleep(0.0005 * batch.num_rows)
    return batch


def in_flight(manifest: Manifest) -> bool:
    return rows_in_flight(manifest) > 0


def has_state(manifest: Manifest) -> bool:
    return any(report.states for report in manifest.reports)


class Counts(KeyedFunction):
    """Counts rows by key, or not yet."""

    def __init__(self, is_counting: bool = True) -> None:
        self.is_counting = is_counting

    def open(self, context: Any) -> None:
        self.count = context.value("count", "n bigint")

    def process(self, key: Any, rows: Any, context: Any) -> Any:
        slow(rows)
        if self.is_counting:
            (n,) = self.count.get() or (0,)
            self.count.update((n + rows.num_rows,))


class Remembers(TwoInputFunction):
    """Keeps the last value of each side by key."""

    def open(self, context: Any) -> None:
        self.last = context.value("last", "n bigint")

    def process_left(self, batch: Any, context: Any) -> Any:
        for _, rows in context.each_key(batch):
            self.last.update((rows.num_rows,))

    process_right = process_left


# --- keys ---


def mapped(key: str) -> Pipeline:
    pipeline = Pipeline("p")
    pipeline.source(ENDLESS, name="read").key_by(key).map(slow, name="slow").sink(CollectSink(), name="out")
    return pipeline


def counted(*key: str, is_counting: bool = True) -> Pipeline:
    pipeline = Pipeline("p")
    keyed = pipeline.source(ENDLESS, name="read").key_by(*key)
    keyed.process(Counts(is_counting), name="count").sink(CollectSink(), name="out")
    return pipeline


def connected(left: str, right: str, function: Any = slow, *, is_swapped: bool = False) -> Pipeline:
    pipeline = Pipeline("p")
    streams = [pipeline.source(ENDLESS, name="one"), pipeline.source(ENDLESS, name="two")]
    one, two = reversed(streams) if is_swapped else streams
    one.key_by(left).connect(two.key_by(right)).process(function, name="both").sink(CollectSink(), name="out")
    return pipeline


class TestAnotherKey:
    def test_is_refused_with_records_in_flight(self) -> None:
        store = killed_when(mapped("a"), in_flight)
        error = refusal(mapped("b"), store)
        assert "in flight on the edge read->slow, whose key was (a) and is (b) here: put it back, or start" in str(
            error
        )

    def test_is_refused_in_flight_even_if_the_state_behind_is_empty(self) -> None:
        store = killed_when(counted("a", is_counting=False), in_flight)
        assert "whose key was (a) and is (b, a) here" in str(refusal(counted("b", "a"), store))

    def test_is_refused_in_flight_on_the_right_side_of_a_connection(self) -> None:
        def is_right_in_flight(manifest: Manifest) -> bool:
            return any(channel.edge.input == 1 for report in manifest.reports for channel in report.channels)

        store = killed_when(connected("a", "a"), is_right_in_flight)
        assert "two->both#1, whose key was (a) and is (b) here" in str(refusal(connected("a", "b"), store))

    def test_is_refused_with_keyed_state_on_either_side_of_a_connection(self) -> None:
        store = killed_when(connected("a", "a", Remembers()), has_state)
        assert "keyed by (a) on input 1, but here it is keyed by (b)" in str(
            refusal(connected("a", "b", Remembers()), store)
        )
        assert "keyed by (a), but here it is keyed by (b)" in str(refusal(connected("b", "a", Remembers()), store))

    def test_of_another_order_is_another_key(self) -> None:
        store = killed_when(counted("a", "b"), has_state)
        assert "keyed by (a, b), but here it is keyed by (b, a)" in str(refusal(counted("b", "a"), store))

    def test_is_allowed_if_nothing_is_in_flight_and_there_is_no_state(self) -> None:
        rows = [{"a": n, "b": n % 3} for n in range(100)]

        def pipeline(key: str, out: CollectSink, more: int = 0) -> Pipeline:
            described = Pipeline("p")
            source = described.source(ListSource(rows[: 50 + more]), name="read")
            source.key_by(key).map(lambda batch: batch, name="map").sink(out, name="out")
            return described

        store, first, second = MemoryStore(), CollectSink(), CollectSink()
        again(pipeline("a", first), store)
        again(pipeline("b", second, 50), store)
        assert sorted(row["a"] for row in [*first.rows(), *second.rows()]) == list(range(100))


def test_inputs_that_are_swapped_are_refused_with_state() -> None:
    store = killed_when(connected("a", "a", Remembers()), has_state)
    error = str(refusal(connected("a", "a", Remembers(), is_swapped=True), store))
    # Records may be in flight as well: either reason is one.
    assert "whose input 0 was 'one', which is input 1 here: connect the streams in the old order" in error


# --- output ---


def written(name: str, sink: CollectSink, more: int = 0) -> Pipeline:
    pipeline = Pipeline("p")
    rows = [{"k": n % 5, "n": n} for n in range(200 + more)]
    pipeline.source(ListSource(rows, batch_rows=10), name="read").sink(sink, name=name)
    return pipeline


class TestOutputOfASinkThatIsGone:
    def killed(self) -> MemoryStore:
        unmarked = killed_when(written("out", CollectSink()), lambda m: bool(committables_of(m)), store=UnmarkedStore())
        store = MemoryStore()
        for path in unmarked.list(""):
            store.create(path, unmarked.read(path))
        return store

    def test_is_refused_at_the_start_if_it_is_not_published(self) -> None:
        error = str(refusal(written("output", CollectSink()), self.killed()))
        assert "has output of sink 'out' that is not published yet, and this pipeline has no such sink" in error
        assert "put it back under that name" in error

    def test_is_published_with_the_old_name_and_then_the_sink_may_be_renamed(self) -> None:
        store, old, new = self.killed(), CollectSink(), CollectSink()
        again(written("out", old), store)
        again(written("output", new, more=50), store)
        assert sorted(row["n"] for row in [*old.rows(), *new.rows()]) == list(range(250))


# --- definitions ---

ROWS = [{"k": n % 5, "n": n, "m": 2 * n, "at": n, "seen": n} for n in range(100)]


def of_rows(build: Any, sink: Any = None, *, rows: int = 50, splits: int = 1, wait: bool = False) -> Pipeline:
    """`wait`: the source has its rows, and then nothing more for an hour."""
    pipeline = Pipeline("p")
    items = [*ROWS[:rows], *([PAUSE("1 hour")] if wait else [])]
    source = ListSource(items, splits=splits, batch_rows=10)
    build(pipeline.source(source, name="read")).sink(sink or CollectSink(), name="out")
    return pipeline


def is_open(manifest: Manifest) -> bool:
    """All fifty rows are read, none is in flight, and their windows are in the state."""
    offsets = [int(split.offset) for report in manifest.reports for split in report.splits]
    return sum(offsets) == 50 and rows_in_flight(manifest) == 0 and has_state(manifest)


def timed(column: str) -> Any:
    return lambda stream: stream.with_watermark(column, 0, name="time")


def windows(size_ms: int, every_ms: int | None = None, offset: Any = 0, on: str = "at", **outputs: Any) -> Any:
    def build(stream: Any) -> Any:
        window = stream.key_by("k").window(f"{size_ms} ms", every=f"{every_ms or size_ms} ms", offset=offset, on=on)
        return window.aggregate(name="windows", **(outputs or {"n": "count"}))

    return build


def aggregates(**outputs: Any) -> Any:
    return lambda stream: stream.key_by("k").aggregate(name="totals", **outputs)


CHANGES = {
    "the size of windows": (windows(10), windows(20), "windows was 10 ms every 10 ms from 0 ms and is 20 ms every 20"),
    "the slide of windows": (windows(20), windows(20, 10), "windows was 20 ms every 20 ms"),
    "the offset of windows": (windows(10), windows(10, offset="5 ms"), "and is 10 ms every 10 ms from 5 ms here"),
    "the event time of windows": (windows(10), windows(10, on="seen"), "event-time column was at and is seen here"),
    "the aggregates of windows": (windows(10), windows(10, n=("sum", "n")), "aggregates was count(*) and is sum(n)"),
    "an aggregate more": (
        aggregates(n=("sum", "n")),
        aggregates(n=("sum", "n"), m=("sum", "m")),
        "aggregates was sum(n) and is sum(m), sum(n) here",
    ),
    "the column of an aggregate": (
        aggregates(n=("sum", "n")),
        aggregates(n=("sum", "m")),
        "of operator 'totals', whose aggregates was sum(n) and is sum(m) here: put it back, or give it another name",
    ),
    "the event-time column": (timed("at"), timed("seen"), "of operator 'time', whose event-time column was at and is"),
    "the kind of an operator": (
        aggregates(n="count"),
        lambda stream: stream.key_by("k").process(Counts(), name="totals"),
        "of operator 'totals', whose operator was aggregate and is process here",
    ),
}


class TestADefinitionThatStateDependsOn:
    @pytest.mark.parametrize(("before", "after", "message"), CHANGES.values(), ids=CHANGES.keys())
    def test_cannot_change(self, before: Any, after: Any, message: str) -> None:
        store = MemoryStore()
        again(of_rows(before), store)
        assert message in str(refusal(of_rows(after, rows=100), store))

    def test_may_order_and_name_its_aggregates_anew_and_have_a_mean_for_sum_and_count(self) -> None:
        store, first, second = MemoryStore(), CollectSink(), CollectSink()
        again(of_rows(aggregates(total=("sum", "n"), rows=("count", "n"), top=("max", "m")), first), store)
        again(of_rows(aggregates(highest=("max", "m"), average=("mean", "n")), second, rows=100), store)
        last = {row["k"]: (row["highest"], row["average"]) for row in second.rows()}
        assert last == {k: (2 * (95 + k), sum(range(k, 100, 5)) / 20) for k in range(5)}

    def test_may_order_the_aggregates_of_windows_anew(self) -> None:
        first, second = CollectSink(), CollectSink()
        before, after = {"n": ("sum", "n"), "m": ("max", "m")}, {"m": ("max", "m"), "n": ("sum", "n")}
        store = killed_when(of_rows(windows(1000, **before), first, wait=True), is_open)
        again(of_rows(windows(1000, **after), second, rows=100), store)
        rows = {row["k"]: (row["m"], row["n"]) for row in second.rows()}
        assert rows == {k: (2 * (95 + k), sum(range(k, 100, 5))) for k in range(5)}


class TestPositionsOfASource:
    def test_belong_to_its_kind(self) -> None:
        store = MemoryStore()
        again(of_rows(lambda stream: stream), store)
        other = Pipeline("p")
        other.source(GeneratorSource(numbers, rows=5), name="read").sink(CollectSink(), name="out")
        assert "of source 'read', whose source was ListSource and is GeneratorSource here" in str(refusal(other, store))

    def test_of_a_list_belong_to_its_splits(self) -> None:
        store = MemoryStore()
        again(of_rows(lambda stream: stream), store)
        error = str(refusal(of_rows(lambda stream: stream, splits=2, rows=100), store))
        assert "whose splits was 1 and is 2 here" in error

    @staticmethod
    def generated(sink: CollectSink, **options: Any) -> Pipeline:
        pipeline = Pipeline("p")
        pipeline.source(GeneratorSource(numbers, **options), name="read").sink(sink, name="out")
        return pipeline

    def test_of_a_generator_belong_to_its_splits(self) -> None:
        store = MemoryStore()
        again(self.generated(CollectSink(), rows=100, splits=2), store)
        error = str(refusal(self.generated(CollectSink(), rows=100, splits=3), store))
        assert "whose splits was 2 and is 3 here" in error

    def test_of_a_generator_with_one_split_bear_more_rows(self) -> None:
        store, first, second = MemoryStore(), CollectSink(), CollectSink()
        again(self.generated(first, rows=100), store)
        again(self.generated(second, rows=150), store)
        assert sorted(row["a"] for row in [*first.rows(), *second.rows()]) == list(range(150))

    @staticmethod
    def files(directory: Path, sink: CollectSink, **options: Any) -> Pipeline:
        pipeline = Pipeline("p")
        source = FileSource(directory, format="jsonl", **options)
        pipeline.source(source, name="read").sink(sink, name="out")
        return pipeline

    def test_of_files_belong_to_their_directory_unless_the_files_were_moved(self, tmp_path: Path) -> None:
        for name, first in (("old", 1), ("other", 10)):
            (tmp_path / name).mkdir()
            (tmp_path / name / "part.jsonl").write_text(f'{{"n": {first}}}\n')
        store, sink = MemoryStore(), CollectSink()
        again(self.files(tmp_path / "old", CollectSink()), store)
        # The file of the other directory has the name of one that was read: it would be passed over in silence.
        error = str(refusal(self.files(tmp_path / "other", CollectSink()), store))
        assert f"whose directory was {tmp_path / 'old'} and is {tmp_path / 'other'} here: put it back" in error
        (tmp_path / "old").rename(tmp_path / "new")
        (tmp_path / "new" / "more.jsonl").write_text('{"n": 2}\n')
        again(self.files(tmp_path / "new", sink, moved_from=tmp_path / "old"), store)
        assert sink.rows() == [{"n": 2}]


def test_records_in_flight_are_of_the_declared_schema_of_their_sender() -> None:
    def pipeline(schema: str) -> Pipeline:
        described = Pipeline("p")
        declared = described.source(ENDLESS, name="read").map(lambda batch: batch, schema=schema, name="declare")
        declared.rebalance().map(slow, name="slow").sink(CollectSink(), name="out")
        return described

    store = killed_when(pipeline("a bigint, b bigint"), in_flight)
    error = str(refusal(pipeline("a bigint, b string"), store))
    assert "whose declared schema was (a: int64, b: int64) and is (a: int64, b: string) here" in error


def test_an_address_in_a_checkpoint_has_no_secrets() -> None:
    identity = FileSource("s3://key:secret@bucket/clicks/2024-*/x.jsonl", format="jsonl").identity()
    assert identity == {"source": "FileSource", "directory": "s3://bucket/clicks", "format": "jsonl"}
    assert address_of("https://me:word@host/way/?token=hidden") == "https://host/way"


# --- states ---


class Keeps(KeyedFunction):
    """Asks for the states that it is told to ask for, and writes to all of them."""

    opened = 0
    processed = 0

    def __init__(self, **states: Any) -> None:
        self.asks = states

    def open(self, context: Any) -> None:
        Keeps.opened += 1
        self.states = {name: ask(context, name) for name, ask in self.asks.items()}

    def process(self, key: Any, rows: Any, context: Any) -> Any:
        Keeps.processed += 1
        for state in self.states.values():
            if hasattr(state, "update_value"):
                state.update_value((1,), (2,))
            elif hasattr(state, "append_value"):
                state.append_value((3,))
            elif state is not None:
                state.update((4, *[None] * (len(state.get() or (4,)) - 1)))


def value(schema: str, **options: Any) -> Any:
    return lambda context, name: context.value(name, schema, **options)


def kept(function: Keeps, rows: int = 50, sink: Any = None) -> Pipeline:
    return of_rows(lambda stream: stream.key_by("k").process(function, name="keep"), sink, rows=rows)


OTHER_STATES = {
    "the type of a value": (
        value("n bigint"),
        value("n double"),
        "declared as value (n: int64) and is value (n: double)",
    ),
    "the name of a field": (
        value("n bigint"),
        value("m bigint"),
        "and is value (m: int64) here: state is not converted",
    ),
    "a nullable field more": (value("n bigint"), value("n bigint, m bigint"), "and is value (n: int64, m: int64) here"),
    "a time to live": (
        value("n bigint"),
        value("n bigint", ttl="1000 ms"),
        "was declared as value (n: int64) and is value",
    ),
    "the kind of a state": (
        value("n bigint"),
        lambda context, name: context.list(name, "n bigint"),
        "declared as value (n: int64) and is list (n: int64) here",
    ),
    "the schema of a map": (
        lambda context, name: context.map(name, "n bigint", "n bigint"),
        lambda context, name: context.map(name, "n bigint", "n double"),
        "declared as map (n: int64) to (n: int64) and is map (n: int64) to (n: double) here",
    ),
    "a state that nobody asks for": (
        value("n bigint"),
        lambda context, name: None,
        "has keyed state 'it' of operator 'keep', which does not have such a state any more: ask for it in open()",
    ),
}


class TestAStateThatIsDeclaredOtherwise:
    @pytest.mark.parametrize(("before", "after", "message"), OTHER_STATES.values(), ids=OTHER_STATES.keys())
    def test_ends_the_pipeline_at_once_before_anything_is_read(self, before: Any, after: Any, message: str) -> None:
        store = MemoryStore()
        again(kept(Keeps(it=before)), store)
        Keeps.opened = Keeps.processed = 0
        error = refusal(kept(Keeps(it=after), rows=100), store, restarts=10)
        assert message in str(error)
        assert isinstance(error, IncompatibleCheckpoint)
        # One attempt, in which each of two workers opened its subtask at most once: ten restarts would be twenty more.
        assert 1 <= Keeps.opened <= 2
        assert Keeps.processed == 0

    def test_may_be_deleted_for_another_one(self) -> None:
        store, sink = MemoryStore(), CollectSink()
        again(kept(Keeps(it=value("n bigint"))), store)
        deleted = Keeps(it=lambda context, name: context.delete_state(name), new=value("n double"))
        again(kept(deleted, rows=100, sink=sink), store)
        again(kept(Keeps(new=value("n double")), rows=100), store)

    def test_is_recorded_with_each_piece_of_state(self) -> None:
        store = MemoryStore()
        again(kept(Keeps(it=value("n bigint"))), store)
        manifest = newest(store)
        assert manifest is not None
        states = [piece for report in manifest.reports for piece in report.states if piece.name == "it"]
        assert {piece.declared for piece in states} == {"value (n: int64)"}


class TestAChangedKind:
    """Each is refused before the start, by what the user wrote, with a way out."""

    @staticmethod
    def aggregated(build: Any, rows: int = 20) -> Pipeline:
        pipeline = Pipeline("p")
        stream = pipeline.source(ListSource([{"k": n % 2, "v": n, "t": n} for n in range(rows)]), name="read")
        build(stream.with_watermark("t", 0, name="time").key_by("k")).sink(CollectSink(), name="out")
        return pipeline

    @pytest.mark.parametrize(
        ("now", "message"),
        [
            (lambda s: s.sum("v", name="n"), r"whose aggregates was count(*) and is sum(v) here: put it back"),
            (lambda s: s.window("1 s").count(name="n"), "whose operator was aggregate and is window here: put it back"),
            (
                lambda s: s.aggregate(count="count", total=("sum", "v"), name="n"),
                "whose aggregates was count(*) and is count(*), sum(v) here (sum(v) is new): put it back, and compute "
                "sum(v) in a second aggregation beside it, which starts from now, or give it another name",
            ),
        ],
    )
    def test_is_refused(self, now: Any, message: str) -> None:
        store = again(self.aggregated(lambda s: s.count(name="n")), MemoryStore()).store
        error = refusal(self.aggregated(now, 40), store)  # type: ignore[arg-type]
        assert message in str(error)
        assert "give it another name and set allow_dropped_state=True" in str(error)
        assert "Aggregate(" not in str(error) and "struct<" not in str(error)

    def test_an_aggregate_more_goes_into_a_second_aggregation_beside_the_old_one(self) -> None:
        """The way out that the refusal names: nothing is lost, and the new one starts from nothing."""

        def both(rows: int) -> tuple[Pipeline, CollectSink, CollectSink]:
            pipeline, counts, sums = Pipeline("p"), CollectSink(), CollectSink()
            stream = pipeline.source(ListSource([{"k": n % 2, "v": n, "t": n} for n in range(rows)]), name="read")
            keyed = stream.with_watermark("t", 0, name="time").key_by("k")
            keyed.count(name="n").sink(counts, name="out")
            keyed.sum("v", name="sums").sink(sums, name="sums out")
            return pipeline, counts, sums

        store = again(self.aggregated(lambda s: s.count(name="n")), MemoryStore()).store
        pipeline, counts, sums = both(40)
        again(pipeline, store)  # type: ignore[arg-type]
        assert max(row["count"] for row in counts.rows()) == 20
        assert max(row["v"] for row in sums.rows()) == sum(range(21, 40, 2))

    def test_of_a_source_that_keeps_its_identity_is_refused_when_it_reads_a_position(self) -> None:
        class Other(GeneratorSource):
            def identity(self) -> Any:
                return {"source": "ListSource", "splits": "1"}

        def read(source: Any) -> Pipeline:
            pipeline = Pipeline("p")
            pipeline.source(source, name="read").sink(CollectSink(), name="out")
            return pipeline

        store = again(read(ListSource([{"a": 1}])), MemoryStore()).store
        error = refusal(read(Other(numbers, splits=1, rows=10)), store)  # type: ignore[arg-type]
        assert isinstance(error, IncompatibleCheckpoint)
        assert "source 'read', a Other, cannot resume from position" in str(error)
