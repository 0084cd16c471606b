"""The client for code without an event loop: the same methods, blocking."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import httpx2

from durabus.client import calls
from durabus.client.calls import TIMEOUT, ApiCall, ClaimedJob, EventFields
from durabus.client.schedules import SyncClientSchedules
from durabus.clock import monotonic, perf_counter
from durabus.errors import DurabusError, LeaseLost
from durabus.model.claim import DEFAULT_LEASE, Claim, ClaimRef, default_worker_id
from durabus.model.event import Event
from durabus.model.query import Counts, DeadLetterPage
from durabus.model.settlement import Settled, Settlement

T = TypeVar("T")

logger = logging.getLogger("durabus.client")


class SyncClient:
    """A client of one server, for any thread. It repeats calls that are safe to repeat while the server is away."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        worker_id: str | None = None,
        timeout: float = TIMEOUT,
        transport: httpx2.BaseTransport | None = None,
    ) -> None:
        self.url = url
        self.worker_id = worker_id or default_worker_id()
        self._timeout = timeout
        self._http = httpx2.Client(**calls.client_options(url, token, transport))
        self.schedules = SyncClientSchedules(self.send)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. Repeatable."""
        self._http.close()

    def publish(self, title: str, payload: Any = None, **fields: Unpack[EventFields]) -> Event:
        """Publish an event. The client gives it an id, so that the server stores it once even if it is sent twice."""
        return calls.one(self.send(calls.publish([calls.event(title, payload, fields)])))

    def publish_batch(self, events: Sequence[dict[str, Any]]) -> list[Event]:
        """Publish many events in one step, all or none. Make them with ``new``."""
        return self.send(calls.publish(events))

    def new(self, title: str, payload: Any = None, **fields: Unpack[EventFields]) -> dict[str, Any]:
        """An event for ``publish_batch``."""
        return calls.event(title, payload, fields)

    def claim(
        self, *, tags: Iterable[str] = (), limit: int = 1, lease: float | None = None, wait: float = 0.0, **more: Any
    ) -> list[Claim]:
        """Claim up to ``limit`` events, waiting up to ``wait`` seconds for the first. ``more``: bus, mode."""
        return self.send(calls.claim(worker_id=self.worker_id, tags=tags, limit=limit, lease=lease, wait=wait, **more))

    def start(self, refs: Sequence[ClaimRef], *, lease: float | None = None) -> list[float | LeaseLost]:
        """Record that work began."""
        return self.send(calls.start(refs, lease=lease))

    def renew(self, refs: Sequence[ClaimRef], *, lease: float | None = None) -> list[float | LeaseLost]:
        """Renew the leases of claims."""
        return self.send(calls.renew(refs, lease=lease))

    def settle(self, settlements: Sequence[Settlement]) -> list[Settled | LeaseLost]:
        """End claims with ``Complete``, ``Fail``, ``Release`` or ``Cancel``, each independent of the others."""
        return self.send(calls.settle(settlements))

    def get(self, id_: int, *, include_logs: bool = False, include_results: bool = False) -> dict[str, Any]:
        """One event. Raises ``ApiError`` with status 404 if there is none."""
        return self.send(calls.show(id_, include_logs=include_logs, include_results=include_results))

    def list(self, **filters: Any) -> dict[str, Any]:
        """A page of events: status, tags, limit, offset, before_id, bus."""
        return self.send(calls.list_events(**filters))

    def reset(self, id_: int, reason: str) -> dict[str, Any]:
        """Take an event from its worker."""
        return self.send(calls.reset(id_, reason))

    def cancel(self, id_: int, reason: str, *, children: bool = False) -> Sequence[Event]:
        """Cancel an event and, with ``children``, its live descendants. Returns the cancelled events.

        Raises ``ApiError`` with the code ``event_ended`` if the event has ended.
        """
        return self.send(calls.cancel(id_, reason, children=children))

    def stats(self, bus: str | None = None) -> Counts:
        """Events by status."""
        return self.send(calls.stats(bus))

    def dead_letters(self, *, limit: int = 100, offset: int = 0, bus: str | None = None) -> DeadLetterPage:
        """Dead letters, newest first."""
        return self.send(calls.dead_letters(limit=limit, offset=offset, bus=bus))

    def requeue(self, ids: Sequence[int]) -> Sequence[Event]:
        """Requeue dead letters."""
        return self.send(calls.requeue(ids))

    def purge(self, older_than_days: float, bus: str | None = None) -> int:
        """Delete dead letters permanently. Returns how many."""
        return self.send(calls.purge(older_than_days, bus))

    def jobs(
        self, *, tags: Iterable[str] = (), lease: float = DEFAULT_LEASE, wait: float = 20.0, **more: Any
    ) -> Iterator[SyncJob]:
        """Yield one event after the other, without end. Use each with ``with``.

        If the server becomes unreachable after the first response, the client waits until it is back.
        """
        connected = False
        while True:
            try:
                claims = self.claim(tags=tags, lease=lease, wait=wait, **more)
            except DurabusError as error:
                if not connected or not calls.is_away(error):
                    raise
                logger.warning("the client could not claim events, it tries again: %s", error)
                continue
            connected = True
            for claim in claims:
                yield SyncJob(self, claim, lease)

    def send(self, call: ApiCall[T]) -> T:
        """Send a call. Send it again if that is safe and the error may be temporary."""
        options = calls.request_options(call, self._timeout)
        waits = calls.pauses()
        while True:
            pause = next(waits, None) if call.repeatable else None
            try:
                response = self._http.request(call.method, call.path, **options)
            except httpx2.TransportError as error:
                if pause is None:
                    raise calls.unreachable(self.url, error) from error
            else:
                if pause is None or not calls.is_temporary(response.status_code):
                    return call.result(response.status_code, response.content)
            time.sleep(pause)


class SyncJob(ClaimedJob):
    """An event to work on. A thread renews its lease while the block runs, and it completes at the end of the block.

    An exception in the block fails the event. It is reported and logged but not raised. If another worker gets the
    event meanwhile, ``lost`` is True and the result of this job is refused.
    """

    def __init__(self, client: SyncClient, claim: Claim, lease: float) -> None:
        super().__init__(claim, lease)
        self._client = client
        self._over = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name=f"durabus-job:{claim.event.id}", daemon=True)

    @property
    def lost(self) -> bool:
        """Whether another worker has or may have the event, because the claim is lost or the lease has expired."""
        return self._lost or monotonic() >= self._ends

    def __enter__(self) -> Self:
        self._begun = perf_counter()
        self._keeper.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> bool:
        spent = (perf_counter() - self._begun) * 1000
        self._over.set()
        self._keeper.join()
        if isinstance(error, Exception):
            logger.error("event %s failed", self.event.id, exc_info=error)
        self._end(error, spent)
        return isinstance(error, Exception)

    def _end(self, error: BaseException | None, spent: float) -> None:
        try:
            (outcome,) = self._client.send(calls.end(self.claim.ref, error, spent))
        except DurabusError as trouble:
            if error is None or isinstance(error, Exception):
                raise
            # The block was interrupted, and the caller must see that exception. The lease ends by itself.
            logger.warning("event %s could not be released: %s", self.event.id, trouble)
            return
        self._lost, self._ends = isinstance(outcome, LeaseLost), float("inf")
        if self._lost:
            logger.warning("event %s: %s", self.event.id, outcome)

    def _keep(self) -> None:
        while not self._over.wait(self._lease / 3):
            asked = monotonic()
            try:
                (renewed,) = self._client.renew([self.claim.ref], lease=self._lease)
            except DurabusError as error:
                logger.warning("event %s: the claim could not be renewed: %s", self.event.id, error)
            else:
                if isinstance(renewed, LeaseLost):
                    self._lost = True
                    return
                self._ends = asked + self._lease
