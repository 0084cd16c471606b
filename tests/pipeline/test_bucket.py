"""A lake in a bucket: one command writes it through ``s3a``, and Polars reads it without Spark."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.request import Request, urlopen

import polars as pl
import pytest
from tests.pipeline.history import history_in

from durabus.jars import ensure_jars, read_lock
from durabus.pipeline.schema import EVENT_LOG
from durabus.pipeline.session import QUICK

JARS = Path(__file__).with_name("jars_s3.lock")
BUCKET = "lake"
TABLES = ("bronze/event_log", "silver/events", "silver/attempts", "gold/activity", "ops/runs", "ops/proofs")

pytestmark = [pytest.mark.processes, pytest.mark.long]


@pytest.fixture
def endpoint() -> Iterator[str]:
    """The address of an S3 server on this host, with an empty bucket."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    address = "http://{}:{}".format(*server.get_host_and_port())
    with urlopen(Request(f"{address}/{BUCKET}", method="PUT")) as made:  # noqa: S310  (our own server)
        assert made.status == 200
    yield address
    server.stop()


def write_settings(folder: Path, endpoint: str) -> None:
    """Write the file in which the users of ``s3a`` tell Spark where the bucket is."""
    settings = QUICK | {
        "spark.jars": ",".join(map(str, ensure_jars(read_lock(JARS.read_text(encoding="utf-8"))))),
        "spark.hadoop.fs.s3a.endpoint": endpoint,
        "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.access.key": "testing",
        "spark.hadoop.fs.s3a.secret.key": "testing",
    }
    (folder / "spark-defaults.conf").write_text("".join(f"{name} {value}\n" for name, value in settings.items()))


def ended(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "durabus.cli.main", "pipeline", *command, "--lake", f"s3a://{BUCKET}/shop"],
        env={**os.environ, "SPARK_CONF_DIR": str(folder)},
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )


def durabus(folder: Path, *command: str) -> str:
    done = ended(folder, *command)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def archive_twice_at_once(folder: Path, url: str) -> list[int]:
    """Start two writers together. Returns the number of entries that each of them has archived.

    The second one waits 35 s for the lock. On a machine with much other work this may be too short; then it is refused.
    """
    command = ("run", "archive", "--store", url, "--json")
    with ThreadPoolExecutor(2) as threads:
        both = [one.result() for one in [threads.submit(ended, folder, *command) for _ in range(2)]]
    for one in both:
        assert one.returncode == 0 or "another run writes the lake" in one.stderr, one.stderr
    steps = [step for one in both if one.returncode == 0 for step in json.loads(one.stdout)["steps"]]
    return [step["rows"] for step in steps if step["step"] == EVENT_LOG.name]


def test_one_command_writes_a_lake_in_a_bucket(tmp_path: Path, url: str, endpoint: str) -> None:
    """Two writers begin the lake at the same time; the lock of the store keeps them apart."""

    async def trade(number: int) -> int:
        async with history_in(url) as history:
            history.clock.advance(1_000.0 * number)
            await history.varied(first=10 * number)
            return await history.store.log_lag("")

    write_settings(tmp_path, endpoint)
    options = {
        "aws_endpoint_url": endpoint,
        "aws_access_key_id": "testing",
        "aws_secret_access_key": "testing",
        "aws_region": "us-east-1",
        "aws_allow_http": "true",
    }

    def rows(table: str) -> pl.DataFrame:
        return pl.scan_delta(f"s3://{BUCKET}/shop/{table}", storage_options=options).collect()

    for number in (1, 2):
        entries = asyncio.run(trade(number))
        if number == 1:
            assert sorted(archive_twice_at_once(tmp_path, url)) in ([entries], [0, entries])
            assert rows("bronze/event_log")["seq"].sort().to_list() == list(range(entries))
        durabus(tmp_path, "run", "--store", url)
        assert rows("bronze/event_log")["seq"].sort().to_list() == list(range(entries))
        assert len(rows("silver/events")) == 7 * number
    assert f"proven complete {entries}" in " ".join(durabus(tmp_path, "prove", "--store", url).split())
    assert all(len(rows(table)) for table in TABLES)
    assert not (tmp_path / "lake").exists(), "nothing was written beside the bucket"
