"""Defects of work in steps: functions of two inputs, generators, recovered records, batches of a chosen size."""

from __future__ import annotations

from tests.mutants.mutant import OWN, Mutant

_KEYED = "operators/keyed/process.py"
_ACCESS = "operators/keyed/access.py"
_GROUPING = "columnar/grouping.py"
_IN_HAND = "worker/in_hand.py"
_SUBTASK = "worker/subtask.py"
_CHECKPOINTER = "worker/checkpointing/subtask_checkpointer.py"
_FLAT_MAP = "operators/flat_map.py"
_MID_RECORD = ("tests/unit/worker/test_mid_record.py",)
_GATHERING = "worker/scheduling/gathering.py"
_LIMITS = ("tests/unit/worker/test_batch_limits.py",)
_TWO_INPUTS = ("tests/unit/operators/keyed/test_two_inputs.py",)
_BATCHING = ("tests/unit/worker/scheduling/test_batching.py",)


def _mutant(name: str, file: str, old: str, new: str, why: str, tests: tuple[str, ...]) -> Mutant:
    return Mutant(name, OWN, file, old, new, why, seeds=0, tests=tests)


MUTANTS = (
    _mutant(
        "A function of two inputs goes on with the side that was looked at last",
        _KEYED,
        "                is_over = self.context.begin_slice()\n                self.access.side = input_index\n",
        "                is_over = self.context.begin_slice()\n",
        "The records are cut by the key columns of the other side.",
        _TWO_INPUTS,
    ),
    _mutant(
        "Calls of a function of two inputs are not counted as done",
        _KEYED,
        "                steps.rows_done = done\n                yield\n",
        "                yield\n",
        "I1: a checkpoint in between holds records that are in the state already.",
        _TWO_INPUTS,
    ),
    _mutant(
        "A key with more records than a call may have gets them all at once",
        _GROUPING,
        "            stop = min(self.ends[last - 1], most)\n",
        "            stop = self.ends[last - 1]\n",
        "One hot key holds the mailbox for all of its records.",
        _TWO_INPUTS,
    ),
    _mutant(
        "A call may have a part of a key besides others",
        _GROUPING,
        "            last = max(after, key + 1)\n",
        "            last = max(min(after + 1, len(self.ends)), key + 1)\n",
        "The key is called twice for records that wait at the same time.",
        _TWO_INPUTS,
    ),
    _mutant(
        "Any batch is taken for the one that a function of two inputs was given",
        _ACCESS,
        "        if self._given is not None and self._given.batch is batch:\n",
        "        if self._given is not None:\n",
        "A part of the records is processed as if it were all of them.",
        _TWO_INPUTS,
    ),
    _mutant(
        "The keys of a call say nothing about how much should wait",
        _IN_HAND,
        "        for calls, policy in ((hand.steps.calls, self._calls), (hand.steps.keys, self._keys)):\n",
        "        for calls, policy in ((hand.steps.calls, self._calls),):\n",
        "A function of two inputs that costs by the key gets a record or two of each key.",
        _BATCHING,
    ),
    _mutant(
        "A checkpoint is taken in the middle of a generator",
        _SUBTASK,
        "        if self.is_mid_record or self._mail:\n            self._mail.append(call)\n",
        "        if self._mail:\n            self._mail.append(call)\n",
        "I1: a part of the output of a record has left, and the rest is nowhere.",
        _MID_RECORD,
    ),
    _mutant(
        "Batches that come in the middle of a record pass the barriers that wait for its end",
        _SUBTASK,
        "        if self.is_mid_record:\n            self._mail.append(functools.partial(self.on_batch",
        "        if False:\n            self._mail.append(functools.partial(self.on_batch",
        "I1: what came behind a barrier is captured as if it had come in front of it.",
        _MID_RECORD,
    ),
    _mutant(
        "A barrier that comes to the front in the middle of a record is handled",
        _SUBTASK,
        "        if self.is_mid_record:\n            self._barriers_wait = True\n            return\n",
        "",
        "I1: a part of the output of a record has left, and the rest is nowhere.",
        _MID_RECORD,
    ),
    _mutant(
        "The alignment timer does not wait for the end of a record",
        _CHECKPOINTER,
        "self._services.timers.after(after_ms, lambda: self._when_whole(lambda: self._feed(event)))",
        "self._services.timers.after(after_ms, lambda: self._feed(event))",
        "I1: a part of the output of a record has left, and the rest is nowhere.",
        _MID_RECORD,
    ),
    _mutant(
        "One generator follows the other without a look at what waits",
        _FLAT_MAP,
        "            elif was_interrupted or self._looks_over():\n",
        "            elif self._looks_over():\n",
        "Where every generator takes more than a slice, no checkpoint is ever taken.",
        _MID_RECORD,
    ),
    _mutant(
        "The output so far stays behind when a generator is interrupted",
        _FLAT_MAP,
        "                    self._send_collected(collected, emit)\n                    was",
        "                    was",
        "Memory grows with the output of a record.",
        _MID_RECORD,
    ),
    _mutant(
        "Watermarks pass the rest of a record",
        "worker/chain.py",
        "                self._wait(position, watermark)\n                return True\n",
        "                pass\n",
        "Its output is late.",
        _MID_RECORD,
    ),
    _mutant(
        "Records wait for others in front of a barrier",
        _GATHERING,
        "        if any(not isinstance(item, BatchItem) for item in reading.queue):\n            return True\n",
        "",
        "A checkpoint waits for records that may never come.",
        _LIMITS,
    ),
    _mutant(
        "Records wait for others that their sender has no credit for",
        _GATHERING,
        "        if any(2 * channel.queued_bytes >= channel.credit.credit_limit_bytes for channel in waiting):\n"
        "            return True\n",
        "",
        "Nothing moves until the time is over.",
        _LIMITS,
    ),
    _mutant(
        "A call of a function of batches gets more rows than the user allows",
        "operators/named.py",
        "        if rows_max is None or self.works_in_steps or checked.num_rows <= rows_max:\n",
        "        if True:\n",
        "The function cannot take them.",
        _LIMITS,
    ),
    _mutant(
        "A call of a keyed function gets more rows than the user allows",
        _IN_HAND,
        "            steps.call_rows_max = min(rows_max, limits.rows or rows_max)\n",
        "            steps.call_rows_max = rows_max\n",
        "The function cannot take them.",
        _LIMITS,
    ),
    _mutant(
        "Nobody looks again when the time of records that wait is over",
        _GATHERING,
        "            self._look_again(now_us, until_us)\n",
        "",
        "They wait until another record comes.",
        _LIMITS,
    ),
)
