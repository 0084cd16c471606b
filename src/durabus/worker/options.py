"""What a worker can be asked for."""

from __future__ import annotations

from durabus.errors import ConfigurationError
from durabus.model.limits import check_batch
from durabus.store.contract import EventStore


def check_options(store: EventStore, concurrency: int, lease: float) -> None:
    """Refuse what no worker on this store can do."""
    check_batch(concurrency, "concurrency")
    if not lease > max(store.features.minimum_lease, 0):
        raise ConfigurationError(
            f"lease={lease!r}: {store.features.scheme}:// needs more than {store.features.minimum_lease:g} s"
        )
