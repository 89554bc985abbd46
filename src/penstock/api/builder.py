"""Where the calls of a user come together: operators, and how they are connected."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from penstock.api.arguments import (
    require_count,
    require_instance,
    require_name,
)
from penstock.connectors.source import Source
from penstock.errors import PipelineError
from penstock.graph.edges import End, Wish, resolved
from penstock.graph.logical import MAX_PARALLELISM_DEFAULT, Graph, Node, check, renamed
from penstock.graph.names import Keeps, Traits, calling_line, derived_names
from penstock.ids import OperatorName
from penstock.operators.pickling import check_travels

if TYPE_CHECKING:
    from penstock.api.stream import Stream


def definition_of(identity: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple((str(name), str(value)) for name, value in identity.items())


class Builder:
    """The graph of a pipeline while it is described: begin with `source`."""

    def __init__(self, name: str, max_parallelism: int = MAX_PARALLELISM_DEFAULT) -> None:
        require_name("a pipeline", name)
        self.name = name
        self.max_parallelism = max_parallelism
        self._nodes: list[Node] = []
        self._traits: dict[OperatorName, Traits] = {}
        self._wishes: list[Wish] = []
        self._counts: Counter[str] = Counter()

    def __repr__(self) -> str:
        names = ", ".join(node.name for node in self._nodes)
        return f"<{type(self).__name__} '{self.name}': {names or 'empty'}>"

    def source(self, source: Source, *, name: str | None = None, parallelism: int | None = None) -> Stream:
        """A stream of what a source reads.

        Example:

            numbers = pipeline.source(ListSource([{"n": 1}, {"n": 2}]), name="numbers")
            numbers.union(orders.select("amount").map(lambda batch: batch.rename_columns(["n"]))).sink(output)
            run(pipeline)
            assert sorted(row["n"] for row in output.rows()) == [1, 2, 10, 20, 30]
        """
        require_instance("source()", source, Source, "FileSource(…)")
        parts: dict[str, Any] = {"definition": definition_of(source.identity()), "side_outputs": source.side_outputs}
        chosen = self._add("source", name, parallelism, source=source, **parts)
        from penstock.api.stream import Stream

        return Stream(self, (End(chosen),))

    def graph(self) -> Graph:
        """The whole, checked: shape, names, parallelism, and whether every function can travel to the workers.

        Example:

            orders.sink(output, name="output")
            assert [node.name for node in pipeline.graph().nodes] == ["orders", "output"]
        """
        graph = Graph(self.name, tuple(self._nodes), tuple(resolved(self._nodes, self._wishes)), self.max_parallelism)
        check(graph)
        graph = renamed(graph, derived_names(graph, self._traits))
        for node in graph.nodes:
            check_travels(node.name, node.source or node.operator or node.sink)
        return graph

    # --- building ---

    def _add(
        self,
        kind: str,
        name: str | None,
        parallelism: int | None,
        keeps: Keeps = Keeps.NOTHING,
        label: str = "",
        **parts: Any,
    ) -> OperatorName:
        """Add a node. One without a name has a number until `graph` derives its name from all that it stands on."""
        self._counts[kind] += 1
        number = self._counts[kind]
        chosen = OperatorName(f"{kind} #{number}" if name is None else name)
        require_name(f"a {kind}", chosen)
        if any(node.name == chosen for node in self._nodes):
            raise PipelineError(f"there is an operator '{chosen}' already: give each a name of its own with name=…")
        if parallelism is not None:
            require_count(f"the parallelism of '{chosen}'", parallelism)
        former = OperatorName(f"{kind}_{number}") if name is None else None
        self._nodes.append(Node(chosen, parallelism=parallelism, kind=kind, former_name=former, **parts))
        self._traits[chosen] = Traits(former, keeps, label, calling_line())
        return chosen

    def _connect(self, ends: Iterable[End], downstream: OperatorName, number: int = 0) -> None:
        self._wishes += [Wish(end, downstream, number) for end in ends]
