"""The application as a whole: help, version, usage, orders, and how errors look."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.cli import control_commands
from penstock.cli.failures import advice_for, reported
from penstock.cli.session import properties_for
from penstock.driver.control import Command
from penstock.errors import FencedError, NoReadableCheckpoint, OptionError, PenstockError
from penstock.ids import CheckpointId
from penstock.storage import LocalStore
from penstock.storage.lease import Lease
from tests.unit.cli.kit import directory, penstock

COMMANDS = [
    (),
    ("new",),
    ("run",),
    ("status",),
    ("checkpoints",),
    ("checkpoints", "list"),
    ("checkpoints", "show"),
    ("checkpoints", "verify"),
    ("checkpoints", "delete"),
    ("savepoint",),
    ("stop",),
]


def test_the_version_is_that_of_the_package() -> None:
    result = penstock("--version")
    assert (result.exit_code, result.stdout) == (0, f"penstock {importlib.metadata.version('penstock')}\n")


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_explains_itself_with_an_example(command: tuple[str, ...]) -> None:
    result = penstock(*command, "--help")
    assert result.exit_code == 0
    assert "Example: penstock" in " ".join(result.stdout.split())
    # A backslash of the sources, or a mark of the formatter, that was shown.
    assert "\\" not in result.stdout
    assert "\b" not in result.stdout


def test_looking_at_checkpoints_does_not_import_spark() -> None:
    code = "import sys, penstock.cli; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ("frobnicate",),
        ("run",),
        ("run", "no_such_module_here:pipeline"),
        ("run", "x:y", "--parallelism", "0"),
        ("run", "x:y", "--set", "no_such_setting=1"),
        ("run", "x:y", "--conf", "spark"),
        ("stop",),
    ],
)
def test_wrong_usage_has_exit_code_2(arguments: tuple[str, ...]) -> None:
    assert penstock(*arguments).exit_code == 2


@pytest.mark.parametrize("command", [("savepoint",), ("stop",), ("stop", "--drain")])
def test_an_order_to_nobody_is_an_error(tmp_path: Path, command: tuple[str, ...]) -> None:
    directory(tmp_path, 3)
    result = penstock(*command, tmp_path)
    assert result.exit_code == 1
    assert f"no pipeline is running on {tmp_path}" in result.stderr


def test_orders_are_given_as_they_were_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[Command, dict[str, str] | None, float]] = []

    def give_order(
        store: object, place: str, command: Command, arguments: dict[str, str] | None = None, *, timeout_s: float
    ) -> CheckpointId | None:
        given.append((command, arguments, timeout_s))
        return None if command is Command.STOP else CheckpointId(9)

    monkeypatch.setattr(control_commands, "give_order", give_order)
    monkeypatch.chdir(tmp_path)
    Lease(LocalStore(tmp_path / "here"), "totals").beat()
    outputs = [
        penstock("savepoint", "here").stdout,
        penstock("savepoint", "here", "--to", "copy", "--timeout", 5).stdout,
        penstock("savepoint", "here", "--to", "s3://bucket/copy", "--json").stdout,
        penstock("stop", "here").stdout,
        penstock("stop", "here", "--drain").stdout,
    ]
    # A path is made absolute: the driver has another current directory.
    assert given == [
        (Command.SAVEPOINT, {}, 60.0),
        (Command.SAVEPOINT, {"path": str(tmp_path / "copy")}, 5.0),
        (Command.SAVEPOINT, {"path": "s3://bucket/copy"}, 60.0),
        (Command.STOP, None, 60.0),
        (Command.DRAIN, None, 60.0),
    ]
    assert outputs[0] == "savepoint 9 is complete: start from it with --restore 9\n"
    assert outputs[3:] == ["stopped\n", "stopped with savepoint 9\n"]


def test_an_error_is_its_message_with_advice_and_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left, reported():
        raise FencedError("generation 7 has [taken] over")
    assert left.value.code == 1
    text = capsys.readouterr().err
    assert text.startswith("error: generation 7 has [taken] over\n")
    assert "Nothing is lost" in text
    assert "Traceback" not in text
    with pytest.raises(SystemExit), reported(verbose=True):
        raise PenstockError("again")
    assert "Traceback" in capsys.readouterr().err


def test_advice_is_found_by_the_nearest_kind() -> None:
    assert "verify" in str(advice_for(NoReadableCheckpoint("none")))
    assert advice_for(OptionError("says it all itself")) is None


def test_what_the_user_sets_for_spark_wins() -> None:
    properties = properties_for("p", "local[2]", ["/here"], {"spark.ui.enabled": "true"}, verbose=False)
    assert properties["spark.ui.enabled"] == "true"
    assert properties["spark.log.level"] == "ERROR"
    assert properties["spark.driver.host"] == "127.0.0.1"
    assert properties["spark.executorEnv.PYTHONPATH"].startswith("/here")
    assert "spark.driver.host" not in properties_for("p", "spark://host:7077", [], {}, verbose=True)
