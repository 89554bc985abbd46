"""Trials: one source directory, run through seeds of the simulator or through tests, in a process forked by a zygote.

A seed or a test that does not come to an end counts as a failure, which is sound only because the unchanged tree goes
through the same one within the same time.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.mutants.trees import temporary_directory
from tests.mutants.verdicts import BySimulator, ByTest, Unusable
from tests.mutants.zygote import OUTPUT

STEP_S_MAX = 60
"""For one seed or one test. A seed takes a tenth of a second, and one that runs into the limits of the simulator a few
seconds."""
SEEDS_S_MAX = 240
"""For all seeds of one trial; afterwards the tests may try."""
TESTS_S_MAX = 300
"""For all tests of one trial."""


class WrongTree(Exception):
    """The trial imported other code than that which it was to try."""


class Zygote:
    """A process that forks trials, one at a time."""

    def __init__(self, pristine: Path) -> None:
        self._pristine = pristine
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.mutants.zygote"],
            cwd=pristine,
            env=_environment(pristine),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._trial: int | None = None
        """The process of the trial that is under way, which leads a group of its own."""
        self._has_started = False
        self._is_late = False
        """The last trial was killed because a step took too long."""
        self._code = 0
        self._output = ""
        self.used_s = 0.0
        """Seconds of a processor that all trials took."""

    def simulate(self, source: Path, seeds: Sequence[int], only: str | None) -> BySimulator | Unusable | None:
        """Run seeds until one has a violation or does not end; None if all of them pass."""
        tried = 0
        with self._trial_of(source, {"seeds": list(seeds), "only": only}, SEEDS_S_MAX) as lines:
            for line in lines:
                if "seed" in line:
                    tried += 1
                    if line["violation"] is not None:
                        return BySimulator(line["seed"], only, tried, line["violation"])
        if not self._has_started:
            return Unusable(f"the mutated code cannot be imported: {_last_line(self._output)}")
        if self._is_late:
            return BySimulator(seeds[tried], only, tried + 1, f"timeout: the seed did not end within {STEP_S_MAX} s")
        if self._has_crashed:
            return BySimulator(seeds[tried], only, tried + 1, f"the process ended: {_last_line(self._output)}")
        return None

    def run_tests(
        self, source: Path, files: Sequence[str], wanted: Collection[str] | None, unwanted: Collection[str] = ()
    ) -> ByTest | Unusable | None:
        """Run tests up to the first failure; None if all of them pass."""
        running, broken = None, None
        with self._trial_of(source, _tests(files, wanted, unwanted), TESTS_S_MAX) as lines:
            for line in lines:
                if "failed" in line:
                    return ByTest(line["failed"], line["error"])
                running = line.get("test", running)
                broken = broken or ("broken" in line and f"{line['broken']}: {line['error']}")
        if broken or running is None:
            return Unusable(f"the tests could not be run: {broken or _last_line(self._output)}")
        if self._is_late:
            return ByTest(running, f"timeout: the test did not end within {STEP_S_MAX} s")
        if self._has_crashed:
            return ByTest(running, f"the process ended: {_last_line(self._output)}")
        return Unusable(f"the tests did not end within {TESTS_S_MAX} s") if self._code else None

    def failing_tests(self, source: Path, nodes: Collection[str]) -> set[str]:
        """Those of `nodes` that do not pass, or do not exist."""
        failing = set(nodes)
        files = {node.partition("::")[0] for node in nodes}
        there = sorted(file for file in files if (self._pristine / file).exists())
        if not there:
            return failing
        with self._trial_of(source, _tests(there, nodes, ()), None) as lines:
            failing.difference_update(line["passed"] for line in lines if "passed" in line)
        return failing

    @property
    def _has_crashed(self) -> bool:
        """The process ended by itself, and not as it should."""
        return self._code not in (0, -signal.SIGKILL)

    @contextmanager
    def _trial_of(
        self, source: Path, request: dict[str, Any], seconds_max: float | None
    ) -> Iterator[Iterator[dict[str, Any]]]:
        """The lines of one trial. Whoever leaves before the last one ends the trial."""
        assert self._process.stdin is not None
        with temporary_directory() as directory:
            self._is_late, self._has_started = False, False
            complete = {**request, "source": str(source), "directory": str(directory)}
            self._process.stdin.write(json.dumps(complete) + "\n")
            self._process.stdin.flush()
            self._next_line()
            overall = _after(seconds_max, self._kill_trial)
            try:
                yield self._watched(source)
            finally:
                overall.cancel()
                while self._trial is not None:
                    self._kill_trial()
                    self._next_line()
                self.used_s += self._next_line()["used"]
                self._output = (directory / OUTPUT).read_text(errors="replace")

    def _watched(self, source: Path) -> Iterator[dict[str, Any]]:
        while True:
            watch = _after(STEP_S_MAX, self._give_up)
            try:
                line = self._next_line()
            finally:
                watch.cancel()
            if self._trial is None:
                return
            if "started" in line:
                self._has_started = True
                if Path(line["started"]) != source.resolve():
                    raise WrongTree(f"the trial imported the code in {line['started']} instead of that in {source}")
            yield line

    def _next_line(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        text = self._process.stdout.readline()
        if not text:
            raise RuntimeError("the process that forks trials has ended")
        line: dict[str, Any] = json.loads(text)
        if "pid" in line:
            self._trial = line["pid"]
        elif "ended" in line:
            self._trial = None
            self._code = line["ended"]
        return line

    def _give_up(self) -> None:
        self._is_late = True
        self._kill_trial()

    def _kill_trial(self) -> None:
        trial = self._trial
        if trial is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(trial, signal.SIGKILL)

    def close(self) -> None:
        self._kill_trial()
        self._process.kill()
        self._process.wait()


def _tests(files: Sequence[str], wanted: Collection[str] | None, unwanted: Collection[str]) -> dict[str, Any]:
    return {
        "files": list(files),
        "wanted": None if wanted is None else sorted(wanted),
        "unwanted": sorted(unwanted),
    }


def _environment(pristine: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST"))}
    # One thread for linear algebra: forks are safer, and trials have one core each.
    return {**kept, "PYTHONPATH": str(pristine), "PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1"}


def _after(seconds: float | None, call: Callable[[], None]) -> threading.Timer:
    timer = threading.Timer(seconds or 0, call)
    timer.daemon = True
    if seconds is not None:
        timer.start()
    return timer


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"
