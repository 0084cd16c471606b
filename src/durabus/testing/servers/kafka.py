"""Apache Kafka in KRaft mode with one broker. It needs Java 17 or newer, and Maven the first time."""

from __future__ import annotations

import base64
import hashlib
import shutil
import signal
import uuid
from collections.abc import Sequence
from pathlib import Path

from durabus.errors import JarError, ServerError
from durabus.jars import cache_folder, ensure_jars, read_lock
from durabus.testing.servers.process import LOOPBACK, ServerProcess
from durabus.testing.servers.server import Server

LOCK = Path(__file__).with_name("kafka.lock")
FORMAT_WITHIN = 120.0
MEMORY = ("-Xms64m", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
STARTED = b"Kafka Server started"


class KafkaServer(Server):
    """Kafka. ``settings`` belong to ``server.properties``. It has no password: any local program can use it."""

    kind = "kafka"
    title = "Kafka"
    ports_needed = 2

    @property
    def url(self) -> str:
        """The URL of the broker."""
        return f"kafka://{LOOPBACK}:{self._ports[0]}"

    @classmethod
    def installed(cls) -> bool:
        """Return whether Java is there. The jars are fetched when they are needed."""
        return shutil.which("java") is not None

    @classmethod
    def missing(cls) -> str:
        """Return what to do without Java."""
        return "Kafka needs Java 17 or newer, and there is no java on the path: install a JRE"

    @property
    def _properties(self) -> Path:
        return self.directory / "server.properties"

    def _prepare(self) -> None:
        broker, controller = (f"{LOOPBACK}:{port}" for port in self._ports)
        alone = {
            f"{topic}.{name}": "1"
            for topic in ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic")
            for name in ("replication.factor", "num.partitions", "min.isr")
            if (topic, name) != ("offsets.topic", "min.isr")
        }
        properties = {
            "auto.create.topics.enable": "false",
            # The controller notices soon that a broker was killed, so the broker can start again soon.
            "broker.heartbeat.interval.ms": "500",
            "broker.session.timeout.ms": "2000",
            "group.initial.rebalance.delay.ms": "0",
            "log.cleaner.dedupe.buffer.size": "10485760",
            **alone,
            **self._settings,
            "process.roles": "broker,controller",
            "node.id": "1",
            "listeners": f"PLAINTEXT://{broker},CONTROLLER://{controller}",
            "advertised.listeners": f"PLAINTEXT://{broker}",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": f"1@{controller}",
            "log.dirs": str(self.directory / "data"),
        }
        self._properties.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        if not (self.directory / "data" / "meta.properties").exists():
            self._format()

    def _format(self) -> None:
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "_")
        command = [*_java(), "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(self._properties)]
        tool = ServerProcess(command, log=self.log, end_signal=signal.SIGKILL)
        if tool.wait(FORMAT_WITHIN) != 0:
            raise ServerError(f"Kafka could not make its data folder: {self.last_words()}")

    def _command(self) -> Sequence[str]:
        return [*_java(), "kafka.Kafka", str(self._properties)]

    def _ready(self) -> bool:
        """Return whether the log says that it started. Before, it accepts connections but knows no topic leaders."""
        return STARTED in self.log.read_bytes()[self._log_start :]


def _java() -> list[str]:
    java = shutil.which("java")
    if java is None:
        raise ServerError(KafkaServer.missing())
    return [java, *MEMORY, "-cp", f"{jars_of(LOCK)}/*"]


def jars_of(lock: Path) -> Path:
    """Return the folder with the jars of a lock file. The first call needs Maven, a network and half a minute."""
    folder = cache_folder(f"{lock.stem}-{hashlib.sha256(lock.read_bytes()).hexdigest()[:16]}")
    try:
        ensure_jars(read_lock(lock.read_text(encoding="ascii")), folder)
    except JarError as error:
        raise ServerError(str(error)) from error
    return folder
