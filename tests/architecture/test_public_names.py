"""Users, and all that shows them how, import public names only; and these have no units in their parameters."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
import penstock.checkpoints
import penstock.testing
from penstock.cli import templates

REPOSITORY = Path(__file__).parents[2]
PUBLIC = {name: importlib.import_module(name) for name in ("penstock", "penstock.testing", "penstock.checkpoints")}
FOR_TESTS = {
    "ABORT",
    "CHECKPOINT",
    "PAUSE",
    "CollectSink",
    "ContractBroken",
    "ListSource",
    "Result",
    "Schedule",
    "check_sink",
    "check_source",
    "collect",
    "run",
}
_FENCE = re.compile(r"^```python[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_UNITS = ("_ms", "_s", "_seconds", "_bytes")


def sources() -> list[Any]:
    """Programs that users read: examples, blocks in documents, and what `penstock new` writes."""
    examples = sorted(REPOSITORY.glob("examples/**/*.py"))
    found = [pytest.param(path.read_text("utf-8"), id=path.name) for path in examples]
    for path in [REPOSITORY / "README.md", *sorted(REPOSITORY.glob("docs/**/*.md"))]:
        blocks = _FENCE.findall(path.read_text("utf-8"))
        found += [pytest.param(block, id=f"{path.name}-{number}") for number, block in enumerate(blocks, 1)]
    written = [value for value in vars(templates).values() if isinstance(value, str) and "import" in value]
    found += [pytest.param(text, id=f"new-{number}") for number, text in enumerate(written, 1) if _is_program(text)]
    return found


def _is_program(text: str) -> bool:
    try:
        return bool(ast.parse(text).body)
    except SyntaxError:
        return False


def private_imports(source: str) -> list[str]:
    """What a program imports of Penstock that is not public."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [each.name for each in node.names if _is_ours(each.name) and each.name not in PUBLIC]
        elif isinstance(node, ast.ImportFrom) and _is_ours(node.module or ""):
            known = getattr(PUBLIC.get(node.module or ""), "__all__", ())
            names = [each.name for each in node.names if not (each.name == "*" and node.module in PUBLIC)]
            found += [
                f"{node.module}.{name}" for name in names if name not in known and f"{node.module}.{name}" not in PUBLIC
            ]
    return found


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] == "penstock"


@pytest.mark.parametrize("source", sources())
def test_examples_and_documents_import_public_names_only(source: str) -> None:
    assert private_imports(source) == []


def test_a_private_import_is_found() -> None:
    assert private_imports(
        "from penstock.ids import CheckpointId\nimport penstock.spark.job\nfrom penstock import Gone"
    ) == [
        "penstock.ids.CheckpointId",
        "penstock.spark.job",
        "penstock.Gone",
    ]
    assert private_imports("from penstock import Pipeline, checkpoints\nfrom penstock.testing import run") == []


def test_names_for_tests_are_in_testing_and_nowhere_else() -> None:
    assert set(penstock.testing.__all__) == FOR_TESTS
    assert not FOR_TESTS & set(penstock.__all__)
    assert [name for name in FOR_TESTS if hasattr(penstock, name)] == []


def signatures() -> Iterator[tuple[str, inspect.Signature]]:
    for module_name, module in PUBLIC.items():
        for name in module.__all__:
            member = getattr(module, name)
            if inspect.isclass(member):
                yield from _of_class(f"{module_name}.{name}", member)
            elif inspect.isfunction(member):
                yield f"{module_name}.{name}", inspect.signature(member)


def _of_class(name: str, kind: type) -> Iterator[tuple[str, inspect.Signature]]:
    # The fields of a value that users read have units in their names: nobody makes one.
    is_value = dataclasses.is_dataclass(kind) and kind.__name__ != "Settings"
    if not is_value and not issubclass(kind, Exception) and kind.__module__.startswith("penstock"):
        yield name, inspect.signature(kind)
    for method, member in inspect.getmembers(kind, inspect.isfunction):
        if not method.startswith("_") and member.__module__.startswith("penstock"):
            yield f"{name}.{method}", inspect.signature(member)


def test_no_public_parameter_has_a_unit_in_its_name() -> None:
    found = {name: list(signature.parameters) for name, signature in signatures()}
    assert len(found) > 100
    assert {"penstock.Stream.with_watermark", "penstock.KeyedContext.value", "penstock.Settings"} <= found.keys()
    assert [
        f"{name}({each})" for name, parameters in found.items() for each in parameters if each.endswith(_UNITS)
    ] == []
