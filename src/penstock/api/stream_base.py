"""What all streams stand on: the outputs that they read, and how a call adds an operator behind them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Unpack

from penstock.api.builder import Builder, NodeTraits
from penstock.errors import PipelineError
from penstock.graph.edges import End
from penstock.graph.logical import OperatorFactory
from penstock.operators.formats import check_form
from penstock.protocol.manifest import Partitioning

if TYPE_CHECKING:
    from penstock.api.stream import Stream


class StreamBase:
    """The outputs of operators, and how their records travel on."""

    def __init__(self, pipeline: Builder, ends: tuple[End, ...]) -> None:
        self.pipeline = pipeline
        self._ends = ends

    def __repr__(self) -> str:
        behind = ", ".join(f"'{end.operator}'" for end in self._ends)
        key = f" by {', '.join(self._ends[0].key)}" if self._ends[0].key else ""
        return f"<{type(self).__name__} of pipeline '{self.pipeline.name}' behind {behind}{key}>"

    def _require_own(self, call: str, other: object) -> None:
        if not isinstance(other, StreamBase) or other.pipeline is not self.pipeline:
            raise PipelineError(f"{call} takes streams of the same pipeline, not {other!r}")

    @property
    def _parallelism(self) -> int | None:
        """That of the next operator, where nothing else makes sense."""
        return 1 if all(end.partitioning is Partitioning.GLOBAL for end in self._ends) else None

    @property
    def _event_time(self) -> str | None:
        """The column of the event time, if all that meets here has it in one."""
        columns = {end.event_time for end in self._ends}
        return columns.pop() if len(columns) == 1 else None

    def _timed(self, column: str | None) -> Stream:
        return self._stream(tuple(replace(end, event_time=column) for end in self._ends))

    def _by(self, partitioning: Partitioning) -> Stream:
        return self._stream(tuple(replace(end, partitioning=partitioning, key=()) for end in self._ends))

    def _apply(
        self,
        kind: str,
        function: object,
        format: str,
        made: OperatorFactory,
        name: str | None,
        parallelism: int | None,
        label: str = "",
        **traits: Unpack[NodeTraits],
    ) -> Stream:
        """Add an operator that calls a user's function."""
        if not callable(function):
            raise PipelineError(f"{kind} takes a function, not {function!r}")
        stream = self._node(kind, made, name, parallelism, label, **traits)
        check_form(format, stream._ends[0].operator)
        return stream

    def _node(
        self,
        kind: str,
        made: OperatorFactory,
        name: str | None,
        parallelism: int | None,
        label: str = "",
        **traits: Unpack[NodeTraits],
    ) -> Stream:
        chosen = self.pipeline._add(
            kind, name, self._parallelism if parallelism is None else parallelism, label, operator=made, **traits
        )
        self.pipeline._connect(self._ends, chosen)
        return self._stream((End(chosen, event_time=self._event_time),))

    def _stream(self, ends: tuple[End, ...]) -> Stream:
        from penstock.api.stream import Stream

        return Stream(self.pipeline, ends)
