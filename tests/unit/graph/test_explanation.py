"""`explain`: the plan of a pipeline in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock import ConsoleSink, FileSource, JsonLinesSink, KeyedFunction, Pipeline
from tests.unit.cli.kit import penstock


class Count(KeyedFunction):
    def process(self, key: Any, rows: Any, context: Any) -> None: ...


def same(batch: Any) -> Any:
    return batch


def orders() -> Pipeline:
    pipeline = Pipeline("orders", max_parallelism=16)
    source = FileSource(
        "/data/orders", format="jsonl", schema="user string, n bigint, at bigint", on_error="dead_letter"
    )
    read = pipeline.source(source, name="read")
    read.dead_letters().sink(JsonLinesSink("/data/bad"), name="bad", parallelism=1)
    timed = read.with_watermark("at", "10 s", name="clock")
    timed.key_by("user").window("1 min").sum("n", name="minutes").sink(ConsoleSink(), name="console")
    timed.key_by("user").process(Count(), name="count").map_async(same).to_one().sink(JsonLinesSink("/data/all"))
    return pipeline


def test_the_plan_has_chains_exchanges_state_and_names() -> None:
    text = orders().explain(parallelism=3, to_string=True)
    names = {node.name.rpartition("-")[0]: node.name for node in orders()._described().nodes}
    assert text.splitlines() == [
        "Pipeline 'orders': 6 chains, 5 exchanges",
        "  default parallelism: 3; workers: 3; key groups: 16",
        "",
        "Chain 1: parallelism 3",
        "  read   source FileSource(directory='/data/orders', format='jsonl'); keeps positions",
        "  clock  with_watermark; event time in column 'at'; keeps its clock",
        "  => Chain 2: dead_letters of read->bad, in turn (rebalance), 3 channels; barriers can overtake",
        "  => Chain 3: clock->minutes, by key (user), 9 channels, columns user, at, n; barriers can overtake",
        "  => Chain 4: clock->count, by key (user), 9 channels; barriers can overtake",
        "",
        "Chain 2: parallelism 1",
        "  bad  sink JsonLinesSink(directory='/data/bad'); keeps output until a checkpoint is durable",
        "",
        "Chain 3: parallelism 3, keyed by (user)",
        "  minutes  window n=sum(n); windows 60000 ms every 60000 ms from 0 ms; event time in column 'at'; keeps state "
        "by key (user)",
        "  console  sink ConsoleSink(); keeps output until a checkpoint is durable",
        "",
        "Chain 4: parallelism 3, keyed by (user)",
        "  count  process Count; keeps state by key (user)",
        f"  => Chain 5: count->{names['map_async']}, to a few each (rescale), 3 channels; barriers can overtake",
        "",
        "Chain 5: parallelism 3",
        f"  {names['map_async']}*  map_async same; keeps batches in hand",
        f"  => Chain 6: {names['map_async']}->{names['sink-JsonLinesSink']}, to one, 3 channels; barriers can overtake",
        "",
        "Chain 6: parallelism 1",
        f"  {names['sink-JsonLinesSink']}*  sink JsonLinesSink(directory='/data/all'); keeps output until a checkpoint "
        "is durable",
        "",
        "* This name is derived from the operator and its input: name=… makes it your own.",
    ]


def test_without_a_parallelism_that_of_unset_operators_is_left_open(capsys: pytest.CaptureFixture[str]) -> None:
    assert orders().explain() is None  # type: ignore[func-returns-value]
    text = capsys.readouterr().out
    assert "default parallelism: set at the start; workers: the largest parallelism" in text
    assert "Chain 1: parallelism default\n" in text
    assert "Chain 2: parallelism 1\n" in text
    assert "channels" not in text


def test_an_edge_that_is_always_aligned_is_said() -> None:
    pipeline = Pipeline("p")
    read = pipeline.source(FileSource("/data/in"), name="in")
    read.broadcast().map(same, name="all").sink(ConsoleSink(), name="out")
    text = pipeline.explain(parallelism=2, to_string=True)
    assert "  => Chain 2: in->all, to all (broadcast), 4 channels; always aligned" in text.splitlines()


def test_the_command_line_explains_without_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "explained.py").write_text(
        "from penstock import ConsoleSink, FileSource, Pipeline\n"
        "pipeline = Pipeline('p')\n"
        "pipeline.source(FileSource('/in'), name='in').key_by('k').count(name='n').sink(ConsoleSink(), name='out')\n",
        encoding="utf-8",
    )
    monkeypatch.chdir(tmp_path)
    result = penstock("explain", "explained.py:pipeline", "--parallelism", 2)
    assert result.exit_code == 0, result.stderr
    assert "  => Chain 2: in->n, by key (k), 4 channels, columns k; barriers can overtake" in result.stdout.splitlines()
