"""Where checkpoints live: the store port, the paths of a checkpoint directory, and the stores themselves.

`open_store` turns what a user wrote into a store, and finds out at once whether it can do its work.
"""

from __future__ import annotations

import os
import re
import urllib.parse
from collections.abc import Mapping

from penstock.errors import OptionError
from penstock.storage.local import LocalStore
from penstock.storage.memory import MemoryStore
from penstock.storage.port import Data, Store

__all__ = ["Data", "LocalStore", "MemoryStore", "Store", "open_store"]

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")
_TRUTH = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


def open_store(
    url: str | os.PathLike[str], *, check: bool = True, storage_options: Mapping[str, object] | None = None
) -> Store:
    """The store at a local path, a `file://` URL, or any URL that fsspec or pyarrow.fs opens.

    With `check` the root is made where it is missing, and a file is written and removed: `StorageError` if that
    fails, or if two drivers could not be kept apart there. Without it nothing is touched, for those who only read
    and for workers, whose driver has checked already. `storage_options` go to fsspec as they are.

    A URL may end with `?single_driver=1`: the promise that there is never more than one driver, for places that
    cannot tell. A relative path means another directory in another process: pass on the store's own `url`.
    """
    text = os.fspath(url)
    if not text or "\0" in text:
        raise OptionError(
            f"the checkpoint directory is {url!r}: it must be a path or a URL, such as '/data/checkpoints'"
        )
    if isinstance(url, str) and "::" in text.partition("://")[0] and "://" in text:
        raise OptionError(
            f"{text!r} is a chain of file systems. A checkpoint store must not be behind a cache: name it alone."
        )
    scheme = _SCHEME.match(text) if isinstance(url, str) else None
    if scheme is None:
        return _open_local(os.path.expanduser(text) if isinstance(url, str) else text, check)
    place, single_driver = _options_of(text)
    if scheme[1].lower() == "file":
        return _open_local(_path_of(place), check)
    if "://" not in place:
        raise OptionError(f"{text!r} is neither a path nor a URL: a URL has two slashes after its colon")
    # Imported late: fsspec is slow to import, and most checkpoints live in a directory.
    from penstock.storage.object_store import ObjectStore

    store = ObjectStore(place, single_driver=single_driver, storage_options=storage_options)
    if check:
        store.check_writable()
    return store


def _open_local(path: str, check: bool) -> LocalStore:
    store = LocalStore(path, create_root=check)
    if check:
        store.check_writable()
    return store


def _path_of(url: str) -> str:
    parsed = urllib.parse.urlsplit(url)
    path = urllib.parse.unquote(parsed.path)
    if parsed.netloc not in {"", "localhost"} or not path.startswith("/") or "\0" in path or parsed.fragment:
        raise OptionError(
            f"{url!r} does not name a local directory. Write it as file:///directory, with three slashes."
        )
    return path


def _options_of(url: str) -> tuple[str, bool]:
    place, _, query = url.partition("?")
    options = dict(urllib.parse.parse_qsl(query, keep_blank_values=True))
    single_driver = options.pop("single_driver", "0")
    if options:
        raise OptionError(
            f"unknown option {next(iter(options))!r} at the end of the checkpoint URL; there is only single_driver. "
            "Options of fsspec belong in storage_options."
        )
    if single_driver.lower() not in _TRUTH:
        raise OptionError(f"single_driver must be 1 or 0, not {single_driver!r}")
    return place, _TRUTH[single_driver.lower()]
