"""In-flight data beyond the memory for them are drained from the checkpoint, and checkpoints go on meanwhile.

With 2 GiB, and with the memory of the workers measured: `make large-recovery`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.large_recovery.play import MIB, play
from tests.spark.world import FLAWLESS

pytestmark = pytest.mark.spark


def test_a_checkpoint_completes_while_most_is_still_to_be_drained(spark: SparkSession, tmp_path: Path) -> None:
    outcome = play(lambda: spark, tmp_path, 24, recovery_size_max=2 * MIB)
    assert outcome.verdict == FLAWLESS
    assert outcome.captured_bytes >= 24 * MIB
    assert 2 * outcome.left_bytes > outcome.captured_bytes
