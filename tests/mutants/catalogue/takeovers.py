"""Defects of starting: taking a directory over, whether the pipeline fits, and copies of checkpoints."""

from __future__ import annotations

from tests.mutants.mutant import OWN, Mutant

_EXPORT = "storage/copies.py"
_TAKEOVER = "driver/attempts/takeover.py"
_DIRECTORY = "storage/directory.py"
_FITS = "protocol/manifest/compatibility.py"


def _mutant(name: str, file: str, old: str, new: str, why: str) -> Mutant:
    tests = {
        _EXPORT: ("tests/unit/storage/test_copies.py",),
        _TAKEOVER: (
            "tests/unit/driver/attempts/test_takeover.py",
            "tests/unit/driver/attempts/test_takeover_output.py",
            "tests/unit/driver/test_supervisor.py",
        ),
        _DIRECTORY: (
            "tests/unit/storage/test_directory.py",
            "tests/unit/driver/attempts/test_takeover.py",
            "tests/unit/driver/checkpoints/test_coordinator.py",
        ),
        _FITS: ("tests/unit/protocol/manifest/test_compatibility.py",),
    }
    return Mutant(name, OWN, file, old, new, why, seeds=0, tests=tests[file])


_IMPORTED = (
    "    is_committed = was_committed or _exists(source, paths.committed(checkpoint))\n"
    "    imported = replace(\n"
    "        change(_with_blobs_at(manifest if not is_committed else _without_committables(manifest), names)),\n"
    "        checkpoint=first,\n"
    "        generation=takeover.generation,\n"
    "        is_savepoint=False,\n"
    "        published_as=manifest.batch,\n"
    "        batch_offset=max(offset, manifest.batch - first),\n"
    "    )\n"
)
_CREATED = (
    "    if not store.create(paths.manifest(first), encode_manifest(imported)) "
    "and _outcome(store, first) != imported:\n"
    "        raise _raced()\n"
)

MUTANTS = (
    # --- copies ---
    _mutant(
        "A checkpoint is brought in without being verified",
        _EXPORT,
        "    _verify_all(store, segments_of(manifest))\n",
        "    return\n",
        "I8: a damaged one becomes the newest, and is found out when the pipeline has been started on it.",
    ),
    _mutant(
        "Verifying looks at operator state and not at records in flight",
        _EXPORT,
        "    _verify_all(store, segments_of(manifest))\n",
        "    _verify_all(store, [state.segment for report in manifest.reports for state in report.states])\n",
        "I8: damaged channel state is found out when it is consumed.",
    ),
    _mutant(
        "The manifest of a savepoint copy is written before its blobs",
        _EXPORT,
        "    _copy_blobs(store, to, manifest, names)\n",
        "    to.create(paths.manifest(checkpoint), encode_manifest(copy))\n"
        "    _copy_blobs(store, to, manifest, names)\n",
        "I3: a copy that is interrupted passes for a savepoint.",
    ),
    _mutant(
        "A savepoint copy does not say that its output was published",
        _EXPORT,
        '    if _exists(store, paths.committed(checkpoint)):\n        to.create(paths.committed(checkpoint), b"{}")\n',
        "",
        "I4: who starts from it publishes the same output under another id.",
    ),
    _mutant(
        "A checkpoint that is brought in keeps output that was published",
        _EXPORT,
        "manifest if not is_committed else _without_committables(manifest), names",
        "manifest, names",
        "I4: an import that is interrupted before its marker publishes it again.",
    ),
    _mutant(
        "A checkpoint that is brought in leaves behind output that was never published",
        _EXPORT,
        "manifest if not is_committed else _without_committables(manifest), names",
        "_without_committables(manifest), names",
        "I4: its records are in no other checkpoint, and their output is lost.",
    ),
    _mutant(
        "A checkpoint that is brought in keeps the generation that wrote it",
        _EXPORT,
        "        generation=takeover.generation,\n        is_savepoint",
        "        is_savepoint",
        "I6: an old driver takes it for an outcome of its own.",
    ),
    _mutant(
        "A checkpoint is brought in beside a driver that is starting",
        _EXPORT,
        "    if not is_ours or confirm(takeover, Directory(store).listing()) is None:\n",
        "    if confirm(takeover, Directory(store).listing()) is None:\n",
        "I6: both write the outcome of the same id.",
    ),
    _mutant(
        "A savepoint that was brought in is kept as one",
        _EXPORT,
        "        is_savepoint=False,\n",
        "",
        "Retention never removes it, and nobody owns it.",
    ),
    _mutant(
        "Records in flight of a checkpoint that is brought in stay where they were",
        _EXPORT,
        "channels=tuple(replace(channel, segment=at(channel.segment)) for channel in report.channels),",
        "channels=report.channels,",
        "I3: the manifest names blobs of another directory.",
    ),
    _mutant(
        "Of a path with several checkpoints the oldest is brought in",
        _EXPORT,
        "in reversed(directory.ids(paths.PathKind.MANIFEST)):",
        "in directory.ids(paths.PathKind.MANIFEST):",
        "The pipeline goes back further than anybody asked for.",
    ),
    _mutant(
        "The manifest of a checkpoint that is brought in is written before its blobs",
        _EXPORT,
        "    _copy_blobs(source, store, manifest, names)\n" + _IMPORTED + "    verify(store, imported)\n" + _CREATED,
        _IMPORTED + _CREATED + "    _copy_blobs(source, store, manifest, names)\n" + "    verify(store, imported)\n",
        "I3: an import that is interrupted leaves a checkpoint without its blobs as the newest.",
    ),
    _mutant(
        "A checkpoint is verified after an id was taken for it",
        _EXPORT,
        "        verify(source, manifest)\n    except",
        "        pass\n    except",
        "A driver that runs on the directory is ended for a checkpoint that cannot be restored.",
    ),
    _mutant(
        "Output of a checkpoint that is brought in is published under its new id",
        _EXPORT,
        "        published_as=manifest.batch,\n",
        "",
        "I4: a sink that knows batches by their ids publishes it twice.",
    ),
    _mutant(
        "Blobs of two checkpoints of one id have the same names in their copies",
        _EXPORT,
        '-copied.{digest}"',
        '-copied"',
        "I3: one copy replaces the blobs of the other.",
    ),
    _mutant(
        "The licence is not read after a checkpoint was brought in",
        _EXPORT,
        "    if not _exists(store, paths.reserved(first)):\n        raise _raced()\n",
        "",
        "I6: a generation that took over meanwhile has removed it, and restores something else.",
    ),
    # --- taking over ---
    _mutant(
        "A driver that restarts takes back what another one owns",
        _TAKEOVER,
        "        if is_restart and is_taken(listing, token):\n",
        "        if len(token) < 0:\n",
        "I6: two drivers fence each other in turns, without end.",
    ),
    _mutant(
        "A checkpoint of another pipeline counts as damaged",
        _TAKEOVER,
        "            return Candidate(checkpoint, Foreign(str(error)), has_committables)\n",
        "            return Candidate(checkpoint, Damaged(str(error)), has_committables)\n",
        "I8: an older one that happens to fit is restored instead.",
    ),
    _mutant(
        "A takeover trusts the manifest and reads no blob",
        _TAKEOVER,
        "        damage = self._damage_of(outcome)\n",
        "        damage = None\n",
        "I8: a damaged checkpoint is found out by the workers, at every attempt, and none older is tried.",
    ),
    _mutant(
        "A damaged checkpoint is passed over although its output may be published",
        _TAKEOVER,
        "Damaged(damage) if damage else Valid(), has_committables)",
        "Damaged(damage) if damage else Valid(), has_committables and not damage)",
        "I4: what it published is published again.",
    ),
    _mutant(
        "A manifest that cannot be read counts as none",
        _TAKEOVER,
        "            return Candidate(checkpoint, Damaged(str(error)))\n",
        "            return None\n",
        "I8: with the only one damaged the pipeline starts from nothing.",
    ),
    _mutant(
        "Output of the restored checkpoint counts as published",
        _TAKEOVER,
        "is_committed=checkpoint in committed)",
        "is_committed=True)",
        "I4: after a crash between manifest and commit it is never published.",
    ),
    _mutant(
        "State of operators that are gone is dropped without being asked",
        _TAKEOVER,
        "allow_dropped_state=options.allow_dropped_state",
        "allow_dropped_state=True",
        "I8: an operator that was renamed by mistake starts with empty state.",
    ),
    _mutant(
        "Whether a sink commits is not asked when a checkpoint is passed over",
        _TAKEOVER,
        "has_committing_sinks=has_committing_sinks, fall_back",
        "has_committing_sinks=False, fall_back",
        "I4: a checkpoint whose manifest cannot be read may have published its output.",
    ),
    _mutant(
        "A lost race for a directory is an end",
        _TAKEOVER,
        "wanted) == wanted\n        listing = directory.listing()\n",
        "wanted) == wanted\n        if not is_ours:\n            break\n        listing = directory.listing()\n",
        "A driver that restarts while another one looks around gives up at once.",
    ),
    _mutant(
        "A driver of which nothing is left takes the directory back",
        _TAKEOVER,
        "is_restart = has_owned or has_reserved(listing, token)",
        "is_restart = has_reserved(listing, token)",
        "I6: the next owner may have removed every trace of the former one.",
    ),
    _mutant(
        "A driver that does not know that it has owned takes the directory back",
        _TAKEOVER,
        "is_restart = has_owned or has_reserved(listing, token)",
        "is_restart = has_owned",
        "I6: its takeover may have failed after the reservation was created, and another one come since.",
    ),
    # --- stores that fail for a moment ---
    _mutant(
        "A blob that cannot be read for the moment counts as damaged",
        _TAKEOVER,
        "                if segment.path is None or not is_gone(self._store, segment.path):\n"
        "                    raise\n",
        "",
        "I8: an older checkpoint is restored because a store did not answer.",
    ),
    _mutant(
        "A blob that is gone is waited for",
        _TAKEOVER,
        "                if segment.path is None or not is_gone(self._store, segment.path):\n"
        "                    raise\n",
        "                raise\n",
        "The pipeline restarts until it gives up, and no older checkpoint is tried.",
    ),
    _mutant(
        "A file that cannot be read for the moment counts as gone",
        _DIRECTORY,
        "        if is_gone(store, path):\n            return None\n        raise\n",
        "        return None\n",
        "I6: an owner takes itself for revoked, and a takeover passes over reservations and manifests.",
    ),
    _mutant(
        "A manifest that cannot be read for the moment counts as damaged",
        _DIRECTORY,
        "        except (CorruptBlob, RestoreError):\n            # Not every",
        "        except (StorageError, RestoreError):\n            # Not every",
        "I3: retention deletes blobs of earlier checkpoints that only this one still refers to.",
    ),
    _mutant(
        "A creation whose reply was lost counts as failed",
        _DIRECTORY,
        "        found = read_if_there(store, path)\n"
        "        if found is None:\n"
        "            raise\n"
        "        return found\n",
        "        raise\n",
        "A driver takes what it has created itself for that of another one, or tries until it gives up.",
    ),
    # --- whether the pipeline fits ---
    _mutant(
        "A watermark of another column is restored",
        _FITS,
        "    _check_clocks(manifest, shape, what)\n",
        "",
        "All records are late whose times in the new column lie behind it.",
    ),
    _mutant(
        "Output of a sink that is gone is left behind",
        _FITS,
        "        if sink not in new:\n",
        "        if sink not in new:\n            continue\n        if sink not in new:\n",
        "I4: output that a manifest names is published.",
    ),
    _mutant(
        "Output is published by a sink that is another one",
        _FITS,
        "            _check_definition(old[sink], new[sink], has, way_out)\n",
        "            pass\n",
        "I4: nobody else than its sink knows how, and where.",
    ),
    _mutant(
        "Output that is not published does not hold back a changed sink",
        _TAKEOVER,
        "        is_committed = manifest.checkpoint in committed\n",
        "        is_committed = True\n",
        "I4: the check is for nothing, and the takeover fails after that, or publishes elsewhere.",
    ),
    _mutant(
        "State of one kind is restored as another",
        _FITS,
        " or declared[piece.name][0] is not piece.kind:",
        ":",
        "I9: list state is dealt out and broadcast state copied: one is taken for the other.",
    ),
    _mutant(
        "A state that is declared otherwise is restored",
        _FITS,
        "        if piece.declared and now and piece.declared != now:\n",
        "        if piece.declared and now and False:\n",
        "I8: values are taken for those of another schema.",
    ),
    _mutant(
        "Positions of another source are restored",
        _FITS,
        "        for split in report.splits:\n            kinds.setdefault(split.operator, set())\n",
        "",
        "I1: records are skipped, or read again.",
    ),
    _mutant(
        "The inputs of an operator with state change places",
        _FITS,
        "        if moved and edge.edge.input not in moved:\n",
        "        if moved and edge.edge.input < 0:\n",
        "I8: what one stream has left in the state is taken for the other's.",
    ),
    _mutant(
        "List state of a keyed operator is restored under another key",
        _FITS,
        "{StateKind.KEYED, StateKind.LIST}",
        "{StateKind.KEYED}",
        "I9: the records of a key and the state that they left are in different subtasks.",
    ),
)
