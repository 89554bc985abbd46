"""The directory of a socket file, and those that processes have left which are dead.

Each process of an attempt has a directory for its inbox, which no other user of the host can open. A process that ends
removes it; one that is killed cannot. So each holds a lock there, which the kernel releases with the process,
and a process that begins or ends removes the directories whose lock is free.

Hosts may share a directory for temporary files, and a lock may be seen on one host alone: the file names its host, and
other hosts leave it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import socket
import tempfile
from pathlib import Path

PREFIX = "penstock-"
_LOCK = "lock"
_LOCKED = ".lock"
"""The name of the lock before it is held: a directory that is being made is not one that was left."""


def host_id() -> str:
    """Tells hosts apart, containers on one machine too: what shares it shares its socket files."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
        namespace = os.stat("/tmp").st_dev
    except OSError:
        boot, namespace = "", 0
    return f"{socket.gethostname()}/{boot}/{namespace}"


class SocketDirectory:
    """A new directory, until it is closed or the process ends."""

    def __init__(self) -> None:
        sweep()
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
        self._lock = os.open(self.path / _LOCKED, os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        os.write(self._lock, host_id().encode())
        os.rename(self.path / _LOCKED, self.path / _LOCK)

    def close(self) -> None:
        """Remove it, and those of processes that have died meanwhile, such as killed workers."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)
        sweep()


def sweep() -> None:
    """Remove the directories that dead processes of this host and user have left. What cannot be removed stays."""
    own = host_id().encode()
    with contextlib.suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            if entry.name.startswith(PREFIX):
                # Somebody else's, or gone by now.
                with contextlib.suppress(OSError):
                    _remove_if_left(Path(entry.path), own)


def _remove_if_left(directory: Path, host: bytes) -> None:
    lock = os.open(directory / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.read(lock, 1024) == host:
            shutil.rmtree(directory, ignore_errors=True)
    finally:
        os.close(lock)
