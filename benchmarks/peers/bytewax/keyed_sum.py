"""Rows per second of Bytewax on the KeyedSum work: a running sum by key, with a recovery snapshot every second.

Workers are threads, as Bytewax has them in one process. `net` is from the first record that is made to the end.
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

workers, rows = int(sys.argv[1]), int(sys.argv[2])
KEYS, MASK, BATCH = 10_000, (1 << 64) - 1, 1_000
NAMES = [str(key) for key in range(KEYS)]
first, newest = [], {}


def record(number):
    mixed = number * 0x9E3779B97F4A7C15 & MASK
    return NAMES[(mixed >> 40) % KEYS], float(mixed & 1023)


class Part(StatefulSourcePartition):
    def __init__(self, at, end):
        self.at, self.end = at, end

    def next_batch(self):
        if not first:
            first.append(time.time())
        if self.at >= self.end:
            raise StopIteration
        start, self.at = self.at, min(self.end, self.at + BATCH)
        return [record(number) for number in range(start, self.at)]

    def snapshot(self):
        return self.at


class Numbers(FixedPartitionedSource):
    def list_parts(self):
        return [str(part) for part in range(workers)]

    def build_part(self, step_id, part, resume):
        begin, end = (rows * number // workers for number in (int(part), int(part) + 1))
        return Part(begin if resume is None else resume, end)


class Out(StatelessSinkPartition):
    def write_batch(self, items):
        newest.update(items)


class Newest(DynamicSink):
    def build(self, step_id, worker_index, worker_count):
        return Out()


flow = Dataflow("keyed_sum")
stream = op.input("in", flow, Numbers())
stream = op.stateful_map("sum", stream, lambda total, value: ((total or 0.0) + value,) * 2)
op.output("out", stream, Newest())
with tempfile.TemporaryDirectory() as root:
    init_db_dir(Path(root), workers)
    recovery = RecoveryConfig(root)
    cluster_main(flow, [], 0, worker_count_per_proc=workers, epoch_interval=timedelta(seconds=1), recovery_config=recovery)
    net = time.time() - first[0]
right = sum(newest.values()) == sum(record(number)[1] for number in range(rows))
print(f"bytewax sum p={workers} rows={rows} rate={rows / net / 1e6:.3f}M/s net={net:.3f}s {'verified' if right else 'WRONG'}")
sys.exit(not right)
