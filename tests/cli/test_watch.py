"""`stats --watch` reads the counts again and again, and prints what changed in between."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.cli.conftest import Durabus

from durabus import EventQueue, EventStore


@contextmanager
def watching(url: str, *options: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "durabus.cli.main", "stats", "--watch", "--every", "0.1", "--store", url, *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.processes
async def test_watching_prints_rates_as_one_document_a_line(url: str, store: EventStore) -> None:
    queue = EventQueue(store)
    await queue.publish("order.placed")
    with watching(url, "--json") as process:
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        assert (first["counts"]["pending"], first["per_second"]["published"]) == (1, 0.0)
        for _ in range(5):
            await queue.publish("order.placed")
        seen = 0.0
        while seen == 0.0:
            look = json.loads(process.stdout.readline())
            seen = look["per_second"]["published"]
        while look["counts"]["pending"] < 6:
            look = json.loads(process.stdout.readline())
        assert look["capped"] is False
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 130


@pytest.mark.processes
async def test_watching_in_a_pipe_prints_lines(url: str, store: EventStore) -> None:
    await EventQueue(store).publish("order.placed")
    with watching(url) as process:
        assert process.stdout is not None
        head, line = process.stdout.readline(), process.stdout.readline()
        assert head.split()[:4] == ["time", "pending", "in", "flight"]
        assert line.split()[1:] == ["1", "0", "0", *["0.0"] * 5]
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 130


def test_watching_does_not_query_the_store_all_the_time(durabus: Durabus, tmp_path: Path) -> None:
    done = durabus("stats", "--watch", "--every", "0.001")
    assert done.code == 2
    assert "every=0.001" in done.err
