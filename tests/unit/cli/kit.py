"""Checkpoint directories made by hand, a job that does what it is told, and the command line without a process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from typer.testing import CliRunner, Result

from penstock.cli.application import app
from penstock.driver.attempts.phases import Phase
from penstock.ids import CheckpointId, Generation, OperatorName, SubtaskId, WorkerId
from penstock.protocol.barrier import BarrierFlag
from penstock.protocol.history import CheckpointRecord, SubtaskStats
from penstock.protocol.history import Status as RecordStatus
from penstock.protocol.manifest import (
    CheckpointStats,
    Committable,
    Manifest,
    OperatorShape,
    PipelineShape,
    Segment,
    SnapshotKind,
    SplitState,
    StateKind,
    StateSegment,
    SubtaskReport,
)
from penstock.protocol.manifest.codec import encode_manifest, encode_reservation, encode_tombstone
from penstock.protocol.ownership import Reservation, Tombstone
from penstock.spark.status import Status
from penstock.storage import LocalStore, paths
from penstock.storage.blob import write_segments
from penstock.storage.paths import BlobContent
from penstock.storage.port import Store

COMPLETED_AT_MS = 1_700_000_000_000
COUNTS = OperatorName("counts")
SHAPE = PipelineShape("totals", 128, (OperatorShape(COUNTS, COUNTS, 1, ("user: int64",)),))


def penstock(*arguments: object) -> Result:
    """Run a command; errors go to `stderr` and to the exit code, as in a process."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def add_checkpoint(
    store: Store,
    number: int,
    *,
    generation: int = 1,
    is_savepoint: bool = False,
    is_final: bool = False,
    is_committed: bool = True,
    content: bytes = b"state" * 2000,
    refers_to: tuple[Segment, ...] = (),
) -> Segment:
    """A checkpoint with one blob of its own, which is returned, and perhaps others of earlier ones."""
    checkpoint, written = CheckpointId(number), Generation(generation)
    subtask = SubtaskId(COUNTS, 0)
    store.create(paths.reserved(checkpoint), encode_reservation(Reservation(checkpoint, written)))
    (segment,) = write_segments(store, paths.blob(checkpoint, written, subtask, BlobContent.STATE), [[content]], 4096)
    states = tuple(StateSegment(COUNTS, "n", StateKind.KEYED, part, 7, 0, 128) for part in (segment, *refers_to))
    report = SubtaskReport(
        subtask,
        SnapshotKind.TIMED_OUT,
        states,
        splits=(SplitState(COUNTS, "0/1", b"41"),),
        committables=(Committable(COUNTS, 0, b"{}"),),
        figures=CheckpointStats(1, 2, 3, 4, len(content), 0),
    )
    times = COMPLETED_AT_MS - 35, COMPLETED_AT_MS
    manifest = Manifest(checkpoint, written, SHAPE, (report,), *times, is_savepoint, is_final)
    store.create(paths.manifest(checkpoint), encode_manifest(manifest))
    if is_committed:
        store.create(paths.committed(checkpoint), b"{}")
    return segment


def add_void(store: Store, number: int) -> None:
    checkpoint = CheckpointId(number)
    store.create(paths.manifest(checkpoint), encode_tombstone(Tombstone(checkpoint, Generation(1))))


def directory(path: Path, *numbers: int) -> LocalStore:
    store = LocalStore(path)
    for number in numbers:
        add_checkpoint(store, number)
    return store


def record(
    number: int,
    *,
    flags: BarrierFlag = BarrierFlag.NONE,
    cut: SnapshotKind = SnapshotKind.OVERTAKEN,
    state_bytes: int = 1_200_000,
) -> CheckpointRecord:
    figures = SubtaskStats(SubtaskId(COUNTS, 0), cut, CheckpointStats(state_bytes=state_bytes))
    return CheckpointRecord(CheckpointId(number), flags, RecordStatus.COMPLETED, 1000, 1035, (figures,))


def status(
    *,
    phase: Phase = Phase.RUNNING,
    rows_in: int = 0,
    rows_out: int = 0,
    restarts: int = 0,
    backpressure_percent: int = 40,
    last_error: str | None = None,
    rows_late: int = 0,
) -> Status:
    return Status(
        "totals",
        phase,
        Generation(1),
        restarts,
        rows_in,
        rows_out,
        backpressure_percent,
        None,
        last_error,
        rows_late=rows_late,
    )


class FakeJob:
    """A job that ends when it is stopped. `drain` is called to drain it."""

    def __init__(self, drain: Callable[[], None] | None = None) -> None:
        self.stops: list[bool] = []
        self.records: tuple[CheckpointRecord, ...] = ()
        self.now = status()
        self.failure: Exception | None = None
        self.worker_processes = {WorkerId(0): 4711}
        self._drain = drain or self._end_drained
        self._ended = threading.Event()

    @property
    def status(self) -> Status:
        return self.now

    def checkpoints(self) -> tuple[CheckpointRecord, ...]:
        return self.records

    def end(self) -> None:
        self._ended.set()

    def wait(self, timeout: float | None = None) -> bool:
        if not self._ended.wait(0.005 if timeout else 0):
            return False
        if self.failure is not None:
            raise self.failure
        return True

    def stop(self, drain: bool = False, timeout: float | None = None) -> CheckpointId | None:
        self.stops.append(drain)
        if drain:
            self._drain()
        else:
            self.end()
        return None

    def _end_drained(self) -> None:
        self.records = (record(9, flags=BarrierFlag.SAVEPOINT | BarrierFlag.DRAIN),)
        self.end()
