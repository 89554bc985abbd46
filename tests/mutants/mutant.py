"""What a mutant is: one exact replacement in one file, and why somebody must notice."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.simulation.scenario import FaultKind

PACKAGE = Path("src/penstock")

OWN = "own"


class Stale(Exception):
    """The text to be replaced is not in the file, or more than once: the mutant must be brought up to date."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A defect, and where to plant it."""

    name: str
    """A sentence that says what goes wrong."""
    origin: str
    """The family of known defects that it belongs to (docs/internals/PRIOR_ART.md), or `OWN`."""
    file: str
    """Below `src/penstock`."""
    old: str
    new: str
    why: str
    """What it breaks, so that somebody must notice."""
    only: str | None = None
    """The topology that shows it best; None to draw one from each seed."""
    fault: FaultKind | None = None
    """The fault without which it cannot be seen: only seeds that have it are tried."""
    first: int = 0
    """The first seed that is tried."""
    seeds: int | None = None
    """How many are tried at most, if not as many as usual; 0 where the simulator cannot see it."""
    tests: tuple[str, ...] = ()
    """What is run if the simulator sees nothing; by default the unit tests of the file."""

    def apply(self, root: Path) -> None:
        """Plant the defect in the tree below `root`. Raises `Stale`."""
        path = root / PACKAGE / self.file
        text = self.mutated(path.read_text(encoding="utf-8"))
        # Another file of this name: other trees may have a link to this one.
        path.unlink()
        path.write_text(text, encoding="utf-8")

    def mutated(self, source: str) -> str:
        found = source.count(self.old)
        if found != 1:
            raise Stale(f"the text to be replaced is {found} times in {self.file}")
        return source.replace(self.old, self.new)
