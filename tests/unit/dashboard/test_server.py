"""The server itself: ports, open pages, hostile requests, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings

from penstock.dashboard import server as serving
from penstock.dashboard.events import WAITING_MAX
from penstock.dashboard.events import Client as EventClient
from penstock.dashboard.guard import Guard
from penstock.dashboard.openapi import RESOURCES
from penstock.dashboard.server import Server, bound, check_options
from penstock.dashboard.sights.live import LiveSight
from penstock.errors import OptionError
from tests.unit.dashboard.kit import HOSTILE, PATIENCE_S, TOKEN, Running, counting, running, wait_for

PAGES = 50


@pytest.fixture(scope="module")
def served() -> Any:
    """A pipeline with its server on a real port."""
    pipeline, _ = counting("served")
    ran = Running(pipeline).start()
    server = Server(LiveSight(ran.watched()), Guard(TOKEN), port=0, step_s=0.1).start()
    wait_for(lambda: ran.supervisor.observations.completed)
    yield server
    server.close()
    ran.stop()


@pytest.fixture
def ended() -> Any:
    """The server of a pipeline that has ended."""
    pipeline, _ = counting("ended", rows=200)
    with running(pipeline) as (ran, sight, _):
        wait_for(lambda: ran.supervisor.has_ended)
        server = Server(sight, Guard(TOKEN), port=0).start()
        yield server
        server.close()


def test_the_next_free_port_is_taken() -> None:
    first = bound("127.0.0.1", 0)
    port = first.getsockname()[1]
    with first, bound("127.0.0.1", port) as second:
        assert port < second.getsockname()[1] < port + serving.PORTS_TRIED


def test_a_page_that_cannot_be_opened_does_not_harm_the_pipeline(caplog: pytest.LogCaptureFixture) -> None:
    class NoJob:
        name = "none"

        def _watched(self) -> None:
            raise OSError("no port is free")

    assert serving.open_page(NoJob(), 4050) is None  # type: ignore[arg-type]
    assert "has no page: no port is free" in caplog.text
    assert serving.open_page(NoJob(), None) is None  # type: ignore[arg-type]


def test_without_the_packages_one_line_says_how_to_get_them(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Named:
        name = "plain"

    monkeypatch.setattr(serving, "_PACKAGES", ("starlette", "no_such_package"))
    with caplog.at_level("INFO", "penstock"):
        assert serving.open_page(Named(), 4050) is None  # type: ignore[arg-type]
    assert [record.getMessage() for record in caplog.records] == [
        "pipeline plain has no page, because no_such_package is missing: pip install 'penstock[ui]'"
    ]


@pytest.mark.parametrize(
    "options",
    [
        (True, "127.0.0.1", "penstock", ()),
        (70_000, "a", "flink", ()),
        (1, "", "flink", ()),
        (1, "a", "x", ()),
        (1, "a", "flink", "a"),
    ],
)
def test_an_option_of_the_page_that_makes_no_sense_is_an_error(options: Any) -> None:
    with pytest.raises(OptionError):
        check_options(*options)


def test_fifty_open_pages_share_one_computation(served: Server) -> None:
    events = served._app.state.events

    async def listen() -> list[list[str]]:
        async with httpx.AsyncClient(base_url=served.address, timeout=PATIENCE_S, limits=httpx.Limits()) as client:
            return await asyncio.gather(*(_first_events(client, 6) for _ in range(PAGES)))

    before = events.rounds
    found = asyncio.run(listen())
    assert len(found) == PAGES and all({"overview", "graph"} <= set(names) for names in found)
    # Each page needs two rounds for six events; a computation for each page would be a hundred.
    assert events.rounds - before < PAGES


def test_a_page_that_never_reads_blocks_nobody(served: Server) -> None:
    events = served._app.state.events
    with contextlib.ExitStack() as stack:
        for _ in range(5):
            # With the least of buffers, and never read: the server cannot write to it after some events.
            stalled = stack.enter_context(socket.socket())
            stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
            stalled.connect(("127.0.0.1", served.port))
            stalled.sendall(f"GET /api/v1/events HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\n\r\n".encode())
        wait_for(lambda: len(events._clients) >= 5)
        stuck = list(events._clients)
        # Without a socket that is full at once: what waits for a client is bounded, whatever it reads.
        for client in stuck:
            for _ in range(10 * WAITING_MAX):
                served._app.state.events._loop.call_soon_threadsafe(client.put, b": filler\n\n" * 100_000)
        before = events.rounds
        with httpx.Client(base_url=served.address, timeout=PATIENCE_S) as client:
            assert client.get("/api/v1/overview").status_code == 200
            with client.stream("GET", "/api/v1/events") as answer:
                lines = answer.iter_lines()
                seen = [next(line for line in lines if line.startswith("event: overview")) for _ in range(3)]
        assert len(seen) == 3 and events.rounds > before
        assert all(each.waiting.qsize() <= WAITING_MAX for each in stuck)
        assert any(each.waiting.full() for each in stuck), "they are stuck"
    wait_for(lambda: not events._clients)


async def _first_events(client: httpx.AsyncClient, count: int) -> list[str]:
    names: list[str] = []
    async with client.stream("GET", "/api/v1/events") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        async for line in answer.aiter_lines():
            if line.startswith("event: "):
                names.append(line.removeprefix("event: "))
            if len(names) >= count:
                break
    return names


def test_a_page_that_reads_too_slowly_loses_the_oldest_events() -> None:
    async def fill() -> list[bytes | None]:
        client = EventClient(False)
        for number in range(WAITING_MAX + 10):
            client.put(str(number).encode())
        return [client.waiting.get_nowait() for _ in range(client.waiting.qsize())]

    kept = asyncio.run(fill())
    assert (kept[0], kept[-1], len(kept)) == (b"10", str(WAITING_MAX + 9).encode(), WAITING_MAX)


def test_a_hostile_name_is_data_everywhere(served: Server) -> None:
    with httpx.Client(base_url=served.address, timeout=PATIENCE_S) as client:
        answer = client.get("/api/v1/graph")
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert HOSTILE in [each["name"] for vertex in answer.json()["vertices"] for each in vertex["operators"]]
        assert client.get(f"/api/v1/vertices/{HOSTILE}").headers["content-type"] == "application/json"
        assert "script-src 'self'" in client.get("/").headers["content-security-policy"]
        for path in ("/static/../server.py", "/static/%2e%2e/server.py", "/etc/passwd"):
            assert client.get(path).status_code == 404


def test_series_grow_by_themselves(served: Server) -> None:
    with httpx.Client(base_url=served.address, timeout=PATIENCE_S) as client:
        wait_for(lambda: client.get("/api/v1/history").json()["series"]["busy"])


def test_the_description_holds_for_whatever_is_asked(ended: Server) -> None:
    # Of a pipeline that has ended: one that runs would take the time that this has.
    schema = schemathesis.openapi.from_url(f"{ended.address}/api/v1/openapi.json")
    tried: set[tuple[str, str]] = set()
    for operation in schema.exclude(path_regex="events|profile").get_all_operations():
        # Without parameters there is only one request.
        count = 5 if operation.ok().path_parameters or operation.ok().query else 1
        few = settings(
            max_examples=count,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
            database=None,
        )

        @few
        @given(operation.ok().as_strategy())
        def check(case: Any) -> None:
            tried.add((case.method, case.path))
            case.call_and_validate(base_url=ended.address)

        check()
    assert len(tried) == len(RESOURCES) - 1


def test_the_server_ends_with_its_pipeline_and_lets_open_pages_go() -> None:
    pipeline, _ = counting("closing")
    with running(pipeline) as (_, sight, _client):
        server = Server(sight, Guard(TOKEN), port=0).start()
        is_open, is_over = threading.Event(), threading.Event()

        def listen() -> None:
            with httpx.stream("GET", f"{server.address}/api/v1/events", timeout=PATIENCE_S) as answer:
                for _ in answer.iter_lines():
                    is_open.set()
            is_over.set()

        listening = threading.Thread(target=listen, daemon=True)
        listening.start()
        assert is_open.wait(PATIENCE_S)
        server.close()
        assert is_over.wait(PATIENCE_S)
        wait_for(lambda: not server._thread.is_alive())
        with pytest.raises(OSError), socket.create_connection(("127.0.0.1", server.port), timeout=5):
            pass
