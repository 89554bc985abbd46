"""Plants mutants in copies of the tree and looks who catches them.

Every mutant gets a copy of its own in a temporary directory, and every run a process of its own. The simulator comes
first, seed by seed; the unit tests follow if it sees nothing. A seed that does not come to an end counts as caught
too, which is sound only because the unchanged tree has been through the same seeds within the same time.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

from tests.mutants.mutant import Mutant, Stale
from tests.simulation.scenario import FaultKind, draw

REPOSITORY = Path(__file__).parents[2]

SEEDS = 150
"""How many seeds the simulator has to catch a mutant."""
SEED_S_MAX = 60
"""A seed takes a tenth of a second, and one that runs into the simulator's own limits a few seconds."""
SIMULATION_S_MAX = 240
"""For all seeds of one mutant; afterwards the tests may try."""
TESTS_S_MAX = 300
DOUBTFUL_MAX = 4
"""So many tests may fail for reasons of their own before the mutant is given up."""

_NO_TESTS = 5
"""How pytest says that nothing was left to run."""

_FAILED = re.compile(r"^FAILED (.+?)(?: - .*)?$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class BySimulator:
    seed: int
    tried: int
    violation: str

    def __str__(self) -> str:
        return (
            f"caught by seed {self.seed} after {self.tried} seed{'s' * (self.tried > 1)}: {_shortened(self.violation)}"
        )


@dataclass(frozen=True, slots=True)
class ByTest:
    node: str

    def __str__(self) -> str:
        return f"caught by test {self.node}"


@dataclass(frozen=True, slots=True)
class Survived:
    def __str__(self) -> str:
        return "SURVIVED"


@dataclass(frozen=True, slots=True)
class Unusable:
    """Nobody can say whether the mutant would be caught: it is stale, or it does not even start."""

    reason: str

    def __str__(self) -> str:
        return f"NOT JUDGED: {self.reason}"


Verdict = BySimulator | ByTest | Survived | Unusable


class BaselineFailed(Exception):
    """The unchanged tree does not pass: nothing that a mutant does would mean anything."""


# --- trees ---


@contextmanager
def copy_of(tree: Path) -> Iterator[Path]:
    """A copy of what the simulator and the tests need, removed at the end whatever happens."""
    directory = Path(tempfile.mkdtemp(prefix="penstock-mutant-"))
    try:
        for name in ("src", "tests"):
            # Without compiled files: Python would take one that is as old and as long as the mutated source.
            shutil.copytree(tree / name, directory / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        shutil.copy(tree / "pyproject.toml", directory)
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _environment(tree: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST"))}
    path = os.pathsep.join([str(tree / "src"), str(tree)])
    return {**kept, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0"}


# --- runs ---


def simulate(tree: Path, seeds: Sequence[int], only: str | None = None) -> BySimulator | Unusable | None:
    """Run seeds until one has a violation or does not end; None if all of them pass."""
    command = [sys.executable, "-m", "tests.mutants.trial", *(["--only", only] if only else []), *map(str, seeds)]
    trial = _Trial(command, tree)
    found = None
    tried = 0
    with closing(trial.lines()) as lines:
        for line in lines:
            found = json.loads(line)
            if "started" in found and Path(found["started"]) != tree.resolve():
                raise BaselineFailed(f"the trial ran the code in {found['started']} instead of that in {tree}")
            if "seed" in found:
                tried += 1
                if found["violation"] is not None:
                    return BySimulator(found["seed"], tried, found["violation"])
    if found is None:
        return Unusable(f"the mutated code cannot be imported: {_last_line(trial.errors)}")
    if trial.is_late:
        return BySimulator(seeds[tried], tried + 1, f"timeout: the seed did not end within {SEED_S_MAX} s")
    if trial.failed:
        return BySimulator(seeds[tried], tried + 1, f"the process ended: {_last_line(trial.errors)}")
    return None


class _Trial:
    """A process that prints lines. It is killed if the next one takes too long."""

    def __init__(self, command: list[str], tree: Path) -> None:
        self._command = command
        self._tree = tree
        self.is_late = False
        self.failed = False
        self.errors = ""

    def lines(self) -> Generator[str, None, None]:
        """What it prints, to its end, or to the end of the time for all of it."""
        with tempfile.TemporaryFile("w+") as errors:
            process = _start(self._command, self._tree, errors)
            overall = _after(SIMULATION_S_MAX, partial(_kill, process))
            try:
                yield from self._watched(process)
            finally:
                overall.cancel()
                is_interrupted = process.poll() is None
                _kill(process)
                process.wait()
                errors.seek(0)
                self.errors = errors.read()
                self.failed = not is_interrupted and process.returncode not in (0, -signal.SIGKILL)

    def _watched(self, process: subprocess.Popen[str]) -> Iterator[str]:
        assert process.stdout is not None
        while True:
            watch = _after(SEED_S_MAX, partial(self._give_up, process))
            line = process.stdout.readline()
            watch.cancel()
            if not line:
                process.wait()
                return
            yield line

    def _give_up(self, process: subprocess.Popen[str]) -> None:
        self.is_late = True
        _kill(process)


def _after(seconds: float, call: Callable[[], None]) -> threading.Timer:
    timer = threading.Timer(seconds, call)
    timer.daemon = True
    timer.start()
    return timer


_running: set[subprocess.Popen[str]] = set()
_is_interrupted = threading.Event()


def _start(command: list[str], tree: Path, errors: IO[str] | int) -> subprocess.Popen[str]:
    """Start a process in `tree`, in a session of its own, so that whatever it starts can be ended with it."""
    if _is_interrupted.is_set():
        raise KeyboardInterrupt
    process = subprocess.Popen(
        command,
        cwd=tree,
        env=_environment(tree),
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        start_new_session=True,
    )
    _running.add(process)
    return process


def _kill(process: subprocess.Popen[str]) -> None:
    _running.discard(process)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)


@contextmanager
def _pool(jobs: int) -> Iterator[ThreadPoolExecutor]:
    """Threads that each wait for a process. Whoever interrupts them ends the processes too."""
    with ThreadPoolExecutor(jobs) as pool:
        try:
            yield pool
        except BaseException:
            _is_interrupted.set()
            pool.shutdown(wait=False, cancel_futures=True)
            for process in tuple(_running):
                _kill(process)
            raise


def run_tests(tree: Path, tests: Sequence[str], deselected: Sequence[str] = ()) -> ByTest | Unusable | None:
    """Run tests up to the first failure; None if all of them pass."""
    code, output = _pytest(tree, tests, "-x", *(f"--deselect={node}" for node in deselected))
    if code in (0, _NO_TESTS):
        return None
    failed = _FAILED.search(output)
    return ByTest(failed[1]) if failed else Unusable(f"the tests could not be run: {_last_line(output)}")


def failing_tests(tree: Path, tests: Sequence[str]) -> list[str]:
    """All tests that fail."""
    return _FAILED.findall(_pytest(tree, tests)[1])


def _pytest(tree: Path, tests: Sequence[str], *options: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--hypothesis-seed=0", *options, *tests]
    process = _start(command, tree, subprocess.STDOUT)
    try:
        output, _ = process.communicate(timeout=TESTS_S_MAX)
    except subprocess.TimeoutExpired:
        return -1, f"not at an end after {TESTS_S_MAX} s"
    finally:
        _kill(process)
        process.wait()
    return process.returncode, output


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"


def _shortened(text: str) -> str:
    return text if len(text) <= 120 else text[:119] + "…"


# --- judging ---


class Harness:
    """Judges mutants of one state of the tree, which is copied at the beginning: others may go on working on it."""

    def __init__(self, pristine: Path, seeds: int, jobs: int) -> None:
        self._pristine = pristine
        self._seeds = seeds
        self._jobs = jobs
        self._failing: dict[tuple[str, ...], list[str]] = {}
        """Tests that fail without any mutant; they mean nothing."""

    def check_baseline(self, mutants: Iterable[Mutant]) -> int:
        """Let the unchanged tree go through all seeds that any of `mutants` may be tried with; returns how many.

        Raises `BaselineFailed`.
        """
        plans: dict[str | None, set[int]] = {}
        for mutant in mutants:
            plans.setdefault(mutant.only, set()).update(self._seeds_of(mutant))
        shares = [
            (only, sorted(seeds)[job :: self._jobs]) for only, seeds in plans.items() for job in range(self._jobs)
        ]
        with _pool(self._jobs) as pool:
            for found in pool.map(self._check_share, shares):
                if found is not None:
                    raise BaselineFailed(f"without any mutant: {found}")
        return sum(len(seeds) for _, seeds in shares)

    def _check_share(self, share: tuple[str | None, list[int]]) -> BySimulator | Unusable | None:
        only, seeds = share
        return simulate(self._pristine, seeds, only) if seeds else None

    def _seeds_of(self, mutant: Mutant) -> list[int]:
        wanted = self._seeds if mutant.seeds is None else min(mutant.seeds, self._seeds)
        if mutant.fault is None:
            return list(range(mutant.first, mutant.first + wanted))
        return list(itertools.islice(_with_fault(mutant.fault, mutant.first, mutant.only), wanted))

    def judge_all(self, mutants: Iterable[Mutant]) -> Iterator[tuple[Mutant, Verdict]]:
        """The verdicts in the order of the mutants, each as soon as it and all before it are known."""
        with _pool(self._jobs) as pool:
            yield from pool.map(lambda mutant: (mutant, self.judge(mutant)), mutants)

    def judge(self, mutant: Mutant) -> Verdict:
        with copy_of(self._pristine) as tree:
            try:
                mutant.apply(tree)
            except Stale as stale:
                return Unusable(f"stale, {stale}")
            seeds = self._seeds_of(mutant)
            found = simulate(tree, seeds, mutant.only) if seeds else None
            return found or self._judge_by_tests(tree, mutant.tests or tests_of(tree, mutant.file))

    def _judge_by_tests(self, tree: Path, tests: tuple[str, ...]) -> Verdict:
        """A test that fails has caught the mutant if it fails again, and passes without the mutant."""
        if not tests:
            return Survived()
        doubtful: list[str] = []
        while len(doubtful) < DOUBTFUL_MAX:
            found = run_tests(tree, tests, [*doubtful, *self._failing.get(tests, ())])
            if not isinstance(found, ByTest):
                return found or Survived()
            if run_tests(self._pristine, [found.node]) is not None:
                self._failing[tests] = failing_tests(self._pristine, tests)
            elif run_tests(tree, [found.node]) is not None:
                return found
            doubtful.append(found.node)
        return Unusable(f"these tests fail only now and then: {', '.join(doubtful)}")


def _with_fault(fault: FaultKind, first: int, only: str | None) -> Iterator[int]:
    """The seeds from `first` on in which this fault is planned."""
    return (seed for seed in itertools.count(first) if any(each.kind is fault for each in draw(seed, only).faults))


_OF_THE_RUNTIME = (
    *("channels", "channel_windows", "gathering", "worker", "sink_stage", "source_stage"),
    *("supervisor", "takeover", "directory"),
)


def tests_of(tree: Path, file: str) -> tuple[str, ...]:
    """The unit tests of one file of the package: those named after it, and in the runtime those of its users."""
    layer, name = Path(file).parts[0], Path(file).stem.split("_")[0]
    names = (name, *_OF_THE_RUNTIME) if layer == "runtime" else (name,)
    found = {path for each in names for path in (tree / "tests/unit" / layer).glob(f"test_{each}*.py")}
    return tuple(sorted(str(path.relative_to(tree)) for path in found))
