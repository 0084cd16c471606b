"""The options of a worker, as one value."""

from __future__ import annotations

import msgspec

from durabus.errors import ConfigurationError
from durabus.model.claim import DEFAULT_LEASE
from durabus.model.limits import check_batch
from durabus.model.statuses import EventMode
from durabus.store.contract import EventStore
from durabus.worker.poller import POLL_FLOOR


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker claims events. All times are seconds."""

    concurrency: int = 100
    lease: float = DEFAULT_LEASE
    poll_interval: float = POLL_FLOOR
    mode: EventMode = EventMode.PARALLEL

    def check(self, store: EventStore) -> None:
        """Raise ``ConfigurationError`` if no worker on this store can work with these options."""
        check_batch(self.concurrency, "concurrency")
        if not self.lease > max(store.features.minimum_lease, 0):
            raise ConfigurationError(
                f"lease={self.lease!r}: {store.features.scheme}:// needs more than {store.features.minimum_lease:g} s"
            )


DEFAULT_OPTIONS = WorkerOptions()
