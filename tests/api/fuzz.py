"""``python -m tests.api.fuzz [EXAMPLES]``: schemathesis over the OpenAPI document, every phase, on a real server.

Fails if a request led to a 5xx or to a response that is not as documented.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import httpx2
from tests.api.support import Server

from durabus.http import TokenFile
from durabus.http.auth.access import Scope

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = 200
"""Examples for each operation; some 10,000 requests in all."""
AT_LEAST = 5_000
TAIL = "/events/tail"
"""The tail never ends, so schemathesis leaves it out. It has tests of its own."""
PHASES = "examples,coverage,fuzzing,stateful"
COUNTED = re.compile(r"^durabus_http_requests_total\{.*\} (\S+)$", re.MULTILINE)


def fuzz(
    store: str, folder: Path, examples: int, phases: str = PHASES, *, seed: int | None = None
) -> tuple[int, str, int]:
    """Return the exit code, the report, and the number of requests. The same seed makes the same requests."""
    tokens = TokenFile(folder / "tokens.json")
    _, token = tokens.create("fuzz", [Scope.ADMIN])
    with Server(store, "--tokens", str(tokens.path), "--max-wait", "0.01") as server:
        command = [str(Path(sys.executable).with_name("schemathesis")), "run", f"{server.url}/openapi.json"]
        command += ["--header", f"Authorization: Bearer {token}", "--exclude-path", TAIL, "--phases", phases]
        command += ["--max-examples", str(examples), "--checks", "all", "--no-color", "--request-timeout", "60"]
        command += ["--suppress-health-check", "all", *(() if seed is None else ("--seed", str(seed)))]
        environment = {**os.environ, "SCHEMATHESIS_HOOKS": "tests.api.fuzz_hooks", "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        report = done.stdout + done.stderr + "".join(server.errors)
        metrics = httpx2.get(f"{server.url}/metrics", headers={"Authorization": f"Bearer {token}"}).text
        count = sum(int(float(number)) for number in COUNTED.findall(metrics))
    return done.returncode, report, count


def main() -> int:
    examples = int(sys.argv[1]) if len(sys.argv) > 1 else EXAMPLES
    with tempfile.TemporaryDirectory(prefix="durabus-fuzz-") as name:
        folder = Path(name)
        code, report, count = fuzz(f"sqlite:///{folder}/fuzz.db", folder, examples)
    sys.stdout.write(f"{report}\n{count:,} requests\n")
    return code or int(examples >= EXAMPLES and count < AT_LEAST)


if __name__ == "__main__":
    sys.exit(main())
