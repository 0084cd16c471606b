"""The error tree, and what each error says."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
from collections.abc import Callable, Iterator

import pytest

from durabus import errors
from durabus.errors import (
    ConfigurationError,
    DurabusError,
    EventFailed,
    EventNotFound,
    InvalidEventError,
    InvalidPayloadError,
    LeaseLost,
    NotADeadLetter,
    PayloadDecodeError,
    UnknownStoreError,
    UnsupportedByStore,
)
from durabus.model.event import new_event
from durabus.model.limits import check_batch, seconds
from durabus.model.payload import decode_as
from durabus.model.policies import RetryPolicy
from durabus.model.result import TransientError, UnrecoverableError
from durabus.store.connect import make_store
from durabus.store.features import Features, require

DRAWN = re.compile(r"^    (?P<branch>[│├└─ ]*)(?P<name>[A-Z]\w+)(?:\s{2,}\S.*)?$")
INDENT = len("├── ")

CLASSES = [value for _, value in inspect.getmembers(errors, inspect.isclass) if value.__module__ == errors.__name__]
VOLATILE = Features(
    scheme="memory",
    survives_process_kill=False,
    survives_power_loss=False,
    shared_between_processes=False,
    caller_transactions=False,
    manual_clock=True,
)


def drawn_tree() -> Iterator[tuple[str, str]]:
    """Return each class of the drawing in the docstring, with its base class there."""
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        found = DRAWN.match(line)
        if found:
            depth = len(found["branch"]) // INDENT
            path = [*path[:depth], found["name"]]
            yield found["name"], path[-2] if depth else "Exception"


def test_the_drawn_tree_is_the_real_one() -> None:
    assert dict(drawn_tree()) == {cls.__name__: cls.__base__.__name__ for cls in CLASSES if cls.__base__}


def test_the_tree_is_drawn_without_doubles() -> None:
    names = [name for name, _ in drawn_tree()]
    assert len(names) == len(set(names)) == len(CLASSES)


def test_one_name_catches_everything() -> None:
    assert [cls for cls in CLASSES if not issubclass(cls, DurabusError)] == []


def test_what_handlers_raise_is_no_failure_of_durabus() -> None:
    assert not issubclass(TransientError, DurabusError)
    assert not issubclass(UnrecoverableError, DurabusError)


@pytest.mark.parametrize("cls", CLASSES)
def test_every_error_says_what_it_means(cls: type[DurabusError]) -> None:
    assert cls.__doc__
    assert cls.__doc__.rstrip().endswith(".")


@pytest.mark.parametrize(
    ("provoke", "error", "told"),
    [
        (
            lambda: new_event("a", 2**64),
            InvalidPayloadError,
            ["18446744073709551616", "64 bits", "send it as a string"],
        ),
        (
            lambda: new_event("a", "x" * 2_000_000),
            InvalidPayloadError,
            ["2,000,002", "1,048,576", "publish a reference"],
        ),
        (lambda: new_event("a", {"at": b""}), InvalidPayloadError, ["payload.at", "bytes", "convert it first"]),
        (lambda: decode_as('"x"', int), PayloadDecodeError, ["int", "Expected `int`, got `str`"]),
        (lambda: new_event("x" * 300), InvalidEventError, ["300", "xxx", "255"]),
        (lambda: new_event("a", event_id="7"), InvalidEventError, ["'7'", "UUID", "canonical lower-case"]),
        (lambda: new_event("a", priority=9999), InvalidEventError, ["9999", "-1000", "1000"]),
        (lambda: seconds(-1, "lease"), ConfigurationError, ["lease=-1", "0 or more"]),
        (lambda: check_batch(0), ConfigurationError, ["limit=0", "1", "10000"]),
        (lambda: RetryPolicy(jitter=5), ConfigurationError, ["jitter=5", "from 0 to 1", "0.1 is ±10 %"]),
        (lambda: make_store("mysql://db"), UnknownStoreError, ["mysql://", "memory://", "sqlite://", "durabus.stores"]),
        (lambda: make_store("bus.db"), UnknownStoreError, ["'bus.db'", "sqlite://"]),
        (
            lambda: require(VOLATILE, "caller_transactions", "add_events(connection=…)"),
            UnsupportedByStore,
            ["add_events(connection=…)", "memory://", "caller_transactions=False"],
        ),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_an_error_names_value_limit_and_remedy(
    provoke: Callable[[], object], error: type[DurabusError], told: list[str]
) -> None:
    with pytest.raises(error) as caught:
        provoke()
    assert [part for part in told if part not in str(caught.value)] == []


def test_a_lost_lease_names_its_claim_and_the_reason() -> None:
    error = LeaseLost(7, "taken over")
    assert (error.subject, error.reason) == (7, "taken over")
    assert str(error) == "claim on 7 lost: taken over"


def test_an_event_not_found_names_the_event_and_where_it_may_have_gone() -> None:
    error = EventNotFound("0190a000")
    assert error.ref == "0190a000"
    assert (
        str(error) == "no event '0190a000' in the store: it was never published, or it was trimmed, purged or removed"
    )


def test_not_a_dead_letter_names_the_status_of_the_event() -> None:
    error = NotADeadLetter(7, "PENDING")
    assert (error.ref, error.status) == (7, "PENDING")
    assert str(error) == "event 7 is PENDING, not a dead letter: there is nothing to retry"


def test_a_failed_event_says_how_it_ended_and_why() -> None:
    error = EventFailed("0190a000", "FAILED", ("boom", "bang"))
    assert (error.event_id, error.status, error.errors) == ("0190a000", "FAILED", ("boom", "bang"))
    assert str(error) == "event 0190a000 ended FAILED: bang"
    assert str(EventFailed("0190a000", "FAILED", ())).endswith("no error was recorded")


@pytest.mark.parametrize(
    "error",
    [
        InvalidPayloadError("too large"),
        LeaseLost(7, "taken over"),
        EventNotFound("0190a000"),
        NotADeadLetter(7, "PENDING"),
        EventFailed("0190a000", "FAILED", ("boom",)),
        TransientError("busy", retry_after=5),
        UnrecoverableError("gone"),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("send", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))], ids=["copy", "pickle"])  # noqa: S301
def test_an_error_survives_the_way_to_another_process(send: Callable[[Exception], Exception], error: Exception) -> None:
    arrived = send(error)
    assert type(arrived) is type(error)
    assert str(arrived) == str(error)
    assert vars(arrived) == vars(error)
