"""The pipeline on a standalone Spark cluster: a master and two workers on this host, then one command.

::

    python examples/pipeline_cluster.py [PART]        # or: make demo-cluster

PART is what to run: archive, project, analyze, or all of it (the default). The command is ``durabus pipeline run
--master spark://…``. It ships Delta's jars to the executors. On other hosts, install ``durabus[spark]`` with the same
Python, and use a store and a lake that all of them reach.
"""

import asyncio
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

from durabus import new_event, open_store

LOOPBACK = "127.0.0.1"
EVENTS = 12_000
"""More than one page of the log, so that tasks on both workers read it."""
START_WITHIN = 180.0
SPARK = Path(pyspark.__file__).parent


@contextmanager
def started(role: str, shown: str, place: Path, *arguments: str) -> Iterator[str]:
    """Start a part of Spark, and yield what its log says once it is ready. The process ends with the block."""
    log = place / f"{role}-{len(list(place.glob('*.log')))}.log"
    environment = {**os.environ, "SPARK_HOME": str(SPARK), "SPARK_DAEMON_MEMORY": "256m"}
    command = [str(SPARK / "bin" / "spark-class"), f"org.apache.spark.deploy.{role.lower()}.{role}", *arguments]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)  # noqa: S603  (our own words)
    try:
        until = time.monotonic() + START_WITHIN
        while (found := re.search(shown, log.read_text(encoding="utf-8"))) is None:
            if process.poll() is not None or time.monotonic() > until:
                raise SystemExit(f"Spark's {role} did not start: {log.read_text(encoding='utf-8')[-2000:]}")
            time.sleep(0.1)
        yield found[1]
    finally:
        process.terminate()
        process.wait(60)


async def publish(url: str) -> None:
    store = await open_store(url)
    await store.add_events([new_event("order.placed", {"order": number}) for number in range(EVENTS)])
    await store.close()


def durabus(*arguments: str) -> None:
    command = [sys.executable, "-m", "durabus.cli.main", "pipeline", *arguments]
    subprocess.run(command, check=True)  # noqa: S603  (our own words)


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the cluster ends too
    with tempfile.TemporaryDirectory() as folder, ExitStack() as cluster:
        place = Path(folder)
        (place / "work").mkdir()
        local = ("--host", LOOPBACK, "--webui-port", "0")
        ready = r"Starting Spark master at (spark://\S+)"
        master = cluster.enter_context(started("Master", ready, place, *local, "--port", "0"))
        share = ("--cores", "1", "--memory", "1g", "--work-dir", str(place / "work"), master)
        for _ in range(2):
            ready = r"(Successfully registered with master)"
            cluster.enter_context(started("Worker", ready, place, *local, *share))
        print(f"a cluster with two workers: {re.sub(r'[0-9]+$', 'PORT', master)}", flush=True)
        url, lake = f"sqlite:///{place}/bus.db", ("--lake", str(place / "lake"))
        asyncio.run(publish(url))
        durabus("run", *sys.argv[1:], "--store", url, *lake, "--master", master)
        hosts = {path.parent.name for path in (place / "work").glob("*/*/stderr")}
        print(f"executors: {len(hosts)}", flush=True)
        durabus("sql", "select type, action, count(*) as entries from bronze.event_log group by all", *lake)


if __name__ == "__main__":
    main()
