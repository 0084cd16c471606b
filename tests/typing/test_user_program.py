"""The typed program does at run time what its types say."""

import asyncio

from tests.typing.user_program import by_hand, serve, without_a_loop


async def test_a_typed_handler_gets_its_typed_payload() -> None:
    assert await serve() == ["UnrecoverableError: over the limit"]


async def test_a_typed_queue_makes_a_dead_letter() -> None:
    assert await by_hand() == 1


async def test_a_typed_program_without_a_loop_publishes() -> None:
    assert await asyncio.to_thread(without_a_loop)
