"""What a worker needs to share events with other nodes: it coordinates its own ones, and takes offers of others."""

from __future__ import annotations

import asyncio
from typing import Protocol

from durabus.model.claim import new_token
from durabus.store.contract import EventStore
from durabus.store.outage import Outage
from durabus.worker.coordination import Coordinator
from durabus.worker.dispatcher import Dispatcher
from durabus.worker.offers import OfferedHandlers
from durabus.worker.process_watch import ProcessWatch
from durabus.worker.progress import Keeper
from durabus.worker.slots import Slots


class SharingOptions(Protocol):
    """The options of a worker that matter here."""

    @property
    def concurrency(self) -> int:
        """How many events the worker runs at once; as many handlers run beside them for other nodes."""
        ...

    @property
    def lease(self) -> float:
        """Seconds that a claim lasts without a renewal."""
        ...

    @property
    def poll_interval(self) -> float:
        """Longest pause between two looks."""
        ...


class SharedEvents:
    """Both roles of a worker in events whose handlers are on several nodes."""

    def __init__(  # noqa: PLR0917  (the parts of one worker, each once)
        self,
        store: EventStore,
        bus: str,
        dispatcher: Dispatcher,
        slots: Slots,
        options: SharingOptions,
        keeper: Keeper,
        watch: ProcessWatch,
        outage: Outage,
    ) -> None:
        self._dispatcher = dispatcher
        self._watch = watch
        self._offers = OfferedHandlers(
            store,
            bus,
            dispatcher,
            slots,
            keeper=keeper,
            limit=options.concurrency,
            lease=options.lease,
            poll_interval=options.poll_interval,
            outage=outage,
            token=lambda: new_token(watch.incarnation),
        )
        missing = dispatcher.missing
        self._coordinator = Coordinator(store, is_live=missing.is_live, route=dispatcher.route, want=self._offers.want)

    def start(self) -> None:
        """Let the dispatcher wait for handlers on other nodes."""
        self._dispatcher.coordinator = self._coordinator
        self._offers.start()
        self._watch.join(self._offers.holds_any)

    def heard(self) -> None:
        """A hint came, or it is time to poll: handlers may have been offered, or have ended on other nodes."""
        self._coordinator.hint()
        self._offers.nudge()

    def claimed(self, *, in_vain: bool) -> None:
        """The worker has claimed events. ``in_vain``: a hint brought none, so it may have been about a handler."""
        self._offers.nudge(in_vain=in_vain)

    async def stop(self, timeout: float) -> bool:  # noqa: ASYNC109  (the whole of it is bounded)
        """Claim nothing more, finish what runs, give back what does not finish in ``timeout`` seconds.

        Returns False if the store did not reply in time.
        """
        answered = await self._offers.stop(timeout)
        return await self._watch.leave(self._offers.holds_any, tell=answered) and answered

    def end(self) -> set[asyncio.Task[None]]:
        """Wait for handlers of other nodes no more. Returns the tasks that are left to cancel."""
        self._dispatcher.coordinator = None
        return set() if self._coordinator.task is None else {self._coordinator.task}

    def lose_all(self) -> None:
        """The worker has ended: stop all handlers that run for other nodes, and write nothing of them."""
        self._watch.drop(self._offers.holds_any)
        self._offers.lose_all()
