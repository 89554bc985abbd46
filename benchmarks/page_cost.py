"""What the page costs: `python -m benchmarks.page_cost PARALLELISM ROUNDS [PHASE]`.

One keyed sum that runs on and on, for PHASE seconds (5) each without a page, with a page that nobody looks at, and with
50 open pages, in turns; every second round the other way round. The open pages are connections of another process that
read what comes. `on` and `open` are the processor time that the driver needs beyond that without a page, in percent of
the processor time of driver and workers together: medians over the rounds. It is processor time, because on a machine
that others share the speed changes from one minute to the next by more than a page costs.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.session import bench
from benchmarks.work import records
from penstock import CallableSink, GeneratorSource, Pipeline
from penstock.dashboard.guard import Guard
from penstock.dashboard.server import Server
from penstock.dashboard.sights.live import LiveSight
from penstock.spark.job import Job

PAGES = 50
_WARM_UP_S = 5.0
_SETTLE_S = 1.0
"""Not measured: pages that connect, and a server that starts."""
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")

_READERS = """
import selectors, socket, sys
host, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
waiting = selectors.DefaultSelector()
for _ in range(count):
    reader = socket.create_connection((host, port))
    reader.sendall(f"GET /api/v1/events HTTP/1.1\\r\\nHost: {host}:{port}\\r\\n\\r\\n".encode())
    waiting.register(reader, selectors.EVENT_READ)
print("open", flush=True)
while True:
    for key, _ in waiting.select():
        if not key.fileobj.recv(1 << 16):
            sys.exit()
"""


def dropped(batch: object) -> None:
    """A sink for a pipeline whose rows nobody counts."""


@contextlib.contextmanager
def open_pages(port: int, count: int) -> Iterator[None]:
    """Connections of another process that listen to the events of a server."""
    command = [sys.executable, "-c", _READERS, "127.0.0.1", str(port), str(count)]
    readers = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert readers.stdout is not None and readers.stdout.readline() == "open\n"
        yield
    finally:
        readers.kill()
        readers.wait()


@contextlib.contextmanager
def page(job: Job, kind: str) -> Iterator[None]:
    """The page as a phase has it: `off`, `on` without anybody who looks, or `open`."""
    if kind == "off":
        yield
        return
    server = Server(LiveSight(job._watched()), Guard(None), port=0).start()
    try:
        with open_pages(server.port, PAGES) if kind == "open" else contextlib.nullcontext():
            yield
    finally:
        server.close()


def worker_seconds(job: Job) -> float:
    """Processor time of all workers."""
    hellos = job._supervisor.observations.workers.values()
    stats = [Path(f"/proc/{hello.process}/stat").read_text() for hello in hellos]
    times = [stat.rpartition(")")[2].split()[11:13] for stat in stats]
    return sum(int(user) + int(system) for user, system in times) / _TICKS_PER_SECOND


def phase(job: Job, kind: str, seconds: float) -> tuple[float, float]:
    """Processor time in a second: of the driver, and of driver and workers together."""
    with page(job, kind):
        job.wait(_SETTLE_S)
        began, driver, workers = time.monotonic(), time.process_time(), worker_seconds(job)
        job.wait(seconds)
        driver, workers = time.process_time() - driver, worker_seconds(job) - workers
        passed = time.monotonic() - began
    return driver / passed, (driver + workers) / passed


def run(parallelism: int, rounds: int, seconds: float = 5.0) -> str:
    kinds = ("off", "on", "open")
    with bench(parallelism) as place:
        made = Pipeline("bench-page")
        stream = made.source(GeneratorSource(records, splits=parallelism), name="source").key_by("k")
        stream.aggregate(total=("sum", "v"), rows="count", name="sum").sink(CallableSink(dropped), name="sink")
        job = made.start(
            place.spark, checkpoints=place.checkpoints, parallelism=parallelism, worker_silence=30, ui_port=None
        )
        while not job.status.rows_out:
            job.wait(0.05)
        job.wait(_WARM_UP_S)
        costs: dict[str, list[float]] = {"on": [], "open": []}
        shares = []
        for number in range(rounds):
            found = {kind: phase(job, kind, seconds) for kind in (kinds[::-1] if number % 2 else kinds)}
            shares.append(100 * found["off"][0] / found["off"][1])
            for kind, each in costs.items():
                each.append(100 * (found[kind][0] - found["off"][0]) / found["off"][1])
        job.stop()
    on, opened = (statistics.median(costs[kind]) for kind in ("on", "open"))
    return (
        f"penstock page p={parallelism} rounds={rounds} on={on:.2f}% open={opened:.2f}% pages={PAGES} "
        f"driver={statistics.median(shares):.2f}%"
    )


def main() -> None:
    numbers = [float(each) for each in sys.argv[1:]]
    print(run(int(numbers[0]), int(numbers[1]), *numbers[2:]), flush=True)


if __name__ == "__main__":
    main()
