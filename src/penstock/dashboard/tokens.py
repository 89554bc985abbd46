"""The token that orders through the page need.

In a local checkpoint directory it is a file that only its owner may read, and the next start uses it again. In an
object store it is not kept, because all who may read the checkpoints could read it: each start has a new one.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import stat

from penstock.storage import paths
from penstock.storage.local import LocalStore
from penstock.storage.port import Store

FILE = paths.UI_TOKEN
_TOKEN = re.compile(r"[A-Za-z0-9_-]{32,128}")


def token_of(store: Store) -> tuple[str, str | None]:
    """The token of a pipeline, and the file that holds it; None if it is only printed."""
    if not isinstance(store, LocalStore):
        return secrets.token_urlsafe(24), None
    path = os.path.join(store.root, FILE)
    token = _kept(path) or secrets.token_urlsafe(24)
    try:
        _keep(path, token)
    except OSError:
        # A directory that cannot be written shows itself in the checkpoints.
        return token, None
    return token, path


def _kept(path: str) -> str | None:
    """The token of an earlier start, unless somebody else may have read or written it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return None
    with os.fdopen(descriptor, "r", encoding="ascii", errors="replace") as file:
        found = os.fstat(file.fileno())
        if stat.S_IMODE(found.st_mode) & 0o077 or found.st_uid != os.geteuid() or not stat.S_ISREG(found.st_mode):
            return None
        token = file.read(256).strip()
    return token if _TOKEN.fullmatch(token) else None


def _keep(path: str, token: str) -> None:
    temporary = f"{path}.{secrets.token_hex(8)}"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(token + "\n")
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
