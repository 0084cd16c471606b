"""What every test shares.

Async tests need no marker: write `async def test_...` and the anyio plugin runs it (`anyio_mode = "auto"`).
Async fixtures work the same way.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, settings
from tests.groups import Groups, is_about, start_order
from tests.pipeline.spark_home import use_spark_home
from tests.servers.presence import installed

from durabus.testing.servers.kafka import KafkaServer
from durabus.testing.servers.nats import NatsServer
from durabus.testing.servers.postgresql import PostgreSQLServer
from durabus.testing.servers.redis import RedisServer

if TYPE_CHECKING:
    from tests.kafka.prefixes import Prefixes
    from tests.postgresql.emptied import EmptiedDatabase
from durabus.store.connect import DEFAULT_URL

# A slow machine must not fail a property; the timeout catches what hangs. Every run tries the same examples: one that
# fails today would fail for the next developer, too. `make fuzz` tries others, and more.
_STEADY = settings(parent=settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("durabus", parent=_STEADY, derandomize=True)
settings.register_profile("fuzz", parent=_STEADY, max_examples=5000)
settings.load_profile("durabus")

KAFKA_SECONDS = 300
"""Seconds for a test with Kafka: the first of a process starts it, the first on a machine fetches its jars."""


def pytest_configure() -> None:
    """Stop at Ctrl-C even in the background of a shell script, which lets its programs ignore it.

    The programs that the tests start would ignore it too, although the tests stop them with it.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Each process collects more than 20,000 tests, which live until its end. To look at them again and again takes half
    # of that time.
    gc.disable()
    use_spark_home()


def pytest_collection_finish() -> None:
    """Let the garbage collector look only at what the tests themselves make."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """The one event loop durabus promises to run on; session-wide, so fixtures of any scope may be async."""
    return "asyncio"


@pytest.fixture(autouse=True)
def _no_default_store() -> Iterator[None]:
    """A test names its store: one that takes the default by mistake would leave its file in the working folder."""
    yield
    left = Path(DEFAULT_URL.rpartition("/")[2])
    if left.exists():
        left.unlink()
        pytest.fail(f"this test left {left} in {Path.cwd()}: name a store, as memory://")


@pytest.fixture(scope="session")
def postgresql_url() -> Iterator[str]:
    """The superuser's URL of a PostgreSQL that runs until the last test. Make a database of your own in it.

    A vacuum that begins by chance holds back what a log shows, so none begins.
    """
    with installed(PostgreSQLServer(settings={"autovacuum_naptime": "1d"})) as server:
        yield server.url


@pytest.fixture
def postgresql_database(postgresql_url: str) -> Iterator[str]:
    """The URL of an empty database that lasts for one test."""
    import psycopg

    name = f"test_{uuid4().hex}"
    with psycopg.connect(postgresql_url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
        yield postgresql_url.rpartition("/")[0] + f"/{name}"
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@pytest.fixture(scope="session")
def _emptied_database(postgresql_url: str) -> Iterator[EmptiedDatabase]:
    from tests.postgresql.emptied import EmptiedDatabase

    with closing(EmptiedDatabase(postgresql_url)) as database:
        yield database


@pytest.fixture
def postgresql_store_url(_emptied_database: EmptiedDatabase) -> str:
    """The URL of an empty store for one test. Its schema is there already: to make it takes longer than most tests."""
    _emptied_database.empty()
    return _emptied_database.url


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """The URL of a Valkey that runs until the last test. Give your stores a prefix of their own."""
    with installed(RedisServer()) as server:
        yield server.url


@pytest.fixture(scope="session")
def nats_url() -> Iterator[str]:
    """The URL of a NATS server with JetStream that runs until the last test. Give your stores a prefix of their own."""
    with installed(NatsServer()) as server:
        yield server.url


@pytest.fixture(scope="session")
def kafka_server() -> Iterator[KafkaServer]:
    """A Kafka broker that runs until the last test. A test that stops it must start it again, which takes seconds."""
    with installed(KafkaServer()) as server:
        yield server


@pytest.fixture(scope="session")
def kafka_url(kafka_server: KafkaServer) -> str:
    """The URL of the Kafka broker. Give your stores a prefix of their own."""
    return kafka_server.url


@pytest.fixture(scope="session")
def kafka_prefixes(kafka_url: str) -> Prefixes:
    """Prefixes for stores on it whose topics are there already: to make them takes longer than most tests."""
    from tests.kafka.prefixes import Prefixes

    return Prefixes(kafka_url)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> None:
    """Cancel an async test shortly before pytest-timeout would end the whole run.

    A stack dump does not show where a coroutine waits; a cancelled test fails alone and its traceback does.
    """
    test = pyfuncitem.obj
    limit = _timeout_of(pyfuncitem)
    if limit == 0 or not inspect.iscoroutinefunction(test):
        return

    @functools.wraps(test)
    async def test_with_deadline(**arguments: object) -> None:
        async with asyncio.timeout(0.8 * limit) as deadline:
            await test(**arguments)
        assert not deadline.expired(), "the test swallowed the cancellation that came with its deadline"

    pyfuncitem.obj = test_with_deadline


def _timeout_of(item: pytest.Function) -> float:
    """Return the seconds that pytest-timeout uses: from marker, command line or pyproject.toml; 0 is none."""
    marker = item.get_closest_marker("timeout")
    if marker is not None:
        return float(marker.args[0] if marker.args else marker.kwargs["timeout"])
    option = item.config.getoption("timeout")
    return float(item.config.getini("timeout") if option is None else option)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes longest, and wait for a broker that must be fetched first, where it was never started."""
    items.sort(key=lambda item: start_order(item.nodeid))
    for item in items:
        uses_kafka = "kafka_server" in getattr(item, "fixturenames", ()) or is_about(item.nodeid, "kafka")
        if uses_kafka and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(KAFKA_SECONDS))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Groups:
    """Say which tests share a process."""
    return Groups(config, log)
