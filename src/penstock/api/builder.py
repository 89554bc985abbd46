"""Where the calls of a user come together: operators, and how they are connected."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Self, TypedDict, Unpack

import pyarrow as pa

from penstock.api.arguments import (
    require_count,
    require_instance,
    require_name,
)
from penstock.connectors.sink import Sink
from penstock.connectors.source import Source
from penstock.errors import PipelineError
from penstock.graph.edges import OutputPort, PendingEdge, resolved
from penstock.graph.logical import MAX_PARALLELISM_DEFAULT, Graph, Keeps, Node, OperatorFactory, check, renamed
from penstock.graph.names import calling_line, derived_names
from penstock.ids import OperatorName
from penstock.operators.pickling import check_travels

if TYPE_CHECKING:
    from penstock.api.stream import Stream


class NodeTraits(TypedDict, total=False):
    """Fields of a `Node` that a call may set."""

    keeps: Keeps
    chainable: bool
    chainable_after: bool
    reads: tuple[str, ...] | None
    schema: pa.Schema | None
    definition: tuple[tuple[str, str], ...]
    needs_end: bool
    side_outputs: tuple[str, ...]
    learns_schemas: bool


class NodeParts(NodeTraits, total=False):
    """The same, with the one of the three that the node is."""

    source: Source
    operator: OperatorFactory
    sink: Sink


def definition_of(identity: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple((str(name), str(value)) for name, value in identity.items())


class Builder:
    """The graph of a pipeline while it is described: begin with `source`."""

    def __init__(self, name: str, max_parallelism: int = MAX_PARALLELISM_DEFAULT) -> None:
        require_name("a pipeline", name)
        self.name = name
        self.max_parallelism = max_parallelism
        self._nodes: list[Node] = []
        self._pending_edges: list[PendingEdge] = []
        self._counts: Counter[str] = Counter()

    def __repr__(self) -> str:
        names = ", ".join(node.name for node in self._nodes)
        return f"<{type(self).__name__} '{self.name}': {names or 'empty'}>"

    def source(self, source: Source, *, name: str | None = None, parallelism: int | None = None) -> Stream:
        """The stream of a source's records.

        Example:

            >>> pipeline = Pipeline("orders")
            >>> collect(pipeline.source(ListSource([{"user": "ada"}]), name="orders"))
            [{'user': 'ada'}]
        """
        require_instance("source()", source, Source, "FileSource(…)")
        chosen = self._add(
            "source",
            name,
            parallelism,
            source=source,
            definition=definition_of(source.identity()),
            side_outputs=source.side_outputs,
        )
        from penstock.api.stream import Stream

        return Stream(self, (OutputPort(chosen, changelog=source.changelog),))

    def graph(self) -> Graph:
        """The whole, checked: shape, names, parallelism, and whether every function can travel to the workers.

        Example:

            >>> pipeline = Pipeline("orders")
            >>> _ = pipeline.source(ListSource([{"user": "ada"}]), name="in").sink(CollectSink(), name="out")
            >>> [node.name for node in pipeline.graph().nodes]
            ['in', 'out']
        """
        graph = self._described()
        for node in graph.nodes:
            check_travels(node.name, node.source or node.operator or node.sink)
        return graph

    # --- building ---

    def _described(self) -> Graph:
        """The graph with its final names, without looking at what its functions refer to."""
        graph = Graph(
            self.name, tuple(self._nodes), tuple(resolved(self._nodes, self._pending_edges)), self.max_parallelism
        )
        check(graph)
        return renamed(graph, derived_names(graph))

    def _only(self, ports: Iterable[OutputPort]) -> Self:
        """A pipeline of the operators alone that these outputs come from."""
        wanted: set[OperatorName] = set()
        found = {port.operator for port in ports}
        while found:
            wanted |= found
            found = {pending.port.operator for pending in self._pending_edges if pending.downstream in found} - wanted
        part = type(self)(self.name, self.max_parallelism)
        part._nodes = [node for node in self._nodes if node.name in wanted]
        part._pending_edges = [pending for pending in self._pending_edges if pending.downstream in wanted]
        part._counts = Counter(self._counts)
        return part

    def _add(
        self, kind: str, name: str | None, parallelism: int | None, label: str = "", **parts: Unpack[NodeParts]
    ) -> OperatorName:
        """Add a node. One without a name has a number until `graph` derives its name from all that it stands on."""
        self._counts[kind] += 1
        number = self._counts[kind]
        chosen = OperatorName(f"{kind} #{number}" if name is None else name)
        require_name(f"a {kind}", chosen)
        if any(node.name == chosen for node in self._nodes):
            raise PipelineError(
                f"an operator is named '{chosen}' already: give each operator a unique name with name=…"
            )
        if parallelism is not None:
            require_count(f"the parallelism of '{chosen}'", parallelism)
        former = OperatorName(f"{kind}_{number}") if name is None else None
        place = calling_line()
        self._nodes.append(
            Node(chosen, parallelism=parallelism, kind=kind, former_name=former, label=label, place=place, **parts)
        )
        return chosen

    def _connect(self, ports: Iterable[OutputPort], downstream: OperatorName, number: int = 0) -> None:
        self._pending_edges += [PendingEdge(port, downstream, number) for port in ports]
