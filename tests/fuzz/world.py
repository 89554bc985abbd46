"""Everything around a pipeline that outlives its workers and its driver: input, output, the store, and what goes wrong.

There is one world at a time, found by `current`, because functions travel: they cannot hold it. Whatever is random here
is drawn from the schedule of the run, so that a seed is always the same run.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from penstock import (
    END_OF_SPLIT,
    Committer,
    Prepared,
    Sink,
    SinkWriter,
    Source,
    SplitReader,
    StorageError,
    nothing_prepared,
)
from penstock.storage import MemoryStore
from penstock.testing import Schedule

_WORLDS: list[World] = []


class Killed(BaseException):
    """The driver is gone, as with `kill -9`."""


class PlannedError(ConnectionError):
    """Raised by user code, because the seed says so. No record is to blame, whatever `on_error` says."""


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong once: at the `at`-th call of what `where` names."""

    kind: str
    """`raise` in a function, `store` or `read` or `commit` that fails, `lost` reply of a store or commit that did its
    work, `die` before or `after` something was stored."""
    where: str
    at: int

    def __str__(self) -> str:
        return f"{self.kind} at call {self.at} of {self.where}"


@dataclass(frozen=True)
class Written:
    """A batch that was published."""

    life: int
    checkpoint: int
    batch: pa.RecordBatch


@dataclass
class World:
    """What there is to read, what was written, and what happened."""

    schedule: Schedule
    faults: Sequence[Fault] = ()
    input: dict[tuple[str, int], list[tuple[int, pa.RecordBatch]]] = field(default_factory=dict)
    """By source and split: the batches, and in which life of the pipeline each appears."""
    is_patient: float = 1.0
    """How often a sink wants input."""
    speed: float = 0.5
    """How likely a call of `map_async` returns in a turn."""
    life: int = 0
    is_bounded: bool = True
    """Whether the input of this life ends."""
    is_dead: bool = False
    """The driver has died: until this is noticed, at the end of the turn, nothing that it does has an effect."""
    published: dict[str, list[Written]] = field(default_factory=dict)
    staged: dict[str, list[pa.RecordBatch]] = field(default_factory=dict)
    seen: dict[str, list[pa.RecordBatch]] = field(default_factory=dict)
    """What sinks were called with that deliver at least once."""
    violations: list[str] = field(default_factory=list)
    story: list[str] = field(default_factory=list)
    jobs: list[tuple[SeededPool, Any]] = field(default_factory=list)
    calls: Counter[str] = field(default_factory=Counter)
    durable: dict[str, int] = field(default_factory=dict)
    positions: dict[tuple[str, int], int] = field(default_factory=dict)
    busy_at_ms: int = 0
    """When somebody last worked on records, or did not want any."""
    committed: dict[str, int] = field(default_factory=dict)
    directory: str = ""
    """Where the files of sources are."""
    left_out: dict[str, int] = field(default_factory=dict)
    """Records that were dropped, sent to a stream or skipped, as the last life has counted them."""
    _names: int = 0

    def __enter__(self) -> World:
        _WORLDS.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        _WORLDS.remove(self)

    def tell(self, what: str) -> None:
        self.story.append(f"{self.schedule.now_us() / 1000:10.3f} ms  life {self.life}  {what}")

    def violated(self, what: str) -> None:
        self.tell(f"VIOLATION {what}")
        self.violations.append(what)

    def new_name(self) -> str:
        self._names += 1
        return f"staged-{self._names}"

    def due(self, where: str, *kinds: str) -> Fault | None:
        """Count a call, and say what is to go wrong with it."""
        number = self.calls[where] = self.calls[where] + 1
        for fault in self.faults:
            if fault.where == where and fault.at == number and fault.kind in kinds:
                self.tell(f"fault: {fault}")
                return fault
        return None

    def visible(self, source: str, split: int) -> list[pa.RecordBatch]:
        return [batch for life, batch in self.input[source, split] if life <= self.life]

    def is_quiet(self, ms: int) -> bool:
        """Whether everything that there is to read has been read, and nobody has worked on records for a while."""
        return self._is_exhausted and not self.jobs and self.schedule.now_ms() >= self.busy_at_ms + ms

    @property
    def _is_exhausted(self) -> bool:
        return all(
            self.positions.get(place, 0) >= sum(batch.num_rows for batch in self.visible(*place))
            for place in self.input
        )

    def turn(self) -> None:
        """Time has passed: some calls of `map_async` return."""
        for pool, job in list(self.jobs):
            if self.schedule.random.random() < self.speed:
                self.jobs.remove((pool, job))
                pool.finish(job)


def current() -> World:
    return _WORLDS[-1]


def touch(operator: str, *, is_timer: bool = False) -> None:
    """Called by every function of a pipeline, whenever it is called."""
    world = current()
    if not is_timer:
        world.busy_at_ms = world.schedule.now_ms()
    if world.due(operator, "raise"):
        raise PlannedError(f"planned for {operator}")


class SeededPool:
    """Takes the place of the threads of `map_async`: calls return in an order that the seed decides."""

    def __init__(self, threads: int, make_runner: Callable[[], Any], name: str) -> None:
        self._make_runner = make_runner

    def submit(self, job: Any) -> None:
        current().jobs.append((self, job))

    def finish(self, job: Any) -> None:
        try:
            job.result = self._make_runner().call(job.batch)
        except Exception as error:
            job.error = error
        job.done.set()

    def close(self) -> None:
        world = current()
        world.jobs = [(pool, job) for pool, job in world.jobs if pool is not self]


# --- input ---


class FuzzSource(Source):
    """Reads the world's input, in pieces of any size, and sometimes has nothing right now."""

    def __init__(self, name: str, splits: int) -> None:
        self.name = name
        self.split_count = splits

    def identity(self) -> Mapping[str, str]:
        return {**super().identity(), "name": self.name}

    def splits(self) -> Sequence[str]:
        return [str(number) for number in range(self.split_count)]

    def open(self, split: str, offset: bytes | None) -> SplitReader:
        world, position = current(), json.loads(offset) if offset else 0
        where = f"{self.name}/{split}"
        if position < world.durable.get(where, 0):
            world.violated(
                f"{where} is read again from {position}, though it was told that {world.durable[where]} is durable"
            )
        return _FuzzReader(self.name, int(split), position)


class _FuzzReader(SplitReader):
    def __init__(self, source: str, split: int, position: int) -> None:
        self._source = source
        self._split = split
        self._position = position
        current().positions[source, split] = position

    def read(self, rows_max: int) -> Any:
        world = current()
        touch(self._source, is_timer=True)
        passed = 0
        for batch in world.visible(self._source, self._split):
            if passed + batch.num_rows > self._position:
                if world.schedule.random.random() < 0.2:
                    return None
                rows = world.schedule.random.randint(1, max(1, rows_max))
                piece = batch.slice(self._position - passed, rows)
                self._position += piece.num_rows
                world.positions[self._source, self._split] = self._position
                world.busy_at_ms = world.schedule.now_ms()
                return piece
            passed += batch.num_rows
        return END_OF_SPLIT if world.is_bounded else None

    def offset(self) -> bytes:
        return json.dumps(self._position).encode()

    def on_checkpoint_complete(self, offset: bytes) -> None:
        durable, where = current().durable, f"{self._source}/{self._split}"
        durable[where] = max(durable.get(where, 0), json.loads(offset))


# --- output ---


class FuzzSink(Sink):
    """Stages batches in the world; its committer publishes them, once."""

    def __init__(self, name: str) -> None:
        self.name = name

    def identity(self) -> Mapping[str, str]:
        return {**super().identity(), "name": self.name}

    def writer(self, subtask: int, generation: int) -> SinkWriter:
        return _FuzzWriter(self.name, int(generation))

    def committer(self) -> Committer:
        return _FuzzCommitter(self.name)


class _FuzzWriter(SinkWriter):
    def __init__(self, sink: str, generation: int) -> None:
        self._sink = sink
        self._generation = generation
        self._held: list[pa.RecordBatch] = []

    @property
    def wants_input(self) -> bool:
        world = current()
        is_willing = world.schedule.random.random() < world.is_patient
        if not is_willing:
            world.busy_at_ms = world.schedule.now_ms()
        return is_willing

    def write(self, batch: pa.RecordBatch) -> None:
        touch(self._sink)
        self._held.append(batch)

    def prepare(self) -> Prepared:
        held, self._held = self._held, []
        if not held:
            return nothing_prepared

        def stage() -> Sequence[bytes]:
            name = f"{self._sink} {self._generation} {current().new_name()}"
            current().staged[name] = held
            return [name.encode()]

        return stage


class _FuzzCommitter(Committer):
    def __init__(self, sink: str) -> None:
        self._sink = sink
        self._done: set[str] = set()

    def commit(self, checkpoint: int, committables: Sequence[bytes]) -> None:
        world = current()
        if world.is_dead:
            raise PlannedError("the driver is dead")
        fault = world.due(f"commit of {self._sink}", "commit", "lost")
        if fault is not None and fault.kind == "commit":
            raise PlannedError(str(fault))
        if checkpoint < world.committed.get(self._sink, 0):
            world.violated(f"{self._sink}: checkpoint {checkpoint} is committed after {world.committed[self._sink]}")
        world.committed[self._sink] = int(checkpoint)
        for name in (committable.decode() for committable in committables):
            batches = world.staged.get(name)
            if batches is None:
                world.violated(f"{self._sink}: {name} is committed, and was never staged or has been swept")
                continue
            published = world.published.setdefault(self._sink, [])
            if not any(written.batch is batch for written in published for batch in batches):
                published += [Written(world.life, int(checkpoint), batch) for batch in batches]
        if fault is not None:
            raise PlannedError(str(fault))

    def discard_uncommitted(self, generation: int) -> None:
        world = current()
        published = {id(written.batch) for written in world.published.get(self._sink, [])}
        for name, batches in list(world.staged.items()):
            sink, staged_by, _ = name.split()
            if sink == self._sink and int(staged_by) < generation and not published & {id(batch) for batch in batches}:
                del world.staged[name]


def see(name: str) -> Callable[[pa.RecordBatch], None]:
    """For a sink that delivers at least once."""

    def call(batch: pa.RecordBatch) -> None:
        touch(name)
        current().seen.setdefault(name, []).append(batch)

    return call


# --- the store ---


class FuzzStore(MemoryStore):
    """Fails, loses replies, and takes the driver with it, as the faults say."""

    def create(self, path: str, data: Any) -> bool:
        created = False

        def act() -> None:
            nonlocal created
            created = super(FuzzStore, self).create(path, data)

        self._change(f"create {path}", act)
        return created

    def write(self, path: str, parts: Any) -> None:
        self._change(f"write {path}", lambda: super(FuzzStore, self).write(path, parts))

    def delete(self, *doomed: str) -> None:
        self._change(f"delete {len(doomed)}", lambda: super(FuzzStore, self).delete(*doomed))

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        if current().due("reading the store", "read"):
            raise StorageError(f"planned, while reading {path}")
        return super().read(path, offset, length)

    def _change(self, what: str, act: Callable[[], None]) -> None:
        world = current()
        if world.is_dead:
            raise StorageError("the driver is dead")
        fault = world.due("changing the store", "store", "lost", "die", "after")
        if fault is None:
            act()
            return
        world.tell(f"the store was asked to {what}")
        if fault.kind in ("lost", "after"):
            act()
        world.is_dead = fault.kind in ("die", "after")
        raise StorageError(f"planned: {what}")
