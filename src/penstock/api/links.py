"""Links in the making: how records are to travel, as far as the user has said, and what is chosen for the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from penstock.api.graph import Link, Node
from penstock.ids import OperatorName
from penstock.protocol.manifest import Partitioning


@dataclass(frozen=True, slots=True)
class End:
    """An operator's output, and how its records are to travel on; None leaves that to `resolved`."""

    operator: OperatorName
    partitioning: Partitioning | None = None
    key: tuple[str, ...] = ()
    event_time: str | None = None
    """The column that says when a record happened, as far as is known."""


@dataclass(frozen=True, slots=True)
class Wish:
    """A link as it was asked for."""

    end: End
    downstream: OperatorName
    input: int


def resolved(nodes: Sequence[Node], wishes: Sequence[Wish]) -> Iterator[Link]:
    """The links, with a partitioning for each: the user's, or the one that fits best."""
    by_name = {node.name: node for node in nodes}
    outputs = Counter(wish.end.operator for wish in wishes)
    inputs = Counter(wish.downstream for wish in wishes)
    for wish in wishes:
        upstream, partitioning = wish.end.operator, wish.end.partitioning
        if partitioning is None:
            sender, receiver = by_name[upstream], by_name[wish.downstream]
            is_alone = outputs[upstream] == 1 and inputs[wish.downstream] == 1
            partitioning = fitting(sender, receiver, is_alone and sender.chainable_after and receiver.chainable)
        yield Link(upstream, wish.downstream, partitioning, wish.input, wish.end.key)


def fitting(sender: Node, receiver: Node, can_chain: bool) -> Partitioning:
    """Where the two do not become one chain there is a channel, and on a forward channel no barrier can overtake.

    At equal parallelism rescale is the same one-to-one connection, and one that barriers can overtake on.
    """
    if sender.parallelism != receiver.parallelism:
        return Partitioning.REBALANCE
    return Partitioning.FORWARD if can_chain else Partitioning.RESCALE
