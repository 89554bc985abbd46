"""The router: hands what a chain emits to the output channels of every edge.

Only the columns travel that the receiver reads: what nobody looks at need not be copied, sent, nor captured. And of
dictionaries and the like only the values that the records of a piece refer to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from penstock.columnar.gather import may_share, owned
from penstock.exchange.output_channel import OutputChannel
from penstock.exchange.partitioners import HashPartitioner, Partitioner, partitioner_for
from penstock.graph.physical import PhysicalPlan
from penstock.ids import MAIN_OUTPUT, ChannelId, OperatorName, SubtaskId


class Router:
    """The outputs of one subtask, one partitioner per edge."""

    def __init__(self, subtask: SubtaskId, plan: PhysicalPlan, outputs: Mapping[ChannelId, OutputChannel]) -> None:
        self._routes: list[_Route] = []
        """Those of the main output, which is that of the last operator."""
        self._side_routes: dict[tuple[OperatorName, str], list[_Route]] = {}
        self._next_marker = subtask.index
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
            routes = self._routes
            if edge.output != MAIN_OUTPUT:
                routes = self._side_routes.setdefault((edge.id.upstream, edge.output), [])
            routes.append(_Route(partitioner, receivers, edge.columns, edge.shows_schema))

    @property
    def batch_bytes_max(self) -> int | None:
        """What a batch should be at most, so that two of them fit into the windows of those who get it; None for any.

        Rows of a hash exchange are spread over all receivers, elsewhere one of them gets the whole batch.
        """
        if self._batch_bytes_max is None and self._routes:
            self._batch_bytes_max = max(1, min(route.credit_limit_bytes for route in self._routes) // 2)
        return self._batch_bytes_max

    def credit_limits_changed(self) -> None:
        self._batch_bytes_max = None

    def emit(self, batch: pa.RecordBatch) -> None:
        """Send a batch of the main output to the receivers that the partitioners choose."""
        for route in self._routes:
            route.send(batch)

    def emit_to(self, operator: OperatorName, output: str, batch: pa.RecordBatch) -> None:
        """Send a batch of a side output, which any operator of the chain may have."""
        if batch.num_rows:
            for route in self._side_routes[operator, output]:
                route.send(batch)

    def send_marker(self, source: str, emitted_ms: int) -> None:
        """Send a latency marker along every edge, on one channel each: sent on all, markers would multiply."""
        self._next_marker += 1
        for routes in (self._routes, *self._side_routes.values()):
            for route in routes:
                route.send_marker(self._next_marker, source, emitted_ms)


class _Route:
    """The channels of one edge."""

    def __init__(
        self,
        partitioner: Partitioner,
        receivers: Mapping[int, OutputChannel],
        columns: Sequence[str] | None,
        shows_schema: bool,
    ) -> None:
        self._partitioner = partitioner
        self._receivers = receivers
        self._columns = columns
        self._shows_schema = shows_schema
        self._schema: pa.Schema | None = None
        self._positions: list[int] | None = None
        """Where the columns that travel are in a batch of that schema; None if all of them do."""
        self._sent: pa.Schema | None = None
        self._may_share = False

    @property
    def credit_limit_bytes(self) -> int:
        windows = [output.credit.credit_limit_bytes for output in self._receivers.values()]
        return sum(windows) if isinstance(self._partitioner, HashPartitioner) else min(windows)

    def send(self, batch: pa.RecordBatch) -> None:
        if self._columns is not None:
            batch = self._narrowed(batch, self._columns)
        schema = batch.schema
        if schema is not self._sent and schema != self._sent:
            self._sent, self._may_share = schema, may_share(schema)
        if self._shows_schema:
            self._show_schema(batch)
        pieces = self._partitioner.split(batch)
        if self._may_share:
            # A broadcast hands out one batch many times.
            cut_loose = {id(rows): owned(rows) for _, rows in pieces}
            pieces = [(receiver, cut_loose[id(rows)]) for receiver, rows in pieces]
        for receiver, rows in pieces:
            self._receivers[receiver].send_batch(rows)

    def send_marker(self, number: int, source: str, emitted_ms: int) -> None:
        outputs = tuple(self._receivers.values())
        outputs[number % len(outputs)].send_marker(source, emitted_ms)

    def _show_schema(self, batch: pa.RecordBatch) -> None:
        """A batch without rows to everybody, once: some may never get a row. Lost with a failure, it is shown again."""
        self._shows_schema = False
        for receiver in self._receivers.values():
            receiver.send_batch(batch.slice(0, 0))

    def _narrowed(self, batch: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
        schema = batch.schema
        if schema is not self._schema and schema != self._schema:
            self._schema, self._positions = schema, _positions(schema, columns)
        return batch if self._positions is None else batch.select(self._positions)


def _positions(schema: pa.Schema, columns: Sequence[str]) -> list[int] | None:
    """None also if a column is missing, or there twice: then the receiver gets all, and says what is wrong."""
    found = sorted(schema.get_field_index(name) for name in columns)
    return None if found[0] < 0 or len(found) == len(schema) else found
