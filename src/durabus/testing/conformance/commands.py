"""One of the two stores of a differential run, and the commands that it runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from durabus.errors import DurabusError
from durabus.model.claim import Claim, ClaimRef, ClaimRequest, HandlerClaim, HandlerClaimRequest, LockClaim
from durabus.model.event import Event, NewEvent
from durabus.model.query import EventQuery
from durabus.model.result import HandlerResult
from durabus.model.settlement import Complete, Fail, Keep, Release, Settlement
from durabus.model.statuses import EventMode, EventStatus, HandlerMode, ResultStatus
from durabus.store.contract import EventStore


class SideStep(msgspec.Struct, frozen=True):
    """A verb, and numbers that choose its event and its details."""

    verb: str
    a: int
    b: int
    c: int


class Side:
    """One store, and the ids and claims that it has returned so far."""

    def __init__(self, store: EventStore, *, keys: bool, names: bool) -> None:
        self.store = store
        self.gives_keys = keys
        """Whether events can have an ordering key: only if both stores support it."""
        self.asks_by_name = names
        """Whether claims can name one event: only if both stores support it."""
        self.names: dict[int, str] = {}
        self.ids: list[int] = []
        self.claims: list[ClaimRef] = [ClaimRef(999_999, made_name("token", 0), 1)]
        self.current: list[ClaimRef] = []
        self.requests: list[ClaimRequest] = []
        self.handlers: list[HandlerClaim] = []
        self.running: list[HandlerClaim] = []
        self.locks: list[LockClaim] = []
        self.settled: list[Settlement] = []
        self.tokens = 0

    def token(self) -> str:
        """Return a new token. It is the same for both stores."""
        self.tokens += 1
        return made_name("token", self.tokens)

    def learn(self, events: Sequence[Event]) -> list[Event]:
        """Remember which id belongs to which event."""
        for event in events:
            if event.id not in self.names:
                self.names[event.id] = event.event_id
                self.ids.append(event.id)
        return list(events)

    def granted(self, claims: list[Claim]) -> list[Claim]:
        """Remember granted claims."""
        new = [claim.ref for claim in claims if claim.ref not in self.claims]
        self.claims += new
        self.current += new
        return claims

    def ended(self, refs: Sequence[ClaimRef]) -> None:
        """Remember which claims were settled."""
        self.current = [ref for ref in self.current if ref not in refs]

    def ref(self, step: SideStep) -> ClaimRef:
        """Return a claim that was granted before, mostly an open one, sometimes with a wrong token or fence."""
        among = self.current if self.current and step.c % 6 else self.claims
        found = among[step.a % len(among)]
        match step.c % 12:
            case 0:
                return ClaimRef(found.id, self.token(), found.fence)
            case 1:
                return ClaimRef(found.id, found.token, found.fence + 1)
            case _:
                return found

    def id(self, step: SideStep) -> int:
        """Return an event that was published before, or an unknown one."""
        return self.ids[step.a % len(self.ids)] if self.ids and step.c % 15 else 888_888

    def plain(self, value: Any) -> Any:
        """Return a reply without what can differ between stores: ids, positions, fences of locks, reasons."""
        if isinstance(value, DurabusError):
            return type(value).__name__
        if isinstance(value, list | tuple):
            return [self.plain(one) for one in value]
        if isinstance(value, msgspec.Struct):
            hidden = {"position", "next"} | ({"fence"} if isinstance(value, LockClaim) else set())
            fields = {field: getattr(value, field) for field in value.__struct_fields__ if field not in hidden}
            return {field: self._name(field, item) for field, item in fields.items()}
        return value

    def _name(self, field: str, item: Any) -> Any:
        if field in ("id", "next_before_id") and isinstance(item, int):
            return self.names.get(item, item)
        if field == "results":
            return sorted((self.plain(one) for one in item), key=lambda result: str(result["handler_id"]))
        return self.plain(item)


def made_name(kind: str, number: int) -> str:
    """Return a token or an event id. It is the same for both stores."""
    return f"{'0' if kind == 'token' else '1'}{number:07}-0000-7000-8000-000000000000"


BUSES = ("orders", "mail")
WORKERS = ("host-a:1", "host-b:2")
TAGS = ((), ("eu",), ("us",), ("eu", "us"))
KEYED = (None, None, '{"ordering_key":"a"}', '{"ordering_key":"b","n":1}', '{"n":1}')
MODES = (EventMode.PARALLEL, EventMode.PARALLEL, EventMode.BUS_SERIAL, EventMode.GLOBAL_SERIAL)
HANDLERS = ("a", "b", "c")
OUTCOMES = (ResultStatus.SUCCEEDED, ResultStatus.SUCCEEDED, ResultStatus.TRANSIENT, ResultStatus.UNRECOVERABLE)
LEASE = 10.0

Verb = Callable[[Side, SideStep], Awaitable[Any]]


async def _add(side: Side, step: SideStep) -> Any:
    new = [
        NewEvent(
            event_id=made_name("event", (step.a + n) % 40),
            bus=BUSES[(step.b + n) % 2],
            type=f"kind.{(step.c + n) % 3}",
            payload_json=f'{{"n":{step.a + n}}}',
            metadata_json=KEYED[(step.a + step.b + n) % 5] if side.gives_keys else None,
            tags=TAGS[(step.c + n) % 4],
            priority=(0, 0, 5, -5)[(step.b + n) % 4],
            delay=(0.0, 0.0, 0.0, 7.0)[(step.a + n) % 4],
            max_attempts=(None, 1, 2, 3)[(step.c + step.a) % 4],
            idempotency_key=f"key-{step.b % 6}" if step.c % 3 == 0 else None,
        )
        for n in range(1 + step.c % 3)
    ]
    return side.learn(await side.store.add_events(new))


def _request(side: Side, step: SideStep) -> ClaimRequest:
    if side.requests and step.c % 7 == 0:
        return side.requests[-1 - step.a % min(len(side.requests), 3)]
    request = ClaimRequest(
        bus=BUSES[step.a % 2],
        worker_id=WORKERS[step.b % 2],
        token=side.token(),
        limit=1 + step.c % 4,
        lease=LEASE,
        mode=MODES[step.b % 4],
        tags=TAGS[step.a % 4] if step.c % 4 == 0 else (),
        max_attempts=(None, None, 2)[step.b % 3],
        event_id=made_name("event", step.a % 40) if side.asks_by_name and step.c % 6 == 1 else None,
    )
    side.requests.append(request)
    return request


async def _claim(side: Side, step: SideStep) -> Any:
    return side.granted(await side.store.claim_next_events(_request(side, step)))


async def _start(side: Side, step: SideStep) -> Any:
    return await side.store.start_events([side.ref(step)])


async def _renew(side: Side, step: SideStep) -> Any:
    return await side.store.renew_event_claims([side.ref(step)], lease=LEASE + step.b % 5)


def _settlement(side: Side, step: SideStep) -> Settlement:
    if side.settled and step.b % 9 == 0:
        return side.settled[-1 - step.a % min(len(side.settled), 3)]
    ref, results = side.ref(step), _results(step)
    made: Settlement
    match step.b % 6:
        case 0 | 1:
            made = Complete(ref, results, execution_time_ms=float(step.a), status_code=200, reason=_reason(step))
        case 2:
            made = Complete(ref, results, errors=(f"error {step.a}",))
        case 3:
            made = Fail(ref, f"failed {step.a}", float(step.c % 3) * 4, results)
        case 4:
            made = Fail(ref, f"failed {step.a}", None, results, status_code=500)
        case _:
            made = Release(ref, float(step.c % 3) * 4, results, _reason(step))
    side.settled.append(made)
    return made


def _reason(step: SideStep) -> str | None:
    return (None, "no handler")[step.c % 2]


async def _settle(side: Side, step: SideStep) -> Any:
    made = [_settlement(side, step)]
    if step.a % 3 == 0:
        made.append(_settlement(side, msgspec.structs.replace(step, a=step.a + 1, b=step.b + 1)))
    then = _request(side, msgspec.structs.replace(step, c=step.c + 1)) if step.c % 4 == 0 else None
    answer = await side.store.settle_events(made, then_claim=then, with_entries=step.a % 2 == 0)
    side.ended([one.ref for one in made])
    return [answer.outcomes, side.granted(answer.claims)]


async def _claim_handler(side: Side, step: SideStep) -> Any:
    request = HandlerClaimRequest(
        event=side.ref(step),
        handler_ids=HANDLERS[step.a % 3 :] + HANDLERS[: step.b % 2],
        worker_id=WORKERS[step.b % 2],
        token=side.handlers[-1].token if side.handlers and step.c % 5 == 0 else side.token(),
        lease=LEASE,
        mode=HandlerMode.SERIAL if step.b % 2 else HandlerMode.PARALLEL,
    )
    claim = await side.store.claim_next_handler_result(request)
    if claim is not None:
        side.handlers.append(claim)
        side.running.append(claim)
    return claim


def _handler(side: Side, step: SideStep) -> HandlerClaim:
    ghost = HandlerClaim(id=999_999, handler_id="a", token=made_name("token", 0), fence=1, attempts=1, expires_ts=0.0)
    among = (side.running if side.running and step.c % 4 else side.handlers) or [ghost]
    found = among[step.a % len(among)]
    return msgspec.structs.replace(found, fence=found.fence + 1) if step.c % 9 == 0 else found


async def _finish_handler(side: Side, step: SideStep) -> Any:
    if not side.running and step.c % 8:
        return await _claim_handler(side, step)
    claim = _handler(side, step)
    if step.b % 5 != 1:
        side.running = [one for one in side.running if one != claim]
    match step.b % 5:
        case 0:
            return await side.store.release_handler_claim(claim)
        case 1:
            return await side.store.renew_handler_claims([claim], lease=LEASE)
        case _:
            status = OUTCOMES[step.c % 4]
            outcome = HandlerResult(handler_id=claim.handler_id, status=status, error=None if step.c % 4 < 2 else "no")
            return await side.store.complete_handler_result(claim, outcome)


async def _keep_results(side: Side, step: SideStep) -> Any:
    status = (ResultStatus.SUCCEEDED, *OUTCOMES)[step.b % 5]
    result = HandlerResult(handler_id=HANDLERS[step.c % 3], status=status, attempts=1, value_json="7")
    return await side.store.keep_results([Keep(side.ref(step), (result,) * (step.a % 2 + 1))])


async def _complete_if_done(side: Side, step: SideStep) -> Any:
    return await side.store.complete_event_if_done(side.ref(step), HANDLERS[: step.b % 4])


async def _lock(side: Side, step: SideStep) -> Any:
    if step.b % 3 == 0 or not side.locks:
        key = ("report", "event:bus:orders", "event:global")[step.a % 3]
        token = side.locks[-1].token if side.locks and step.c % 5 == 0 else side.token()
        lock = await side.store.claim_lock(key, worker_id=WORKERS[step.c % 2], token=token, lease=LEASE)
        if lock is not None:
            side.locks.append(lock)
        return lock
    lock = side.locks[-1 - step.a % min(len(side.locks), 3)]
    if step.b % 3 == 1:
        return await side.store.renew_lock(lock, lease=LEASE)
    return await side.store.release_lock(lock)


async def _expire(side: Side, step: SideStep) -> Any:
    return await side.store.expire_events(max_attempts=(None, 2)[step.a % 2])


async def _reset(side: Side, step: SideStep) -> Any:
    return await side.store.reset_event(side.id(step), reason="stuck")


async def _requeue(side: Side, step: SideStep) -> Any:
    page = await side.store.list_dead_letters()
    if not page.events and step.b % 4:
        return None
    if page.events and step.b % 4:
        return await side.store.requeue_dead_letters([page.events[step.a % len(page.events)].id])
    return await side.store.requeue_dead_letters([side.id(step)])


async def _forget(side: Side, step: SideStep) -> Any:
    bus = BUSES[step.a % 2]
    match step.b % 6:
        case 0:
            return await side.store.trim_event_history(bus, older_than=float(step.c % 9), limit=2)
        case 1:
            return await side.store.cleanup_excess_events(bus, keep=step.c % 3, limit=2)
        case 2:
            until = await side.store.now() - step.c % 20
            return await side.store.purge_dead_letters(created_until_ts=until, bus=(bus, None)[step.c % 2], limit=2)
        case 3:
            return await side.store.cleanup_results()
        case 4:
            return len(await side.store.purge_dead_letters_by_id([side.id(step), *side.ids[-3:]]))
        case _:
            return await side.store.remove_event(side.id(step))


async def _look(side: Side, step: SideStep) -> Any:
    bus, store = BUSES[step.a % 2], side.store
    match step.b % 6:
        case 0:
            return await store.counts(bus)
        case 1:
            query = EventQuery(bus=bus, tags=TAGS[step.c % 4], statuses=tuple(EventStatus)[: step.c % 6], limit=3)
            return await store.find(query)
        case 2:
            return await store.list_dead_letters(bus=bus, limit=2, offset=step.c % 3)
        case 3:
            return [await store.active_buses(), await store.list_locks()]
        case 4:
            return await store.list_results(side.id(step))
        case _:
            return await store.read_event_log(side.id(step))


def _results(step: SideStep) -> tuple[HandlerResult, ...]:
    if step.c % 3:
        return ()
    status = OUTCOMES[step.a % 4]
    return (
        HandlerResult(handler_id=HANDLERS[step.b % 3], status=status, attempts=1, error="no" if step.a % 2 else None),
    )


VERBS: dict[str, tuple[Verb, int]] = {
    "add": (_add, 8),
    "claim": (_claim, 12),
    "start": (_start, 3),
    "renew": (_renew, 3),
    "settle": (_settle, 14),
    "claim handler": (_claim_handler, 7),
    "finish handler": (_finish_handler, 7),
    "keep results": (_keep_results, 5),
    "complete if done": (_complete_if_done, 4),
    "lock": (_lock, 4),
    "expire": (_expire, 4),
    "reset": (_reset, 2),
    "requeue": (_requeue, 4),
    "forget": (_forget, 3),
    "look": (_look, 3),
    "advance": (_look, 9),
}
