"""Errors of user code: the user's own line, through libraries, and from one process to another."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from penstock import Pipeline, UserCodeError
from penstock.errors import DataError, JobFailed, OptionError, PenstockError, repetition_of
from penstock.ids import Generation, OperatorName, SubtaskId, WorkerId
from penstock.mailbox.failures import error_of, failed_frame
from penstock.testing import CollectSink, ListSource, run
from penstock.user_code import called_with, raised_at, strangeness, user_code_error, with_cells


def broken(row: dict[str, Any]) -> Any:
    return json.loads(row["text"])


def failure_of(call: Any, *arguments: Any) -> Exception:
    try:
        call(*arguments)
    except Exception as error:
        return error
    raise AssertionError("it did not fail")


def test_the_line_is_the_innermost_one_of_the_user_and_not_of_the_library() -> None:
    at = raised_at(failure_of(broken, {"text": "{"}))
    assert "test_user_code.py:" in at and at.endswith("in broken")


def test_nor_of_a_compiled_library_whose_frames_have_no_directory() -> None:
    def typo(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.select(["typo"])

    error = failure_of(typo, pa.record_batch({"n": [1]}))
    assert raised_at(error).endswith("in typo")
    assert strangeness("pyarrow/table.pxi") == 1


def test_without_a_line_of_the_user_it_is_that_of_the_library() -> None:
    error = failure_of(json.loads, "{")
    error.__traceback__ = error.__traceback__.tb_next  # type: ignore[union-attr]
    assert "decoder.py:" in raised_at(error)


def test_an_exception_that_was_never_raised_has_no_line() -> None:
    assert str(user_code_error("it", ValueError("no"))) == "it raised ValueError: no"


@pytest.mark.parametrize(
    ("error", "may_pass"),
    [(KeyError("x"), False), (ConnectionResetError(), True), (TimeoutError(), True), (MemoryError(), True)],
)
def test_what_lies_outside_the_program_may_pass(error: Exception, may_pass: bool) -> None:
    made = user_code_error("it", error)
    assert made.may_pass is may_pass
    assert (repetition_of(made) is None) is may_pass


WORKER = Generation(2), WorkerId(1)
SUBTASK = SubtaskId(OperatorName("enrich"), 0)


def test_an_error_of_user_code_is_the_same_in_the_driver() -> None:
    raised = user_code_error("operator 'enrich': process", failure_of(broken, {"text": "{"}))
    error = error_of(failed_frame(*WORKER, raised, SUBTASK))
    assert isinstance(error, UserCodeError)
    assert str(error) == str(raised)
    assert "in broken" in error.traceback and "decoder.py" in error.traceback


@pytest.mark.parametrize("kind", [OptionError, DataError])
def test_errors_of_penstock_keep_their_kind(kind: type[PenstockError]) -> None:
    assert type(error_of(failed_frame(*WORKER, kind("no"), SUBTASK))) is kind


def test_a_bug_is_told_whole() -> None:
    error = error_of(failed_frame(*WORKER, failure_of(broken, {}), SUBTASK))
    assert type(error) is JobFailed
    assert str(error).startswith("enrich[0] on worker 1: Traceback")
    assert "KeyError: 'text'" in str(error)


def test_a_pipeline_names_the_line_of_the_user() -> None:
    pipeline = Pipeline("p")
    pipeline.source(ListSource([{"text": "{"}])).map(broken, format="rows", name="parse").sink(CollectSink())
    with pytest.raises(UserCodeError, match=r"operator 'parse', .*JSONDecodeError.*test_user_code.py:\d+ in broken"):
        run(pipeline, restarts=0)


class TestTheSameFailure:
    """Two failures are the same if the same code fails again, wherever batches are cut; and then the pipeline ends."""

    @staticmethod
    def of(rows: list[str], subtask: str = "subtask 0 of 2", operator: str = "parse", function: Any = broken) -> str:
        error = failure_of(called_with, function, [{"text": text} for text in rows])
        told = user_code_error(f"operator '{operator}', {subtask}: process", error)
        frame = failed_frame(Generation(1), WorkerId(0), told, SubtaskId(OperatorName(operator), 0))
        repetition = repetition_of(error_of(frame))
        assert repetition is not None
        return repetition

    def test_is_known_in_another_batch_subtask_and_row(self) -> None:
        first = self.of(["1", "2", "{"])
        assert first == self.of(["{"]) == self.of(["1", "{"], "subtask 1 of 2")
        # Another bad row of another split, whose text has nothing to do with the message.
        assert first == self.of(["{", "5"])

    def test_is_known_by_place_and_class_whatever_key_or_value_the_message_holds(self) -> None:
        def refuses(row: dict[str, Any]) -> Any:
            raise ValueError(f"the price of {row['text']} is unknown")

        assert self.of(["a"], function=refuses) == self.of(["b"], "subtask 1 of 2", function=refuses)
        # Two messages of one line of one function.
        assert self.of(["{"]) == self.of(["[1,]"])

    def test_is_not_known_by_the_class_alone_if_that_is_of_a_client_of_a_service(self) -> None:
        def asks(row: dict[str, Any]) -> Any:
            raise msgspec.ValidationError(f"request {row['text']}: try again later")

        def computes(row: dict[str, Any]) -> Any:
            raise pa.ArrowInvalid(f"cannot parse {row['text']}")

        assert self.of(["a"], function=asks) == self.of(["a"], function=asks) != self.of(["b"], function=asks)
        assert self.of(["a"], function=computes) == self.of(["b"], function=computes)

    def test_is_not_one_of_another_operator_line_or_class(self) -> None:
        def elsewhere(row: dict[str, Any]) -> Any:
            return json.loads(row["text"])

        first = self.of(["{"])
        assert first != self.of(["{"], operator="parse again")
        assert first != self.of(["{"], function=elsewhere)

        def raises(row: dict[str, Any]) -> Any:
            raise KeyError("x") if row["text"] == "a" else IndexError("x")

        assert self.of(["a"], function=raises) != self.of(["b"], function=raises)

    def test_of_data_does_not_depend_on_the_number_of_rows_in_a_batch(self) -> None:
        def failure(column: str, rows: int) -> Exception:
            pipeline = Pipeline("p")
            stream = pipeline.source(ListSource([{column: None}, *[{column: 1}] * rows]), name="read")
            stream.key_by(column, nulls="error").count(name="n").sink(CollectSink(), name="out")
            return failure_of(lambda: run(pipeline, restarts=0))

        few, many, other = failure("k", 2), failure("k", 30), failure("other", 2)
        assert "null in 1 of 3 rows" in str(few) and "null in 1 of 31 rows" in str(many)
        assert repetition_of(few) == repetition_of(many) != repetition_of(other)


@pytest.mark.parametrize("name", ["<ipython-input-3-0a1b2c>", "<stdin>", "<string>"])
def test_a_line_that_was_typed_in_a_notebook_or_at_a_prompt_is_the_users(name: str) -> None:
    typed: dict[str, Any] = {}
    exec(compile("def typo(batch):\n    return batch['price']\n", name, "exec"), typed)
    error = failure_of(typed["typo"], pa.record_batch({"n": [1]}))
    assert raised_at(error) == f"{name}:2 in typo"


def test_the_driver_names_the_cells_of_its_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    cells = {"/tmp/ipykernel_7/12.py": ("Cell", "In[3]"), "<ipython-input-4-0a>": ("Cell", "In[4]")}
    shell = SimpleNamespace(compile=SimpleNamespace(format_code_name=cells.get))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))  # type: ignore[misc]
    place, trace = "({}:2 in typo; row 1)", '  File "{}", line 2, in typo\n'
    texts = [shape.format(file) for shape in (place, trace) for file in cells]
    error = UserCodeError(texts[0])
    error.traceback = "".join(texts[2:])
    frame = failed_frame(Generation(1), WorkerId(0), error, None)
    arrived = error_of(frame)
    assert str(arrived) == "(Cell In[3], line 2 in typo; row 1)"
    assert isinstance(arrived, UserCodeError)
    assert arrived.traceback == "  Cell In[3], line 2, in typo\n  Cell In[4], line 2, in typo\n"
    assert with_cells(texts[1]) == "(Cell In[4], line 2 in typo; row 1)"
    # A cell of another kernel, and a program without a notebook.
    assert with_cells("(/tmp/ipykernel_8/1.py:2 in typo)") == "(/tmp/ipykernel_8/1.py:2 in typo)"
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: None))  # type: ignore[misc]
    assert with_cells(texts[0]) == texts[0]
