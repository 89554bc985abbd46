"""What an operator works with: its place in the pipeline, and its state.

All state of an operator is registered here, so that a snapshot is complete by construction: nobody has to
remember to add something to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar

import pyarrow as pa

from penstock.errors import IncompatibleCheckpoint, PenstockError, PipelineError
from penstock.ids import OperatorName
from penstock.metrics.metric import Over, gauge
from penstock.metrics.standard import RECORDS_IN, RECORDS_OUT
from penstock.model.event_time import IDLE_WATERMARK, MIN_WATERMARK
from penstock.protocol.manifest import Manifest, StateKind
from penstock.protocol.manifest.compatibility import check_states
from penstock.state.keyed import KeyedState
from penstock.user_code import place, user_code_error
from penstock.worker.services import Services

T = TypeVar("T")

_WATERMARK = gauge(
    "current_input_watermark",
    "ms",
    "event time that the operator has been told, in milliseconds since 1970; least over subtasks",
    Over.LEAST,
)


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of state, ready to be written."""

    operator: OperatorName
    name: str
    kind: StateKind
    batches: list[pa.RecordBatch]
    key_group_first: int = 0
    key_group_end: int = 0
    declared: str = ""


def cause_of(error: Exception) -> BaseException | None:
    """An error of ours is raised as it is, with the cause that it has."""
    return error.__cause__ if isinstance(error, PenstockError) else error


class BatchStateHolder:
    """State that is a list of batches; replaced as a whole, so that a snapshot can keep the old list."""

    __slots__ = ("_batches",)

    def __init__(self) -> None:
        self._batches: list[pa.RecordBatch] = []

    def get(self) -> list[pa.RecordBatch]:
        return list(self._batches)

    def put(self, batches: list[pa.RecordBatch]) -> None:
        self._batches = list(batches)

    @property
    def reference(self) -> list[pa.RecordBatch]:
        """The list itself, which nobody changes any more once it is replaced."""
        return self._batches


class EventTime(Protocol):
    """Makes watermarks from the times that an operator sees."""

    def follow(self, context: Context, idle_after_ms: int | None, max_drift_ms: int | None) -> None: ...

    def saw(self, context: Context, reached_ms: int) -> None: ...


class Context:
    """The context of one operator in one subtask."""

    def __init__(
        self,
        operator: OperatorName,
        services: Services,
        *,
        subtask: int,
        parallelism: int,
        max_parallelism: int,
        key_groups: range,
        key: tuple[str, ...],
        added_at: str = "",
        release_watermark: Callable[[int], None],
        event_time: EventTime,
        work_off: Callable[[Iterator[None]], None],
        emit_to: Callable[[str, pa.RecordBatch], None],
    ) -> None:
        self.operator = operator
        self.subtask = subtask
        self.parallelism = parallelism
        self.max_parallelism = max_parallelism
        self.key_groups = key_groups
        self.key = key
        self.added_at = added_at
        """The line of the user's program that describes the operator."""
        self._services = services
        self._release_watermark = release_watermark
        self._event_time = event_time
        self.work_off = work_off
        self.watermark = MIN_WATERMARK
        self.is_new = True
        self._emit_to = emit_to
        self.metrics = services.metrics.of(operator, subtask)
        self.records_in = self.metrics.counter(RECORDS_IN)
        self.records_out = self.metrics.counter(RECORDS_OUT)
        self.metrics.observe(_WATERMARK, lambda: self.watermark if self.watermark > IDLE_WATERMARK else None)
        self._keyed: KeyedState | None = None
        self._batches: dict[str, tuple[StateKind, BatchStateHolder]] = {}
        self._former: set[str] = set()

    @property
    def time_zone(self) -> str:
        return self._services.settings.time_zone

    def now_ms(self) -> int:
        return self._services.clock.wall_ms()

    def told(self, what: str, error: Exception) -> PenstockError:
        """The error to raise for one in this operator: its message names operator, subtask and the user's line."""
        named, subtask = f"operator '{self.operator}'", f"subtask {self.subtask} of {self.parallelism}"
        if isinstance(error, PenstockError):
            place(error, named, subtask, self.added_at)
            return error
        return user_code_error(f"{named}, {subtask}: {what}", error, self.added_at)

    def call_at(self, at_ms: int, call: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                call()
            except Exception as error:
                raise self.told("on_timer", error) from cause_of(error)

        self._services.timers.after(max(0, at_ms - self.now_ms()), lambda: self._work(guarded))

    def submit(self, work: Callable[[], T], done: Callable[[T | Exception], None]) -> None:
        self._services.background.submit(work, lambda outcome: self._work(lambda: done(outcome)))

    def _work(self, call: Callable[[], None]) -> None:
        """A call of the mailbox that is work of this operator: its log lines and its failure carry the name."""
        activity = self._services.activity
        activity.working = self.operator, self.subtask
        call()
        activity.working = None

    def release_watermark(self, watermark: int) -> None:
        self._release_watermark(watermark)

    def begin_slice(self) -> Callable[[], bool]:
        return self._services.slice_budget.begin_slice()

    def follow_event_time(self, idle_after_ms: int | None, max_drift_ms: int | None = None) -> None:
        self._event_time.follow(self, idle_after_ms, max_drift_ms)

    def saw_event_time(self, reached_ms: int) -> None:
        self._event_time.saw(self, reached_ms)

    def emit_to(self, output: str, batch: pa.RecordBatch) -> None:
        self.records_out.value += batch.num_rows
        self._emit_to(output, batch)

    @property
    def keyed(self) -> KeyedState:
        if not self.key:
            raise PipelineError(
                f"operator '{self.operator}' asks for keyed state, but its input is not keyed: add key_by"
            )
        if self._keyed is None:
            self._keyed = KeyedState(self.key_groups, self.max_parallelism, backend=self._services.state_backend)
        return self._keyed

    @property
    def has_state(self) -> bool:
        return self._keyed is not None or bool(self._batches)

    @property
    def state_bytes(self) -> int:
        """About how many bytes the state of the operator takes now: keyed state as its backend counts it."""
        batches: int = sum(batch.nbytes for _, holder in self._batches.values() for batch in holder.reference)
        return batches + (0 if self._keyed is None else self._keyed.state_bytes)

    def list_state(self, name: str) -> BatchStateHolder:
        return self._holder(name, StateKind.LIST)

    def broadcast_state(self, name: str) -> BatchStateHolder:
        return self._holder(name, StateKind.BROADCAST)

    def former_state(self, name: str) -> None:
        self._former.add(name)

    def _holder(self, name: str, kind: StateKind) -> BatchStateHolder:
        known, holder = self._batches.setdefault(name, (kind, BatchStateHolder()))
        if known is not kind:
            raise PipelineError(f"operator '{self.operator}' uses '{name}' as {known.value} and as {kind.value} state")
        return holder

    def snapshot(self, segment_bytes: int) -> Callable[[], list[Piece]]:
        """Take references now; the returned function makes pieces of them later, in the background."""
        references = [(name, kind, holder.reference) for name, (kind, holder) in self._batches.items()]
        keyed = self._keyed.snapshot() if self._keyed is not None else None
        declared = self._keyed.declared if self._keyed is not None else {}

        def encode() -> list[Piece]:
            pieces = [Piece(self.operator, name, kind, batches) for name, kind, batches in references if batches]
            if keyed is not None:
                pieces += [
                    Piece(
                        self.operator,
                        piece.name,
                        StateKind.KEYED,
                        [piece.batch],
                        piece.first,
                        piece.end,
                        declared[piece.name],
                    )
                    for piece in keyed.encode(segment_bytes)
                ]
            return pieces

        return encode

    def check_fits(self, manifest: Manifest) -> None:
        """Raise `IncompatibleCheckpoint` unless the checkpoint has the states that the operator has asked for."""
        self.is_new = all(shape.name != self.operator for shape in manifest.shape.operators)
        declared = {name: (kind, "") for name, (kind, _) in self._batches.items()}
        if self._keyed is not None:
            declared |= {name: (StateKind.KEYED, text) for name, text in self._keyed.declared.items()}
        removed = self._keyed.removed if self._keyed is not None else frozenset[str]()
        check_states(manifest, self.operator, declared, removed | self._former)

    def restore(self, name: str, kind: StateKind, batches: list[pa.RecordBatch]) -> None:
        """Fill a state that the operator has registered; one that it has not is an error (I8)."""
        if name in self._former:
            return
        if kind is StateKind.KEYED:
            self.keyed.restore(name, batches)
            return
        known = self._batches.get(name)
        if known is None or known[0] is not kind:
            raise IncompatibleCheckpoint(
                f"the checkpoint has {kind.value} state '{name}' of operator '{self.operator}', which does not "
                f"have such a state any more: give it one of that name and kind, or rename the operator"
            )
        known[1].put([*known[1].reference, *batches])
