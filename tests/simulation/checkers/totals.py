"""Judges of what is counted: rows of a checkpoint, over all lives of a pipeline, each once."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from penstock.exchange.items import BatchItem
from penstock.ids import MAIN_OUTPUT, OperatorName
from penstock.metrics.standard import RECORDS_IN, RECORDS_OUT, SKIPPED
from penstock.protocol.manifest import Manifest, Partitioning
from tests.simulation.checkers.base import Checker
from tests.simulation.checkers.contents import items_of_channels
from tests.simulation.sources import NumberSource, skipped_before

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster


class Totals(Checker):
    """The totals of a checkpoint are those of its cut: a restart neither loses what was counted nor counts it twice."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self._widths: dict[OperatorName, set[int]] = {}
        """Every parallelism that a chain has had."""

    def on_manifest(self, manifest: Manifest) -> None:
        counted: Counter[tuple[str, str]] = Counter()
        for report in manifest.reports:
            for operator, name, value in report.totals:
                counted[operator, name] += value
        self._sources(manifest, counted)
        # Between operators that were always there: one that was put in later has seen less than was sent before.
        if not self.cluster.is_changed and not self.cluster.is_rotten:
            self._edges(manifest, counted)

    def _sources(self, manifest: Manifest, counted: Counter[tuple[str, str]]) -> None:
        read: Counter[OperatorName] = Counter()
        skipped: Counter[OperatorName] = Counter()
        for report in manifest.reports:
            for split in report.splits:
                read[split.operator] += int(split.offset)
                skipped[split.operator] += skipped_before(int(split.offset))
        for node in self.cluster.topology.graph.nodes:
            if not isinstance(node.source, NumberSource):
                continue
            for metric, expected in ((RECORDS_IN, read[node.name]), (SKIPPED, skipped[node.name])):
                found = counted[node.name, metric.name]
                if found != expected:
                    what = f"checkpoint {manifest.checkpoint} counts {found} rows of '{node.name}'"
                    self.violation(f"totals: {what} as {metric.name}, and there are {expected}")

    def _edges(self, manifest: Manifest, counted: Counter[tuple[str, str]]) -> None:
        plan = self.cluster.plan
        waiting: Counter[OperatorName] = Counter()
        for (edge, _, _), items in items_of_channels(self.cluster, manifest).items():
            waiting[edge.downstream] += sum(item.batch.num_rows for item in items if isinstance(item, BatchItem))
        for chain in plan.chains.values():
            edges = [edge for edge in plan.edges if edge.downstream == chain.name]
            senders = {edge.upstream for edge in edges}
            # Rows of side outputs are counted together with those of the main one.
            if not edges or any(edge.output != MAIN_OUTPUT for edge in plan.edges if edge.upstream in senders):
                continue
            widths = self._widths.setdefault(chain.name, set())
            widths.add(chain.parallelism)
            # A row that is broadcast is taken as often as there were receivers when it was sent.
            if len(widths) > 1 and any(edge.partitioning is Partitioning.BROADCAST for edge in edges):
                continue
            sent = sum(
                counted[edge.id.upstream, RECORDS_OUT.name]
                * (chain.parallelism if edge.partitioning is Partitioning.BROADCAST else 1)
                for edge in edges
            )
            taken, before = counted[chain.name, RECORDS_IN.name], waiting[chain.name]
            if sent != taken + before:
                what = f"checkpoint {manifest.checkpoint}: {sent} rows were sent to '{chain.name}'"
                self.violation(f"totals: {what}, which has taken {taken} and has {before} before it")

    def at_end(self) -> None:
        """The driver's own numbers in the end are those of the last checkpoint."""
        cluster = self.cluster
        supervisor = cluster.driver.supervisor
        if not cluster.manifests or not supervisor.has_ended or supervisor.error is not None:
            return
        newest = max(cluster.manifests, key=lambda manifest: manifest.checkpoint)
        sinks = {node.name for node in cluster.topology.graph.nodes if node.sink is not None}
        totals = [total for report in newest.reports for total in report.totals]
        taken = sum(value for operator, name, value in totals if operator in sinks and name == RECORDS_IN.name)
        shown = supervisor.observations.totals.rows_out
        if newest.is_final and shown != taken:
            self.violation(f"totals: {shown} rows are shown at the sinks, and the last checkpoint counts {taken}")
