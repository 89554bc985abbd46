"""Verdicts on mutants."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BySimulator:
    seed: int
    only: str | None
    """The scenario that the seed was confined to; None if it drew one itself."""
    tried: int
    """How many seeds it took."""
    violation: str

    @property
    def kind(self) -> str:
        return "the simulator"

    def __str__(self) -> str:
        where = f"seed {self.seed}" + (f" of {self.only}" if self.only else "")
        return f"caught by {where} after {self.tried} seed{'s' * (self.tried > 1)}: {_shortened(self.violation)}"


@dataclass(frozen=True, slots=True)
class ByTest:
    node: str
    error: str

    @property
    def kind(self) -> str:
        folder = self.node.split("/")[1]
        return {"unit": "unit tests", "fuzz": "fuzz"}.get(folder, f"tests/{folder}")

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


def _shortened(text: str) -> str:
    return text if len(text) <= 120 else text[:119] + "…"
