"""The command line: `penstock run`, `checkpoints`, `savepoint` and `stop`. See `penstock --help`."""

from __future__ import annotations

from penstock.cli.application import main

__all__ = ["main"]
