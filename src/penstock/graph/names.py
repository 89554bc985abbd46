"""Names of operators that their user has not named: derived from what they are and stand on.

State, positions, output and records in flight are found by name. A name that counts operators goes to another one when
one is put in front; a derived name does not. It is a digest of:

| operator | identity |
|---|---|
| a source | its definition (`Source.identity`) |
| one with keyed state | kind, function or aggregates, keys, and the sources and keyed operators it stands on |
| `map_async`, `with_watermark` | kind, function, and the sources and keyed operators it stands on |
| a sink | its definition (`Sink.identity`); what it stands on too, if that is its class alone |
| any other | kind and the operators right in front of it; where that is not enough, those behind it too |

Operators without state between two others are no part of the identity of an operator with state: a `filter` may be put
in front of a count. Two operators with state and one identity cannot be told apart, and are refused. Without state they
are numbered among their equals, and the number of these is part of the name: to add one changes the names of all.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from penstock.connectors.sink import Sink
from penstock.errors import PipelineError
from penstock.graph.logical import Graph, Keeps, Node, topological
from penstock.ids import OperatorName
from penstock.user_code import strangeness, with_cells

_OURS = 2
_HINT_LENGTH = 32

Identity: TypeAlias = Sequence[object]
Group: TypeAlias = list[OperatorName]


def calling_line() -> str:
    """`file:line` of the innermost frame that is not of Penstock."""
    frame = sys._getframe(1)
    while frame.f_back is not None and strangeness(frame.f_code.co_filename) == _OURS:
        frame = frame.f_back
    file, line = frame.f_code.co_filename, frame.f_lineno
    cell = with_cells(f"{file}:{line}")
    return cell if cell != f"{file}:{line}" else f"{os.path.basename(file)}:{line}"


def label_of(function: object) -> str:
    """The name of a function, or of the class of an object. All lambdas have one name."""
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__))


def derived_names(graph: Graph) -> dict[OperatorName, OperatorName]:
    """The final name of each operator by its name so far. Raises `PipelineError` for two that cannot be told apart."""
    return _Naming(graph).names()


class _Naming:
    """Names are given in an order in which everything that an identity is made of has its name."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._order = list(topological(graph))
        self._names = {node.name: node.name for node in graph.nodes if node.former_name is None}
        self._bases: dict[OperatorName, frozenset[OperatorName]] = {}
        """By operator: the sources and keyed operators that its output comes from."""

    def names(self) -> dict[OperatorName, OperatorName]:
        for node in self._order:
            if self._is_base(node):
                self._claim([node.name], self._base_identity(node))
            self._bases[node.name] = self._outgoing(node)
        self._name_groups([node for node in self._order if self._keeps_batches(node)], self._stateful_identities())
        self._name_groups([node for node in self._order if node.sink is not None], self._sink_identities())
        for node in self._order:
            if node.name not in self._names:
                self._name_equals(self._equals_of(node))
        return self._names

    # --- identities ---

    def _base_identity(self, node: Node) -> Identity:
        return [node.kind, node.label, node.definition, *self._stands_on(node)]

    def _stands_on(self, node: Node) -> list[object]:
        """By input: its keys, and the sources and keyed operators that its records come from."""
        inputs: dict[int, tuple[set[tuple[str, ...]], set[OperatorName]]] = {}
        for edge in self._graph.into(node.name):
            keys, bases = inputs.setdefault(edge.input, (set(), set()))
            keys.add(edge.key)
            bases |= self._bases[edge.upstream]
        return [[number, sorted(keys), sorted(bases)] for number, (keys, bases) in sorted(inputs.items())]

    def _stateful_identities(self) -> list[Callable[[Node], Identity]]:
        # Not the column of event time at first: a checkpoint with a clock of another column must be found, and refused.
        plain = [lambda node: [node.kind, node.label, *self._stands_on(node)]]
        return [*plain, self._base_identity]

    def _sink_identities(self) -> list[Callable[[Node], Identity]]:
        def identity(node: Node) -> Identity:
            # A class alone says too little; with a directory or a table, what the sink stands on may change.
            return [node.kind, node.definition] if len(node.definition) > 1 else self._base_identity(node)

        return [identity]

    def _equals_of(self, node: Node) -> Group:
        """The operators without state that have the kind and the inputs of this one, in the order of the program."""
        inputs = self._inputs_of(node)
        return [
            other.name
            for other in self._graph.nodes
            if other.name not in self._names and other.kind == node.kind and self._inputs_of(other) == inputs
        ]

    def _inputs_of(self, node: Node) -> list[tuple[OperatorName, int, tuple[str, ...]]]:
        return sorted((edge.upstream, edge.input, edge.key) for edge in self._graph.into(node.name))

    def _leads_to(self, name: OperatorName) -> set[OperatorName]:
        """The next operators behind it that have a name already."""
        found: set[OperatorName] = set()
        for edge in self._graph.out_of(name):
            behind = self._names.get(edge.downstream)
            found |= self._leads_to(edge.downstream) if behind is None else {behind}
        return found

    # --- names ---

    def _name_groups(self, nodes: Iterable[Node], identities: Sequence[Callable[[Node], Identity]]) -> None:
        """Name by the first identity that tells an operator from the others, or else by the last one."""
        left = [node for node in nodes if node.name not in self._names]
        for number, identity in enumerate(identities, 1):
            groups: dict[str, Group] = {}
            for node in left:
                groups.setdefault(_text(identity(node)), []).append(node.name)
            for group in groups.values():
                if len(group) == 1 or number == len(identities):
                    self._claim(group, [number, *identity(self._graph.node(group[0]))])
            left = [node for node in left if node.name not in self._names]

    def _name_equals(self, equals: Group) -> None:
        first = self._graph.node(equals[0])
        inputs = [(self._names[name], number, key) for name, number, key in self._inputs_of(first)]
        if len(equals) == 1:
            self._claim(equals, [first.kind, sorted(inputs)])
            return
        groups: dict[str, Group] = {}
        for name in equals:
            groups.setdefault(_text(sorted(self._leads_to(name))), []).append(name)
        for behind, group in groups.items():
            self._claim(group, [first.kind, sorted(inputs), behind, len(equals)])

    def _claim(self, group: Group, identity: Identity) -> None:
        node = self._graph.node(group[0])
        if all(name in self._names for name in group):
            return
        if len(group) > 1 and self._must_differ(node):
            raise self._ambiguous(group)
        for number, name in enumerate(group, 1):
            of_equals = [f"{number} of {len(group)}"] if len(group) > 1 else []
            derived = OperatorName(f"{node.kind}{self._hint(node)}-{_digest([*identity, *of_equals])}")
            twin = next((other for other, given in self._names.items() if given == derived), None)
            if twin is not None:
                raise self._ambiguous([twin, name])
            self._names[name] = derived

    def _hint(self, node: Node) -> str:
        """A part of the identity that people can read."""
        if not self._is_base(node) and node.sink is None:
            return ""
        keys = "_".join(column for edge in self._graph.into(node.name)[:1] for column in edge.key)
        text = dict(node.definition).get(node.kind) or keys
        text = re.sub(r"\W+", "_", text)[:_HINT_LENGTH].strip("_")
        return f"-{text}" if text else ""

    def _ambiguous(self, group: Group) -> PipelineError:
        node = self._graph.node(group[0])
        taken = [name for name in group if self._graph.node(name).former_name is None]
        if taken:
            others = ", ".join(self._graph.node(name).place for name in group if name not in taken)
            return PipelineError(
                f"'{taken[0]}' is also the derived name of an unnamed {node.kind} ({others}): name it too"
            )
        places = " and ".join(self._graph.node(name).place or f"'{name}'" for name in group)
        held = "positions are" if node.source is not None else "output is" if node.sink is not None else "state is"
        return PipelineError(
            f"{len(group)} unnamed operators are the same {node.kind} on the same input ({places}): "
            f'{held} found by name in a checkpoint, so each needs a distinct name. Set name="…"; one '
            "that existing checkpoints contain may keep its derived name"
        )

    # --- kinds of operators ---

    def _is_base(self, node: Node) -> bool:
        return node.source is not None or node.keeps is Keeps.KEYS

    def _keeps_batches(self, node: Node) -> bool:
        return node.keeps is Keeps.BATCHES

    def _must_differ(self, node: Node) -> bool:
        if node.sink is not None:
            has_committer = type(node.sink).committer is not Sink.committer
            return has_committer and node.sink.outlives_driver
        return self._is_base(node) or self._keeps_batches(node)

    def _outgoing(self, node: Node) -> frozenset[OperatorName]:
        if self._is_base(node):
            return frozenset([self._names[node.name]])
        return frozenset().union(*(self._bases[edge.upstream] for edge in self._graph.into(node.name)))


def _text(identity: object) -> str:
    return json.dumps(identity)


def _digest(identity: Identity) -> str:
    return hashlib.sha256(_text(identity).encode()).hexdigest()[:8]
