"""How a pipeline is described: names, links, and every mistake that can be found before anything runs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

from penstock import KeyedFunction, Pipeline, PipelineError, Stream, TwoInputFunction
from penstock.graph.logical import Graph, LogicalEdge
from penstock.graph.physical import plan
from penstock.ids import OperatorName
from penstock.protocol.manifest import Partitioning
from penstock.testing import CollectSink, ListSource

ROWS = [{"k": "a", "v": 1}, {"k": "b", "v": 2}]


def described(build: Callable[[Stream], Stream]) -> Graph:
    pipeline = Pipeline("p")
    build(pipeline.source(ListSource(ROWS))).sink(CollectSink())
    return pipeline.graph()


def numbered(graph: Graph, name: str) -> str:
    """The name by which version 0.1.0 knew an operator."""
    return graph.node(OperatorName(name)).former_name or name


def edges(graph: Graph) -> dict[str, Partitioning]:
    def name_of(edge: LogicalEdge) -> str:
        return f"{numbered(graph, edge.upstream)}->{numbered(graph, edge.downstream)}"

    return {name_of(edge): edge.partitioning for edge in graph.edges}


def chains(graph: Graph, parallelism: int) -> list[str]:
    return [numbered(graph, name) for name in plan(graph, parallelism).chains]


def same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


class Nothing(KeyedFunction):
    def process(self, key: Any, rows: Any, context: Any) -> None:
        return None


class Left(TwoInputFunction):
    def process_left(self, batch: Any, context: Any) -> Any:
        return batch

    def process_right(self, batch: Any, context: Any) -> Any:
        return None


# --- names ---


def test_former_names_count_by_kind() -> None:
    graph = described(
        lambda stream: stream.map(same, name="mine").filter(pc.field("v") > 0).map(same).key_by("k").count()
    )
    assert [node.former_name for node in graph.nodes] == [
        "source_1",
        None,
        "filter_1",
        "map_2",
        "aggregate_1",
        "sink_1",
    ]


def test_a_name_is_used_once() -> None:
    with pytest.raises(PipelineError, match="operator is named 'twice' already: give each operator a unique name"):
        described(lambda stream: stream.map(same, name="twice").map(same, name="twice"))


@pytest.mark.parametrize("name", ["", "  ", 7])
def test_a_name_is_a_text(name: Any) -> None:
    with pytest.raises(PipelineError, match="must be a string"):
        described(lambda stream: stream.map(same, name=name))
    with pytest.raises(PipelineError, match="must be a string"):
        Pipeline(name)


# --- links ---


def test_operators_of_equal_parallelism_are_one_chain() -> None:
    graph = described(lambda stream: stream.map(same).filter(same))
    assert set(edges(graph).values()) == {Partitioning.FORWARD}
    assert chains(graph, 3) == ["source_1"]


def test_another_parallelism_is_rebalanced() -> None:
    graph = described(lambda stream: stream.map(same, parallelism=2))
    assert edges(graph) == {"source_1->map_1": Partitioning.REBALANCE, "map_1->sink_1": Partitioning.REBALANCE}


def test_a_link_that_makes_no_chain_can_be_overtaken_on() -> None:
    pipeline = Pipeline("p")
    source = pipeline.source(ListSource(ROWS))
    source.map(same).sink(CollectSink())
    source.filter(same).sink(CollectSink())
    found = edges(pipeline.graph())
    assert found["source_1->map_1"] == found["source_1->filter_1"] == Partitioning.RESCALE
    assert found["map_1->sink_1"] == Partitioning.FORWARD


@pytest.mark.parametrize(
    ("method", "partitioning"),
    [
        ("rebalance", Partitioning.REBALANCE),
        ("shuffle", Partitioning.SHUFFLE),
        ("broadcast", Partitioning.BROADCAST),
        ("to_one", Partitioning.GLOBAL),
        ("forward", Partitioning.FORWARD),
        ("rescale", Partitioning.RESCALE),
    ],
)
def test_an_exchange_says_how_the_next_link_partitions(method: str, partitioning: Partitioning) -> None:
    graph = described(
        lambda stream: getattr(stream, method)().map(same).map(same, parallelism=1 if method == "to_one" else None)
    )
    assert edges(graph)["source_1->map_1"] == partitioning
    assert edges(graph)["map_1->map_2"] == Partitioning.FORWARD


def test_key_by_partitions_by_hash() -> None:
    graph = described(lambda stream: stream.key_by("k", "v").process(Nothing()))
    edge = graph.into(graph.nodes[1].name)[0]
    assert (edge.partitioning, edge.key) == (Partitioning.HASH, ("k", "v"))


def test_nothing_is_chained_with_map_async() -> None:
    graph = described(lambda stream: stream.map(same).map_async(same).forward().map(same))
    assert chains(graph, 2) == ["source_1", "map_async_1", "map_2"]
    assert edges(graph)["map_1->map_async_1"] == Partitioning.RESCALE


def test_a_union_costs_no_operator() -> None:
    pipeline = Pipeline("p")
    one, two, three = (pipeline.source(ListSource(ROWS), name=name) for name in ("one", "two", "three"))
    one.union(two, three.rebalance()).map(same).sink(CollectSink())
    assert edges(pipeline.graph()) == {
        "one->map_1": Partitioning.RESCALE,
        "two->map_1": Partitioning.RESCALE,
        "three->map_1": Partitioning.REBALANCE,
        "map_1->sink_1": Partitioning.FORWARD,
    }


def test_connect_has_two_inputs() -> None:
    pipeline = Pipeline("p")
    one, two = pipeline.source(ListSource(ROWS), name="one"), pipeline.source(ListSource(ROWS), name="two")
    one.key_by("k").connect(two.broadcast()).process(Left(), parallelism=3).sink(CollectSink())
    into = pipeline.graph().into(pipeline.graph().nodes[2].name)
    assert [(edge.input, edge.partitioning) for edge in into] == [(0, Partitioning.HASH), (1, Partitioning.BROADCAST)]


# --- mistakes ---


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda s: s.map(7), "map takes a function, not 7"),
        (
            lambda s: s.map(same, format="numpy"),
            "operator 'map #1': format is 'numpy': it must be one of arrow",
        ),
        (lambda s: s.map(same, schema=7), "7 is not a schema"),
        (lambda s: s.map(same, schema="a strange"), "there is no type 'strange'"),
        (lambda s: s.map(same, parallelism=0), "the parallelism of 'map #1' is 0"),
        (lambda s: s.map(same, parallelism=True), "the parallelism of 'map #1' is True"),
        (lambda s: s.map(same, parallelism=1000), "it must be from 1 to max_parallelism, which is 128"),
        (lambda s: s.select(), "select takes the names of columns"),
        (lambda s: s.key_by().count(parallelism=2), "makes one group, which one subtask processes"),
        (lambda s: s.key_by(lambda r: r).count(), "key_by takes the names of columns"),
        (lambda s: s.key_by("k", "k").count(), "key_by names a column twice: k, k"),
        (lambda s: s.key_by("k", nulls="maybe").count(), "nulls is 'maybe': it must be 'group' or 'error'"),
        (lambda s: s.key_by("k").aggregate(), "aggregate needs at least one output"),
        (lambda s: s.key_by("k").aggregate(x=("median", "v")), "functions are sum, count"),
        (lambda s: s.key_by("k").aggregate(x="sum"), "sum needs a column"),
        (lambda s: s.key_by("k").aggregate(k="count"), "an output has the name of a key column"),
        (
            lambda s: s.key_by("k").process(same),
            "process takes a KeyedFunction, a BatchFunction or a StatefulProcessor",
        ),
        (lambda s: s.key_by("k").process(Nothing(), at_end="x"), "at_end is 'x'"),
        (lambda s: s.map_async(same, concurrency=0), "concurrency is 0"),
        (lambda s: s.map_async(same, batch_rows=-1), "batch_rows is -1"),
        (lambda s: s.map_async(same, executor="fibers"), "executor is 'fibers'"),
        (lambda s: s.connect(7), "connect takes streams of the same pipeline"),
        (lambda s: s.union(7), "union takes streams of the same pipeline"),
        (lambda s: s.key_by("k").connect(s.key_by("k", "v")).process(Left()), "both need a key of the same columns"),
        (lambda s: s.key_by("k").connect(s.map(same)).process(Left()), "call key_by on both, or broadcast"),
        (lambda s: s.connect(s.map(same)).process(7), "process takes a TwoInputFunction"),
        (lambda s: s.union(s).map(same), "a stream can be connected to an input once"),
    ],
)
def test_a_mistake_is_found_before_anything_runs(build: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        described(build)


def test_a_source_and_a_sink_are_what_they_say() -> None:
    with pytest.raises(PipelineError, match=r"source\(\) takes a Source, such as FileSource"):
        Pipeline("p").source("somewhere")  # type: ignore[arg-type]
    with pytest.raises(PipelineError, match=r"sink\(\) takes a Sink, such as ParquetSink"):
        Pipeline("p").source(ListSource(ROWS)).sink(print)  # type: ignore[arg-type]


def test_an_output_that_goes_nowhere_is_found() -> None:
    pipeline = Pipeline("p")
    pipeline.source(ListSource(ROWS)).map(same)
    with pytest.raises(PipelineError, match="the output of 'map #1' goes nowhere: add a sink"):
        pipeline.graph()


def test_streams_of_two_pipelines_do_not_meet() -> None:
    other = Pipeline("other").source(ListSource(ROWS))
    with pytest.raises(PipelineError, match="streams of the same pipeline"):
        described(lambda stream: stream.union(other))


def test_a_function_that_cannot_travel_is_found_with_what_is_in_the_way() -> None:
    lock = threading.Lock()

    def locked(batch: pa.RecordBatch) -> pa.RecordBatch:
        with lock:
            return batch

    with pytest.raises(
        PipelineError,
        match=r"'enrich' cannot be sent to the workers: variable 'lock' of function 'locked' .of type lock. cannot",
    ):
        described(lambda stream: stream.map(locked, name="enrich"))


def test_a_session_or_data_frame_in_a_function_is_told_with_the_ways_to_read_it() -> None:
    # Without its constructor, which would start Spark.
    session = SparkSession.__new__(SparkSession)
    session.lock = threading.Lock()  # type: ignore[attr-defined]

    def enriched(batch: pa.RecordBatch) -> pa.RecordBatch:
        session.createDataFrame([])
        return batch

    text = r"variable 'session' of function 'enriched' .of type SparkSession. exists only in the driver.*join_table"
    with pytest.raises(PipelineError, match=text):
        described(lambda stream: stream.map(enriched, name="enrich"))


def test_an_attribute_that_cannot_travel_is_found() -> None:
    function = Nothing()
    function.connection = threading.Event()  # type: ignore[attr-defined]
    with pytest.raises(PipelineError, match=r"'process-k-.*' .* attribute 'connection' of Nothing"):
        described(lambda stream: stream.key_by("k").process(function))


def test_polars_that_is_not_installed_is_an_error_with_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "polars", None)
    with pytest.raises(PipelineError, match=r"pip install penstock\[polars\], here and on the workers"):
        described(lambda stream: stream.map(same, format="polars"))


def test_start_hands_the_checked_graph_over(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    monkeypatch.setattr("penstock.spark.launch.start", lambda *args, **settings: calls.append((args, settings)))
    pipeline = Pipeline("p")
    made = pipeline.source(ListSource(ROWS)).sink(CollectSink())
    made.start("spark", checkpoints="there", checkpoint_interval=1, ui_port=None)
    ((arguments, settings),) = calls
    assert isinstance(arguments[0], Graph)
    assert (arguments[1:], settings) == (("spark", "there"), {"checkpoint_interval": 1})
