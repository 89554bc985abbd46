"""Defects of records in hand: worked off by key, put back for a checkpoint, paid for as they are done."""

from __future__ import annotations

from tests.mutants.mutant import OWN, Mutant

_HAND = "exchange/hand.py"
_IN_HAND = "worker/in_hand.py"
_INPUT = "exchange/input_channel.py"
_KEYED = "operators/keyed/process.py"
_SLICES = "worker/scheduling/slices.py"
_CLOCK = "worker/event_time/subtask_clock.py"
_CHECKPOINTER = "worker/checkpointing/subtask_checkpointer.py"


def _mutant(name: str, file: str, old: str, new: str, why: str, tests: tuple[str, ...] = ()) -> Mutant:
    return Mutant(name, OWN, file, old, new, why, seeds=0, tests=tests or ("tests/unit/worker/test_in_hand.py",))


MUTANTS = (
    _mutant(
        "A snapshot is taken while records are in hand",
        _CHECKPOINTER,
        "        self._put_back()\n",
        "",
        "I1: records that are not done are neither in the state nor in a channel.",
    ),
    _mutant(
        "Records go back in the order in which they would have been worked off",
        _HAND,
        "        rest = np.sort(self.steps.order[self.steps.rows_done :])\n",
        "        rest = self.steps.order[self.steps.rows_done :]\n",
        "I1, I2: they are cut by channel at the wrong places.",
    ),
    _mutant(
        "All records of a hand go back, those that are done too",
        _HAND,
        "np.sort(self.steps.order[self.steps.rows_done :])",
        "np.sort(self.steps.order)",
        "I1: they are in the state and in a channel.",
    ),
    _mutant(
        "The batches of a channel go back in reverse order",
        _HAND,
        "for number in range(len(self.taken) - 1, -1, -1):",
        "for number in range(len(self.taken)):",
        "I2: the records of a key change places.",
    ),
    _mutant(
        "Records go back behind what has come meanwhile",
        _INPUT,
        "        self.queue.appendleft(item)\n",
        "        self.queue.append(item)\n",
        "I2: later records of a key overtake them.",
    ),
    _mutant(
        "The first channel of a hand gets nothing back",
        _HAND,
        "            if len(rows):\n",
        "            if len(rows) and number:\n",
        "I1: its records are lost.",
    ),
    _mutant(
        "Records go back with their whole price",
        _HAND,
        "return BatchItem(take_rows(item.batch, rows), item.cost - paid, size,",
        "return BatchItem(take_rows(item.batch, rows), item.cost, size,",
        "Credit is given back twice, and the sender has more than the limit.",
    ),
    _mutant(
        "A grant that was held back is forgotten when records go back",
        _IN_HAND,
        "                if not channel.queued_batches:\n",
        "                if channel.blocked:\n",
        "I11: the sender waits for it, and nothing is left that would send it.",
    ),
    _mutant(
        "A batch without a price left ends no hand",
        _INPUT,
        "        return self.credit.consumed(unpaid, self.queued_batches == 0)\n",
        "        return self.credit.consumed(unpaid, self.queued_batches == 0) if unpaid else None\n",
        "A grant that was held back is never sent, and the sender waits for it.",
    ),
    _mutant(
        "A barrier passes the records in hand",
        _INPUT,
        "return not (self.blocked or self.recovered or self.in_hand)",
        "return not (self.blocked or self.recovered)",
        "I1: an aligned snapshot does not hold records that came before the barrier.",
    ),
    _mutant(
        "Barriers are handled while records go back",
        _IN_HAND,
        "                self._to_read(channel)\n",
        "                self._freed(channel)\n",
        "I1: the capture does not find the barrier, and takes what is behind it too.",
    ),
    _mutant(
        "Event time goes on while earlier records are in hand",
        _CLOCK,
        "if any(channel.in_hand or channel.overtaken for channel in self._inputs.values()):",
        "if any(channel.overtaken for channel in self._inputs.values()):",
        "They are late downstream.",
    ),
    _mutant(
        "Event time goes on while earlier records have been put back",
        _CLOCK,
        "if any(channel.in_hand or channel.overtaken for channel in self._inputs.values()):",
        "if any(channel.in_hand for channel in self._inputs.values()):",
        "They are late downstream.",
    ),
    _mutant(
        "The output of a step is emitted with that of the next one",
        _KEYED,
        "                    self.emit_all(outputs, emit)\n                    outputs, steps.rows_done = [], done\n",
        "                    steps.rows_done = done\n",
        "I1: a checkpoint in between holds the change of the state without its output.",
        ("tests/unit/operators/keyed/test_by_key.py",),
    ),
    _mutant(
        "A slow call is never tried with more records",
        _SLICES,
        "        return rows // 2 if rows >= _FEW else min(2 * rows, self.upper)\n",
        "        return rows // 2 if rows >= _FEW else rows\n",
        "A function with a slow call stays at one record a call.",
        ("tests/unit/worker/scheduling/test_slices.py",),
    ),
    _mutant(
        "A reduction that is interrupted keeps its rows for the next step",
        "operators/keyed/reduce.py",
        "                self._keep(touched, groups.batch.slice(steps.rows_done, done - steps.rows_done), emit)\n"
        "                touched, steps.rows_done = {}, done\n",
        "                steps.rows_done = done\n",
        "I1: a checkpoint in between holds neither the records nor the rows that were made of them.",
        ("tests/unit/operators/keyed/test_by_key.py",),
    ),
)
