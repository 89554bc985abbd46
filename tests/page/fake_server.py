"""A server of the page without a pipeline: the REST contract answered by a `FakePipeline`.

`python -m tests.page.fake_server` shows the page with a kill after 20 s; `--subtasks 1000`, `--checkpoints 10000` and
`--hostile` make it large or hostile. Its headers forbid scripts, styles and connections from elsewhere.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import uvicorn
from starlette.applications import Starlette
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from penstock.dashboard.assets import Assets
from tests.page.fake_pipeline import TOKEN, FakePipeline, Json

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class FakeServer:
    """Serves `pipeline` on a free port of the loopback, in a thread. `stop` and `start` again keep the port."""

    def __init__(self, pipeline: FakePipeline, *, tick_s: float = 1.0, port: int = 0) -> None:
        self.pipeline = pipeline
        self.tick_s = tick_s
        self.requests: list[str] = []
        self._port = port

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        listening = socket.socket()
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", self._port))
        self._port = listening.getsockname()[1]
        self._is_over = threading.Event()
        config = uvicorn.Config(self._application(), log_level="warning", timeout_graceful_shutdown=1, lifespan="off")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [listening]}, daemon=True)
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)

    def stop(self) -> None:
        self._is_over.set()
        self._server.should_exit = self._server.force_exit = True
        self._thread.join(timeout=30)

    def _application(self) -> Starlette:
        pipeline, assets = self.pipeline, Assets()
        routes = [
            Route("/", assets.page),
            Route("/static/{path:path}", assets.file),
            _get("overview", lambda request: pipeline.overview(is_allowed=_has_token(request))),
            _get("graph", lambda request: pipeline.graph()),
            _get("vertices/{id}", lambda request: pipeline.vertex(request.path_params["id"])),
            _get(
                "checkpoints",
                lambda request: pipeline.checkpoint_page(_number(request, "limit") or 100, _number(request, "before")),
            ),
            _get("checkpoints/{id:int}", lambda request: pipeline.checkpoint(request.path_params["id"])),
            _get("watermarks", lambda request: pipeline.watermarks()),
            _get("state", lambda request: pipeline.state()),
            _get("state/{operator:path}", lambda request: pipeline.state_rows(_number(request, "limit") or 50)),
            _get("recoveries", lambda request: pipeline.recoveries()),
            _get("history", lambda request: pipeline.metrics(_number(request, "seconds") or 3600)),
            _get("latency", lambda request: pipeline.latency()),
            _get("workers", lambda request: pipeline.workers()),
            _get("configuration", lambda request: pipeline.configuration()),
            _get("logs", lambda request: pipeline.logs()),
            Route("/api/v1/workers/{index:int}/profile", self._profile, methods=["POST"]),
            *(Route(f"/api/v1/{order}", self._order, methods=["POST"]) for order in ("savepoints", "stop", "drain")),
            Route("/api/v1/events", self._events),
        ]
        application = Starlette(routes=routes)
        application.add_middleware(BaseHTTPMiddleware, dispatch=self._dispatch)
        return application

    async def _dispatch(self, request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        self.requests.append(f"{request.method} {request.url.path}")
        response = await call_next(request)
        response.headers["Content-Security-Policy"] = POLICY
        response.headers.setdefault("Cache-Control", "no-store")
        return response

    async def _order(self, request: Request) -> Response:
        if not _has_token(request):
            cure = "Enter the token that the start has printed; it is also in the checkpoint directory."
            return JSONResponse({"error": "orders need the token of the pipeline", "cure": cure}, status_code=403)
        self.pipeline.orders.append(request.url.path.rsplit("/", 1)[1])
        return JSONResponse({"accepted": True}, status_code=202)

    async def _profile(self, request: Request) -> Response:
        return JSONResponse(self.pipeline.profile((await request.json())["seconds"]))

    async def _events(self, request: Request) -> Response:
        return StreamingResponse(self._stream(), media_type="text/event-stream")

    async def _stream(self) -> AsyncIterator[str]:
        seen, generations = len(self.pipeline.history), None
        while not self._is_over.is_set():
            yield _event("overview", self.pipeline.overview())
            yield _event("graph", self.pipeline.graph())
            for checkpoint in self.pipeline.history[seen:]:
                yield _event("checkpoint", checkpoint)
            seen = len(self.pipeline.history)
            # As the real server: the phases of a generation are no event, because the last one grows all the time.
            now = [(each["generation"], each["ended_at_ms"]) for each in self.pipeline.generations]
            if generations not in (None, now):
                yield _event("recovery", self.pipeline.recoveries())
            generations = now
            await asyncio.sleep(self.tick_s)


@contextlib.contextmanager
def serving(pipeline: FakePipeline, *, tick_s: float = 0.2) -> Iterator[FakeServer]:
    server = FakeServer(pipeline, tick_s=tick_s)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def _get(path: str, answer: Callable[[Request], Json | None]) -> Route:
    async def respond(request: Request) -> Response:
        found = answer(request)
        if found is None:
            return JSONResponse({"error": f"no {request.url.path}", "cure": "Go back to the list."}, status_code=404)
        return JSONResponse(found)

    return Route(f"/api/v1/{path}", respond)


def _number(request: Request, name: str) -> int | None:
    given = request.query_params.get(name)
    return None if given is None else int(given)


def _has_token(request: Request) -> bool:
    return request.headers.get("Authorization") == f"Bearer {TOKEN}"


def _event(name: str, data: Json) -> str:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=4051)
    parser.add_argument("--subtasks", type=int, default=4)
    parser.add_argument("--checkpoints", type=int, default=60)
    parser.add_argument("--hostile", action="store_true")
    options = parser.parse_args()
    pipeline = FakePipeline(subtasks=options.subtasks, checkpoints=options.checkpoints, is_hostile=options.hostile)
    server = FakeServer(pipeline, port=options.port)
    server.start()
    print(f"{server.address}, token {TOKEN}")
    happenings = {20: pipeline.kill, 22: pipeline.claim, 24: pipeline.restore, 27: pipeline.recover}
    for second in range(24 * 3600):
        time.sleep(1)
        if second in happenings:
            happenings[second]()
        if second % 10 == 9 and pipeline.phase == "running":
            pipeline.complete_checkpoint()


if __name__ == "__main__":
    main()
