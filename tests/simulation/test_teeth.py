"""The simulator notices: each checker convicts the defect that it is for, planted into a run without faults."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from penstock.errors import ProtocolViolation
from penstock.graph.logical import check
from penstock.ids import CheckpointId, OperatorName, SubtaskId
from penstock.metrics.metric import Metric
from penstock.metrics.standard import RECORDS_IN, SKIPPED
from penstock.model.event_time import MAX_WATERMARK
from penstock.protocol import alignment
from penstock.protocol.manifest import Manifest
from penstock.protocol.manifest.codec import encode_manifest, encode_tombstone
from penstock.protocol.ownership import Tombstone
from penstock.storage import paths
from tests.simulation import checkers
from tests.simulation.calls import Call, Hang, Hangs
from tests.simulation.changes import CHANGES, Change
from tests.simulation.cluster import Cluster
from tests.simulation.disk import Disk, DiskFailure, DiskView
from tests.simulation.functions import windows_of
from tests.simulation.production import SIMULATED
from tests.simulation.scenario import Fault, FaultKind, Life, Scenario, draw
from tests.simulation.scheduler import Scheduler
from tests.simulation.world import CommitEvent


def plain(topology: str, *kinds: FaultKind, lives: int = 0, pick: float = 0.5) -> Scenario:
    """A run of a topology with these faults, one after the other, and nothing else."""
    scenario = draw(1, topology)
    faults = [Fault(kind, number, 500, 5_000, pick) for number, kind in enumerate(kinds)]
    load = replace(scenario.load, parallelism=2, count=60, slow_us=100, idle=0.0)
    rescales = [3 for kind in kinds if kind is FaultKind.RESCALE]
    return replace(scenario, load=load, faults=faults, rescales=rescales, lives=[Life(40)] * lives)


def outcome(scenario: Scenario, plant: Callable[[Cluster], None] = lambda cluster: None) -> Cluster:
    cluster = Cluster(scenario)
    plant(cluster)
    judges = checkers.attach(cluster)
    cluster.run()
    checkers.judge(cluster, judges)
    return cluster


@pytest.mark.parametrize("topology", sorted(SIMULATED))
def test_every_topology_comes_to_its_end_without_faults(topology: str) -> None:
    cluster = outcome(plain(topology))
    assert cluster.world.violations == []
    assert cluster.world.visible >= set(cluster.topology.expected.tolist())


def test_every_topology_and_every_fault_is_drawn_by_default() -> None:
    scenarios = [draw(seed) for seed in range(600)]
    assert {scenario.topology for scenario in scenarios} == set(SIMULATED)
    faults = itertools.chain.from_iterable(scenario.faults for scenario in scenarios)
    assert {fault.kind for fault in faults} == set(FaultKind)
    assert 60 < sum(bool(scenario.lives) for scenario in scenarios) < 200


# --- hanging calls ---


def test_a_call_that_hangs_takes_effect_when_it_goes_on_and_not_before() -> None:
    effects: list[str] = []
    hangs = Hangs()

    def work() -> None:
        hangs.here("commit")
        effects.append("done")

    hangs.plan(Hang("commit", 5))
    call = Call(work)
    assert not hangs.run(call) and call.hangs_us == 5 and effects == []
    assert hangs.run(call) and effects == ["done"]


def test_a_call_that_is_abandoned_has_no_effect() -> None:
    effects: list[str] = []
    hangs = Hangs()

    def work() -> None:
        hangs.here("commit")
        effects.append("done")

    hangs.plan(Hang("commit", None))
    call = Call(work)
    hangs.run(call)
    hangs.close()
    assert call.is_over and effects == [] and hangs.for_ever == 1


def test_a_commit_of_the_next_generation_waits_for_the_call_under_way_and_goes_on() -> None:
    scenario = plain("keyed", FaultKind.HANG_COMMIT, FaultKind.KILL_WORKER)
    cluster = outcome(replace(scenario, commit_wait_ms=2_000))
    assert cluster.world.violations == []
    assert cluster.driver.turns.waits > 0


# --- the disk ---


def new_disk() -> Disk:
    return Disk(Scheduler(), random.Random(1))


def test_a_reply_that_is_lost_leaves_its_effect() -> None:
    disk = new_disk()
    disk.replies_are_lost_until_us = 1
    view = DiskView(disk)
    denied = failed = 0
    for number in range(1, 60):
        path = f"checkpoints/{number:020}/committed.json"
        try:
            denied += not view.create(path, b"{}")
        except DiskFailure:
            failed += 1
        assert disk.store.read(path) == b"{}"
    assert denied and failed


def test_reads_fail_now_and_then_and_are_well_afterwards() -> None:
    disk = new_disk()
    disk.store.write("owner.json", [b"me"])
    disk.reads_fail_until_us = 1
    view = DiskView(disk)
    failed = 0
    for _ in range(40):
        try:
            view.read("owner.json")
        except DiskFailure:
            failed += 1
    assert 0 < failed < 40
    disk.scheduler.now_us = 1
    assert view.read("owner.json") == b"me"


# --- the checkers ---


def test_two_commits_at_a_time_and_commits_out_of_order_are_convicted() -> None:
    cluster = Cluster(plain("keyed"))
    judge = checkers.Commits(cluster)
    committer = object()

    def happens(what: str, checkpoint: int) -> None:
        judge.on_commit(CommitEvent(committer, "sink", what, CheckpointId(checkpoint)))

    for checkpoint in (1, 2, 2):
        for what in ("began", "took effect", "ended"):
            happens(what, checkpoint)
    assert cluster.world.violations == []
    happens("began", 3)
    happens("took effect", 3)
    happens("began", 3)
    assert "while another one was under way" in cluster.world.violations[0]
    happens("took effect", 2)
    assert "took effect after that of 3" in cluster.world.violations[1]


def test_a_busy_worker_that_is_taken_for_dead_is_convicted() -> None:
    def plant(cluster: Cluster) -> None:
        cluster.driver._pulse_of = lambda worker, process: lambda: None  # type: ignore[method-assign]

    scenario = plain("keyed", FaultKind.BUSY_WORKER)
    assert outcome(scenario).world.violations == []
    assert "a worker was busy, and the pipeline restarted" in outcome(scenario, plant).world.violations[0]


def test_the_end_of_input_as_a_clock_of_a_checkpoint_is_convicted() -> None:
    def plant(cluster: Cluster) -> None:
        def look(manifest: Manifest) -> None:
            ended = tuple(
                replace(report, watermarks=tuple((name, MAX_WATERMARK) for name, _ in report.watermarks))
                for report in manifest.reports
            )
            checkers.Watermarks(cluster).on_manifest(replace(manifest, reports=ended))

        cluster.on_manifest.append(look)

    cluster = outcome(plain("keyed"), plant)
    assert any("holds the end of input as a clock" in violation for violation in cluster.world.violations)


@pytest.mark.parametrize(
    ("operator", "metric", "text"),
    [
        ("source", RECORDS_IN, "rows of 'source' as num_records_in"),
        ("fragile", RECORDS_IN, "sent to 'fragile'"),
        ("source", SKIPPED, "rows of 'source' as num_records_skipped"),
    ],
)
def test_a_checkpoint_that_counts_a_row_more_than_its_cut_is_convicted(
    operator: str, metric: Metric, text: str
) -> None:
    def plant(cluster: Cluster) -> None:
        def look(manifest: Manifest) -> None:
            more = ((OperatorName(operator), metric.name, 1),)
            first, *others = manifest.reports
            reports = (replace(first, totals=(*first.totals, *more)), *others)
            checkers.Totals(cluster).on_manifest(replace(manifest, reports=reports))

        cluster.on_manifest.append(look)

    cluster = outcome(plain("keyed"), plant)
    assert any("totals:" in violation and text in violation for violation in cluster.world.violations)


def test_a_violation_of_the_protocol_in_a_worker_comes_with_the_steps_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    step = alignment.step
    reached = []

    def broken(state: alignment.State, event: alignment.Event) -> object:
        if isinstance(event, alignment.BarrierReached):
            reached.append(event.barrier.checkpoint)
            if len(reached) == 5:
                raise ProtocolViolation("planted")
        return step(state, event)

    monkeypatch.setattr(alignment, "step", broken)
    violation = outcome(plain("keyed")).world.violations[0]
    first, header, *steps = violation.splitlines()
    assert first.endswith("planted") and header.startswith("The last steps of the checkpoint protocol")
    assert "BarrierReached" in steps[-1] and steps[-1].endswith("-> violation")
    assert any("-> " in each and "TakeSnapshot(" in each for each in steps[:-1])


def test_records_in_the_hands_of_map_async_are_taken_stock_of() -> None:
    def plant(cluster: Cluster) -> None:
        cluster.topology.holding = frozenset()

    scenario = plain("async_ordered")
    assert outcome(scenario).world.violations == []
    assert "I1 cut" in outcome(scenario, plant).world.violations[0]


def test_marks_that_pile_up_and_blobs_that_nobody_names_are_convicted() -> None:
    cluster = outcome(plain("keyed"))
    assert cluster.world.violations == []
    first = CheckpointId(1)
    generation = cluster.manifests[-1].generation
    orphan = paths.blob(first, generation, SubtaskId("count", 0), paths.BlobContent.STATE)
    cluster.disk.store.write(orphan, [b""])
    for number in range(100, 130):
        checkpoint = CheckpointId(number)
        cluster.disk.store.create(paths.manifest(checkpoint), encode_tombstone(Tombstone(checkpoint, generation)))
    checkers.Files(cluster).at_end()
    orphans, marks = cluster.world.violations
    assert "1 blobs are named by no checkpoint" in orphans and "30 void marks" in marks


def test_a_stray_that_is_restored_or_left_behind_is_convicted() -> None:
    cluster = outcome(plain("keyed"))
    assert cluster.world.violations == []
    last = cluster.manifests[-1]
    stray = replace(last, checkpoint=CheckpointId(last.checkpoint + 100))
    cluster.strays.append(stray)
    path = paths.manifest(stray.checkpoint)
    cluster.disk.store.delete(path)
    cluster.disk.store.create(path, encode_manifest(stray))
    # Nothing completed after it.
    history = cluster.disk.history
    history.append(("create", path))
    judge = checkers.Strays(cluster)
    judge.at_end()
    assert cluster.world.violations == []
    history.append(("create", paths.manifest(last.checkpoint)))
    judge.at_end()
    judge.on_launch(cluster.driver, last.generation, stray)
    left, restored = cluster.world.violations
    assert f"stray {stray.checkpoint} is left" in left and f"starts from stray {stray.checkpoint}" in restored


# --- changes ---


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.name)
def test_a_change_is_refused_by_the_model_only_where_something_depends_on_it(change: type[Change]) -> None:
    cluster = outcome(plain("ordered"))
    graph, manifest = cluster.topology.graph, cluster.manifests[0]
    nothing = tuple(replace(report, states=(), channels=(), committables=()) for report in manifest.reports)
    assert change().applies_to(graph)
    assert change().fits(graph, replace(manifest, reports=nothing), False) is not False
    changed = change().graph(graph, cluster.world)
    check(changed)
    assert changed != graph or change().load(cluster.scenario.load) != cluster.scenario.load


def test_the_model_of_windows_counts_a_record_in_each_window_that_it_is_in() -> None:
    numbers = np.arange(10)
    tumbling = windows_of(numbers, numbers, 5, 5)
    assert sorted(set(tumbling.values())) == [5, 10]
    sliding = windows_of(numbers, numbers, 4, 2)
    assert sum(number & 0xFFF for number in sliding) == 2 * len(numbers)
