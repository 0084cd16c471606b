"""The store for ``kafka://``: the replicated log on two topics."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from durabus.clock import Clock
from durabus.errors import ConfigurationError
from durabus.store.features import Features
from durabus.store.processes import RENEWED_EVERY
from durabus.stores.kafka.layout import KafkaLayout
from durabus.stores.kafka.transport import KafkaTransport
from durabus.stores.replicated_log.options import Options, options_from_url
from durabus.stores.replicated_log.store import ReplicatedLogStore

FEATURES = Features(
    scheme="kafka",
    survives_process_kill=True,
    survives_power_loss=False,  # one broker acknowledges from its page cache; several with min.insync.replicas=2 do
    shared_between_processes=True,
    caller_transactions=False,
    manual_clock=True,
    ordering_keys=True,
    claims_by_event_id=True,
    sees_ended_processes=True,
    presence_renewed_every=RENEWED_EVERY,
    minimum_lease=1.0,  # a renewal must travel to the broker and back in time
)
DRIVER = "client."
MOST_REPLICAS = 9


class KafkaStore(ReplicatedLogStore):
    """A store on Kafka. ``kafka://host:9092,host2:9092?prefix=shop&replication=3&client.security.protocol=SSL``.

    ``client.…`` options are passed to librdkafka as they are.
    """

    @classmethod
    def from_url(cls, url: str, clock: Clock | None = None) -> KafkaStore:
        """Return the store for ``url``. It is not open yet."""
        client, options, replication = place(url)
        transport = KafkaTransport(
            client, KafkaLayout(options.prefix), replication=replication, timeout=options.timeout
        )
        return cls(transport, options, FEATURES, clock)


class KafkaAddress(NamedTuple):
    """A parsed URL."""

    client: dict[str, str]
    """The options for librdkafka."""
    options: Options
    replication: int


def place(url: str) -> KafkaAddress:
    """Read and check a URL."""
    parts = urlsplit(url)
    given = dict(parse_qsl(parts.query))
    driver = {name: value for name, value in given.items() if name.startswith(DRIVER)}
    options = options_from_url(url, {"replication": "copies of each topic", **dict.fromkeys(driver, "")})
    replication = given.get("replication", "-1")
    if replication != "-1" and not (replication.isdigit() and 1 <= int(replication) <= MOST_REPLICAS):
        raise ConfigurationError(f"replication={replication!r}: a whole number from 1 to {MOST_REPLICAS}")
    if not parts.netloc or "@" in parts.netloc:
        raise ConfigurationError(
            "kafka: write kafka://host:9092, several brokers with commas; a user goes to client.sasl.username, "
            "a password to client.sasl.password"
        )
    client = {"bootstrap.servers": unquote(parts.netloc)}
    client |= {name.removeprefix(DRIVER): value for name, value in driver.items()}
    return KafkaAddress(client, options, int(replication))
