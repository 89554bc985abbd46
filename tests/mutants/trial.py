"""One trial, in a process forked by `zygote`: seeds of the simulator or tests, until one of them notices the mutant.

{"started": "<directory>"}                          the code could be imported, from there
{"seed": 7, "violation": null}                      one line for each seed, as soon as it is known
{"test": "tests/…::test_…"}                         a test begins
{"passed": "tests/…::test_…"}                       it has passed, set-up and tear-down included
{"failed": "tests/…::test_…", "error": "…"}         it has failed
{"broken": "tests/…", "error": "…"}                 the tests in there cannot be collected
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import Phase, settings

import penstock

if TYPE_CHECKING:
    from tests.simulation.run import Result

Tell = Callable[[dict[str, Any]], object]


def run(request: dict[str, Any], tell: Tell) -> None:
    if "seeds" in request:
        run_seeds(request["seeds"], request["only"], tell)
    else:
        tell({"started": _place()})
        run_tests(request["files"], request["wanted"], request["unwanted"], tell)


def _place() -> str:
    return str(Path(penstock.__file__).parents[1])


# --- seeds ---


def run_seeds(seeds: Sequence[int], only: str | None, tell: Tell) -> None:
    from tests.simulation.run import run_seed

    tell({"started": _place()})
    # Everything fails in there, on purpose.
    logging.disable(logging.CRITICAL)
    for seed in seeds:
        violation = _violation(partial(run_seed, seed, only))
        tell({"seed": seed, "violation": violation})
        if violation is not None:
            return


def _violation(run: Callable[[], Result]) -> str | None:
    """What is wrong with one seed, in one line; a crash of the simulator itself is wrong as well."""
    try:
        found = run().violations
    except Exception as error:
        return f"the simulator failed: {traceback.format_exception_only(error)[-1].strip()}"
    if not found:
        return None
    lines = found[0].strip().splitlines()
    # The last line of a traceback says more than its first.
    return lines[0] if len(lines) == 1 else f"{lines[0]} {lines[-1]}"


# --- tests ---


def run_tests(files: Sequence[str], wanted: Collection[str] | None, unwanted: Collection[str], tell: Tell) -> None:
    """Run the tests in `files`: those `wanted` (None: all) without those `unwanted`.

    Nodes are chosen here and not by pytest, which runs nothing at all if one of them does not exist any more.
    """
    # Without the plugin that collects garbage five times at the end: a trial is often shorter than that.
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:unraisableexception", "--hypothesis-seed=0"]
    chosen = None if wanted is None else frozenset(wanted)
    pytest.main([*options, *files], plugins=[_Reporter(chosen, frozenset(unwanted), tell)])


class _Reporter:
    """A plugin of pytest that chooses tests and tells what becomes of them."""

    def __init__(self, wanted: frozenset[str] | None, unwanted: frozenset[str], tell: Tell) -> None:
        self._wanted = wanted
        self._unwanted = unwanted
        self._tell = tell
        self._failed: set[str] = set()

    def pytest_configure(self) -> None:
        # Nobody reads the example: looking for a simpler one would take longer than to find the first.
        settings.register_profile("trial", settings.default, phases=(Phase.explicit, Phase.generate))
        settings.load_profile("trial")

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if self._is_chosen(item.nodeid)]

    def _is_chosen(self, node: str) -> bool:
        return node not in self._unwanted and (self._wanted is None or node in self._wanted)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._tell({"broken": report.nodeid, "error": _last_line(str(report.longrepr))})

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._tell({"test": nodeid})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and report.nodeid not in self._failed:
            self._failed.add(report.nodeid)
            self._tell({"failed": report.nodeid, "error": _last_line(str(report.longrepr))})

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        if nodeid not in self._failed:
            self._tell({"passed": nodeid})


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
