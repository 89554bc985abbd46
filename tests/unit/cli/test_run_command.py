"""`penstock run` before Spark is started: what is wrong is said at once, and directories have readable names."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock import ConsoleSink, Pipeline
from penstock.cli import run_command
from penstock.cli.run_command import default_directory
from penstock.ids import OperatorName
from penstock.storage import paths
from penstock.testing import ListSource
from tests.unit.cli.kit import directory, penstock

TARGET = "tests.unit.cli.test_run_command:pipeline"

pipeline = Pipeline("one").source(ListSource([{"a": 1}])).sink(ConsoleSink())


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Starting Spark would be a failure of these tests."""

    def refuse(*arguments: object, **options: object) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr(run_command, "make_session", refuse)
    monkeypatch.setattr(run_command, "connect", refuse)


@pytest.mark.parametrize(
    ("restore", "message"),
    [("8", "checkpoint 8 does not exist; the existing ones are 3"), ("nowhere", "there is no directory")],
)
def test_a_checkpoint_to_restore_that_is_not_there_is_an_error_before_spark_starts(
    restore: str, message: str, tmp_path: Path
) -> None:
    directory(tmp_path, 3)
    refused = penstock("run", TARGET, "--checkpoints", tmp_path, "--restore", restore)
    assert refused.exit_code == 1
    assert message in " ".join(refused.stderr.split())


def test_a_server_has_its_master_already(tmp_path: Path) -> None:
    refused = penstock("run", TARGET, "--checkpoints", tmp_path, "--remote", "sc://a", "--master", "local")
    assert refused.exit_code == 2
    assert "leave --master out" in " ".join(refused.stderr.split())


def test_the_directory_has_the_name_of_the_pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert default_directory("totals") == "checkpoints/totals"
    assert default_directory("Running totals (v2)") == "checkpoints/running-totals-v2"
    assert default_directory("../..") != "checkpoints/"
    assert ".." not in default_directory("../..").split("/")
    # One that an earlier version has made goes on being used.
    earlier = f"checkpoints/{paths.slug(OperatorName('running totals'))}"
    assert earlier != default_directory("running totals") == "checkpoints/running-totals"
    (tmp_path / earlier).mkdir(parents=True)
    assert default_directory("running totals") == earlier
