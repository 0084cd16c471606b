"""The API for code without an event loop: the same verbs, blocking."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import httpx2

from durabus.client import calls
from durabus.client.calls import ApiCall, EventFields
from durabus.client.retrying import TIMEOUT, client_options, is_away, passes, pauses, request_options, unreachable
from durabus.clock import monotonic, perf_counter
from durabus.errors import DurabusError, LeaseLost
from durabus.model.claim import DEFAULT_LEASE, Claim, ClaimRef, default_worker_id
from durabus.model.event import Event
from durabus.model.query import Counts, DeadLetterPage
from durabus.model.settlement import Settled, Settlement

T = TypeVar("T")

logger = logging.getLogger("durabus.client")


class SyncClient:
    """Speaks to one server, from any thread. Calls that are safe to repeat are repeated while it cannot be reached."""

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
        self._http = httpx2.Client(**client_options(url, token, transport))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the connections. Repeatable."""
        self._http.close()

    def publish(self, title: str, payload: Any = None, **fields: Unpack[EventFields]) -> Event:
        """Store an event. It is sent with an id of its own, so that it is stored once however often it is sent."""
        return calls.one(self.send(calls.publish([calls.event(title, payload, fields)])))

    def publish_batch(self, events: Sequence[dict[str, Any]]) -> list[Event]:
        """Store many events in one step, all or none. Make them with ``new``."""
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
        """Keep claims for longer."""
        return self.send(calls.renew(refs, lease=lease))

    def settle(self, settlements: Sequence[Settlement]) -> list[Settled | LeaseLost]:
        """End claims: ``Complete``, ``Fail`` or ``Release``, each judged by itself."""
        return self.send(calls.settle(settlements))

    def get(self, id_: int, *, include_logs: bool = False) -> dict[str, Any]:
        """One event. Raises ``ApiError`` with status 404 if there is none."""
        return self.send(calls.show(id_, include_logs=include_logs))

    def list(self, **filters: Any) -> dict[str, Any]:
        """A page of events: status, tags, limit, offset, before_id, bus."""
        return self.send(calls.list_events(**filters))

    def reset(self, id_: int, reason: str) -> dict[str, Any]:
        """Take an event from its worker."""
        return self.send(calls.reset(id_, reason))

    def stats(self, bus: str | None = None) -> Counts:
        """Events by status."""
        return self.send(calls.stats(bus))

    def dead_letters(self, *, limit: int = 100, offset: int = 0, bus: str | None = None) -> DeadLetterPage:
        """Dead letters, newest first."""
        return self.send(calls.dead_letters(limit=limit, offset=offset, bus=bus))

    def requeue(self, ids: Sequence[int]) -> Sequence[Event]:
        """Bring dead letters back."""
        return self.send(calls.requeue(ids))

    def purge(self, older_than_days: float, bus: str | None = None) -> int:
        """Delete dead letters for ever."""
        return self.send(calls.purge(older_than_days, bus))

    def jobs(
        self, *, tags: Iterable[str] = (), lease: float = DEFAULT_LEASE, wait: float = 20.0, **more: Any
    ) -> Iterator[SyncJob]:
        """One event after the other, for ever. Use each with ``with``.

        A server that answered before is waited for while it is away.
        """
        answered = False
        while True:
            try:
                claims = self.claim(tags=tags, lease=lease, wait=wait, **more)
            except DurabusError as error:
                if not answered or not is_away(error):
                    raise
                logger.warning("no work could be asked for, it is tried again: %s", error)
                continue
            answered = True
            for claim in claims:
                yield SyncJob(self, claim, lease)

    def send(self, call: ApiCall[T]) -> T:
        """Send a call, again where that is safe and the trouble may pass."""
        options = request_options(call, self._timeout)
        waits = pauses()
        while True:
            pause = next(waits, None) if call.repeatable else None
            try:
                answer = self._http.request(call.method, call.path, **options)
            except httpx2.TransportError as error:
                if pause is None:
                    raise unreachable(self.url, error) from error
            else:
                if pause is None or not passes(answer.status_code):
                    return call.answer(answer.status_code, answer.content)
            time.sleep(pause)


class SyncJob:
    """An event to work on: kept while the block runs, completed at its end, failed by an exception in it.

    The exception is reported and logged, and goes no further. A thread renews the claim; if somebody else gets the
    event meanwhile, ``lost`` is True, and what this worker says of it at the end is refused.
    """

    def __init__(self, client: SyncClient, claim: Claim, lease: float) -> None:
        self.claim = claim
        self.event = claim.event
        self._client = client
        self._lease = lease
        self._lost = False
        self._ends = monotonic() + lease
        self._begun = 0.0
        self._over = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name=f"durabus-job:{claim.event.id}", daemon=True)

    @property
    def payload(self) -> Any:
        """What was published."""
        return self.event.payload

    @property
    def fence(self) -> int:
        """For systems that refuse writes of workers that came before."""
        return self.event.fence

    @property
    def lost(self) -> bool:
        """Somebody else has the event, or may have it: the lease is over, and no renewal was answered."""
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
            # The block was interrupted, and that is what its caller must hear of. The lease ends by itself.
            logger.warning("event %s could not be given back: %s", self.event.id, trouble)
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
                logger.warning("event %s: its claim could not be renewed: %s", self.event.id, error)
            else:
                if isinstance(renewed, LeaseLost):
                    self._lost = True
                    return
                self._ends = asked + self._lease
