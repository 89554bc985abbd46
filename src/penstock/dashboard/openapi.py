"""The OpenAPI document of the REST interface, made from the Structs of its answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from penstock.dashboard.views import (
    CheckpointDetail,
    CheckpointsView,
    ConfigurationView,
    ErrorView,
    GraphView,
    HistoryView,
    LatenciesView,
    LogsView,
    OrderView,
    Overview,
    ProfileView,
    RecoveriesView,
    StateRows,
    StateView,
    VertexDetail,
    View,
    WatermarksView,
    WorkersView,
)
from penstock.version import __version__

PREFIX = "/api/v1"
PROFILE_SECONDS_MAX = 60


@dataclass(frozen=True, slots=True)
class Number:
    """A whole number in the query of a request."""

    name: str
    least: int
    most: int
    default: int | None
    meaning: str


LIMIT = Number("limit", 1, 1_000, 100, "maximum number of entries")
BEFORE = Number("before", 1, 10**18, None, "only checkpoints with a smaller id")
STATE_LIMIT = Number("limit", 1, 1_000, 50, "maximum number of rows")
LOG_LIMIT = Number("limit", 1, 1_000, 200, "maximum number of lines")
SECONDS = Number("seconds", 1, 3_600, 3_600, "length of the history")


@dataclass(frozen=True, slots=True)
class Resource:
    """One path below `/api/v1`. `inside` names the part of the path in braces, and whether it is a number."""

    path: str
    answer: type[View]
    summary: str
    numbers: tuple[Number, ...] = ()
    inside: tuple[str, bool] | None = None
    method: str = "get"
    status: int = 200
    needs_token: bool = False


RESOURCES = (
    Resource("/overview", Overview, "the pipeline at a glance"),
    Resource("/graph", GraphView, "chains and exchanges, with their figures"),
    Resource("/vertices/{id}", VertexDetail, "one chain with its subtasks", inside=("id", False)),
    Resource("/checkpoints", CheckpointsView, "checkpoints, newest first", (LIMIT, BEFORE)),
    Resource("/checkpoints/{id}", CheckpointDetail, "one checkpoint with its subtasks", inside=("id", True)),
    Resource("/watermarks", WatermarksView, "event time by operator, and what holds it back"),
    Resource("/state", StateView, "state of the last checkpoint by operator"),
    Resource("/state/{operator}", StateRows, "rows of it", (STATE_LIMIT,), inside=("operator", False)),
    Resource("/recoveries", RecoveriesView, "attempts with their phases and failures, newest first"),
    Resource("/history", HistoryView, "figures over the last hour", (SECONDS,)),
    Resource("/latency", LatenciesView, "latency from each source to each chain, over the last minute"),
    Resource("/workers", WorkersView, "processes"),
    Resource(
        "/workers/{index}/profile",
        ProfileView,
        "the mailbox thread of a worker, sampled for some seconds",
        inside=("index", True),
        method="post",
    ),
    Resource("/configuration", ConfigurationView, "settings and plan"),
    Resource("/logs", LogsView, "last warnings and errors of driver and workers", (LOG_LIMIT,)),
    Resource("/savepoints", OrderView, "take a savepoint", method="post", status=202, needs_token=True),
    Resource("/stop", OrderView, "stop at once", method="post", status=202, needs_token=True),
    Resource("/drain", OrderView, "stop with a savepoint", method="post", status=202, needs_token=True),
)


def document() -> dict[str, Any]:
    """The whole document, as a value of JSON."""
    answers = [*dict.fromkeys(each.answer for each in RESOURCES), ErrorView]
    _, schemas = msgspec.json.schema_components(answers, ref_template="#/components/schemas/{name}")
    paths: dict[str, Any] = {}
    for each in RESOURCES:
        paths.setdefault(PREFIX + each.path, {})[each.method] = _operation(each)
    paths[f"{PREFIX}/events"] = {"get": _events()}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Penstock", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(resource: Resource) -> dict[str, Any]:
    parameters: list[dict[str, Any]] = [_number(each) for each in resource.numbers]
    if resource.inside is not None:
        name, is_number = resource.inside
        schema = {"type": "integer", "minimum": 0} if is_number else {"type": "string", "minLength": 1}
        parameters.append({"name": name, "in": "path", "required": True, "schema": schema})
    told = {str(resource.status): _answer(resource.answer.__name__, "done")}
    errors = {"400": "the request cannot be understood", "403": "refused", "404": "no such thing here"}
    errors |= {"409": "not possible now", "500": "an error of the server", "503": "the store does not answer"}
    operation: dict[str, Any] = {
        "summary": resource.summary,
        "operationId": f"{resource.method}{resource.path.replace('/', '_').replace('{', '').replace('}', '')}",
        "parameters": parameters,
        "responses": told | {code: _answer("ErrorView", text) for code, text in errors.items()},
    }
    if resource.needs_token:
        operation["security"] = [{"token": []}]
    if resource.path.endswith("/profile"):
        seconds = {"type": "number", "exclusiveMinimum": 0, "maximum": PROFILE_SECONDS_MAX, "default": 5}
        body = {"type": "object", "properties": {"seconds": seconds}}
        operation["requestBody"] = {"required": False, "content": {"application/json": {"schema": body}}}
    return operation


def _number(each: Number) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer", "minimum": each.least, "maximum": each.most}
    if each.default is not None:
        schema["default"] = each.default
    return {"name": each.name, "in": "query", "required": False, "schema": schema, "description": each.meaning}


def _answer(schema: str, text: str) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}
    return {"description": text, "content": content}


def _events() -> dict[str, Any]:
    return {
        "summary": "server-sent events: overview, graph, checkpoint, recovery",
        "operationId": "get_events",
        "responses": {"200": {"description": "events", "content": {"text/event-stream": {}}}},
    }
