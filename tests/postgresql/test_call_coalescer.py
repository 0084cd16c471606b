"""Calls of one verb that meet share one statement. An error or cancellation of one call does not affect the others."""

import asyncio
from collections.abc import Sequence

import pytest

from durabus.errors import InvalidEventError, StoreUnavailableError
from durabus.stores.postgresql.coalescer import MOST, CallCoalescer


class Server:
    """Returns ten times each number, once the test sets ``free``."""

    def __init__(self, *, error: Exception | None = None) -> None:
        self.statements: list[list[int]] = []
        self.free = asyncio.Event()
        self._error = error

    async def send(self, numbers: Sequence[int]) -> list[int]:
        self.statements.append(list(numbers))
        await self.free.wait()
        if self._error is not None and 13 in numbers:
            raise self._error
        return [10 * number for number in numbers]


async def test_what_comes_while_a_statement_is_under_way_shares_the_next_one() -> None:
    server = Server()
    coalescer = CallCoalescer(server.send)
    first = asyncio.create_task(coalescer.call(1))
    await asyncio.sleep(0.01)
    others = [asyncio.create_task(coalescer.call(number)) for number in (2, 3, 4)]
    await asyncio.sleep(0.01)
    server.free.set()
    assert await asyncio.gather(first, *others) == [10, 20, 30, 40]
    assert server.statements == [[1], [2, 3, 4]]
    assert await coalescer.call(5) == 50


async def test_a_statement_takes_only_so_many() -> None:
    server = Server()
    server.free.set()
    coalescer = CallCoalescer(server.send)
    await asyncio.gather(*(coalescer.call(number) for number in range(MOST + 1)))
    assert [len(numbers) for numbers in server.statements] == [MOST, 1]


async def test_a_cancelled_call_cancels_no_other_and_is_not_sent_if_it_still_waits() -> None:
    server = Server()
    coalescer = CallCoalescer(server.send)
    first = asyncio.create_task(coalescer.call(1))
    await asyncio.sleep(0.01)
    gives_up, stays = asyncio.create_task(coalescer.call(2)), asyncio.create_task(coalescer.call(3))
    await asyncio.sleep(0.01)
    first.cancel()
    gives_up.cancel()
    await asyncio.wait({first, gives_up})
    server.free.set()
    assert await stays == 30
    assert server.statements == [[1], [3]]


@pytest.mark.parametrize("error", [InvalidEventError("13 is no number"), UnicodeError("13 is no text")])
async def test_only_the_call_at_fault_is_refused(error: Exception) -> None:
    server = Server(error=error)
    server.free.set()
    coalescer = CallCoalescer(server.send)
    answers = await asyncio.gather(*(coalescer.call(number) for number in (12, 13, 14)), return_exceptions=True)
    assert answers[0::2] == [120, 140]
    assert answers[1] is error


async def test_every_call_gets_the_error_of_a_lost_server_without_a_second_try() -> None:
    server = Server(error=StoreUnavailableError("gone"))
    server.free.set()
    coalescer = CallCoalescer(server.send)
    answers = await asyncio.gather(*(coalescer.call(number) for number in (12, 13)), return_exceptions=True)
    assert [type(answer) for answer in answers] == [StoreUnavailableError] * 2
    assert len(server.statements) == 1
    with pytest.raises(StoreUnavailableError):
        await coalescer.call(13)


async def test_the_coalescer_is_idle_when_all_calls_have_returned() -> None:
    server = Server()
    coalescer = CallCoalescer(server.send)
    await coalescer.wait_until_idle()
    calls = [asyncio.create_task(coalescer.call(number)) for number in range(3)]
    await asyncio.sleep(0.01)
    waiting = asyncio.create_task(coalescer.wait_until_idle())
    await asyncio.sleep(0.01)
    assert not waiting.done()
    server.free.set()
    await waiting
    assert await asyncio.gather(*calls) == [0, 10, 20]
