"""The logical graph: every description that cannot work is refused, with the operator's name and a cure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.connectors.sink import Sink, SinkWriter
from penstock.connectors.source import Source, SplitReader
from penstock.errors import PipelineError
from penstock.graph.logical import Graph, LogicalEdge, Node, check, topological
from penstock.ids import EdgeId, Generation, OperatorName
from penstock.operators.contract import Emit, Operator
from penstock.protocol.manifest import Partitioning


class Nothing(Source):
    def splits(self) -> Sequence[str]:
        return ()

    def open(self, split: str, offset: bytes | None) -> SplitReader:
        raise NotImplementedError


class Pass(Operator):
    def process(self, batch: pa.RecordBatch, source: int, emit: Emit) -> None:
        emit(batch)


class Drop(Sink):
    def writer(self, subtask: int, generation: Generation) -> SinkWriter:
        raise NotImplementedError


def source(name: str) -> Node:
    return Node(OperatorName(name), source=Nothing())


def operator(name: str) -> Node:
    return Node(OperatorName(name), operator=Pass)


def sink(name: str) -> Node:
    return Node(OperatorName(name), sink=Drop())


def edge(upstream: str, downstream: str, how: Partitioning = Partitioning.REBALANCE, number: int = 0) -> LogicalEdge:
    return LogicalEdge(OperatorName(upstream), OperatorName(downstream), how, number)


GOOD = Graph("orders", (source("read"), operator("map"), sink("write")), (edge("read", "map"), edge("map", "write")))


def test_a_graph_that_can_work_is_accepted() -> None:
    check(GOOD)


def without(*edges: LogicalEdge) -> Graph:
    return replace(GOOD, edges=tuple(each for each in GOOD.edges if each not in edges))


def with_nodes(*nodes: Node) -> Graph:
    return replace(GOOD, nodes=(*GOOD.nodes, *nodes))


def with_links(*edges: LogicalEdge) -> Graph:
    return replace(GOOD, edges=(*GOOD.edges, *edges))


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (Graph("orders", (), ()), "pipeline 'orders' is empty: add a source and a sink"),
        (with_nodes(operator("map")), "2 operators are named 'map': give each its own name"),
        (with_nodes(operator("  ")), "an operator has an empty name: give it one"),
        (
            with_links(edge("map", "wrote")),
            "the edge map->wrote names 'wrote', which is not an operator of this pipeline: add it, or",
        ),
        (
            with_links(edge("reed", "map", number=1)),
            "the edge reed->map#1 names 'reed', which is not an operator of this pipeline: add it, or",
        ),
        (
            replace(GOOD, edges=(edge("read", "map", Partitioning.HASH), GOOD.edges[1])),
            "the edge read->map is keyed but names no key column: call key_by with at least one",
        ),
        (
            with_links(edge("read", "map")),
            "the edge read->map occurs 2 times: a stream can be connected to an input once",
        ),
        (with_links(edge("map", "read")), "source 'read' has an input: connect that stream to an operator"),
        (
            replace(with_nodes(operator("lonely")), edges=(*GOOD.edges, edge("lonely", "write", number=1))),
            "operator 'lonely' has no input: connect it to a stream, or remove it",
        ),
        (with_nodes(sink("more")), "operator 'more' has no input: connect it to a stream, or remove it"),
        (
            replace(with_nodes(sink("more")), edges=(*GOOD.edges, edge("write", "more"))),
            "sink 'write' has an output: connect that to the stream in front of the sink",
        ),
        (without(edge("map", "write")), "the output of 'map' goes nowhere: add a sink"),
        (with_nodes(source("idle")), "the output of 'idle' goes nowhere: add a sink"),
        (
            with_links(edge("map", "map", number=1)),
            "the pipeline has a cycle through map, write: streams must flow one",
        ),
        (
            Graph(
                "orders",
                (operator("a"), operator("b"), sink("write")),
                (edge("a", "b"), edge("b", "a"), edge("b", "write")),
            ),
            "the pipeline has a cycle through a, b, write: streams must flow one way",
        ),
        (replace(GOOD, max_parallelism=0), "max_parallelism is 0: it must be from 1 to 32768"),
        (replace(GOOD, max_parallelism=32_769), "max_parallelism is 32769: it must be from 1 to 32768"),
        (
            replace(GOOD, nodes=(replace(GOOD.nodes[0], parallelism=0), *GOOD.nodes[1:])),
            "the parallelism of 'read' is 0: it must be from 1 to max_parallelism, which is 128",
        ),
        (
            replace(GOOD, nodes=(replace(GOOD.nodes[0], parallelism=129), *GOOD.nodes[1:])),
            "the parallelism of 'read' is 129: it must be from 1 to max_parallelism, which is 128",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_bad_graph_is_refused_with_the_operator_and_the_cure(graph: Graph, message: str) -> None:
    with pytest.raises(PipelineError) as raised:
        check(graph)
    assert message in str(raised.value)


def test_a_stream_may_have_many_readers_and_an_operator_many_inputs() -> None:
    nodes = (source("one"), source("other"), operator("join"), operator("side"), sink("write"), sink("note"))
    edges = (
        edge("one", "join"),
        edge("other", "join", number=1),
        edge("one", "side"),
        edge("join", "write"),
        edge("side", "note"),
    )
    graph = Graph("orders", nodes, edges)
    check(graph)
    assert [each.upstream for each in graph.into(OperatorName("join"))] == ["one", "other"]
    assert [each.downstream for each in graph.out_of(OperatorName("one"))] == ["join", "side"]
    assert graph.node(OperatorName("side")) is nodes[3]


def test_inputs_are_in_the_order_of_their_numbers_and_not_of_their_links() -> None:
    graph = Graph("orders", (), (edge("b", "join", number=1), edge("a", "join", number=0)))
    assert [each.id for each in graph.into(OperatorName("join"))] == [
        EdgeId(OperatorName("a"), OperatorName("join"), 0),
        EdgeId(OperatorName("b"), OperatorName("join"), 1),
    ]


@settings(deadline=None)
@given(st.permutations(range(6)), st.sets(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=12))
def test_each_node_comes_after_all_that_it_reads_from(order: list[int], pairs: set[tuple[int, int]]) -> None:
    edges = tuple(edge(str(min(pair)), str(max(pair))) for pair in sorted(pairs) if pair[0] != pair[1])
    graph = Graph("any", tuple(operator(str(number)) for number in order), tuple(dict.fromkeys(edges)))
    place = {node.name: position for position, node in enumerate(topological(graph))}
    assert len(place) == 6
    assert all(place[each.upstream] < place[each.downstream] for each in graph.edges)
