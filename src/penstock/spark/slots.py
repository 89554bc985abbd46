"""Slots of a session: how many tasks can run at the same time, how many do, and whose they are.

Spark starts the tasks of a barrier stage together or not at all, and says nothing while it waits. A pipeline holds its
slots for as long as it runs, so a second one on a session that has no room for it would wait without end.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.driver.attempts.phases import HoldUp
from penstock.spark.sessions import context_of

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_HOLDERS_MAX = 5


@dataclass(frozen=True, slots=True)
class Slots:
    """The slots of a session at one moment."""

    total: int
    running: int
    """Tasks of any job that run now."""
    holders: tuple[str, ...] = ()
    """The jobs that run now, by their descriptions; of this and other pipelines, or queries."""

    @property
    def free(self) -> int:
        return max(0, self.total - self.running)


def slots_total(spark: SparkSession) -> int | None:
    """How many tasks can run at the same time, now; None with Spark Connect, which does not say."""
    context = context_of(spark)
    if context is None:
        return None
    scala = context._jsc.sc()
    return int(scala.maxNumConcurrentTasks(scala.resourceProfileManager().defaultResourceProfile()))


def slots_of(spark: SparkSession, own: str = "") -> Slots | None:
    """The slots of the session and the jobs that hold them; None with Spark Connect.

    Jobs with a tag that begins with `own` are not named among the holders.
    """
    total, context = slots_total(spark), context_of(spark)
    if total is None or context is None:
        return None
    # Of the scheduler itself: the figures of Spark's user interface may be ten seconds old.
    counts = context._jsc.sc().taskScheduler().runningTasksByExecutors().values().iterator()
    running = 0
    while counts.hasNext():
        running += int(counts.next())
    others = (job for job in _active_jobs(context) if not own or own not in job.tags)
    return Slots(total, running, tuple(job.name for job in others))


def tasks_of(spark: SparkSession, tag: str) -> int | None:
    """How many tasks of the jobs with `tag` run; may be ten seconds old. None with Spark Connect."""
    context = context_of(spark)
    return None if context is None else sum(job.tasks for job in _active_jobs(context) if tag in job.tags.split())


@dataclass(frozen=True, slots=True)
class _Job:
    name: str
    tags: str
    tasks: int


def _active_jobs(context: SparkContext) -> list[_Job]:
    store: Any = context._jsc.sc().statusStore()
    jobs = []
    for number in context.statusTracker().getActiveJobsIds():
        # It may have ended meanwhile.
        with contextlib.suppress(Exception):
            data = store.job(number)
            described = data.description()
            name = str(described.get()) if described.isDefined() else f"job {number} ({data.name()})"
            jobs.append(_Job(name, str(data.jobTags().mkString(" ")), int(data.numActiveTasks())))
    return jobs


def hold_up_of(slots: Slots | None, workers: int) -> HoldUp | None:
    """The reason why `workers` tasks do not start together, and the way out; None if they can."""
    if slots is None:
        begun = "the task of the pipeline has begun"
        if workers > 1:
            begun = f"the {workers} tasks of the pipeline, which start together, have begun"
        text = (
            f"no worker has reported yet. Spark Connect says neither whether {begun} nor how many slots are free. "
            f"Unless the start is just slow: stop other jobs that hold slots, give the server more cores, or lower "
            f"workers or parallelism"
        )
        return HoldUp("Spark Connect does not report slots", text)
    if slots.free >= workers:
        return None
    needed = "1 slot" if workers == 1 else f"{workers} slots at the same time"
    text = (
        f"the pipeline needs {needed}, and {slots.free} of the {slots.total} slots of this session "
        f"{'is' if slots.free == 1 else 'are'} free: "
    )
    if slots.holders:
        more = f" and {len(slots.holders) - _HOLDERS_MAX} more" if len(slots.holders) > _HOLDERS_MAX else ""
        text += (
            f"the others are held by {'; '.join(slots.holders[:_HOLDERS_MAX])}{more}. Stop one of these jobs, start "
            f"the session with more cores, or give this pipeline fewer workers (workers={max(1, slots.free)})"
        )
    else:
        text += "executors are missing, or have not come back yet. The log of the cluster's manager may say why"
    return HoldUp(f"{slots.free} of {workers} free", text)


def holding_text(workers: int, total: int) -> str:
    """How many slots a pipeline holds, and what is left for others."""
    left = max(0, total - workers)
    if left:
        others = "1 is left for other jobs" if left == 1 else f"{left} are left for other jobs"
        return f"holds {workers} of the {total} slots of the session while it runs; {others}"
    return (
        f"holds all {total} slots of the session while it runs: other queries of this session wait until it "
        f"ends. Start the session with more cores than the pipeline has workers, or give it fewer (workers=…)"
    )
