"""Finds Chromium. `make` runs this module, which installs Debian's package if the browser is absent."""

import os
import shutil
import subprocess
import sys

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
PACKAGES = ("chromium", "fonts-dejavu-core")
MISSING = "Chromium is not installed here: apt-get install chromium"


def chromium() -> str:
    """The path of the browser. Without it a laptop skips the test; under `make` and in CI the test fails."""
    found = _found()
    if found is not None:
        return found
    if os.environ.get("CI") or os.environ.get("DURABUS_REQUIRE_SERVERS"):
        pytest.fail(MISSING)
    pytest.skip(MISSING)


def _found() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name)) is not None), None)


def install() -> str:
    """Install the browser if it is absent, this is Debian and this user may. Returns what went wrong, or nothing.

    This runs once, before the tests: several processes of tests would wait for each other's lock on the packages.
    """
    apt = shutil.which("apt-get")
    if _found() is not None or apt is None or os.geteuid() != 0:
        return ""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    waiting = ["-o", "DPkg::Lock::Timeout=300"]  # another program of this machine may be installing packages
    for command in (["update"], ["install", *waiting, "--yes", "--no-install-recommends", *PACKAGES]):
        done = subprocess.run([apt, *command], env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            return f"apt-get {command[0]} failed: {done.stderr[-1000:]}"
    return ""


if __name__ == "__main__":
    sys.exit(install() or None)
