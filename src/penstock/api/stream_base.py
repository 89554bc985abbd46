"""What all streams stand on: the outputs that they read, and how a call adds an operator behind them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Unpack

from penstock.api.builder import Builder, NodeTraits
from penstock.errors import PipelineError
from penstock.graph.edges import OutputPort
from penstock.graph.logical import OperatorFactory
from penstock.model.changelog import OP, Changelog
from penstock.operators.columns import WithoutGroupOperator
from penstock.operators.formats import check_format
from penstock.protocol.manifest import Partitioning

if TYPE_CHECKING:
    from penstock.api.stream import Stream


class StreamBase:
    """The outputs of operators, and how their records travel on."""

    def __init__(self, pipeline: Builder, ports: tuple[OutputPort, ...]) -> None:
        self.pipeline = pipeline
        self._ports = ports

    def __repr__(self) -> str:
        behind = ", ".join(f"'{port.operator}'" for port in self._ports)
        key = f" by {', '.join(self._ports[0].key)}" if self._ports[0].key else ""
        return f"<{type(self).__name__} of pipeline '{self.pipeline.name}' behind {behind}{key}>"

    def _require_own(self, call: str, other: object) -> None:
        if not isinstance(other, StreamBase) or other.pipeline is not self.pipeline:
            raise PipelineError(f"{call} takes streams of the same pipeline, not {other!r}")

    @property
    def _parallelism(self) -> int | None:
        """That of the next operator, where nothing else makes sense."""
        return 1 if all(port.partitioning is Partitioning.GLOBAL for port in self._ports) else None

    @property
    def _event_time(self) -> str | None:
        """The column of the event time, if all that meets here has it in one."""
        columns = {port.event_time for port in self._ports}
        return columns.pop() if len(columns) == 1 else None

    def _timed(self, column: str | None) -> Stream:
        return self._stream(tuple(replace(port, event_time=column) for port in self._ports))

    @property
    def _changelog(self) -> Changelog | None:
        return self._ports[0].changelog

    def _as_changelog(self, changelog: Changelog | None) -> Stream:
        return self._stream(tuple(replace(port, changelog=changelog) for port in self._ports))

    def _require_appends(self, call: str, cure: str) -> None:
        """Refuse an operator that cannot take back a record."""
        if self._changelog is not None:
            raise PipelineError(
                f"{call}: its input is a changelog, whose column '{OP}' retracts records, which "
                f"{call} does not support: {cure}"
            )

    def _by(self, partitioning: Partitioning) -> Stream:
        return self._stream(tuple(replace(port, partitioning=partitioning, key=()) for port in self._ports))

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
        check_format(format, stream._ports[0].operator)
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
        self.pipeline._connect(self._ports, chosen)
        return self._stream((OutputPort(chosen, event_time=self._event_time, changelog=self._changelog),))

    def _without_group(self) -> Stream:
        """The records without the key of `key_by()`."""
        return self._node("key_by", WithoutGroupOperator, None, 1)

    def _stream(self, ports: tuple[OutputPort, ...]) -> Stream:
        from penstock.api.stream import Stream

        return Stream(self.pipeline, ports)
