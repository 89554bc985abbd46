"""Redistribution from any shape to any other: everything finds one owner, and nothing changes its order (I2, I9)."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.ids import CheckpointId, EdgeId, Generation, KeyGroup, OperatorName, SubtaskId
from penstock.plan.physical import reachable
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
from penstock.protocol.redistribution import channels_of, check_fits, states_of

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
                found.append(ChannelSegment(EDGE, sender, receiver, side, Segment(1, len(found)), 1, 1))
    return draw(st.permutations(found))


@settings(max_examples=150, deadline=None)
@given(st.data(), st.sampled_from(CAPTURED), parallelisms, parallelisms, parallelisms, parallelisms)
def test_every_record_in_flight_finds_exactly_one_new_owner_and_keeps_its_channel_s_order(
    data: st.DataObject, how: Partitioning, old_senders: int, old_receivers: int, senders: int, receivers: int
) -> None:
    held = data.draw(flights(how, old_senders, old_receivers))
    manifest = Manifest(
        CheckpointId(1),
        Generation(1),
        shape(how, old_senders, old_receivers),
        (SubtaskReport(SubtaskId(UP, 0), channels=tuple(held)),),
    )
    after = shape(how, senders, receivers)
    check_fits(manifest, after)
    owners: Counter[tuple[int, KeyGroup | None]] = Counter()
    places: dict[tuple[int, int, int], set[int]] = {}
    for receiver in range(receivers):
        from_senders = senders_to(how, receiver, senders, receivers)
        for share in channels_of(manifest, after.edges[0], receiver, from_senders, MAX_PARALLELISM):
            assert share.sender in from_senders
            ends = {(segment.sender, segment.receiver) for segment in share.segments}
            assert len(ends) == 1
            sides = [segment.side for segment in share.segments]
            assert sides == sorted(sides, key=[Side.RECEIVER, Side.SENDER].index)
            is_same = (old_senders, old_receivers) == (senders, receivers)
            assert share.keeps_watermarks == is_same
            assert not is_same or ends == {(share.sender, receiver)}
            places.setdefault((*ends.pop(), receiver), set()).add(share.sender)
            for segment in share.segments:
                for group in groups_kept(how, segment, receiver, receivers, old_receivers, share.is_filtered):
                    owners[segment.segment.crc32, group] += 1
    assert owners == Counter(
        (segment.segment.crc32, group) for segment in held for group in groups_in(how, segment, old_receivers)
    )
    assert all(len(channels) == 1 for channels in places.values())


def groups_in(how: Partitioning, segment: ChannelSegment, receivers: int) -> list[KeyGroup | None]:
    """The key groups that the records of a channel can have; None stands for all where groups do not count."""
    if how is not Partitioning.HASH:
        return [None]
    return [KeyGroup(group) for group in key_groups_of(segment.receiver, receivers, MAX_PARALLELISM)]


def groups_kept(
    how: Partitioning, segment: ChannelSegment, receiver: int, receivers: int, old_receivers: int, is_filtered: bool
) -> list[KeyGroup | None]:
    groups = groups_in(how, segment, old_receivers)
    if not is_filtered:
        # Without a filter every row must be the new receiver's own.
        assert all(group is None or owner_of(group, receivers, MAX_PARALLELISM) == receiver for group in groups)
        return groups
    return [group for group in groups if group is not None and owner_of(group, receivers, MAX_PARALLELISM) == receiver]


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
