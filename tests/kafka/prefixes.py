"""Prefixes on a broker whose topics are there already."""

from uuid import uuid4

from confluent_kafka.admin import AdminClient

from durabus.stores.kafka.layout import KEPT, LARGEST, ROOM, KafkaLayout
from durabus.stores.kafka.store import place as place_of
from durabus.stores.kafka.topics import QUIET, Topics

PREFIXES_AT_ONCE = 25


class Prefixes:
    """Gives each test a prefix. The topics of many prefixes are made at once, which is nearly as fast as for one."""

    def __init__(self, url: str) -> None:
        client = place_of(url).client
        self._topics = Topics(client, KafkaLayout("conformance"), replication=-1, timeout=60.0)
        self._admin = AdminClient({**client, **QUIET})
        self._fresh: list[str] = []
        self._used: list[str] = []

    def take(self) -> str:
        """Return a prefix that no test has had before."""
        if not self._fresh:
            self._change()
        self._used.append(self._fresh.pop())
        return self._used[-1]

    def _change(self) -> None:
        if self._used:
            # This does not wait: no test uses the names again, and the broker takes its time.
            self._admin.delete_topics([name for prefix in self._used for name in lanes(prefix)])
            self._used.clear()
        self._fresh = [f"t{uuid4().hex}" for _ in range(PREFIXES_AT_ONCE)]
        settings = {**KEPT, "max.message.bytes": str(LARGEST + ROOM)}
        self._topics.make({name: settings for prefix in self._fresh for name in lanes(prefix)})


def lanes(prefix: str) -> tuple[str, str]:
    return KafkaLayout(prefix).control, KafkaLayout(prefix).public
