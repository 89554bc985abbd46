"""The driver is killed between "all acknowledged" and "committed", and started again: output comes once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.driver import LOAD
from tests.spark.kit import build
from tests.spark.world import FLAWLESS

pytestmark = pytest.mark.spark


def run_driver(root: Path, moment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.spark.driver", str(root), "keyed", moment]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)


def test_a_driver_killed_while_a_checkpoint_completes_loses_and_repeats_nothing(tmp_path: Path) -> None:
    """Lives one after the other, each killed at another moment of its third checkpoint; the last comes to the end."""
    for moment in ("before manifest", "after manifest", "after publish"):
        killed = run_driver(tmp_path, moment)
        assert killed.returncode == -9, f"{moment}: {killed.stderr[-2000:]}"
        assert not (tmp_path / "finished").exists()
    last = run_driver(tmp_path, "never")
    assert last.returncode == 0, last.stderr[-2000:]
    world, topology = build("keyed", tmp_path, LOAD)
    assert world.verdict(topology.expected) == FLAWLESS
