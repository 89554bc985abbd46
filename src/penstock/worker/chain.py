"""A chain of operators inside one subtask: direct calls, from the first to the output channels."""

from __future__ import annotations

import contextlib
import functools
from collections import deque
from collections.abc import Callable, Iterator
from typing import TypeAlias, TypeVar

import pyarrow as pa

from penstock.errors import PenstockError
from penstock.graph.physical import Chain, PhysicalPlan
from penstock.ids import CheckpointId, OperatorName, SubtaskId
from penstock.metrics.instruments import Counter
from penstock.model.event_time import MAX_WATERMARK
from penstock.operators.contract import BatchLimits, Emit, Operator
from penstock.operators.steps import Steps
from penstock.protocol.manifest import Committable, Manifest, StateKind
from penstock.user_code import place
from penstock.worker.context import Context, EventTime, Piece, cause_of
from penstock.worker.services import Services
from penstock.worker.sink_stage import SinkStage, no_committables
from penstock.worker.sources.source_stage import SourceStage

T = TypeVar("T")
Waiting: TypeAlias = Steps | pa.RecordBatch | int
"""What may wait in front of an operator of a chain: work, records, a watermark."""
_DONE = object()


def _counted(sent: Counter, output: Emit) -> Emit:
    def emit(batch: pa.RecordBatch) -> None:
        sent.value += batch.num_rows
        output(batch)

    return emit


class OperatorChain:
    """The operators of one subtask. `output` takes what the last one emits, `side_output` what goes to side outputs.

    `release_watermark` takes the watermarks that an operator has held back, or has made.
    """

    def __init__(
        self,
        subtask: SubtaskId,
        plan: PhysicalPlan,
        services: Services,
        *,
        output: Emit,
        side_output: Callable[[OperatorName, str, pa.RecordBatch], None],
        release_watermark: Callable[[int], None],
        event_time: EventTime,
        work_off: Callable[[Iterator[None]], None],
    ) -> None:
        self.subtask = subtask
        self.chain: Chain = plan.chains[subtask.chain]
        self.source: SourceStage | None = None
        self.sink: SinkStage | None = None
        self.contexts: list[Context] = []
        self._operators: list[Operator] = []
        self._waiting: list[deque[Waiting]] = []
        """By operator, work that was interrupted and whatever has come to it since, in order."""
        self.suspended = 0
        """Number of items that wait there. No checkpoint may be taken before all are done: they are in no channel."""
        self._pass_on_watermark = release_watermark
        self._activity = services.activity
        for node in self.chain.nodes:
            emit_to = functools.partial(side_output, node.name)
            if node.source is not None:
                position = subtask.index, self.chain.parallelism
                self.source = SourceStage(
                    node.name, node.source, *position, emit_to, services.metrics, added_at=node.place
                )
                continue
            context = Context(
                node.name,
                services,
                subtask=subtask.index,
                parallelism=self.chain.parallelism,
                max_parallelism=plan.max_parallelism,
                key_groups=plan.key_groups(subtask),
                key=self.chain.key if node.name == self.chain.name else (),
                added_at=node.place,
                release_watermark=functools.partial(self._release, len(self.contexts)),
                event_time=event_time,
                work_off=functools.partial(self._work_off, len(self.contexts), work_off),
                emit_to=emit_to,
            )
            self.contexts.append(context)
        try:
            self._make_operators(services)
            self._waiting = [deque() for _ in self._operators]
            self._emits = self._link(output)
            for operator, context in zip(self._operators, self.contexts, strict=True):
                self._guarded(context, "open", operator.open, context)
        except Exception:
            # What was made so far holds files and connections, and nobody else knows of it.
            with contextlib.suppress(Exception):
                self.close()
            raise

    def _make_operators(self, services: Services) -> None:
        nodes = [node for node in self.chain.nodes if node.source is None]
        for node, context in zip(nodes, self.contexts, strict=True):
            if node.sink is not None:
                stage = functools.partial(SinkStage, node.name, node.sink, self.subtask.index, services.generation)
                self.sink = self._guarded(context, "writer", stage)
                self._operators.append(self.sink)
            else:
                assert node.operator is not None
                self._operators.append(self._guarded(context, "making it", node.operator))

    def _link(self, output: Emit) -> list[Emit]:
        """For each operator, what takes its output: the next operator, or the output channels."""
        emits: list[Emit] = [output if not self.contexts else _counted(self.contexts[-1].records_out, output)]
        for position in range(len(self._operators) - 1, 0, -1):
            emits.append(self._into(position, self.contexts[position - 1].records_out, emits[-1]))
        emits.reverse()
        return emits

    def _into(self, position: int, sent: Counter, emit: Emit) -> Emit:
        operator, context, waiting = self._operators[position], self.contexts[position], self._waiting[position]
        activity, working = self._activity, (context.operator, context.subtask)
        came = context.records_in

        def call(batch: pa.RecordBatch) -> None:
            rows = batch.num_rows
            if rows:
                sent.value += rows
                came.value += rows
                if waiting:
                    self._wait(position, batch)
                    return
                before, activity.working = activity.working, working
                try:
                    steps = operator.process(batch, 0, emit)
                    if steps is not None:
                        self._begin(position, steps)
                except Exception as error:
                    raise context.told("process", error) from cause_of(error)
                activity.working = before

        return call

    # --- work that was interrupted ---

    def _wait(self, position: int, item: Waiting) -> None:
        self._waiting[position].append(item)
        self.suspended += 1

    def _begin(self, position: int, steps: Steps) -> None:
        """Take the first step. Records have no channel to go back to here: the rest waits in the chain."""
        # The batch has the size of a slice already.
        steps.call_rows_max = self._operators[position].limits.rows or max(1, len(steps.order))
        if steps.step():
            self._waiting[position].appendleft(steps)
            self.suspended += 1

    def suspend(self, steps: Steps) -> None:
        """Begin with records of a source, or others that cannot go back to a channel. See `go_on`."""
        before = steps.rows_done
        self._guarded(self.contexts[0], "process", self._begin, 0, steps)
        self.contexts[0].records_in.value += steps.rows_done - before

    @property
    def is_mid_call(self) -> bool:
        """Whether the next step goes on with a generator."""
        nearest = next((waiting[0] for waiting in reversed(self._waiting) if waiting), None)
        return isinstance(nearest, Steps) and nearest.is_mid_call

    def go_on(self) -> None:
        """Take one step of the work that was interrupted: nearest to the end of the chain first, so that no more than
        the output of one step waits anywhere."""
        position = max(number for number, waiting in enumerate(self._waiting) if waiting)
        waiting = self._waiting[position]
        item = waiting[0]
        if isinstance(item, Steps):
            has_more = (
                self.step(item) if position == 0 else self._guarded(self.contexts[position], "process", item.step)
            )
            if has_more:
                return
        waiting.popleft()
        self.suspended -= 1
        if isinstance(item, pa.RecordBatch):
            self._guarded(self.contexts[position], "process", self._process_waiting, position, item)
        elif isinstance(item, int):
            self._release(position - 1, item)

    def _process_waiting(self, position: int, batch: pa.RecordBatch) -> None:
        steps = self._operators[position].process(batch, 0, self._emits[position])
        if steps is not None:
            self._begin(position, steps)

    def _guarded(self, context: Context, what: str, call: Callable[..., T], *arguments: object) -> T:
        activity = self._activity
        before, activity.working = activity.working, (context.operator, context.subtask)
        try:
            result = call(*arguments)
        except Exception as error:
            raise context.told(what, error) from cause_of(error)
        activity.working = before
        return result

    def process(self, batch: pa.RecordBatch, source: int) -> Steps | None:
        """Work on records that came in on input number `source`; or return the steps in which `step` does it."""
        if not self._operators:
            self._hand_over(batch)
            return None
        self._activity.working = self.contexts[0].operator, self.subtask.index
        try:
            steps = self._operators[0].process(batch, source, self._emits[0])
        except Exception as error:
            raise self.contexts[0].told("process", error) from cause_of(error)
        if steps is None:
            self.contexts[0].records_in.value += batch.num_rows
        return steps

    def _hand_over(self, batch: pa.RecordBatch) -> None:
        """Records of a source that nothing in this subtask works on."""
        try:
            self._emits[0](batch)
        except PenstockError as error:
            if self.source is not None:
                place(error, self.source.named, self.source.subtask, self.source.added_at)
            raise

    def step(self, steps: Steps) -> bool:
        """Go on with records that `process` has begun with; False if that was the last step."""
        before = steps.rows_done
        has_more = self._guarded(self.contexts[0], "process", steps.step)
        # Only those that are done: the others may go back to their channels, and be counted when they come again.
        self.contexts[0].records_in.value += steps.rows_done - before
        return has_more

    @property
    def works_in_steps(self) -> bool:
        """Whether the first operator does."""
        return self.source is None and bool(self._operators) and self._operators[0].works_in_steps

    @property
    def limits(self) -> BatchLimits:
        """Those of the first operator, whose records wait in channels."""
        return self._operators[0].limits if self._operators and self.source is None else BatchLimits()

    @property
    def wants_input(self) -> bool:
        return all(operator.wants_input for operator in self._operators)

    @property
    def is_idle(self) -> bool:
        return not self.suspended and all(operator.is_idle for operator in self._operators)

    def on_restored(self) -> Iterator[None]:
        """Tell the operators that their state is back, in steps."""
        for operator, context, emit in zip(self._operators, self.contexts, self._emits, strict=False):
            yield from self._stepwise(context, "on_restored", operator.on_restored, emit)
            yield from self._until_whole()

    def _until_whole(self) -> Iterator[None]:
        while self.suspended:
            yield

    def _stepwise(
        self, context: Context, what: str, call: Callable[[Emit], Iterator[None] | None], emit: Emit
    ) -> Iterator[None]:
        steps = self._guarded(context, what, call, emit)
        if steps is not None:
            yield from self._steps(context, what, steps)

    def _steps(self, context: Context, what: str, steps: Iterator[None]) -> Iterator[None]:
        while self._guarded(context, what, next, steps, _DONE) is not _DONE:
            yield

    def _work_off(self, position: int, work_off: Callable[[Iterator[None]], None], steps: Iterator[None]) -> None:
        work_off(self._steps(self.contexts[position], "on_timer", steps))

    def on_watermark(self, watermark: int) -> bool:
        """True if an operator holds the watermark back."""
        return self._tell(0, watermark)

    def _tell(self, first: int, watermark: int) -> bool:
        """Tell the operators from number `first` on, until one of them holds the watermark back."""
        told = zip(self._operators[first:], self.contexts[first:], self._emits[first:], strict=False)
        for position, (operator, context, emit) in enumerate(told, first):
            if self._waiting[position]:
                # Behind the records that came before it.
                self._wait(position, watermark)
                return True
            if watermark < MAX_WATERMARK:
                context.watermark = watermark
            if self._guarded(context, "on_watermark", operator.on_watermark, watermark, emit):
                return True
        return False

    def _release(self, position: int, watermark: int) -> None:
        """The operator at `position` lets a watermark go: those behind it first, then everybody downstream."""
        if not self._tell(position + 1, watermark):
            self._pass_on_watermark(watermark)

    def restore_watermark(self, watermark: int) -> None:
        """The operators had been told this one before the checkpoint."""
        for context in self.contexts:
            context.watermark = watermark

    def release(self, context: Context, watermark: int) -> None:
        """The operator of `context` lets a watermark go."""
        self._release(self.contexts.index(context), watermark)

    def emits_later_before(self, context: Context) -> bool:
        """Whether records may come to the operator of `context` that no channel and no split has just brought."""
        return any(operator.emits_later for operator in self._operators[: self.contexts.index(context)])

    def on_end(self) -> Iterator[None]:
        """Let the operators emit what remains, in steps: each one only when those in front of it are done."""
        yield from self._until_whole()
        for operator, context, emit in zip(self._operators, self.contexts, self._emits, strict=False):
            yield from self._stepwise(context, "on_end", operator.on_end, emit)
            yield from self._until_whole()

    @property
    def has_state(self) -> bool:
        return any(context.has_state for context in self.contexts)

    @property
    def state_bytes(self) -> int:
        """About how many bytes the state of all operators takes now. Asked now and then, and not for every record."""
        return sum(context.state_bytes for context in self.contexts)

    def snapshot(self, segment_bytes: int) -> Callable[[], list[Piece]]:
        """References to all state of all operators; the returned function encodes them in the background."""
        encoders = [context.snapshot(segment_bytes) for context in self.contexts]
        return lambda: [piece for encode in encoders for piece in encode()]

    def prepare(self, checkpoint: CheckpointId, completed: CheckpointId) -> Callable[[], list[Committable]]:
        """Cut a sink's output; and a source hears which checkpoint it gives its positions for, and which is durable.

        `no_committables` if the sink has nothing to hand over.
        """
        if self.source is not None:
            self.source.prepare(checkpoint, completed)
        if self.sink is None:
            return no_committables
        return self._guarded(self.contexts[-1], "prepare", self.sink.prepare, checkpoint, completed)

    def on_checkpoint_complete(self, checkpoint: CheckpointId) -> None:
        """A checkpoint is complete. A sink need not know before the next barrier, which says it too."""
        if self.source is not None:
            self.source.on_checkpoint_complete(checkpoint)

    def check_fits(self, manifest: Manifest) -> None:
        """Raise `IncompatibleCheckpoint` unless each operator asks for the states that the checkpoint has of it."""
        for context in self.contexts:
            context.check_fits(manifest)

    def restore(self, operator: str, name: str, kind: StateKind, batches: list[pa.RecordBatch]) -> None:
        """Put a piece of state in place. Runs in the background: nobody else touches the state before all is back."""
        for context in self.contexts:
            if context.operator == operator:
                context.restore(name, kind, batches)

    def close(self) -> None:
        """Close everything, even if closing one of them fails."""
        errors: list[Exception] = []
        for closing in (self.source, *self._operators):
            if closing is not None:
                try:
                    closing.close()
                except Exception as error:
                    errors.append(error)
        if errors:
            raise errors[0]
