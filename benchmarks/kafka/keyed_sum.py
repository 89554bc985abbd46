"""Kafka → keyed sum → Kafka: `python -m benchmarks.kafka.keyed_sum penstock|flink|spark json|avro ROWS`.

Messages of 100 bytes, 10,000 keys, two partitions, parallelism 2, a checkpoint every second, updates as JSON. Penstock
and Flink write exactly once; Spark's sink for Kafka is at least once, and it does less. The broker shares the machine.
Each contender has a broker with the same records. An independent reader of committed records judges the output.

`net` is until the job has ended: for Penstock from the first record that it reads, for Flink the run time of the job,
for Spark from the start of the query. Penstock and Flink put the updates of a key together for 200 ms (`emit="200 ms"`;
mini-batches of at most 100,000 rows), Spark for each of its micro-batches.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.checked import NotedSource, noted
from benchmarks.kafka.topics import AVRO, READ, WRITE, filled, judge
from benchmarks.session import bench
from penstock import KafkaSink, KafkaSource, Pipeline

_PEERS = Path(__file__).resolve().parents[1] / "peers" / "run"
_PARALLELISM = 2


def ours(servers: str, format: str) -> float:
    schema: Any = AVRO if format == "avro" else "k bigint, v bigint, pad string"
    source = KafkaSource(servers, READ, format=format, schema=schema, stop="latest")  # type: ignore[arg-type]
    with bench(_PARALLELISM) as place:
        sink = KafkaSink(servers, WRITE, key="k", transactional_id="bench", staging=f"{place.notes}/outbox")
        pipeline = Pipeline("kafka")
        stream = pipeline.source(NotedSource(source, place.notes), name="in")
        stream.key_by("k").aggregate(total=("sum", "v"), emit="200 ms").select("k", "total").sink(sink, name="out")
        job = pipeline.start(
            place.spark,
            checkpoints=place.checkpoints,
            parallelism=_PARALLELISM,
            checkpoint_interval=1,
            worker_silence=60,
        )
        job.wait()
        return time.time() - noted(place.notes, "first")[0]


def peer(name: str, servers: str, format: str, rows: int) -> float:
    command = ["bash", str(_PEERS), f"{name}-kafka", servers, READ, WRITE, format, str(rows), str(_PARALLELISM)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stderr[-3000:], file=sys.stderr)
        raise SystemExit(done.returncode)
    found = re.search(r"\bnet=([\d.]+)s", done.stdout)
    assert found is not None, done.stdout
    return float(found[1])


def main() -> None:
    name, format, count = sys.argv[1:]
    rows = int(count)
    with filled(format, rows) as topics:
        net = ours(topics.servers, format) if name == "penstock" else peer(name, topics.servers, format, rows)
        judge(topics, rows)
    rate = rows / net / 1e6
    print(f"{name} kafka-{format} p={_PARALLELISM} rows={rows} rate={rate:.3f}M/s net={net:.3f}s verified", flush=True)


if __name__ == "__main__":
    main()
