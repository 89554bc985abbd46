"""Restarts: how often and how soon."""

from __future__ import annotations

import pytest

from penstock.errors import OptionError
from penstock.protocol.restart import GiveUp, RestartAfter, RestartPolicy, counted, decide_restart

POLICY = RestartPolicy(failures_max=3, window_ms=10_000, delay_ms=100, delay_ms_max=300)


@pytest.mark.parametrize(
    ("failures_at_ms", "decision"),
    [
        ((20_000,), RestartAfter(100)),
        ((19_000, 20_000), RestartAfter(200)),
        ((18_000, 19_000, 20_000), RestartAfter(300)),
        ((17_000, 18_000, 19_000, 20_000), GiveUp("4 failures within 10 s, and 3 are allowed")),
    ],
)
def test_the_delay_doubles_to_its_bound_and_then_the_pipeline_gives_up(
    failures_at_ms: tuple[int, ...], decision: RestartAfter | GiveUp
) -> None:
    assert decide_restart(failures_at_ms, POLICY, now_ms=20_000, progress_at_ms=20_000) == decision


def test_failures_outside_the_window_are_forgotten_once_a_checkpoint_has_completed() -> None:
    failures = (1, 2, 3, 9_999, 10_000, 10_001, 20_000)
    assert counted(failures, POLICY, now_ms=20_000, progress_at_ms=15_000) == (10_001, 20_000)
    assert decide_restart(failures, POLICY, now_ms=20_000, progress_at_ms=15_000) == RestartAfter(200)


@pytest.mark.parametrize(("progress_at_ms", "restarts"), [(None, 3), (600_500 * 5, 7)])
def test_failures_without_a_completed_checkpoint_count_whatever_their_distance(
    progress_at_ms: int | None, restarts: int
) -> None:
    """A failure each 600.5 s, with a window of 10 s; up to the fifth, each attempt has completed a checkpoint."""
    failures: tuple[int, ...] = ()
    for number in range(1, restarts + 1):
        now_ms = 600_500 * number
        progress = progress_at_ms if progress_at_ms is None or now_ms >= progress_at_ms else now_ms
        failures = (*counted(failures, POLICY, now_ms, progress), now_ms)
        assert isinstance(decide_restart(failures, POLICY, now_ms, progress), RestartAfter)
    now_ms = 600_500 * (restarts + 1)
    failures = (*counted(failures, POLICY, now_ms, progress_at_ms), now_ms)
    told = "4 failures and no checkpoint completed in between, and 3 are allowed"
    assert decide_restart(failures, POLICY, now_ms, progress_at_ms) == GiveUp(told)


def test_a_policy_without_failures_gives_up_at_the_first() -> None:
    strict = RestartPolicy(failures_max=0, window_ms=500)
    assert decide_restart((7,), strict, now_ms=7, progress_at_ms=None) == GiveUp(
        "1 failures within 0.5 s, and 0 are allowed"
    )


def test_a_long_row_of_failures_builds_no_enormous_number() -> None:
    patient = RestartPolicy(failures_max=10**6, delay_ms=1, delay_ms_max=10**9)
    assert decide_restart((1,) * 5_000, patient, now_ms=1, progress_at_ms=None) == RestartAfter(1 << 20)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"failures_max": -1}, "failures_max is -1 and must be at least 0"),
        ({"window_ms": 0}, "window_ms is 0 and must be at least 1"),
        ({"delay_ms": -1}, "delay_ms is -1 and must be at least 0"),
        ({"delay_ms": 500, "delay_ms_max": 499}, "delay_ms_max is 499 and must be at least 500"),
    ],
)
def test_settings_that_cannot_work_are_refused(changes: dict[str, int], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        RestartPolicy(**changes)


def test_the_same_error_again_ends_it_early() -> None:
    policy = RestartPolicy(repeats_max=2)
    assert isinstance(decide_restart((5,), policy, 5, None, repeats=1), RestartAfter)
    assert decide_restart((5, 9), policy, 9, None, repeats=2) == GiveUp(
        "the same error was raised twice, and no checkpoint completed in between"
    )
    assert isinstance(decide_restart((5, 9), RestartPolicy(repeats_max=None), 9, None, repeats=2), RestartAfter)


def test_a_limit_of_repeats_below_one_is_refused() -> None:
    with pytest.raises(OptionError, match="repeats_max is 0"):
        RestartPolicy(repeats_max=0)
