"""Judges of event time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeGuard

from penstock.exchange.items import Captured, WatermarkItem
from penstock.graph.physical import Channel
from penstock.ids import Generation, SubtaskId
from penstock.mailbox.frames import ClocksFrame
from penstock.model.event_time import IDLE_WATERMARK, MAX_WATERMARK
from penstock.protocol.manifest import Manifest
from tests.simulation.changes import first_name
from tests.simulation.checkers.base import Checker
from tests.simulation.checkers.contents import items_of_channels
from tests.simulation.production import DRIFT_MS
from tests.simulation.records import numbers_of
from tests.simulation.sources import NumberSource


class Watermarks(Checker):
    """Watermarks are captured in their places: none is lost, and none is ahead of the records it speaks for."""

    def on_manifest(self, manifest: Manifest) -> None:
        cluster = self.cluster
        if cluster.is_rotten or manifest.shape != cluster.plan.shape():
            # A driver that was replaced by one at another parallelism has completed its last one.
            return
        clocks = _clocks_of(manifest)
        self._check_backward(manifest, clocks)
        self._check_end(manifest, clocks)
        held = items_of_channels(cluster, manifest)
        is_open = self._are_all_sources_open(manifest)
        for receiver, channels in cluster.plan.inputs.items():
            sent = [clocks[channel.sender] for channel in channels]
            marks = []
            for channel, clock in zip(channels, sent, strict=True):
                items = held.get((channel.edge.id, channel.sender.index, channel.receiver.index), [])
                newest = [item.watermark for item in items if _is_time(item)][-1:]
                if newest and newest[0] != clock:
                    self.violation(f"event time: {channel} holds {newest[0]}, and its sender is at {clock}")
                marks += newest
                if cluster.topology.is_linear:
                    self._check_lateness(manifest, channel, clocks[receiver], items)
            # map_async holds a watermark back until the records in front of it are through, and timers until those
            # that it makes due were called. Nobody is ever ahead for that.
            named = first_name(receiver.chain)
            holds_back = named in cluster.topology.holding
            # In a second life it may be ahead: an input that had ended held nothing back. So may one behind an operator
            # that was added, until that one hears of the time.
            may_be_ahead = cluster.lives > 1 or cluster.is_changed
            is_ahead = clocks[receiver] > min(sent, default=clocks[receiver]) and not may_be_ahead
            is_behind = clocks[receiver] < min(sent, default=clocks[receiver]) and not holds_back
            is_told = named not in cluster.topology.timing
            if is_open and is_told and not marks and not cluster.topology.may_idle and (is_ahead or is_behind):
                self.violation(
                    f"event time: in checkpoint {manifest.checkpoint} {receiver} is at {clocks[receiver]} and its "
                    f"senders at {min(sent)}, and no watermark is in flight"
                )

    def _check_backward(self, manifest: Manifest, clocks: dict[SubtaskId, int]) -> None:
        before = self.cluster.manifests[-1] if self.cluster.manifests else manifest
        for subtask, clock in _clocks_of(before).items() if before.shape == manifest.shape else ():
            if clocks[subtask] < clock:
                self.violation(f"event time: {subtask} was at {clock} and went back to {clocks[subtask]}")

    def _check_end(self, manifest: Manifest, clocks: dict[SubtaskId, int]) -> None:
        if MAX_WATERMARK in clocks.values():
            self.violation(f"event time: checkpoint {manifest.checkpoint} holds the end of input as a clock")

    def _are_all_sources_open(self, manifest: Manifest) -> bool:
        sources = {node.name for node in self.cluster.topology.graph.nodes if node.source is not None}
        chains = {operator.chain for operator in manifest.shape.operators if operator.name in sources}
        return all(self._is_open(report.splits) for report in manifest.reports if report.subtask.chain in chains)

    def _is_open(self, splits: tuple[object, ...]) -> bool:
        """Whether one of these splits has more to say."""
        sources = {node.name: node.source for node in self.cluster.topology.graph.nodes}
        return any(int(split.offset) < sources[split.operator].count for split in splits)  # type: ignore

    def _check_lateness(self, manifest: Manifest, channel: Channel, clock: int, items: list[Captured]) -> None:
        """No record in flight is older than what its receiver believes, or than a watermark in front of it."""
        nodes = self.cluster.topology.graph.nodes
        (split_count,) = {node.source.split_count for node in nodes if isinstance(node.source, NumberSource)}
        for item in items:
            if isinstance(item, WatermarkItem):
                clock = max(clock, item.watermark)
            elif (numbers_of(item.batch) // split_count < clock).any():
                self.violation(
                    f"event time: checkpoint {manifest.checkpoint} holds records on {channel} that are older than "
                    f"{clock}"
                )


class Drift(Checker):
    """No split runs further ahead of the slowest one of all workers than `max_drift` and one batch."""

    def on_clocks(self, frame: ClocksFrame) -> None:
        if not self.cluster.topology.is_aligned:
            return
        splits = list(self._splits(frame.generation))
        slowest = min((reached for _, reached, _ in splits), default=0)
        limit = slowest + DRIFT_MS + self.cluster.scenario.load.rows
        for name, reached, started in splits:
            # A checkpoint may have been further apart: its parts are of different moments.
            if reached > max(limit, started):
                self.violation(f"drift: {name} is at {reached}, and the slowest split at {slowest}")

    def _splits(self, generation: Generation) -> Iterator[tuple[str, int, int]]:
        """Each open split, its clock, and its clock when it was opened; -1 before the first record."""
        for driver in self.cluster.drivers:
            for _, worker in driver.workers.get(generation, {}).values():
                for subtask in worker.subtasks.values():
                    source = subtask.chain.source
                    if source is None or source.clocks is None:
                        continue
                    for name in source._open:
                        state = source._restored.get(name)
                        started = -1 if state is None or state.reached_ms is None else state.reached_ms
                        yield f"{source.operator}/{name}", max(-1, source.clocks.reached(name)), started


def _is_time(item: Captured) -> TypeGuard[WatermarkItem]:
    """Whether it says how late it is; a sender may also say that it is idle, and stays where it was."""
    return isinstance(item, WatermarkItem) and item.watermark != IDLE_WATERMARK


def _clocks_of(manifest: Manifest) -> dict[SubtaskId, int]:
    return {
        report.subtask: clock
        for report in manifest.reports
        for operator, clock in report.watermarks
        if operator == report.subtask.chain
    }
