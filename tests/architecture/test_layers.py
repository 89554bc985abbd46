"""Dependencies between the layers point down only.

    cli -> testing -> pipeline -> dashboard -> checkpoints -> spark -> driver | worker -> exchange -> mailbox -> api
    -> graph -> operators -> state -> connectors | storage -> protocol -> model | columnar | metrics -> user_code
    -> errors -> ids | version

A layer may import itself and every layer below it. The parts of one layer do not import each other. `testing` may
import everything below `cli`. The package's own `__init__` only passes public names on: it may import whatever is
public, and only what stands above it may import from it, because everything else would import itself in a circle.

One module names a type of a layer above it, for type checkers only: a sink returns the pipeline that it completes.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.architecture.import_graph import imports_of, modules_of

PACKAGE = Path(__file__).parents[2] / "src" / "penstock"

FACADE = "__init__"

LAYERS: tuple[frozenset[str], ...] = (
    frozenset({"ids", "version"}),
    # Errors name operators, subtasks and checkpoints, so they may use the ids; ids never raise.
    frozenset({"errors"}),
    frozenset({"user_code"}),
    frozenset({"model", "columnar", "metrics"}),
    frozenset({"protocol"}),
    frozenset({"connectors", "storage"}),
    frozenset({"state"}),
    frozenset({"operators"}),
    frozenset({"graph"}),
    frozenset({"api"}),
    frozenset({"mailbox"}),
    frozenset({"exchange"}),
    # The two processes of a pipeline: neither knows the other's code.
    frozenset({"driver", "worker"}),
    frozenset({"spark"}),
    # The page shows the state of the last checkpoint.
    frozenset({"checkpoints"}),
    frozenset({"dashboard"}),
    frozenset({"pipeline"}),
    frozenset({FACADE}),
    frozenset({"testing"}),
    frozenset({"cli", "__main__"}),
)

RANK = {part: rank for rank, layer in enumerate(LAYERS) for part in layer}


TYPES_ONLY = frozenset({("penstock.api.stream", "penstock.pipeline")})


def part_of(module: str) -> str:
    """The part of the package that a module belongs to: `penstock.protocol.credit` belongs to `protocol`."""
    _, _, inside = module.partition(".")
    return inside.partition(".")[0] or FACADE


def layer_violations(package: Path) -> list[str]:
    """One line for every import that does not point down and for every part that no layer names."""
    violations = [
        f"{module} is in no layer: say in LAYERS where `{part_of(module)}` belongs"
        for module in modules_of(package)
        if part_of(module) not in RANK
    ]
    for found in imports_of(package):
        if found.target.partition(".")[0] != package.name:
            continue
        upper, lower = part_of(found.importer), part_of(found.target)
        if upper == lower or upper not in RANK or (found.importer, found.target) in TYPES_ONLY:
            continue
        if lower not in RANK:
            violations.append(f"{found}: `{lower}` is in no layer")
        elif RANK[upper] <= RANK[lower] and {upper, lower} != {"cli", "__main__"}:
            violations.append(f"{found}: `{upper}` may not depend on `{lower}`")
    return violations


def test_dependencies_of_penstock_point_down_only() -> None:
    assert layer_violations(PACKAGE) == []


def test_types_of_a_layer_above_are_named_and_not_imported() -> None:
    for importer, target in TYPES_ONLY:
        tree = ast.parse(modules_of(PACKAGE)[importer].read_text(encoding="utf-8"))
        guarded = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
        inside = {id(node) for block in guarded for node in ast.walk(block)}
        imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module == target]
        assert imports
        assert all(id(node) in inside for node in imports)


def package_with(root: Path, sources: dict[str, str]) -> Path:
    """A package `penstock` below `root` that consists of the given files."""
    for name, text in {"__init__.py": "", **sources}.items():
        path = root / "penstock" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root / "penstock"


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("protocol/credit.py", "from penstock.worker.worker import Worker"),
        ("protocol/credit.py", "import penstock.worker.worker as worker"),
        ("protocol/credit.py", "from penstock import worker"),
        ("protocol/credit.py", "from ..worker import worker"),
        ("protocol/credit.py", "from .. import worker"),
        ("protocol/__init__.py", "from ..worker.worker import Worker"),
        ("protocol/credit.py", "def late():\n    from penstock.worker import worker"),
        ("protocol/credit.py", "import importlib\nimportlib.import_module('penstock.worker.worker')"),
        (
            "protocol/credit.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from penstock.worker.worker import Worker",
        ),
        ("worker/worker.py", "from penstock import Pipeline"),
        ("connectors/files.py", "from penstock.storage import port"),
        ("storage/port.py", "from penstock.connectors import files"),
        ("api/stream.py", "from penstock.mailbox import timers"),
        ("driver/checkpoints/coordinator.py", "from penstock.worker import worker"),
        ("worker/subtask.py", "from penstock.driver import coordinator"),
        ("state/keyed.py", "from penstock.operators import contract"),
        ("ids.py", "from penstock.errors import PenstockError"),
        ("spark/launch.py", "from penstock.testing import run"),
        ("testing.py", "from penstock.cli import main"),
        ("dashboard/server.py", "from penstock.cli import main"),
        ("__init__.py", "from penstock.cli import main"),
    ],
)
def test_an_import_that_does_not_point_down_is_found(tmp_path: Path, file: str, source: str) -> None:
    others = {
        "worker/__init__.py": "",
        "worker/worker.py": "",
        "storage/__init__.py": "",
        "storage/port.py": "",
        "driver/__init__.py": "",
    }
    assert len(layer_violations(package_with(tmp_path, others | {file: source}))) == 1


def test_a_part_without_a_layer_is_found(tmp_path: Path) -> None:
    package = package_with(tmp_path, {"utils.py": "", "api/stream.py": "from penstock.utils import chunked"})
    assert layer_violations(package) == [
        "penstock.utils is in no layer: say in LAYERS where `utils` belongs",
        "penstock.api.stream:1 imports penstock.utils: `utils` is in no layer",
    ]


def test_imports_that_point_down_are_accepted(tmp_path: Path) -> None:
    package = package_with(
        tmp_path,
        {
            "__init__.py": "from penstock.pipeline import Pipeline",
            "__main__.py": "from penstock.cli import main",
            "api/stream.py": "from penstock import errors\nfrom ..connectors.files import Files\nimport pyarrow",
            "connectors/files.py": "from penstock.protocol import commit\nfrom . import __name__ as own",
            "errors.py": "from penstock.ids import CheckpointId",
            "ids.py": "import typing",
            "protocol/commit.py": "from .. import ids\nfrom .credit import Credit",
            "protocol/credit.py": "from penstock.errors import ProtocolViolation",
            "testing.py": "from penstock.spark import launch\nfrom penstock import Pipeline",
            "cli/__init__.py": "from penstock import Pipeline, testing",
        },
    )
    assert layer_violations(package) == []
