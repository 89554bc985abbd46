"""Failures of a worker on their way to the driver, and from there to the user."""

from __future__ import annotations

import traceback

from penstock.errors import (
    DataError,
    JobFailed,
    PenstockError,
    PipelineError,
    ProtocolViolation,
    UserCodeError,
    error_class,
)
from penstock.ids import Generation, OperatorName, SubtaskId, WorkerId
from penstock.mailbox.frames import FailedFrame
from penstock.mailbox.journal import told
from penstock.user_code import with_cells


def failed_frame(
    generation: Generation,
    worker: WorkerId,
    error: Exception,
    subtask: SubtaskId | None,
    *,
    story: str = "",
    working: tuple[OperatorName, int] | None = None,
) -> FailedFrame:
    """The report of a failure. `working` is the operator that was called, and the number of its subtask."""
    if isinstance(error, PenstockError):
        text, kind, raised = str(error), type(error).__name__, error.traceback
    else:
        # A bug of ours: everything that is known.
        text, kind, raised = "".join(traceback.format_exception(error)), "", ""
    operator, index = working or (None, None)
    return FailedFrame(
        generation,
        worker,
        text,
        subtask,
        "UserCodeError" if isinstance(error, UserCodeError) else kind,
        raised,
        may_pass=isinstance(error, UserCodeError) and error.may_pass,
        story=story,
        signature=error.signature if isinstance(error, UserCodeError | DataError) else "",
        operator=operator,
        index=index,
    )


def error_of(frame: FailedFrame) -> PenstockError:
    """The error that a worker has reported."""
    error = _error_of(frame)
    error.story = frame.story
    if is_defect(error):
        error.add_note(told(error.story))
    return error


def _error_of(frame: FailedFrame) -> PenstockError:
    kind = error_class(frame.kind)
    where = f"{frame.subtask} on worker {frame.worker}" if frame.subtask else f"worker {frame.worker}"
    if issubclass(kind, UserCodeError):
        error = kind(with_cells(frame.error))
        error.traceback, error.may_pass = with_cells(frame.traceback), frame.may_pass
        error.signature = frame.signature
        return error
    if issubclass(kind, DataError | PipelineError):
        # It names the operator, and where it matters the record.
        refused = kind(with_cells(frame.error))
        refused.traceback, refused.is_placed = with_cells(frame.traceback), True
        if isinstance(refused, DataError):
            refused.signature = frame.signature
        return refused
    return JobFailed(f"{where}: {frame.error}") if kind is PenstockError else kind(f"{where}: {frame.error}")


def is_defect(error: Exception) -> bool:
    """Whether a failure is a bug of ours: a violation of the protocol, or an exception that nobody has foreseen."""
    return isinstance(error, ProtocolViolation) or type(error) is JobFailed


def given_up(error: Exception, reason: str) -> Exception:
    """What the pipeline ends with. An error of the user's own code or data is raised as it is."""
    if isinstance(error, UserCodeError | DataError | PipelineError):
        error.add_note(f"The pipeline gave up: {reason}.")
        return error
    failure = JobFailed(f"the pipeline gave up: {reason}. The last one: {error}")
    failure.__cause__ = error
    failure.story = error.story if isinstance(error, PenstockError) else ""
    return failure
