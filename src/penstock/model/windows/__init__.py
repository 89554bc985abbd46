"""Windows of event time as values: the seam between kinds of windows and their state in `kind`, one file per kind."""

from penstock.model.windows.count import CountWindows
from penstock.model.windows.fixed import FixedWindows
from penstock.model.windows.kind import ON_CLOSE, WINDOW_END, WINDOW_START, Emission, Late, WindowGrid, WindowKind
from penstock.model.windows.session import SessionWindows

__all__ = [
    "ON_CLOSE",
    "WINDOW_END",
    "WINDOW_START",
    "CountWindows",
    "Emission",
    "FixedWindows",
    "Late",
    "SessionWindows",
    "WindowGrid",
    "WindowKind",
]
