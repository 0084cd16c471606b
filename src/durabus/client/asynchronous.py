"""The client for async code."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import httpx2

from durabus.client import calls
from durabus.client.calls import TIMEOUT, ApiCall, ClaimedJob, EventFields
from durabus.client.schedules import ClientSchedules
from durabus.clock import monotonic, perf_counter
from durabus.errors import DurabusError, LeaseLost
from durabus.model.claim import DEFAULT_LEASE, Claim, ClaimRef, default_worker_id
from durabus.model.event import Event
from durabus.model.query import Counts, DeadLetterPage
from durabus.model.settlement import Settled, Settlement

T = TypeVar("T")

logger = logging.getLogger("durabus.client")


class Client:
    """A client of one server. It repeats calls that are safe to repeat while the server is away."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        worker_id: str | None = None,
        timeout: float = TIMEOUT,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self.url = url
        self.worker_id = worker_id or default_worker_id()
        self._timeout = timeout
        self._http = httpx2.AsyncClient(**calls.client_options(url, token, transport))
        self.schedules = ClientSchedules(self.send)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections. Repeatable."""
        await self._http.aclose()

    async def publish(self, title: str, payload: Any = None, **fields: Unpack[EventFields]) -> Event:
        """Publish an event. The client gives it an id, so that the server stores it once even if it is sent twice."""
        return calls.one(await self.send(calls.publish([calls.event(title, payload, fields)])))

    async def publish_batch(self, events: Sequence[dict[str, Any]]) -> list[Event]:
        """Publish many events in one step, all or none. Make them with ``new``."""
        return await self.send(calls.publish(events))

    def new(self, title: str, payload: Any = None, **fields: Unpack[EventFields]) -> dict[str, Any]:
        """An event for ``publish_batch``."""
        return calls.event(title, payload, fields)

    async def claim(
        self, *, tags: Iterable[str] = (), limit: int = 1, lease: float | None = None, wait: float = 0.0, **more: Any
    ) -> list[Claim]:
        """Claim up to ``limit`` events, waiting up to ``wait`` seconds for the first. ``more``: bus, mode."""
        wanted = calls.claim(worker_id=self.worker_id, tags=tags, limit=limit, lease=lease, wait=wait, **more)
        return await self.send(wanted)

    async def start(self, refs: Sequence[ClaimRef], *, lease: float | None = None) -> list[float | LeaseLost]:
        """Record that work began."""
        return await self.send(calls.start(refs, lease=lease))

    async def renew(self, refs: Sequence[ClaimRef], *, lease: float | None = None) -> list[float | LeaseLost]:
        """Renew the leases of claims."""
        return await self.send(calls.renew(refs, lease=lease))

    async def settle(self, settlements: Sequence[Settlement]) -> list[Settled | LeaseLost]:
        """End claims with ``Complete``, ``Fail``, ``Release`` or ``Cancel``, each independent of the others."""
        return await self.send(calls.settle(settlements))

    async def get(self, id_: int, *, include_logs: bool = False, include_results: bool = False) -> dict[str, Any]:
        """One event. Raises ``ApiError`` with status 404 if there is none."""
        return await self.send(calls.show(id_, include_logs=include_logs, include_results=include_results))

    async def list(self, **filters: Any) -> dict[str, Any]:
        """A page of events: status, tags, limit, offset, before_id, bus."""
        return await self.send(calls.list_events(**filters))

    async def reset(self, id_: int, reason: str) -> dict[str, Any]:
        """Take an event from its worker."""
        return await self.send(calls.reset(id_, reason))

    async def cancel(self, id_: int, reason: str, *, children: bool = False) -> Sequence[Event]:
        """Cancel an event and, with ``children``, its live descendants. Returns the cancelled events.

        Raises ``ApiError`` with the code ``event_ended`` if the event has ended.
        """
        return await self.send(calls.cancel(id_, reason, children=children))

    async def stats(self, bus: str | None = None) -> Counts:
        """Events by status."""
        return await self.send(calls.stats(bus))

    async def dead_letters(self, *, limit: int = 100, offset: int = 0, bus: str | None = None) -> DeadLetterPage:
        """Dead letters, newest first."""
        return await self.send(calls.dead_letters(limit=limit, offset=offset, bus=bus))

    async def requeue(self, ids: Sequence[int]) -> Sequence[Event]:
        """Requeue dead letters."""
        return await self.send(calls.requeue(ids))

    async def purge(self, older_than_days: float, bus: str | None = None) -> int:
        """Delete dead letters permanently. Returns how many."""
        return await self.send(calls.purge(older_than_days, bus))

    async def jobs(
        self, *, tags: Iterable[str] = (), lease: float = DEFAULT_LEASE, wait: float = 20.0, **more: Any
    ) -> AsyncIterator[Job]:
        """Yield one event after the other, without end. Use each with ``async with``.

        If the server becomes unreachable after the first response, the client waits until it is back.
        """
        connected = False
        while True:
            try:
                claims = await self.claim(tags=tags, lease=lease, wait=wait, **more)
            except DurabusError as error:
                if not connected or not calls.is_away(error):
                    raise
                logger.warning("the client could not claim events, it tries again: %s", error)
                continue
            connected = True
            for claim in claims:
                yield Job(self, claim, lease)

    async def send(self, call: ApiCall[T]) -> T:
        """Send a call. Send it again if that is safe and the error may be temporary."""
        options = calls.request_options(call, self._timeout)
        waits = calls.pauses()
        while True:
            pause = next(waits, None) if call.repeatable else None
            try:
                response = await self._http.request(call.method, call.path, **options)
            except httpx2.TransportError as error:
                if pause is None:
                    raise calls.unreachable(self.url, error) from error
            else:
                if pause is None or not calls.is_temporary(response.status_code):
                    return call.result(response.status_code, response.content)
            await asyncio.sleep(pause)


class Job(ClaimedJob):
    """An event to work on. Its lease is renewed while the block runs, and it completes at the end of the block.

    An exception in the block fails the event. It is reported and logged but not raised, so that the next job can run.
    If another worker gets the event meanwhile, the block is cancelled and later writes to the event are refused.
    """

    def __init__(self, client: Client, claim: Claim, lease: float) -> None:
        super().__init__(claim, lease)
        self._client = client
        self._keeping: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._begun = perf_counter()
        self._keeping = asyncio.create_task(self._keep(asyncio.current_task()))
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> bool:
        spent = (perf_counter() - self._begun) * 1000
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
        task = asyncio.current_task()
        ours = self._lost and task is not None and task.uncancel() == 0
        if ours and isinstance(error, asyncio.CancelledError):
            logger.warning("event %s: the claim was lost while the job was running", self.event.id)
            return True
        if isinstance(error, Exception):
            logger.error("event %s failed", self.event.id, exc_info=error)
        await self._end(error, spent)
        return isinstance(error, Exception)

    async def _end(self, error: BaseException | None, spent: float) -> None:
        try:
            (outcome,) = await self._client.send(calls.end(self.claim.ref, error, spent))
        except DurabusError as trouble:
            if error is None or isinstance(error, Exception):
                raise
            # The block was interrupted, and the caller must see that exception. The lease ends by itself.
            logger.warning("event %s could not be released: %s", self.event.id, trouble)
        else:
            if isinstance(outcome, LeaseLost):
                logger.warning("event %s: %s", self.event.id, outcome)

    async def _keep(self, working: asyncio.Task[Any] | None) -> None:
        """Renew the lease until cancelled. If it expires without a response, the claim counts as lost."""
        while True:
            await asyncio.sleep(min(self._lease / 3, self._ends - monotonic()))
            asked = monotonic()
            try:
                async with asyncio.timeout(self._ends - asked):
                    (renewed,) = await self._client.renew([self.claim.ref], lease=self._lease)
            except (DurabusError, TimeoutError) as error:
                logger.warning("event %s: the claim could not be renewed: %r", self.event.id, error)
                lost = monotonic() >= self._ends
            else:
                lost, self._ends = isinstance(renewed, LeaseLost), asked + self._lease
            if lost:
                self._lost = True
                if working is not None:
                    working.cancel()
                return
