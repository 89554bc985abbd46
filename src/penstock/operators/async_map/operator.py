"""`map_async`: slow functions, off the mailbox thread.

The batches in hand are state: a checkpoint holds them, and a restored pipeline runs them again. So a checkpoint does
not wait for the function, however long it is stuck. A batch is in hand until its result has been emitted; on the way
downstream the result is in-flight data like any other. Where the input is keyed, that state is keyed too: after a
rescale each record is in the hand of the subtask that owns its key (I9), behind the older ones of that key (I2).

Workers are threads of this operator alone: the runtime's background threads write checkpoints, and must never queue
behind a function that is stuck. They are daemons, so that a stuck one does not keep a process alive. The mailbox looks
for results at short intervals, which grow with the time that the oldest batch has taken already.
"""

from __future__ import annotations

import functools
import queue
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np
import pyarrow as pa

from penstock.columnar.gather import take_rows
from penstock.errors import DataError, UserCodeError
from penstock.operators.contract import Emit, UserFunction
from penstock.operators.failures import Failures, OnError, each_called, failures_of, narrowed
from penstock.operators.formats import As, Format, format_of
from penstock.operators.named import NamedOperator
from penstock.user_code import called_with, user_code_error

Where: TypeAlias = Literal["threads", "processes"]
ResultOf: TypeAlias = Callable[[object], pa.RecordBatch | None]
"""Makes a batch of a call's result."""

_LOOKED_MS_MAX = 20
_IN_HAND = "in hand"


@dataclass(slots=True, eq=False)
class _Job:
    """A batch in hand."""

    batch: pa.RecordBatch
    since_ms: int
    is_unkeyed: bool
    """Whether any subtask may have it: without a key, or from a checkpoint in which the records in hand had none."""
    is_started: bool = False
    done: threading.Event = field(default_factory=threading.Event)
    result: object = None
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class Converted:
    """The result of a call that is a batch already, made in another process."""

    batch: pa.RecordBatch | None
    refused: str | None
    """Why the outputs could not become a batch."""
    zones: dict[str, bool]
    """Whether the times of a column have a zone."""


@dataclass(frozen=True, slots=True)
class WorkedAround:
    """The results for a batch without the rows for which the function has raised: `on_error`."""

    batches: list[pa.RecordBatch]
    failed: dict[int, Exception]
    """By number of the row."""


class Runner(ABC):
    """Runs one call at a time, on the thread that made it."""

    @abstractmethod
    def call(self, batch: pa.RecordBatch) -> object:
        """The outputs of the function, or a `Converted` batch of them."""

    def close(self) -> None:
        """End what is still running, if that is possible. Called from another thread."""


class InThread(Runner):
    def __init__(self, function: UserFunction, as_: As, format: Format) -> None:
        self._call = as_rows_call(function) if as_ == "rows" else function
        self._format = format

    def call(self, batch: pa.RecordBatch) -> object:
        return self._call(self._format.of(batch))


class WorkingAround(Runner):
    """Narrows failed calls of another runner down to the rows that fail, on the thread that calls it.

    With `by_row`, a function of rows that runs in this thread, no row is called twice.
    """

    def __init__(self, runner: Runner, by_row: UserFunction | None, format: Format, result_of: ResultOf) -> None:
        self._runner = runner
        self._by_row = by_row
        self._format = format
        self._result_of = result_of

    def call(self, batch: pa.RecordBatch) -> WorkedAround:
        failed: dict[int, Exception] = {}
        return WorkedAround([each for each in self._results(batch, failed) if each is not None], failed)

    def _results(self, batch: pa.RecordBatch, failed: dict[int, Exception]) -> Iterator[pa.RecordBatch | None]:
        if self._by_row is None:
            yield from narrowed(
                batch.num_rows,
                lambda first, end: self._result_of(self._runner.call(batch.slice(first, end - first))),
                failed.__setitem__,
            )
            return
        numbers, results = each_called(self._by_row, self._format.of(batch), failed.__setitem__)
        if results:
            yield from narrowed(
                len(results),
                lambda first, end: self._result_of(results[first:end]),
                lambda row, error: failed.__setitem__(numbers[row], error),
            )

    def close(self) -> None:
        self._runner.close()


def as_rows_call(function: UserFunction) -> UserFunction:
    """The function of one row as a function of all rows."""

    return functools.partial(called_with, function)


class Pool:
    """Daemon threads, each with its own runner, and a queue in front of them."""

    def __init__(self, threads: int, make_runner: Callable[[], Runner], name: str) -> None:
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._threads = threads
        self._started = 0
        self._make_runner = make_runner
        self._runners: list[Runner] = []
        self._name = name
        self._is_closed = False

    def submit(self, job: _Job) -> None:
        if self._started < self._threads:
            self._started += 1
            threading.Thread(target=self._run, name=f"{self._name}-{self._started}", daemon=True).start()
        self._jobs.put(job)

    def _run(self) -> None:
        runner: Runner | None = None
        while (job := self._jobs.get()) is not None:
            try:
                if runner is None:
                    runner = self._make_runner()
                    self._runners.append(runner)
                    if self._is_closed:
                        runner.close()
                job.result = runner.call(job.batch)
            except BaseException as error:
                job.error = error
            job.done.set()

    def close(self) -> None:
        self._is_closed = True
        for _ in range(self._started):
            self._jobs.put(None)
        for runner in self._runners:
            runner.close()


class MapAsyncOperator(NamedOperator):
    """At most `concurrency` calls at a time, and no more input while a batch waits for one of them."""

    emits_later = True
    _failures: Failures | None = None

    def __init__(
        self,
        function: UserFunction,
        as_: As,
        schema: pa.Schema | None,
        concurrency: int,
        ordered: bool,
        where: Where,
        batch_rows: int,
        on_error: OnError = "raise",
    ) -> None:
        self.function = function
        self.as_: As = as_
        self.schema = schema
        self.concurrency = concurrency
        self.ordered = ordered
        self.where = where
        self.batch_rows = batch_rows
        self.on_error: OnError = on_error
        # Jobs and held watermarks, in the order in which they came.
        self._line: deque[_Job | int] = deque()
        self._is_looking = False

    def setup(self) -> None:
        self._unkeyed = self.context.list_state(_IN_HAND)
        self._keyed = self.context.keyed.rows(_IN_HAND, self.context.key) if self.context.key else None
        self.format: Format = format_of(self.as_, self.output_guard(self.schema))
        self._failures = failures_of(self.context, self.on_error)
        self._converting = threading.Lock()
        self._pool = Pool(self.concurrency, self._runner, f"{self.context.operator}[{self.context.subtask}]")

    def _runner(self) -> Runner:
        runner = self._plain_runner()
        if self._failures is None:
            return runner
        by_row = self.function if self.where == "threads" and self.as_ == "rows" else None
        return WorkingAround(runner, by_row, self.format, self._result_in_thread)

    def _plain_runner(self) -> Runner:
        if self.where == "threads":
            return InThread(self.function, self.as_, self.format)
        from penstock.operators.async_map.child_process import InProcess

        return InProcess(self.function, self.as_, self.format.guard)

    def _result_in_thread(self, returned: object) -> pa.RecordBatch | None:
        """Runs on the threads of the pool: the format knows the one schema of all outputs, and is not theirs."""
        if not isinstance(returned, Converted):
            # An iterable may run the function as it is read.
            returned = self.format.outputs(returned)
        with self._converting:
            return self._result_of(returned)

    # --- in ---

    def on_restored(self, emit: Emit) -> None:
        self._emit = emit
        for batch in self._unkeyed.get():
            self._take_in_hand(batch, is_unkeyed=True)
        for batch in () if self._keyed is None else self._keyed.get():
            self._take_in_hand(batch, is_unkeyed=False)
        self._changed()

    def work(self, batch: pa.RecordBatch, input_index: int, emit: Emit) -> None:
        self._take_in_hand(batch, is_unkeyed=self._keyed is None)
        self._changed()

    def _take_in_hand(self, batch: pa.RecordBatch, is_unkeyed: bool) -> None:
        now_ms = self.context.now_ms()
        for start in range(0, batch.num_rows, self.batch_rows):
            self._line.append(_Job(batch.slice(start, self.batch_rows), now_ms, is_unkeyed))

    def on_watermark(self, watermark: int, emit: Emit) -> bool | None:
        if not self._line:
            return None
        self._line.append(watermark)
        return True

    # --- out ---

    def _look(self) -> None:
        self._is_looking = False
        self._emit_ready()
        self._changed()

    def _emit_ready(self) -> None:
        """Emit what is ready: in order only what stands at the front, else whatever there is."""
        waiting: deque[_Job | int] = deque()
        while self._line:
            item = self._line.popleft()
            if isinstance(item, int):
                # A watermark passes when nothing in front of it is in hand any more.
                if waiting:
                    waiting.append(item)
                else:
                    self.context.release_watermark(item)
                continue
            if item.done.is_set():
                self._finish(item)
                continue
            waiting.append(item)
            if self.ordered:
                break
        waiting.extend(self._line)
        self._line = waiting

    def _finish(self, job: _Job) -> None:
        if job.error is not None:
            context = self.context
            where = f"operator '{context.operator}', subtask {context.subtask} of {context.parallelism}"
            error = job.error
            if isinstance(error, UserCodeError):
                # Of a child process, which has said what it was.
                raise UserCodeError(f"{where}: the function of map_async raised {error}") from error
            raise user_code_error(f"{where}: the function of map_async", error) from error
        if isinstance(job.result, WorkedAround):
            self._finish_around(job.batch, job.result)
            return
        result = self._result_of(job.result)
        if result is not None:
            self._emit(result)

    def _finish_around(self, batch: pa.RecordBatch, worked: WorkedAround) -> None:
        assert self._failures is not None
        for result in worked.batches:
            self._emit(result)
        bad = sorted(worked.failed)
        self._failures.report(
            take_rows(batch, np.array(bad, dtype=np.int64)), [worked.failed[number] for number in bad]
        )

    def _result_of(self, returned: object) -> pa.RecordBatch | None:
        if not isinstance(returned, Converted):
            return self.format.batch(self.format.outputs(returned))
        if returned.refused is not None:
            raise DataError(returned.refused)
        return None if returned.batch is None else self.format.adopted(returned.batch, returned.zones)

    # --- bookkeeping ---

    def _changed(self) -> None:
        jobs = [item for item in self._line if isinstance(item, _Job)]
        # The state is what is in hand now, and nothing else: a result that waits for a slower one is in hand too.
        self._unkeyed.put([job.batch for job in jobs if job.is_unkeyed])
        if self._keyed is not None:
            self._keyed.put([job.batch for job in jobs if not job.is_unkeyed])
        idle = self.concurrency - sum(job.is_started and not job.done.is_set() for job in jobs)
        for job in [job for job in jobs if not job.is_started][:idle]:
            job.is_started = True
            self._pool.submit(job)
        self.is_idle = not self._line
        self.wants_input = all(job.is_started for job in jobs) and len(jobs) < 2 * self.concurrency
        if jobs and not self._is_looking:
            self._is_looking = True
            now_ms = self.context.now_ms()
            pause_ms = (now_ms - jobs[0].since_ms) // 20
            self.context.call_at(now_ms + max(1, min(pause_ms, _LOOKED_MS_MAX)), self._look)

    def close(self) -> None:
        self._pool.close()
        if self._failures is not None:
            self._failures.close()
