"""The graph of a pipeline with its figures: chains as vertices, exchanges as edges."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.dashboard.sights import readings as names
from penstock.dashboard.sights.readings import Reading
from penstock.dashboard.views import EdgeView, GraphView, OperatorView, SubtaskView, Vertex, VertexDetail
from penstock.graph.physical import Chain, PhysicalPlan
from penstock.ids import OperatorName, SubtaskId


def graph_view(plan: PhysicalPlan, reading: Reading, channel_bytes_max: int) -> GraphView:
    vertices = tuple(_vertex(plan, chain, reading, channel_bytes_max) for chain in plan.chains.values())
    edges = tuple(
        EdgeView(
            upstream=edge.upstream,
            downstream=edge.downstream,
            exchange=edge.partitioning.value,
            can_be_overtaken=not plan.chains[edge.downstream].aligned_only,
        )
        for edge in plan.edges
    )
    return GraphView(vertices=vertices, edges=edges)


def vertex_detail(plan: PhysicalPlan, name: str, reading: Reading, channel_bytes_max: int) -> VertexDetail | None:
    """One vertex with its subtasks; None if there is no such chain."""
    chain = plan.chains.get(OperatorName(name))
    if chain is None:
        return None
    vertex = _vertex(plan, chain, reading, channel_bytes_max)
    figures = {field: getattr(vertex, field) for field in vertex.__struct_fields__}
    return VertexDetail(**figures, subtasks=tuple(_subtasks(plan, chain, reading)))


def _vertex(plan: PhysicalPlan, chain: Chain, reading: Reading, channel_bytes_max: int) -> Vertex:
    subtasks = _subtasks(plan, chain, reading)
    rows = [each.rows_in for each in subtasks if each.rows_in is not None]
    watermark = least(each.watermark_ms for each in subtasks)
    channels = sum(len(plan.inputs[SubtaskId(chain.name, index)]) for index in range(chain.parallelism))
    return Vertex(
        id=chain.name,
        name=chain.name,
        operators=tuple(OperatorView(name=node.name, kind=node.kind) for node in chain.nodes),
        parallelism=chain.parallelism,
        busy=mean([each.busy for each in subtasks]),
        idle=mean([each.idle for each in subtasks]),
        backpressured=mean([each.backpressured for each in subtasks]),
        rows_in=total([each.rows_in for each in subtasks]),
        rows_out=total([each.rows_out for each in subtasks]),
        rows_in_per_second=total_rate([each.rows_in_per_second for each in subtasks]),
        rows_out_per_second=total_rate([each.rows_out_per_second for each in subtasks]),
        watermark_ms=watermark,
        watermark_lag_ms=None if watermark is None else reading.wall_ms - watermark,
        state_bytes=total([each.state_bytes for each in subtasks]),
        queue_bytes=total([each.queue_bytes for each in subtasks]),
        queue_bytes_max=channels * channel_bytes_max if channels else None,
        skew=max(rows) * len(rows) / sum(rows) if sum(rows) else None,
    )


def _subtasks(plan: PhysicalPlan, chain: Chain, reading: Reading) -> list[SubtaskView]:
    return [_subtask(plan, chain, index, reading) for index in range(chain.parallelism)]


def _subtask(plan: PhysicalPlan, chain: Chain, index: int, reading: Reading) -> SubtaskView:
    first, last = (chain.name, index), (chain.nodes[-1].name, index)
    shares = reading.shares(first) or (None, None, None)
    queued = reading.value(names.QUEUED_IN, first)
    return SubtaskView(
        index=index,
        worker=plan.worker_of(SubtaskId(chain.name, index)),
        busy=shares[0],
        idle=shares[1],
        backpressured=shares[2],
        rows_in=whole(reading.value(names.ROWS_IN, first)),
        rows_out=whole(reading.value(names.ROWS_OUT, last)),
        rows_in_per_second=reading.per_second(names.ROWS_IN, first),
        rows_out_per_second=reading.per_second(names.ROWS_OUT, last),
        watermark_ms=watermark_of(chain, index, reading),
        state_bytes=whole(reading.value(names.STATE, first)),
        queue_bytes=whole(queued),
    )


def watermark_of(chain: Chain, index: int, reading: Reading) -> int | None:
    """The event time that a subtask has passed on, or that its last operator was told, if nothing is behind it."""
    last = chain.nodes[-1].name, index
    passed_on, told = reading.value(names.OUTPUT_WATERMARK, last), reading.value(names.INPUT_WATERMARK, last)
    return whole(passed_on if passed_on is not None else told)


# --- figures of several subtasks ---


def whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def least(values: Iterable[int | None]) -> int | None:
    found = [value for value in values if value is not None]
    return min(found, default=None)


def mean(values: Sequence[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return sum(found) / len(found) if found else None


def total(values: Sequence[int | None]) -> int | None:
    found = [value for value in values if value is not None]
    return sum(found) if found else None


def total_rate(values: Sequence[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return sum(found) if found else None
