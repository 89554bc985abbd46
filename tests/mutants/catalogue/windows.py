"""Defects of event time and windows. The simulator has no windows: tests must notice these."""

from __future__ import annotations

from tests.mutants.mutant import OWN, Mutant

_EVENT_TIME = "operators/event_time.py"
_CLOCK = "state/windows/clock.py"
_GRID = "model/windows/fixed.py"
_STATE = "state/windows/state.py"
_PANES = "state/windows/panes.py"
_SESSIONS = "state/windows/sessions.py"
_TESTS = (
    "tests/unit/state/test_windows.py",
    "tests/unit/operators/test_event_time.py",
    "tests/unit/operators/windows/test_windows.py",
)

_KIND_TESTS = (
    "tests/unit/state/test_sessions.py",
    "tests/unit/state/test_functions.py",
    "tests/unit/state/test_lateness.py",
    "tests/unit/state/test_count_windows.py",
    "tests/unit/state/test_windows.py",
)

_SPLIT_TESTS = (
    "tests/unit/worker/sources/test_source_stage.py",
    "tests/unit/worker/event_time/test_subtask_clock.py",
    "tests/unit/worker/test_gathering.py",
    "tests/unit/connectors/files/test_files_in_event_time.py",
)


def _mutant(name: str, file: str, old: str, new: str, why: str) -> Mutant:
    return Mutant(name, OWN, file, old, new, why, seeds=0, tests=_TESTS)


def _kind(name: str, file: str, old: str, new: str, why: str) -> Mutant:
    return Mutant(name, OWN, file, old, new, why, seeds=0, tests=_KIND_TESTS)


def _split(name: str, file: str, old: str, new: str, why: str) -> Mutant:
    return Mutant(name, OWN, file, old, new, why, seeds=0, tests=_SPLIT_TESTS)


MUTANTS = (
    # --- which window ---
    _mutant(
        "A window is emitted before the watermark has reached its end",
        _GRID,
        "(self.pane_at(watermark) - self.panes_per_window)",
        "(self.pane_at(watermark + 1) - self.panes_per_window)",
        "A record may still come for it, and is late although it is not.",
    ),
    _mutant(
        "A window before 1970 is found by truncation",
        _GRID,
        "return (tick - self.offset_ticks) // self.pane_ticks",
        "return int((tick - self.offset_ticks) / self.pane_ticks)",
        "The first window is twice as long as others.",
    ),
    _mutant(
        "The offset of windows is ignored",
        _GRID,
        "return pane * self.pane_ticks + self.offset_ticks",
        "return pane * self.pane_ticks",
        "The bounds are not those that were asked for.",
    ),
    _mutant(
        "A window that overlaps is emitted without its last pane",
        _GRID,
        "return range(first, first + self.panes_per_window)",
        "return range(first, first + max(1, self.panes_per_window - 1))",
        "Its newest records are missing.",
    ),
    _mutant(
        "A batch of several windows is put in order without its keys",
        _PANES,
        "take_rows(values, order), slots.take(order), numbers.take(order)",
        "take_rows(values, order), slots, numbers.take(order)",
        "Records go to the keys of others.",
    ),
    _mutant(
        "Panes that were merged for a window stay merged when a record comes",
        _STATE,
        "        self._blocks.pop(number // layout.grid.panes_per_block, None)\n",
        "",
        "The record is missing in the windows that follow.",
    ),
    # --- what stays ---
    _mutant(
        "An emitted window stays in the state",
        _PANES,
        "for number, pane in self._panes.items() if number >= before}",
        "for number, pane in self._panes.items()}",
        "State grows for ever, and is in every checkpoint.",
    ),
    _mutant(
        "A record at the very beginning of a window is late",
        _PANES,
        "return np.flatnonzero(times < limits)",
        "return np.flatnonzero(times <= limits)",
        "It is left out although its window is open.",
    ),
    _mutant(
        "A late record opens its window again",
        _PANES,
        "return np.flatnonzero(times < limits)",
        "return _NO_ROWS",
        "The window is emitted twice, and nothing is counted.",
    ),
    _mutant(
        "Keys that do not come any more stay in the index of the windows",
        _PANES,
        "if self._index.size > _SPARE_KEYS + 4 * used:",
        "if self._index.size < 0:",
        "Memory grows with all keys that there have ever been.",
    ),
    # --- checkpoints ---
    _mutant(
        "The clock of the windows is not restored",
        _CLOCK,
        "            self._by_group[groups[rows] - self._owned.start] = clocks[rows]\n",
        "",
        "A window that was emitted before the checkpoint is emitted again for a late record.",
    ),
    _mutant(
        "After a rescale all windows go by the fastest clock",
        _CLOCK,
        "return made[places[groups - self._owned.start]]",
        "return np.full(len(groups), made[-1])",
        "Windows that nobody has emitted are left out.",
    ),
    _mutant(
        "A snapshot of windows changes with them",
        "state/aggregates/columns.py",
        "        self._log(touched)\n        for input, accumulators in",
        "        for input, accumulators in",
        "I1: records behind the cut are in the state.",
    ),
    _mutant(
        "A checkpoint does not say of which size its windows are",
        _CLOCK,
        "            if stored != self.kind.parameters:\n",
        "            if stored is None:\n",
        "I8: what was gathered for other windows is taken for that of these.",
    ),
    # --- sessions, updates, counts ---
    _kind(
        "Records exactly the gap apart are in two sessions",
        _SESSIONS,
        "(pause <= np.uint64(layout.grid.reach_ticks))",
        "(pause < np.uint64(layout.grid.reach_ticks))",
        "A session is cut in two.",
    ),
    _kind(
        "A session is emitted when the watermark reaches its end",
        _SESSIONS,
        "pane.numbers[self._last].take(slots) < clipped(limit)",
        "pane.numbers[self._last].take(slots) <= clipped(limit)",
        "A record at the very end, which is not late, makes a session of its own.",
    ),
    _kind(
        "A session that was emitted stays",
        _SESSIONS,
        "            pane.clear(done)\n",
        "            pass\n",
        "It is emitted again with every watermark.",
    ),
    _kind(
        "A snapshot sees that a session was cleared",
        "state/aggregates/columns.py",
        "        self._log(slots)\n        for accumulator in self.accumulators:\n            accumulator.clear",
        "        for accumulator in self.accumulators:\n            accumulator.clear",
        "I1: a session that was emitted after the cut is not in the state.",
    ),
    _kind(
        "A session is carried into the next pane behind what is there",
        _SESSIONS,
        "        merged.merge(pane, slots, into, self.name)\n        theirs = after.slots_with_rows()\n"
        "        merged.merge(after, theirs, theirs, self.name)\n",
        "        theirs = after.slots_with_rows()\n        merged.merge(after, theirs, theirs, self.name)\n"
        "        merged.merge(pane, slots, into, self.name)\n",
        "The first value is that of the newest part.",
    ),
    _kind(
        "After a rescale a late record updates a window whose first records are gone",
        _STATE,
        "return is_kept and (",
        "return (",
        "A result is replaced by one of the late record alone.",
    ),
    _kind(
        "Early results are not emitted after a restore",
        _STATE,
        "        if self._emission.every_ms is not None:\n",
        "        if self._emission.every_ms is None:\n",
        "A change that waited for the clock at the checkpoint is never emitted.",
    ),
    _kind(
        "The values of distinct owners are mixed",
        "state/aggregates/collections.py",
        "self._index.slots_of([pa.array(owners), values])",
        "self._index.slots_of([pa.array(np.zeros_like(owners)), values])",
        "A value counts for the key alone that had it first.",
    ),
    _kind(
        "A snapshot of distinct values grows with them",
        "state/aggregates/collections.py",
        "        taken._taken = self._index.snapshot()\n",
        "",
        "I1: values behind the cut are in the checkpoint.",
    ),
    _kind(
        "A sketch is changed in its place",
        "state/aggregates/sketches.py",
        "return self._kind(_DIGEST_SIZE) if sketch is None else self._kind.deserialize(sketch.serialize())",
        "return self._kind(_DIGEST_SIZE) if sketch is None else sketch",
        "I1: a snapshot that refers to it has values behind the cut.",
    ),
    _kind(
        "The rows behind the last whole window of a batch are lost",
        "state/windows/counts.py",
        "        self._fold_rows(columns, batch, order[is_rest], slots[is_rest])\n",
        "",
        "Count windows are complete too late.",
    ),
    # --- watermarks ---
    _mutant(
        "Windows do not wait for the delay",
        _EVENT_TIME,
        "ticks.to_ms(int(times.max())) - self.max_delay_ms",
        "ticks.to_ms(int(times.max()))",
        "Records that are not too late are left out.",
    ),
    _mutant(
        "Windows hear the watermarks of the source beside those of the data",
        _EVENT_TIME,
        "return watermark < MAX_WATERMARK",
        "return False",
        "Whichever is ahead makes the records of the other one late.",
    ),
    _mutant(
        "Operators between event time and windows do not hear of watermarks",
        "worker/chain.py",
        "        if not self._tell(position + 1, watermark):\n            self._pass_on_watermark(watermark)\n",
        "        self._pass_on_watermark(watermark)\n",
        "Whoever waits for time in the same chain waits for ever.",
    ),
    # --- clocks of splits and channels ---
    _split(
        "A split that has not begun holds nothing back",
        "worker/event_time/event_clocks.py",
        "self._reached[part] = MIN_WATERMARK if reached is None else reached",
        "self._reached[part] = MAX_WATERMARK - 1 if reached is None else reached",
        "Its records are older than what others have reached, and all late.",
    ),
    _split(
        "The fastest split is the watermark",
        "worker/event_time/event_clocks.py",
        "return min(self._reached.values(), default=IDLE_WATERMARK)",
        "return max(self._reached.values(), default=IDLE_WATERMARK)",
        "Files that are read side by side make each other late.",
    ),
    _split(
        "A split that has ended holds the watermark for good",
        "worker/event_time/event_clocks.py",
        "        self._reached.pop(part, None)\n",
        "",
        "Windows stand still behind the first file that is read.",
    ),
    _split(
        "The clock of a split is not in the checkpoint",
        "worker/sources/source_stage.py",
        "return reached if reached > MIN_WATERMARK else None",
        "return None",
        "After a restart every split counts as not begun, and windows wait for all of them again.",
    ),
    _split(
        "Splits are read in their order whatever their time",
        "worker/sources/source_stage.py",
        "ordered = sorted(self._open, key=clocks.reached)",
        "ordered = list(self._open)",
        "A file that is hours ahead is read to its end first: windows hold all of it.",
    ),
    _split(
        "A split that appears is read at once",
        "worker/sources/source_stage.py",
        "self._settling = new if self._has_looked else []",
        "self._settling = []; self._open += new if self._has_looked else []",
        "Other subtasks have not heard of the files that came with it, and theirs become late.",
    ),
    _split(
        "A file is idle",
        "worker/sources/source_stage.py",
        "may_idle=not reader.is_bounded",
        "may_idle=True",
        "A slow disk makes the rest of a file late.",
    ),
    _split(
        "Time in which nobody asked a split counts as time without records",
        "worker/event_time/event_clocks.py",
        "min(asked_ms, max(1, self._idle_after_ms // 4))",
        "asked_ms",
        "Backpressure makes the records that wait in other splits late.",
    ),
    _split(
        "A channel with records that wait is idle",
        "worker/event_time/subtask_clock.py",
        "if reading.is_empty:",
        "if True:",
        "Records that wait for alignment become late.",
    ),
    _split(
        "A split that has a record again is still as idle as before",
        "worker/event_time/event_clocks.py",
        "            self._empty_ms[part] = 0\n\n    def had_nothing",
        "\n    def had_nothing",
        "A split with a record now and then holds nobody up, and its records become late.",
    ),
    _split(
        "Records of several channels are put together although their clocks are kept apart",
        "worker/subtask.py",
        "others = () if self._clock.tells_channels_apart else self._readable",
        "others = self._readable",
        "The times of one channel count for another.",
    ),
    _split(
        "A channel that is idle and others that have ended are the end of all input",
        "worker/event_time/subtask_clock.py",
        "if slowest == MAX_WATERMARK and IDLE_WATERMARK in said:",
        "if False:",
        "Windows of the idle one are closed for good.",
    ),
    _split(
        "A subtask that wakes up does not say so",
        "worker/event_time/subtask_clock.py",
        "                self._send(self.passed_on)\n",
        "                pass\n",
        "Nobody waits for its records, and they are late.",
    ),
    _split(
        "A checkpoint forgets the times that were seen while earlier records were in hand",
        "worker/event_time/subtask_clock.py",
        "max(self._seen(), self._held, self._released)",
        "self._released",
        "After a restore nobody sees them again, and event time stands still until a later record comes.",
    ),
    _split(
        "A restored clock does not wait for the recovered records",
        "worker/event_time/subtask_clock.py",
        "        if self._is_recovered:\n            reached = max(reached, self._held)\n",
        "        reached = max(reached, self._held)\n",
        "They come after the watermark that they were in front of, and are late.",
    ),
    # --- windows by count ---
    _kind(
        "A key of a count window that comes back loses its open window",
        "state/windows/counts.py",
        "            columns.merge(idle, theirs[known], slots[known], self.name)\n",
        "",
        "Records that were counted are counted no more, long before `state_ttl`.",
    ),
    _kind(
        "A key of a count window that comes back leaves its window behind",
        "state/windows/counts.py",
        "            idle.clear(theirs[known])\n",
        "",
        "The window is counted as forgotten, and after a restore it is there twice.",
    ),
    _kind(
        "Idle keys of count windows are never forgotten",
        "state/windows/counts.py",
        "        dropped, self._bound = self._bound, columns\n",
        "        dropped, self._bound = self._bound, self._bound or columns\n",
        "State grows with every key that ever came.",
    ),
    _kind(
        "A change to idle windows is not in the next checkpoint",
        "state/windows/counts.py",
        "            idle.clear(theirs[known])\n            self.version += 1\n",
        "            idle.clear(theirs[known])\n",
        "The piece of the checkpoint before is named again, and has a window that has moved on.",
    ),
    _kind(
        "Count windows are forgotten before the time of their records",
        "operators/windows/count_window.py",
        "max(self._newest_ms, now_ms) + ttl_ms",
        "now_ms + ttl_ms",
        "A source that is ahead of the watermark loses windows that are minutes old.",
    ),
    _kind(
        "The end of input makes count windows forget",
        "operators/windows/count_window.py",
        "MIN_WATERMARK < watermark < MAX_WATERMARK",
        "MIN_WATERMARK < watermark",
        "A later run on the same checkpoints begins with empty windows.",
    ),
)
