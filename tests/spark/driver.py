"""A driver in a process of its own, so that it can be killed: `python -m tests.spark.driver ROOT TOPOLOGY KILL_AT`.

KILL_AT names the moment at which it kills itself with SIGKILL: "before manifest", "after manifest",
"after publish" (some output is published, nothing says so yet), or "never".
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from penstock.ids import CheckpointId
from penstock.storage import paths
from penstock.storage.local import LocalStore
from penstock.storage.port import Data
from tests.simulation.topologies import Load
from tests.spark.conftest import make_session
from tests.spark.kit import build, launch
from tests.spark.world import FileCommitter

LOAD = Load(parallelism=2, count=1000, rows=16, idle=0.0, slow_us=1000)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(moment: str) -> None:
    """Let this process die at `moment` of its third checkpoint."""
    create, commit = LocalStore.create, FileCommitter.commit
    seen = 0

    def create_and_die(self: LocalStore, path: str, data: Data) -> bool:
        nonlocal seen
        is_manifest = paths.kind_of(path) is paths.PathKind.MANIFEST
        seen += is_manifest
        if is_manifest and seen == 3 and moment == "before manifest":
            die()
        created = create(self, path, data)
        if is_manifest and seen == 3 and moment == "after manifest":
            die()
        return created

    def commit_and_die(self: FileCommitter, checkpoint: CheckpointId, committables: Sequence[bytes]) -> None:
        commit(self, checkpoint, committables)
        if seen >= 3 and moment == "after publish":
            die()

    LocalStore.create = create_and_die  # type: ignore[method-assign]
    FileCommitter.commit = commit_and_die  # type: ignore[method-assign]


def main(root: Path, name: str, moment: str) -> None:
    arm(moment)
    spark = make_session("local[2]")
    _, topology = build(name, root, LOAD)
    job = launch(topology, spark, root)
    job.wait(500)
    (root / "finished").touch()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
