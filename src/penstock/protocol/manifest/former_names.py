"""Checkpoints whose operators have the names that version 0.1.0 gave them.

It numbered unnamed operators: `aggregate_1`, `aggregate_2`. Such a name goes to another operator when one is put in
front, so it counts only if the pipeline is the one that took the checkpoint: the same operators, of the same kinds,
between the same others. Else the names stay as they are, and state of an operator that is not found is refused.

Pure: a manifest in, a manifest out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from penstock.ids import EdgeId, OperatorName, SubtaskId
from penstock.protocol.manifest.values import Manifest, PipelineShape, SubtaskReport


def with_derived_names(
    manifest: Manifest, shape: PipelineShape, former: Mapping[OperatorName, OperatorName]
) -> Manifest:
    """The manifest with the names of `shape`, if its own are the `former` ones and nothing else differs."""
    current = {old: new for new, old in former.items()}
    if not former or not _is_same(manifest.shape, shape, current):
        return manifest
    return _Renaming(current).manifest(manifest)


def _is_same(old: PipelineShape, new: PipelineShape, current: Mapping[OperatorName, OperatorName]) -> bool:
    renaming = _Renaming(current)
    operators = {(renaming.name(operator.name), operator.kind) for operator in old.operators}
    edges = {renaming.edge(edge.edge) for edge in old.edges}
    return operators == {(operator.name, operator.kind) for operator in new.operators} and edges == {
        edge.edge for edge in new.edges
    }


class _Renaming:
    """Replaces names wherever a manifest has them."""

    def __init__(self, current: Mapping[OperatorName, OperatorName]) -> None:
        self._current = current

    def name(self, name: OperatorName) -> OperatorName:
        return self._current.get(name, name)

    def edge(self, edge: EdgeId) -> EdgeId:
        return EdgeId(self.name(edge.upstream), self.name(edge.downstream), edge.input)

    def manifest(self, manifest: Manifest) -> Manifest:
        reports = tuple(self._report(report) for report in manifest.reports)
        return replace(manifest, shape=self._shape(manifest.shape), reports=reports)

    def _shape(self, shape: PipelineShape) -> PipelineShape:
        return replace(
            shape,
            operators=tuple(
                replace(each, name=self.name(each.name), chain=self.name(each.chain)) for each in shape.operators
            ),
            edges=tuple(replace(each, edge=self.edge(each.edge)) for each in shape.edges),
        )

    def _report(self, report: SubtaskReport) -> SubtaskReport:
        return replace(
            report,
            subtask=SubtaskId(self.name(report.subtask.chain), report.subtask.index),
            states=tuple(replace(each, operator=self.name(each.operator)) for each in report.states),
            channels=tuple(replace(each, edge=self.edge(each.edge)) for each in report.channels),
            splits=tuple(replace(each, operator=self.name(each.operator)) for each in report.splits),
            committables=tuple(replace(each, operator=self.name(each.operator)) for each in report.committables),
            watermarks=tuple((self.name(chain), clock) for chain, clock in report.watermarks),
            totals=tuple((self.name(operator), metric, value) for operator, metric, value in report.totals),
        )
