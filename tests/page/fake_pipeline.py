"""A pipeline that exists only as figures, for the page: it answers each part of the REST contract with generated data.

`kill` and `tick` move it through a failure and its recovery; nothing here reads a clock but through `now_ms`. Switches
make it large (subtasks, checkpoints) or hostile (names that are markup).
"""

from __future__ import annotations

import math
import random
import time
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]

TOKEN = "the-token"
HOSTILE = '<script>window.hacked = true</script><img src=x onerror="window.hacked = true">'
TRACEBACK = """UserCodeError: operator 'totals', subtask 1 on worker 1: ZeroDivisionError: division by zero
Traceback (most recent call last):
  File "/home/ada/penstock/pipeline.py", line 41, in price_per_item
    return row["amount"] / row["items"]
           ~~~~~~~~~~~~~~^~~~~~~~~~~~~~
ZeroDivisionError: division by zero
The row was {'order': 88123, 'amount': 12.5, 'items': 0}. Mend the function, or give it on_error="stream"."""
PLAN = """Pipeline orders-per-minute, parallelism 4

1 orders  FileSource
    -> rebalance, can be overtaken
2 clean  map -> filter -> key_by customer
    -> hash by customer, can be overtaken
3 totals  window 10 s, sum amount
    -> forward
4 files  ParquetSink"""
RECOVERY = (
    ("notice", 180),
    ("end workers", 420),
    ("take over", 95),
    ("wait for slots", 310),
    ("launch", 640),
    ("restore", 890),
)


@dataclass(slots=True)
class FakePipeline:
    """A pipeline with `subtasks` of each operator, and `checkpoints` that are already in its history."""

    subtasks: int = 4
    checkpoints: int = 60
    is_hostile: bool = False
    interval_ms: int = 10_000
    started_ms: int = field(default_factory=lambda: int(time.time() * 1000) - 900_000)
    phase: str = "running"
    phase_text: str = "running"
    orders: list[str] = field(default_factory=list)
    generations: list[Json] = field(default_factory=list)
    history: list[Json] = field(default_factory=list)
    busy_window: float = 0.93
    _coming: Json = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.generations = [_generation(1, self.started_ms, None)]
        first = self.now_ms() - self.checkpoints * self.interval_ms
        self.history = [
            self._checkpoint(number, first + number * self.interval_ms) for number in range(1, self.checkpoints + 1)
        ]

    @staticmethod
    def now_ms() -> int:
        return int(time.time() * 1000)

    # --- what happens to it ---

    def kill(self) -> None:
        """A worker ends with an error of user code."""
        self.phase, self.phase_text = "waiting to restart", "waiting to restart, 1 s"
        self.generations[-1]["ended_at_ms"] = self.now_ms()
        self.generations[-1]["failure"] = {
            "summary": "ZeroDivisionError: division by zero",
            "error": TRACEBACK.replace("'totals'", repr(self.name("totals"))),
            "operator": self.name("totals"),
            "subtask": 1,
            "worker": 1,
        }

    def claim(self) -> None:
        """The next attempt has begun, and has not taken over the directory."""
        self.phase = self.phase_text = "claiming"
        restored = max(each["id"] for each in self.history if each["status"] == "completed")
        self._coming = _generation(len(self.generations) + 1, self.now_ms(), restored)
        unknown = {"generation": None, "restored_checkpoint": None, "phases": self._coming["phases"][:1]}
        self.generations.append({**self._coming, **unknown})

    def restore(self) -> None:
        """It is the next generation, and is not up yet."""
        self.phase, self.phase_text = "restoring", "restoring 40 %"
        self.generations[-1] = {**self._coming, "phases": self._coming["phases"][:2]}

    def recover(self) -> None:
        """New workers have restored the last checkpoint and run."""
        self.phase = self.phase_text = "running"
        self.generations[-1] = self._coming

    def complete_checkpoint(self) -> Json:
        made = self._checkpoint(self.history[-1]["id"] + 1, self.now_ms())
        self.history.append(made)
        return made

    # --- what it says ---

    def name(self, plain: str) -> str:
        return f"{plain} {HOSTILE}" if self.is_hostile else plain

    def overview(self, *, is_allowed: bool = False) -> Json:
        runs = self.phase == "running"
        swing = 1 + 0.06 * math.sin(self.now_ms() / 9000)
        rows = (self.now_ms() - self.started_ms) * 48
        done = [each for each in self.history if each["status"] == "completed"]
        failures = [each["failure"]["error"] for each in self.generations if each["failure"]]
        return {
            "pipeline": self.name("orders-per-minute"),
            "phase": self.phase,
            "phase_text": self.phase_text,
            "is_live": True,
            "started_at_ms": self.started_ms,
            "ended_at_ms": None,
            "generation": self.generations[-1]["generation"],
            "restarts": len(self.generations) - 1,
            "rows_in": rows,
            "rows_out": rows // 40,
            "rows_in_per_second": 48_200 * swing if runs else 0,
            "rows_out_per_second": 1_204 * swing if runs else 0,
            "rows_late": 37,
            "checkpoint_interval_ms": self.interval_ms,
            "last_checkpoint": done[-1]["id"] if done else None,
            "last_checkpoint_at_ms": done[-1]["trigger_timestamp"] + done[-1]["end_to_end_duration"] if done else None,
            "failure": failures[-1] if failures else None,
            "warnings": [
                {
                    "at_ms": self.started_ms + 61_000,
                    "text": f"{self.name('orders')}: split orders-3 is idle and no longer holds the watermark",
                },
                {
                    "at_ms": self.started_ms + 610_000,
                    "text": "checkpoint 31 was declined: the store did not answer within 600 s",
                },
            ],
            "spark": {
                "app_id": "local-1763442000",
                "ui_url": "javascript:window.hacked=true" if self.is_hostile else "http://127.0.0.1:4040",
            },
            "versions": {"penstock": "0.1.0", "python": "3.11.2", "spark": "4.3.0", "pyarrow": "26.0.1"},
            "orders_allowed": is_allowed,
        }

    def graph(self) -> Json:
        vertices = [self._vertex(*each) for each in self._plan()]
        edges = [
            ("orders", "clean", "rebalance", True),
            ("clean", "totals", "hash", True),
            ("rates", "totals", "broadcast", False),
            ("totals", "files", "forward", False),
        ]
        return {
            "vertices": vertices,
            "edges": [{"from": a, "to": b, "exchange": kind, "can_be_overtaken": can} for a, b, kind, can in edges],
        }

    def vertex(self, wanted: str) -> Json | None:
        found = next((each for each in self._plan() if each[0] == wanted), None)
        if found is None:
            return None
        vertex = self._vertex(*found)
        return {**vertex, "subtasks": [self._subtask(vertex, index) for index in range(vertex["parallelism"])]}

    def checkpoint_page(self, limit: int, before: int | None) -> Json:
        older = [each for each in reversed(self.history) if before is None or each["id"] < before]
        counts = {
            status: sum(each["status"] == status for each in self.history)
            for status in ("completed", "failed", "in_progress")
        }
        return {
            "counts": {**counts, "restored": len(self.generations) - 1},
            "history": older[:limit],
            "has_more": len(older) > limit,
        }

    def checkpoint(self, wanted: int) -> Json | None:
        found = next((each for each in self.history if each["id"] == wanted), None)
        if found is None:
            return None
        dice = random.Random(wanted)
        rows = [
            self._acknowledgement(found, vertex[0], index, dice)
            for vertex in self._plan()
            for index in range(min(vertex[4], found["num_acknowledged_subtasks"]))
        ]
        return {**found, "subtasks": rows}

    def watermarks(self) -> Json:
        now = self.now_ms()
        split = {"held_by": None, "subtasks": [], "splits": []}
        lags = [
            ("orders", 4_200, None),
            ("clean", 4_300, self.name("orders")),
            ("totals", 42_700, "split orders-2 of " + self.name("orders") + ", subtask 2: its newest row is 42 s old"),
        ]
        made = [
            {
                **split,
                "operator": self.name(name),
                "watermark_ms": now - lag,
                "lag_ms": lag,
                "held_by": held,
                "subtasks": [
                    {"index": index, "watermark_ms": now - lag - index * 130} for index in range(min(self.subtasks, 64))
                ],
            }
            for name, lag, held in lags
        ]
        made[0]["splits"] = [
            {
                "split": f"orders-{index}",
                "watermark_ms": now - (42_700 if index == 2 else 4_200 + 90 * index),
                "is_idle": index == 3,
            }
            for index in range(6)
        ]
        return {"operators": made}

    def state(self) -> Json:
        return {
            "operators": [
                {
                    "operator": self.name("totals"),
                    "state_bytes": 118_400_211,
                    "rows": 1_204_331,
                    "key_groups_used": 128,
                    "key_groups": 128,
                    "largest_subtask_share": 0.46,
                },
                {
                    "operator": self.name("rates"),
                    "state_bytes": 4_211,
                    "rows": 31,
                    "key_groups_used": 28,
                    "key_groups": 128,
                    "largest_subtask_share": 0.29,
                },
            ]
        }

    def state_rows(self, limit: int) -> Json:
        rows = [
            [f"customer-{index}", "2026-11-18 05:10:00", str(index * 3 + 1), f"{index * 12.5:.2f}"]
            for index in range(limit)
        ]
        if self.is_hostile:
            rows[0][0] = HOSTILE
        keys = [
            {"key": HOSTILE if self.is_hostile and not index else f"customer-{index}", "rows": 9000 // (index + 1)}
            for index in range(8)
        ]
        return {
            "columns": ["customer", "window_start", "orders", "amount"],
            "rows": rows,
            "largest_keys": keys,
            "truncated": True,
        }

    def recoveries(self) -> Json:
        return {"generations": self.generations}

    def metrics(self, seconds: int) -> Json:
        now = self.now_ms() // 1000 * 1000
        times = range(now - min(seconds, 900) * 1000, now, 1000)
        noise = random.Random(7)
        wave = {at: 1 + 0.15 * math.sin(at / 60_000) + noise.uniform(-0.04, 0.04) for at in times}
        dip = {at: 0.0 if 400_000 < at - self.started_ms < 409_000 else 1.0 for at in times}
        scales: dict[str, float] = {
            "rows_in_per_second": 48_000,
            "rows_out_per_second": 1_200,
            "busy": 0.8,
            "backpressured": 0.35,
            "worker_memory_bytes": 730e6,
            "state_bytes": 118e6,
            "checkpoint_duration": 310,
            "watermark_lag_ms": 4_200,
            "latency_p50_ms": 21,
            "latency_p99_ms": 88,
        }
        series = {
            name: [[at, scale * wave[at] * (dip[at] if "rows" in name else 1)] for at in times]
            for name, scale in scales.items()
        }
        return {"step_ms": 1000, "series": series}

    def latency(self) -> Json:
        operators = [vertex["operators"][-1]["name"] for vertex in self.graph()["vertices"]]
        return {
            "latencies": [
                {"source": "orders", "operator": name, "count": 60, "p50_ms": 25.0, "p99_ms": 100.0, "max_ms": None}
                for name in operators
            ]
        }

    def workers(self) -> Json:
        return {
            "workers": [
                {
                    "index": index,
                    "host": "node-a",
                    "pid": 4100 + index,
                    "memory_bytes": 182_000_000 + index * 3_100_000,
                    "cores": 1,
                    "slots": 1,
                }
                for index in range(4)
            ]
        }

    def profile(self, seconds: float) -> Json:
        engine = "/usr/lib/python3.11/site-packages/penstock/"
        loop = [("run", f"{engine}worker/loop.py", 88), ("turn", f"{engine}worker/loop.py", 131)]
        work = [*loop, ("process", f"{engine}worker/subtask.py", 240)]
        own = ("price_per_item" + (HOSTILE if self.is_hostile else ""), "/home/ada/penstock/pipeline.py", 41)
        found = [
            (
                [
                    *work,
                    ("window", f"{engine}operators/windows/window.py", 77),
                    ("add", f"{engine}state/windows/state.py", 190),
                    ("group", f"{engine}columnar/grouping.py", 55),
                ],
                150,
            ),
            ([*work, ("map", f"{engine}operators/stateless.py", 60), own], 170),
            (
                [
                    *work,
                    ("map", f"{engine}operators/stateless.py", 60),
                    own,
                    ("loads", "/usr/lib/python3.11/json/__init__.py", 346),
                    ("decode", "/usr/lib/python3.11/json/decoder.py", 337),
                ],
                60,
            ),
            (
                [
                    *loop,
                    ("receive", f"{engine}exchange/transport.py", 120),
                    ("recv_multipart", "/usr/lib/python3.11/site-packages/zmq/sugar/socket.py", 744),
                ],
                40,
            ),
            ([*loop, ("sleep", f"{engine}mailbox/timers.py", 31)], 80),
        ]
        operators = ("totals", "prices", "prices", None, None)
        stacks = [
            {"operator": operator, "frames": [_frame(*call) for call in calls], "samples": samples}
            for operator, (calls, samples) in zip(operators, found, strict=True)
        ]
        return {"samples": 500, "seconds": seconds, "stacks": stacks}

    def configuration(self) -> Json:
        plan = PLAN
        settings = {
            "checkpoint_interval": "10 s",
            "alignment_timeout": "0.5 s",
            "channel_size": "1 MiB",
            "restarts_max": "10",
            "state_backend": "memory",
            "retained_checkpoints": "3",
            "worker_silence": "10 s",
            "checkpoint_timeout": "600 s",
            "call_timeout": "600 s",
        }
        return {"settings": settings, "plan": plan.replace("orders", self.name("orders"), 1)}

    def logs(self) -> Json:
        lines = [
            {
                "at_ms": self.started_ms + number * 9_000,
                "level": "INFO",
                "worker": None,
                "operator": None,
                "text": f"checkpoint {number} completed in 312 ms",
            }
            for number in range(80)
        ]
        lines.append(
            {
                "at_ms": self.started_ms + 720_500,
                "level": "WARNING",
                "worker": 2,
                "operator": self.name("orders"),
                "text": "split orders-3 is idle",
            }
        )
        lines.append(
            {
                "at_ms": self.started_ms + 720_900,
                "level": "ERROR",
                "worker": 1,
                "operator": self.name("totals"),
                "text": TRACEBACK,
            }
        )
        return {"lines": lines}

    # --- how the figures are made ---

    def _plan(self) -> list[tuple[str, list[tuple[str, str]], float, float, int]]:
        """Id, operators with their kinds, busy, backpressured, parallelism."""
        return [
            ("orders", [("orders", "source")], 0.21, 0.68, self.subtasks),
            ("rates", [("rates", "source"), ("currencies", "map")], 0.02, 0.0, 1),
            ("clean", [("parse", "map"), ("valid", "filter"), ("by customer", "key_by")], 0.34, 0.61, self.subtasks),
            ("totals", [("totals", "window")], self.busy_window, 0.0, self.subtasks),
            ("files", [("files", "sink")], 0.12, 0.0, self.subtasks),
        ]

    def _vertex(self, name: str, operators: list[tuple[str, str]], busy: float, held: float, parallelism: int) -> Json:
        runs = 1.0 if self.phase == "running" else 0.0
        busy, held = busy * runs * (1 + 0.02 * math.sin(self.now_ms() / 3000)), held * runs
        rows = 48_200 * runs * (0.0005 if name == "rates" else 0.025 if name == "files" else 1)
        return {
            "id": name,
            "name": self.name(name),
            "operators": [{"name": self.name(each), "kind": kind} for each, kind in operators],
            "parallelism": parallelism,
            "busy": busy,
            "idle": max(0.0, 1 - busy - held),
            "backpressured": held,
            "rows_in": 43_380_000,
            "rows_out": 43_380_000,
            "rows_in_per_second": None if name == "orders" else rows,
            "rows_out_per_second": rows * (0.025 if name == "totals" else 1),
            "watermark_ms": self.now_ms() - 4_200,
            "watermark_lag_ms": 42_700 if name in ("totals", "files") else None if name == "rates" else 4_200,
            "state_bytes": 118_400_211 if name == "totals" else 4_211 if name == "rates" else 0,
            "queue_bytes": 3_700_000 if name == "totals" else 64_000,
            "queue_bytes_max": 4_194_304,
            "skew": 2.4 if name == "totals" else 1.04,
        }

    def _subtask(self, vertex: Json, index: int) -> Json:
        share = vertex["skew"] if index == 2 % vertex["parallelism"] else 0.8 + 0.4 * random.Random(index).random()
        per = vertex["parallelism"]
        return {
            "index": index,
            "worker": index % 4,
            "busy": min(1.0, vertex["busy"] * share),
            "idle": max(0.0, 1 - vertex["busy"] * share),
            "backpressured": vertex["backpressured"],
            "rows_in": int(vertex["rows_in"] * share / per),
            "rows_out": int(vertex["rows_out"] * share / per),
            "rows_in_per_second": (vertex["rows_in_per_second"] or 0) * share / per,
            "rows_out_per_second": vertex["rows_out_per_second"] * share / per,
            "watermark_ms": vertex["watermark_ms"] - index * 37,
            "state_bytes": int(vertex["state_bytes"] * share / per),
            "queue_bytes": int(vertex["queue_bytes"] * share / per),
        }

    def _checkpoint(self, number: int, at: int) -> Json:
        dice = random.Random(number)
        is_failed = number % 31 == 0
        is_unaligned = number % 7 == 0
        phases = {
            "start_delay": dice.uniform(4, 30),
            "alignment": dice.uniform(5, 60) if is_unaligned else dice.uniform(40, 260),
            "sync": dice.uniform(1, 4),
            "async": dice.uniform(60, 140),
            "manifest": dice.uniform(6, 14),
            "commit": dice.uniform(8, 30),
        }
        everyone = self.subtasks * 4 + 1
        return {
            "id": number,
            "status": "failed" if is_failed else "completed",
            "kind": "savepoint" if number % 23 == 0 else "unaligned" if is_unaligned else "aligned",
            "trigger_timestamp": at,
            "end_to_end_duration": 600_000 if is_failed else round(sum(phases.values())),
            "checkpointed_size": None if is_failed else int(60e6 + number * 0.9e6 % 58e6 + dice.uniform(0, 2e6)),
            "inflight_bytes": None if is_failed else int(dice.uniform(2e6, 9e6)) if is_unaligned else 0,
            "num_subtasks": everyone,
            "num_acknowledged_subtasks": everyone - 3 if is_failed else everyone,
            "phases": dict.fromkeys(phases) if is_failed else phases,
            "failure_message": f"timed out after 600 s: 3 subtasks of {self.name('totals')} have not acknowledged"
            if is_failed
            else None,
            "cure": "Lower alignment_timeout, or give the window more parallelism." if is_failed else None,
        }

    def _acknowledgement(self, found: Json, operator: str, index: int, dice: random.Random) -> Json:
        phases = {
            name: None if found["phases"][name] is None else found["phases"][name] * dice.uniform(0.3, 1)
            for name in ("start_delay", "alignment", "sync", "async")
        }
        return {
            "operator": self.name(operator),
            "subtask": index,
            "worker": index % 4,
            **phases,
            "state_bytes": 29_600_000 if operator == "totals" else 0,
            "inflight_bytes": 0,
        }


def _generation(number: int, started: int, restored: int | None) -> Json:
    phases = [{"name": name, "ms": ms} for name, ms in RECOVERY[2 if restored is None else 0 :]]
    phases.append({"name": "running", "ms": 300_000})
    return {
        "generation": number,
        "started_at_ms": started,
        "ended_at_ms": None,
        "restored_checkpoint": restored,
        "phases": phases,
        "failure": None,
    }


def _frame(function: str, file: str, line: int) -> Json:
    # As a worker knows it: the directory of Penstock itself, and not any that has its name.
    owner = "penstock" if "site-packages/penstock/" in file else "library" if "/lib/python" in file else "user"
    return {"function": function, "file": file, "line": line, "owner": owner}
