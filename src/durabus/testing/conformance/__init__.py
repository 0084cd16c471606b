"""The proof of the store contract, for every back end, ours and yours.

::

    class TestMyStore(StoreConformance):
        async def open_store(self, place: Path, clock: ManualClock) -> EventStore:
            return await open_store(f"mine:///{place}/test.db", clock=clock)

Each test's docstring is the sentence of the law that it proves. What a store's ``features`` decline is tested to be
refused. ``durabus.testing.conformance.differential`` runs random commands on two stores and compares every answer.
"""

try:
    import pytest
except ImportError as error:
    raise ImportError(
        "durabus.testing.conformance runs on pytest and its anyio plugin: pip install pytest anyio"
    ) from error

_PARTS = (
    "caller_transactions",
    "claims",
    "commands",
    "dead_letters",
    "dedupe",
    "differential",
    "events",
    "expiry",
    "handler_claims",
    "handler_results",
    "lab",
    "late_settlements",
    "lifecycle",
    "locks",
    "log",
    "log_entries",
    "log_pieces",
    "modes",
    "order",
    "paging",
    "registrations",
    "repeatable_calls",
    "repeats",
    "settlement",
    "sides",
    "signals",
    "stale_writers",
    "trim",
    "trim_log",
)
# Before the parts are imported, so that a failing assert shows its values also outside a test folder.
pytest.register_assert_rewrite(*(f"{__name__}.{part}" for part in _PARTS))

from durabus.testing.conformance.lab import CallerTransaction, Lab  # noqa: E402
from durabus.testing.conformance.suite import StoreConformance  # noqa: E402

__all__ = ["CallerTransaction", "Lab", "StoreConformance"]
