"""The outside world of a pipeline on Spark: a directory that all its processes share.

Plays the same part as the simulator's world, so that the same topologies run here: planned failures are files that
somebody removes, violations are lines in a file, and output is published by renaming.
"""

from __future__ import annotations

import json
import os
import random
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from penstock.connectors.sink import Committer, Prepared, Sink, SinkWriter, nothing_prepared
from penstock.ids import CheckpointId, Generation
from tests.simulation.records import Numbers, numbers_of
from tests.simulation.world import InjectedFailure


class FileWorld:
    """A world in a directory. Pickled to the workers by its path."""

    def __init__(self, root: str | os.PathLike[str], slow_us: int = 0) -> None:
        self.root = Path(root)
        self.slow_us = slow_us
        self.rng = random.Random()
        self.is_pumping = True
        for name in ("staged", "published", "failures"):
            (self.root / name).mkdir(parents=True, exist_ok=True)

    def spend(self, us: int) -> None:
        if us:
            time.sleep(us / 1e6)

    def plan_failure(self, place: str) -> None:
        (self.root / "failures" / f"{place}.{uuid.uuid4().hex}").touch()

    def fail_here(self, place: str) -> None:
        for planned in (self.root / "failures").glob(f"{place}.*"):
            if planned.name.rsplit(".", 1)[0] != place:
                continue
            try:
                planned.unlink()
            except FileNotFoundError:
                continue
            raise InjectedFailure(f"planned failure in {place}")

    def violation(self, text: str) -> None:
        with (self.root / "violations").open("a") as file:
            file.write(text + "\n")

    def sink(self, name: str) -> Sink:
        return FileSink(self, name)

    # --- judging ---

    def published(self) -> Numbers:
        parts = [np.load(path) for path in (self.root / "published").iterdir()]
        return np.concatenate([np.empty(0, np.int64), *parts])

    def verdict(self, expected: Numbers) -> dict[str, object]:
        """Lost and duplicated records, and whatever the operators complained of; all empty if all is well."""
        found, wanted = Counter(self.published().tolist()), Counter(expected.tolist())
        complaints = self.root / "violations"
        return {
            "lost": (wanted - found).total(),
            "duplicated": (found - wanted).total(),
            "violations": complaints.read_text().splitlines()[:5] if complaints.exists() else [],
        }


FLAWLESS: dict[str, object] = {"lost": 0, "duplicated": 0, "violations": []}


class FileSink(Sink):
    """Publishes arrays of numbers by renaming files."""

    def __init__(self, world: FileWorld, name: str) -> None:
        self.world = world
        self.name = name

    def writer(self, subtask: int, generation: Generation) -> SinkWriter:
        return FileWriter(self.world, f"{self.name}-g{generation}-{subtask}")

    def committer(self) -> Committer:
        return FileCommitter(self.world)


class FileWriter(SinkWriter):
    def __init__(self, world: FileWorld, prefix: str) -> None:
        self.world = world
        self.prefix = prefix
        self.part = 0
        self.held: list[Numbers] = []

    def write(self, batch: object) -> None:
        self.world.spend(self.world.slow_us * batch.num_rows)  # type: ignore[attr-defined]
        self.held.append(numbers_of(batch))

    def prepare(self) -> Prepared:
        self.world.fail_here("snapshot")
        if not self.held:
            return nothing_prepared
        held, self.held = self.held, []
        self.part += 1
        name = f"{self.prefix}-{self.part}.npy"

        def stage() -> list[bytes]:
            np.save(self.world.root / "staged" / name, np.concatenate(held))
            return [json.dumps(name).encode()]

        return stage

    def close(self) -> None:
        self.world.fail_here("close")


class FileCommitter(Committer):
    def __init__(self, world: FileWorld) -> None:
        self.world = world

    def commit(self, checkpoint: CheckpointId, committables: Sequence[bytes]) -> None:
        for payload in committables:
            name = json.loads(payload)
            final = self.world.root / "published" / name
            if not final.exists():
                (self.world.root / "staged" / name).rename(final)
