"""Rows per second of Bytewax through functions of one row: `user_code.py WORKERS ROWS KIND KEYS`.

The work of `benchmarks/user_code.py`. The rows are made before the clock starts, so that it is only the functions that
are measured; a recovery snapshot is taken every second.
"""
import sys, tempfile, time
from datetime import timedelta
from pathlib import Path

import bytewax.operators as op
from bytewax.dataflow import Dataflow
from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from bytewax.recovery import RecoveryConfig, init_db_dir
from bytewax.testing import cluster_main

workers, rows, kind, keys = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
MASK, BATCH, LEAST = (1 << 64) - 1, 1_000, 100.0
first, newest, sums = [], {}, []


def record(number):
    mixed = number * 0x9E3779B97F4A7C15 & MASK
    row = {"k": (mixed >> 40) % keys, "v": float(mixed & 1023), "n": number // 1000}
    return (str(row["k"]), row) if kind in ("keyed", "reduce") else row


made = [record(number) for number in range(rows)]


class Part(StatefulSourcePartition):
    def __init__(self, at, end):
        self.at, self.end = at, end

    def next_batch(self):
        if not first:
            first.append(time.time())
        if self.at >= self.end:
            raise StopIteration
        start, self.at = self.at, min(self.end, self.at + BATCH)
        return made[start:self.at]

    def snapshot(self):
        return self.at


class Records(FixedPartitionedSource):
    def list_parts(self):
        return [str(part) for part in range(workers)]

    def build_part(self, step_id, part, resume):
        begin, end = (rows * number // workers for number in (int(part), int(part) + 1))
        return Part(begin if resume is None else resume, end)


class Out(StatelessSinkPartition):
    def __init__(self):
        # Workers are threads: a sum that all of them add to would miss some.
        self.sums = [0, 0.0]
        sums.append(self.sums)

    def write_batch(self, items):
        if kind in ("keyed", "reduce"):
            newest.update(items)
        else:
            self.sums[0] += len(items)
            self.sums[1] += sum(item["v"] for item in items)


class Sink(DynamicSink):
    def build(self, step_id, worker_index, worker_count):
        return Out()


def total(state, row):
    count, so_far = state or (0, 0.0)
    state = count + 1, so_far + row["v"]
    return state, {"k": row["k"], "rows": state[0], "total": state[1]}


def added(so_far, row):
    state = row if so_far is None else {"k": row["k"], "v": so_far["v"] + row["v"], "n": row["n"]}
    return state, state


def in_halves(row):
    half = row["v"] / 2.0
    yield {"k": row["k"], "v": half}
    yield {"k": row["k"], "v": half}


flow = Dataflow("user_code")
stream = op.input("in", flow, Records())
if kind == "keyed":
    stream = op.stateful_map("totals", stream, total)
elif kind == "reduce":
    stream = op.stateful_map("reduce", stream, added)
elif kind == "map":
    stream = op.map("map", stream, lambda row: {"k": row["k"], "v": row["v"] * 2.0, "n": row["n"]})
elif kind == "filter":
    stream = op.filter("filter", stream, lambda row: row["v"] > LEAST)
else:
    stream = op.flat_map("flat_map", stream, in_halves)
op.output("out", stream, Sink())
with tempfile.TemporaryDirectory() as root:
    init_db_dir(Path(root), workers)
    recovery = RecoveryConfig(root)
    cluster_main(flow, [], 0, worker_count_per_proc=workers, epoch_interval=timedelta(seconds=1), recovery_config=recovery)
    net = time.time() - first[0]
values = [(each[1] if kind in ("keyed", "reduce") else each)["v"] for each in made]
if kind == "keyed":
    found = sum(each["rows"] for each in newest.values()), sum(each["total"] for each in newest.values())
    right = found == (rows, sum(values))
elif kind == "reduce":
    right = sum(each["v"] for each in newest.values()) == sum(values)
else:
    kept = [value for value in values if kind != "filter" or value > LEAST]
    right = [sum(each) for each in zip(*sums)] == [len(kept) * (2 if kind == "flat_map" else 1), sum(kept) * (2 if kind == "map" else 1)]
print(f"bytewax {kind} p={workers} keys={keys} rows={rows} rate={rows / net / 1e6:.4f}M/s net={net:.3f}s {'verified' if right else 'WRONG'}")
sys.exit(not right)
