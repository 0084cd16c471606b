"""A store that sends what publishers, workers and administrators do over HTTP to a server.

The rest of the suite reads the server's own store directly.

Over HTTP: publish, claim, renew, settle, requeue, reset, cancel, counts and dead letters of a bus. What the API cannot
say (it is listed in docs/reference/http.md) ends a test, with the reason.
"""

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import msgspec
import pytest

from durabus.client import Client, calls, wire
from durabus.errors import ApiError, EventNotFound, LeaseLost, NotADeadLetter, UnsupportedByStore
from durabus.http.schema.fields import MAX_CLAIMS
from durabus.model.claim import Claim, ClaimRef, ClaimRequest, incarnation_of
from durabus.model.event import Event, NewEvent
from durabus.model.query import Counts, DeadLetterPage
from durabus.model.settlement import Complete, Release, Settlement
from durabus.store.claims import SettleAnswer
from durabus.store.contract import EventStore
from durabus.store.events import EventRef

T = TypeVar("T")

UNKNOWN = re.compile(r"no event (\d+)")
NOT_DEAD = re.compile(r"event (\d+) is (\w+), not a dead letter")


def not_over_http(what: str) -> Any:
    pytest.skip(f"the API has no {what}")


class Settled(msgspec.Struct):
    outcomes: list[Any]
    claims: list[Any]


class HttpStore:
    """A store that speaks HTTP. Calls that are not defined here go to the server's own store."""

    def __init__(self, inner: EventStore, client: Client, stop: Callable[[], Awaitable[None]] | None = None) -> None:
        self._inner = inner
        self._stop = stop
        self._client = client
        self.features = inner.features

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def close(self) -> None:
        await self._client.close()
        if self._stop is not None:
            await self._stop()
        await self._inner.close()

    async def add_events(self, new: Sequence[NewEvent], *, connection: object | None = None) -> list[Event]:
        if connection is not None or not new:
            return await self._inner.add_events(new, connection=connection)
        return await self._send(calls.publish([_document(one) for one in new]))

    async def claim_next_events(self, request: ClaimRequest) -> list[Claim]:
        return await self._send(calls._post("/claims", _claim(request), wire.claims))

    async def renew_event_claims(self, refs: Sequence[ClaimRef], *, lease: float) -> list[float | LeaseLost]:
        return await self._send(calls.renew(refs, lease=lease)) if refs else []

    async def settle_events(
        self,
        settlements: Sequence[Settlement],
        *,
        then_claim: ClaimRequest | None = None,
        connection: object | None = None,
        with_entries: bool = False,
    ) -> SettleAnswer:
        if connection is not None:
            return await self._inner.settle_events(
                settlements, then_claim=then_claim, connection=connection, with_entries=with_entries
            )
        if with_entries:
            not_over_http("log entries in the outcome of a settlement")
        if any(one.results or (isinstance(one, Complete) and one.handler_id is not None) for one in settlements):
            not_over_http("results of single handlers")
        if any(one.children or (isinstance(one, Release) and one.until_children) for one in settlements):
            not_over_http("children of a settlement")
        body: dict[str, Any] = {"settlements": [calls._settlement(one) for one in settlements]}
        if then_claim is not None:
            body["then_claim"] = _claim(then_claim)
        return await self._send(calls._post("/claims/settle", body, _answer))

    async def counts(self, bus: str | None = None) -> Counts:
        return await self._inner.counts() if bus is None else await self._client.stats(bus)

    async def list_dead_letters(self, *, bus: str | None = None, limit: int = 100, offset: int = 0) -> DeadLetterPage:
        if bus is None:
            return await self._inner.list_dead_letters(limit=limit, offset=offset)
        return await self._client.dead_letters(bus=bus, limit=limit, offset=offset)

    async def requeue_dead_letters(self, refs: Sequence[EventRef]) -> list[Event]:
        ids = [ref for ref in refs if isinstance(ref, int)]
        if not ids or len(ids) < len(refs):
            return await self._inner.requeue_dead_letters(refs)
        return await self._send(calls.requeue(ids))

    async def reset_event(self, ref: EventRef, *, reason: str) -> Event:
        if isinstance(ref, str):
            return await self._inner.reset_event(ref, reason=reason)
        await self._send(calls.reset(ref, reason))
        found = await self._inner.get_event(ref)
        assert found is not None
        return found

    async def cancel_event(self, ref: EventRef, *, reason: str) -> Event:
        if isinstance(ref, str):
            return await self._inner.cancel_event(ref, reason=reason)
        try:
            (cancelled,) = await self._send(calls.cancel(ref, reason))
        except ApiError as error:
            found = await self._inner.get_event(ref)
            if error.code != "event_ended" or found is None:
                raise
            return found  # the API calls this an error, the store does not
        return cancelled

    async def _send(self, call: calls.ApiCall[T]) -> T:
        """Return the reply, or raise the error that the store would have raised."""
        try:
            return await self._client.send(call)
        except ApiError as error:
            if error.status == 404 and (found := UNKNOWN.search(error.detail)):
                raise EventNotFound(int(found[1])) from error
            if error.status == 409 and (found := NOT_DEAD.search(error.detail)):
                raise NotADeadLetter(int(found[1]), found[2]) from error
            if "declares" in error.detail:
                raise UnsupportedByStore(error.detail) from error
            raise


def _document(new: NewEvent) -> dict[str, Any]:
    fields = {
        "title": new.type,
        "type": new.type,
        "bus": new.bus,
        "event_id": new.event_id,
        "payload": msgspec.Raw(new.payload_json.encode()),
        "metadata": None if new.metadata_json is None else msgspec.Raw(new.metadata_json.encode()),
        "tags": ",".join(new.tags),
        "priority": new.priority,
        "delay": new.delay,
        "max_retries": new.max_attempts,
        "parent_id": new.parent_id,
        "idempotency_key": new.idempotency_key,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _claim(request: ClaimRequest) -> dict[str, Any]:
    if request.event_id is not None:
        not_over_http("claim by event_id")
    if request.max_attempts is not None:
        not_over_http("limit of attempts in a claim: the server's settings have it")
    if incarnation_of(request.token):
        not_over_http("claim that ends with a process: the worker is another process than the server")
    return {
        "bus": request.bus,
        "worker_id": request.worker_id,
        "token": request.token,
        "limit": min(request.limit, MAX_CLAIMS),
        "lease": request.lease,
        "mode": request.mode.value,
        "tags": ",".join(request.tags),
    }


def _answer(body: bytes) -> SettleAnswer:
    parts = msgspec.json.decode(body, type=Settled)
    return SettleAnswer(wire.outcomes(body), wire.claims(msgspec.json.encode({"claims": parts.claims})))
