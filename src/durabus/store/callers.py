"""What a caller may pass as ``connection=…``: a connection of a driver, or of a library that wraps a driver.

This module imports none of these libraries: it recognises a connection by the package that defines its class. The store
uses the driver's connection underneath.
"""

from __future__ import annotations

from typing import Any

from durabus.errors import StoreError

WRAPPED = "a SQLAlchemy Session, AsyncSession, Connection or AsyncConnection over one of them"
"""What every store with ``caller_transactions`` accepts besides the connections of its drivers."""
NO_TRANSACTION = "connection has no open transaction and does not begin one by itself: begin a transaction first"


async def driver_of(connection: object, vendor: str) -> Any:
    """Return the driver's connection behind ``connection``, after the wrapping library has begun its transaction.

    ``vendor`` is Django's name for the database. An object of no known library is returned as it is.
    """
    found: Any = connection
    kinds = {kind.__name__ for kind in type(found).__mro__ if is_from(kind, "sqlalchemy")}
    if kinds & {"scoped_session", "async_scoped_session"}:
        found = found()
        kinds = {kind.__name__ for kind in type(found).__mro__}
    if "AsyncSession" in kinds:
        found = await found.connection()
        kinds = {"AsyncConnection"}
    if "AsyncConnection" in kinds:
        await found.exec_driver_sql("SELECT 1")  # the dialect begins its transaction with the first statement
        return (await found.get_raw_connection()).driver_connection
    if "Session" in kinds:
        found = found.connection()
        kinds = {"Connection"}
    if "Connection" in kinds:
        return found.connection.driver_connection
    if is_from(type(found), "django") and getattr(found, "vendor", None) == vendor:
        return _driver_of_django(found)
    return found


def is_from(kind: type, package: str) -> bool:
    """Return whether a class, or one of its base classes, is defined in a package."""
    return any(base.__module__.partition(".")[0] == package for base in kind.__mro__)


def _driver_of_django(connection: Any) -> Any:
    # attributes, because Django refuses its own methods inside an event loop
    if connection.connection is None or not (connection.in_atomic_block or not connection.autocommit):
        raise StoreError(
            f"{NO_TRANSACTION} (with transaction.atomic(): …), and pass transaction.get_connection(): "
            "inside an event loop, django.db.connection is a different connection"
        )
    return connection.connection
