"""The harness itself: a defect that anybody would see, planted in a small file, and what is said about it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.mutants import records, trials
from tests.mutants.harness import REPOSITORY, BaselineFailed, Harness
from tests.mutants.mutant import OWN, PACKAGE, Mutant
from tests.mutants.records import Catcher, Node, Seed
from tests.mutants.trees import pristine_copy
from tests.mutants.verdicts import BySimulator, ByTest, Survived, Unusable, Verdict

FILE = "protocol/key_groups.py"
TESTS = "tests/unit/protocol/test_key_groups.py"
CATCHES = f"{TESTS}::test_the_ranges_are_the_ones_that_checkpoints_on_disk_rely_on[0-7-expected0]"
OTHERS = "tests/unit/protocol/test_barrier.py"

SEEN = Mutant(
    "Somebody else owns it",
    OWN,
    FILE,
    "    return range(first, end)",
    "    return range(first + 1, end + 1)",
    "A test must see it.",
    seeds=0,
    tests=(TESTS,),
)


class Bench:
    """A harness, and the catchers that it has on record."""

    def __init__(self, tree: Path) -> None:
        self.catchers: dict[str, Catcher] = {}
        self.harness = Harness(tree, self.catchers, seeds=20, jobs=1)

    def judged(self, mutant: Mutant, catcher: Catcher | None = None) -> Verdict:
        self.catchers.clear()
        if catcher is not None:
            self.catchers[mutant.name] = catcher
        self.harness.check_baseline([mutant])
        return self.harness.judge(mutant)


@pytest.fixture(scope="module")
def pristine() -> Iterator[Path]:
    with pristine_copy(REPOSITORY) as tree:
        yield tree


@pytest.fixture(scope="module")
def bench(pristine: Path) -> Iterator[Bench]:
    made = Bench(pristine)
    with made.harness.running():
        yield made


def test_a_test_catches_it_and_the_tree_that_is_worked_on_is_not_touched(bench: Bench, pristine: Path) -> None:
    before = (REPOSITORY / PACKAGE / FILE).read_text(encoding="utf-8")
    found = bench.judged(SEEN)
    assert isinstance(found, ByTest)
    assert (found.node.startswith(TESTS), found.kind) == (True, "unit tests")
    assert (REPOSITORY / PACKAGE / FILE).read_text(encoding="utf-8") == before
    assert (pristine / PACKAGE / FILE).read_text(encoding="utf-8") == before


def test_the_simulator_comes_first_and_its_seed_means_nothing_if_the_unchanged_tree_does_not_pass_it(
    bench: Bench, pristine: Path, tmp_path: Path
) -> None:
    found = bench.judged(replace(SEEN, seeds=None))
    assert isinstance(found, BySimulator)
    assert (found.only, found.kind) == (None, "the simulator")
    broken = tmp_path / "tree"
    shutil.copytree(pristine, broken, ignore=shutil.ignore_patterns("__pycache__"))
    SEEN.apply(broken)
    with pytest.raises(BaselineFailed, match="without any mutant"):
        other = Bench(broken)
        with other.harness.running():
            other.judged(SEEN, Seed(found.seed, None))


def test_whoever_caught_it_last_time_catches_it_again_without_a_search(bench: Bench) -> None:
    found = bench.judged(replace(SEEN, tests=(OTHERS,)), Node(CATCHES))
    assert isinstance(found, ByTest)
    assert found.node == CATCHES


@pytest.mark.parametrize(
    "stale", [Node(f"{TESTS}::test_that_is_gone"), Node("tests/gone.py::test"), Seed(0, "ordered")]
)
def test_a_record_that_is_out_of_date_costs_a_try(bench: Bench, stale: Catcher) -> None:
    # No simulated pipeline has anything to do with it.
    mutant = replace(SEEN, file="model/units.py", old='("s", "sec",', new='("sec",')
    assert isinstance(bench.judged(replace(mutant, tests=("tests/unit/model/test_units.py",)), stale), ByTest)


def test_one_that_nobody_looks_at_survives(bench: Bench) -> None:
    assert bench.judged(replace(SEEN, tests=(OTHERS,))) == Survived()


def test_a_text_that_is_not_there_is_not_judged(bench: Bench) -> None:
    found = bench.judged(replace(SEEN, old="no such text"))
    assert isinstance(found, Unusable)
    assert "stale" in found.reason


@pytest.mark.parametrize("seeds", [0, None])
def test_code_that_cannot_be_imported_is_not_judged(bench: Bench, seeds: int | None) -> None:
    found = bench.judged(replace(SEEN, new="    return missing\n\n\nmissing", seeds=seeds))
    assert isinstance(found, Unusable)
    assert "name 'missing' is not defined" in found.reason


def test_a_seed_that_does_not_come_to_an_end_has_caught_it(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    # Long enough for any machine to import the code and to simulate a seed.
    monkeypatch.setattr(trials, "STEP_S_MAX", 20)
    found = bench.judged(replace(SEEN, new="    while True:\n        pass", seeds=None))
    assert isinstance(found, BySimulator)
    assert "timeout" in found.violation


def test_records_come_back_as_they_were(tmp_path: Path) -> None:
    catchers: dict[str, Catcher] = {
        "a 'b'": Seed(7, None),
        "c": Seed(0, "ordered_3_2"),
        "d": Node("tests/unit/x.py::test[1-é]"),
    }
    file = tmp_path / "caught_by.json"
    assert records.read(file) == {}
    records.write(catchers, file)
    assert records.read(file) == catchers
    assert len(file.read_text(encoding="utf-8").splitlines()) == len(catchers) + 2
