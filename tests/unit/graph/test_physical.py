"""The physical plan: chains, channels, workers, and who may be overtaken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.connectors.sink import Sink, SinkWriter
from penstock.connectors.source import Source, SplitReader
from penstock.errors import PipelineError
from penstock.exchange.partitioners import partitioner_for, rescale_receivers
from penstock.graph.logical import Graph, LogicalEdge, Node
from penstock.graph.physical import PhysicalPlan, plan, reachable
from penstock.ids import ChannelId, EdgeId, Generation, OperatorName, SubtaskId, WorkerId
from penstock.operators.contract import Emit, Operator
from penstock.protocol.manifest import EdgeShape, OperatorShape, Partitioning, PipelineShape, RecordShape

F, H, R = Partitioning.FORWARD, Partitioning.HASH, Partitioning.REBALANCE
B, G, S = Partitioning.BROADCAST, Partitioning.GLOBAL, Partitioning.RESCALE
READ, MAP, WRITE = OperatorName("read"), OperatorName("map"), OperatorName("write")


class Nothing(Source):
    def splits(self) -> Sequence[str]:
        return ()

    def open(self, split: str, offset: bytes | None) -> SplitReader:
        raise NotImplementedError


class Pass(Operator):
    def process(self, batch: pa.RecordBatch, source: int, emit: Emit) -> None:
        emit(batch)


class Drop(Sink):
    def writer(self, subtask: int, generation: Generation) -> SinkWriter:
        raise NotImplementedError


class DirectSink(Drop):
    requires_alignment = True


def edge(upstream: str, downstream: str, how: Partitioning, number: int = 0) -> LogicalEdge:
    return LogicalEdge(OperatorName(upstream), OperatorName(downstream), how, number, ("k",) if how is H else ())


def line(first: Partitioning, second: Partitioning, **changes: Node) -> Graph:
    """read -> map -> write; `changes` replaces nodes."""
    nodes = {
        "read": Node(READ, source=Nothing()),
        "map": Node(MAP, operator=Pass),
        "write": Node(WRITE, sink=Drop()),
    }
    return Graph(
        "orders", tuple((nodes | changes).values()), (edge("read", "map", first), edge("map", "write", second)), 16
    )


def names(of: PhysicalPlan) -> dict[str, list[str]]:
    return {name: [node.name for node in chain.nodes] for name, chain in of.chains.items()}


class TestChains:
    @pytest.mark.parametrize(
        ("first", "second", "chains"),
        [
            (F, F, {"read": ["read", "map", "write"]}),
            (R, F, {"read": ["read"], "map": ["map", "write"]}),
            (F, H, {"read": ["read", "map"], "write": ["write"]}),
            (R, H, {"read": ["read"], "map": ["map"], "write": ["write"]}),
        ],
    )
    def test_forward_edges_become_chains_and_all_others_channels(
        self, first: Partitioning, second: Partitioning, chains: dict[str, list[str]]
    ) -> None:
        settled = plan(line(first, second), 2)
        assert names(settled) == chains
        assert len(settled.edges) == len(chains) - 1

    def test_an_operator_that_is_not_chainable_begins_a_chain_of_its_own(self) -> None:
        settled = plan(line(F, F, map=Node(MAP, operator=Pass, chainable=False)), 2)
        assert names(settled) == {"read": ["read"], "map": ["map", "write"]}
        assert [str(channel) for channel in settled.channels] == ["read->map 0→0", "read->map 1→1"]

    def test_a_stream_with_two_readers_ends_its_chain(self) -> None:
        graph = line(F, F)
        side = Node(OperatorName("side"), sink=Drop())
        graph = replace(graph, nodes=(*graph.nodes, side), edges=(*graph.edges, edge("map", "side", F)))
        assert names(plan(Graph(graph.name, graph.nodes, graph.edges), 2)) == {
            "read": ["read", "map"],
            "write": ["write"],
            "side": ["side"],
        }

    def test_an_operator_with_two_inputs_begins_a_chain(self) -> None:
        graph = line(F, F)
        other = Node(OperatorName("other"), source=Nothing())
        settled = plan(Graph("orders", (*graph.nodes, other), (*graph.edges, edge("other", "map", F, 1))), 2)
        assert names(settled) == {"read": ["read"], "other": ["other"], "map": ["map", "write"]}

    def test_an_edge_into_the_middle_of_nowhere_starts_at_the_chain_that_holds_its_operator(self) -> None:
        settled = plan(line(F, R), 2)
        (edge,) = settled.edges
        assert (edge.id, edge.upstream, edge.downstream) == (EdgeId(MAP, WRITE, 0), READ, WRITE)

    def test_a_forward_edge_between_unequal_parallelism_is_refused_with_a_cure(self) -> None:
        with pytest.raises(
            PipelineError,
            match="the edge read->map is forward, but 'read' has parallelism 2 and 'map' 3: use rebalance or rescale",
        ):
            plan(line(F, F, map=Node(MAP, operator=Pass, parallelism=3)), 2)

    @pytest.mark.parametrize("parallelism", [0, 17])
    def test_a_parallelism_that_cannot_work_is_refused(self, parallelism: int) -> None:
        with pytest.raises(PipelineError, match=f"the parallelism is {parallelism}: it must be from 1 to 16"):
            plan(line(F, F), parallelism)

    def test_a_bad_graph_is_refused_before_anything_is_planned(self) -> None:
        with pytest.raises(PipelineError, match="is empty"):
            plan(Graph("orders", (), ()), 1)


class TestChannels:
    @pytest.mark.parametrize(
        ("how", "ends"),
        [
            (H, [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]),
            (R, [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]),
            (Partitioning.SHUFFLE, [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]),
            (B, [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]),
            (G, [(0, 0), (1, 0)]),
            (S, [(0, 0), (1, 1), (1, 2)]),
        ],
    )
    def test_each_edge_has_the_channels_that_its_partitioning_needs(
        self, how: Partitioning, ends: list[tuple[int, int]]
    ) -> None:
        settled = plan(
            line(how, F, map=Node(MAP, operator=Pass, parallelism=3), write=Node(WRITE, sink=Drop(), parallelism=3)), 2
        )
        assert [(channel.sender.index, channel.receiver.index) for channel in settled.channels] == ends
        assert [channel.id for channel in settled.channels] == [ChannelId(number) for number in range(len(ends))]

    def test_both_ends_know_their_channels(self) -> None:
        settled = plan(line(S, H, write=Node(WRITE, sink=Drop(), parallelism=3)), 2)
        arriving = [channel for channels in settled.inputs.values() for channel in channels]
        leaving = [channel for edges in settled.outputs.values() for part in edges.values() for channel in part]
        assert sorted(channel.id for channel in arriving) == sorted(channel.id for channel in leaving)
        assert len(arriving) == len(settled.channels)
        assert all(channel.receiver == subtask for subtask, part in settled.inputs.items() for channel in part)
        assert settled.inputs[SubtaskId(READ, 0)] == ()
        assert settled.outputs[SubtaskId(WRITE, 0)] == {}
        assert set(settled.inputs) == set(settled.outputs) == set(settled.subtasks)

    def test_a_receiver_that_nobody_sends_to_is_there_all_the_same(self) -> None:
        settled = plan(line(G, F), 3)
        assert settled.inputs[SubtaskId(MAP, 2)] == ()

    @settings(deadline=None)
    @given(st.integers(1, 12), st.integers(1, 12))
    def test_rescale_reaches_exactly_those_that_the_partitioner_sends_to(self, senders: int, receivers: int) -> None:
        reached = [reachable(S, sender, senders, receivers) for sender in range(senders)]
        assert reached == [rescale_receivers(sender, senders, receivers) for sender in range(senders)]
        assert {receiver for group in reached for receiver in group} == set(range(receivers))

    @settings(deadline=None)
    @given(st.sampled_from(list(Partitioning)), st.integers(1, 6), st.integers(1, 6))
    def test_no_partitioner_sends_where_there_is_no_channel(
        self, how: Partitioning, senders: int, receivers: int
    ) -> None:
        if how is F:
            receivers = senders
        rows = pa.record_batch({"k": list(range(40))})
        for sender in range(senders):
            partitioner = partitioner_for(
                how, sender=sender, senders=senders, receivers=receivers, columns=("k",), max_parallelism=16
            )
            chosen = {receiver for _ in range(2 * receivers) for receiver, _ in partitioner.split(rows)}
            assert chosen <= set(reachable(how, sender, senders, receivers))

    def test_every_process_derives_the_same_plan(self) -> None:
        graph = line(R, H)
        assert plan(graph, 3) == plan(graph, 3)


class TestWorkers:
    def test_there_are_as_many_as_the_largest_parallelism_unless_it_is_said(self) -> None:
        graph = line(R, R, write=Node(WRITE, sink=Drop(), parallelism=5))
        assert plan(graph, 2).workers == 5
        assert plan(graph, 2, workers=2).workers == 2

    def test_worker_i_hosts_every_wth_subtask_of_every_chain(self) -> None:
        settled = plan(line(R, F), 7, workers=2)
        assert settled.subtasks_of(WorkerId(1)) == tuple(
            SubtaskId(chain, i) for chain in (READ, MAP) for i in (1, 3, 5)
        )
        assert settled.worker_of(SubtaskId(MAP, 6)) == WorkerId(0)
        hosted = [subtask for worker in range(2) for subtask in settled.subtasks_of(WorkerId(worker))]
        assert sorted(hosted) == sorted(settled.subtasks)

    def test_key_groups_are_dealt_out_by_the_parallelism_of_the_chain(self) -> None:
        settled = plan(line(H, F), 3)
        groups = [group for index in range(3) for group in settled.key_groups(SubtaskId(MAP, index))]
        assert groups == list(range(16))


def test_sources_whose_records_may_meet_are_a_group() -> None:
    names = "a", "b", "c", "d"
    nodes = [Node(OperatorName(name), source=Nothing()) for name in names]
    nodes += [Node(MAP, operator=Pass), *(Node(OperatorName(name), sink=Drop()) for name in ("one", "two", "three"))]
    edges = edge("a", "map", R), edge("c", "map", R), edge("map", "one", F), edge("b", "two", F), edge("d", "three", F)
    # d is read twice, and once it meets the others.
    meeting = *edges, edge("d", "map", R)
    assert plan(Graph("p", tuple(nodes), edges), 2).source_groups == {"a": "a", "b": "b", "c": "a", "d": "d"}
    assert plan(Graph("p", tuple(nodes), meeting), 2).source_groups == {"a": "a", "b": "b", "c": "a", "d": "a"}


class TestAlignedOnly:
    """Forward and broadcast inputs stay aligned, and with them all inputs of the same operator."""

    @pytest.mark.parametrize(
        ("how", "is_aligned_only"),
        [(H, False), (R, False), (Partitioning.SHUFFLE, False), (G, False), (S, False), (B, True), (F, True)],
    )
    def test_the_partitioning_decides(self, how: Partitioning, is_aligned_only: bool) -> None:
        settled = plan(line(how, R, map=Node(MAP, operator=Pass, chainable=False)), 2)
        assert settled.chains[MAP].aligned_only is is_aligned_only
        assert not settled.chains[WRITE].aligned_only
        assert all(
            settled.may_overtake(channel) is not (channel.receiver.chain == MAP and is_aligned_only)
            for channel in settled.channels
        )

    def test_one_broadcast_input_keeps_all_inputs_aligned(self) -> None:
        graph = line(H, R)
        rules = Node(OperatorName("rules"), source=Nothing())
        settled = plan(Graph("orders", (*graph.nodes, rules), (*graph.edges, edge("rules", "map", B, 1))), 2)
        into_map = [channel for channel in settled.channels if channel.receiver.chain == MAP]
        assert {channel.edge.partitioning for channel in into_map} == {H, B}
        assert not any(settled.may_overtake(channel) for channel in into_map)

    def test_an_operator_that_requires_alignment_keeps_its_whole_chain_aligned(self) -> None:
        settled = plan(line(R, F, write=Node(WRITE, sink=Drop(), requires_alignment=True)), 2)
        assert settled.chains[MAP].aligned_only

    def test_a_sink_that_publishes_from_its_input_is_aligned_and_a_two_phase_sink_is_not(self) -> None:
        assert plan(line(R, R, write=Node(WRITE, sink=DirectSink())), 2).chains[WRITE].aligned_only
        assert not plan(line(R, R), 2).chains[WRITE].aligned_only


def test_the_shape_says_what_a_manifest_must_know() -> None:
    settled = plan(line(H, F, read=Node(READ, source=Nothing(), parallelism=3)), 2)
    assert settled.chains[READ].nodes[0].source is not None
    assert settled.chains[MAP].nodes[0].source is None
    assert settled.shape() == PipelineShape(
        "orders",
        16,
        (OperatorShape(READ, READ, 3), OperatorShape(MAP, MAP, 2, ("k",)), OperatorShape(WRITE, MAP, 2, ("k",))),
        (EdgeShape(EdgeId(READ, MAP, 0), H, 3, 2, RecordShape(("k",))),),
    )
