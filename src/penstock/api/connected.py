"""Two streams that meet in one function: what `Stream.connect` returns."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.api.arguments import AtEnd, instance_of, require_choice, schema_or_none, side_schemas_of
from penstock.api.process_call import time_mode_of
from penstock.columnar.schemas.schema_guard import SchemaLike
from penstock.errors import PipelineError
from penstock.graph.edges import OutputPort
from penstock.graph.logical import Keeps
from penstock.graph.names import label_of
from penstock.operators.keyed.functions import TwoInputFunction
from penstock.operators.keyed.process import CallableTwoInput, TwoInputOperator
from penstock.operators.keyed.timers import TimeMode
from penstock.protocol.manifest import Partitioning

if TYPE_CHECKING:
    from penstock.api.stream import Stream


class ConnectedStreams:
    """Two streams connected to one function."""

    def __init__(self, left: Stream, right: Stream) -> None:
        self.left = left
        self.right = right

    def __repr__(self) -> str:
        return f"<ConnectedStreams of {self.left!r} and {self.right!r}>"

    def process(
        self,
        function: object,
        *,
        schema: SchemaLike | None = None,
        time_mode: TimeMode | None = None,
        at_end: AtEnd = "fire",
        side_outputs: Mapping[str, SchemaLike] | None = None,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """A `TwoInputFunction`, or a function of (batch, side) without state, where side is "left" or "right".

        `time_mode`, `at_end` and `side_outputs` as in `KeyedStream.process`. Without `time_mode`, timers are in event
        time if both streams have it.

        Example:

            >>> class Spent(TwoInputFunction):
            ...     def open(self, context):
            ...         self.total = context.value("total", "amount bigint")
            ...     def process_left(self, batch, context):
            ...         for key, rows in context.each_key(batch):
            ...             (total,) = self.total.get() or (0,)
            ...             self.total.update((total + pc.sum(rows["amount"]).as_py(),))
            ...             yield pa.record_batch({"user": [key[0]], "total": [self.total.get()[0]]})
            ...     process_right = process_left
            >>> refunds = orders.filter(pc.field("amount") < 0)
            >>> collect(orders.key_by("user").connect(refunds.key_by("user")).process(Spent()))[-1]
            {'user': 'ben', 'total': -2}
        """
        instance = instance_of(function)
        label, keeps = label_of(instance), Keeps.KEYS
        if not isinstance(instance, TwoInputFunction):
            if not callable(instance):
                raise PipelineError(
                    f"process takes a TwoInputFunction or a function of (batch, side), not {function!r}"
                )
            instance, keeps = CallableTwoInput(instance), Keeps.NOTHING
        require_choice("process: at_end", at_end, "fire", "drop")
        keys = [stream._ports[0].key for stream in (self.left, self.right)]
        self._check_keys(keys)
        pipeline = self.left.pipeline
        declared = schema_or_none(schema)
        has_event_time = all(stream._event_time is not None for stream in (self.left, self.right))
        mode = time_mode_of(time_mode, has_event_time)
        schemas = side_schemas_of("process", instance, side_outputs)
        made = functools.partial(
            TwoInputOperator, instance, keys, declared, at_end == "fire", mode, side_schemas=schemas
        )
        chosen = pipeline._add(
            "connect",
            name,
            parallelism,
            label,
            keeps=keeps,
            operator=made,
            schema=declared,
            side_outputs=tuple(schemas),
        )
        pipeline._connect(self.left._ports, chosen, 0)
        pipeline._connect(self.right._ports, chosen, 1)
        return self.left._stream((OutputPort(chosen),))

    def _check_keys(self, keys: list[tuple[str, ...]]) -> None:
        left, right = keys
        if left and right and len(left) != len(right):
            raise PipelineError(
                f"connect: the left side is keyed by {', '.join(left)} and the right side by {', '.join(right)}: "
                f"both need a key of the same columns, though not of the same names"
            )
        for key, other in ((left, self.right), (right, self.left)):
            others = [port for port in other._ports if not port.key and port.partitioning is not Partitioning.BROADCAST]
            if key and others:
                raise PipelineError(
                    f"connect: one side is keyed by {', '.join(key)}, and '{others[0].operator}' on the other side is "
                    f"not: call key_by on both, or broadcast() on the other one"
                )
