"""Natural batching: more waits where that makes a record cheaper, and a keyed function has no cliff by its keys."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.columnar.hashing import key_groups
from penstock.graph.logical import Graph, LogicalEdge, Node
from penstock.mailbox.frames import BatchFrame, CreditFrame
from penstock.operators.keyed.functions import KeyedFunction, TwoInputFunction
from penstock.operators.keyed.process import ProcessOperator, TwoInputOperator
from penstock.protocol.credit import SenderCredit
from penstock.protocol.manifest import Partitioning
from penstock.worker.scheduling.batching import HandCost, bytes_wanted
from tests.unit.mailbox.fake_ports import GENERATION, LEFT, MAP, REBALANCE, WRITE, Bench, Numbers, Staging

HAND = HandCost(rows=1_000, calls=100, size=16_000, us=50_000)


class TestHowMuchShouldWait:
    def test_more_where_calls_cost_more_than_records(self) -> None:
        assert bytes_wanted(HAND, call_us=450, row_us=5, batch_us=1_000_000) == 32_000

    def test_less_where_records_cost_more_than_calls(self) -> None:
        assert bytes_wanted(HAND, call_us=1, row_us=50, batch_us=1_000_000) == 8_000

    def test_as_much_as_there_is_where_records_cost_twice_as_much(self) -> None:
        assert bytes_wanted(HAND, call_us=125, row_us=25, batch_us=1_000_000) == 16_000

    def test_not_more_than_the_time_allows(self) -> None:
        assert bytes_wanted(HAND, call_us=450, row_us=5, batch_us=25_000) == 8_000
        assert bytes_wanted(HAND, call_us=450, row_us=5, batch_us=0) == 0


class Costly(KeyedFunction):
    """Costs by the call and by the record, on the clock of its bench."""

    def __init__(self, call_us: int, row_us: float) -> None:
        self.call_us = call_us
        self.row_us = row_us

    def __deepcopy__(self, memo: object) -> Costly:
        return self

    def open(self, context: Any) -> None:
        self.rows = self.calls = 0
        self.longest_us = 0

    def process(self, key: tuple[Any, ...], rows: pa.RecordBatch, context: Any) -> None:
        self.calls += 1
        self.rows += rows.num_rows
        took_us = int(self.call_us + self.row_us * rows.num_rows)
        self.longest_us = max(self.longest_us, took_us)
        self.bench.clock.us += took_us

    bench: Bench


class CostlyByKey(TwoInputFunction):
    """The same for a function of two inputs: it costs by the key and by the record."""

    def __init__(self, call_us: int, row_us: float) -> None:
        self.call_us = call_us
        self.row_us = row_us

    def __deepcopy__(self, memo: object) -> CostlyByKey:
        return self

    def open(self, context: Any) -> None:
        self.rows = self.calls = 0
        self.longest_us = 0

    def process_left(self, batch: pa.RecordBatch, context: Any) -> None:
        keys = sum(1 for _ in context.each_key(batch))
        self.calls += 1
        self.rows += batch.num_rows
        took_us = int(self.call_us * keys + self.row_us * batch.num_rows)
        self.longest_us = max(self.longest_us, took_us)
        self.bench.clock.us += took_us

    process_right = process_left

    bench: Bench


class Loaded:
    """A keyed function behind a source that always has more: it sends whatever it has credit for."""

    BATCH_ROWS = 512

    def __init__(self, keys: int, call_us: int, row_us: float, inputs: int = 1, **settings: int) -> None:
        self.keys = keys
        self.function = Costly(call_us, row_us) if inputs == 1 else CostlyByKey(call_us, row_us)
        made: Any = functools.partial(ProcessOperator, self.function, ("k",), "arrow", None, True, "none")
        if inputs == 2:
            made = functools.partial(TwoInputOperator, self.function, (("k",), ("k",)), None, True, "none")
        nodes = (
            Node(LEFT, source=Numbers({}), parallelism=1),
            Node(MAP, operator=made, parallelism=2),
            Node(WRITE, sink=Staging(), parallelism=1),
        )
        links = LogicalEdge(LEFT, MAP, Partitioning.HASH, 0, ("k",)), LogicalEdge(MAP, WRITE, REBALANCE)
        self.bench = self.function.bench = Bench(Graph("loaded", nodes, links), **{"channel_time_ms": 10, **settings})
        self.bench.started()
        self.credit = SenderCredit(self.bench.settings.credit_limit_bytes)
        self.random = np.random.default_rng(7)
        context = self.bench.subtask.chain.contexts[0]
        some = np.arange(8 * keys + 100)
        groups = key_groups(pa.record_batch({"k": some}), ["k"], context.max_parallelism)
        self.own = some[(groups >= context.key_groups.start) & (groups < context.key_groups.stop)][:keys]

    def run_for(self, us: int) -> float:
        """Rows per ms."""
        began_us, rows = self.bench.clock.us, self.function.rows
        while self.bench.clock.us - began_us < us:
            self.send()
            self.bench.work(1)
            # Frames and the work of others take a little time too.
            self.bench.clock.us += 50
        return 1_000 * (self.function.rows - rows) / (self.bench.clock.us - began_us)

    def send(self) -> None:
        for frame in self.bench.transport.take(CreditFrame):
            self.credit.grant(frame.grant, frame.window)
        while self.credit.can_send(16 * self.BATCH_ROWS):
            keys = self.own[self.random.integers(0, self.keys, self.BATCH_ROWS)]
            batch = pa.record_batch({"k": pa.array(keys), "v": pa.array(keys)})
            cost = self.credit.spend(16 * self.BATCH_ROWS)
            self.bench.worker.deliver(BatchFrame(GENERATION, self.bench.channel(LEFT), batch, cost))


@pytest.mark.parametrize("keys", [1, 30, 100, 1_000])
@pytest.mark.parametrize("call_us", [50, 1_000])
@pytest.mark.parametrize("inputs", [1, 2])
def test_throughput_is_within_a_factor_of_two_of_the_best_batching_however_many_keys(
    keys: int, call_us: int, inputs: int
) -> None:
    loaded = Loaded(keys, call_us, row_us=10, inputs=inputs)
    loaded.run_for(4_000_000)
    made = loaded.run_for(2_000_000)
    rows_best = (1 << 20) // 16
    calls = keys * (1 - (1 - 1 / keys) ** rows_best)
    best = 1_000 * rows_best / (calls * call_us + 10 * rows_best)
    assert made >= best / 2


def test_a_function_of_two_inputs_with_many_keys_does_not_hold_the_mailbox_for_all_of_them() -> None:
    loaded = Loaded(1_000, 1_000, row_us=10, inputs=2)
    loaded.run_for(4_000_000)
    loaded.function.longest_us = 0
    loaded.run_for(2_000_000)
    assert loaded.function.longest_us <= 20_000


def test_with_less_time_for_a_batch_there_is_less_in_hand() -> None:
    waiting = []
    for batch_ms in (50, 1_000):
        loaded = Loaded(1_000, 1_000, row_us=2, batch_time_ms=batch_ms)
        loaded.run_for(5_000_000)
        (channel,) = loaded.bench.subtask.inputs.values()
        waiting.append(channel.credit.credit_limit_bytes)
    assert 4 * waiting[0] < waiting[1]


def test_where_records_are_slow_and_not_the_call_little_waits() -> None:
    loaded = Loaded(4, 1, row_us=50)
    loaded.run_for(12_000_000)
    (channel,) = loaded.bench.subtask.inputs.values()
    assert channel.credit.credit_limit_bytes <= 16_384
    loaded.function.longest_us = 0
    loaded.run_for(1_000_000)
    assert loaded.function.longest_us <= 20_000, "and a checkpoint waits for one call"


def test_a_record_that_comes_alone_is_processed_at_once() -> None:
    loaded = Loaded(4, 1_000, row_us=2)
    loaded.run_for(1_000_000)
    for _ in range(1_000):
        if not loaded.bench.worker.work():
            break
    assert loaded.bench.worker.failure is None
    before = loaded.function.calls
    batch = pa.record_batch({"k": loaded.own[:1], "v": loaded.own[:1]})
    loaded.bench.worker.deliver(BatchFrame(GENERATION, loaded.bench.channel(LEFT), batch, 16))
    loaded.bench.work(1)
    assert loaded.function.calls == before + 1
