"""Redistribution from any shape to any other: everything finds one owner, and nothing changes its order (I2, I9)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.graph.physical import reachable
from penstock.ids import CheckpointId, EdgeId, Generation, KeyGroup, OperatorName, SubtaskId
from penstock.protocol.key_groups import key_groups_of, owner_of
from penstock.protocol.manifest import (
    ChannelSegment,
    EdgeShape,
    Manifest,
    OperatorShape,
    Partitioning,
    PipelineShape,
    Segment,
    Side,
    StateKind,
    StateSegment,
    SubtaskReport,
)
from penstock.protocol.manifest.compatibility import check_fits
from penstock.protocol.redistribution import channels_of, states_of

UP, DOWN = OperatorName("up"), OperatorName("down")
EDGE = EdgeId(UP, DOWN, 0)
MAX_PARALLELISM = 24
CAPTURED = [Partitioning.HASH, Partitioning.REBALANCE, Partitioning.SHUFFLE, Partitioning.RESCALE, Partitioning.GLOBAL]
"""Forward and broadcast edges are never captured: the plan keeps them aligned."""
parallelisms = st.integers(1, 9)


def shape(how: Partitioning, senders: int, receivers: int) -> PipelineShape:
    operators = OperatorShape(UP, UP, senders), OperatorShape(DOWN, DOWN, receivers)
    return PipelineShape("any", MAX_PARALLELISM, operators, (EdgeShape(EDGE, how, senders, receivers),))


def senders_to(how: Partitioning, receiver: int, senders: int, receivers: int) -> list[int]:
    return [sender for sender in range(senders) if receiver in reachable(how, sender, senders, receivers)]


@st.composite
def flights(draw: st.DrawFn, how: Partitioning, senders: int, receivers: int) -> list[ChannelSegment]:
    """Some channels hold something, on one side or both. The checksum numbers the segments in any order."""
    found = []
    for sender in range(senders):
        for receiver in reachable(how, sender, senders, receivers):
            for side in draw(st.sets(st.sampled_from(list(Side)))):
                found.append(ChannelSegment(EDGE, sender, receiver, side, Segment(1, len(found)), 1))
    return draw(st.permutations(found))


@settings(max_examples=150, deadline=None)
@given(st.data(), st.sampled_from(CAPTURED), st.lists(st.tuples(parallelisms, parallelisms), min_size=2, max_size=4))
def test_every_record_in_flight_finds_exactly_one_new_owner_however_often_it_is_recovered(
    data: st.DataObject, how: Partitioning, shapes: list[tuple[int, int]]
) -> None:
    held = data.draw(flights(how, *shapes[0]))
    written = contents(how, held, shapes[0][1])
    for before, (senders, receivers) in pairwise(shapes):
        # The number of rows is used to tell the segments apart: those of one blob may be parts of several.
        held = [replace(segment, rows=number) for number, segment in enumerate(held)]
        report = SubtaskReport(SubtaskId(UP, 0), channels=tuple(held))
        manifest = Manifest(CheckpointId(1), Generation(1), shape(how, *before), (report,))
        after = shape(how, senders, receivers)
        check_fits(manifest, after)
        owners: Counter[tuple[int, KeyGroup | None]] = Counter()
        old, held = held, []
        for receiver in range(receivers):
            from_senders = senders_to(how, receiver, senders, receivers)
            taken = channels_of(manifest, after.edges[0], receiver, from_senders, MAX_PARALLELISM)
            assert [segment.age for segment in taken] == sorted((segment.age for segment in taken), reverse=True)
            for segment in taken:
                assert segment.sender in from_senders
                assert (segment.receiver, segment.side) == (receiver, Side.RECEIVER)
                assert not segment.has_watermarks or before == (senders, receivers)
                owners.update(counted(how, segment, receivers, written))
            check_channels_stay_together(old, taken)
            held += taken
        assert owners == Counter((number, group) for number, groups in written.items() for group in groups)
        # The recovery fails when some more has come in; nothing of the recovered was processed.
        fresh = data.draw(flights(how, senders, receivers))
        fresh = [replace(segment, segment=Segment(1, len(written) + n)) for n, segment in enumerate(fresh)]
        written |= contents(how, fresh, receivers)
        held = [*fresh, *held]


def contents(how: Partitioning, segments: Iterable[ChannelSegment], receivers: int) -> dict[int, list[KeyGroup | None]]:
    """The key groups of the rows in each blob; None stands for all rows where groups do not matter."""
    return {
        segment.segment.crc32: [
            KeyGroup(group) for group in key_groups_of(segment.receiver, receivers, MAX_PARALLELISM)
        ]
        if how is Partitioning.HASH
        else [None]
        for segment in segments
    }


def counted(
    how: Partitioning, segment: ChannelSegment, receivers: int, written: Mapping[int, Sequence[KeyGroup | None]]
) -> Iterator[tuple[int, KeyGroup | None]]:
    """What of its blob a segment says is its receiver's."""
    own = range(segment.key_group_first, segment.key_group_end)
    for group in written[segment.segment.crc32]:
        if not own or group in own:
            assert group is None or owner_of(group, receivers, MAX_PARALLELISM) == segment.receiver
            yield segment.segment.crc32, group


def check_channels_stay_together(old: list[ChannelSegment], taken: Sequence[ChannelSegment]) -> None:
    """The segments of one old channel go to one new one, and what its receiver held comes first."""
    places: dict[tuple[int, int], set[int]] = {}
    sides: dict[tuple[int, int, int], list[Side]] = {}
    for segment in taken:
        was = old[segment.rows]
        places.setdefault((was.sender, was.receiver), set()).add(segment.sender)
        sides.setdefault((was.sender, was.receiver, segment.age), []).append(was.side)
    assert all(len(channels) == 1 for channels in places.values())
    order = [Side.RECEIVER, Side.SENDER].index
    assert all(found == sorted(found, key=order) for found in sides.values())


@st.composite
def states(draw: st.DrawFn, before: int) -> list[SubtaskReport]:
    """Each old subtask has its key groups in a few pieces, some list pieces, and the broadcast state."""
    reports, number = [], 0
    for index in range(before):
        groups = key_groups_of(index, before, MAX_PARALLELISM)
        cuts = sorted(draw(st.sets(st.sampled_from(list(groups)))) | {groups.start})
        pieces = []
        for first, end in zip(cuts, [*cuts[1:], groups.stop], strict=True):
            pieces.append(StateSegment(DOWN, "keyed", StateKind.KEYED, Segment(1, number := number + 1), 1, first, end))
        for _ in range(draw(st.integers(0, 3))):
            pieces.append(StateSegment(DOWN, "list", StateKind.LIST, Segment(1, number := number + 1), 1))
        pieces.append(StateSegment(DOWN, "broadcast", StateKind.BROADCAST, Segment(1, number := number + 1), 1))
        reports.append(SubtaskReport(SubtaskId(DOWN, index), states=tuple(draw(st.permutations(pieces)))))
    return draw(st.permutations(reports))


@settings(max_examples=150, deadline=None)
@given(st.data(), parallelisms, parallelisms)
def test_every_piece_of_state_finds_exactly_one_new_owner_and_everybody_a_broadcast_copy(
    data: st.DataObject, before: int, after: int
) -> None:
    reports = data.draw(states(before))
    manifest = Manifest(CheckpointId(1), Generation(1), shape(Partitioning.HASH, 1, before), tuple(reports))
    everything = [piece for report in reports for piece in report.states]
    keyed: Counter[tuple[int, int]] = Counter()
    lists: Counter[int] = Counter()
    for index in range(after):
        own = key_groups_of(index, after, MAX_PARALLELISM)
        taken = states_of(manifest, DOWN, index, after, own)
        for piece in taken:
            if piece.kind is StateKind.KEYED:
                kept = [group for group in range(piece.key_group_first, piece.key_group_end) if group in own]
                assert kept, "a piece was read for nothing"
                keyed.update((piece.segment.crc32, group) for group in kept)
            elif piece.kind is StateKind.LIST:
                lists[piece.segment.crc32] += 1
        assert [piece.kind for piece in taken].count(StateKind.BROADCAST) == 1
    assert keyed == Counter(
        (piece.segment.crc32, group)
        for piece in everything
        if piece.kind is StateKind.KEYED
        for group in range(piece.key_group_first, piece.key_group_end)
    )
    assert lists == Counter(piece.segment.crc32 for piece in everything if piece.kind is StateKind.LIST)
