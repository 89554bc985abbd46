"""Windows of event time as values: the seam between kinds of windows and their state in `kind`, one file per kind."""

from penstock.model.windows.fixed import FixedWindows
from penstock.model.windows.kind import WINDOW_END, WINDOW_START, Late, WindowGrid, WindowKind
from penstock.model.windows.session import SessionWindows

__all__ = ["WINDOW_END", "WINDOW_START", "FixedWindows", "Late", "SessionWindows", "WindowGrid", "WindowKind"]
