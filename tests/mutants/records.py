"""Who caught each mutant last time: tried first the next time.

An entry that is out of date costs one trial in vain. `python -m tests.mutants --record` brings the file up to date.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.verdicts import BySimulator, ByTest, Verdict

FILE = Path(__file__).with_name("caught_by.json")


@dataclass(frozen=True, slots=True)
class Seed:
    """A seed of the simulator."""

    number: int
    only: str | None


@dataclass(frozen=True, slots=True)
class Node:
    """A test, as pytest names it."""

    id: str

    @property
    def file(self) -> str:
        return self.id.partition("::")[0]


Catcher = Seed | Node


def catcher_of(verdict: Verdict) -> Catcher | None:
    match verdict:
        case BySimulator():
            return Seed(verdict.seed, verdict.only)
        case ByTest():
            return Node(verdict.node)
        case _:
            return None


def read(file: Path = FILE) -> dict[str, Catcher]:
    """The catcher of each mutant by its name; nothing if there is no such file."""
    if not file.exists():
        return {}
    entries: dict[str, dict[str, object]] = json.loads(file.read_text(encoding="utf-8"))
    return {name: _decoded(entry) for name, entry in entries.items()}


def write(catchers: Mapping[str, Catcher], file: Path = FILE) -> None:
    entries = (f"{json.dumps(name)}: {json.dumps(_encoded(catchers[name]))}" for name in sorted(catchers))
    file.write_text("{\n  " + ",\n  ".join(entries) + "\n}\n", encoding="utf-8")


def _decoded(entry: dict[str, object]) -> Catcher:
    if "test" in entry:
        return Node(str(entry["test"]))
    return Seed(int(str(entry["seed"])), str(entry["only"]) if "only" in entry else None)


def _encoded(catcher: Catcher) -> dict[str, object]:
    match catcher:
        case Node(id):
            return {"test": id}
        case Seed(number, None):
            return {"seed": number}
        case Seed(number, only):
            return {"seed": number, "only": only}
