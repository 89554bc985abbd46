"""Checkpoint directories that earlier versions wrote are restored, and the pipeline comes to the same results."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from penstock.testing import CollectSink, Schedule, run
from tests.fixtures.orders import OUTPUTS, collected, expected, pipeline, rows_of, sorted_rows, write_input

FIXTURES = Path(__file__).parent.parent / "fixtures"
ARCHIVES = sorted(FIXTURES.glob("checkpoint_*.zip"))


@pytest.mark.parametrize("parallelism", [1, 2, 3])
@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.stem)
def test_a_checkpoint_of_an_earlier_version_is_restored(archive: Path, parallelism: int, tmp_path: Path) -> None:
    with zipfile.ZipFile(archive) as opened:
        opened.extractall(tmp_path)
    before = {file.name: file.read_bytes() for file in (tmp_path / "input").iterdir()}
    # The same files again, with the times that the positions hold.
    write_input(tmp_path / "input")
    assert before == {file.name: file.read_bytes() for file in (tmp_path / "input").iterdir()}
    published = json.loads((tmp_path / "published.json").read_text())

    sinks = {name: CollectSink() for name in OUTPUTS}
    resumed = pipeline(tmp_path / "input", sinks)
    run(resumed, parallelism=parallelism, store=tmp_path / "checkpoints", schedule=Schedule(7))

    after = collected(sinks)
    whole = expected(rows_of(tmp_path / "input"))
    for name in OUTPUTS:
        assert sorted_rows(published[name] + after[name]) == whole[name], name


def test_there_is_a_checkpoint_of_the_first_version() -> None:
    assert [archive.stem for archive in ARCHIVES][:1] == ["checkpoint_0_1_0"]
