"""The worker processes of a round: born, killed, frozen, replaced."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import random
import signal
from collections import Counter
from collections.abc import Callable
from multiprocessing.process import BaseProcess

import msgspec
from tests.lab import disk
from tests.lab.failpoints import Failpoint
from tests.lab.life import NOT_STARTED, Life, live, wall

from durabus.clock import monotonic
from durabus.testing.history.history import Disturbed

BORN_BY = multiprocessing.get_context("forkserver")
BORN_BY.set_forkserver_preload(["tests.lab.life", "asyncpg", "redis", "nats", "confluent_kafka"])
FAILPOINT_PATIENCE = 3.0
"""Seconds until the lab kills a process that has not reached its failpoint."""
STARTED_WITHIN = 60.0


class BrokenSync(msgspec.Struct, frozen=True):
    """A fate: soon after the start of a process its disk no longer syncs."""


Fate = Failpoint | BrokenSync


class Member:
    """One worker process, from its start to its end."""

    def __init__(self, life: Life, process: BaseProcess, span: float) -> None:
        self.life = life
        self.process = process
        self.span = span
        """Seconds that the process lives once it serves the bus."""
        self.born = monotonic()
        self.dies_at: float | None = None
        self.frozen = False
        self.spared = False
        """Whether the process was frozen a moment ago: it must still record what the store refuses it."""

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def is_up(self) -> bool:
        if self.dies_at is None and self.life.up.exists():
            self.dies_at = monotonic() + self.span
        return self.dies_at is not None


class Crew:
    """The worker processes. ``template`` is the life of each; ``lives`` are the fewest and most seconds of a life."""

    def __init__(
        self,
        template: Life,
        size: int,
        *,
        lives: tuple[float, float],
        skew: float,
        disturbed: Callable[[Disturbed], None],
        rng: random.Random,
    ) -> None:
        self._template = template
        self._lives = lives
        self._skew = skew
        self._disturbed = disturbed
        self._random = rng
        self._leash, self._hand = BORN_BY.Pipe(duplex=False)
        self._born = 0
        self.counts: Counter[str] = Counter()
        self.fates: list[Fate] = []
        """The fates of the next processes."""
        self.members = [self._bear(place, None) for place in range(size)]

    def _bear(self, place: int, fate: Fate | None) -> Member:
        self._born += 1
        span = self._random.uniform(*self._lives)
        life = msgspec.structs.replace(
            self._template,
            host=f"{self._template.host}-{self._born}",
            place=place,
            skew=self._random.uniform(-self._skew, self._skew),
        )
        match fate:
            case Failpoint():
                life, span = msgspec.structs.replace(life, failpoint=fate), FAILPOINT_PATIENCE
            case BrokenSync():
                life, span = msgspec.structs.replace(life, sync_breaks_after=span), 2 * span
        process = BORN_BY.Process(target=live, args=(life, self._leash), name=life.host)
        process.start()
        return Member(life, process, span)

    async def all_up(self) -> None:
        async with asyncio.timeout(STARTED_WITHIN):
            while not all(member.is_up() for member in self.members):
                self.replace_the_dead()
                await asyncio.sleep(0.02)

    def replace_the_dead(self) -> None:
        """Replace processes that died at their failpoint or could not start. Any other end is a failure of durabus."""
        for place, member in enumerate(self.members):
            if member.process.is_alive():
                continue
            self._bury(member)
            self._replace(place)

    def _bury(self, member: Member) -> None:
        code, failpoint = member.process.exitcode, member.life.failpoint
        if code == NOT_STARTED:
            self.counts["failed starts"] += 1
        elif code == -signal.SIGKILL and failpoint is not None:
            self._note(member, "crash")
            self.counts["kills"] += 1
            self.counts[f"killed {failpoint}"] += 1
        else:
            raise AssertionError(f"{member.life.host} ended by itself with code {code}")

    def kill_the_old(self) -> None:
        """Kill and replace the processes that have reached the end of their life."""
        now = monotonic()
        for place, member in enumerate(self.members):
            if not member.is_up() or member.frozen or member.spared or (member.dies_at or now) > now:
                continue
            self._kill(member)
            self.counts["kills"] += 1
            self._replace(place)

    def kill_one(self) -> float | None:
        """Kill a process and replace it. Returns when it was dead, or None if no process is up."""
        ready = [place for place, member in enumerate(self.members) if member.is_up() and member.process.is_alive()]
        if not ready:
            return None
        place = self._random.choice(ready)
        self._kill(self.members[place])
        died = wall()
        self.counts["kills"] += 1
        self._replace(place)
        return died

    def freeze_one(self, seconds: float) -> bool:
        """Stop a process for ``seconds``, as a long pause would. Returns False if no process can be frozen now."""
        ready = [member for member in self.members if member.is_up() and not member.frozen and not member.spared]
        if not ready:
            return False
        member = self._random.choice(ready)
        self._note(member, "freeze")
        try:
            os.kill(member.pid, signal.SIGSTOP)
        except ProcessLookupError:
            return False  # its failpoint was faster
        member.frozen = member.spared = True
        self.counts["freezes"] += 1
        loop = asyncio.get_running_loop()
        loop.call_later(seconds, self._thaw, member)
        loop.call_later(seconds + 1.0, self._spare_no_more, member)
        return True

    def fill_disk_of_one(self, seconds: float) -> bool:
        """Keep a process from making a file larger for ``seconds``. Returns False if no process is ready for it."""
        ready = [one for one in self.members if one.is_up() and one.process.is_alive() and not one.frozen]
        if not ready:
            return False
        member = self._random.choice(ready)
        disk.fill([member.pid], member.life.ledger.stat().st_size + disk.ROOM)
        self.counts["full disks"] += 1
        asyncio.get_running_loop().call_later(seconds, disk.free, [member.pid])
        return True

    @property
    def any_disturbed(self) -> bool:
        """Whether a process is frozen, or has a disk that will never sync again."""
        return any(member.frozen or member.life.sync_breaks_after is not None for member in self.members)

    def _thaw(self, member: Member) -> None:
        with contextlib.suppress(ProcessLookupError):  # it was at its failpoint when it was stopped
            os.kill(member.pid, signal.SIGCONT)
        self._note(member, "thaw")
        member.frozen = False

    def _spare_no_more(self, member: Member) -> None:
        member.spared = False

    async def stop(self) -> None:
        """Ask all processes to finish, and check that they end cleanly or at their failpoint."""
        await self.all_up()
        for member in self.members:
            with contextlib.suppress(ProcessLookupError):  # as above
                os.kill(member.pid, signal.SIGTERM)
        for member in self.members:
            await asyncio.to_thread(member.process.join, STARTED_WITHIN)
        for member in self.members:
            if member.process.exitcode != 0:
                self._bury(member)

    def end(self) -> None:
        """Kill every process that still runs."""
        for member in self.members:
            if member.process.is_alive():
                self._kill(member)
        self._hand.close()
        self._leash.close()

    def _replace(self, place: int) -> None:
        self.members[place] = self._bear(place, self.fates.pop() if self.fates else None)

    def _kill(self, member: Member) -> None:
        member.process.kill()
        member.process.join()
        self._note(member, "crash")

    def _note(self, member: Member, what: str) -> None:
        self._disturbed(Disturbed(wall(), member.life.host, what))
