"""The contract of an operator: what happens to batches inside one subtask.

Everything that the API offers between a source and a sink is an `Operator`. One instance works for one
subtask, always on the mailbox thread. Its state lives in its context, never in its own attributes: what
the context holds is in every checkpoint and comes back after a failure.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

import pyarrow as pa

from penstock.ids import OperatorName
from penstock.metrics.registry import SubtaskMetrics
from penstock.operators.steps import Steps
from penstock.state.keyed import KeyedState

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """What a user says about the batches of a function: `batch_rows` and `batch_time`."""

    rows: int | None = None
    """Rows of one call at most. None: as the engine finds."""
    time_ms: int = 0
    """How long records wait for others, until `rows` are there. 0: not at all."""


def with_limits(made: Callable[[], Operator], limits: BatchLimits) -> Operator:
    """The operator of a factory, with limits on its batches."""
    operator = made()
    operator.limits = limits
    return operator


Key: TypeAlias = tuple[Any, ...]
"""The values of the key columns of a record, as functions see them."""
UserFunction: TypeAlias = Callable[[Any], object]
"""A function of the user's. The type of its argument depends on the format that the user has chosen."""

Row: TypeAlias = dict[str, object]
"""A record as a function of rows sees it."""

Emit: TypeAlias = Callable[[pa.RecordBatch], None]
"""Passes a batch on to the next operator."""


class BatchState(Protocol):
    """State that is a list of batches."""

    def get(self) -> list[pa.RecordBatch]: ...

    def put(self, batches: list[pa.RecordBatch]) -> None: ...


class OperatorContext(Protocol):
    """What an operator may ask of the subtask that it works in."""

    @property
    def operator(self) -> OperatorName: ...

    @property
    def subtask(self) -> int: ...

    @property
    def parallelism(self) -> int: ...

    @property
    def max_parallelism(self) -> int: ...

    @property
    def key_groups(self) -> range:
        """The key groups whose records come to this subtask, if its input is keyed."""
        ...

    @property
    def key(self) -> tuple[str, ...]:
        """The key columns of its input; empty if it is not keyed."""
        ...

    @property
    def keyed(self) -> KeyedState:
        """Keyed state of this subtask: ask it for states in `open`. Raises `PipelineError` if the input has no key."""
        ...

    @property
    def is_new(self) -> bool:
        """Whether the pipeline starts without a checkpoint of this operator. Known after `open`."""
        ...

    @property
    def time_zone(self) -> str:
        """The zone of the session, for functions that see times without a zone."""
        ...

    def list_state(self, name: str) -> BatchState:
        """Batches of which, after a rescale, any subtask may get any, each once."""
        ...

    def broadcast_state(self, name: str) -> BatchState:
        """Batches that are the same in every subtask."""
        ...

    def former_state(self, name: str) -> None:
        """Older versions of this operator had a state of this name: a checkpoint that holds it is fine, and it is
        dropped."""
        ...

    def now_ms(self) -> int:
        """Processing time, in milliseconds since 1970."""
        ...

    def call_at(self, at_ms: int, call: Callable[[], None]) -> None:
        """Call back on the mailbox thread at a processing time. Not part of the state: ask again after a restore."""
        ...

    def submit(self, work: Callable[[], T], done: Callable[[T | Exception], None]) -> None:
        """Run `work` in the background, then `done` with its result or exception on the mailbox thread."""
        ...

    def release_watermark(self, watermark: int) -> None:
        """Pass on a watermark that `on_watermark` has held back, or one of your own if it holds all back."""
        ...

    @property
    def watermark(self) -> int:
        """The event time that this operator has been told, before a failure included; `MIN_WATERMARK` if none.

        The end of the input is no time, and is never returned.
        """
        ...

    def work_off(self, steps: Iterator[None]) -> None:
        """Do work that may be large, in steps between which the mailbox gets control.

        The steps wait while an output is full, and no record is read before the last one.
        """
        ...

    def begin_slice(self) -> Callable[[], bool]:
        """Begin a portion of work that may be large. The function says whether the mailbox should get control now."""
        ...

    def follow_event_time(self, idle_after_ms: int | None, max_drift_ms: int | None = None) -> None:
        """Make the watermarks of this subtask from the times that `saw_event_time` reports. Call it in `open`.

        A split that is more than `max_drift_ms` ahead of the slowest one waits. If several operators of a chain ask
        for it, the last one does.
        """
        ...

    def saw_event_time(self, reached_ms: int) -> None:
        """No record older than this is expected to follow the one at hand on its split, or its channel."""
        ...

    def emit_to(self, output: str, batch: pa.RecordBatch) -> None:
        """Emit records to a side output, which the node of the operator declares: see `Node.side_outputs`.

        At a checkpoint they count as emitted, like those of the main output: call it only where `emit` may be called.
        """
        ...

    @property
    def metrics(self) -> SubtaskMetrics:
        """Counters, histograms and gauges of this subtask. Ask for them in `open`; `Job.metrics` shows them."""
        ...


class Operator(ABC):
    """Base of all operators. Override what you need; `process` at least.

    The trap: the engine cuts batches into slices as it sees fit, so one `process` call says nothing about
    the batches that the operator before has emitted.
    """

    requires_alignment: bool = False
    """Whether its inputs must be aligned at every checkpoint, however long that takes."""

    wants_input: bool = True
    """False while the operator can take no more records for the moment; its input waits in the channels then."""
    is_idle: bool = True
    """False while it works on records in the background: the end of its input waits for them."""
    emits_later: bool = False
    """Whether it emits outside of `process` too: from timers, watermarks or background work."""
    works_in_steps: bool = False
    """Whether `process` returns steps: then it gets as many records at once as there are."""
    limits: BatchLimits = BatchLimits()
    """Limits on its batches. Those of time hold where it is the first one of its chain."""

    def open(self, context: OperatorContext) -> None:
        """Called once, before anything else. Ask the context for state here; it is filled before `process`."""

    @abstractmethod
    def process(self, batch: pa.RecordBatch, input_index: int, emit: Emit) -> Steps | None:
        """Work on records of input number `input_index`; or return the steps in which it is done, see `works_in_steps`.

        A checkpoint may be taken between two steps. Records that are not done by then are given to `process` again,
        with whatever has come meanwhile, in another order but for those of one channel.
        """

    def on_restored(self, emit: Emit) -> Iterator[None] | None:
        """The state is back, or empty at the first start. Called once, before any record.

        Where the work grows with the state, return an iterator, as a generator does: the mailbox gets control between
        its steps. See `OperatorContext.begin_slice`. No record comes and no checkpoint is taken before it has ended.
        """
        return None

    def on_watermark(self, watermark: int, emit: Emit) -> bool | None:
        """Event time has reached `watermark`: no older record is expected. Emit what is complete.

        Return True to hold the watermark back, and `release_watermark` it later, in order. Nobody downstream hears
        of it before.
        """
        return None

    def on_end(self, emit: Emit) -> Iterator[None] | None:
        """All input has ended. Emit what remains and remove it from the state.

        Where the work grows with the state, return an iterator, as `on_restored`. A checkpoint may be taken between two
        of its steps: then the state holds what was not emitted yet, and nothing else (I1).

        The trap: after a restore it is called again, so what was emitted must be gone from the state.
        """
        return None

    def close(self) -> None:
        """Called once, also after a failure."""
