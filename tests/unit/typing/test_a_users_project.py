"""A user's project that is checked with mypy or pyright sees the types of Penstock: they are part of its surface.

`project/` is such a project. Its right files assert the types that they get, and `wrong.py` has mistakes that must be
found, each with a message that leads to its cause. Each checker runs once over all of it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

import penstock

PROJECT = Path(__file__).parent / "project"
SOURCES = Path(penstock.__file__).parents[1]
FILES = [str(PROJECT / name) for name in ("start.py", "state.py", "wrong.py", "functions.py")]

MISTAKES = {
    # the mistake: the words of mypy, the words of pyright
    "paralelism=2": ('Unexpected keyword argument "paralelism"', 'No parameter named "paralelism"'),
    'parallelism="two"': ('"parallelism" to "start" of "Pipeline" has incompatible', 'parameter "parallelism"'),
    'checkpoint_mode="sometimes"': (
        "Literal['aligned', 'unaligned', 'aligned-with-timeout']",
        '"checkpoint_mode"',
    ),
    'state_backend="rocks"': ("expected \"Literal['memory']\"", 'parameter "state_backend"'),
    "pipeline.start(spark)": ('Missing positional argument "checkpoints"', 'missing for parameter "checkpoints"'),
    "rows_read": ('"Status" has no attribute "rows_read"', '"rows_read" for class "Status"'),
    "restarts.upper": ('"int" has no attribute "upper"', '"upper" for class "int"'),
    "retained_checkpoint=3": ('Unexpected keyword argument "retained_checkpoint"', '"retained_checkpoint"'),
    "append_value((1,))": ('"ValueState" has no attribute "append_value"', '"append_value" for class "ValueState"'),
    "update((1,))": ('"ListState" has no attribute "update"', '"update" for class "ListState"'),
    'map("m", schema)': ('Missing positional argument "value_schema"', 'missing for parameter "value_schema"'),
    'register("v")': ("StateDescriptor", "StateDescriptor"),
    'join("j")': ('"KeyedState" has no attribute "join"', '"join" for class "KeyedState"'),
    "= Nothing()": ("Incompatible types in assignment", '"Nothing" is not assignable to'),
}

Found = Mapping[tuple[str, int], str]
"""By file and line, all errors that a checker has found there."""


def wrong_lines() -> dict[int, str]:
    lines = (PROJECT / "wrong.py").read_text(encoding="utf-8").splitlines()
    return {number: line for number, line in enumerate(lines, start=1) if line.endswith("# wrong")}


def gathered(errors: list[tuple[str, int, str]]) -> Found:
    found: dict[tuple[str, int], str] = {}
    for file, line, message in errors:
        place = (Path(file).name, line)
        found[place] = f"{found.get(place, '')}{message}\n"
    return found


@pytest.fixture(scope="module")
def by_mypy(tmp_path_factory: pytest.TempPathFactory) -> Found:
    own = tmp_path_factory.mktemp("mypy")
    # Of an installed package mypy shows no errors, and of sources on its path it does: `silent` makes them alike.
    (own / "mypy.ini").write_text("[mypy]\nstrict = True\nfollow_imports = silent\n[mypy-pyarrow.*]\n")
    with (own / "mypy.ini").open("a") as config:
        config.write("ignore_missing_imports = True\n")
    command = [sys.executable, "-m", "mypy", f"--config-file={own / 'mypy.ini'}", f"--cache-dir={own / 'cache'}"]
    done = subprocess.run(
        [*command, "--no-error-summary", "--hide-error-context", "--no-pretty", *FILES],
        env={**os.environ, "MYPYPATH": str(SOURCES)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    lines = re.findall(r"^(.*?):(\d+): error: (.*)$", done.stdout, re.MULTILINE)
    return gathered([(file, int(line), message) for file, line, message in lines])


@pytest.fixture(scope="module")
def by_pyright(tmp_path_factory: pytest.TempPathFactory) -> Found:
    own = tmp_path_factory.mktemp("pyright")
    settings = {"include": FILES, "extraPaths": [str(SOURCES)], "typeCheckingMode": "standard"}
    (own / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable]
    done = subprocess.run([*command, "--project", str(own)], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    shown = [each for each in json.loads(done.stdout)["generalDiagnostics"] if each["severity"] == "error"]
    return gathered([(each["file"], each["range"]["start"]["line"] + 1, each["message"]) for each in shown])


def test_the_package_says_that_it_is_typed() -> None:
    assert (Path(penstock.__file__).parent / "py.typed").exists()


def test_every_mistake_of_the_project_is_listed_once() -> None:
    listed = [[part for part in MISTAKES if part in line] for line in wrong_lines().values()]
    assert [len(parts) for parts in listed] == [1] * len(MISTAKES)


@pytest.mark.parametrize("checker", ["by_mypy", "by_pyright"])
def test_the_right_files_have_the_types_that_they_assert(checker: str, request: pytest.FixtureRequest) -> None:
    found: Found = request.getfixturevalue(checker)
    assert {place: message for place, message in found.items() if place[0] != "wrong.py"} == {}


@pytest.mark.parametrize(("checker", "words"), [("by_mypy", 0), ("by_pyright", 1)])
def test_every_mistake_is_found_and_nothing_else(checker: str, words: int, request: pytest.FixtureRequest) -> None:
    found: Found = request.getfixturevalue(checker)
    lines = wrong_lines()
    assert sorted(line for file, line in found if file == "wrong.py") == sorted(lines)
    for number, line in lines.items():
        (expected,) = [texts[words] for part, texts in MISTAKES.items() if part in line]
        message = found["wrong.py", number]
        assert expected in message, (line, message)
