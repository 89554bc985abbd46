"""The last words of a driver in its checkpoint directory: attempts, checkpoints and log, for those who look later.

They are for people alone. A file that is missing, or that another version has written, is as good as none.
"""

from __future__ import annotations

import logging
import threading

import msgspec

from penstock.dashboard.sights.sight import Sight
from penstock.dashboard.views import CheckpointsView, LogsView, Overview, RecoveriesView
from penstock.errors import PenstockError
from penstock.storage import paths
from penstock.storage.port import Store

_log = logging.getLogger("penstock")

_CHECKPOINTS = 1_000
_LINES = 1_000
_WRITE_S = 5.0
"""The end of a pipeline waits this long for the store."""


class LastWords(msgspec.Struct, frozen=True, kw_only=True):
    """The views of a pipeline at its end."""

    overview: Overview
    checkpoints: CheckpointsView
    recoveries: RecoveriesView
    logs: LogsView


def leave(sight: Sight, store: Store) -> None:
    """Write the last words. Never raises, and does not wait for a store that hangs."""
    writing = threading.Thread(target=_write, args=(sight, store), name="penstock-last-words", daemon=True)
    writing.start()
    writing.join(_WRITE_S)


def _write(sight: Sight, store: Store) -> None:
    try:
        words = LastWords(
            overview=sight.overview(),
            checkpoints=sight.checkpoints(_CHECKPOINTS, None),
            recoveries=sight.recoveries(),
            logs=sight.logs(_LINES),
        )
        store.write(paths.HISTORY, [msgspec.json.encode(words)])
    except Exception as error:
        _log.warning(
            "pipeline %s: its history could not be written to its checkpoint directory: %s", sight.pipeline, error
        )


def read(store: Store) -> LastWords | None:
    """The last words in a directory, if there are any that can be read."""
    try:
        if paths.HISTORY not in store.list(paths.HISTORY):
            return None
        return msgspec.json.decode(store.read(paths.HISTORY), type=LastWords)
    except (PenstockError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
