"""Pipelines that are not what they were when their checkpoint was taken.

Each change says of a manifest whether the changed pipeline can go on from it. Where it cannot, the only right answer is
a `RestoreError` before anything has started.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace

from penstock.graph.logical import Graph, LogicalEdge, renamed
from penstock.ids import OperatorName
from penstock.protocol.manifest import Manifest, Partitioning, StateKind, committables_of
from tests.simulation.operators import Check
from tests.simulation.topologies import Load
from tests.simulation.world import World


class Change(ABC):
    """What somebody has changed between two runs."""

    name: str
    is_found_by_workers = False
    """Whether it takes the code of operators to see that the pipeline does not fit: its workers start."""

    @abstractmethod
    def applies_to(self, graph: Graph) -> bool: ...

    @abstractmethod
    def fits(self, graph: Graph, manifest: Manifest, is_committed: bool) -> bool | None:
        """Whether the changed pipeline can go on from `manifest`. None: it could, and would do something else."""

    def load(self, load: Load) -> Load:
        return load

    def graph(self, graph: Graph, world: World) -> Graph:
        return graph


def _edges_in_flight(manifest: Manifest) -> set[tuple[str, str]]:
    edges = [channel.edge for report in manifest.reports for channel in report.channels]
    return {(edge.upstream, edge.downstream) for edge in edges}


def _with_state(manifest: Manifest, *kinds: StateKind) -> set[str]:
    """The operators that have state of these kinds; without any, of all kinds."""
    pieces = [piece for report in manifest.reports for piece in report.states]
    return {piece.operator for piece in pieces if piece.kind in (kinds or StateKind)}


class RenamedSink(Change):
    name = "renamed sink"

    def applies_to(self, graph: Graph) -> bool:
        return True

    def fits(self, graph: Graph, manifest: Manifest, is_committed: bool) -> bool:
        has_output = any(committable.operator == "sink" for committable in committables_of(manifest))
        into = {(edge.upstream, edge.downstream) for edge in graph.into(OperatorName("sink"))}
        return (is_committed or not has_output) and not into & _edges_in_flight(manifest)

    def graph(self, graph: Graph, world: World) -> Graph:
        outlet = OperatorName("outlet")
        nodes = [
            replace(node, name=outlet, sink=world.sink("outlet")) if node.name == "sink" else node
            for node in graph.nodes
        ]
        edges = [replace(edge, downstream=outlet) if edge.downstream == "sink" else edge for edge in graph.edges]
        return replace(graph, nodes=tuple(nodes), edges=tuple(edges))


class OtherKey(Change):
    name = "another key"

    def applies_to(self, graph: Graph) -> bool:
        return bool(self._keyed(graph))

    def fits(self, graph: Graph, manifest: Manifest, is_committed: bool) -> bool | None:
        keyed = {(edge.upstream, edge.downstream) for edge in self._keyed(graph)}
        # Every subtask has all of its broadcast state, whatever its records are keyed by.
        has_state = {operator for _, operator in keyed} & _with_state(manifest, StateKind.KEYED, StateKind.LIST)
        return False if keyed & _edges_in_flight(manifest) or has_state else None

    def graph(self, graph: Graph, world: World) -> Graph:
        keyed = self._keyed(graph)
        edges = [replace(edge, key=("v",)) if edge in keyed else edge for edge in graph.edges]
        return replace(graph, edges=tuple(edges))

    def _keyed(self, graph: Graph) -> list[LogicalEdge]:
        return [edge for edge in graph.edges if edge.partitioning is Partitioning.HASH]


class RemovedOperator(Change):
    """The operator in front of the one that is "fragile" is gone: records go past it."""

    name = "an operator removed"

    def applies_to(self, graph: Graph) -> bool:
        return len(graph.into(self._removed(graph))) == 1 == len(graph.out_of(self._removed(graph)))

    def fits(self, graph: Graph, manifest: Manifest, is_committed: bool) -> bool | None:
        removed = self._removed(graph)
        gone = {(edge.upstream, edge.downstream) for edge in (*graph.into(removed), *graph.out_of(removed))}
        return False if gone & _edges_in_flight(manifest) or removed in _with_state(manifest) else None

    def graph(self, graph: Graph, world: World) -> Graph:
        removed = self._removed(graph)
        (before,), (after,) = graph.into(removed), graph.out_of(removed)
        nodes = [node for node in graph.nodes if node.name != removed]
        edges = [edge for edge in graph.edges if removed not in (edge.upstream, edge.downstream)]
        # The two that meet now may differ in their parallelism.
        how = Partitioning.REBALANCE if after.partitioning is Partitioning.FORWARD else after.partitioning
        past = replace(after, upstream=before.upstream, partitioning=how)
        return replace(graph, nodes=tuple(nodes), edges=(*edges, past))

    def _removed(self, graph: Graph) -> OperatorName:
        (edge,) = graph.into(OperatorName("fragile"))
        return edge.upstream


class AddedOperator(Change):
    """One more operator in front of the one that is "fragile", with a channel on either side."""

    name = "an operator added"

    def applies_to(self, graph: Graph) -> bool:
        return True

    def fits(self, graph: Graph, manifest: Manifest, is_committed: bool) -> bool:
        (edge,) = graph.into(OperatorName("fragile"))
        return (edge.upstream, edge.downstream) not in _edges_in_flight(manifest)

    def graph(self, graph: Graph, world: World) -> Graph:
        added, fragile = OperatorName("added"), graph.node(OperatorName("fragile"))
        (old,) = graph.into(fragile.name)
        node = replace(fragile, name=added, operator=lambda: Check(world))
        new = replace(old, downstream=added), LogicalEdge(added, fragile.name, Partitioning.REBALANCE)
        edges = [edge for edge in graph.edges if edge != old]
        return replace(graph, nodes=(*graph.nodes, node), edges=(*edges, *new))


class OtherSchema(Change):
    name = "another schema of a state"
    VERSIONED = frozenset({"first", "second", "count"})
    """The operators whose state depends on `Load.state_version`."""
    is_found_by_workers = True

    def applies_to(self, graph: Graph) -> bool:
        return any(node.name in self.VERSIONED for node in graph.nodes)

    def fits(self, graph: Graph, manifest: Manifest, is_committed: bool) -> bool | None:
        return False if self.VERSIONED & _with_state(manifest) else None

    def load(self, load: Load) -> Load:
        return replace(load, state_version=2)


_DERIVED = "-derived"


def first_name(name: OperatorName) -> str:
    """The name that an operator had before a change that renamed it."""
    return name.removesuffix(_DERIVED)


class NumberedBefore(Change):
    """The checkpoint has names of version 0.1.0, which are numbers; the pipeline is the same, and derives its names."""

    name = "names that were numbers"

    def applies_to(self, graph: Graph) -> bool:
        return bool(self._unnamed(graph))

    def fits(self, graph: Graph, manifest: Manifest, is_committed: bool) -> bool | None:
        return True

    def graph(self, graph: Graph, world: World) -> Graph:
        names = {node.name: node.name for node in graph.nodes}
        names |= {name: OperatorName(f"{name}{_DERIVED}") for name in self._unnamed(graph)}
        changed = renamed(graph, names)
        former = {new: old for old, new in names.items() if new != old}
        nodes = tuple(replace(node, former_name=former.get(node.name)) for node in changed.nodes)
        return replace(changed, nodes=nodes)

    def _unnamed(self, graph: Graph) -> set[OperatorName]:
        # Sources, sinks and the others are looked for by their names, by those who judge the run.
        looked_for = {"fragile", "call", "echoes", *OtherSchema.VERSIONED}
        return {node.name for node in graph.nodes if node.operator is not None and node.name not in looked_for}


class NumberedBeforeAndMore(NumberedBefore):
    """The same, and an operator was added: a number may be that of another operator now, so no number counts."""

    name = "names that were numbers, and an operator added"

    def fits(self, graph: Graph, manifest: Manifest, is_committed: bool) -> bool | None:
        unnamed = self._unnamed(graph)
        ends = {name for edge in _edges_in_flight(manifest) for name in edge}
        return False if unnamed & (ends | _with_state(manifest)) else None

    def graph(self, graph: Graph, world: World) -> Graph:
        return AddedOperator().graph(super().graph(graph, world), world)


CHANGES: tuple[type[Change], ...] = (
    RenamedSink,
    OtherKey,
    RemovedOperator,
    AddedOperator,
    OtherSchema,
    NumberedBefore,
    NumberedBeforeAndMore,
)


def choose(graph: Graph, manifest: Manifest, is_committed: bool, pick: float) -> tuple[Change, bool] | None:
    """A change that says something about this manifest, and whether the changed pipeline fits it."""
    changes = [made() for made in CHANGES]
    verdicts = [
        (change, fits)
        for change in changes
        if change.applies_to(graph) and (fits := change.fits(graph, manifest, is_committed)) is not None
    ]
    return verdicts[int(pick * len(verdicts))] if verdicts else None
