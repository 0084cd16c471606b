"""A disk that is full: one clear line, and the next run goes on."""

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from durabus import new_event, open_store
from durabus.model.claim import ClaimRequest, new_token
from durabus.model.settlement import Complete

IN_A_SMALL_DISK = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-eu", "-c"]
"""A mount that only the script sees, made without being root."""
MOUNT = 'mount -t tmpfs -o size=512k none lake; exec "$@"'
TWICE = """
import subprocess, sys
from durabus.cli.main import main
assert main(sys.argv[1:]) == 1
subprocess.run(["mount", "-o", "remount,size=64m", "lake"], check=True)
sys.exit(main(sys.argv[1:]))
"""
"""The same command before and after the disk has grown. In one process: a second Java would take as long again."""


def can_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    tried = subprocess.run([*IN_A_SMALL_DISK, "mount -t tmpfs none /mnt"], capture_output=True, check=False)
    return tried.returncode == 0


@pytest.mark.long
@pytest.mark.processes
@pytest.mark.skipif(not can_mount(), reason="the kernel lets nobody but root mount")
async def test_a_full_disk_is_one_clear_line_and_the_next_run_goes_on(tmp_path: Path, url: str) -> None:
    rnd = random.Random(1)
    store = await open_store(url)
    await store.add_events([new_event("order.placed", {"note": rnd.randbytes(4_000).hex()}) for _ in range(300)])
    request = ClaimRequest(bus="default", worker_id="host:1", token=new_token(), limit=300)
    await store.settle_events([Complete(claim.ref) for claim in await store.claim_next_events(request)])
    await store.close()
    os.makedirs(tmp_path / "lake")  # noqa: PTH103  (blocking, and meant)
    command = [sys.executable, "-c", TWICE, "pipeline", "run", "archive", "--store", url]
    done = subprocess.run(  # noqa: ASYNC221  (blocking, and meant)
        [*IN_A_SMALL_DISK, MOUNT, "sh", *command],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert "Traceback" not in done.stderr
    first = lines[: lines.index("starting Spark …", 1)]
    (told,) = [line for line in first if "No space left" in line]
    assert told.startswith("  archiving stopped: No space left on device: free some where the lake is")
    assert [line.split()[:3] for line in lines if line.startswith("verify")] == [["verify", "900", "rows"]]
