"""The protocol has no I/O, clock, randomness or logging, neither itself nor through a module that it imports.

This is what makes it possible to compare whole (state, actions) values in tests, to run the same code in a seeded
simulator and on Spark, and to reproduce a failure from its events alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.import_graph import Import, imports_of
from tests.architecture.test_layers import PACKAGE, package_with

IMPURE = frozenset(
    {
        # clocks and chance
        *("time", "datetime", "random", "secrets", "uuid"),
        # threads, processes and event loops
        *("asyncio", "concurrent", "multiprocessing", "queue", "signal", "subprocess", "threading"),
        # files, sockets and logs
        *("io", "logging", "os", "pathlib", "shutil", "socket", "tempfile"),
        # the data plane, and what would hide an import from this test
        *("fsspec", "importlib", "numpy", "pandas", "pyarrow", "pyspark", "zmq"),
    }
)


def impurities(package: Path) -> list[str]:
    """One line for every way from a module of `protocol` to an impure one, with the imports that lead there."""
    by_importer: dict[str, list[Import]] = {}
    for found in imports_of(package):
        by_importer.setdefault(found.importer, []).append(found)
    protocol = f"{package.name}.protocol"
    waiting = [(name, name) for name in by_importer if name == protocol or name.startswith(f"{protocol}.")]
    seen = {name for name, _ in waiting}
    impure = []
    while waiting:
        module, way = waiting.pop(0)
        for found in by_importer.get(module, []):
            if found.target.partition(".")[0] in IMPURE:
                impure.append(f"{way}:{found.line} -> {found.target}")
            for reached in _executed_by(found, package.name):
                if reached not in seen:
                    seen.add(reached)
                    waiting.append((reached, f"{way} -> {reached}"))
    return impure


def _executed_by(found: Import, root: str) -> Iterator[str]:
    """The modules of the package that this import executes: its target, and the packages that hold the target.

    The root package is left out unless it is the target itself. Python executes it before any module below it, and
    it passes on the public names of every layer; but the protocol does not use those, and runs without them.
    """
    parts = found.target.split(".")
    if parts[0] != root:
        return
    for depth in range(min(2, len(parts)), len(parts) + 1):
        yield ".".join(parts[:depth])


def test_the_protocol_of_penstock_is_pure() -> None:
    assert impurities(PACKAGE) == []


@pytest.mark.parametrize("impure", sorted(IMPURE))
def test_a_direct_import_is_found(tmp_path: Path, impure: str) -> None:
    package = package_with(tmp_path, {"protocol/credit.py": f"import {impure}"})
    assert impurities(package) == [f"penstock.protocol.credit:1 -> {impure}"]


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("from time import monotonic", "time"),
        ("import os.path", "os.path"),
        ("from concurrent.futures import Future", "concurrent.futures"),
        ("def now():\n    import time", "time"),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import pyarrow", "pyarrow"),
        ("time = __import__('time')", "time"),
    ],
)
def test_an_import_in_disguise_is_found(tmp_path: Path, source: str, found: str) -> None:
    package = package_with(tmp_path, {"protocol/__init__.py": source})
    assert [line.rpartition(" ")[2] for line in impurities(package)] == [found]


def test_an_import_through_other_modules_is_found_with_the_way_to_it(tmp_path: Path) -> None:
    package = package_with(
        tmp_path,
        {
            "protocol/credit.py": "from ..errors import ProtocolViolation",
            "errors.py": "from penstock import ids",
            "ids.py": "\nimport uuid",
        },
    )
    assert impurities(package) == ["penstock.protocol.credit -> penstock.errors -> penstock.ids:2 -> uuid"]


def test_an_import_by_the_package_that_holds_the_imported_module_is_found(tmp_path: Path) -> None:
    package = package_with(
        tmp_path,
        {
            "protocol/credit.py": "import penstock.storage.paths",
            "storage/__init__.py": "import os",
            "storage/paths.py": "",
        },
    )
    assert impurities(package) == ["penstock.protocol.credit -> penstock.storage:1 -> os"]


def test_pure_modules_are_accepted_whatever_the_rest_of_the_package_imports(tmp_path: Path) -> None:
    package = package_with(
        tmp_path,
        {
            "__init__.py": "from penstock.runtime import worker",
            "worker/worker.py": "import threading",
            "protocol/__init__.py": "from penstock.protocol.credit import Credit",
            "protocol/credit.py": "import enum\nfrom .alignment import step\nfrom penstock.ids import Generation",
            "protocol/alignment.py": "from . import credit\nfrom timeit_like_name import time",
            "ids.py": "import typing",
        },
    )
    assert impurities(package) == []
