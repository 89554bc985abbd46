"""Views of a checkpoint directory: of a pipeline that has ended, or whose driver has no page that can be reached.

Figures are those of the newest checkpoint. Everything is read from the store at most once in two seconds, whoever asks.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from penstock.checkpoints import CheckpointDirectory, CheckpointInfo
from penstock.dashboard.sights import last_words, states
from penstock.dashboard.sights.checkpoint_views import detail_of
from penstock.dashboard.sights.last_words import LastWords
from penstock.dashboard.sights.live import log_line_view, versions
from penstock.dashboard.sights.series import STEP_MS
from penstock.dashboard.sights.sight import Sight
from penstock.dashboard.views import (
    CheckpointCounts,
    CheckpointDetail,
    CheckpointsView,
    CheckpointView,
    ConfigurationView,
    EdgeView,
    GraphView,
    HistoryView,
    LatenciesView,
    LogsView,
    OperatorView,
    OperatorWatermark,
    Overview,
    Phases,
    ProfileView,
    RecoveriesView,
    SplitWatermark,
    StateRows,
    StateView,
    SubtaskView,
    SubtaskWatermark,
    Vertex,
    VertexDetail,
    WatermarksView,
    WorkersView,
)
from penstock.driver.control import Command, give_order
from penstock.driver.observation import kept_log
from penstock.driver.observation.progress import counted
from penstock.errors import PenstockError
from penstock.ids import OperatorName
from penstock.metrics.metric import Metric
from penstock.metrics.samples import Metrics
from penstock.metrics.standard import LATE, RECORDS_IN, RECORDS_OUT
from penstock.model.event_time import IDLE_WATERMARK, MAX_WATERMARK
from penstock.protocol.history import stats_of
from penstock.protocol.manifest import Manifest, OperatorShape, Partitioning, SubtaskReport
from penstock.storage.lease import Owner, owner_of

_FRESH_S = 2.0
_ALIGNED_ONLY = (Partitioning.FORWARD, Partitioning.BROADCAST)


@dataclass(frozen=True, slots=True)
class _Look:
    """A directory as it was read."""

    at: float
    number: int
    owner: Owner | None
    found: tuple[CheckpointInfo, ...]
    words: LastWords | None

    @property
    def manifest(self) -> Manifest | None:
        return next((info.manifest for info in reversed(self.found) if info.manifest is not None), None)


class StoredSight(Sight):
    """The pipeline of one checkpoint directory."""

    def __init__(self, directory: CheckpointDirectory) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self._last: _Look | None = None
        look = self._look()
        named = look.owner.pipeline if look.owner is not None else None
        self.pipeline = look.manifest.shape.name if look.manifest is not None else named or "unknown"

    def _look(self) -> _Look:
        with self._lock:
            now, last = time.monotonic(), self._last
            if last is None or now - last.at > _FRESH_S:
                store = self._directory.store
                found, number = tuple(self._directory.list()), 0 if last is None else last.number + 1
                last = self._last = _Look(now, number, owner_of(store), found, last_words.read(store))
            return last

    @property
    def moment(self) -> int:
        return self._look().number

    # --- at a glance ---

    def overview(self) -> Overview:
        look = self._look()
        manifest, words = look.manifest, look.words
        is_running = look.owner is not None and look.owner.is_alive
        is_final = manifest is not None and manifest.is_final
        phase = "running" if is_running else words.overview.phase if words is not None else _ended(is_final, look.owner)
        sources, sinks = _ends(manifest)
        return Overview(
            pipeline=self.pipeline,
            phase=phase,
            phase_text=_text(phase, look.owner, is_running),
            is_live=False,
            started_at_ms=None if words is None else words.overview.started_at_ms,
            ended_at_ms=None if words is None or is_running else words.overview.ended_at_ms,
            generation=None if manifest is None else manifest.generation,
            restarts=0 if words is None else words.overview.restarts,
            rows_in=_count(manifest, RECORDS_IN, sources),
            rows_out=_count(manifest, RECORDS_IN, sinks),
            rows_late=_count(manifest, LATE, _names(manifest)),
            last_checkpoint=None if manifest is None else manifest.checkpoint,
            last_checkpoint_at_ms=None if manifest is None else manifest.completed_at_ms,
            failure=None if words is None or is_running else words.overview.failure,
            warnings=() if words is None else words.overview.warnings,
            versions=versions(),
        )

    def graph(self) -> GraphView:
        manifest = self._look().manifest
        if manifest is None:
            return GraphView(vertices=(), edges=())
        chain_of = {each.name: each.chain for each in manifest.shape.operators}
        edges = tuple(
            EdgeView(
                upstream=chain_of[edge.edge.upstream],
                downstream=chain_of[edge.edge.downstream],
                exchange=edge.partitioning.value,
                can_be_overtaken=edge.partitioning not in _ALIGNED_ONLY,
            )
            for edge in manifest.shape.edges
            if edge.edge.upstream in chain_of and edge.edge.downstream in chain_of
        )
        return GraphView(vertices=tuple(_vertex(manifest, chain) for chain in _chains(manifest)), edges=edges)

    def vertex(self, name: str) -> VertexDetail | None:
        manifest = self._look().manifest
        if manifest is None or OperatorName(name) not in _chains(manifest):
            return None
        vertex = _vertex(manifest, OperatorName(name))
        figures = {field: getattr(vertex, field) for field in vertex.__struct_fields__}
        reports = [report for report in manifest.reports if report.subtask.chain == name]
        operators = [each.name for each in vertex.operators]
        return VertexDetail(**figures, subtasks=tuple(_subtask(report, operators) for report in reports))

    # --- checkpoints ---

    def checkpoints(self, limit: int, before: int | None) -> CheckpointsView:
        look = self._look()
        views = {each.id: each for each in look.words.checkpoints.history} if look.words is not None else {}
        views |= {info.id: _checkpoint(info) for info in look.found}
        found = sorted(
            (each for each in views.values() if before is None or each.id < before), key=lambda view: -view.id
        )
        completed = sum(each.status == "completed" for each in views.values())
        failed = sum(each.status == "failed" for each in views.values())
        restored = 0 if look.words is None else look.words.checkpoints.counts.restored
        return CheckpointsView(
            counts=CheckpointCounts(completed=completed, failed=failed, restored=restored),
            history=tuple(found[:limit]),
            has_more=len(found) > limit,
        )

    def checkpoint(self, checkpoint: int) -> CheckpointDetail | None:
        info = next((each for each in self._look().found if each.id == checkpoint), None)
        if info is not None:
            reports = info.manifest.reports if info.manifest is not None else ()
            return detail_of(_checkpoint(info), stats_of(reports), None)
        known = next((each for each in self.checkpoints(10_000, None).history if each.id == checkpoint), None)
        return None if known is None else detail_of(known, (), None)

    def watermarks(self) -> WatermarksView:
        manifest = self._look().manifest
        shapes = () if manifest is None else manifest.shape.operators
        return WatermarksView(operators=tuple(_watermark(manifest, each) for each in shapes if manifest is not None))

    def state(self) -> StateView:
        return states.state_view(states.newest(self._directory))

    def state_rows(self, operator: str, limit: int) -> StateRows | None:
        checkpoint = states.newest(self._directory)
        return None if checkpoint is None else states.state_rows(checkpoint, operator, limit)

    # --- what the driver has left ---

    def recoveries(self) -> RecoveriesView:
        words = self._look().words
        return RecoveriesView(generations=()) if words is None else words.recoveries

    def logs(self, limit: int) -> LogsView:
        lines, lost = kept_log.read(self._directory.store, limit)
        words = self._look().words
        if lines or words is None:
            return LogsView(lines=tuple(map(log_line_view, lines)), dropped=lost)
        return LogsView(lines=words.logs.lines[-limit:], dropped=words.logs.dropped)

    def history(self, seconds: int) -> HistoryView:
        return HistoryView(step_ms=STEP_MS, series={})

    def latency(self) -> LatenciesView:
        return LatenciesView(latencies=())

    def workers(self) -> WorkersView:
        return WorkersView(workers=())

    def configuration(self) -> ConfigurationView:
        return ConfigurationView(settings={"checkpoints": self._directory.place}, plan="")

    def metrics(self) -> Metrics:
        return Metrics(())

    def profile(self, worker: int, seconds: float) -> ProfileView:
        raise PenstockError("no worker can be reached through a checkpoint directory: use the page of the driver")

    def order(self, command: Command) -> None:
        """Hand the order over in a thread: its answer comes when it is carried out."""
        look = self._look()
        if look.owner is None or not look.owner.is_alive:
            raise PenstockError(
                f"no pipeline is running on {self._directory.place}: there is nothing to {command.value}"
            )
        directory = self._directory
        threading.Thread(target=lambda: give_order(directory.store, directory.place, command), daemon=True).start()


# --- of a manifest ---


def _ended(is_final: bool, owner: Owner | None) -> str:
    return "finished" if is_final else "stopped" if owner is None else "failed"


def _text(phase: str, owner: Owner | None, is_running: bool) -> str:
    if owner is None:
        return phase
    where = f"process {owner.process} on {owner.host}"
    return (
        f"{phase} ({where}; figures of the last checkpoint)" if is_running else f"{phase} ({where} ended unexpectedly)"
    )


def _names(manifest: Manifest | None) -> list[OperatorName]:
    return [] if manifest is None else [each.name for each in manifest.shape.operators]


def _ends(manifest: Manifest | None) -> tuple[list[OperatorName], list[OperatorName]]:
    """Operators that nothing leads to, and those that lead nowhere: sources and sinks."""
    if manifest is None:
        return [], []
    shape, first, last = manifest.shape, dict[OperatorName, OperatorName](), dict[OperatorName, OperatorName]()
    for each in shape.operators:
        first.setdefault(each.chain, each.name)
        last[each.chain] = each.name
    chain_of = {each.name: each.chain for each in shape.operators}
    receiving = {chain_of.get(edge.edge.downstream) for edge in shape.edges}
    sending = {chain_of.get(edge.edge.upstream) for edge in shape.edges}
    sources = [name for chain, name in first.items() if chain not in receiving]
    return sources, [name for chain, name in last.items() if chain not in sending]


def _count(manifest: Manifest | None, metric: Metric, operators: list[OperatorName]) -> int:
    return 0 if manifest is None else counted(manifest, metric, operators)


def _chains(manifest: Manifest) -> list[OperatorName]:
    return list(dict.fromkeys(each.chain for each in manifest.shape.operators))


def _vertex(manifest: Manifest, chain: OperatorName) -> Vertex:
    operators = [each for each in manifest.shape.operators if each.chain == chain]
    reports = [report for report in manifest.reports if report.subtask.chain == chain]
    rows = [_total(report, operators[0].name, RECORDS_IN) for report in reports]
    return Vertex(
        id=chain,
        name=chain,
        operators=tuple(OperatorView(name=each.name, kind=each.kind) for each in operators),
        parallelism=operators[0].parallelism,
        rows_in=sum(rows),
        rows_out=sum(_total(report, operators[-1].name, RECORDS_OUT) for report in reports),
        state_bytes=sum(report.figures.state_bytes for report in reports),
        skew=max(rows) * len(rows) / sum(rows) if sum(rows) else None,
    )


def _subtask(report: SubtaskReport, operators: list[str]) -> SubtaskView:
    first, last = OperatorName(operators[0]), OperatorName(operators[-1])
    return SubtaskView(
        index=report.subtask.index,
        worker=0,
        rows_in=_total(report, first, RECORDS_IN),
        rows_out=_total(report, last, RECORDS_OUT),
        watermark_ms=next((_time(clock) for _, clock in report.watermarks), None),
        state_bytes=report.figures.state_bytes,
    )


def _total(report: SubtaskReport, operator: OperatorName, metric: Metric) -> int:
    return sum(value for name, which, value in report.totals if name == operator and which == metric.name)


def _time(clock: int) -> int | None:
    return clock if IDLE_WATERMARK < clock < MAX_WATERMARK else None


def _checkpoint(info: CheckpointInfo) -> CheckpointView:
    manifest = info.manifest
    kind = "unaligned" if info.is_unaligned else "aligned"
    if manifest is None:
        return CheckpointView(
            id=info.id,
            status="failed",
            kind=kind,
            trigger_timestamp=0,
            end_to_end_duration=0,
            checkpointed_size=0,
            inflight_bytes=0,
            num_subtasks=0,
            num_acknowledged_subtasks=0,
            failure_message=info.damage,
            cure="penstock checkpoints verify says which files are damaged; the pipeline goes on from an older one",
        )
    figures = [report.figures for report in manifest.reports]
    return CheckpointView(
        id=info.id,
        status="completed",
        kind="savepoint" if manifest.is_savepoint else kind,
        trigger_timestamp=manifest.triggered_at_ms,
        end_to_end_duration=manifest.completed_at_ms - manifest.triggered_at_ms,
        checkpointed_size=info.state_bytes + info.inflight_bytes,
        inflight_bytes=info.inflight_bytes,
        num_subtasks=len(figures),
        num_acknowledged_subtasks=len(figures),
        phases=Phases(
            start_delay=max((each.start_delay_ms for each in figures), default=None),
            alignment=max((each.alignment_ms for each in figures), default=None),
            sync=max((each.synchronous_ms for each in figures), default=None),
            asynchronous=max((each.asynchronous_ms for each in figures), default=None),
        ),
    )


def _watermark(manifest: Manifest, operator: OperatorShape) -> OperatorWatermark:
    found = [
        SubtaskWatermark(index=report.subtask.index, watermark_ms=_time(clock))
        for report in manifest.reports
        for name, clock in report.watermarks
        if name == operator.name
    ]
    splits = [
        SplitWatermark(split=split.split, watermark_ms=split.reached_ms, is_idle=False)
        for report in manifest.reports
        for split in report.splits
        if split.operator == operator.name
    ]
    watermark = min((each.watermark_ms for each in found if each.watermark_ms is not None), default=None)
    return OperatorWatermark(
        operator=operator.name,
        watermark_ms=watermark,
        lag_ms=None if watermark is None else manifest.triggered_at_ms - watermark,
        held_by=None,
        subtasks=tuple(found),
        splits=tuple(splits[:100]),
    )
