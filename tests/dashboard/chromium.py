"""Finds Chromium. Debian's package has it; `make` installs that if it is absent."""

import os
import shutil
import subprocess

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
MISSING = "Chromium is not installed here: apt-get install chromium"


def chromium() -> str:
    """The path of the browser. Without it a laptop skips the test; `make` and CI install it or fail."""
    found = _found()
    if found is None and _required():
        _install()
        found = _found()
    if found is not None:
        return found
    if _required():
        pytest.fail(MISSING)
    pytest.skip(MISSING)


def _found() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name)) is not None), None)


def _required() -> bool:
    return bool(os.environ.get("CI") or os.environ.get("DURABUS_REQUIRE_SERVERS"))


def _install() -> None:
    """Install it from Debian's packages, if this is Debian and this user may."""
    apt = shutil.which("apt-get")
    if apt is None or os.geteuid() != 0:
        return
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update"], ["install", "--yes", "--no-install-recommends", "chromium", "fonts-dejavu-core"]):
        done = subprocess.run([apt, *command], env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.fail(f"apt-get {command[0]} failed: {done.stderr[-1000:]}")
