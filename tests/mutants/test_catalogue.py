"""The catalogue is up to date: every mutant can be planted in the code as it is today."""

from __future__ import annotations

import ast

import pytest

from tests.mutants.catalogue import MUTANTS
from tests.mutants.harness import REPOSITORY
from tests.mutants.mutant import OWN, PACKAGE, Mutant, Stale

ORIGINS = {"unaligned", "alignment", "injection", "coordination", "recovery", OWN}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_text_to_be_replaced_is_there_once_and_the_result_is_another_program(mutant: Mutant) -> None:
    source = (REPOSITORY / PACKAGE / mutant.file).read_text(encoding="utf-8")
    mutated = mutant.mutated(source)
    assert mutated != source
    if mutant.file.endswith(".py"):
        assert ast.dump(ast.parse(mutated)) != ast.dump(ast.parse(source))


def test_there_are_at_least_fifty_with_different_names() -> None:
    assert len(MUTANTS) >= 50
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


def test_every_family_of_known_defects_is_there_and_every_mutant_says_why_it_matters() -> None:
    assert {mutant.origin for mutant in MUTANTS} == ORIGINS
    assert all(mutant.why.endswith(".") for mutant in MUTANTS)


@pytest.mark.parametrize("source", ["nothing of it", "twice twice"])
def test_a_text_that_is_missing_or_ambiguous_is_stale(source: str) -> None:
    mutant = Mutant("A name", OWN, "ids.py", "twice", "once", "Because.")
    with pytest.raises(Stale):
        mutant.mutated(source)
