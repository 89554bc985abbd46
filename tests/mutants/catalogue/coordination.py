"""Defects of the coordinator: triggers, acknowledgements, expiry, commits."""

from __future__ import annotations

from tests.mutants.mutant import OWN, Mutant
from tests.simulation.scenario import FaultKind

_COORDINATOR = "protocol/coordinator/machine.py"
_ENDINGS = "protocol/coordinator/endings.py"
_TRIGGER = "protocol/coordinator/trigger.py"
_RUNTIME = "driver/checkpoints/coordinator.py"

MUTANTS = (
    # --- triggers ---
    Mutant(
        "One source only sees the trigger",
        "injection",
        "worker/worker.py",
        "for subtask in self._order:\n                    subtask.on_trigger(barrier)\n",
        "for subtask in self._order[:1]:\n                    subtask.on_trigger(barrier)\n",
        "The other sources never put in their barriers, and the checkpoint expires.",
    ),
    Mutant(
        "A request that waits is overwritten by the next one",
        "injection",
        _COORDINATOR,
        "replace(state, queue=(*state.queue, event.request))",
        "replace(state, queue=(event.request,))",
        "Somebody waits for an answer for ever.",
        seeds=0,
    ),
    Mutant(
        "Checkpoint ids are cut to 32 bits",
        "injection",
        _TRIGGER,
        "first = CheckpointId(used_up.last + 1)",
        "first = CheckpointId((used_up.last + 1) & 0xFFFFFFFF)",
        "I5: ids only grow.",
        seeds=0,
    ),
    Mutant(
        "The mode that was set is never read",
        "unaligned",
        _TRIGGER,
        "mode = Mode.ALIGNED if _has_overflowed(state) else state.policy.mode",
        "mode = Mode.ALIGNED_WITH_TIMEOUT",
        "An aligned pipeline would capture in-flight data.",
    ),
    Mutant(
        "A checkpoint begins while the one before is being published",
        "alignment",
        _TRIGGER,
        "is_busy = state.collecting is not None or state.publishing is not None or state.reserved is None",
        "is_busy = state.collecting is not None or state.reserved is None",
        "Only the newest checkpoint may lack its output: one at a time.",
        seeds=0,
    ),
    Mutant(
        "A wake-up call is ordered for every checkpoint",
        OWN,
        _TRIGGER,
        "(state.wake_at_ms is not None and state.wake_at_ms <= at_ms)",
        "at_ms == state.wake_at_ms",
        "Timers cannot be withdrawn: tens of thousands would pile up.",
        seeds=0,
    ),
    Mutant(
        "A checkpoint begins although the manifest being written leaves output to publish",
        OWN,
        _TRIGGER,
        "not manifest.is_final and not committables_of(manifest)",
        "not manifest.is_final",
        "It could not complete before that is published, and what it holds would grow older.",
        seeds=0,
    ),
    Mutant(
        "A checkpoint begins after the final one",
        OWN,
        _TRIGGER,
        "not manifest.is_final and not committables_of(manifest)",
        "not committables_of(manifest)",
        "Sources emit nothing after the last barrier.",
        seeds=0,
    ),
    Mutant(
        "A manifest is written although the outcome of the one before is not known",
        OWN,
        _COORDINATOR,
        "    if collecting is None or collecting.waiting or state.deciding is not None:\n",
        "    if collecting is None or collecting.waiting:\n",
        "Manifests are written one after the other.",
        seeds=0,
    ),
    Mutant(
        "The backoff of a checkpoint is forgotten when the one before completes",
        OWN,
        _ENDINGS,
        "pause_until_ms=max(now_ms + state.policy.pause_ms_min, state.backoff_until_ms)",
        "pause_until_ms=now_ms + state.policy.pause_ms_min",
        "The interval waits for the backoff, whatever else happens.",
        seeds=0,
    ),
    # --- acknowledgements ---
    Mutant(
        "An acknowledgement counts for whichever checkpoint is in progress",
        "alignment",
        _COORDINATOR,
        "is not None and collecting.pending.barrier.checkpoint == checkpoint:\n",
        "is not None:\n",
        "I12: its checkpoint must be the pending one.",
        seeds=0,
    ),
    Mutant(
        "Acknowledgements of unknown subtasks are accepted",
        "alignment",
        _COORDINATOR,
        "    if subtask not in state.members:\n        return _NOT_A_MEMBER\n",
        "",
        "I12: members only.",
        seeds=0,
    ),
    Mutant(
        "A duplicate acknowledgement is counted and inflates the size",
        "coordination",
        _COORDINATOR,
        "    if subtask not in collecting.waiting:\n",
        "    if subtask not in state.members:\n",
        "I12: a subtask is counted once.",
        seeds=0,
    ),
    Mutant(
        "The generation of an acknowledgement is the sender's affair",
        "injection",
        _COORDINATOR,
        "    if generation != state.generation:\n",
        "    if generation < 0:\n",
        "I6: nothing of an older generation changes anything.",
        seeds=0,
    ),
    Mutant(
        "The coordinator takes frames of other generations",
        "injection",
        _RUNTIME,
        "        if frame.generation != self.generation:\n",
        "        if frame.generation < 0:\n",
        "I6: nothing of an older generation changes anything.",
        seeds=0,
    ),
    # --- endings ---
    Mutant(
        "There is no abort and a dead subtask blocks for ever",
        "alignment",
        _COORDINATOR,
        "    if collecting is None or now_ms < collecting.pending.expires_at_ms:\n",
        "    if collecting is None or now_ms >= 0:\n",
        "An attempt ends after its expiry.",
        seeds=0,
    ),
    Mutant(
        "The expiry is looked at only when somebody reports",
        "coordination",
        _TRIGGER,
        "        times_ms.append(state.collecting.pending.expires_at_ms)\n",
        "        pass\n",
        "A dead subtask reports nothing: expiry goes by a timer.",
        seeds=0,
    ),
    Mutant(
        "After an abort nothing is triggered until somebody resets it",
        "coordination",
        _TRIGGER,
        "    if state.stop is not None or is_busy or not state.is_ready or not _may_follow(state.deciding):\n",
        "    if state.stop is not None or is_busy or state.failures_in_a_row or not _may_follow(state.deciding):\n",
        "An attempt that ended leaves the coordinator as ready as it was.",
    ),
    Mutant(
        "Nobody is told that a checkpoint was given up",
        "alignment",
        _ENDINGS,
        "    actions = (SendBarrier(pending.barrier.cancelled()), *answers(pending.requests,",
        "    actions = (*(), *answers(pending.requests,",
        "Abort and cancel go to everybody.",
        seeds=0,
    ),
    Mutant(
        "A subtask that is not ready uses up a tolerable failure",
        "recovery",
        "protocol/declines.py",
        "_UNCOUNTED = frozenset(\n    {\n        DeclineReason.SUBTASK_NOT_READY,\n",
        "_UNCOUNTED = frozenset(\n    {\n",
        "To be not ready yet is normal life, and no failure.",
        seeds=0,
        tests=("tests/unit/protocol/test_barrier.py", "tests/unit/protocol/test_alignment.py"),
    ),
    Mutant(
        "After an overflow the next checkpoint is unaligned again",
        OWN,
        _TRIGGER,
        "mode = Mode.ALIGNED if _has_overflowed(state) else state.policy.mode",
        "mode = state.policy.mode",
        "Under constant backpressure no checkpoint would ever complete.",
        seeds=0,
    ),
    # --- commits ---
    Mutant(
        "Sinks commit before the manifest is written",
        OWN,
        _RUNTIME,
        "        checkpoint = manifest.checkpoint\n        try:\n",
        "        from penstock.protocol.commit import ManifestDurable, decide_commit\n\n"
        "        checkpoint = manifest.checkpoint\n"
        "        permit = decide_commit(manifest, ManifestDurable(checkpoint, self.generation), self.generation)\n"
        "        if permit is not None:\n"
        "            self._committers.publish(permit)\n"
        "        try:\n",
        "I4: sinks commit only what a durable manifest names.",
    ),
    Mutant(
        "The marker says committed before the sinks have committed",
        OWN,
        _RUNTIME,
        "            self._committers.publish(permit)\n"
        '            create_or_read(self._store, paths.committed(checkpoint), b"{}")\n',
        '            create_or_read(self._store, paths.committed(checkpoint), b"{}")\n'
        "            self._committers.publish(permit)\n",
        "I4: a crash in between, and the output is never published.",
        fault=FaultKind.KILL_DRIVER_AT_STORE,
        seeds=40,
    ),
    Mutant(
        "After a restart the restored checkpoint is not committed again",
        OWN,
        "protocol/commit.py",
        "    if is_committed:\n        return None\n",
        "    if not is_committed:\n        return None\n",
        "I4: what a manifest names is published, whatever crashed in between.",
        fault=FaultKind.KILL_DRIVER_AT_STORE,
        seeds=40,
    ),
    Mutant(
        "Staged output is swept before the restored checkpoint is committed",
        OWN,
        "driver/supervisor.py",
        "            if ownership.recommit is None:\n",
        "            if ownership.generation > 0:\n",
        "I4: what a manifest names is never rolled back.",
        fault=FaultKind.KILL_DRIVER_AT_STORE,
        seeds=40,
    ),
    Mutant(
        "A commit that failed counts as committed",
        OWN,
        _COORDINATOR,
        "    if isinstance(event, CommitFailed):\n",
        "    if isinstance(event, CommitFailed) and event.now_ms < 0:\n",
        "I4: everything that a manifest names is published.",
        seeds=0,
    ),
    Mutant(
        "The pipeline is finished before its last output is committed",
        OWN,
        _ENDINGS,
        "    return replace(state, publishing=publishing), (announce, Commit(permit))\n",
        "    if manifest.is_final:\n"
        "        state, actions = conclude(state, pending.requests, now_ms, is_final=True)\n"
        "        return state, (announce, Commit(permit), *actions)\n"
        "    return replace(state, publishing=publishing), (announce, Commit(permit))\n",
        "A bounded pipeline is finished when its final checkpoint is committed.",
    ),
)
