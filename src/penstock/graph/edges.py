"""Links in the making: how records are to travel, as far as the user has said, and what is chosen for the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from penstock.errors import PipelineError
from penstock.graph.logical import LogicalEdge, Node, reading
from penstock.ids import MAIN_OUTPUT, OperatorName
from penstock.model.changelog import Changelog
from penstock.protocol.manifest import Partitioning


@dataclass(frozen=True, slots=True)
class OutputPort:
    """An operator's output, and how its records are to travel on; None leaves that to `resolved`."""

    operator: OperatorName
    partitioning: Partitioning | None = None
    key: tuple[str, ...] = ()
    event_time: str | None = None
    """The column that says when a record happened, as far as is known."""
    output: str = MAIN_OUTPUT
    changelog: Changelog | None = None
    """Set if records change a result, as their column `op` says."""
    beside: OperatorName | None = None
    """The operator whose side outputs belong to this output; None: that of the output."""


@dataclass(frozen=True, slots=True)
class PendingEdge:
    """An edge as the user asked for it."""

    port: OutputPort
    downstream: OperatorName
    input: int


def side_ports(nodes: Sequence[Node], ports: Sequence[OutputPort], output: str, cure: str) -> tuple[OutputPort, ...]:
    """A side output of the operators whose main outputs the `ports` are."""
    by_name = {node.name: node for node in nodes}
    for port in ports:
        if port.output != MAIN_OUTPUT or output not in by_name[port.beside or port.operator].side_outputs:
            raise PipelineError(
                f"{reading(output)}: '{port.operator}' has no such output. Call it on the stream of the source or "
                f"operator that has one, and {cure}"
            )
    return tuple(OutputPort(port.beside or port.operator, output=output) for port in ports)


def resolved(nodes: Sequence[Node], pending_edges: Sequence[PendingEdge]) -> Iterator[LogicalEdge]:
    """The edges, with a partitioning for each: the user's, or the one that fits best."""
    by_name = {node.name: node for node in nodes}
    outputs = Counter((pending.port.operator, pending.port.output) for pending in pending_edges)
    inputs = Counter(pending.downstream for pending in pending_edges)
    for pending in pending_edges:
        upstream, output, partitioning = pending.port.operator, pending.port.output, pending.port.partitioning
        if partitioning is None:
            sender, receiver = by_name[upstream], by_name[pending.downstream]
            # The main output goes on within the chain, wherever the side outputs go: there splits are told apart.
            is_alone = output == MAIN_OUTPUT and outputs[upstream, output] == 1 and inputs[pending.downstream] == 1
            partitioning = fitting(sender, receiver, is_alone and sender.chainable_after and receiver.chainable)
        yield LogicalEdge(upstream, pending.downstream, partitioning, pending.input, pending.port.key, output)


def fitting(sender: Node, receiver: Node, can_chain: bool) -> Partitioning:
    """Where the two do not become one chain there is a channel, and on a forward channel no barrier can overtake.

    At equal parallelism rescale is the same one-to-one connection, and one that barriers can overtake on.
    """
    if sender.parallelism != receiver.parallelism:
        return Partitioning.REBALANCE
    return Partitioning.FORWARD if can_chain else Partitioning.RESCALE
