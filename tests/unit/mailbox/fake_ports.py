"""One worker on ports that do nothing by themselves: time, frames and background work move by hand.

Here too: a source, a sink and operators whose every step can be seen, and pipelines small enough to send the
frames of all other workers by hand.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import pyarrow as pa

from penstock.connectors.sink import Committer, Prepared, Sink, SinkWriter
from penstock.connectors.source import END_OF_SPLIT, Source, SplitReader
from penstock.graph.logical import Graph, LogicalEdge, Node
from penstock.graph.physical import Channel, PhysicalPlan, plan
from penstock.ids import COORDINATOR, ChannelId, CheckpointId, Generation, OperatorName, SubtaskId, WorkerId
from penstock.mailbox.frames import (
    AcknowledgeFrame,
    BarrierFrame,
    BatchFrame,
    EndFrame,
    Frame,
    HeartbeatFrame,
    TriggerFrame,
)
from penstock.mailbox.frames import WatermarkFrame as Watermark
from penstock.metrics.metric import Metric
from penstock.metrics.received import ReceivedMetrics
from penstock.operators.contract import Emit, Operator, OperatorContext
from penstock.protocol.barrier import Barrier, BarrierFlag
from penstock.protocol.manifest import Manifest, Partitioning, SubtaskReport
from penstock.storage.memory import MemoryStore
from penstock.worker.settings import WorkerSettings
from penstock.worker.subtask import Subtask
from penstock.worker.worker import Worker

T = TypeVar("T")
F = TypeVar("F")
GENERATION = Generation(4)


class ManualClock:
    """Time that moves when it is told to."""

    def __init__(self, ms: int = 1_000) -> None:
        self.us = ms * 1000
        self.delayed_us = 0
        """How much of the time that has passed others had the core."""

    def now_us(self) -> int:
        return self.us

    def own_us(self) -> int:
        return self.us - self.delayed_us

    def now_ms(self) -> int:
        return self.us // 1000

    def wall_ms(self) -> int:
        return 1_700_000_000_000 + self.us // 1000

    def advance(self, ms: int) -> None:
        self.us += ms * 1000

    def delay(self, us: int) -> None:
        """Let time pass in which others have the core."""
        self.us += us
        self.delayed_us += us


class ListTransport:
    """Keeps what was sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[WorkerId, Frame]] = []

    def send(self, to: WorkerId, frame: Frame) -> None:
        self.sent.append((to, frame))

    def of(self, kind: type[F]) -> list[F]:
        return [frame for _, frame in self.sent if isinstance(frame, kind)]

    def take(self, kind: type[F]) -> list[F]:
        """As `of`, and forget everything that was sent so far."""
        found = self.of(kind)
        self.sent.clear()
        return found


class ManualBackground:
    """Work waits here until it is run, and its outcome is handed over at once then."""

    def __init__(self) -> None:
        self.jobs: deque[tuple[Callable[[], Any], Callable[[Any], None]]] = deque()

    def submit(self, work: Callable[[], T], done: Callable[[T | Exception], None]) -> None:
        self.jobs.append((work, done))

    def run_one(self) -> None:
        work, done = self.jobs.popleft()
        try:
            outcome = work()
        except Exception as error:
            outcome = error
        done(outcome)

    def run(self) -> None:
        while self.jobs:
            self.run_one()


# --- data ---


def rows(*values: int) -> pa.RecordBatch:
    return pa.record_batch({"v": pa.array(values, pa.int64())})


def values(batches: Sequence[pa.RecordBatch]) -> list[int]:
    return [value for batch in batches for value in batch.column("v").to_pylist()]


class Numbers(Source):
    """Splits of numbers, handed out `chunk` at a time. `is_bounded`: it ends when they are used up."""

    def __init__(self, splits: Mapping[str, Sequence[int]], chunk: int = 2, is_bounded: bool = True) -> None:
        self.contents = splits
        self.chunk = chunk
        self.is_bounded = is_bounded
        self.opened: list[tuple[str, bytes | None]] = []
        self.closed: list[str] = []

    def splits(self) -> Sequence[str]:
        return list(self.contents)

    def open(self, split: str, offset: bytes | None) -> SplitReader:
        self.opened.append((split, offset))
        return NumberReader(self, split, int(offset or b"0"))


class NumberReader(SplitReader):
    """Its watermark is its position."""

    def __init__(self, source: Numbers, split: str, position: int) -> None:
        self.source = source
        self.split = split
        self.position = position

    def read(self, rows_max: int) -> Any:
        left = self.source.contents[self.split][self.position :]
        if not left:
            return END_OF_SPLIT if self.source.is_bounded else None
        taken = left[: min(rows_max, self.source.chunk)]
        self.position += len(taken)
        return rows(*taken)

    def offset(self) -> bytes:
        return str(self.position).encode()

    def watermark(self) -> int | None:
        return self.position

    def close(self) -> None:
        self.source.closed.append(self.split)


class Told(Numbers):
    """Notes what its readers are told to be durable."""

    def __init__(self, splits: dict[str, list[int]]) -> None:
        super().__init__(splits)
        self.durable: list[tuple[str, bytes]] = []

    def open(self, split: str, offset: bytes | None) -> SplitReader:
        reader = super().open(split, offset)
        reader.on_checkpoint_complete = lambda noted: self.durable.append((split, noted))  # type: ignore[method-assign]
        return reader


class Staging(Sink):
    """Stages numbers as text. `failing` names calls that raise."""

    def __init__(self) -> None:
        self.failing: set[str] = set()
        self.published: list[tuple[CheckpointId, list[bytes]]] = []
        self.closed = 0

    def writer(self, subtask: int, generation: Generation) -> SinkWriter:
        return StagingWriter(self)

    def committer(self) -> Committer:
        return StagingCommitter(self)


class StagingWriter(SinkWriter):
    def __init__(self, sink: Staging) -> None:
        self.sink = sink
        self.held: list[int] = []

    def write(self, batch: pa.RecordBatch) -> None:
        if "write" in self.sink.failing:
            raise ValueError("cannot write")
        self.held += values([batch])

    def prepare(self) -> Prepared:
        if "prepare" in self.sink.failing:
            raise ValueError("cannot prepare")
        held, self.held = self.held, []

        def stage() -> list[bytes]:
            if "stage" in self.sink.failing:
                raise ValueError("cannot stage")
            return [",".join(map(str, held)).encode()] if held else []

        return stage

    def close(self) -> None:
        self.sink.closed += 1


class StagingCommitter(Committer):
    def __init__(self, sink: Staging) -> None:
        self.sink = sink

    def commit(self, checkpoint: CheckpointId, committables: Sequence[bytes]) -> None:
        self.sink.published.append((checkpoint, list(committables)))


class Seen(Operator):
    """Passes records on; remembers calls in `log` and records in list state. `failing` names calls that raise."""

    def __init__(self) -> None:
        self.log: list[tuple[str, Any]] = []
        self.failing: set[str] = set()
        self.us_per_row = 0
        self.delay_us_per_row = 0
        self.clock: ManualClock | None = None
        self.holds_watermarks = False

    def _call(self, what: str, detail: Any) -> None:
        self.log.append((what, detail))
        if what in self.failing:
            raise ValueError(f"{what} is broken")

    def open(self, context: OperatorContext) -> None:
        self.context = context
        self.state = context.list_state("seen")
        self._call("open", None)

    def process(self, batch: pa.RecordBatch, source: int, emit: Emit) -> None:
        if self.clock is not None:
            self.clock.us += self.us_per_row * batch.num_rows
            self.clock.delay(self.delay_us_per_row * batch.num_rows)
        self._call("process", values([batch]))
        self.state.put([*self.state.get(), batch])
        emit(batch)

    def on_restored(self, emit: Emit) -> None:
        self._call("on_restored", values(self.state.get()))

    def on_watermark(self, watermark: int, emit: Emit) -> bool | None:
        self._call("on_watermark", watermark)
        return self.holds_watermarks

    def on_end(self, emit: Emit) -> None:
        self._call("on_end", None)

    def close(self) -> None:
        self._call("close", None)

    @property
    def processed(self) -> list[int]:
        return [value for what, detail in self.log if what == "process" for value in detail]

    @property
    def calls(self) -> list[int]:
        """How many records each call was given."""
        return [len(detail) for what, detail in self.log if what == "process"]

    @property
    def watermarks(self) -> list[int]:
        return [detail for what, detail in self.log if what == "on_watermark"]


# --- pipelines ---

LEFT, RIGHT, MAP, WRITE = (OperatorName(name) for name in ("left", "right", "map", "write"))
READ = OperatorName("read")
MAP_1 = SubtaskId(MAP, 1)
REBALANCE = Partitioning.REBALANCE


def join(seen: Seen, how: Partitioning = REBALANCE, sink: Sink | None = None, is_chained: bool = False) -> Graph:
    """left, right -> map -> write. At these parallelisms worker 1 hosts the subtask map[1] and nothing else."""
    onwards = Partitioning.FORWARD if is_chained else REBALANCE
    key = ("v",) if how is Partitioning.HASH else ()
    return Graph(
        "join",
        (
            Node(LEFT, source=Numbers({}), parallelism=1),
            Node(RIGHT, source=Numbers({}), parallelism=1),
            Node(MAP, operator=lambda: seen, parallelism=2),
            Node(WRITE, sink=sink or Staging(), parallelism=2 if is_chained else 1),
        ),
        (LogicalEdge(LEFT, MAP, how, 0, key), LogicalEdge(RIGHT, MAP, how, 1, key), LogicalEdge(MAP, WRITE, onwards)),
    )


def read(source: Source, sink: Sink | None = None) -> Graph:
    """read -> write. Worker 1 hosts the subtask read[1] and nothing else."""
    nodes = Node(READ, source=source, parallelism=2), Node(WRITE, sink=sink or Staging(), parallelism=1)
    return Graph("read", nodes, (LogicalEdge(READ, WRITE, REBALANCE),))


def barrier(
    number: int, flags: BarrierFlag = BarrierFlag.NONE, timeout_ms: int | None = None, completed: int = 0
) -> Barrier:
    return Barrier(CheckpointId(number), GENERATION, 0, flags, timeout_ms, completed=CheckpointId(completed))


def unaligned(number: int, completed: int = 0) -> Barrier:
    return barrier(number, BarrierFlag.UNALIGNED, completed=completed)


class Bench:
    """A worker under test, with everything around it.

    Its windows stay as they are and nothing travels inside the manifest, unless the settings say so.
    """

    def __init__(
        self,
        graph: Graph,
        worker: int = 1,
        store: MemoryStore | None = None,
        manifest: Manifest | None = None,
        **settings: int,
    ) -> None:
        self.plan: PhysicalPlan = plan(graph, 1, workers=2)
        self.clock = ManualClock()
        self.transport = ListTransport()
        self.background = ManualBackground()
        self.store = store or MemoryStore()
        self.settings = replace(WorkerSettings(inline_bytes_max=0, source_rest_ms=0, channel_time_ms=0), **settings)
        self.worker = Worker(
            WorkerId(worker),
            self.plan,
            GENERATION,
            self.settings,
            clock=self.clock,
            transport=self.transport,
            background=self.background,
            store=self.store,
            manifest=manifest,
        )

    def started(self) -> Bench:
        self.worker.start()
        self.background.run()
        return self

    @property
    def subtask(self) -> Subtask:
        (subtask,) = self.worker.subtasks.values()
        return subtask

    def channel(self, sender: OperatorName, receiver: OperatorName = MAP, index: int = 1) -> ChannelId:
        """The channel from subtask 0 of an operator to subtask `index` of another, or the other way round."""
        return next(
            channel.id
            for channel in self.plan.channels
            if channel.sender.chain == sender
            and channel.receiver.chain == receiver
            and index in (channel.sender.index, channel.receiver.index)
        )

    def channel_of(self, number: ChannelId) -> Channel:
        return self.plan.channels[number]

    # --- what the others send ---

    def batch(self, sender: OperatorName, *numbers: int, cost: int | None = None) -> pa.RecordBatch:
        batch = rows(*numbers)
        self.worker.deliver(BatchFrame(GENERATION, self.channel(sender), batch, batch.nbytes if cost is None else cost))
        return batch

    def watermark(self, sender: OperatorName, watermark: int) -> None:
        self.worker.deliver(Watermark(GENERATION, self.channel(sender), watermark))

    def barrier(self, sender: OperatorName, sent: Barrier) -> None:
        self.worker.deliver(BarrierFrame(GENERATION, self.channel(sender), sent))

    def end(self, sender: OperatorName) -> None:
        self.worker.deliver(EndFrame(GENERATION, self.channel(sender)))

    def trigger(self, sent: Barrier) -> None:
        self.worker.deliver(TriggerFrame(GENERATION, sent))

    # --- what happens ---

    def work(self, slices: int = 10_000) -> None:
        """Work until there is nothing left to do, or for so many slices."""
        for _ in range(slices):
            if not self.worker.work():
                return

    def pass_time(self, ms: int) -> None:
        self.clock.advance(ms)
        self.worker.fire_timers()

    def acknowledged(self) -> list[AcknowledgeFrame]:
        self.background.run()
        return self.transport.of(AcknowledgeFrame)

    def manifest(self, checkpoint: int) -> Manifest:
        """What a coordinator would make of the acknowledgements of this worker, if the others had nothing to report."""
        mine = {frame.report.subtask: frame.report for frame in self.acknowledged() if frame.checkpoint == checkpoint}
        assert mine, f"checkpoint {checkpoint} was not acknowledged"
        reports = [mine.get(subtask, SubtaskReport(subtask)) for subtask in self.plan.subtasks]
        return Manifest(CheckpointId(checkpoint), GENERATION, self.plan.shape(), tuple(reports))


def told(frames: Sequence[HeartbeatFrame], metric: Metric) -> list[int]:
    """The sum of a metric over all subtasks, after each of some signs of life."""
    received = ReceivedMetrics()
    found = []
    for frame in frames:
        received.heard(frame.worker, frame.metrics)
        found.append(received.total(metric))
    return found


def to_coordinator(transport: ListTransport, kind: type[F]) -> list[F]:
    return [frame for to, frame in transport.sent if to == COORDINATOR and isinstance(frame, kind)]
