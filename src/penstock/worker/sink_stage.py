"""The tail of a sink's chain: stages output, and keeps its committables until a checkpoint has them for good."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pyarrow as pa

from penstock.connectors.sink import Prepared, Sink, SinkWriter, nothing_prepared
from penstock.ids import CheckpointId, Generation, OperatorName
from penstock.operators.contract import Emit, Operator, OperatorContext
from penstock.protocol.manifest import Committable

_LOOK_AGAIN_MS = 2
"""How long a writer that wants no input is left alone."""


def no_committables() -> list[Committable]:
    """The preparation of a chain that has nothing to hand over: known by its identity, so that no thread runs it."""
    return []


class SinkStage(Operator):
    """One subtask of a sink.

    A checkpoint that does not complete leaves its committables behind: the next one must hand them over again,
    or what they stand for would never be published. They are dropped when a checkpoint that holds them is known
    to be durable.
    """

    def __init__(self, operator: OperatorName, sink: Sink, subtask: int, generation: Generation) -> None:
        self.operator = operator
        self.subtask = subtask
        self._writer: SinkWriter = sink.writer(subtask, generation)
        self._held: list[tuple[CheckpointId, _Once]] = []

    def open(self, context: OperatorContext) -> None:
        self._context = context

    def process(self, batch: pa.RecordBatch, source: int, emit: Emit) -> None:
        self._writer.write(batch)
        if self.wants_input and not self._writer.wants_input:
            self._look_again()

    def _look_again(self) -> None:
        self.wants_input = self._writer.wants_input
        if not self.wants_input:
            self._context.call_at(self._context.now_ms() + _LOOK_AGAIN_MS, self._look_again)

    def prepare(self, checkpoint: CheckpointId, completed: CheckpointId) -> Callable[[], list[Committable]]:
        """Cut the output; the returned function gives, in the background, all that `checkpoint` must hold.

        `no_committables` if that is nothing.
        """
        self._held = [(made, once) for made, once in self._held if made > completed]
        prepared = self._writer.prepare()
        if prepared is not nothing_prepared:
            self._held.append((checkpoint, _Once(prepared)))
        elif not self._held:
            return no_committables
        held = [once for _, once in self._held]
        return lambda: [Committable(self.operator, self.subtask, payload) for once in held for payload in once.result()]

    def close(self) -> None:
        self._writer.close()


class _Once:
    """Runs a preparation until it has succeeded once.

    Locked, because the checkpoint that made it may have been given up while its background work still runs,
    and the next checkpoint asks for the same result.
    """

    __slots__ = ("_lock", "_prepare", "_result")

    def __init__(self, prepare: Prepared) -> None:
        self._prepare = prepare
        self._lock = threading.Lock()
        self._result: list[bytes] | None = None

    def result(self) -> list[bytes]:
        with self._lock:
            if self._result is None:
                self._result = list(self._prepare())
            return self._result
