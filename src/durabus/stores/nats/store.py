"""The store for ``nats://``: the replicated log on JetStream."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlsplit

from durabus.clock import Clock
from durabus.errors import ConfigurationError
from durabus.store.features import Features
from durabus.store.processes import RENEWED_EVERY
from durabus.stores.nats.layout import NatsLayout
from durabus.stores.nats.transport import NatsTransport
from durabus.stores.replicated_log.options import options_from_url
from durabus.stores.replicated_log.store import ReplicatedLogStore

FEATURES = Features(
    scheme="nats",
    survives_process_kill=True,
    survives_power_loss=False,  # writes reach the disk within two minutes, unless the server has sync_interval: always
    shared_between_processes=True,
    caller_transactions=False,
    manual_clock=True,
    ordering_keys=True,
    claims_by_event_id=True,
    sees_ended_processes=True,
    presence_renewed_every=RENEWED_EVERY,
    minimum_lease=0.5,  # a renewal must travel to the broker and back in time
)
REPLICAS = {"replicas": "copies of each stream"}
MOST_REPLICAS = 5


class NatsStore(ReplicatedLogStore):
    """A store on a NATS server with JetStream. ``nats://user:password@host:4222?prefix=shop&replicas=3``."""

    @classmethod
    def from_url(cls, url: str, clock: Clock | None = None) -> NatsStore:
        """Return the store for ``url``. It is not open yet."""
        options = options_from_url(url, REPLICAS)
        replicas = dict(parse_qsl(urlsplit(url).query)).get("replicas", "1")
        if not replicas.isdigit() or not 1 <= int(replicas) <= MOST_REPLICAS:
            raise ConfigurationError(f"replicas={replicas!r}: a whole number from 1 to {MOST_REPLICAS}")
        layout = NatsLayout(options.prefix)
        transport = NatsTransport(server_url(url), layout, replicas=int(replicas), timeout=options.timeout)
        return cls(transport, options, FEATURES, clock)


def server_url(url: str) -> str:
    """Return the URL without the options, for the driver."""
    return urlsplit(url)._replace(query="", path="").geturl()
