"""What is kept of the traceback of an exception."""

import pytest

from durabus.worker.execution import MAX_TRACEBACK_CHARS, way_of


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def fall(error: Exception, depth: int = 0) -> None:
    password = "hunter2"
    if depth and password:
        fall(error, depth - 1)
    raise error


def caught(error: Exception, depth: int = 0) -> str:
    with pytest.raises(type(error)) as found:
        fall(error, depth)
    kept = way_of(found.value)
    assert kept is not None
    return kept["traceback"]


def test_the_traceback_of_an_exception_does_not_show_values_of_variables() -> None:
    text = caught(ValueError("boom"))
    assert text.startswith("Traceback (most recent call last):\n")
    assert "in fall\n    raise error" in text
    assert text.endswith("ValueError: boom")
    assert "hunter2" not in text


def test_an_exception_that_was_never_raised_has_no_traceback() -> None:
    assert way_of(ValueError("returned")) is None


def test_the_end_of_a_long_traceback_is_kept() -> None:
    text = caught(ValueError("x" * 2 * MAX_TRACEBACK_CHARS))
    assert len(text) == MAX_TRACEBACK_CHARS + 1
    assert text.startswith("…")


def test_an_exception_without_a_message_still_has_a_traceback() -> None:
    text = caught(Unspeakable())
    assert "in fall\n" in text
    assert "Unspeakable" in text


def test_what_no_database_takes_is_left_out() -> None:
    assert caught(ValueError("nul \0 and \ud800")).endswith("ValueError: nul \\x00 and \\ud800")
