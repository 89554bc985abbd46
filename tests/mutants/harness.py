"""Judges mutants: plants each in a source directory of its own and looks who catches it.

Whoever caught a mutant last time is tried first, by `records`. The simulator comes next, seed by seed, and the unit
tests follow if it sees nothing.

Nothing that a mutant fails means anything unless the unchanged tree passes the same. For the catchers on record that is
found out at the beginning, for all others when they have caught something.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tests.mutants.mutant import Mutant, Stale
from tests.mutants.records import Catcher, Node, Seed
from tests.mutants.trees import SOURCE, planted
from tests.mutants.trials import Zygote
from tests.mutants.verdicts import BySimulator, ByTest, Survived, Unusable, Verdict
from tests.simulation.scenario import FaultKind, draw

_T = TypeVar("_T")

REPOSITORY = Path(__file__).parents[2]

SEEDS = 150
"""How many seeds the simulator has to catch a mutant."""
DOUBTFUL_MAX = 4
"""So many tests may fail for reasons of their own before the mutant is given up."""


class BaselineFailed(Exception):
    """The unchanged tree does not pass: nothing that a mutant does would mean anything."""


@dataclass(frozen=True, slots=True)
class Judged:
    """The verdict on one mutant, and what it cost."""

    mutant: Mutant
    verdict: Verdict
    seconds: float
    used_s: float
    """Seconds of a processor that its trials took."""


class _Used(threading.local):
    seconds = 0.0
    """Of a processor, by the trials that this thread has asked for."""


class Harness:
    """Judges mutants of one state of the tree, which was copied at the beginning: others may go on working on it."""

    def __init__(self, pristine: Path, catchers: Mapping[str, Catcher], seeds: int, jobs: int) -> None:
        self._pristine = pristine
        self._catchers = catchers
        self._seeds = seeds
        self._jobs = jobs
        self._zygotes: queue.SimpleQueue[Zygote] = queue.SimpleQueue()
        self._used = _Used()
        self._sound_seeds: set[Seed] = set()
        """Seeds that the unchanged tree passes."""
        self._tests: dict[str, bool] = {}
        """Whether the unchanged tree passes a test, as far as that is known."""

    @contextmanager
    def running(self) -> Iterator[None]:
        """Have as many processes ready as trials may run at a time; end all of them, with their trials, at the end."""
        zygotes = [Zygote(self._pristine) for _ in range(self._jobs)]
        for zygote in zygotes:
            self._zygotes.put(zygote)
        try:
            yield
        finally:
            for zygote in zygotes:
                zygote.close()

    @contextmanager
    def _pool(self) -> Iterator[ThreadPoolExecutor]:
        pool = ThreadPoolExecutor(self._jobs)
        try:
            yield pool
        finally:
            # Not waiting: whoever is interrupted ends the processes, and with them whatever threads wait for.
            pool.shutdown(wait=False, cancel_futures=True)

    @contextmanager
    def _zygote(self) -> Iterator[Zygote]:
        zygote = self._zygotes.get()
        before_s = zygote.used_s
        try:
            yield zygote
        finally:
            self._used.seconds += zygote.used_s - before_s
            self._zygotes.put(zygote)

    # --- the unchanged tree ---

    def check_baseline(self, mutants: Iterable[Mutant]) -> tuple[int, int]:
        """Let the unchanged tree go through the catchers on record; returns the numbers of seeds and tests.

        Raises `BaselineFailed` if it does not pass a seed. A test that it does not pass is not asked any more.
        """
        catchers = {self._catchers[mutant.name] for mutant in mutants if mutant.name in self._catchers}
        seeds: dict[str | None, list[Seed]] = {}
        tests: dict[str, list[str]] = {}
        for catcher in catchers:
            match catcher:
                case Seed(_, only):
                    seeds.setdefault(only, []).append(catcher)
                case Node(node):
                    tests.setdefault(catcher.file, []).append(node)
        with self._pool() as pool:
            checked = [pool.submit(self._check_seeds, share) for each in seeds.values() for share in self._shares(each)]
            # The tests of one file stay together: to collect them takes longer than to run one.
            for files in self._shares(sorted(tests)):
                checked.append(pool.submit(self._check_tests, [node for file in files for node in tests[file]]))
            for each in checked:
                each.result()
        return sum(map(len, seeds.values())), sum(map(len, tests.values()))

    def _shares(self, everything: list[_T]) -> list[list[_T]]:
        """What each job gets, nobody getting nothing."""
        return [share for job in range(self._jobs) if (share := everything[job :: self._jobs])]

    def _check_seeds(self, seeds: list[Seed]) -> None:
        """Raises `BaselineFailed`."""
        with self._zygote() as zygote:
            found = zygote.simulate(self._pristine / SOURCE, [seed.number for seed in seeds], seeds[0].only)
        if found is not None:
            raise BaselineFailed(f"without any mutant: {found}")
        self._sound_seeds.update(seeds)

    def _check_tests(self, nodes: list[str]) -> None:
        with self._zygote() as zygote:
            failing = zygote.failing_tests(self._pristine / SOURCE, nodes)
        self._tests.update({node: node not in failing for node in nodes})

    def _vouch_for(self, seed: Seed) -> None:
        if seed not in self._sound_seeds:
            self._check_seeds([seed])

    def _is_sound(self, node: str) -> bool:
        if node not in self._tests:
            self._check_tests([node])
        return self._tests[node]

    # --- judging ---

    def judge_all(self, mutants: Iterable[Mutant]) -> Iterator[Judged]:
        """The verdicts, in the order of the mutants."""
        with self._pool() as pool:
            yield from pool.map(self._timed, mutants)

    def _timed(self, mutant: Mutant) -> Judged:
        started, before_s = time.monotonic(), self._used.seconds
        verdict = self.judge(mutant)
        return Judged(mutant, verdict, time.monotonic() - started, self._used.seconds - before_s)

    def judge(self, mutant: Mutant) -> Verdict:
        try:
            with planted(self._pristine, mutant) as source:
                return (
                    self._by_record(source, mutant) or self._by_seeds(source, mutant) or self._by_tests(source, mutant)
                )
        except Stale as stale:
            return Unusable(f"stale, {stale}")

    def _by_record(self, source: Path, mutant: Mutant) -> Verdict | None:
        """A verdict if the catcher on record catches it again."""
        match self._catchers.get(mutant.name):
            case Seed(number, only):
                return self._simulate(source, [number], only)
            case Node(node) as test if self._is_sound(node):
                with self._zygote() as zygote:
                    found = zygote.run_tests(source, [test.file], [node])
                return found if isinstance(found, ByTest) else None
            case _:
                return None

    def _by_seeds(self, source: Path, mutant: Mutant) -> Verdict | None:
        seeds = self._seeds_of(mutant)
        return self._simulate(source, seeds, mutant.only) if seeds else None

    def _simulate(self, source: Path, seeds: list[int], only: str | None) -> Verdict | None:
        with self._zygote() as zygote:
            found = zygote.simulate(source, seeds, only)
        if isinstance(found, BySimulator):
            self._vouch_for(Seed(found.seed, only))
        return found

    def _seeds_of(self, mutant: Mutant) -> list[int]:
        wanted = self._seeds if mutant.seeds is None else min(mutant.seeds, self._seeds)
        if mutant.fault is None:
            return list(range(mutant.first, mutant.first + wanted))
        return list(itertools.islice(_with_fault(mutant.fault, mutant.first, mutant.only), wanted))

    def _by_tests(self, source: Path, mutant: Mutant) -> Verdict:
        """A test that fails has caught the mutant if it fails again, and passes without the mutant."""
        files = mutant.tests or tests_of(self._pristine, mutant.file)
        if not files:
            return Survived()
        doubtful: list[str] = []
        while len(doubtful) < DOUBTFUL_MAX:
            failing = [node for node, is_sound in self._tests.items() if not is_sound]
            with self._zygote() as zygote:
                found = zygote.run_tests(source, files, None, [*doubtful, *failing])
            if not isinstance(found, ByTest):
                return found or Survived()
            if self._is_sound(found.node) and self._fails_again(source, found):
                return found
            doubtful.append(found.node)
        return Unusable(f"these tests fail only now and then: {', '.join(doubtful)}")

    def _fails_again(self, source: Path, found: ByTest) -> bool:
        with self._zygote() as zygote:
            return zygote.run_tests(source, [Node(found.node).file], [found.node]) is not None


def _with_fault(fault: FaultKind, first: int, only: str | None) -> Iterator[int]:
    """The seeds from `first` on in which this fault is planned."""
    return (seed for seed in itertools.count(first) if any(each.kind is fault for each in draw(seed, only).faults))


def tests_of(tree: Path, file: str) -> tuple[str, ...]:
    """The unit tests of one file of the package: those named after it; all of its folder if that is within a room."""
    folder, name = Path(file).parent, Path(file).stem.split("_")[0]
    found = set((tree / "tests/unit").joinpath(*folder.parts[:1]).glob(f"test_{name}*.py"))
    if len(folder.parts) > 1:
        found |= set((tree / "tests/unit" / folder).glob("test_*.py"))
    return tuple(sorted(str(path.relative_to(tree)) for path in found))
