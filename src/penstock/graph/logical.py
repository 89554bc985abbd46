"""The logical graph: a pipeline as its user described it, before parallelism and chains are settled.

Nodes are sources, operators and sinks; edges say how records travel between them. The graph is checked as
a whole by `check`, before anything is started; every error names the operator and the cure.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import pyarrow as pa

from penstock.connectors.sink import Sink
from penstock.connectors.source import Source
from penstock.errors import PipelineError
from penstock.ids import DEAD_LETTERS, LATE, LATE_OF_SIDE, MAIN_OUTPUT, EdgeId, OperatorName
from penstock.operators.contract import Operator
from penstock.protocol.manifest import Partitioning

MAX_PARALLELISM_DEFAULT = 128
MAX_PARALLELISM_LIMIT = 32768

OperatorFactory: TypeAlias = Callable[[], Operator]


class Keeps(enum.Enum):
    """What an operator keeps in a checkpoint under its name."""

    NOTHING = "nothing"
    BATCHES = "batches in hand, or a clock"
    KEYS = "keyed state"


@dataclass(frozen=True, slots=True)
class Node:
    """A source, an operator or a sink. Exactly one of `source`, `operator`, `sink` is set."""

    name: OperatorName
    source: Source | None = None
    operator: OperatorFactory | None = None
    sink: Sink | None = None
    parallelism: int | None = None
    """None: the pipeline's."""
    requires_alignment: bool = False
    chainable: bool = True
    """False: never joined with the operator in front of it."""
    chainable_after: bool = True
    """False: nothing is joined behind it."""
    reads: tuple[str, ...] | None = None
    """The columns that the operator reads, besides the key; others need not travel to it. None: any."""
    schema: pa.Schema | None = None
    """Its output, if the user has declared it."""
    kind: str = ""
    """Which source, operator or sink it is; empty if that is not to be compared with a checkpoint."""
    definition: tuple[tuple[str, str], ...] = ()
    """Settings, by name, that its state, its positions or its committables depend on: see `OperatorShape`."""
    needs_end: bool = False
    """Whether it emits nothing before the end of its input."""
    former_name: OperatorName | None = None
    """The name that version 0.1.0 gave it, if its user has given none."""
    keeps: Keeps = Keeps.NOTHING
    label: str = ""
    """Its function, class or aggregates, as far as its name may depend on them."""
    place: str = ""
    """The line of the user's program that describes it."""
    side_outputs: tuple[str, ...] = ()
    """Outputs that it has besides its main one. Each must be read: its records would be lost otherwise."""
    learns_schemas: bool = False
    """Whether each of its subtasks needs the schemas of all inputs, also of one that has no record for it."""


@dataclass(frozen=True, slots=True)
class LogicalEdge:
    """Records travel from an output of `upstream` to input number `input` of `downstream`."""

    upstream: OperatorName
    downstream: OperatorName
    partitioning: Partitioning
    input: int = 0
    key: tuple[str, ...] = ()
    output: str = MAIN_OUTPUT

    @property
    def id(self) -> EdgeId:
        return EdgeId(self.upstream, self.downstream, self.input)


@dataclass(frozen=True, slots=True)
class Graph:
    """A whole pipeline."""

    name: str
    nodes: tuple[Node, ...]
    edges: tuple[LogicalEdge, ...]
    max_parallelism: int = MAX_PARALLELISM_DEFAULT
    _by_name: dict[OperatorName, Node] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._by_name.update((node.name, node) for node in self.nodes)

    def node(self, name: OperatorName) -> Node:
        return self._by_name[name]

    def into(self, name: OperatorName) -> list[LogicalEdge]:
        return sorted((edge for edge in self.edges if edge.downstream == name), key=lambda edge: edge.input)

    def out_of(self, name: OperatorName, output: str = MAIN_OUTPUT) -> list[LogicalEdge]:
        return [edge for edge in self.edges if edge.upstream == name and edge.output == output]

    def all_out_of(self, name: OperatorName) -> list[LogicalEdge]:
        return [edge for edge in self.edges if edge.upstream == name]


def renamed(graph: Graph, names: Mapping[OperatorName, OperatorName]) -> Graph:
    """The same graph with other names."""
    nodes = tuple(replace(node, name=names[node.name]) for node in graph.nodes)
    edges = tuple(
        replace(edge, upstream=names[edge.upstream], downstream=names[edge.downstream]) for edge in graph.edges
    )
    return Graph(graph.name, nodes, edges, graph.max_parallelism)


def check(graph: Graph) -> None:
    """Raise `PipelineError` for the first thing that cannot work."""
    _check_names(graph)
    _check_edges(graph)
    _check_shape(graph)
    _check_directories(graph)
    _check_parallelism(graph)
    _check_acyclic(graph)
    _check_ends(graph)


def _check_names(graph: Graph) -> None:
    if not graph.nodes:
        raise PipelineError(f"pipeline '{graph.name}' is empty: add a source and a sink")
    for name, count in Counter(node.name for node in graph.nodes).items():
        if count > 1:
            raise PipelineError(
                f"{count} operators are named '{name}': give each its own name, because state is found by it"
            )
        if not name.strip():
            raise PipelineError("an operator has an empty name: give it one, state is found by it")


def _check_edges(graph: Graph) -> None:
    names = {node.name for node in graph.nodes}
    for edge in graph.edges:
        for end in (edge.upstream, edge.downstream):
            if end not in names:
                raise PipelineError(
                    f"the edge {edge.id} names '{end}', which is not an operator of this pipeline: "
                    f"add it, or correct the name"
                )
        if edge.partitioning is Partitioning.HASH and not edge.key:
            raise PipelineError(f"the edge {edge.id} is keyed but names no key column: call key_by with at least one")
    for id, count in Counter(edge.id for edge in graph.edges).items():
        if count > 1:
            raise PipelineError(
                f"the edge {id} occurs {count} times: a stream can be connected to an input once. Put a map in "
                f"front of the second one, if it is a side output"
            )


def _check_shape(graph: Graph) -> None:
    for node in graph.nodes:
        if sum(part is not None for part in (node.source, node.operator, node.sink)) != 1:
            raise PipelineError(f"'{node.name}' must be exactly one of source, operator and sink: give it one of them")
        inputs, outputs = graph.into(node.name), graph.out_of(node.name)
        _check_side_outputs(graph, node)
        if node.source is not None and inputs:
            raise PipelineError(f"source '{node.name}' has an input: connect that stream to an operator instead")
        if node.source is None and not inputs:
            raise PipelineError(f"operator '{node.name}' has no input: connect it to a stream, or remove it")
        if node.sink is not None and outputs:
            raise PipelineError(f"sink '{node.name}' has an output: connect that to the stream in front of the sink")
        if node.sink is None and not outputs:
            raise PipelineError(f"the output of '{node.name}' goes nowhere: add a sink")


def _check_directories(graph: Graph) -> None:
    """A sink sweeps what others have staged in its directory, and readers could not tell the two outputs apart."""
    writers: dict[str, OperatorName] = {}
    for node in graph.nodes:
        directory = dict(node.definition).get("directory") if node.sink is not None else None
        if directory is None:
            continue
        if directory in writers:
            raise PipelineError(
                f"the sinks '{writers[directory]}' and '{node.name}' both write to {directory}: give each its own "
                f"directory, or join the streams with union in front of one sink"
            )
        writers[directory] = node.name


def _check_side_outputs(graph: Graph, node: Node) -> None:
    read = {edge.output for edge in graph.all_out_of(node.name)} - {MAIN_OUTPUT}
    for output in sorted(read - set(node.side_outputs)):
        raise PipelineError(
            f"'{node.name}' has no output '{output}', but a stream reads it: declare the output, or correct its name"
        )
    for output in node.side_outputs:
        if output not in read:
            raise PipelineError(
                f"the output '{output}' of '{node.name}' is not read, so its records would be lost: "
                f"give them a sink, for instance with .{reading(output)}.sink(…)"
            )


def reading(output: str) -> str:
    """The call that reads a side output."""
    for side, late in LATE_OF_SIDE.items():
        if output == late:
            return f'late("{side}")'
    return f"{output}()" if output in (DEAD_LETTERS, LATE) else f'side_output("{output}")'


def _check_parallelism(graph: Graph) -> None:
    if not 1 <= graph.max_parallelism <= MAX_PARALLELISM_LIMIT:
        raise PipelineError(f"max_parallelism is {graph.max_parallelism}: it must be from 1 to {MAX_PARALLELISM_LIMIT}")
    for node in graph.nodes:
        if node.parallelism is not None and not 1 <= node.parallelism <= graph.max_parallelism:
            raise PipelineError(
                f"the parallelism of '{node.name}' is {node.parallelism}: "
                f"it must be from 1 to max_parallelism, which is {graph.max_parallelism}"
            )


def _check_acyclic(graph: Graph) -> None:
    for _ in topological(graph):
        pass


def _check_ends(graph: Graph) -> None:
    for node in graph.nodes:
        endless = _endless_source(graph, node.name) if node.needs_end else None
        if endless is not None:
            raise PipelineError(
                f"'{node.name}' emits at the end of its input, but source '{endless}' never ends: "
                'leave out emit="final" to get every update, put a window in front of it, or bound '
                "the source"
            )


def _endless_source(graph: Graph, name: OperatorName) -> OperatorName | None:
    source = graph.node(name).source
    if source is not None:
        return name if source.is_endless else None
    upstream = (_endless_source(graph, edge.upstream) for edge in graph.into(name))
    return next((found for found in upstream if found is not None), None)


def topological(graph: Graph) -> Iterable[Node]:
    """Nodes in an order in which each comes after all that it reads from. A cycle is a `PipelineError`."""
    waiting = {node.name: len(graph.into(node.name)) for node in graph.nodes}
    ready = [node for node in graph.nodes if waiting[node.name] == 0]
    done = 0
    while ready:
        node = ready.pop(0)
        done += 1
        yield node
        for edge in graph.all_out_of(node.name):
            waiting[edge.downstream] -= 1
            if waiting[edge.downstream] == 0:
                ready.append(graph.node(edge.downstream))
    if done < len(graph.nodes):
        stuck = sorted(name for name, count in waiting.items() if count > 0)
        raise PipelineError(f"the pipeline has a cycle through {', '.join(stuck)}: streams must flow one way")
