"""`python -m tests.mutants`: one line for each mutant, saying who caught it, and a summary."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from tests.kafka import broker, registry_server
from tests.mutants import records
from tests.mutants.catalogue import MUTANTS
from tests.mutants.harness import REPOSITORY, SEEDS, BaselineFailed, Harness
from tests.mutants.mutant import PACKAGE, Mutant
from tests.mutants.records import Catcher, Node, Seed
from tests.mutants.trees import pristine_copy
from tests.mutants.verdicts import Survived, Unusable, Verdict


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="WORD", help="mutants whose name contains these words")
    parser.add_argument("--changed", metavar="REV", help="mutants of files that changed since this git revision")
    parser.add_argument("--new", action="store_true", help="mutants that have no catcher on record")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="how many seeds each is tried with")
    parser.add_argument("--jobs", type=int, default=2, help="how many are tried at a time")
    parser.add_argument("--record", action="store_true", help=f"write down in {records.FILE.name} who caught them")
    parser.add_argument("--list", action="store_true", help="show the catalogue and run nothing")
    arguments = parser.parse_args()
    words = " ".join(arguments.only or ()).lower()
    chosen = [mutant for mutant in MUTANTS if words in mutant.name.lower()]
    if not chosen:
        parser.error(f"no mutant has '{words}' in its name")
    if arguments.changed:
        changed = files_changed_since(arguments.changed)
        chosen = [mutant for mutant in chosen if str(PACKAGE / mutant.file) in changed]
    catchers = records.read()
    if arguments.new:
        chosen = [mutant for mutant in chosen if mutant.name not in catchers]
    if arguments.list:
        for mutant in chosen:
            print(f"{mutant.origin} {mutant.file}: {mutant.name}. {mutant.why}")
        return 0
    # An exception, so that on the way out everything is cleaned up.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with pristine_copy(REPOSITORY) as pristine:
        harness = Harness(pristine, catchers, arguments.seeds, arguments.jobs)
        try:
            with shared_components(chosen), harness.running():
                verdicts = run(harness, chosen, catchers, is_recording=arguments.record)
        except BaselineFailed as failure:
            print(f"refused to go on: {failure}")
            return 2
    return 1 if any(isinstance(verdict, Survived | Unusable) for verdict in verdicts.values()) else 0


@contextmanager
def shared_components(chosen: Sequence[Mutant]) -> Iterator[None]:
    """Servers that trials share, because each would take longer to start its own than to try its mutant."""
    tests = {test for mutant in chosen for test in mutant.tests}
    with ExitStack() as stack:
        if any(test.startswith("tests/kafka/") for test in tests):
            stack.enter_context(broker.shared())
        if "tests/kafka/test_registry.py" in tests:
            stack.enter_context(registry_server.shared())
        yield


def files_changed_since(revision: str) -> set[str]:
    """Paths from the root of the repository: committed since, changed in the work tree, or new."""
    git = ["git", "-C", str(REPOSITORY)]
    changed = subprocess.check_output([*git, "diff", "--name-only", revision, "--", "src"], text=True)
    new = subprocess.check_output([*git, "ls-files", "--others", "--exclude-standard", "--", "src"], text=True)
    return {*changed.splitlines(), *new.splitlines()}


def run(
    harness: Harness, mutants: list[Mutant], catchers: dict[str, Catcher], *, is_recording: bool
) -> dict[str, Verdict]:
    """Judge and report; who caught a mutant is written down at once, because a whole run takes long."""
    started = time.monotonic()
    seeds, tests = harness.check_baseline(mutants)
    print(f"the unchanged tree passes {seeds} seeds and {tests} tests on record ({time.monotonic() - started:.0f} s)")
    verdicts: dict[str, Verdict] = {}
    used_s = 0.0
    for judged in harness.judge_all(sorted(mutants, key=lambda mutant: is_quick(catchers.get(mutant.name)))):
        verdicts[judged.mutant.name] = judged.verdict
        used_s += judged.used_s
        if is_recording:
            record(catchers, verdicts)
        cost = f"{judged.seconds:.1f} s, {judged.used_s:.1f} s of a processor"
        print(f"{judged.mutant.origin} {judged.mutant.name}: {judged.verdict} ({cost})", flush=True)
    print(summary_of(verdicts, catchers) + f"; {time.monotonic() - started:.0f} s, {used_s:.0f} s of a processor")
    return verdicts


def is_quick(catcher: Catcher | None) -> bool:
    """Whether a seed or a unit test catches it. All others come first, so that none of them is alone at the end."""
    return isinstance(catcher, Seed) or (isinstance(catcher, Node) and catcher.file.startswith("tests/unit/"))


def summary_of(verdicts: dict[str, Verdict], catchers: dict[str, Catcher]) -> str:
    caught = {name: each for name, each in verdicts.items() if not isinstance(each, Survived | Unusable)}
    kinds = Counter(verdict.kind for verdict in caught.values())
    again = sum(records.catcher_of(verdict) == catchers.get(name) for name, verdict in caught.items())
    survived = sum(isinstance(verdict, Survived) for verdict in verdicts.values())
    not_judged = len(verdicts) - len(caught) - survived
    return (
        f"{len(verdicts)} mutants, {len(caught)} caught"
        + (f" ({', '.join(f'{count} by {kind}' for kind, count in sorted(kinds.items()))};" if caught else "")
        + (f" {again} by what caught them last time)" if caught else "")
        + f", {survived} survived"
        + (f", {not_judged} not judged" if not_judged else "")
    )


def record(catchers: dict[str, Catcher], verdicts: dict[str, Verdict]) -> None:
    """Write down who caught what. Mutants that were not run keep their entries, those that are no more lose them."""
    found = {name: catcher for name, verdict in verdicts.items() if (catcher := records.catcher_of(verdict))}
    names = {mutant.name for mutant in MUTANTS}
    records.write({name: catcher for name, catcher in {**catchers, **found}.items() if name in names})


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # Threads may still be waiting for processes that were ended.
    os._exit(code)
