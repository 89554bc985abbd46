"""What the documents say about the code is so: names, paths, defaults, commands, diagrams and examples.

Prose cannot be checked, but everything in it that has a name can. A document that names something which is not there
any more fails here, and not in front of its reader.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from penstock import errors
from penstock.mailbox import frames
from penstock.model.units import duration_ms, size_bytes
from penstock.protocol.barrier import BarrierFlag
from penstock.protocol.coordinator.state import Policy
from penstock.protocol.declines import DeclineReason
from penstock.protocol.manifest import SnapshotKind
from penstock.protocol.restart import RestartPolicy
from penstock.spark.settings import Settings
from penstock.spark.status import Status
from penstock.worker.settings import WorkerSettings
from tests.architecture.test_layers import LAYERS
from tests.mutants.catalogue import MUTANTS
from tests.simulation.checkers import CHECKERS
from tests.simulation.production import SIMULATED
from tests.simulation.scenario import FaultKind
from tools import protocol_diagrams

REPOSITORY = Path(__file__).parents[2]
PACKAGE = REPOSITORY / "src" / "penstock"
DOCUMENTS = sorted(
    [
        *(REPOSITORY / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")),
        *REPOSITORY.glob("docs/**/*.md"),
    ]
)
PROTOCOL = REPOSITORY / "docs" / "internals" / "PROTOCOL.md"
SETTINGS_PAGE = REPOSITORY / "docs" / "tuning.md"
STATUS_PAGE = REPOSITORY / "docs" / "monitoring.md"
ERRORS_PAGE = REPOSITORY / "docs" / "errors.md"
CHECKPOINTS_PAGE = REPOSITORY / "docs" / "checkpoints.md"
GLOSSARY = REPOSITORY / "docs" / "internals" / "GLOSSARY.md"
DECISIONS = sorted((REPOSITORY / "docs" / "internals" / "decisions").glob("*.md"))

SETTINGS: dict[str, type] = {
    "Settings": Settings,
    "WorkerSettings": WorkerSettings,
    "Policy": Policy,
    "RestartPolicy": RestartPolicy,
}
PATH_ROOTS = ("src", "tests", "docs", "tools", "examples", "benchmarks")
PACKAGE_PARTS = tuple(sorted(path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()))

_FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")
_UNITS = {"s": 1.0, "ms": 0.001, "KiB": 1024.0, "MiB": 1024.0 * 1024}


def shown(path: Path) -> str:
    return str(path.relative_to(REPOSITORY))


each_document = pytest.mark.parametrize("document", DOCUMENTS, ids=shown)


# --- reading markdown ---


def prose_of(text: str) -> str:
    """The text without its blocks of code."""
    return _FENCE.sub("", text)


def names_in(text: str) -> list[str]:
    """What stands between backticks in the prose."""
    return _CODE.findall(prose_of(text))


def tables_in(text: str) -> Iterator[list[dict[str, str]]]:
    """Every table as a list of rows, each a dictionary by the names of the columns."""
    header: list[str] | None = None
    rows: list[dict[str, str]] = []
    for line in [*prose_of(text).splitlines(), ""]:
        if not line.startswith("|"):
            if header is not None:
                yield rows
            header, rows = None, []
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if header is None:
            header = cells
        elif not all(set(cell) <= {"-", ":"} for cell in cells):
            rows.append(dict(zip(header, cells, strict=False)))


def column(text: str, name: str) -> list[str]:
    """The cells below `name`, over all tables, without their backticks."""
    return [row[name].strip("`") for rows in tables_in(text) for row in rows if name in row]


def anchors_of(text: str) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", prose_of(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


# --- the parts of a document that have names ---


def missing_paths(text: str) -> list[str]:
    """Paths between backticks that are neither in the repository nor below the package."""
    found = []
    for name in names_in(text):
        root, slash, _ = name.partition("/")
        if not slash or " " in name or any(sign in name for sign in "<*…"):
            continue
        home = REPOSITORY if root in PATH_ROOTS else PACKAGE if root in PACKAGE_PARTS and name.endswith(".py") else None
        if home is not None and not (home / name).exists():
            found.append(name)
    return found


def missing_links(text: str, home: Path) -> list[str]:
    found = []
    for target in _LINK.findall(prose_of(text)):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        path = (home / name).resolve() if name else None
        if path is not None and not path.exists():
            found.append(target)
        elif anchor:  # Pictures are linked too, and only a text has anchors.
            linked = text if path is None else path.read_text(encoding="utf-8") if path.is_file() else ""
            if anchor not in anchors_of(linked):
                found.append(target)
    return found


def make_targets() -> set[str]:
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z][a-z-]*):", makefile, re.MULTILINE))


def missing_targets(text: str) -> list[str]:
    """Targets of `make` in code that the Makefile does not have."""
    code = [*names_in(text), *(line for _, block in _FENCE.findall(text) for line in block.splitlines())]
    asked = [match[1] for line in code if (match := re.match(r"make ([a-z][a-z-]*)", line))]
    return sorted(set(asked) - make_targets())


def wrong_settings(text: str) -> list[str]:
    """Rows of tables with a setting and a default, where the code has another default, or no such setting."""
    wrong = []
    for row in (row for rows in tables_in(text) for row in rows if {"setting", "default"} <= row.keys()):
        holder, _, name = row["setting"].strip("`").rpartition(".")
        fields = {field.name: field for field in dataclasses.fields(SETTINGS[holder or "Settings"])}
        said = row["default"].strip("`")
        if name not in fields:
            wrong.append(f"{row['setting']} does not exist")
        elif not is_default(said, name, fields[name].default):
            wrong.append(f"{row['setting']} is {fields[name].default!r} by default, and not {said}")
    return wrong


def is_default(said: str, name: str, default: object) -> bool:
    """Whether a document and the code say the same, be it in other units."""
    if not isinstance(default, str) or said.startswith('"'):
        return value_of(said, name) == default
    parse = size_bytes if "size" in name else duration_ms
    return parse(name, said) == parse(name, default)


def value_of(said: str, name: str) -> object:
    """`10 s` is 10, or 10,000 for a setting in milliseconds; everything without a unit is a Python literal."""
    number, _, unit = said.partition(" ")
    if unit in _UNITS:
        value = float(number) * _UNITS[unit]
        return value * 1000 if name.endswith("_ms") or "_ms_" in name else value
    return ast.literal_eval(said)


# --- the documents ---


def test_the_diagrams_of_the_protocol_are_made_from_the_code_as_it_is() -> None:
    text = PROTOCOL.read_text(encoding="utf-8")
    assert protocol_diagrams.updated(text) == text, "run python tools/protocol_diagrams.py"


@each_document
def test_every_path_that_is_named_exists(document: Path) -> None:
    assert missing_paths(document.read_text(encoding="utf-8")) == []


@each_document
def test_every_link_leads_somewhere(document: Path) -> None:
    assert missing_links(document.read_text(encoding="utf-8"), document.parent) == []


@each_document
def test_every_make_target_that_is_named_exists(document: Path) -> None:
    assert missing_targets(document.read_text(encoding="utf-8")) == []


@each_document
def test_every_setting_has_the_default_that_is_stated(document: Path) -> None:
    assert wrong_settings(document.read_text(encoding="utf-8")) == []


def test_the_page_of_settings_lists_every_one_once() -> None:
    names = [field.name for field in dataclasses.fields(Settings)]
    assert sorted(column(SETTINGS_PAGE.read_text(encoding="utf-8"), "setting")) == sorted(names)


def test_the_page_of_monitoring_lists_every_field_of_the_status() -> None:
    cells = column(STATUS_PAGE.read_text(encoding="utf-8"), "field")
    listed = [name for cell in cells for name in re.findall(r"\w+", cell)]
    assert sorted(listed) == sorted(field.name for field in dataclasses.fields(Status))


def test_the_page_of_errors_lists_every_one() -> None:
    known = [
        name for name, value in vars(errors).items() if inspect.isclass(value) and value.__module__ == errors.__name__
    ]
    assert sorted(column(ERRORS_PAGE.read_text(encoding="utf-8"), "error")) == sorted(known)


def test_the_page_of_checkpoints_shows_the_layout_of_the_directory_as_the_paths_module_has_it() -> None:
    layout = re.findall(
        r"^    (\S+)(?:  .*)?$", (PACKAGE / "storage" / "paths.py").read_text(encoding="utf-8"), re.MULTILINE
    )
    documented = [path for path in layout if path.startswith(("owner", "control/", "checkpoints/"))]
    blocks = "".join(block for _, block in _FENCE.findall(CHECKPOINTS_PAGE.read_text(encoding="utf-8")))
    assert len(documented) >= 5
    assert [path for path in documented if path not in blocks] == []


@each_document
def test_every_command_that_is_named_exists(document: Path) -> None:
    commands = cli_commands()
    named = [name for name in names_in(document.read_text(encoding="utf-8")) if name.startswith("penstock ")]
    unknown = [name for name in named if not any(is_part_of(name, command) for command in commands)]
    assert unknown == []


def is_part_of(named: str, command: str) -> bool:
    """`penstock checkpoints` names a group, `penstock run module:pipeline` a command with its argument."""
    said, known = named.split()[1:], command.split()
    return said[: len(known)] == known[: len(said)]


def cli_commands() -> list[str]:
    import typer.main

    application = importlib.import_module("penstock.cli.application").app
    found: list[str] = []

    def walk(command: Any, words: list[str]) -> None:
        children = getattr(command, "commands", {})
        for name, child in children.items():
            walk(child, [*words, name])
        if not children:
            found.append(" ".join(words))

    walk(typer.main.get_command(application), [])
    return found


# --- the protocol ---


def test_every_module_of_the_protocol_is_described() -> None:
    described = set(column(PROTOCOL.read_text(encoding="utf-8"), "module"))
    modules = {
        str(path.relative_to(PACKAGE)) for path in (PACKAGE / "protocol").rglob("*.py") if path.name != "__init__.py"
    }
    assert described == modules


def test_every_invariant_has_its_statement_its_place_and_its_judges() -> None:
    text = PROTOCOL.read_text(encoding="utf-8")
    sections = re.findall(r"^### (I\d+) .+?\n(.*?)(?=^###? )", text, re.MULTILINE | re.DOTALL)
    assert [name for name, _ in sections] == [f"I{number}" for number in range(1, 13)]
    assert [name for name, body in sections if not ("**" in body and "- Kept:" in body and "- Convicts:" in body)] == []


def test_every_test_checker_and_mutant_that_is_named_exists() -> None:
    sources = "".join(path.read_text(encoding="utf-8") for path in sorted((REPOSITORY / "tests").rglob("*.py")))
    mutants = {mutant.name for mutant in MUTANTS}
    for document in DOCUMENTS:
        text = document.read_text(encoding="utf-8")
        named = [name for name in names_in(text) if re.fullmatch(r"test_\w+", name)]
        assert [name for name in named if f"def {name}(" not in sources] == [], shown(document)
        checkers = [name.removeprefix("checkers.") for name in names_in(text) if name.startswith("checkers.")]
        assert set(checkers) <= {checker.__name__ for checker in CHECKERS}, shown(document)
        # A quoted name may go on in the next line.
        listed = re.findall(r"Mutants?: ((?:\"[^\"]+\"[,.]?\s*)+)", text)
        quoted = [" ".join(name.split()) for part in listed for name in re.findall(r"\"([^\"]+)\"", part)]
        assert [name for name in quoted if name not in mutants] == [], shown(document)


def test_the_page_of_the_simulator_lists_every_topology_fault_and_checker() -> None:
    text = (REPOSITORY / "docs" / "internals" / "SIMULATOR.md").read_text(encoding="utf-8")
    faults = [name for cell in column(text, "fault") for name in re.findall(r"`([^`]+)`", f"`{cell}`")]
    assert sorted(faults) == sorted(kind.value for kind in FaultKind)
    assert sorted(column(text, "checker")) == sorted(f"checkers.{checker.__name__}" for checker in CHECKERS)
    topologies = [name for cell in column(text, "topology") for name in re.findall(r"`([^`]+)`", f"`{cell}`")]
    assert sorted(topologies) == sorted(SIMULATED)


def members_of(kind: type[enum.Enum]) -> list[str]:
    return sorted(member.name for member in kind if member.value)


def test_the_tables_of_the_protocol_are_complete() -> None:
    text = PROTOCOL.read_text(encoding="utf-8")
    assert sorted(column(text, "flag")) == members_of(BarrierFlag)
    assert sorted(column(text, "cut")) == members_of(SnapshotKind)
    known = [value for value in vars(frames).values() if inspect.isclass(value) and value.__name__.endswith("Frame")]
    assert sorted(column(text, "frame")) == sorted(kind.__name__ for kind in known)
    said = dict(zip(column(text, "reason"), column(text, "counted"), strict=True))
    assert said == {reason.name: "yes" if reason.is_counted else "no" for reason in DeclineReason}


# --- the rest ---


def test_each_term_of_the_glossary_is_there_once_and_in_order() -> None:
    terms = column(GLOSSARY.read_text(encoding="utf-8"), "term")
    assert len(set(terms)) == len(terms)
    assert terms == sorted(terms, key=str.lower)


def rooms_drawn(text: str) -> list[set[str]]:
    """The rooms of the picture, from top to bottom; those that stand side by side together."""
    picture = next(block for heading, block in _FENCE.findall(text) if not heading and "ids.py" in block)
    rows = [re.match(r"\S+(?:\s*\|\s*\S+)*", line) for line in picture.splitlines()]
    return [set(re.findall(r"(\w+)(?:/|\.py)", row[0])) for row in rows if row]


def test_the_picture_of_the_rooms_shows_every_one_in_the_order_of_the_layers() -> None:
    drawn = rooms_drawn((REPOSITORY / "docs" / "internals" / "ARCHITECTURE.md").read_text(encoding="utf-8"))
    there = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert drawn == [set(layer) & there for layer in reversed(LAYERS) if layer & there]


def test_decisions_are_numbered_without_gaps_have_all_parts_and_are_listed() -> None:
    listed = (REPOSITORY / "docs" / "internals" / "ARCHITECTURE.md").read_text(encoding="utf-8")
    assert [path.name[:4] for path in DECISIONS] == [f"{number:04d}" for number in range(1, len(DECISIONS) + 1)]
    for path in DECISIONS:
        text = path.read_text(encoding="utf-8")
        assert text.startswith(f"# {int(path.name[:4])}. "), path.name
        assert re.findall(r"^## (.+)$", text, re.MULTILINE) == ["Context", "Decision", "Consequences"], path.name
        assert f"(decisions/{path.name})" in listed, path.name


# --- examples ---


def examples(*headings: str) -> list[Any]:
    """Blocks of Python with these headings, or all of them, each with a name that says where it stands."""
    found = []
    for document in DOCUMENTS:
        text = document.read_text(encoding="utf-8")
        for block in _FENCE.finditer(text):
            if block[1].split()[:1] == ["python"] and (not headings or block[1] in headings):
                line = text[: block.start()].count("\n") + 1
                found.append(pytest.param(block[1], block[2], id=f"{shown(document)}:{line}"))
    return found


@pytest.mark.parametrize(("heading", "source"), examples())
def test_every_example_compiles_and_is_run_here_or_on_spark(heading: str, source: str) -> None:
    compile(source, "<example>", "exec")
    for imported in ast.walk(ast.parse(source)):
        if isinstance(imported, ast.ImportFrom) and (imported.module or "").startswith("penstock"):
            module = importlib.import_module(imported.module or "")
            names = [alias.name for alias in imported.names if alias.name != "*"]
            assert [name for name in names if not hasattr(module, name)] == []
    # The others are run by test_documents.py of tests/spark, tests/kafka and tests/tables.
    assert heading in ("python runnable", "python spark", "python kafka", "python postgres")


@pytest.mark.parametrize(("heading", "source"), examples("python runnable"))
def test_every_example_that_can_run_without_spark_does(
    heading: str, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(source, "<example>", "exec"), vars(ModuleType("example")))


# --- the checks themselves have teeth ---


@pytest.mark.parametrize(
    ("check", "text"),
    [
        (missing_paths, "see `worker/gone.py`"),
        (missing_paths, "see `docs/GONE.md`"),
        (missing_targets, "run `make gone`"),
        (missing_targets, "```\nmake gone\n```"),
        (wrong_settings, "| setting | default |\n|---|---|\n| `gone` | `1` |"),
        (wrong_settings, "| setting | default |\n|---|---|\n| `checkpoint_interval` | `11 s` |"),
        (wrong_settings, "| what | setting | default |\n|---|---|---|\n| it | `Policy.backoff_ms` | `1 s` |"),
    ],
)
def test_something_that_is_not_so_is_found(check: Any, text: str) -> None:
    assert len(check(text)) == 1


def test_a_link_to_nowhere_is_found() -> None:
    text = "# A heading\n[here](#a-heading) [gone](GONE.md) [no such part](README.md#gone)"
    assert missing_links(text, REPOSITORY) == ["GONE.md", "README.md#gone"]


def test_a_command_that_is_not_there_is_found() -> None:
    assert is_part_of("penstock checkpoints list DIR", "checkpoints list")
    assert is_part_of("penstock checkpoints", "checkpoints list")
    assert not is_part_of("penstock checkpoints gone", "checkpoints list")
    assert not is_part_of("penstock gone", "run")
