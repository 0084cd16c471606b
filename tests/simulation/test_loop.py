"""The virtual loop: time jumps, processes die without cleanup, and nothing leaves its one thread."""

import asyncio
import logging
import random
import threading
import time

import pytest

from durabus.clock import monotonic
from durabus.model.claim import default_worker_id
from durabus.testing.simulation.loop import SimulationError, VirtualLoop
from durabus.testing.simulation.processes import Host, host_here
from durabus.testing.simulation.world import EPOCH, WorldClock, world
from durabus.worker import heartbeat, poller


def make_host(loop: VirtualLoop, name: str = "a", *, speed: float = 1.0, wall_ahead: float = 0.0) -> Host:
    return Host(loop, name, 1, wall_ahead=wall_ahead, started=100.0, speed=speed)


def test_a_year_passes_at_once() -> None:
    loop, begun = VirtualLoop(1), time.monotonic()

    async def main() -> float:
        await asyncio.sleep(365 * 86_400)
        return loop.now

    assert loop.run(main()) == 365 * 86_400
    assert time.monotonic() - begun < 30


def test_nothing_of_a_killed_process_runs_not_even_finally() -> None:
    loop = VirtualLoop(1)
    said: list[str] = []

    async def live() -> None:
        try:
            said.append("begun")
            await asyncio.sleep(1)
            said.append("went on")
        finally:
            if not loop.is_closed():
                said.append("finally")

    async def main() -> None:
        host = make_host(loop)
        host.run(live())
        await asyncio.sleep(0.5)
        host.crash()
        await asyncio.sleep(10)

    loop.run(main())
    assert said == ["begun"]


def test_a_frozen_process_goes_on_where_it_was() -> None:
    loop = VirtualLoop(1)
    woke: list[float] = []

    async def live() -> None:
        await asyncio.sleep(1)
        woke.append(loop.now)

    async def main() -> None:
        host = make_host(loop)
        host.run(live())
        await asyncio.sleep(0.5)
        host.freeze()
        await asyncio.sleep(7)
        assert woke == []
        host.thaw()
        await asyncio.sleep(1)

    loop.run(main())
    assert woke == [7.5]


def test_a_process_keeps_the_order_of_its_callbacks_and_the_seed_chooses_between_processes() -> None:
    def order(seed: int) -> list[str]:
        loop = VirtualLoop(seed)
        ran: list[str] = []

        async def main() -> None:
            for name in ("a", "b"):
                host = make_host(loop, name)
                for number in range(5):
                    loop.call_soon(ran.append, f"{name}{number}", context=host.context())
            await asyncio.sleep(1)

        loop.run(main())
        return ran

    orders = [order(seed) for seed in range(10)]
    for ran in orders:
        assert [one for one in ran if one.startswith("a")] == [f"a{number}" for number in range(5)]
    assert len({tuple(ran) for ran in orders}) > 5
    assert order(3) == orders[3]


def test_every_process_has_its_own_clocks() -> None:
    loop = VirtualLoop(1)
    seen: dict[str, float] = {}

    async def live() -> None:
        await asyncio.sleep(10)
        seen[host_here().name] = vars(heartbeat)["monotonic"]()

    async def main() -> None:
        make_host(loop, "right").run(live())
        make_host(loop, "fast", speed=2.0).run(live())
        await asyncio.sleep(5.1)
        assert set(seen) == {"fast"}
        await asyncio.sleep(5)

    with world(loop, 1):
        loop.run(main())
    assert seen == {"right": 110.0, "fast": 110.0}
    assert vars(heartbeat)["monotonic"] is monotonic  # the machine's clocks are back


def test_the_store_has_one_clock_for_all() -> None:
    loop = VirtualLoop(1)

    async def live() -> tuple[float, float]:
        return WorldClock(loop).now(), WorldClock(loop, of_caller=True).now()

    async def main() -> tuple[float, float]:
        answer: tuple[float, float] = await make_host(loop, wall_ahead=60.0).run(live())
        return answer

    assert loop.run(main()) == (EPOCH, EPOCH + 60.0)


@pytest.mark.parametrize("way_out", ["thread", "sleep", "executor"])
def test_a_call_that_would_leave_the_simulation_is_an_error(way_out: str) -> None:
    loop = VirtualLoop(1)

    async def main() -> None:
        if way_out == "thread":
            threading.Thread(target=print).start()
        elif way_out == "sleep":
            time.sleep(0.001)  # noqa: ASYNC251  (that is the point)
        else:
            await loop.run_in_executor(None, print)

    with world(loop, 1), pytest.raises(SimulationError):
        loop.run(main())


def test_threads_that_were_there_before_go_on_as_they_are() -> None:
    loop, go_on, told = VirtualLoop(1), threading.Event(), list[tuple[float, str]]()

    def other() -> None:
        go_on.wait(timeout=30)
        time.sleep(0.001)
        vars(poller)["random"].random()
        told.append((vars(heartbeat)["monotonic"](), default_worker_id()))
        logging.getLogger("durabus").error("of the other thread", exc_info=ValueError())

    async def main() -> float:
        go_on.set()
        thread.join(timeout=30)
        drawn: float = vars(poller)["random"].random()
        return drawn

    thread, before = threading.Thread(target=other), monotonic()
    thread.start()
    with world(loop, 1) as alarms:
        drawn = loop.run(main())

    ((instant, worker_id),) = told
    assert before < instant < monotonic()
    assert worker_id == default_worker_id()
    assert alarms.messages == []
    assert drawn == random.Random(1).random()


def test_no_timer_is_early_by_the_clock_of_the_process_that_set_it() -> None:
    loop = VirtualLoop(1)
    early: list[float] = []

    async def live() -> None:
        for number in range(1000):
            when = loop.time() + 0.1 + number / 977
            reached = loop.create_future()
            loop.call_at(when, reached.set_result, None)
            await reached
            if loop.time() < when:
                early.append(when)

    async def main() -> None:
        await make_host(loop, speed=0.97).run(live())

    loop.run(main())
    assert early == []


def test_a_simulation_that_stands_still_says_so() -> None:
    loop = VirtualLoop(1)

    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(SimulationError, match="nothing left to run"):
        loop.run(main())


def test_a_simulation_that_runs_in_circles_says_so() -> None:
    loop = VirtualLoop(1, max_steps=1000)

    async def main() -> None:
        while True:  # noqa: ASYNC110  (that is the point)
            await asyncio.sleep(0)

    with pytest.raises(SimulationError, match="circles"):
        loop.run(main())


def test_an_uncaught_exception_is_kept() -> None:
    loop = VirtualLoop(1)

    async def fail() -> None:
        raise ValueError("unseen")

    async def main() -> None:
        await asyncio.wait([loop.create_task(fail())])
        loop.call_soon(lambda: 1 / 0)
        await asyncio.sleep(1)

    loop.run(main())
    assert any("ZeroDivisionError" in error for error in loop.errors)
