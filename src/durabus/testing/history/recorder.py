"""Records every call of a store object."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, cast

from msgspec.structs import replace

from durabus.errors import (
    ConfigurationError,
    EventNotFound,
    InvalidEventError,
    LeaseLost,
    NotADeadLetter,
    StoreClosedError,
    UnsupportedByStore,
)
from durabus.lifecycle.transition import SUCCESSES
from durabus.lifecycle.waits import waits_of
from durabus.model.claim import Claim, ClaimRef, ClaimRequest, OfferedHandler
from durabus.model.event import Event, NewEvent, ordering_key_of
from durabus.model.log_entry import LogPage
from durabus.model.settlement import Cancel, Complete, Fail, HandlerSettlement, Keep, Release, Settled, Settlement
from durabus.store.claims import SettleAnswer
from durabus.store.contract import EventStore
from durabus.testing.history.history import Failed, Invoke, Line, Ok, Unknown
from durabus.testing.history.subjects import ClaimAsked, Subject, WaitAsked

REFUSALS = (
    ConfigurationError,
    EventNotFound,
    InvalidEventError,
    LeaseLost,
    NotADeadLetter,
    StoreClosedError,
    UnsupportedByStore,
)
"""Errors of calls that changed nothing. After any other error the outcome is unknown."""


class RecordedStore:
    """An ``EventStore`` that records the calls to another one. ``host`` names one life of a process."""

    def __init__(self, store: EventStore, host: str, write: Callable[[Line], None], now: Callable[[], float]) -> None:
        self._store = store
        self._host = host
        self._write = write
        self._now = now
        self._calls = 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if not asyncio.iscoroutinefunction(found):
            return found

        async def recorded(*args: Any, **options: Any) -> Any:
            return await self._call(name, found, args, options)

        self.__dict__[name] = recorded
        return recorded

    async def _call(
        self, verb: str, function: Callable[..., Awaitable[Any]], args: tuple[Any, ...], options: dict[str, Any]
    ) -> Any:
        self._calls += 1
        call = f"{self._host}#{self._calls}"
        self._write(_invoke(partial(Invoke, call, self._now(), self._host, verb), verb, args, options))
        try:
            answer = await function(*args, **options)
        except REFUSALS as error:
            self._write(Failed(call, self._now(), str(error)))
            raise
        except BaseException as error:
            self._write(Unknown(call, self._now(), repr(error)))
            raise
        self._write(_ok(call, self._now(), verb, answer))
        return answer


def recorded_store(store: EventStore, host: str, write: Callable[[Line], None], now: Callable[[], float]) -> EventStore:
    """Return a store that behaves as ``store``, and writes its calls and replies."""
    return cast("EventStore", RecordedStore(store, host, write, now))


def _invoke(begin: Callable[..., Invoke], verb: str, args: tuple[Any, ...], options: dict[str, Any]) -> Invoke:
    match verb:
        case "add_events" | "cancel_events" | "keep_results" | "requeue_dead_letters" | "settle_handlers":
            return begin(tuple(map(ASKED[verb], args[0])))
        case "claim_next_events":
            return begin((), _asked(args[0]))
        case "settle_events":
            claim = options.get("then_claim")
            return begin(tuple(_settlement(one) for one in args[0]), None if claim is None else _asked(claim))
        case "renew_event_claims":
            return begin(_refs(args[0]), None, options["lease"])
        case "start_events":
            return begin(_refs(args[0]))
        case "get_event" | "reset_event" | "cancel_event" | "remove_event":
            return begin((_named(args[0]),))
        case "show_presence" | "withdraw_presence":
            return begin((Subject(token=args[0]),))
        case "read_log":
            return begin(after=options.get("after", ""), limit=options.get("limit", 1000))
        case _:
            return begin()


def _ok(call: str, at: float, verb: str, answer: Any) -> Ok:
    match verb:
        case "claim_next_events":
            return Ok(call, at, (), _claims(answer))
        case "settle_events":
            settled = cast("SettleAnswer", answer)
            return Ok(call, at, tuple(_outcome(one) for one in settled.outcomes), _claims(settled.claims))
        case "get_event" | "reset_event" | "cancel_event":
            return Ok(call, at, () if answer is None else (_event(answer),))
        case "read_log":
            page = cast("LogPage", answer)
            return Ok(call, at, positions=tuple(entry.position for entry in page.entries), next=page.next)
        case _:
            made = ANSWERED.get(verb)
            return Ok(call, at) if made is None else Ok(call, at, tuple(map(made, answer)))


def _new(new: NewEvent) -> Subject:
    return Subject(
        event_id=new.event_id,
        delay=new.delay,
        max_attempts=new.max_attempts,
        ordering_key=None if new.metadata_json is None else ordering_key_of(new.metadata_json),
        idempotency_key=new.idempotency_key,
        bus=new.bus,
    )


def _asked(request: ClaimRequest) -> ClaimAsked:
    return ClaimAsked(
        request.bus, request.token, request.limit, request.lease, request.mode.value, request.max_attempts
    )


def _settlement(settlement: Settlement) -> Subject:
    asked = _kept(settlement)
    match settlement:
        case Complete(handler_id=only):
            return replace(asked, what="complete", kept=asked.kept if only is None else (*asked.kept, only))
        case Fail(delay=delay):
            return replace(asked, what="fail", delay=delay)
        case Release(delay=delay, until_children=until_children):
            return replace(asked, what="release", delay=0.0 if until_children else delay)
        case Cancel():
            return replace(asked, what="cancel")


def _kept(one: Settlement | Keep) -> Subject:
    ref = one.ref
    return Subject(
        ref.id,
        None,
        ref.token,
        ref.fence,
        kept=tuple(result.handler_id for result in one.results if result.status in SUCCESSES),
        children=tuple(child.event_id for child in one.children),
        waits=tuple(
            WaitAsked(result.handler_id, wait.type, tuple(wait.where.items()), wait.until)
            for result, wait in waits_of(one.results)
        ),
        offered=tuple(result.handler_id for result in one.results if result.is_offered),
    )


def _handler_settlement(one: HandlerSettlement) -> Subject:
    claim, outcome = one.claim, one.outcome
    kept = (claim.handler_id,) if outcome is not None and outcome.status in SUCCESSES else ()
    return Subject(claim.id, None, claim.token, claim.fence, claim.handler_id, kept=kept)


def _offered(one: OfferedHandler) -> Subject:
    """Return a claim on a handler, with the fence that the handler gets: that of the event and its own."""
    fence = one.event.fence + one.claim.fence
    return Subject(
        one.event.id, one.event.event_id, one.claim.token, fence, one.claim.handler_id, expires=one.claim.expires_ts
    )


def _refs(refs: Sequence[ClaimRef]) -> tuple[Subject, ...]:
    return tuple(Subject(ref.id, None, ref.token, ref.fence) for ref in refs)


def _named(ref: int | str) -> Subject:
    return Subject(id=ref) if isinstance(ref, int) else Subject(event_id=ref)


def _event(event: Event) -> Subject:
    return Subject(
        event.id,
        event.event_id,
        fence=event.fence,
        what=event.status.value,
        attempts=event.attempts,
        generation=event.generation,
    )


def _claims(claims: Sequence[Claim]) -> tuple[Subject, ...]:
    return tuple(
        Subject(
            claim.event.id,
            claim.event.event_id,
            claim.token,
            claim.event.fence,
            claim.event.status.value,
            expires=claim.event.expires_ts,
            attempts=claim.event.attempts,
            generation=claim.event.generation,
        )
        for claim in claims
    )


def _outcome(outcome: Settled | LeaseLost) -> Subject:
    return Subject(lost=True) if isinstance(outcome, LeaseLost) else Subject(outcome.id, what=outcome.status.value)


def _renewed(answer: float | LeaseLost) -> Subject:
    return Subject(lost=True) if isinstance(answer, LeaseLost) else Subject(expires=answer)


def _started(answer: Event | LeaseLost) -> Subject:
    return Subject(lost=True) if isinstance(answer, LeaseLost) else _event(answer)


def _cancelled(answer: Event | None) -> Subject:
    return Subject() if answer is None else _event(answer)


def _judged(answer: object) -> Subject:
    return Subject(lost=isinstance(answer, LeaseLost))


ASKED: dict[str, Callable[[Any], Subject]] = {
    "add_events": _new,
    "cancel_events": _named,
    "keep_results": _kept,
    "requeue_dead_letters": _named,
    "settle_handlers": _handler_settlement,
}
"""What a call asks for each item of its batch."""
ANSWERED: dict[str, Callable[[Any], Subject]] = {
    "add_events": _event,
    "cancel_events": _cancelled,
    "claim_offered_handlers": _offered,
    "keep_results": _judged,
    "renew_event_claims": _renewed,
    "requeue_dead_letters": _event,
    "settle_handlers": _judged,
    "start_events": _started,
}
"""What a reply says about each item of its batch."""
