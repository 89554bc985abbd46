"""What checkpoints cost a batch while there is none: `python -m benchmarks.barrier_check [BATCH_ROWS]`.

For each batch the receiving subtask asks whether its channel is blocked, whether what arrives is being captured, and
whether a barrier has come to the front of the queue. This asks the same, in the engine's own code, with no barrier
pending, and divides by the rows of a batch. `batch` is for a whole batch, `row` for each row of it.
"""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace
from typing import Any, cast

from benchmarks.state_snapshot import EachInTurn
from penstock import GeneratorSource, Pipeline
from penstock.exchange.input_channel import InputChannel
from penstock.exchange.items import BatchItem
from penstock.graph.physical import plan
from penstock.testing import CollectSink
from penstock.worker.subtask import Subtask


def channel_with_two_batches(rows: int) -> InputChannel:
    made = Pipeline("bench-barrier-check")
    made.source(GeneratorSource(EachInTurn(10), rows=10), name="source").rebalance().sink(CollectSink(), name="sink")
    channel = InputChannel(next(iter(plan(made.graph(), 1).channels)), 1 << 20)
    batch = EachInTurn(10)(0, rows)
    for _ in range(2):
        channel.receive(BatchItem(batch, batch.nbytes, batch.nbytes))
    return channel


def run(rows: int, repeats: int = 200_000) -> str:
    channel, nobody = channel_with_two_batches(rows), cast(Any, SimpleNamespace(is_mid_record=False))
    clock = time.perf_counter_ns
    began = clock()
    for _ in range(repeats):
        pass
    empty = clock() - began
    began = clock()
    for _ in range(repeats):
        if channel.is_readable and channel.capturing is None:
            Subtask._handle_barriers(nobody, channel)
    took = (clock() - began - empty) / repeats
    right = len(channel.queue) == 2
    return f"penstock barrier_check batch_rows={rows} batch={took:.0f}ns row={took / rows:.4f}ns " + (
        "verified" if right else "WRONG: the queue has changed"
    )


def main() -> None:
    print(run(int(sys.argv[1]) if len(sys.argv) > 1 else 1024), flush=True)


if __name__ == "__main__":
    main()
