"""The router: hands what a chain emits to the output channels of every edge."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from penstock.ids import ChannelId, SubtaskId
from penstock.plan.physical import PhysicalPlan
from penstock.runtime.output_channel import OutputChannel
from penstock.runtime.partition import HashPartitioner, Partitioner, partitioner_for


class Router:
    """The outputs of one subtask, one partitioner per edge."""

    def __init__(self, subtask: SubtaskId, plan: PhysicalPlan, outputs: Mapping[ChannelId, OutputChannel]) -> None:
        self._routes: list[tuple[Partitioner, dict[int, OutputChannel]]] = []
        self._batch_bytes_max: int | None = None
        senders = plan.chains[subtask.chain].parallelism
        for edge in (edge for edge in plan.edges if edge.upstream == subtask.chain):
            partitioner = partitioner_for(
                edge.partitioning,
                sender=subtask.index,
                senders=senders,
                receivers=plan.chains[edge.downstream].parallelism,
                columns=edge.key,
                max_parallelism=plan.max_parallelism,
            )
            receivers = {c.receiver.index: outputs[c.id] for c in plan.outputs[subtask][edge.id]}
            self._routes.append((partitioner, receivers))

    @property
    def batch_bytes_max(self) -> int | None:
        """What a batch should be at most, so that two of them fit into the windows of those who get it; None for any.

        Rows of a hash exchange are spread over all receivers, elsewhere one of them gets the whole batch.
        """
        if self._batch_bytes_max is None and self._routes:
            self._batch_bytes_max = max(1, min(_window_bytes(*route) for route in self._routes) // 2)
        return self._batch_bytes_max

    def windows_changed(self) -> None:
        self._batch_bytes_max = None

    def emit(self, batch: pa.RecordBatch) -> None:
        """Send a batch to the receivers that the partitioners choose."""
        for partitioner, receivers in self._routes:
            for receiver, rows in partitioner.split(batch):
                receivers[receiver].send_batch(rows)


def _window_bytes(partitioner: Partitioner, receivers: Mapping[int, OutputChannel]) -> int:
    windows = [output.credit.window_bytes for output in receivers.values()]
    return sum(windows) if isinstance(partitioner, HashPartitioner) else min(windows)
