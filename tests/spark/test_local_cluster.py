"""Two executor JVMs, as on a real cluster: every topology, every mode, and an executor that is killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark


def executors() -> list[int]:
    """Process ids of the executor JVMs that this process has started."""
    listed = subprocess.run(["ps", "-ww", "-eo", "pid,ppid,args"], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 2) for line in listed.splitlines()[1:]]
    parents = {int(pid): int(parent) for pid, parent, *_ in rows}

    def is_ours(pid: int) -> bool:
        while pid in parents:
            if pid == os.getpid():
                return True
            pid = parents[pid]
        return False

    return [int(pid) for pid, _, args in rows if "CoarseGrainedExecutorBackend" in args and is_ours(int(pid))]


def run(script: str, root: Path) -> None:
    """Run in a process of its own: a second Spark context cannot live beside the session of the other tests."""
    command = [sys.executable, "-c", script, str(root)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    # Spark's own stack traces come in bulk when its executors die; ours would drown in them.
    said = [line for line in done.stderr.splitlines() if not line.startswith(("\tat ", "\t...", "Caused by"))]
    assert done.returncode == 0, "\n".join([done.stdout[-1000:], *said[-60:]])


_MODES = """
import itertools, sys
from pathlib import Path
from tests.simulation.topologies import TOPOLOGIES, Load
from tests.spark.conftest import make_session
from tests.spark.kit import build, completed, inflight_bytes, launch
from tests.spark.test_topologies import CANNOT_OVERTAKE, MODES
from tests.spark.world import FLAWLESS
spark = make_session("local-cluster[2,2,1024]")
load = Load(parallelism=2, count=300, rows=16, idle=0.0, slow_us=800)
# Modes in turn: within one executor `test_topologies` has every topology in each.
for name, mode in zip(sorted(TOPOLOGIES), itertools.cycle(MODES)):
    root = Path(sys.argv[1]) / f"{name}-{mode}"
    world, topology = build(name, root, load)
    # With four workers, two are on each executor, and half of the channels lead from one to the other.
    job = launch(topology, spark, root, mode, workers=4)
    assert job.wait(120), (name, mode)
    assert world.verdict(topology.expected) == FLAWLESS, (name, mode, world.verdict(topology.expected))
    assert completed(job) >= 2, (name, mode)
    assert mode != "unaligned" or name in CANNOT_OVERTAKE or inflight_bytes(job) > 0, (name, mode)
    assert mode != "aligned" or inflight_bytes(job) == 0, (name, mode)
    print(name, mode, job.status.rows_out, flush=True)
spark.stop()
"""

_KILL = """
import os, signal, sys
from pathlib import Path
from tests.simulation.topologies import Load
from tests.spark.conftest import make_session
from tests.spark.kit import build, completed, inflight_bytes, launch, until
from tests.spark.test_local_cluster import executors
from tests.spark.world import FLAWLESS
root = Path(sys.argv[1])
spark = make_session("local-cluster[2,2,1024]")
load = Load(parallelism=2, count=800, rows=16, idle=0.0, slow_us=1500)
world, topology = build("keyed", root, load)
job = launch(topology, spark, root, workers=4, parallelism=4)
until(lambda: completed(job) >= 2, "two checkpoints")
os.kill(executors()[0], signal.SIGKILL)
until(lambda: job.status.restarts >= 1, "the restart")
assert job.wait(180)
assert world.verdict(topology.expected) == FLAWLESS, world.verdict(topology.expected)
assert inflight_bytes(job) > 0
spark.stop()
"""


def test_every_topology_and_every_mode_works_across_executors(tmp_path: Path) -> None:
    run(_MODES, tmp_path)


def test_an_executor_that_is_killed_takes_nothing_with_it(tmp_path: Path) -> None:
    run(_KILL, tmp_path)
