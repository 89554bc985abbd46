"""Merges of runs: small ones at once, larger ones in the background, put in place on the mailbox."""

from __future__ import annotations

from collections.abc import Callable

from penstock.operators.contract import OperatorContext
from penstock.state.joins.side import JoinSide


def merge_runs(state: JoinSide, context: OperatorContext) -> None:
    """Merge the runs of a side that are due."""
    state.merge_small()
    merge = state.large_merge()
    if merge is None:
        return

    def done(install: Callable[[], None] | Exception) -> None:
        if isinstance(install, Exception):
            raise install
        install()

    context.submit(merge, done)
