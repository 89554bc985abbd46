"""The files of the page: read once, compressed once, and kept by browsers as long as they are the same.

A browser finds modules by their imports, one level after the other. The page lists all of them, so one round of
requests fetches them. Their addresses contain a fingerprint of all files: a browser that has the page asks for none of
them, and after an upgrade for all.
"""

from __future__ import annotations

import gzip
import hashlib
import mimetypes
from dataclasses import dataclass
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

STATIC = Path(__file__).parent / "static"

_INDEX = "index.html"
_FOR_EVER = {"Cache-Control": "public, max-age=31536000, immutable"}
_COMPRESSED = {"Content-Encoding": "gzip"}


@dataclass(frozen=True, slots=True)
class _Asset:
    kind: str
    plain: bytes
    compressed: bytes

    def response(self, request: Request, headers: dict[str, str]) -> Response:
        is_compressed = "gzip" in request.headers.get("accept-encoding", "")
        body = self.compressed if is_compressed else self.plain
        more = _COMPRESSED if is_compressed else {}
        return Response(body, media_type=self.kind, headers={**headers, **more, "Vary": "Accept-Encoding"})


class Assets:
    """The page and the files below `/static`. Its handlers run in the event loop: they read nothing from disk."""

    def __init__(self, directory: Path = STATIC) -> None:
        names = sorted(path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file())
        files = {name: (directory / name).read_bytes() for name in names}
        told = hashlib.sha256()
        for name, content in files.items():
            told.update(f"{name}\0{len(content)}\0".encode() + content)
        self.version = told.hexdigest()[:16]
        self._files = {name: _asset(name, content) for name, content in files.items() if name != _INDEX}
        self._page = _asset(_INDEX, self._linked(files[_INDEX].decode(), names).encode())

    def _linked(self, page: str, names: list[str]) -> str:
        """The page with the addresses of this version, and with a link to each module."""
        preloads = [f'<link rel="modulepreload" href="static/{name}">' for name in names if name in _modules(names)]
        whole = page.replace("  </head>", "".join(f"    {each}\n" for each in preloads) + "  </head>")
        return whole.replace('="static/', f'="static/{self.version}/')

    async def page(self, request: Request) -> Response:
        return self._page.response(request, {})

    async def file(self, request: Request) -> Response:
        """`/static/VERSION/NAME`, or `/static/NAME`, which no browser may keep."""
        path: str = request.path_params["path"]
        name = path.removeprefix(f"{self.version}/")
        found = self._files.get(name)
        if found is None:
            raise HTTPException(404)
        return found.response(request, _FOR_EVER if name != path else {})


def _modules(names: list[str]) -> set[str]:
    """All scripts but the one that sets the theme before anything is drawn: it is no module."""
    return {name for name in names if name.endswith(".js") and name != "theme.js"}


def _asset(name: str, content: bytes) -> _Asset:
    kind = "text/javascript" if name.endswith(".js") else mimetypes.guess_type(name)[0] or "application/octet-stream"
    return _Asset(kind, content, gzip.compress(content, mtime=0))
