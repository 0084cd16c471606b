"""The worker of bash and curl in examples/ completes work."""

import os
import shutil
import subprocess
from pathlib import Path

import httpx2
import pytest
from tests.api.support import Server

from durabus.http import TokenFile
from durabus.http.auth.access import Scope

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "curl_worker.sh"

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl on this machine")
def test_the_curl_worker_completes_work_and_reports_failures(tmp_path: Path) -> None:
    tokens = TokenFile(tmp_path / "tokens.json")
    _, token = tokens.create("all", [Scope.ADMIN])
    with Server(f"sqlite:///{tmp_path}/curl.db", "--tokens", str(tokens.path)) as server:
        http = httpx2.Client(base_url=server.url, headers={"Authorization": f"Bearer {token}"}, timeout=30)
        payloads = [{"n": 1, "text": 'quote " and é'}, {"n": 2}, "fail"]
        ids = [
            http.post("/events", json={"title": "job", "tags": "shell,other", "payload": payload}).json()["id"]
            for payload in payloads
        ]
        log = tmp_path / "done"
        work = f"cat >> {log}; if tail -c 6 {log} | grep -q fail; then echo 'no \"luck\"' >&2; exit 3; fi"
        done = subprocess.run(
            [str(SCRIPT), server.url, "shell", "sh", "-c", work],
            env={**os.environ, "ONCE": "1", "TOKEN": token},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        events = [http.get(f"/events/{id_}?include_logs=true").json() for id_ in ids]
        http.close()
    assert [event["status"] for event in events] == ["COMPLETED", "COMPLETED", "PENDING"]
    assert [entry["action"] for entry in events[0]["logs"]] == ["PICKED", "STARTED", "COMPLETED"]
    last = events[2]["logs"][-1]
    assert (last["action"], last["status_code"], last["error_message"]) == ("FAILED", 3, 'no "luck"\n')
    assert log.read_text().startswith('{"n": 1, "text": "quote \\" and \\u00e9"}{"n": 2}"fail"')
    assert token not in done.stdout + done.stderr
