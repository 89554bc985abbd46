"""A plan in words: chains, exchanges, state, and which exchanges a barrier can overtake records on.

The text is for people. Nothing parses it, so it may change from version to version.
"""

from __future__ import annotations

from penstock.connectors.sink import Sink
from penstock.graph.logical import Keeps, Node
from penstock.graph.physical import Chain, PhysicalEdge, PhysicalPlan
from penstock.ids import MAIN_OUTPUT
from penstock.protocol.manifest import Partitioning
from penstock.protocol.manifest.compatibility import AGGREGATES, EVENT_TIME_COLUMN

_CALLS = {"with_event_time": "with_watermark", "connect": "connect … process"}
"""Calls whose kind has another name in checkpoints."""
_WAYS = {
    Partitioning.FORWARD: "one to one",
    Partitioning.RESCALE: "to a few each (rescale)",
    Partitioning.REBALANCE: "in turn (rebalance)",
    Partitioning.SHUFFLE: "at random (shuffle)",
    Partitioning.BROADCAST: "to all (broadcast)",
    Partitioning.GLOBAL: "to one",
}
_DERIVED = "*"


def explained(plan: PhysicalPlan, parallelism: int | None) -> str:
    """The plan as lines of text. Without a `parallelism` that of operators that name none is left open."""
    numbers = {name: number for number, name in enumerate(plan.chains, 1)}
    shown = "set at the start" if parallelism is None else str(parallelism)
    workers = "the largest parallelism" if parallelism is None else str(plan.workers)
    lines = [
        f"Pipeline '{plan.name}': {_counted(len(plan.chains), 'chain')}, {_counted(len(plan.edges), 'exchange')}",
        f"  default parallelism: {shown}; workers: {workers}; key groups: {plan.max_parallelism}",
    ]
    for chain in plan.chains.values():
        lines += ["", *_chain_lines(plan, chain, numbers[chain.name], parallelism)]
        leaving = [edge for edge in plan.edges if edge.upstream == chain.name]
        lines += [_edge_line(plan, edge, numbers[edge.downstream], parallelism) for edge in leaving]
    if any(_is_derived(node) for chain in plan.chains.values() for node in chain.nodes):
        lines += ["", f"{_DERIVED} This name is derived from the operator and its input: name=… makes it your own."]
    return "\n".join(lines)


def _chain_lines(plan: PhysicalPlan, chain: Chain, number: int, parallelism: int | None) -> list[str]:
    key = f", keyed by ({', '.join(chain.key)})" if chain.key else ""
    head = f"Chain {number}: parallelism {_parallelism(chain, parallelism)}{key}"
    width = max(len(_name(node)) for node in chain.nodes)
    return [head, *(f"  {_name(node):<{width}}  {_described(node, chain)}" for node in chain.nodes)]


def _edge_line(plan: PhysicalPlan, edge: PhysicalEdge, to: int, parallelism: int | None) -> str:
    way = f"by key ({', '.join(edge.key)})" if edge.key else _WAYS[edge.partitioning]
    if parallelism is not None:
        channels = sum(channel.edge.id == edge.id for channel in plan.channels)
        way += f", {_counted(channels, 'channel')}"
    columns = "" if edge.columns is None else f", columns {', '.join(edge.columns)}"
    output = "" if edge.output == MAIN_OUTPUT else f"{edge.output} of "
    is_aligned = plan.chains[edge.downstream].aligned_only
    barrier = "always aligned" if is_aligned else "barriers can overtake"
    return f"  => Chain {to}: {output}{edge.id}, {way}{columns}; {barrier}"


def _described(node: Node, chain: Chain) -> str:
    part = node.source or node.sink
    what = f"{node.kind} {part!r}" if part is not None else _CALLS.get(node.kind, node.kind)
    # The label of an aggregate are its outputs, that of another operator its function.
    label = f" {node.label}" if node.label and part is None else ""
    settings = {name: value for name, value in node.definition if part is None and name != AGGREGATES}
    event_time = settings.pop(EVENT_TIME_COLUMN, None)
    details = [f"{name} {value}" for name, value in settings.items() if name != "aggregates"]
    details += [f"event time in column '{event_time}'"] if event_time is not None else []
    details += [f"keeps {_kept(node, chain)}"] if _kept(node, chain) else []
    return "; ".join([f"{what}{label}", *details])


def _kept(node: Node, chain: Chain) -> str:
    if node.source is not None:
        return "positions"
    if node.sink is not None:
        has_committer = type(node.sink).committer is not Sink.committer
        return "output until a checkpoint is durable" if has_committer else ""
    if node.keeps is Keeps.KEYS:
        return f"state by key ({', '.join(chain.key)})" if chain.key else "state"
    if node.keeps is Keeps.BATCHES:
        return "batches in hand" if node.kind == "map_async" else "its clock"
    return ""


def _parallelism(chain: Chain, parallelism: int | None) -> str:
    is_open = parallelism is None and chain.nodes[0].parallelism is None
    return "default" if is_open else str(chain.parallelism)


def _name(node: Node) -> str:
    return f"{node.name}{_DERIVED}" if _is_derived(node) else node.name


def _is_derived(node: Node) -> bool:
    return node.former_name is not None


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
