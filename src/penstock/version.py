"""The version of Penstock that is installed."""

from __future__ import annotations

import importlib.metadata

UNKNOWN = "0+unknown"
"""A source tree on the path, without an installation: the directory of a checkout, or an archive of one."""

try:
    __version__ = importlib.metadata.version("penstock")
except importlib.metadata.PackageNotFoundError:
    __version__ = UNKNOWN
