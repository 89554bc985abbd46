"""The journal of a process: every step of its state machines."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

Journal: TypeAlias = Callable[[str, object, tuple[object, ...]], None]
"""Told of every event and the actions it caused; what a violation prints as its story."""
