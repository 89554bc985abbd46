"""The ASGI application: REST below `/api/v1`, events, Prometheus, and the page.

Handlers are plain functions, which Starlette runs in threads: a store that does not answer holds up one request, and
never the event loop. Errors have the form `{error, cure}` everywhere.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.dashboard import openapi
from penstock.dashboard.assets import Assets
from penstock.dashboard.events import Events
from penstock.dashboard.guard import Guard
from penstock.dashboard.openapi import PREFIX, Number
from penstock.dashboard.prometheus import MetricsNames, families
from penstock.dashboard.sights.sight import Sight
from penstock.dashboard.views import ErrorView, OrderView, View
from penstock.driver.control import Command
from penstock.errors import OptionError, PenstockError, StorageError

_log = logging.getLogger("penstock")

BODY_BYTES_MAX = 65_536

_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
}

Endpoint: TypeAlias = Callable[[Request], Response | Awaitable[Response]]


class Refused(Exception):
    """A request that is answered with an error."""

    def __init__(self, status: int, error: str, cure: str) -> None:
        super().__init__(error)
        self.status = status
        self.view = ErrorView(error=error, cure=cure)


def application(sight: Sight, guard: Guard, names: MetricsNames = "penstock") -> Starlette:
    """The application for one pipeline. Its `state.events` are to be closed with the server."""
    rest = _Rest(sight, guard, names)
    assets = Assets()
    routes: list[BaseRoute] = [
        Route("/", assets.page),
        Route("/static/{path:path}", assets.file),
        Route("/metrics", rest.prometheus),
        Route(f"{PREFIX}/openapi.json", rest.openapi),
        Route(f"{PREFIX}/events", rest.stream),
        Route(f"{PREFIX}/overview", rest.overview),
        Route(f"{PREFIX}/graph", rest.graph),
        Route(f"{PREFIX}/vertices/{{id:path}}", rest.vertex),
        Route(f"{PREFIX}/checkpoints", rest.checkpoints),
        Route(f"{PREFIX}/checkpoints/{{id}}", rest.checkpoint),
        Route(f"{PREFIX}/watermarks", rest.watermarks),
        Route(f"{PREFIX}/state", rest.state),
        Route(f"{PREFIX}/state/{{operator:path}}", rest.state_rows),
        Route(f"{PREFIX}/recoveries", rest.recoveries),
        Route(f"{PREFIX}/history", rest.history),
        Route(f"{PREFIX}/latency", rest.latency),
        Route(f"{PREFIX}/workers", rest.workers),
        Route(f"{PREFIX}/workers/{{index}}/profile", rest.profile, methods=["POST"]),
        Route(f"{PREFIX}/configuration", rest.configuration),
        Route(f"{PREFIX}/logs", rest.logs),
        Route(f"{PREFIX}/savepoints", rest.ordering(Command.SAVEPOINT), methods=["POST"]),
        Route(f"{PREFIX}/stop", rest.ordering(Command.STOP), methods=["POST"]),
        Route(f"{PREFIX}/drain", rest.ordering(Command.DRAIN), methods=["POST"]),
    ]
    app = Starlette(
        routes=routes,
        exception_handlers={
            Refused: _refused,
            HTTPException: _http_error,
            StorageError: _store_error,
            PenstockError: _not_possible,
            Exception: _defect,
        },
    )
    app.add_middleware(_Guarded, guard=guard)
    app.state.events = rest.events
    return app


class _Guarded:
    """Refuses requests by host and origin before anything else, and adds the headers of all answers."""

    def __init__(self, app: ASGIApp, guard: Guard) -> None:
        self._app = app
        self._guard = guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                answered = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    answered.setdefault(name, value)
            await send(message)

        refusal = self._guard.refusal(headers.get("host"), headers.get("origin"))
        if refusal is not None:
            await _json(refusal, 403)(scope, receive, send_with_headers)
            return
        await self._app(scope, receive, send_with_headers)


class _Rest:
    def __init__(self, sight: Sight, guard: Guard, names: MetricsNames) -> None:
        self._sight = sight
        self._guard = guard
        self._names: MetricsNames = names
        self.events = Events(sight)
        self._reading_state = threading.Lock()

    # --- descriptions and metrics ---

    def openapi(self, request: Request) -> Response:
        return _bytes(msgspec.json.encode(openapi.document()))

    def prometheus(self, request: Request) -> Response:
        from prometheus_client import CollectorRegistry
        from prometheus_client.exposition import choose_encoder

        sight, names = self._sight, self._names
        found = list(
            families(
                sight.pipeline,
                sight.metrics(),
                sight.overview(),
                sight.watermarks(),
                sight.checkpoints(1, None).counts,
                sight.graph(),
                names,
            )
        )

        class Collected:
            def collect(self) -> object:
                return found

        registry = CollectorRegistry()
        registry.register(Collected())  # type: ignore[arg-type]
        encode, kind = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(registry), headers={"Content-Type": kind})

    async def stream(self, request: Request) -> Response:
        if self.events.is_full:
            raise Refused(503, "there are too many open pages", "close some of them")
        allowed = self._guard.allows_orders(request.headers.get("authorization"))
        return StreamingResponse(self.events.stream(allowed), media_type="text/event-stream")

    # --- views ---

    def overview(self, request: Request) -> Response:
        allowed = self._guard.allows_orders(request.headers.get("authorization"))
        return _json(msgspec.structs.replace(self._sight.overview(), orders_allowed=allowed))

    def graph(self, request: Request) -> Response:
        return _json(self._sight.graph())

    def vertex(self, request: Request) -> Response:
        name = request.path_params["id"]
        return _json(_found(self._sight.vertex(name), f"there is no chain {name!r}", "/api/v1/graph has all of them"))

    def checkpoints(self, request: Request) -> Response:
        before = _number(request, openapi.BEFORE)
        return _json(self._sight.checkpoints(_number(request, openapi.LIMIT) or 1, before))

    def checkpoint(self, request: Request) -> Response:
        number = _whole(request.path_params["id"])
        view = self._sight.checkpoint(number)
        return _json(
            _found(view, f"checkpoint {number} is not known here", "/api/v1/checkpoints has those that are kept")
        )

    def watermarks(self, request: Request) -> Response:
        return _json(self._sight.watermarks())

    def state(self, request: Request) -> Response:
        with self._reading_state:
            return _json(self._sight.state())

    def state_rows(self, request: Request) -> Response:
        operator, limit = request.path_params["operator"], _number(request, openapi.STATE_LIMIT) or 1
        with self._reading_state:
            try:
                rows = self._sight.state_rows(operator, limit)
            except OptionError as error:
                raise Refused(404, str(error), "/api/v1/state has the operators with state") from error
        return _json(_found(rows, "there is no checkpoint yet", "wait for the first one, or take a savepoint"))

    def recoveries(self, request: Request) -> Response:
        return _json(self._sight.recoveries())

    def history(self, request: Request) -> Response:
        return _json(self._sight.history(_number(request, openapi.SECONDS) or 1))

    def latency(self, request: Request) -> Response:
        return _json(self._sight.latency())

    def workers(self, request: Request) -> Response:
        return _json(self._sight.workers())

    def configuration(self, request: Request) -> Response:
        return _json(self._sight.configuration())

    def logs(self, request: Request) -> Response:
        return _json(self._sight.logs(_number(request, openapi.LOG_LIMIT) or 1))

    # --- calls ---

    async def profile(self, request: Request) -> Response:
        worker, seconds = _whole(request.path_params["index"]), await _seconds(request)
        return _json(await run_in_threadpool(self._sight.profile, worker, seconds))

    def ordering(self, command: Command) -> Endpoint:
        def order(request: Request) -> Response:
            client = request.client.host if request.client is not None else "unknown"
            what = "pipeline %s: order %s from %s"
            if not self._guard.allows_orders(request.headers.get("authorization")):
                _log.warning(f"{what} refused: no valid token", self._sight.pipeline, command.value, client)
                return _json(self._guard.no_token, 403)
            _log.warning(f"{what} accepted", self._sight.pipeline, command.value, client)
            self._sight.order(command)
            return _json(OrderView(order=command.value, accepted_at_ms=_now_ms()), 202)

        return order


# --- requests ---


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise Refused(404, f"{text[:50]!r} is not a number", "ids are whole numbers")
    return int(text)


def _number(request: Request, number: Number) -> int | None:
    """A number of the query, or its default."""
    given = request.query_params.getlist(number.name)
    if not given:
        return number.default
    text = given[-1]
    is_number = text.isascii() and text.isdigit() and len(text) <= 19
    if not is_number or not number.least <= int(text) <= number.most:
        cure = f"it must be a whole number from {number.least} to {number.most}"
        raise Refused(400, f"{number.name} is {text[:50]!r}", cure)
    return int(text)


async def _seconds(request: Request) -> float:
    """The duration of a profile, in the body of a request; 5 if it has none."""
    cure = f'send {{"seconds": 5}}: a number above 0 and at most {openapi.PROFILE_SECONDS_MAX}'
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > BODY_BYTES_MAX:
            raise Refused(400, "the body is too long", cure)
    try:
        asked = msgspec.json.decode(body, type=_ProfileOrder) if body.strip() else _ProfileOrder()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(400, f"the body cannot be parsed: {error}", cure) from error
    if not 0 < asked.seconds <= openapi.PROFILE_SECONDS_MAX:
        raise Refused(400, f"seconds is {asked.seconds}", cure)
    return asked.seconds


class _ProfileOrder(msgspec.Struct, frozen=True):
    seconds: float = 5.0


def _found(view: View | None, error: str, cure: str) -> View:
    if view is None:
        raise Refused(404, error, cure)
    return view


# --- answers ---


def _json(view: View, status: int = 200) -> Response:
    return _bytes(msgspec.json.encode(view), status)


def _bytes(data: bytes, status: int = 200) -> Response:
    return Response(data, status, media_type="application/json")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    return _json(error.view, error.status)


def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    cure = "/api/v1/openapi.json describes the interface"
    answer = _json(ErrorView(error=str(error.detail), cure=cure), error.status_code)
    answer.headers.update(error.headers or {})
    return answer


def _store_error(request: Request, error: Exception) -> Response:
    return _json(ErrorView(error=str(error), cure="look at the store: it may not answer at the moment"), 503)


def _not_possible(request: Request, error: Exception) -> Response:
    return _json(ErrorView(error=str(error), cure="look at /api/v1/overview, and try again"), 409)


def _defect(request: Request, error: Exception) -> Response:
    _log.warning("the page could not answer %s: %r", request.url.path, error, exc_info=error)
    return _json(ErrorView(error=f"{type(error).__name__}: {error}", cure="this is a defect: please report it"), 500)
