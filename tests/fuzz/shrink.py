"""Makes a failing case smaller: fewer faults, lives, crashes, steps and records, as long as it fails in the same way.

A smaller case draws other turns, so that a failure that hangs on a single interleaving may not shrink. Then it stays.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.fuzz.case import Case
from tests.fuzz.run import Outcome, run_case
from tests.fuzz.steps import UNSETTLED, Step


def shrink(outcome: Outcome, tries: int = 150, run: Callable[[Case], Outcome] = run_case) -> Outcome:
    """The smallest failing case found with so many runs."""
    wanted = _sort_of(outcome)
    is_smaller = True
    while is_smaller and tries > 0:
        is_smaller = False
        for candidate in _smaller(outcome.case):
            tries -= 1
            if tries < 0:
                break
            try:
                tried = run(candidate)
            except Exception:
                # It is not a case any more: a step without an input, a column that nobody makes.
                continue
            if tried.violations and _sort_of(tried) == wanted:
                outcome, is_smaller = tried, True
                break
    return outcome


def _sort_of(outcome: Outcome) -> str:
    """The first violation without what differs from case to case."""
    return re.sub(r"(op|sink|source|rules)?\d+|'.*|\{.*|\[.*|\(.*", "", outcome.violations[0])[:80]


def _smaller(case: Case) -> Iterator[Case]:
    for number in range(len(case.faults)):
        yield replace(case, faults=(*case.faults[:number], *case.faults[number + 1 :]))
    for number in range(len(case.lives) - 1):
        yield _without_life(case, number)
    for number, life in enumerate(case.lives):
        if life.crashes:
            yield _with_life(case, number, replace(life, crashes=()))
        if life.parallelism > 1:
            yield replace(case, lives=tuple(replace(each, parallelism=1, workers=1) for each in case.lives))
            yield _with_life(case, number, replace(life, parallelism=1, workers=1))
        elif life.workers > 1:
            yield _with_life(case, number, replace(life, workers=1))
    for number in reversed(range(len(case.steps))):
        smaller = _without_step(case, number)
        if smaller is not None:
            yield smaller
    if any(rows > 1 for rows in case.rows.values()):
        yield replace(case, rows={place: (rows + 1) // 2 for place, rows in case.rows.items()})
    for place, rows in case.rows.items():
        if rows > 1:
            yield replace(case, rows={**case.rows, place: 1})
    if case.patience < 1:
        yield replace(case, patience=1.0)
    for name in [name for name in case.columns if name in ("p", "x")]:
        yield replace(case, columns={other: text for other, text in case.columns.items() if other != name})


def _with_life(case: Case, number: int, life: object) -> Case:
    lives = list(case.lives)
    lives[number] = life  # type: ignore[call-overload]
    return replace(case, lives=tuple(lives))


def _without_life(case: Case, number: int) -> Case:
    rows = {
        (source, split, life - (life > number)): count
        for (source, split, life), count in case.rows.items()
        if life != number
    }
    return replace(case, lives=(*case.lives[:number], *case.lives[number + 1 :]), rows=rows)


def _without_step(case: Case, number: int) -> Case | None:
    """Those who read the step read its first input instead; a sink, or what nobody reads then, is gone."""
    step = case.steps[number]
    if not step.inputs and any(number in other.inputs for other in case.steps):
        return None
    letters = [p for p, other in enumerate(case.steps) if other.kind == "dead_letters" and other.inputs == (number,)]
    gone = {number, *letters}
    steps: dict[int, Step] = {}
    for place, other in enumerate(case.steps):
        inputs = tuple(step.inputs[0] if given == number else given for given in other.inputs)
        steps[place] = replace(other, inputs=inputs)
    if step.kind in (*UNSETTLED, "window", "held"):
        # Its own sink goes with it, unless it is all that is left of the output.
        sinks = [place for place, other in steps.items() if other.is_sink and case.steps[place].inputs == (number,)]
        if any(other.is_sink and place not in sinks for place, other in steps.items()):
            gone |= set(sinks)
    while True:
        left = {place: other for place, other in steps.items() if place not in gone}
        read = {given for other in left.values() if other.kind != "dead_letters" for given in other.inputs}
        orphaned = {place for place, other in left.items() if gone & set(other.inputs)}
        unread = {place for place, other in left.items() if place not in read and not other.is_sink}
        if not unread | orphaned:
            break
        gone |= unread | orphaned
    if not left:
        return None
    heard = {other.inputs[0] for other in left.values() if other.kind == "dead_letters"}
    left = {place: other if place in heard else _unheard(other) for place, other in left.items()}
    places = {place: new for new, place in enumerate(left)}
    kept = tuple(replace(other, inputs=tuple(places[given] for given in other.inputs)) for other in left.values())
    names = {other.name for other in kept}
    rows = {place: count for place, count in case.rows.items() if place[0] in names}
    faults = tuple(fault for fault in case.faults if not fault.where.startswith("op") or fault.where in names)
    return replace(case, steps=kept, rows=rows, faults=faults)


def _unheard(step: Step) -> Step:
    """A step whose dead letters nobody reads: without such a stream."""
    instead = {"stream": "drop", "dead_letter": "skip"}.get(step.options.get("on_error", ""))
    return step if instead is None else replace(step, options={**step.options, "on_error": instead})
