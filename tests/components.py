"""Components that tests start or import: where one is missing, CI fails and others skip with a clear word."""

from __future__ import annotations

import importlib
import os
import shutil
from collections.abc import Sequence
from types import ModuleType
from typing import NoReturn

import pytest


def bound(command: Sequence[str]) -> list[str]:
    """The command of a server that ends with the process of the tests, also if that one is killed (on Linux)."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL", *command] if setpriv else list(command)


def missing(component: str, cure: str) -> NoReturn:
    text = f"{component} is missing: {cure}"
    if os.environ.get("PENSTOCK_REQUIRE_COMPONENTS") == "1":
        pytest.fail(f"{text} (PENSTOCK_REQUIRE_COMPONENTS=1)", pytrace=False)
    pytest.skip(text, allow_module_level=True)


def required_package(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError:
        missing(f"the package {name}", f"pip install {name}")
