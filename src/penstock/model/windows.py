"""What windows of event time are, as a value: the API describes them, the runtime's state keeps them.

Windows are half open: a record at the end of one belongs to the next. They are aligned to 1970, or shifted by an
offset from there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Late: TypeAlias = Literal["drop", "error", "stream"]
"""What happens to a record all of whose windows have been emitted. Dropped ones are counted."""

WINDOW_START = "window_start"
WINDOW_END = "window_end"


@dataclass(frozen=True, slots=True)
class Windows:
    """A window of `size_ms` begins every `every_ms`: less than the size if they overlap, and never more."""

    size_ms: int
    every_ms: int
    offset_ms: int = 0

    def __str__(self) -> str:
        return f"windows of {self.size_ms} ms every {self.every_ms} ms from {self.offset_ms} ms"
