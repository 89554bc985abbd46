"""Redistribution: which parts of a checkpoint each subtask of a new shape takes over.

The old shape is in the manifest; the new one may have other parallelisms. Every piece of state and every
record in flight must find exactly one new owner (I9):

| what | who takes it |
|---|---|
| keyed state | the owner of its key group; pieces that span several owners are filtered by row |
| list state | piece j goes to subtask j modulo the new parallelism |
| broadcast state | each new subtask reads one old copy |
| keyed in-flight data | the owner of each row's key group, by the same partitioner |
| other in-flight data | receiver r goes to r modulo the new number of receivers |
| totals of metrics | those of subtask i are added to those of i modulo the new parallelism |

In-flight data are restored on the receiving side, in front of everything live. Their channel may not exist
any more; the records of one old channel stay together and in order on one new one (I2). Of an edge the records
that have been recovered before come first: a key may have changed its channel since. Watermarks in flight are
kept only where a channel is the same as before: elsewhere they would speak for records of other senders.

Whether the new pipeline can go on from the checkpoint at all is decided before, in `protocol.manifest.compatibility`.

Pure: computed alike by every worker, from the manifest alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from penstock.ids import EdgeId, OperatorName
from penstock.protocol.key_groups import key_groups_of
from penstock.protocol.manifest import (
    ChannelSegment,
    EdgeShape,
    Manifest,
    Partitioning,
    Side,
    SplitState,
    StateKind,
    StateSegment,
    SubtaskReport,
)

# --- operator state ---


def states_of(
    manifest: Manifest, operator: OperatorName, index: int, parallelism: int, key_groups: range
) -> tuple[StateSegment, ...]:
    """The pieces of an operator's state that subtask `index` of `parallelism` must read."""
    reports = _reports_with(manifest, operator)
    pieces = [(report, piece) for report in reports for piece in report.states if piece.operator == operator]
    keyed = [piece for _, piece in pieces if piece.kind is StateKind.KEYED and _overlaps(piece, key_groups)]
    return (*keyed, *_lists(pieces, index, parallelism, len(reports)), *_broadcast(pieces, index, len(reports)))


def _reports_with(manifest: Manifest, operator: OperatorName) -> list[SubtaskReport]:
    chains = {shape.chain for shape in manifest.shape.operators if shape.name == operator}
    reports = [report for report in manifest.reports if report.subtask.chain in chains]
    return sorted(reports, key=lambda report: report.subtask.index)


def _overlaps(piece: StateSegment, key_groups: range) -> bool:
    return piece.key_group_first < key_groups.stop and key_groups.start < piece.key_group_end


def _lists(
    pieces: Sequence[tuple[SubtaskReport, StateSegment]], index: int, parallelism: int, before: int
) -> list[StateSegment]:
    lists = [(report, piece) for report, piece in pieces if piece.kind is StateKind.LIST]
    if before == parallelism:
        return [piece for report, piece in lists if report.subtask.index == index]
    return [piece for position, (_, piece) in enumerate(lists) if position % parallelism == index]


def _broadcast(pieces: Sequence[tuple[SubtaskReport, StateSegment]], index: int, before: int) -> list[StateSegment]:
    return [
        piece
        for report, piece in pieces
        if piece.kind is StateKind.BROADCAST and report.subtask.index == index % before
    ]


def splits_of(manifest: Manifest, operator: OperatorName) -> dict[str, SplitState]:
    """Positions of all splits of a source; which subtask reads which is the source's business."""
    reports = _reports_with(manifest, operator)
    return {split.split: split for report in reports for split in report.splits if split.operator == operator}


def watermark_of(manifest: Manifest, operator: OperatorName, index: int, parallelism: int) -> int | None:
    """The event-time clock to go on with: its own, or after a rescale the slowest, so that nothing becomes late."""
    reports = _reports_with(manifest, operator)
    if len(reports) == parallelism:
        reports = [report for report in reports if report.subtask.index == index]
    clocks = [clock for report in reports for name, clock in report.watermarks if name == operator]
    return min(clocks) if clocks and len(clocks) == len(reports) else None


def totals_of(
    manifest: Manifest, parallelism: Mapping[OperatorName, int]
) -> dict[tuple[OperatorName, int], dict[str, int]]:
    """The counts that each subtask of each operator goes on from, by metric. The sum over subtasks is kept.

    `parallelism` is that of the operators now; counts of operators that are gone are dropped.
    """
    totals: dict[tuple[OperatorName, int], dict[str, int]] = {}
    for report in manifest.reports:
        for operator, metric, value in report.totals:
            if operator in parallelism:
                counts = totals.setdefault((operator, report.subtask.index % parallelism[operator]), {})
                counts[metric] = counts.get(metric, 0) + value
    return totals


# --- channels ---


def channels_of(
    manifest: Manifest, edge: EdgeShape, receiver: int, senders: Sequence[int], max_parallelism: int
) -> tuple[ChannelSegment, ...]:
    """What new receiver number `receiver` of `edge` takes over, as segments of the channels that it has now.

    `senders` are those it has channels from. The segments are in the order in which they are to be read, and one
    recovery older than in the manifest. If a checkpoint is taken before they are read, they go into it as they are.
    """
    before = next((old for old in manifest.shape.edges if old.edge == edge.edge), None)
    if before is None:
        return ()
    is_same = before.senders == edge.senders and before.receivers == edge.receivers
    taken = []
    for segment in _held(manifest, edge.edge):
        counts = _counting(segment, before, edge, receiver, max_parallelism)
        if counts is None:
            continue
        taken.append(
            replace(
                segment,
                sender=segment.sender if is_same else senders[segment.sender % len(senders)],
                receiver=receiver,
                side=Side.RECEIVER,
                age=segment.age + 1,
                key_group_first=counts.start,
                key_group_end=counts.stop,
                has_watermarks=segment.has_watermarks and is_same,
            )
        )
    return tuple(taken)


def _held(manifest: Manifest, edge: EdgeId) -> list[ChannelSegment]:
    """The captured segments of an edge: the oldest first, and of one age in the order of their channels.

    What the receiver of a channel held is older than what its sender held.
    """
    held = [segment for report in manifest.reports for segment in report.channels if segment.edge == edge]
    return sorted(held, key=lambda segment: (-segment.age, segment.sender, segment.receiver, _SIDES[segment.side]))


_SIDES = {Side.RECEIVER: 0, Side.SENDER: 1}

_ALL = range(0)


def _counting(
    segment: ChannelSegment, before: EdgeShape, after: EdgeShape, new: int, max_parallelism: int
) -> range | None:
    """Of which key groups rows of `segment` belong to new receiver `new`: `_ALL` of them, or None at all."""
    counted = range(segment.key_group_first, segment.key_group_end)
    if before.receivers == after.receivers:
        return counted if segment.receiver == new else None
    if after.partitioning is not Partitioning.HASH:
        return _ALL if segment.receiver % after.receivers == new else None
    theirs = counted if counted else key_groups_of(segment.receiver, before.receivers, max_parallelism)
    ours = key_groups_of(new, after.receivers, max_parallelism)
    both = range(max(theirs.start, ours.start), min(theirs.stop, ours.stop))
    if not both:
        return None
    return counted if both == theirs else both
