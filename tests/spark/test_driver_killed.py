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
    return subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)


@pytest.mark.parametrize("moment", ["before manifest", "after manifest", "after publish"])
def test_a_driver_killed_while_a_checkpoint_completes_loses_and_repeats_nothing(moment: str, tmp_path: Path) -> None:
    killed = run_driver(tmp_path, moment)
    assert killed.returncode == -9, killed.stderr[-2000:]
    assert (tmp_path / "killed").exists()
    again = run_driver(tmp_path, "never")
    assert again.returncode == 0, again.stderr[-2000:]
    world, topology = build("keyed", tmp_path, LOAD)
    assert world.verdict(topology.expected) == FLAWLESS
