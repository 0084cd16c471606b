"""One store object in several threads and event loops, across a fork, and until its end."""

import asyncio
import subprocess
import sys
import threading

import pytest
import redis

from durabus.errors import StoreClosedError
from durabus.model.event import new_event
from durabus.store.connect import open_store
from durabus.stores.redis.store import RedisStore

FORK = """
import asyncio, os, sys, warnings
from durabus.errors import StoreClosedError
from durabus.model.event import new_event
from durabus.store.connect import open_store

warnings.simplefilter("ignore", DeprecationWarning)
store = asyncio.run(open_store(sys.argv[1]))
asyncio.run(store.add_events([new_event("order.placed")]))
child = os.fork()
if child == 0:
    for call in (store.counts(), store.close()):
        try:
            asyncio.run(call)
        except StoreClosedError as error:
            if f"opened in process {os.getppid()}" in str(error):
                continue
        os._exit(1)
    os._exit(0)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 0
asyncio.run(store.add_events([new_event("order.shipped")]))
assert asyncio.run(store.counts()).pending == 2
asyncio.run(store.close())
"""


async def test_threads_with_loops_of_their_own_share_a_store(store: RedisStore, admin: redis.Redis) -> None:
    def publish() -> None:
        for _ in range(3):
            asyncio.run(store.add_events([new_event("t")]))

    threads = [threading.Thread(target=publish) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        await asyncio.to_thread(thread.join)
    assert (await store.counts()).pending == 12
    assert len(store._connections) <= 4 + 1  # those of ended loops are dropped when a new one comes


async def test_a_loop_that_ended_leaves_no_connection(store: RedisStore, url: str, admin: redis.Redis) -> None:
    before = len(admin.client_list())
    await asyncio.to_thread(asyncio.run, store.counts())
    await store.counts()
    async with asyncio.timeout(20):
        while len(admin.client_list()) > before + 1:  # noqa: ASYNC110  (the server notices)
            await asyncio.sleep(0.02)


async def test_closing_ends_the_lines_of_other_loops(url: str) -> None:
    store = RedisStore.from_url(url)
    await store.open()
    started, answers = threading.Event(), list[str]()

    async def wait() -> None:
        started.set()
        try:
            await store.wait_for_work("default", timeout=60)
            await store.counts()
        except StoreClosedError:
            answers.append("closed")

    thread = threading.Thread(target=asyncio.run, args=(wait(),))
    thread.start()
    await asyncio.to_thread(started.wait)
    await asyncio.sleep(0.2)
    await store.close()
    await asyncio.to_thread(thread.join, 30)
    assert answers == ["closed"]


async def test_a_store_is_not_used_before_it_is_open(url: str) -> None:
    store = RedisStore.from_url(url)
    with pytest.raises(StoreClosedError, match="not open yet"):
        await store.counts()
    await store.close()
    with pytest.raises(StoreClosedError, match="is closed"):
        await store.open()


async def test_a_cancelled_call_leaves_the_line_in_order(store: RedisStore) -> None:
    for _ in range(20):
        task = asyncio.create_task(store.add_events([new_event("t")]))
        await asyncio.sleep(0)
        task.cancel()
        (event,) = await store.add_events([new_event("after")])
        assert event.type == "after"
        assert await store.get_event(event.id) == event


@pytest.mark.processes
def test_a_forked_child_gets_a_clear_error(url: str) -> None:
    done = subprocess.run([sys.executable, "-c", FORK, url], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr


async def test_a_store_hangs_up_even_if_the_caller_of_close_is_cancelled(url: str) -> None:
    store = await open_store(url)
    assert isinstance(store, RedisStore)
    connection = store._connection()
    await store.counts()
    serving = connection._task
    assert serving is not None
    connection._idle.clear()  # as while an answer is awaited
    closing = asyncio.create_task(store.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    async with asyncio.timeout(10):
        await asyncio.wait({serving})
