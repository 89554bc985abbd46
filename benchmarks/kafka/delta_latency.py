"""Kafka → Delta, from message to row: `python -m benchmarks.kafka.delta_latency penstock|spark RATE SECONDS WARM_UP`.

An open loop: message number i is due at a moment that is fixed before the run, and carries it. A producer in a process
of its own sends what is due every 5 ms; what it sends late counts as latency, of all contenders. Messages are JSON of
100 bytes in two partitions. The contender runs in a process of its own too and writes two columns to a Delta table.

An independent reader looks for the next version of the table every 2 ms: the rows of its files are visible from the
moment at which its entry in the log exists. Files are read when the run is over, and every row must be
there once. Latency is from the due moment to that one, for messages that are due after the warm-up.

Penstock has a checkpoint every 250 ms, or what a fifth argument says in ms: a checkpoint publishes a version. Spark
has no interval: a micro-batch begins when the last one has ended.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from benchmarks.session import session
from benchmarks.work import WrongAnswer
from penstock import DeltaSink, KafkaSource, Pipeline
from tests.components import bound
from tests.kafka.broker import Broker, NoBroker
from tests.kafka.kit import Topics

_PEERS = Path(__file__).resolve().parents[1] / "peers" / "run"
_PARALLELISM = 2
_PARTITIONS = 2
_TOPIC = "input"
_BYTES = 100
_PROBES = 2
"""Messages in front of the first: the contender is up when their rows are visible."""
_UP_S = 900.0
_PATIENCE_S = 600.0
_TICK_S = 0.005
_LOOK_S = 0.002


# --- contenders, each in a process of its own ---


def follow(servers: str, table: str, checkpoints: str, interval_ms: str) -> None:
    """Penstock's part, until it is killed."""
    source = KafkaSource(servers, _TOPIC, schema="n bigint, due bigint, pad string")
    pipeline = Pipeline("kafka to delta")
    pipeline.source(source, name="in").select("n", "due").sink(DeltaSink(table), name="out")
    job = pipeline.start(
        session(_PARALLELISM),
        checkpoints=checkpoints,
        parallelism=_PARALLELISM,
        checkpoint_interval=float(interval_ms) / 1000,
        worker_silence=60,
        ui_port=None,
    )
    job.wait()


def produce(servers: str, rate: str, begins_at: str, count: str) -> None:
    """Send `count` messages, each when it is due."""
    from confluent_kafka import Producer

    rows_per_second, start, total = float(rate), float(begins_at), int(count)
    producer = Producer(
        {
            "bootstrap.servers": servers,
            "linger.ms": 2,
            "queue.buffering.max.messages": 2_000_000,
            "delivery.report.only.error": True,
        }
    )
    sent = 0
    while sent < total:
        due = min(total, int((time.time() - start) * rows_per_second))
        for number in range(sent, due):
            producer.produce(_TOPIC, message(number, start + number / rows_per_second), partition=number % _PARTITIONS)
        sent = max(sent, due)
        producer.poll(0)
        time.sleep(_TICK_S)
    producer.flush(60)


def message(number: int, due_s: float) -> bytes:
    row = b'{"n":%d,"due":%d,"pad":"' % (number, 1e6 * due_s)
    return row + b"x" * (_BYTES - len(row) - 2) + b'"}'


# --- the reader of the table ---


class Watch:
    """Notes when each version of a table was there."""

    def __init__(self, table: Path) -> None:
        self._table = table
        self._is_over = threading.Event()
        self.seen_at: list[float] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_over.wait(_LOOK_S):
            while self._entry(len(self.seen_at)).exists():
                self.seen_at.append(time.time())

    def _entry(self, version: int) -> Path:
        return self._table / "_delta_log" / f"{version:020d}.json"

    def files(self, version: int) -> Sequence[Path]:
        """Those that a version has added. Raises `WrongAnswer` if it has removed some."""
        actions = [json.loads(line) for line in self._entry(version).read_text().splitlines()]
        if any("remove" in action for action in actions):
            raise WrongAnswer(f"version {version} of the table removes files")
        return [self._table / unquote(action["add"]["path"]) for action in actions if "add" in action]

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join()


class Counter:
    """How many rows the versions so far have."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._version = 0
        self._rows = 0

    def rows(self) -> int:
        while self._version < len(self._watch.seen_at):
            self._rows += sum(pq.read_metadata(file).num_rows for file in self._watch.files(self._version))
            self._version += 1
        return self._rows


def latencies_ms(watch: Watch, count: int, counted_from: float) -> npt.NDArray[np.float64]:
    """Of every row that was due since a moment. Raises `WrongAnswer` unless each number is there once."""
    numbers, found = [], []
    for version, seen_at in enumerate(watch.seen_at):
        for file in watch.files(version):
            rows = pq.read_table(file, columns=["n", "due"], partitioning=None)
            due = rows.column("due").to_numpy() / 1e6
            numbers.append(rows.column("n").to_numpy())
            found.append(1e3 * (seen_at - due[due >= counted_from]))
    n = np.sort(np.concatenate(numbers))
    if len(n) != count + _PROBES or (n[_PROBES:] != np.arange(count)).any():
        raise WrongAnswer(f"the table has {len(n)} rows, {len(np.unique(n))} of them distinct, instead of {count}")
    return np.concatenate(found)


# --- the run ---


def command_of(name: str, servers: str, table: Path, checkpoints: Path, interval_ms: float) -> list[str]:
    if name == "penstock":
        module = [sys.executable, "-m", "benchmarks.kafka.delta_latency", "follow"]
        return [*module, servers, str(table), str(checkpoints), str(interval_ms)]
    return ["bash", str(_PEERS), "spark-kafka-delta", servers, _TOPIC, str(table), str(checkpoints), str(_PARALLELISM)]


@contextlib.contextmanager
def contender(command: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with open(log, "wb") as file:
        process = subprocess.Popen(bound(command), stdout=file, stderr=file)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def await_rows(counter: Counter, wanted: int, process: subprocess.Popen[bytes], log: Path, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while counter.rows() < wanted:
        if process.poll() is not None or time.monotonic() > deadline:
            print(log.read_text(errors="replace")[-3000:], file=sys.stderr)
            raise SystemExit(process.returncode or 1)
        time.sleep(0.05)


def run(name: str, rate: float, seconds: float, warm_up_s: float, interval_ms: float = 250.0) -> str:
    count = int(rate * (seconds + warm_up_s))
    with tempfile.TemporaryDirectory(prefix="penstock-kafka-delta-") as directory:
        root = Path(directory)
        broker = Broker(root / "kafka")
        try:
            broker.start()
        except NoBroker as reason:
            print(reason)
            raise SystemExit(3) from reason
        watch = Watch(root / "table")
        try:
            topics = Topics(broker)
            topics.new(_PARTITIONS, _TOPIC)
            for probe in range(_PROBES):
                topics.produce(_TOPIC, [message(-1 - probe, 0)], probe % _PARTITIONS)
            command = command_of(name, topics.servers, root / "table", root / "checkpoints", interval_ms)
            with contender(command, root / "log") as process:
                counter = Counter(watch)
                await_rows(counter, _PROBES, process, root / "log", _UP_S)
                begins_at = time.time() + 1
                module = [sys.executable, "-m", "benchmarks.kafka.delta_latency", "produce"]
                arguments = [topics.servers, repr(rate), repr(begins_at), str(count)]
                subprocess.run(bound([*module, *arguments]), check=True)
                await_rows(counter, _PROBES + count, process, root / "log", _PATIENCE_S)
        finally:
            watch.stop()
            broker.stop()
        found = latencies_ms(watch, count, begins_at + warm_up_s)
        versions = sum(at > begins_at + warm_up_s for at in watch.seen_at)
    parts = zip(("p50", "p99", "p999"), np.percentile(found, (50, 99, 99.9)), strict=True)
    shown = " ".join(f"{part}={value:.0f}ms" for part, value in parts)
    return f"{name} kafka-delta p={_PARALLELISM} rows_s={rate:.0f} {shown} versions={versions} rows={count} verified"


def main() -> None:
    what, *rest = sys.argv[1:]
    match what:
        case "follow":
            follow(*rest)
        case "produce":
            produce(*rest)
        case _:
            print(run(what, *map(float, rest)), flush=True)


if __name__ == "__main__":
    main()
