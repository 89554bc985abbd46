"""Two streams that meet in one function: what `Stream.connect` returns."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from penstock.api.arguments import AtEnd, instance_of, require_choice, schema_or_none
from penstock.api.process_call import time_mode_of
from penstock.columnar.schema_guard import SchemaLike
from penstock.errors import PipelineError
from penstock.graph.edges import End
from penstock.graph.names import Keeps, label_of
from penstock.operators.functions import TwoInputFunction
from penstock.operators.keyed import CallableTwoInput, TwoInputOperator
from penstock.operators.timers import TimeMode
from penstock.protocol.manifest import Partitioning

if TYPE_CHECKING:
    from penstock.api.stream import Stream


class ConnectedStreams:
    """Two streams that are about to meet in one function."""

    def __init__(self, left: Stream, right: Stream) -> None:
        self.left = left
        self.right = right

    def process(
        self,
        function: Any,
        *,
        schema: SchemaLike | None = None,
        time_mode: TimeMode | None = None,
        at_end: AtEnd = "fire",
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """A `TwoInputFunction`, or a function of (batch, side) without state, where side is "left" or "right".

        `time_mode` and `at_end` as in `KeyedStream.process`. Without `time_mode`, timers are in event time if both
        streams have it.

        Example:

            limits = pipeline.source(ListSource([{"limit": 15}]), name="limits").broadcast()
            both = orders.rebalance().connect(limits)
            both.process(lambda batch, side: batch if side == "left" else None).sink(output)
            run(pipeline)
            assert len(output.rows()) == 3
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
        keys = [stream._ends[0].key for stream in (self.left, self.right)]
        self._check_keys(keys)
        pipeline = self.left.pipeline
        declared = schema_or_none(schema)
        has_event_time = all(stream._event_time is not None for stream in (self.left, self.right))
        mode = time_mode_of(time_mode, has_event_time)
        made = functools.partial(TwoInputOperator, instance, keys, declared, at_end == "fire", mode)
        chosen = pipeline._add("connect", name, parallelism, keeps, label, operator=made, schema=declared)
        pipeline._connect(self.left._ends, chosen, 0)
        pipeline._connect(self.right._ends, chosen, 1)
        return self.left._stream_of(End(chosen))

    def _check_keys(self, keys: list[tuple[str, ...]]) -> None:
        left, right = keys
        if left and right and len(left) != len(right):
            raise PipelineError(
                f"connect: the left side is keyed by {', '.join(left)} and the right side by {', '.join(right)}: "
                f"both need a key of the same columns, though not of the same names"
            )
        for key, other in ((left, self.right), (right, self.left)):
            others = [end for end in other._ends if not end.key and end.partitioning is not Partitioning.BROADCAST]
            if key and others:
                raise PipelineError(
                    f"connect: one side is keyed by {', '.join(key)}, and '{others[0].operator}' on the other side is "
                    f"not: call key_by on both, or broadcast() on the other one"
                )
