"""A network between processes and a store. It delays, loses, repeats and reorders calls."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Container
from enum import StrEnum
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from durabus.errors import StoreUnavailableError
from durabus.store.contract import EventStore
from durabus.store.features import Features
from durabus.testing.simulation.loop import SimulationError, VirtualLoop

NEAR = 0.002
"""The usual time from one end to the other, in seconds."""


class Fault(StrEnum):
    """The faults that can happen to a call. The seed decides which of them a run has."""

    REFUSED = "refused"
    """The caller gets an error, and the store does not get the call."""
    REPLY_LOST = "reply lost"
    """The call takes effect, and the caller gets an error."""
    LATE_REPLY = "late reply"
    """The call takes effect. Its reply can come after the end of the lease that it grants."""
    LATE_REQUEST = "late request"
    """The caller gets an error, and the call takes effect later."""
    DUPLICATE = "duplicate"
    """The call takes effect, and arrives once more later."""
    REORDERED = "reordered"
    """A renewal arrives after calls that were sent later."""
    HINTS_LOST = "hints lost"
    """No waiting worker is woken."""
    SLOW = "slow"
    """The call takes a large part of a lease to arrive."""


class Request(msgspec.Struct, eq=False):
    """A call on its way. ``future`` is None if its reply gets lost."""

    verb: str
    args: tuple[Any, ...]
    options: dict[str, Any]
    future: asyncio.Future[Any] | None
    back: float = 0.0
    """The seconds that the reply takes."""

    def unanswered(self) -> Request:
        """Return the same request without a reply."""
        return Request(self.verb, self.args, self.options, None)


class Network:
    """The network of a run, and the server at its end. The server can be down."""

    def __init__(
        self,
        loop: VirtualLoop,
        server: object,
        *,
        seed: int,
        faults: frozenset[Fault],
        often: float,
        lease: float,
        waits: Container[str],
    ) -> None:
        self.loop = loop
        self.server = server
        self._chance = random.Random(f"{seed}/network")
        self._faults = sorted(faults)
        self._often = often
        self._lease = lease
        self._waits = waits
        """Verbs that wait before they reply."""
        self.up = True
        self.fired: Counter[str] = Counter()
        self._in_flight: dict[asyncio.Future[Any], Request] = {}
        self._cut: dict[object, float] = {}
        """The time until which each process is cut off."""

    def heal(self) -> None:
        """End all faults."""
        self._faults = []
        self._cut.clear()
        self.up = True

    def cut_off(self, process: object, seconds: float) -> None:
        """Cut one process off from the server for a while."""
        self._cut[process] = self.loop.now + seconds

    def restart_server(self, seconds: float) -> None:
        """Fail the calls that are under way, and all further calls for a while."""
        self.fired["store restart"] += 1
        self.up = False
        for request in list(self._in_flight.values()):
            self._fail(request, "the connection was cut")
        self.loop.outside_in(seconds, self._start_server)

    def _start_server(self) -> None:
        self.up = True

    async def call(self, verb: str, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Send a call from the process that runs now, and wait for its reply."""
        future: asyncio.Future[Any] = self.loop.create_future()
        request = self._in_flight[future] = Request(verb, args, options, future)
        try:
            self._send(request)
            return await future
        finally:
            self._in_flight.pop(future, None)

    def _send(self, request: Request) -> None:
        chance, lease, after = self._chance, self._lease, self.loop.outside_in
        way = NEAR * chance.expovariate(1.0)
        request.back = NEAR * chance.expovariate(1.0)
        cut_off = self._cut.get(self.loop.current.owner, 0.0) - self.loop.now
        if cut_off > 0:
            self._send_through_cut(request, way, cut_off)
            return
        match self._trouble(request.verb):
            case None:
                after(way, self._deliver, request)
            case Fault.REFUSED:
                after(way, self._fail, request, "no connection")
            case Fault.REPLY_LOST:
                after(way, self._deliver, request.unanswered())
                after(way + request.back + lease * chance.choice((0.0, 0.1, 0.6)), self._fail, request, "no reply")
            case Fault.LATE_REPLY:
                request.back += lease * chance.uniform(0.3, 1.8)
                after(way, self._deliver, request)
            case Fault.LATE_REQUEST:
                late = lease * chance.uniform(0.2, 1.5)
                after(late, self._deliver, request.unanswered())
                after(late * chance.random(), self._fail, request, "no reply")
            case Fault.DUPLICATE:
                after(way, self._deliver, request)
                after(way + lease * chance.uniform(0.0, 1.5), self._deliver, request.unanswered())
            case Fault.REORDERED:
                after(lease * chance.uniform(0.05, 0.6), self._deliver, request)
            case Fault.SLOW:
                after(lease * chance.uniform(0.05, 0.4), self._deliver, request)

    def _send_through_cut(self, request: Request, way: float, seconds: float) -> None:
        """Refuse the call at once, or let the call or its reply arrive when the cut is over."""
        after = self.loop.outside_in
        match self._chance.randrange(3):
            case 0:
                after(way, self._fail, request, "no connection")
            case 1:
                after(way + seconds, self._deliver, request)
            case _:
                request.back += seconds
                after(way, self._deliver, request)

    def _trouble(self, verb: str) -> Fault | None:
        if not self._faults or self._chance.random() >= self._often:
            return None
        fault = self._chance.choice(self._faults)
        if fault is Fault.HINTS_LOST or (fault is Fault.REORDERED and verb != "renew_event_claims"):
            return None
        self.fired[fault.value] += 1
        return fault

    def loses_hints(self) -> bool:
        """Return whether the hint for a waiting worker gets lost."""
        lost = Fault.HINTS_LOST in self._faults and self._chance.random() < 0.8  # noqa: PLR2004  (some arrive)
        self.fired[Fault.HINTS_LOST.value] += lost
        return lost

    def _deliver(self, request: Request) -> None:
        if not self.up:
            self._fail(request, "no connection")
            return
        work = getattr(self.server, request.verb)(*request.args, **request.options)
        if request.verb in self._waits:
            task = self.loop.create_task(work)
            task.add_done_callback(lambda done: self._worked(done, request))
            return
        try:
            work.send(None)
        except StopIteration as stop:
            self.loop.outside_in(request.back, self._answer, request, stop.value, None)
        except Exception as error:  # noqa: BLE001  (an error is a reply)
            self.loop.outside_in(request.back, self._answer, request, None, error)
        else:
            work.close()
            raise SimulationError(f"{request.verb} waited: name it in `waits`")

    def _worked(self, done: asyncio.Task[Any], request: Request) -> None:
        error = done.exception()
        value = None if error is not None else done.result()
        self.loop.outside_in(request.back, self._answer, request, value, error)

    def _answer(self, request: Request, value: Any, error: BaseException | None) -> None:
        future = request.future
        if future is None or future.done() or future not in self._in_flight:
            return
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)
            future.exception()  # a dead caller does not retrieve the error, and asyncio would warn of it

    def _fail(self, request: Request, why: str) -> None:
        error = StoreUnavailableError(f"{why}: it may or may not have taken effect; repeat the call")
        self._answer(request, None, error)


class RemoteStore:
    """The ``EventStore`` of a process: every call goes through the network."""

    def __init__(self, network: Network, features: Features) -> None:
        self._network = network
        self.features = replace(features, shared_between_processes=True)

    async def open(self) -> None:
        """Do nothing: the server is open already."""

    async def close(self) -> None:
        """Do nothing: other processes use the server."""

    async def wait_for_work(self, bus: str, *, timeout: float) -> bool:  # noqa: ASYNC109  (the contract's name)
        """Wait for a hint. If the hint is lost, wait for the whole time."""
        if self._network.loses_hints():
            await asyncio.sleep(timeout)
            return False
        heard: bool = await self._network.call("wait_for_work", (bus,), {"timeout": timeout})
        return heard

    def __getattr__(self, verb: str) -> Any:
        if verb.startswith("_"):
            raise AttributeError(verb)

        async def call(*args: Any, **options: Any) -> Any:
            return await self._network.call(verb, args, options)

        self.__dict__[verb] = call
        return call


def remote_store(network: Network, features: Features) -> EventStore:
    """Return the store object of one process."""
    return cast("EventStore", RemoteStore(network, features))
