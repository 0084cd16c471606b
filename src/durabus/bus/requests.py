"""Requests: an event whose publisher waits for the value of its handler, in whichever process that runs."""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Unpack

from durabus.bus.handle import Handle, value_in
from durabus.bus.publisher import Publisher
from durabus.bus.subscribing import Subscribing
from durabus.errors import DurabusError, EventCancelled, EventNotFound, NoAnswer
from durabus.model.event import Event, PublishOptions
from durabus.model.limits import Duration, seconds
from durabus.model.settlement import NO_HANDLER
from durabus.model.statuses import EventStatus
from durabus.store.contract import EventStore
from durabus.worker.cancelling import EXPIRED
from durabus.worker.children.emissions import RUN

logger = logging.getLogger("durabus.bus")

GONE = (
    "its event has ended and was deleted before the answer was read: let the history keep more events "
    "(max_history_size of the bus, max_history of the store), or do not trim it so soon"
)
"""Why a request whose event is not in the store any more has no answer."""
WHERE_WITHIN = 1.0
"""Seconds that the error of a request may take to find out where the event is."""


class Requests:
    """The requests of one bus that wait."""

    def __init__(self, store: EventStore, publisher: Publisher) -> None:
        self._store = store
        self._publisher = publisher

    async def answer(self, send: Callable[[], Handle], limit: float) -> Any:
        """Emit the event and return the value of its handler.

        Raises ``EventFailed``, ``NoAnswer``, or ``TimeoutError`` after ``limit``.
        """
        handle, scope = send(), asyncio.timeout(limit)
        try:
            async with scope:
                while True:
                    try:
                        value = await handle.result()
                    except EventCancelled as cancelled:
                        if not (cancelled.reason or "").startswith(EXPIRED):
                            raise
                        if RUN.get() is None:
                            break  # by the clock of the store, its time was over a moment earlier than here
                        # A retry of the handler that asks finds the request of its earlier attempt. If that one has
                        # expired, the next request with the same payload is a new event.
                        handle = send()
                    except EventNotFound as gone:
                        raise NoAnswer(handle.event_id, GONE) from gone
                    else:
                        return value if value is not None else await self._none(handle)
        except TimeoutError:
            if not scope.expired():
                raise
        finally:
            if not handle.done:
                self._publisher.drop(handle)
        raise TimeoutError(
            f"no answer to {handle.new.type} {handle.event_id} within {limit:g} s: {await self._where(handle)}"
        )

    async def _none(self, handle: Handle) -> Any:
        """Return None if a handler returned it. Raises ``NoAnswer`` if none ran, or its value could not be stored.

        An ``EventManager`` may have deleted the results meanwhile: then the last entry of the log has the value.
        """
        log = await self._store.read_event_log(handle.event_id)
        if not log:
            if handle.ended_here:
                return None
            raise NoAnswer(handle.event_id, GONE)
        last = log[-1]
        refused = next((result for result in last.results if result.error), None)
        if last.reason == NO_HANDLER:
            raise NoAnswer(handle.event_id, f"no node has a handler for {handle.new.type!r}: is the type misspelt?")
        if refused is not None:
            raise NoAnswer(handle.event_id, f"handler {refused.handler_id} succeeded, {refused.error}")
        return None if handle.ended_here else value_in(handle, last.results)

    async def _where(self, handle: Handle) -> str:
        try:
            async with asyncio.timeout(WHERE_WITHIN):
                event = await self._store.get_event(handle.event_id)
        except (DurabusError, TimeoutError) as error:
            return f"and the store does not say where it is ({str(error) or type(error).__name__})"
        return "it is not in the store" if event is None else _where_is(event)


def _where_is(event: Event) -> str:
    if event.status is EventStatus.PROCESSING:
        return f"attempt {event.attempts} of it runs on worker {event.worker_id}"
    if event.status is not EventStatus.PENDING:
        return f"it has ended {event.status} meanwhile"
    if event.errors:
        return f"it waits for attempt {event.attempts + 1}, its last error: {event.errors[-1]}"
    return "it is PENDING, and no worker has begun it: start a process that has its handler and serves its bus"


class Requesting(Subscribing):
    """The part of a bus that waits for the values of handlers."""

    _requests: Requests

    @abstractmethod
    async def _start_for(self, verb: str) -> None:
        """Start the bus if needed. Raises if it is shut down; ``verb`` names what is refused then."""

    @abstractmethod
    def emit(
        self,
        event_type: str | object,
        payload: Any = None,
        metadata: Mapping[str, Any] | None = None,
        **options: Unpack[PublishOptions],
    ) -> Handle:
        """Emit an event and return at once."""

    async def request(
        self,
        event_type: str | object,
        payload: Any = None,
        metadata: Mapping[str, Any] | None = None,
        *,
        timeout: Duration,  # noqa: ASYNC109  (its error says where the event is)
        **options: Unpack[PublishOptions],
    ) -> Any:
        """Emit an event and return the value of its handler, from whichever process ran it.

        If several handlers return a value, this is the first of them by the order of their results; it is None if none
        does. The request waits for the end of the event, retries included. Raises ``EventFailed`` with the error of the
        handler if the event ends as a dead letter, ``NoAnswer`` if no handler ran or its value is not JSON, and
        ``TimeoutError`` after ``timeout`` seconds. No worker begins the event after that, unless ``expires`` says
        otherwise.
        """
        limit = seconds(timeout, "timeout", allow_zero=False)
        options.setdefault("expires", limit)
        await self._start_for("request")
        return await self._requests.answer(lambda: self.emit(event_type, payload, metadata, **options), limit)
