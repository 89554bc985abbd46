"""The contract of a sink, tried out: every row once, whatever dies at whatever step.

The trials come in two groups. *Calls* drive a writer and a committer by hand, in the orders that a crash can leave
behind. *Runs* are whole pipelines of which workers or the driver die at one step: before and after a cut, before,
during and after a commit, between two parallelisms. Each trial has its own destination.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, TypeAlias

import pyarrow as pa

from penstock.connectors.memory import CHECKPOINT, ListSource
from penstock.connectors.sink import Committer, Prepared, Sink, SinkWriter
from penstock.errors import PenstockError
from penstock.ids import CheckpointId, Generation
from penstock.model.units import Duration
from penstock.pipeline import Pipeline
from penstock.storage import MemoryStore
from penstock.testing.contract import Rows, broken, check_identity, difference, pickled, row_texts
from penstock.testing.local import run

MakeSink: TypeAlias = Callable[[str], Sink]
ReadBack: TypeAlias = Callable[[str], Rows]
MakeBatch: TypeAlias = Callable[[int, int], pa.RecordBatch]

_DEATHS_MAX = 16
_SPLITS = 3
_ROUNDS = 3


def numbered_rows(start: int, count: int) -> pa.RecordBatch:
    """The default rows: a number that is unique, and a text."""
    numbers = range(start, start + count)
    return pa.record_batch({"n": pa.array(numbers, pa.int64()), "text": [f"row {n}" for n in numbers]})


def check_sink(
    make_sink: MakeSink,
    read_back: ReadBack,
    *,
    make_batch: MakeBatch = numbered_rows,
    rows: int = 600,
    deaths_max: int = _DEATHS_MAX,
    timeout: Duration = "1 min",
) -> None:
    """Raise `ContractBroken` if the sink loses, doubles or publishes rows too early in any trial.

    Example:

        def read_back(name):
            files = sorted(Path(name).glob("part-*.parquet"))
            return [row for file in files for row in pq.read_table(file).to_pylist()]

        assert check_sink(lambda name: ParquetSink(name), read_back, rows=60, deaths_max=3) is None

    `make_sink(name)` describes a sink whose destination (directory, table, topic) has that name, of lower-case letters,
    digits and underscores. It is called several times with one name: a driver that starts again describes its sink
    again. `read_back(name)` returns all rows that a reader finds there now, none if the destination does not exist.
    `make_batch(start, count)` returns the rows with these numbers; no two rows may be equal, nor have equal keys if the
    sink has a key. `deaths_max` bounds the steps of one commit at which the driver dies; a commit that has more lines
    dies at as many of them, evenly spread.

    The trap: a death is an exception that is raised between two lines of the committer's module. A sink whose `finally`
    hides a defect from it needs a test of its own that kills a process.
    """
    trials = _Trials(make_sink, read_back, make_batch, rows, timeout)
    trials.calls()
    trials.runs(deaths_max)


class _Died(BaseException):
    """The driver is gone: whatever it has in hand stays as it is."""


class _Trials:
    def __init__(
        self, make_sink: MakeSink, read_back: ReadBack, make_batch: MakeBatch, rows: int, timeout: Duration
    ) -> None:
        self._make_sink = make_sink
        self._read_back = read_back
        self._make_batch = make_batch
        self._rows = rows
        self._timeout = timeout
        self._names = (f"trial_{number}" for number in itertools.count(1))
        self._name = ""
        self._sink = make_sink("trial_0")
        check_identity(self._sink, make_sink("trial_0"))
        pickled(self._sink)
        if not isinstance(self._sink.committer(), Committer):
            raise broken(
                self._sink,
                "it has no committer, so its output is at least once, and this check cannot hold",
                f"committer() returned {self._sink.committer()!r}",
                "Return a Committer, or check the output of the pipeline in a test of your own",
            )

    def _begin(self) -> Sink:
        self._name = next(self._names)
        self._sink = self._make_sink(self._name)
        # As in a pipeline: the driver has its committer before any worker starts, and may prepare the destination.
        self._sink.committer()
        return pickled(self._sink)

    def _expect(self, numbers: Sequence[range], rule: str, cure: str) -> None:
        expected = [text for part in numbers for text in row_texts(self._make_batch(part.start, len(part)))]
        found = difference(expected, row_texts(self._read_back(self._name)))
        if found is not None:
            raise broken(self._sink, rule, found[0].upper() + found[1:], cure)

    # --- calls by hand ---

    def calls(self) -> None:
        self._staging_and_repetition()
        self._late_commit()
        self._overlapping_generations()
        self._swept()
        self._closed_after_the_cut()

    def _written(self, writer: SinkWriter, numbers: range) -> None:
        middle = (numbers.start + numbers.stop) // 2
        for part in (range(numbers.start, middle), range(middle, numbers.stop)):
            writer.write(self._make_batch(part.start, len(part)))

    def _committer(self) -> Committer:
        """That of a driver which has just started."""
        committer = self._make_sink(self._name).committer()
        assert committer is not None
        return committer

    def _handed_over(self, prepared: Prepared) -> list[bytes]:
        committables = list(prepared())
        if not all(isinstance(payload, bytes) for payload in committables):
            raise broken(
                self._sink,
                "a committable is not bytes, and cannot be kept in a checkpoint",
                f"prepare handed over {committables!r:.200}",
                "Encode it, for example as JSON",
            )
        return committables

    def _staging_and_repetition(self) -> None:
        writer = self._begin().writer(0, Generation(1))
        self._written(writer, range(20))
        early = "rows are visible before their checkpoint is committed"
        stage = "Let write and prepare stage them where no reader looks, and publish them in commit"
        self._expect([], early, stage)
        prepared = writer.prepare()
        self._written(writer, range(20, 30))
        first = self._handed_over(prepared)
        self._expect([], early, stage)
        committer = self._committer()
        committer.commit(CheckpointId(1), first)
        cut = "a commit did not publish exactly the rows in front of the cut"
        self._expect(
            [range(20)], cut, "prepare must cut: rows written before it belong to it, rows after it to the next one"
        )
        again = "a repeated commit changed the output"
        cure = "Recognise by the committables themselves, or by a mark in the destination, that they are published"
        committer.commit(CheckpointId(1), first)
        self._expect([range(20)], again, cure)
        self._committer().commit(CheckpointId(1), first)
        self._expect([range(20)], f"{again} when another process made it", cure)
        second = self._handed_over(writer.prepare())
        self._committer().commit(CheckpointId(2), second)
        self._expect([range(30)], "the second commit did not add the second part", "Publish each checkpoint's rows")
        if rest := self._handed_over(writer.prepare()):
            self._committer().commit(CheckpointId(3), rest)
        self._expect([range(30)], "a checkpoint without rows changed the output", "Hand over nothing for no rows")
        writer.close()

    def _late_commit(self) -> None:
        writer = self._begin().writer(0, Generation(1))
        older = self._committer()
        parts = []
        for numbers in (range(10), range(10, 20)):
            self._written(writer, numbers)
            parts.append(self._handed_over(writer.prepare()))
        newer = self._committer()
        for checkpoint, part in enumerate(parts, 1):
            newer.commit(CheckpointId(checkpoint), part)
        older.commit(CheckpointId(1), parts[0])
        self._expect(
            [range(20)],
            "a driver that was cut off, and commits late what its successor has committed, changed the output",
            "Decide in the destination, in one transaction, that a checkpoint which is not newer publishes nothing",
        )
        writer.close()

    def _overlapping_generations(self) -> None:
        sink = self._begin()
        older, newer = sink.writer(0, Generation(1)), sink.writer(0, Generation(2))
        for number in range(5):
            self._written(older, range(4 * number, 4 * number + 4))
            self._written(newer, range(4 * number, 4 * number + 4))
        self._handed_over(older.prepare())
        committables = self._handed_over(newer.prepare())
        older.close()
        self._committer().commit(CheckpointId(7), committables)
        self._expect(
            [range(20)],
            "two writers of one subtask, of which one belongs to a generation that is over, touched the same output",
            "Name staged output after the generation, the subtask and a random part",
        )
        newer.close()

    def _swept(self) -> None:
        sink = self._begin()
        older, newer = sink.writer(0, Generation(1)), sink.writer(0, Generation(2))
        self._written(older, range(10))
        committed = self._handed_over(older.prepare())
        self._committer().commit(CheckpointId(1), committed)
        self._written(older, range(100, 110))
        self._handed_over(older.prepare())
        self._committer().discard_uncommitted(Generation(2))
        rule = "discard_uncommitted changed output that is committed, or published output that never was"
        self._expect(
            [range(10)], rule, "discard_uncommitted removes staged output of older generations and nothing else"
        )
        self._written(newer, range(10, 20))
        handed = self._handed_over(newer.prepare())
        self._committer().discard_uncommitted(Generation(2))
        try:
            self._committer().commit(CheckpointId(2), handed)
        except PenstockError as error:
            raise broken(
                self._sink,
                "discard_uncommitted removed staged output of the generation that runs",
                str(error),
                "Remove that of generations below the one it is called with",
            ) from error
        self._expect([range(20)], "discard_uncommitted removed staged output of the generation that runs", "Keep it")
        older.close()
        newer.close()

    def _closed_after_the_cut(self) -> None:
        writer = self._begin().writer(0, Generation(1))
        self._written(writer, range(10))
        committables = self._handed_over(writer.prepare())
        self._written(writer, range(10, 20))
        writer.close()
        self._committer().commit(CheckpointId(1), committables)
        self._expect(
            [range(10)],
            "closing a writer lost what a checkpoint names, or published what none does",
            "close() discards what was written since the last prepare, and nothing that was handed over",
        )

    # --- whole pipelines ---

    def runs(self, deaths_max: int) -> None:
        self._run("an undisturbed run", _Faults())
        for step in ("before the cut", "before staging", "after staging"):
            self._run(f"a worker that died {step} in a checkpoint", _Faults(worker_dies=step))
        self._run("a driver that died before a commit", _Faults(driver_dies="before"))
        self._run("a driver that died after a commit, before it was noted", _Faults(driver_dies="after"))
        lines = self._lines_of_a_commit()
        every = max(1, -(-lines // deaths_max))
        for line in range(1, lines + 1, every):
            self._run(f"a driver that died within a commit, at step {line} of {lines}", _Faults(dies_at_line=line))
        self._run("a commit that failed and was tried again", _Faults(driver_dies="error"))
        self._rescaled()

    def _lines_of_a_commit(self) -> int:
        faults = _Faults(dies_at_line=sys.maxsize)
        self._run("an undisturbed run", faults)
        return faults.lines

    def _pipeline(self, faults: _Faults) -> Pipeline:
        self._sink = self._make_sink(self._name)
        pipeline = Pipeline("contract")
        source = ListSource(self._items(), splits=_SPLITS)
        pipeline.source(source, name="numbers").sink(_FaultySink(self._sink, faults), name="sink")
        return pipeline

    def _items(self) -> list[Any]:
        """Batches for every split, with a checkpoint between each few of them."""
        count = _ROUNDS * _SPLITS
        bounds = [self._rows * number // count for number in range(count + 1)]
        batches = [self._make_batch(start, end - start) for start, end in itertools.pairwise(bounds)]
        rounds = [batches[first : first + _SPLITS] for first in range(0, count, _SPLITS)]
        return [item for part in rounds for item in (*part, CHECKPOINT)]

    def _run(self, moment: str, faults: _Faults, parallelisms: Sequence[int] = (2,)) -> None:
        self._name = next(self._names)
        store = MemoryStore()
        for parallelism in itertools.chain(parallelisms, itertools.repeat(parallelisms[-1])):
            try:
                run(
                    self._pipeline(faults),
                    parallelism=parallelism,
                    store=store,
                    until=faults.look,
                    timeout=self._timeout,
                    restarts=5,
                )
                break
            except _Died:
                continue
            except (PenstockError, TimeoutError) as error:
                raise broken(
                    self._sink, f"after {moment} the pipeline did not come to its end", str(error), "Mend the error"
                ) from error
        self._expect(
            [range(self._rows)],
            f"after {moment}, not every row is there exactly once",
            "A committable must say all that another process needs to publish it, and publishing it twice must change "
            "nothing",
        )

    def _rescaled(self) -> None:
        faults = _Faults(driver_dies="before", deaths=3)
        self._run("restarts with another parallelism, from 2 to 3 to 1", faults, (2, 3, 1))


class _Faults:
    """Who dies at which step, once; and how many lines a commit had."""

    def __init__(
        self, *, worker_dies: str = "", driver_dies: str = "", dies_at_line: int | None = None, deaths: int = 1
    ) -> None:
        self.worker_dies = worker_dies
        self.driver_dies = driver_dies
        self.dies_at_line = dies_at_line
        self.deaths = deaths
        self.lines = 0
        self.prepared = 0
        self.is_worker_dying = False
        self._is_dead = False

    def look(self) -> bool:
        """Called by the loop of the driver: this is where it dies."""
        if self._is_dead:
            self._is_dead = False
            raise _Died
        return False

    def at_worker(self, step: str) -> None:
        # From the second cut on: there is a checkpoint to go back to.
        if self.deaths and self.worker_dies == step and self.prepared >= 2:
            self.deaths -= 1
            self.is_worker_dying = step != "before the cut"
            raise PenstockError(f"the worker died {step}, as planned")

    def at_write(self) -> None:
        # A preparation that fails declines its checkpoint and no more: the worker itself dies with its next record.
        if self.is_worker_dying:
            self.is_worker_dying = False
            raise PenstockError(f"the worker died {self.worker_dies}, as planned")
        self.at_worker("before the cut")

    def die(self) -> None:
        self.deaths -= 1
        self._is_dead = True
        raise _Died

    def at_driver(self, step: str) -> None:
        if self.deaths and self.driver_dies == step:
            self.die()

    def trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            self.lines += 1
            if self.deaths and self.lines == self.dies_at_line:
                self.die()
        return self.trace


class _FaultySink(Sink):
    def __init__(self, sink: Sink, faults: _Faults) -> None:
        self._sink = sink
        self._faults = faults
        self.requires_alignment = sink.requires_alignment
        self.outlives_driver = sink.outlives_driver

    def identity(self) -> dict[str, str]:
        return dict(self._sink.identity())

    def writer(self, subtask: int, generation: Generation) -> SinkWriter:
        return _FaultyWriter(self._sink.writer(subtask, generation), self._faults)

    def committer(self) -> Committer:
        committer = self._sink.committer()
        assert committer is not None
        return _FaultyCommitter(committer, self._faults)


class _FaultyWriter(SinkWriter):
    def __init__(self, writer: SinkWriter, faults: _Faults) -> None:
        self._writer = writer
        self._faults = faults

    def write(self, batch: pa.RecordBatch) -> None:
        self._faults.at_write()
        self._writer.write(batch)

    @property
    def wants_input(self) -> bool:
        return self._writer.wants_input

    def prepare(self) -> Prepared:
        self._faults.prepared += 1
        prepared = self._writer.prepare()
        if prepared is list:
            return prepared

        committables: list[bytes] = []

        def staged() -> Sequence[bytes]:
            # Asked again after the planned failure, it has the result: a preparation succeeds once.
            self._faults.at_worker("before staging")
            if not committables:
                committables.extend(prepared())
            self._faults.at_worker("after staging")
            return committables

        return staged

    def close(self) -> None:
        self._writer.close()


class _FaultyCommitter(Committer):
    def __init__(self, committer: Committer, faults: _Faults) -> None:
        self._committer = committer
        self._faults = faults

    def commit(self, checkpoint: CheckpointId, committables: Sequence[bytes]) -> None:
        self._faults.at_driver("before")
        if self._faults.dies_at_line is None:
            self._committer.commit(checkpoint, committables)
        else:
            self._traced(checkpoint, committables)
        self._faults.at_driver("after")
        if self._faults.deaths and self._faults.driver_dies == "error":
            self._faults.deaths -= 1
            raise PenstockError("the answer to the commit was lost, as planned")

    def _traced(self, checkpoint: CheckpointId, committables: Sequence[bytes]) -> None:
        """Commit line by line. Only the first commit is counted: later ones are alike."""
        faults = self._faults
        if faults.lines and faults.dies_at_line == sys.maxsize:
            self._committer.commit(checkpoint, committables)
            return
        module = sys.modules[type(self._committer).__module__]

        def trace(frame: FrameType, event: str, argument: Any) -> Any:
            return faults.trace if frame.f_code.co_filename == module.__file__ else None

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            self._committer.commit(checkpoint, committables)
        finally:
            sys.settrace(before)

    def discard_uncommitted(self, generation: Generation) -> None:
        self._committer.discard_uncommitted(generation)
