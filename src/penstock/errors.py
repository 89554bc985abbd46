"""Every error that Penstock raises, in one tree.

    PenstockError
    ├── PipelineError          the description of the pipeline is wrong; nothing was started
    ├── OptionError            a setting has a value that cannot work
    ├── DataError              records do not fit what the pipeline declared
    ├── UserCodeError          a function of the pipeline raised; carries operator and subtask
    ├── RestoreError           a checkpoint does not fit this pipeline, or cannot be read (I8)
    │   ├── IncompatibleCheckpoint  the pipeline has changed in something that the checkpoint depends on
    │   └── NoReadableCheckpoint    no checkpoint of the directory can be used
    ├── StorageError           the checkpoint directory cannot be read or written
    │   └── CorruptBlob        the content differs from what was written: length or checksum
    ├── FencedError            a newer generation owns the checkpoint directory (I6)
    ├── DriverSilent           a worker has not heard from its driver for too long, and ends
    ├── WorkersLost            Spark ended the job of the workers: a worker or executor is gone
    ├── NoFreeSlots            too few free slots for the workers: other jobs hold them
    ├── NoAnswer               a call of the user's code has not returned within its timeout
    ├── SessionStopped         the Spark session was stopped under the pipeline
    ├── WorkerEnvironment      the workers' Python lacks Penstock, or has another version of it than the driver
    ├── JobFailed              the pipeline gave up after its restart budget; carries the last cause
    └── ProtocolViolation      our own bug: an event that cannot happen in this state

A message names the operator, the subtask and the checkpoint where they are known, and says what to do.
A declined or expired checkpoint is not an error but a value: see `protocol.declines`.
"""

from __future__ import annotations

import re

_NUMBER = re.compile(r"\d+")


class PenstockError(Exception):
    """Base of all errors that Penstock raises on purpose."""

    story: str = ""
    """The last steps of the checkpoint protocol in the process where it was raised, one a line; empty if unknown."""
    traceback: str = ""
    """Where it was raised, as text, also if that was in another process; empty if unknown."""
    record: str = ""
    """The key, row or batch that the user's function was called with, if the operator knows it."""
    is_placed: bool = False
    """Whether the message names operator, subtask and line: see `user_code.place`."""


class PipelineError(PenstockError):
    """The pipeline's description is wrong; found before anything was started."""


class OptionError(PenstockError):
    """A setting has a value that cannot work."""


class DataError(PenstockError):
    """Records, or values of a function, do not fit what the pipeline declared about them."""

    signature: str = ""
    """The message without subtask, record and line: equal if the same code meets such a record again."""


class UserCodeError(PenstockError):
    """A function of the pipeline raised. Where it ran in this process, the original exception is the `__cause__`."""

    traceback: str = ""
    """That of the original exception, as text, also if it was raised in another process."""
    may_pass: bool = False
    """Whether the cause lies outside the program, such as a connection, so that another attempt may succeed."""
    signature: str = ""
    """Operator, class of the exception and line: equal if the same code fails again, for whatever key, row and subtask.

    With the message, if the class belongs to a client of a service: it may tell of the world outside."""


class RestoreError(PenstockError):
    """A checkpoint does not fit this pipeline, or cannot be read. Never an empty state instead (I8)."""


class IncompatibleCheckpoint(RestoreError):
    """The pipeline has changed in something that the checkpoint depends on. Another attempt cannot help."""


class NoReadableCheckpoint(RestoreError):
    """The directory has checkpoints, but none of them can be used."""


class StorageError(PenstockError):
    """The checkpoint directory cannot be read or written."""


class CorruptBlob(StorageError):
    """The content differs from what was written, in length or checksum."""


class FencedError(PenstockError):
    """A newer generation owns the checkpoint directory; this one must stop (I6)."""


class DriverSilent(PenstockError):
    """A worker has not heard from its driver for too long: the driver is gone, or cannot be reached (I6)."""


class JobFailed(PenstockError):
    """The pipeline gave up: the restart budget is used up. The last failure is the `__cause__`."""


class WorkersLost(PenstockError):
    """Spark has ended the job of the workers: a worker or an executor is gone. The pipeline restarts by itself."""


class NoFreeSlots(PenstockError):
    """The session has no room for the workers: other jobs hold its slots, or executors are missing."""


class NoAnswer(PenstockError):
    """A call of the user's code, such as the commit of a sink, has not returned within its timeout."""

    def __init__(self, text: str, what: str = "") -> None:
        """`what` names the call without its duration: an attempt that ends with the same one met the same obstacle."""
        super().__init__(text)
        self.what = what or text


class SessionStopped(PenstockError):
    """The Spark session was stopped while the pipeline ran. Nothing is lost: start it again on a new session."""


class WorkerEnvironment(PenstockError):
    """The Python of the workers lacks Penstock, or has another version of it, of Python or of pyarrow."""


class ProtocolViolation(PenstockError):
    """An event that cannot happen in this state: a bug of ours. `story` has the steps that led here."""


def error_class(name: str) -> type[PenstockError]:
    """The class of an error that another process has named; `PenstockError` if no class has that name."""
    found = globals().get(name)
    return found if isinstance(found, type) and issubclass(found, PenstockError) else PenstockError


def repetition_of(error: Exception) -> str | None:
    """Equal for two failures of which the second shows that another attempt meets the same obstacle.

    An error of a function or of data is one that the same record would raise again; a call of user code that hangs is
    waited for by the next attempt. None for errors of the world outside, which may pass.
    """
    if isinstance(error, NoAnswer):
        return error.what
    if isinstance(error, UserCodeError):
        return None if error.may_pass else error.signature or str(error)
    # Batches are cut differently each time, and the message counts rows in them.
    return _NUMBER.sub("#", error.signature or str(error)) if isinstance(error, DataError) else None


def is_final(kind: type[PenstockError]) -> bool:
    """Whether another attempt would fail in the same way: a setting, or the pipeline itself, must change first."""
    return issubclass(kind, OptionError | PipelineError | IncompatibleCheckpoint | SessionStopped | WorkerEnvironment)
