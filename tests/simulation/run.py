"""Running seeds: one, with its story, or many, on all cores."""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import os
import time
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from penstock.protocol.manifest import SnapshotKind
from tests.simulation import checkers
from tests.simulation.cluster import Cluster
from tests.simulation.scenario import draw


@dataclass(slots=True)
class Result:
    """What one run came to."""

    seed: int
    scenario: str
    completed: int = 0
    unaligned: int = 0
    inflight_bytes: int = 0
    crashes: int = 0
    restores: int = 0
    restores_inflight: int = 0
    overlaps: int = 0
    refusals: int = 0
    lives: int = 1
    violations: list[str] = field(default_factory=list)
    story: list[str] = field(default_factory=list)


def run_seed(seed: int, only: str | None = None, is_verbose: bool = False) -> Result:
    """Simulate one seed. Whatever goes wrong is a violation of the result, never an exception."""
    scenario = draw(seed, only)
    result = Result(seed, str(scenario))
    cluster = Cluster(scenario, is_verbose)
    try:
        judges = checkers.attach(cluster)
        cluster.run()
        checkers.judge(cluster, judges)
    except Exception:
        cluster.world.violation("an exception nobody caught:\n" + traceback.format_exc())
    result.violations = cluster.world.violations
    result.story = cluster.story
    result.completed = len(cluster.manifests)
    result.crashes, result.restores = cluster.crashes, cluster.restores
    result.restores_inflight = cluster.restores_inflight
    result.overlaps = cluster.overlaps
    result.refusals, result.lives = cluster.refusals, cluster.lives
    for manifest in cluster.manifests:
        result.unaligned += any(report.cut is not SnapshotKind.ALIGNED for report in manifest.reports)
        result.inflight_bytes += sum(report.figures.inflight_bytes for report in manifest.reports)
    return result


Run: TypeAlias = tuple[int, str | None]
"""A seed, and the scenario that it is confined to."""


_COLLECTED_EVERY = 16
"""A run leaves a few megabytes of objects that know each other: to look for them all the time takes a fifth of it."""

_runs = itertools.count(1)


def _run(run: Run) -> tuple[str | None, Result]:
    gc.disable()
    if (number := next(_runs)) == 1:
        # All that the libraries are made of stays, and is not walked through each time.
        gc.collect()
        gc.freeze()
    elif number % _COLLECTED_EVERY == 0:
        gc.collect()
    return run[1], run_seed(*run)


def run_seeds(runs: Iterable[Run], jobs: int | None = None) -> Iterator[tuple[str | None, Result]]:
    """Simulate many seeds, in any order."""
    wanted = list(runs)
    if jobs == 1:
        yield from map(_run, wanted)
        return
    count = jobs or os.cpu_count() or 1
    # Modules live as long as the process: looking for garbage among them takes a tenth of the time.
    gc.freeze()
    rarely = (20_000, 50, 100)
    with multiprocessing.get_context("fork").Pool(count, gc.set_threshold, rarely) as pool:
        yield from pool.imap_unordered(_run, wanted, chunksize=max(1, min(8, len(wanted) // (8 * count))))


@dataclass(slots=True)
class Summary:
    """The sum of many runs."""

    seeds: int = 0
    completed: int = 0
    unaligned: int = 0
    inflight_bytes: int = 0
    with_inflight: int = 0
    with_restored: int = 0
    crashes: int = 0
    restores: int = 0
    overlaps: int = 0
    refusals: int = 0
    later_lives: int = 0
    failed: list[Result] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)

    def add(self, result: Result) -> None:
        self.seeds += 1
        self.completed += result.completed
        self.unaligned += result.unaligned
        self.inflight_bytes += result.inflight_bytes
        self.with_inflight += result.inflight_bytes > 0
        self.with_restored += result.restores_inflight > 0
        self.crashes += result.crashes
        self.restores += result.restores
        self.overlaps += result.overlaps
        self.refusals += result.refusals
        self.later_lives += result.lives - 1
        if result.violations:
            self.failed.append(result)

    def __str__(self) -> str:
        took = time.monotonic() - self.started
        return (
            f"seeds {self.seeds}, checkpoints completed {self.completed}, unaligned {self.unaligned}, "
            f"followed by the next before their manifest {self.overlaps}, "
            f"in-flight bytes captured {self.inflight_bytes} (in {self.with_inflight} seeds, "
            f"restored in {self.with_restored}), crashes {self.crashes}, restores {self.restores}, "
            f"changed pipelines refused {self.refusals}, started again after the end {self.later_lives}, "
            f"violations {len(self.failed)}; "
            f"{took:.1f} s, {self.seeds / max(took, 1e-9):.1f} seeds/s"
        )
