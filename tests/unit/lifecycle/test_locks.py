"""Locks on named resources."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from durabus.lifecycle.handlers import claim_lock, release_lock, renew_lock
from durabus.lifecycle.state import HELD, NOT_YOURS, LockState, Refused
from durabus.model.claim import LockClaim, event_lock_key, handler_lock_key
from durabus.model.statuses import EventMode

NOW = 1000.0
LEASE = 30.0
HELD_LOCK = LockState(key="report", fence=3, worker_id="host:1", token="mine", expires_ts=NOW + 20)
FREE_LOCK = replace(HELD_LOCK, token=None, expires_ts=0.0)
OVER_LOCK = replace(HELD_LOCK, expires_ts=NOW)
MINE = LockClaim(key="report", worker_id="host:1", token="mine", fence=3, expires_ts=NOW + 20)
WRONG_TOKEN = replace(MINE, token="theirs")
OLD_FENCE = replace(MINE, fence=2)


def ask(lock: LockState | None, token: str = "theirs") -> LockState | Refused:
    return claim_lock(lock, key="report", worker_id="host:2", token=token, lease=LEASE, fence=4, now=NOW)


@pytest.mark.parametrize("lock", [None, FREE_LOCK, OVER_LOCK], ids=["unknown", "free", "lease over"])
def test_a_free_lock_is_granted(lock: LockState | None) -> None:
    assert ask(lock) == LockState(key="report", fence=4, worker_id="host:2", token="theirs", expires_ts=NOW + LEASE)


def test_a_lock_that_is_held_is_refused() -> None:
    assert ask(HELD_LOCK) == Refused(HELD)


def test_a_repeated_request_gets_the_lock_it_holds() -> None:
    assert ask(HELD_LOCK, token="mine") == HELD_LOCK


@pytest.mark.parametrize("lock", [HELD_LOCK, OVER_LOCK], ids=["in time", "late"])
def test_renew_moves_the_expiry_and_keeps_the_fence(lock: LockState) -> None:
    assert renew_lock(lock, MINE, LEASE, NOW) == replace(HELD_LOCK, expires_ts=NOW + LEASE)


@pytest.mark.parametrize("lock", [HELD_LOCK, OVER_LOCK], ids=["in time", "late"])
def test_release_frees_the_lock_and_keeps_the_fence(lock: LockState) -> None:
    assert release_lock(lock, MINE) == FREE_LOCK


def test_the_repeat_of_a_release_changes_nothing() -> None:
    assert release_lock(FREE_LOCK, MINE) == FREE_LOCK


@pytest.mark.parametrize("claim", [WRONG_TOKEN, OLD_FENCE], ids=["token", "fence"])
def test_a_lock_is_neither_renewed_nor_released_with_a_wrong_token_or_fence(claim: LockClaim) -> None:
    assert renew_lock(HELD_LOCK, claim, LEASE, NOW) == Refused(NOT_YOURS)
    assert release_lock(HELD_LOCK, claim) == Refused(NOT_YOURS)


def test_a_lock_that_is_free_or_unknown_is_not_renewed() -> None:
    assert renew_lock(FREE_LOCK, MINE, LEASE, NOW) == Refused(NOT_YOURS)
    assert renew_lock(None, MINE, LEASE, NOW) == Refused(NOT_YOURS)


def test_a_lock_that_was_taken_and_freed_by_another_is_not_released() -> None:
    assert release_lock(replace(FREE_LOCK, fence=4), MINE) == Refused(NOT_YOURS)


def test_a_lock_that_is_unknown_is_not_released() -> None:
    assert release_lock(None, MINE) == Refused(NOT_YOURS)


@pytest.mark.parametrize(
    ("mode", "key"),
    [
        (EventMode.GLOBAL_SERIAL, "event:global"),
        (EventMode.BUS_SERIAL, "event:bus:orders"),
        (EventMode.PARALLEL, None),
    ],
)
def test_the_mode_of_a_claim_names_its_lock(mode: EventMode, key: str | None) -> None:
    assert event_lock_key(mode, "orders") == key


def test_serial_handlers_share_the_lock_of_their_event() -> None:
    assert handler_lock_key("0190a000") == "handler:event:0190a000"
