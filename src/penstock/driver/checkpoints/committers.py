"""The committers of a pipeline: user code in threads, one call at a time for each, and the newest generation only.

A call of `commit` or `discard_uncommitted` cannot be ended from outside. When the attempt that made it has failed, the
call may still be under way, and may take effect later. Therefore, for the generations of one driver (I6):

- A committer has one call at a time. The next generation waits for the call that is under way, up to a limit, and then
  fails with an error that names the sink, the call and its duration. It never calls beside it.
- Within a generation the coordinator commits in ascending order of checkpoints, one after the other
  (`protocol.commit`). A call of an older generation whose turn comes after a newer generation has begun is refused. So
  the calls of one driver have the order of the generations, and within each that of the checkpoints.

An exception of a committer is a `UserCodeError` with the line of user code. Most exceptions may pass, because clients
of databases and services have their own classes for outages. Those of `_PERMANENT` do not: the attempt fails after a
few tries, and the pipeline with the second attempt.

Two drivers are two processes, and nothing here can keep them apart: see `connectors.sink.Committer`.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from penstock.connectors.sink import Committer
from penstock.errors import DataError, NoAnswer, OptionError, PenstockError, PipelineError, UserCodeError
from penstock.ids import Generation, OperatorName
from penstock.mailbox.ports import Clock
from penstock.protocol.commit import CommitPermit
from penstock.user_code import user_code_error

_PERMANENT = (
    DataError,
    OptionError,
    PipelineError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    NameError,
    NotImplementedError,
    PermissionError,
    TypeError,
)
"""Errors of the program, of its data and of rights. The next try would meet them again."""


@dataclass(frozen=True, slots=True)
class _Call:
    what: str
    since_ms: int


class Committers:
    """All committers of a pipeline, for the life of its driver. Everything but `under_way` runs in the background."""

    def __init__(
        self,
        committers: Mapping[OperatorName, Committer],
        clock: Clock,
        *,
        commit_wait_ms: int = 5_000,
        discard_wait_ms: int = 120_000,
    ) -> None:
        """A call waits for the one before it: `commit`, which is tried again, for `commit_wait_ms` each time."""
        self._committers = committers
        self._clock = clock
        self._commit_wait_ms = commit_wait_ms
        self._discard_wait_ms = discard_wait_ms
        self._newest = Generation(0)
        self._changed = threading.Condition()
        self._calls: dict[OperatorName, _Call] = {}
        self._failure: PenstockError | None = None
        """Of the last commit; None if it has succeeded."""

    def __len__(self) -> int:
        return len(self._committers)

    def admit(self, generation: Generation) -> None:
        """From now on, calls of older generations are refused."""
        with self._changed:
            self._newest = max(self._newest, generation)
            self._changed.notify_all()

    def publish(self, permit: CommitPermit) -> None:
        """Let every sink publish its part of a checkpoint (I4)."""
        by_sink: dict[OperatorName, list[bytes]] = {}
        for committable in permit.committables:
            by_sink.setdefault(committable.operator, []).append(committable.payload)
        for sink, payloads in by_sink.items():
            if sink not in self._committers:
                raise PenstockError(
                    f"checkpoint {permit.checkpoint} has output of sink '{sink}' to publish, but this "
                    "pipeline has no such sink: put it back, or give the sink its old name"
                )
            what = f"commit of checkpoint {permit.checkpoint} by generation {permit.generation}"
            with self._turn(sink, what, permit.generation, self._commit_wait_ms):
                self._commit(sink, permit, payloads)

    def _commit(self, sink: OperatorName, permit: CommitPermit, payloads: list[bytes]) -> None:
        try:
            self._committers[sink].commit(permit.batch, payloads)
        except Exception as error:
            self._failure = _told_of(sink, error)
            if self._failure is error:
                raise
            raise self._failure from error
        self._failure = None

    def failure(self, text: str) -> PenstockError | None:
        """The error of a pipeline whose last commit has failed; None if none has. `text` says when that was."""
        error = self._failure
        if error is not None:
            error.add_note(f"That was the end of an attempt: {text.partition(': ')[0]}.")
        return error

    def discard_uncommitted(self, generation: Generation) -> None:
        """Let every sink remove what older generations have staged."""
        for sink, committer in self._committers.items():
            with self._turn(sink, f"sweep of generation {generation}", generation, self._discard_wait_ms):
                committer.discard_uncommitted(generation)

    def under_way(self, ms_min: int) -> str | None:
        """The calls that have not returned for `ms_min` or longer, in words; None if there are none."""
        now = self._clock.now_ms()
        with self._changed:
            stuck = [(sink, call) for sink, call in self._calls.items() if now - call.since_ms >= ms_min]
        return "; ".join(_told(sink, call, now) for sink, call in stuck) or None

    def longest_ms(self, sink: OperatorName) -> int:
        """For how long the call of `sink` that is under way has not returned; 0 if no call is under way."""
        with self._changed:
            call = self._calls.get(sink)
        return 0 if call is None else self._clock.now_ms() - call.since_ms

    def hanging(self, ms_min: int) -> list[OperatorName]:
        """The sinks with a call that has not returned for `ms_min` or longer."""
        return sorted(sink for sink in self._committers if self.longest_ms(sink) >= ms_min > 0)

    def no_answer(self, text: str, ms_min: int) -> NoAnswer | None:
        """The error for a failure whose cause is a sink that hangs for `ms_min` or longer; None if none does."""
        sinks, calls = self.hanging(ms_min), self.under_way(ms_min)
        if not sinks or calls is None:
            return None
        # The same sinks and not the same text: the durations differ each time.
        return NoAnswer(text if calls in text else f"{text}: {calls}", f"sinks {', '.join(sinks)}")

    @contextlib.contextmanager
    def _turn(self, sink: OperatorName, what: str, generation: Generation, wait_ms: int) -> Iterator[None]:
        self._await_turn(sink, what, generation, wait_ms)
        try:
            yield
        except (SystemExit, asyncio.CancelledError) as error:
            # Meant for a process or a task of the user's; here it is a failure like any other.
            raise UserCodeError(f"sink '{sink}': the {what} raised {type(error).__name__}: {error}") from error
        finally:
            with self._changed:
                del self._calls[sink]
                self._changed.notify_all()

    def _await_turn(self, sink: OperatorName, what: str, generation: Generation, wait_ms: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: sink not in self._calls or generation < self._newest, wait_ms / 1000)
            if generation < self._newest:
                raise PenstockError(f"sink '{sink}': {what} is refused, because generation {self._newest} has begun")
            if sink in self._calls:
                told = _told(sink, self._calls[sink], self._clock.now_ms())
                raise PenstockError(f"{told}; the {what} has to wait for it")
            self._calls[sink] = _Call(what, self._clock.now_ms())


def is_permanent(error: BaseException) -> bool:
    """Whether an error of a commit is one that the next try would meet again."""
    return isinstance(error, _PERMANENT) or (isinstance(error, UserCodeError) and not error.may_pass)


def _told_of(sink: OperatorName, error: Exception) -> PenstockError:
    if isinstance(error, PenstockError):
        return error
    made = user_code_error(f"sink '{sink}': commit", error)
    made.may_pass = not is_permanent(error)
    return made


def _told(sink: OperatorName, call: _Call, now_ms: int) -> str:
    return f"sink '{sink}': the {call.what} has not returned for {(now_ms - call.since_ms) / 1000:g} s"
