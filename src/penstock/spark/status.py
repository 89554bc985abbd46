"""The state of a pipeline at one moment."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.driver.attempts.phases import Phase
from penstock.ids import CheckpointId, Generation
from penstock.mailbox.recovery_stats import RecoveryStats


@dataclass(frozen=True, slots=True, repr=False)
class Status:
    """A pipeline at a glance. Its `repr` leaves out counts that are 0."""

    name: str
    phase: Phase
    generation: Generation | None
    restarts: int
    rows_in: int
    """Rows that the sources have read, over all restarts. A restart goes back to the count of the restored checkpoint:
    rows behind it are read again, and each row counts once."""
    rows_out: int
    """Rows that the sinks have taken, counted likewise."""
    backpressure_percent: int
    """Of the subtasks, how many are held up by a full output."""
    last_checkpoint: CheckpointId | None
    last_error: str | None
    recovery: RecoveryStats | None = None
    """How far this attempt has come with what it restored; None if it began without a checkpoint."""
    rows_late: int = 0
    """Rows that were dropped because their windows had been emitted when they came, over all restarts."""
    detail: str = ""
    """How far the phase has come, such as `1 of 2 free` or `40 %`; while it runs, what holds up its checkpoints."""
    workers: int = 0
    """Slots of the session that the pipeline holds while it runs."""
    slots_total: int | None = None
    """Slots of the session; None before the workers are up, and with Spark Connect, which does not say."""
    rows_skipped: int = 0
    """Rows that sources left out because they could not be read (`on_error="skip"`), over all restarts."""
    files_skipped: int = 0
    """Files that sources left out, from the place on where they could not be read, or because they were gone."""
    dead_letters: int = 0
    """Rows for `dead_letters()`: lines, rows or files that could not be read, over all restarts."""
    rows_ahead: int = 0
    """Rows whose event time was further ahead of the clock than `max_ahead` (a day by default)."""

    def __repr__(self) -> str:
        phase = self.phase.value + (f" ({self.detail})" if self.detail else "")
        last = "no checkpoint yet" if self.last_checkpoint is None else f"checkpoint {self.last_checkpoint}"
        counts = (
            (self.rows_late, "late"),
            (self.rows_ahead, "ahead of the clock"),
            (self.rows_skipped, "rows skipped"),
            (self.files_skipped, "files skipped"),
            (self.dead_letters, "dead letters"),
            (self.restarts, "restarts"),
        )
        parts = [phase, last, f"{self.rows_in:,} rows in, {self.rows_out:,} out"]
        parts += [f"{count:,} {what}" for count, what in counts if count]
        if self.backpressure_percent:
            parts.append(f"backpressure {self.backpressure_percent} %")
        if self.last_error is not None:
            parts.append(f"last error: {self.last_error.splitlines()[0] if self.last_error else ''}")
        return f"<Status of '{self.name}': {', '.join(parts)}>"
