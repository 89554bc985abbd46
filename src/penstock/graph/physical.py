"""The physical plan: which subtasks there are, on which worker, and every channel between them.

Operators joined by a forward edge at equal parallelism become one *chain* of direct calls. A *channel* is
one (edge, sending subtask, receiving subtask). With W workers, worker i hosts the subtasks i, i+W, i+2W …
of every chain. The plan is a function of the graph and three numbers, so that every process derives the
same one, channel numbers included.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import TypeVar

from penstock.columnar.schemas.schema_diff import type_text
from penstock.errors import PipelineError
from penstock.graph.logical import Graph, LogicalEdge, Node, check, topological
from penstock.ids import MAIN_OUTPUT, ChannelId, EdgeId, OperatorName, SubtaskId, WorkerId
from penstock.protocol.key_groups import key_groups_of
from penstock.protocol.manifest import EdgeShape, OperatorShape, Partitioning, PipelineShape, RecordShape

K = TypeVar("K", bound=Hashable)

_NEVER_OVERTAKEN = frozenset({Partitioning.FORWARD, Partitioning.BROADCAST})
"""Edges whose in-flight data cannot be dealt out again at another parallelism: they stay aligned."""


@dataclass(frozen=True, slots=True)
class PhysicalEdge:
    """An edge between two chains."""

    id: EdgeId
    upstream: OperatorName
    """The sending chain."""
    downstream: OperatorName
    """The receiving chain."""
    input: int
    partitioning: Partitioning
    key: tuple[str, ...] = ()
    columns: tuple[str, ...] | None = None
    """What travels: the columns that the receiving chain reads. None: all of them."""
    schema: tuple[str, ...] | None = None
    """Columns and types of the sending operator's output, if it declares them."""
    output: str = MAIN_OUTPUT
    """The output that it reads, of the operator `id.upstream`: that need not be the last one of its chain."""
    shows_schema: bool = False
    """Whether every receiver gets the schema with the first batch, also one that gets no row of it."""


@dataclass(frozen=True, slots=True)
class Channel:
    """One sender's way to one receiver on an edge; keeps its order."""

    id: ChannelId
    edge: PhysicalEdge
    sender: SubtaskId
    receiver: SubtaskId

    def __str__(self) -> str:
        return f"{self.edge.id} {self.sender.index}→{self.receiver.index}"


@dataclass(frozen=True, slots=True)
class Chain:
    """Operators that are called one after the other in the same subtask. Named after the first one."""

    name: OperatorName
    nodes: tuple[Node, ...]
    parallelism: int
    aligned_only: bool
    key: tuple[str, ...] = ()
    """The key columns of its keyed input, if it has one."""


@dataclass(frozen=True, slots=True)
class PhysicalPlan:
    """Everything that is settled before a pipeline starts."""

    name: str
    chains: dict[OperatorName, Chain]
    edges: tuple[PhysicalEdge, ...]
    channels: tuple[Channel, ...]
    workers: int
    max_parallelism: int
    parallelism: int
    """For operators that name none."""
    inputs: dict[SubtaskId, tuple[Channel, ...]] = field(repr=False)
    outputs: dict[SubtaskId, dict[EdgeId, tuple[Channel, ...]]] = field(repr=False)

    @property
    def subtasks(self) -> tuple[SubtaskId, ...]:
        return tuple(SubtaskId(chain.name, i) for chain in self.chains.values() for i in range(chain.parallelism))

    @property
    def parallelism_of_operators(self) -> dict[OperatorName, int]:
        return {node.name: chain.parallelism for chain in self.chains.values() for node in chain.nodes}

    @property
    def sources(self) -> tuple[OperatorName, ...]:
        return tuple(node.name for chain in self.chains.values() for node in chain.nodes if node.source is not None)

    @property
    def sinks(self) -> tuple[OperatorName, ...]:
        return tuple(node.name for chain in self.chains.values() for node in chain.nodes if node.sink is not None)

    @property
    def source_groups(self) -> dict[OperatorName, OperatorName]:
        """For each source, the first of those whose records may meet its own somewhere: the name of their group."""
        group = {name: name for name in self.chains}
        for edge in self.edges:
            ends = {group[edge.upstream], group[edge.downstream]}
            group = {name: min(ends) if mine in ends else mine for name, mine in group.items()}
        first: dict[OperatorName, OperatorName] = {}
        return {source: first.setdefault(group[source], source) for source in self.sources}

    def worker_of(self, subtask: SubtaskId) -> WorkerId:
        return WorkerId(subtask.index % self.workers)

    def subtasks_of(self, worker: WorkerId) -> tuple[SubtaskId, ...]:
        return tuple(subtask for subtask in self.subtasks if self.worker_of(subtask) == worker)

    def key_groups(self, subtask: SubtaskId) -> range:
        return key_groups_of(subtask.index, self.chains[subtask.chain].parallelism, self.max_parallelism)

    def may_overtake(self, channel: Channel) -> bool:
        return not self.chains[channel.receiver.chain].aligned_only

    def shape(self) -> PipelineShape:
        """What a manifest records of this plan."""
        operators = tuple(
            OperatorShape(node.name, chain.name, chain.parallelism, chain.key, node.kind, node.definition)
            for chain in self.chains.values()
            for node in chain.nodes
        )
        edges = tuple(
            EdgeShape(
                edge.id,
                edge.partitioning,
                self.chains[edge.upstream].parallelism,
                self.chains[edge.downstream].parallelism,
                RecordShape(edge.key, edge.columns, edge.schema, edge.output),
            )
            for edge in self.edges
        )
        return PipelineShape(self.name, self.max_parallelism, operators, edges)

    def former_names(self) -> dict[OperatorName, OperatorName]:
        """The names that version 0.1.0 gave to operators without one of the user's, by the names that they have."""
        nodes = [node for chain in self.chains.values() for node in chain.nodes]
        return {node.name: node.former_name for node in nodes if node.former_name is not None}


def plan(graph: Graph, parallelism: int, workers: int | None = None) -> PhysicalPlan:
    """Settle a graph. `parallelism` is for operators that name none, `workers` defaults to the largest one."""
    check(graph)
    if not 1 <= parallelism <= graph.max_parallelism:
        raise PipelineError(f"the parallelism is {parallelism}: it must be from 1 to {graph.max_parallelism}")
    chains, chain_of = _chains(graph, parallelism)
    edges = tuple(
        PhysicalEdge(
            edge.id,
            chain_of[edge.upstream],
            chain_of[edge.downstream],
            edge.input,
            edge.partitioning,
            edge.key,
            _columns(graph, edge),
            _schema(graph, edge),
            edge.output,
            graph.node(edge.downstream).learns_schemas,
        )
        for edge in graph.edges
        if chain_of[edge.upstream] != chain_of[edge.downstream]
    )
    channels = _channels(edges, chains)
    inputs: dict[SubtaskId, tuple[Channel, ...]] = {}
    outputs: dict[SubtaskId, dict[EdgeId, tuple[Channel, ...]]] = {}
    for subtask in (SubtaskId(chain.name, i) for chain in chains.values() for i in range(chain.parallelism)):
        inputs[subtask] = ()
        outputs[subtask] = {edge.id: () for edge in edges if edge.upstream == subtask.chain}
    for receiver, arriving in _grouped(channels, lambda channel: channel.receiver).items():
        inputs[receiver] = tuple(arriving)
    for (sender, edge_id), leaving in _grouped(channels, lambda channel: (channel.sender, channel.edge.id)).items():
        outputs[sender][edge_id] = tuple(leaving)
    return PhysicalPlan(
        graph.name,
        chains,
        edges,
        channels,
        workers or max(chain.parallelism for chain in chains.values()),
        graph.max_parallelism,
        parallelism,
        inputs,
        outputs,
    )


def _columns(graph: Graph, edge: LogicalEdge) -> tuple[str, ...] | None:
    reads = graph.node(edge.downstream).reads
    return None if reads is None else tuple(dict.fromkeys((*edge.key, *reads)))


def _schema(graph: Graph, edge: LogicalEdge) -> tuple[str, ...] | None:
    schema = graph.node(edge.upstream).schema if edge.output == MAIN_OUTPUT else None
    return None if schema is None else tuple(f"{field.name}: {type_text(field.type)}" for field in schema)


def _grouped(channels: tuple[Channel, ...], by: Callable[[Channel], K]) -> dict[K, list[Channel]]:
    groups: dict[K, list[Channel]] = {}
    for channel in channels:
        groups.setdefault(by(channel), []).append(channel)
    return groups


def _chains(graph: Graph, parallelism: int) -> tuple[dict[OperatorName, Chain], dict[OperatorName, OperatorName]]:
    members: dict[OperatorName, list[Node]] = {}
    chain_of: dict[OperatorName, OperatorName] = {}
    for node in topological(graph):
        head = _chain_to_join(graph, node, parallelism, chain_of)
        chain_of[node.name] = head or node.name
        members.setdefault(chain_of[node.name], []).append(node)
    chains = {
        name: Chain(
            name,
            tuple(nodes),
            nodes[0].parallelism or parallelism,
            _is_aligned_only(graph.into(name), nodes),
            next((edge.key for edge in graph.into(name) if edge.key), ()),
        )
        for name, nodes in members.items()
    }
    return chains, chain_of


def _chain_to_join(
    graph: Graph, node: Node, parallelism: int, chain_of: dict[OperatorName, OperatorName]
) -> OperatorName | None:
    inputs = graph.into(node.name)
    for edge in inputs:
        if edge.partitioning is Partitioning.FORWARD:
            _check_forward(graph, edge, parallelism)
    if len(inputs) != 1 or not node.chainable or inputs[0].partitioning is not Partitioning.FORWARD:
        return None
    upstream = inputs[0].upstream
    if inputs[0].output != MAIN_OUTPUT:
        return None
    is_alone = len(graph.out_of(upstream)) == 1
    return chain_of[upstream] if is_alone and graph.node(upstream).chainable_after else None


def _check_forward(graph: Graph, edge: LogicalEdge, parallelism: int) -> None:
    sending = graph.node(edge.upstream).parallelism or parallelism
    receiving = graph.node(edge.downstream).parallelism or parallelism
    if sending != receiving:
        raise PipelineError(
            f"the edge {edge.id} is forward, but '{edge.upstream}' has parallelism {sending} and "
            f"'{edge.downstream}' {receiving}: use rebalance or rescale, or make them equal"
        )


def _is_aligned_only(inputs: list[LogicalEdge], nodes: list[Node]) -> bool:
    required = any(node.requires_alignment or _asks_for_alignment(node) for node in nodes)
    return required or any(edge.partitioning in _NEVER_OVERTAKEN for edge in inputs)


def _asks_for_alignment(node: Node) -> bool:
    """Whether the sink, or the class of the operator, says so; a factory that hides its class says it in the node."""
    if node.sink is not None:
        return node.sink.requires_alignment
    factory = node.operator
    while isinstance(factory, functools.partial):
        factory = factory.func
    return isinstance(factory, type) and bool(getattr(factory, "requires_alignment", False))


def _channels(edges: tuple[PhysicalEdge, ...], chains: dict[OperatorName, Chain]) -> tuple[Channel, ...]:
    found: list[Channel] = []
    for edge in edges:
        senders, receivers = chains[edge.upstream].parallelism, chains[edge.downstream].parallelism
        for sender in range(senders):
            for receiver in reachable(edge.partitioning, sender, senders, receivers):
                ends = SubtaskId(edge.upstream, sender), SubtaskId(edge.downstream, receiver)
                found.append(Channel(ChannelId(len(found)), edge, *ends))
    return tuple(found)


def reachable(partitioning: Partitioning, sender: int, senders: int, receivers: int) -> range:
    """The receivers that a sender has a channel to."""
    match partitioning:
        case Partitioning.FORWARD:
            return range(sender, sender + 1)
        case Partitioning.GLOBAL:
            return range(1)
        case Partitioning.RESCALE:
            first = sender * receivers // senders
            return range(first, max(first + 1, (sender + 1) * receivers // senders))
        case _:
            return range(receivers)
