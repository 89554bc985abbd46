"""The journal of a process: every step of its state machines.

A `Story` keeps the last steps of a process that runs in production. A step costs a tuple there: it becomes text only
when a failure is reported. Values that hold state or a whole manifest are named and let go at once.
"""

from __future__ import annotations

import dataclasses
import enum
from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias

from penstock.errors import PenstockError, ProtocolViolation
from penstock.ids import SubtaskId
from penstock.mailbox.ports import Clock
from penstock.protocol.barrier import Barrier
from penstock.protocol.coordinator.events import Acknowledged, Commit, WriteManifest
from penstock.protocol.manifest import Manifest, SubtaskReport

Journal: TypeAlias = Callable[[str, object, tuple[object, ...]], None]
"""Told of every event and the actions it caused."""

STEPS_MAX = 200
_LINE_MAX = 160

_NAMED: dict[type, Callable[[Any], str]] = {
    Acknowledged: lambda event: f"Acknowledged({event.checkpoint} {event.report.subtask})",
    WriteManifest: lambda action: f"WriteManifest({action.manifest.checkpoint})",
    Commit: lambda action: f"Commit({action.permit.checkpoint})",
}


class Story:
    """The last steps of the state machines of one process."""

    __slots__ = ("_clock", "_steps")

    def __init__(self, clock: Clock, steps_max: int = STEPS_MAX) -> None:
        self._clock = clock
        self._steps: deque[tuple[int, str, object, tuple[object, ...]]] = deque(maxlen=steps_max)

    def note(self, who: str, event: object, actions: tuple[object, ...]) -> None:
        """A state machine has taken a step."""
        self._steps.append((self._clock.now_ms(), who, _light(event), tuple(map(_light, actions))))

    def refused(self, who: str, event: object, error: ProtocolViolation) -> None:
        """A state machine has met an event that cannot happen: the last step, and its story."""
        self._steps.append((self._clock.now_ms(), who, _light(event), ("violation",)))
        self.attach(error)

    def attach(self, error: Exception) -> None:
        """Let an error carry the story, unless it has one. One of ours that is a defect shows it, too."""
        if isinstance(error, PenstockError) and not error.story:
            error.story = self.text()
        if isinstance(error, ProtocolViolation) and not hasattr(error, "__notes__"):
            error.add_note(told(error.story))

    def text(self) -> str:
        """One line for each step, the newest last; times are counted back from now."""
        now_ms = self._clock.now_ms()
        return "\n".join(
            _cut(f"{at_ms - now_ms:6d} ms  {who}: {brief(event)} -> {'; '.join(map(brief, actions)) or 'nothing'}")
            for at_ms, who, event, actions in self._steps
        )


def told(story: str) -> str:
    """A story with a line above it."""
    return f"The last steps of the checkpoint protocol before this:\n{story or '(none)'}"


def _light(value: object) -> object:
    named = _NAMED.get(type(value))
    return value if named is None else named(value)


def _cut(line: str) -> str:
    return line if len(line) <= _LINE_MAX else line[: _LINE_MAX - 1] + "…"


def brief(value: object) -> str:
    """An event or action in a few words: names of checkpoints, channels, subtasks and reasons, nothing else."""
    if isinstance(value, str):
        return value
    words = []
    for field in dataclasses.fields(value):  # type: ignore[arg-type]
        content = getattr(value, field.name)
        if isinstance(content, Barrier):
            words.append(f"{content.checkpoint}{'u' if content.is_unaligned else ''}+{content.age_ms}ms")
        elif isinstance(content, frozenset):
            words.append("{" + ",".join(str(item) for item in sorted(content)) + "}")
        elif isinstance(content, enum.Enum):
            words.append(str(content.value))
        elif isinstance(content, SubtaskReport | Manifest):
            words.append(str(content.subtask if isinstance(content, SubtaskReport) else content.checkpoint))
        elif isinstance(content, int | str | SubtaskId) and field.name not in ("now_ms", "generation"):
            words.append(str(content))
    return f"{type(value).__name__}({' '.join(words)})"
