"""`penstock run --remote`, up to the server."""

from __future__ import annotations

from typing import Any

import pyspark.sql
import pytest

from penstock.cli.remote import connect
from penstock.errors import PenstockError


class Builder:
    """Remembers what it is asked for; ends in `failure`, if there is one."""

    def __init__(self, failure: BaseException | None = None) -> None:
        self.failure = failure
        self.asked: dict[str, Any] = {}

    def remote(self, url: str) -> Builder:
        self.asked["remote"] = url
        return self

    def config(self, key: str, value: str) -> Builder:
        self.asked[key] = value
        return self

    def getOrCreate(self) -> Builder:
        if self.failure is not None:
            raise self.failure
        return self

    def addArtifacts(self, *files: str, **kinds: bool) -> None:
        self.asked["files"] = files, kinds


def builder(monkeypatch: pytest.MonkeyPatch, failure: BaseException | None = None) -> Builder:
    made = Builder(failure)
    monkeypatch.setattr(pyspark.sql, "SparkSession", type("SparkSession", (), {"builder": made}))
    monkeypatch.setenv("PYSPARK_PYTHON", "python")
    return made


def test_a_server_gets_the_module_of_the_pipeline_and_the_settings_of_the_user_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = builder(monkeypatch)
    connect("sc://server:15002", {"spark.sql.shuffle.partitions": "2"}, "totals.py", verbose=False)
    assert made.asked == {
        "remote": "sc://server:15002",
        "spark.sql.shuffle.partitions": "2",
        "files": (("totals.py",), {"pyfile": True}),
    }


@pytest.mark.parametrize("failure", [ImportError("zstandard must be installed"), SystemExit(0)])
def test_a_server_that_cannot_be_had_is_an_error_with_the_usual_reasons(
    failure: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder(monkeypatch, failure)
    with pytest.raises(PenstockError, match=r"(?s)Spark Connect server at sc://server: .*pyspark\[connect\]"):
        connect("sc://server", {}, None, verbose=False)
