"""Connections that are cut, servers that are gone, and calls from more than one thread."""

import asyncio
import gc
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Self
from urllib.parse import urlsplit

import psycopg
import pytest

from durabus.errors import (
    ConfigurationError,
    LeaseLost,
    SchemaError,
    StoreClosedError,
    StoreError,
    StoreUnavailableError,
)
from durabus.model.claim import ClaimRef, ClaimRequest, new_token
from durabus.model.event import new_event
from durabus.model.settlement import Complete, Settled
from durabus.store.connect import open_store
from durabus.stores.postgresql.store import PostgreSQLStore

TOTAL = 800
AT_ONCE = 20
STEPS = 2
KILL = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
    "WHERE application_name = %s AND pid <> pg_backend_pid() AND datname = current_database()"
)


def request(limit: int = 10, **options: Any) -> ClaimRequest:
    return ClaimRequest(bus="default", worker_id="w", token=new_token(), limit=limit, **options)


async def test_a_cut_connection_is_replaced_unnoticed(url: str, admin: psycopg.Connection) -> None:
    store = await open_store(f"{url}&application_name=cut")
    await store.add_events([new_event("a") for _ in range(3)])
    for _ in range(3):
        admin.execute(KILL, ["cut"])
        assert (await store.counts()).pending == 3
    await store.close()


async def again(call: Callable[[], Any]) -> Any:
    """Repeat the call while the store is unavailable, as a worker does."""
    while True:
        try:
            return await call()
        except StoreUnavailableError:
            await asyncio.sleep(0.01)


class Cuts:
    """Cuts the connections of the victims after every few steps that succeeded.

    It counts steps, not time: on a busy machine a login may take longer than any pause, and no call would ever succeed.
    """

    def __init__(self, admin: psycopg.Connection) -> None:
        self.made = 0
        self._steps = threading.Semaphore(0)
        self._stop = threading.Event()
        self._admin = admin
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()
        self._steps.release(STEPS)
        self._thread.join()

    def step(self) -> None:
        """Note that a call has succeeded."""
        self._steps.release()

    def _run(self) -> None:
        info = self._admin.info
        with psycopg.connect(info.dsn, password=info.password, autocommit=True) as killer:
            while not self._stop.is_set():
                for _ in range(STEPS):
                    self._steps.acquire()
                killer.execute(KILL, ["victim"])
                self.made += 1


async def publish_all(victim: Any, count: int, cuts: Cuts) -> None:
    for _ in range(0, count, AT_ONCE):
        batch = [new_event("a") for _ in range(AT_ONCE)]
        await again(partial(victim.add_events, batch))
        cuts.step()


async def drain(victim: Any, done: list[int], total: int, cuts: Cuts) -> None:
    claims = await again(partial(victim.claim_next_events, request(AT_ONCE)))
    while len(done) < total:
        ended = [Complete(claim.ref) for claim in claims]
        answer = await again(partial(victim.settle_events, ended, then_claim=request(AT_ONCE)))
        assert all(isinstance(outcome, Settled) for outcome in answer.outcomes)
        done.extend(outcome.id for outcome in answer.outcomes)
        claims = answer.claims
        if ended:
            cuts.step()
        await asyncio.sleep(0 if claims else 0.01)


async def test_nothing_is_lost_or_done_twice_while_connections_are_cut(
    url: str, admin: psycopg.Connection, store: PostgreSQLStore
) -> None:
    done: list[int] = []
    victims = [await open_store(f"{url}&application_name=victim") for _ in range(2)]
    try:
        with Cuts(admin) as cuts:
            async with asyncio.timeout(45), asyncio.TaskGroup() as group:
                for victim in victims:
                    group.create_task(publish_all(victim, TOTAL // 2, cuts))
                    group.create_task(drain(victim, done, TOTAL, cuts))
    finally:
        for victim in victims:
            await victim.close()
    assert cuts.made >= TOTAL // AT_ONCE // 2
    assert len(done) == len(set(done)) == TOTAL
    counts = await store.counts()
    assert (counts.pending, counts.processing, counts.completed) == (0, 0, TOTAL)
    rows = admin.execute("SELECT count(*), count(DISTINCT id) FROM event_log WHERE action = 'COMPLETED'").fetchone()
    assert rows == (TOTAL, TOTAL)


async def test_a_commit_whose_reply_was_lost_is_repeated_without_effect(store: PostgreSQLStore) -> None:
    """The connection is cut after the commit and before the reply: the client cannot know whether it committed."""
    await store.add_events([new_event("a") for _ in range(4)])
    first = await store.claim_next_events(request(2))
    losing = Losing(store)
    new = [new_event("b")]
    (published,) = await losing.call(store.add_events(new))
    assert (await store.counts()).pending == 3
    assert published.type == "b"
    asked = request(2)
    answer = await losing.call(store.settle_events([Complete(claim.ref) for claim in first], then_claim=asked))
    assert all(isinstance(outcome, Settled) for outcome in answer.outcomes)
    assert len(answer.claims) == 2
    counts = await store.counts()
    assert (counts.pending, counts.processing, counts.completed) == (1, 2, 2)
    assert losing.lost == 2
    actions = [entry.action.value for entry in (await store.read_log()).entries]
    assert actions.count("COMPLETED") == 2
    assert actions.count("PICKED") == 4


class Losing:
    """Loses the reply to the next statement, after it took effect."""

    def __init__(self, store: PostgreSQLStore) -> None:
        self._store = store
        self.lost = 0

    async def call(self, coroutine: Any) -> Any:
        pool, first = self._store._pool, True
        assert pool is not None
        run = pool.run

        async def losing(work: Any) -> Any:
            async def lose(connection: Any) -> Any:
                nonlocal first
                answer = await work(connection)
                if first:
                    first = False
                    self.lost += 1
                    raise ConnectionResetError("the reply was lost")
                return answer

            return await run(lose)

        pool.run = losing  # type: ignore[assignment, method-assign]
        try:
            return await coroutine
        finally:
            pool.run = run  # type: ignore[method-assign]


async def test_a_wait_for_work_that_is_cancelled_costs_no_connection(url: str, admin: psycopg.Connection) -> None:
    """Each worker waits when it is stopped. The connection stays usable, wherever in the wait that happens."""
    store = await open_store(f"{url}&application_name=waits&pool=1")
    await store.add_events([new_event("a", bus="other")])
    assert await store.wait_for_work("other", timeout=30.0)  # from now on it listens

    def backends() -> set[int]:
        sql = "SELECT pid FROM pg_stat_activity WHERE application_name = 'waits'"
        return {pid for (pid,) in admin.execute(sql)}

    before = backends()
    for steps in range(1, 12):
        waiting = asyncio.create_task(store.wait_for_work("default", timeout=30.0))
        for _ in range(steps):
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait({waiting})
        await store.now()
    assert backends() == before
    await store.close()


async def test_transactions_that_lose_against_each_other_are_run_again(store: PostgreSQLStore) -> None:
    """Two batches that settle the same events in opposite order deadlock now and then; the callers get no error."""
    for _ in range(5):
        await store.add_events([new_event("a") for _ in range(20)])
        claims = await store.claim_next_events(request(20))
        refs = [claim.ref for claim in claims]
        renewals = [store.renew_event_claims(list(reversed(refs)), lease=30.0) for _ in range(4)]
        starts = [store.start_events(refs) for _ in range(4)]
        renewed, started = await asyncio.gather(asyncio.gather(*renewals), asyncio.gather(*starts))
        assert not any(isinstance(one, LeaseLost) for answer in renewed for one in answer)
        assert not any(isinstance(one, LeaseLost) for answer in started for one in answer)
        await store.settle_events([Complete(ref) for ref in refs])


async def test_a_store_serves_calls_from_other_threads_and_loops(store: PostgreSQLStore) -> None:
    await store.add_events([new_event("a") for _ in range(6)])
    claims = await store.claim_next_events(request(3))
    renewed: list[Any] = []

    def beat() -> None:
        with asyncio.Runner() as runner:
            for _ in range(3):
                refs = [claim.ref for claim in claims]
                renewed.extend(runner.run(store.renew_event_claims(refs, lease=60.0)))

    threads = [threading.Thread(target=beat) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        await asyncio.to_thread(thread.join)
    assert len(renewed) == 27
    assert not any(isinstance(one, LeaseLost) for one in renewed)


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # a socket cannot be closed cleanly after its loop is gone
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_store_may_be_opened_used_and_closed_on_three_loops(url: str) -> None:
    store = PostgreSQLStore.from_url(url)
    asyncio.run(store.open())
    asyncio.run(_publish(store))
    asyncio.run(store.close())
    with pytest.raises(StoreClosedError):
        asyncio.run(_publish(store))
    del store
    gc.collect()


async def _publish(store: PostgreSQLStore) -> None:
    await store.add_events([new_event("a")])


async def test_a_cancelled_call_leaves_the_store_usable(store: PostgreSQLStore, admin: psycopg.Connection) -> None:
    await store.add_events([new_event("a")])
    (claim,) = await store.claim_next_events(request())
    with psycopg.connect(admin.info.dsn, password=admin.info.password) as holder:
        holder.execute(f"SELECT FROM {store._address.schema}.events FOR UPDATE")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await store.start_events([claim.ref])
        holder.rollback()
    (started,) = await store.start_events([claim.ref])
    assert not isinstance(started, LeaseLost)


async def test_more_calls_than_connections_wait_their_turn(url: str) -> None:
    store = await open_store(f"{url}&pool=2")
    await asyncio.gather(*(store.add_events([new_event("a")]) for _ in range(40)))
    assert (await store.counts()).pending == 40
    await store.close()


async def test_a_wrong_password_is_one_clear_line(postgresql_url: str) -> None:
    password = urlsplit(postgresql_url).password
    assert password
    with pytest.raises(ConfigurationError, match=r"password is wrong.*check the user and password") as caught:
        await open_store(postgresql_url.replace(password, "wr0ng"))
    assert "wr0ng" not in str(caught.value)


async def test_a_missing_database_is_one_clear_line(postgresql_url: str) -> None:
    with pytest.raises(ConfigurationError, match="no such database: create it"):
        await open_store(postgresql_url.rsplit("/", 1)[0] + "/nowhere")


async def test_a_server_that_is_not_there_is_one_clear_line() -> None:
    with pytest.raises(StoreUnavailableError, match="is the server running and reachable"):
        await open_store("postgresql://bob:s3cret@127.0.0.1:1/shop")


async def test_a_read_only_server_is_one_clear_line(postgresql_url: str, url: str, admin: psycopg.Connection) -> None:
    admin.execute("DROP ROLE IF EXISTS lurker")
    admin.execute("CREATE ROLE lurker LOGIN PASSWORD 'x' SUPERUSER")
    admin.execute("ALTER ROLE lurker SET default_transaction_read_only = on")
    parts = urlsplit(url)
    lurking = url.replace(f"{parts.username}:{parts.password}", "lurker:x")
    with pytest.raises(StoreError, match="read-only for this user or database"):
        await open_store(lurking)
    admin.execute("DROP ROLE lurker")


async def test_a_user_that_may_not_migrate_is_referred_to_durabus_db_migrate(postgresql_url: str, schema: str) -> None:
    with psycopg.connect(postgresql_url, autocommit=True) as root:
        root.execute("DROP ROLE IF EXISTS nobody_special")
        root.execute("CREATE ROLE nobody_special LOGIN PASSWORD 'x'")
        parts = urlsplit(postgresql_url)
        poor = postgresql_url.replace(f"{parts.username}:{parts.password}", "nobody_special:x")
        with pytest.raises(SchemaError, match=r"may not make them.*durabus db migrate"):
            await open_store(f"{poor}?schema={schema}")
        root.execute("DROP ROLE nobody_special")


async def test_a_forged_reference_is_no_claim(store: PostgreSQLStore) -> None:
    for ref in (ClaimRef(-1, "t", 1), ClaimRef(2**70, "t", 1), ClaimRef(1, "", 0)):
        (outcome,) = (await store.settle_events([Complete(ref)])).outcomes
        assert isinstance(outcome, LeaseLost)
