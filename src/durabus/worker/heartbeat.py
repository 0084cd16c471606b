"""The heartbeat renews claims, in one thread for all buses of a process."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import os
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Generic, TypeVar

from durabus.clock import monotonic
from durabus.errors import LeaseLost, StoreClosedError, StoreError
from durabus.loop_thread import LoopThread
from durabus.model.claim import ClaimRef
from durabus.store.contract import EventStore

_thread = LoopThread("durabus-heartbeat", StoreClosedError, ended="the heartbeat thread never ends")
"""It starts with the first heartbeat and lives as long as the process."""
os.register_at_fork(after_in_child=_thread.begin_anew)


def heartbeat_loop() -> asyncio.AbstractEventLoop:
    """The event loop of the heartbeat thread. Nothing may block it: all leases of this process depend on it."""
    _thread.start()
    return _thread.loop


logger = logging.getLogger("durabus.worker")

SAFETY = 0.9
"""The part of a lease that a worker uses. The rest covers slow requests and clocks that differ."""
TICK = 0.1
"""The time between two beats, as a part of a lease: a failed renewal gets several more tries before the deadline."""
RENEW_AFTER = 1 / 3 - TICK
"""The part of its lease after which a claim is renewed at the next beat: before a third of the lease has passed. A
handler of an event that was cancelled elsewhere is promised to hear of it by then."""
STOP_TIMEOUT = 2.0
"""Seconds that ``stop`` waits for a store that does not end a cancelled call."""


def came_late(left: float, lease: float, claims: int, bus: str) -> bool:
    """Whether the answer took so long that the leases may end before a heartbeat renews them: no handler may begin.

    ``left`` is the number of seconds to the deadline of the claims.
    """
    late = left <= lease * TICK
    if late:
        logger.warning(
            "%s claims on bus %r came after %.0f %% of their lease of %g s and go back unworked: take a longer "
            "lease, or find out why the store answers so late",
            claims,
            bus,
            (SAFETY - TICK) * 100,
            lease,
        )
    return late


class HeldClaim:
    """A claim in this process. ``deadline`` is local time, counted from before the request was sent."""

    __slots__ = ("deadline", "ref")

    def __init__(self, ref: ClaimRef, deadline: float) -> None:
        self.ref = ref
        self.deadline = deadline

    @property
    def has_begun(self) -> bool:
        """Whether handlers run, so that it does not wait for the event loop."""
        return True

    @property
    def has_no_limit(self) -> bool:
        """Whether the worker keeps it however long it takes."""
        return False


H = TypeVar("H", bound=HeldClaim)
T = TypeVar("T")


class Heartbeat(Generic[H]):
    """Renews each claim before a third of its lease has passed.

    They are claims on events, unless ``renew`` renews others.

    It reports claims that are lost, that it could not renew before their deadline, or that are not done long after
    their time: a handler that blocks the event loop must not keep an event from other processes for ever.
    """

    def __init__(
        self,
        store: EventStore,
        *,
        lease: float,
        held: Callable[[], Sequence[H]],
        allowance: Callable[[H], float],
        lost: Callable[[H, str], None],
        renew: Callable[[Sequence[H]], Coroutine[Any, Any, list[float | LeaseLost]]] | None = None,
    ) -> None:
        self._store = store
        self._renew_claims = renew or self._renew_event_claims
        self._lease = lease
        self._tick = lease * TICK
        self._held = held
        self._allowance = allowance
        self._lost = lost
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_seen = 0.0
        self._begun: dict[H, tuple[float, float]] = {}
        """When the heartbeat first saw the handlers of a claim run, and the seconds that they may take."""
        self._given_up: set[H] = set()
        """Claims that were reported; the heartbeat does not renew them again."""
        self._heartbeat_loop: asyncio.AbstractEventLoop | None = None
        self._beating: asyncio.Task[None] | None = None
        self._ended = asyncio.Event()

    def start(self) -> None:
        """Begin to beat."""
        self._loop, self._heartbeat_loop = asyncio.get_running_loop(), heartbeat_loop()
        self._see_loop()
        # An empty context: nothing of the caller's, such as its trace, may live as long as the heartbeat.
        self._heartbeat_loop.call_soon_threadsafe(self._begin, context=contextvars.Context())

    def end(self) -> None:
        """End the heartbeat without waiting for it."""
        if self._heartbeat_loop is not None:
            self._heartbeat_loop.call_soon_threadsafe(self._cancel)

    async def stop(self, within: float = STOP_TIMEOUT) -> None:
        """End the heartbeat and wait for it."""
        self.end()
        if self._heartbeat_loop is None:
            return
        try:
            async with asyncio.timeout(within):
                await self._ended.wait()
        except TimeoutError:
            logger.warning(
                "the heartbeat did not end within %g s: it hangs inside the store, or its thread is starved",
                within,
            )

    def _begin(self) -> None:
        self._beating = asyncio.get_running_loop().create_task(self._keep_beating(), name="durabus-heartbeat")
        self._beating.add_done_callback(self._tell_end)

    def _cancel(self) -> None:
        if self._beating is not None:
            self._beating.cancel()

    def _tell_end(self, _beating: object) -> None:
        if self._loop is not None:
            _tell(self._loop, self._ended.set)

    async def _keep_beating(self) -> None:
        await asyncio.sleep(self._tick)
        # Without its loop a worker cannot end anything it holds.
        while self._loop is not None and not self._loop.is_closed():
            began = monotonic()
            try:
                await self._beat()
            except Exception:
                logger.exception("heartbeat failed, will try again")
            await asyncio.sleep(self._pause(began))

    def _pause(self, began: float) -> float:
        """Seconds until the next beat, which comes a tick after the last one began, or at once.

        The last beat may have waited long for a store that did not answer, and other claims are due meanwhile.
        """
        return max(began + self._tick - monotonic(), 0.0)

    def _see_loop(self) -> None:
        self._loop_seen = monotonic()

    async def _beat(self) -> None:
        now, held = monotonic(), self._held()
        self._given_up.intersection_update(held)
        self._begun = {claim: self._time_of(claim, now) for claim in held if claim.has_begun}
        due = []
        for claim in held:
            if claim in self._given_up or claim.deadline - now > self._lease * (SAFETY - RENEW_AFTER):
                continue
            # A claim that has not begun, or is done and not settled, waits for the event loop, as long as that lives.
            since, seconds = self._begun.get(claim) or (self._loop_seen, self._allowance(claim))
            if now > since + seconds + self._lease and not claim.has_no_limit:
                self._give_up(claim, "not done long after the timeouts of its handlers, or the event loop stands still")
            else:
                due.append(claim)
        if held and self._loop is not None:
            _tell(self._loop, self._see_loop)
        if due:
            await self._renew(due, now)

    def _time_of(self, claim: H, now: float) -> tuple[float, float]:
        """Since when the handlers of a claim run, and the seconds that they may take.

        While the claim has no limit, its time begins anew: the event loop is yet to notice that the reason is over.
        """
        since, seconds = self._begun.get(claim) or (now, self._allowance(claim))
        return now if claim.has_no_limit else since, seconds

    async def _renew(self, due: list[H], now: float) -> None:
        # Never longer than to the first deadline. A claim past it, as after a sleep of the machine, gets one more try.
        limit = min(held.deadline - now if held.deadline > now else self._tick for held in due)
        answers = await self._ask(due, limit)
        for held, answer in zip(due, answers, strict=False):
            if isinstance(answer, LeaseLost):
                self._give_up(held, answer.reason)
            else:
                held.deadline = now + self._lease * SAFETY
        for held in due:
            # The next beat would come after the deadline, when the lease may be over.
            if held.deadline <= monotonic() + self._tick and held not in self._given_up:
                self._give_up(held, "could not be renewed in time")

    async def _ask(self, due: list[H], limit: float) -> list[float | LeaseLost]:
        """Return the store's answers; an empty list if it fails or does not answer within ``limit`` seconds."""
        try:
            return await in_time(self._renew_claims(due), limit)
        except StoreClosedError as error:
            for held in due:
                self._give_up(held, str(error))
        except TimeoutError:
            logger.warning("cannot renew %s claims: no answer from the store in %.3g s", len(due), limit)
        except StoreError as error:
            logger.warning("cannot renew %s claims, will try again: %s", len(due), error)
        except Exception:
            logger.exception("cannot renew %s claims, will try again", len(due))
        return []

    async def _renew_event_claims(self, due: Sequence[H]) -> list[float | LeaseLost]:
        return await self._store.renew_event_claims([held.ref for held in due], lease=self._lease)

    def _give_up(self, held: H, reason: str) -> None:
        self._given_up.add(held)
        self._lost(held, reason)


async def in_time(call: Coroutine[Any, Any, T], seconds: float) -> T:
    """Return the answer to a call; raise ``TimeoutError`` after so many seconds, and not later.

    ``asyncio.timeout`` could raise later: a store may be slow to end a cancelled call, and a deadline cannot wait.
    """
    asking = asyncio.ensure_future(call)
    try:
        if (await asyncio.wait({asking}, timeout=seconds))[0]:
            return asking.result()
        raise TimeoutError
    finally:
        if asking.done():
            _take_notice(asking)  # it failed just as its caller was cancelled
        else:
            asking.add_done_callback(_take_notice)
            asking.cancel()


def _take_notice(asking: asyncio.Future[Any]) -> None:
    """Read the exception of a call that has no caller any more; otherwise asyncio would log it."""
    if not asking.cancelled():
        asking.exception()


def _tell(loop: asyncio.AbstractEventLoop, what: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(what)
