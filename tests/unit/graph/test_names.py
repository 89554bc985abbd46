"""Names of operators that have none of their user's: nobody gets the state of another, whatever is put in front."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import (
    FileSource,
    GeneratorSource,
    KeyedFunction,
    ParquetSink,
    Pipeline,
    PipelineError,
    Stream,
    TwoInputFunction,
)
from penstock.connectors.sink import Committer, Sink, SinkWriter
from penstock.graph.logical import Node
from penstock.ids import Generation
from penstock.testing import CollectSink, ListSource

ROWS = [{"k": "a", "j": 1, "v": 1, "t": 1_000}]


def same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def other(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def third(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


class Mine(KeyedFunction):
    def process(self, key: Any, rows: Any, context: Any) -> None:
        return None


class Yours(Mine):
    pass


class Meeting(TwoInputFunction):
    def process_left(self, batch: Any, context: Any) -> Any:
        return batch

    def process_right(self, batch: Any, context: Any) -> Any:
        return None


def source(name: str | None = None) -> tuple[Pipeline, Stream]:
    pipeline = Pipeline("p")
    return pipeline, pipeline.source(ListSource(ROWS), name=name)


def nodes_of(*branches: Callable[[Stream], Stream]) -> tuple[Node, ...]:
    """Of a pipeline with one source, and these branches behind it."""
    pipeline, stream = source()
    for number, branch in enumerate(branches):
        branch(stream).sink(CollectSink(), name=f"output {number}")
    return pipeline.graph().nodes


def names_of(*branches: Callable[[Stream], Stream]) -> set[str]:
    return {node.name for node in nodes_of(*branches)}


def name_of(kind: str, *branches: Callable[[Stream], Stream]) -> str:
    (name,) = [node.name for node in nodes_of(*branches) if node.kind == kind]
    return name


STATEFUL: dict[str, Callable[[Stream], Stream]] = {
    "count": lambda s: s.key_by("k").count(),
    "count by another key": lambda s: s.key_by("j").count(),
    "count of another name": lambda s: s.key_by("k").count("clicks"),
    "sum": lambda s: s.key_by("k").sum("v"),
    "reduce": lambda s: s.key_by("k").reduce(lambda row, next_row: next_row),
    "process": lambda s: s.key_by("k").process(Mine),
    "process with another class": lambda s: s.key_by("k").process(Yours()),
    "map_async": lambda s: s.map_async(same),
    "map_async of another function": lambda s: s.map_async(other),
    "window": lambda s: s.key_by("k").window("1 s", on="t").count(),
    "window of another size": lambda s: s.key_by("k").window("2 s", on="t").count(),
    "count of counts": lambda s: s.key_by("k").count().key_by("k").count(),
}

STATELESS: tuple[Callable[[Stream], Stream], ...] = (
    lambda s: s.map(same),
    lambda s: s.filter(pc.field("v") > 0),
    lambda s: s.rebalance(),
    lambda s: s.map_async(third),
    lambda s: s.with_watermark("t", "1 s"),
)


class TestState:
    def test_an_operator_put_in_front_takes_no_name_away(self) -> None:
        before = name_of("aggregate", STATEFUL["count"])
        both = names_of(STATEFUL["count by another key"], STATEFUL["count"])
        assert before in both

    @given(st.lists(st.sampled_from(sorted(STATEFUL)), unique=True, min_size=1), st.randoms(use_true_random=False))
    @settings(max_examples=60, deadline=None)
    def test_no_order_and_no_company_changes_a_name(self, chosen: list[str], drawn: random.Random) -> None:
        if {"count", "count of counts"} <= set(chosen):
            chosen.remove("count")  # the count in front of the other count is the same operator
        alone = {what: names_of(STATEFUL[what]) for what in chosen}
        drawn.shuffle(chosen)
        together = names_of(*(STATEFUL[what] for what in chosen))
        for what in chosen:
            assert {name for name in alone[what] if not name.startswith("output")} <= together

    @given(st.sampled_from(sorted(STATEFUL)), st.lists(st.sampled_from(STATELESS), unique=True, max_size=3))
    @settings(max_examples=60, deadline=None)
    def test_operators_without_keys_in_front_change_no_name(
        self, what: str, before: list[Callable[[Stream], Stream]]
    ) -> None:
        def prepared(stream: Stream) -> Stream:
            for step in before:
                stream = step(stream)
            return STATEFUL[what](stream)

        names = {node.name for node in nodes_of(STATEFUL[what]) if node.kind not in ("sink", "map")}
        assert names <= names_of(prepared)

    @pytest.mark.parametrize("what", sorted(STATEFUL.keys() - {"count of counts"}))
    def test_two_that_nothing_tells_apart_are_refused_with_their_lines(self, what: str) -> None:
        def filtered(stream: Stream) -> Stream:
            return STATEFUL[what](stream.filter(pc.field("v") > 0))

        with pytest.raises(PipelineError, match=r"2 unnamed operators are the same .*test_names\.py:\d+ and test_nam"):
            nodes_of(STATEFUL[what], filtered)

    def test_one_of_two_may_stay_without_a_name(self) -> None:
        before = name_of("aggregate", STATEFUL["count"])
        named = names_of(lambda s: s.key_by("k").count(name="new"), STATEFUL["count"])
        assert {before, "new"} <= named

    def test_a_derived_name_can_be_given(self) -> None:
        before = name_of("aggregate", STATEFUL["count"])
        with pytest.raises(PipelineError, match=f"'{before}' is also the derived name of an unnamed aggregate"):
            nodes_of(STATEFUL["count"], lambda s: s.key_by("k").sum("v", name=before))
        behind = names_of(lambda s: s.key_by("k").count(name=before).key_by("k").count())
        assert behind == names_of(STATEFUL["count of counts"])

    def test_a_name_tells_what_it_is_of(self) -> None:
        assert name_of("aggregate", STATEFUL["count"]).startswith("aggregate-k-")
        assert name_of("source", STATEFUL["count"]).startswith("source-ListSource-")

    def test_another_column_of_event_time_is_under_the_same_name(self) -> None:
        names = [name_of("with_event_time", lambda s, c=c: s.with_watermark(c, 0)) for c in ("t", "v")]
        assert names[0] == names[1]

    def test_two_columns_of_event_time_are_told_apart(self) -> None:
        assert len(names_of(*(lambda s, c=c: s.with_watermark(c, 0) for c in ("t", "v")))) == 5

    def test_inputs_of_a_connection_count(self) -> None:
        def connected(swap: bool) -> str:
            pipeline, one = source("one")
            two = pipeline.source(ListSource(ROWS), name="two").key_by("k")
            left, right = (two, one.key_by("k")) if swap else (one.key_by("k"), two)
            left.connect(right).process(Meeting).sink(CollectSink())
            return next(node.name for node in pipeline.graph().nodes if node.kind == "connect")

        assert connected(False) != connected(True)


class TestOthers:
    def test_equals_without_state_are_numbered_and_an_added_one_changes_all_names(self) -> None:
        def maps(count: int) -> set[str]:
            pipeline, stream = source()
            parts = [stream.map(same) for _ in range(count)]
            parts[0].union(*parts[1:]).sink(CollectSink())
            return {node.name for node in pipeline.graph().nodes if node.kind == "map"}

        assert len(maps(2)) == 2
        assert len(maps(3)) == 3
        assert not maps(2) & maps(3)

    def test_equals_without_state_are_told_apart_by_what_is_behind(self) -> None:
        branches = [lambda s: s.map(same).key_by("k").count(), lambda s: s.map(other).key_by("j").count()]

        def maps_of(*branches: Callable[[Stream], Stream]) -> dict[str, str]:
            nodes = nodes_of(*branches)
            names = [node.name for node in nodes if node.kind == "map"]
            return dict(zip((node.name for node in nodes if node.kind == "aggregate"), names, strict=True))

        assert maps_of(*branches) == maps_of(*reversed(branches))


class Own(Sink):
    def writer(self, subtask: int, generation: Generation) -> SinkWriter:
        raise NotImplementedError

    def committer(self) -> Committer:
        raise NotImplementedError


class TestSourcesAndSinks:
    def test_a_source_is_known_by_what_it_reads(self, tmp_path: Any) -> None:
        def names(*directories: str) -> dict[str, str]:
            pipeline = Pipeline("p")
            for directory in directories:
                made = FileSource(str(tmp_path / directory), format="jsonl", watch=True)
                pipeline.source(made).sink(CollectSink())
            sources = [node for node in pipeline.graph().nodes if node.source is not None]
            return {dict(node.definition)["directory"]: node.name for node in sources}

        assert names("a").items() <= names("b", "a").items()

    def test_two_sources_that_nothing_tells_apart_are_refused(self) -> None:
        pipeline = Pipeline("p")
        one, two = (pipeline.source(GeneratorSource(lambda numbers: {"n": numbers})) for _ in range(2))
        one.union(two).sink(CollectSink())
        with pytest.raises(
            PipelineError, match=r"2 unnamed operators are the same source .*positions are found by name"
        ):
            pipeline.graph()

    def test_a_sink_is_known_by_where_it_writes(self, tmp_path: Any) -> None:
        def names(*directories: str) -> dict[str, str]:
            pipeline, stream = source()
            for directory in directories:
                stream.map(same).sink(ParquetSink(str(tmp_path / directory)))
            sinks = [node for node in pipeline.graph().nodes if node.sink is not None]
            return {dict(node.definition)["directory"]: node.name for node in sinks}

        assert names("a").items() <= names("b", "a").items()

    def test_two_sinks_with_output_to_publish_that_nothing_tells_apart_are_refused(self) -> None:
        pipeline, stream = source()
        stream.filter(pc.field("v") > 0).sink(Own())
        stream.sink(Own())
        with pytest.raises(PipelineError, match=r"2 unnamed operators are the same sink .*output is found by name"):
            pipeline.graph()

    def test_sinks_on_different_streams_are_told_apart_by_these(self) -> None:
        pipeline, stream = source("one")
        stream.sink(Own())
        pipeline.source(ListSource(ROWS), name="two").sink(Own())
        assert len({node.name for node in pipeline.graph().nodes}) == 4

    def test_collecting_sinks_need_no_names(self) -> None:
        pipeline, stream = source()
        stream.sink(CollectSink())
        stream.sink(CollectSink())
        assert len({node.name for node in pipeline.graph().nodes}) == 3


def test_a_name_is_the_same_in_every_version() -> None:
    """A checkpoint is found by it: what goes into an identity can not change any more."""
    branches = (STATEFUL[what] for what in sorted(STATEFUL) if what != "count of counts")
    assert {node.name for node in nodes_of(*branches) if node.kind != "sink"} == {
        "aggregate-j-f5c60772",
        "aggregate-k-3fa48e1c",
        "aggregate-k-8c2369d3",
        "aggregate-k-ca498e96",
        "map_async-52ffe07f",
        "map_async-a4029142",
        "process-k-b4f4e5b7",
        "process-k-d4358919",
        "reduce-k-1e3f91c9",
        "source-ListSource-c9dd56db",
        "window-k-7be6a00a",
        "window-k-f74c56e2",
    }
