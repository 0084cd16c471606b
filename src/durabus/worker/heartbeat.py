"""The thread in which all heartbeats of a process beat: one, however many buses it has."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import os
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Generic, TypeVar

from durabus.clock import monotonic
from durabus.errors import LeaseLost, StoreClosedError, StoreError
from durabus.model.claim import ClaimRef
from durabus.store.contract import EventStore


class _Pulse:
    """Starts with the first heartbeat, and is there for as long as the process."""

    def __init__(self) -> None:
        self._starting = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def loop(self) -> asyncio.AbstractEventLoop:
        with self._starting:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="durabus-heartbeat", daemon=True).start()
            return self._loop

    def begin_anew(self) -> None:
        """A forked process has no thread but the one that forked; another may have been at the lock just then."""
        self._starting, self._loop = threading.Lock(), None


_here = _Pulse()
os.register_at_fork(after_in_child=_here.begin_anew)


def pulse() -> asyncio.AbstractEventLoop:
    """The event loop of that thread. Nothing may block it: all leases of this process hang on it."""
    return _here.loop()


logger = logging.getLogger("durabus.worker")

SAFETY = 0.9
"""The part of a lease that a worker uses: the rest is for the time that requests and clocks take."""
TICK = 0.1
"""The part of a lease between two beats: a failed renewal gets several more tries before the deadline."""
STOP_TIMEOUT = 2.0
"""How long ``stop`` waits for a store that does not let go of a cancelled call."""


def came_late(left: float, lease: float, claims: int, bus: str) -> bool:
    """Whether the answer took so long that others may have the events before a heartbeat: no handler may begin.

    ``left``: seconds to the deadline of the claims.
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
    """A claim in this process. ``deadline`` is local, and counted from before the request was sent."""

    __slots__ = ("deadline", "ref")

    def __init__(self, ref: ClaimRef, deadline: float) -> None:
        self.ref = ref
        self.deadline = deadline

    @property
    def has_begun(self) -> bool:
        """Whether it is being worked on, and not waiting for the event loop."""
        return True

    @property
    def has_no_limit(self) -> bool:
        """Whether it is kept however long it takes."""
        return False


H = TypeVar("H", bound=HeldClaim)
T = TypeVar("T")


class Heartbeat(Generic[H]):
    """Renews every third of a lease.

    Reported are claims that are lost, that were not renewed before their deadline, or that are not done long after
    their time: a handler that stops the whole event loop must not keep an event from other processes for ever.
    """

    def __init__(
        self,
        store: EventStore,
        *,
        lease: float,
        held: Callable[[], Sequence[H]],
        allowance: Callable[[H], float],
        lost: Callable[[H, str], None],
    ) -> None:
        self._store = store
        self._lease = lease
        self._tick = lease * TICK
        self._held = held
        self._allowance = allowance
        self._lost = lost
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_seen = 0.0
        self._begun: dict[H, tuple[float, float]] = {}
        """When they were first seen at work, and how many seconds that may take."""
        self._given_up: set[H] = set()
        """What was reported, and is not renewed again."""
        self._pulse: asyncio.AbstractEventLoop | None = None
        self._beating: asyncio.Task[None] | None = None
        self._ended = asyncio.Event()

    def start(self) -> None:
        """Begin to beat."""
        self._loop, self._pulse = asyncio.get_running_loop(), pulse()
        self._see_loop()
        # Nothing of what surrounds the caller, such as its trace, is to go on for as long as this does.
        self._pulse.call_soon_threadsafe(self._begin, context=contextvars.Context())

    def end(self) -> None:
        """Let it end, without waiting for it."""
        if self._pulse is not None:
            self._pulse.call_soon_threadsafe(self._cancel)

    async def stop(self, within: float = STOP_TIMEOUT) -> None:
        """End it and wait for it."""
        self.end()
        if self._pulse is None:
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
            try:
                await self._beat()
            except Exception:
                logger.exception("heartbeat failed, will try again")
            await asyncio.sleep(self._tick)

    def _see_loop(self) -> None:
        self._loop_seen = monotonic()

    async def _beat(self) -> None:
        now, held = monotonic(), self._held()
        self._given_up.intersection_update(held)
        self._begun = {c: self._begun.get(c) or (now, self._allowance(c)) for c in held if c.has_begun}
        due = []
        for claim in held:
            if claim in self._given_up or claim.deadline - now >= self._lease * (SAFETY - 1 / 3):
                continue
            # What has not begun, or is done and not settled, waits for the event loop: as long as that lives.
            since, seconds = self._begun.get(claim) or (self._loop_seen, self._allowance(claim))
            if now > since + seconds + self._lease and not claim.has_no_limit:
                self._give_up(claim, "not done long after the timeouts of its handlers, or the event loop stands still")
            else:
                due.append(claim)
        if held and self._loop is not None:
            _tell(self._loop, self._see_loop)
        if due:
            await self._renew(due, now)

    async def _renew(self, due: list[H], now: float) -> None:
        # Never longer than to the first deadline. What is past it, as after a sleep of the machine, gets one more try.
        limit = min(held.deadline - now if held.deadline > now else self._tick for held in due)
        answers = await self._ask(due, limit)
        for held, answer in zip(due, answers, strict=False):
            if isinstance(answer, LeaseLost):
                self._give_up(held, answer.reason)
            else:
                held.deadline = now + self._lease * SAFETY
        for held in due:
            # Its deadline would pass before the next beat, and that would notice it only after the lease may be over.
            if held.deadline <= monotonic() + self._tick and held not in self._given_up:
                self._give_up(held, "could not be renewed in time")

    async def _ask(self, due: list[H], limit: float) -> list[float | LeaseLost]:
        """What the store answers; nothing if it fails, or not within ``limit`` seconds."""
        try:
            return await in_time(self._store.renew_event_claims([held.ref for held in due], lease=self._lease), limit)
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

    def _give_up(self, held: H, reason: str) -> None:
        self._given_up.add(held)
        self._lost(held, reason)


async def in_time(call: Coroutine[Any, Any, T], seconds: float) -> T:
    """The answer to a call; ``TimeoutError`` after so many seconds, and not later.

    Under ``asyncio.timeout`` it could be later: a store may take its time to end a call that is cancelled, and a
    deadline cannot wait for that.
    """
    asking = asyncio.ensure_future(call)
    try:
        if (await asyncio.wait({asking}, timeout=seconds))[0]:
            return asking.result()
        raise TimeoutError
    finally:
        if asking.done():
            _take_notice(asking)  # it failed just as whoever waits for it was cancelled
        else:
            asking.add_done_callback(_take_notice)
            asking.cancel()


def _take_notice(asking: asyncio.Future[Any]) -> None:
    """Nobody waits for this answer any more, so nobody else asks what became of it."""
    if not asking.cancelled():
        asking.exception()


def _tell(loop: asyncio.AbstractEventLoop, what: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens any more
        loop.call_soon_threadsafe(what)
