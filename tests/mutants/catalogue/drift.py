"""Defects of sources that wait for each other on several workers."""

from __future__ import annotations

from tests.mutants.mutant import OWN, Mutant

_WORKER = "worker/sources/source_drift.py"
_DRIVER = "driver/attempts/slowest_sources.py"
_STAGE = "worker/sources/source_stage.py"
_TESTS = (
    "tests/unit/worker/sources/test_source_drift.py",
    "tests/unit/worker/sources/test_source_stage.py",
    "tests/unit/driver/attempts/test_slowest_sources.py",
    "tests/unit/graph/test_physical.py",
)


def _mutant(name: str, file: str, old: str, new: str, why: str, *, simulated: bool = False) -> Mutant:
    if simulated:
        return Mutant(name, OWN, file, old, new, why, only="drifting", tests=_TESTS)
    return Mutant(name, OWN, file, old, new, why, seeds=0, tests=_TESTS)


MUTANTS = (
    _mutant(
        "A source waits for the slowest one of its own worker only",
        _WORKER,
        "self._elsewhere.update(frame.slowest)",
        "self._elsewhere.update(dict.fromkeys(frame.slowest))",
        "A source on another worker may be days behind: joins hold all that is between them.",
        simulated=True,
    ),
    _mutant(
        "A source reads before it has heard of the others",
        _WORKER,
        "self._elsewhere[group] = MIN_WATERMARK",
        "self._elsewhere[group] = None",
        "At each start it runs ahead for as long as the slowest worker takes to come up.",
        simulated=True,
    ),
    _mutant(
        "A worker is told of its own sources",
        _DRIVER,
        "if other != worker), None)",
        "), None)",
        "A source that is alone waits for old news of itself.",
    ),
    _mutant(
        "Workers are told before all are ready",
        _DRIVER,
        "if self._clocks and len(self._ready) == self._workers and not self._is_due:",
        "if self._clocks and not self._is_due:",
        "Sources run ahead of one whose state is still being read.",
    ),
    _mutant(
        "A worker tells the driver of its sources only once",
        _WORKER,
        "        self._services.timers.after(self._services.settings.drift_interval_ms, self.begin)\n",
        "",
        "Everybody else waits for it for ever.",
        simulated=True,
    ),
    _mutant(
        "The driver answers only once",
        _DRIVER,
        "        self._is_due = False\n        if",
        "        if",
        "Sources wait for an old word for ever.",
        simulated=True,
    ),
    _mutant(
        "The driver tells workers of an attempt that is over",
        _DRIVER,
        "        if self._is_over:\n            return\n",
        "",
        "The frame breaks the numbering of the link to a new worker.",
    ),
    _mutant(
        "A split that appears later is waited for before its first record",
        _STAGE,
        "elif not self._has_begun and name not in self._had_nothing:",
        "elif name not in self._had_nothing:",
        "Where files appear all the time, all sources stand still.",
    ),
    _mutant(
        "A split without a first record is waited for",
        _STAGE,
        "elif not self._has_begun and name not in self._had_nothing:",
        "elif not self._has_begun:",
        "An empty partition stops all sources.",
    ),
    _mutant(
        "An idle split is waited for",
        _STAGE,
        "                if not clocks.is_idle(name):\n                    begun.append(reached)",
        "                begun.append(reached)",
        "A partition that has nothing for hours stops all sources, whatever `idle_after` says.",
    ),
    _mutant(
        "Sources that never meet are one group",
        "graph/physical.py",
        "return {source: first.setdefault(group[source], source) for source in self.sources}",
        "return {source: self.sources[0] for source in self.sources}",
        "Two parts of a pipeline that have nothing to do with each other wait for each other.",
    ),
)
