"""Redistribution, case by case: who takes over what. Any shape is in the properties."""

from __future__ import annotations

from dataclasses import replace

from penstock.ids import CheckpointId, EdgeId, Generation, OperatorName, SubtaskId
from penstock.protocol.key_groups import key_groups_of
from penstock.protocol.manifest import (
    ChannelSegment,
    EdgeShape,
    Manifest,
    OperatorShape,
    Partitioning,
    PipelineShape,
    Segment,
    Side,
    SplitState,
    StateKind,
    StateSegment,
    SubtaskReport,
)
from penstock.protocol.redistribution import (
    channels_of,
    splits_of,
    states_of,
    totals_of,
    watermark_of,
)

READ, COUNT, NOTE = OperatorName("read"), OperatorName("count"), OperatorName("note")
EDGE = EdgeId(READ, COUNT, 0)
MAX_PARALLELISM = 128


def piece(operator: OperatorName, kind: StateKind, number: int, groups: range = range(0)) -> StateSegment:
    return StateSegment(operator, "state", kind, Segment(1, number), 1, groups.start, groups.stop)


def flight(sender: int, receiver: int, side: Side, edge: EdgeId = EDGE) -> ChannelSegment:
    return ChannelSegment(edge, sender, receiver, side, Segment(1, 100 * sender + receiver), 1)


def shape(
    senders: int = 2, receivers: int = 2, how: Partitioning = Partitioning.HASH, key: tuple[str, ...] = ("k",)
) -> PipelineShape:
    operators = (
        OperatorShape(READ, READ, senders),
        OperatorShape(COUNT, COUNT, receivers, key),
        OperatorShape(NOTE, COUNT, receivers),
    )
    return PipelineShape("orders", MAX_PARALLELISM, operators, (EdgeShape(EDGE, how, senders, receivers),))


def manifest(of: PipelineShape, *reports: SubtaskReport) -> Manifest:
    return Manifest(CheckpointId(9), Generation(1), of, reports)


def subtask(chain: OperatorName, index: int) -> SubtaskId:
    return SubtaskId(chain, index)


FULL = manifest(
    shape(),
    SubtaskReport(
        subtask(READ, 0),
        splits=(SplitState(READ, "a", b"1"), SplitState(READ, "b", b"2")),
        channels=(flight(0, 1, Side.SENDER),),
    ),
    SubtaskReport(subtask(READ, 1), splits=(SplitState(READ, "c", b"3"),)),
    SubtaskReport(
        subtask(COUNT, 0), states=(piece(COUNT, StateKind.KEYED, 1, range(64)), piece(NOTE, StateKind.LIST, 2))
    ),
    SubtaskReport(subtask(COUNT, 1), states=(piece(COUNT, StateKind.KEYED, 3, range(64, 128)),)),
)


class TestOperatorState:
    def test_keyed_pieces_go_to_everybody_who_owns_one_of_their_groups(self) -> None:
        taken = [
            [each.segment.crc32 for each in states_of(FULL, COUNT, index, 3, key_groups_of(index, 3, 128))]
            for index in range(3)
        ]
        assert taken == [[1], [1, 3], [3]]

    def test_list_pieces_stay_where_they_are_at_the_same_parallelism(self) -> None:
        assert [len(states_of(FULL, NOTE, index, 2, range(0))) for index in range(2)] == [1, 0]

    def test_list_pieces_are_dealt_out_after_a_rescale(self) -> None:
        reports = [
            SubtaskReport(subtask(COUNT, index), states=(piece(NOTE, StateKind.LIST, 2 * index),) * (index + 1))
            for index in (1, 0)
        ]
        taken = [
            [each.segment.crc32 for each in states_of(manifest(shape(), *reports), NOTE, index, 3, range(0))]
            for index in range(3)
        ]
        assert taken == [[0], [2], [2]]

    def test_each_new_subtask_reads_one_broadcast_copy(self) -> None:
        reports = [
            SubtaskReport(subtask(COUNT, index), states=(piece(NOTE, StateKind.BROADCAST, index),)) for index in (0, 1)
        ]
        taken = [
            [each.segment.crc32 for each in states_of(manifest(shape(), *reports), NOTE, index, 5, range(0))]
            for index in range(5)
        ]
        assert taken == [[0], [1], [0], [1], [0]]

    def test_an_operator_that_is_new_starts_with_nothing(self) -> None:
        assert states_of(FULL, OperatorName("new"), 0, 1, range(128)) == ()
        assert splits_of(FULL, OperatorName("new")) == {}
        assert watermark_of(FULL, OperatorName("new"), 0, 1) is None

    def test_positions_of_all_splits_are_known_to_every_subtask(self) -> None:
        assert {name: split.offset for name, split in splits_of(FULL, READ).items()} == {
            "a": b"1",
            "b": b"2",
            "c": b"3",
        }


class TestWatermarks:
    CLOCKS = manifest(
        shape(),
        SubtaskReport(subtask(COUNT, 1), watermarks=((COUNT, 700),)),
        SubtaskReport(subtask(COUNT, 0), watermarks=((COUNT, 500),)),
    )

    def test_at_the_same_parallelism_each_goes_on_with_its_own_clock(self) -> None:
        assert [watermark_of(self.CLOCKS, COUNT, index, 2) for index in range(2)] == [500, 700]

    def test_after_a_rescale_all_go_on_with_the_slowest(self) -> None:
        assert [watermark_of(self.CLOCKS, COUNT, index, 3) for index in range(3)] == [500] * 3

    def test_a_subtask_without_a_clock_may_be_the_slowest_of_all(self) -> None:
        silent = manifest(shape(), self.CLOCKS.reports[0], SubtaskReport(subtask(COUNT, 0)))
        assert watermark_of(silent, COUNT, 0, 3) is None


class TestTotals:
    TAKEN = manifest(
        shape(receivers=3),
        *(
            SubtaskReport(subtask(COUNT, index), totals=((COUNT, "rows", 10**index), (NOTE, "rows", 5)))
            for index in range(3)
        ),
        SubtaskReport(subtask(READ, 0), totals=((READ, "rows", 7), (READ, "late", 1))),
    )

    def test_at_the_same_parallelism_each_goes_on_with_its_own(self) -> None:
        found = totals_of(self.TAKEN, {COUNT: 3, READ: 1})
        assert {key: counts["rows"] for key, counts in found.items()} == {
            (COUNT, 0): 1,
            (COUNT, 1): 10,
            (COUNT, 2): 100,
            (READ, 0): 7,
        }

    def test_after_a_rescale_their_sum_is_kept(self) -> None:
        fewer = totals_of(self.TAKEN, {COUNT: 2, NOTE: 2, READ: 4})
        assert fewer == {
            (COUNT, 0): {"rows": 101},
            (COUNT, 1): {"rows": 10},
            (NOTE, 0): {"rows": 10},
            (NOTE, 1): {"rows": 5},
            (READ, 0): {"rows": 7, "late": 1},
        }


class TestChannels:
    def test_in_one_channel_what_the_receiver_held_is_older(self) -> None:
        sent, received = flight(0, 1, Side.SENDER), flight(0, 1, Side.RECEIVER)
        held = manifest(
            shape(),
            SubtaskReport(subtask(READ, 0), channels=(sent,)),
            SubtaskReport(subtask(COUNT, 1), channels=(received,)),
        )
        taken = channels_of(held, held.shape.edges[0], 1, [0, 1], 128)
        assert taken == (replace(received, age=1), replace(sent, side=Side.RECEIVER, age=1))
        assert channels_of(held, held.shape.edges[0], 0, [0, 1], 128) == ()

    def test_an_edge_that_is_new_starts_with_nothing(self) -> None:
        assert channels_of(FULL, EdgeShape(EdgeId(READ, NOTE, 0), Partitioning.HASH, 2, 2), 0, [0, 1], 128) == ()

    def test_the_records_of_other_edges_are_left_alone(self) -> None:
        other = flight(0, 0, Side.SENDER, EdgeId(READ, NOTE, 0))
        held = manifest(shape(), SubtaskReport(subtask(READ, 0), channels=(other,)))
        assert channels_of(held, held.shape.edges[0], 0, [0, 1], 128) == ()

    def test_with_other_senders_the_rows_need_no_filter_but_watermarks_speak_for_nobody(self) -> None:
        after = EdgeShape(EDGE, Partitioning.HASH, 1, 2)
        (taken,) = channels_of(FULL, after, 1, [0], 128)
        assert taken == replace(flight(0, 1, Side.RECEIVER), age=1, has_watermarks=False)

    def test_watermarks_that_speak_for_nobody_stay_away_in_every_later_recovery(self) -> None:
        old = replace(flight(0, 1, Side.RECEIVER), age=1, has_watermarks=False)
        held = manifest(shape(), SubtaskReport(subtask(COUNT, 1), channels=(old,)))
        (taken,) = channels_of(held, held.shape.edges[0], 1, [0, 1], 128)
        assert not taken.has_watermarks

    def test_what_was_recovered_before_comes_first_whatever_its_channel(self) -> None:
        young, old = flight(0, 1, Side.RECEIVER), replace(flight(1, 1, Side.RECEIVER), age=2)
        oldest = replace(flight(1, 1, Side.RECEIVER), age=3)
        held = manifest(shape(), SubtaskReport(subtask(COUNT, 1), channels=(young, oldest, old)))
        taken = channels_of(held, held.shape.edges[0], 1, [0, 1], 128)
        assert [(segment.age, segment.sender) for segment in taken] == [(4, 1), (3, 1), (1, 0)]

    def test_what_counts_of_a_segment_becomes_less_with_each_rescale_and_never_more(self) -> None:
        half = replace(flight(0, 0, Side.RECEIVER), key_group_first=32, key_group_end=64, first_row=7)
        held = manifest(shape(1, 2), SubtaskReport(subtask(COUNT, 0), channels=(half,)))
        one = channels_of(held, EdgeShape(EDGE, Partitioning.HASH, 1, 1), 0, [0], 128)
        assert [(each.key_group_first, each.key_group_end, each.first_row) for each in one] == [(32, 64, 7)]
        after = EdgeShape(EDGE, Partitioning.HASH, 1, 3)
        three = [channels_of(held, after, receiver, [0], 128) for receiver in range(3)]
        kept = [[(each.key_group_first, each.key_group_end, each.first_row) for each in part] for part in three]
        assert kept == [[(32, 43, 7)], [(43, 64, 7)], []]

    def test_keyed_records_are_read_by_all_who_may_own_some_of_them_and_filtered(self) -> None:
        # The keyed exchange of 7 to 2 that lost records elsewhere: old receiver 3 straddles both new ones.
        before = shape(7, 7)
        old = [flight(sender, receiver, Side.RECEIVER) for sender in range(2) for receiver in range(7)]
        held = manifest(before, SubtaskReport(subtask(COUNT, 0), channels=tuple(old)))
        after = EdgeShape(EDGE, Partitioning.HASH, 2, 2)
        shares = [channels_of(held, after, receiver, [0, 1], 128) for receiver in range(2)]
        taken = [[divmod(each.segment.crc32, 100) for each in part] for part in shares]
        assert taken[0] == [(sender, receiver) for sender in range(2) for receiver in range(4)]
        assert taken[1] == [(sender, receiver) for sender in range(2) for receiver in range(3, 7)]
        middle = key_groups_of(3, 7, 128)
        counted = [[(each.key_group_first, each.key_group_end) for each in part[:4]] for part in shares]
        assert counted == [[(0, 0), (0, 0), (0, 0), (middle.start, 64)], [(64, middle.stop), (0, 0), (0, 0), (0, 0)]]
        assert not any(each.has_watermarks for part in shares for each in part)

    def test_other_records_of_receiver_r_go_to_r_modulo_the_new_number(self) -> None:
        before = shape(3, 5, Partitioning.REBALANCE, ())
        old = tuple(flight(2, receiver, Side.SENDER) for receiver in range(5))
        held = manifest(before, SubtaskReport(subtask(READ, 2), channels=old))
        after = EdgeShape(EDGE, Partitioning.REBALANCE, 2, 2)
        shares = [channels_of(held, after, receiver, [0, 1], 128) for receiver in range(2)]
        assert [[each.segment.crc32 - 200 for each in part] for part in shares] == [[0, 2, 4], [1, 3]]
        assert {each.sender for part in shares for each in part} == {0}
        assert not any(each.key_group_end for part in shares for each in part)
