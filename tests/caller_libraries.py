"""Connections of callers, from the libraries that every store with ``caller_transactions`` accepts."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import django  # type: ignore[import-untyped]
from django.conf import settings  # type: ignore[import-untyped]
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool

ORDER = "INSERT INTO orders VALUES (7)"
Finish = Callable[[], Awaitable[None]]


class Mine:
    """A caller's connection with its transaction begun and an order in it."""

    def __init__(self, connection: object, commit: Finish, rollback: Finish) -> None:
        self.connection = connection
        self.commit = commit
        self.rollback = rollback


def later(call: Callable[[], object]) -> Finish:
    async def finish() -> None:
        call()

    return finish


@asynccontextmanager
async def sqlalchemy_connection(url: str) -> AsyncIterator[Mine]:
    engine = create_engine(url, poolclass=NullPool)
    with engine.connect() as connection:
        connection.execute(text(ORDER))
        yield Mine(connection, later(connection.commit), later(connection.rollback))


@asynccontextmanager
async def sqlalchemy_session(url: str) -> AsyncIterator[Mine]:
    engine = create_engine(url, poolclass=NullPool)
    with Session(engine) as session:
        session.execute(text(ORDER))
        yield Mine(session, later(session.commit), later(session.rollback))


@asynccontextmanager
async def sqlalchemy_scoped_session(url: str) -> AsyncIterator[Mine]:
    engine = create_engine(url, poolclass=NullPool)
    session = scoped_session(sessionmaker(engine))
    session.execute(text(ORDER))
    yield Mine(session, later(session.commit), later(session.rollback))
    session.remove()


@asynccontextmanager
async def sqlalchemy_async_connection(url: str) -> AsyncIterator[Mine]:
    engine = create_async_engine(url, poolclass=NullPool)
    async with engine.connect() as connection:
        await connection.execute(text(ORDER))
        yield Mine(connection, connection.commit, connection.rollback)


@asynccontextmanager
async def sqlalchemy_async_session(url: str) -> AsyncIterator[Mine]:
    engine = create_async_engine(url, poolclass=NullPool)
    async with AsyncSession(engine) as session:
        await session.execute(text(ORDER))
        yield Mine(session, session.commit, session.rollback)


@asynccontextmanager
async def sqlalchemy_async_scoped_session(url: str) -> AsyncIterator[Mine]:
    engine = create_async_engine(url, poolclass=NullPool)
    session = async_scoped_session(async_sessionmaker(engine), scopefunc=asyncio.current_task)
    await session.execute(text(ORDER))
    yield Mine(session, session.commit, session.rollback)
    await session.remove()


def django_database(alias: str, **database: Any) -> Any:
    """Make a database known under an alias; returns this thread's connection to it, not opened yet."""
    if not settings.configured:
        settings.configure()
        django.setup()
    from django.db import connections  # type: ignore[import-untyped]

    connections.settings[alias] = connections.configure_settings({"default": {}, alias: database})[alias]
    return connections[alias]


@asynccontextmanager
async def django_without_autocommit(wrapper: Any) -> AsyncIterator[Mine]:
    # Django refuses its own calls inside an event loop, so they are made in a thread, as sync_to_async does.
    wrapper.inc_thread_sharing()

    def begin() -> None:
        wrapper.connect()
        wrapper.set_autocommit(False)
        with wrapper.cursor() as cursor:
            cursor.execute(ORDER)

    await asyncio.to_thread(begin)

    async def commit() -> None:
        await asyncio.to_thread(wrapper.commit)

    async def rollback() -> None:
        await asyncio.to_thread(wrapper.rollback)

    yield Mine(wrapper, commit, rollback)
    await asyncio.to_thread(wrapper.close)
