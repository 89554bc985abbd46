"""Whom the page answers, and who may give orders."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.dashboard.guard import Guard
from penstock.dashboard.tokens import FILE, token_of
from penstock.driver.control import Command
from penstock.storage import LocalStore, MemoryStore
from tests.unit.dashboard.kit import TOKEN, Client, Running, counting, running

BEARER = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture(scope="module")
def guarded() -> Iterator[tuple[Running, Client]]:
    pipeline, _ = counting("guarded")
    with running(pipeline) as (ran, _, client):
        yield ran, client


@pytest.mark.parametrize(
    "host",
    ["localhost", "localhost:4050", "127.0.0.1:4050", "[::1]:4050", "10.1.2.3", "LOCALHOST:1", os.uname().nodename],
)
def test_addresses_and_names_of_this_machine_are_answered(host: str) -> None:
    assert Guard(TOKEN).refusal(host, None) is None


@pytest.mark.parametrize(
    "host", [None, "", "evil.example", "evil.example:4050", "127.0.0.1.evil.example", "[evil]", "["]
)
def test_a_name_that_was_made_to_point_here_is_refused(host: str | None) -> None:
    refusal = Guard(TOKEN).refusal(host, None)
    assert refusal is not None and "ui_allowed_hosts" in refusal.cure


def test_a_name_that_the_user_allows_is_answered() -> None:
    assert Guard(TOKEN, ["Spark-Driver.internal"]).refusal("spark-driver.internal:4050", None) is None


def test_a_page_of_another_origin_is_refused_everywhere(guarded: tuple[Running, Client]) -> None:
    _, client = guarded
    for origin in ("http://evil.example", "null", "http://localhost:4051", ""):
        answer = client.get("/api/v1/overview", headers={"Origin": origin})
        assert (answer.status_code, sorted(answer.json())) == (403, ["cure", "error"])
    assert client.get("/api/v1/overview", headers={"Origin": "http://localhost:4050"}).status_code == 200


@pytest.mark.parametrize("path", ["/", "/static/style.css", "/static/none.css", "/api/v1/overview", "/metrics"])
def test_every_answer_allows_no_script_but_our_own(guarded: tuple[Running, Client], path: str) -> None:
    _, client = guarded
    headers = client.get(path).headers
    assert "default-src 'none'; script-src 'self'; style-src 'self';" in headers["Content-Security-Policy"]
    assert (headers["Cache-Control"], headers["X-Content-Type-Options"]) == ("no-store", "nosniff")


@pytest.mark.parametrize("path", ["savepoints", "stop", "drain"])
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer "},
        {"Authorization": f"Bearer {TOKEN}x"},
        {"Authorization": f"Basic {TOKEN}"},
        {"Authorization": TOKEN},
        BEARER | {"Origin": "http://evil.example"},
        BEARER | {"Host": "evil.example"},
    ],
)
def test_an_order_without_the_token_or_from_elsewhere_is_refused(
    guarded: tuple[Running, Client], path: str, headers: dict[str, str]
) -> None:
    ran, client = guarded
    answer = client.post(f"/api/v1/{path}", headers=headers)
    assert answer.status_code == 403 and answer.json()["cure"]
    assert ran.orders == []


def test_without_a_token_nobody_gives_orders() -> None:
    assert not Guard(None).allows_orders("Bearer None")
    assert not Guard(None).allows_orders("Bearer ")


def test_every_order_is_carried_out_and_logged_and_its_token_is_not(caplog: pytest.LogCaptureFixture) -> None:
    pipeline, _ = counting("ordered")
    with running(pipeline) as (ran, _, client), caplog.at_level(logging.WARNING, "penstock"):
        assert client.get("/api/v1/overview", headers=BEARER).json()["orders_allowed"]
        client.post("/api/v1/drain")
        for path in ("savepoints", "drain"):
            answer = client.post(f"/api/v1/{path}", headers=BEARER)
            assert answer.status_code == 202 and answer.json()["accepted_at_ms"]
        assert ran.orders == [Command.SAVEPOINT, Command.DRAIN]
    said = [record.getMessage() for record in caplog.records if "order " in record.getMessage()]
    assert [line.split("order ")[1].split()[0] for line in said] == ["drain", "savepoint", "drain"]
    assert "refused" in said[0] and "accepted" in said[1] and TOKEN not in caplog.text


def test_a_token_is_kept_for_its_owner_alone_and_used_again(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    token, file = token_of(store)
    assert file == str(tmp_path / FILE) and len(token) >= 32
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600
    assert token_of(store) == (token, file)


@pytest.mark.parametrize("spoil", [lambda path: path.chmod(0o644), lambda path: path.write_text("short")])
def test_a_token_that_others_may_know_is_replaced(tmp_path: Path, spoil: Any) -> None:
    token, _ = token_of(LocalStore(tmp_path))
    spoil(tmp_path / FILE)
    again, _ = token_of(LocalStore(tmp_path))
    assert again != token and stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600


def test_a_token_behind_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("A" * 40)
    (tmp_path / "elsewhere").chmod(0o600)
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / FILE).symlink_to(tmp_path / "elsewhere")
    token, _ = token_of(LocalStore(tmp_path / "store"))
    assert token != "A" * 40 and (tmp_path / "elsewhere").read_text() == "A" * 40


def test_an_object_store_does_not_keep_the_token() -> None:
    first, file = token_of(MemoryStore())
    assert file is None and first != token_of(MemoryStore())[0]
