"""The files of the page: read once, compressed once, and kept by browsers as long as they are the same.

A browser finds modules by their imports, one level after the other. The page lists those that its first view needs, so
one round of requests fetches them; its script fetches the others when that view is there. Their addresses contain a
fingerprint of all files: a browser that has the page asks for none of them, and after an upgrade for all.
"""

from __future__ import annotations

import gzip
import hashlib
import mimetypes
import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

STATIC = Path(__file__).parent / "static"

_INDEX = "index.html"
_MAIN = "main.js"
_IMPORT = re.compile(r'^import .* from "(\.[^"]+)";$', re.MULTILINE)
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
        self._page = _asset(_INDEX, self._linked(files[_INDEX].decode(), files).encode())

    def _linked(self, page: str, files: Mapping[str, bytes]) -> str:
        """The page with the addresses of this version, and with a link to each module of its first view."""
        preloads = [f'<link rel="modulepreload" href="static/{name}">' for name in sorted(_imported(_MAIN, files))]
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


def _imported(name: str, files: Mapping[str, bytes]) -> set[str]:
    """The module and all that it imports, but for what it fetches later by a call of `import`."""
    found, left = set(), [name]
    while left:
        module = left.pop()
        if module in found:
            continue
        found.add(module)
        here = posixpath.dirname(module)
        left += [posixpath.normpath(posixpath.join(here, other)) for other in _IMPORT.findall(files[module].decode())]
    return found


def _asset(name: str, content: bytes) -> _Asset:
    kind = "text/javascript" if name.endswith(".js") else mimetypes.guess_type(name)[0] or "application/octet-stream"
    return _Asset(kind, content, gzip.compress(content, mtime=0))
