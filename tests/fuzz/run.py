"""Runs a case: one life of the pipeline after the other, on one store, and then asks the judge."""

from __future__ import annotations

import hashlib
import logging
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

from penstock import Pipeline
from penstock.operators.async_map import operator as async_operator
from penstock.protocol.coordinator.state import Mode, Policy
from penstock.testing import CollectSink, Schedule, run
from penstock.worker.settings import WorkerSettings
from tests.fuzz.case import Case, Life, draw
from tests.fuzz.judge import Judge
from tests.fuzz.steps import build, insert
from tests.fuzz.world import FuzzStore, Killed, SeededPool, World

_TURNS_MAX = 20_000
_QUIET_MS = 300
_SILENT_MS = 3_600_000


class _Stuck(BaseException):
    """It has had more turns than any pipeline needs."""


@dataclass
class Outcome:
    """What became of a case."""

    case: Case
    violations: list[str]
    story: list[str] = field(default_factory=list)
    checkpoints: int = 0
    restarts: int = 0
    rows: int = 0

    @property
    def digest(self) -> str:
        """Equal for runs that went the same way."""
        return hashlib.sha256("\n".join(self.story).encode()).hexdigest()[:16]


def run_seed(seed: int) -> Outcome:
    return run_case(draw(seed))


def run_quietly(seed: int) -> Outcome:
    """For a process of a pool: much fails here, on purpose, and the story tells about it."""
    logging.disable(logging.CRITICAL)
    return run_seed(seed)


def run_case(case: Case) -> Outcome:
    world = World(Schedule(f"fuzz {case.seed}"), case.faults, is_patient=case.patience, speed=case.speed)
    for step in case.steps:
        if step.kind == "source":
            for split in range(step.options["splits"]):
                world.input[step.name, split] = case.batches(step.name, split)
    outcome = Outcome(case, world.violations, world.story)
    collected: dict[str, CollectSink] = {}
    with (
        world,
        mock.patch.object(async_operator, "Pool", SeededPool),
        tempfile.TemporaryDirectory() as world.directory,
    ):
        _write_files(case, Path(world.directory))
        store = FuzzStore()
        for number, life in enumerate(case.lives):
            world.life, world.is_bounded = number, life.ending == "end"
            _live(case, life, world, store, collected, outcome)
            if world.violations:
                break
        else:
            for violation in Judge(case, world, collected).violations():
                world.violated(violation)
    outcome.rows = sum(written.batch.num_rows for each in world.published.values() for written in each)
    return outcome


def _write_files(case: Case, directory: Path) -> None:
    for step in case.steps:
        if step.kind == "files":
            (directory / step.name).mkdir()
            for number, lines in enumerate(step.options["lines"]):
                (directory / step.name / f"{number}.jsonl").write_text("".join(f"{line}\n" for line in lines))


def _live(
    case: Case, life: Life, world: World, store: FuzzStore, collected: dict[str, CollectSink], outcome: Outcome
) -> None:
    """One life; a driver that dies before its time is started again."""
    world.tell(f"begins: {life}")
    crashes: tuple[int, ...] = life.crashes
    while True:
        pipeline = Pipeline("fuzz", max_parallelism=case.max_parallelism)
        if case.inserted_in is not None and world.life >= case.inserted_in:
            insert(pipeline)
        build(case.steps, case.shaped(), pipeline, collected, case.unnamed)
        turns = _Turns(life, world)
        try:
            result = run(
                pipeline,
                parallelism=min(life.parallelism, case.max_parallelism),
                workers=life.workers,
                store=store,
                policy=Policy(backoff_ms=5, **{**case.policy, "mode": Mode[case.policy["mode"]]}),
                restarts=10,
                crash_after_checkpoints=crashes,
                until=turns,
                worker_settings=WorkerSettings(driver_silence_ms=_SILENT_MS, **case.worker),
                schedule=world.schedule,
            )
        except Killed:
            world.tell("the driver dies")
            world.jobs.clear()
            world.is_dead = False
            if turns.is_over:
                return
            # Its crashes were counted by checkpoints of a driver that is gone.
            crashes = ()
            continue
        except _Stuck:
            world.violated(f"life {world.life} has not come to its end after {_TURNS_MAX} turns")
            return
        except Exception as error:
            world.violated(f"life {world.life} has failed: {type(error).__name__}: {error}")
            return
        dropped = int(result.metrics.value("num_records_dropped") or 0)
        world.left_out = {"dropped": dropped, "stream": result.dead_letters, "skip": result.rows_skipped}
        outcome.checkpoints += result.checkpoints
        outcome.restarts += result.restarts
        world.tell(f"ends after {result.checkpoints} checkpoints and {result.restarts} restarts")
        return


class _Turns:
    """Looks at the time at every turn: kills the driver, or says when it is to be drained."""

    def __init__(self, life: Life, world: World) -> None:
        self._life = life
        self._world = world
        self._count = 0
        self.is_over = False

    def __call__(self) -> bool:
        self._count += 1
        self._world.turn()
        if self._world.is_dead:
            raise Killed
        if self._count > _TURNS_MAX:
            raise _Stuck
        if self._life.ending == "die" and self._count >= (self._life.at_turn or 0):
            self.is_over = True
            raise Killed
        return self._life.ending == "drain" and self._is_time()

    def _is_time(self) -> bool:
        if self._life.at_turn is not None:
            return self._count >= self._life.at_turn
        return self._world.is_quiet(_QUIET_MS)
