"""A node: one store object's part in the log. It appends records, reads the log, applies it, and replies to calls.

It runs in its own thread, so a busy event loop of the user cannot delay it, and any number of loops may call it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from durabus.clock import monotonic
from durabus.errors import DurabusError, SchemaError, StoreClosedError, StoreError, StoreUnavailableError
from durabus.loop_thread import LoopThread, cancel_until_ended
from durabus.model.event import Event, NewEvent
from durabus.stores.replicated_log.callers import CLOSED, Barriers, Inbox, PendingCall, Replies, Sender
from durabus.stores.replicated_log.commands import Join, Written, encode_command
from durabus.stores.replicated_log.log_clock import LogClock
from durabus.stores.replicated_log.missing_records import MissingRecords
from durabus.stores.replicated_log.records import GONE, Damage
from durabus.stores.replicated_log.replica import Replica
from durabus.stores.replicated_log.snapshot import Snapshotter, load_newest
from durabus.stores.replicated_log.transport import BrokerRecord, GapError, Position, Transport

logger = logging.getLogger("durabus.replicated_log")

NOT_OPEN = "this store is not open yet: open() comes first"
LOOK_EVERY = 0.25
CLOSE_EVERY = 0.005
RESTORE_PAUSE = 0.5


class NodeTasks:
    """The tasks in the thread of a node."""

    def __init__(self, own: LoopThread, failed: Callable[[StoreUnavailableError], None]) -> None:
        self._own = own
        self._failed = failed
        """Called when a task failed: the store cannot go on without it."""
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task in the loop."""
        task = self._own.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def cancel_all(self) -> None:
        """Cancel the tasks and wait for their end."""
        while self._tasks:  # a task that ends may have begun another
            await cancel_until_ended(self._tasks)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a task of the store failed", exc_info=error)
            self._failed(StoreUnavailableError(f"the store's own work failed: {type(error).__name__}: {error}"))


class Node:
    """Keeps a replica up to date between ``start`` and ``stop``, and sends the calls of this store object."""

    def __init__(
        self,
        transport: Transport,
        join: Join,
        *,
        clock: LogClock,
        timeout: float,
        snapshot_every: int,
        public_kept: float,
        skip: Position | None = None,
    ) -> None:
        self._transport = transport
        self._skip = skip
        self._join = join
        self._timeout = timeout
        self.session = secrets.token_hex(8)
        self.replica = Replica(self.session, clock, skip=skip)
        self._pid = os.getpid()
        self._own = LoopThread("durabus-replicated-log", StoreClosedError, ended=CLOSED, not_started=NOT_OPEN)
        self._tasks = NodeTasks(self._own, self._break)
        self._inbox = Inbox(lambda: self._own.loop.call_soon_threadsafe(self._take), timeout=timeout)
        self._closing = False
        self._broken: DurabusError | None = None
        self._replies = Replies()
        self._sender = Sender(self.session, transport, self._replies, self._tasks.spawn, timeout=timeout)
        self._barriers = Barriers(transport, self._replies)
        self._own_work: list[asyncio.Task[None]] = []
        """The services of the node, which append records of their own."""
        self._missing_records = MissingRecords(self)
        self._snapshotter = Snapshotter(self, transport, every=snapshot_every, public_kept=public_kept)

    async def start(self) -> None:
        """Read the log up to its end, then append the ``Join`` of this node."""
        self._own.start()
        try:
            await self._own.run(self._begin())
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Wait for the accepted calls, at most for ``timeout``, then end the thread. A repeat does nothing."""
        self._closing = True
        if self._pid == os.getpid():
            await self._own.end_after(self._finish())

    async def command(self, command: Written, *, with_entries: bool = False) -> Any:
        """Append a command. Returns what the replica returned when it applied the record."""
        self.check_open()
        return await self._inbox.ask(PendingCall("command", encode_command(command), with_entries=with_entries))

    async def own_command(self, command: Written) -> Any:
        """Like ``command``, for the node's own work, which goes on while it closes. Only for the node's thread."""
        return await self._inbox.ask(PendingCall("command", encode_command(command)))

    async def publish(self, new: Sequence[NewEvent], *, own: bool = False) -> list[Event]:
        """Append events to the public lane. Returns the events that the replica stored.

        ``own`` is for the node's own work in its thread, which goes on while it closes.
        """
        if not own:
            self.check_open()
        stored: list[Event] = await self._inbox.ask(PendingCall("publish", new))
        return stored

    async def catch_up(self) -> None:
        """Return when this replica has every record that any node acknowledged before the call."""
        self.check_open()
        await self._inbox.ask(PendingCall("barrier", None))

    async def verify(self) -> None:
        """Raise ``SchemaError`` if the broker does not have the settings that the store needs."""
        self.check_open()
        await self._own.run(self._transport.verify())

    async def snapshot(self) -> bool:
        """Make a snapshot now, and trim the log. False if another node is making one."""
        self.check_open()
        return await self._own.run(self._snapshotter.snapshot())

    def check_open(self) -> None:
        """Raise if the node does not accept calls."""
        if self._closing:
            raise StoreClosedError(CLOSED)
        if self._pid != os.getpid():
            raise StoreClosedError("this store belongs to the parent of this forked process: open one here")
        if self._broken is not None:
            raise self._broken

    # The methods from here on run in the node's thread.

    async def _begin(self) -> None:
        await self._transport.open()
        try:
            await self._restore()
        except Damage as damage:
            raise damage.as_error(self._transport.name) from damage
        self._tasks.spawn(self._read())
        self._tasks.spawn(self._look())
        self._own_work = [self._tasks.spawn(one.run()) for one in (self._snapshotter, self._missing_records)]
        settings: Join = await self.own_command(self._join)
        if settings != self._join:
            raise SchemaError(
                f"this log is of cluster={settings.cluster!r} with max_history={settings.max_history}, "
                f"not cluster={self._join.cluster!r} with max_history={self._join.max_history}: "
                "give the URL the same options, or another prefix"
            )

    async def _finish(self) -> None:
        deadline = monotonic() + self._timeout
        if self._own_work:
            await cancel_until_ended(self._own_work)
        while not self._sender.idle and monotonic() < deadline and not self._broken:  # noqa: ASYNC110  (once, at the end)
            await asyncio.sleep(CLOSE_EVERY)
        await self._tasks.cancel_all()
        self._inbox.close()
        self._fail_all(StoreClosedError("the store was closed before the answer came"))
        self._take()
        await self._transport.close()

    async def _restore(self) -> None:
        """Load the newest snapshot, if it is later than the position of the replica."""
        behind = self.replica
        restored = await load_newest(self._transport.snapshots, self.session, behind, skip=self._skip)
        if restored is not None:
            self.replica = restored
            behind.core.wake_all()

    async def _read(self) -> None:
        try:
            while self._broken is None:
                try:
                    await self._transport.follow(self.replica.position, self._deliver)
                except GapError as gap:
                    await self._leap(gap)
        except Damage as damage:
            self._break(damage.as_error(self._transport.name))
        except DurabusError as error:
            self._break(error)

    async def _leap(self, gap: GapError) -> None:
        """Load a snapshot, because unread records are gone. Raises ``Damage`` if no snapshot covers them.

        The node retries until the broker replies. Meanwhile, calls still fail at their timeout.
        """
        logger.warning("%s", gap)
        before, loaded = self.replica.position, False
        while not loaded:
            try:
                await self._restore()
                loaded = True
            except StoreUnavailableError as error:
                logger.warning("cannot load a snapshot, trying again in %s s: %s", RESTORE_PAUSE, error)
                await asyncio.sleep(RESTORE_PAUSE)
        if self.replica.position == before:
            raise Damage(before, f"{gap}; and no snapshot covers them", GONE)
        self._sender.fail(StoreUnavailableError("this node had fallen behind and began anew: repeat the call"))
        self._barriers.reached(self.replica.position)
        self._replies.send()

    def _deliver(self, entries: Sequence[BrokerRecord]) -> None:
        if self._broken is not None:
            return
        self.replica.clock.arrived(entries[-1].at_ts)
        try:
            answers = self.replica.apply(entries, self._sender.with_entries)
        except SchemaError as error:
            self._break(error)
            return
        except Damage as damage:
            self._break(damage.as_error(self._transport.name))
            return
        except Exception as error:
            # A replica that skipped a record would decide differently from the other replicas.
            logger.exception("the records from %s on cannot be applied", entries[0].position)
            self._break(StoreError(f"this replica cannot go on: {type(error).__name__}: {error}"))
            return
        self._sender.answered(answers)
        self._barriers.reached(self.replica.position)
        self._replies.send()

    def _take(self) -> None:
        for call in self._inbox.take():
            if self._broken is not None or self._inbox.closed:
                self._replies.add(call, self._broken or StoreClosedError(CLOSED))
            elif call.kind == "barrier":
                self._barriers.add(call)
            else:
                self._sender.add(call)
        self._sender.pump()
        if self._barriers.needed:
            self._barriers.running = True
            self._tasks.spawn(self._barriers.run())
        self._replies.send()

    async def _look(self) -> None:
        """Fail the calls that take too long."""
        while True:
            await asyncio.sleep(LOOK_EVERY)
            now = monotonic()
            self._sender.give_up_late(now)
            late = StoreUnavailableError(f"no answer from the broker within {self._timeout:g} s")
            self._barriers.give_up_late(now, late)
            self._replies.send()

    def _fail_all(self, error: DurabusError) -> None:
        self._sender.fail_all(error)
        self._barriers.fail_all(error)
        self._replies.send()

    def _break(self, error: DurabusError) -> None:
        """Stop for good and fail all calls. Only the first error counts: later ones follow from it."""
        if self._broken is not None:
            return
        logger.error("this store cannot go on: %s", error)
        self._broken = error
        self._fail_all(error)
        self.replica.core.wake_all()
