"""Whether a worker sees the checkpoint directory of its driver.

A local path may exist on every host and be another directory on each. Workers would write their blobs to their own
disks, every checkpoint would complete, and the first restore would find nothing. So a worker reads the reservation of
its own generation before it does anything else. The reservation holds the random token of the driver, which no other
directory has. This proves the way back too: the worker writes through the same store, to the root under which it has
seen the driver's file.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

from penstock.errors import OptionError
from penstock.protocol.manifest.codec import encode_reservation
from penstock.protocol.ownership import Reservation
from penstock.storage import paths
from penstock.storage.directory import read_if_there
from penstock.storage.port import Store

_LOOKS = 5
_PAUSE_S = 1.0
"""A network file system may show a new file a little later on another host."""


def require_shared(store: Store, reservation: Reservation, sleep: Callable[[float], None] = time.sleep) -> None:
    """Raise `OptionError` unless `store` holds the reservation with which the driver took over.

    A store that cannot be read at the moment is a `StorageError`, and says nothing about that. Blocks.
    """
    for is_last in (*(False,) * (_LOOKS - 1), True):
        found = read_if_there(store, paths.reserved(reservation.checkpoint))
        if found == encode_reservation(reservation):
            return
        if found is not None:
            break
        if not is_last:
            sleep(_PAUSE_S)
    path = paths.reserved(reservation.checkpoint)
    wrong = f"there is no {path}" if found is None else f"{path} is of another driver"
    raise OptionError(
        f"the checkpoint directory is not shared: {store!r} on host {socket.gethostname()} is not the directory that "
        f"the driver has under this name ({wrong}). Every worker must see the driver's own directory: mount a shared "
        f"file system at the same path on all hosts, or use a bucket, such as s3://bucket/directory"
    )
