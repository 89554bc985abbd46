"""What a progress display shows of a running pipeline: one reading of its figures, and rates between readings."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Protocol

from penstock.cli.progress.stats import shown_bytes, shown_count, shown_ms, shown_seconds
from penstock.driver.attempts.phases import Phase, Progress
from penstock.ids import CheckpointId, WorkerId
from penstock.mailbox.recovery_stats import RecoveryStats
from penstock.protocol.history import CheckpointRecord
from penstock.protocol.history import Status as RecordStatus
from penstock.spark.status import Status

_WINDOW_S = 5.0
"""Rates are means over this time: workers report their figures once a second."""


class Running(Protocol):
    """The part of a job that the command line needs."""

    @property
    def status(self) -> Status: ...

    @property
    def worker_processes(self) -> dict[WorkerId, int]: ...

    def checkpoints(self) -> tuple[CheckpointRecord, ...]: ...

    def wait(self, timeout: float | None = None) -> bool: ...

    def stop(self, drain: bool = False, timeout: float | None = None) -> CheckpointId | None: ...


@dataclass(frozen=True, slots=True)
class Reading:
    """The numbers of one moment. Rows are counted over all restarts: a restart goes back to its checkpoint's count."""

    elapsed_s: float
    status: Status
    rows_in_per_s: float
    rows_out_per_s: float
    completed: CheckpointRecord | None
    """The last checkpoint that was completed."""
    declined: CheckpointRecord | None
    """The last attempt at one, if it came to nothing."""

    @property
    def phase(self) -> str:
        """`running`, or `restoring (40 %)`."""
        status = self.status
        return status.phase.value if self.held_up else str(Progress(status.phase, status.detail))

    @property
    def held_up(self) -> str:
        """What holds up the checkpoints of a pipeline that runs; empty if nothing does."""
        return self.status.detail if self.status.phase in (Phase.RUNNING, Phase.STOPPING) else ""


class Readings:
    """Takes readings of a job, and remembers enough of them for the rates."""

    def __init__(self, job: Running, started_at: float) -> None:
        self._job = job
        self._started_at = started_at
        self._samples: deque[tuple[float, int, int]] = deque()

    def take(self, now: float) -> Reading:
        status, history = self._job.status, self._job.checkpoints()
        self._sample(now, status)
        ended = [record for record in history if record.is_completed]
        last = next((record for record in reversed(history) if record.status is not RecordStatus.IN_PROGRESS), None)
        return Reading(
            now - self._started_at,
            status,
            self._rate(1),
            self._rate(2),
            ended[-1] if ended else None,
            last if last is not None and last.reason is not None else None,
        )

    def _sample(self, now: float, status: Status) -> None:
        if self._samples and status.rows_in < self._samples[-1][1]:
            # Another attempt, which goes on from the count of its checkpoint.
            self._samples.clear()
        self._samples.append((now, status.rows_in, status.rows_out))
        while len(self._samples) > 2 and self._samples[1][0] <= now - _WINDOW_S:
            self._samples.popleft()

    def _rate(self, which: int) -> float:
        first, last = self._samples[0], self._samples[-1]
        elapsed = last[0] - first[0]
        return max(0.0, (last[which] - first[which]) / elapsed) if elapsed > 0 else 0.0


def checkpoint_text(record: CheckpointRecord) -> str:
    """`17 35ms unaligned 1.2MB`."""
    how = "unaligned" if record.is_unaligned else "aligned"
    size = shown_bytes(record.state_bytes + record.inflight_bytes).replace(" ", "")
    return f"{record.checkpoint} {shown_ms(record.duration_ms)} {how} {size}"


def recovery_text(recovery: RecoveryStats) -> str:
    """`state back after 310ms, first record after 340ms, 1.2 GB to drain`."""
    if recovery.read_ms is None:
        return "reading state"
    parts = [f"state back after {shown_ms(recovery.read_ms)}"]
    if recovery.first_record_ms is not None:
        parts.append(f"first record after {shown_ms(recovery.first_record_ms)}")
    if recovery.filter_ms:
        parts.append(f"filtered in {shown_ms(recovery.filter_ms)}")
    if recovery.drained_ms is None:
        parts.append(f"{shown_bytes(recovery.bytes_left)} to drain")
    else:
        parts.append(f"drained after {shown_ms(recovery.drained_ms)}")
    return ", ".join(parts)


def left_out(status: Status) -> list[tuple[str, int]]:
    """What does not come out of the main stream, by name, as far as there is any."""
    counts = {
        "late": status.rows_late,
        "ahead": status.rows_ahead,
        "skipped": status.rows_skipped,
        "files_skipped": status.files_skipped,
        "dead_letters": status.dead_letters,
    }
    return [(name, count) for name, count in counts.items() if count]


def plain_line(reading: Reading) -> str:
    """One line for a log."""
    status = reading.status
    checkpoint = checkpoint_text(reading.completed) if reading.completed else "none"
    return (
        f"{shown_seconds(reading.elapsed_s)} {reading.phase} "
        f"in={shown_count(status.rows_in)} ({shown_count(reading.rows_in_per_s)}/s) "
        f"out={shown_count(status.rows_out)} ({shown_count(reading.rows_out_per_s)}/s) "
        f"{''.join(f'{name}={shown_count(count)} ' for name, count in left_out(status))}"
        f"backpressure={status.backpressure_percent}% checkpoint={checkpoint} restarts={status.restarts}"
        + (f" recovery=({recovery_text(status.recovery)})" if status.recovery is not None else "")
        + (f" waiting=({first_line(reading.held_up)})" if reading.held_up else "")
    )


def first_line(text: str, length_max: int = 200) -> str:
    """The beginning of an error, for a display that has one line for it."""
    line = next(iter(text.strip().splitlines()), "")
    return line if len(line) <= length_max else line[: length_max - 1] + "…"


def declined_text(record: CheckpointRecord) -> str:
    """`checkpoint 18 was declined: expired (…)`."""
    reason = record.reason.value if record.reason is not None else ""
    detail = f" ({first_line(record.detail)})" if record.detail else ""
    return f"checkpoint {record.checkpoint} was declined: {reason}{detail}"
