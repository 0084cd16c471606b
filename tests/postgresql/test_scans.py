"""Where claims begin to scan, and for how long they may put off a full scan."""

import pytest

from durabus.model.claim import Claim, ClaimRequest, new_token
from durabus.model.event import Event, new_event
from durabus.stores.postgresql import claims
from durabus.stores.postgresql.claims import POSTPONED_AT_MOST, SHARE, Scans
from durabus.stores.postgresql.store import PostgreSQLStore

REQUEST = ClaimRequest(bus="default", worker_id="w", token=new_token(), limit=1)
EVENT = Event(
    id=0, event_id="e", bus="default", type="a", payload_json="{}", created_ts=0.0, updated_ts=0.0, due_ts=0.0
)
FULL = [Claim(EVENT, "token")]


class Watch:
    """The clock of the host, moved by the test."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    made = Watch()
    monkeypatch.setattr(claims, "monotonic", made)
    return made


def look(known: Scans, watch: Watch, *, seconds: float) -> bool:
    """Make one claim that takes ``seconds`` and gets all it asks for. Returns whether it scanned everything."""
    scan, began = known.begin(REQUEST)
    watch.now += seconds
    known.end(REQUEST, scan, began, FULL)
    return scan.thorough


def test_a_quick_look_everywhere_is_put_off_by_a_multiple_of_its_time(watch: Watch) -> None:
    known = Scans(always_whole=False)
    assert look(known, watch, seconds=0.01)
    watch.now += SHARE * 0.01 * 0.9
    assert not look(known, watch, seconds=0.0)
    watch.now += SHARE * 0.01 * 0.2
    assert look(known, watch, seconds=0.0)


@pytest.mark.parametrize("seconds", [0.2, 1.25, 60.0])
def test_a_slow_look_everywhere_is_put_off_by_a_second_at_most(watch: Watch, seconds: float) -> None:
    known = Scans(always_whole=False)
    assert look(known, watch, seconds=seconds)
    watch.now += POSTPONED_AT_MOST - 0.01
    assert not look(known, watch, seconds=0.0)
    watch.now += 0.02
    assert look(known, watch, seconds=0.0)


async def test_an_abandoned_event_of_the_highest_priority_returns_a_second_after_a_slow_look(
    store: PostgreSQLStore, watch: Watch
) -> None:
    """The store is busy with a long queue, so no claim makes a full scan by itself."""
    urgent, *_ = await store.add_events([new_event("urgent", priority=1000), *(new_event("a") for _ in range(5))])
    (lost,) = await store.claim_next_events(
        ClaimRequest(bus="default", worker_id="dead", token=new_token(), lease=1e-6)
    )
    assert lost.event.id == urgent.id
    look(store._scans, watch, seconds=60.0)  # as if the last look had taken a minute
    claimed = []
    for _ in range(2):
        (claim,) = await store.claim_next_events(ClaimRequest(bus="default", worker_id="w", token=new_token()))
        claimed.append(claim.event.type)
        watch.now += 1.01
    assert claimed == ["a", "urgent"]
