"""The proof of the store contract. Every store runs it, ours and yours.

::

    class TestMyStore(StoreConformance):
        async def open_store(self, place: Path, clock: ManualClock) -> EventStore:
            return await open_store(f"mine:///{place}/test.db", clock=clock)

Each test's docstring is the sentence of the law that it proves. The suite also tests that a store refuses what its
``features`` decline. ``durabus.testing.conformance.differential`` runs random commands on two stores and compares every
reply.
"""

from pkgutil import iter_modules

try:
    import pytest
except ImportError as error:
    raise ImportError(
        "durabus.testing.conformance runs on pytest and its anyio plugin: pip install pytest anyio"
    ) from error

# This precedes the imports, so that a failing assert shows its values also outside a test folder.
pytest.register_assert_rewrite(*(f"{__name__}.{part.name}" for part in iter_modules(__path__)))

from durabus.testing.conformance.lab import CallerTransaction, Lab  # noqa: E402
from durabus.testing.conformance.suite import StoreConformance  # noqa: E402

__all__ = ["CallerTransaction", "Lab", "StoreConformance"]
