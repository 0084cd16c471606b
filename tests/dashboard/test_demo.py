"""The demo that stays: traffic flows, the dashboard is served, and the end leaves nothing behind."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

pytestmark = [pytest.mark.processes, pytest.mark.slow]

DEMO = [sys.executable, "-m", "durabus.cli.main", "demo"]


def published(url: str) -> int:
    found = re.search(r"<dd class=\"sub\">([\d,]+) in \S+", httpx2.get(url).text.partition("<dt>Published</dt>")[2])
    assert found
    return int(found[1].replace(",", ""))


def test_the_demo_shop_stays_open_until_a_signal(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [*DEMO, "--stay", "--orders", "20"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        told = ""
        for line in demo.stdout:
            told += line
            if "Ctrl-C stops everything" in line:
                break
        assert "nothing lost" in told
        (url, again) = re.findall(r"dashboard: (\S+)", told)
        assert url == again
        before = published(url)
        while published(url) <= before:
            assert demo.poll() is None
        demo.send_signal(signal.SIGTERM)
        rest, _ = demo.communicate(timeout=30)
    assert "closed" in rest
    assert demo.returncode == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(httpx2.ConnectError):
        httpx2.get(url)
